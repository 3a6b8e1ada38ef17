"""Which attacks are run, as rows of a table: fixed before anything is measured.

Every level of the policy's patience has its rows: attacks on the explanation alone, what is known without it (the
baseline: the labels of the same queries, with the probabilities where these are released), and every attack on the
explanation stacked with the baseline. Where predictions alone are released, there are only the attacks on these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit.attacks import (
    RMIA,
    Attack,
    JointLikelihoodRatio,
    LabelLikelihoodRatio,
    Learned,
    LikelihoodRatio,
    Threshold,
)
from safexplain.audit.attacks.boosted import Boosted
from safexplain.audit.attacks.likelihood.joint import MOST_COLUMNS, MOST_NUMBERS
from safexplain.audit.attacks.likelihood.ratio import PooledDensityRatio
from safexplain.audit.attacks.metaclassifier import Metaclassifier
from safexplain.audit.attacks.patience import OwnLabelRatio, log_odds
from safexplain.audit.attacks.recourse import CounterfactualDistance, CounterfactualLRT
from safexplain.audit.attacks.stacked import Stacked
from safexplain.audit.attacks.transfer import AtTargetLabel, OverQueries
from safexplain.audit.signals import Signals
from safexplain.audit.storage.maps import blocks
from safexplain.errors import ConfigurationError, InputError, near
from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities
from safexplain.verdict.evidence import WHOLE_MAP, Role, at_level, split_level
from safexplain.verdict.policy import Policy

Numbers = NDArray[np.floating[Any]]


def _ranks(a: Numbers) -> Numbers:
    """Place of each entry in the order, from 0 to 1; equal entries in the order of the features."""
    order, d = np.argsort(a, axis=-1, kind="stable"), a.shape[-1]
    out = np.empty(a.shape, dtype=np.float32)
    np.put_along_axis(
        out, order, (np.arange(d) / max(d - 1, 1)).astype(np.float32).reshape((1,) * (a.ndim - 1) + (d,)), -1
    )
    return out


VIEWS: dict[str, Callable[[Numbers], Numbers]] = {
    "sign": lambda a: np.sign(a).astype(np.float32),
    "rank": _ranks,
}
"""What clipping and normalisation leave of a map: the sign and the rank of each entry."""


@dataclass(frozen=True)
class SuiteRow:
    """One attack on one signal, or on several read together.

    Args:
        name: of the attack.
        attack: what scores; of a stack, what joins the scores of its columns.
        signal: name in the file; several joined by "+" are columns of one vector; "attributions:sign" is a view. A
            stack has no signal of its own: its name says what its columns read.
        role: what is read.
        level: how often the attacker asks about each example.
        columns: of a stack, the attacks whose scores it joins; the first is the one that it must beat.
        baseline: whether it is what is known without an explanation at this level, which the others are compared with.
    """

    name: str
    attack: Attack
    signal: str
    role: Role
    level: int = 1
    columns: tuple[SuiteRow, ...] = ()
    baseline: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the signals that must be there."""
        if self.columns:
            return tuple(dict.fromkeys(part for column in self.columns for part in column.parts))
        return tuple(part.partition(":")[0] for part in self.signal.split("+"))

    @property
    def title_signal(self) -> str:
        """Name of what is read, as results have it."""
        return self.signal

    @property
    def learns(self) -> bool:
        """Whether it is trained on examples, which then certify nothing."""
        return isinstance(self.attack, Learned) or any(column.learns for column in self.columns)

    @property
    def needs_references(self) -> bool:
        """Whether it compares with reference models."""
        return not isinstance(self.attack, Threshold)


EXPLANATION_SCALARS = ("variance", "l1", "l2")
"""Signals of the size of an explanation, low on members."""

SHAPE_SCALARS = ("mean", "positive", "support", "sparsity", "peak")
"""Signals that no clipping and no scaling takes away."""

OF_CLASSES = ("class_l1", "class_l2", "class_mean")
"""Signals of the explanations of several classes. How large each of them is tells nearly what the whole prediction
tells, without any probability being released."""

SUMMARY = ("l1", "mean", "positive", "sparsity", "peak")
"""Summary numbers of a map that are read together."""

PREDICTION = ("loss", "margin")
"""Signals of a service that releases probabilities, of the example's own label."""

WHOLE_PREDICTION = ("prediction", "predictions")
"""Signals of it that need no label: the log odds of every class, and those of several queries one by one."""

OF_LABELS = ("label", "kept", "shares")
"""Signals of the labels of the same queries."""

