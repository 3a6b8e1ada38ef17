"""How releases add up, and when the next one must be refused: a privacy filter for adaptively chosen releases.

Who asks chooses each release, its kind and its parameters after seeing all earlier answers, and may stop at any time.
The ledger sees only the parameters. A filter is right for (E, D) if, whatever the asker does, everything that was
answered is (E, D)-differentially private. (Fixed-sequence accounting is not: Rogers, Roth, Ullman and Vadhan 2016,
arXiv 1605.08294.) There are two rules:

**basic**: sum of epsilons <= E and sum of deltas <= D.

**renyi**: sum of deltas <= D / 4, and one of these: sum of epsilons <= E; or sum of Renyi divergences of order alpha
<= R, R being the divergence that implies (E, D / 2); or the same of one of eight other orders and (E, D / 32). The
eight serve streams that turn out different from their beginning, and tell how much of a large budget is spent.

Gaussian answers, trainings and other releases that are known by their Renyi divergences (`safexplain.ledger.curves`)
are added up under the renyi rule, to which an account changes when one comes. Where no delta is left for a change, they
count as the (epsilon, delta) that they imply at a delta of their own.

A model's training is known by an (epsilon, delta), mostly by a Renyi curve too. Under the basic rule it counts as
(epsilon, delta), under the renyi rule by its curve, where it has one. An account under the basic rule stays there if
the training fits, unless by curves more than four times as many such trainings would fit as their epsilons add up to,
so that hardly any answers could lose by it; then, and where the training does not fit otherwise, the account changes to
the renyi rule. So (1, 1e-5) counts as just that in a budget of (2, 1e-5), and leaves room for four answers of 1/4; one
of (8, 1e-5) holds 32 such trainings by their curves. It is a choice by parameters alone, as every change of rule is, so
that the proof holds.

An account begins under the basic rule. It changes once, for good, to the renyi rule when a Renyi curve comes (it has no
epsilon at delta 0), or a pure release of which more copies would then fit, unless approximate ones came before, which
the basic rule serves better. What was spent by then, (e, d), stays spent; the new rule has (E - e, D - d). As that
depends on parameters only, most accounts change at their first release, with e = d = 0. Alpha is the order at which the
most copies of the release that brought the change fit. With D = 0 there is only the basic rule.

Proof. Fix two neighbouring data sets with distributions P, Q of the transcript; by symmetry it is enough to show
P(S) <= e^E Q(S) + D. The asker's coins are the same under both, so fix them too.

1. Failures. An (eps_i, delta_i) answer is a post-processing of: with probability delta_i tell which data set it is
   (fail), else randomised response with eps_i (Kairouz, Oh and Viswanath 2015, arXiv 1311.0776, Theorem 3.3). Let F be
   "some answer failed". The i-th fails with probability delta_i given the past, so P(F) <= E_P[deltas answered up to
   the first failure] <= sup of the sum of deltas. On transcripts without failure both densities are those of a process
   that cannot fail (P', Q') times the same product of 1 - delta_i, which the transcript determines.
2. basic. Without failure log(p/q) <= sum of epsilons <= E, so P(S) <= P(F) + e^E Q(S - F) <= e^E Q(S) + D. (Releases
   being chosen adaptively, the sums are random; only that they never pass E and D is used.)
3. renyi, of P'. Let L be log(p'/q') after n answers, rho the sum of divergences. exp((alpha - 1)(L - rho)) is a
   supermartingale, as E_P[exp((alpha - 1) l_i) given the past] <= exp((alpha - 1) rho_i); and rho <= R always, so
   E_P exp((alpha - 1) L) <= exp((alpha - 1) R): the process is (alpha, R)-RDP (Feldman and Zrnic 2021, arXiv
   2008.11193, Theorem 3.1), hence P'(S) <= e^E Q'(S) + D / 2, also when both are weighted by a factor in [0, 1].
   Alpha is fixed before the first of these answers, and therefore kept with the account.
4. One of several conditions. Sort transcripts by the first condition that their sums meet at the end: A_0 (epsilons),
   A_1 (alpha), ..., A_9. Sums only grow, so one in A_k met condition k at every answer, and was refused only what
   condition k refuses: on A_k the process is that of condition k alone. P(S) <= P(F) + sum over k of P(S and A_k - F)
   <= D / 4 + sum over k of (e^E Q(S and A_k) + D_k), with D_0 = 0, D_1 = D / 2 and eight times D / 32: D in all. With
   all of D for each condition this would be false: who sees a low loss could go on to spend D on approximate answers,
   who sees a high one to spend D on another condition (tests/ledger/test_adversary.py plays the best such
   strategies, against this filter and against that one).
5. Change of rule. After a past without failure what follows is (E - e, D - d)-DP, so with F1 the failures before the
   change P(S) <= P(F1) + e^E Q(S) + E_P[(D - d) 1(not F1)]. As P(F1) = E_P[deltas answered up to the first failure]
   <= E_P[d 1(not F1)] + D P(F1), the terms beside e^E Q(S) are together at most D.
6. Budgets that are raised, not because of what was answered, leave rule, alpha and (e, d) as they are. Every condition
   then only widens, so the whole is as if the larger budget had held from the start.

Periods: each has a filter of its own, and the proof holds given everything before it; k periods are together
(k E, k D)-DP, which a limit on the total of all principals can cap.

Amounts are whole numbers, so that sums are exact: ten charges of 0.1 are 1.0, in whatever order they are added. Epsilon
and delta are counted in 1e-30 after being cut to 15 significant decimal digits, which is what a double is sure
to hold: 0.1 + 0.2 counts as 0.3, and three charges of a third fill a budget of 1. Nothing above 0 counts as 0. Budgets
are counted as they stand. What is promised thus holds up to a relative 1e-14 in epsilon and delta. Losses (Renyi
divergences) come from floating-point formulas; they are counted in the same units and rounded up by more than the
formulas' error.

The loss of a pure release is the Renyi divergence of order alpha of randomised response, in both directions, of which
every epsilon-DP answer is a post-processing (Kairouz, Oh and Viswanath 2015, arXiv 1311.0776, Theorem 3.2): log(p^alpha
q^(1 - alpha) + q^alpha p^(1 - alpha)) / (alpha - 1), p = e^eps / (1 + e^eps), q = 1 - p. It is at most alpha epsilon^2
/ 2 (Bun and Steinke 2016, arXiv 1605.02065, Proposition 1.4), which stands in where the formula would cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from safexplain.ledger.curves import Concentrated, Renyi
from safexplain.ledger.releases import NEGLIGIBLE, Approximate, Pure, Release, Training

AMOUNT = 10**30
"""Units in one: epsilons, deltas and losses are counted in 1e-30."""

NEVER = 10**72
"""An infinite loss."""

_CUT = Context(prec=15, rounding=ROUND_FLOOR)
_EXACT = Context(prec=60)
_MARGIN = 1e-9


@lru_cache(maxsize=4096)
def charged(value: float) -> int:
    """Epsilon or delta of a release, in units of 1e-30; at least one unit, but for 0."""
    units = int(_EXACT.multiply(_CUT.create_decimal(repr(value)), Decimal(AMOUNT)))
    return units or int(value > 0)


@lru_cache(maxsize=4096)
def budgeted(value: float) -> int:
    """Epsilon or delta of a budget, in units of 1e-30."""
    return int(_EXACT.multiply(Decimal(repr(value)), Decimal(AMOUNT)))


def amount(units: int) -> float:
    """Units of 1e-30 as a number."""
    return units / AMOUNT


def charged_loss(value: float) -> int:
    """Renyi divergence of a release, in units of 1e-30, rounded up."""
    units = value * (1 + _MARGIN) * AMOUNT
    return min(NEVER, math.ceil(units)) if math.isfinite(units) else NEVER


def budgeted_loss(value: float) -> int:
    """Divergence that the rule allows, in units of 1e-30."""
    return max(0, math.floor(value * AMOUNT)) if value < NEVER / AMOUNT else NEVER - 1


def loss(units: int) -> float:
    """Units of 1e-30 as a number; from `NEVER` on infinite."""
    return units / AMOUNT if units < NEVER else math.inf


ORDERS: NDArray[np.float64] = np.array([float(f"{1 + x:.5g}") for x in np.logspace(-1, 6, 700)])
"""Renyi orders among which one is chosen."""

_SMALL = 0.01
"""Below this alpha * epsilon the bound alpha epsilon^2 / 2 is used; it is at most a relative 1e-4 too large."""


def renyi(release: Release, order: Any) -> Any:
    """Renyi divergence of the order (a number or an array), failures of approximate releases left out."""
    if isinstance(release, Concentrated | Renyi):
        return release.divergence(order)
    if isinstance(release, Training) and (curve := release.curve):
        return curve.divergence(order)
    return _pure(release.epsilon, order)


def _has_curve(release: Release) -> bool:
    """Whether the renyi rule counts it by divergences that come with it, and not by its epsilon."""
    return isinstance(release, Concentrated | Renyi) or (isinstance(release, Training) and release.curve is not None)


def _pure(epsilon: float, order: Any) -> Any:
    whole = (np.logaddexp((order - 1) * epsilon, -order * epsilon) - math.log1p(math.exp(-epsilon))) / (order - 1)
    return np.where(order * epsilon < _SMALL, order * (epsilon * epsilon) / 2, np.minimum(whole, epsilon))


@lru_cache(maxsize=4096)
def implied(release: Pure | Approximate | Concentrated | Renyi | Training) -> tuple[float, float]:
    """The (epsilon, delta) that a release counts as where epsilons are added up."""
    if isinstance(release, Concentrated | Renyi):
        return release.epsilon_at(release.delta), release.delta
    return release.epsilon, release.delta if isinstance(release, Approximate | Training) else 0.0


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
    added = 0.0 if _has_curve(release) else epsilon / implied(release)[0]
    return float(ORDERS[best]) if math.floor(copies[best]) > math.floor(added * (1 + 1e-12)) else 0.0


def epsilon_alone(release: Release, delta: float) -> float:
    """Epsilon of one release by itself at a delta, for messages."""
    if isinstance(release, Concentrated | Renyi):
        return release.epsilon_at(delta) if delta > 0 else math.inf
    return release.epsilon


OTHER_ORDERS = (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0)
MAIN, OTHER = 1 / 2, 1 / 32
"""Parts of delta for the order of an account, and for each other order."""


def conditions(rule: str, order: float) -> tuple[tuple[float, float], ...]:
    """Order and part of delta of every condition on a divergence."""
    return ((order, MAIN), *((other, OTHER) for other in OTHER_ORDERS)) if rule == "renyi" else ()


def losses(rule: str, order: float, release: Release) -> tuple[int, ...]:
    """What a release adds to the sum of each condition."""
    return tuple(charged_loss(float(renyi(release, at))) for at, _ in conditions(rule, order))


@lru_cache(maxsize=4096)
def losses_allowed(rule: str, order: float, epsilon: float, delta: float) -> tuple[int, ...]:
    """The most that the sum of each condition may be."""
    allowed = []
    for at, share in conditions(rule, order):
        part, limit = delta * share, 0.0
        if part > 0 and epsilon >= 0:
            limit = float(renyi_allowed(at, epsilon, part))
        allowed.append(budgeted_loss(limit * (1 - 1e-9)) if limit > 0 else -1)
    return tuple(allowed)


def called_for(release: Release, epsilon: float, delta: float) -> tuple[str, float]:
    """The rule, and its order, that this release calls for where so much is left."""
    if delta <= 0 or isinstance(release, Approximate) or (isinstance(release, Training) and not release.epsilon):
        return "basic", 0.0
    if isinstance(release, Training) and release.delta and release.curve is None:
        return "basic", 0.0
    order = best_order(release, epsilon, delta * MAIN) if epsilon > 0 else 0.0
    return ("renyi", order) if order else ("basic", 0.0)


WORTH = 4
"""How many times as many trainings must fit by curves as by epsilons, for an account to leave the basic rule for it."""

FAILURES = 4
"""One part in so many of delta is for failures of approximate releases, unless the rule is basic."""


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Args:
        epsilon: E, above 0; infinite for no limit.
        delta: D, in [0, 1).
    """

    epsilon: float
    delta: float = 0.0


