"""The table of attacks (docs/evidence/attack_table.md), and the scores of one target by it. LabelPatience and
PredictionPatience, the baselines without an explanation, are stacks; Stacked, of all attacks, must beat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.base import Attack, Threshold, references_for
from safexplain.audit.attacks.learned import Boosted, FittedBoosted, FittedLearned, FittedStack, Learned, Stacked
from safexplain.audit.attacks.likelihood import (
    MAX_COLUMNS,
    RMIA,
    JointLikelihoodRatio,
    LabelLikelihoodRatio,
    LikelihoodRatio,
    OwnLabelRatio,
    PooledDensityRatio,
    likelihood_ratios,
)
from safexplain.audit.attacks.recourse import CounterfactualDistance, CounterfactualLRT
from safexplain.audit.signals import Signals, blocks, parts
from safexplain.errors import ConfigurationError, InputError, did_you_mean
from safexplain.verdict.judgement import WHOLE_MAP, Role, at_level, split_level
from safexplain.verdict.policy import Policy

Numbers = NDArray[np.floating[Any]]

VIEWS: dict[str, Callable[[Numbers], Numbers]] = {"sign": lambda a: np.sign(a).astype(np.float32)}
"""Transforms of a map that hardening keeps."""

MIN_TO_LEARN = 4  # fewest reference models for attacks that learn
MAX_BOOSTED = 12  # most columns that boosted trees read


class Signal(NamedTuple):
    """A parsed signal: "attributions@32:sign" are the signs of maps averaged over 32 queries."""

    name: str
    level: int = 1
    view: str = ""

    @classmethod
    def parse(cls, text: str) -> Signal:
        """From its text."""
        stored, _, view = text.partition(":")
        return cls(*split_level(stored), view)

    @property
    def stored(self) -> str:
        """Name of the array in the file."""
        return at_level(self.name, self.level)

    def __str__(self) -> str:
        return f"{self.stored}:{self.view}" if self.view else self.stored

    def at(self, level: int) -> Signal:
        """The same signal from so many queries; the label of the plain query is known at every level."""
        return self if self.name == "label" else self._replace(level=level)


class Line(NamedTuple):
    """One attack of the table."""

    name: str
    attack: Attack
    signal: str  # that of the plain query; joined by "+": columns of one vector; after ":" a view of maps
    role: Role
    references: int = 2  # at least
    widest: float = np.inf  # most numbers per example that it can read
    once: bool = False  # whether it is run at one query only, and not at every level

    @property
    def reads(self) -> list[Signal]:
        """The parsed signals."""
        return [Signal.parse(part) for part in self.signal.split("+")]

    def row(self, level: int) -> SuiteRow:
        """The attack at this level."""
        return SuiteRow(self.name, self.attack, "+".join(str(s.at(level)) for s in self.reads), self.role, level)


IDENTITY = LikelihoodRatio("identity")
FARTHER = Threshold(member_when_low=False)

SUMMARY = ("l1", "mean", "positive")
"""Summaries of a map: its size, and the balance of its signs, which survives clipping and scaling."""

EXPLANATION: tuple[Line, ...] = (
    Line("LikelihoodRatio", LikelihoodRatio(), "l1", "explanation"),
    Line("LikelihoodRatio", LikelihoodRatio(), "mean", "explanation"),
    Line("LikelihoodRatio", LikelihoodRatio(), "positive", "explanation"),
    Line("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    Line("LikelihoodRatio", LikelihoodRatio(), f"{WHOLE_MAP}:sign", "explanation"),
    Line("JointLikelihoodRatio", JointLikelihoodRatio(), "class_l1", "explanation", widest=MAX_COLUMNS),
    Line("Learned", Learned(), WHOLE_MAP, "explanation", references=MIN_TO_LEARN, once=True),
)

ANY_SIGNAL: tuple[Line, ...] = (
    Line("LikelihoodRatio", LikelihoodRatio(), "", "explanation"),
    Line("JointLikelihoodRatio", JointLikelihoodRatio(), "", "explanation", widest=MAX_COLUMNS),
)
"""For any signal that no line names; the second is for vectors."""

ANY_SIGNAL_ALONE = (Line("Threshold", Threshold(), "", "explanation", references=0, widest=1, once=True),)
"""The same for fewer than two references."""

WITHOUT_REFERENCES: tuple[Line, ...] = (
    Line("Threshold", Threshold(), "l1", "explanation", references=0, widest=1, once=True),
    Line("Threshold", Threshold(), "variance", "explanation", references=0, widest=1, once=True),
    Line("Threshold", Threshold(), "loss", "loss", references=0, widest=1, once=True),
)
"""Run with fewer than two references, or if the policy names them."""

LABELS: tuple[Line, ...] = (
    Line("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label", widest=1),
    Line("LikelihoodRatio", IDENTITY, "kept", "label"),
    Line("OwnLabelRatio", OwnLabelRatio(), "label+shares", "label"),
    Line("LikelihoodRatio", IDENTITY, "shares", "label"),
)

PREDICTIONS: tuple[Line, ...] = (
    Line("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
    Line("LikelihoodRatio", LikelihoodRatio(), "margin", "loss"),
    Line("RMIA", RMIA(), "loss", "loss", widest=1, once=True),
    Line("JointLikelihoodRatio", JointLikelihoodRatio("identity"), "prediction", "loss", widest=MAX_COLUMNS),
)

RECOURSE: tuple[Line, ...] = (
    Line("CounterfactualDistance", CounterfactualDistance(), "distance", "explanation", 0, 1, once=True),
    Line("CounterfactualLRT-global", CounterfactualLRT("global"), "distance", "explanation", 2, 1, once=True),
    Line("CounterfactualLRT-local", CounterfactualLRT("local"), "distance", "explanation", 2, 1, once=True),
    Line("SignedDistance", CounterfactualDistance(), "signed_distance", "explanation", 0, 1, once=True),
    Line("SignedDistanceLRT", IDENTITY, "signed_distance", "explanation", once=True),
    Line("SignedDistanceDensity", PooledDensityRatio(), "signed_distance", "explanation", 2, 1, once=True),
    Line("LikelihoodRatio", IDENTITY, "score", "explanation", once=True),
    Line("DirectionAttack", FARTHER, "recovered_margin", "explanation", 0, 1, once=True),
    Line("DirectionLRT", IDENTITY, "recovered_margin", "explanation", once=True),
    Line("DirectionDensity", PooledDensityRatio(), "recovered_margin", "explanation", 2, 1, once=True),
    Line("DirectionLRT", IDENTITY, "regressed_margin", "explanation", once=True),
    Line("DirectionDensity", PooledDensityRatio(), "regressed_margin", "explanation", 2, 1, once=True),
    Line("AveragingAttack", CounterfactualLRT(), "averaged_distance", "explanation", 2, 1, once=True),
)
"""On the distance of recourse, margins from its directions or scores, and the distance averaged over many answers.
Run if `meta` has an entry "recourse" (`audit.collect_recourse`)."""

SUITE = (*WITHOUT_REFERENCES, *EXPLANATION, *LABELS, *PREDICTIONS, *RECOURSE)  # all single attacks

LABEL_SIGNALS = ("label", "kept", "shares")
OWN_LABEL = ("loss", "margin")
ALL_CLASSES = ("prediction", "predictions")
"""Signals of predictions; any other name is an explanation's."""