RECOURSE: tuple[SuiteRow, ...] = (
    SuiteRow("CounterfactualDistance", CounterfactualDistance(), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-global", CounterfactualLRT("global"), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-local", CounterfactualLRT("local"), "distance", "explanation"),
    SuiteRow("SignedDistance", CounterfactualDistance(), "signed_distance", "explanation"),
    SuiteRow("SignedDistanceLRT", LikelihoodRatio("identity"), "signed_distance", "explanation"),
    SuiteRow("SignedDistanceDensity", PooledDensityRatio(), "signed_distance", "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio("identity"), "score", "explanation"),
    SuiteRow("DirectionAttack", Threshold(member_when_low=False), "recovered_margin", "explanation"),
    *(
        SuiteRow(name, attack, signal, "explanation")
        for signal in ("recovered_margin", "regressed_margin")
        for name, attack in (
            ("DirectionLRT", LikelihoodRatio("identity")),
            ("DirectionDensity", PooledDensityRatio()),
        )
    ),
    SuiteRow("AveragingAttack", CounterfactualLRT(), "averaged_distance", "explanation"),
)
"""Attacks on recourse: by its distance, by margins from the boundary that its directions (or the scores) tell, and by
the distance averaged over many answers, in which noise cancels out; run where `meta` says, under "recourse", how it was
asked for (`audit.collect_recourse`)."""

ONCE: tuple[SuiteRow, ...] = (
    *(SuiteRow("Threshold", Threshold(), s, "explanation") for s in EXPLANATION_SCALARS),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), s, "explanation") for s in (*EXPLANATION_SCALARS, *SHAPE_SCALARS)),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1", "explanation"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "+".join(SUMMARY), "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), f"{WHOLE_MAP}:{view}", "explanation") for view in VIEWS),
    SuiteRow("Learned", Learned(), WHOLE_MAP, "explanation"),
    SuiteRow("LearnedElsewhere", Learned(non_members="out-of-distribution"), WHOLE_MAP, "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), s, "explanation") for s in OF_CLASSES),
    *(SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), s, "explanation") for s in OF_CLASSES),
)
"""Attacks on the explanation of the plain query."""

OFTEN: tuple[SuiteRow, ...] = (
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1", "explanation"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "+".join(SUMMARY), "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), f"{WHOLE_MAP}:{view}", "explanation") for view in VIEWS),
    *(SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), s, "explanation") for s in OF_CLASSES),
)
"""Attacks on the explanation averaged over several queries."""

OF_PREDICTIONS: tuple[SuiteRow, ...] = (
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio("identity"), "prediction", "loss"),
    SuiteRow("AtTargetLabel", AtTargetLabel(), "prediction", "loss"),
    SuiteRow("Metaclassifier", Metaclassifier(), "prediction", "loss"),
)
"""Attacks on the log odds of all classes (`audit.attacks.transfer`)."""


def one_by_one(level: int) -> tuple[SuiteRow, ...]:
    """The same on the log odds that each of several queries got."""

    def of_each(attack: Attack) -> Attack:
        if isinstance(attack, Metaclassifier):  # it learns from all of them
            return replace(attack, queries=level)
        return OverQueries(attack, level)

    return tuple(replace(row, attack=of_each(row.attack), signal="predictions") for row in OF_PREDICTIONS)


NUMBERS = (
    ("Threshold", Threshold()),
    ("LikelihoodRatio", LikelihoodRatio()),
)
"""Attacks on a signal that no table names."""

