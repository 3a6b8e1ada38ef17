"""How a native explainer is run: on private modules where it changes them, or if these cannot be copied (a closure, a
lock) under one lock for each model; and with gradients in blocks of rows, which have the bits of Captum's
`compute_gradients`, see docs/evidence/captum-gradient.md."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from captum._utils.common import _format_additional_forward_args, _run_forward, _select_targets
from captum._utils.gradient import compute_gradients
from captum._utils.models.model import Model
from captum.attr import LRP, Attribution, LayerLRP
from captum.attr._utils import lrp_rules
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from safexplain._digest import modules_of
from safexplain._digest.model_state import network_of
from safexplain.explain.captum import Gradient, in_training_mode
from safexplain.explain.catalog import CATALOG

Lend = Callable[[], AbstractContextManager[Attribution]]
"""See `lend`."""

_CONTAINERS = frozenset({OrderedDict, dict, list, set})
_CHANGED = (list, Model, Attribution)
_RULES = (nn.Module.__reduce__, nn.Module.__reduce_ex__, nn.Module.__getstate__)
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_guard = threading.Lock()
_lock_without_model = threading.RLock()


_CALLS, _HOOKS, _WRITES = range(3)
_TOUCH: dict[type, int] = {Gradient: _CALLS} | {
    row.native: _WRITES if row.writes else _HOOKS if row.hooks else _CALLS for row in CATALOG.values() if row.in_base
}
"""Native class -> what it does to the modules of its model while it runs; unknown ones may write."""


def modules_in(state: Mapping[str, Any]) -> tuple[nn.Module, ...]:
    """The outermost modules that an explainer's attributes reach, its model's first, without surrogates of Captum."""
    some = [value for value in state.values() if not is_plain(value) and value is not compute_gradients]
    holders = [value for value in some if type(value) is not list or value]
    reached = modules_of(holders[0] if len(holders) == 1 else holders)
    return tuple(module for module in reached if not isinstance(module, Model))


def explainers_in(state: Mapping[str, Any]) -> list[Attribution]:
    """The explainers in an explainer's attributes, as NoiseTunnel has one, at any depth."""
    inner = [value for value in state.values() if isinstance(value, Attribution)]
    return [each for value in inner for each in (value, *explainers_in(vars(value)))]


@contextmanager
def lend(
    native: type[Attribution],
    state: Mapping[str, Any],
    originals: tuple[nn.Module, ...] | None = None,
    trains: bool | None = None,
) -> Iterator[Attribution]:
    """Lend an explainer of a native class with these attributes, private to this call, as are modules that it touches.
    `originals` (from `modules_in`) and `trains` (is one in training mode?) are found if None."""
    originals = modules_in(state) if originals is None else originals
    trains = any(map(in_training_mode, originals)) if trains is None else trains
    kinds = {native, *map(type, explainers_in(state))}
    touch = max(_TOUCH.get(kind, _WRITES) for kind in kinds)
    explainer: Attribution = object.__new__(native)
    if touch == _CALLS and not trains:
        explainer.__dict__.update(fresh_state(state))
        _set_gradients((explainer, *explainers_in(vars(explainer))), gradients_in_blocks)
        yield explainer
        return
    aliases = _aliases(originals) if not trains and _only_replaces_data(kinds, originals) else {}
    private = private_copy(state, originals, share_parameters=touch != _WRITES, parameters=aliases)
    with nullcontext() if private is not None else one_at_a_time(originals):
        explainer.__dict__.update(fresh_state(state) if private is None else private)
        private_explainers = (explainer, *explainers_in(vars(explainer)))
        _set_gradients(private_explainers, gradients)  # not in blocks: hooks may count rows
        for inner in private_explainers:
            if private is not None and aliases and isinstance(inner, LRP):  # natively it writes all weights back
                inner._restore_state = partial(_restore, originals, aliases)
        yield explainer


def _set_gradients(explainers: tuple[Attribution, ...], function: Callable[..., Any]) -> None:
    for explainer in explainers:
        if explainer.__dict__.get("gradient_func") is compute_gradients:
            explainer.gradient_func = function


def _only_replaces_data(kinds: set[type[Attribution]], originals: tuple[nn.Module, ...]) -> bool:
    """As Captum's own rules for LRP do."""
    kinds = {kind for kind in kinds if _TOUCH.get(kind) != _CALLS}
    if not kinds or not kinds <= {LRP, LayerLRP}:
        return False
    rules = [vars(part).get("rule") for module in originals for part in module.modules()]
    return all(rule is None or type(rule).__module__ == lrp_rules.__name__ for rule in rules)


def _aliases(modules: tuple[nn.Module, ...]) -> dict[int, nn.Parameter]:
    """New parameters in the memory of the original ones, by the identities of these."""
    own = {id(p): p for module in modules for p in module.parameters() if type(p) is nn.Parameter}
    return {key: nn.Parameter(p.data, requires_grad=p.requires_grad) for key, p in own.items() if not p.is_inference()}


def _restore(modules: tuple[nn.Module, ...], aliases: Mapping[int, nn.Parameter]) -> None:
    for module in modules:
        for parameter in module.parameters():
            if (alias := aliases.get(id(parameter))) is not None:
                alias.data = parameter.data


