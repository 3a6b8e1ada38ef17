"""The contents of a report, and its tables as rows of text; a `Scale` draws the bars inside the cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor
from typing import Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from safexplain.audit.report.root_cause import Ablation, SliceRow, SliceTable
from safexplain.audit.usefulness import FEWEST_TOP, Utility
from safexplain.verdict import words
from safexplain.verdict.canaries.result import Finding
from safexplain.verdict.judgement import Control, Judgement
from safexplain.verdict.privacy_statement import PrivacyStatement
from safexplain.verdict.result import AttackResult, AuditResult
from safexplain.verdict.stats import auc_interval
from safexplain.verdict.words import STANDINGS, Figure, Standing, limits, percent, points, standing

NATIVE, ENDPOINT = "native", "endpoint"
"""Names of releases: native explanations; answers of a service, whose native explanations are unknown."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """A release of explanations, and what the attacks found in it."""

    name: str  # such as "native", "recommended" or "custom"
    description: str  # the hardening in Python
    result: AuditResult
    utility: Utility | None = None  # None for the native explanation
    says: str = ""  # the released content, in words


@dataclass(frozen=True, eq=False)
class Pictures:
    """A few examples with their explanations, as images."""

    images: NDArray[np.floating[Any]]  # (k, 1 or 3, h, w) in [0, 1]
    native: NDArray[np.floating[Any]]  # (k, c', h, w)
    released: NDArray[np.floating[Any]] | None  # (k, c', h, w)
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything that a report shows."""

    title: str
    explainer: str  # the released explanation, in words
    configurations: tuple[Configuration, ...]  # at least one; the last one is judged, the others are compared
    provenance: Mapping[str, str]  # the row "command" reproduces the audit
    pictures: Pictures | None = None
    notes: tuple[str, ...] = ()
    root_cause: tuple[Ablation, ...] = ()
    root_cause_sentence: str = ""
    privacy: PrivacyStatement | None = None  # of the model's training
    canaries: Finding | None = None  # on that training
    keyed: bool = False  # whether the release adds noise under a key that reference models do not have
    subject_data: str | None = None  # a name in `verdict.certificate.write.SUBJECT_DATA`; None: trained once
    endpoint: str | None = None  # URL of a service that was audited

    @property
    def audited(self) -> Configuration:
        """The configuration that is judged."""
        return self.configurations[-1]

    @property
    def limits(self) -> tuple[tuple[str, str], ...]:
        """What the audit does not show, each a headline and a sentence."""
        return limits(self.audited.result, keyed=self.keyed, endpoint=self.endpoint is not None)


WIDTH, HEIGHT, MARGIN = 170, 26, 7
TOPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LETTER = 6.2  # approximate width of a letter of the axis' text

Unit = Literal["rate", "difference", "auc"]


