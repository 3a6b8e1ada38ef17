"""Selection of the parameters that train, by name.

| choice | what trains | source |
|---|---|---|
| "all" | every parameter except the bare ones, see `bare_parameters` | |
| "head" | the classifier | |
| "last-block" | the last of the repeated blocks and everything registered after it | |
| "bias" | the biases of layers and the head | BitFit, arXiv 2106.10199; with DP, arXiv 2210.00036 |
| "lora" | the adapters of `safexplain.dp.models.replacements` and the head | arXiv 2106.09685 |

Or a list of patterns, see `select`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from opacus.grad_sample import GradSampleModule
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from safexplain.dp.models.replacements import LoRALinear
from safexplain.errors import InputError

Trainable = str | Sequence[str | re.Pattern[str]]
"""One of `CHOICES`, or a list of patterns."""

_HEADS = ("fc", "classifier", "head", "heads")


def select(model: nn.Module, trainable: Trainable) -> list[str]:
    """Names of the parameters to train, in the model's order, whether or not they require gradients now.

    `trainable` is one of "all", "head", "last-block", "bias", "lora"; or a list of patterns: globs of names of
    parameters ("blocks.*.norm1.weight") or modules ("blocks.11"), or compiled regular expressions, searched for in
    names of parameters. Patterns may match bare parameters.

    Raises:
        InputError: an unknown choice, or a choice or pattern that matches nothing.
    """
    if isinstance(trainable, str):
        if trainable not in CHOICES:
            raise InputError(
                f"trainable: expected one of {', '.join(CHOICES)} or a list of patterns, got {trainable!r};"
                f" for a pattern, write [{trainable!r}]"
            )
        chosen = set(CHOICES[trainable](model))
    else:
        chosen = set(_matching(model, list(trainable)))
    if not chosen:
        raise InputError(f"trainable: {trainable!r} selects none of the model's {len(_owners(model))} parameters")
    return [name for name in _owners(model) if name in chosen]


def freeze_others(model: nn.Module, names: Iterable[str]) -> None:
    """Make exactly these parameters require gradients, in place; InputError: there is no parameter of that name."""
    chosen = set(names)
    if unknown := chosen - _owners(model).keys():
        raise InputError(f"names: expected parameters of the model, got {', '.join(sorted(unknown))}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def bare_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that a composite module holds directly: class tokens, position embeddings, tables of
    relative positions, layer scales of a block, parts of a `nn.ParameterList`.

    Their per-sample gradients need `torch.func.vmap` through the module that holds them, often the whole model. "all"
    leaves them frozen.
    """
    return [name for name, owner in _owners(model).items() if _is_container(owner)]


def has_rule(module: nn.Module) -> bool:
    """Whether Opacus has a rule for per-sample gradients of this type of layer, so that vmap is not needed."""
    return type(module) in GradSampleModule.GRAD_SAMPLERS or isinstance(module, (DPRNN, DPLSTM, DPGRU))


def head_modules(model: nn.Module) -> list[str]:
    """Names of the classifier: timm's `get_classifier()`, else the last linear layer below `fc`, `classifier`, `head`
    or `heads`, else the last layer with parameters if it is linear; InputError: there is none."""
    if callable(get := getattr(model, "get_classifier", None)):
        classifier = get()
        heads = classifier if isinstance(classifier, tuple) else (classifier,)
        names = [name for name, module in model.named_modules() if any(module is head for head in heads)]
    else:
        layers = [(name, m) for name, m in model.named_modules() if any(True for _ in m.parameters(recurse=False))]
        linear = [name for name, module in layers if isinstance(module, nn.Linear)]
        named = [name for name in linear if name.split(".")[0] in _HEADS]
        names = named[-1:] or [name for name, module in layers[-1:] if isinstance(module, nn.Linear)]
    names = [name for name in names if _has_parameters(model.get_submodule(name))]
    if not names:
        raise InputError(
            "no head found: expected a timm model with num_classes > 0, or a linear layer below fc, classifier, head or"
            " heads, or at the end; pass its name: trainable=['name_of_the_head']"
        )
    return names


def blocks(model: nn.Module, head: str) -> list[str]:
    """Names of the blocks below the head, in the order of the model.

    With several stacks of like modules, these are the stages (`layer1` to `layer4` of a ResNet); with one stack, as in
    a vision transformer, its modules; otherwise the children with parameters, or those of an only child. A
    normalisation belongs to the block before it.
    """
    types = {n: [type(b) for b in m.children() if _has_parameters(*b.children())] for n, m in _containers(model)}
    like = {kind for found in types.values() for kind in found if found.count(kind) > 1}
    stacks = _outermost(
        name
        for name, found in types.items()
        if any(k in like and (found.count(k) > 1 or k is not nn.Sequential) for k in found)
    )
    return stacks if len(stacks) > 1 else _children(model, stacks[0] if stacks else "", head)


