"""Accounting and calibration: the published values, an independent oracle, budgets that are kept, refusals."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from safexplain import _privacy_loss as accounting
from safexplain._privacy_loss import Steps, check_delta, composed, epsilons, group_privacy_epsilon
from safexplain.dp import noise_multiplier, steps_within
from safexplain.errors import ConfigurationError, WeakDeltaWarning

NEIGHBORS = {
    "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "substitute": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


PUBLISHED = [
    (1.0, 22.3557, 4.378, 10.0),
    (0.25, 5.5728, 4.476, 10.0),
    (0.0625, 1.4028, 5.394, 9.9993),
    (1.0, 48.4033203125, 1.825, 3.995),
    (0.25, 12.1148681640625, 1.836, 3.988),
    (0.0625, 10.4949951171875, 0.471, 0.9927),  # .994 was published; finer and finer grids give .99268
    (0.0625, 3.017425537109375, 1.939, 3.999),
]
"""(q, sigma, epsilon under add/remove, under substitution) for 500 steps at delta 1e-5: the table behind "Beyond
Membership" (Pradhan et al.; seven of its rows), recomputed with two accountants that share no code with this one."""


def test_published_epsilons_come_out():
    q, sigma, *published = np.array(PUBLISHED).T
    spent = [epsilons(s, rate, 500, 1e-5) for rate, s in zip(q, sigma, strict=True)]
    found = np.array([(e.add_remove, e.substitute, e.zero_out) for e in spent]).T
    np.testing.assert_allclose(found, [*published, found[0]], atol=1.1e-3)


def test_full_batches_follow_the_closed_form():
    spent = epsilons(22.3557, 1.0, 500, 1e-5, sampling="full-batch")
    exact = dp_accounting.get_epsilon_gaussian(22.3557 / math.sqrt(500), 1e-5)
    assert spent.add_remove == pytest.approx(exact, abs=1e-6)
    phases = [Steps(3.0, 1.0, 4, "full-batch"), Steps(2.0, 1.0, 9, "full-batch")]  # distances of 2 / 3 and 3 / 2
    both = dp_accounting.get_epsilon_gaussian(1 / math.hypot(4 / 3, 3), 1e-5)
    assert composed(phases, 1e-5).substitute == pytest.approx(both, rel=1e-9)
    assert epsilons(1e-4, 1.0, 1, 1e-5).add_remove < math.inf == epsilons(0.99995e-4, 1.0, 1, 1e-5).add_remove
    assert str(spent) == (
        f"epsilon {exact:.3f} (one record added or removed), 10.000 (one record substituted) at delta 1e-05"
    )

    assert epsilons(22.3557, 1.0, 500, 1e-5) == spent == epsilons(22.3557, 1.0, 500, 1e-5, sampling="fixed-size")


def test_a_delta_as_large_as_the_total_variation_costs_nothing():
    """q (2 Phi(distance / 2) - 1) a step, at distances of 1 and, for a substitution, of 2."""
    for adjacency, distance in (("add_remove", 1), ("substitute", 2)):
        step = 1e-3 * (2 * norm.cdf(distance / 2) - 1)
        assert epsilons(1.0, 1e-3, 1, step * (1 + 1e-9)).of(adjacency) == 0
        assert epsilons(1.0, 1e-3, 1, step * 0.999).of(adjacency) > 0
        assert epsilons(1.0, 1e-3, 2, step * 1.2).of(adjacency) > 0


def test_a_record_of_a_fixed_size_replaces_another_as_if_noise_were_halved():
    """Both directions at once for one substitution."""
    fixed, halved = epsilons(5.5728, 0.25, 500, 1e-5, sampling="fixed-size"), epsilons(5.5728 / 2, 0.25, 500, 1e-5)
    assert fixed.add_remove == pytest.approx(halved.add_remove, rel=1e-9)
    one, half = epsilons(0.8, 0.25, 1, 1e-5, sampling="fixed-size"), epsilons(0.4, 0.25, 1, 1e-5)
    assert one.substitute == pytest.approx(half.add_remove, abs=2e-3)


def test_group_privacy_is_a_valid_but_looser_bound_and_doubling_is_none():
    for q, sigma, expected in ((1.0, 22.3557, 11.053095), (0.25, 5.5728, 11.402927), (0.0625, 1.4028, 14.793902)):
        found = group_privacy_epsilon(sigma, q, 500, 1e-5)
        assert found == pytest.approx(expected, abs=1e-5)
        assert found > epsilons(sigma, q, 500, 1e-5).substitute
    spent = epsilons(5.5728, 0.25, 500, 1e-5)
    assert 2 * spent.add_remove < spent.substitute


