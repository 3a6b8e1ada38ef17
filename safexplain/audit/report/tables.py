"""The report's tables as rows of text, ready for the template.

A `Scale` draws the small graphics inside the cells: an interval against chance and a limit, themed by the page's CSS.
Then come what an attacker finds at each level of patience, the targets, all attacks by level, parts of the members,
the versions of the map, and what differential privacy alone allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor
from typing import Literal

from markupsafe import Markup

from safexplain.audit.exposure import SliceTable
from safexplain.audit.report import words
from safexplain.audit.report.model import Configuration, ReportData
from safexplain.audit.report.words import percent, points
from safexplain.audit.root_cause import Ablation
from safexplain.verdict.evidence import Evidence, code
from safexplain.verdict.implied import RocBound, tpr_bound
from safexplain.verdict.judgement import SHOWN_FPRS, AttackResult, AuditResult, Judgement
from safexplain.verdict.stats import auc_interval

WIDTH, HEIGHT, MARGIN = 170, 26, 7
TOPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LETTER = 6.2
"""Width of a letter of the axis' text, about."""

Unit = Literal["rate", "difference", "auc", "area"]


@dataclass(frozen=True)
class Scale:
    """An axis.

    Args:
        unit: "rate" from 0 on a square-root scale, which still separates 1 % from 3 %; "difference" of rates and "auc"
            on a straight one, as is "area", a difference of areas under the curve.
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
    def of_claim(cls, result: Judgement, lowest: float, highest: float) -> Scale:
        """The axis of what the claim is about, with the limit."""
        if result.claim == "whole":
            return cls.rates(highest, result.policy.fpr, result.limit)
        scale = cls.differences(lowest, highest, result.limit)
        return replace(scale, unit="area") if result.claim == "auc" else scale

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
        if self.unit == "area":
            return words.area(value)
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


Standing = Literal["above", "below", "open", "beyond", "baseline", "beside"]


def standing(result: Judgement, e: Evidence) -> Standing:
    """How an attack stands to the policy's limit."""
    bounds = result.decisive.get(code(e))
    if bounds is not None:
        return "above" if bounds[0] > result.limit else "below" if bounds[1] <= result.limit else "open"
    if any(e is b for b in result.beyond):
        return "beyond"
    return "baseline" if e.is_baseline else "beside"


def adds(result: Judgement, e: Evidence) -> float:
    """How much more of the members it finds than the baseline of its level, as counted."""
    return 0.0 if e.pair is None else (e.pair.only - e.pair.missed) / result.members


@dataclass(frozen=True)
class Cell:
    """A number with its bounds, and a bar of them."""

    value: str
    interval: str
    bar: Markup
    tone: Standing


@dataclass(frozen=True)
class Tile:
    """What one configuration gives away, in one number."""

    value: str
    says: str
    interval: str


def tile(result: Judgement) -> Tile:
    """What the attack finds that decides, under the claim of the verdict."""
    best = result.strongest
    low, high = result.decisive.get(code(best)) or result.bounds(best)
    if result.claim == "auc" and code(best) in result.decisive:
        than = f"that of the {result.anyway} of the same queries" if result.compared else "the 0.5 of guessing"
        interval = f"between {words.area(low)} and {words.area(high)}"
        return Tile(words.area(result.estimate(best)), f"is how far its AUC is above {than}", interval)
    if result.claim == "excess" and code(best) in result.decisive:
        says = f"percentage points more members found than with the {result.anyway} of the same queries alone"
        return Tile(points(adds(result, best)), says, f"between {points(low)} and {points(high)}")
    found = percent(best.found / result.members)
    return Tile(found, "of the members found", f"between {percent(low)} and {percent(high)}")


@dataclass(frozen=True)
class LevelRow:
    """What an attacker finds who asks so often; None where there is nothing to find it with."""

    patience: int
    asks: str
    labels: Cell | None
    added: Cell | None
    whole: Cell | None
    area: Cell | None = None


