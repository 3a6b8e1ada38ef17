"""What a search measured: points, their front, the choice, and examples for pictures; none has a key. And its page,
`front.html`, with the same examples under each named release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import cycle
from typing import Any, NamedTuple, Self

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from numpy.typing import NDArray

from safexplain.audit.report.outcome import (
    INK,
    LABEL,
    LIMIT,
    MUTED,
    STRONG,
    captions,
    heat_maps,
    page_templates,
    photo,
    scaled,
    style_axes,
    svg_of,
)
from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening
from safexplain.verdict import words
from safexplain.verdict.result import AuditResult
from safexplain.verdict.words import as_written, in_words

NORMAL = 1.6448536269514722  # the 95 % quantile of the standard normal distribution


@dataclass(frozen=True)
class Point:
    """A release and its figures, measured on the selection split at one query per example.

    Args:
        number: of the trial, from 0; -1 for public models.
        hardening: without a key.
        options: searched arguments of `attribute`; for several explainers, name -> arguments.
        leak: largest mean excess TPR over the label at 0.5, 1, 2 and 5 % FPR among the attacks; a share, at least 0.
        leak_error: its standard error, by resampling examples and targets.
        utility: mean of `overlap`, `rank_correlation` and `cosine`.
        overlap: of the top 10 % of features with the native ones.
        rank_correlation: of magnitudes with the native map (Spearman).
        cosine: with the native map.
        deletion: mean drop of the explained probability when the released top 10 % is removed; None if maps and
            inputs differ in resolution.
        insertion: mean of that probability when only these are kept, less that with nothing kept; or None.
        sign_errors: share of released non-zero numbers with another sign than the native ones.
        attack: that found the leak; "" if none found more than the label.
        targets: number of attacked models.
        name: of a given point, such as "native", or "".
    """

    number: int
    hardening: Hardening
    options: dict[str, Any]
    leak: float
    leak_error: float
    utility: float
    overlap: float
    rank_correlation: float
    cosine: float
    deletion: float | None
    insertion: float | None
    sign_errors: float = 0.0
    attack: str = ""
    targets: int = 0
    name: str = ""

    @property
    def lower(self) -> float:
        """Lower 95 % bound of the leak (normal, one-sided), at least 0."""
        return max(0.0, self.leak - NORMAL * self.leak_error)

    @property
    def upper(self) -> float:
        """Upper 95 % bound of the leak (normal, one-sided)."""
        return self.leak + NORMAL * self.leak_error

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "hardening": self.hardening.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict`. InputError, ConfigurationError: it is something else."""
        try:
            hardening = Hardening.from_json(content["hardening"])
            return cls(**{**content, "hardening": hardening, "options": _tuples(content["options"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"expected a point of a search in the format of Point.to_dict: {error}") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tuples(v) for name, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def front_of(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other point dominates, the least leaking first; the first of equal ones."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.leak, -p.utility, p.number)):
        if not best or point.utility > best[-1].utility:
            best.append(point)
    return tuple(best)


def choose(front: Iterable[Point], allowance: float) -> tuple[Point, bool]:
    """The most useful point whose `upper` is within the allowance, and True; if there is none, the least leaking point,
    and False. InputError: no points."""
    points = list(front)
    if not points:
        raise InputError("front: expected at least one point, got none")
    within = [p for p in points if p.upper <= allowance]
    if within:
        return max(within, key=lambda p: (p.utility, -p.leak, -p.number)), True
    return min(points, key=lambda p: (p.leak, -p.utility, p.number)), False


@dataclass(frozen=True)
class Study:
    """The record of a search.

    Args:
        trials: number of trials, including pruned and failed ones.
        pruned: trials dominated by utility alone, whose leak was not measured.
        failed: trials whose options the explainer refused.
        seed: of the search.
        allowance: largest leak that the policy tolerates.
        digest: SHA-256 of setting and trials, which certificates carry.
        path: its folder; None: in memory.
        reference: points for comparison: native, recommended, DeepLeak's best, public models.
        points: all measured points.
        sizes: numbers of examples in the selection split and of models.
        notes: caveats for the reader.
        interrupted: whether it ended before its last trial.
        title: of the model.
        explainer: method and explained output, in words.
    """

    trials: int
    pruned: int
    failed: int
    seed: int
    allowance: float
    digest: str
    path: str | None
    reference: dict[str, Point]
    points: tuple[Point, ...]
    sizes: dict[str, int]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    title: str = ""
    explainer: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("reference", "points")}
        return {
            **plain,
            "notes": list(self.notes),
            "reference": {name: point.to_dict() for name, point in self.reference.items()},
            "points": [point.to_dict() for point in self.points],
        }


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples for pictures, with their released maps under each point."""

    inputs: NDArray[np.float32]  # (k, ...)
    labels: NDArray[np.int64]  # (k,), the explained classes
    member: NDArray[np.bool_]  # (k,)
    maps: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)  # number of a point -> (k, ...), with noise


SIZE, PLACE = (5.2, 4.2), (0.12, 0.13, 0.855, 0.85)  # size of the plot, in inches, and place of its axes
MARKERS = ("D", "s", "^", "v")  # markers of points for comparison; the chosen one has a star


class Row(NamedTuple):
    """A line of the table."""

    point: Point
    name: str
    named: str  # name in plot and pictures, which marks the chosen one
    says: str  # the release in Python
    chosen: bool
    on_front: bool
    compared: bool  # whether it is a point for comparison

    @property
    def leak(self) -> str:
        """The leak in percentage points."""
        return f"{100 * self.point.leak:.1f}"

    @property
    def interval(self) -> str:
        """One-sided 95 % bounds of the leak."""
        return f"{100 * self.point.lower:.1f} to {100 * self.point.upper:.1f}"


class Picture(NamedTuple):
    """An image with its maps."""

    caption: str
    row: list[tuple[str, str, bool]]  # name, URI, whether it is the chosen release; the input first


def as_python(point: Point) -> str:
    """The hardening in Python, to four digits, and the explainer's options."""
    options = "".join(f", {name}={_rounded(v)!r}" for name, v in point.options.items())
    return as_written(_rounded(point.hardening.to_dict())) + options


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(v) for name, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def chosen_words(study: Study, chosen: Point, within: bool) -> tuple[str, ...]:
    """The choice and its reason; `within`: whether the bound of its leak is within the allowance."""
    allowed = f"{100 * study.allowance:.3g} percentage points"
    number = f"{100 * chosen.leak:.1f} points (at most {100 * chosen.upper:.1f} with 95% confidence)"
    called = words.capital(chosen.name or f"trial {chosen.number}")
    said = (
        f"No tried release has a leak bounded by the {allowed} that the policy allows. {called} leaks least:"
        f" {number} at a utility of {chosen.utility:.2f}. More examples or more trials may find a better one."
    )
    if within:
        said = (
            f"{called} was chosen: among the releases with a leak bounded by the {allowed} that the policy allows, it"
            f" keeps most of the native explanation (utility {chosen.utility:.2f}). Its leak is estimated at {number}."
        )
    public = study.reference.get("public models")
    if public is None:
        return said, (
            "No models of public data were given. Explanations by such models reveal nothing about members, so a"
            " hardening is only worth its risk if it is more faithful to the model: compare them before you release it."
        )
    if chosen.deletion is None or public.deletion is None:
        return (said,)
    worth = "more faithful than these risk-free explanations."
    if chosen.deletion <= public.deletion:
        worth = "not more faithful, so release these explanations instead (PublicExplainer)."
    return said, (
        "Explanations by models of public data reveal nothing about members. Removing the features that they name"
        f" lowers the predicted probability by {public.deletion:.2f}; removing those that the chosen release names, by"
        f" {chosen.deletion:.2f}: it is {worth}"
    )


def table_rows(study: Study, front: tuple[Point, ...], chosen: Point) -> list[Row]:
    """Points for comparison, the chosen release, and the front from the most useful one on."""
    compared, on_front = {p.number for p in study.reference.values()}, {p.number for p in front}
    points = {p.number: p for p in (*study.reference.values(), chosen, *reversed(front))}
    rows = []
    for n, p in points.items():
        name = named = p.name or f"trial {p.number}"
        if n == chosen.number:
            named = f"{name} (chosen)" if n in compared else f"chosen ({name})"
        says = "explanations of models of public data" if n < 0 else as_python(p)
        rows.append(Row(p, name, named, says, n == chosen.number, n in on_front, n in compared))
    return rows


def pareto_figure(study: Study, front: tuple[Point, ...], named: list[Row]) -> Markup:
    """Leak against utility, with named points."""
    shown = [*study.points, *front, *(row.point for row in named)]

    def draw(axes: Axes) -> None:
        highest = max([study.allowance, *(p.leak for p in shown), *(row.point.upper for row in named)])
        least, most = min((p.utility for p in shown), default=0.0), max((p.utility for p in shown), default=1.0)
        room = max(0.04, 0.08 * (most - least))
        axes.set_xlim(least - room, most + room)
        axes.set_ylim(-12 * max(highest, 0.005), 108 * max(highest, 0.005))
        style_axes(axes)
        axes.set_xlabel("utility: agreement with the native explanation", color=INK, labelpad=6)
        axes.set_ylabel("leak, in points", color=INK, labelpad=4)
        axes.axhline(100 * study.allowance, color=LIMIT, linewidth=1.2, linestyle=(0, (4.5, 2)), zorder=2)
        for points, colour, line in ((study.points, MUTED, ""), (front, STRONG, "-")):
            x, y = [p.utility for p in points], [100 * p.leak for p in points]
            axes.plot(x, y, color=colour, linestyle=line, marker="o", markersize=4.2, linewidth=1.8, zorder=3)
        for row, marker in zip(named, cycle(MARKERS)):
            p, (colour, shape, size) = row.point, (STRONG, "*", 15.0) if row.chosen else (LABEL, marker, 6.5)
            axes.plot([p.utility] * 2, [100 * p.lower, 100 * p.upper], color=colour, linewidth=1.4, zorder=5)
            at = [p.utility], [100 * p.leak]
            axes.plot(*at, color=colour, linestyle="", marker=shape, markersize=size, label=row.named, zorder=6)
        colours = [STRONG if row.chosen else LABEL for row in named]
        axes.legend(loc="best", frameon=False, fontsize=10, labelcolor=colours, handletextpad=0.3)

    return svg_of(draw, SIZE, PLACE, "pareto", "pareto")


def pictured(shown: list[Row], examples: Examples | None) -> list[Picture]:
    """Examples under these releases, if they are images."""
    if examples is None or not len(examples.inputs):
        return []
    inputs = examples.inputs
    released = [(row, examples.maps[row.point.number]) for row in shown if row.point.number in examples.maps]
    if not all(m.ndim == 4 for m in (inputs, *(m for _, m in released))):
        return []
    rows = [[(row.named, uri, row.chosen) for uri in heat_maps(m)] for row, m in released]
    if inputs.shape[1] in (1, 3):
        unit = scaled(np.nan_to_num(inputs.astype(np.float64)))
        rows.insert(0, [("input", photo(image), False) for image in unit])
    titles = captions(examples.labels, examples.member)
    return [Picture(title, list(row)) for title, row in zip(titles, zip(*rows, strict=True), strict=True)]


def render(
    study: Study,
    front: tuple[Point, ...],
    chosen: Point,
    within: bool,
    confirmed: AuditResult | None,
    examples: Examples | None,
) -> str:
    """The page as one HTML document, the same text for the same input; see `Tuned` for the arguments."""
    rows = table_rows(study, front, chosen)
    named = [row for row in rows if row.compared or row.chosen]
    facts = {
        "Trials": f"{study.trials:,}, of which {study.pruned:,} were cut short and {study.failed:,} failed",
        "Examples for choosing": f"{study.sizes['selection']:,}",
        "Models": f"{study.sizes['models']:,}",
        "Seed": str(study.seed),
        "Digest of the study": study.digest,
    }
    template = page_templates("safexplain.tune", "safexplain.audit.report").get_template("front.html.j2")
    return template.render(
        study=study,
        reasons=chosen_words(study, chosen, within),
        hardening=as_python(chosen),
        says=in_words(_rounded(chosen.hardening.to_dict())),
        result=confirmed,
        verdict="inconclusive" if confirmed is None else confirmed.verdict,
        figure=pareto_figure(study, front, named),
        named=named,
        rows=rows,
        strips=pictured(named, examples),
        words=words,
        facts=facts.items(),
    )
