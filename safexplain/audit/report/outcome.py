"""The outcome of an audit: the verdict on the release, the native result, and the files that report them; ROC curves
are inline SVG, whose colours are CSS variables, and explanations PNG images."""

from __future__ import annotations

import base64
import io
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import file_sha256
from safexplain._files import make_folder, write_atomically
from safexplain._versions import versions
from safexplain.audit.report import tables
from safexplain.audit.report.tables import ENDPOINT, NATIVE, Configuration, Pictures, ReportData
from safexplain.audit.signals import Signals
from safexplain.audit.usefulness import Utility
from safexplain.errors import RefusedError
from safexplain.native_maps import Finding
from safexplain.verdict import words
from safexplain.verdict.certificate.write import SUBJECT_DATA, statement, write_json
from safexplain.verdict.guarantee import RocBound
from safexplain.verdict.judgement import Verdict
from safexplain.verdict.result import AttackResult, AuditResult
from safexplain.verdict.stats import RocCurve
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

COLOURS = ("ink", "grid", "muted", "strong", "label", "chance", "limit", "ghost")
VARIABLES = (*(f"--figure-{colour}" for colour in COLOURS), "--good")
INK, GRID, MUTED, STRONG, LABEL, CHANCE, LIMIT, GHOST, GOOD = (f"#0a0b{i:02x}" for i in range(len(VARIABLES)))
"""Stand-ins for CSS variables."""

SIZE = 4.7
POINTS = 260  # vertices of a curve: one for every pixel or two of the figure
BOUNDS = 60  # false-positive rates at which the bounds of the strongest attack are drawn, besides the policy's


def smallest_rate(results: Sequence[AuditResult]) -> float:
    """Where axes begin: the power of ten below one non-member and below the policies' rates."""
    smallest = min(min(r.policy.fpr / 2, 1 / r.non_members) for r in results)
    return float(max(10 ** np.floor(np.log10(smallest)), 1e-5))


def roc_figure(
    result: AuditResult,
    least: float,
    *,
    compare: AuditResult | None,
    bound: RocBound | None,
    salt: str,
) -> Markup:
    """Log-log ROC curves of one configuration, as conservative step functions; the strongest judged attack has bounds.

    That of `compare` is drawn faintly; `bound` is the most that any attack is expected to find. Axes begin at `least`;
    `salt` makes the ids of a page's figures differ.
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
    """The attack on labels or predictions alone, with the queries of the strongest attack."""
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
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}%"))
    style_axes(axes)
    axes.set_xlabel("non-members falsely identified as members (FPR)", color=INK, labelpad=6)
    axes.set_ylabel("members found (TPR)", color=INK, labelpad=4)


def style_axes(axes: Axes) -> None:
    """Grid, ticks and frame of all"""
    axes.grid(which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, colors=INK, pad=6)
    for side in axes.spines.values():
        side.set_color(GRID)
        side.set_linewidth(0.8)


def _steps(curve: RocCurve, least: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The vertices of a step line: the last one left of each grid point."""
    at = np.unique(np.searchsorted(curve.fpr, np.geomspace(least, 1.0, POINTS), side="right") - 1)
    return np.maximum(curve.fpr[at], least), np.maximum(curve.tpr[at], least / 10)


