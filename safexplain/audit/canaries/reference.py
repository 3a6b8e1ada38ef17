"""Reference trainings of the canary's adversary: without noise, on the same data.

Algorithms 2 to 5 of arXiv 2511.21804: a training without clipping finds the record with the least confidence and the
parameters at which gradients are compared; one with clipping finds the parameter that moves least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safexplain._progress import Progress, silent
from safexplain.audit.canaries.batched import LinearHead
from safexplain.audit.canaries.canary import Model, at_least_single
from safexplain.dp.heads.closed_form import HeadRecipe, Rows, common_batches
from safexplain.errors import InputError

_READS = 100  # approximate number of times that the confidence is computed in a training
_ROWS = 2**14  # records whose confidence is computed together


@dataclass(frozen=True, eq=False)
class Reference:
    """Results of the reference trainings."""

    theta: Tensor  # (P,) at the end of the training without clipping
    target: int  # row of the record with the least mean probability of its true class over that training
    confidence: Tensor  # (n,) that mean for each record
    bound: float | None = None  # clipping bound C of the recipe
    movement: Tensor | None = None  # (P,) sum over the clipped training's steps of how far each parameter moved
    drift: Tensor | None = None
    """(steps + 1,) how far the parameter that moves least has moved after each step of that training; None: not
    computed, or under Adam, whose step lengths depend on the noise."""

    @property
    def least_moving(self) -> int:
        """The flat coordinate of the parameter that moves least."""
        assert self.movement is not None, "made with movement=False"
        return int(self.movement.argmin())


def reference(
    network: LinearHead,
    x: Tensor,
    y: Tensor,
    recipe: HeadRecipe,
    *,
    generator: torch.Generator,
    initial: Tensor | None = None,
    movement: bool = True,
    progress: Progress = silent,
) -> Reference:
    """Train without noise and clipping and, for a gradient canary (`movement`), with clipping and without the target.

    Raises:
        InputError: the parameters diverged.
    """
    x, y = at_least_single(x), y.long()
    start = network.initial(1, generator, x.device, x.dtype) if initial is None else initial.to(x).reshape(1, -1)
    rows = Rows.of(x, y, bias=network.bias)

    every, theta = max(1, recipe.steps // _READS), start
    confidence = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for step, theta in enumerate(_training(network, rows, replace(recipe, clipping=None), start, None, generator), 1):
        progress("reference", step, recipe.steps)
        if step % every == 0:
            confidence += true_class_probability(network, theta, x, y)
    confidence /= recipe.steps // every
    bound = None if recipe.clipping is None else recipe.clipping.bound
    found = Reference(theta[0], int(confidence.argmin()), confidence, bound)
    if not bool(theta.isfinite().all()):
        raise InputError("the reference training diverged to NaN or infinity; lower the learning rate")
    return _moved(network, rows, recipe, start, found, generator, progress) if movement else found


def true_class_probability(network: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(n,) float64 probability of each record's true class under one model, theta (1, P)."""
    found = []
    for inputs, labels in zip(torch.split(x, _ROWS), torch.split(y, _ROWS), strict=True):
        with torch.no_grad():
            logits = network.logits(theta, inputs)[0].double()
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        found.append(logits.softmax(1).gather(1, labels[:, None])[:, 0])
    return torch.cat(found)


def least_confident(confidence: Tensor, y: Tensor) -> dict[int, int]:
    """Class -> row of its record with the least confidence (n,), NaN being least; the rarest class first."""
    order = torch.where(confidence.isnan(), -torch.inf, confidence)
    classes, counts = torch.unique(y, return_counts=True)
    rarest = counts.argsort(stable=True)
    return {int(c): int(torch.where(y == c, order, torch.inf).argmin()) for c in classes[rarest]}


def _moved(
    network: LinearHead,
    rows: Rows,
    recipe: HeadRecipe,
    start: Tensor,
    found: Reference,
    generator: torch.Generator,
    progress: Progress,
) -> Reference:
    """The reference with movement and drift; trains twice, as all parameters at all steps may not fit into memory."""
    state, movement, before = generator.get_state(), torch.zeros_like(start[0]), start[0].clone()
    for step, theta in enumerate(_training(network, rows, recipe, start, found.target, generator), 1):
        progress("movement", step, recipe.steps)
        movement += (theta[0] - before).abs()
        before.copy_(theta[0])
    found = replace(found, movement=movement)
    if recipe.optimizer == "adam":
        return found
    generator.set_state(state)
    at, drift = found.least_moving, [torch.zeros_like(start[0, 0])]
    for step, theta in enumerate(_training(network, rows, recipe, start, found.target, generator), 1):
        progress("drift", step, recipe.steps)
        drift.append(theta[0, at] - start[0, at])
    return replace(found, drift=torch.stack(drift))


def _training(
    network: LinearHead, rows: Rows, recipe: HeadRecipe, start: Tensor, excluded: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """The parameters (1, P) after each step of a training without noise, one tensor that changes in place."""
    theta = start.clone()
    update = recipe.make_update(theta)
    members = torch.ones(1, len(rows.x), dtype=torch.bool, device=rows.x.device)
    if excluded is not None:
        members[0, excluded] = False
    for index, weight in common_batches(recipe.sample_rate, members, recipe.steps, generator):
        batch = rows if index is None else rows.take(index)
        total = network.clipped_sum(theta, batch, weight, recipe.clipping)
        update(total.div_(recipe.expected_batch_size))
        yield theta
