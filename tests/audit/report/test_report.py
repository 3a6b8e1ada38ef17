"""Promises of the audit report."""

import base64
import html as entities
import io
import re
from dataclasses import replace
from functools import cache

import matplotlib
import numpy as np
import pytest
from browser import Chromium, find_chromium, serving
from html_page import Page
from matplotlib.image import imread
from results import CONTROLS, POLICY, WHOLE, audited, of_targets

from safexplain.audit.report import outcome
from safexplain.audit.report.outcome import render, write_report
from safexplain.audit.report.root_cause import Ablation, sentence
from safexplain.audit.report.tables import Configuration, Pictures, ReportData, Scale, attack_tables, target_table
from safexplain.audit.usefulness import Utility
from safexplain.faithfulness import Faithfulness
from safexplain.verdict import words as phrases
from safexplain.verdict.judgement import Control
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

LEAK, INCONCLUSIVE = 2.5, 0.93
"""Leaks of explanations that add far more than the policy allows, and about as much as it allows."""

STANDS = {"above": "above the limit", "below": "within the limit", "open": "undecided"}


def native(leak=LEAK, policy=POLICY):
    return Configuration("native", "Hardening()", audited(leak, policy))


def hardened(leak=0.0, policy=POLICY):
    utility = Utility(0.87, 0.1, 0.613, -0.2, 0.99, 0.01, 0.04)
    return Configuration("recommended", "Hardening(clip=UnitNorm())", audited(leak, policy), utility)


def alone(result):
    """A report of one result and nothing else."""
    return report(Configuration("native", "", result), pictures=None)


def text_of(result, **changes):
    """What a report of one result says."""
    return " ".join(Page(render(replace(alone(result), **changes))).text.split())  # type: ignore[arg-type]


def pictures():
    images, maps, noise = np.random.default_rng(1).normal(size=(3, 3, 1, 8, 8))
    return Pictures(images, maps, maps + noise, tuple(f"predicted {i} · member" for i in range(3)))


