"""Poisson batches that are cut down to a largest size: never accounted below the truth, and nearly for nothing."""

from __future__ import annotations

import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

from safexplain._privacy_loss import truncation
from safexplain.dp import Epsilons, PrivacyStatement, Steps, epsilons, noise_multiplier, steps_within
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.stats import epsilon_from_errors

ADJACENCIES = {
    "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "substitute": dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def truncated(noise, q, steps, largest, records=10_000):
    return Steps(noise, q, steps, "truncated-poisson", largest, records)


def spent(phase, delta=1e-5):
    return epsilons(
        phase.noise_multiplier,
        phase.sample_rate,
        phase.steps,
        delta,
        sampling=phase.sampling,
        largest_batch=phase.largest_batch,
        records=phase.records,
    )


def test_a_limit_that_is_hardly_ever_reached_costs_nothing():
    poisson = epsilons(1.0, 0.02, 1000, 1e-5)
    generous, tight = spent(truncated(1.0, 0.02, 1000, 400)), spent(truncated(1.0, 0.02, 1000, 302))
    assert poisson.substitute <= generous.substitute < poisson.substitute + 1e-5
    assert poisson.add_remove < tight.add_remove < 1.2 * poisson.add_remove
    assert poisson.substitute < tight.substitute < 1.2 * poisson.substitute


def test_a_limit_that_is_often_reached_guarantees_nothing():
    assert spent(truncated(1.0, 0.02, 1000, 230)) == Epsilons(math.inf, math.inf, math.inf, 1e-5)
    assert spent(truncated(9.0, 1.0, 10, 9_999)).substitute == math.inf
    assert spent(truncated(9.0, 1.0, 10, 10_000)).substitute == epsilons(9.0, 1.0, 10, 1e-5).substitute


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
def test_delta_grows_by_the_probability_of_a_cut_on_both_data_sets(adjacency):
    """The epsilon found has delta(epsilon) + (1 + exp(epsilon)) steps P(batch too large) = delta; none smaller has."""
    phase = truncated(1.0, 0.02, 1000, 302)
    larger = 10_001 if adjacency == "add_remove" else 10_000
    cut = 1000 * binom.sf(302, larger, 0.02)
    assert truncation([phase], adjacency) == pytest.approx(cut, rel=1e-9)
    accountant = PLDAccountant(ADJACENCIES[adjacency])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.0)), 1000)
    found = spent(phase).of(adjacency)
    assert accountant.get_delta(found) + (1 + math.exp(found)) * cut == pytest.approx(1e-5, rel=5e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_it_agrees_with_dp_accounting_where_hardly_a_batch_is_cut(adjacency):
    accountant = PLDAccountant(ADJACENCIES[adjacency])
    accountant.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(10_000, 0.02, 310, 1.0), 1000)
    assert spent(truncated(1.0, 0.02, 1000, 310)).of(adjacency) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


@pytest.mark.parametrize("rule", ["first", "last"])
@pytest.mark.parametrize(("records", "q", "largest"), [(6, 0.05, 2), (5, 0.1, 3)])
def test_no_rule_of_cutting_and_no_gradients_tell_more_than_the_bound(records, q, largest, rule):
    """One step, every batch of a small data set: the record of interest is kept first, or dropped first."""
    noise = 1.0
    x, cell = np.linspace(-12, 12, 20_001, retstep=True)

    def density(gradients):
        total, order = np.zeros_like(x), range(len(gradients)) if rule == "first" else range(len(gradients) - 1, -1, -1)
        for joined in itertools.product((0, 1), repeat=len(gradients)):
            weight = math.prod(q if j else 1 - q for j in joined)
            kept = [gradients[i] for i in order if joined[i]][:largest]
            total += weight * norm.pdf(x, sum(kept), noise)
        return total

    phase = truncated(noise, q, 1, largest, records)
    others = [-1.0, 1.0, -1.0, -1.0, -1.0, -1.0][: records - 1]
    for adjacency, one, two in (
        ("substitute", [1.0, *others], [-1.0, *others]),
        ("add_remove", [1.0, *others], others),
        ("add_remove", others, [1.0, *others]),
    ):
        p, r = density(one), density(two)
        for epsilon in (0.0, 0.1, 0.5, 1.0):
            delta = float(np.maximum(p - math.exp(epsilon) * r, 0).sum() * cell)
            poisson = PLDAccountant(ADJACENCIES[adjacency], value_discretization_interval=1e-3)
            poisson.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise)))
            cut = truncation([phase], adjacency)
            assert delta <= poisson.get_delta(epsilon) + (1 + math.exp(epsilon)) * cut + 1e-9


def test_calibration_keeps_the_budget_and_says_what_to_change_where_it_cannot():
    limited = {"sampling": "truncated-poisson", "records": 10_000}
    sigma = noise_multiplier(4.0, 0.02, 500, 1e-5, **limited, largest_batch=300)
    assert spent(truncated(sigma, 0.02, 500, 300)).substitute <= 4.0
    assert steps_within(4.0, sigma, 0.02, 1e-5, **limited, largest_batch=300) in (500, 501)
    with pytest.raises(ConfigurationError, match="largest_batch"):
        noise_multiplier(4.0, 0.02, 500, 1e-5, **limited, largest_batch=220)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling": "truncated-poisson"},
        {"sampling": "truncated-poisson", "records": 100},
        {"sampling": "truncated-poisson", "records": 100, "largest_batch": 0},
        {"sampling": "truncated-poisson", "records": 1.5, "largest_batch": 4},
        {"records": 100},
        {"largest_batch": 100, "sampling": "fixed-size"},
    ],
)
def test_a_limit_needs_both_its_numbers_and_nothing_else_takes_them(wrong):
    with pytest.raises(ConfigurationError, match=r"largest_batch|records"):
        epsilons(1.0, 0.1, 10, 1e-5, **wrong)


def test_files_hold_the_limit_and_older_ones_stay_as_they_were(tmp_path):
    phase = truncated(1.0, 0.02, 10, 400)
    stated = PrivacyStatement("DP-SGD", 10_000, 1e-5, phases=(phase,), expected_batch_size=200)
    assert PrivacyStatement.load(stated.save(tmp_path / "privacy.json")) == stated
    assert "at most 400 records" in stated.to_markdown()
    claim = Claim(phase, 1e-5)
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim
    plain = {"noise_multiplier": 1.0, "sample_rate": 0.02, "steps": 10, "sampling": "poisson"}
    assert Steps(1.0, 0.02, 10).to_dict() == Claim(Steps(1.0, 0.02, 10), 1e-5).to_dict()["mechanism"] == plain
    with pytest.raises(ConfigurationError, match="10000 records"):
        PrivacyStatement("DP-SGD", 9_000, 1e-5, phases=(phase,))


def test_a_lower_bound_does_not_take_a_cut_for_a_leak():
    """With the same errors, truncated batches explain a little more than Poisson ones, so less epsilon is shown."""
    sampled = {"sample_rate": 0.02, "steps": 100}
    poisson = epsilon_from_errors(60, 5000, 4500, 5000, 1e-5, "pld", **sampled)
    limited = {**sampled, "sampling": "truncated-poisson", "records": 10_000}
    generous = epsilon_from_errors(60, 5000, 4500, 5000, 1e-5, "pld", **limited, largest_batch=400)
    tight = epsilon_from_errors(60, 5000, 4500, 5000, 1e-5, "pld", **limited, largest_batch=270)
    assert generous == pytest.approx(poisson, rel=1e-6)
    assert tight < poisson
