"""Minimisers of regularised logistic regression with a certificate, also where the Hessian is too large to store.

Multinomial logistic regression by noisy gradient descent on all records (Song, Chaudhuri and Sarwate 2013; Bassily,
Smith and Thakurta 2014, arXiv 1405.7085).

Each step releases the sum of the records' gradients, each clipped to norm C, with Gaussian noise of standard deviation
`noise_multiplier` * C on every coordinate; everything else here is post-processing of these sums. That is `releases`
full-batch steps for `safexplain._privacy_loss`, whatever the data. What the records can influence beside the sums:

- their number n. It only limits the step. Where it is public (substitution, zeroing out) it is used as it is. Under
  add/remove it is one more release: a sum of ones, which one record changes by 1, with noise `noise_multiplier`.
- the classes that occur: not used, `classes` is the length of a public list.
- their mean, where the descent is `centred`: one more release, the sum of the features, each of norm at most 1, which
  one record changes by as much as a gradient clipped to 1, with noise of standard deviation `noise_multiplier`. What is
  descended on then are the rows minus that noised mean: functions of one record and of what was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from safexplain._secure_random.generators import Randomness, float_safe_normal
from safexplain._validate import check_number, whole_number
from safexplain.dp.heads.closed_form import Rows, clipped_sum
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import RefusedError

CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""

BLOCK = 1024
"""Rows summed at a time: rounding errors grow with this and with the number of blocks, not with n."""

MOST_ITERATIONS = 500

LARGEST_HESSIAN = 128
"""Weights up to which the Hessian is built and solved; beyond, conjugate gradients need only products with it."""

SHORT = 0.1
"""Steps up to this length are damped by so little that nothing longer is tried."""

STEP_ERROR = 1e-3
"""Residual of a step by conjugate gradients, over the gradient: each iteration gains about three digits at the end."""


def solve(signed: NDArray[np.float64], regularization: float, solver_error: float) -> NDArray[np.float64]:
    """The minimiser of sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2, certified to be within `solver_error`.

    Whether it refuses for want of precision follows from the shape of `signed` and from L, not from its values: at the
    minimiser L |w| is at most n, and L/2 |w|^2 at most the objective at 0, n log 2. That 500 iterations suffice is no
    theorem (some tens do, whatever was tried), so an error must not be shown to who is protected from. Arguments and
    errors as for `minimise`; the result is (p,).
    """
    records, p = signed.shape
    longest = largest_weight(records, regularization) + solver_error
    zero = np.zeros((1, p))
    at_worst = rounding_bound(records, np.eye(1, p) * longest, zero, regularization)[0]
    if at_worst > regularization * solver_error / 2:
        raise RefusedError(
            f"nothing is released: with {records:,} records sums may round by {at_worst:.2g}, and the proof"
            f' needs {regularization * solver_error / 2:.2g}; use mechanism="noisy-gd"'
        )
    return np.asarray(minimise(signed, zero, regularization, solver_error)[0])


def largest_weight(records: int, regularization: float) -> float:
    """Bound on the norm of the minimiser that holds for any records."""
    return min(records / regularization, math.sqrt(2 * records * math.log(2) / regularization))


def minimise(
    signed: NDArray[np.float64], linear: NDArray[np.float64], regularization: float, solver_error: float
) -> NDArray[np.float64]:
    """Minimisers of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2 + <b, w> for several b, certified.

    Args:
        signed: (n, p) rows u_i of norm at most 1.
        linear: (runs, p) rows b.
        regularization: L.
        solver_error: largest distance from the minimiser.

    Returns:
        (runs, p).

    Raises:
        RefusedError: no certificate after 500 iterations, or too many rows for float64 to certify it.
    """
    weights, by_hessian = np.zeros_like(linear), signed.shape[1] <= LARGEST_HESSIAN
    for _ in range(MOST_ITERATIONS):
        gradient, hessian, curvature = regularization * weights + linear, 0.0, []
        for start in range(0, len(signed), BLOCK):
            rows = signed[start : start + BLOCK]
            miss = expit(-(weights @ rows.T))
            gradient -= miss @ rows
            if by_hessian:
                hessian = hessian + (rows.T * (miss * (1 - miss))[:, None, :]) @ rows
            else:
                curvature.append(miss * (1 - miss))
        residual = np.linalg.norm(gradient, axis=1) + rounding_bound(len(signed), weights, linear, regularization)
        if (residual <= regularization * solver_error).all():
            return weights
        if by_hessian:
            whole = hessian + regularization * np.eye(linear.shape[1])
            step = np.linalg.solve(whole, gradient[:, :, None])[:, :, 0]
        else:
            each = zip(np.concatenate(curvature, axis=1), gradient, strict=True)
            step = np.stack([_conjugate_gradients(signed, c, regularization, g) for c, g in each])
        weights = weights - step * _part_of_step(signed, linear, regularization, weights, gradient, step)[:, None]
    raise RefusedError(
        f"nothing is released: the solver's gradient norm is at most {residual.max():.2g}, and the proof needs"
        f" {regularization * solver_error:.2g}. With very many records the rounding of sums alone exceeds it: use"
        ' mechanism="noisy-gd"'
    )


def _part_of_step(
    signed: NDArray[np.float64],
    linear: NDArray[np.float64],
    regularization: float,
    weights: NDArray[np.float64],
    gradient: NDArray[np.float64],
    step: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(runs,) how much of each Newton step to take.

    The part log(1 + d) / d of a step of length d gains at least g.s ((1 + d) log(1 + d) - d) / d^2 for gradient g and
    step s, as the third derivative of the logistic loss is at most its second (Sun and Tran-Dinh 2019, arXiv
    1703.04599, nu = 2): the method converges from any start. The whole step, its half, ... is taken instead where it
    gains as much and at least a quarter of what the quadratic model says.
    """
    length = np.maximum(np.linalg.norm(step, axis=1), np.finfo(np.float64).tiny)
    part = np.log1p(length) / length
    long = np.flatnonzero(length > SHORT)
    slope, size = np.einsum("rp,rp->r", gradient[long], step[long]), length[long]
    sure = slope * ((1 + size) * np.log1p(size) - size) / size**2
    before = _objective(signed, linear[long], regularization, weights[long])
    trial = 1.0
    while len(long):
        gained = before - _objective(signed, linear[long], regularization, weights[long] - trial * step[long])
        enough = gained >= np.maximum(sure, trial * slope / 4)
        part[long[enough]] = trial
        trial /= 2
        left = ~enough & (part[long] < trial)
        long, before, slope, sure = long[left], before[left], slope[left], sure[left]
    return np.asarray(part)