AT_SOME_LEVELS = ("label", "kept", "shares", "predictions")
"""Signals that there are of one query alone, or of several alone."""

STACKS = ("LabelPatience", "PredictionPatience", "Stacked")

NAMES = frozenset({*STACKS, *(line.name for line in SUITE)} - {"OwnLabelRatio"})  # names that `Policy.suite` may list


@dataclass(frozen=True)
class SuiteRow:
    """One attack on one signal, or on several read together."""

    name: str
    attack: Attack
    signal: str  # as in `Line`; for a stack, a description of its columns' signals
    role: Role
    level: int = 1  # queries per example
    columns: tuple[SuiteRow, ...] = ()  # the attacks that a stack combines; the first is the one that it must beat
    baseline: bool = False  # whether others at this level are compared with this attack without an explanation

    @cached_property
    def reads(self) -> tuple[Signal, ...]:
        """The signals that it reads; for a stack, those of its columns."""
        if self.columns:
            return tuple(dict.fromkeys(signal for column in self.columns for signal in column.reads))
        return tuple(Signal.parse(part) for part in self.signal.split("+"))

    @property
    def explains(self) -> bool:
        """Whether it reads the explanation."""
        return not {s.name for s in self.reads} <= {*LABEL_SIGNALS, *OWN_LABEL, *ALL_CLASSES}

    @property
    def learns(self) -> bool:
        """Whether it is trained on examples, which then cannot certify."""
        return isinstance(self.attack, Learned) or any(column.learns for column in self.columns)

    @property
    def needs_references(self) -> bool:
        """Whether it uses reference models."""
        return not isinstance(self.attack, Threshold)


