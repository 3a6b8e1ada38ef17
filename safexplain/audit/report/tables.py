"""The report's tables as rows of text, ready for the template; the strongest first.

A `Scale` draws the small graphics inside the cells: an interval against chance and a limit, themed by the page's CSS.
Then come the rates of all attacks, what they find more than the prediction alone, and the versions of the map.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor
from typing import Literal

from markupsafe import Markup

from safexplain.audit.report import words
from safexplain.audit.report.model import Configuration
from safexplain.audit.report.words import percent, points
from safexplain.audit.root_cause import Ablation
from safexplain.verdict.evidence import Pair
from safexplain.verdict.judgement import AttackResult, AuditResult
from safexplain.verdict.stats import auc_interval
from safexplain.verdict.stats.roc import RateAtFpr

WIDTH, HEIGHT, MARGIN = 170, 26, 7
TOPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LETTER = 6.2
"""Width of a letter of the axis' text, about."""

Unit = Literal["rate", "difference", "auc"]


@dataclass(frozen=True)
class Scale:
    """An axis.

    Args:
        unit: "rate" from 0 on a square-root scale, which still separates 1 % from 3 %; "difference" of rates and "auc"
            on a straight one.
        low, high: its ends.
        chance: what guessing reaches.
        limit: what the policy allows; None where it is not what these numbers are compared with.
    """

    unit: Unit
    low: float
    high: float
    chance: float
    limit: float | None = None

    @classmethod
    def rates(cls, highest: float, chance: float, limit: float | None) -> Scale:
        """The axis with the smallest round end that shows `highest` and leaves space right of the limit."""
        need = min(1.0, max(highest, 1.3 * (limit or chance)))
        return cls("rate", 0.0, next(t for t in TOPS if t >= need), chance, limit)

    @classmethod
    def differences(cls, lowest: float, highest: float, limit: float | None) -> Scale:
        """An axis in steps of five percentage points that shows both ends, zero and the limit."""
        ends = (floor(20 * min(lowest, -0.02)) / 20, ceil(20 * max(highest, 1.8 * (limit or 0.01))) / 20)
        return cls("difference", max(ends[0], -1.0), min(ends[1], 1.0), 0.0, limit)

    @classmethod
    def aucs(cls, lowest: float, highest: float) -> Scale:
        """An axis in steps of 0.05 that shows both ends and one half."""
        return cls(
            "auc", max(floor(20 * min(lowest, 0.49)) / 20, 0.0), min(ceil(20 * max(highest, 0.6)) / 20, 1.0), 0.5
        )

    def x(self, value: float) -> float:
        """Horizontal position of a number; beyond an end, that end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return MARGIN + (WIDTH - 2 * MARGIN) * (share**0.5 if self.unit == "rate" else share)

    def text(self, value: float, digits: int | None = None) -> str:
        """A number in the unit of the axis."""
        if self.unit == "auc":
            return f"{value:.2f}"
        return points(value, digits) if self.unit == "difference" else percent(value, digits)

    def axis(self) -> Markup:
        """The axis, for the head of the column."""
        marks, words = Markup(""), self._ends()
        if self.limit is not None:
            limit, says = self.x(self.limit), f"limit {self.text(self.limit, 3)}"
            anchor, at = ("start", limit + 4) if limit + 4 + LETTER * len(says) < WIDTH else ("end", limit - 4)
            marks += Markup('<line class="limit" x1="{x}" x2="{x}" y1="1" y2="{h}"/>').format(
                x=f"{limit:.1f}", h=HEIGHT
            )
            words += _word(at, 10, anchor, says)
        marks += Markup('<line class="chance" x1="{x}" x2="{x}" y1="15" y2="{h}"/>').format(
            x=f"{self.x(self.chance):.1f}", h=HEIGHT
        )
        return Markup('<svg class="bar axis" viewBox="0 0 {w} {h}" aria-hidden="true">{marks}{words}</svg>').format(
            w=WIDTH, h=HEIGHT, marks=marks, words=words
        )

    def _ends(self) -> Markup:
        zero = self.unit == "rate"
        ends = _word(1, HEIGHT - 2, "start", "0" if zero else self.text(self.low, 3))
        if self.unit == "auc" and self.x(0.5) > 40:
            ends += _word(self.x(0.5), 10, "middle", "0.50")
        return ends + _word(WIDTH - 1, HEIGHT - 2, "end", self.text(self.high, 3))

    def bar(self, value: float, low: float, high: float, standing: str) -> Markup:
        """The interval as a bar and the number as a dot.

        Args:
            value: the estimate.
            low: lower end of its interval.
            high: upper end.
            standing: CSS class that colours it ("above", "below", "open" or "beside").
        """
        left, right = self.x(low), self.x(high)
        says = f"{self.text(value)}, between {self.text(low)} and {self.text(high)}"
        limit = Markup("")
        if self.limit is not None:
            says += f", limit {self.text(self.limit)}"
            limit = Markup('<line class="limit" x1="{x}" x2="{x}" y1="0" y2="{h}"/>').format(
                x=f"{self.x(self.limit):.1f}", h=HEIGHT
            )
        return Markup(
            '<svg class="bar {standing}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
            '<line class="chance" x1="{chance}" x2="{chance}" y1="0" y2="{h}"/>{limit}'
            '<rect class="interval" x="{left}" y="{top}" width="{width}" height="8" rx="4"/>'
            '<circle class="rate" cx="{at}" cy="{middle}" r="4.5"/></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            standing=standing,
            label=says,
            chance=f"{self.x(self.chance):.1f}",
            limit=limit,
            left=f"{left:.1f}",
            width=f"{max(right - left, 1.0):.1f}",
            top=HEIGHT / 2 - 4,
            at=f"{self.x(value):.1f}",
            middle=HEIGHT / 2,
        )


def _word(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>').format(
        x=f"{x:.1f}", y=y, anchor=anchor, text=text
    )


Standing = Literal["above", "below", "open", "beside"]

FIRST, FIRST_BESIDE = 6, 3
"""Attacks shown at once, judged and not; the weaker ones are folded away."""


@dataclass(frozen=True)
class Rate:
    """A true-positive rate as text; `nobody` tells that the threshold has no false positive at all."""

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
        """Whether some rate needs the footnote about thresholds without false positives."""
        return any(r.nobody for row in (*self.judged, *self.beside) for r in (row.decisive, *row.others))


def attack_tables(configurations: Sequence[Configuration]) -> tuple[AttackTable, ...]:
    """One table a configuration, all drawn on axes with one common end."""
    highest = max(c.result.bounds(a)[1] for c in configurations for a in c.result.attacks)
    return tuple(_table(c, highest) for c in configurations)


def standing(result: AuditResult, code: str) -> Standing:
    """How a judged attack stands to the policy's limit."""
    bounds = result.decisive.get(code)
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
class CauseTable:
    """Versions of the map by kind, each with its bar."""

    fpr: str
    axis: Markup
    groups: tuple[tuple[str, tuple[tuple[Ablation, Markup], ...]], ...]


