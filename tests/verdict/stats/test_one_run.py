"""Lower bounds on epsilon from many canaries in one run: against simulation, slow formulas and published figures."""

import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, norm

from safexplain.errors import InputError
from safexplain.verdict.stats import clopper_pearson, one_run_lower_bound
from safexplain.verdict.stats.lower_bounds import gaussian_epsilon

DELTA = 1e-5
METHODS = ["f-dp", "steinke"]


def right_guesses(mu, canaries, guesses, repeats, q=1.0, steps=1):
    """Of canaries +1 or -1, each with noise of its own, the coins of the largest sums are guessed by their signs."""
    rng = np.random.default_rng([int(100 * mu), canaries, guesses])
    found = []
    for _ in range(repeats):
        sums = rng.binomial(steps, q, canaries) + rng.normal(0, math.sqrt(steps) * 2 / mu, canaries)  # coin: +1
        found.append(int((sums[np.argsort(-np.abs(sums))[:guesses]] > 0).sum()))
    return found


def bounds(counts, guesses, canaries, method, **settings):
    """The bound of each count, each computed once."""

    @cache
    def bound(correct):
        return one_run_lower_bound(correct, guesses, canaries, settings.get("delta", DELTA), method, **rest)

    rest = {k: v for k, v in settings.items() if k != "delta"}
    return np.array([bound(int(c)) for c in counts])


@pytest.mark.parametrize(
    ("mu", "canaries", "guesses", "method"),
    [(2.0, 10, 10, "f-dp"), (0.5, 200, 50, "steinke"), (2.0, 1000, 100, "f-dp")],
)
def test_a_bound_from_one_run_is_above_the_truth_in_at_most_5_percent_of_runs(mu, canaries, guesses, method):
    found = bounds(right_guesses(mu, canaries, guesses, 300), guesses, canaries, method)
    assert clopper_pearson(int((found > gaussian_epsilon(mu, DELTA)).sum()), 300, 0.98)[0] <= 0.05
    assert found.min() >= 0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_bound_that_assumes_nothing_is_exact_for_randomised_response(epsilon):
    right = np.random.default_rng(0).binomial(1000, 1 / (1 + math.exp(-epsilon)), 4000)
    above = int((bounds(right, 1000, 1000, "steinke", delta=0.0) > epsilon).sum())
    assert clopper_pearson(above, 4000)[0] <= 0.05
    assert clopper_pearson(above, 4000)[1] >= 0.035


def slow_steinke(correct, guesses, canaries, epsilon, delta):
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [binom.pmf(k, guesses, p) for k in range(guesses + 1)]
    most = max(sum(pmf[correct - i : correct]) / i for i in range(1, correct + 1))
    return sum(pmf[correct:]) + 2 * canaries * delta * most


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "delta"),
    [(40, 50, 80, 0.0), (50, 50, 50, 1e-6), (70, 100, 4000, 1e-4), (40, 50, 80, 1e-4)],
)
def test_so_many_right_guesses_are_just_too_unlikely_below_the_bound(correct, guesses, canaries, delta):
    bound = one_run_lower_bound(correct, guesses, canaries, delta, "steinke")
    if delta < 1e-4:
        assert bound > 0
    below, above = (slow_steinke(correct, guesses, canaries, max(bound + side, 0), delta) for side in (-1e-3, 1e-3))
    assert below < 0.05 < above or (bound == 0 and below >= 0.05)


def slow_too_good(mu, correct, guesses, canaries, risk=0.05):
    """The recursion of arXiv 2410.22235, as it is printed, for Gaussian noise and two choices."""
    tau = risk * guesses / canaries
    r, h = [0.0] * (correct + 1), [0.0] * (correct + 1)
    r[correct], h[correct] = tau * correct / guesses, tau * (guesses - correct) / guesses
    for i in reversed(range(correct)):
        h[i] = max(h[i + 1], norm.cdf(norm.ppf(r[i + 1]) - mu))
        r[i] = r[i + 1] + i / (guesses - i) * (h[i] - h[i + 1])
        if r[i] >= 1:
            return True
    return r[0] + h[0] > guesses / canaries


@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(8, 8, 10), (45, 50, 100), (90, 100, 1000), (60, 80, 80)])
def test_the_bound_of_a_family_is_where_the_printed_recursion_turns(correct, guesses, canaries):
    bound = one_run_lower_bound(correct, guesses, canaries, DELTA)
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slow_too_good(middle, correct, guesses, canaries) else (low, middle)
    assert 0.994 * gaussian_epsilon(low, DELTA) <= bound <= gaussian_epsilon(low, DELTA) + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_more_right_guesses_raise_the_bound_up_to_its_ceiling(method):
    found = [one_run_lower_bound(c, 60, 300, DELTA, method) for c in (0, 30, 40, 50, 59, 60)]
    assert found == sorted(found)
    assert found[1] == 0 < found[3]
    assert found[-1] == one_run_lower_bound(60, 60, 300, DELTA, method)
    assert one_run_lower_bound(20, 20, 300, DELTA, method) < found[-1]
    assert one_run_lower_bound(60, 60, 300, DELTA, method, confidence=0.99) < found[-1]


def test_the_mechanism_that_is_claimed_matters_to_its_family_only():
    few = {"sample_rate": 0.9, "steps": 2}
    assert one_run_lower_bound(55, 60, 300, DELTA, "steinke", **few) == one_run_lower_bound(
        55, 60, 300, DELTA, "steinke"
    )
    assert one_run_lower_bound(55, 60, 300, DELTA, **few) != one_run_lower_bound(55, 60, 300, DELTA)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((11, 10, 10, DELTA), "11 correct of 10 guesses"),
        ((-1, 10, 10, DELTA), "-1 correct"),
        ((5, 10, 9, DELTA), "of 9 canaries"),
        ((0, 0, 9, DELTA), "at least one guess"),
        ((5, 10, 10, 1.0, "steinke"), "delta"),
        ((5, 10, 10, DELTA, "pld"), "method: expected one of f-dp, steinke"),
        ((5, 5, 10, DELTA, "f-dp"), "confidence"),
    ],
)
def test_one_run_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        one_run_lower_bound(*arguments, confidence=0.0 if message == "confidence" else 0.95)


def test_one_guess_is_enough_for_a_bound():
    """Right in at least 4 of 5 cases, if such a bound is wrong in at most 4 of 5."""
    assert one_run_lower_bound(1, 1, 1, 0.0, "steinke", confidence=0.2) == pytest.approx(math.log(4), abs=1e-6)
    assert one_run_lower_bound(0, 1, 1, DELTA) == 0