def check_suite(policy: Policy) -> None:
    """Raise ConfigurationError for an unknown attack in a policy's suite."""
    if wrong := sorted(set(policy.suite) - NAMES):
        known = ", ".join(sorted(NAMES))
        raise ConfigurationError(
            f"policy: unknown attacks {wrong} in the suite; expected some of {known}{did_you_mean(wrong[0], NAMES)}"
        )


def fitting(signals: Signals, policy: Policy | None = None) -> list[SuiteRow]:
    """The rows that suit signals, the number of references and the policy (None: `Policy()`), level by level; raises as
    `check_suite`."""
    policy = policy or Policy()
    check_suite(policy)
    rows = [row for level in policy.patience for row in _rows(signals, policy, level)]
    if not policy.suite:
        return rows
    kept = {*policy.suite, "Stacked"}  # which joins the attacks that are named
    levels = {r.level for r in rows if r.name in kept}
    return [r for r in rows if r.name in kept or (r.baseline and r.level in levels)]


def gaps(signals: Signals, rows: Sequence[SuiteRow], policy: Policy) -> tuple[str, ...]:
    """What prevents a certificate: arrays that no row reads, unless constant, and released ones that are missing at
    some level of the policy."""
    read = {s.stored for row in rows for s in row.reads}
    read |= {
        at_level("predictions", s.level) for row in rows for s in row.reads if s.name == "prediction"
    }  # their mean
    there = [*signals.values, *([WHOLE_MAP] if signals.attributions is not None else [])]
    unread = [n for n in there if n not in read and _varies(signals, Signal(*split_level(n)))]
    kinds = set[str]() if policy.release == "explanation" else {*OWN_LABEL, *ALL_CLASSES}
    named = {split_level(name)[0] for name in there if split_level(name)[1] in {1, *policy.patience}}
    explained = named - {*LABEL_SIGNALS, *OWN_LABEL, *ALL_CLASSES} if policy.release != "prediction" else set[str]()
    needed = [
        at_level(n, at) for at in policy.patience for n in sorted((explained | named & kinds) - {*AT_SOME_LEVELS})
    ]
    for at in (at for at in policy.patience if at > 1):
        needed += [at_level(n, at) for n in ("kept", "shares") if n in named or (n == "kept" and "label" in named)]
    missing = [name for name in needed if name not in there]
    return (*(f"{name} is missing" for name in missing), *(f"{name} is read by no attack" for name in unread))


def families_allowed(signals: Signals, policy: Policy | None = None) -> tuple[str, ...]:
    """Names of the attacks that the complete suite runs on these signals, regardless of the policy's suite."""
    return tuple(dict.fromkeys(r.name for r in fitting(signals, replace(policy or Policy(), suite=()))))


