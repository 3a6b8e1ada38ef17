"""Lower bounds on epsilon from one training run with many canaries.

Each canary is a pair of opposite gradients, of which a fair coin puts one into the training set. The number of guessed
coins must be fixed beforehand: the best of several numbers is no bound, unless they share 1 - confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from safexplain._privacy_loss import SMALLEST_DELTA
from safexplain.errors import InputError
from safexplain.verdict.stats.roc import check_confidence
from safexplain.verdict.stats.tradeoff import Claimed, TradeOff, confidence_and_family, smallest_refuted

OneRunMethod = Literal["f-dp", "steinke"]


def one_run_lower_bound(
    correct: int, guesses: int, canaries: int, delta: float, method: OneRunMethod = "f-dp", **claimed: Unpack[Claimed]
) -> float:
    """Lower bound on epsilon under substitution from guessed coins of canaries in one run.

    - "steinke": assumes nothing about the mechanism (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Theorem 5.2).
    - "f-dp": assumes the sampled Gaussian mechanism of this sampling rate, steps and sampling, with some noise
      (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235, Algorithm 3), and finds more.

    Args:
        correct: number of correct guesses.
        guesses: number of guessed coins, fixed beforehand.
        canaries: number of coins.
        delta: of the epsilon, in (0, 1); 0 is allowed for "steinke".
        method: one of these.
        claimed: `confidence` of the bound, and, for "f-dp", the claimed mechanism, as in `epsilon_from_errors`.

    Raises:
        InputError: not 0 <= correct <= guesses <= canaries, no guesses, or delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling out of range.
    """
    confidence, family = confidence_and_family(claimed)
    risk = 1 - confidence
    _check(correct, guesses, canaries, delta, method, confidence)
    if 2 * correct <= guesses:
        return 0.0
    if method == "steinke":
        return smallest_root(lambda epsilon: _probability(correct, guesses, canaries, epsilon, delta) - risk)
    return smallest_refuted(family, delta, lambda curve: _is_too_good(curve, correct, guesses, canaries, risk))[0]


def smallest_root(excess: Callable[[float], float]) -> float:
    """The root of a rising function of epsilon, at least 0, within 1e-6."""
    if excess(0.0) >= 0:
        return 0.0
    top = 1.0
    while excess(top) < 0:
        top *= 2
    return float(brentq(excess, 0.0, top, xtol=1e-6))


def _probability(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least this many correct guesses under (epsilon, delta)-DP.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with B ~ Binomial(guesses, e^eps / (1 + e^eps)).
    """
    right = 1 / (1 + np.exp(-epsilon))
    just_below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    excess = float((just_below / np.arange(1, correct + 1)).max(initial=0.0))
    return float(binom.sf(correct - 1, guesses, right)) + 2 * canaries * delta * excess


def _is_too_good(curve: TradeOff, correct: int, guesses: int, canaries: int, risk: float) -> bool:
    """Whether a mechanism of this trade-off curve has this many correct guesses with a probability below the risk.

    If their probability equalled the risk, correct and wrong guesses would have to add up to more than there are. For a
    curve f that is its own mirror image, 1 - f turns the probability of an event under one data set into the largest
    under the other, and x -> f(1 - x) back.
    """
    share = guesses / canaries
    right, wrong = risk * share * correct / guesses, risk * share * (guesses - correct) / guesses
    for i in range(correct - 1, -1, -1):
        more = max(wrong, float(curve(1 - right)))
        right += i / (guesses - i) * (more - wrong)
        wrong = more
        if right + wrong > share:
            return True
    return False


def _check(correct: int, guesses: int, canaries: int, delta: float, method: str, confidence: float) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise InputError(
            "expected 0 <= correct <= guesses <= canaries and at least one guess, got"
            f" {correct} correct of {guesses} guesses of {canaries} canaries"
        )
    if method not in ("f-dp", "steinke"):
        raise InputError(f"method: expected one of f-dp, steinke, got {method!r}")
    check_confidence(confidence)
    if not 0 <= delta < 1 or (method == "f-dp" and delta < SMALLEST_DELTA):
        raise InputError(f"delta: expected a number in [0, 1), at least {SMALLEST_DELTA:g} for f-dp; got {delta!r}")
