"""A frozen backbone: features once, then the linear head by closed-form DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.dp.heads.closed_form import Heads, train_heads
from safexplain.dp.heads.features import features, linear_head
from safexplain.dp.heads.recipe import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.config import TrainingConfig, cross_entropy
from safexplain.dp.sgd.plan import TrainingPlan
from safexplain.dp.sgd.records import InMemory, Records
from safexplain.dp.sgd.sampling import source_of
from safexplain.errors import InputError


def linear_that_trains(model: nn.Module) -> str | None:
    """Name of the `nn.Linear` whose parameters are all that require gradients, if that is so."""
    training = {name.rpartition(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    name = training.pop() if len(training) == 1 else ""
    layer = model.get_submodule(name)
    whole = isinstance(layer, nn.Linear) and all(p.requires_grad for p in layer.parameters())
    return name if name and whole else None


def has_closed_form(model: nn.Module, records: Records, config: TrainingConfig) -> bool:
    """Whether a linear layer that gives the model's output alone trains, on tensors and in one process."""
    return (
        config.loss is cross_entropy
        and config.optimizer in ("adam", "sgd")
        and not config.clipping.per_layer
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        and isinstance(records, InMemory)
        and isinstance(records.x, Tensor)
        and (name := linear_that_trains(model)) is not None
        and gives_the_output(model, name, records.x[:2])
    )


def gives_the_output(model: nn.Module, name: str, like: Tensor) -> bool:
    """Whether the model's output is that of this layer, unchanged: tried on noise of the shape of these rows."""
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, __, output: seen.append(output))
    rows = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)) if like.is_floating_point() else like
    try:
        with torch.no_grad():
            output = model(rows.to(like.dtype).to(next(model.parameters()).device))
    finally:
        hook.remove()
    return len(seen) == 1 and isinstance(output, Tensor) and torch.equal(output, seen[0])


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """What remains of a training when the backbone is frozen.

    Args:
        layer: that trains.
        x: (n, d) its inputs, on its device.
        recipe: of the training.
        initial: where it starts.
    """

    layer: nn.Linear
    x: Tensor
    recipe: HeadRecipe
    initial: Heads


def head_problem(
    model: nn.Module,
    records: InMemory,
    plan: TrainingPlan,
    config: TrainingConfig,
    *,
    cache: Path | None,
    known: dict[str, Tensor] | None = None,
) -> HeadProblem:
    """Compute the features.

    Args:
        model: backbone and a linear head that alone requires gradients, on the device where to train.
        records: one tensor of inputs, and class indices.
        plan: steps, sample rate and noise.
        config: optimizer "sgd" or "adam"; mode, piece and loss have no effect.
        cache: folder for the features.
        known: keeps them for another training with this backbone and these records.

    Raises:
        InputError: another model, or features that are not finite or depend on other rows.
    """
    head_name = linear_that_trains(model)
    if head_name is None:
        raise InputError("expected a model in which one nn.Linear alone requires gradients")
    head = linear_head(model, head_name)
    device = head.weight.device
    recipe = HeadRecipe(
        classes=head.out_features,
        steps=plan.steps,
        sample_rate=plan.sample_rate,
        expected_batch_size=plan.expected_batch_size,
        clipping=config.clipping,
        lr=config.lr,
        optimizer=cast(HeadOptimizer, config.optimizer),
        bias=head.bias is not None,
    )
    bias = torch.zeros(head.out_features, device=device) if head.bias is None else head.bias.detach()
    known = {} if known is None else known
    if "x" not in known:
        known["x"] = features(model, head_name, cast(Tensor, records.x), cache=cache).to(device)
    return HeadProblem(head, known["x"], recipe, Heads(head.weight.detach()[None], bias[None]))


def train_head(
    model: nn.Module,
    records: InMemory,
    plan: TrainingPlan,
    config: TrainingConfig,
    *,
    cache: Path | None,
    progress: Progress,
    known: dict[str, Tensor] | None = None,
) -> None:
    """Train the head in place, from its present weights; arguments and errors as for `head_problem`.

    Labels that the head has no output for are an InputError too; `progress` is told how far the head is.
    """
    problem = head_problem(model, records, plan, config, cache=cache, known=known)
    head, device = problem.layer, problem.x.device

    def told(stage: str, done: float, total: float, note: str = "") -> None:
        progress(stage, done, total, plan.told(round(done)))

    trained = train_heads(
        problem.x,
        records.y,
        problem.recipe,
        noise_multiplier=plan.noise_multiplier,
        initial=problem.initial,
        generator=source_of(config.seed, device),
        progress=progress if progress is silent else told,
    )
    with torch.no_grad():
        head.weight.copy_(trained.weight[0])
        if head.bias is not None:
            head.bias.copy_(trained.bias[0])
