"""Regularised logistic regression, released with noise on its minimiser or in its objective.

- Output perturbation (Chaudhuri, Monteleoni and Sarwate 2011, arXiv 0912.0071, algorithm 1; with Gaussian noise as in
  Wu et al. 2017, arXiv 1606.04722): `PerturbedOutput`.
- Objective perturbation (the same, algorithm 2; the exact conditions are those of Kifer, Smith and Thakurta 2012), for
  pure epsilon: `PerturbedObjective`.

In both, u_i = label (+1 or -1) times features, |u_i| <= 1 including the constant column; every weight is regularised,
also the intercept's. docs/api/dp.md has the proofs, whose letters are used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from safexplain._privacy_loss import Adjacency, check_adjacency
from safexplain._secure_random import Randomness, float_safe_normal
from safexplain._validate import check_number
from safexplain.errors import RefusedError

Array = NDArray[np.float64]

CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""

BLOCK = 1024
"""Rows summed at a time: rounding errors grow with this and with the number of blocks, not with n."""

MAX_ITERATIONS = 500

TINY = float(np.finfo(np.float64).tiny)

SHORT_STEP = 0.1
"""Up to this length, the damping of a step is so weak that no longer step is tried."""

STEP_ERROR = 1e-3
"""Residual of a Newton step over the gradient: each iteration gains about three digits."""

GRADIENT_ERROR = 1e-4
"""L tau of output perturbation: the norm of the gradient at which the solver stops, compared to k = 1 or 2."""

SOLVER_SHARE = 0.01
"""Share of epsilon that hides the solver's error, in objective perturbation."""

SOLVER_NOISE = 0.01
"""Noise on a logit that hides the solver's error, over the noise on it from b."""


def stability(regularization: float, adjacency: Adjacency) -> float:
    """S_k: the largest distance of the solver's results on neighbouring data sets; see docs/api/dp.md."""
    check_number("regularization", regularization, above=0.0)
    return (_changed_gradients(adjacency) + 2 * GRADIENT_ERROR) / regularization


def stable_minimiser(signed: Array, regularization: float, gradient_error: float = GRADIENT_ERROR) -> Array:
    """v: the minimiser (p,) of J for `signed` (n, p), certified to be within tau; must be hidden by noise.

    A refusal for lack of precision depends only on the shape of `signed` and on L. It is not proven that 500 iterations
    suffice (some tens did in all experiments), so the error of `minimise` must not be shown to anyone whom the
    guarantee protects against.
    """
    records, p = signed.shape
    longest = largest_weight(records, regularization) + gradient_error / regularization
    zero = np.zeros((1, p))
    at_worst = rounding_bound(records, np.eye(1, p) * longest, zero, regularization)[0]
    if at_worst > gradient_error / 2:
        raise RefusedError(
            f"nothing is released: with {records:,} records, sums have rounding errors of up to {at_worst:.2g}, but the"
            f' proof needs {gradient_error / 2:.2g}; use mechanism="noisy-gd"'
        )
    return np.asarray(minimise(signed, zero, regularization, gradient_error / regularization)[0])


def largest_weight(records: int, regularization: float) -> float:
    """A bound on the norm of the minimiser for any records: L |w| is at most n, L/2 |w|^2 at most J(0) = n log 2."""
    return min(records / regularization, math.sqrt(2 * records * math.log(2) / regularization))


