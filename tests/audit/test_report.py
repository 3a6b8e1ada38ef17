"""Promises of the audit report."""

from __future__ import annotations

import ast
import base64
import errno
import html as entities
import io
import os
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from safexplain.audit.certify import certify
from safexplain.audit.report import ReportData, figures, maps, write_report
from safexplain.audit.report.figures import Chances
from safexplain.audit.report.model import Configuration, Pictures
from safexplain.audit.report.page import render
from safexplain.audit.report.tables import FIRST, Scale, attack_tables, excess_over_baseline, excess_tables
from safexplain.audit.root_cause import Ablation
from safexplain.audit.signals import Signals
from safexplain.audit.utility import Utility
from safexplain.errors import InputError
from safexplain.verdict.evidence import Control
from safexplain.verdict.judgement import AuditResult
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import power
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

SUITE = ("Threshold", "LikelihoodRatio", "LabelLikelihoodRatio")
POLICY = Policy(fpr=0.1, max_tpr=0.3, suite=SUITE)
INCONCLUSIVE = 0.3
VOID = {"meta", "br", "img", "link", "input", "hr", "col"}


@cache
def result(
    leak: float, examples: int = 300, policy: Policy = POLICY, models: int = 9, asked: tuple[str, ...] = ()
) -> AuditResult:
    rng = np.random.default_rng(7)
    member = rng.random((models, examples)) < 0.5
    size = np.exp(rng.normal(0, 0.3, (models, examples)) - leak * member)
    maps = size[..., None] * rng.normal(size=(1, examples, 6))
    label = (rng.random((models, examples)) < np.where(member, 0.02, 0.1)).astype(float)
    values = {"l1": np.abs(maps).sum(-1), "l2": np.linalg.norm(maps, axis=-1), "label": label, "loss": size}
    values |= {f"{prefix}{name}": values["l1"] for prefix in asked for name in ("l1", "mean", "positive")}
    return certify(Signals(member, values, maps.astype(np.float32)), policy)


EXCESS = replace(POLICY, claim="excess", max_excess=0.3)


def changed(found: AuditResult, **changes: object) -> AuditResult:
    """The same with another judgement."""
    return replace(found, **changes)  # type: ignore[arg-type]


def native(leak: float = 1.0) -> Configuration:
    return Configuration("native", "Hardening()", result(leak))


def hardened(leak: float = 0.0) -> Configuration:
    return Configuration(
        "recommended", "Hardening(clip=UnitNorm())", result(leak), Utility(0.87, 0.1, 0.613, -0.2, 0.99)
    )


def pictures(channels: int = 1, signed: bool = True, images: bool = True, side: int = 8) -> Pictures:
    rng = np.random.default_rng(1)
    shape = (3, channels, side, side)
    maps = rng.normal(size=shape)
    maps = maps if signed else np.abs(maps)
    captions = tuple(f"predicted {i} · member" for i in range(3))
    return Pictures(rng.random(shape) if images else None, maps, maps + rng.normal(size=shape), captions)


def report(*configurations: Configuration, **changes: object) -> ReportData:
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
def standard() -> str:
    return render(report())


