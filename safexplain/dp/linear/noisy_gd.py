"""Multinomial logistic regression by noisy gradient descent on all records (Song, Chaudhuri and Sarwate 2013; Bassily,
Smith and Thakurta 2014, arXiv 1405.7085).

Each step releases the sum of the records' gradients, each clipped to norm C, with Gaussian noise of standard deviation
`noise_multiplier` * C on every coordinate; everything else here is post-processing of these sums. That is `releases`
full-batch steps for `safexplain._privacy_loss`, whatever the data. Apart from these sums, the result depends on

- the number of records n, which only limits the step. It is public under substitution and zeroing out. Under add/remove
  it is one more release: a sum of ones, which one record changes by 1, with noise `noise_multiplier`.
- the length of the public list of classes, but not on the classes that occur.
- the mean of the records, if the descent is `centred`: one more release, the sum of the features, each of norm at most
  1, which one record changes by as much as a gradient clipped to 1, with noise of standard deviation
  `noise_multiplier`. The descent then uses rows minus that noised mean, which are functions of one record and of the
  release.
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

LARGEST_STEP = 64.0
"""Largest learning rate on the mean gradient. With little noise, weights oscillate under longer steps; up to here,
clipping and averaging of the iterates absorb it."""

GAIN = 3.0
"""Factor on centred rows, which are shorter than norm 1; their gradients are clipped in any case."""


@dataclass(frozen=True)
class NoisyGradientDescent:
    """Parameters of the descent; none may be chosen by looking at the data.

    The learning rate follows from the noise: ignoring gradients, the noise of all steps together has the standard
    deviation `logit_noise` on each weight, and thus on the logit of a record whose features have norm 1. More records
    or a larger epsilon give longer steps on the mean gradient.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients over `max_grad_norm`.
        steps: number of gradient steps; more follow the gradient closer at the same noise in the result.
        max_grad_norm: C, bound on the 2-norm of one record's gradient over all classes. As features have norm at most
            1, gradients are below sqrt(2) before clipping. A small C makes the loss of misclassified records linear,
            which costs little accuracy and makes probabilities slightly overconfident.
        logit_noise: see above.
        private_count: whether n is hidden (add/remove) and therefore noised.
        centred: whether to subtract the noised mean of the rows, at the price of a step; better if features vary little
            within their ranges. Needs a constant column.

    Raises:
        ConfigurationError: a value out of range.
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

    def step_size(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        """Learning rate on the sum of gradients; it depends on n only at `LARGEST_STEP`."""
        by_noise = self.logit_noise / (math.sqrt(self.steps) * self.noise_multiplier * self.max_grad_norm)
        return np.minimum(by_noise, LARGEST_STEP / records)


def noisy_gradient_descent(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: int,
    descent: NoisyGradientDescent,
    rng: Randomness,
    runs: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of a softmax regression, several independent runs at once.

    Args:
        features: (n, p) rows of norm at most 1, including a constant column for an intercept.
        labels: (n,) positions in the list of classes.
        classes: length of that list.
        descent: the parameters.
        rng: source of the noise.
        runs: number of independent runs on the same data; each spends the whole budget.

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


def _noised_mean(
    rows: NDArray[np.float64], records: NDArray[np.float64], sigma: float, rng: Randomness
) -> NDArray[np.float64]:
    """(runs, p) noised means of (n, p) rows of norm at most 1, shrunk towards 0 by the share of noise."""
    noised = rows.sum(axis=0) + sigma * float_safe_normal(rng, (len(records), rows.shape[1]))
    counts = records[:, None]
    mean: NDArray[np.float64] = noised * counts / (counts**2 + rows.shape[1] * sigma**2)
    return mean


def clipped_gradient_sum(
    features: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64], bound: float
) -> NDArray[np.float64]:
    """Sum over the records of the cross-entropy gradient, each clipped to 2-norm `bound` over all classes.

    Features (n, p) or (runs, n, p), labels (n,) and weights (runs, classes, p) give sums like the weights.
    """
    rows = Rows.of(torch.from_numpy(features), torch.from_numpy(labels), bias=False)
    return clipped_sum(torch.from_numpy(weights), rows, None, FlatClipping(bound)).numpy()
