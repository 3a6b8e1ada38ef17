"""`front.html`: what a search tried, what it chose and why, and the same examples under each named release.

One self-contained page in the look of the audit's report, whose style, parts, figures and pictures it uses: no script,
and nothing loaded; its only link is to `report.html`, the confirmation, beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from numpy.typing import NDArray

from safexplain.audit.report import maps
from safexplain.audit.report.figures import INK, LABEL, LIMIT, MUTED, STRONG, drawn, plain
from safexplain.hardening.hardening import Hardening
from safexplain.tune.result import NORMAL, Examples, Point, Study
from safexplain.verdict import words
from safexplain.verdict.release import as_written, in_words
from safexplain.verdict.result import AuditResult

SIZE, PLACE = (5.2, 4.2), (0.12, 0.13, 0.855, 0.85)
"""Of the plot, in inches, and of its axes in it."""

MARKERS = ("D", "s", "^", "v")
"""Of the points of comparison; the chosen one has a star."""

MOST_FEATURES = 10
"""Columns of a table that are shown of an example."""

FIRST_ROWS = 12
"""Rows of the table that are not folded away."""

Picture = tuple[str, list[tuple[str, str, bool]]]
"""Caption of an image, and its pictures, the input first: name, URI, and whether it is the chosen release."""

Named = list[tuple[str, NDArray[np.float32], bool]]
"""Name of a release, its maps (k, ...), and whether it is the chosen one."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    point: Point
    name: str
    says: str  # the release in Python
    chosen: bool
    on_front: bool
    compared: bool  # a point that the search is compared with

    @property
    def leak(self) -> str:
        """In percentage points."""
        return f"{100 * self.point.leak:.1f}"

    @property
    def interval(self) -> str:
        """Its one-sided 95 % bounds."""
        low, high = bounds(self.point)
        return f"{100 * low:.1f} to {100 * high:.1f}"


@dataclass(frozen=True)
class Bars:
    """An example of a table: its most important columns, and a signed bar of each under each release."""

    caption: str
    names: tuple[tuple[str, bool], ...]  # of the releases, and which is the chosen one
    rows: tuple[tuple[str, str, tuple[float, ...]], ...]  # column, value, length of each bar in [-1, 1]
    left_out: int


def bounds(point: Point) -> tuple[float, float]:
    """Lower and upper 95 % bound of the leak, each one-sided."""
    return max(0.0, point.leak - NORMAL * point.leak_error), point.upper


def name_of(point: Point, role: str = "") -> str:
    """How a point is called: by its name, by what it is compared as, or by its trial."""
    return point.name or role or f"trial {point.number}"


def as_python(hardening: Hardening, options: Mapping[str, Any] | None = None) -> str:
    """A hardening as in Python, its numbers to four digits, and the explainer's options behind it.

    >>> as_python(Hardening.none(), {"n_steps": 25})
    'Hardening.none(), n_steps=25'
    """
    return as_written(_rounded(hardening.to_dict())) + "".join(
        f", {k}={_rounded(v)!r}" for k, v in (options or {}).items()
    )