SUITE: tuple[SuiteRow, ...] = (
    *ONCE,
    SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label"),
    SuiteRow("Threshold", Threshold(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "margin", "loss"),
    SuiteRow("RMIA", RMIA(), "loss", "loss"),
    *OF_PREDICTIONS,
    *RECOURSE,
)
"""The attacks on single answers, run as far as the signals are there; `fitting` adds the levels and the stacks."""

NAMES = frozenset({r.name for r in SUITE} | {"LabelPatience", "PredictionPatience", "Boosted", "Stacked"})
"""Names that `Policy.suite` may list."""

JOINED = ("JointLikelihoodRatio", "AtTargetLabel", "LikelihoodRatio", "Metaclassifier")
"""Attacks on predictions that are joined into one, the first before the others."""

OF_MAPS = ("LikelihoodRatio", "JointLikelihoodRatio")
"""Attacks on the plain answer that a patient attacker stacks with those on averaged ones."""

FEWEST_TO_LEARN = 4
"""Reference models below which nothing is learned from them."""

MOST_BOOSTED = 12
"""Columns of the signal that boosted trees read, at most."""


def check_suite(policy: Policy) -> None:
    """A policy's suite names attacks that there are.

    Raises:
        ConfigurationError: an attack that is not known.
    """
    if wrong := sorted(set(policy.suite) - NAMES):
        known = ", ".join(sorted(NAMES))
        raise ConfigurationError(
            f"policy: unknown attacks {wrong} in the suite; expected some of {known}{near(wrong[0], NAMES)}"
        )


def fitting(signals: Signals, policy: Policy | None = None) -> list[SuiteRow]:
    """The rows whose signals are there and whose reference models are enough, level by level; other signals too.

    Args:
        signals: of any pipeline.
        policy: whose patience, release and suite are looked at; default `Policy()`.

    Raises:
        ConfigurationError: the policy's suite names an attack that is not known.
    """
    policy = policy or Policy()
    check_suite(policy)
    rows = [row for level in policy.patience for row in _Level(signals, policy, level).rows()]
    if not policy.suite:
        return rows
    levels = {r.level for r in rows if r.name in policy.suite}
    return [r for r in rows if r.name in policy.suite or (r.baseline and r.level in levels)]


def families_allowed(signals: Signals, policy: Policy | None = None) -> tuple[str, ...]:
    """Names of the attacks that the complete suite would run on these signals, whatever the policy's suite says."""
    return tuple(dict.fromkeys(r.name for r in fitting(signals, replace(policy or Policy(), suite=()))))


@dataclass(frozen=True, eq=False)
class _Level:
    """The rows of one level of patience.

    Args:
        signals: of any pipeline.
        policy: as `fitting`.
        level: how often the attacker asks.
    """

    signals: Signals
    policy: Policy
    level: int

    def rows(self) -> list[SuiteRow]:
        """Those that can be run."""
        known = self._known()
        if self.policy.release == "prediction":
            return known
        alone = self._explanation()
        baseline = next((r for r in known if r.baseline), None)
        if baseline is None:
            if self._learn() and (numbers := self._numbers(alone)) and (trees := self._trees(numbers)):
                alone.append(trees)
            return [*alone, *known]
        explained = alone or _Level(self.signals, self.policy, 1)._explanation()
        return [*alone, *known, *(self._with(baseline, alone) if explained else [])]

    def _explanation(self) -> list[SuiteRow]:
        """Attacks on the explanation alone; one of them stays even if nothing in it ever differs."""
        named = {part for r in (*SUITE, *RECOURSE) for part in r.parts if r not in RECOURSE or self._recourse()}
        named |= {*OF_LABELS, *WHOLE_PREDICTION}
        table = ONCE if self.level == 1 else OFTEN
        extra = [
            SuiteRow(name, attack, signal, "explanation")
            for signal in self._base_names()
            if signal not in named and not signal.startswith("label")
            for name, attack in NUMBERS[self.level > 1 :]
        ]
        rows = [self._at(r) for r in (*table, *extra)]
        if self.level == 1 and self._recourse():
            rows += RECOURSE
        there = [r for r in rows if self._fits(r)]
        return [r for r in there if self._varies(r)] or there[:1]

    def _known(self) -> list[SuiteRow]:
        """What is known without an explanation, and the stacks of that."""
        single = [r for r in SUITE if r.role in ("label", "loss") and (self.level == 1 or r.name != "RMIA")]
        if self.level > 1 and self._has(at_level("predictions", self.level)):
            each = one_by_one(self.level)
            instead = {r.name for r in each} - {"JointLikelihoodRatio"}  # which also reads the mean of the queries
            single = [*each, *(r for r in single if r not in OF_PREDICTIONS or r.name not in instead)]
        rows = [self._at(r) for r in single if self.level == 1 or r.role == "loss"]
        rows = [r for r in rows if self._fits(r) and self._varies(r)]
        if not self._learn():
            return rows
        labels = self._label_columns() if self._labelled() else []
        joined = [_cheaper(r) for r in rows if r.role == "loss" and r.name in JOINED]
        predicted = bool(joined) and self.policy.release != "explanation"
        alone = self.policy.release == "prediction"
        if labels:
            baseline = not (predicted or alone)
            rows.append(self._stack("LabelPatience", at_level("label", self.level), "label", labels, baseline))
        if predicted:
            of_label = [name for s in PREDICTION if self._has(name := at_level(s, self.level))]
            trees = self._trees(of_label) if of_label else None
            columns = [*sorted(joined, key=lambda r: JOINED.index(r.name)), *([trees] if trees else []), *labels]
            signal = at_level("prediction", self.level)
            rows.append(self._stack("PredictionPatience", signal, "loss", columns, not alone))
        return rows

    def _labelled(self) -> bool:
        """Whether the labels of the same queries are there."""
        kept = self.level == 1 or at_level("kept", self.level) in self.signals.values
        return kept and "label" in self.signals.values

    def _label_columns(self) -> list[SuiteRow]:
        ratio = LikelihoodRatio("identity")
        columns = [SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label", self.level)]
        if self._classes() <= MOST_NUMBERS:
            columns.append(SuiteRow("LikelihoodRatio", ratio, "label:classes", "label", self.level))
        if self.level > 1:
            kept, shares = (at_level(s, self.level) for s in ("kept", "shares"))
            columns.append(SuiteRow("LikelihoodRatio", ratio, kept, "label", self.level))
            if shares in self.signals.values and self._classes() <= self._width(shares):
                columns.append(SuiteRow("OwnLabelRatio", OwnLabelRatio(), f"label+{shares}", "label", self.level))
                columns.append(SuiteRow("LikelihoodRatio", ratio, shares, "label", self.level))
        trees = self._trees([])
        return [*columns, *([trees] if trees else [])]

    def _with(self, baseline: SuiteRow, alone: list[SuiteRow]) -> list[SuiteRow]:
        """Every attack on the explanation that compares with references, stacked with the baseline."""
        what = "loss" if baseline.role == "loss" else "label"
        role: Role = "explanation+loss" if what == "loss" else "explanation+label"
        single = [r for r in alone if r.needs_references and r.role == "explanation"]
        also = [s for name in PREDICTION if self._has(s := at_level(name, self.level))] if what == "loss" else []
        whole = [s for s in [at_level("prediction", self.level)] if what == "loss" and self._has(s)]
        what = "prediction" if whole and not also else what  # there is no loss of foreign labels
        rows = [self._stack(r.name, f"{r.signal}+{what}", role, [baseline, r]) for r in single]
        numbers = self._numbers(alone)
        joint: list[SuiteRow] = []
        beside = also or whole
        most = MOST_NUMBERS if also else MOST_COLUMNS
        if beside and numbers and sum(map(self._width, (numbers[0], *beside))) <= most:
            signal = "+".join((numbers[0], *beside))
            joint = [SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), signal, role, self.level)]
        trees = self._trees([*numbers, *also]) if numbers else None
        if trees is not None:
            rows.append(self._stack("Boosted", "+".join((*numbers, what)), role, [baseline, trees]))
        plain = _Level(self.signals, self.policy, 1)._explanation() if self.level > 1 else []  # asked once as well
        asked_once = [r for r in plain if r.needs_references and not r.learns and r.name in OF_MAPS]
        columns = [baseline, *_best(single), *joint, *([trees] if trees else []), *_best(asked_once)]
        rows.append(self._stack("Stacked", f"{at_level('explanation', self.level)}+{what}", role, columns))
        return rows

    def _numbers(self, alone: list[SuiteRow]) -> list[str]:
        """The summary numbers, or, without these, other numbers of the explanation."""
        numbers = [name for s in SUMMARY if self._has(name := at_level(s, self.level))]
        single = dict.fromkeys(r.signal for r in alone if "+" not in r.signal and ":" not in r.signal)
        return numbers or [s for s in single if self._width(s) == 1]

    def _trees(self, signals: list[str]) -> SuiteRow | None:
        """Boosted trees on these signals as far as they differ, with the labels of the same queries where these are."""
        kept, labelled = at_level("kept", self.level), self._labelled()
        known = ["label", *([kept] if self.level > 1 and self._varies_signal(kept) else [])] if labelled else []
        chosen = [*known, *(s for s in signals if self._has(s) and self._varies_signal(s))]
        while len(chosen) > 1 and sum(map(self._width, chosen)) > MOST_BOOSTED:
            chosen.pop()
        if not chosen:
            return None
        role: Role = "explanation+label" if labelled else "explanation"
        return SuiteRow("Boosted", Boosted(labels=int(labelled)), "+".join(chosen), role, self.level)

    def _stack(self, name: str, signal: str, role: Role, columns: list[SuiteRow], baseline: bool = False) -> SuiteRow:
        return SuiteRow(name, Stacked(self.policy.fpr), signal, role, self.level, tuple(columns), baseline)

    def _at(self, row: SuiteRow) -> SuiteRow:
        """The row at this level."""
        if self.level == 1:
            return row
        parts = (part.partition(":") for part in row.signal.split("+"))
        signal = "+".join(f"{at_level(name, self.level)}{colon}{view}" for name, colon, view in parts)
        return replace(row, signal=signal, level=self.level)

    def _fits(self, row: SuiteRow) -> bool:
        """Whether its signals are there, of a shape that it reads, and its references are enough."""
        references = len(self.signals.models) - 1
        width = sum(map(self._width, row.parts)) if all(map(self._has, row.parts)) else 0
        attack: Attack = row.attack
        if isinstance(row.attack, OverQueries):
            attack, width = row.attack.attack, width // row.attack.queries
        of_classes = {split_level(part)[0] for part in row.parts} <= {*WHOLE_PREDICTION, *OF_CLASSES}
        most = MOST_COLUMNS if of_classes else MOST_NUMBERS
        return (
            width > 0
            and (width > 1 or not isinstance(attack, AtTargetLabel | Metaclassifier))
            and (width == 1 or not isinstance(attack, Threshold | RMIA | CounterfactualDistance | CounterfactualLRT))
            and (width <= most or not isinstance(attack, JointLikelihoodRatio))
            and (not row.needs_references or references >= 2)
            and (not (row.learns or isinstance(attack, Metaclassifier)) or references >= FEWEST_TO_LEARN)
            and (row.name != "LearnedElsewhere" or self.signals.out_of_distribution is not None)
        )

    def _learn(self) -> bool:
        return len(self.signals.models) - 1 >= FEWEST_TO_LEARN

    def _classes(self) -> float:
        """How many classes the labels may have; infinite where they are no class indices."""
        label = self.signals.values["label"]
        return math.inf if label.ndim != 2 or label.min() < 0 or (label % 1).any() else int(label.max()) + 1

    def _recourse(self) -> bool:
        return "recourse" in self.signals.meta

    def _base_names(self) -> Iterator[str]:
        for signal in self.signals.values:
            name, level = split_level(signal)
            if level == self.level:
                yield name

    def _has(self, name: str) -> bool:
        return self.signals.attributions is not None if name == WHOLE_MAP else name in self.signals.values

    def _width(self, name: str) -> int:
        """Numbers an example."""
        values = self.signals.attributions if name == WHOLE_MAP else self.signals.values.get(name)
        return 0 if values is None else 1 if values.ndim == 2 else int(values.shape[2])

    def _varies(self, row: SuiteRow) -> bool:
        """Whether one of its signals is not one number throughout, which would decide nothing."""
        return any(map(self._varies_signal, row.parts))

    def _varies_signal(self, name: str) -> bool:
        values = values_of(self.signals, name)
        if not values.size:
            return False
        first = values[(0, 0, *[0] * (values.ndim - 2))]
        return any(bool((part != first).any()) for _, _, part in blocks(values))


