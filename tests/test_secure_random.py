"""Random numbers that a guarantee rests on: of the right distributions, exact where they say so, nobody else's."""

import copy
import math
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from safexplain import _secure_random
from safexplain._secure_random import (
    DIRECT,
    KeyedGenerator,
    SecureGenerator,
    box_muller,
    discrete_laplace,
    exp_coin,
    float_safe_normal,
    fresh_key,
    open_unit,
)
from safexplain.dp.linear.classifier import noise_generator, radial_noise

N = 100_000


def fixed(number=0):
    """The same numbers in every run of a test."""
    return KeyedGenerator(bytes(range(32)), number)


def fits(drawn, distribution, *parameters):
    return stats.kstest(drawn, distribution, parameters).pvalue > 1e-3


def test_normal_numbers_are_normal_and_not_of_half_the_scale():
    for drawn in (fixed().standard_normal(N), float_safe_normal(fixed(1), (N,)), SecureGenerator().standard_normal(N)):
        assert stats.kstest(drawn, "norm").pvalue > 1e-7
        assert not fits(drawn / 2, "norm")
        assert not fits(drawn * 1.05, "norm")
        expected = N * 2 * stats.norm.sf(3)
        assert abs((np.abs(drawn) > 3).sum() - expected) < 5 * math.sqrt(expected)
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(N)


def test_words_give_the_numbers_that_box_and_muller_wrote_down():
    words = fixed().words(6)
    u, v = [(int(w) % 2**63 + 0.5) / 2**63 for w in words[:3]], [math.pi * int(w) / 2**63 for w in words[3:]]
    expected = [math.sqrt(-2 * math.log(a)) * f(b) for f in (math.cos, math.sin) for a, b in zip(u, v, strict=True)]
    np.testing.assert_allclose(box_muller(words), expected, rtol=1e-12)


def test_the_farthest_normal_number_lies_beyond_nine_standard_deviations():
    ends = np.array([0, -(2**63), 2**63 - 1], dtype=np.int64)
    assert open_unit(ends).tolist() == [2.0**-64, 2.0**-64, 1.0]
    assert 9.4 < math.sqrt(-2 * math.log(2.0**-64)) < 9.5
    assert np.isfinite(box_muller(np.repeat(ends, 2))).all()


