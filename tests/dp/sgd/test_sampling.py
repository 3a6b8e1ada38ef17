"""Poisson batches at the right rate, of independent records; noise of the right scale; from seeds that stay secret."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2, kstest
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from safexplain._secure_random import KeyedGenerator, SecureGenerator
from safexplain.dp import AutoSClipping
from safexplain.dp.sgd.sampling import PoissonSampler, box_muller, gaussian, random_source, records_of, uniform
from safexplain.dp.sgd.steps import ClippedOptimizer
from safexplain.errors import InputError


def counts(sampler, steps, records, q):
    return np.array([np.bincount(sampler.batch(t, records, q), minlength=records) for t in range(steps)])


SECRET, SEEDED = PoissonSampler(key=bytes(range(32))), PoissonSampler(0)


@pytest.mark.parametrize("sampler", [SECRET, SEEDED])
def test_batches_are_independent_poisson_samples_at_the_sample_rate(sampler):
    seen = counts(sampler, 1000, 250, 0.1)
    assert binomtest(int(seen.sum()), seen.size, 0.1).pvalue > 1e-4
    assert binomtest(int(seen.sum()), seen.size, 0.11).pvalue < 1e-4
    dispersion = ((seen.sum(1) - 25) ** 2).sum() / (250 * 0.1 * 0.9)  # 0 if all batches had one size
    assert chi2.ppf(1e-4, 1000) < dispersion < chi2.ppf(1 - 1e-4, 1000)
    few = seen[:, :20].astype(float)
    for table in (np.corrcoef(few.T), np.corrcoef(few[:-1].T, few[1:].T)[:20, 20:]):
        assert np.abs(table[~np.eye(20, dtype=bool)]).max() < 5 / np.sqrt(1000)


@pytest.mark.parametrize(
    ("one", "again", "other"),
    [
        (SECRET, PoissonSampler(key=bytes(range(32))), PoissonSampler(key=bytes(32))),
        (SEEDED, PoissonSampler(0), PoissonSampler(4)),
    ],
)
def test_a_batch_is_a_function_of_key_and_step(one, again, other):
    assert np.array_equal(one.batch(7, 100, 0.3), again.batch(7, 100, 0.3))
    assert not np.array_equal(one.batch(7, 100, 0.3), one.batch(8, 100, 0.3))
    assert not np.array_equal(one.batch(7, 100, 0.3), other.batch(7, 100, 0.3))


def test_records_come_from_tensors_arrays_and_data_sets_alike():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    for data in ((x, y), (x.numpy(), y.numpy()), TensorDataset(x, y), [x, y]):
        records = records_of(data)
        pieces = list(records.pieces([[4, 1], []]))
        assert len(records) == 6
        assert torch.equal(pieces[0][0], x[[4, 1]])
        assert pieces[1][0].shape == (0, 2)
        assert records.digest() == records_of((x, y)).digest()
    assert records_of((x, y)).digest() != records_of((x + 1, y)).digest()
    on_demand = records_of(torch.utils.data.Subset(TensorDataset(x, y), range(6)))
    assert torch.equal(next(on_demand.pieces([[4, 1]]))[0], x[[4, 1]])


def test_several_inputs_are_kept_together():
    x, z, y = torch.ones(3, 2), torch.zeros(3, 1), torch.arange(3)
    for data in (((x, z), y), TensorDataset(x, z, y)):
        inputs, targets = next(records_of(data).pieces([[0, 2]]))
        assert [tuple(part.shape) for part in inputs] == [(2, 2), (2, 1)]
        assert targets.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(TensorDataset(torch.ones(3, 2), torch.ones(3))), "not Poisson samples"),
        ((torch.ones(3, 2), torch.ones(4)), "as many inputs as targets"),
        ((torch.ones(0, 2), torch.ones(0)), "at least one"),
        (42, "expected a pair"),
    ],
)
def test_other_data_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        records_of(data)


N = 200_000


def has_std(noise: Tensor, std: float) -> bool:
    """Whether mean and variance are within 5 standard errors of a Gaussian's of this std."""
    z = noise.double().flatten() / std
    mean_error = abs(z.mean().item()) * math.sqrt(len(z))
    variance_error = abs(z.square().mean().item() - 1) * math.sqrt(len(z) / 2)
    return mean_error < 5 and variance_error < 5


class Counted(KeyedGenerator):
    """Repeatable cryptographic noise, for tests."""

    def __init__(self, number: int) -> None:
        super().__init__(bytes(32), number)


