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

from safexplain.audit.protocol import AuditResult, Policy, audit
from safexplain.audit.report import Configuration, Pictures, ReportData, figures, maps, render, tables, write_report
from safexplain.audit.signals import Signals
from safexplain.audit.stats import roc, tpr_at_fpr
from safexplain.audit.utility import Utility
from safexplain.errors import InputError

POLICY = Policy(fpr=0.1, max_tpr=0.3)
INCONCLUSIVE = 0.3
VOID = {"meta", "br", "img", "link", "input", "hr"}


@cache
def result(leak: float, examples: int = 300, policy: Policy = POLICY, models: int = 9) -> AuditResult:
    rng = np.random.default_rng(7)
    member = rng.random((models, examples)) < 0.5
    size = np.exp(rng.normal(0, 0.3, (models, examples)) - leak * member)
    maps = size[..., None] * rng.normal(size=(1, examples, 6))
    label = (rng.random((models, examples)) < np.where(member, 0.02, 0.1)).astype(float)
    values = {"l1": np.abs(maps).sum(-1), "l2": np.linalg.norm(maps, axis=-1), "label": label, "loss": size}
    return audit(Signals(member, values, maps.astype(np.float32)), policy)


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
        assert len(found.judged) == 5
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
    judged, beside = text.index("Judged:"), text.index("Shown beside, not judged:")
    assert judged < text.index("Threshold on l1") < beside
    assert beside < text.index("LabelLikelihoodRatio on label")
    assert beside < text.index("Threshold on loss")
    for row in page.rows:
        if "on label" in row or "on loss" in row:
            assert "not judged" in row
            assert "limit" not in row


def test_excess_is_the_difference_to_the_label_alone_at_the_policys_rate() -> None:
    found = result(1.0)
    label = next(a for a in found.attacks if a.role == "label")
    best = found.strongest
    assert tables.excess_over_label(found, best) == pytest.approx(best.at(0.1).tpr - label.at(0.1).tpr)
    (row,) = [r for r in tables.attack_tables([native()])[0].judged if r.strongest]
    assert row.excess == f"{100 * (best.at(0.1).tpr - label.at(0.1).tpr):+.1f}"
    alone = AuditResult(found.policy, found.judged, found.members, found.non_members, found.references)
    assert tables.excess_over_label(alone, alone.strongest) is None
    assert "–" in tables.attack_tables([Configuration("native", "", alone)])[0].judged[0].excess


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
    "place", ["title", "explainer", "notes", "name", "description", "caption", "key", "value", "command"]
)
def test_a_string_from_outside_cannot_inject_html(place: str) -> None:
    evil = '<img src=x onerror="alert(1)"></title></style>\'{{ 7*7 }}'
    data = report(hardened(), pictures=None)
    last = data.configurations[-1]
    match place:
        case "title" | "explainer":
            data = replace(data, **{place: evil})
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
    for strip in maps.strips(pictures(channels, images=images), "recommended"):
        assert len(strip.pictures) == count
        for picture in strip.pictures:
            assert pixels(picture.uri).shape == (160, 160, 4)


def pixels(uri: str) -> np.ndarray:
    return imread(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))), format="png")


def test_maps_with_signs_are_symmetric_around_a_white_zero_and_enlarged_without_smoothing() -> None:
    values = np.array([[[[-2.0, 0.0], [1.0, 2.0]]]])
    (strip,) = maps.strips(Pictures(None, values, None, ("a",)), "released")
    drawn = pixels(strip.pictures[0].uri)[..., :3]
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
    a, b, c, d = (pixels(strip.pictures[0].uri) for strip in drawn)
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
    for words in ("Not differential privacy", "near-duplicates", "threshold is itself an estimate", "empirical"):
        assert words in text


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
    with pytest.raises(InputError, match=r"report\.html: the disk is full; free .* MB or choose"):
        write_report(path, report(native(), pictures=None))
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_path_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*missing; create it"):
        write_report(tmp_path / "missing" / "report.html", report(native(), pictures=None))
    with pytest.raises(InputError, match="it is a folder; name a file"):
        write_report(tmp_path, report(native(), pictures=None))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="there is no folder"):
        write_report(tmp_path / "file" / "report.html", report(native(), pictures=None))


def test_unusable_parts_are_refused_with_the_reason() -> None:
    found = result(1.0)
    beside = tuple(a for a in found.attacks if a.role != "explanation")
    unjudged = AuditResult(found.policy, beside, found.members, found.non_members, found.references)
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
                assert module not in {"matplotlib.pyplot", "safexplain.audit.protocol", "safexplain.audit.signals"}
