"""`front.html`: what a search tried, what it chose and why, and the same examples under each named release.

One self-contained page in the look of the audit's report, whose style, parts, figures and pictures it uses: no script,
and nothing loaded; its only link is to `report.html`, the confirmation, beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from numpy.typing import NDArray

from safexplain._files import write_whole
from safexplain.audit.report import maps
from safexplain.audit.report.figures import CHANCE, INK, LABEL, LIMIT, MUTED, STRONG, drawn, plain
from safexplain.hardening.hardening import Hardening
from safexplain.tune.result import NORMAL, Examples, Point, Study
from safexplain.verdict import words
from safexplain.verdict.release import as_written, in_words
from safexplain.verdict.result import AuditResult

SIZE = (5.2, 4.2)
"""Of the plot, in inches."""

PLACE = (0.12, 0.13, 0.855, 0.85)
"""Of its axes."""

LETTER, LINE = 5.3, 12.0
"""Width and height of a letter of a label, in points."""

AROUND = (
    (9, 0, "left"),
    (-9, 0, "right"),
    (0, 12, "center"),
    (0, -12, "center"),
    (9, 11, "left"),
    (9, -11, "left"),
    (-9, 11, "right"),
    (-9, -11, "right"),
    (12, 22, "left"),
    (12, -22, "left"),
    (-12, 22, "right"),
    (-12, -22, "right"),
    (14, 34, "left"),
    (-14, 34, "right"),
    (14, 46, "left"),
    (-14, 46, "right"),
)
"""Where a label may stand beside its point: right, up (in points) and alignment, the best place first."""

MOST_FEATURES = 10
"""Columns of a table that are shown of an example."""

FIRST_ROWS = 12
"""Rows of the table that are not folded away."""

SIZES = {
    "selection": "Examples that chose",
    "certification": "Examples of the verdict",
    "models": "Models that were asked",
    "targets": "Models in the target's place",
}
"""What `Study.sizes` counts."""


@dataclass(frozen=True)
class Row:
    """A line of the table: a point, how it is called and written, and what it is in this search."""

    point: Point
    name: str
    says: str
    chosen: bool
    on_front: bool
    compared: bool

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
class Picture:
    """An example of an image under each release: name -> data URI, the input first."""

    caption: str
    row: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True)
class Bars:
    """An example of a table: its most important columns, and a signed bar of each under each release."""

    caption: str
    names: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, str, tuple[float, ...]], ...]
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
    """What was chosen and why, in plain sentences.

    Args:
        study: what was searched.
        front: its front.
        chosen: the chosen point; None: nothing was measured.
        within: whether its leak is surely within the allowance.
    """
    allowed = f"{100 * study.allowance:.3g} percentage points"
    if chosen is None:
        return ("No release was measured, so none could be chosen.",)
    number = f"{100 * chosen.leak:.1f} points (at most {100 * chosen.upper:.1f} with 95% confidence)"
    called = words.capital(name_of(chosen))
    if within:
        sentences = [
            f"{called} was chosen: of the releases whose leak is surely within the {allowed} that the policy allows, it"
            f" keeps most of the native explanation (utility {chosen.utility:.2f}). Its leak is estimated at {number}."
        ]
    else:
        sentences = [
            f"No release that was tried is surely within the {allowed} that the policy allows. {called} leaks least: it"
            f" is estimated at {number}, at a utility of {chosen.utility:.2f}. More examples or more trials may find a"
            " better one."
        ]
    return (*sentences, *_against_public(study, chosen))


def _against_public(study: Study, chosen: Point) -> tuple[str, ...]:
    """Whether the chosen release is worth its risk: whether it is more faithful than models of public data are."""
    public = study.reference.get("public models")
    if public is None:
        return (
            "Models of public data were not given. What such models say tells nothing about members, so a hardening is"
            " worth its risk only if it is more faithful to the model than they are; compare before you release it.",
        )
    if chosen.deletion is None or public.deletion is None:
        return ()
    start = (
        "Models of public data tell nothing about members by construction. Removing what they name lowers the predicted"
        f" probability by {public.deletion:.2f}; removing what the chosen release names, by {chosen.deletion:.2f}:"
    )
    if chosen.deletion > public.deletion:
        return (f"{start} it is more faithful than what costs no risk at all.",)
    return (f"{start} it is not more faithful, so release their explanations instead (PublicExplainer).",)


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
        axes.plot(*_places(study.points), color=MUTED, marker="o", markersize=4.2, linestyle="", zorder=3)
        axes.plot(*_places(front), color=STRONG, marker="o", markersize=4.2, linewidth=1.8, zorder=4)
        for _, p, mark in named:
            low, high = bounds(p)
            axes.plot(
                [p.utility] * 2, [100 * low, 100 * high], color=STRONG if mark else CHANCE, linewidth=1.4, zorder=5
            )
            marker, size = ("*", 15) if mark else ("D", 6.5)
            axes.plot(
                [p.utility], [100 * p.leak], color=STRONG if mark else LABEL, marker=marker, markersize=size, zorder=6
            )
        lines = [([p.utility] * 2, [100 * b for b in bounds(p)]) for _, p, _ in named]
        lines += [_places(front), (list(axes.get_xlim()), [100 * study.allowance] * 2)]
        _label(axes, [(name, p.utility, 100 * p.leak, mark) for name, p, mark in named], _places(shown), lines)

    return drawn(draw, SIZE, PLACE, "pareto", "pareto")


def _places(points: Any) -> tuple[list[float], list[float]]:
    return [p.utility for p in points], [100 * p.leak for p in points]


def _label(
    axes: Axes,
    named: list[tuple[str, float, float, bool]],
    places: tuple[list[float], list[float]],
    lines: list[tuple[list[float], list[float]]],
) -> None:
    """Write each name where it covers least: other names weigh most, then the frame, then points and lines."""
    dots = 72 / axes.figure.get_dpi()

    def on_paper(x: list[float], y: list[float]) -> NDArray[np.float64]:
        at: NDArray[np.float64] = axes.transData.transform(np.column_stack((x, y))) * dots
        return at

    step = np.linspace(0, 1, 40)[:, None]
    pairs = [(a, b) for line in lines for a, b in pairwise(on_paper(*line)) if len(line[0]) > 1]
    points = np.concatenate([on_paper(*places), *(a + step * (b - a) for a, b in pairs)])
    left, bottom, right, top = (np.asarray(axes.get_window_extent().extents) * dots).tolist()
    taken: list[tuple[float, float, float, float]] = []
    for name, x, y, mark in sorted(named, key=lambda one: not one[3]):
        cx, cy = on_paper([x], [y])[0].tolist()
        wide = LETTER * len(name)

        def box(dx: float, dy: float, align: str) -> tuple[float, float, float, float]:
            start = cx + dx - {"left": 0.0, "right": wide, "center": wide / 2}[align]  # noqa: B023
            return start, cy + dy - LINE / 2, start + wide, cy + dy + LINE / 2  # noqa: B023

        def cost(place: tuple[float, float, str]) -> float:
            a = box(*place)
            words_covered = sum(min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1]) for b in taken)
            outside = a[0] < left or a[2] > right or a[1] < bottom or a[3] > top
            covered = int(((points > (a[0], a[1])) & (points < (a[2], a[3]))).all(1).sum())
            return float(100 * words_covered + 60 * outside + covered + 0.4 * AROUND.index(place))

        dx, dy, align = best = min(AROUND, key=cost)
        taken.append(box(*best))
        axes.annotate(
            name,
            (x, y),
            (dx, dy),
            textcoords="offset points",
            ha=align,
            va="center",
            color=STRONG if mark else LABEL,
            fontsize=10,
            fontweight="bold" if mark else "normal",
            arrowprops={"arrowstyle": "-", "color": CHANCE, "linewidth": 0.8} if abs(dy) > 15 else None,
            zorder=7,
        )


def pictured(study: Study, chosen: Point | None, examples: Examples | None) -> tuple[list[Picture], list[Bars]]:
    """The examples as pictures, or as bars where they are no images; the other list is empty."""
    if examples is None or not len(examples.inputs):
        return [], []
    named = [
        (name, examples.maps[p.number], mark)
        for name, p, mark in named_points(study, chosen)
        if p.number in examples.maps
    ]
    if not named:
        return [], []
    captions = [
        f"predicted {label} · {'member' if inside else 'non-member'}"
        for label, inside in zip(examples.labels.tolist(), examples.member.tolist(), strict=True)
    ]
    shape = examples.inputs.shape
    if len(shape) == 4 and all(m.ndim == 4 and m.shape[0] == shape[0] for _, m, _ in named):
        return _pictures(examples.inputs, captions, named), []
    return [], _bars(examples, captions, named)


def _pictures(
    inputs: NDArray[np.float32], captions: list[str], named: list[tuple[str, NDArray[np.float32], bool]]
) -> list[Picture]:
    uris = [(name, maps.heat_maps(m), mark) for name, m, mark in named]
    photos = [] if inputs.shape[1] not in (1, 3) else [maps.photo(_unit(image)) for image in inputs]
    return [
        Picture(
            caption,
            (*((("input", photos[i], False),) if photos else ()), *((name, u[i], mark) for name, u, mark in uris)),
        )
        for i, caption in enumerate(captions)
    ]


def _unit(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """An image moved to [0, 1]."""
    values = np.nan_to_num(image.astype(np.float64))
    unit: NDArray[np.float64] = (values - values.min()) / max(float(np.ptp(values)), 1e-12)
    return unit


def _bars(examples: Examples, captions: list[str], named: list[tuple[str, NDArray[np.float32], bool]]) -> list[Bars]:
    k = len(examples.inputs)
    flat = [np.nan_to_num(m.reshape(k, -1).astype(np.float64)) for _, m, _ in named]
    d = flat[0].shape[1]
    values = examples.inputs.reshape(k, -1)
    features = examples.features if len(examples.features) == d else tuple(f"feature {j + 1}" for j in range(d))
    out = []
    for i, caption in enumerate(captions):
        units = np.stack([m[i] / max(float(np.abs(m[i]).max()), 1e-300) for m in flat if m.shape[1] == d])
        order = np.argsort(-np.abs(units).max(0) - 1e-6 * np.abs(units[0]), kind="stable")[:MOST_FEATURES]
        rows = tuple(
            (features[j], f"{values[i, j]:.4g}" if values.shape[1] == d else "", tuple(units[:, j].tolist()))
            for j in order.tolist()
        )
        shown = tuple((name, mark) for (name, _, mark), m in zip(named, flat, strict=True) if m.shape[1] == d)
        out.append(Bars(caption, shown, rows, d - len(rows)))
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
    return (
        _environment()
        .get_template("front.html.j2")
        .render(
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
            facts=_facts(study),
        )
    )


def _facts(study: Study) -> list[tuple[str, str]]:
    """The table at the foot of the page."""
    return [
        ("Space", study.space),
        ("Trials", f"{study.trials:,}, of which {study.pruned:,} were cut short and {study.failed:,} failed"),
        *((SIZES.get(name, words.capital(name)), f"{number:,}") for name, number in study.sizes.items()),
        ("Seed", str(study.seed)),
        ("Digest of the study", study.digest),
    ]


def write_page(
    path: str | Path,
    study: Study,
    front: tuple[Point, ...],
    chosen: Point | None,
    within: bool,
    confirmed: AuditResult | None,
    examples: Examples | None,
) -> Path:
    """Render and write, all or nothing; see `Tuned` for the arguments.

    Raises:
        InputError: it cannot be written.
    """
    raw = render(study, front, chosen, within, confirmed, examples).encode("utf-8", errors="replace")
    return write_whole(path, raw, "the page")


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