@dataclass(frozen=True)
class LevelTable:
    """Labels (or predictions) of the same queries, what the explanation adds, and both, at each level of patience.

    `areas` is the axis of the areas that are judged under the claim "auc"; None under others.
    """

    anyway: str
    fpr: str
    rates: Markup
    differences: Markup
    rows: tuple[LevelRow, ...]
    areas: Markup | None = None


def level_table(result: Judgement) -> LevelTable:
    """The three numbers of each level of the policy, bars on common axes."""
    levels = result.levels
    excess, chance = result.claim == "excess", result.policy.fpr
    rates = [line[part]["high"] for line in levels for part in ("labels", "whole") if line[part] is not None]
    whole = result.claim == "whole"
    rate = Scale.rates(max(rates, default=chance), chance, result.limit if whole else None)
    added = [line["added"] for line in levels if line["added"] is not None]
    lowest, highest = min((a["low"] for a in added), default=0.0), max((a["high"] for a in added), default=0.0)
    difference = Scale.differences(lowest, highest, result.limit if excess else None)
    rows, areas = [], [line["auc"] for line in levels if line.get("auc")]
    ends = min((a["low"] for a in areas), default=0.0), max((a["high"] for a in areas), default=0.0)
    area = Scale.of_claim(result, *ends)
    for line in levels:
        judged = [e for e in result.judged if e.level == line["patience"]]
        most = max((adds(result, e) for e in judged if e.pair is not None), default=0.0)
        found = max((e.found / result.members for e in judged), default=0.0)
        labels = line["labels"]
        rows.append(
            LevelRow(
                line["patience"],
                words.asks(line["patience"]),
                None if labels is None else _cell(labels["tpr"], labels, rate, "baseline"),
                _bounded(most, line["added"], difference, result.limit if excess else None),
                _bounded(found, line["whole"], rate, result.limit if whole else None),
                _bounded(max(map(result.estimate, judged), default=0.0), line.get("auc"), area, result.limit),
            )
        )
    anyway = result.anyway
    axis = area.axis() if result.claim == "auc" else None
    return LevelTable(anyway, percent(chance, 3), rate.axis(), difference.axis(), tuple(rows), axis)


def _bounded(value: float, bounds: Mapping[str, float] | None, scale: Scale, limit: float | None) -> Cell | None:
    if bounds is None:
        return None
    tone: Standing = "beside"
    if limit is not None:
        tone = "above" if bounds["low"] > limit else "below" if bounds["high"] <= limit else "open"
    return _cell(value, bounds, scale, tone)


def _cell(value: float, bounds: Mapping[str, float], scale: Scale, tone: Standing) -> Cell:
    low, high = bounds["low"], bounds["high"]
    interval = words.between(low, high) if scale.unit == "difference" else words.interval(low, high)
    if scale.unit == "area":
        interval = f"{words.area(low)} to {words.area(high)}"
    return Cell(scale.text(value), interval, scale.bar(value, low, high, tone), tone)


@dataclass(frozen=True)
class TargetRow:
    """One of several targets, judged on its own."""

    name: str
    verdict: str
    attack: str
    most_exposed: bool
    cell: Cell | None


@dataclass(frozen=True)
class TargetTable:
    """A line for each target."""

    axis: Markup
    unit: str
    rows: tuple[TargetRow, ...]


def target_table(result: Judgement) -> TargetTable | None:
    """All targets, each with its verdict and the attack that decides it; None for one."""
    if not result.others:
        return None
    everyone = sorted((result, *result.others), key=lambda r: -1 if r.target is None else r.target)
    found = [(r, r.strongest, r.decisive.get(code(r.strongest))) for r in everyone]
    bounds = [b for *_, b in found if b is not None]
    ends = min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=0.0)
    scale = Scale.of_claim(result, *ends)
    rows = []
    for r, best, b in found:
        cell = None if b is None else _cell(r.estimate(best), {"low": b[0], "high": b[1]}, scale, standing(r, best))
        name = words.attack_name(best.attack, best.signal)
        rows.append(TargetRow(f"model {r.target}", r.own_verdict, name, r is result, cell))
    unit = {"whole": "TPR", "excess": "Adds, in points", "auc": "AUC above"}[result.claim]
    return TargetTable(scale.axis(), unit, tuple(rows))


