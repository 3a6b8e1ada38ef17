"""A frozen backbone: features once, then the linear head by closed-form DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.dp.heads.closed_form import HeadOptimizer, HeadRecipe, Heads, own_batches, released, train_heads
from safexplain.dp.heads.features import features, linear_head
from safexplain.dp.sgd.plan import NETWORK_LR, TrainingConfig, TrainingPlan, cross_entropy
from safexplain.dp.sgd.records import InMemory, Records
from safexplain.dp.sgd.sampling import Source, gaussian, source_of
from safexplain.errors import InputError

LR = 0.15
"""Learning rate of Adam for inputs of norm 1 (`python -m audit.suites.dp_defaults` compares it with a search).

It is the bias's too, which moves too fast beside inputs of norms far below 1."""

OCTAVES = 16.0
"""Norms are measured from 2^-16 to 2^16."""


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
        lr=config.lr or NETWORK_LR,
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

    source, recipe = source_of(config.seed, device), problem.recipe
    if config.lr is None and recipe.optimizer == "adam" and recipe.steps > 1:
        norm = typical_norm(problem.x, recipe, plan.noise_multiplier, source)
        recipe = replace(recipe, lr=LR / norm, steps=recipe.steps - 1)

    def told(stage: str, done: float, total: float, note: str = "") -> None:
        progress(stage, done, total, plan.told(round(done) + plan.steps - recipe.steps))

    trained = train_heads(
        problem.x,
        records.y,
        recipe,
        noise_multiplier=plan.noise_multiplier,
        initial=problem.initial,
        generator=source,
        progress=progress if progress is silent else told,
    )
    with torch.no_grad():
        head.weight.copy_(trained.weight[0])
        if head.bias is not None:
            head.bias.copy_(trained.bias[0])


def typical_norm(x: Tensor, recipe: HeadRecipe, noise_multiplier: float, source: Source) -> float:
    """The geometric mean of the norms of rows, measured by what the accountant knows as one more step of DP-SGD.

    The right learning rate of Adam is inversely proportional to the norm of what the head reads, which is private and
    differs between backbones (1 for most embeddings of texts, 50 for a MobileNet). In a step, each example of a
    Poisson batch adds a vector of norm at most C, the clipping bound, and the sum gets noise of standard deviation
    noise_multiplier times C. Here the vector has one number that is not 0, C log2(norm) / 16, cut to [-C, C]. What is
    made of the noisy sum is post-processing; `Steps` of the same number covers it with the rest.

    Args:
        x: (n, d) inputs of the head.
        recipe: of the training, of which this takes the place of one step.
        noise_multiplier: of every step.
        source: of batch and noise.

    Returns:
        In [2^-16, 2^16].
    """
    bound = 1.0 if recipe.clipping is None else recipe.clipping.bound
    everyone = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
    ((index, weight),) = own_batches(recipe.sample_rate, everyone, 1, source)
    octaves = torch.linalg.vector_norm(x.float(), dim=1).log2().div(OCTAVES).clamp(-1.0, 1.0)
    drawn = octaves if index is None else octaves[index]
    total = torch.zeros(1, recipe.outputs, x.shape[1] + recipe.bias, device=x.device)
    total[0, 0, 0] = bound * (drawn if weight is None else drawn * weight[0]).sum()
    if noise_multiplier:
        total = released(total, gaussian(total, noise_multiplier * bound, source), index, weight, len(x))
    mean = float(total[0, 0, 0]) / bound / recipe.expected_batch_size
    return float(2.0 ** (OCTAVES * min(max(mean, -1.0), 1.0)))
