"""A check of a prepared model on a few rows: what only a forward pass shows.

A guarantee needs each sample's gradient to depend on that sample alone, and the hooks to see all of it. Layers that
reshape samples away, use each other's weights or compute statistics over the batch break one or the other, often
without an error.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from safexplain.dp.models.checks import awake, few, mixes_samples, run, wrong_gradients
from safexplain.dp.models.parameters import has_rule
from safexplain.dp.models.prepare import train_mode
from safexplain.dp.models.unsupported import Mode, hooked_modules
from safexplain.dp.sgd.records import Inputs
from safexplain.errors import InputError

__all__ = ["check_rows"]


def check_rows(model: nn.Module, x: Inputs, *, mode: Mode = "hooks") -> None:
    """Raise unless the per-sample gradients of a prepared model can be had and are right, tried on a few rows.

    Args:
        model: from `safexplain.dp.models.prepare.prepare`; left as it is.
        x: at least 2 rows, better 3; use rows that may be seen, such as noise or public data.
        mode: how per-sample gradients will be had.

    Raises:
        InputError: all that was found, one line each.
    """
    x, model = few(x), train_mode(awake(model))
    problems = ["- outputs of one row depend on other rows: no bound for a sample"] if mixes_samples(model, x) else []
    problems += _seen(model, x, mode)
    if not problems:
        problems = [
            f"- {name}: per-sample gradients differ from those of one row at a time by {error:.0%}; freeze it"
            for name, error in wrong_gradients(model, x, force_functorch=mode == "functorch").items()
        ]
    if problems:
        raise InputError(f"cannot train with differential privacy, {len(problems)} found:\n" + "\n".join(problems))


def _seen(model: nn.Module, x: tuple[Tensor, ...], mode: Mode) -> list[str]:
    """Problems with what the hooks get to see in forward passes over 2 rows and over all."""
    reasons: dict[tuple[str, str], None] = {}
    hooked = dict(hooked_modules(model))
    layers = {name: module for name, module in hooked.items() if _is_called(module)}
    before = {name: b.clone() for name, b in model.named_buffers()}
    calls: Counter[str] = Counter()
    rows = 2

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            calls[name] += 1
            if not has_rule(module) and (len(args) > 1 or kwargs):
                reasons[name, _SEVERAL] = None
            if args and isinstance(args[0], Tensor) and args[0].shape[:1] != (rows,):
                reasons[name, _AXIS] = None

        return hook

    handles = [module.register_forward_hook(watch(name), with_kwargs=True) for name, module in layers.items()]
    handles += [module.register_full_backward_hook(_nothing) for module in hooked.values()]
    try:
        for rows in sorted({2, len(x[0])}):
            calls.clear()
            run(model, tuple(t[:rows] for t in x))
    except RuntimeError as error:
        if "modified inplace" not in str(error):
            raise
        return [_in_place(error)]
    finally:
        for handle in handles:
            handle.remove()
    for name, module in layers.items():
        if not calls[name]:
            reasons[name, _UNCALLED] = None
        if calls[name] > 1 and mode == "ghost" and type(module) in GradSampleModuleFastGradientClipping.NORM_SAMPLERS:
            reasons[name, _REPEATED] = None
    for name, buffer in model.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            reasons[name, _BUFFER] = None
    return [f"- {name or 'the model'}: {reason}" for name, reason in reasons]


_AXIS = (
    "the first axis of its input is not that of the rows, so that a part of a sample would pass for a sample; keep"
    " samples on the first axis, or freeze it"
)
_SEVERAL = "it takes several inputs, of which Opacus sees one; freeze the parameters that it holds itself"
_UNCALLED = "it is never called: its weights are used from outside, which no hook sees; call it, or freeze it"
_REPEATED = 'it is called several times; mode "ghost" needs one call, use mode="hooks"'
_BUFFER = "a forward pass changes this buffer from private data without noise; remove it, or freeze its module"


def _nothing(*_: Any) -> None:
    """A backward hook, with which torch forbids changes in place as it will with Opacus'."""


def _in_place(error: RuntimeError) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    at = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
    return f"- a layer's output is changed in place at {at}\n  write out = out + x for out += x"


def _is_called(module: nn.Module) -> bool:
    """Whether it is called as a layer with rows on the first axis: recurrent layers are watched inside."""
    return not (has_rule(module) and any(True for _ in module.children()))
