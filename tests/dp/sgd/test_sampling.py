"""Poisson batches: the right rate, independent records, a function of key and step alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp.sgd.records import records_of
from safexplain.dp.sgd.sampling import PoissonBatchSampler, PoissonSampler
from safexplain.errors import ConfigurationError, InputError


def counts(sampler, steps, records, q):
    return np.array([np.bincount(sampler.batch(t, records, q), minlength=records) for t in range(steps)])


def test_each_record_joins_each_batch_at_the_sample_rate():
    seen = counts(PoissonSampler.from_seed(0), 400, 250, 0.1)
    assert binomtest(int(seen.sum()), seen.size, 0.1).pvalue > 1e-4
    assert binomtest(int(seen.sum()), seen.size, 0.11).pvalue < 1e-4


def test_batch_sizes_vary_as_of_independent_records():
    """Batches of one size would not be Poisson samples: the test statistic is the dispersion of their sizes."""
    sizes = counts(PoissonSampler.from_seed(1), 400, 250, 0.1).sum(1)
    dispersion = ((sizes - 25) ** 2).sum() / (250 * 0.1 * 0.9)
    assert chi2.ppf(1e-4, 400) < dispersion < chi2.ppf(1 - 1e-4, 400)
    fixed = np.full(400, 25)
    assert ((fixed - 25) ** 2).sum() / (250 * 0.1 * 0.9) < chi2.ppf(1e-4, 400)


def test_records_and_steps_are_uncorrelated():
    seen = counts(PoissonSampler.from_seed(2), 2000, 20, 0.5).astype(float)
    for table in (np.corrcoef(seen.T), np.corrcoef(seen[:-1].T, seen[1:].T)[:20, 20:]):
        off = table[~np.eye(20, dtype=bool)]
        assert np.abs(off).max() < 5 / np.sqrt(2000)


def test_a_batch_is_a_function_of_key_and_step():
    one, again, other = PoissonSampler.from_seed(3), PoissonSampler.from_seed(3), PoissonSampler.from_seed(4)
    assert np.array_equal(one.batch(7, 100, 0.3), again.batch(7, 100, 0.3))
    assert not np.array_equal(one.batch(7, 100, 0.3), one.batch(8, 100, 0.3))
    assert not np.array_equal(one.batch(7, 100, 0.3), other.batch(7, 100, 0.3))


def test_samplers_are_secret_by_default():
    assert PoissonSampler().key != PoissonSampler().key
    assert "key" not in repr(PoissonSampler())
    with pytest.raises(ConfigurationError, match="16 bytes"):
        PoissonSampler(b"short")


def test_processes_share_one_batch():
    shares = [
        list(PoissonBatchSampler(50, 0.02, sampler=PoissonSampler.from_seed(5), rank=r, processes=2)) for r in range(2)
    ]
    whole = list(PoissonBatchSampler(50, 0.02, sampler=PoissonSampler.from_seed(5)))
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == whole
    assert any(not batch for batch in shares[0])
    assert {record % 2 for batch in shares[1] for record in batch} == {1}, "a record is always the same process's"
    assert len(whole) == len(shares[0]) == 50


def test_a_second_epoch_draws_other_batches():
    sampler = PoissonBatchSampler(50, 0.5, sampler=PoissonSampler.from_seed(6))
    assert list(sampler) != list(sampler)


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
        (torch.ones(3, 2), "expected a pair"),
        (42, "expected a pair"),
    ],
)
def test_other_data_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        records_of(data)
