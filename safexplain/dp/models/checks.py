"""What a few rows show of a model: whether it mixes samples, and whether its per-sample gradients are right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from safexplain.dp.models.prepare import train_mode
from safexplain.dp.models.unsupported import hooked_modules
from safexplain.dp.sgd.records import Inputs
from safexplain.errors import InputError

__all__ = ["awake", "few", "mixes_samples", "run", "wrong_gradients"]


def mixes_samples(model: nn.Module, x: Inputs) -> bool:
    """Whether a row's output depends on other rows, as with statistics of the batch.

    In training mode, with the same random numbers: the gradient of the first row's output with respect to the others
    must be exactly 0, and the output must stay when the others are changed (which also finds statistics under
    `no_grad`, and works for integers).

    Args:
        model: left as it is.
        x: at least 2 rows.
    """
    model, x = train_mode(awake(model)), few(x)
    inputs = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in x)
    mine = _first_row(run(model, inputs), len(x[0]))
    to = [t for t in inputs if t.requires_grad]
    if to and any(output.requires_grad for output in mine):
        grads = torch.autograd.grad(_loss(mine), to, allow_unused=True)
        if any(bool((g[1:] != 0).any()) for g in grads if g is not None):
            return True
    others = tuple(torch.cat([t[:1], _changed(t[1:], t[:1])]) for t in x)
    again = _first_row(run(model, others), len(x[0]))
    pairs = zip(mine, again, strict=True)
    return any(not bool((a - b).abs().max() <= 1e-4 * a.abs().max()) for a, b in pairs)


def wrong_gradients(
    model: nn.Module, x: Inputs, *, force_functorch: bool = False, tolerance: float = 0.01
) -> dict[str, float]:
    """Names of parameters whose per-sample gradients by Opacus' hooks are not those of one row at a time.

    Dropout is off meanwhile, so that both see the same function.

    Args:
        model: left as it is.
        x: at least 2 rows.
        force_functorch: use vmap for all layers.
        tolerance: largest allowed difference, in 2-norms, relative to the row's whole gradient.

    Returns:
        Name -> the largest difference over rows; infinite where there is no per-sample gradient.
    """
    x = few(x)
    plain = awake(model).eval()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for _, module in hooked_modules(plain):
        module.training = True
    single = []
    for row in range(len(x[0])):
        plain.zero_grad()
        torch.autograd.backward(_loss(run(plain, tuple(t[row : row + 1] for t in x))))
        single.append({name: p.grad for name, p in plain.named_parameters()})
    plain.zero_grad()
    watched = GradSampleModule(plain, loss_reduction="sum", force_functorch=force_functorch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # first layers: nothing is lost
        torch.autograd.backward(_loss(run(watched, x)))
    found: dict[str, Any] = dict(plain.named_parameters())
    errors: dict[str, float] = {}
    for row, grads in enumerate(single):
        sizes = [g.norm() for name in names if (g := grads[name]) is not None]
        whole = torch.stack([*sizes, torch.full_like(sizes[0], 1e-12)]).norm() if sizes else torch.ones(())
        for name in names:
            sample, grad = found[name].grad_sample, grads[name]
            if sample is None and (grad is None or not grad.any()):
                continue
            right = sample is not None and len(sample) == len(x[0])
            error = (sample[row] - (0 if grad is None else grad)).norm() / whole if right else float("inf")
            errors[name] = max(errors.get(name, 0.0), float(error))
    return {name: error for name, error in errors.items() if not error <= tolerance}


def few(x: Inputs) -> tuple[Tensor, ...]:
    """At most three rows; raise InputError unless there are two."""
    rows = x if isinstance(x, tuple) else (x,)
    if not rows or len({len(t) for t in rows}) != 1 or len(rows[0]) < 2:
        raise InputError(f"expected 2 rows or more on the first axis, got shapes {[tuple(t.shape) for t in rows]}")
    return tuple(t[:3] for t in rows)


def awake(model: nn.Module) -> nn.Module:
    """A copy in which no parameter is all zero: behind a new head, often zero at first, every error would hide."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def run(model: nn.Module, x: tuple[Tensor, ...]) -> list[Tensor]:
    """All floating-point outputs, with the same random numbers in every call."""
    devices = sorted({t.device.index for t in x if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return list(_tensors(model(*x)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


def _first_row(outputs: list[Tensor], rows: int) -> list[Tensor]:
    first = [output[:1] for output in outputs if output.dim() and len(output) == rows]
    if not first:
        raise InputError(f"expected an output of floating-point numbers with the {rows} rows on its first axis")
    return first


def _loss(outputs: list[Tensor]) -> Tensor:
    """A sum over rows of a function in which every output has a weight of its own."""
    flat = [o.reshape(len(o), -1) for o in outputs]
    return torch.stack([(o * torch.arange(1, o.shape[1] + 1, device=o.device).cos()).sum() for o in flat]).sum()


def _changed(rows: Tensor, other: Tensor) -> Tensor:
    """Other rows, far from these."""
    return rows * -3 + 1 if rows.is_floating_point() else other.expand_as(rows)
