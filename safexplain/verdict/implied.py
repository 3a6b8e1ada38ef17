"""What (epsilon, delta)-differential privacy alone implies against every attacker, before any is run. No torch.

A training that is (epsilon, delta)-private when one record is added or removed lets no attack on whatever is computed
from the model, however often it asks, find more than

    TPR <= min(exp(epsilon) FPR + delta, 1 - exp(-epsilon) (1 - delta - FPR))

of the members at a false-positive rate FPR (Kairouz, Oh and Viswanath 2015, arXiv 1311.0776, Theorem 2.1). A mechanism
keeps one such pair for each delta; the least of all these bounds is its trade-off curve (Dong, Roth and Su 2019, arXiv
1905.02383, Proposition 2.12), which is much tighter at low rates than the one pair that is usually stated.

The rates are expectations over the randomness of the training and over whose record is attacked, with members drawn by
independent coins. What the statement itself assumes is assumed here, too.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_follows
from safexplain.errors import InputError
from safexplain.verdict.privacy_statement import TOLERANCE, PrivacyStatement

__all__ = ["Implied", "RocBound", "tpr_bound"]

Array = NDArray[np.float64]

DELTAS = 24
"""Small deltas, and as many large ones, at which epsilon is computed: each pair bounds by itself, more only tighten."""

CELLS = 20_000
"""Of the midpoint rule for the area, which is never below that of a concave curve."""


def tpr_bound(fpr: ArrayLike, epsilon: float, delta: float) -> Array:
    """() or (n,) most members that any attack finds at these false-positive rates, by one pair (epsilon, delta)."""
    rates = np.asarray(fpr, dtype=np.float64)
    if not epsilon < math.inf:
        return np.ones_like(rates)
    with np.errstate(over="ignore"):
        rising = np.exp(epsilon) * rates + delta
    return np.asarray(np.clip(np.minimum(rising, 1 - math.exp(-epsilon) * (1 - delta - rates)), 0.0, 1.0))


@dataclass(frozen=True, eq=False)
class RocBound:
    """No attack's ROC curve lies above it: (k,) epsilons at (k,) deltas, which all hold."""

    epsilons: Array
    deltas: Array

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, statement: PrivacyStatement, adjacency: Adjacency = "add_remove") -> RocBound:
        """Of a training; infinite epsilons are left out, so that it may be no bound at all."""
        deltas = [0.0]
        if statement.phases:
            deltas = [*np.geomspace(statement.delta, 0.1, DELTAS), *np.linspace(0.1, 0.98, DELTAS)[1:]]
        pairs = [(replace(statement, delta=float(d)).epsilons.of(adjacency), d) for d in deltas]
        finite = np.array([p for p in pairs if p[0] < math.inf], dtype=np.float64).reshape(-1, 2)
        return cls(finite[:, 0], finite[:, 1])

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """Most members that any attack finds at these false-positive rates: () or (n,)."""
        rates = np.asarray(fpr, dtype=np.float64)
        bounds = [tpr_bound(rates, e, d) for e, d in zip(self.epsilons, self.deltas, strict=True)]
        return np.minimum.reduce(bounds, initial=1.0) if bounds else np.ones_like(rates)

    @property
    def auc(self) -> float:
        """The area below, which no attack's is above; at most 1e-4 more than the exact one."""
        return min(1.0, float(self((np.arange(CELLS) + 0.5) / CELLS).mean()))


@dataclass(frozen=True)
class Implied:
    """What a training's statement implies for the rate that a policy names.

    Args:
        epsilon: for one record added or removed, as stated.
        delta: of it.
        fpr: the policy's false-positive rate.
        by_epsilon: most members that any attack finds there, by epsilon and delta alone.
        tpr: the same by the mechanism's whole trade-off curve; at most `by_epsilon`.
        auc: no attack's area under the ROC curve is larger.
        pretrained: whether the starting weights had seen other data, of which nothing is implied.
        seeded: whether batches and noise came from a seed that a user gave.
    """

    epsilon: float
    delta: float
    fpr: float
    by_epsilon: float
    tpr: float
    auc: float
    pretrained: bool = False
    seeded: bool = False

    @classmethod
    def of(cls, statement: PrivacyStatement, fpr: float) -> Implied | None:
        """Of a training; None where its epsilon is infinite and nothing is implied."""
        epsilon, delta = statement.epsilons.add_remove, statement.delta
        if not epsilon < math.inf:
            return None
        bound, least = RocBound.of(statement), float(tpr_bound(fpr, epsilon, delta))
        tpr = min(float(bound(fpr)), least)
        return cls(epsilon, delta, float(fpr), least, tpr, bound.auc, statement.pretrained, statement.seeded)

    @property
    def sentence(self) -> str:
        """What is implied, in words."""
        text = (
            "as its privacy statement says, the training is differentially private with epsilon"
            f" {self.epsilon:.3g} (one record added or removed) at delta {self.delta:g}, so that no attack, however"
            f" patient, is expected to find more than {self.tpr:.1%} of the members at a false-positive rate of"
            f" {self.fpr:.1%}, or to reach an AUC above {self.auc:.3f}"
        )
        if self.pretrained:
            text += "; nothing of this holds for the data on which the starting weights were trained"
        if self.seeded:
            text += "; nor towards anyone who knows the seed of its noise"
        return text

    def check(self, statement: PrivacyStatement | None) -> None:
        """Compare with what follows from the statement; versions of the accountant differ a little.

        Raises:
            InputError: there is no statement, or something else follows from it.
        """
        follows = None if statement is None else Implied.of(statement, self.fpr)
        if follows is None:
            raise InputError("implied: no finite epsilon is stated from which it could follow")
        check_follows(asdict(self), asdict(follows), "implied", "the privacy statement", (TOLERANCE, TOLERANCE))