@dataclass(frozen=True)
class Composition:
    """Running sums of one account, all that a decision needs, in units of 1e-30.

    Args:
        rule: "" before the first release, "basic" or "renyi".
        order: alpha of the renyi rule, else 0.
        prefix_epsilon: spent under the basic rule before another.
        prefix_delta: the same of delta.
        epsilon: sum since then.
        delta: sum since then.
        loss: sums of Renyi divergences, one an order.
        unbounded: how many releases have no epsilon at delta 0.
        charges: number of releases.
    """

    rule: str = ""
    order: float = 0.0
    prefix_epsilon: int = 0
    prefix_delta: int = 0
    epsilon: int = 0
    delta: int = 0
    loss: tuple[int, ...] = ()
    unbounded: int = 0
    charges: int = 0

    def add(self, release: Release, budget: Budget) -> Composition:
        """The sums with one more release; whether they are allowed is another question. The budget is finite."""
        if self.rule == "renyi":
            return self.add_under_rule(release)
        epsilon, delta = budgeted(budget.epsilon) - self.epsilon, budgeted(budget.delta) - self.delta
        rule, order = called_for(release, amount(epsilon), amount(delta))
        stays = replace(self, rule="basic").add_under_rule(release)
        if self.unbounded or rule == "basic" or (self.delta and not _has_curve(release) and rule == "renyi"):
            return stays
        changed = Composition(rule, order, self.epsilon, self.delta, charges=self.charges).add_under_rule(release)
        if isinstance(release, Training) and stays.within(budget):
            left = float(renyi_allowed(order, amount(epsilon), amount(delta) * MAIN))
            many = left / float(renyi(release, order)) > WORTH * amount(epsilon) / max(release.epsilon, NEGLIGIBLE)
            return changed if many and changed.within(budget) else stays
        return changed

    def add_under_rule(self, release: Release, times: int = 1) -> Composition:
        """`add` without a change of rule, of several equal releases."""
        one = _alone(self.rule, self.order, release)
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
        """Whether a filter for the budget allows these sums."""
        epsilon, delta = self._left(budget)
        if epsilon is None or not self.charges:
            return True
        if self.delta > (delta if self.rule == "basic" else delta // FAILURES):
            return False
        if not self.unbounded and self.epsilon <= epsilon:
            return True
        allowed = losses_allowed(self.rule, self.order, amount(epsilon), amount(delta))
        return any(spent <= limit for spent, limit in zip(self.loss, allowed, strict=True))

    def spent(self, budget: Budget) -> float:
        """The smallest epsilon for which these sums would be allowed at the budget's delta; it may be infinite."""
        if not self.charges:
            return 0.0
        delta = self._left(budget)[1]
        found = math.inf if self.unbounded else amount(self.epsilon)
        for (order, share), units in zip(conditions(self.rule, self.order), self.loss, strict=True):
            if delta > 0:
                left = amount(delta) * share
                found = min(found, renyi_epsilon(order, loss(units), left))
        if self.delta > (delta if self.rule == "basic" else delta // FAILURES):
            return math.inf
        found += amount(self.prefix_epsilon)
        # The two ways to compute a limit may differ in the last digits; what was allowed is never more than allowed.
        return min(found, budget.epsilon) if self.within(budget) else found

    def _left(self, budget: Budget) -> tuple[int | None, int]:
        """What the current rule had to begin with, of epsilon (None: no limit) and delta."""
        epsilon = None if math.isinf(budget.epsilon) else budgeted(budget.epsilon) - self.prefix_epsilon
        return epsilon, budgeted(budget.delta) - self.prefix_delta


@lru_cache(maxsize=4096)
def _alone(rule: str, order: float, release: Release) -> Composition:
    """The sums of one release."""
    loss = losses(rule, order, release)
    if rule == "renyi" and _has_curve(release):
        return Composition(loss=loss, unbounded=1)
    epsilon, delta = implied(release)
    return Composition(epsilon=charged(epsilon), delta=charged(delta), loss=loss)
