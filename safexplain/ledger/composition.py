"""How releases add up: a privacy filter for adaptively chosen releases (rules and proof: docs/api/ledger.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from safexplain.ledger.releases import NEGLIGIBLE, Approximate, Concentrated, Release, Renyi, Training

AMOUNT = 10**30  # units per 1: whole numbers of 1e-30 add up exactly in any order
INFINITE_LOSS = 10**72  # units that stand for an infinite loss

_CUT = Context(prec=15, rounding=ROUND_FLOOR)
_EXACT = Context(prec=60)
_MARGIN = 1e-9


@lru_cache(maxsize=4096)
def charged(value: float) -> int:
    """Epsilon or delta of a release in units."""
    units = int(_EXACT.multiply(_CUT.create_decimal(repr(value)), Decimal(AMOUNT)))
    return units or int(value > 0)


@lru_cache(maxsize=4096)
def budgeted(value: float) -> int:
    """Epsilon or delta of a budget in units."""
    return int(_EXACT.multiply(Decimal(repr(value)), Decimal(AMOUNT)))


def amount(units: int) -> float:
    """Units as a number."""
    return units / AMOUNT


def charged_loss(value: float) -> int:
    """Renyi divergence of a release in units, rounded up."""
    units = value * (1 + _MARGIN) * AMOUNT
    return min(INFINITE_LOSS, math.ceil(units)) if math.isfinite(units) else INFINITE_LOSS


def budgeted_loss(value: float) -> int:
    """Allowed Renyi divergence in units, rounded down."""
    return max(0, math.floor(value * AMOUNT)) if value < INFINITE_LOSS / AMOUNT else INFINITE_LOSS - 1


def loss(units: int) -> float:
    """Units as a number; infinite from `INFINITE_LOSS` on."""
    return units / AMOUNT if units < INFINITE_LOSS else math.inf


ORDERS: NDArray[np.float64] = np.array([float(f"{1 + x:.5g}") for x in np.logspace(-1, 6, 700)])
"""Renyi orders from which `best_order` chooses."""

_SMALL = 0.01  # alpha * epsilon below which the bound alpha epsilon^2 / 2 is used, a relative 1e-4 too large


def renyi(release: Release, order: Any) -> Any:
    """Renyi divergence of one or several orders, ignoring failures of approximate releases."""
    curve = _curve_of(release)
    return curve.divergence(order) if curve else _pure(implied(release)[0], order)


def _curve_of(release: Any) -> Concentrated | Renyi | None:
    return release if isinstance(release, Concentrated | Renyi) else getattr(release, "curve", None)


def _pure(epsilon: float, order: Any) -> Any:
    """Divergence of randomised response, the largest of an epsilon-DP answer (Kairouz, Oh and Viswanath 2015, arXiv
    1311.0776, Theorem 3.2), at most order epsilon^2 / 2 (Bun and Steinke 2016, arXiv 1605.02065, Proposition 1.4)."""
    exact = (np.logaddexp((order - 1) * epsilon, -order * epsilon) - math.log1p(math.exp(-epsilon))) / (order - 1)
    return np.where(order * epsilon < _SMALL, order * (epsilon * epsilon) / 2, np.minimum(exact, epsilon))


@lru_cache(maxsize=4096)
def implied(release: Release) -> tuple[float, float]:
    """The (epsilon, delta) of a release, for sums of epsilons."""
    if isinstance(release, Concentrated | Renyi):
        return release.epsilon_at(release.delta), release.delta
    return release.epsilon, getattr(release, "delta", 0.0)


def renyi_allowed(order: Any, epsilon: float, delta: float) -> Any:
    """Renyi divergence of an order that implies (epsilon, delta); negative: none.

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
    """The order at which most copies of a release fit into (epsilon, delta); 0 if as many fit by their epsilons."""
    with np.errstate(over="ignore"):
        divergence = renyi(release, ORDERS)
    copies = renyi_allowed(ORDERS, epsilon, delta) / divergence
    best = int(np.argmax(copies))
    by_epsilon = 0.0 if _curve_of(release) else epsilon / implied(release)[0]
    return float(ORDERS[best]) if math.floor(copies[best]) > math.floor(by_epsilon * (1 + 1e-12)) else 0.0


def epsilon_alone(release: Release, delta: float) -> float:
    """Epsilon of a single release at a delta."""
    if isinstance(release, Concentrated | Renyi):
        return release.epsilon_at(delta) if delta > 0 else math.inf
    return release.epsilon


OTHER_ORDERS = (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0)
MAIN_SHARE, OTHER_SHARE = 1 / 2, 1 / 32
"""Shares of delta for the order of an account, and for each other order."""


def conditions(rule: str, order: float) -> tuple[tuple[float, float], ...]:
    """Order and share of delta of every condition on a divergence."""
    return ((order, MAIN_SHARE), *((other, OTHER_SHARE) for other in OTHER_ORDERS)) if rule == "renyi" else ()


@lru_cache(maxsize=4096)
def losses_allowed(rule: str, order: float, epsilon: float, delta: float) -> tuple[int, ...]:
    """Maximum of the sum of each condition."""
    allowed = []
    for at, share in conditions(rule, order):
        part, limit = delta * share, 0.0
        if part > 0 and epsilon >= 0:
            limit = float(renyi_allowed(at, epsilon, part))
        allowed.append(budgeted_loss(limit * (1 - 1e-9)) if limit > 0 else -1)
    return tuple(allowed)


