"""`make_private`: a loop of one's own, kept within a budget."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from safexplain.dp import BudgetSpent, FlatClipping, epsilons, make_private, prepare
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning, RefusedError


def parts(batch_size=10, n=50, model=None):
    torch.manual_seed(0)
    x = torch.randn(n, 4)
    model = model or nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=batch_size, shuffle=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def train(model, optimizer, loader, epochs):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward() if len(y) else None
            optimizer.step()


def test_an_existing_loop_trains_with_the_budget_it_was_given():
    model, optimizer, loader, privacy = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=2)
    train(model, optimizer, loader, 2)
    assert privacy.steps == 10
    assert 2.95 < privacy.statement.epsilons.substitute <= 3.0


def test_the_step_after_the_last_one_is_refused_and_changes_nothing():
    training = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=1)
    model, optimizer, loader, privacy = training
    train(model, optimizer, loader, 1)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(BudgetSpent, match="all 5 steps"):
        train(model, optimizer, loader, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert privacy.steps == 5


def test_epochs_of_the_loader_are_the_epochs_that_were_planned():
    """Where the batch size does not divide the data, an epoch of the loader has a batch more, and the plan knows."""
    model, optimizer, loader, privacy = make_private(*parts(n=57), epsilon=3.0, delta=1e-5, epochs=3)
    train(model, optimizer, loader, 3)
    assert privacy.steps == privacy.plan.steps == 18


def test_the_statement_counts_what_was_trained_not_what_was_planned():
    model, optimizer, loader, privacy = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=10)
    train(model, optimizer, loader, 1)
    spent = privacy.statement.epsilons
    assert spent == epsilons(privacy.plan.noise_multiplier, 0.2, 5, 1e-5)
    assert spent.substitute < 2.0


def test_batches_are_poisson_and_the_divisor_is_constant():
    """Opacus takes both from the loader's length (its issues 571 and 819); here neither moves with one record."""
    rates = []
    for n in (49, 50, 51):
        _, optimizer, loader, privacy = make_private(*parts(n=n), epsilon=3.0, delta=1e-5, epochs=4, seed=0)
        sizes = {len(y) for _ in range(4) for _, y in loader}
        assert len(sizes) > 3
        assert optimizer.expected_batch_size == 10
        rates.append(privacy.plan.sample_rate)
    assert rates == [10 / 49, 10 / 50, 10 / 51]


def test_empty_batches_have_tensors_without_rows():
    model, optimizer, loader, privacy = make_private(
        *parts(batch_size=1, n=20), epsilon=None, noise_multiplier=1.0, delta=1e-5, epochs=3, seed=1
    )
    sizes = [tuple(x.shape) for _ in range(2) for x, _ in loader]
    assert (0, 4) in sizes
    train(model, optimizer, loader, 1)
    assert privacy.steps == 20


def test_no_limit_needs_a_noise_multiplier_and_is_stated():
    model, optimizer, loader, privacy = make_private(
        *parts(), epsilon=None, noise_multiplier=0.0, delta=1e-5, epochs=1, clipping=FlatClipping(1.0)
    )
    train(model, optimizer, loader, 1)
    assert privacy.statement.epsilons.add_remove == math.inf


def test_layers_that_mix_examples_are_listed_with_the_way_out():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    with pytest.raises(InputError, match=r"prepare\(model\)[\s\S]*1 \(BatchNorm1d\)"):
        make_private(*parts(model=model), epsilon=3.0, delta=1e-5, epochs=1)
    with pytest.warns(UserWarning, match="GroupNorm"):
        ready = prepare(model)
    make_private(*parts(model=ready), epsilon=3.0, delta=1e-5, epochs=1)


def test_several_backward_passes_before_a_step_are_refused():
    """Each would give a record a share of the clip bound, and one step would be counted."""
    model, optimizer, loader, privacy = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=1)
    batches = [(x, y) for x, y in loader if len(y)]
    for x, y in batches[:2]:
        functional.cross_entropy(model(x), y).backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RefusedError, match="several backward passes"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert privacy.steps == 0


