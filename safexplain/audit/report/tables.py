"""The rates of all attacks as rows of text, ready for the template; the strongest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from safexplain.audit.report import words
from safexplain.audit.report.bars import Scale
from safexplain.audit.report.model import Configuration
from safexplain.verdict.stats import RateAtFpr, auc_interval

if TYPE_CHECKING:
    from safexplain.verdict.result import AttackResult, AuditResult

Standing = Literal["above", "below", "open", "beside"]

FIRST, FIRST_BESIDE = 6, 3
"""Attacks shown at once, judged and not; the weaker ones are folded away."""


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
    others: tuple[Rate, ...]


@dataclass(frozen=True)
class AttackTable:
    """One configuration as a table; rows from the strongest attack to the weakest."""

    configuration: Configuration
    fpr: str
    others: tuple[str, ...]
    axis: Markup
    judged: tuple[AttackRow, ...]
    beside: tuple[AttackRow, ...]

    @property
    def shown(self) -> tuple[tuple[str, tuple[AttackRow, ...]], ...]:
        """The groups that are shown at once, with their headings."""
        return _groups(self.judged[: _split(self.judged, FIRST)], self.beside[: _split(self.beside, FIRST_BESIDE)])

    @property
    def folded(self) -> tuple[tuple[str, tuple[AttackRow, ...]], ...]:
        """The groups that are folded away."""
        return _groups(self.judged[_split(self.judged, FIRST) :], self.beside[_split(self.beside, FIRST_BESIDE) :])

    @property
    def folded_sentence(self) -> str:
        """How many are folded away, and how they stand."""
        counts: Counter[str] = Counter(row.standing for _, rows in self.folded for row in rows)
        parts = [f"{counts[k]} {words.STANDINGS[k]}" for k in words.STANDINGS if counts[k]]
        return f"{counts.total()} more attacks: {', '.join(parts)}"

    @property
    def nobody(self) -> bool:
        """Whether some rate needs the footnote about thresholds that accuse nobody."""
        return any(r.nobody for row in (*self.judged, *self.beside) for r in (row.decisive, *row.others))


def attack_tables(configurations: Sequence[Configuration]) -> tuple[AttackTable, ...]:
    """One table a configuration, all drawn on axes with one common end."""
    highest = max(c.result.bounds(a)[1] for c in configurations for a in c.result.attacks)
    return tuple(_table(c, highest) for c in configurations)


def standing(result: AuditResult, code: str) -> Standing:
    """How a judged attack stands to the policy's limit."""
    bounds = result.judgement.decisive.get(code)
    if bounds is None:
        return "beside"
    limit = result.policy.limit
    return "above" if bounds[0] > limit else "below" if bounds[1] <= limit else "open"


def _table(configuration: Configuration, highest: float) -> AttackTable:
    result = configuration.result
    policy = result.policy
    scale = Scale.rates(highest, policy.fpr, policy.max_tpr if policy.claim == "whole" else None)
    fprs = [r.fpr for r in result.attacks[0].rates if r.fpr != policy.fpr]
    judged, best = {a.code for a in result.judged}, result.strongest
    bounds = {a.code: result.bounds(a) for a in result.attacks}
    ordered = sorted(result.attacks, key=lambda a: (a is not best, -bounds[a.code][1], -a.auc, a.code))
    rows = [(a.code in judged, _row(result, a, bounds[a.code], a is best, scale, fprs)) for a in ordered]
    return AttackTable(
        configuration=configuration,
        fpr=words.percent(policy.fpr, 3),
        others=tuple(words.percent(f, 3) for f in fprs),
        axis=scale.axis(),
        judged=tuple(row for counts, row in rows if counts),
        beside=tuple(row for counts, row in rows if not counts),
    )


def _row(
    result: AuditResult,
    attack: AttackResult,
    bounds: tuple[float, float],
    strongest: bool,
    scale: Scale,
    fprs: Sequence[float],
) -> AttackRow:
    decisive = attack.at(result.policy.fpr)
    low, high = bounds
    stands = standing(result, attack.code)
    return AttackRow(
        name=words.attack_name(attack.attack, attack.signal),
        title=attack.code,
        strongest=strongest,
        auc=f"{attack.auc:.3f}",
        auc_interval="{:.3f}–{:.3f}".format(*auc_interval(attack.curve, result.policy.confidence)),
        decisive=_rate(decisive, low, high),
        standing=stands,
        bar=scale.bar(decisive.tpr, low, high, stands),
        others=tuple(_rate(r, r.low, r.high) for r in map(attack.at, fprs)),
    )


def _rate(rate: RateAtFpr, low: float, high: float) -> Rate:
    return Rate(
        value=words.percent(rate.tpr),
        interval=words.interval(low, high),
        realised=f"{rate.realised_fpr:.2%}",
        nobody=rate.false_positives == 0 and rate.fpr * rate.non_members < 1,
    )


def _split(rows: Sequence[AttackRow], most: int) -> int:
    """How many rows are shown at once; a single one is not worth folding away."""
    return len(rows) if len(rows) <= most + 1 else most


def _groups(
    judged: tuple[AttackRow, ...], beside: tuple[AttackRow, ...]
) -> tuple[tuple[str, tuple[AttackRow, ...]], ...]:
    named = (("Judged: the verdict rests on them", judged), ("Shown beside, not judged", beside))
    return tuple((name, rows) for name, rows in named if rows)