@dataclass(frozen=True)
class Scale:
    """An axis."""

    unit: Unit  # "rate" is drawn on a square-root scale from 0, which still separates 1 % from 3 %
    low: float
    high: float
    chance: float  # the value that guessing reaches
    limit: float | None = None  # what the policy allows; None if these numbers are not compared with it

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
        """The axis of the claim, with its limit."""
        if result.claim == "whole":
            return cls.rates(highest, result.policy.fpr, result.limit)
        return cls.differences(lowest, highest, result.limit)

    @classmethod
    def aucs(cls, lowest: float, highest: float) -> Scale:
        """An axis in steps of 0.05 that shows both ends and one half."""
        low, high = max(floor(20 * min(lowest, 0.49)) / 20, 0.0), min(ceil(20 * max(highest, 0.6)) / 20, 1.0)
        return cls("auc", low, high, 0.5)

    def x(self, value: float) -> float:
        """Horizontal position of a number, clipped to the ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return MARGIN + (WIDTH - 2 * MARGIN) * (share**0.5 if self.unit == "rate" else share)

    def text(self, value: float, digits: int | None = None) -> str:
        """A number in the unit of the axis."""
        if self.unit == "auc":
            return f"{value:.2f}"
        return typeset(points(value, digits) if self.unit == "difference" else percent(value, digits))

    def axis(self) -> Markup:
        """The axis, for the head of the column."""
        marks = Markup("")
        numbers = _word(1, HEIGHT - 2, "start", "0" if self.unit == "rate" else self.text(self.low, 3))
        if self.unit == "auc" and self.x(0.5) > 40:
            numbers += _word(self.x(0.5), 10, "middle", "0.50")
        numbers += _word(WIDTH - 1, HEIGHT - 2, "end", self.text(self.high, 3))
        if self.limit is not None:
            limit, says = self.x(self.limit), f"limit {self.text(self.limit, 3)}"
            anchor, at = ("start", limit + 4) if limit + 4 + LETTER * len(says) < WIDTH else ("end", limit - 4)
            marks += _line("limit", limit, 1)
            numbers += _word(at, 10, anchor, says)
        marks += _line("chance", self.x(self.chance), 15)
        return Markup('<svg class="bar axis" viewBox="0 0 {w} {h}" aria-hidden="true">{marks}{numbers}</svg>').format(
            w=WIDTH, h=HEIGHT, marks=marks, numbers=numbers
        )

    def bar(self, value: float, low: float, high: float, standing: str) -> Markup:
        """The interval as a bar and the number as a dot, coloured by the CSS class of its standing."""
        left, right = self.x(low), self.x(high)
        says = f"{self.text(value)}, between {self.text(low)} and {self.text(high)}"
        lines = _line("chance", self.x(self.chance), 0)
        if self.limit is not None:
            says += f", limit {self.text(self.limit)}"
            lines += _line("limit", self.x(self.limit), 0)
        return Markup(
            '<svg class="bar {standing}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{lines}'
            '<rect class="interval" x="{left}" y="{top}" width="{width}" height="8" rx="4"/>'
            '<circle class="rate" cx="{at}" cy="{middle}" r="4.5"/></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            standing=standing,
            label=says,
            lines=lines,
            left=f"{left:.1f}",
            width=f"{max(right - left, 1.0):.1f}",
            top=HEIGHT / 2 - 4,
            at=f"{self.x(value):.1f}",
            middle=HEIGHT / 2,
        )


def _line(kind: str, x: float, top: int) -> Markup:
    line = Markup('<line class="{kind}" x1="{x}" x2="{x}" y1="{top}" y2="{h}"/>')
    return line.format(kind=kind, x=f"{x:.1f}", top=top, h=HEIGHT)


def _word(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>').format(
        x=f"{x:.1f}", y=y, anchor=anchor, text=text
    )


def typeset(text: str) -> str:
    """Figures with the dashes and minus signs of a page."""
    return text.replace("%-", "–").replace("-", "−")


class Cell(NamedTuple):
    """A number with its bounds."""

    value: str
    interval: str
    bar: Markup
    tone: Standing


def _cell(figure: Figure, scale: Scale, tone: Standing) -> Cell:
    bar = scale.bar(*figure[:3], tone)
    return Cell(typeset(figure.text), typeset(figure.interval), bar, tone)


def tile(result: Judgement) -> tuple[str, str, str]:
    """The headline number of a configuration, its unit in words, and its bounds."""
    figure = words.headline(result)
    says = "of the members found"
    if figure.signed:
        says = f"percentage points more members found than with the {result.anyway} of the same queries alone"
    return typeset(figure.text), says, typeset(figure.interval)


class LevelCells(NamedTuple):
    """What an attacker finds with so many queries; None where nothing was attacked."""

    times: str
    labels: Cell | None
    added: Cell | None
    whole: Cell | None


class LevelTable(NamedTuple):
    """A row for each number of queries in the policy."""

    rates: Markup
    differences: Markup
    rows: tuple[LevelCells, ...]


def level_table(result: Judgement) -> LevelTable:
    """The numbers for each number of queries in the policy, with bars on common axes."""
    rows, chance, whole = words.level_rows(result), result.policy.fpr, result.claim == "whole"
    highest = max((f.high for row in rows for f in (row.labels, row.whole) if f), default=chance)
    rate = Scale.rates(highest, chance, result.limit if whole else None)
    ends = [(row.added.low, row.added.high) for row in rows if row.added] or [(0.0, 0.0)]
    lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
    difference = Scale.differences(lowest, highest, None if whole else result.limit)

    def cell(figure: Figure | None, scale: Scale, tone: Standing = "unjudged") -> Cell | None:
        if figure is None:
            return None
        if scale.limit is not None:
            tone = "above" if figure.low > scale.limit else "below" if figure.high <= scale.limit else "open"
        return _cell(figure, scale, tone)

    cells = [
        LevelCells(
            words.times(row.level),
            None if row.labels is None else _cell(row.labels, rate, "baseline"),
            cell(row.added, difference),
            cell(row.whole, rate),
        )
        for row in rows
    ]
    return LevelTable(rate.axis(), difference.axis(), tuple(cells))


class TargetTable(NamedTuple):
    """A row for each target, with the cell of its deciding attack."""

    axis: Markup
    unit: str
    rows: tuple[tuple[words.TargetRow, Cell], ...]


def target_table(result: Judgement) -> TargetTable | None:
    """All targets; None if there is only one."""
    rows = words.target_rows(result)
    if not rows:
        return None
    ends = min(0.0, *(row.figure.low for row in rows)), max(0.0, *(row.figure.high for row in rows))
    scale = Scale.of_claim(result, *ends)
    cells = tuple((row, _cell(row.figure, scale, standing(row.judgement, row.best))) for row in rows)
    return TargetTable(scale.axis(), "TPR" if result.claim == "whole" else "Adds, in points", cells)


MAX_JUDGED, MAX_UNJUDGED = 3, 1
"""Judged and unjudged attacks of a level that are shown; the weaker ones are folded away."""


class AttackRow(NamedTuple):
    """One attack as a row of the table."""

    name: str
    title: str
    strongest: bool
    auc: str
    auc_interval: str
    found: tuple[str, str]
    added: tuple[str, str] | None
    standing: Standing
    bar: Markup


class LevelGroup(NamedTuple):
    """Attacks with one number of queries."""

    level: int
    shown: tuple[AttackRow, ...]
    folded: tuple[AttackRow, ...]


@dataclass(frozen=True)
class AttackTable:
    """The attacks on one configuration, by number of queries; the strongest judged attack comes first in each."""

    configuration: Configuration
    compares: bool
    axis: Markup
    groups: tuple[LevelGroup, ...]

    @property
    def result(self) -> AuditResult:
        """The result of the configuration."""
        return self.configuration.result

    @property
    def folded_sentence(self) -> str:
        """How many rows are folded away, and their standings; "" for none."""
        counts: Counter[str] = Counter(row.standing for g in self.groups for row in g.folded)
        parts = [f"{counts[k]} {says}" for k, says in STANDINGS.items() if counts[k]]
        return f"{counts.total()} more attacks: {', '.join(parts)}" if counts else ""


def attack_tables(configurations: Sequence[Configuration]) -> tuple[AttackTable, ...]:
    """One table per configuration, all on axes with common ends."""
    bounds = [b for c in configurations for a in c.result.attacks if (b := c.result.claimed(a)) is not None]
    ends = min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=0.0)
    return tuple(_table(c, Scale.of_claim(c.result, *ends)) for c in configurations)


def _table(configuration: Configuration, scale: Scale) -> AttackTable:
    result, groups = configuration.result, []
    for level in sorted({a.level for a in result.attacks}):
        rows = [_row(result, a, scale) for a in words.in_order(result, [a for a in result.attacks if a.level == level])]
        shown = _shown(rows)
        parts = (tuple(row for row in rows if (row.title in shown) is first) for first in (True, False))
        groups.append(LevelGroup(level, *parts))
    compares = any(a.pair is not None for a in result.attacks)
    return AttackTable(configuration, compares, scale.axis(), tuple(groups))


def _shown(rows: Sequence[AttackRow]) -> set[str]:
    """Titles of the rows of a level that are shown; a single row is never folded away."""
    judged = [r.title for r in rows if r.standing in ("above", "below", "open")]
    beside = [r.title for r in rows if r.standing in ("beyond", "unjudged")]
    baseline = {r.title for r in rows if r.standing == "baseline"}
    return {*judged[: _split(judged, MAX_JUDGED)], *baseline, *beside[: _split(beside, MAX_UNJUDGED)]}


def _split(rows: Sequence[object], most: int) -> int:
    return len(rows) if len(rows) <= most + 1 else most


def _row(result: AuditResult, attack: AttackResult, scale: Scale) -> AttackRow:
    stands, claimed = standing(result, attack), result.claimed(attack)
    found, added = words.rate(result, attack), words.adds(result, attack)
    return AttackRow(
        name=words.attack_name(attack.attack, attack.signal, attack.level),
        title=attack.code,
        strongest=attack is result.strongest,
        auc=f"{attack.auc:.3f}",
        auc_interval="{:.3f}–{:.3f}".format(*auc_interval(attack.curve, result.policy.confidence)),
        found=(found.text, typeset(found.interval)),
        added=None if added is None else (typeset(added.text), typeset(added.interval)),
        standing=stands,
        bar=Markup("") if claimed is None else scale.bar(result.estimate(attack), *claimed, stands),
    )


class PartTable(NamedTuple):
    """The parts of the data by one column, the most exposed first; those of `rest` are folded away."""

    of: SliceTable
    axis: Markup
    shown: tuple[tuple[SliceRow, Cell], ...]
    rest: tuple[tuple[SliceRow, Cell], ...]


MAX_PARTS = 10  # parts that are shown


def part_tables(result: AuditResult) -> tuple[PartTable, ...]:
    """A table per column."""
    return tuple(_parts(t, result.policy.fpr) for t in result.slices if t.rows)


def _parts(table: SliceTable, chance: float) -> PartTable:
    scale = Scale.rates(max(row.high for row in table.rows), chance, None)
    rows = tuple((row, _cell(Figure(row.rate, row.low, row.high), scale, "unjudged")) for row in table.rows)
    first = _split(rows, MAX_PARTS)
    return PartTable(table, scale.axis(), rows[:first], rows[first:])


KINDS = {"native": "The map as it is", "alone": "One property kept alone", "removed": "One property removed"}


class CauseTable(NamedTuple):
    """Versions of the map by kind, each with its bar and the members found."""

    fpr: str
    axis: Markup
    groups: tuple[tuple[str, tuple[tuple[Ablation, Markup, Figure], ...]], ...]


def cause_table(ablations: Sequence[Ablation]) -> CauseTable | None:
    """The versions by kind; None for none."""
    if not ablations:
        return None
    scale = Scale.aucs(min(a.auc_low for a in ablations), max(a.auc_high for a in ablations))

    def row(a: Ablation) -> tuple[Ablation, Markup, Figure]:
        bar = scale.bar(a.auc, a.auc_low, a.auc_high, "cause" if a.auc_low > scale.chance else "unjudged")
        return a, bar, Figure(a.tpr, a.tpr_low, a.tpr_high)

    groups = tuple((KINDS[kind], tuple(map(row, rows))) for kind, rows in groupby(ablations, lambda a: a.kind))
    return CauseTable(percent(ablations[0].fpr, 3), scale.axis(), groups)


RELEASES = {
    NATIVE: "Native explanation",
    "recommended": "Recommended hardening",
    "custom": "Custom hardening",
    ENDPOINT: "What the endpoint answers",
}


def release_name(configuration: Configuration) -> str:
    """Readable name of a configuration."""
    if configuration.result.policy.release == "prediction":
        return "Predictions"
    return RELEASES.get(configuration.name, configuration.name)


CONTROLS = {
    "blind baseline": "Can members be recognised from the inputs alone, without any answer?",
    "null model": "Do the attacks find members in a model that was not trained on them?",
    "shuffled membership": "Does this audit raise false alarms when the members are drawn at random?",
    "references": "Are there reference models with and without the scored examples?",
    "recipe": "Were the reference models trained like the target?",
    "exact copies": "Is a copy of a member among the non-members?",
    "other source": "Can examples of the other source be recognised from the inputs alone?",
}

NUMBERS = {
    "auc": "AUC",
    "auc_low": "AUC at least",
    "tpr_low": "TPR at least",
    "expected_at_most": "expected at most",
    "of_tolerated": "deviation over tolerance",
    "effect": "effect of membership, relative to the references",
}

STATES = {True: "failed", False: "passed", None: "not run"}  # a control's outcome


def with_controls(configurations: Sequence[Configuration]) -> list[Configuration]:
    """The audited configuration, and others with a failed control."""
    audited = configurations[-1]
    shown = [audited, *(c for c in configurations[:-1] if c.result.failed)]
    return [c for c in shown if c.result.controls]


def control_numbers(control: Control) -> str:
    """The numbers behind a control, named."""
    return " · ".join(f"{NUMBERS.get(name, name)} {value:.3g}" for name, value in control.numbers.items())


def measures(utility: Utility) -> list[tuple[str, str, str]]:
    """Field in `Utility`, name and meaning of each measure that was computed."""
    top = percent(utility.top_fraction, 3)
    rows = (
        ("top_overlap", "Top-feature overlap", f"share of the {top} strongest features that remain among them"),
        ("rank_correlation", "Rank correlation", "Spearman correlation of the magnitudes with the native ones"),
        ("cosine", "Cosine similarity", "of the whole map: 1 is the same direction, 0 is unrelated"),
        ("sign_agreement", "Sign agreement", "share of the strongest features that keep their sign"),
        ("sign_errors", "Wrong signs", "share of released signs that differ from the native ones, zeros aside"),
        ("sign_errors_top", "Maps with a wrong sign", f"among the {top} strongest features, at least {FEWEST_TOP}"),
        (
            "deletion",
            "Deletion",
            f"drop in the class's probability when the {top} highest-ranked features are set to 0",
        ),
        ("insertion", "Insertion", "rise in that probability when all others are set to 0"),
        ("prohibited", "Prohibited reasons", "share of explanations with a prohibited column among the reasons"),
    )
    return [row for row in rows if getattr(utility, row[0]) is not None]


def format_measure(field: str, value: float) -> str:
    """The value of a measure as text, errors as percentages."""
    return percent(value) if field.startswith(("sign_errors", "prohibited")) else f"{value:.2f}"


class Fact(NamedTuple):
    """A number shown with the verdict."""

    name: str
    value: str
    says: str
    warns: bool = False


def facts(configuration: Configuration) -> tuple[Fact, ...]:
    """How many examples were set aside, what the sample could decide, and how often it was used."""
    result = configuration.result
    found = [
        Fact(f"Set aside for {name}", f"{n:,}", "examples that were not scored")
        for name, n in result.sizes.items()
        if n and name not in (result.split, "certification")
    ]
    if result.claim == "whole":
        says = "the lowest limit that this sample would likely certify if the attack only guessed"
        found.append(Fact("At best certifiable", percent(result.could_certify), says))
    return (*found, _uses(result, configuration.name == NATIVE))


def _uses(result: AuditResult, native: bool) -> Fact:
    uses, warns = result.uses, False
    if result.split != "certification":
        value, says = "selection split", "for choosing a hardening, as often as you like; it decides nothing"
    elif native and uses is None and result.policy.release != "prediction":
        value, says = "not counted", "for the native explanation: there is no hardening to choose"
    elif uses is None:
        why = ", as the policy allows" if result.policy.uncounted else ", so nothing can be certified"
        value, warns = "not counted", True
        says = f"this configuration may have been chosen by a verdict on the same examples{why}"
    elif uses == 1:
        value, says = "first use", "no other configuration was judged on them before"
    else:
        value, warns = f"{uses:,}", True
        says = (
            "configurations were judged on them, including this one: choosing by a verdict weakens every later verdict"
        )
    return Fact("Uses of these examples", value, says, warns)