class Page(HTMLParser):
    """Tags with attributes, the rows of all tables, and whatever does not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.stack: list[str] = []
        self.unbalanced: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" in self.stack:
            return
        self.text += data
        if "tr" in self.stack:
            self.rows[-1] += " " + data


def body(html: str) -> str:
    return html[html.index("<body") :]


def test_the_file_is_self_contained() -> None:
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


def test_every_reference_inside_the_file_has_one_target() -> None:
    page = Page(standard())
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = {str(a["href"])[1:] for _, a in page.tags if "href" in a}
    wanted |= set(re.findall(r"url\(#(\w+)\)", standard()))
    assert wanted
    assert wanted <= set(ids)


@pytest.mark.parametrize("shown", [pictures(), None])
def test_tags_nest(shown: Pictures | None) -> None:
    for configurations in ((native(),), (native(), hardened()), (native(), hardened(0.3), hardened())):
        page = Page(render(report(*configurations, pictures=shown)))
        assert not page.unbalanced
        assert not page.stack


@pytest.mark.parametrize(
    ("leak", "verdict", "word"),
    [(0.0, "certified", "Certified"), (1.0, "leak", "Leak proven"), (INCONCLUSIVE, "inconclusive", "Inconclusive")],
)
def test_the_verdict_comes_first_in_words(leak: float, verdict: str, word: str) -> None:
    last = hardened(leak)
    assert last.result.verdict == verdict
    html = render(report(native(), last))
    shown = entities.unescape(body(html))
    assert f"<title>{word} · " in html
    first = min(
        shown.index(f"</svg>{w}</span>") for w in ("Certified", "Leak proven", "Inconclusive") if f"</svg>{w}<" in shown
    )
    assert shown.startswith(f"</svg>{word}</span>", first)
    assert first < shown.index(last.result.sentence) < shown.index("<h2>") < shown.index("<table")
    assert f'<section class="verdict {verdict}"' in shown


def test_the_last_configuration_gives_the_verdict_and_the_first_is_compared() -> None:
    html = render(report(native(1.0), hardened(0.0)))
    top = Page(html[html.index('<ol class="chain"') : html.index("</ol>")]).text
    before, after = top.split("→")
    best = [c.result.strongest.at(0.1).tpr for c in (native(), hardened())]
    assert "Native explanation" in before
    assert "Leak proven" in before
    assert f"{best[0]:.1%}" in before
    assert "Recommended hardening" in after
    assert "Certified" in after
    assert f"{best[1]:.1%}" in after


def test_every_judged_attack_appears_with_its_numbers() -> None:
    data = report()
    rows = Page(render(data)).rows
    for configuration in data.configurations:
        found = configuration.result
        assert len(found.judged) == 7
        for attack in found.judged:
            rate = attack.at(0.1)
            low, high = found.bounds(attack)
            numbers = [f"{attack.auc:.3f}", f"{rate.tpr:.1%}", f"{100 * low:.1f}–{100 * high:.1f}%"]
            numbers += [f"FPR {rate.realised_fpr:.2%}", *(f"{r.tpr:.1%}" for r in attack.rates)]
            row = [r for r in rows if attack.code in r and all(n in r for n in numbers)]
            assert row, (configuration.name, attack.code, numbers)


def test_the_label_and_the_loss_stand_beside_and_are_not_judged() -> None:
    page = Page(render(report(native())))
    text = "\n".join(page.rows)
    judged, beside = text.index("Judged:"), text.index("Shown beside, not judged")
    assert judged < text.index("Threshold on l1") < beside
    assert beside < text.index("LabelLikelihoodRatio on label")
    assert beside < text.index("Threshold on loss")
    for row in page.rows:
        if "on label" in row or "on loss" in row:
            assert "not judged" in row
            assert "limit" not in row


def test_where_the_prediction_is_released_attacks_on_it_are_judged() -> None:
    found = result(1.0, policy=replace(POLICY, release="explanation+prediction"))
    (table,) = attack_tables([Configuration("native", "", found)])
    assert not table.beside
    assert {"Threshold on loss", "LabelLikelihoodRatio on label"} <= {row.title for row in table.judged}
    assert "Shown beside" not in Page(render(report(Configuration("native", "", found), pictures=None))).text


def test_the_strongest_attacks_come_first_and_the_weak_ones_are_folded_away_but_there() -> None:
    asked = result(1.0, asked=("near_", "repeated_"))
    assert len(asked.judged) > FIRST + 1
    (table,) = attack_tables([Configuration("native", "", asked)])
    assert table.judged[0].strongest
    highs = [asked.bounds(next(a for a in asked.attacks if a.code == row.title))[1] for row in table.judged[1:]]
    assert highs == sorted(highs, reverse=True)
    shown = [row for _, rows in table.shown for row in rows]
    folded = [row for _, rows in table.folded for row in rows]
    assert {row.title for row in (*shown, *folded)} == {a.code for a in asked.attacks}
    assert not {row.title for row in shown} & {row.title for row in folded}
    html = render(report(Configuration("native", "", asked), pictures=None))
    section = html[html.index("What the attacks found") :]
    visible, hidden = section.split("<details>")[0], section.split("<details>")[1].split("</details>")[0]
    assert all(f"<small>{row.title}</small>" in visible for row in shown)
    assert all(f"<small>{row.title}</small>" in hidden for row in folded)
    assert table.folded_sentence.startswith(f"{len(folded)} more attacks: ")
    assert "<summary>" not in render(report(Configuration("native", "", only_two(asked)), pictures=None))


def only_two(found: AuditResult) -> AuditResult:
    kept = found.judged[:2]
    return replace(found, evidence=kept, orders=found.orders[:2], pairs=(), baseline="")


def test_excess_is_the_paired_difference_to_the_label_alone_with_the_judgements_bounds() -> None:
    found = result(1.0)
    rates = {a.code: a.at(0.1).tpr for a in found.attacks}
    (table,) = excess_tables([native()])
    assert {row.title for row in (*table.shown, *table.folded)} == {f"{p.attack} on {p.signal}" for p in found.pairs}
    rows = Page(render(report(native(), pictures=None))).rows
    for pair in found.pairs:
        code = f"{pair.attack} on {pair.signal}"
        difference = rates[code] - rates["LabelLikelihoodRatio on label"]
        assert excess_over_baseline(found, pair.attack, pair.signal) == pytest.approx(difference)
        low, high = found.excess(pair)
        numbers = [f"{100 * difference:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        assert [r for r in rows if code in r and all(n.replace("-", "−") in r for n in numbers)], (code, numbers)
    alone = changed(found, pairs=(), baseline="")
    assert not excess_tables([Configuration("native", "", alone)])
    assert "What the explanation adds" not in Page(render(report(Configuration("native", "", alone)))).text


def test_under_the_claim_excess_the_limit_is_that_of_the_excess() -> None:
    found = result(1.0, policy=EXCESS)
    assert found.verdict == "leak"
    configuration = Configuration("native", "", found)
    text = " ".join(Page(render(report(configuration, pictures=None))).text.split())
    assert "The verdict rests on it." in text
    assert "must not find more than 30% of the members more with the explanation than with the label alone" in text
    assert "What this sample can decide" not in text  # its power is not computed
    (table,) = excess_tables([configuration])
    words = {"above": "above the limit", "below": "within the limit", "open": "undecided"}
    for row in (*table.shown, *table.folded):
        low, high = found.decisive[row.title]
        kind = "above" if low > 0.3 else "below" if high <= 0.3 else "open"
        assert (row.tone, row.says) == (kind, words[kind])
    whole = Page(render(report(native(), pictures=None))).text
    assert "The verdict does not rest on it." in whole


def test_each_row_says_in_words_how_it_stands_to_the_limit() -> None:
    words = {"above": "above the limit", "below": "within the limit", "open": "undecided"}
    seen = set()
    for leak in (0.0, INCONCLUSIVE, 1.0):
        found = result(leak)
        rows = Page(render(report(Configuration("native", "", found), pictures=None))).rows
        for attack in found.judged:
            low, high = found.bounds(attack)
            kind = "above" if low > 0.3 else "below" if high <= 0.3 else "open"
            seen.add(kind)
            assert any(attack.code in r and words[kind] in r for r in rows)
    assert seen == set(words)


def test_a_rate_that_too_few_non_members_can_realise_is_marked() -> None:
    few = Page(render(report(native())))
    assert "Too few non-members for this rate" in few.text  # 0.1 % of about 150
    many = result(1.0, examples=4400, models=5)
    assert min(many.non_members, many.members) > 1000
    enough = render(report(Configuration("native", "", many), pictures=None))
    assert "Too few non-members" not in enough
    assert "†" not in enough


@pytest.mark.parametrize(
    "place",
    [
        *("title", "explainer", "notes", "name", "description", "caption", "key", "value", "command", "control"),
        *("root_cause_sentence", "ablation"),
    ],
)
def test_a_string_from_outside_cannot_inject_html(place: str) -> None:
    evil = '<img src=x onerror="alert(1)"></title></style>\'{{ 7*7 }}'
    data = report(hardened(), pictures=None)
    last = data.configurations[-1]
    match place:
        case "title" | "explainer":
            data = replace(data, **{place: evil})
        case "root_cause_sentence":
            data = replace(data, root_cause=ABLATIONS, root_cause_sentence=evil)
        case "ablation":
            data = replace(data, root_cause=(replace(ABLATIONS[0], name=evil),))
        case "control":
            found = changed(last.result, controls=(Control(evil, True, evil, {evil: 1.0}),))
            data = replace(data, configurations=(replace(last, result=found),))
        case "notes":
            data = replace(data, notes=(evil,))
        case "name" | "description":
            data = replace(data, configurations=(replace(last, **{place: evil}),))
        case "caption":
            data = replace(data, pictures=replace(pictures(), captions=(evil, "b", "c")))
        case "key":
            data = replace(data, provenance={evil: "v"})
        case "value":
            data = replace(data, provenance={"model": evil})
        case "command":
            data = replace(data, provenance={"command": evil})
    html = render(data)
    assert "<img src=x" not in html
    assert "&lt;img src=x" in html
    assert "{{ 7*7 }}" in html
    page = Page(html)
    assert not page.unbalanced
    assert not [a for _, a in page.tags if "onerror" in a]


def test_the_same_input_gives_the_same_bytes_whatever_matplotlib_is_set_to() -> None:
    first = render(report())
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context(
        {"axes.facecolor": "black", "lines.linewidth": 9, "svg.hashsalt": "other", "font.size": 30}
    ):
        assert render(report()) == first
        assert matplotlib.rcParams["font.size"] == 30
    assert dict(matplotlib.rcParams) == before
    assert render(report(hardened())) != first


def test_one_configuration_needs_no_comparison() -> None:
    html = render(report(native()))
    page = Page(html)
    assert 'class="chain"' not in html
    assert "for comparison" not in page.text
    assert "What hardening costs" not in page.text
    assert sum(a.get("class") == "roc" for _, a in page.tags) == 1


def test_without_pictures_the_section_is_left_out() -> None:
    page = Page(render(report(pictures=None)))
    assert "What the explanations look like" not in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_every_picture_has_a_text_that_says_what_it_is() -> None:
    page = Page(standard())
    alts = [str(a["alt"]) for tag, a in page.tags if tag == "img"]
    assert alts[:3] == [
        "input image: predicted 0 · member",
        "native explanation: predicted 0 · member",
        "recommended explanation: predicted 0 · member",
    ]
    assert len(alts) == 9


@pytest.mark.parametrize(("channels", "images", "count"), [(1, True, 3), (3, True, 3), (1, False, 2), (5, False, 2)])
def test_grey_and_colour_images_and_maps_alone_are_drawn(channels: int, images: bool, count: int) -> None:
    for _, row in maps.strips(pictures(channels, images=images), "recommended"):
        assert len(row) == count
        for _, uri in row:
            assert pixels(uri).shape == (160, 160, 4)


def pixels(uri: str) -> np.ndarray:
    return imread(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))), format="png")


def test_maps_with_signs_are_symmetric_around_a_white_zero_and_enlarged_without_smoothing() -> None:
    values = np.array([[[[-2.0, 0.0], [1.0, 2.0]]]])
    ((_, ((_, uri),)),) = maps.strips(Pictures(None, values, None, ("a",)), "released")
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


def test_maps_without_negative_values_go_from_white_and_each_map_has_its_own_scale() -> None:
    values = np.array([[[[0.0, 1.0]]], [[[0.0, 100.0]]], [[[0.0, 0.0]]], [[[np.nan, 3.0]]]])
    drawn = maps.strips(Pictures(None, values, None, ("a", "b", "c", "d")), "released")
    a, b, c, d = (pixels(uri) for _, ((_, uri),) in drawn)
    assert (a == b).all()
    assert (a == d).all()
    assert (c[0, 0] == c[0, -1]).all()
    assert a[0, 0].min() > 0.9
    assert maps.has_signs(Pictures(None, values, None, ("a", "b", "c", "d"))) == (False, True)


def test_the_drawn_curve_is_the_conservative_rate_that_the_statistics_give() -> None:
    rng = np.random.default_rng(3)
    member = rng.random(3000) < 0.5
    curve = roc(np.round(rng.normal(size=3000) + 0.8 * member, 2), member)
    x, y = figures._steps(curve, 1e-3)
    assert len(x) <= figures.POINTS
    assert (np.diff(x) > 0).all()
    for fpr, tpr in zip(x, y, strict=True):
        assert tpr == tpr_at_fpr(curve, fpr=fpr).tpr
    assert x[0] == 1e-3
    assert (x[-1], y[-1]) == (1.0, 1.0)


def test_the_axes_reach_below_one_non_member() -> None:
    found = result(1.0)
    assert figures.lower_end([found]) <= 1 / found.non_members
    assert figures.lower_end([result(0.0, policy=Policy(1e-4, 1e-3)), found]) <= 1e-4


def test_utility_is_shown_with_its_meaning_for_hardened_configurations_only() -> None:
    rows = [
        r for r in Page(standard()).rows if "Rank correlation" in r or "Cosine" in r or "Sign" in r or "overlap" in r
    ]
    assert [re.findall(r"-?\d\.\d\d", r) for r in rows] == [["0.87"], ["0.61"], ["-0.20"], ["0.99"]]
    assert "10% strongest features" in rows[0]


def test_digests_and_the_command_are_given_in_full() -> None:
    text = Page(standard()).text
    assert "sha256:" + "0123456789abcdef" * 4 in text
    assert text.index("Reproduce") < text.index("safexplain-audit model.pt")


def test_limits_are_stated() -> None:
    text = " ".join(Page(standard()).text.split())
    for words in (
        "Not differential privacy",
        "empirical",
        "include the uncertainty of the threshold",
        "another training run",
    ):
        assert words in text
    assert "threshold is itself an estimate is not" not in text


def limits_of(found: AuditResult, other_key: bool | None = None) -> str:
    page = Page(render(report(Configuration("native", "", found), pictures=None, other_key=other_key)))
    return " ".join(page.text.split()).partition("What this audit does not show")[2]


def test_the_limits_say_which_adaptive_queries_were_attacked() -> None:
    plain, near = limits_of(result(0.0)), limits_of(result(0.0, asked=("near_",)))
    both = limits_of(result(0.0, asked=("near_", "repeated_")), other_key=True)
    assert "Near-duplicates and repeated queries were not attacked" in plain
    assert "Attacked beside the plain query: near-duplicates" in near
    assert "Repeating a query was not attacked" in near
    assert "the same query again, its answers averaged." in both
    assert "was not attacked" not in both
    assert "the reference models answered with another one" in both
    assert "key" not in plain
    assert "favours the attacker" in limits_of(result(0.0), other_key=False)


def test_controls_are_shown_with_what_they_found() -> None:
    found = result(0.0)
    html = render(report(Configuration("native", "", found), pictures=None))
    section = html[html.index("<h2>Controls</h2>") : html.index("<h2>What the attacks found")]
    cards = section.split("<li ")[1:]
    assert len(cards) == len(found.controls) == 5
    for control, card in zip(found.controls, cards, strict=True):
        state = {True: "failed", False: "passed", None: "not run"}[control.failed]
        assert f"</svg>{state}</span>" in card
        assert control.says[1:] in entities.unescape(card)
    assert {c.failed for c in found.controls} == {False, None}


def test_a_control_that_failed_stands_out_and_decides_nothing() -> None:
    failed = Control("blind baseline", True, "a classifier that sees inputs only tells them apart", {"auc": 0.8})
    found = changed(result(1.0), controls=(failed,))
    html = render(report(Configuration("native", "", found), pictures=None))
    text = " ".join(Page(html).text.split())
    assert found.verdict == "inconclusive"
    assert '<li class="failed">' in html
    assert "Not decided: the control “blind baseline” failed" in text
    assert "as long as a control fails, no number of examples decides" in text
    assert '<li class="failed">' not in render(report(native(), pictures=None))
    compared = report(Configuration("native", "", found), hardened(), pictures=None)
    assert '<li class="failed">' in render(compared)  # of a configuration that is only compared, too


@pytest.mark.parametrize(("uses", "shown", "warns"), [(None, "not counted", 1), (1, "first use", 0), (3, "3", 1)])
def test_uses_of_the_examples_are_stated_and_more_than_one_is_a_warning(
    uses: int | None, shown: str, warns: int
) -> None:
    calm = result(0.0)
    found = replace(calm, uses=uses, forced=True)
    html = render(report(Configuration("custom", "", found), pictures=None))
    facts = html[html.index('<dl class="facts"') : html.index("</dl>")]
    assert facts.count('class="warns"') == warns
    assert shown in Page(facts).text.partition("Uses of these examples")[2]
    assert 'class="warns"' not in render(report(Configuration("native", "", result(0.0)), pictures=None))


def test_what_the_sample_could_certify_and_what_would_decide_are_given() -> None:
    open_, sure = result(INCONCLUSIVE), result(0.0)
    assert open_.needed is not None
    text = Page(render(report(Configuration("native", "", open_), pictures=None))).text
    assert f"{open_.needed.members:,} + {open_.needed.non_members:,}" in text
    assert f"{open_.could_certify:.1%}" in text.partition("At best certifiable")[2][:10]
    assert "Not decided: the interval is too wide to decide." in " ".join(text.split())
    certain = Page(render(report(Configuration("native", "", sure), pictures=None))).text
    assert "Would decide" not in certain
    assert "Not decided" not in certain


@pytest.mark.parametrize("policy", [POLICY, EXCESS])
def test_the_shaded_band_is_what_the_verdict_compares(policy: Policy) -> None:
    found = result(INCONCLUSIVE, policy=policy)
    fpr, low, high = figures.band(found, 1e-3)
    at = int(np.flatnonzero(fpr == policy.fpr)[0])
    assert (low[at], high[at]) == pytest.approx(found.bounds(found.strongest))
    assert (np.diff(high) >= 0).all()
    best = found.strongest
    order = next(o for a, o in zip(found.judged, found.orders, strict=True) if a is best)
    parts = 4 if policy.claim == "excess" else 2
    each = 0.05 / len(found.judged)
    for i in range(0, len(fpr), 7):  # by hand, at other rates
        rank, share = lower_bound_rank(found.non_members, fpr[i], each / parts)
        upper = upper_bound_rank(found.non_members, fpr[i], 0.05 / parts)
        assert high[i] == pytest.approx(upper_bound(found_above(order, upper), found.members, 0.025))
        below = lower_bound(found_above(order, rank), found.members, each / 2) * share
        assert low[i] == pytest.approx(max(below, 1e-4))


def test_the_chances_are_those_of_the_power_and_their_sentence_is_read_off_them() -> None:
    found = result(0.0)
    likely = Chances.of(found)
    assert likely is not None
    one = power(found.policy, found.members, found.non_members, 7, likely.tpr[[0, 50, -1]])
    np.testing.assert_allclose(likely.leak[[0, 50, -1]], one.leak)
    np.testing.assert_allclose(likely.certified[[0, 50, -1]], one.certified)
    proven = likely.tpr[likely.leak >= 0.9][0]
    assert f"truly finds {proven:.1%} of the members" in likely.sentence(found)
    assert likely.sentence(found) in " ".join(Page(render(report(Configuration("native", "", found)))).text.split())
    alone = Chances.of(changed(found, references=0))
    assert alone is not None
    assert not alone.certified.any()
    assert "certified 0% of the time" in alone.sentence(found)


ABLATIONS = (
    Ablation("L1 norm", "sum of all magnitudes", 0.71, 0.66, 0.76, 0.2, 0.1, 0.3, 0.05),
    Ablation("whole map", "every entry", 0.66, 0.61, 0.71, 0.15, 0.07, 0.24, 0.05),
    Ablation("norm alone", "L1 norm", 0.70, 0.65, 0.75, 0.2, 0.1, 0.3, 0.05, "alone", "norm"),
    Ablation("signs alone", "signs", 0.51, 0.46, 0.56, 0.06, 0.02, 0.12, 0.05, "alone", "signs"),
    Ablation("norm removed", "unit RMS", 0.53, 0.48, 0.58, 0.07, 0.03, 0.13, 0.05, "removed", "norm"),
)


def test_the_root_cause_is_shown_with_its_sentence_and_left_out_without() -> None:
    page = Page(render(report(native(), root_cause=ABLATIONS)))
    assert "The norm carries the leak: alone AUC 0.70, without AUC 0.53" in page.text
    for a in ABLATIONS:
        numbers = (a.name, f"{a.auc:.3f}", f"{a.auc_low:.3f}–{a.auc_high:.3f}", f"{a.tpr:.1%}")
        assert [r for r in page.rows if all(n in r for n in numbers)]
    said = Page(render(report(native(), root_cause=ABLATIONS, root_cause_sentence="As told."))).text
    assert "As told." in said
    assert "carries the leak:" not in said
    for nothing in (None, ()):
        assert "Which property carries" not in Page(render(report(native(), root_cause=nothing))).text


def test_every_kind_of_scale_shows_its_ends_and_keeps_order() -> None:
    for scale in (Scale.rates(0.31, 0.05, 0.15), Scale.differences(-0.22, 0.11, 0.1), Scale.aucs(0.43, 0.71)):
        places = [scale.x(v) for v in np.linspace(scale.low, scale.high, 9)]
        assert places == sorted(places)
        assert places[0] < scale.x(scale.chance) < places[-1] or scale.unit == "rate"
        assert scale.x(scale.low - 1) == places[0]
        assert scale.x(scale.high + 1) == places[-1]
    assert (Scale.differences(-0.22, 0.11, 0.1).low, Scale.differences(-0.22, 0.11, None).high) == (-0.25, 0.15)
    assert Scale.rates(0.2, 0.05, None).bar(0.1, 0.05, 0.2, "open").count("limit") == 0
    assert "limit +10.0" in Scale.differences(-0.1, 0.1, 0.1).bar(0.0, -0.1, 0.1, "open")


def test_a_typical_report_stays_small() -> None:
    big = report(pictures=pictures(channels=3, side=224))
    assert len(render(big).encode()) < 1_500_000


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    path = write_report(str(tmp_path / "report.html"), report())
    assert path.read_bytes() == standard().encode()
    assert os.listdir(tmp_path) == ["report.html"]


def test_names_that_are_not_valid_text_do_not_stop_the_report(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", report(native(), pictures=None, provenance={"data": "caf\udce9.npz"}))
    assert "caf?.npz" in path.read_text(encoding="utf-8")


def test_a_full_disk_says_what_to_do_and_keeps_the_older_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"report\.html: No space left on device; .* with .* MB free"):
        write_report(path, report(native(), pictures=None))
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_path_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; name a file in an existing folder"):
        write_report(tmp_path / "missing" / "report.html", report(native(), pictures=None))
    with pytest.raises(InputError, match="Is a directory; name a file"):
        write_report(tmp_path, report(native(), pictures=None))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Not a directory; name a file in an existing folder"):
        write_report(tmp_path / "file" / "report.html", report(native(), pictures=None))


def test_unusable_parts_are_refused_with_the_reason() -> None:
    found = result(1.0)
    beside = tuple(a for a in found.attacks if a.role in ("label", "loss"))
    unjudged = replace(found, evidence=beside, pairs=(), orders=())
    with pytest.raises(InputError, match="at least one audited configuration"):
        report(configurations=())
    with pytest.raises(InputError, match="no attack on the explanation"):
        Configuration("native", "", unjudged)
    a = np.zeros((2, 1, 4, 4))
    with pytest.raises(InputError, match=r"native maps must be of shape .* got \(2, 4\)"):
        Pictures(None, np.zeros((2, 4)), None, ("a", "b"))
    with pytest.raises(InputError, match="released maps must have the shape"):
        Pictures(None, a, a[:1], ("a", "b"))
    with pytest.raises(InputError, match="1 or 3"):
        Pictures(np.zeros((2, 2, 4, 4)), a, None, ("a", "b"))
    with pytest.raises(InputError, match="one caption for each of 2"):
        Pictures(None, a, None, ("a",))


def test_the_report_imports_neither_torch_nor_pyplot_and_its_templates_are_package_data() -> None:
    package = resources.files("safexplain.audit.report")
    names = {f.name for f in package.iterdir()}
    assert {"template.html.j2", "style.css"} <= names
    for name in sorted(n for n in names if n.endswith(".py")):
        tree = ast.parse((package / name).read_text())
        typing_only = {id(x) for node in ast.walk(tree) if isinstance(node, ast.If) for x in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) in typing_only or not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            for module in modules:
                assert module.split(".")[0] not in {"torch", "captum", "scipy"}, (name, module)
                assert module not in {"matplotlib.pyplot", "safexplain.audit.certify", "safexplain.audit.signals"}