@contextmanager
def one_at_a_time(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Lock these outermost modules against other explanations, and restore their buffers."""
    with ExitStack() as stack:
        for lock in _locks_of(modules):
            stack.enter_context(lock)
        # running statistics and counters, which a forward pass in training mode changes
        buffers = [b for m in modules if any(part.training for part in m.modules()) for b in m.buffers()]
        before = [b.detach().clone() for b in buffers]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, before, strict=True):
                    buffer.copy_(value)


def fresh_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same attributes, with new copies of what a call changes: lists, fitted surrogates, inner explainers."""
    return {k: _fresh(v) if isinstance(v, _CHANGED) else v for k, v in state.items()}


def _fresh(value: Any) -> Any:
    if type(value) is list:
        return [item for item in value if not isinstance(item, RemovableHandle)]
    if isinstance(value, Model):
        return copy.deepcopy(value)
    if isinstance(value, Attribution):
        inner = object.__new__(type(value))
        inner.__dict__.update(fresh_state(vars(value)))
        return inner
    return value


def private_copy(
    state: Mapping[str, Any],
    originals: tuple[nn.Module, ...],
    *,
    share_parameters: bool,
    parameters: Mapping[int, nn.Parameter] | None = None,
) -> dict[str, Any] | None:
    """A deep copy of `state` that reaches none of the `originals`, or None; parameters are shared, copied, or taken
    from `parameters` by the identities of the original ones."""
    parts = {id(part): part for module in originals for part in module.modules()}
    memo: dict[int, Any] = dict(parameters or {})
    try:
        _copy_modules(parts, memo, share_parameters)
        private = copy.deepcopy(fresh_state(state), memo)
    except Exception:
        return None  # locks, handles, generators
    return None if any(_reaches_any(module, parts) for module in modules_in(private)) else private


def _copy_modules(parts: Mapping[int, nn.Module], memo: dict[int, Any], share_parameters: bool) -> None:
    simple = {key: module for key, module in parts.items() if _copies_by_attributes(type(module))}
    memo.update([(key, module.__new__(type(module))) for key, module in simple.items()])
    for module in parts.values():
        if share_parameters:
            memo.update([(id(p), p) for p in module._parameters.values() if p is not None])
        memo.update([(id(b), b.detach().clone()) for b in module._buffers.values() if b is not None])
        for value in vars(module).values():  # deepcopy refuses non-leaf tensors, as old weight_norm keeps
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = value if share_parameters else value.detach().clone()
    others = []
    for key, module in simple.items():
        attributes = memo[key].__dict__
        for name, value in vars(module).items():
            if is_plain(value):
                attributes[name] = value
            elif type(value) in _CONTAINERS and not value:
                attributes[name] = type(value)()
            else:
                attributes[name] = copy.deepcopy(value, memo)
                if name not in ("_parameters", "_buffers", "_modules"):
                    others.append(attributes[name])
    if any(_reaches_any(value, parts) for value in others):
        raise TypeError("an attribute of a module keeps a module of the original")


def _copies_by_attributes(kind: type[nn.Module]) -> bool:
    """Whether they do not define how Python copies them."""
    return (kind.__reduce__, kind.__reduce_ex__, kind.__getstate__) == _RULES and not hasattr(kind, "__deepcopy__")


def _reaches_any(value: object, parts: Mapping[int, nn.Module]) -> bool:
    return any(not parts.keys().isdisjoint(map(id, module.modules())) for module in modules_of(value))


def _locks_of(modules: tuple[nn.Module, ...]) -> list[threading.RLock]:
    """One for each network, whatever wraps it, in a fixed order so that calls cannot deadlock."""
    networks = {id(network): network for module in modules for network in [network_of(module) or module]}
    with _guard:
        locks = [_locks.setdefault(networks[key], threading.RLock()) for key in sorted(networks)]
    return locks or [_lock_without_model]


# Gradients, in place of `compute_gradients`

ROWS, ROWS_ON_DEVICE = 1_024, 16_384
"""Most rows of a block, on a CPU and elsewhere. Few would not do: products of fewer than 16 rows round differently."""

_FEWER, _NUMBERS = 256, 2**18
"""Least rows of a block on a CPU, and about the most numbers in a larger one."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Same arguments, results and errors as `compute_gradients`."""
    return _gradients(forward_fn, inputs, target_ind, additional_forward_args)[0]


def gradients_in_blocks(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """The same in blocks of rows, for models whose outputs for a row depend on that row alone; all rows at once unless
    arguments and outputs clearly belong to rows."""
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
    with torch.enable_grad():
        if not isinstance(forward_fn, nn.Module):
            outputs = _run_forward(forward_fn, inputs, target, extra)
        else:  # like `_run_forward`, which first reads the signature
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            found = forward_fn(*given, *(_format_additional_forward_args(extra) or ()))
            if (chosen := _one_hot(found, target)) is not None:
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


def _one_hot(outputs: Any, target: Any) -> Tensor | None:
    """(rows, classes) with ones at the explained outputs, the gradient there; None unless this is certain."""
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
    """Whether an argument, or a target, is the same for all rows."""
    return value.dim() == 0 if isinstance(value, Tensor) else is_plain(value)


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text, None, or a tuple of these."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(isinstance(v, _PLAIN) for v in value))
