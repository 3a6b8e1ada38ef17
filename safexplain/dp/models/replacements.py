"""Layers with per-sample gradients, made in place of others on the copy that `prepare` makes, and their rules.

| module | replaced by | because |
|---|---|---|
| BatchNorm | GroupNorm (arXiv 1803.08494) | a batch statistic mixes samples: no bound for a single one |
| nn.MultiheadAttention | `PerSampleAttention` | several layers in one, whose inputs no hook sees |
| LSTM, GRU, RNN | Opacus' versions | the same |
| timm layers that compute the same as torch's | torch's type | Opacus looks up its rules by exact type |
| nn.Linear, with "lora" | `LoRALinear` | fewer parameters train |

Import enters the rules that Opacus 1.6 lacks or has wrong in its registry, for every user in the process. (Its
`DPMultiheadAttention` joins heads in the wrong order with `batch_first=True`.)
"""

from __future__ import annotations

import copy
import math
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler, register_norm_sampler
from opacus.grad_sample.conv import compute_conv_grad_sample
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleHooksFastGradientClipping
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from safexplain.dp.sgd.clipping import sample_norms
from safexplain.errors import InputError, PrivacyWarning


class PerSampleAttention(nn.Module):
    """An `nn.MultiheadAttention` (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2) with one layer per product."""

    # nn.TransformerEncoderLayer's fused kernel would use the weights without the hooks
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
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
        """The sum of both masks, to be added to scores (batch, heads, queries, keys)."""
        masks = []
        if attn_mask is not None:
            per_head = len(q), self.num_heads, *attn_mask.shape[1:]
            masks.append(attn_mask.reshape(per_head) if attn_mask.dim() == 3 else attn_mask)
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None])
        zero = q.new_zeros(())
        added = [m if m.is_floating_point() else zero.masked_fill(m, -torch.inf) for m in masks]
        return sum(added[1:], added[0]) if added else None


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
    """Groups for GroupNorm: at most 32 (arXiv 1803.08494, section 4.1), of at least two channels; one for
    BatchNorm1d."""
    groups = 1 if dimensions == 1 else math.gcd(32, features)
    return groups if groups < features else max(1, groups // 2)


def replace_batch_norm(model: nn.Module, *, freeze: bool = False) -> tuple[nn.Module, list[str]]:
    """Replace each BatchNorm that would use batch statistics by a GroupNorm with the same weight, bias and eps: layers
    that train, that keep no running statistics, or without parameters whose statistics were never updated. `freeze`
    freezes those with statistics instead. Returns the model, changed in place, and the names of the replaced layers."""
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
    """Replace attention and recurrent layers by versions with per-sample gradients, the same weights and output; the
    model, changed in place, and name -> original layer."""
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
    """The trained model converted back to torch's own layers, in place, with adapters merged: its `state_dict` loads
    into the original architecture, unless BatchNorm was replaced."""
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
    """Change trainable timm layers that compute the same as torch's to torch's type, in place; a GroupNorm then returns
    a copy of its output, because networks often continue with `out += x`."""
    for module in model.modules():
        if type(module) is nn.GroupNorm and is_trainable(module):
            module.__class__ = FreshGroupNorm
        kind = type(module)
        plain = _PLAIN.get(f"{kind.__module__}.{kind.__name__}")
        if plain is not None and is_trainable(module) and not getattr(module, "_fast_norm", False):
            module.__class__ = plain


def split_attention_bias(model: nn.Module) -> None:
    """Make timm's attention with `q_bias` and `v_bias` (BEiT, EVA, Swin V2) call its layer `qkv`, in place, instead of
    using the layer's weight, which no hook sees."""
    for module in model.modules():
        qkv = getattr(module, "qkv", None)
        if getattr(module, "qkv_bias_separate", None) is False and isinstance(qkv, nn.Linear):
            module.qkv_bias_separate = True  # type: ignore[assignment]
            if type(qkv) is nn.Linear and is_trainable(qkv):
                qkv.__class__ = FreshLinear


def train_mode(model: nn.Module) -> nn.Module:
    """Put a model in training mode, except frozen modules with running statistics, which would use the batch's."""
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


# --- low-rank adapters -----------------------------------------------------------------------------------------------

TARGETS = ("qkv", "proj", "q_proj", "k_proj", "v_proj", "out_proj", "query", "key", "value")
"""Names of attention projections in timm, `PerSampleAttention` and transformers."""


class LoRALinear(nn.Linear):
    """A frozen linear layer plus a trainable product of two small ones (Hu et al. 2021, arXiv 2106.09685, section 4.1):
    y = W x + b + (alpha / rank) B A x. It shares W and b with its base; B starts at zero, A as in `nn.Linear`."""

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


def add_lora(model: nn.Module, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = TARGETS) -> None:
    """Add adapters to linear layers, in place; `targets` are last parts of names, or glob patterns of full names.
    InputError: none matches, or one is inside an `nn.MultiheadAttention`."""
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
            elif isinstance(parent, nn.MultiheadAttention):
                raise InputError(
                    f"{path}: nn.MultiheadAttention would bypass adapters; call safexplain.dp.prepare(model, 'lora'),"
                    " which replaces it first"
                )
            else:
                found.append((name, parent, child))
    if not found:
        raise InputError(
            f"targets: no linear layer is named {', '.join(targets)}; the linear layers are"
            f" {', '.join(others) or 'none'}. Pass names or glob patterns"
        )
    for name, parent, child in found:
        setattr(parent, name, LoRALinear(child, rank, alpha))


def merge_lora(model: nn.Module) -> nn.Module:
    """Merge all adapters into plain, frozen `nn.Linear` layers, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                setattr(parent, name, child.merged())
    return model.merged() if isinstance(model, LoRALinear) else model


def _uninitialised(like: Tensor, in_features: int, out_features: int, *, bias: bool) -> nn.Linear:
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta", dtype=like.dtype)
    return layer.to_empty(device=like.device)


# --- rules for Opacus ------------------------------------------------------------------------------------------------


def linear_norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
    """Norms (batch,) of a linear layer's per-example gradients, for each parameter that trains.

    The gradient for one example with t positions is G^T A, from inputs A (t, in) and gradients G (t, out); its squared
    norm is the sum of (A A^T) * (G G^T) (Li et al. 2022, arXiv 2110.05679, section 4), t^2 numbers instead of in * out.
    The smaller of the two is computed (Bu et al. 2022, arXiv 2205.10683), and the gradients where rounding could make
    the norm too small.
    """
    gradients = backprops.flatten(1, -2) if backprops.dim() > 2 else backprops[:, None]
    inputs = activations[0].to(gradients.dtype).reshape(*gradients.shape[:2], -1)
    norms: dict[Tensor, Tensor] = {}
    if layer.bias is not None and layer.bias.requires_grad:
        norms[layer.bias] = torch.linalg.vector_norm(gradients.sum(dim=1), dim=1)
    if layer.weight.requires_grad:
        norms[layer.weight] = _weight_norms(gradients, inputs)
    return norms


def _weight_norms(gradients: Tensor, inputs: Tensor) -> Tensor:
    positions = gradients.shape[1]
    sizes = [torch.linalg.vector_norm(t, dim=2) for t in (gradients, inputs)]
    if positions == 1:
        norms: Tensor = sizes[0] * sizes[1]
        return norms[:, 0]
    if 2 * positions**2 > gradients.shape[2] * inputs.shape[2]:
        return sample_norms(gradients.mT @ inputs)
    squares = ((gradients @ gradients.mT) * (inputs @ inputs.mT)).sum(dim=(1, 2))
    largest = (sizes[0] * sizes[1]).sum(dim=1).square()
    norms = squares.clamp(min=0).sqrt()
    cancelled = squares < torch.finfo(squares.dtype).eps ** 0.5 * largest
    if cancelled.any():
        norms[cancelled] = sample_norms(gradients[cancelled].mT @ inputs[cancelled])
    return norms


class GhostHooks(GradSampleHooksFastGradientClipping):  # type: ignore[misc]
    """Opacus' hooks for norms without gradients, with `linear_norms` for `nn.Linear`."""

    NORM_SAMPLERS: ClassVar[Mapping[type[nn.Module], Callable[..., Any]]] = ChainMap(
        {nn.Linear: linear_norms}, GradSampleHooksFastGradientClipping.NORM_SAMPLERS
    )


class _FreshOutput(nn.Module):
    """Returns a copy, which the network may change in place, despite Opacus' hooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs).clone()


class FreshGroupNorm(_FreshOutput, nn.GroupNorm):
    """`nn.GroupNorm` before a residual sum in place (`out += x`), as in torchvision's and timm's ResNets."""

    plain = nn.GroupNorm


class FreshLinear(_FreshOutput, nn.Linear):
    """`nn.Linear` before a sum in place, as in timm's BEiT."""

    plain = nn.Linear


def convolution_gradients(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Per-sample gradients (batch, *shape) of a convolution's parameters; Opacus' rule assumes contiguous images
    (channels_last are not) and always pads with zeros."""
    inputs = activations[0].contiguous()
    if layer.padding_mode != "zeros":
        inputs = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        layer = copy.copy(layer)  # with the same parameters
        layer.padding = (0,) * len(layer.kernel_size)
    gradients: dict[nn.Parameter, Tensor] = compute_conv_grad_sample(layer, [inputs], backprops)
    return gradients


register_grad_sampler([nn.Conv1d, nn.Conv2d, nn.Conv3d])(convolution_gradients)
register_grad_sampler(FreshGroupNorm)(GradSampleModule.GRAD_SAMPLERS[nn.GroupNorm])
register_grad_sampler(FreshLinear)(GradSampleModule.GRAD_SAMPLERS[nn.Linear])
register_norm_sampler(FreshLinear)(linear_norms)
