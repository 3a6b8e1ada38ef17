"""Replacements for modules without per-sample gradients, made in place on the copy that `prepare` makes.

| module | replaced by | because |
|---|---|---|
| BatchNorm | GroupNorm (arXiv 1803.08494) | a batch statistic mixes samples: no bound for a single one |
| nn.MultiheadAttention | `PerSampleAttention` | several layers in one, whose inputs no hook sees |
| LSTM, GRU, RNN | Opacus' versions | the same |
| timm layers that compute the same as torch's | torch's type | Opacus looks up its rules by exact type |

Opacus 1.6 has `DPMultiheadAttention`, which joins the heads' outputs in the wrong order with `batch_first=True`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from safexplain.dp.models.adapters import merge_lora
from safexplain.dp.models.layer_rules import FreshGroupNorm, FreshLinear
from safexplain.errors import InputError, PrivacyWarning


class PerSampleAttention(nn.Module):
    """An `nn.MultiheadAttention` (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2) with one layer per product."""

    # These keep nn.TransformerEncoderLayer from its fused kernel, which would use the weights without the hooks.
    _qkv_same_embed_dim = False
    in_proj_weight = None
    in_proj_bias = None

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = layer.embed_dim, layer.num_heads
        self.dropout, self.batch_first = layer.dropout, layer.batch_first
        weights = _split_in_three(layer.in_proj_weight)
        bias: nn.Parameter | None = layer.in_proj_bias
        biases = [None] * 3 if bias is None else _split_in_three(bias)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(layer.out_proj.weight, layer.out_proj.bias)
        self.train(layer.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """An `nn.MultiheadAttention` with these weights."""
        bias, like = self.out_proj.bias is not None, self.out_proj.weight
        options = {"dropout": self.dropout, "bias": bias, "batch_first": self.batch_first}
        layer = nn.MultiheadAttention(self.embed_dim, self.num_heads, **options, device="meta", dtype=like.dtype)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        layer.in_proj_weight = _concatenated([p.weight for p in projections])
        if bias:
            layer.in_proj_bias = _concatenated([p.bias for p in projections])
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
            raise InputError(f"query: expected a batch of sequences with three axes, got shape {tuple(query.shape)}")
        if is_causal and attn_mask is None:
            raise InputError("is_causal is only a hint that attn_mask is causal; pass attn_mask too")
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
        """The sum of both masks, to be added to scores (batch, heads, queries, keys); -inf for boolean True."""
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


def _split_in_three(joint: Tensor) -> list[nn.Parameter]:
    return [nn.Parameter(part.clone(), joint.requires_grad) for part in joint.detach().chunk(3)]


def _concatenated(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), any(part.requires_grad for part in parts))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.register_parameter("weight", nn.Parameter(weight, weight.requires_grad))
    if bias is not None:
        layer.register_parameter("bias", nn.Parameter(bias, bias.requires_grad))
    return layer


_RECURRENT: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
_RECURRENT_OF_TORCH = {private: plain for plain, private in _RECURRENT.items()}

_PLAIN = {"timm.layers.norm.LayerNorm": nn.LayerNorm, "timm.layers.linear.Linear": nn.Linear}


class BatchNormReplacedWarning(PrivacyWarning):
    """Batch normalisation was replaced, and its pretrained statistics are lost."""


def is_trainable(module: nn.Module, *, recurse: bool = False) -> bool:
    """Whether a parameter of the module itself (with `recurse`, or of a module inside it) requires gradients."""
    return any(p.requires_grad for p in module.parameters(recurse=recurse))


def replace_module(model: nn.Module, path: str, module: nn.Module) -> nn.Module:
    """The model with another module under a name; the module itself if the name is empty."""
    if not path:
        return module
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
    return model


def group_count(features: int, dimensions: int) -> int:
    """Groups for GroupNorm: at most 32 (arXiv 1803.08494, section 4.1), of at least two channels; one for BatchNorm1d.

    A group of one channel without spatial axes is a single number, which would always be normalised to zero.
    """
    groups = 1 if dimensions == 1 else math.gcd(32, features)
    return groups if groups < features else max(1, groups // 2)


def replace_batch_norm(model: nn.Module, *, freeze: bool = False) -> tuple[nn.Module, list[str]]:
    """Replace each BatchNorm that would use batch statistics by a GroupNorm with the same weight, bias and eps.

    These are layers that train, that keep no running statistics, or that have neither parameters nor statistics that
    were ever updated. Frozen layers with statistics are kept: in evaluation mode they treat each sample alone.
    `freeze` freezes such layers instead. Returns the model, changed in place, and the names of the replaced layers.
    """
    replaced = []
    for name, old in list(model.named_modules()):
        if not isinstance(old, _BatchNorm) or not _is_standard(old):
            continue
        has_statistics = old.running_mean is not None
        if freeze and has_statistics:
            old.requires_grad_(False)
        untouched = not old.affine and old.num_batches_tracked is not None and int(old.num_batches_tracked) == 0
        if not is_trainable(old) and has_statistics and not untouched:
            continue
        features, dimensions = old.num_features, 1 if isinstance(old, nn.BatchNorm1d) else 2
        new = FreshGroupNorm(group_count(features, dimensions), features, old.eps, affine=old.affine)
        if old.affine:
            new.weight, new.bias = old.weight, old.bias
        extra = OrderedDict(old.named_children())
        model = replace_module(model, name, nn.Sequential(OrderedDict(norm=new, **extra)) if extra else new)
        replaced.append(name)
    return model, replaced


def replace_composites(model: nn.Module, *, frozen_too: bool = False) -> tuple[nn.Module, dict[str, nn.Module]]:
    """Replace attention and recurrent layers by versions with per-sample gradients, the same weights and output.

    Returns the model, changed in place, and name -> original layer.
    """
    originals: dict[str, nn.Module] = {}
    for name, old in list(model.named_modules()):
        if not (frozen_too or is_trainable(old, recurse=True)):
            continue
        new: nn.Module
        if type(old) is nn.MultiheadAttention:
            if not old._qkv_same_embed_dim or old.bias_k is not None or old.add_zero_attn:
                continue
            new = PerSampleAttention(old)
        elif type(old) in _RECURRENT and isinstance(old, nn.RNNBase) and not old.proj_size:
            new = _convert_recurrent(old, _RECURRENT[type(old)])
        else:
            continue
        model = replace_module(model, name, new)
        originals[name] = old
    return model, originals


def restore(model: nn.Module) -> nn.Module:
    """Convert a trained model back to torch's own layers, in place, and merge adapters; returns the model.

    Its `state_dict` then loads into the original architecture, unless BatchNorm was replaced.
    """
    model = merge_lora(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, PerSampleAttention):
            model = replace_module(model, name, module.to_torch())
        elif type(module) in _RECURRENT_OF_TORCH:
            model = replace_module(model, name, _convert_recurrent(module, _RECURRENT_OF_TORCH[type(module)]))
        elif isinstance(module, (FreshGroupNorm, FreshLinear)):
            setattr(module, "__class__", module.plain)  # noqa: B010
    return model


def _convert_recurrent(old: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A recurrent layer of another type with the same options and parameters."""
    options = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
    more = ("nonlinearity",) if kind in (nn.RNN, DPRNN) else ()
    values = {name: getattr(old, name) for name in (*options, *more)}
    with torch.random.fork_rng(devices=[]):
        new = kind(**values)
    first = next(old.parameters())
    new.to(device=first.device, dtype=first.dtype)
    parameters = dict(new.named_parameters())
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            parameters[name].copy_(parameter)
            parameters[name].requires_grad_(parameter.requires_grad)
    for name in more:
        setattr(new, name, values[name])  # Opacus keeps it in its cells only
    return new.train(old.training)