@pytest.mark.parametrize(
    ("dtype", "float_safe"), [(torch.float32, True), (torch.float64, True), (torch.bfloat16, False)]
)
def test_noise_has_its_std_and_no_other(dtype, float_safe):
    for source in (torch.Generator().manual_seed(3), Counted(1)):
        noise = gaussian(torch.empty(N, dtype=dtype), 0.3, source, float_safe=float_safe)
        assert noise.dtype == dtype
        assert has_std(noise, 0.3)
        assert not has_std(noise, 0.3 * 1.03)
        assert not has_std(noise / 2, 0.3)
        if dtype == torch.float64:
            assert kstest(noise.numpy() / 0.3, "norm").pvalue > 0.01


def on_a_lattice(noise: Tensor) -> float:
    """Share of multiples of 2^-30: what is smaller in a sum in float64 would show through such noise."""
    multiples = noise * 2.0**30
    return (multiples == multiples.round()).double().mean().item()


def test_noise_on_float64_hides_all_digits_of_the_sum():
    like, g = torch.empty(1000, dtype=torch.float64), torch.Generator().manual_seed(0)
    assert on_a_lattice(gaussian(like, 1.0, g)) < 0.01
    assert on_a_lattice(gaussian(like, 1.0, g, float_safe=False)) < 0.01
    assert on_a_lattice(gaussian(like, 1.0, SecureGenerator())) < 0.01
    assert on_a_lattice(gaussian(like.float(), 1.0, g).double()) > 0.9, "numbers drawn in float32"


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_a_radius_and_an_angle_give_two_numbers_that_never_meet_in_one_sum(kind):
    words = torch.from_numpy(Counted(2).words(8 * 50_000)).view(2, 4, 50_000)
    one, other = box_muller(words[0], words[1].to(kind)).double().numpy()
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(50_000)
    assert abs(np.corrcoef(one**2, other**2)[0, 1]) < 5 / math.sqrt(50_000)
    assert kstest(np.concatenate([one, other]) / 2, "norm").pvalue > 0.01


def test_the_farthest_numbers_are_finite_in_float32_too():
    ends = torch.tensor([[0, -(2**63), 2**63 - 1, -1]])
    for angles in (ends, torch.tensor([[0, -(2**31), 2**31 - 1, 2**30]], dtype=torch.int32)):
        found = box_muller(ends.clone(), angles)
        assert found.isfinite().all()
        assert 9.4 < found.abs().max() < 9.5


@pytest.mark.parametrize("shape", [(), (0,), (2**14 + 1,), (3, 4, 5, 5)])
def test_noise_of_any_shape_is_all_drawn(shape):
    noise = gaussian(torch.full(shape, torch.nan), 1.0, SecureGenerator())
    assert noise.shape == shape
    assert (noise.isfinite() & (noise != 0)).all()


def test_no_generator_that_others_use_is_touched():
    before, others = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    gaussian(torch.empty(50), 1.0, SecureGenerator())
    PoissonSampler().batch(3, 100, 0.3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), others, strict=True))  # noqa: NPY002


def test_uniform_numbers_are_uniform_from_every_source():
    for source in (Counted(3), torch.Generator().manual_seed(0)):
        drawn = uniform((300, 200), source, torch.device("cpu"))
        assert drawn.shape == (300, 200)
        assert kstest(drawn.flatten().numpy(), "uniform").pvalue > 0.01
        assert kstest(drawn.flatten().numpy() ** 1.1, "uniform").pvalue < 1e-9


def test_a_copied_or_pickled_sampler_has_a_key_of_its_own():
    sampler = PoissonSampler()
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert other.key != sampler.key
        assert not np.array_equal(other.batch(0, 200, 0.5), sampler.batch(0, 200, 0.5))
    assert sampler.key not in pickle.dumps(sampler)
    seeded = PoissonSampler(7)
    assert np.array_equal(copy.deepcopy(seeded).batch(0, 200, 0.5), seeded.batch(0, 200, 0.5))


def test_the_sources_are_cryptographic_but_for_a_seed():
    assert isinstance(random_source(None), SecureGenerator)
    assert isinstance(random_source(3), torch.Generator)
    layer = torch.nn.Linear(2, 2)
    optimizer = ClippedOptimizer(
        torch.optim.SGD(layer.parameters(), 0.1), clipping=AutoSClipping(), noise_multiplier=1.0, expected_batch_size=1
    )
    assert isinstance(optimizer.generator, SecureGenerator)


@pytest.mark.gpu
def test_noise_drawn_on_the_cpu_arrives_on_the_gpu():
    like = torch.empty(50, device="cuda")
    cpu = gaussian(torch.empty(50), 1.0, torch.Generator().manual_seed(5))
    assert torch.equal(gaussian(like, 1.0, torch.Generator().manual_seed(5)).cpu(), cpu)
    assert has_std(gaussian(torch.empty(N, device="cuda"), 2.0, SecureGenerator()).cpu(), 2.0)