def _rows(signals: Signals, policy: Policy, level: int) -> list[SuiteRow]:
    """Single attacks, the baseline and the stack of all, at one level."""
    explained = [] if policy.release == "prediction" else _explanation(signals, policy, level)
    labels = _labels(signals, level)
    predicted = _suitable(signals, level, _chosen(PREDICTIONS, signals, policy), "loss")
    rows = [*explained, *(r for r in labels if r.signal == "label" and level == 1), *predicted]
    if len(signals.models) - 1 < MIN_TO_LEARN:
        return rows

    def stack(name: str, signal: str, role: Role, columns: Iterable[SuiteRow], baseline: bool = False) -> SuiteRow:
        return SuiteRow(name, Stacked(policy.fpr), signal, role, level, tuple(columns), baseline)

    released = predicted if policy.release != "explanation" else []
    compared = policy.release != "prediction"
    grown = compared and bool(explained) and not _named(policy)
    trees = _trees(signals, level, released, bool(labels)) if grown else []
    if labels:
        columns = labels if released else [*labels, *trees]
        rows.append(stack("LabelPatience", at_level("label", level), "label", columns, not released))
    if released:
        signal = at_level("prediction", level)
        rows.append(stack("PredictionPatience", signal, "loss", [*released, *labels, *trees], compared))
    baseline = [r for r in rows if r.baseline]
    if baseline and grown:
        explained = [*explained, *_trees(signals, level, [*explained, *released], bool(labels))]
    if level > 1 and policy.release != "prediction":
        explained = [*explained, *_explanation(signals, policy, 1)]  # the plain query is asked too
    if not explained or len(baseline) + len(explained) < 2:
        return rows
    role: Role = "explanation"
    signal = at_level("explanation", level)
    if baseline and baseline[0].name == "LabelPatience":
        role, signal = "explanation+label", f"{signal}+label"
    elif baseline:
        own = any(_width(signals, Signal(name, level)) for name in OWN_LABEL)  # none of foreign labels
        role, signal = "explanation+loss", f"{signal}+{'loss' if own else 'prediction'}"
    return [*rows, stack("Stacked", signal, role, [*baseline, *explained])]


def _named(policy: Policy) -> frozenset[str]:
    return frozenset() if "Stacked" in policy.suite else frozenset(policy.suite) - {*STACKS}


def _chosen(lines: Sequence[Line], signals: Signals, policy: Policy) -> list[Line]:
    if named := _named(policy):
        return [line for line in (*lines, *WITHOUT_REFERENCES) if line.name in named]
    return [*lines, *(() if _compared(signals) else WITHOUT_REFERENCES)]


def _explanation(signals: Signals, policy: Policy, level: int) -> list[SuiteRow]:
    """Attacks on the explanation alone, at least one even if the explanation is constant."""
    recourse = RECOURSE if "recourse" in signals.meta else ()
    alone, any_signal = ((), ANY_SIGNAL) if _compared(signals) else (WITHOUT_REFERENCES, ANY_SIGNAL_ALONE)
    lines = [line for line in (*EXPLANATION, *alone, *recourse) if _fits(signals, line, level)]
    known = {signal.name for line in lines for signal in line.reads} | {*LABEL_SIGNALS, *OWN_LABEL, *ALL_CLASSES}
    there = [name for name, at in map(split_level, signals.values) if at == level]
    others = [
        line._replace(signal=name)
        for name in there
        for line in (any_signal if _width(signals, Signal(name, level)) > 1 else any_signal[:1])
        if name not in known
    ]
    wanted = _chosen((*EXPLANATION, *others, *recourse), signals, policy)
    return _suitable(signals, level, wanted, "explanation", one=True)