@pytest.mark.parametrize(
    ("draw", "distribution", "parameters"),
    [
        (lambda g: g.random(N), "uniform", ()),
        (lambda g: g.standard_exponential(N), "expon", ()),
        (lambda g: g.gamma(3, 2.0, N), "gamma", (3, 0, 2.0)),
        (lambda g: g.gamma(1, 0.5, (N // 10, 10)).ravel(), "expon", (0, 0.5)),
        (lambda g: np.linalg.norm(radial_noise(0.5, (N // 10, 4), g), axis=1), "gamma", (4, 0, 2.0)),
    ],
    ids=["uniform", "exponential", "gamma", "gamma of 1", "radial noise"],
)
def test_other_real_numbers_follow_their_distribution_and_not_half_of_it(draw, distribution, parameters):
    drawn = draw(fixed())
    assert fits(drawn, distribution, *parameters)
    assert not fits(drawn / 2, distribution, *parameters)


def test_uniform_numbers_are_multiples_of_2_to_the_minus_53_below_1():
    drawn = fixed().random(N) * 2.0**53
    assert (drawn == np.floor(drawn)).all()
    assert drawn.max() < 2**53
    assert (drawn % 2).mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(N))


@pytest.mark.parametrize("ends", [3, 10, 2**20 - 1])
def test_whole_numbers_are_equally_likely(ends):
    drawn = fixed(ends).integers(0, ends, N)
    counts = np.bincount(drawn % 1000 if ends > 1000 else drawn, minlength=min(ends, 1000))
    weights = np.bincount(np.arange(ends) % 1000 if ends > 1000 else np.arange(ends))
    assert stats.chisquare(counts, weights * N / ends).pvalue > 1e-3
    assert drawn.min() >= 0
    assert drawn.max() < ends


def test_each_whole_number_may_have_an_end_of_its_own():
    ends = np.tile([1, 2, 3, 7, 2**62 + 1, 2**63 - 1], N // 6)
    drawn = fixed().integers(0, ends)
    assert (drawn >= 0).all()
    assert (drawn < ends).all()
    for column, end in enumerate(ends[:6].tolist()):
        mean, spread = (end - 1) / 2, math.sqrt(max(end**2 - 1, 0) / 12 / (N // 6))
        assert abs(drawn[column::6].astype(float).mean() - mean) <= 5 * spread


def test_coins_and_discrete_laplace_noise_have_their_exact_probabilities():
    coins = exp_coin(np.full(N, 2), np.full(N, 3), fixed())
    assert stats.binomtest(int(coins.sum()), N, math.exp(-2 / 3)).pvalue > 1e-3
    assert stats.binomtest(int(coins.sum()), N, math.exp(-1 / 3)).pvalue < 1e-9
    drawn = discrete_laplace(np.full(N, 5), fixed(1))
    at = np.arange(-20, 21)
    for scale, agrees in ((5, True), (10, False)):
        p = np.exp(-np.abs(at) / scale) * math.tanh(0.5 / scale)
        counts = np.array([(drawn == z).sum() for z in at])
        both = np.append(counts, N - counts.sum()), np.append(p, 1 - p.sum()) * N
        assert (stats.chisquare(*both).pvalue > 1e-3) == agrees


def test_a_choice_is_a_uniformly_random_subset():
    chosen = np.array([fixed(i).choice(np.arange(10) * 10, 3) for i in range(4000)])
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert stats.chisquare(np.bincount(chosen.ravel() // 10)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(chosen[:, 0] // 10)).pvalue > 1e-3
    with pytest.raises(ValueError, match="without replacement"):
        SecureGenerator().choice([1, 2], 3)
    with pytest.raises(ValueError, match="low < high"):
        SecureGenerator().integers(0, [3, 0])


def test_many_bytes_are_the_keystream_of_a_standard_cipher_under_a_key_for_this_request(monkeypatch):
    keys = []

    def watched():
        keys.append(fresh_key())
        return keys[-1]

    monkeypatch.setattr(_secure_random, "fresh_key", watched)
    for count in (DIRECT + 1, 300_000, 1 << 20):
        drawn = SecureGenerator().bytes(count)
        again = Cipher(algorithms.AES(keys[-1]), modes.CTR(bytes(16))).encryptor().update(bytes(count))
        assert drawn == again
    assert len(set(keys)) == 3
    assert all(len(key) == 32 for key in keys)
    assert len(SecureGenerator().bytes(DIRECT)) == DIRECT
    assert len(keys) == 3  # few bytes come from the operating system as they are


def test_streams_of_a_key_have_nothing_in_common():
    key = fresh_key()
    streams = [KeyedGenerator(key, step, part).words(1000) for step, part in [(0, 0), (1, 0), (0, 1), (2**48 - 1, 7)]]
    assert len(np.unique(np.concatenate(streams))) == 4000
    assert (KeyedGenerator(key, 1).words(1000) == streams[1]).all()
    going_on = KeyedGenerator(key, 1)
    assert (np.concatenate([going_on.words(3), going_on.words(997)]) == streams[1]).all()


def _draw(_):
    return [SecureGenerator().standard_normal(n).sum() for n in (3, 5000)]


def test_forked_processes_and_threads_draw_numbers_of_their_own():
    noise_generator(None).standard_normal(5000)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        drawn = [number for pair in pool.map(_draw, range(8), chunksize=1) for number in pair]
    assert len(set(drawn)) == 16
    with ThreadPoolExecutor(8) as pool:
        assert len({tuple(pair) for pair in pool.map(_draw, range(64))}) == 64


def test_a_generator_holds_nothing_that_could_be_read_copied_or_pickled():
    generator = SecureGenerator()
    generator.standard_normal(5000)
    assert vars(generator) == {}
    for other in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert not np.array_equal(other.words(9), generator.words(9))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(KeyedGenerator(fresh_key()))
    with pytest.raises(TypeError, match="pickle"):
        copy.deepcopy(KeyedGenerator(fresh_key()))


def test_numbers_of_an_incomplete_round_are_drawn_again(monkeypatch):
    """2^63 - 2 and 2^63 - 1 would give the remainders 0 and 1 by 3 once more than the remainder 2."""
    bits = iter([[2**63 - 1, 2**63 - 2, 2**63 - 3, 7], [5, 4]])
    monkeypatch.setattr(SecureGenerator, "words", lambda self, count: np.array(next(bits), dtype=np.int64)[:count])
    drawn = SecureGenerator().integers(0, np.array([3, 3, 3, 3]))
    assert drawn.tolist() == [5 % 3, 4 % 3, (2**63 - 3) % 3, 7 % 3]
