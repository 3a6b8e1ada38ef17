"""The pool: members and non-members by coin flips, and nothing else that tells them apart."""

import numpy as np
import pytest
import torch

from safexplain.audit import Population
from safexplain.audit.signals import partners
from safexplain.errors import InputError

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(50) % 4


def test_each_example_is_a_member_by_a_fair_coin_in_complementary_pairs_of_models():
    member = Population(torch.zeros(2000, 1), torch.arange(2000) % 2).flip(100, seed=0)
    assert member.shape == (100, 2000)
    assert member.dtype == np.bool_
    assert (member.sum(0) == 50).all()  # half of any even number of models
    assert np.array_equal(member[1::2], ~member[::2])
    assert np.array_equal(partners(member).reshape(50, 2), np.arange(100).reshape(50, 2)[:, ::-1])
    assert np.abs(member.mean(1) - 0.5).max() < 5 * 0.5 / np.sqrt(2000)
    between_pairs = np.corrcoef(member[::2])[np.triu_indices(50, 1)]
    assert np.abs(between_pairs).max() < 5 / np.sqrt(2000)


def test_a_sample_is_drawn_by_contents_alone_half_of_it_members():
    rng = np.random.default_rng(0)
    x, member = rng.normal(size=(300, 2)), rng.random(300) < 0.4
    population = Population.of(x, np.arange(300) % 2)
    rows = population.sample(member, 100)
    assert (len(rows), member[rows].sum()) == (100, 50)
    order = rng.permutation(300)
    again = Population.of(x[order], np.arange(300)[order] % 2).sample(member[order], 100)
    assert set(order[again]) == set(rows)
    assert set(rows) < set(population.sample(member, 160))
    few = np.arange(300) < 20
    assert few[population.sample(few, 100)].sum() == 20  # as many members as there are
    assert len(population.sample(few, 100)) == 100
    part = population.part(rows)
    assert torch.equal(part.x, population.x[torch.from_numpy(rows)])


def test_a_sample_holds_whole_groups():
    groups = np.arange(300) // 3
    population = Population.of(np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % 2, groups)
    rows = population.sample(np.arange(300) % 2 == 0, 60)
    assert 60 <= len(rows) < 180
    assert len(rows) == 3 * len(np.unique(groups[rows]))
    assert np.array_equal(population.part(rows).groups, groups[rows])


def test_a_seed_gives_the_same_flips_and_another_gives_others():
    population = Population(X, Y)
    assert np.array_equal(population.flip(9, seed=3), population.flip(9, seed=3))
    assert not np.array_equal(population.flip(9, seed=3), population.flip(9, seed=4))
    assert np.array_equal(population.flip(9, seed=3)[:5], population.flip(5, seed=3))


def test_examples_of_one_group_are_in_or_out_together():
    groups = np.arange(50) // 5 * 3
    member = Population(X, Y, groups).flip(200, seed=0).reshape(200, 10, 5)
    assert (member.all(2) | ~member.any(2)).all()
    units = member[:, :, 0]
    assert np.array_equal(units[1::2], ~units[::2])
    assert np.abs(np.corrcoef(units[::2].T)[np.triu_indices(10, 1)]).max() < 5 / np.sqrt(100)


def test_groups_may_be_named_by_numbers_or_texts_and_the_digest_covers_them():
    named = Population.of(X, Y, [f"person {i // 5}" for i in range(50)])
    numbered = Population.of(X, Y, np.arange(50) // 5 + 7.0)
    assert named.groups.dtype == np.int64
    assert named.digest() == numbered.digest()
    assert np.array_equal(named.flip(9, seed=0), numbered.flip(9, seed=0))
    assert named.digest() != Population(X, Y).digest()
    assert named.digest() != Population.of(X, Y, np.arange(50) // 2).digest()


def test_arrays_of_any_numeric_type_are_taken():
    population = Population.of([[1, 2], [3, 4], [5, 6]], np.array([0.0, 1.0, 2.0]))
    assert population.x.dtype == torch.float32
    assert population.y.dtype == torch.int64
    assert len(population) == 3
    assert population.classes == 3


def test_the_digest_tells_populations_apart():
    digest = Population(X, Y).digest()
    assert digest == Population(X.clone(), Y.clone()).digest()
    moved = X.clone()
    moved[0, 0] += 1e-6
    assert Population(moved, Y).digest() != digest
    assert Population(X, (Y + 1) % 4).digest() != digest
    assert Population(X.reshape(50, 1, 3), Y).digest() != digest


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Population(X, Y[:-1]), r"expected x \(n, ...\) and y \(n,\)"),
        (lambda: Population(X.index_fill(0, torch.tensor([3]), torch.nan), Y), "expected finite x"),
        (lambda: Population(X, torch.full((50,), 2)), r"at least 2 classes in y, got \[2\] only"),
        (lambda: Population(X, Y - 1), "from 0 as labels, got -1"),
        (lambda: Population.of(X, Y + 0.5), "expected integers as labels"),
        (lambda: Population(X, Y, np.arange(49)), r"groups .int64. of shape \(50,\)"),
        (lambda: Population.of(X, Y, np.zeros((50, 2))), ".n,. numbers or texts as groups"),
        (lambda: Population.of(X, Y, np.where(Y == 1, np.nan, 0.0)), "13 examples have no group"),
    ],
)
def test_a_pool_that_cannot_be_audited_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
