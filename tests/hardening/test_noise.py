"""Keyed noise: one query, one answer; any other query, independent noise."""

import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hardening_oracle import slow_normal, slow_table, slow_words
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain.errors import ConfigurationTypeError, InputError, NoKeyWarning, WeakKeyWarning
from safexplain.hardening import noise
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, Relative, ThresholdMask, TopKMask, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise, as_hashed, keyed_normal, query_seeds

KEY = b"a secret of thirty-two bytes...."
FINE = 2.0**-24
PLAIN = Hardening(noise=GaussianNoise(1.0, key=KEY), grid=FINE)


def drawn(inputs, *, d=4, hardening=PLAIN, **query):
    """What noise meets explanations that are zero: (batch, d)."""
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    return hardening(torch.zeros(len(first), d), inputs=inputs, **query)


def standard_normal(seed, count, purpose=b"noise"):
    return keyed_normal([seed], count, purpose, torch.empty(0, dtype=torch.float64))[0].numpy()


def images(batch=5, seed=0):
    return torch.randn(batch, 2, 3, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "hardening",
    [
        Hardening(RangeClip(-1, 1), ThresholdMask(0.2), GaussianNoise(0.1)),
        Hardening(NormClip(2.0), TopKMask(0.3), GaussianNoise(Relative(0.3))),
        Hardening(UnitNorm(), None, GaussianNoise(Relative(0.3))),
        Hardening(RankNorm(), None, GaussianNoise(0.0)),
    ],
    ids=lambda h: f"{type(h.clip).__name__}-{h.noise.std}",
)
def test_neither_batch_nor_order_changes_an_answer(hardening):
    hardening, d = hardening.with_key(KEY), 500
    g = torch.Generator().manual_seed(3)
    a, x = torch.randn(70, d, generator=g), torch.randn(70, d, generator=g)
    a[7] = 0
    a[8, ::3] = 0
    y = torch.arange(70) % 10
    together = hardening(a, inputs=x, target=y)
    alone = [hardening(a[i : i + 1], inputs=x[i : i + 1], target=int(y[i])) for i in range(70)]
    assert torch.equal(torch.cat(alone), together)
    order = torch.randperm(70, generator=g)[:50]
    assert torch.equal(hardening(a[order], inputs=x[order], target=y[order]), together[order])
    twice = torch.tensor([4, 4, 9])
    assert torch.equal(hardening(a[twice], inputs=x[twice], target=y[twice]), together[twice])


WHOLE = torch.randint(0, 2, (3, 7), generator=torch.Generator().manual_seed(0))
LARGE = torch.tensor([[2**24, 1]])
ENDING = torch.tensor([[3.0, 0.0, 1.0]])
NAN, INF = torch.tensor([[1.0, math.nan]]), torch.tensor([[1.0, math.inf]])
SAME = {
    "asked again": (images(), images()),
    "a cast": (images().bfloat16(), images().bfloat16().float()),
    "of double precision": (images(), images().double()),
    "truth values": (WHOLE.bool(), WHOLE),
    "bytes": (WHOLE.to(torch.uint8), WHOLE),
    "whole numbers as floats": (WHOLE.double(), WHOLE),
    "whole numbers beyond float32": (LARGE.double(), LARGE),
    "another shape": (images().reshape(5, 3, 1, 2, 4), images()),
    "channels last": (images().contiguous(memory_format=torch.channels_last), images()),
    "transposed memory": (images().transpose(2, 3).contiguous().transpose(2, 3), images()),
    "a zero at the end": (torch.cat([ENDING, torch.zeros(1, 1)], 1), ENDING),
    "zeros at the end": (torch.cat([ENDING, torch.zeros(1, 50)], 1), ENDING),
    "nothing but zeros": (torch.zeros(1, 3), torch.zeros(1, 5)),
    "the sign of zero": (torch.tensor([[-0.0, 1.0]]), torch.tensor([[0.0, 1.0]])),
    "not a number": (NAN.double(), NAN),
}
DIFFERENT = {
    "the next whole number": (LARGE + torch.tensor([[1, 0]]), LARGE),
    "a zero in front": (torch.tensor([[0.0, 3.0, 0.0, 1.0]]), ENDING),
    "nearly zero": (torch.tensor([[1e-30, 1.0]]), torch.tensor([[0.0, 1.0]])),
    "not a number and infinity": (NAN, INF),
}