def test_no_steps_spend_nothing_and_no_noise_spends_everything():
    assert epsilons(1.0, 0.1, 0, 1e-5).substitute == 0
    assert epsilons(0.0, 0.1, 10, 1e-5).add_remove == math.inf
    assert group_privacy_epsilon(0.0, 0.1, 10, 1e-5) == group_privacy_epsilon(0.02, 0.5, 10, 1e-5) == math.inf
    assert group_privacy_epsilon(1.0, 0.1, 0, 1e-5) == group_privacy_epsilon(1.0, 0.1, 1, 0.5) == 0
    assert epsilons(0.01, 0.5, 10, 1e-5).substitute == math.inf


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"sample_rate": 1.2}, "sample_rate"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"steps": 1.5}, "steps"),
        ({"steps": -1}, "steps"),
        ({"steps": 10**12 + 1}, "at most 1e.12"),
        ({"delta": 9e-13}, r"delta: expected a number in \[1e-12, 1\)"),
        ({"delta": 1.0}, "delta"),
        ({"sampling": "poison"}, "sampling"),
        ({"sampling": "shuffle"}, "far too small for shuffled ones"),
        ({"sampling": "full-batch"}, "expected 1 with sampling=.full-batch., got 0.1"),
    ],
)
def test_impossible_values_are_refused_by_name(values, message):
    with pytest.raises(ConfigurationError, match=message):
        epsilons(**{"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5, **values})


def test_a_delta_of_one_over_the_records_warns():
    with pytest.warns(WeakDeltaWarning, match=r"the 1,000 records.*a random record in full.*use at most 0\.0001"):
        check_delta(1e-3, 1000)
    check_delta(0.9e-3, 1000)


def test_a_delta_below_what_rounding_could_cost_is_refused():
    with pytest.raises(ConfigurationError, match=r"at least 5e-09 for 1,000,000 steps.*cost 5e-10, got 1e-12"):
        epsilons(5, 1e-3, 1_000_000, 1e-12)
    with pytest.raises(ConfigurationError, match="for 201 steps"):
        epsilons(5, 1e-3, 201, 1e-12)
    assert composed([Steps(5, 1e-3, 199), Steps(50, 1.0, 199)], 1e-12).substitute > 0  # full batches are exact


def test_many_steps_at_a_small_delta_stay_an_upper_bound():
    """Batches of nearly all records, by the discretised way, against the closed form of full batches."""
    sigma = math.sqrt(20_000) / 4
    exact = epsilons(sigma, 1.0, 20_000, 1e-10)
    found = epsilons(sigma, 1 - 1e-15, 20_000, 1e-10)
    assert exact.add_remove <= found.add_remove < exact.add_remove * 1.01
    assert exact.substitute <= found.substitute < exact.substitute * 1.01


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 22.3557), (0.25, 5.5728), (0.0625, 1.4028)])
def test_published_noise_multipliers_come_out(q, sigma):
    assert noise_multiplier(10, q, 500, 1e-5, "substitute") == pytest.approx(sigma, abs=1e-3)


@pytest.mark.parametrize(
    ("target", "q", "steps", "delta", "adjacency", "sampling", "sigma"),
    [
        (3.0, 0.25, 40, 1e-5, "substitute", "poisson", 4.382427886397736),
        (0.2, 0.01, 300, 1e-6, "add_remove", "poisson", 3.4692285522536976),
        (30.0, 0.5, 3, 1e-5, "zero_out", "fixed-size", 0.6708899347953697),
        (100.0, 0.01, 1, 1e-5, "substitute", "poisson", 0.08503849021909239),
        (1e-3, 1.0, 4, 1e-9, "substitute", "full-batch", 16490.606903539378),
    ],
)
def test_noise_multipliers_stay_as_recorded(target, q, steps, delta, adjacency, sampling, sigma):
    """To less than the tolerance of the search, whose path depends on where it starts."""
    assert noise_multiplier(target, q, steps, delta, adjacency, sampling=sampling) == pytest.approx(sigma, rel=1e-8)