def _labels(signals: Signals, level: int) -> list[SuiteRow]:
    if "label" not in signals.values or (level > 1 and at_level("kept", level) not in signals.values):
        return []
    return _suitable(signals, level, LABELS, "label", one=True) if _compared(signals) else []


def _suitable(signals: Signals, level: int, lines: Iterable[Line], role: Role, *, one: bool = False) -> list[SuiteRow]:
    """Rows of this role that can be run on varying signals; with `one`, at least one even on constant signals."""
    rows = [line.row(level) for line in lines if line.role == role and _fits(signals, line, level)]
    return [r for r in rows if any(_varies(signals, s) for s in r.reads)] or (rows[:1] if one else [])


def _fits(signals: Signals, line: Line, level: int) -> bool:
    """Whether its signals exist at this level in a shape that it reads, with enough references."""
    widths = [_width(signals, s.at(level)) for s in line.reads]
    if 0 in widths or sum(widths) > line.widest or (line.once and level > 1):
        return False
    if isinstance(line.attack, OwnLabelRatio):
        label = signals.values["label"]
        return bool(label.min() >= 0 and not (label % 1).any() and label.max() < widths[-1])
    return len(signals.models) - 1 >= line.references


def _trees(signals: Signals, level: int, rows: Sequence[SuiteRow], labelled: bool) -> list[SuiteRow]:
    """Boosted trees on the labels of the same queries and the summary numbers (without these, all numbers)."""
    known = [Signal("label"), *([Signal("kept", level)] if level > 1 else [])] if labelled else []
    read = dict.fromkeys([*known, *(r.reads[0] for r in rows if len(r.reads) == 1 and not r.reads[0].view)])
    numbers = [s for s in read if _width(signals, s) == 1 and (s.name == "label" or _varies(signals, s))]
    summary = {*known, *(Signal(name, level) for name in (*SUMMARY, *OWN_LABEL))} & {*numbers}
    chosen = [s for s in numbers if len(summary) == len(known) or s in summary][:MAX_BOOSTED]
    if not chosen or (rows and len(chosen) <= len(known)):
        return []
    role: Role = rows[0].role if rows else "label"
    role = "explanation+label" if role == "explanation" and labelled else role
    return [SuiteRow("Boosted", Boosted(labels=int(labelled)), "+".join(map(str, chosen)), role, level)]


def _compared(signals: Signals) -> bool:
    return len(signals.models) > 2


def stored_in(signals: Signals, signal: Signal) -> Numbers | None:
    """The array (models, examples) or (models, examples, k); None if it is missing."""
    return signals.attributions if signal.stored == WHOLE_MAP else signals.values.get(signal.stored)


def values_of(signals: Signals, reads: Sequence[Signal]) -> Numbers:
    """(m, n) or (m, n, k) inputs of a row, shares of labels and probabilities as log odds."""
    if len(reads) > 1:
        columns = [np.asarray(values_of(signals, [one]), dtype=np.float64) for one in reads]
        return np.concatenate([c[..., None] if c.ndim == 2 else c for c in columns], axis=-1)
    (signal,) = reads
    values = stored_in(signals, signal)
    if values is None:
        raise InputError(f"expected a signal {signal.stored!r}, got {sorted(signals.values)}")
    if signal.name in ("kept", "shares") and signal.level > 1:
        return log_odds(values, signal.level)
    if signal.name in ALL_CLASSES and values.ndim == 3:
        return _as_log_odds(values, signal.level if signal.name == "predictions" else 1)
    if values.ndim == 3 and values.shape[2] == 1 and signal.name not in (WHOLE_MAP, *LABEL_SIGNALS):
        return values[..., 0]  # treated as one number
    return VIEWS[signal.view](values) if signal.view else values


def log_odds(share: Numbers, level: int) -> NDArray[np.float64]:
    """Log odds of a share of `level` queries, with half a query added on both sides."""
    count = np.asarray(share, dtype=np.float64) * level
    out: NDArray[np.float64] = np.log((count + 0.5) / (level - count + 0.5))
    return out