def rule_for(release: Release, epsilon: float, delta: float) -> tuple[str, float]:
    """Rule and order that suit a release best, with this budget left."""
    if delta <= 0 or isinstance(release, Approximate):
        return "basic", 0.0
    if isinstance(release, Training) and (not release.epsilon or (release.delta and release.curve is None)):
        return "basic", 0.0
    order = best_order(release, epsilon, delta * MAIN_SHARE) if epsilon > 0 else 0.0
    return ("renyi", order) if order else ("basic", 0.0)


SWITCH_FACTOR = 4
"""A training switches an account to the renyi rule if so many times as many fit by curves as by epsilons."""

FAILURES = 4  # under the renyi rule, 1 / FAILURES of delta is for failures of approximate releases


@dataclass(frozen=True)
class Budget:
    """A limit (E, D)."""

    epsilon: float  # above 0; infinite: no limit
    delta: float = 0.0  # in [0, 1)


@dataclass(frozen=True)
class Composition:
    """Running sums of one account, in units."""

    rule: str = ""  # "" before the first release, "basic" or "renyi"
    order: float = 0.0  # alpha of the renyi rule, else 0
    prefix_epsilon: int = 0  # spent under the basic rule before a switch
    prefix_delta: int = 0
    epsilon: int = 0  # sum since then
    delta: int = 0
    loss: tuple[int, ...] = ()  # sums of Renyi divergences, one for each order
    unbounded: int = 0  # number of releases without an epsilon at delta 0
    charges: int = 0  # number of releases

    def add(self, release: Release, budget: Budget) -> Composition:
        """The sums with one more release, allowed or not, under a finite budget."""
        if self.rule == "renyi":
            return self.add_under_rule(release)
        epsilon, delta = budgeted(budget.epsilon) - self.epsilon, budgeted(budget.delta) - self.delta
        rule, order = rule_for(release, amount(epsilon), amount(delta))
        stays = replace(self, rule="basic").add_under_rule(release)
        if self.unbounded or rule == "basic" or (self.delta and not _curve_of(release) and rule == "renyi"):
            return stays
        switched = Composition(rule, order, self.epsilon, self.delta, charges=self.charges).add_under_rule(release)
        if isinstance(release, Training) and stays.within(budget):
            left = float(renyi_allowed(order, amount(epsilon), amount(delta) * MAIN_SHARE))
            by_curve = left / float(renyi(release, order))
            by_epsilon = amount(epsilon) / max(release.epsilon, NEGLIGIBLE)
            return switched if by_curve > SWITCH_FACTOR * by_epsilon and switched.within(budget) else stays
        return switched

    def add_under_rule(self, release: Release, times: int = 1) -> Composition:
        """The sums with more equal releases, without a switch of rule."""
        one = _sums_of(self.rule, self.order, release)
        before = self.loss or (0,) * len(one.loss)
        return Composition(
            self.rule, self.order, self.prefix_epsilon, self.prefix_delta,
            self.epsilon + times * one.epsilon,
            self.delta + times * one.delta,
            tuple([a + times * b for a, b in zip(before, one.loss, strict=True)]),
            self.unbounded + times * one.unbounded,
            self.charges + times,
        )  # fmt: skip

    def within(self, budget: Budget) -> bool:
        """Whether the filter for this budget allows these sums."""
        epsilon, delta = self._available(budget)
        if epsilon is None or not self.charges:
            return True
        if self.delta > (delta if self.rule == "basic" else delta // FAILURES):
            return False
        if not self.unbounded and self.epsilon <= epsilon:
            return True
        allowed = losses_allowed(self.rule, self.order, amount(epsilon), amount(delta))
        return any(spent <= limit for spent, limit in zip(self.loss, allowed, strict=True))

    def spent(self, budget: Budget) -> float:
        """The smallest epsilon that allows these sums at the budget's delta."""
        if not self.charges:
            return 0.0
        delta = self._available(budget)[1]
        found = math.inf if self.unbounded else amount(self.epsilon)
        for (order, share), units in zip(conditions(self.rule, self.order), self.loss, strict=True):
            if delta > 0:
                left = amount(delta) * share
                found = min(found, renyi_epsilon(order, loss(units), left))
        if self.delta > (delta if self.rule == "basic" else delta // FAILURES):
            return math.inf
        found += amount(self.prefix_epsilon)
        # Both ways to compute a limit may differ in the last digits.
        return min(found, budget.epsilon) if self.within(budget) else found

    def _available(self, budget: Budget) -> tuple[int | None, int]:
        """Initial epsilon (None: no limit) and delta of the current rule."""
        epsilon = None if math.isinf(budget.epsilon) else budgeted(budget.epsilon) - self.prefix_epsilon
        return epsilon, budgeted(budget.delta) - self.prefix_delta


@lru_cache(maxsize=4096)
def _sums_of(rule: str, order: float, release: Release) -> Composition:
    loss = tuple(charged_loss(float(renyi(release, at))) for at, _ in conditions(rule, order))
    if rule == "renyi" and _curve_of(release):
        return Composition(loss=loss, unbounded=1)
    epsilon, delta = implied(release)
    return Composition(epsilon=charged(epsilon), delta=charged(delta), loss=loss)
