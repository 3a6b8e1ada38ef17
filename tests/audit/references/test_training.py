"""Training: the batched computation gives the models that the plain loop gives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import Recipe
from safexplain.audit.references.shadows import is_batchable, train_one, train_together
from safexplain.errors import InputError

N, D, CLASSES = 90, 12, 4


def data(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(N, 1, 3, 4, generator=g), torch.randint(0, CLASSES, (N,), generator=g)


def mlp(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(D, 16), nn.Tanh()), nn.Linear(16, CLASSES))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def members(*counts):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(np.sort(rng.choice(N, c, replace=False))) for c in counts]


def plain(recipe, index, seed):
    x, y = data()
    return weights(train_one(recipe, mlp(seed), x[index], y[index], generator(seed)))


OPTIMIZERS = [
    Recipe(optimizer="adam", lr=3e-3, epochs=4, batch_size=16),
    Recipe(optimizer="adamw", lr=3e-3, epochs=4, batch_size=16, weight_decay=0.1, schedule="cosine"),
    Recipe(optimizer="sgd", lr=0.05, epochs=4, batch_size=16, momentum=0.9, weight_decay=0.01, schedule="cosine"),
    Recipe(optimizer="sgd", lr=0.05, epochs=4, batch_size=100, momentum=0.0),
]


@pytest.mark.parametrize("recipe", OPTIMIZERS, ids=lambda r: f"{r.optimizer}-{r.schedule}-{r.batch_size}")
def test_models_trained_together_are_those_trained_one_by_one(recipe):
    x, y = data()
    index = members(33, 36, 40, 48, 34)  # last batches of 17, 4, 8, 16 and 2
    if recipe.batch_size == 16:
        index = index[1:]
    together = train_together(
        recipe, [mlp(s) for s in range(len(index))], x, y, index, list(map(generator, range(5)))[: len(index)]
    )
    for seed, model in enumerate(together):
        expected = plain(recipe, index[seed], seed)
        assert torch.allclose(weights(model), expected, atol=2e-5)
        assert not model.training
        moved = (expected - weights(mlp(seed))).abs().max()
        assert moved > 1e-2


@pytest.mark.parametrize(
    ("activation", "width", "same"),
    [(nn.ReLU, 50, torch.equal), (nn.GELU, 8, torch.equal), (nn.GELU, 7, torch.allclose)],
)
def test_a_model_does_not_depend_on_who_trains_with_it(activation, width, same):
    x, y = data()
    recipe = Recipe(lr=3e-3, epochs=4, batch_size=16)
    index = members(33, 34, 40, 48, 49)  # last batches of 17, 2, 8, 16 and 17

    def trained(numbers):
        models = []
        for number in numbers:
            torch.manual_seed(number)
            models.append(nn.Sequential(nn.Flatten(), nn.Linear(D, width), activation(), nn.Linear(width, CLASSES)))
        rows = [index[number] for number in numbers]
        return dict(
            zip(numbers, train_together(recipe, models, x, y, rows, list(map(generator, numbers))), strict=True)
        )

    whole = trained([1, 2, 3, 4])
    for part in ([2], [1, 4], [4, 3, 2]):
        for number, model in trained(part).items():
            assert same(weights(model), weights(whole[number]))


def test_only_members_influence_a_model():
    x, y = data()
    recipe, index = OPTIMIZERS[0], members(36, 40)

    def first(x, y):
        models = train_together(recipe, [mlp(0), mlp(1)], x, y, index, [generator(0), generator(1)])
        return weights(models[0])

    changed_x, changed_y = x.clone(), y.clone()
    outside = torch.ones(N, dtype=torch.bool)
    outside[index[0]] = False
    changed_x[outside] += 5
    changed_y[outside] = (y[outside] + 1) % CLASSES
    assert torch.equal(first(x, y), first(changed_x, changed_y))
    changed_x[index[0][0]] += 5
    assert not torch.allclose(first(x, y), first(changed_x, y), atol=1e-4)


def test_divergence_is_said_in_one_line():
    x, y = data()
    recipe = Recipe(optimizer="sgd", lr=1e38, epochs=3, batch_size=16)
    with pytest.raises(InputError, match=r"diverged.*lower the recipe's learning rate"):
        train_one(recipe, mlp(0), x, y, generator(0))
    with pytest.raises(InputError, match="diverged"):
        train_together(recipe, [mlp(0)], x, y, members(90), [generator(0)])


def test_training_leaves_the_global_generator_and_the_gradients_alone():
    x, y = data()
    dropout = nn.Sequential(nn.Flatten(), nn.Linear(D, 32), nn.Dropout(0.5), nn.Linear(32, CLASSES))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in first.parameters())
    torch.manual_seed(6)
    again = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(0))
    assert torch.equal(weights(first), weights(again))
    other = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(1))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize(
    ("model", "recipe", "expected"),
    [
        (mlp(0), Recipe(), True),
        (mlp(0), Recipe(augmentation="flip"), False),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2)), Recipe(), False),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Recipe(), False),
    ],
)
def test_only_what_has_no_state_and_no_chance_is_batched(model, recipe, expected):
    assert is_batchable(model, recipe) is expected