def use_plain_types(model: nn.Module) -> None:
    """Change trainable timm layers that compute the same as torch's to torch's type, in place.

    A GroupNorm returns a copy of its output, because networks often continue with `out += x`.
    """
    for module in model.modules():
        if type(module) is nn.GroupNorm and is_trainable(module):
            module.__class__ = FreshGroupNorm
        kind = type(module)
        plain = _PLAIN.get(f"{kind.__module__}.{kind.__name__}")
        if plain is not None and is_trainable(module) and not getattr(module, "_fast_norm", False):
            module.__class__ = plain


def split_attention_bias(model: nn.Module) -> None:
    """Make timm's attention with `q_bias` and `v_bias` (BEiT, EVA, Swin V2) call its layer `qkv`, in place.

    Otherwise it uses the layer's weight directly, which no hook sees.
    """
    for module in model.modules():
        qkv = getattr(module, "qkv", None)
        if getattr(module, "qkv_bias_separate", None) is False and isinstance(qkv, nn.Linear):
            module.qkv_bias_separate = True  # type: ignore[assignment]
            if type(qkv) is nn.Linear and is_trainable(qkv):
                qkv.__class__ = FreshLinear


def train_mode(model: nn.Module) -> nn.Module:
    """Put a model in training mode, except frozen modules with running statistics.

    In training mode, a frozen BatchNorm would use batch statistics and update its own from private data.
    """
    model.train()
    for module in model.modules():
        if has_fixed_statistics(module):
            module.training = False
    return model


def has_fixed_statistics(module: nn.Module) -> bool:
    """Whether it is frozen and has buffers that training mode would update."""
    return any(True for _ in module.buffers(recurse=False)) and not is_trainable(module, recurse=True)


def pin_to_eval(module: nn.Module) -> None:
    """Keep this module in evaluation mode, whatever is called."""
    module.register_forward_pre_hook(_stay_in_eval)


def is_pinned(module: nn.Module) -> bool:
    """Whether `pin_to_eval` keeps this module in evaluation mode."""
    return _stay_in_eval in module._forward_pre_hooks.values()


def _stay_in_eval(module: nn.Module, _: Any) -> None:
    module.training = False


def _is_standard(norm: _BatchNorm) -> bool:
    """Whether it is torch's layer, possibly followed by timm's dropout and activation."""
    torch_forward = type(norm).forward in {kind.forward for kind in (nn.BatchNorm2d, nn.SyncBatchNorm)}
    return torch_forward or {name for name, _ in norm.named_children()} == {"drop", "act"}
