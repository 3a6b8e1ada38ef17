"""Conditions of a rule on sums of losses, and the part of delta that each has; `composition` says why they hold."""

from __future__ import annotations

from functools import lru_cache

from safexplain.ledger.amounts import budgeted_loss, charged_loss
from safexplain.ledger.divergence import best_order, gaussian, gaussian_allowed, renyi, renyi_allowed
from safexplain.ledger.releases import Approximate, Gaussian, Release

OTHER_ORDERS = (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0)
MAIN, OTHER, WHOLE = 1 / 2, 1 / 32, 3 / 4
"""Parts of delta for the order of an account, for each other order, and for the gaussian rule."""


def conditions(rule: str, order: float) -> tuple[tuple[float, float], ...]:
    """Order (0 for the sum of mu^2) and part of delta of every condition on a loss."""
    if rule == "gaussian":
        return ((0.0, WHOLE),)
    return ((order, MAIN), *((other, OTHER) for other in OTHER_ORDERS)) if rule == "renyi" else ()


def losses(rule: str, order: float, release: Release) -> tuple[int, ...]:
    """What a release adds to the sum of each condition."""
    squared_mu = gaussian(release) * gaussian(release)
    return tuple(charged_loss(float(renyi(release, at)) if at else squared_mu) for at, _ in conditions(rule, order))


@lru_cache(maxsize=4096)
def losses_allowed(rule: str, order: float, epsilon: float, delta: float) -> tuple[int, ...]:
    """The most that the sum of each condition may be."""
    allowed = []
    for at, share in conditions(rule, order):
        part, limit = delta * share, 0.0
        if part > 0 and epsilon >= 0:
            limit = float(renyi_allowed(at, epsilon, part)) if at else gaussian_allowed(epsilon, part)
        allowed.append(budgeted_loss(limit * (1 - 1e-9)) if limit > 0 else -1)
    return tuple(allowed)


def called_for(release: Release, epsilon: float, delta: float) -> tuple[str, float]:
    """The rule, and its order, that this release calls for where so much is left."""
    if delta <= 0 or isinstance(release, Approximate):
        return "basic", 0.0
    if isinstance(release, Gaussian):
        return "gaussian", 0.0
    order = best_order(release, epsilon, delta * MAIN) if epsilon > 0 else 0.0
    return ("renyi", order) if order else ("basic", 0.0)
