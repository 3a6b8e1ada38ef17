"""Calibration: the budget is kept, and not by much; the figure shows the accountant's numbers."""

import math

import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from safexplain import _privacy_loss as accounting
from safexplain.dp import epsilons, noise_multiplier, steps_within
from safexplain.errors import ConfigurationError


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
