"""Preparation of a model for training with differential privacy, which needs a gradient for every single sample."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

from opacus.grad_sample import AbstractGradSampleModule
from torch import nn

from safexplain.dp.models.checks import Mode, hooked_modules, raise_if_any, unsupported
from safexplain.dp.models.parameters import Trainable, freeze_others, has_rule, select
from safexplain.dp.models.replacements import (
    BatchNormReplacedWarning,
    LoRALinear,
    add_lora,
    has_fixed_statistics,
    is_trainable,
    pin_to_eval,
    replace_batch_norm,
    replace_composites,
    replace_module,
    split_attention_bias,
    train_mode,
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

    Trainable batch normalisation becomes group normalisation; frozen batch normalisation stays in evaluation mode.
    torch's attention and recurrent layers become equivalent modules with one layer for each product. In-place
    activations make copies. All other parameters keep their names. `safexplain.dp.models.replacements.restore`
    converts the model back.

    Args:
        model: not changed.
        trainable: what trains, see `safexplain.dp.models.parameters.select`; "lora" adds adapters if there are none.
            None keeps the parameters that require gradients now.
        mode: how per-sample gradients will be computed.
        batch_norm: "replace" trainable batch normalisation, or "freeze" it with its running statistics (for pretrained
            models: the statistics of an untrained model do not normalise).
        lora: arguments of `safexplain.dp.models.replacements.add_lora`.

    Raises:
        InputError: unsupported modules, listed with a remedy for each; or no parameter is trainable.

    Warns:
        BatchNormReplacedWarning: how many layers were replaced.
    """
    if isinstance(model, AbstractGradSampleModule):
        raise InputError("model: expected a plain module, got one wrapped by Opacus; pass model.to_standard_module()")
    model = copy.deepcopy(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("model: its lazy layers have no sizes yet; run one forward pass first")
    model, originals = replace_composites(model, frozen_too=trainable is not None)
    if trainable is not None:
        if trainable == "lora" and not any(isinstance(m, LoRALinear) for m in model.modules()):
            add_lora(model, **(lora or {}))
        freeze_others(model, select(model, trainable))
        for name, original in originals.items():
            if not is_trainable(model.get_submodule(name), recurse=True):
                model = replace_module(model, name, original.requires_grad_(False))
    model, replaced = replace_batch_norm(model, freeze=batch_norm == "freeze")
    use_plain_types(model)
    split_attention_bias(model)
    for module in model.modules():
        if getattr(module, "inplace", None) is True:
            module.inplace = False  # type: ignore[assignment]
    raise_if_any(unsupported(model, mode))
    for _, module in hooked_modules(model):
        for part in () if has_rule(module) else module.modules():
            if getattr(part, "fused_attn", False):  # of timm; vmap has no rule for it on GPUs (Opacus issue 595)
                part.fused_attn = False  # type: ignore[assignment]
    for module in model.modules():
        if has_fixed_statistics(module):
            pin_to_eval(module)
    if replaced:
        warnings.warn(
            f"{len(replaced)} BatchNorm replaced by GroupNorm ({', '.join(replaced[:3])}"
            f"{', ...' if len(replaced) > 3 else ''}), because batch statistics mix samples. Pretrained running"
            ' statistics are lost, so accuracy starts low; to keep them, freeze these layers (trainable="head", or'
            ' batch_norm="freeze")',
            BatchNormReplacedWarning,
            stacklevel=2,
        )
    return train_mode(model)
