"""What in a model gives no per-sample gradients, or wrong ones: read from its modules, without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import ParametrizationList

from safexplain.dp.models.parameters import has_rule
from safexplain.dp.models.replacements import trains

Mode = Literal["hooks", "functorch", "ghost"]
"""How per-sample gradients are had, see `safexplain.dp.sgd.steps`."""


def hooked_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of all that Opacus will watch: those that hold a trainable parameter themselves.

    Where such a module has no rule, all of it goes through `torch.func.vmap`, and those inside it are not watched.
    """

    def walk(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if trains(module):
            yield path, module
            if not has_rule(module):
                return
        for name, child in module.named_children():
            yield from walk(f"{path}.{name}" if path else name, child)

    yield from walk("", model)


def unsupported(model: nn.Module, mode: Mode = "hooks") -> list[str]:
    """Everything in a model, as far as its modules show it, that gives no per-sample gradients or wrong ones.

    Returns:
        One line each: name, type, reason, what to do. What only a forward pass shows is found by
        `safexplain.dp.models.checks`.
    """
    lines = []
    hooked = list(hooked_modules(model))
    if not hooked:
        lines.append("- nothing trains: give trainable=, or let parameters require gradients")
    for name, module in hooked:
        for fits, advice in _RULES:
            if fits(module):
                lines.append(f"- {name or 'the model'} ({type(module).__name__}): {advice}")
    if mode == "ghost":
        lines += _tied(model)
    return lines


def _tied(model: nn.Module) -> list[str]:
    names: dict[int, list[str]] = {}
    recurrent = tuple(n + "." for n, m in hooked_modules(model) if has_rule(m) and any(True for _ in m.children()))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and not name.startswith(recurrent):
            names.setdefault(id(parameter), []).append(name)
    return [
        f'- {" = ".join(same)}: mode "ghost" cannot add up the norms of a shared parameter; use mode="hooks"'
        for same in names.values()
        if len(same) > 1
    ]


def _own_names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(recurse=False)}


_Fits = Callable[[nn.Module], bool]

_RULES: tuple[tuple[_Fits, str], ...] = (
    (
        lambda m: isinstance(m, _BatchNorm),
        "statistics of the batch in a subclass of BatchNorm; put nn.GroupNorm in its place",
    ),
    (
        lambda m: isinstance(m, _InstanceNorm) and m.track_running_stats,
        "running statistics are updated from private data without noise; build it with track_running_stats=False",
    ),
    (
        lambda m: any(True for _ in m.buffers()) and not isinstance(m, _NormBase),
        "it holds a parameter that trains beside buffers, which Opacus refuses; freeze the parameters that it holds"
        " itself, or move them to a module of their own",
    ),
    (
        lambda m: isinstance(m, (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.MultiheadAttention)),
        "it takes several inputs, of which Opacus sees one; use nn.LSTM, nn.GRU, nn.RNN (without proj_size),"
        " nn.MultiheadAttention (without add_bias_kv, add_zero_attn, kdim and vdim) or nn.Linear as they are in torch",
    ),
    (
        lambda m: isinstance(m, (nn.ParameterList, nn.ParameterDict)),
        "its parameters are used by the module around it, which no hook sees; freeze them",
    ),
    (
        lambda m: isinstance(m, ParametrizationList) or (has_rule(m) and not _own_names(m) <= _usual(m)),
        "its weight is computed from other parameters (weight_norm, spectral_norm, pruning); remove that first, for"
        " example torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
    ),
    (
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "a compiled module cannot be run sample by sample; load the model's Python class and its state_dict",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and (m.max_norm is not None or m.sparse),
        "max_norm changes the weights in the forward pass without noise, and sparse gradients cannot carry noise; build"
        " it without",
    ),
    (
        lambda m: isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.scale_grad_by_freq,
        "scale_grad_by_freq divides by counts in the batch, which mixes samples; build it without",
    ),
    (
        lambda m: not has_rule(m) and any(isinstance(d, _DropoutNd) and d.p > 0 for d in m.modules()),
        "it holds a parameter that trains itself, so that all of it goes through vmap, where dropout cannot be"
        " repeated; freeze the parameters that it holds itself, or set dropout to 0",
    ),
)
"""(does it fit a module that Opacus will watch, why and what to do)."""


def _usual(module: nn.Module) -> set[str]:
    """Names of parameters that Opacus' rule for this type knows."""
    return {"weight", "bias"} if not any(True for _ in module.children()) else _own_names(module)