def _objective(
    signed: NDArray[np.float64], linear: NDArray[np.float64], regularization: float, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(runs,) J of (runs, p) weights."""
    total = regularization / 2 * (weights**2).sum(axis=1) + (linear * weights).sum(axis=1)
    for start in range(0, len(signed), BLOCK):
        total += np.logaddexp(0.0, -(weights @ signed[start : start + BLOCK].T)).sum(axis=1)
    return np.asarray(total)


def rounding_bound(
    records: int, weights: NDArray[np.float64], linear: NDArray[np.float64], regularization: float
) -> NDArray[np.float64]:
    """(runs,) bound on the norm of the difference between the gradient of J and the one computed in float64.

    From |fl(sum) - sum| <= m u sum |terms| for m additions (Higham, Accuracy and Stability of Numerical Algorithms,
    section 4.2), twice over for terms of higher order: margins are sums of p terms below |w|, and change the logistic
    function by a quarter of their error; then blocks of rows of norm at most 1, then the blocks.
    """
    unit = np.finfo(np.float64).eps / 2
    length = np.linalg.norm(weights, axis=1)
    additions = min(records, BLOCK) + records / BLOCK + 8
    by_records = records * (additions + CURVATURE * (weights.shape[1] + 1) * length)
    return np.asarray(2 * unit * (by_records + 4 * (regularization * length + np.linalg.norm(linear, axis=1))))


def _conjugate_gradients(
    signed: NDArray[np.float64], curvature: NDArray[np.float64], regularization: float, target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """About H^-1 target for the Hessian H = sum_i curvature_i u_i u_i' + L I (Hestenes and Stiefel 1952)."""
    out = np.zeros_like(target)
    residual = target.copy()
    direction, size = residual.copy(), float(residual @ residual)
    enough = STEP_ERROR**2 * size
    for _ in range(len(target)):
        if size <= enough:
            break
        product = signed.T @ (curvature * (signed @ direction)) + regularization * direction
        length = size / float(direction @ product)
        out += length * direction
        residual -= length * product
        size, before = float(residual @ residual), size
        direction = residual + (size / before) * direction
    return out


# --- noisy gd --------------------------------------------------------------------------------------------------------

LARGEST_STEP = 64.0
"""Learning rate on the mean gradient. Longer steps would make weights swing without end where there is little noise;
up to here clipping and the mean of the iterates absorb it."""

GAIN = 3.0
"""What rows minus their mean are multiplied by: they are shorter than rows of norm 1, and their gradients are clipped
all the same."""


@dataclass(frozen=True)
class NoisyGradientDescent:
    """Parameters of the descent; none may be chosen by looking at the data.

    The learning rate follows from the noise: so that the noise of all steps together has the standard deviation
    `logit_noise` on each weight, thus on the logit of a record whose features have norm 1, if gradients do not pull it
    back. More records or a larger epsilon give longer steps on the mean gradient, which is what more signal allows.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients over `max_grad_norm`.
        steps: number of gradient steps; more of them follow the gradient closer at the same noise in the result.
        max_grad_norm: C, bound on the 2-norm of one record's gradient over all classes. Features have norm at most 1,
            so that gradients are below sqrt(2) before clipping. A small C makes the loss of misclassified records
            linear, which loses little accuracy and makes probabilities somewhat too sure.
        logit_noise: see above.
        private_count: whether n is hidden (add/remove) and therefore noised.
        centred: whether to descend on rows minus their noised mean, for the price of a step. What rows have in common
            then costs no length, and weights need not make up for it: better where features vary little within their
            ranges. Needs a constant column.

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
        """Learning rate on the sum of gradients; n only enters where `LARGEST_STEP` is reached."""
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
        features: (n, p) rows of norm at most 1, a constant column included if there is to be an intercept.
        labels: (n,) positions in the list of classes.
        classes: length of that list.
        descent: the parameters.
        rng: source of the noise.
        runs: number of independent runs on the same data; each of them spends the whole budget.

    Returns:
        (runs, classes, p) weights, the mean of the second half of the iterates; and (runs,) the number of records that
        may be told: the true one, or the noised one (at least 1) where `private_count` is set.
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
    if descent.centred:  # back to rows as they came: the constant column takes what the mean adds
        found[:, :, :-1] *= GAIN
        found[:, :, -1] -= np.einsum("rkp,rp->rk", found, centre) / constant
    return found, records


def _noised_mean(
    rows: NDArray[np.float64], records: NDArray[np.float64], sigma: float, rng: Randomness
) -> NDArray[np.float64]:
    """(runs, p) the sum of (n, p) rows of norm at most 1 with noise, over n; nearer to 0 the more of it is noise."""
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
