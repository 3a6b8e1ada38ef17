"""Multinomial logistic regression by noisy gradient descent on all records (Song, Chaudhuri and Sarwate 2013; Bassily,
Smith and Thakurta 2014, arXiv 1405.7085).

Each step releases the sum of the records' gradients, each clipped to norm C, with Gaussian noise of standard deviation
`noise_multiplier` * C on every coordinate: one full-batch step for `safexplain._privacy_loss`. The number of records,
which only limits the step size, is public under substitution and zeroing out. Under add/remove it is one more release:
a sum of ones with noise `noise_multiplier`. So is the mean of the records, if the descent is `centred`: the sum of the
features, each of norm at most 1, with the same noise. The descent then uses rows minus that noised mean, which are
functions of one record and of the release. All else is post-processing of these sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain._secure_random import Randomness, float_safe_normal
from safexplain._validate import check_number, whole_number
from safexplain.dp.heads.closed_form import Rows, clipped_sum
from safexplain.dp.sgd.clipping import FlatClipping

Array = NDArray[np.float64]

LARGEST_STEP = 64.0
"""Largest learning rate on the mean gradient. With little noise, weights oscillate under longer steps; up to here,
clipping and averaging of the iterates absorb it."""

GAIN = 3.0
"""Factor on centred rows, which are shorter than norm 1; their gradients are clipped in any case."""


@dataclass(frozen=True)
class NoisyGradientDescent:
    """Parameters of the descent, as for `DPLogisticRegression`; none may be chosen by looking at the data.

    The learning rate follows from the noise: ignoring gradients, the noise of all steps together has the standard
    deviation `logit_noise` on each weight, and thus on the logit of a record whose features have norm 1. More records
    or a larger epsilon give longer steps on the mean gradient. A small `max_grad_norm` (C) makes the loss of
    misclassified records linear: little accuracy is lost, and probabilities become slightly overconfident.
    """

    noise_multiplier: float
    steps: int = 100
    max_grad_norm: float = 0.3
    logit_noise: float = 1.0
    private_count: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)
        for name in ("noise_multiplier", "max_grad_norm", "logit_noise"):
            check_number(name, getattr(self, name), above=0.0)

    @property
    def releases(self) -> int:
        """Number of releases of the Gaussian mechanism with this noise multiplier."""
        return self.steps + self.private_count + self.centred

    def step_size(self, records: Array) -> Array:
        """Learning rate on the sum of gradients; it depends on n only at `LARGEST_STEP`."""
        by_noise = self.logit_noise / (math.sqrt(self.steps) * self.noise_multiplier * self.max_grad_norm)
        return np.minimum(by_noise, LARGEST_STEP / records)


def noisy_gradient_descent(
    features: Array,
    labels: NDArray[np.int64],
    classes: int,
    descent: NoisyGradientDescent,
    rng: Randomness,
    runs: int = 1,
) -> tuple[Array, Array]:
    """Weights of a softmax regression, several independent runs at once.

    Rows of `features` (n, p) have norm at most 1, including a constant column for an intercept; `labels` (n,) are
    positions in a public list of `classes` classes. Each run spends the whole budget.

    Returns:
        (runs, classes, p) weights, the mean of the second half of the iterates; and (runs,) the number of records to
        publish: exact, or with `private_count` noised and at least 1.
    """
    sigma, bound = descent.noise_multiplier, descent.max_grad_norm
    records = np.full(runs, float(len(features)))
    if descent.private_count:
        records = np.maximum(records + sigma * float_safe_normal(rng, (runs,)), 1.0)
    step = descent.step_size(records)[:, None, None]
    centre = np.zeros((runs, features.shape[1]))
    if descent.centred:
        constant = features[:1, -1]
        centre[:, :-1] = _noised_mean(features[:, :-1], records, sigma, rng)
        features = (features - centre[:, None]) * np.append(np.full(features.shape[1] - 1, GAIN), 1.0)
    weights = np.zeros((runs, classes, features.shape[-1]))
    total = np.zeros_like(weights)
    first = descent.steps // 2
    for t in range(descent.steps):
        gradient = clipped_gradient_sum(features, labels, weights, bound)
        weights = weights - step * (gradient + sigma * bound * float_safe_normal(rng, weights.shape))
        if t >= first:
            total += weights
    found = total / (descent.steps - first)
    if descent.centred:  # back to the original rows: the constant column absorbs the mean
        found[:, :, :-1] *= GAIN
        found[:, :, -1] -= np.einsum("rkp,rp->rk", found, centre) / constant
    return found, records


def _noised_mean(rows: Array, records: Array, sigma: float, rng: Randomness) -> Array:
    """(runs, p) noised means of (n, p) rows of norm at most 1, shrunk towards 0 by the share of noise."""
    noised = rows.sum(axis=0) + sigma * float_safe_normal(rng, (len(records), rows.shape[1]))
    counts = records[:, None]
    mean: Array = noised * counts / (counts**2 + rows.shape[1] * sigma**2)
    return mean


def clipped_gradient_sum(features: Array, labels: NDArray[np.int64], weights: Array, bound: float) -> Array:
    """Sum over the records of the cross-entropy gradient, each clipped to 2-norm `bound` over all classes.

    Features (n, p) or (runs, n, p), labels (n,) and weights (runs, classes, p) give sums like the weights.
    """
    rows = Rows.of(torch.from_numpy(features), torch.from_numpy(labels), bias=False)
    return clipped_sum(torch.from_numpy(weights), rows, None, FlatClipping(bound)).numpy()