def confidence_band(
    result: AuditResult, least: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
    """False-positive rates, and bounds of the strongest attack's true-positive rate there, as in `Judgement.bounds`;
    None if groups count, for which the order of single members is not enough."""
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
    """Matplotlib's SVG as an element of a page."""
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


def strips(pictures: Pictures, released_name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The caption of every example, and its pictures as (label, data URI)."""
    native = heat_maps(pictures.native)
    rows = [[("input", photo(image)), ("native", uri)] for image, uri in zip(pictures.images, native, strict=True)]
    if pictures.released is not None:
        for row, uri in zip(rows, heat_maps(pictures.released), strict=True):
            row.append((released_name, uri))
    return list(zip(pictures.captions, rows, strict=True))


def has_signs(pictures: Pictures) -> tuple[bool, bool]:
    """Whether any maps have signs, and whether any have none."""
    signed = [bool((_channel_sum(g) < 0).any()) for g in (pictures.native, pictures.released) if g is not None]
    return any(signed), not all(signed)


def heat_maps(attributions: NDArray[np.floating[Any]]) -> list[str]:
    """Maps (k, c, h, w), each on its own scale, in one colour map."""
    rows = _channel_sum(attributions)
    signed = bool((rows < 0).any())
    colours = matplotlib.colormaps["RdBu_r" if signed else "Reds"]  # white at zero
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
    raw, metadata = io.BytesIO(), dict[str, Any](Software=None)
    imsave(raw, pixels, format="png", metadata=metadata, pil_kwargs={"optimize": True})
    return "data:image/png;base64," + base64.b64encode(raw.getvalue()).decode()


MAX_PICTURED = 6  # examples pictured in the report


@dataclass(frozen=True, eq=False)
class AuditRun:
    """The results of an audit, native and hardened, with everything that its files state.

    Args:
        signals: name of a configuration -> the attacked signals.
        report: contents of report.html; digests are added once the signals are written.
        stated: further arguments of `safexplain.verdict.certificate.write.statement`.
        findings: native maps of the targets that cannot be right, also listed in the notes.
        next_look: approximate reference models, scored examples and seconds of a further look that was not started
            because it would have ended too late (`AuditOptions.seconds`); None: there is none.
    """

    signals: Mapping[str, Signals]
    report: ReportData
    stated: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    next_look: tuple[int, int, float] | None = None

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """All releases, in the report's order; the last one is judged."""
        return self.report.configurations

    @property
    def judged(self) -> Configuration:
        """The configuration that is judged."""
        return self.report.audited

    @property
    def result(self) -> AuditResult:
        """The result on the judged release."""
        return self.judged.result

    @property
    def native(self) -> AuditResult:
        """The result on the native explanations.

        Raises:
            RefusedError: an endpoint was audited; its native explanations are unknown.
        """
        if self.configurations[0].name == ENDPOINT:
            raise RefusedError(
                "an endpoint has no known native explanations: only its answers were audited; read .result"
            )
        return self.configurations[0].result

    @property
    def verdict(self) -> Verdict:
        """certified, leak or inconclusive."""
        return self.result.verdict

    @property
    def exit_code(self) -> int:
        """Of the command line: 0 certified, 1 leak, 3 inconclusive."""
        return self.result.exit_code

    @property
    def utility(self) -> Utility | None:
        """Agreement of the released with the native explanations; None if maps were not kept."""
        return self.judged.utility

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the reader."""
        return self.report.notes

    @property
    def files(self) -> dict[str, str]:
        """Files that `save` writes: kind -> name."""
        certificate = {} if self.result.quick else {"certificate": "certificate.json"}
        files = {"report": "report.html", **certificate, "signals": "signals.npz"}
        return files | ({"native_signals": "native-signals.npz"} if len(self.configurations) > 1 else {})

    def save(self, folder: str | Path) -> Path:
        """Write report.html, certificate.json, signals.npz and, for a hardened release, native-signals.npz.

        A quick look has no certificate.

        Returns:
            The folder, created if it is missing.

        Raises:
            InputError: a file cannot be written.
        """
        folder = make_folder(folder)
        self.signals[self.judged.name].save(folder / self.files["signals"])
        if len(self.configurations) > 1:
            self.signals["native"].save(folder / self.files["native_signals"])
        written = file_sha256(folder / self.files["signals"])
        stated = {**self.stated, "materials": {**self.stated["materials"], "signals.npz sha256": written}}
        if "certificate" in self.files:
            report = self.report
            certificate = statement(
                **stated,
                audit=self.result.to_dict(),
                utility=self.utility.to_dict() if self.utility else None,
                notes=report.notes,
                privacy=report.privacy.to_dict() if report.privacy else None,
                canaries=report.canaries.to_dict() if report.canaries else None,
                native=self.configurations[0].result.summary() if len(self.configurations) > 1 else None,
                limits=report.limits,
                subject_data=report.subject_data,
            )
            write_json(folder / self.files["certificate"], certificate)
        subjects = stated["subject"].items()
        provenance = {
            **{f"{name} ({kind})": value for name, digests in subjects for kind, value in digests.items()},
            **stated["materials"],
            **stated["environment"],
        }
        write_report(folder / self.files["report"], replace(self.report, provenance=provenance))
        return folder

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the judged configuration's result at the top level."""
        names = ("references", "scored", "seconds")
        return {
            **({"next_look": dict(zip(names, self.next_look, strict=True))} if self.next_look else {}),
            **self.result.to_dict(),
            "configuration": self.judged.name,
            **({"subject_data": self.report.subject_data} if self.report.subject_data else {}),
            "utility": self.utility.to_dict() if self.utility else None,
            "compared": {c.name: c.result.to_dict() for c in self.configurations[:-1]},
            "notes": list(self.notes),
            "native_maps": [finding.to_dict() for finding in self.findings],
        }


def pictures(x: Tensor, member: NDArray[np.bool_], signals: Mapping[str, Signals], judged: str) -> Pictures | None:
    """Members and non-members in turn; None unless inputs are images and maps have their shape."""
    native = signals["native"]
    if x.dim() != 4 or x.shape[1] not in (1, 3) or native.attributions is None:
        return None
    if native.attributions.shape[2] != x[0].numel():
        return None
    chosen = np.array(in_turn(member))

    def maps(name: str) -> NDArray[Any]:
        kept = signals[name].attributions
        assert kept is not None
        return np.asarray(kept[0, chosen]).reshape(len(chosen), *x.shape[1:])

    images = scaled(x[torch.from_numpy(chosen)].numpy())
    released = None if judged == "native" else maps(judged)
    return Pictures(images, maps("native"), released, captions(native.values["label"][0, chosen], member[chosen]))


def in_turn(member: NDArray[np.bool_]) -> list[int]:
    """The first few members and non-members in turn."""
    sides = [np.flatnonzero(side)[: MAX_PICTURED // 2].tolist() for side in (member, ~member)]
    return [i for pair in zip(*sides, strict=False) for i in pair]


def scaled(images: NDArray[Any]) -> NDArray[Any]:
    """Images (k, c, h, w), each from 0 to 1."""
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    return np.asarray((images - low) / np.maximum(high - low, 1e-12))


def captions(labels: NDArray[Any], member: NDArray[np.bool_]) -> tuple[str, ...]:
    """What was predicted, and who was a member."""
    return tuple(
        f"predicted {int(label)} · {'member' if inside else 'non-member'}"
        for label, inside in zip(labels, member, strict=True)
    )


def environment(model: nn.Module, seed: int) -> dict[str, str]:
    """Versions, hardware, seed, date and command of an audit of this model."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        **versions(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.type} ({hardware})",
        "seed": str(seed),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def render(report: ReportData) -> str:
    """The report as one HTML document: no scripts, nothing loaded, the same text for the same input."""
    results = [c.result for c in report.configurations]
    least, shown = smallest_rate(results), report.pictures
    released = "released" if report.audited.name == NATIVE else report.audited.name
    audited = report.audited.result
    bound = None if report.privacy is None or audited.implied is None else RocBound.of(report.privacy)
    curves = [
        (c, roc_figure(c.result, least, compare=results[0] if i else None, bound=bound, salt=f"roc-{i}"))
        for i, c in enumerate(report.configurations)
    ]
    return (
        page_templates("safexplain.audit.report")
        .get_template("template.html.j2")
        .render(
            report=report,
            audited=report.audited,
            result=audited,
            alone=audited.policy.release == "prediction",
            facts=tables.facts(report.audited),
            controlled=tables.with_controls(report.configurations),
            levels=tables.level_table(audited),
            targets=tables.target_table(audited),
            causes=tables.cause_table(report.root_cause),
            bound=bound,
            words=words,
            native=NATIVE,
            hardened=[c for c in report.configurations if c.utility is not None],
            attacked=tables.attack_tables(report.configurations),
            tables=tables,
            parts=tables.part_tables(audited),
            subject=SUBJECT_DATA.get(report.subject_data or "", ""),
            curves=curves,
            strips=strips(shown, released) if shown else [],
            signs=has_signs(shown) if shown else (False, False),
            command=report.provenance.get("command"),
            provenance=[(k, v) for k, v in report.provenance.items() if k != "command"],
        )
    )


def write_report(path: str | Path, report: ReportData) -> Path:
    """Render and write atomically; InputError if the file cannot be written."""
    raw = render(report).encode("utf-8", errors="replace")
    size = f"{len(raw) / 1e6:.1f} MB"
    hint = f"; name a file in an existing folder that this user may write to, with {size} free"
    return write_atomically(path, raw, "the report", hint)


@cache
def page_templates(*packages: str) -> Environment:
    """Templates of these packages, whose values are escaped and must be given."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "") for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
