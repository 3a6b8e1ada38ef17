"""Scores of every example by every row of the suite, for one target at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.base import Threshold, references_for
from safexplain.audit.attacks.learned import FittedLearned, Learned
from safexplain.audit.attacks.likelihood import LikelihoodRatio, likelihood_ratios
from safexplain.audit.attacks.pseudo_targets import Boosted, FittedBoosted, FittedStack, Stacked
from safexplain.audit.attacks.suite import MIN_TO_LEARN, VIEWS, SuiteRow, values_of
from safexplain.audit.signals import Signals
from safexplain.audit.store import parts
from safexplain.errors import InputError

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
    """(len(reads), n) scores of the signals of each model in `reads`, by an attack that is no stack; `fitted` if it
    learns."""
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

    `training` (n,) are the examples for classifiers of maps (none set: all), and `also` further models that will be
    scored, so that large maps are read once. `known` is the scorer of another release of the same models for the same
    queries, with the same target and seed; its scores of rows on labels and losses are reused. InputError: a row has
    too few references, its attack fails, or `known` has another target or seed.
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
        """The references in random order, with complementary ones side by side, as one reveals the other."""
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
        """(n,) scores of each model in `reads`, by a fitted row."""
        fitted = self._fitted.get(row)
        if isinstance(fitted, FittedStack):
            return [fitted.scores(self._features(row, read)) for read in reads]
        return scores_of(row, self._signals, reads, self._references, fitted)

    def _features(self, row: SuiteRow, read: int) -> Array:
        """(n, k) scores of one model by the columns of a stack."""
        return np.stack([self._score(column, read) for column in row.columns], axis=-1)

    def _learned(self, attack: Learned | Boosted, row: SuiteRow) -> FittedBoosted | FittedLearned:
        """The attack fitted on references that are no pseudo-targets."""
        values, member = values_of(self._signals, row.reads), self._signals.membership
        if isinstance(attack, Boosted):
            teachers = np.flatnonzero(np.isin(self._references, self._teachers)).tolist()
            return replace(attack, seed=self._seed).fit(values[self._references], member[self._references], teachers)
        shape = self._signals.shape
        if shape is not None and len(shape) == 3 and min(shape[1:]) > 1:
            attack = replace(attack, shape=tuple(shape))
        return attack.fit(values, member, self._teachers, self._learn_from)


def _columns(row: SuiteRow) -> Iterator[SuiteRow]:
    """All rows that are columns of the stack, recursively."""
    for column in row.columns:
        yield column
        yield from _columns(column)
