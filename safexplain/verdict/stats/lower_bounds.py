"""Lower bounds on the epsilon of a mechanism from runs of it in two worlds.

A mechanism was run on each of two neighbouring data sets, and every run got a score: higher says "world a". Few errors
at a threshold refute every (epsilon, delta) under which no attack makes so few. The guarantee is that of a threshold
which the counted runs did not choose; the best of all thresholds on the same runs, as is often reported, is no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._privacy_loss import Sampling
from safexplain.errors import InputError
from safexplain.verdict.stats.bound_methods import METHODS, BoundMethod, Errors, Method
from safexplain.verdict.stats.from_errors import checked_method
from safexplain.verdict.stats.intervals import upper_limits
from safexplain.verdict.stats.tradeoff import Family

Array = NDArray[np.float64]

CHOOSING = 0.3
"""Share of the runs that choose a threshold. Of .2, .3 and .5, the one with the highest bounds where errors of both
kinds are alike and where they are not, from 200 to 25,000 runs."""

STRICTER = 0.02
"""Thresholds are compared by bounds with this share of the risk: by those at `confidence`, the best of thousands of
thresholds is often an extreme one that a few runs made look good."""


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon, and what it was counted from.

    Args:
        method: how it was computed.
        delta: of the epsilon.
        confidence: that the mechanism's epsilon is not smaller.
        threshold: scores that reach it were called "world a".
        false_positives: runs of world b called a, of the `negatives` that were counted.
        negatives: counted runs of world b.
        false_negatives: runs of world a called b, of the `positives` that were counted.
        positives: counted runs of world a.
        family: the mechanism that was claimed, but for its noise.
    """

    method: BoundMethod
    delta: float
    confidence: float
    threshold: float
    false_positives: int
    negatives: int
    false_negatives: int
    positives: int
    family: Family

    @cached_property
    def epsilon(self) -> float:
        """The bound, at least 0; infinite if no noise at all explains so few errors (method "pld")."""
        return self._bound(self.false_positives, self.false_negatives)

    @cached_property
    def ceiling(self) -> float:
        """What it would have been without any error; no attack can show more with so many runs."""
        return self._bound(0, 0)

    def _bound(self, false_positives: int, false_negatives: int) -> float:
        errors = Errors(false_positives, self.negatives, false_negatives, self.positives, self.confidence)
        return METHODS[self.method].bound(errors, self.delta, self.family)

    def __str__(self) -> str:
        return (
            f"epsilon at least {self.epsilon:.2f} with {self.confidence:.0%} confidence at delta {self.delta:g}"
            f" ({self.method}; at most {self.ceiling:.2f} could be shown with {self.positives:,} +"
            f" {self.negatives:,} runs)"
        )


def bound_epsilon(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    delta: float,
    method: BoundMethod = "pld",
    *,
    threshold: float | None = None,
    confidence: float = 0.95,
    sample_rate: float = 1.0,
    steps: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> LowerBound:
    """Lower bound on epsilon from scores of independent runs in two worlds; higher scores say "world a".

    Args:
        scores_a: (n_a,) scores of runs on the first data set; may be infinite, not NaN.
        scores_b: (n_b,) scores of runs on the second.
        delta: in (0, 1); 0 is allowed for "clopper-pearson" and "zanella-beguelin".
        method: "pld", "gdp", "clopper-pearson" or "zanella-beguelin", see `epsilon_from_errors`.
        threshold: fixed before the scores were seen, then all runs count; None has it chosen on a random 30 % of the
            runs of each world, as the one with the highest bound there, and counted on the others.
        confidence: of the bound.
        sample_rate: q of the claimed mechanism ("pld").
        steps: of the claimed mechanism ("pld").
        sampling: of the claimed mechanism ("pld"); None for "poisson", or a full batch where the sample rate is 1.
        seed: of the random part.

    Raises:
        InputError: scores that are NaN, of another shape or too few; delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling is.
    """
    a, b = _scores("scores_a", scores_a), _scores("scores_b", scores_b)
    chosen, family = checked_method(method, delta, confidence), Family(sample_rate, steps, sampling)
    if threshold is None:
        (a_first, a), (b_first, b) = _parts(a, b, seed)
        threshold = _best_threshold(a_first, b_first, chosen, delta, 1 - STRICTER * (1 - confidence), family)
    elif math.isnan(threshold):
        raise InputError("threshold: expected a number or None, got NaN")
    return LowerBound(
        method=method,
        delta=float(delta),
        confidence=float(confidence),
        threshold=float(threshold),
        false_positives=int((b >= threshold).sum()),
        negatives=b.size,
        false_negatives=int((a < threshold).sum()),
        positives=a.size,
        family=family,
    )


def epsilon_lower_bound(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    delta: float,
    method: BoundMethod = "pld",
    *,
    threshold: float | None = None,
    confidence: float = 0.95,
    sample_rate: float = 1.0,
    steps: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> float:
    """The number of `bound_epsilon`, with the same arguments and errors.

    Args:
        scores_a: as there.
        scores_b: as there.
        delta: as there.
        method: as there.
        threshold: as there.
        confidence: as there.
        sample_rate: as there.
        steps: as there.
        sampling: as there.
        seed: as there.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.normal(1, 1, 5000), rng.normal(-1, 1, 5000)  # 2-GDP: epsilon is 9.997 at delta 1e-5
        >>> round(epsilon_lower_bound(a, b, 1e-5, threshold=0.0), 1)
        9.4
    """
    return bound_epsilon(
        scores_a,
        scores_b,
        delta,
        method,
        threshold=threshold,
        confidence=confidence,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
        seed=seed,
    ).epsilon


def _scores(name: str, scores: ArrayLike) -> Array:
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not found.size:
        raise InputError(f"{name}: expected scores of shape (runs,) with at least one run, got shape {found.shape}")
    if np.isnan(found).any():
        raise InputError(f"{name}: {int(np.isnan(found).sum())} of {found.size} scores are NaN; every run needs one")
    return found


def _parts(a: Array, b: Array, seed: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Of each world, the runs that choose and those that count."""
    if min(a.size, b.size) < 2:
        raise InputError(
            f"expected at least 2 runs of each world, got {a.size} and {b.size}: the threshold is chosen on some of"
            " them. Give more runs, or a threshold that was fixed before"
        )
    rng = np.random.default_rng(seed)
    a, b = rng.permutation(a), rng.permutation(b)
    n_a, n_b = (max(1, round(CHOOSING * x.size)) for x in (a, b))
    return (a[:n_a], a[n_a:]), (b[:n_b], b[n_b:])


def _best_threshold(a: Array, b: Array, method: Method, delta: float, confidence: float, family: Family) -> float:
    """Of the scores, the one with the highest bound; the middle one of equally good ones."""
    candidates = np.unique(np.concatenate([a, b]))
    false_negatives = np.searchsorted(np.sort(a), candidates)
    false_positives = b.size - np.searchsorted(np.sort(b), candidates)
    fnr, fpr = upper_limits(a.size, confidence)[false_negatives], upper_limits(b.size, confidence)[false_positives]
    merit = method.merit(fpr, fnr, delta, family)
    best = np.flatnonzero(merit == merit.max())
    return float(candidates[best[best.size // 2]])
