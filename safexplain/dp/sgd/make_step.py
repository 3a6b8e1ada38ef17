"""`make_step`: a model, a `torch.optim` optimizer and a clipping rule -> a `PerSampleStep`.

| mode | gradients of single examples | clipping |
|---|---|---|
| "hooks" | made and kept for one piece, by Opacus' rules for each layer | all rules |
| "functorch" | the same by `torch.func.vmap`, for any layer | all rules |
| "ghost" | only their norms; a second backward pass sums the clipped ones | one factor an example: not per layer |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from torch import nn
from torch.optim import Optimizer

from safexplain.dp.models.ghost import GhostHooks
from safexplain.dp.models.unsupported import Mode
from safexplain.dp.sgd.clipping import Clipping
from safexplain.dp.sgd.optimizers import ClippedOptimizer, DistributedClippedOptimizer
from safexplain.dp.sgd.steps import GhostStep, HooksStep, Loss, PerSampleStep
from safexplain.errors import ConfigurationError


def make_step(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    clipping: Clipping,
    noise_multiplier: float,
    expected_batch_size: float,
    loss: Loss,
    mode: Mode = "hooks",
    generator: torch.Generator | None = None,
    distributed: bool = False,
    float_safe: bool = True,
) -> PerSampleStep:
    """Prepare a model for steps of DP-SGD; `close` the result to leave the model as it was.

    Args:
        model: in training mode, with exactly the parameters to train requiring gradients.
        optimizer: any `torch.optim` optimizer of these parameters.
        clipping: rule that bounds each example's contribution.
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients, over `clipping.bound`.
        expected_batch_size: what the noisy sum is divided by: sampling rate times size of the data, a constant; over
            all processes.
        loss: outputs and targets -> losses of shape (batch,).
        mode: see the table of this module.
        generator: draws the noise; None makes one seeded from the operating system.
        distributed: the logical batch is spread over the processes of torch.distributed. The first one's parameters
            are sent to all. Every process must take every step, also where it accumulated nothing.
        float_safe: noise that floating-point numbers do not give away, see `safexplain.dp.sgd.noise.gaussian`.

    Raises:
        ConfigurationError: options that do not go together, or an optimizer of other parameters than the model's.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode: expected one of {', '.join(get_args(Mode))}, got {mode!r}")
    if mode == "ghost" and clipping.per_layer:
        raise ConfigurationError(
            f'{type(clipping).__name__} needs mode="hooks": mode "ghost" has one factor for each example, on its loss'
        )
    kind = DistributedClippedOptimizer if distributed else ClippedOptimizer
    clipped = kind(
        optimizer,
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        generator=generator,
        float_safe=float_safe,
    )
    _check_model(model, clipped.params)
    forward = DifferentiallyPrivateDistributedDataParallel(model) if distributed else model
    if mode == "ghost":
        return GhostStep(forward, GhostHooks(forward, loss_reduction="sum"), clipped, loss)
    hooks = GradSampleHooks(forward, loss_reduction="sum", force_functorch=mode == "functorch")
    return HooksStep(forward, hooks, clipped, loss)


def _check_model(model: nn.Module, params: Sequence[nn.Parameter]) -> None:
    """Raise unless each example's gradient can be had and the optimizer holds just the trainable parameters."""
    if narrow := sorted({str(p.dtype) for p in params if p.dtype not in (torch.float32, torch.float64)}):
        raise ConfigurationError(
            f"{', '.join(narrow)} parameters are too coarse for the clip bound to hold: train in model.float()"
        )
    if any(hasattr(p, "grad_sample") for p in params):
        raise ConfigurationError("the model is prepared for per-example gradients already: close() that step first")
    if errors := GradSampleHooks.validate(model, strict=False):
        raise ConfigurationError(
            f"layers that mix the examples of a batch cannot be trained privately: {'; '.join(map(str, errors))}."
            " Replace BatchNorm by GroupNorm, or freeze the layer"
        )
    held, owned = {id(p) for p in params}, {id(p) for p in model.parameters() if p.requires_grad}
    if held != owned:
        raise ConfigurationError(
            f"the optimizer must hold exactly the model's trainable parameters: {len(owned - held)} of the model's are"
            f" missing (freeze them: requires_grad_(False)), {len(held - owned)} are not the model's (leave them out)"
        )