JUDGED_FIRST, BESIDE_FIRST = 3, 1
"""Attacks of a level shown at once, judged and not; the weaker ones are folded away."""


@dataclass(frozen=True)
class AttackRow:
    """One attack as a line of the table."""

    name: str
    title: str
    strongest: bool
    auc: str
    auc_interval: str
    found: str
    bounds: str
    added: tuple[str, str] | None
    standing: Standing
    bar: Markup


@dataclass(frozen=True)
class LevelGroup:
    """The attacks of one level of patience: judged ones first, then the baseline, then others."""

    level: int
    shown: tuple[AttackRow, ...]
    folded: tuple[AttackRow, ...]

    @property
    def name(self) -> str:
        """Heading."""
        return f"Asked {words.asks(self.level)} about each example"


@dataclass(frozen=True)
class AttackTable:
    """One configuration as a table, by level of patience; in each the strongest judged attack first."""

    configuration: Configuration
    fpr: str
    anyway: str
    excess: bool
    whole: bool
    compares: bool
    axis: Markup
    groups: tuple[LevelGroup, ...]

    @property
    def rows(self) -> tuple[AttackRow, ...]:
        """All of them."""
        return tuple(row for g in self.groups for row in (*g.shown, *g.folded))

    @property
    def folded_sentence(self) -> str:
        """How many are folded away, and how they stand; "" for none."""
        counts: Counter[str] = Counter(row.standing for g in self.groups for row in g.folded)
        parts = [f"{counts[k]} {words.STANDINGS[k]}" for k in words.STANDINGS if counts[k]]
        return f"{counts.total()} more attacks: {', '.join(parts)}" if counts else ""


def attack_tables(configurations: Sequence[Configuration]) -> tuple[AttackTable, ...]:
    """One table a configuration, all drawn on axes with common ends."""
    results = [c.result for c in configurations]
    bounds = [b for r in results for a in r.attacks if (b := r.claimed(a)) is not None]
    ends = min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=0.0)
    return tuple(_table(c, *ends) for c in configurations)


def _table(configuration: Configuration, lowest: float, highest: float) -> AttackTable:
    result = configuration.result
    policy = result.policy
    scale = Scale.of_claim(result, lowest, highest)
    groups = []
    for level in sorted({a.level for a in result.attacks}):
        ordered = sorted((a for a in result.attacks if a.level == level), key=lambda a: _place(result, a))
        rows = [(a, _row(result, a, scale)) for a in ordered]
        shown = _shown([row for _, row in rows])
        groups.append(
            LevelGroup(
                level,
                tuple(row for _, row in rows if row.title in shown),
                tuple(row for _, row in rows if row.title not in shown),
            )
        )
    return AttackTable(
        configuration=configuration,
        fpr=words.percent(policy.fpr, 3),
        anyway=result.anyway,
        excess=result.claim == "excess",
        whole=result.claim == "whole",
        compares=any(a.pair is not None for a in result.attacks),
        axis=scale.axis(),
        groups=tuple(groups),
    )


def _place(result: AuditResult, a: AttackResult) -> tuple[object, ...]:
    """Judged attacks first, strongest first; then the baseline; then what was not judged, strongest first."""
    kinds = {"baseline": 1, "beyond": 2, "beside": 3}
    bounds = result.claimed(a) or result.bounds(a)
    return kinds.get(standing(result, a), 0), a is not result.strongest, -bounds[1], -a.auc, a.code


def _shown(rows: Sequence[AttackRow]) -> set[str]:
    """Titles of the rows of a level that are shown at once; a single one is not worth folding away."""
    judged = [r.title for r in rows if r.standing in ("above", "below", "open")]
    beside = [r.title for r in rows if r.standing in ("beyond", "beside")]
    baseline = {r.title for r in rows if r.standing == "baseline"}
    return {*judged[: _split(judged, JUDGED_FIRST)], *baseline, *beside[: _split(beside, BESIDE_FIRST)]}