def report(*configurations, **changes):
    plain = ReportData(
        title="digits MLP",
        explainer="InputXGradient of the predicted probability",
        configurations=configurations or (native(), hardened()),
        provenance={"model": "sha256:" + "0123456789abcdef" * 4, "seed": "0", "command": "safexplain-audit model.pt"},
        pictures=pictures(),
        notes=("The noise key was drawn by this process.",),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@cache
def standard():
    return render(report())


def body(html):
    return html[html.index("<body") :]


def test_the_file_is_self_contained():
    html = standard()
    page = Page(html)
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in re.sub(r"url\(#\w+\)", "", html)
    assert "@import" not in html
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        assert not [a for a in attributes if a.startswith("on")]
        assert str(attributes.get("src", "data:")).startswith("data:"), tag
        assert str(attributes.get("href", "#")).startswith("#"), tag
    policies = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_tags_nest_and_what_is_not_there_has_no_section():
    many = Page(render(report(native(), hardened(0.3), hardened())))
    alone_ = Page(render(report(native(), pictures=None)))
    for page in (many, alone_):
        assert not page.unbalanced
        assert not page.stack
    for section in ("for comparison", "What hardening costs", "What the explanations look like"):
        assert section in many.text
        assert section not in alone_.text
    assert sum(a.get("class") == "roc" for _, a in alone_.tags) == 1


@pytest.mark.parametrize(
    ("leak", "verdict", "word"),
    [(0.0, "certified", "Certified"), (LEAK, "leak", "Leak proven"), (INCONCLUSIVE, "inconclusive", "Inconclusive")],
)
def test_the_verdict_comes_first_in_words(leak, verdict, word):
    last = hardened(leak)
    assert last.result.verdict == verdict
    html = render(report(native(), last))
    shown = entities.unescape(body(html))
    assert f"<title>{word} · " in html
    first = min(
        shown.index(f"</svg>{w}</span>") for w in ("Certified", "Leak proven", "Inconclusive") if f"</svg>{w}<" in shown
    )
    assert shown.startswith(f"</svg>{word}</span>", first)
    assert first < shown.index(last.result.sentence) < shown.index("<table") < shown.index("<h2>")
    assert f'<section class="verdict {verdict}"' in shown


@pytest.mark.parametrize("policy", [POLICY, WHOLE])
def test_the_last_configuration_gives_the_verdict_and_the_first_is_compared(policy):
    html = render(report(native(policy=policy), hardened(policy=policy)))
    top = Page(html[html.index('<ol class="chain"') : html.index("</ol>")]).text
    before, after = top.split("→")
    for text, c, name, word in (
        (before, native(policy=policy), "Native explanation", "Leak proven"),
        (after, hardened(policy=policy), "Recommended hardening", "Certified"),
    ):
        best = c.result.strongest
        said = f"{100 * c.result.excess(best):+.1f}" if policy is POLICY else f"{best.found / c.result.members:.1%}"
        assert name in text
        assert word in text
        assert said in text


def test_three_numbers_stand_side_by_side_at_every_level():
    found = audited(INCONCLUSIVE)
    page = Page(render(alone(found)))
    rows = [r for r in page.rows if "Once" in r or " times" in r][:3]
    assert [r.split()[0] for r in rows] == ["Once", "5", "200"]
    for row, line in zip(rows, found.levels, strict=True):
        labels, added, whole = line["labels"], line["added"], line["whole"]
        for said in (
            f"{labels['tpr']:.1%}",
            f"{100 * labels['low']:.1f}–{100 * labels['high']:.1f}%",
            f"{100 * added['low']:+.1f} to {100 * added['high']:+.1f}".replace("-", "−"),
            f"{100 * whole['low']:.1f}–{100 * whole['high']:.1f}%",
        ):
            assert said in row, (said, row)


def test_precision_is_given_where_1_and_10_percent_of_the_candidates_are_members():
    """Against a count of candidates: of 100,000, so many members and non-members are flagged."""
    found = audited(LEAK)
    tpr = found.strongest.found / found.members
    for members, share in ((1_000, "1%"), (10_000, "10%")):
        right, wrong = members * tpr, (100_000 - members) * 0.1
        said = f"{share} of the candidates are members" if share == "1%" else "if 10% are"
        assert re.search(rf"{said}, {right / (right + wrong):.1%}", text_of(found))


def test_a_level_that_the_signals_lack_says_that_nothing_was_judged():
    found = audited(0.0, replace(POLICY, patience=(1,)))
    found = replace(found, policy=POLICY)
    assert found.missing == (5, 200)
    text = text_of(found)
    assert text.count("nothing to judge") == 6
    assert "The signals do not cover 5 times or 200 times." in text


def test_every_judged_attack_appears_with_its_numbers():
    data = report()
    rows = Page(render(data)).rows
    for configuration in data.configurations:
        found = configuration.result
        assert len(found.judged) == 21
        for attack in found.judged:
            low, high = found.bounds(attack)
            added = found.added(attack)
            assert added is not None
            numbers = [f"{attack.auc:.3f}", f"{attack.found / found.members:.1%}", f"{100 * low:.1f}–{100 * high:.1f}%"]
            numbers += [f"{100 * found.excess(attack):+.1f}", f"{100 * added[0]:+.1f} to {100 * added[1]:+.1f}"]
            row = [
                r for r in rows if attack.code in r and all(n.replace("-", "−") in r.replace("-", "−") for n in numbers)
            ]
            assert row, (configuration.name, attack.code, numbers)


def test_attacks_that_are_not_judged_say_so_and_stand_out_where_they_find_more_than_is_allowed():
    found = audited(LEAK)
    assert found.beyond
    beyond = {e.signal for e in found.beyond}
    for row in Page(render(alone(found))).rows:
        if "on loss" in row:
            assert "not judged" in row
            assert ("not judged, and above the limit" in row) == any(f"on {signal} " in f"{row} " for signal in beyond)
            assert "within the limit" not in row
        if "LabelPatience on" in row:
            assert "released anyway" in row
    calm = audited(0.0)
    assert not [e for e in calm.beyond if e.role == "explanation"]


def test_the_weak_attacks_are_folded_away_but_there():
    found = audited(LEAK)
    (table,), html = attack_tables([Configuration("native", "", found)]), render(alone(found))
    assert {row.title for g in table.groups for row in (*g.shown, *g.folded)} == {a.code for a in found.attacks}
    section = html[html.index("What the attacks found") :]
    visible, hidden = section.split("<details>")[0], section.split("<details>")[1].split("</details>")[0]
    for group in table.groups:
        assert all(f"<small>{row.title}</small>" in visible for row in group.shown)
        assert all(f"<small>{row.title}</small>" in hidden for row in group.folded)
    folded = sum(len(g.folded) for g in table.groups)
    assert table.folded_sentence.startswith(f"{folded} more attacks: ")
    assert any(row.strongest for g in table.groups for row in g.shown)
    assert "<summary>" not in render(alone(audited(LEAK, few=5)))


def test_bars_of_every_standing_have_a_colour():
    for kind in (*phrases.STANDINGS, "cause"):
        assert re.search(rf"\.{kind}\b[^{{}}]*{{ --mark: var\(", standard()), kind


@pytest.mark.parametrize("policy", [POLICY, WHOLE])
def test_each_row_says_in_words_how_it_stands_to_the_limit(policy):
    seen = set()
    for leak in (0.0, INCONCLUSIVE, LEAK):
        found = audited(leak, policy)
        rows = Page(render(alone(found))).rows
        for attack in found.judged:
            low, high = found.decisive[attack.code]
            kind = "above" if low > found.limit else "below" if high <= found.limit else "open"
            seen.add(kind)
            assert any(f"{attack.code} " in f"{r} " and STANDS[kind] in r for r in rows)
    assert seen == set(STANDS)


def test_an_incomplete_suite_and_the_reason_of_a_policy_are_said():
    said = text_of(audited(0.0, replace(POLICY, reason="agreed with the works council."), omitted=("RMIA", "Stacked")))
    assert "The suite is incomplete: RMIA, Stacked fit these signals but were not run." in said
    assert "Why this policy: agreed with the works council." in said


def test_several_targets_have_a_line_each_and_the_most_exposed_one_is_shown_in_full():
    found = of_targets(0.0, INCONCLUSIVE, LEAK, 0.0)
    assert found.target == 2
    rows = [r for r in Page(render(alone(found))).rows if re.match(r"\s*model \d", r)]
    assert [" ".join(r.split())[:7] for r in rows] == [f"model {i}" for i in range(4)]
    words = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}
    for row, one in zip(rows, sorted((found, *found.others), key=lambda r: r.target or 0), strict=True):
        low, high = one.decisive[one.strongest.code]  # type: ignore[attr-defined]
        assert words[one.own_verdict] in row
        assert f"{100 * low:+.1f} to {100 * high:+.1f}".replace("-", "−") in row
        assert ("shown in full" in row) == (one is found)
    assert "Leak proven for model 2: " in text_of(found)
    assert target_table(audited(0.0)) is None
    assert "Each model on its own" not in text_of(audited(0.0))


