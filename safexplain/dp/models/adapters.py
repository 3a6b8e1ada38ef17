"""Low-rank adapters (LoRA) for linear layers: Hu et al. 2021, arXiv 2106.09685, section 4.1.

y = W x + b + (alpha / rank) B A x, with W and b frozen, A as `nn.Linear` starts and B zero, so that nothing changes at
first. A and B are plain `nn.Linear`, for which Opacus has rules in every mode. These few lines are here in place of the
package peft, which brings transformers and accelerate along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain.errors import InputError

TARGETS = ("qkv", "proj", "q_proj", "k_proj", "v_proj", "out_proj", "query", "key", "value")
"""Names of the projections of attention in timm, in `PerSampleAttention` (for torch's) and in transformers."""


class LoRALinear(nn.Linear):
    """A frozen linear layer with a trainable product of two small ones beside it.

    `weight` and `bias` are those of the layer it replaces, under the same names.

    Args:
        base: the layer; its parameters are used, not copied, and frozen.
        rank: inner size of the product.
        alpha: the product is multiplied by alpha / rank.
    """

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0) -> None:
        super(nn.Linear, self).__init__()
        self.in_features, self.out_features, self.scale = base.in_features, base.out_features, alpha / rank
        self.weight, self.bias = base.weight.requires_grad_(False), base.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.lora_a = _unset(base.weight, base.in_features, rank, bias=False)
        self.lora_b = _unset(base.weight, rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)
        self.train(base.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        added: Tensor = self.lora_b(self.lora_a(input))
        return functional.linear(input, self.weight, self.bias) + self.scale * added

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain linear layer with the same output."""
        plain = _unset(self.weight, self.in_features, self.out_features, bias=self.bias is not None)
        plain.weight.copy_(self.weight + self.scale * self.lora_b.weight @ self.lora_a.weight)
        if self.bias is not None:
            plain.bias.copy_(self.bias)
        return plain.requires_grad_(False).train(self.training)


def add_lora(model: nn.Module, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = TARGETS) -> list[str]:
    """Put adapters beside linear layers, in place.

    Args:
        model: its other parameters are left as they are, trainable or not.
        rank: inner size of an adapter; at least 1.
        alpha: scale of an adapter's output, divided by the rank.
        targets: last parts of the layers' names, or glob patterns of whole names.

    Returns:
        The names of the adapters' parameters, the only ones that LoRA trains beside the head.

    Raises:
        InputError: no linear layer has such a name, or one is inside an `nn.MultiheadAttention`, which would use its
            weight and pass the adapter by.
    """
    if rank < 1:
        raise InputError(f"rank: expected at least 1, got {rank}")
    found: list[tuple[str, nn.Module, nn.Linear]] = []
    others: list[str] = []
    for path, parent in model.named_modules():
        for name, child in parent.named_children():
            whole = f"{path}.{name}" if path else name
            if not isinstance(child, nn.Linear) or type(child).forward is not nn.Linear.forward:
                continue
            if not any(name == target or fnmatchcase(whole, target) for target in targets):
                others.append(whole)
                continue
            if isinstance(parent, nn.MultiheadAttention):
                raise InputError(
                    f"{path}: nn.MultiheadAttention uses the weights of its layers and would pass adapters by."
                    ' safexplain.dp.models.prepare.prepare(model, "lora") replaces it first'
                )
            found.append((name, parent, child))
    if not found:
        raise InputError(
            f"no linear layer is named {', '.join(targets)}. Linear layers here: {', '.join(others) or 'none'}."
            " Give targets= as names or glob patterns"
        )
    for name, parent, child in found:
        setattr(parent, name, LoRALinear(child, rank, alpha))
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, LoRALinear)
        for name in ("lora_a.weight", "lora_b.weight")
    ]


def merge_lora(model: nn.Module) -> nn.Module:
    """Fold all adapters into their layers, in place.

    Returns:
        The model, with plain `nn.Linear` layers and the parameter names it had before `add_lora`. The folded weights
        are frozen.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                setattr(parent, name, child.merged())
    return model.merged() if isinstance(model, LoRALinear) else model


def _unset(like: Tensor, in_features: int, out_features: int, *, bias: bool) -> nn.Linear:
    """A linear layer with no values yet, for which no random numbers are drawn."""
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta", dtype=like.dtype)
    return layer.to_empty(device=like.device)
