"""Low-rank adapters (LoRA) for linear layers: Hu et al. 2021, arXiv 2106.09685, section 4.1.

y = W x + b + (alpha / rank) B A x, with W and b frozen, A initialised as in `nn.Linear` and B zero, so that the output
does not change at first. A and B are plain `nn.Linear`, for which Opacus has rules in every mode.
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
"""Names of the attention projections in timm, `PerSampleAttention` (for torch's attention) and transformers."""


class LoRALinear(nn.Linear):
    """A frozen linear layer plus a trainable product of two small ones; it shares `weight` and `bias` of its base."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0) -> None:
        super(nn.Linear, self).__init__()
        self.in_features, self.out_features, self.scale = base.in_features, base.out_features, alpha / rank
        self.weight, self.bias = base.weight.requires_grad_(False), base.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.lora_a = _uninitialised(base.weight, base.in_features, rank, bias=False)
        self.lora_b = _uninitialised(base.weight, rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)
        self.train(base.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        added: Tensor = self.lora_b(self.lora_a(input))
        return functional.linear(input, self.weight, self.bias) + self.scale * added

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain linear layer with the same output."""
        plain = _uninitialised(self.weight, self.in_features, self.out_features, bias=self.bias is not None)
        plain.weight.copy_(self.weight + self.scale * self.lora_b.weight @ self.lora_a.weight)
        if self.bias is not None:
            plain.bias.copy_(self.bias)
        return plain.requires_grad_(False).train(self.training)


def add_lora(model: nn.Module, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = TARGETS) -> list[str]:
    """Add adapters to linear layers, in place; returns the names of their parameters.

    `targets` are last parts of the layers' names, or glob patterns of full names.

    Raises:
        InputError: no linear layer matches, or one is inside an `nn.MultiheadAttention`, which would use its weight
            and bypass the adapter.
    """
    if rank < 1:
        raise InputError(f"rank: expected at least 1, got {rank}")
    found: list[tuple[str, nn.Module, nn.Linear]] = []
    others: list[str] = []
    for path, parent in model.named_modules():
        for name, child in parent.named_children():
            full_name = f"{path}.{name}" if path else name
            if not isinstance(child, nn.Linear) or type(child).forward is not nn.Linear.forward:
                continue
            if not any(name == target or fnmatchcase(full_name, target) for target in targets):
                others.append(full_name)
                continue
            if isinstance(parent, nn.MultiheadAttention):
                raise InputError(
                    f"{path}: nn.MultiheadAttention uses the weights of its layers directly and would bypass adapters;"
                    ' call safexplain.dp.prepare(model, "lora"), which replaces it first'
                )
            found.append((name, parent, child))
    if not found:
        raise InputError(
            f"targets: no linear layer is named {', '.join(targets)}; the linear layers are"
            f" {', '.join(others) or 'none'}. Pass targets= as names or glob patterns"
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
    """Merge all adapters into plain, frozen `nn.Linear` layers, in place; the model has its former names again."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                setattr(parent, name, child.merged())
    return model.merged() if isinstance(model, LoRALinear) else model


def _uninitialised(like: Tensor, in_features: int, out_features: int, *, bias: bool) -> nn.Linear:
    """A linear layer without values, so that no random numbers are drawn."""
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta", dtype=like.dtype)
    return layer.to_empty(device=like.device)
