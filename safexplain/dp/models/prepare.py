"""Make a model fit for training with differential privacy, which needs a gradient for every single sample."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

from opacus.grad_sample import AbstractGradSampleModule
from torch import nn

from safexplain.dp.models.adapters import LoRALinear, add_lora
from safexplain.dp.models.checks import Mode, hooked_modules, unsupported
from safexplain.dp.models.parameters import Trainable, freeze_others, has_rule, select
from safexplain.dp.models.replacements import (
    BatchNormReplacedWarning,
    has_fixed_statistics,
    pin,
    put,
    replace_batch_norm,
    replace_composites,
    split_attention_bias,
    train_mode,
    trains,
    use_plain_types,
)
from safexplain.errors import InputError


def prepare(
    model: nn.Module,
    trainable: Trainable | None = None,
    *,
    mode: Mode = "hooks",
    batch_norm: Literal["replace", "freeze"] = "replace",
    lora: dict[str, Any] | None = None,
) -> nn.Module:
    """A copy of a model that can be trained with differential privacy, in training mode.

    Batch normalisation that trains becomes group normalisation; frozen, it is kept and pinned to evaluation mode.
    Attention and recurrent layers of torch become modules of the same function with a layer for each product.
    Activations in place are switched to copies. The names of all other parameters stay. For the way back see
    `safexplain.dp.models.replacements.restore`.

    Args:
        model: left as it is.
        trainable: what trains, see `safexplain.dp.models.parameters.select`; "lora" adds adapters where there are none.
            None keeps what requires gradients now.
        mode: how per-sample gradients will be computed.
        batch_norm: "replace" trainable batch normalisation, or "freeze" it with its running statistics (pretrained
            models only: frozen statistics of an untrained model normalise nothing).
        lora: arguments of `safexplain.dp.models.adapters.add_lora`.

    Raises:
        InputError: the list of all modules that cannot be used, each with what to do; or nothing trains.

    Warns:
        BatchNormReplacedWarning: how many layers were replaced.
    """
    if isinstance(model, AbstractGradSampleModule):
        raise InputError("the model is wrapped by Opacus already: pass the plain one (model.to_standard_module())")
    model = copy.deepcopy(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers: run one forward pass first, so that they know their sizes")
    model, originals = replace_composites(model, frozen_too=trainable is not None)
    if trainable is not None:
        if trainable == "lora" and not any(isinstance(m, LoRALinear) for m in model.modules()):
            add_lora(model, **(lora or {}))
        freeze_others(model, select(model, trainable))
        for name, original in originals.items():
            if not trains(model.get_submodule(name), recurse=True):
                model = put(model, name, original.requires_grad_(False))
    model, replaced = replace_batch_norm(model, freeze=batch_norm == "freeze")
    use_plain_types(model)
    split_attention_bias(model)
    for module in model.modules():
        if getattr(module, "inplace", None) is True:
            module.inplace = False  # type: ignore[assignment]
    if problems := unsupported(model, mode):
        raise InputError(f"cannot train with differential privacy, {len(problems)} found:\n" + "\n".join(problems))
    for _, module in hooked_modules(model):
        if not has_rule(module):
            unfuse_attention(module)
    for module in model.modules():
        if has_fixed_statistics(module):
            pin(module)
    if replaced:
        warnings.warn(
            f"{len(replaced)} BatchNorm replaced by GroupNorm ({', '.join(replaced[:3])}"
            f"{', ...' if len(replaced) > 3 else ''}): a statistic of the batch mixes samples, so that one sample's"
            " part in the gradient has no bound. Weights and biases were kept, pretrained running statistics are lost:"
            ' accuracy has to be learned anew. To keep them, freeze these layers (trainable="head", or'
            ' batch_norm="freeze")',
            BatchNormReplacedWarning,
            stacklevel=2,
        )
    return train_mode(model)


def unfuse_attention(model: nn.Module) -> None:
    """Switch timm's attention to plain matrix products, in place: vmap has no rule for fused attention on GPUs
    (Opacus issue 595) and a slow one on CPUs. Outputs are the same up to rounding.
    """
    for module in model.modules():
        if getattr(module, "fused_attn", False):
            module.fused_attn = False  # type: ignore[assignment]