def _rounded(value: Any) -> Any:
    """The same with each fraction to four significant digits; files have all of them."""
    if isinstance(value, Mapping):
        return {name: _rounded(v) for name, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def chosen_words(study: Study, front: tuple[Point, ...], chosen: Point | None, within: bool) -> tuple[str, ...]:
    """What was chosen and why, in plain sentences; `within`: whether its leak is surely within the allowance."""
    allowed = f"{100 * study.allowance:.3g} percentage points"
    if chosen is None:
        return ("No release was measured, so none could be chosen.",)
    number = f"{100 * chosen.leak:.1f} points (at most {100 * chosen.upper:.1f} with 95% confidence)"
    called = words.capital(name_of(chosen))
    said = (
        f"No release that was tried is surely within the {allowed} that the policy allows. {called} leaks least: it is"
        f" estimated at {number}, at a utility of {chosen.utility:.2f}. More examples or more trials may find a better"
        " one."
    )
    if within:
        said = (
            f"{called} was chosen: of the releases whose leak is surely within the {allowed} that the policy allows, it"
            f" keeps most of the native explanation (utility {chosen.utility:.2f}). Its leak is estimated at {number}."
        )
    public = study.reference.get("public models")
    if public is None:
        return said, (
            "No models of public data were given. Such models reveal nothing about members, so a hardening is only"
            " worth its risk if it is more faithful to the model than they are: compare before you release it."
        )
    if chosen.deletion is None or public.deletion is None:
        return (said,)
    worth = "more faithful than what costs no risk at all."
    if chosen.deletion <= public.deletion:
        worth = "not more faithful, so release their explanations instead (PublicExplainer)."
    return said, (
        "Models of public data reveal nothing about members by construction. Removing the features that they name"
        f" lowers the predicted probability by {public.deletion:.2f}; removing those that the chosen release names, by"
        f" {chosen.deletion:.2f}: it is {worth}"
    )


def table_rows(study: Study, front: tuple[Point, ...], chosen: Point | None) -> list[Row]:
    """What the search is compared with, then the front from the most useful release on, the chosen one first."""
    roles = {p.number: role for role, p in study.reference.items()}
    on_front = {p.number for p in front}
    rest = [p for p in reversed(front) if p.number not in roles]
    if chosen is not None and chosen.number not in roles:
        rest = [chosen, *(p for p in rest if p.number != chosen.number)]
    return [
        Row(
            p,
            name_of(p, roles.get(p.number, "")),
            "explanations of models of public data" if p.number < 0 else as_python(p.hardening, p.options),
            chosen is not None and p.number == chosen.number,
            p.number in on_front,
            p.number in roles,
        )
        for p in [*study.reference.values(), *rest]
    ]


def named_points(study: Study, chosen: Point | None) -> list[tuple[str, Point, bool]]:
    """What plot and pictures name: the points of comparison and the chosen one, which may be one of them."""
    out = [
        (name_of(p, role), p, chosen is not None and p.number == chosen.number) for role, p in study.reference.items()
    ]
    if chosen is not None and not any(mark for *_, mark in out):
        out.append((f"chosen ({name_of(chosen)})", chosen, True))
    return [(f"{name} (chosen)" if mark and not name.startswith("chosen") else name, p, mark) for name, p, mark in out]


def pareto_figure(study: Study, front: tuple[Point, ...], chosen: Point | None) -> Markup:
    """Leak against utility: trials faint, the front connected, named points with their bounds, the chosen marked."""
    named = named_points(study, chosen)
    shown = [*study.points, *front, *(p for _, p, _ in named)]

    def draw(axes: Axes) -> None:
        highest = max([study.allowance, *(p.leak for p in shown), *(p.upper for _, p, _ in named)])
        least, most = min((p.utility for p in shown), default=0.0), max((p.utility for p in shown), default=1.0)
        room = max(0.04, 0.08 * (most - least))
        axes.set_xlim(least - room, most + room)
        axes.set_ylim(-12 * max(highest, 0.005), 108 * max(highest, 0.005))
        plain(axes)
        axes.set_xlabel("utility: agreement with the native explanation", color=INK, labelpad=6)
        axes.set_ylabel("leak, in points", color=INK, labelpad=4)
        axes.axhline(100 * study.allowance, color=LIMIT, linewidth=1.2, linestyle=(0, (4.5, 2)), zorder=2)
        for points, colour, line in ((study.points, MUTED, ""), (front, STRONG, "-")):
            x, y = [p.utility for p in points], [100 * p.leak for p in points]
            axes.plot(x, y, color=colour, linestyle=line, marker="o", markersize=4.2, linewidth=1.8, zorder=3)
        for (name, p, mark), marker in zip(named, cycle(MARKERS)):
            colour, shape, size = (STRONG, "*", 15.0) if mark else (LABEL, marker, 6.5)
            axes.plot([p.utility] * 2, [100 * b for b in bounds(p)], color=colour, linewidth=1.4, zorder=5)
            at = [p.utility], [100 * p.leak]
            axes.plot(*at, color=colour, linestyle="", marker=shape, markersize=size, label=name, zorder=6)
        if named:
            colours = [STRONG if mark else LABEL for *_, mark in named]
            axes.legend(loc="best", frameon=False, fontsize=10, labelcolor=colours, handletextpad=0.3)

    return drawn(draw, SIZE, PLACE, "pareto", "pareto")


def pictured(study: Study, chosen: Point | None, examples: Examples | None) -> tuple[list[Picture], list[Bars]]:
    """The examples as pictures, or as bars if they are no images; the other list is empty."""
    if examples is None or not len(examples.inputs):
        return [], []
    named = [(n, examples.maps[p.number], m) for n, p, m in named_points(study, chosen) if p.number in examples.maps]
    captions = [
        f"predicted {label} · {'member' if inside else 'non-member'}"
        for label, inside in zip(examples.labels.tolist(), examples.member.tolist(), strict=True)
    ]
    if not named:
        return [], []
    if all(m.ndim == 4 for m in (examples.inputs, *(m for _, m, _ in named))):
        return _pictures(examples.inputs, captions, named), []
    return [], _bars(examples, captions, named)


def _pictures(inputs: NDArray[np.float32], captions: list[str], named: Named) -> list[Picture]:
    rows = [[(name, uri, mark) for uri in maps.heat_maps(m)] for name, m, mark in named]
    if inputs.shape[1] in (1, 3):
        values = np.nan_to_num(inputs.astype(np.float64)).reshape(len(inputs), -1)
        low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
        unit = ((values - low) / np.maximum(high - low, 1e-12)).reshape(inputs.shape)
        rows.insert(0, [("input", maps.photo(image), False) for image in unit])
    return list(zip(captions, map(list, zip(*rows, strict=True)), strict=True))


def _bars(examples: Examples, captions: list[str], named: Named) -> list[Bars]:
    k = len(examples.inputs)
    flat = np.nan_to_num(np.stack([m.reshape(k, -1) for *_, m, _ in named], axis=1).astype(np.float64))
    d = flat.shape[2]
    values = examples.inputs.reshape(k, -1)
    features = examples.features if len(examples.features) == d else tuple(f"feature {j + 1}" for j in range(d))
    out = []
    for i, caption in enumerate(captions):
        units = flat[i] / np.maximum(np.abs(flat[i]).max(1, keepdims=True), 1e-300)
        order = np.argsort(-np.abs(units).max(0) - 1e-6 * np.abs(units[0]), kind="stable")[:MOST_FEATURES]
        rows = tuple(
            (features[j], f"{values[i, j]:.4g}" if values.shape[1] == d else "", tuple(units[:, j].tolist()))
            for j in order.tolist()
        )
        out.append(Bars(caption, tuple((name, mark) for name, _, mark in named), rows, d - len(rows)))
    return out


def render(
    study: Study,
    front: tuple[Point, ...],
    chosen: Point | None,
    within: bool,
    confirmed: AuditResult | None,
    examples: Examples | None,
) -> str:
    """The page as one HTML document, the same text for the same input; see `Tuned` for the arguments."""
    strips, bars = pictured(study, chosen, examples)
    rows = table_rows(study, front, chosen)
    facts = {
        "Space": study.space,
        "Trials": f"{study.trials:,}, of which {study.pruned:,} were cut short and {study.failed:,} failed",
        "Examples that chose": f"{study.sizes['selection']:,}",
        "Models that were asked": f"{study.sizes['models']:,}",
        "Seed": str(study.seed),
        "Digest of the study": study.digest,
    }
    template = _environment().get_template("front.html.j2")
    return template.render(
        study=study,
        front=front,
        chosen=chosen,
        reasons=chosen_words(study, front, chosen, within),
        hardening="" if chosen is None else as_python(chosen.hardening, chosen.options),
        says="" if chosen is None else in_words(_rounded(chosen.hardening.to_dict())),
        result=confirmed,
        verdict="inconclusive" if confirmed is None else confirmed.verdict,
        figure=pareto_figure(study, front, chosen),
        named=named_points(study, chosen),
        rows=rows[:FIRST_ROWS],
        folded=rows[FIRST_ROWS:],
        strips=strips,
        bars=bars,
        words=words,
        facts=facts.items(),
    )


@cache
def _environment() -> Environment:
    """Templates of this page, and the style and parts of the audit's report."""
    return Environment(
        loader=ChoiceLoader([PackageLoader("safexplain.tune", ""), PackageLoader("safexplain.audit.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
