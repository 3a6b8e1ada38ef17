"""Reference models that are trained in workers: those of one process."""

from __future__ import annotations

import sys

import cloudpickle
import joblib
import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from safexplain.audit import FineTune, Population, Recipe, fine_tune, train_shadows
from safexplain.audit.references.training import most_together

cloudpickle.register_pickle_by_value(sys.modules[__name__])
RECIPE = Recipe(lr=0.01, epochs=3, batch_size=16)
PRIVATE = Recipe(lr=0.01, epochs=2, batch_size=10, dp={"noise_multiplier": 1.0, "delta": 1e-3, "trainable": "head"})


def population(n=80, d=5):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=g)
    return Population(torch.randn(n, d, generator=g) + y[:, None], y)


POOL = population()


def mlp(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def dropping(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def same_below_the_head(seed):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return mlp(seed)


def of_ones_own(x, y, generator):
    model = mlp(torch.rand(1))
    with torch.no_grad():
        model[0].weight.add_(x.mean() + torch.rand(1, generator=generator))
    return model


def equal(a, b):
    assert a.numbers == b.numbers
    assert np.array_equal(a.membership, b.membership)
    return all(torch.equal(m(POOL.x), n(POOL.x)) for m, n in zip(a.models, b.models, strict=True))


@pytest.mark.parametrize(
    ("train", "build"),
    [
        (RECIPE, mlp),
        (RECIPE, dropping),
        (of_ones_own, mlp),
        (of_ones_own, None),
        (DecisionTreeClassifier(), None),
        (PRIVATE, same_below_the_head),
    ],
    ids=["together", "alone", "function with build", "function", "estimator", "private heads"],
)
def test_whatever_trains_gives_the_models_of_one_process(tmp_path, train, build):
    options = {"build": build, "models": 6, "seed": 3}
    whole = train_shadows(POOL, train, **options)
    with joblib.parallel_config("loky", n_jobs=2):
        found = train_shadows(POOL, train, **options, cache=tmp_path)
    if train is PRIVATE:  # heads in other groups
        assert all(
            torch.allclose(m(POOL.x), n(POOL.x), atol=1e-5) for m, n in zip(found.models, whole.models, strict=True)
        )
    else:
        assert equal(found, whole)
    assert equal(train_shadows(POOL, train, **options, cache=tmp_path), found)


def test_heads_and_networks_are_fine_tuned_as_in_one_process(tmp_path):
    pretrained = train_shadows(POOL, RECIPE, build=dropping, models=6)
    for trainable in ("head", "all"):
        how = FineTune(POOL, RECIPE, trainable=trainable)
        whole = fine_tune(pretrained, how, seed=2)
        with joblib.parallel_config("loky", n_jobs=2):
            assert equal(fine_tune(pretrained, how, seed=2, cache=tmp_path / trainable), whole)
        assert equal(fine_tune(pretrained, how, seed=2, cache=tmp_path / trainable), whole)


def test_groups_keep_all_workers_busy():
    assert most_together(100) == 32
    with joblib.parallel_config("loky", n_jobs=4):
        assert [most_together(models) for models in (1000, 100, 32, 5)] == [32, 13, 4, 4]
