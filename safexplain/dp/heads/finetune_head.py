"""Fine-tuning of a linear head on a frozen backbone: features once, then closed-form DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.dp.heads.closed_form import HeadOptimizer, HeadRecipe, Heads, add_noise, separate_batches, train_heads
from safexplain.dp.heads.features import features, linear_head
from safexplain.dp.sgd.plan import NETWORK_LR, TrainingConfig, TrainingPlan, cross_entropy
from safexplain.dp.sgd.records import InMemory, Records
from safexplain.dp.sgd.sampling import Source, gaussian, random_source

LR = 0.15
"""Learning rate of Adam for inputs of norm 1 (`python -m audit.suites.dp_defaults` compares it with a search).

The bias has the same one, which is too fast for inputs of norms far below 1."""

OCTAVES = 16.0
"""Norms are measured from 2^-16 to 2^16."""


def trainable_linear(model: nn.Module) -> str | None:
    """Name of the `nn.Linear` that holds all trainable parameters; None if there is no such layer."""
    training = {name.rpartition(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    name = training.pop() if len(training) == 1 else ""
    layer = model.get_submodule(name)
    fully_trainable = isinstance(layer, nn.Linear) and all(p.requires_grad for p in layer.parameters())
    return name if name and fully_trainable else None


def has_closed_form(model: nn.Module, records: Records, config: TrainingConfig) -> bool:
    """Whether only a linear output layer trains, on tensors and in one process."""
    return (
        config.loss is cross_entropy
        and config.optimizer in ("adam", "sgd")
        and not config.clipping.per_layer
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        and isinstance(records, InMemory)
        and isinstance(records.x, Tensor)
        and (name := trainable_linear(model)) is not None
        and is_output_layer(model, name, records.x[:2])
    )


def is_output_layer(model: nn.Module, name: str, like: Tensor) -> bool:
    """Whether the model returns this layer's output unchanged, tried on noise in the shape of these rows."""
    outputs: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, __, output: outputs.append(output))
    rows = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)) if like.is_floating_point() else like
    try:
        with torch.no_grad():
            output = model(rows.to(like.dtype).to(next(model.parameters()).device))
    finally:
        hook.remove()
    return len(outputs) == 1 and isinstance(output, Tensor) and torch.equal(output, outputs[0])


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """A training of a head alone, from its inputs x (n, d)."""

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
    computed: dict[str, Tensor] | None = None,
) -> HeadProblem:
    """Compute the features of the records, to train the head on; `computed` keeps them for another training."""
    head_name = trainable_linear(model) or ""
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
    computed = {} if computed is None else computed
    if "x" not in computed:
        computed["x"] = features(model, head_name, cast(Tensor, records.x), cache=cache).to(device)
    return HeadProblem(head, computed["x"], recipe, Heads(head.weight.detach()[None], bias[None]))


def train_head(
    problem: HeadProblem, labels: Tensor, plan: TrainingPlan, config: TrainingConfig, *, progress: Progress
) -> None:
    """Train the head in place, from its present weights; InputError: no output for a label, or weights diverged."""
    source, recipe = random_source(config.seed, problem.x.device), problem.recipe
    if config.lr is None and recipe.optimizer == "adam" and recipe.steps > 1:
        norm = typical_norm(problem.x, recipe, plan.noise_multiplier, source)
        recipe = replace(recipe, lr=LR / norm, steps=recipe.steps - 1)

    def report(stage: str, done: float, total: float, note: str = "") -> None:
        progress(stage, done, total, plan.spent_text(round(done) + plan.steps - recipe.steps))

    trained = train_heads(
        problem.x,
        labels,
        recipe,
        noise_multiplier=plan.noise_multiplier,
        initial=problem.initial,
        generator=source,
        progress=progress if progress is silent else report,
    )
    with torch.no_grad():
        problem.layer.weight.copy_(trained.weight[0])
        if problem.layer.bias is not None:
            problem.layer.bias.copy_(trained.bias[0])


def typical_norm(x: Tensor, recipe: HeadRecipe, noise_multiplier: float, source: Source) -> float:
    """The geometric mean of the norms of rows, measured privately at the price of one step of DP-SGD.

    The right learning rate of Adam is inversely proportional to the norm of the head's inputs, which is private and
    differs between backbones (1 for most text embeddings, 50 for a MobileNet). In a step of DP-SGD, each example of a
    Poisson batch adds a vector of norm at most C, the clipping bound, and the sum gets noise of standard deviation
    noise_multiplier times C. Here only one number of that vector is not 0: C log2(norm) / 16, cut to [-C, C].
    Everything computed from the noisy sum is post-processing, so one of the accounted `Steps` covers it. The result is
    in [2^-16, 2^16].
    """
    bound = 1.0 if recipe.clipping is None else recipe.clipping.bound
    everyone = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
    ((index, weight),) = separate_batches(recipe.sample_rate, everyone, 1, source)
    octaves = torch.linalg.vector_norm(x.float(), dim=1).log2().div(OCTAVES).clamp(-1.0, 1.0)
    drawn = octaves if index is None else octaves[index]
    total = torch.zeros(1, recipe.outputs, x.shape[1] + recipe.bias, device=x.device)
    total[0, 0, 0] = bound * (drawn if weight is None else drawn * weight[0]).sum()
    if noise_multiplier:
        total = add_noise(total, gaussian(total, noise_multiplier * bound, source), index, weight, len(x))
    mean = float(total[0, 0, 0]) / bound / recipe.expected_batch_size
    return float(2.0 ** (OCTAVES * min(max(mean, -1.0), 1.0)))
