"""Figures of the report: ROC curves as inline SVG, whose colours are CSS variables, and explanations as PNG images."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from safexplain.audit.report.tables import Pictures
from safexplain.verdict.guarantee import RocBound
from safexplain.verdict.result import AttackResult, AuditResult
from safexplain.verdict.stats import RocCurve
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

COLOURS = ("ink", "grid", "muted", "strong", "label", "chance", "limit", "ghost")
VARIABLES = (*(f"--figure-{colour}" for colour in COLOURS), "--good")
INK, GRID, MUTED, STRONG, LABEL, CHANCE, LIMIT, GHOST, GOOD = (f"#0a0b{i:02x}" for i in range(len(VARIABLES)))
"""Stand-in colours for matplotlib, later replaced by CSS variables."""

SIZE = 4.7
POINTS = 260  # vertices of a curve: one for every pixel or two of the figure
BOUNDS = 60  # false-positive rates at which the bounds of the strongest attack are drawn, besides the policy's


def smallest_rate(results: Sequence[AuditResult]) -> float:
    """Smallest rate shown on both axes: the power of ten below one non-member and below the policies' rates."""
    smallest = min(min(r.policy.fpr / 2, 1 / r.non_members) for r in results)
    return float(max(10 ** np.floor(np.log10(smallest)), 1e-5))


def roc_figure(
    result: AuditResult,
    least: float,
    *,
    compare: AuditResult | None = None,
    bound: RocBound | None = None,
    salt: str = "roc",
) -> Markup:
    """Log-log ROC curves of one configuration, a self-contained `<svg>` but for CSS variables.

    Every curve is the conservative step function: at x, the members found with a false-positive rate of at most x. The
    strongest judged attack has bounds; that of `compare` is drawn faintly, and `bound` is the most that any attack is
    expected to find. Axes begin at `least`; `salt` makes the ids of a page's figures differ.
    """

    def draw(axes: Axes) -> None:
        _frame(axes, least)
        _draw(axes, result, least, compare)
        if bound is not None:
            at = np.geomspace(least, 1.0, POINTS)
            axes.plot(at, bound(at), color=GOOD, linewidth=1.6, linestyle=(0, (7, 2, 1.5, 2)), zorder=4)

    return svg_of(draw, (SIZE, SIZE * 0.95), (0.165, 0.125, 0.795, 0.855), "roc", salt)


def svg_of(
    draw: Callable[[Axes], None],
    size: tuple[float, float],
    place: tuple[float, float, float, float],
    name: str,
    salt: str,
) -> Markup:
    """An `<svg class="name">` of `size` inches, drawn by `draw` on axes at `place` in it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's style sheet: the same input must give the same bytes
        matplotlib.rcParams.update({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 10})
        figure = Figure(figsize=size)
        draw(figure.add_axes(place))
        raw = io.BytesIO()
        figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Markup(_inline(raw.getvalue().decode(), name))


def _draw(axes: Axes, result: AuditResult, least: float, compare: AuditResult | None) -> None:
    policy, best = result.policy, result.strongest
    axes.plot([least, 1], [least, 1], color=CHANCE, linewidth=1, linestyle=(0, (1, 2.2)), zorder=2)

    def step(attack: AttackResult, **style: Any) -> None:
        axes.step(*_steps(attack.curve, least), where="post", **style)

    for attack in result.judged:
        if attack is not best:
            step(attack, color=MUTED, linewidth=1, zorder=3)
    if (alone := baseline_attack(result)) is not None:
        step(alone, color=LABEL, linewidth=1.4, linestyle=(0, (4.5, 2)), zorder=4)
    if compare is not None:
        step(compare.strongest, color=GHOST, linewidth=1.6, zorder=4)
    if (shaded := confidence_band(result, least)) is not None:
        x, low, high = shaded
        axes.fill_between(x, low, high, color=STRONG, alpha=0.13, linewidth=0, zorder=1)
    step(best, color=STRONG, linewidth=2.2, zorder=5)
    if result.claim == "whole":
        axes.plot([policy.fpr, policy.fpr], [policy.max_tpr, 1], color=LIMIT, linewidth=1.6, zorder=6)
        axes.plot([policy.fpr], [policy.max_tpr], color=LIMIT, marker="D", markersize=7, zorder=7)


def baseline_attack(result: AuditResult) -> AttackResult | None:
    """The attack on labels (or predictions) alone, with the queries of the strongest attack; None if none was run."""
    base = result.baseline(result.strongest.level)
    return next((a for a in result.attacks if a is base), None) or next(
        (a for a in result.attacks if a.role == "label" and a.level == result.strongest.level), None
    )


def _frame(axes: Axes, least: float) -> None:
    for axis, scale, limits in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        scale("log")
        limits(least, 1.0)
        axis.set_major_locator(LogLocator(base=10, numticks=12))
        axis.set_minor_locator(LogLocator(base=10, subs=tuple(np.arange(0.2, 1.0, 0.1)), numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}%"))
        axis.set_minor_formatter(NullFormatter())
    style_axes(axes)
    axes.set_xlabel("non-members falsely identified as members (FPR)", color=INK, labelpad=6)
    axes.set_ylabel("members found (TPR)", color=INK, labelpad=4)


def style_axes(axes: Axes) -> None:
    """Grid, ticks and frame of all figures."""
    axes.grid(which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, colors=INK, pad=6)
    for side in axes.spines.values():
        side.set_color(GRID)
        side.set_linewidth(0.8)


def _steps(curve: RocCurve, least: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The vertices of a step line at this resolution: the last one left of each grid point."""
    at = np.unique(np.searchsorted(curve.fpr, np.geomspace(least, 1.0, POINTS), side="right") - 1)
    return np.maximum(curve.fpr[at], least), np.maximum(curve.tpr[at], least / 10)


