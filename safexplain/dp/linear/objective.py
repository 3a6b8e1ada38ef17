"""Logistic regression with pure epsilon by objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011, arXiv
0912.0071, algorithm 2; the exact conditions are those of Kifer, Smith and Thakurta 2012).

Released is the minimiser w of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2 + <b, w>, where u_i = label (+1 or -1)
times features, |u_i| <= 1 with the constant column included; b has density proportional to exp(-beta |b|); every
weight is regularised, the intercept's too; and the sum is not divided by n, so that n appears nowhere.

Why it is private. J is strongly convex and smooth, so w and b determine each other: b = sum_i s(-<w, u_i>) u_i - L w,
where s is the logistic function. The density of w on data D is that of b times |det H|, H = A + L I the Hessian of J.

- Density of b. One record contributes a vector of norm below 1 to b. Another set D' changes it by at most k, where
  k = 1 for a record added, removed or replaced by an empty one, and k = 2 for one replaced by another: exp(k beta).
- Determinant. Let H0 be the Hessian without the record in question; its smallest eigenvalue is at least L. With the
  record it is H0 + a u u', a <= 1/4, so det H / det H0 = 1 + a u' H0^-1 u lies in [1, 1 + 1/(4 L)]. Substitution is
  the ratio of two such numbers: in any case at most 1 + 1/(4 L).

So w has epsilon_w = k beta + log(1 + 1/(4 L)), and adding or removing a record costs less than substituting one. With
features of norm up to R the determinant would need R^2/(4 L): here they are scaled to R = 1 first.

The solver is not exact. It returns v with |grad J(v)| <= g (computed, plus a bound on the rounding of the computation),
hence |v - w| <= g/L by strong convexity; it continues until g/L <= tau, a public number. Then v + h is released, where
h has density proportional to exp(-alpha |h|). For any data and b, the densities of v + h and of w + h differ by at most
exp(alpha tau). Going from v + h on D to w + h on D, to w + h on D' (post-processing of w), to v + h on D' gives

    epsilon = k beta + log(1 + 1/(4 L)) + 2 alpha tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from safexplain.adjacency import Adjacency, check_adjacency
from safexplain.dp.linear.inputs import check_positive
from safexplain.dp.linear.solver import CURVATURE, minimise

SOLVER_SHARE = 0.01
"""Share of epsilon that hides the error of the solver."""

SOLVER_NOISE = 0.01
"""Noise on a logit that hides the solver's error, over the noise on it by b."""


@dataclass(frozen=True)
class ObjectivePerturbation:
    """Parameters of the mechanism; they depend on public numbers only, and not on n.

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
        """Pure epsilon under one adjacency; see the module's proof."""
        check_adjacency(adjacency)
        changed = _changed(adjacency) * self.noise_rate
        return changed + math.log1p(CURVATURE / self.regularization) + 2 * self.cover_rate * self.solver_error

    @classmethod
    def calibrated(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> ObjectivePerturbation:
        """The least noise for an epsilon, with the regularization that it calls for.

        In directions in which the records say nothing, the minimiser is -b/L, of standard deviation about
        sqrt(dimension) / (beta L) a coordinate: L is chosen so that this is `logit_noise`.

        Args:
            epsilon: the budget, above 0.
            dimension: number of weights, the intercept included.
            adjacency: under which the budget is meant.
            logit_noise: standard deviation of the noise on the logit of a record with features of norm 1.

        Raises:
            ConfigurationError: a value out of range.
        """
        check_adjacency(adjacency)
        for name, value in (("epsilon", epsilon), ("logit_noise", logit_noise)):
            check_positive(name, value)
        scale = math.sqrt(dimension) / logit_noise
        budget, k = (1 - SOLVER_SHARE) * epsilon, _changed(adjacency)

        def excess(beta: float) -> float:
            return k * beta + math.log1p(CURVATURE * beta / scale) - budget

        beta = brentq(excess, 0.0, budget / k, xtol=1e-15 * budget) * (1 - 1e-9)  # whichever side brentq ended on
        cover_rate = scale / SOLVER_NOISE
        return cls(beta, scale / beta, cover_rate, SOLVER_SHARE * epsilon / (2 * cover_rate))


def perturbed_minimiser(
    signed: NDArray[np.float64], mechanism: ObjectivePerturbation, rng: np.random.Generator, runs: int = 1
) -> NDArray[np.float64]:
    """Weights released by objective perturbation, several independent runs at once.

    Args:
        signed: (n, p) features of norm at most 1, the constant column included, times the labels +1 and -1.
        mechanism: the parameters.
        rng: source of the noise.
        runs: number of independent runs on the same data; each of them spends the whole budget.

    Returns:
        (runs, p) weights.

    Raises:
        RefusedError: the solver cannot certify its result; nothing is released.
    """
    shape = (runs, signed.shape[1])
    linear = radial_noise(mechanism.noise_rate, shape, rng)
    minimiser = minimise(signed, linear, mechanism.regularization, mechanism.solver_error)
    return minimiser + radial_noise(mechanism.cover_rate, shape, rng)


def radial_noise(rate: float, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Rows with density proportional to exp(-rate |row|): a uniform direction and a length from Gamma(p, 1/rate)."""
    direction = rng.standard_normal(shape)
    length = rng.gamma(shape[1], 1 / rate, (shape[0], 1))
    out: NDArray[np.float64] = direction * (length / np.linalg.norm(direction, axis=1, keepdims=True))
    return out


def _changed(adjacency: Adjacency) -> int:
    return 2 if adjacency == "substitute" else 1
