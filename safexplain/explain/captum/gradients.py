"""Gradients of many rows, in place of `captum._utils.gradient.compute_gradients`: the same bits, in less time.

Captum differentiates `torch.unbind(outputs)`, which is a node of the graph for each row, 12,800 of them for 256 rows of
50 steps. What arrives at `outputs` from there is a tensor of ones; here it is passed in as such. And rows are taken in
blocks, since a network's activations for all of them do not fit into a processor's cache. Measured in
docs/evidence/captum-gradient.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from captum._utils.common import _format_additional_forward_args, _run_forward, _select_targets
from torch import Tensor, nn

__all__ = ["ROWS", "ROWS_ON_DEVICE", "gradients", "gradients_in_blocks", "is_plain"]

ROWS, ROWS_ON_DEVICE = 1_024, 16_384
"""Rows of a block, at most: on a CPU, and on a GPU or another device. Each has at least half as many, since matrix
products of few rows (fewer than 16, as measured) are rounded in another way."""

_FEWER, _NUMBERS = 256, 2**18
"""On a CPU, rows of a block of images, which have more than `_NUMBERS` numbers in more rows than that."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Gradients of the explained outputs, as `compute_gradients` gives them; it has the same arguments and errors."""
    return _gradients(forward_fn, inputs, target_ind, additional_forward_args)[0]


def gradients_in_blocks(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """The same, one block of rows after another, for models whose outputs for a row depend on that row alone.

    All rows are taken at once where it is not clear which part of an argument belongs to which row, and where there are
    not as many outputs as rows.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    rows = len(tensors[0])
    fit = min(ROWS, max(_FEWER, _NUMBERS * rows // max(1, tensors[0].numel())))
    count = -(-rows // (fit if tensors[0].is_cpu else ROWS_ON_DEVICE))
    if count < 2:
        return gradients(forward_fn, inputs, target_ind, additional_forward_args)
    extra = additional_forward_args if isinstance(additional_forward_args, tuple) else (additional_forward_args,)
    target: Any = target_ind.item() if isinstance(target_ind, Tensor) and target_ind.numel() == 1 else target_ind
    known = all(_is_shared(x) or (isinstance(x, Tensor) and len(x) == rows) for x in (*tensors, *extra))
    if not known or not (_is_shared(target) or len(target) == rows):
        return gradients(forward_fn, inputs, target_ind, additional_forward_args)
    found = []
    for i in range(count):
        block = slice(rows * i // count, rows * (i + 1) // count)
        some = tuple(x[block].detach().requires_grad_(x.requires_grad) for x in tensors)
        chosen, *more = (x if _is_shared(x) else x[block] for x in (target, *extra))
        each, outputs = _gradients(forward_fn, some, chosen, None if additional_forward_args is None else tuple(more))
        if outputs != len(some[0]):
            return gradients(forward_fn, inputs, target_ind, additional_forward_args)
        found.append(each)
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _gradients(forward_fn: Callable[..., Any], inputs: Any, target: Any, extra: Any) -> tuple[tuple[Tensor, ...], int]:
    """And how many outputs they are of."""
    with torch.enable_grad():
        if not isinstance(forward_fn, nn.Module):
            outputs = _run_forward(forward_fn, inputs, target, extra)
        else:  # as `_run_forward` does, which first reads the signature
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            found = forward_fn(*given, *(_format_additional_forward_args(extra) or ()))
            if (chosen := _chosen(found, target)) is not None:
                return torch.autograd.grad(found, inputs, chosen), found.shape[0]
            outputs = _select_targets(found, target)
        if outputs[0].numel() != 1:
            raise AssertionError(
                "Target not provided when necessary, cannot take gradient with respect to multiple outputs."
            )
        if type(outputs) is Tensor and outputs.is_floating_point():
            ones = torch.ones_like(outputs, memory_format=torch.contiguous_format)
            return torch.autograd.grad(outputs, inputs, ones), len(outputs)
        return torch.autograd.grad(torch.unbind(outputs), inputs), len(outputs)


def _chosen(outputs: Any, target: Any) -> Tensor | None:
    """(rows, classes) ones where the explained outputs stand, which is what arrives at a classifier's outputs from
    them; None where that is not plain to see."""
    if type(outputs) is not Tensor or outputs.dim() != 2 or not outputs.is_floating_point() or not outputs.numel():
        return None
    rows, classes = outputs.shape
    if type(target) is int and -classes <= target < classes:
        chosen = torch.zeros_like(outputs)
        chosen[:, target] = 1.0
        return chosen
    if type(target) is Tensor and target.dtype == torch.int64 and target.shape == (rows,) and rows > 1:
        return torch.zeros_like(outputs).scatter_(1, target.view(rows, 1), 1.0)
    return None


def _is_shared(value: Any) -> bool:
    """Whether an argument of a model, or a target, is the same for all rows."""
    return value.dim() == 0 if isinstance(value, Tensor) else is_plain(value)


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text or None, or a tuple of such."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(isinstance(v, _PLAIN) for v in value))