def confidence_band(
    result: AuditResult, least: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
    """Bounds of the strongest attack's true-positive rate at any false-positive rate, as `Judgement.bounds` has them.

    Returns:
        Rates, lower and upper bounds; None if groups count, for which the order of single members is not enough.
    """
    policy, n1, n0 = result.policy, result.members, result.non_members
    best = result.strongest
    order = next((o for a, o in zip(result.judged, result.orders, strict=False) if a is best), None)
    if order is None or result.grouped is not None:
        return None
    rates, risk = np.unique([*np.geomspace(least, 0.99, BOUNDS), policy.fpr]), result.lower_risk(best) / 2
    limits = []
    for fpr in rates.tolist():
        rank, share = lower_bound_rank(n0, fpr, risk)
        above = upper_bound_rank(n0, fpr, policy.risk / 2)
        low = lower_bound(found_above(order, rank), n1, risk) * share
        limits.append((low, 1.0 if above is None else upper_bound(found_above(order, above), n1, policy.risk / 2)))
    low, high = np.maximum(np.array(limits), least / 10).T
    return rates, low, high


def _inline(svg: str, name: str) -> str:
    """Matplotlib's SVG as an element of a page, without prologue, metadata, style, namespaces and group names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'<svg[^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg class="{name}" \1 aria-hidden="true">', svg, count=1)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r"font: ((?:\d+ )?[\d.]+px) [^;\"]*", r"font: \1 var(--sans)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    return re.sub(r"#0a0b(\w\w)", lambda found: f"var({VARIABLES[int(found[1], 16)]})", svg)


SMALL, LARGE = 160, 192
"""Pictures are enlarged by a whole factor to at least SMALL pixels, or thinned out to at most LARGE."""

SIGNED, POSITIVE = "RdBu_r", "Reds"
"""Colour maps, white at zero: blue to red for maps with signs, white to red for maps without negative values."""

NO_METADATA: dict[str, Any] = {"Software": None}


def strips(pictures: Pictures, released_name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The caption of every example, and its pictures as (label, data URI)."""
    native = heat_maps(pictures.native)
    rows = [[("input", photo(image)), ("native", uri)] for image, uri in zip(pictures.images, native, strict=True)]
    if pictures.released is not None:
        for row, uri in zip(rows, heat_maps(pictures.released), strict=True):
            row.append((released_name, uri))
    return list(zip(pictures.captions, rows, strict=True))


def has_signs(pictures: Pictures) -> tuple[bool, bool]:
    """Whether any map uses the signed colour map, and whether any uses the other one."""
    signed = [bool((_channel_sum(g) < 0).any()) for g in (pictures.native, pictures.released) if g is not None]
    return any(signed), not all(signed)


def heat_maps(attributions: NDArray[np.floating[Any]]) -> list[str]:
    """Maps (k, c, h, w), each on its own scale; all share one colour map, in which white is zero."""
    rows = _channel_sum(attributions)
    signed = bool((rows < 0).any())
    colours = matplotlib.colormaps[SIGNED if signed else POSITIVE]
    uris = []
    for row in rows:
        largest = float(np.abs(row).max())
        unit = row / largest if largest > 0 else np.zeros_like(row)
        uris.append(_png(np.asarray(colours((unit + 1) / 2 if signed else unit))[..., :3]))
    return uris


def _channel_sum(attributions: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    values = np.asarray(attributions, dtype=np.float64)
    return np.asarray(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).sum(axis=1))


def photo(image: NDArray[np.floating[Any]]) -> str:
    """An image (1 or 3, h, w) with values in [0, 1]."""
    pixels = np.clip(np.nan_to_num(np.asarray(image, dtype=np.float64)), 0, 1).transpose(1, 2, 0)
    return _png(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _png(rgb: NDArray[np.floating[Any]]) -> str:
    """(h, w, 3) in [0, 1] as a data URI, scaled by nearest neighbours only."""
    longest = max(rgb.shape[:2])
    rgb = rgb[:: -(-longest // LARGE), :: -(-longest // LARGE)]
    factor = -(-SMALL // max(rgb.shape[:2]))
    pixels = np.round(255 * rgb).astype(np.uint8).repeat(factor, axis=0).repeat(factor, axis=1)
    raw = io.BytesIO()
    imsave(raw, pixels, format="png", metadata=NO_METADATA, pil_kwargs={"optimize": True})
    return "data:image/png;base64," + base64.b64encode(raw.getvalue()).decode()
