"""Scores of every example by one row of the suite, against the target that the example was assigned to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks import LabelLikelihoodRatio, Learned
from safexplain.audit.attacks.learned.classifier import FittedLearned
from safexplain.audit.attacks.suite import Numbers, SuiteRow, values_of
from safexplain.audit.signals import Signals

MOST_TARGETS = 64
"""Most models that take turns as the target; more would only cost time, as each example is scored once."""

FEWEST_FOR_NULL = 4
"""Models from which on one of the references plays the null model; with fewer, an untrained one does."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """Who is scored against whom.

    Args:
        target: (n,) the model whose membership is guessed.
        read: (n,) the model whose release is read: the target, or for the null control one that knows nothing of it.
    """

    target: NDArray[np.int64]
    read: NDArray[np.int64]

    @classmethod
    def drawn(cls, signals: Signals, seed: int) -> Assignment:
        """Each example against one target, drawn at random."""
        rng = np.random.default_rng([seed, 0xA551])
        targets = np.array(signals.targets)
        if len(targets) > MOST_TARGETS:
            targets = np.sort(rng.choice(targets, MOST_TARGETS, replace=False))
        chosen: NDArray[np.int64] = targets[rng.integers(len(targets), size=len(signals))]
        return cls(chosen, chosen)

    def to_null(self, signals: Signals) -> Assignment | None:
        """The same examples and targets, but what is read was released by a reference model, or by a null model.

        None where there is no such model.
        """
        models = np.array(signals.models)
        if len(models) < FEWEST_FOR_NULL and signals.null:
            return Assignment(self.target, np.full_like(self.target, signals.null[0]))
        if len(models) < FEWEST_FOR_NULL:
            return None
        after = {t: int(models[(np.searchsorted(models, t) + 1) % len(models)]) for t in set(self.target.tolist())}
        return Assignment(self.target, np.array([after[t] for t in self.target.tolist()]))

    def references(self, signals: Signals, target: int, read: int) -> NDArray[np.int64]:
        """Models that stand in for the target: neither it nor the one that is read, nor a null model."""
        return np.array([i for i in signals.models if i not in (target, read)], dtype=np.int64)


def score(
    signals: Signals,
    row: SuiteRow,
    to: Assignment,
    training: NDArray[np.bool_],
    values: Numbers | None = None,
) -> NDArray[np.float64]:
    """(n,) scores, higher says "member"; attacks that learn are trained on the examples of `training` only.

    Args:
        signals: what was released.
        row: of the suite.
        to: which model is read for each example.
        training: (n,) bool.
        values: what `values_of` gives for the row, where it is there already.
    """
    values = values_of(signals, row.signal) if values is None else values
    if isinstance(row.attack, Learned):
        scores = _learned(signals, row.attack, to, training, values)
    else:
        attack = row.attack

        def one(read: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
            if not row.needs_references:
                return attack(values[read], values[:0], signals.membership[:0])
            return attack(values[read], values[others], signals.membership[others])

        scores = _each(signals, to, one)
    if row.plus_label:
        label = signals.values["label"]

        def also(read: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
            return LabelLikelihoodRatio()(label[read], label[others], signals.membership[others])

        scores = scores + _each(signals, to, also)
    return scores


def _each(
    signals: Signals, to: Assignment, one: Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    scores = np.zeros(len(signals))
    for target, read in sorted(set(zip(to.target.tolist(), to.read.tolist(), strict=True))):
        mine = (to.target == target) & (to.read == read)
        scores[mine] = one(read, to.references(signals, target, read))[mine]
    return scores


def classifiers(
    signals: Signals, attack: Learned, to: Assignment, training: NDArray[np.bool_], values: Numbers
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64], FittedLearned]]:
    """One classifier where there is one target; two, each for one half of the models, where they take turns.

    Yields:
        (n,) bool the examples whose target is in the half, the models that are read for these, and the classifier.
    """
    shape = signals.shape
    if shape is not None and len(shape) == 3 and min(shape[1:]) > 1:
        attack = replace(attack, shape=tuple(shape))
    targets, models = np.unique(to.target), np.array(signals.models)
    halves = [targets] if len(targets) == 1 else [targets[::2], targets[1::2]]
    outside = signals.out_of_distribution
    rows = np.flatnonzero(training if outside is None else training | outside) if training.any() else None
    for half in halves:
        mine = np.isin(to.target, half)
        reads = np.unique(to.read[mine])
        others = models[~np.isin(models, np.concatenate([half, reads]))]
        fitted = attack.fit(
            values[others],
            signals.membership[others],
            rows=rows,
            out_of_distribution=outside,
        )
        yield mine, reads, fitted


def _learned(
    signals: Signals, attack: Learned, to: Assignment, training: NDArray[np.bool_], values: Numbers
) -> NDArray[np.float64]:
    scores = np.zeros(len(signals))
    for mine, reads, fitted in classifiers(signals, attack, to, training, values):
        for read in reads:
            at = mine & (to.read == read)
            scores[at] = fitted.scores(values[read][at])
    return scores