def test_parts_of_the_members_are_shown_with_intervals_the_most_exposed_first():
    found = audited(LEAK, parts=12)
    (table,) = found.slices
    page = Page(render(alone(found)))
    assert "Who is exposed most" in page.text
    rows = [r for r in page.rows if f"{table.rows[0].members:,}" in r]
    at = []
    for part in table.rows:
        numbers = (f"{part.rate:.1%}", f"{100 * part.low:.1f}–{100 * part.high:.1f}%", f"{part.members:,}")
        hits = [i for i, r in enumerate(page.rows) if r.split()[:1] == [part.value] and all(n in r for n in numbers)]
        assert hits, part
        at += hits
    assert at == sorted(at)
    assert rows
    assert "Who is exposed most" not in text_of(audited(LEAK))


def test_members_are_listed_only_where_they_were_asked_for():
    text = text_of(audited(LEAK, parts=4, exposed=3))
    assert "3 most exposed members" in text
    assert "only the owner of the data should see it" in text
    assert "most exposed member" not in text_of(audited(LEAK, parts=4))


def test_no_string_from_outside_can_inject_html():
    def evil(place):
        return f'<img src=x alt="{place}" onerror="alert(1)"></title></style>\'{{{{ 7*7 }}}}'

    found = replace(audited(), controls=(Control(evil("control"), True, evil("says"), {evil("number"): 1.0}),))
    last = replace(hardened(), result=found, name=evil("name"), description=evil("description"))
    data = report(
        last,
        title=evil("title"),
        explainer=evil("explainer"),
        notes=(evil("note"),),
        provenance={evil("key"): "v", "model": evil("value"), "command": evil("command")},
        pictures=replace(pictures(), captions=(evil("caption"), "b", "c")),
        root_cause=(replace(ABLATIONS[0], name=evil("ablation")), *ABLATIONS[1:]),
        root_cause_sentence=evil("sentence"),
    )
    html = render(data)
    shown = set(re.findall(r"&lt;img src=x alt=&#34;(\w+)&#34;", html))
    assert shown >= {"title", "explainer", "note", "name", "description", "key", "value", "command", "caption"}
    assert shown >= {"control", "says", "ablation", "sentence"}
    assert "<img src=x" not in html
    assert "{{ 7*7 }}" in html
    page = Page(html)
    assert not page.unbalanced
    assert not [a for _, a in page.tags if "onerror" in a]


