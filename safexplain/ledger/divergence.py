"""Releases as Renyi and as Gaussian differential privacy, and what either allows within (epsilon, delta).

Renyi divergence of order alpha (Mironov 2017, arXiv 1702.07476), in both directions:

* mu-GDP: alpha mu^2 / 2 (Corollary 3; post-processing does not raise it);
* pure epsilon: log(p^alpha q^(1 - alpha) + q^alpha p^(1 - alpha)) / (alpha - 1), p = e^eps / (1 + e^eps), q = 1 - p:
  that of randomised response, of which every epsilon-DP answer is a post-processing (Kairouz, Oh and Viswanath 2015,
  arXiv 1311.0776, Theorem 3.2);
* Laplace: log(a / (2 a - 1) e^((a - 1) eps) + (a - 1) / (2 a - 1) e^(-a eps)) / (a - 1), a = alpha (Proposition 6).

The last two are at most alpha epsilon^2 / 2 (Bun and Steinke 2016, arXiv 1605.02065, Proposition 1.4), which stands in
where the formulas would cancel.

Gaussian differential privacy of a pure answer: mu = -2 Phi^-1(1 / (1 + e^eps)). Its trade-off curve is at least that of
randomised response, whose three corners are (0, 1), (c, c) and (1, 0), c = 1 / (1 + e^eps); the Gaussian curve of this
mu passes through the same three points and is convex, hence below the lines that join them, everywhere.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray
from scipy.special import ndtri_exp

from safexplain.ledger.releases import Gaussian, Laplace, Release

ORDERS: NDArray[np.float64] = np.array([float(f"{1 + x:.5g}") for x in np.logspace(-1, 6, 700)])
"""Renyi orders among which one is chosen."""

LARGEST = 1e6
"""Epsilon of a budget beyond which nothing more is allowed to Gaussian releases."""

_SMALLEST_QUANTILE = 1e-4
_SMALL = 0.01
"""Below this alpha * epsilon the bound alpha epsilon^2 / 2 is used; it is at most a relative 1e-4 too large."""


def renyi(release: Release, order: Any) -> Any:
    """Renyi divergence of the order (a number or an array), failures of approximate releases left out."""
    if isinstance(release, Gaussian):
        return order * (release.mu * release.mu) / 2
    if isinstance(release, Laplace):
        return np.minimum(_pure(release.epsilon, order), _laplace(release.continuous_epsilon, order))
    return _pure(release.epsilon, order)


def _pure(epsilon: float, order: Any) -> Any:
    whole = (np.logaddexp((order - 1) * epsilon, -order * epsilon) - math.log1p(math.exp(-epsilon))) / (order - 1)
    return np.where(order * epsilon < _SMALL, order * (epsilon * epsilon) / 2, np.minimum(whole, epsilon))


def _laplace(epsilon: float, order: Any) -> Any:
    high = np.log(order / (2 * order - 1)) + (order - 1) * epsilon
    low = np.log((order - 1) / (2 * order - 1)) - order * epsilon
    whole = np.logaddexp(high, low) / (order - 1)
    return np.where(order * epsilon < _SMALL, order * (epsilon * epsilon) / 2, np.minimum(whole, epsilon))


def gaussian(release: Release) -> float:
    """The mu of which the release is mu-GDP, failures of approximate releases left out.

    Where the quantile would cancel, its tangent at 0, sqrt(pi / 2) epsilon, stands in: mu is concave in epsilon.
    """
    if isinstance(release, Gaussian):
        return release.mu
    if release.epsilon < _SMALLEST_QUANTILE:
        return release.epsilon * math.sqrt(math.pi / 2)
    return -2 * float(ndtri_exp(-np.logaddexp(0.0, release.epsilon)))


def renyi_allowed(order: Any, epsilon: float, delta: float) -> Any:
    """Renyi divergence of an order that implies (epsilon, delta); may be negative: none.

    Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition 12, solved for the divergence.
    """
    return epsilon - np.log1p(-1 / order) + np.log(delta * order) / (order - 1)


def renyi_epsilon(order: float, divergence: float, delta: float) -> float:
    """The epsilon that a Renyi divergence of one order implies at delta."""
    if divergence == 0 or math.isinf(divergence):
        return divergence
    return float(compute_epsilon([order], [divergence], delta)[0])


@lru_cache(maxsize=1024)
def best_order(release: Release, epsilon: float, delta: float) -> float:
    """The order at which the most copies of a release fit into (epsilon, delta).

    0 where their epsilons could be added up as often: that is simpler, and leaves all of delta to approximate releases.
    """
    with np.errstate(over="ignore"):
        divergence = renyi(release, ORDERS)
    copies = renyi_allowed(ORDERS, epsilon, delta) / divergence
    best = int(np.argmax(copies))
    added = 0 if isinstance(release, Gaussian) else epsilon / release.epsilon
    return float(ORDERS[best]) if math.floor(copies[best]) > math.floor(added * (1 + 1e-12)) else 0.0


@lru_cache(maxsize=1024)
def gaussian_allowed(epsilon: float, delta: float) -> float:
    """The largest mu^2 that implies (epsilon, delta): Dong, Roth and Su 2019, arXiv 1905.02383, Corollary 2.13.

    Larger epsilons count as 1e6.
    """
    if epsilon <= 0 or delta <= 0:
        return 0.0
    return float(1 / get_sigma_gaussian(min(epsilon, LARGEST), delta)) ** 2


def gaussian_epsilon(squared_mu: float, delta: float) -> float:
    """The epsilon that mu-GDP implies at delta."""
    if squared_mu == 0 or math.isinf(squared_mu):
        return squared_mu
    with np.errstate(divide="ignore"):  # of a mu beyond all measure
        return float(get_epsilon_gaussian(1 / math.sqrt(squared_mu), delta))


def epsilon_alone(release: Release, delta: float) -> float:
    """Epsilon of one release by itself at a delta, for messages."""
    if isinstance(release, Gaussian):
        return gaussian_epsilon(release.mu * release.mu, delta) if delta > 0 else math.inf
    return release.epsilon