def test_a_query_is_the_numbers_of_its_input_however_they_are_held():
    assert [name for name, (one, other) in SAME.items() if not torch.equal(drawn(one), drawn(other))] == []
    assert [name for name, (one, other) in DIFFERENT.items() if torch.equal(drawn(one), drawn(other))] == []


@given(st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=8))
def test_an_explainer_that_is_given_the_hashed_numbers_cannot_answer_two_questions_under_one_noise(numbers):
    """Each float64 number is explained as a float32 number, zero or normal, and these have seeds of their own."""
    x = torch.tensor([numbers], dtype=torch.float64)
    seen = as_hashed(x)
    assert seen.dtype == x.dtype
    assert torch.equal(as_hashed(seen), seen)
    single = seen.float()
    assert torch.equal(single.double(), seen)
    assert ((single == 0) | (single.abs() >= torch.finfo(torch.float32).tiny)).all()
    assert query_seeds(KEY, inputs=x) == query_seeds(KEY, inputs=seen) == query_seeds(KEY, inputs=single)
    near = ((seen == 0) | seen.isinf() | ((seen - x).abs() <= 2.0**-24 * x.abs())).all()
    assert near
    moved = torch.nextafter(single, torch.tensor(1.0)).clamp_min(2e-38)
    assert torch.equal(moved, single) or query_seeds(KEY, inputs=moved) != query_seeds(KEY, inputs=single)


def test_a_target_is_the_same_however_it_is_written():
    x = images(3)
    spellings = (
        (2,),
        torch.tensor(2),
        torch.tensor([2]),
        np.array([2, 2, 2]),
        np.int64(2),
        [(2,), (2,), (2,)],
        [torch.tensor(2)] * 3,
    )
    assert all(torch.equal(drawn(x, target=spelling), drawn(x, target=2)) for spelling in spellings)
    assert not torch.equal(drawn(x, target=2), drawn(x, target=1))


def test_each_example_has_its_own_target():
    x = images(3)
    mixed = drawn(x, target=[0, 1, 2])
    assert all(torch.equal(mixed[i], drawn(x, target=i)[i]) for i in range(3))
    several = drawn(x, target=[(0, 1), (2, 3), (4, 5)])
    assert torch.equal(several[1], drawn(x, target=(2, 3))[1])


def test_the_noise_of_one_version_is_the_noise_of_the_next():
    seed = query_seeds(
        KEY,
        inputs=(torch.tensor([[1.0, -2.5]]), torch.tensor([[7]])),
        target=3,
        model_digest=b"model",
        method="Saliency",
        configuration="{}",
    )[0]
    assert seed.hex() == "3ed3a1f86219c8bb853c983b5dad8fad7e783521ecc8c6ec5ec3fbb75d909904"
    assert standard_normal(seed, 4).tolist() == [
        -0.002100568264722824,
        -0.8728560172021389,
        1.1384798884391785,
        2.5538252741098404,
    ]
    assert noise.STREAM == "aes256ctr-normal2x16-v3"  # other numbers above need another name here


def test_the_stream_is_what_its_description_says():
    seeds = [bytes([i]) * 32 for i in range(3)]
    for count in (1, 3, 4, 1000):
        for purpose in (b"noise", b"direction"):
            expected = torch.tensor([slow_normal(seed, count, purpose) for seed in seeds], dtype=torch.float64)
            double = torch.empty(0, dtype=torch.float64)
            assert torch.equal(noise.keyed_normal(seeds, count, purpose, double), expected)
            assert torch.equal(noise.keyed_normal(seeds, count, purpose, double.float()), expected.float())


