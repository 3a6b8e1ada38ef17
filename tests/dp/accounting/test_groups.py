"""Records that belong together: the pair of a group against brute force, the theorem, and what must not happen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, norm

from safexplain._privacy_loss.pairs import Pair, fixed_size_weights, poisson_weights
from safexplain._privacy_loss.steps import _loss
from safexplain.dp import Steps, composed, epsilons, noise_multiplier, steps_within
from safexplain.errors import ConfigurationError

ORDERS = np.concatenate([-np.geomspace(4, 1e-3, 12), [0.0], np.geomspace(1e-3, 6, 14)])
SETTINGS = [(0.25, 0.8, 2), (0.5, 2.0, 3), (0.01, 0.6, 4), (0.9, 5.0, 7)]


def mixture(weights, means, noise, x):
    return sum(w * norm.pdf(x, m, noise) for w, m in zip(weights, means, strict=True))


def hockey_stick(p, q, cell, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell


@pytest.mark.parametrize(("q", "noise", "group"), SETTINGS)
def test_each_divergence_of_a_group_is_that_of_its_two_mixtures(q, noise, group):
    """Against sums of densities over a fine line of outputs."""
    x, cell = np.linspace(-group - 12 * noise, group + 12 * noise, 400_001, retstep=True)
    joins = binom.pmf(np.arange(group + 1), group, q)
    up, none, down = (mixture(joins, side * np.arange(group + 1.0), noise, x) for side in (1, 0, -1))
    pair = Pair(noise, q, "poisson", group)
    for found, p, r in (
        (pair.removal, up, none),
        (pair.addition, none, up),
        (pair.substitution, up, down),
    ):
        expected = [hockey_stick(p, r, cell, epsilon) for epsilon in ORDERS]
        assert found(ORDERS) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("q", "noise", "group"), [(0.25, 0.8, 2), (0.5, 1.5, 3), (0.8, 0.7, 2)])
def test_no_gradients_in_the_ball_tell_more_than_the_pair(q, noise, group):
    """Random gradients in the plane, each of norm at most C, against all half-known batches of the group."""
    rng = np.random.default_rng(0)
    line, step = np.linspace(-group - 7 * noise, group + 7 * noise, 241, retstep=True)
    x = np.stack(np.meshgrid(line, line), axis=-1)
    pair = Pair(noise, q, "poisson", group)
    orders = np.array([-1.5, -0.3, 0.0, 0.2, 1.0, 2.5])

    def density(gradients):
        total = np.zeros(x.shape[:2])
        for joined in itertools.product((0, 1), repeat=group):
            weight = math.prod(q if j else 1 - q for j in joined)
            distance = ((x - np.array(joined) @ gradients) ** 2).sum(-1)
            total += weight * np.exp(-distance / (2 * noise**2)) / (2 * math.pi * noise**2)
        return total

    def gradients(i):
        angle, length = rng.uniform(0, 2 * math.pi, group), rng.uniform(0, 1, group) ** (0.2 * (i % 3))
        return length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    same = np.zeros((group, 2))
    same[:, 0] = 1
    nothing = density(np.zeros((group, 2)))
    for i in range(12):
        one, other = (density(gradients(i)) for _ in range(2))
        for p, r, bound in (
            (one, other, pair.substitution),
            (one, nothing, pair.removal),
            (nothing, one, pair.addition),
        ):
            found = np.array([hockey_stick(p, r, step * step, e) for e in orders])
            assert (found <= bound(orders) + 1e-6).all()
    worst = [hockey_stick(density(same), density(-same), step * step, e) for e in orders]
    assert worst == pytest.approx(pair.substitution(orders), abs=1e-3)


@pytest.mark.parametrize(("records", "size", "group"), [(4, 2, 2), (5, 2, 3), (6, 3, 2), (3, 2, 3)])
def test_no_gradients_tell_more_of_a_batch_of_fixed_size_than_its_bound(records, size, group):
    """All subsets of a small data set; random gradients in the plane of the group, before and after, and of others."""
    noise, rng = 1.0, np.random.default_rng(records)
    line, step = np.linspace(-size - 6, size + 6, 161, retstep=True)
    x = np.stack(np.meshgrid(line, line), axis=-1)
    orders = np.array([-2.0, -0.5, 0.0, 0.3, 1.0, 2.0, 4.0])

    def density(gradients, batch):
        sums = [gradients[list(chosen)].sum(0) for chosen in itertools.combinations(range(len(gradients)), batch)]
        distances = [((x - total) ** 2).sum(-1) for total in sums]
        return sum(np.exp(-d / 2) for d in distances) / (2 * math.pi * len(sums))

    def ball(n, i):
        angle = rng.choice([0.0, math.pi], n) if i % 2 else rng.uniform(0, 2 * math.pi, n)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    pair = Pair(noise, size / records, "fixed-size", group)
    for i in range(8):
        others = ball(records - group, i)
        one, two = (density(np.concatenate([ball(group, i), others]), size) for _ in range(2))
        if i == 1:  # opposite to each other, and to all others
            others = np.tile([1.0, 0.0], (records - group, 1))
            one, two = (density(np.concatenate([np.tile([s, 0.0], (group, 1)), others]), size) for s in (1.0, -1.0))
        assert ([hockey_stick(one, two, step * step, e) for e in orders] <= pair.substitution(orders) + 1e-6).all()
        if size <= len(others):
            without = density(others, size)
            removed = [hockey_stick(one, without, step * step, e) for e in orders]
            added = [hockey_stick(without, one, step * step, e) for e in orders]
            assert (removed <= pair.removal(orders) + 1e-6).all()
            assert (added <= pair.addition(orders) + 1e-6).all()


def by_the_theorem(loss, delta, group):
    """(e, d) for one record gives (k e, (1 + exp(e) + ... + exp((k - 1) e)) d) for k (Vadhan 2017, Lemma 2.2)."""
    low, high = 0.0, 60.0
    while high - low > 1e-5:
        e = (low + high) / 2
        grown = float(loss.delta(e)) * sum(math.exp(i * e) for i in range(group))
        low, high = (e, high) if grown > delta else (low, e)
    return group * high


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize(
    ("noise", "q", "steps", "group"),
    [(5.5728, 0.25, 500, 2), (5.5728, 0.25, 500, 3), (3.0, 0.01, 1000, 5), (1.0, 0.002, 50, 4), (0.9, 0.5, 1, 2)],
)
def test_a_group_never_costs_more_than_group_privacy_says(noise, q, steps, group, sampling):
    found = epsilons(noise, q, steps, 1e-6, sampling=sampling, group=group)
    for adjacency in ("add_remove", "substitute"):
        one = _loss((Steps(noise, q, steps, sampling),), adjacency, 1)
        assert found.of(adjacency) <= by_the_theorem(one, 1e-6, group) + 1e-3


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "full-batch"])
def test_more_records_cost_more_and_one_is_the_default(sampling):
    q = 1.0 if sampling == "full-batch" else 0.02
    spent = [epsilons(4.0, q, 20, 1e-5, sampling=sampling, group=k) for k in (1, 2, 3, 8, 40)]
    assert spent[0] == epsilons(4.0, q, 20, 1e-5, sampling=sampling)
    for fewer, more in itertools.pairwise(spent):
        assert fewer.add_remove < more.add_remove
        assert fewer.substitute < more.substitute


def test_a_group_of_a_full_batch_is_a_gaussian_of_its_distance():
    for sampling in ("full-batch", "poisson", "fixed-size"):
        assert epsilons(40.0, 1.0, 9, 1e-5, sampling=sampling, group=4) == epsilons(10.0, 1.0, 9, 1e-5)


def test_phases_of_a_group_compose_with_full_batches():
    nearly = composed([Steps(40.0, 1 - 1e-12, 9), Steps(40.0, 1.0, 9, "full-batch")], 1e-5, group=4)
    exact = epsilons(10.0, 1.0, 18, 1e-5)
    assert exact.add_remove <= nearly.add_remove < exact.add_remove + 2e-3
    assert exact.substitute <= nearly.substitute < exact.substitute + 2e-3


def test_the_levels_are_probabilities_that_only_move_up():
    for q, group in ((0.3, 5), (1e-4, 20), (0.5, 100_000)):
        levels, weights = poisson_weights(q, group)
        assert weights.sum() == pytest.approx(1)
        kept = weights[::-1].cumsum()[::-1]  # P(J >= j) is at least the true one
        assert (kept >= binom.sf(levels - 1, group, q) * (1 - 1e-9) - 1e-15).all()
        assert levels @ weights == pytest.approx(group * q, rel=0.01)
    for records, size, group in ((20, 5, 3), (30, 29, 10), (1000, 10, 50)):
        levels, weights = fixed_size_weights(size / records, group)
        kept = weights[::-1].cumsum()[::-1]
        assert (kept >= hypergeom.sf(levels - 1, records, group, size) * (1 - 1e-9) - 1e-15).all()


def test_calibration_and_steps_keep_the_budget_of_a_group():
    sigma = noise_multiplier(4.0, 0.05, 100, 1e-5, group=3)
    assert epsilons(sigma, 0.05, 100, 1e-5, group=3).substitute <= 4.0
    assert epsilons(sigma * 0.99, 0.05, 100, 1e-5, group=3).substitute > 4.0
    steps = steps_within(4.0, sigma, 0.05, 1e-5, group=3)
    assert 100 <= steps <= 101
    assert sigma > 2 * noise_multiplier(4.0, 0.05, 100, 1e-5)


@pytest.mark.parametrize("group", [0, -1, 1.5, True, "2", 10**9])
def test_an_impossible_group_is_refused(group):
    with pytest.raises(ConfigurationError, match="group"):
        epsilons(1.0, 0.1, 10, 1e-5, group=group)