def excess_tables(configurations: Sequence[Configuration]) -> tuple[ExcessTable, ...]:
    """One table for each configuration that has a baseline, the audited one first."""
    return tuple(_excess(c) for c in reversed(configurations) if c.result.pairs)


def excess_over_baseline(result: AuditResult, attack: str, signal: str) -> float:
    """TPR of an attack at the policy's rate above that of the baseline, as measured."""
    rates = {(a.attack, a.signal): a.at(result.policy.fpr).tpr for a in result.attacks}
    return rates[attack, signal] - _baseline_rate(result)


def cause_table(ablations: Sequence[Ablation]) -> CauseTable | None:
    """The versions of the map, by kind; None for none."""
    if not ablations:
        return None
    scale = Scale.aucs(min(a.auc_low for a in ablations), max(a.auc_high for a in ablations))

    def bar(a: Ablation) -> Markup:
        return scale.bar(a.auc, a.auc_low, a.auc_high, "cause" if a.auc_low > scale.chance else "beside")

    groups = tuple(
        (words.KINDS[kind], tuple((a, bar(a)) for a in rows)) for kind, rows in groupby(ablations, lambda a: a.kind)
    )
    return CauseTable(words.percent(ablations[0].fpr, 3), scale.axis(), groups)


def _baseline_rate(result: AuditResult) -> float:
    baseline = next(a for a in result.attacks if a.title == result.baseline)
    return baseline.at(result.policy.fpr).tpr


def _excess(configuration: Configuration) -> ExcessTable:
    result = configuration.result
    policy = result.policy
    bounds = {p: result.excess(p) for p in result.pairs}
    limit = policy.limit if policy.claim == "excess" else None
    scale = Scale.differences(min(low for low, _ in bounds.values()), max(high for _, high in bounds.values()), limit)
    best = result.strongest
    ordered = sorted(bounds, key=lambda p: ((p.attack, p.signal) != (best.attack, best.signal), -bounds[p][1]))
    rows = tuple(_pair(result, p, bounds[p], scale) for p in ordered)
    first = len(rows) if len(rows) <= FIRST + 1 else FIRST
    return ExcessTable(
        configuration,
        result.baseline,
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
