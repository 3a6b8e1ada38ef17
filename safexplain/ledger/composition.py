"""How releases add up, and when the next one must be refused: a privacy filter for adaptively chosen releases.

Who asks chooses each release, its kind and its parameters after seeing all earlier answers, and may stop at any time.
The ledger sees only the parameters. A filter is right for (E, D) if, whatever the asker does, everything that was
answered is (E, D)-differentially private. (Fixed-sequence accounting is not: Rogers, Roth, Ullman and Vadhan 2016,
arXiv 1605.08294.) There are three rules:

**basic**: sum of epsilons <= E and sum of deltas <= D.

**renyi**: sum of deltas <= D / 4, and one of these: sum of epsilons <= E; or sum of Renyi divergences of order alpha
<= R, R being the divergence that implies (E, D / 2); or the same of one of eight other orders and (E, D / 32). The
eight serve streams that turn out different from their beginning, and tell how much of a large budget is spent.

**gaussian**: sum of deltas <= D / 4 and sum of mu^2 <= m^2, m-GDP being what implies (E, 3 D / 4); pure answers count
with the mu that they satisfy.

An account begins under the basic rule. It changes once, for good, to the gaussian rule when a Gaussian release comes
(it has no epsilon at delta 0), or to the renyi rule when a pure or Laplace release comes of which more copies would
then fit, unless approximate ones came before, which the basic rule serves better. What was spent by then, (e, d), stays
spent; the new rule has (E - e, D - d). As that depends on parameters only, most accounts change at their first release,
with e = d = 0. Alpha is the order at which the most copies of the release that brought the change fit. With D = 0 there
is only the basic rule.

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
4. gaussian, of P'. Each answer is a post-processing of N(b mu_i, 1), b in {0, 1}; that is, of the increment over a time
   mu_i^2 of a Brownian motion with drift b. Times chosen adaptively with sum <= m^2 only read its path on [0, m^2],
   which is m-GDP (Smith and Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben and Honkela 2022, arXiv 2209.15596).
5. One of several conditions. Sort transcripts by the first condition that their sums meet at the end: A_0 (epsilons),
   A_1 (alpha), ..., A_9. Sums only grow, so one in A_k met condition k at every answer, and was refused only what
   condition k refuses: on A_k the process is that of condition k alone. P(S) <= P(F) + sum over k of P(S and A_k - F)
   <= D / 4 + sum over k of (e^E Q(S and A_k) + D_k), with D_0 = 0, D_1 = D / 2 and eight times D / 32: D in all. With
   all of D for each condition this would be false: who sees a low loss could go on to spend D on approximate answers,
   who sees a high one to spend D on another condition (tests/ledger/test_ledger_adversary.py plays the best such
   strategies, against this filter and against that one).
6. Change of rule. After a past without failure what follows is (E - e, D - d)-DP, so with F1 the failures before the
   change P(S) <= P(F1) + e^E Q(S) + E_P[(D - d) 1(not F1)]. As P(F1) = E_P[deltas answered up to the first failure]
   <= E_P[d 1(not F1)] + D P(F1), the terms beside e^E Q(S) are together at most D.
7. Budgets that are raised, not because of what was answered, leave rule, alpha and (e, d) as they are. Every condition
   then only widens, so the whole is as if the larger budget had held from the start.

Periods: each has a filter of its own, and the proof holds given everything before it; k periods are together
(k E, k D)-DP, which a limit on the total of all principals can cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from safexplain.ledger.amounts import amount, budgeted, charged, loss
from safexplain.ledger.conditions import called_for, conditions, losses, losses_allowed
from safexplain.ledger.divergence import gaussian_epsilon, renyi_epsilon
from safexplain.ledger.releases import Approximate, Gaussian, Release

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
    """Running sums of one account, all that a decision needs; amounts in the units of `amounts`.

    Args:
        rule: "" before the first release, "basic", "renyi" or "gaussian".
        order: alpha of the renyi rule, else 0.
        prefix_epsilon: spent under the basic rule before another.
        prefix_delta: the same of delta.
        epsilon: sum since then.
        delta: sum since then.
        loss: sums of Renyi divergences, one an order, or the sum of mu^2.
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
        if self.rule in ("renyi", "gaussian"):
            return self.add_under_rule(release)
        epsilon, delta = budgeted(budget.epsilon) - self.epsilon, budgeted(budget.delta) - self.delta
        rule, order = called_for(release, amount(epsilon), amount(delta))
        if not self.unbounded and (rule == "gaussian" or (rule == "renyi" and not self.delta)):
            changed = Composition(rule, order, self.epsilon, self.delta, charges=self.charges)
            return changed.add_under_rule(release)
        return replace(self, rule="basic").add_under_rule(release)

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
        if self.rule != "gaussian" and not self.unbounded and self.epsilon <= epsilon:
            return True
        allowed = losses_allowed(self.rule, self.order, amount(epsilon), amount(delta))
        return any(spent <= limit for spent, limit in zip(self.loss, allowed, strict=True))

    def spent(self, budget: Budget) -> float:
        """The smallest epsilon for which these sums would be allowed at the budget's delta; it may be infinite."""
        if not self.charges:
            return 0.0
        delta = self._left(budget)[1]
        found = amount(self.epsilon) if self.rule != "gaussian" and not self.unbounded else math.inf
        for (order, share), units in zip(conditions(self.rule, self.order), self.loss, strict=True):
            if delta > 0:
                left = amount(delta) * share
                by_loss = renyi_epsilon(order, loss(units), left) if order else gaussian_epsilon(loss(units), left)
                found = min(found, by_loss)
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
    return Composition(
        epsilon=0 if isinstance(release, Gaussian) else charged(release.epsilon),
        delta=charged(release.delta) if isinstance(release, Approximate) else 0,
        loss=losses(rule, order, release),
        unbounded=int(isinstance(release, Gaussian)),
    )