def _as_log_odds(values: Numbers, queries: int) -> Numbers:
    """Predictions (m, n, queries * classes) as log odds, if they are probabilities that sum to 1."""
    import torch

    from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities

    p = torch.from_numpy(np.asarray(values, dtype=np.float64)).reshape(-1, values.shape[2] // queries)
    if p.shape[1] < 2 or not are_probabilities(p):
        return values
    return np.asarray(class_log_odds(log_probabilities(p)).numpy()).reshape(values.shape)


def _width(signals: Signals, signal: Signal) -> int:
    """Numbers per example; 0 if the signal is missing."""
    values = stored_in(signals, signal)
    return 0 if values is None else 1 if values.ndim == 2 else int(values.shape[2])


def _varies(signals: Signals, signal: Signal) -> bool:
    values = values_of(signals, [signal._replace(view="")])
    return any(bool((part != values[0, 0]).any()) for _, _, part in blocks(values))


PSEUDO_TARGETS = 8
"""Most reference models that play the target for the stacks; the others train the attacks in their columns."""

MIN_FOR_NULL = 4  # fewest models with which a reference is the null model; with fewer, an untrained model is

Array = NDArray[np.float64]


def scores_of(
    row: SuiteRow,
    signals: Signals,
    reads: Sequence[int],
    references: NDArray[np.int64],
    fitted: FittedBoosted | FittedLearned | None = None,
) -> Array:
    """(len(reads), n) scores of each model in `reads`, by an attack that is no stack; `fitted` if it learns."""
    attack, membership = row.attack, signals.membership
    if isinstance(attack, LikelihoodRatio):
        view = VIEWS.get(row.reads[0].view)  # made of a few examples at a time
        values = values_of(signals, [s._replace(view="") for s in row.reads])
        return likelihood_ratios(attack, values, membership, references, reads, view)
    values = values_of(signals, row.reads)
    if isinstance(attack, Threshold):
        return np.stack([attack(values[read]) for read in reads])
    if isinstance(fitted, FittedLearned):
        cut = list(parts(values.shape[1], values.shape[2]))  # as the classifier cuts them itself
        return np.stack([np.concatenate([fitted.scores(values[read, part]) for part in cut]) for read in reads])
    apply = attack if fitted is None else fitted.scores
    others = [references_for(read, references, membership) for read in reads]
    return np.stack([apply(values[r], values[o], membership[o]) for r, o in zip(reads, others, strict=True)])


class Scorer:
    """Scores of one target by the rows of a suite; attacks are fitted once, on references only, so that the target's
    membership affects no score.

    Half of the references, at most `PSEUDO_TARGETS`, play the target for the stacks. Classifiers of maps and boosted
    trees are trained on the other half, and stacks are fitted on examples that no classifier was trained on.

    `training` (n,) are the examples for classifiers of maps (none set: all), and `also` further models to score.
    `known` is the scorer of another release of the same models for the same queries; its scores of rows on labels and
    losses are reused. InputError: a row has too few references, its attack fails, or `known` has another target or
    seed.
    """

    def __init__(
        self,
        signals: Signals,
        rows: Sequence[SuiteRow],
        *,
        target: int,
        training: NDArray[np.bool_],
        seed: int = 0,
        also: Sequence[int] = (),
        known: Scorer | None = None,
        progress: Progress = silent,
    ) -> None:
        self.rows, self.target = tuple(rows), target
        self._signals, self._seed = signals, seed
        self._references = np.array(signals.references(target), dtype=np.int64)
        order = self._shuffled(np.random.default_rng([seed, 0x57AC]))
        playing = min(PSEUDO_TARGETS, len(order) // 4 * 2) if len(order) >= MIN_TO_LEARN else 0
        self._players, self._teachers = np.sort(order[:playing]), np.sort(order[playing:])
        outside = signals.out_of_distribution
        inside = np.ones(len(signals), dtype=bool) if outside is None else ~outside
        self._learn_from = np.flatnonzero(inside & training if training.any() else inside)
        self._stack_on = inside if training.all() else inside & ~training
        self._also = [int(read) for read in also]
        self._joined = {column for row in rows for column in _columns(row)}
        self._fitted: dict[SuiteRow, FittedStack | FittedBoosted | FittedLearned] = {}
        self._found: dict[SuiteRow, dict[int, Array]] = {}  # scores of models
        if known is not None:
            if (one := (known.target, known._seed)) != (target, seed):
                raise InputError(f"known: expected a scorer of target and seed {(target, seed)}, got one of {one}")
            self._fitted |= {row: found for row, found in known._fitted.items() if not row.explains}
            self._found |= {row: found for row, found in known._found.items() if not row.explains}
        for i, row in enumerate(self.rows):
            self._prepare(row)
            progress("fitting attacks", i + 1, len(self.rows))

    def scores(self, read: int) -> list[Array]:
        """(n,) scores of every row, higher says "member", for the target or, in the null control, another model."""
        return [self._score(row, read) for row in self.rows]

    def adds(self, row: SuiteRow) -> bool:
        """Whether a stack uses more than its first column."""
        fitted = self._fitted[row]
        return isinstance(fitted, FittedStack) and fitted.adds

    def _shuffled(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The references in random order, with complementary ones side by side."""
        order: list[int] = []
        for model in rng.permutation(self._references).tolist():
            if model not in order:
                kept = references_for(model, self._references, self._signals.membership)
                order += [model, *sorted({*self._references.tolist()} - {model, *kept.tolist(), *order})]
        return np.array(order, dtype=np.int64)

    def _prepare(self, row: SuiteRow) -> None:
        """Fit what the row needs, and score the target, `also` and, for columns of stacks, the pseudo-targets."""
        if row in self._found:
            return
        for column in row.columns:
            self._prepare(column)
        players = self._players.tolist()
        if isinstance(row.attack, Stacked):
            features = np.stack([self._features(row, read) for read in players])
            member = self._signals.membership[self._players]
            self._fitted[row] = row.attack.fit(features[:, self._stack_on], member[:, self._stack_on])
        elif isinstance(row.attack, Learned | Boosted):
            self._fitted[row] = self._learned(row.attack, row)
        reads = [self.target, *(players if row in self._joined else ()), *self._also]
        self._found[row] = dict(zip(reads, self._scored(row, reads), strict=True))

    def _score(self, row: SuiteRow, read: int) -> Array:
        found = self._found[row]
        if read not in found:
            found[read] = next(iter(self._scored(row, [read])))
        return found[read]

    def _scored(self, row: SuiteRow, reads: Sequence[int]) -> Iterable[Array]:
        fitted = self._fitted.get(row)
        if isinstance(fitted, FittedStack):
            return [fitted.scores(self._features(row, read)) for read in reads]
        return scores_of(row, self._signals, reads, self._references, fitted)

    def _features(self, row: SuiteRow, read: int) -> Array:
        return np.stack([self._score(column, read) for column in row.columns], axis=-1)

    def _learned(self, attack: Learned | Boosted, row: SuiteRow) -> FittedBoosted | FittedLearned:
        values, member = values_of(self._signals, row.reads), self._signals.membership
        if isinstance(attack, Boosted):
            teachers = np.flatnonzero(np.isin(self._references, self._teachers)).tolist()
            return replace(attack, seed=self._seed).fit(values[self._references], member[self._references], teachers)
        shape = self._signals.shape
        if shape is not None and len(shape) == 3 and min(shape[1:]) > 1:
            attack = replace(attack, shape=tuple(shape))
        return attack.fit(values, member, self._teachers, self._learn_from)


def _columns(row: SuiteRow) -> Iterator[SuiteRow]:
    for column in row.columns:
        yield column
        yield from _columns(column)
