"""Promises of a search's page: everything that was found is on it, and nothing is loaded for it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from results import audited

from safexplain import GaussianNoise, Hardening, RankNorm, Relative, TopKSet, UnitNorm
from safexplain.tune.result import (
    Examples,
    Point,
    Study,
    as_python,
    choose,
    chosen_words,
    front_of,
    pareto_figure,
    render,
    table_rows,
)
from safexplain.verdict.result import AuditResult

CERTIFIED = 0.0
LEAKS = 2.5


class Spaced(Page):
    """With a space before each piece of text."""

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.text += f" {data}"
            if "tr" in self.stack:
                self.rows[-1] += f" {data.strip()}"


def point(number: int, leak: float, utility: float, name: str = "", hardening: Hardening | None = None) -> Point:
    noise = Hardening(clip=RankNorm(shape=1.0 + number / 100), noise=GaussianNoise(Relative(0.2)))
    return Point(
        number, noise if hardening is None else hardening, {"n_steps": 25} if number % 2 else {}, leak, 0.004, utility,
        min(1.0, utility + 0.02), utility - 0.05, utility - 0.01, 0.9 * utility, 0.8 * utility, 0.001 * number,
        name=name,
    )  # fmt: skip


def study(trials: int = 60, *, public: bool = True, names: tuple[str, ...] = (), leak: float = 0.0) -> Study:
    """A search whose releases trade leak against utility."""
    rng = np.random.default_rng(0)
    given = {
        "native": point(0, 0.104, 1.0, "native", Hardening.none()),
        "recommended": point(1, leak + 0.001, 0.35, "recommended", Hardening.recommended()),
        "DeepLeak's best": point(2, 0.071, 0.83, "DeepLeak's best", Hardening.deepleak()),
    }
    tried = [
        point(i, leak + float(max(0.0, 0.1 * u**3 + rng.normal(0, 0.012))), u)
        for i, u in enumerate(rng.uniform(0.2, 0.95, trials), start=3)
    ]
    points = (*given.values(), *tried)
    if public:
        given["public models"] = point(-1, 0.0, 0.67, "public models", Hardening.none())
    return Study(
        trials=trials + 3, pruned=4, failed=1, seed=7, allowance=0.02, digest="0123abcd" * 8,
        path="runs/one", reference=given, points=points, sizes={"selection": 700, "models": 17},
        notes=names, title="digits.pt2", explainer="InputXGradient of the predicted probability",
    )  # fmt: skip


def examples(found: Study, front: tuple[Point, ...], shape: tuple[int, ...] = (1, 8, 8), k: int = 3) -> Examples:
    rng = np.random.default_rng(1)
    x = rng.random((k, *shape)).astype(np.float32)
    numbers = {p.number for p in (*found.reference.values(), *front)}
    maps = {n: (x - 0.5 + rng.normal(0, 0.1, x.shape)).astype(np.float32) for n in numbers}
    return Examples(x, np.arange(k), np.arange(k) % 2 == 0, maps)


def page(found: Study, confirmed: AuditResult | None, shown: Examples | None = None) -> str:
    front = front_of([*found.points])
    chosen, within = choose(front, found.allowance)
    return render(found, front, chosen, within, confirmed, shown)


def whole(shape: tuple[int, ...] = (1, 8, 8)) -> str:
    found = study()
    return page(found, audited(CERTIFIED), examples(found, front_of(found.points), shape))


@pytest.mark.parametrize("shape", [(3, 6, 6), (12,)])
def test_the_page_is_well_formed_and_loads_nothing(shape):
    html = whole(shape)
    parsed = Spaced(html)
    assert (parsed.stack, parsed.unbalanced) == ([], [])
    assert not {"script", "link", "iframe", "object", "form"} & {tag for tag, _ in parsed.tags}
    targets = [v for _, a in parsed.tags for k, v in a.items() if k in ("href", "src", "xlink:href") and v is not None]
    assert [t for t in targets if not t.startswith(("#", "data:image/png;base64,")) and t != "report.html"] == []
    assert "report.html" in targets
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in [
        (tag, a.get("content")) for tag, a in parsed.tags
    ]
    identifiers = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))


def test_every_release_stands_in_the_table_with_its_numbers():
    found = study()
    front = front_of(found.points)
    chosen, _ = choose(front, found.allowance)
    parsed = Spaced(whole())
    rows = [" ".join(row.split()) for row in parsed.rows]
    for one in [*found.reference.values(), *front]:
        (row,) = [r for r in rows if re.match(rf"({re.escape(one.name or f'trial {one.number}')})( |$)", r)]
        for number in (f"{100 * one.leak:.1f}", f"{one.utility:.2f}", f"{one.deletion:.2f}", f"{one.insertion:.2f}"):
            assert number in row
        assert f"{100 * one.upper:.1f}" in row
        assert ("chosen" in row.split()) == (one.number == chosen.number)
        assert ("front" in row.split()) == (one in front)
    assert found.digest in parsed.text
    assert "64" not in [f.number for f in front if f.number < 0]


def test_names_and_notes_cannot_write_into_the_page():
    nasty = "<script>alert(1)</script>"
    found = replace(study(names=(nasty,)), title=nasty, explainer=nasty)
    parsed = Spaced(page(found, audited(CERTIFIED), examples(found, ())))
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert (parsed.stack, parsed.unbalanced) == ([], [])
    assert parsed.text.count(nasty) >= 3


@pytest.mark.parametrize(("leak", "said"), [(CERTIFIED, "Certified"), (LEAKS, "Leak proven")])
def test_the_verdict_is_the_confirmations(leak, said):
    result = audited(leak)
    parsed = Spaced(page(study(), result))
    assert said in parsed.text
    assert result.sentence in parsed.text
    assert ("section", result.verdict) in [
        (tag, (a.get("class") or "").removeprefix("verdict ")) for tag, a in parsed.tags if tag == "section"
    ]


def test_without_a_confirmation_nothing_is_claimed_and_nothing_is_linked():
    for interrupted in (True, False):
        parsed = Spaced(page(replace(study(), interrupted=interrupted), None))
        assert "Not confirmed" in parsed.text
        assert ("interrupted" in parsed.text) == interrupted
        assert "report.html" not in [a.get("href") for _, a in parsed.tags]


def test_why_it_was_chosen_and_whether_it_beats_models_of_public_data():
    found = study()
    chosen, within = choose(front_of(found.points), found.allowance)
    assert within
    text = " ".join(chosen_words(found, chosen, within))
    assert f"utility {chosen.utility:.2f}" in text
    assert f"{100 * chosen.upper:.1f}" in text
    public = found.reference["public models"]
    beaten = replace(chosen, deletion=public.deletion + 0.1)
    assert "more faithful than" in " ".join(chosen_words(found, beaten, True))
    assert "PublicExplainer" in " ".join(chosen_words(found, replace(chosen, deletion=0.1), True))
    assert "No models of public data" in " ".join(chosen_words(study(public=False), chosen, True))
    leaky = study(leak=0.1)
    least, within = choose(front_of(leaky.points), leaky.allowance)
    assert not within
    assert "No tried release" in " ".join(chosen_words(leaky, least, within))


def test_the_plot_names_every_point_of_comparison_and_marks_the_chosen_one():
    found = study()
    front = front_of(found.points)
    chosen, _ = choose(front, found.allowance)
    named = [row for row in table_rows(found, front, chosen) if row.compared or row.chosen]
    svg = str(pareto_figure(found, front, named))
    for name in ("native", "recommended", "DeepLeak's best", "public models", f"chosen (trial {chosen.number})"):
        assert f">{name}<" in svg.replace("&#39;", "'")
    assert "#0a0b" not in svg  # every stand-in colour became a variable, which dark and light pages set
    assert "var(--figure-strong)" in svg
    assert "DejaVu" not in svg


def test_images_are_shown_as_maps():
    found = study()
    front = front_of(found.points)
    images = Spaced(page(found, None, examples(found, front)))
    pictures = [a for tag, a in images.tags if tag == "img"]
    assert len(pictures) == 3 * (1 + 5)  # the input, and five named releases, of three examples
    assert all((a.get("src") or "").startswith("data:image/png;base64,") for a in pictures)
    assert len([a for a in pictures if "input" in (a.get("alt") or "")]) == 3
    assert "img" not in {tag for tag, _ in Spaced(page(found, None, examples(found, front, (14,)))).tags}


def test_a_hardening_is_written_as_in_python_with_numbers_that_can_be_read():
    one = replace(point(0, 0.0, 1.0), options={})
    assert as_python(replace(one, hardening=Hardening(clip=TopKSet(k=4)))) == (
        "Hardening(clip=TopKSet(k=4, positive=True))"
    )
    noisy = Hardening(clip=UnitNorm(), noise=GaussianNoise(Relative(0.0371234), key=b"k" * 16))
    assert as_python(replace(one, hardening=noisy)) == (
        "Hardening(clip=UnitNorm(norm=1.0), noise=GaussianNoise(std=Relative(0.03712)))"
    )
    given = replace(one, hardening=Hardening.none(), options={"n_steps": 25, "abs": False})
    assert as_python(given) == "Hardening.none(), n_steps=25, abs=False"