def test_zeros_become_words_of_the_stream_that_are_never_zero():
    filled = noise.fill_zeros(torch.zeros(1, 9).double(), [KEY], whole_rows_only=False)
    assert filled.tolist() == [[(word | 1) / 2**35 for word in slow_words(KEY, 9, b"direction")]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_draws_the_same_bits(dtype):
    seeds = [bytes([i]) * 32 for i in range(3)]
    here, there = (noise.keyed_normal(seeds, 10_001, b"noise", torch.empty(0, dtype=dtype, device=d)) for d in
                   ("cpu", "cuda"))  # fmt: skip
    assert there.is_cuda
    assert torch.equal(there.cpu(), here)


D = 40_000


def correlation(a, b):
    return float(np.corrcoef(a.double().flatten(), b.double().flatten())[0, 1])


def independent(a, b):
    """Whether two draws are neither equal nor correlated beyond five standard errors."""
    return not torch.equal(a, b) and abs(correlation(a, b)) < 5 / np.sqrt(a.numel())


def nudged(x):
    x = x.clone()
    x[0, 0, 0, 0] = torch.nextafter(x[0, 0, 0, 0], torch.tensor(9.0))
    return x


X = images(1)
QUERY = {"inputs": X, "target": 1, "model_digest": b"model", "method": "Saliency"}


@pytest.mark.parametrize(
    "change",
    [
        {"hardening": PLAIN.with_key(KEY + b"\0")},
        {"inputs": nudged(X)},
        {"inputs": (X, X)},
        {"target": 2},
        {"target": None},
        {"target": (1, 1)},
        {"model_digest": b"mode", "method": "lSaliency"},
        {"method": "InputXGradient"},
        {"hardening": replace(PLAIN, clip=RangeClip(-1, 1))},
        {"hardening": replace(PLAIN, grid=FINE / 2)},
        {"hardening": replace(PLAIN, noise=GaussianNoise(1.0 + 2**-20, key=KEY))},
    ],
    ids=lambda c: ", ".join(c),
)
def test_another_query_gets_independent_noise(change):
    assert independent(drawn(**{**QUERY, **change}, d=D), drawn(**QUERY, d=D))


def test_inputs_tensors_examples_and_purposes_get_independent_noise():
    a, b = images(1, seed=1), images(1, seed=2)
    assert independent(drawn((a, b), d=D), drawn((b, a), d=D))
    assert independent(*PLAIN((torch.zeros(1, D), torch.zeros(1, D)), inputs=(X, X)))
    assert independent(*drawn(images(2), d=D))
    assert independent(*(torch.from_numpy(standard_normal(b"seed", D, purpose=p)) for p in (b"noise", b"direction")))


T = np.array(slow_table())


def share_at_most(x, table=T):
    """How many of all 2^32 sums of two entries are at most x: whole numbers in units of 2^-28, counted exactly."""
    return int(np.searchsorted(table, x - table, side="right").sum()) / 2**32


def test_the_table_is_the_same_on_every_machine():
    assert noise.normal_table().tolist() == T.tolist()
    digest = hashlib.sha256(noise.normal_table().astype("<i4").tobytes()).hexdigest()
    assert digest == "ab68f8284e7a5870ae940623447c330a6d5b70b4025b3a6b74020d655a486597"


def test_the_sum_of_two_words_has_the_moments_that_are_stated():
    squares, fourth = (sum(int(t) ** power for t in T) for power in (2, 4))
    assert [int(t) for t in T] == [-int(t) for t in reversed(T)]
    variance = 2 * squares / 2**16 / 2**56
    assert abs(variance - 1) < 4e-11
    assert 3 - 4e-4 < (2 * fourth / 2**16 + 6 * (squares / 2**16) ** 2) / 2**112 < 3
    assert 6.11 < 2 * int(T[-1]) / 2**28 < 6.12
    assert 2 * int(T[-1]) < 2**31


def test_its_distribution_is_as_near_to_the_normal_one_as_is_stated():
    points = np.linspace(-6, 6, 241)
    counted = np.array([share_at_most(round(x * 2**28)) for x in points])
    exact = distributions.norm.cdf(points)
    assert np.abs(counted - exact).max() < 7.7e-6
    assert share_at_most(0) - share_at_most(-1) == 2.0**-16
    wrong = np.array([share_at_most(round(x * 2**28), np.rint(1.001 * T)) for x in points])
    assert np.abs(wrong - exact).max() > 1e-4
    for beyond, share in ((4, 0.984), (5, 0.83)):
        assert share_at_most(-beyond * 2**28) / distributions.norm.cdf(-beyond) == pytest.approx(share, abs=0.003)


def test_rounded_to_the_grid_it_cannot_be_told_from_normal_noise():
    """Whatever was hidden: the squared Hellinger distance bounds what any test of a release can tell. One word of 16
    bits would fall short of it."""

    step = 1 / 32

    def distance(counts, offset):
        edges = np.arange(-8, 8 + step, step) + offset * step
        ours = np.diff([counts(round(e * 2**28)) for e in edges])
        return 0.5 * ((np.sqrt(ours) - np.sqrt(np.diff(distributions.norm.cdf(edges)))) ** 2).sum()

    single = np.rint(math.sqrt(2) * T)
    for offset in (0.0, 0.31):
        assert distance(share_at_most, offset) < 1.1e-8
        assert distance(lambda x: np.searchsorted(single, x, side="right") / 2**16, offset) > 1e-6


@pytest.mark.parametrize(
    ("clip", "std", "expected"),
    [
        (None, 0.3, 0.3),
        (RangeClip(-1.0, 4.0), Relative(0.25), 1.0),
        (NormClip(3.0), Relative(0.5), 0.5 * 3 / 100),
        (UnitNorm(2.0), Relative(0.4), 0.4 * 2 / 100),
        (RankNorm(5.0), Relative(0.2), 0.2 * 5 / 100),
    ],
    ids=repr,
)
def test_the_noise_has_the_declared_standard_deviation(clip, std, expected):
    assert Hardening(clip, None, GaussianNoise(std, key=KEY)).noise_std(10_000) == pytest.approx(expected)


CHILD = """
import json, os, warnings
import torch
from safexplain.hardening.noise import GaussianNoise
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.clips import RankNorm
from safexplain.hardening.clips import Relative
x = torch.arange(12.0).reshape(3, 4)
h = Hardening(noise=GaussianNoise(1.0))
out = {"keyed": Hardening.deepleak(bytes(range(32)))(x.sin(), inputs=x, target=1, model_digest=b"m").tolist()}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    out["drawn"] = [h(torch.zeros(3, 4), inputs=x).tolist() for _ in range(3)]
out["warnings"] = [w.category.__name__ for w in seen]
os.environ["SAFEXPLAIN_NOISE_KEY"] = "the environment's own secret key"
out["environment"] = h(torch.zeros(3, 4), inputs=x).tolist()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def other_process():
    environment = {k: v for k, v in os.environ.items() if k != noise.KEY_VARIABLE}
    run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, env=environment, text=True, check=True)
    return json.loads(run.stdout)


def test_the_same_key_gives_the_same_bits_after_a_restart(other_process):
    x = torch.arange(12.0).reshape(3, 4)
    here = Hardening.deepleak(bytes(range(32)))(x.sin(), inputs=x, target=1, model_digest=b"m").tolist()
    assert other_process["keyed"] == here


def test_without_a_key_each_process_draws_its_own_and_says_so_once(other_process, monkeypatch):
    first, *again = other_process["drawn"]
    assert other_process["warnings"] == ["NoKeyWarning"]
    assert again == [first, first]
    monkeypatch.delenv("SAFEXPLAIN_NOISE_KEY", raising=False)
    monkeypatch.setattr(noise, "_process_key", None)
    keyless, x = Hardening(noise=GaussianNoise(1.0)), torch.arange(12.0).reshape(3, 4)
    with pytest.warns(NoKeyWarning, match="SAFEXPLAIN_NOISE_KEY"):
        here = keyless(torch.zeros(3, 4), inputs=x)
    assert here.tolist() != first
    assert torch.equal(keyless(torch.zeros(3, 4), inputs=x), here)


def test_the_environment_supplies_the_key(other_process, monkeypatch):
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "the environment's own secret key")
    x = torch.arange(12.0).reshape(3, 4)
    silent = Hardening(noise=GaussianNoise(1.0))
    here = silent(torch.zeros(3, 4), inputs=x).tolist()
    assert other_process["environment"] == here
    written = silent.with_key(b"the environment's own secret key")
    assert written(torch.zeros(3, 4), inputs=x).tolist() == here


def test_only_bytes_are_keys():
    for key in (b"", "text", bytearray(32)):
        with pytest.raises(ConfigurationTypeError, match="bytes"):
            GaussianNoise(1.0, key=key)


def test_a_short_key_is_warned_about(monkeypatch):
    with pytest.warns(WeakKeyWarning, match="15 bytes"):
        GaussianNoise(1.0, key=b"k" * 15)
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "hunter2")
    with pytest.warns(WeakKeyWarning, match="7 bytes"):
        drawn(X, hardening=Hardening(noise=GaussianNoise(1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianNoise(1.0, key=b"k" * 16)


NO_TARGETS = [torch.tensor([1, 2]), [(1, 2)], ["cat"] * 3, 1.5]


def test_a_target_that_does_not_fit_the_batch_is_refused():
    for target in NO_TARGETS:
        with pytest.raises(InputError, match="target"):
            query_seeds(KEY, inputs=torch.zeros(3, 2), target=target)
