"""The white box's tests of noise and batches: right draws pass, wrong ones fail, and each number is its formula's."""

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.dp import Steps
from safexplain.verdict.canaries.result import batches_drawn, noise_distribution, noise_independence, noise_size

STEPS, COORDINATES, NUMBERS = [f"step {i}" for i in range(20)], list("abcdef"), np.array([4, 2])


def noise(scale=1.0, runs=4, seed=0):
    """(runs, 20 steps, 6 coordinates), over the claimed standard deviation."""
    return scale * np.random.default_rng(seed).normal(size=(runs, 20, 6))


def size_of(z):
    """The check, with two tensors of four and two numbers."""
    squares = np.stack([(z[:, :, :4] ** 2).sum(2), (z[:, :, 4:] ** 2).sum(2)], axis=2)
    return noise_size(z, squares, NUMBERS, STEPS, COORDINATES)


def test_noise_that_is_smaller_than_claimed_in_one_coordinate_is_found_there():
    right, wrong = noise(runs=200), noise(runs=200)
    wrong[:, :, 4] *= 0.7
    assert (size_of(right).passed, size_of(wrong).passed) == (True, False)
    assert "in e at most 0.7" in size_of(wrong).says
    assert "0.996 of the claimed standard deviation" in size_of(right).says


def test_the_size_of_noise_is_the_largest_that_is_likely_enough_where_that_is_smallest():
    z = noise(0.97)
    largest = []
    for squares in (*(z**2).sum((0, 2)), *(z**2).sum((0, 1)), (z[:, :, :4] ** 2).sum(), (z[:, :, 4:] ** 2).sum()):
        largest.append(squares)
    of = np.r_[np.full(20, 4 * 6), np.full(6, 4 * 20), 4 * 20 * 4, 4 * 20 * 2]
    tests = np.r_[np.full(20, 20), np.full(6, 6), 2, 2]
    slow = np.sqrt(np.array(largest) / distributions.chi2.ppf(1e-6 / tests, of))
    assert size_of(z).found == pytest.approx(1 / slow.min()) == pytest.approx(0.81391, abs=1e-5)


def test_noise_of_another_distribution_is_found_and_little_noise_is_not_judged():
    draw = np.random.default_rng
    right = noise_distribution(noise(), draw(1))
    assert (right.passed, right.found) == (True, pytest.approx(0.82198, abs=1e-4))
    assert not noise_distribution(draw(0).laplace(size=(40, 20, 6)), draw(1)).passed
    few = np.where(np.arange(480).reshape(4, 20, 6) < 100, noise(), 0.0)
    assert noise_distribution(few, draw(1)).found is not None
    few.flat[0] = 0.0
    assert noise_distribution(few, draw(1)).found is None


@pytest.mark.parametrize(
    ("where", "tied"),
    [
        ("two trainings", lambda z: np.repeat(z, 2, axis=0)),
        ("steps 1 apart", lambda z: np.repeat(z[:, ::2], 2, axis=1)),
        ("two coordinates", lambda z: z[:, :, [0, 0, 2, 3, 4, 5]]),
    ],
)
def test_noise_that_is_used_again_is_found(where, tied):
    z = noise(runs=20, seed=2)
    right = noise_independence(noise(), np.random.default_rng(1))
    assert (right.passed, right.found, right.allowed) == (
        True,
        pytest.approx(2.0931, abs=1e-3),
        pytest.approx(8.951, abs=1e-3),
    )
    assert noise_independence(noise()[:, :, :1], np.random.default_rng(1)).passed  # of one coordinate
    wrong = noise_independence(tied(z), np.random.default_rng(1))
    assert not wrong.passed
    assert where in wrong.says


def checks_of(drawn, mechanism):
    """Rate, and whether batches are drawn anew."""
    return tuple(batches_drawn(drawn, mechanism))


def test_batches_of_the_claimed_rate_pass_and_larger_ones_and_shuffled_ones_fail():
    rng, mechanism = np.random.default_rng(3), Steps(1.0, 0.2, 30)
    poisson = rng.random((5, 30, 40)) < 0.2
    rate, anew = checks_of(poisson, mechanism)
    often = poisson.sum((0, 1))
    likely = min(
        distributions.binom.sf(often.sum() - 1, 5 * 30 * 40, 0.2),
        40 * distributions.binom.sf(often.max() - 1, 5 * 30, 0.2),
    )
    assert (rate.passed, anew.passed) == (True, True)
    assert rate.found == pytest.approx(-np.log10(likely))
    each = np.zeros((5, 30, 40), dtype=bool)
    each.reshape(150, 40)[:33] = True  # no record is in strikingly many batches, but all together are
    all_of_them = -distributions.binom.logsf(33 * 40 - 1, 150 * 40, 0.2) / np.log(10)
    rate = checks_of(each, mechanism)[0]
    assert rate.found == pytest.approx(all_of_them)
    assert rate.says == "a record was in 0.22 of the batches, the most frequent one in 0.22; claimed is 0.2"
    assert (rate.allowed, anew.allowed) == (pytest.approx(6.0), pytest.approx(1.5 * distributions.norm.isf(1e-6 / 16)))
    assert not checks_of(rng.random((5, 30, 40)) < 0.26, mechanism)[0].passed
    fixed = np.argsort(rng.random((40, 30, 40)), axis=2) < 8
    assert not checks_of(fixed, mechanism)[1].passed
    assert checks_of(fixed, Steps(1.0, 0.2, 30, "fixed-size"))[1].passed
    sizes = np.where(np.arange(40 * 30).reshape(40, 30) % 2, 7, 9)  # squared deviations are 1 / 6.4 of Poisson batches'
    alike = checks_of(np.argsort(rng.random((40, 30, 40)), axis=2) < sizes[..., None], mechanism)[1]
    assert alike.says == "batches are more alike in size than Poisson batches"
    assert alike.found == pytest.approx(np.sqrt(1200 / (2 + 0.04 / 6.4)) * (1 - 1 / 6.4))
    same = np.repeat(poisson[:, :1], 30, axis=1)
    assert "steps have like batches" in checks_of(same, mechanism)[1].says