def _containers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in model.named_modules() if isinstance(m, (nn.Sequential, nn.ModuleList, nn.ModuleDict))]


def _outermost(names: Iterable[str]) -> list[str]:
    """The names that are not inside an earlier one."""
    found: list[str] = []
    for name in names:
        if not any(not outer or name.startswith(outer + ".") for outer in found):
            found.append(name)
    return found


def _has_parameters(*modules: nn.Module) -> bool:
    return any(True for module in modules for _ in module.parameters())


_NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def _children(model: nn.Module, prefix: str, head: str) -> list[str]:
    """The children with parameters; one that holds the head, or an only child, is replaced by its own."""
    dotted = f"{prefix}." if prefix else ""
    names = [
        f"{dotted}{name}"
        for name, child in model.get_submodule(prefix).named_children()
        if _has_parameters(child) and not isinstance(child, _NORMALISATIONS) and f"{dotted}{name}" != head
    ]
    without_head = [name for name in names if not head.startswith(name + ".")]
    found: list[str] = []
    for name in names:
        inner = _children(model, name, head) if name not in without_head or len(without_head) == 1 else []
        found += inner or [name] * (name in without_head)
    return found


def _owners(model: nn.Module) -> dict[str, nn.Module]:
    """Name of each parameter -> the module that holds it."""
    return {name: model.get_submodule(name.rpartition(".")[0]) for name, _ in model.named_parameters()}


def _is_container(owner: nn.Module) -> bool:
    if isinstance(owner, (nn.ParameterList, nn.ParameterDict)):
        return True
    supported = has_rule(owner) or type(owner) is nn.MultiheadAttention  # which `prepare` replaces
    return not supported and _has_parameters(*owner.children())


def _all(model: nn.Module) -> list[str]:
    return [name for name, owner in _owners(model).items() if not _is_container(owner)]


def _head(model: nn.Module) -> list[str]:
    heads = head_modules(model)
    return [name for name in _owners(model) if any(not head or name.startswith(head + ".") for head in heads)]


def _last_block(model: nn.Module) -> list[str]:
    """The last child of the last stack (of the last stage), and what is registered after it."""
    block = ""
    while stacks := _outermost(name for name, m in _containers(model.get_submodule(block)) if _is_stack(m)):
        stack = f"{block}.{stacks[-1]}".strip(".")
        block = f"{stack}.{list(dict(model.get_submodule(stack).named_children()))[-1]}".strip(".")
    if not block:
        raise InputError(
            "no blocks found: expected a Sequential or ModuleList of two or more modules of one type; pass names of"
            " modules instead: trainable=['layer4.1', 'fc']"
        )
    names = list(_owners(model))
    first = next(i for i, name in enumerate(names) if name.startswith(block + "."))
    return [*set(names[first:]).intersection(_all(model)), *_head(model)]


def _is_stack(module: nn.Module) -> bool:
    blocks = list(module.children())
    return len(blocks) > 1 and len({*map(type, blocks)}) == 1 and all(_has_parameters(*b.children()) for b in blocks)


def _bias(model: nn.Module) -> list[str]:
    """Biases, except of batch normalisation, which keeps its pretrained statistics only while it is frozen."""
    norms = {name for name, owner in _owners(model).items() if isinstance(owner, _BatchNorm)}
    biases = [name for name in _all(model) if "bias" in name.rpartition(".")[2] and name not in norms]
    return biases + _head(model)


def _lora(model: nn.Module) -> list[str]:
    adapters = [f"{name}." for name, module in model.named_modules() if isinstance(module, LoRALinear)]
    if not adapters:
        raise InputError("the model has no adapters; call safexplain.dp.models.replacements.add_lora(model) first")
    inner = tuple(a + part for a in adapters for part in ("lora_a.", "lora_b."))
    return [name for name in _owners(model) if name.startswith(inner)] + _head(model)


CHOICES: dict[str, Callable[[nn.Module], list[str]]] = {
    "all": _all,
    "head": _head,
    "last-block": _last_block,
    "bias": _bias,
    "lora": _lora,
}


def _matching(model: nn.Module, patterns: Sequence[str | re.Pattern[str]]) -> Iterator[str]:
    names = list(_owners(model))
    unknown: list[str] = []
    for pattern in patterns:
        hits = [name for name in names if _matches(name, pattern)]
        yield from hits
        if not hits:
            text = pattern if isinstance(pattern, str) else pattern.pattern
            near = difflib.get_close_matches(text, [*names, *(n for n, _ in model.named_modules() if n)], 3, 0.5)
            unknown.append(f"{text!r} (similar: {', '.join(near) or 'none'})")
    if unknown:
        raise InputError(f"trainable: no parameter matches {'; '.join(unknown)}; see model.named_parameters()")


def _matches(name: str, pattern: str | re.Pattern[str]) -> bool:
    if isinstance(pattern, str):
        return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")
    return pattern.search(name) is not None
