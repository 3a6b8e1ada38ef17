"""Logistic regression by output perturbation (Chaudhuri, Monteleoni and Sarwate 2011, arXiv 0912.0071, algorithm 1;
with Gaussian noise as in Wu et al. 2017, arXiv 1606.04722), and how stable regularised regression is.

w is the minimiser of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2, where u_i = label (+1 or -1) times features,
|u_i| <= 1 with the constant column included; every weight is regularised, the intercept's too; and the sum is not
divided by n, so that n appears nowhere.

Stability. Let J' belong to a neighbouring data set, and w' minimise it. The gradients of J and J' differ by the record
in question: by at most k, where k = 1 for a record added, removed or replaced by an empty one (each contributes a
vector s(-<w, u>) u of norm below 1, the empty one 0, s the logistic function), and k = 2 for one replaced by another.
J is L-strongly convex, hence L |w' - w| <= |grad J(w') - grad J(w)| = |grad J(w')| = |grad J(w') - grad J'(w')| <= k:

    |w - w'| <= k / L.

Without a regularised intercept J is not strongly convex, and nothing of this holds.

The solver is not exact. It returns v with |grad J(v)| <= g (computed, plus a bound on the rounding of the computation),
hence |v - w| <= g/L by strong convexity; it continues until g/L <= tau = 1e-4/L. So for what is computed

    |v - v'| <= S_k = k / L + 2 tau.

Released is v + h, in one of two ways.

- Radial: h has density proportional to exp(-alpha |h|). The densities of v + h and v' + h differ by at most
  exp(alpha S_k): epsilon = alpha S_k, delta = 0.
- Gaussian: h has standard deviation sigma S_1 on every coordinate. S_2 <= 2 S_1, so it is one full-batch step of the
  Gaussian mechanism with noise multiplier sigma, which under substitution changes by up to twice its bound.

For several classes, one against the rest, each of k problems is released so: radial noise with epsilon / k each (basic
composition), Gaussian noise as k steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.adjacency import Adjacency, check_adjacency
from safexplain.dp.linear.inputs import check_positive
from safexplain.dp.linear.noisy_gd import float_safe_normal
from safexplain.dp.linear.objective import radial_noise
from safexplain.dp.linear.solver import solve

GRADIENT_ERROR = 1e-4
"""L tau: norm of the gradient of J at which the solver stops, beside 1 or 2 that a record may change it by."""


def stability(regularization: float, adjacency: Adjacency) -> float:
    """S_k: how far the solver's results on neighbouring data sets lie apart at most; see the module's proof.

    Args:
        regularization: L, of the sum (not the mean) of losses.
        adjacency: what neighbouring data sets differ in.

    Raises:
        ConfigurationError: a value out of range.
    """
    check_adjacency(adjacency)
    check_positive("regularization", regularization)
    return ((2 if adjacency == "substitute" else 1) + 2 * GRADIENT_ERROR) / regularization


def stable_minimiser(signed: NDArray[np.float64], regularization: float) -> NDArray[np.float64]:
    """v: the minimiser of J, certified to be within tau. It is private data: `stability` says what noise hides it.

    Args:
        signed: (n, p) features of norm at most 1, the constant column included, times the labels +1 and -1.
        regularization: L.

    Returns:
        (p,) weights.

    Raises:
        RefusedError: the solver cannot certify its result; nothing is released.
    """
    return solve(signed, regularization, GRADIENT_ERROR / regularization)


@dataclass(frozen=True)
class OutputPerturbation:
    """Parameters of the mechanism; they depend on public numbers only, and not on n.

    Args:
        regularization: L, of the sum (not the mean) of losses.
        noise_rate: alpha, one over the scale of |h|; None for Gaussian noise.
        noise_multiplier: sigma, the standard deviation of h over S_1; None for radial noise.
    """

    regularization: float
    noise_rate: float | None = None
    noise_multiplier: float | None = None

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure epsilon under one adjacency; infinite for Gaussian noise, which has none."""
        return math.inf if self.noise_rate is None else self.noise_rate * stability(self.regularization, adjacency)

    @classmethod
    def radial(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> OutputPerturbation:
        """The radial mechanism for an epsilon, with the regularization that it calls for.

        h has standard deviation sqrt(dimension + 1) / alpha on each coordinate: L is chosen so that this is
        `logit_noise`, the standard deviation of the noise on the logit of a record with features of norm 1.

        Args:
            epsilon: the budget, above 0.
            dimension: number of weights, the intercept included.
            adjacency: under which the budget is meant.
            logit_noise: see above.

        Raises:
            ConfigurationError: a value out of range.
        """
        check_adjacency(adjacency)
        check_positive("epsilon", epsilon)
        check_positive("logit_noise", logit_noise)
        rate = math.sqrt(dimension + 1) / logit_noise
        regularization = stability(1.0, adjacency) * rate / epsilon * (1 + 1e-12)  # rounding never spends more
        return cls(regularization, noise_rate=rate)

    @classmethod
    def gaussian(cls, noise_multiplier: float, *, logit_noise: float = 1.0) -> OutputPerturbation:
        """The Gaussian mechanism with a noise multiplier, and the regularization that `logit_noise` calls for.

        Args:
            noise_multiplier: sigma, for one step of the full-batch Gaussian mechanism.
            logit_noise: standard deviation of h on each coordinate.

        Raises:
            ConfigurationError: a value out of range.
        """
        check_positive("noise_multiplier", noise_multiplier)
        check_positive("logit_noise", logit_noise)
        return cls(noise_multiplier * stability(1.0, "add_remove") / logit_noise, noise_multiplier=noise_multiplier)


def perturbed_output(
    signed: NDArray[np.float64], mechanism: OutputPerturbation, rng: np.random.Generator, runs: int = 1
) -> NDArray[np.float64]:
    """Weights released by output perturbation, several independent runs at once.

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
    minimiser, shape = stable_minimiser(signed, mechanism.regularization), (runs, signed.shape[1])
    if mechanism.noise_rate is not None:
        return minimiser + radial_noise(mechanism.noise_rate, shape, rng)
    sigma = (mechanism.noise_multiplier or 0.0) * stability(mechanism.regularization, "add_remove")
    return minimiser + sigma * float_safe_normal(rng, shape)