@dataclass(frozen=True)
class PerturbedOutput:
    """Parameters of output perturbation; they depend on public numbers only, and not on n.

    Args:
        regularization: L, of the sum (not the mean) of losses.
        noise_rate: alpha, one over the scale of |h|; None for Gaussian noise.
        noise_multiplier: sigma, the standard deviation of h over S_1; None for radial noise.
    """

    regularization: float
    noise_rate: float | None = None
    noise_multiplier: float | None = None

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure epsilon under one adjacency; infinite for Gaussian noise."""
        return math.inf if self.noise_rate is None else self.noise_rate * stability(self.regularization, adjacency)

    @classmethod
    def radial(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> PerturbedOutput:
        """The mechanism with radial noise for an epsilon; `dimension` counts the weights, including the intercept.

        h has standard deviation sqrt(dimension + 1) / alpha on each coordinate. L is chosen so that this is
        `logit_noise`, the standard deviation of the noise on the logit of a record with features of norm 1.
        """
        rate = math.sqrt(dimension + 1) / logit_noise
        regularization = stability(1.0, adjacency) * rate / epsilon * (1 + 1e-12)  # rounding never spends more
        return cls(regularization, noise_rate=rate)

    @classmethod
    def gaussian(cls, noise_multiplier: float, *, logit_noise: float = 1.0) -> PerturbedOutput:
        """The mechanism with Gaussian noise for a sigma, where h has standard deviation `logit_noise`."""
        return cls(noise_multiplier * stability(1.0, "add_remove") / logit_noise, noise_multiplier=noise_multiplier)


def perturbed_output(signed: Array, mechanism: PerturbedOutput, rng: Randomness, runs: int = 1) -> Array:
    """(runs, p) weights released by output perturbation in independent runs, each of which spends the whole budget.

    `signed` (n, p) is features of norm at most 1, including the constant column, times the labels +1 and -1.

    Raises:
        RefusedError: the solver cannot certify its result; nothing is released.
    """
    minimiser, shape = stable_minimiser(signed, mechanism.regularization), (runs, signed.shape[1])
    if mechanism.noise_rate is not None:
        return minimiser + radial_noise(mechanism.noise_rate, shape, rng)
    sigma = (mechanism.noise_multiplier or 0.0) * stability(mechanism.regularization, "add_remove")
    return minimiser + sigma * float_safe_normal(rng, shape)


@dataclass(frozen=True)
class PerturbedObjective:
    """Parameters of objective perturbation; they depend on public numbers only, and not on n.

    Args:
        noise_rate: beta, one over the scale of |b|.
        regularization: L, of the sum (not the mean) of losses.
        cover_rate: alpha, one over the scale of |h|.
        solver_error: tau, largest distance of the solver's result from the minimiser.
    """

    noise_rate: float
    regularization: float
    cover_rate: float
    solver_error: float

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure epsilon under one adjacency; see docs/api/dp.md."""
        density = _changed_gradients(adjacency) * self.noise_rate
        return density + math.log1p(CURVATURE / self.regularization) + 2 * self.cover_rate * self.solver_error

    @classmethod
    def calibrated(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> PerturbedObjective:
        """The mechanism with the least noise for an epsilon; arguments as for `PerturbedOutput.radial`.

        Where the records carry no information, the minimiser is -b/L, with a standard deviation of about
        sqrt(dimension) / (beta L) on each coordinate. L is chosen so that this is `logit_noise`.
        """
        scale = math.sqrt(dimension) / logit_noise
        budget, k = (1 - SOLVER_SHARE) * epsilon, _changed_gradients(adjacency)

        def excess(beta: float) -> float:
            return k * beta + math.log1p(CURVATURE * beta / scale) - budget

        beta = brentq(excess, 0.0, budget / k, xtol=1e-15 * budget) * (1 - 1e-9)  # brentq may end on either side
        cover_rate = scale / SOLVER_NOISE
        return cls(beta, scale / beta, cover_rate, SOLVER_SHARE * epsilon / (2 * cover_rate))


def perturbed_minimiser(signed: Array, mechanism: PerturbedObjective, rng: Randomness, runs: int = 1) -> Array:
    """Weights released by objective perturbation; arguments, shapes and errors as for `perturbed_output`."""
    shape = (runs, signed.shape[1])
    linear = radial_noise(mechanism.noise_rate, shape, rng)
    minimiser = minimise(signed, linear, mechanism.regularization, mechanism.solver_error)
    return minimiser + radial_noise(mechanism.cover_rate, shape, rng)


def radial_noise(rate: float, shape: tuple[int, int], rng: Randomness) -> Array:
    """Rows with density proportional to exp(-rate |row|): a uniform direction and a length from Gamma(p, 1/rate)."""
    direction = rng.standard_normal(shape)
    length = rng.gamma(shape[1], 1 / rate, (shape[0], 1))
    out: Array = direction * (length / np.linalg.norm(direction, axis=1, keepdims=True))
    return out


def _changed_gradients(adjacency: Adjacency) -> int:
    """The k of the module's proof."""
    check_adjacency(adjacency)
    return 2 if adjacency == "substitute" else 1


# --- solver: certified minimisers ------------------------------------------------------------------------------------


def minimise(signed: Array, linear: Array, regularization: float, solver_error: float) -> Array:
    """Minimisers of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2 + <b, w> for several b, certified.

    From `signed` (n, p) rows u_i of norm at most 1 and `linear` (runs, p) rows b to (runs, p), at most `solver_error`
    away from the minimisers. The fraction log(1 + d) / d of a Newton step of length d converges from any start, as the
    third derivative of the logistic loss is at most its second (Sun and Tran-Dinh 2019, arXiv 1703.04599, nu = 2); the
    whole step is taken if it gains at least half of what the quadratic model predicts.

    Raises:
        RefusedError: no certificate after 500 iterations, or too many rows for float64 to certify it.
    """
    weights = np.zeros_like(linear)
    for _ in range(MAX_ITERATIONS):
        gradient, curvature = regularization * weights + linear, []
        for start in range(0, len(signed), BLOCK):
            rows = signed[start : start + BLOCK]
            miss = expit(-(weights @ rows.T))
            gradient -= miss @ rows
            curvature.append(miss * (1 - miss))
        residual = np.linalg.norm(gradient, axis=1) + rounding_bound(len(signed), weights, linear, regularization)
        if (residual <= regularization * solver_error).all():
            return weights
        step = _newton_steps(signed, np.concatenate(curvature, axis=1), regularization, gradient)
        length = np.maximum(np.linalg.norm(step, axis=1), TINY)
        fraction = np.log1p(length) / length
        if (length > SHORT_STEP).any():
            gain = _objective(signed, linear, regularization, weights)
            gain -= _objective(signed, linear, regularization, weights - step)
            whole = gain >= (gradient * step).sum(axis=1) / 4
            fraction = np.where((length > SHORT_STEP) & whole, 1.0, fraction)
        weights = weights - step * fraction[:, None]
    raise RefusedError(
        f"nothing is released: the solver's gradient norm is at most {residual.max():.2g}, but the proof needs"
        f" {regularization * solver_error:.2g}. With very many records, rounding alone exceeds that; use"
        ' mechanism="noisy-gd"'
    )


def _objective(signed: Array, linear: Array, regularization: float, weights: Array) -> Array:
    """(runs,) J of (runs, p) weights."""
    total = regularization / 2 * (weights**2).sum(axis=1) + (linear * weights).sum(axis=1)
    for start in range(0, len(signed), BLOCK):
        total += np.logaddexp(0.0, -(weights @ signed[start : start + BLOCK].T)).sum(axis=1)
    return np.asarray(total)


def rounding_bound(records: int, weights: Array, linear: Array, regularization: float) -> Array:
    """(runs,) bound on the norm of the rounding error of J's gradient in float64.

    It follows from |fl(sum) - sum| <= m u sum |terms| for m additions (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2), doubled for terms of higher order. Margins are sums of p terms below |w|, and change the
    logistic function by a quarter of their error. Then blocks of rows of norm at most 1 are summed, then the blocks.
    """
    unit = np.finfo(np.float64).eps / 2
    length = np.linalg.norm(weights, axis=1)
    additions = min(records, BLOCK) + records / BLOCK + 8
    by_records = records * (additions + CURVATURE * (weights.shape[1] + 1) * length)
    return np.asarray(2 * unit * (by_records + 4 * (regularization * length + np.linalg.norm(linear, axis=1))))


def _newton_steps(signed: Array, curvature: Array, regularization: float, gradient: Array) -> Array:
    """(runs, p) about H^-1 gradient for the Hessian H = sum_i curvature_i u_i u_i' + L I of each run, without storing
    it, by conjugate gradients (Hestenes and Stiefel 1952)."""
    out, residual, direction = np.zeros_like(gradient), gradient, gradient
    size = (gradient**2).sum(axis=1, keepdims=True)
    enough = STEP_ERROR**2 * size
    for _ in range(gradient.shape[1]):
        if (size <= enough).all():
            break
        product = (curvature * (direction @ signed.T)) @ signed + regularization * direction
        length = size / np.maximum((direction * product).sum(axis=1, keepdims=True), TINY)
        out, residual = out + length * direction, residual - length * product
        before, size = np.maximum(size, TINY), (residual**2).sum(axis=1, keepdims=True)
        direction = residual + size / before * direction
    return out
