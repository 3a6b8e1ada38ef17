"""Accounting: the published values, an independent oracle, and what must be refused."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from safexplain._privacy_loss import Steps, check_delta, composed, epsilons, group_privacy_epsilon
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