def _cheaper(row: SuiteRow) -> SuiteRow:
    """As a column of a stack, which is also computed for every model that plays the target."""
    attack = row.attack
    return replace(row, attack=replace(attack, kind="logistic")) if isinstance(attack, Metaclassifier) else row


def _best(rows: list[SuiteRow]) -> list[SuiteRow]:
    """Without single summary numbers, where they are read jointly too."""
    scalars = (*EXPLANATION_SCALARS, *SHAPE_SCALARS)
    return [r for r in rows if r.name != "LikelihoodRatio" or r.signal not in scalars] or rows


def _as_log_odds(values: Numbers, queries: int) -> Numbers:
    """Predictions (m, n, queries * classes) as log odds, where they are probabilities that add up to 1."""
    p = torch.from_numpy(np.asarray(values, dtype=np.float64)).reshape(-1, values.shape[2] // queries)
    if p.shape[1] < 2 or not are_probabilities(p):
        return values
    return np.asarray(class_log_odds(log_probabilities(p)).numpy()).reshape(values.shape)


def values_of(signals: Signals, signal: str) -> Numbers:
    """(m, n) or (m, n, k): what a row reads; shares of labels and probabilities as log odds, and labels, where asked
    for, as 0 and 1.

    Raises:
        InputError: it is not there.
    """
    name, _, view = signal.partition(":")
    if "+" in signal:
        columns = [np.asarray(values_of(signals, part), dtype=np.float64) for part in signal.split("+")]
        return np.concatenate([c[..., None] if c.ndim == 2 else c for c in columns], axis=-1)
    values = signals.attributions if name == WHOLE_MAP else signals.values.get(name)
    if values is None:
        raise InputError(f"signal {name!r} is not there; found {sorted(signals.values)}")
    if view == "classes":
        of_classes: Numbers = (values[..., None] == np.arange(int(values.max()) + 1)).astype(np.float32)
        return of_classes
    what, level = split_level(name)
    if what in ("kept", "shares") and level > 1:
        return log_odds(values, level)
    if what in WHOLE_PREDICTION and values.ndim == 3:
        return _as_log_odds(values, level if what == "predictions" else 1)
    return VIEWS[view](values) if view else values
