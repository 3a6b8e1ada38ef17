"""The other tables: excess over the prediction, versions of the map, utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

from safexplain.audit.report import words
from safexplain.audit.report.model import Configuration
from safexplain.audit.report.tables import Scale, standing

if TYPE_CHECKING:
    from safexplain.audit.ablation import Ablation
    from safexplain.verdict.evidence import Pair
    from safexplain.verdict.result import AuditResult

FIRST = 6
"""Pairs shown at once."""


@dataclass(frozen=True)
class ExcessRow:
    """One attack against the baseline."""

    name: str
    title: str
    rate: str
    difference: str
    interval: str
    bar: Markup
    tone: str
    says: str


@dataclass(frozen=True)
class ExcessTable:
    """What the attacks of one configuration find more than the baseline alone, the largest upper bound first."""

    configuration: Configuration
    baseline: str
    baseline_rate: str
    axis: Markup
    shown: tuple[ExcessRow, ...]
    folded: tuple[ExcessRow, ...]


@dataclass(frozen=True)
class CauseRow:
    """One version of the map."""

    name: str
    says: str
    auc: str
    auc_interval: str
    bar: Markup
    tpr: str
    tpr_interval: str


@dataclass(frozen=True)
class CauseTable:
    """Versions of the map by kind."""

    fpr: str
    axis: Markup
    groups: tuple[tuple[str, tuple[CauseRow, ...]], ...]


@dataclass(frozen=True)
class UtilityRow:
    """One measure of utility, with a value (text, share of the bar) for each configuration that has one."""

    name: str
    meaning: str
    values: tuple[tuple[str, float], ...]


def excess_tables(configurations: Sequence[Configuration]) -> tuple[ExcessTable, ...]:
    """One table for each configuration that has a baseline, the audited one first."""
    return tuple(_excess(c) for c in reversed(configurations) if c.result.judgement.pairs)


def excess_over_baseline(result: AuditResult, attack: str, signal: str) -> float:
    """TPR of an attack at the policy's rate above that of the baseline, as measured."""
    rates = {(a.attack, a.signal): a.at(result.policy.fpr).tpr for a in result.attacks}
    return rates[attack, signal] - _baseline_rate(result)


def cause_table(ablations: Sequence[Ablation]) -> CauseTable | None:
    """The versions of the map, by kind; None for none."""
    if not ablations:
        return None
    scale = Scale.aucs(min(a.auc_low for a in ablations), max(a.auc_high for a in ablations))
    groups = tuple(
        (words.KINDS[kind], tuple(_cause(a, scale) for a in rows))
        for kind, rows in groupby(ablations, lambda a: a.kind)
    )
    return CauseTable(words.percent(ablations[0].fpr, 3), scale.axis(), groups)


def utility_rows(configurations: Sequence[Configuration]) -> tuple[UtilityRow, ...]:
    """One row a measure; empty when no configuration has a utility."""
    found = [c.utility for c in configurations if c.utility is not None]
    if not found:
        return ()
    rows = []
    for measure in words.measures(found[-1].top_fraction):
        numbers = [float(getattr(u, measure.field)) for u in found]
        values = tuple((f"{v:.2f}", min(max(v, 0.0), 1.0)) for v in numbers)
        rows.append(UtilityRow(measure.name, measure.meaning, values))
    return tuple(rows)


def _baseline_rate(result: AuditResult) -> float:
    baseline = next(a for a in result.attacks if a.title == result.judgement.baseline)
    return baseline.at(result.policy.fpr).tpr


def _excess(configuration: Configuration) -> ExcessTable:
    result = configuration.result
    judgement, policy = result.judgement, result.policy
    bounds = {p: judgement.excess(p) for p in judgement.pairs}
    limit = policy.limit if policy.claim == "excess" else None
    scale = Scale.differences(min(low for low, _ in bounds.values()), max(high for _, high in bounds.values()), limit)
    best = result.strongest
    ordered = sorted(bounds, key=lambda p: ((p.attack, p.signal) != (best.attack, best.signal), -bounds[p][1]))
    rows = tuple(_pair(result, p, bounds[p], scale) for p in ordered)
    first = len(rows) if len(rows) <= FIRST + 1 else FIRST
    return ExcessTable(
        configuration,
        judgement.baseline,
        words.percent(_baseline_rate(result)),
        scale.axis(),
        rows[:first],
        rows[first:],
    )


def _pair(result: AuditResult, pair: Pair, bounds: tuple[float, float], scale: Scale) -> ExcessRow:
    low, high = bounds
    difference = excess_over_baseline(result, pair.attack, pair.signal)
    code = f"{pair.attack} on {pair.signal}"
    if result.policy.claim == "excess":
        tone: str = standing(result, code)
        says = words.STANDINGS[tone]
    else:
        tone, says = ("open", "adds something") if low > 0 else ("beside", "not shown to add")
    return ExcessRow(
        words.attack_name(pair.attack, pair.signal),
        code,
        words.percent(difference + _baseline_rate(result)),
        words.points(difference),
        f"{words.points(low)} to {words.points(high)}",
        scale.bar(difference, low, high, tone),
        tone,
        says,
    )


def _cause(a: Ablation, scale: Scale) -> CauseRow:
    tone = "cause" if a.auc_low > scale.chance else "beside"
    return CauseRow(
        a.name,
        a.says,
        f"{a.auc:.3f}",
        f"{a.auc_low:.3f}–{a.auc_high:.3f}",
        scale.bar(a.auc, a.auc_low, a.auc_high, tone),
        words.percent(a.tpr),
        words.interval(a.tpr_low, a.tpr_high),
    )
