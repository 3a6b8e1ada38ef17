"""Training by a `Recipe`: one model at a time (any module), or many small ones as one batched computation.

Both follow the same random streams and give the same models up to rounding; the plain loop is the oracle of the batched
one. Batching pays for linear and MLP networks only: grouped convolutions under vmap are slower than the loop. A
scikit-learn classifier trains by its own `fit`, and becomes a module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from safexplain.audit.recipe import Recipe, Tick, batches, check_finite, descend
from safexplain.errors import InputError
from safexplain.outputs import EstimatorModule

BATCHABLE = (
    nn.Linear,
    nn.Flatten,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
)
"""Layers whose batched form is one matrix product or elementwise, without state and without randomness."""


def is_batchable(model: nn.Module, recipe: Recipe) -> bool:
    """Whether `train_together` applies: a Sequential of linear layers and activations, no augmentation."""
    leaves = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    return (
        isinstance(model, nn.Sequential) and recipe.augmentation == "none" and all(type(m) in BATCHABLE for m in leaves)
    )


train_one = Recipe.train
"""One model at a time, the plain loop."""


def train_together(
    recipe: Recipe,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Tick | None = None,
) -> list[nn.Module]:
    """Train models of one batchable architecture at once; each gets what `train_one` on its members would give it.

    Args:
        recipe: what to do.
        models: m modules of one architecture, on one device; they receive the trained weights.
        x: (n, ...) inputs of the pool.
        y: (n,) labels.
        members: m index tensors into the pool, with equal `recipe.steps_per_epoch`.
        generators: one a model.
        tick: progress.

    Raises:
        InputError: steps per epoch differ, or a loss became NaN or infinite.
    """
    counts = [len(index) for index in members]
    if len({recipe.steps_per_epoch(c) for c in counts}) != 1:
        raise InputError("models trained together need equal steps per epoch; group them by recipe.steps_per_epoch")
    device = next(models[0].parameters()).device
    x, y = x.to(device), y.to(device)
    parameters, _ = stack_module_state(list(models))
    skeleton = models[0]
    forward = vmap(lambda p, batch: functional_call(skeleton, p, (batch,)))
    streams = [batches(recipe, c, g) for c, g in zip(counts, generators, strict=True)]

    def next_loss() -> Tensor:
        chosen = [index[next(s)] for index, s in zip(members, streams, strict=True)]
        width = max(len(c) for c in chosen)
        index = torch.stack([F.pad(c, (0, width - len(c))) for c in chosen]).to(device)
        weight = torch.stack([torch.arange(width) < len(c) for c in chosen]).to(device, torch.float32)
        logits = forward(parameters, x[index])
        losses = F.cross_entropy(logits.transpose(1, 2), y[index], reduction="none")
        return ((losses * weight).sum(1) / weight.sum(1)).sum()

    descend(recipe, list(parameters.values()), counts[0], next_loss, tick)
    with torch.no_grad():
        for i, model in enumerate(models):
            for name, p in model.named_parameters():
                p.copy_(parameters[name][i])
            check_finite(model)
    return [model.eval() for model in models]


def fit_estimator(
    estimator: Any, x: NDArray[np.float32], y: NDArray[np.int64], *, classes: int, seed: int
) -> EstimatorModule:
    """A clone of a scikit-learn classifier, seeded where it or its steps have `random_state`, and fitted.

    Args:
        estimator: left as it is.
        x: (members, d) inputs.
        y: (members,) labels.
        classes: outputs of the module.
        seed: of everything random in it.
    """
    from sklearn.base import clone

    one = clone(estimator)
    states = [p for p in one.get_params() if p == "random_state" or p.endswith("__random_state")]
    one.set_params(**dict.fromkeys(states, seed))
    return EstimatorModule(one.fit(x, y), classes)
