"""S1: the sums of the worst pair of data sets, and what a bound finds in them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from safexplain.audit.canaries.run import worst_case_scores
from safexplain.dp import Steps
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.result import Claim, judge

MECHANISM = Steps(5.5728, 0.25, 500)


def slowly(mechanism: Steps, runs: int, sign: int, rng: np.random.Generator) -> np.ndarray:
    """Step by step."""
    total = np.zeros(runs)
    for _ in range(mechanism.steps):
        total += sign * (rng.random(runs) < mechanism.sample_rate)
        total += rng.normal(0, mechanism.noise_multiplier, runs)
    return total


def test_sums_have_the_distribution_of_the_steps_taken_one_by_one():
    rng = np.random.default_rng(0)
    fast = worst_case_scores(MECHANISM, 20_000, every=250, rng=rng)
    assert stats.ks_2samp(fast.d[-1], slowly(MECHANISM, 5000, 1, rng)).pvalue > 0.01
    assert stats.ks_2samp(fast.d_prime[-1], slowly(MECHANISM, 5000, -1, rng)).pvalue > 0.01
    assert stats.ks_2samp(fast.d[-1], slowly(Steps(5.5728, 0.2, 500), 5000, 1, rng)).pvalue < 1e-6
    half = Steps(5.5728, 0.25, 250)
    assert stats.ks_2samp(fast.d[0], slowly(half, 5000, 1, rng)).pvalue > 0.01


def test_the_bound_is_between_the_two_epsilons_and_below_the_truth():
    scores = worst_case_scores(MECHANISM, 5000, rng=np.random.default_rng(1))
    found = judge(scores, Claim(MECHANISM, 1e-5), scenario="worst-case", threshold=0.0)
    assert found.claim.add_remove < 7.5 < found.epsilon_lower < found.claim.substitute
    noisier = worst_case_scores(Steps(2.5, 0.25, 500), 5000, rng=np.random.default_rng(1))
    assert judge(noisier, Claim(MECHANISM, 1e-5), scenario="S1", threshold=0.0).verdict == "refuted"


def test_audited_steps_end_with_the_last():
    for steps, every, audited in ((500, None, (500,)), (10, 4, (4, 8, 10)), (8, 4, (4, 8))):
        found = worst_case_scores(Steps(1.0, 0.25, steps), 4, every=every, rng=np.random.default_rng(0))
        assert found.steps == audited


@pytest.mark.parametrize(
    ("mechanism", "runs", "every", "says"),
    [(MECHANISM, 3, None, "even number"), (Steps(0.0, 0.25, 5), 10, None, "noise")],
)
def test_what_cannot_be_drawn_is_refused(mechanism, runs, every, says):
    with pytest.raises(ConfigurationError, match=says):
        worst_case_scores(mechanism, runs, every=every, rng=np.random.default_rng(0))
