"""Checks of a model and its loss on a few rows: what a guarantee needs of a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from safexplain.dp.sgd.steps import Loss
from safexplain.errors import ConfigurationError, InputError


def outputs_of(model: nn.Module, rows: tuple[Tensor, ...]) -> object:
    """What the model gives for these rows.

    Raises:
        InputError: it cannot take them.
    """
    try:
        with torch.no_grad():
            return model(*rows)
    except Exception as error:
        shapes = ", ".join(f"{row.dtype} {tuple(row.shape[1:])}" for row in rows)
        kind = next((p.dtype for p in model.parameters()), torch.float32)
        raise InputError(
            f"data: the model cannot take rows of {shapes} ({str(error).splitlines()[0]}); expected what it was trained"
            f" on, its parameters are {kind}"
        ) from error


def check_classes(outputs: object, y: Tensor) -> None:
    """Raise unless targets are indices of classes that the model has an output for.

    Raises:
        InputError: they are not.
    """
    classes = outputs.shape[-1] if isinstance(outputs, Tensor) and outputs.dim() == 2 else 0
    if y.is_floating_point() or y.dim() != 1 or int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(
            f"y: expected class indices (rows,) from 0 to {classes - 1}, the model's outputs, got {y.dtype}"
            f" {tuple(y.shape)} from {y.min().item():g} to {y.max().item():g}; for another task pass loss="
        )


def check_loss(loss: Loss, outputs: object, targets: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Raise unless the loss of a row depends on that row's output and target alone.

    Args:
        loss: outputs and targets -> the loss of each row.
        outputs: of the model, for at least 2 rows; nothing is checked where they are not one tensor.
        targets: as many.
        parameters: that train.

    Raises:
        ConfigurationError: it mixes rows, or uses the parameters.
    """
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or len(outputs) != len(targets):
        return
    given = outputs.detach().requires_grad_()
    with torch.enable_grad():
        together = loss(given, targets)
    if together.shape != (len(targets),):
        raise ConfigurationError(
            f"the loss must be one number for each of the {len(targets)} examples, got shape {tuple(together.shape)};"
            ' with torch.nn losses use reduction="none"'
        )
    alone = torch.cat([loss(given[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigurationError(
            "the loss of an example depends on the other examples of its batch, so that its influence has no bound;"
            " compute it from that example's output and target alone"
        )
    if together.requires_grad:
        used = torch.autograd.grad(together.sum(), list(parameters), allow_unused=True)
        if any(gradient is not None for gradient in used):
            raise ConfigurationError(
                "the loss uses the model's parameters, which is not part of any example's gradient; for a penalty use"
                " the optimizer's weight_decay"
            )