@settings(max_examples=6)
@given(
    target=st.floats(0.05, 30),
    q=st.floats(0.01, 1),
    steps=st.integers(1, 500),
    adjacency=st.sampled_from(["add_remove", "substitute", "zero_out"]),
    sampling=st.sampled_from(["poisson", "fixed-size"]),
)
def test_the_budget_is_kept_and_a_little_less_noise_would_pass_it(target, q, steps, adjacency, sampling):
    sigma = noise_multiplier(target, q, steps, 1e-5, adjacency, sampling=sampling)
    assert epsilons(sigma, q, steps, 1e-5, sampling=sampling).of(adjacency) <= target
    assert epsilons(sigma * 0.995, q, steps, 1e-5, sampling=sampling).of(adjacency) > target * (1 - 2e-3) - 1e-3


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
def test_the_last_allowed_step_keeps_the_budget_and_the_next_does_not(adjacency):
    steps = steps_within(3.0, 1.1, 0.05, 1e-5, adjacency)
    assert epsilons(1.1, 0.05, steps, 1e-5).of(adjacency) <= 3.0
    assert epsilons(1.1, 0.05, steps + 1, 1e-5).of(adjacency) > 3.0
    spent = epsilons(1.1, 0.05, steps, 1e-5).of(adjacency)
    assert steps_within(spent, 1.1, 0.05, 1e-5, adjacency) == steps, "a budget that is spent in full"


BUDGET = get_epsilon_gaussian(1.0, 1e-5)
"""What one Gaussian at a distance of one standard deviation spends."""


def test_full_batches_have_the_noise_and_the_steps_of_the_closed_form():
    """A distance of 1 is kept by sigma = sqrt(steps), twice that for a substitution, and by sigma^2 steps."""
    for adjacency, distance in (("add_remove", 1), ("substitute", 2)):
        sigma = noise_multiplier(BUDGET, 1.0, 100, 1e-5, adjacency, sampling="full-batch")
        assert 10 * distance <= sigma <= 10 * distance * (1 + 1e-4)
        assert steps_within(BUDGET, 50.001, 1.0, 1e-5, adjacency, sampling="full-batch") == 2500 // distance**2
        many = steps_within(BUDGET, 200.001, 1.0, 1e-5, adjacency, sampling="full-batch")
        assert 40_000 * (1 - 1 / 5000) <= many * distance**2 <= 40_000
    assert steps_within(BUDGET, 1e7, 1.0, 1e-5, sampling="full-batch") == 10_000_000


def test_steps_are_exact_up_to_ten_thousand_and_to_one_part_in_5000_above(monkeypatch):
    for most in (*range(1, 30), *range(9_970, 10_001), *range(60_000, 60_030)):
        monkeypatch.setattr(accounting, "epsilon_of", lambda phases, *_, most=most: phases[0].steps / most)
        found = steps_within(1.0, 1.0, 0.01, 1e-5)
        assert most - (11 if most > 10_000 else 0) <= found <= most


def test_a_search_for_noise_brackets_it_in_steps_that_double():
    """Up from the guess by .25, .5, 1, ...; then down; between 1e-6 and 1e7."""
    most, least = math.log(1e7), math.log(1e-6)
    for root, guess, expected in (
        (3.0, 0.0, (2.0, 3.75)),
        (3.0, 8.0, (0.25, 8.0)),
        (-2.0, -2.0, (-2.25, -2.0)),
        (0.25, 0.0, (0.0, 0.25)),
        (16.0, 0.0, (most - 0.25, most)),
        (9.0, 20.0, (most - 7.75, most)),
        (-13.5, 5.0, (least, 5.0)),
    ):
        assert accounting._bracket(lambda x, root=root: root - x, guess) == pytest.approx(expected, rel=1e-12)


def test_without_enough_noise_not_one_step_is_allowed():
    assert steps_within(0.1, 0.3, 0.5, 1e-5) == 0
    assert steps_within(1.0, 0.0, 0.5, 1e-5) == 0


def test_calibration_protects_what_a_record_says_unless_told_otherwise():
    assert noise_multiplier(2, 0.1, 50, 1e-5) == noise_multiplier(2, 0.1, 50, 1e-5, "substitute")
    assert noise_multiplier(2, 0.1, 50, 1e-5) > 1.3 * noise_multiplier(2, 0.1, 50, 1e-5, "add_remove")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_epsilon": 0}, "target_epsilon"),
        ({"adjacency": "replace"}, "add_remove, substitute"),
        ({"steps": 0}, "got 0, which needs no noise"),
        ({"target_epsilon": 1e-9, "delta": 1e-12}, "even a noise multiplier of 1e.07 spends more"),
        ({"sample_rate": 1e-5, "steps": 10, "delta": 1e-3}, "delta: expected much less than the probability"),
    ],
)
def test_impossible_budgets_are_refused(values, message):
    given_ = {"target_epsilon": 1.0, "sample_rate": 0.5, "steps": 10, "delta": 1e-5, **values}
    with pytest.raises(ConfigurationError, match=message):
        noise_multiplier(**given_)
