"""Models that are trained and explained in workers: those of one process, and the same answers."""

import sys
import threading

import cloudpickle
import joblib
import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import FineTune, Population, Recipe, Shadows, collect_signals, fine_tune, train_shadows
from safexplain.audit.references.shadows import most_together

cloudpickle.register_pickle_by_value(sys.modules[__name__])
RECIPE = Recipe(lr=0.01, epochs=3, batch_size=16)


def population(n=80, d=5):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=g)
    return Population(torch.randn(n, d, generator=g) + y[:, None], y)


POOL = population()


def mlp(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def of_ones_own(x, y, generator):
    model = mlp(torch.rand(1))
    with torch.no_grad():
        model[0].weight.add_(x.mean() + torch.rand(1, generator=generator))
    return model


def equal(a, b):
    assert np.array_equal(a.membership, b.membership)
    return all(torch.equal(m(POOL.x), n(POOL.x)) for m, n in zip(a.models, b.models, strict=True))


class Saliency:
    """Gradients, whose answers a worker can give."""

    def __call__(self, model, x, target):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)[0]


class AtHome(nn.Module):
    """A model that cannot be sent."""

    def __init__(self, model):
        super().__init__()
        self.model, self.lock = model, threading.Lock()

    def forward(self, x):
        return self.model(x)


@pytest.mark.slow
@pytest.mark.parametrize("at_home", [False, True])
def test_models_fine_tuned_models_and_signals_are_those_of_one_process(tmp_path, at_home):
    """One test, since workers take long to start."""
    how = FineTune(POOL, RECIPE, trainable="head")
    for train in (RECIPE, of_ones_own):
        models = train_shadows(POOL, train, build=mlp, models=5)
        tuned = fine_tune(models, how, seed=2)
        with joblib.parallel_config("loky", n_jobs=2):
            found = train_shadows(POOL, train, build=mlp, models=5, cache=tmp_path / "models")
            assert equal(found, models)
            assert equal(fine_tune(found, how, seed=2, cache=tmp_path / "heads"), tuned)
        assert equal(train_shadows(POOL, train, build=mlp, models=5, cache=tmp_path / "models"), models)
    if at_home:
        models = Shadows((AtHome(models.models[0]), *models.models[1:]), models.membership)
    asked = {"patience": (1, 6), "classes": (0, 2), "targets": (0,)}
    whole = collect_signals(models, POOL, Saliency(), **asked)
    for store in (None, tmp_path / "kept"):
        with joblib.parallel_config("loky", n_jobs=2):
            found = collect_signals(models, POOL, Saliency(), **asked, store=store)
        assert found.values.keys() == whole.values.keys()
        assert all(np.array_equal(found.values[name], whole.values[name]) for name in whole.values)
        assert np.array_equal(found.attributions, whole.attributions)
        assert found.meta == whole.meta


def test_groups_keep_all_workers_busy():
    assert most_together(100) == 32
    with joblib.parallel_config("loky", n_jobs=4):
        assert [most_together(models) for models in (1000, 100, 32, 5)] == [32, 13, 4, 4]
