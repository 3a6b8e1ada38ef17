"""Training by a `Recipe`: one model at a time (any module), or many small ones as one batched computation.

Both follow the same random streams and give the same models up to rounding; the plain loop is the oracle of the batched
one. Batching pays for linear and MLP networks only: grouped convolutions under vmap are slower than the loop. A
scikit-learn classifier trains by its own `fit`, and becomes a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from safexplain.audit.recipe import ROWS, Recipe, Tick, check_finite, descend
from safexplain.audit.references.batches import fits, moved
from safexplain.audit.references.dp_training import train_private_models
from safexplain.audit.references.resume import Checkpoint
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
    """Whether `train_together` applies: a Sequential of linear layers and activations, no augmentation, no privacy."""
    leaves = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    plain = recipe.augmentation == "none" and recipe.dp is None
    return isinstance(model, nn.Sequential) and plain and all(type(m) in BATCHABLE for m in leaves)


ALIGNED = 16
"""Models that train together see batches padded to multiples of this: all numbers of each meet vector instructions."""

TOGETHER = 32
"""Most models in one batched computation; what is finished is stored after each."""

train_one = Recipe.train
"""One model at a time, the plain loop."""


def train_models(
    recipe: Recipe,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Tick | None = None,
    *,
    finished: Callable[[int], None] | None = None,
    checkpoints: Sequence[Path | None] | None = None,
) -> None:
    """Train models of one architecture in place: together where that is possible, else one after the other.

    Args:
        recipe: what to do.
        models: m modules, on one device; they end in eval mode.
        x: (n, ...) inputs of the pool.
        y: (n,) labels.
        members: m index tensors into the pool.
        generators: one a model.
        tick: told the share of all m models that is done, and the epoch.
        finished: told the place in `models` of each model as soon as it is trained.
        checkpoints: a file or None for each model, where it is kept while it trains; removed when it is finished. A
            training that was interrupted goes on there, and ends bit for bit where it would have ended.

    Raises:
        InputError: the loss of a model became NaN or infinite; models before it are trained.
    """
    places, done = range(len(models)), 0
    if recipe.dp is not None:
        paths = list(checkpoints) if checkpoints else [None] * len(models)

        def ended(place: int) -> None:
            if finished:
                finished(place)
            if path := paths[place]:
                path.unlink(missing_ok=True)

        train_private_models(recipe, recipe.dp, models, x, y, members, generators, tick, ended, paths)
        return
    together = bool(models) and is_batchable(models[0], recipe)
    groups = groups_by_steps(recipe, {i: len(members[i]) for i in places}) if together else [[i] for i in places]
    device = next(models[0].parameters()).device if models else torch.device("cpu")
    if fits(x, device):
        x = x.to(device)
    for group in groups:

        def told(share: float, note: str = "", size: int = len(group), before: int = done) -> None:
            if tick:
                tick((before + share * size) / len(models), f"{size} models at once, {note}" if size > 1 else note)

        index, own = [members[i] for i in group], [generators[i] for i in group]
        kept = [checkpoints[i] for i in group] if checkpoints else [None] * len(group)
        if together:
            chosen = [models[i] for i in group]
            train_together(recipe, chosen, x, y, index, own, told, checkpoint=kept[0])
        else:
            own_x, own_y = x[index[0].to(x.device)], y[index[0].to(y.device)]
            train_one(recipe, models[group[0]], own_x, own_y, own[0], told, checkpoint=kept[0])
        done += len(group)
        for place, path in zip(group, kept, strict=True):
            if finished:
                finished(place)
            if path:
                path.unlink(missing_ok=True)


def groups_by_steps(recipe: Recipe, members: Mapping[int, int]) -> list[list[int]]:
    """Models that can train together: of equal steps per epoch, at most `TOGETHER`.

    Args:
        recipe: of the training.
        members: number of the model -> how many examples it trains on.
    """
    by_steps: dict[int, list[int]] = {}
    for i, count in members.items():
        by_steps.setdefault(recipe.steps_per_epoch(count), []).append(i)
    return [g[s : s + TOGETHER] for g in by_steps.values() for s in range(0, len(g), TOGETHER)]


def train_together(
    recipe: Recipe,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Tick | None = None,
    *,
    checkpoint: Path | None = None,
) -> list[nn.Module]:
    """Train models of one batchable architecture at once; each gets what `train_one` on its members would give it.

    Batches are padded to sizes that do not depend on who else is in the group. So, in one thread of a CPU, a model with
    hidden layers of at least 8 units was bit for bit the same in every group that was tried; narrower ones differ by
    rounding.

    Args:
        recipe: what to do.
        models: m modules of one architecture, on one device; they receive the trained weights.
        x: (n, ...) inputs of the pool.
        y: (n,) labels.
        members: m index tensors into the pool, with equal `recipe.steps_per_epoch`.
        generators: one a model.
        tick: progress.
        checkpoint: file where all of them are kept while they train, as for `Recipe.train`.

    Raises:
        InputError: steps per epoch differ, or a loss became NaN or infinite.
    """
    counts = [len(index) for index in members]
    if len({recipe.steps_per_epoch(c) for c in counts}) != 1:
        raise InputError("models trained together need equal steps per epoch; group them by recipe.steps_per_epoch")
    device = next(models[0].parameters()).device
    parameters, _ = stack_module_state(list(models))
    skeleton = models[0]
    forward = vmap(lambda p, batch: functional_call(skeleton, p, (batch,)))
    batches = _ManyBatches(recipe, x, y, members, generators, device)

    def loss(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        with recipe.autocast(device):
            logits = forward(parameters, x).transpose(1, 2)
            losses = F.cross_entropy(logits.float() if recipe.precision == "bf16" else logits, y, reduction="none")
            return ((losses * weight).sum(1) / weight.sum(1)).sum()

    kept = None
    if checkpoint:
        used = torch.cat([index.cpu() for index in members]).unique()
        few = used[:: max(1, len(used) // ROWS)]
        data = x[few.to(x.device)], y[used.to(y.device)], *members
        kept = Checkpoint(checkpoint, recipe.identity(parameters, generators, *data), parameters)
    descend(recipe, list(parameters.values()), batches, loss, tick, kept)
    with torch.no_grad():
        for i, model in enumerate(models):
            for name, p in model.named_parameters():
                p.copy_(parameters[name][i])
            check_finite(model)
    return [model.eval() for model in models]


class _ManyBatches:
    """Batches of m models at once, padded to widths of the recipe's: (m, b, ...) inputs, (m, b) labels and weights."""

    def __init__(
        self,
        recipe: Recipe,
        x: Tensor,
        y: Tensor,
        members: Sequence[Tensor],
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        self.near = fits(x, device)
        self.x, self.y, self.device = (x.to(device) if self.near else x), y.to(device), device
        self.members, self.generators = [index.cpu() for index in members], generators
        self.sizes = [recipe.batch_sizes(len(index)) for index in members]
        self.steps = len(self.sizes[0])
        most = [*[recipe.batch_size] * (self.steps - 1), recipe.batch_size + 1]
        self.widths = [-(-min(size, len(x)) // ALIGNED) * ALIGNED for size in most]  # no wider than the pool
        self.weights = [
            torch.stack([torch.arange(width) < size for size in sizes]).to(device, torch.float32)
            for width, sizes in zip(self.widths, zip(*self.sizes, strict=True), strict=True)
        ]

    def epoch(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of one epoch, all of them drawn, from batch `first` on."""
        drawn = [
            index[torch.randperm(len(index), generator=g)].split(sizes)
            for index, g, sizes in zip(self.members, self.generators, self.sizes, strict=True)
        ]
        padded = [_padded(step, width) for *step, width in zip(*drawn, self.widths, strict=True)]
        order = torch.cat(padded, dim=1)
        there = moved(order, self.device)
        steps = zip(self.widths, accumulate(self.widths), self.weights, strict=True)
        for width, end, weight in list(steps)[first:]:
            index = there[:, end - width : end]
            x = self.x[index] if self.near else moved(self.x[order[:, end - width : end]], self.device)
            yield x, self.y[index], weight


def _padded(chosen: Sequence[Tensor], width: int) -> Tensor:
    return torch.stack([F.pad(index, (0, width - len(index))) for index in chosen])


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
