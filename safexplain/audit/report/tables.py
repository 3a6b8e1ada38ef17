"""The numbers of an audit as rows of text, ready for the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from safexplain.audit.report import words
from safexplain.audit.report.bars import Scale
from safexplain.audit.report.model import Configuration
from safexplain.audit.stats import RateAtFpr, auc_interval

if TYPE_CHECKING:
    from safexplain.audit.protocol import AttackResult, AuditResult

Standing = Literal["above", "below", "open", "beside"]


@dataclass(frozen=True)
class Rate:
    """A true-positive rate as text; `nobody` tells that the threshold accuses no non-member at all."""

    value: str
    interval: str
    realised: str
    nobody: bool


@dataclass(frozen=True)
class AttackRow:
    """One attack as a line of the table."""

    name: str
    title: str
    strongest: bool
    auc: str
    auc_interval: str
    decisive: Rate
    standing: Standing
    bar: Markup
    excess: str
    others: tuple[Rate, ...]


@dataclass(frozen=True)
class AttackTable:
    """One configuration as a table."""

    configuration: Configuration
    fpr: str
    others: tuple[str, ...]
    axis: Markup
    judged: tuple[AttackRow, ...]
    beside: tuple[AttackRow, ...]

    @property
    def nobody(self) -> bool:
        """Whether some rate needs the footnote about thresholds that accuse nobody."""
        return any(r.nobody for row in (*self.judged, *self.beside) for r in (row.decisive, *row.others))


@dataclass(frozen=True)
class UtilityRow:
    """One measure of utility, with a value (text, share of the bar) for each configuration that has one."""

    name: str
    meaning: str
    values: tuple[tuple[str, float], ...]


def attack_tables(configurations: Sequence[Configuration]) -> tuple[AttackTable, ...]:
    """One table a configuration, all drawn on axes with one common end."""
    highest = max(_bounds(c.result, a)[1] for c in configurations for a in c.result.attacks)
    return tuple(_table(c, highest) for c in configurations)


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


def excess_over_label(result: AuditResult, attack: AttackResult) -> float | None:
    """TPR at the policy's rate above that of the strongest attack on the label alone; None without such an attack."""
    fpr = result.policy.fpr
    label = [a.at(fpr).tpr for a in result.attacks if a.role == "label"]
    return attack.at(fpr).tpr - max(label) if label else None


def _table(configuration: Configuration, highest: float) -> AttackTable:
    result = configuration.result
    policy = result.policy
    scale = Scale.covering(highest, policy.fpr, policy.max_tpr)
    fprs = [r.fpr for r in result.attacks[0].rates if r.fpr != policy.fpr]
    rows = [(a.role == "explanation", _row(result, a, scale, fprs)) for a in result.attacks]
    return AttackTable(
        configuration=configuration,
        fpr=words.percent(policy.fpr, 3),
        others=tuple(words.percent(f, 3) for f in fprs),
        axis=scale.axis(),
        judged=tuple(row for judged, row in rows if judged),
        beside=tuple(row for judged, row in rows if not judged),
    )


def _row(result: AuditResult, attack: AttackResult, scale: Scale, fprs: Sequence[float]) -> AttackRow:
    decisive = attack.at(result.policy.fpr)
    low, high = _bounds(result, attack)
    standing = _standing(result, attack)
    excess = excess_over_label(result, attack)
    plain = attack.role == "label" or excess is None
    return AttackRow(
        name=words.attack_name(attack),
        title=attack.code,
        strongest=attack is result.strongest,
        auc=f"{attack.auc:.3f}",
        auc_interval="{:.3f}–{:.3f}".format(*auc_interval(attack.curve, result.policy.confidence)),
        decisive=_rate(decisive, low, high),
        standing=standing,
        bar=scale.bar(decisive.tpr, low, high, standing),
        excess="–" if plain else f"{100 * (excess or 0.0):+.1f}".replace("-", "−"),
        others=tuple(_rate(r, r.low, r.high) for r in map(attack.at, fprs)),
    )


def _rate(rate: RateAtFpr, low: float, high: float) -> Rate:
    return Rate(
        value=words.percent(rate.tpr),
        interval=words.interval(low, high),
        realised=f"{rate.realised_fpr:.2%}",
        nobody=rate.false_positives == 0 and rate.fpr * rate.non_members < 1,
    )


def _bounds(result: AuditResult, attack: AttackResult) -> tuple[float, float]:
    """The interval that counts: joint over the judged attacks, on its own for those shown beside."""
    if attack.role == "explanation":
        return result.bounds(attack)
    rate = attack.at(result.policy.fpr)
    return rate.low, rate.high


def _standing(result: AuditResult, attack: AttackResult) -> Standing:
    if attack.role != "explanation":
        return "beside"
    low, high = result.bounds(attack)
    if low > result.policy.max_tpr:
        return "above"
    return "below" if high <= result.policy.max_tpr else "open"
