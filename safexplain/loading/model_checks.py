"""Two rows through a model: whether it takes the data, returns scores, and lets gradients through."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import one_line


def check_model_fits(model: nn.Module, data: AuditData) -> int:
    """Run two rows through the model.

    Args:
        model: In evaluation mode, on any device.
        data: Data with at least one row.

    Returns:
        The number of classes k, from outputs of shape (2, k).

    Raises:
        InputError: the model does not take such rows, or does not return finite scores for two classes or
            more.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(np.ascontiguousarray(data.x[[0, -1]])).to(device)
    came = f"rows of shape {tuple(x.shape[1:])} from {data.source}"
    try:
        with torch.no_grad():
            scores = model(x)
    except Exception as error:  # any error of a stranger's network
        expected = _expected(model)
        raise InputError(
            f"the model does not take {came}{expected}: {one_line(error)}; bring the data into the shape "
            "that the model was trained on"
        ) from None
    if not isinstance(scores, Tensor):
        raise InputError(
            f"the model returns a {type(scores).__name__}; expected one tensor of scores (n, classes): wrap "
            "the model so that its forward returns the scores alone"
        )
    shape = tuple(scores.shape)
    if shape in ((2,), (2, 1)):
        raise InputError(
            f"the model returns one score a row (shape {shape} for 2 rows); an audit needs a column for each "
            "class for now: wrap a two-class model so that it returns torch.stack([-score, score], dim=1)"
        )
    if scores.ndim != 2 or shape[0] != 2:
        raise InputError(f"the model returns shape {shape} for 2 rows; expected (2, classes)")
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the model returns NaN or infinite scores for {came}; check its weights and the data")
    return shape[1]


def _expected(model: nn.Module) -> str:
    """What a model takes, as far as it tells: the shape it was exported for, or its first layer."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        return f" (it was exported for rows of shape ({sizes}))"
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            return f" (its first layer takes {layer.in_features} features)"
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return f" (its first layer takes {layer.in_channels} channels)"
    return ""


def _probe(shape: tuple[int | None, ...] | None) -> Tensor | None:
    """Two random examples of a shape, or None where it is not known."""
    sizes = [size for size in shape or () if size is not None]
    if shape is None or len(sizes) != len(shape):
        return None
    return torch.rand(2, *sizes, generator=torch.Generator().manual_seed(0))


def require_gradients(model: nn.Module, shape: tuple[int | None, ...] | None, where: str) -> None:
    """Run two random examples forward and back, where the shape of one is known.

    Raises:
        InputError: the model fails on them, or no gradient reaches its input.
    """
    x = _probe(shape)
    if x is None:
        return
    x.requires_grad_(True)
    gradient = None
    try:
        with torch.enable_grad():
            output = model(x)
            if isinstance(output, Tensor) and output.requires_grad:
                gradient = torch.autograd.grad(output.sum(), x, allow_unused=True)[0]
    except Exception as error:  # any error of a stranger's network
        raise InputError(
            f"the model in {where} fails on a batch of shape {tuple(x.shape)}: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from None
    if gradient is None:
        raise InputError(
            f"no gradient reaches the input of the model in {where}, and explanations need one; remove "
            "argmax, detach() and torch.no_grad() from its forward, and return scores"
        )


def require_same_outputs(
    model: nn.Module, twin: nn.Module, shape: tuple[int | None, ...] | None, *, arch: str, where: str
) -> None:
    """Compare a model with its weights in a named architecture, where the shape of an example is known.

    Raises:
        InputError: either fails on two random examples, or they give different scores.
    """
    x = _probe(shape)
    if x is None:
        return
    try:
        with torch.no_grad():
            same = torch.allclose(model.float().cpu().eval()(x), twin(x), rtol=1e-3, atol=1e-4)
    except Exception as error:  # any error of a stranger's network
        raise InputError(f"{arch} or the model in {where} fails on {tuple(x.shape)}: {one_line(error)}") from None
    if not same:
        raise InputError(f"{arch} with the weights in {where} predicts other scores than the file; pass its own --arch")