def test_the_same_input_gives_the_same_bytes_whatever_matplotlib_is_set_to():
    first = render(report())
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context(
        {"axes.facecolor": "black", "lines.linewidth": 9, "svg.hashsalt": "other", "font.size": 30}
    ):
        assert render(report()) == first
        assert matplotlib.rcParams["font.size"] == 30
    assert dict(matplotlib.rcParams) == before
    assert render(report(hardened())) != first


def test_every_picture_has_a_text_that_says_what_it_is():
    page = Page(standard())
    alts = [str(a["alt"]) for tag, a in page.tags if tag == "img"]
    assert alts[:3] == [
        "input image: predicted 0 · member",
        "native explanation: predicted 0 · member",
        "recommended explanation: predicted 0 · member",
    ]
    assert len(alts) == 9


def pixels(uri):
    return imread(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))), format="png")


def test_maps_with_signs_are_symmetric_around_a_white_zero_and_enlarged_without_smoothing():
    values = np.array([[[[-2.0, 0.0], [1.0, 2.0]]]])
    (uri,) = outcome.heat_maps(values)
    drawn = pixels(uri)[..., :3]
    blocks = drawn.reshape(2, 80, 2, 80, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()
    low, zero, half, high = drawn[0, 0], drawn[0, -1], drawn[-1, 0], drawn[-1, -1]
    assert zero.min() > 0.95
    assert low[2] > low[0]
    assert high[0] > high[2]
    assert half[0] - half[2] > 0.2
    expected = matplotlib.colormaps["RdBu_r"]([0.0, 0.5, 0.75, 1.0])[:, :3]
    np.testing.assert_allclose([low, zero, half, high], expected, atol=1 / 255)


def test_maps_without_negative_values_go_from_white_and_each_map_has_its_own_scale():
    values = np.array([[[[0.0, 1.0]]], [[[0.0, 100.0]]], [[[0.0, 0.0]]], [[[np.nan, 3.0]]]])
    a, b, c, d = map(pixels, outcome.heat_maps(values))
    assert (a == b).all()
    assert (a == d).all()
    assert (c[0, 0] == c[0, -1]).all()
    assert a[0, 0].min() > 0.9
    assert outcome.has_signs(Pictures(values, values, None, ("a", "b", "c", "d"))) == (False, True)


def test_the_drawn_curve_is_the_conservative_rate_that_the_statistics_give():
    rng = np.random.default_rng(3)
    member = rng.random(3000) < 0.5
    curve = roc(np.round(rng.normal(size=3000) + 0.8 * member, 2), member)
    x, y = outcome._steps(curve, 1e-3)
    assert len(x) <= outcome.POINTS
    assert (np.diff(x) > 0).all()
    for fpr, tpr in zip(x, y, strict=True):
        assert tpr == tpr_at_fpr(curve, fpr=fpr).tpr
    assert x[0] == 1e-3
    assert (x[-1], y[-1]) == (1.0, 1.0)


def test_utility_is_shown_with_its_meaning_for_hardened_configurations_only():
    rows = [
        r for r in Page(standard()).rows if "Rank correlation" in r or "Cosine" in r or "Sign" in r or "overlap" in r
    ]
    assert [re.findall(r"-?\d\.\d\d", r) for r in rows] == [["0.87"], ["0.61"], ["-0.20"], ["0.99"]]
    assert "10% strongest features" in rows[0]


def test_wrong_signs_and_faithfulness_are_shown_beside_the_native_ones():
    last = hardened()
    assert last.utility is not None
    asked = last.utility.with_faithfulness(
        Faithfulness(np.array([0.5]), np.array([0.25])), Faithfulness(np.array([0.75]), np.array([0.375]))
    )
    rows = Page(render(report(native(), replace(last, utility=asked)))).rows
    shown = {
        name: re.findall(r"\d+\.\d+%?", row)
        for row in rows
        for name in ("Wrong signs", "Maps with a wrong sign", "Deletion", "Insertion")
        if name in row
    }
    assert shown == {
        "Wrong signs": ["1.0%"],
        "Maps with a wrong sign": ["4.0%"],
        "Deletion": ["0.50", "0.75"],
        "Insertion": ["0.25", "0.38"],
    }
    assert not [row for row in Page(standard()).rows if "Deletion" in row or "Insertion" in row]


def test_controls_are_shown_with_what_they_found_or_why_they_were_not_run():
    html = render(alone(audited(0.0)))
    section = html[html.index("<h2>Controls</h2>") : html.index("<h2>What the attacks found")]
    cards = section.split("<li ")[1:]
    assert len(cards) == len(CONTROLS) == 5
    for control, card in zip(CONTROLS, cards, strict=True):
        state = {True: "failed", False: "passed", None: "not run"}[control.failed]
        assert f"</svg>{state}</span>" in card
        assert control.says[1:] in entities.unescape(card)
    assert {c.failed for c in CONTROLS} == {False, None}


def test_a_control_that_failed_stands_out_and_decides_nothing():
    failed = Control("blind baseline", True, "a classifier that sees inputs only tells them apart", {"auc": 0.8})
    found = replace(audited(LEAK), controls=(failed,))
    html = render(alone(found))
    text = " ".join(Page(html).text.split())
    assert found.verdict == "inconclusive"
    assert '<li class="failed">' in html
    assert "Inconclusive: the control “blind baseline” failed." in text
    assert "The control “blind baseline” failed: a classifier that sees inputs only tells them apart." in text
    assert '<li class="failed">' not in render(report(native(), pictures=None))
    compared = report(Configuration("native", "", found), hardened(), pictures=None)
    assert '<li class="failed">' in render(compared)  # of a configuration that is only compared, too


@pytest.mark.parametrize(("uses", "shown", "warns"), [(None, "not counted", 1), (1, "first use", 0), (3, "3", 1)])
def test_uses_of_the_examples_are_stated_and_more_than_one_is_a_warning(uses, shown, warns):
    found = audited(0.0, uses=uses, forced=True)
    html = render(report(Configuration("custom", "", found), pictures=None))
    facts = html[html.index('<dl class="facts"') : html.index("</dl>")]
    assert facts.count('class="warns"') == warns
    assert shown in Page(facts).text.partition("Uses of these examples")[2]
    assert 'class="warns"' not in render(alone(audited(0.0)))
    allowed = audited(0.0, replace(POLICY, uncounted=True), uses=uses)
    said = " ".join(Page(render(report(Configuration("custom", "", allowed), pictures=None))).text.split())
    assert ("on the same examples, so nothing can be certified" in " ".join(Page(facts).text.split())) == (uses is None)
    assert ("on the same examples, as the policy allows" in said) == (uses is None)


def test_what_the_sample_could_certify_and_what_would_decide_are_given():
    open_, sure = audited(0.7, WHOLE, examples=1000), audited(0.0, WHOLE)
    assert open_.verdict == "inconclusive"
    assert open_.needed is not None
    text = text_of(open_)
    assert phrases.says(open_)[0] in text
    assert f"{open_.could_certify:.1%}" in text.partition("At best certifiable")[2][:10]
    assert "The interval is too wide to decide." in text
    certain = text_of(sure)
    assert "To decide" not in certain
    assert "too wide" not in certain


@pytest.mark.parametrize("policy", [POLICY, WHOLE])
def test_the_shaded_band_is_what_the_verdict_compares(policy):
    found = audited(INCONCLUSIVE, policy)
    shaded = outcome.confidence_band(found, 1e-3)
    assert shaded is not None
    fpr, low, high = shaded
    at = int(np.flatnonzero(fpr == policy.fpr)[0])
    assert (low[at], high[at]) == pytest.approx(found.bounds(found.strongest))
    assert (np.diff(high) >= 0).all()
    best = found.strongest
    order = next(o for a, o in zip(found.judged, found.orders, strict=True) if a is best)
    each = 0.025 / 3 if policy is POLICY else found.lower_risk(best)  # half of the risk, shared by three stacks
    for i in range(0, len(fpr), 7):  # by hand, at other rates
        rank, share = lower_bound_rank(found.non_members, fpr[i], each / 2)
        upper = upper_bound_rank(found.non_members, fpr[i], 0.025)
        assert high[i] == pytest.approx(upper_bound(found_above(order, upper), found.members, 0.025))
        below = lower_bound(found_above(order, rank), found.members, each / 2) * share
        assert low[i] == pytest.approx(max(below, 1e-4))
    assert (
        outcome.confidence_band(audited(INCONCLUSIVE, policy, group=5), 1e-3) is None
    )  # groups count, not who stands where


ABLATIONS = (
    Ablation("L1 norm", "sum of all magnitudes", 0.71, 0.66, 0.76, 0.2, 0.1, 0.3, 0.05),
    Ablation("whole map", "every entry", 0.66, 0.61, 0.71, 0.15, 0.07, 0.24, 0.05),
    Ablation("norm alone", "L1 norm", 0.70, 0.65, 0.75, 0.2, 0.1, 0.3, 0.05, "alone", "norm"),
    Ablation("signs alone", "signs", 0.51, 0.46, 0.56, 0.06, 0.02, 0.12, 0.05, "alone", "signs"),
    Ablation("norm removed", "unit RMS", 0.53, 0.48, 0.58, 0.07, 0.03, 0.13, 0.05, "removed", "norm"),
)


def test_the_root_cause_is_shown_with_its_sentence_and_left_out_without():
    page = Page(render(report(native(), root_cause=ABLATIONS, root_cause_sentence=sentence(ABLATIONS))))
    assert "The norm carries the leak: AUC 0.70 alone, 0.53 when removed" in page.text
    for a in ABLATIONS:
        numbers = (a.name, f"{a.auc:.3f}", f"{a.auc_low:.3f}–{a.auc_high:.3f}", f"{a.tpr:.1%}")
        assert [r for r in page.rows if all(n in r for n in numbers)]
    assert "Which property carries" not in Page(render(report(native(), root_cause=()))).text


def test_every_kind_of_scale_shows_its_ends_and_keeps_order():
    for scale in (Scale.rates(0.31, 0.05, 0.15), Scale.differences(-0.22, 0.11, 0.1), Scale.aucs(0.43, 0.71)):
        places = [scale.x(v) for v in np.linspace(scale.low, scale.high, 9)]
        assert places == sorted(places)
        assert places[0] < scale.x(scale.chance) < places[-1] or scale.unit == "rate"
        assert scale.x(scale.low - 1) == places[0]
        assert scale.x(scale.high + 1) == places[-1]
    assert (Scale.differences(-0.22, 0.11, 0.1).low, Scale.differences(-0.22, 0.11, None).high) == (-0.25, 0.15)
    assert Scale.rates(0.2, 0.05, None).bar(0.1, 0.05, 0.2, "open").count("limit") == 0
    assert "limit +10.0" in Scale.differences(-0.1, 0.1, 0.1).bar(0.0, -0.1, 0.1, "open")


def test_names_that_are_not_valid_text_do_not_stop_the_report(tmp_path):
    path = write_report(tmp_path / "report.html", report(native(), pictures=None, provenance={"data": "caf\udce9.npz"}))
    assert "caf?.npz" in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="needs a Chromium")
def test_on_a_phone_the_sentence_is_on_the_first_screen(tmp_path):
    write_report(tmp_path / "report.html", report(native(), hardened(INCONCLUSIVE)))
    with Chromium(tmp_path / "profile") as browser, serving(tmp_path) as url:
        browser.open(f"{url}report.html", width=390, height=844)
        bottom = browser.run("document.querySelector('.says').getBoundingClientRect().bottom")
        assert 0 < bottom <= 844
        assert browser.run("document.documentElement.scrollWidth") <= 390