def test_a_batch_left_unfinished_does_not_join_the_next():
    model, optimizer, loader, _ = make_private(
        *parts(batch_size=20),
        epsilon=None,
        noise_multiplier=0.0,
        delta=1e-5,
        epochs=9,
        clipping=FlatClipping(1e-3),
        seed=0,
    )
    for _ in range(3):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as pieces:
            for x, y in pieces:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                break
    next(iter(loader))
    assert all(p.summed_grad is None and p.grad_sample is None for p in optimizer.params)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(6, affine=False), nn.BatchNorm1d(6).requires_grad_(False)],
    ids=["without weights", "frozen"],
)
def test_batch_normalisation_that_nobody_trains_is_refused_unless_it_is_pinned(norm):
    model = nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 2))
    with pytest.raises(InputError, match=r"1 \(BatchNorm1d\): its statistics"):
        make_private(*parts(model=model), epsilon=3.0, delta=1e-5, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = prepare(model)
    trained = make_private(*parts(model=ready), epsilon=3.0, delta=1e-5, epochs=1)
    trained.model.train()
    train(trained.model, trained.optimizer, trained.loader, 1)
    kept = [m for m in ready.modules() if isinstance(m, nn.BatchNorm1d)]
    assert all(not m.running_mean.any() for m in kept)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_a_model_that_mixes_examples_is_refused():
    model = nn.Sequential(nn.Linear(4, 6), Centred(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="depend on other rows"):
        make_private(*parts(model=model), epsilon=3.0, delta=1e-5, epochs=1)


def test_records_outside_of_the_loaders_sampler_are_not_trained_on_by_surprise():
    model, optimizer, loader = parts()
    part = DataLoader(loader.dataset, batch_size=10, sampler=SubsetRandomSampler(range(20)))
    with pytest.raises(InputError, match=r"SubsetRandomSampler would be ignored.*Subset"):
        make_private(model, optimizer, part, epsilon=3.0, delta=1e-5, epochs=1)


def test_a_loop_that_goes_on_counts_what_was_spent_before():
    model, optimizer, loader, privacy = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=2, steps_taken=5)
    train(model, optimizer, loader, 1)
    assert privacy.steps == 10
    assert privacy.statement.epsilons.substitute > 2.9
    first, later = (
        make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=2, seed=0, steps_taken=s).loader for s in (0, 5)
    )
    assert [x.tolist() for x, _ in first] != [x.tolist() for x, _ in later]
    with pytest.raises(BudgetSpent):
        train(model, optimizer, loader, 1)


def test_a_plan_cut_short_is_said_and_no_limit_is_none():
    with pytest.warns(PrivacyWarning, match=r"spent after \d+ of 500 steps"):
        make_private(*parts(), epsilon=1.0, noise_multiplier=2.0, delta=1e-5, epochs=100)
    model, optimizer, loader, privacy = make_private(*parts(), epsilon=None, noise_multiplier=1.0, delta=1e-5, epochs=1)
    train(model, optimizer, loader, 2)
    assert privacy.steps == 10


def test_a_seed_is_stated():
    for seed in (None, 1):
        privacy = make_private(*parts(), epsilon=3.0, delta=1e-5, epochs=1, seed=seed).privacy
        assert any("seed that the user gave" in line for line in privacy.statement.assumptions) == (seed is not None)


def test_a_loader_without_a_batch_size_is_refused():
    model, optimizer, loader = parts()
    own = DataLoader(loader.dataset, batch_sampler=[[0, 1], [2]])
    with pytest.raises(InputError, match="batch_size"):
        make_private(model, optimizer, own, epsilon=3.0, delta=1e-5, epochs=1)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigurationError, match="50 records"):
        make_private(*parts(batch_size=64), epsilon=3.0, delta=1e-5, epochs=1)