def _split(rows: Sequence[object], most: int) -> int:
    return len(rows) if len(rows) <= most + 1 else most


def _row(result: AuditResult, attack: AttackResult, scale: Scale) -> AttackRow:
    stands = standing(result, attack)
    added, value = result.added(attack), adds(result, attack)
    bar = Markup("")
    if (claimed := result.claimed(attack)) is not None:
        bar = scale.bar(result.estimate(attack), *claimed, stands)
    return AttackRow(
        name=words.attack_name(attack.attack, attack.signal, attack.level),
        title=attack.code,
        strongest=attack is result.strongest,
        auc=f"{attack.auc:.3f}",
        auc_interval="{:.3f}–{:.3f}".format(*auc_interval(attack.curve, result.policy.confidence)),
        found=percent(attack.found / result.members),
        bounds=words.interval(*result.bounds(attack)),
        added=None if added is None else (points(value), words.between(*added)),
        standing=stands,
        bar=bar,
    )


@dataclass(frozen=True)
class PartRow:
    """One part of the data, such as a class."""

    value: str
    cell: Cell
    members: str
    false_positives: str


@dataclass(frozen=True)
class PartTable:
    """The parts that a column divides the data into, the most exposed first; `rest` are folded away."""

    name: str
    axis: Markup
    shown: tuple[PartRow, ...]
    rest: tuple[PartRow, ...]
    left_out: int
    fpr: str
    confidence: str


PARTS_FIRST = 10
"""Parts shown at once."""


def part_tables(result: AuditResult) -> tuple[PartTable, ...]:
    """What the strongest attack finds in each part of the data."""
    return tuple(_parts(t, result.policy.fpr) for t in result.slices if t.rows)


def _parts(table: SliceTable, chance: float) -> PartTable:
    scale = Scale.rates(max(row.high for row in table.rows), chance, None)
    rows = tuple(
        PartRow(
            row.value,
            _cell(row.rate, {"low": row.low, "high": row.high}, scale, "beside"),
            f"{row.members:,}",
            f"{row.false_positives / row.non_members:.1%}" if row.non_members else "",
        )
        for row in table.rows
    )
    first = _split(rows, PARTS_FIRST)
    ends = percent(table.fpr, 3), percent(table.confidence, 3)
    return PartTable(table.name, scale.axis(), rows[:first], rows[first:], table.left_out, *ends)


@dataclass(frozen=True)
class CauseTable:
    """Versions of the map by kind, each with its bar."""

    fpr: str
    axis: Markup
    groups: tuple[tuple[str, tuple[tuple[Ablation, Markup], ...]], ...]


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


@dataclass(frozen=True)
class GuaranteeRow:
    """What differential privacy alone allows at one false-positive rate, beside what was found there."""

    fpr: str
    by_epsilon: str
    curve: str
    substituted: str
    found: str
    attack: str


def guarantee_rows(report: ReportData, bound: RocBound) -> tuple[GuaranteeRow, ...]:
    """At the reported false-positive rates and the policy's.

    Args:
        report: with a privacy statement.
        bound: of it, for one record added or removed.
    """
    stated, result = report.privacy, report.audited.result
    assert stated is not None
    epsilon, other = stated.epsilons.add_remove, RocBound.of(stated, "substitute")
    rows = []
    for fpr in sorted({*SHOWN_FPRS, result.policy.fpr}):
        best = max(result.attacks, key=lambda a: a.at(fpr).tpr)
        rate = best.at(fpr)
        rows.append(
            GuaranteeRow(
                percent(fpr, 3),
                percent(float(tpr_bound(fpr, epsilon, stated.delta))),
                percent(float(bound(fpr))),
                percent(float(other(fpr))),
                f"{percent(rate.tpr)} ({words.interval(rate.low, rate.high)})",
                words.attack_name(best.attack, best.signal),
            )
        )
    return tuple(rows)
