"""`nn.MultiheadAttention` of separate linear layers, so that each has a rule for per-sample gradients.

Opacus 1.6 has such a module too, `DPMultiheadAttention`; with `batch_first=True` and several heads it puts the heads'
outputs together in the wrong order, and with `batch_first=False` samples are not on the first axis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain.errors import InputError

__all__ = ["PerSampleAttention"]


class PerSampleAttention(nn.Module):
    """The function of an `nn.MultiheadAttention` (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2), same weights.

    Args:
        layer: as `can_replace` allows.
    """

    # What nn.TransformerEncoderLayer reads before its own fused kernel, which would use the weights past the hooks.
    _qkv_same_embed_dim = False
    in_proj_weight = None
    in_proj_bias = None

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = layer.embed_dim, layer.num_heads
        self.dropout, self.batch_first = layer.dropout, layer.batch_first
        weights = _parts(layer.in_proj_weight)
        bias: nn.Parameter | None = layer.in_proj_bias
        biases = [None] * 3 if bias is None else _parts(bias)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(layer.out_proj.weight, layer.out_proj.bias)
        self.train(layer.training)

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether a layer is exactly `nn.MultiheadAttention`, with keys and values as wide as queries, and without
        `add_bias_kv` and `add_zero_attn`.
        """
        if type(layer) is not nn.MultiheadAttention:
            return False
        return bool(layer._qkv_same_embed_dim) and layer.bias_k is None and not layer.add_zero_attn

    def to_torch(self) -> nn.MultiheadAttention:
        """An `nn.MultiheadAttention` with these weights."""
        bias, like = self.out_proj.bias is not None, self.out_proj.weight
        options = {"dropout": self.dropout, "bias": bias, "batch_first": self.batch_first}
        layer = nn.MultiheadAttention(self.embed_dim, self.num_heads, **options, device="meta", dtype=like.dtype)
        inner = (self.q_proj, self.k_proj, self.v_proj)
        layer.in_proj_weight = _joined([part.weight for part in inner])
        if bias:
            layer.in_proj_bias = _joined([part.bias for part in inner])
        layer.out_proj.weight, layer.out_proj.bias = self.out_proj.weight, self.out_proj.bias
        return layer.train(self.training)

    def forward(  # noqa: D102
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3:
            raise InputError(f"expected a batch of sequences, three axes, got shape {tuple(query.shape)}")
        if is_causal and attn_mask is None:
            raise InputError("is_causal only says that attn_mask is causal: give attn_mask")
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (self._heads(t) for t in (self.q_proj(query), self.k_proj(key), self.v_proj(value)))
        mask = self._mask(q, attn_mask, key_padding_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        joined: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return joined if self.batch_first else joined.transpose(0, 1), weights

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, width) as (batch, heads, length, width of a head)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
        """What is added to the scores (batch, heads, queries, keys): -inf where torch's masks are true."""
        total = None
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(len(q), self.num_heads, *attn_mask.shape[1:])
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, None, None]
        for mask in (attn_mask, key_padding_mask):
            if mask is not None and not mask.is_floating_point():
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf)
            total = mask if total is None else total if mask is None else total + mask
        return total


def _parts(joint: Tensor) -> list[nn.Parameter]:
    return [nn.Parameter(part.clone(), joint.requires_grad) for part in joint.detach().chunk(3)]


def _joined(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), any(part.requires_grad for part in parts))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.register_parameter("weight", nn.Parameter(weight, weight.requires_grad))
    if bias is not None:
        layer.register_parameter("bias", nn.Parameter(bias, bias.requires_grad))
    return layer
