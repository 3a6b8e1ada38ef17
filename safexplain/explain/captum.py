"""Explainers that Captum lacks, in its conventions, layers as maps; and checks that a method is correct on a model."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from captum import attr
from captum._utils.common import _format_additional_forward_args
from captum._utils.gradient import compute_layer_gradients_and_eval
from captum.attr import (
    Attribution,
    DeepLift,
    GradientAttribution,
    LayerAttribution,
    LayerGradCam,
    LayerIntegratedGradients,
    Saliency,
)
from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
from captum.log import log_usage
from torch import Tensor, fx, nn
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from safexplain._digest import modules_of
from safexplain.errors import InputError, RefusedError, TrainingModeWarning
from safexplain.native_maps import unwrapped
from safexplain.outputs import EstimatorModule, Logits, Probability

Inputs = Tensor | tuple[Tensor, ...]


class Gradient(Saliency):  # type: ignore[misc]
    """The signed gradient, on which SmoothGrad and VarGrad are defined (arXiv 1706.03825 and 1810.03307)."""

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self, inputs: Inputs, target: Any = None, abs: bool = False, additional_forward_args: object = None
    ) -> Inputs:
        """Gradients of the same structure and shapes as `inputs`; arguments as in `captum.attr.Saliency`."""
        gradients: Inputs = Saliency.attribute.__wrapped__(self, inputs, target, abs, additional_forward_args)
        return gradients


class GradCAM(LayerGradCam):  # type: ignore[misc]
    """Grad-CAM (arXiv 1610.02391, equations 1 and 2): a layer's channels added up, weighted by their mean gradients.

    Called like Captum's `LayerGradCam`, it returns the same numbers. In addition the layer has a default
    (`default_layer`), layers of transformers give maps, and maps can be enlarged.

    Args:
        forward_func: as in Captum, like `layer` and `device_ids`.
        layer: None: the last convolution.
        device_ids: for a DataParallel model.
        reshape_transform: how the layer's output is laid out: a layout of `as_map`, or a function to (batch, channels,
            height, width).
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | None = None,
        device_ids: list[int] | None = None,
        reshape_transform: str | Callable[[Tensor], Tensor] = "auto",
    ) -> None:
        super().__init__(forward_func, default_layer(forward_func) if layer is None else layer, device_ids)
        self.reshape_transform = reshape_transform

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Inputs,
        target: Any = None,
        additional_forward_args: object = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = False,
        attr_dim_summation: bool = True,
        grad_kwargs: Mapping[str, Any] | None = None,
        interpolate_mode: str | None = None,
    ) -> Inputs:
        """Maps of a batch; arguments as of `captum.attr.LayerGradCam`, and `interpolate_mode` of
        torch.nn.functional.interpolate, to the first input's size (None: the layer's size).

        Returns:
            (batch, 1, height, width), or a tuple of such if the layer returns several tensors.

        Raises:
            InputError: the layer's output is no map, see `reshape_transform`; or it cannot be enlarged.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        gradients, activations = compute_layer_gradients_and_eval(
            self.forward_func,
            self.layer,
            given,
            target,
            _format_additional_forward_args(additional_forward_args),
            device_ids=self.device_ids,
            attribute_to_layer_input=attribute_to_layer_input,
            grad_kwargs=grad_kwargs,
        )
        size = tuple(given[0].shape[2:])
        maps = []
        for gradient, activation in zip(gradients, activations, strict=True):
            g, a = self._laid_out(gradient, size), self._laid_out(activation, size)
            weighted = self.weights(g, a) * a
            found = weighted.sum(1, keepdim=True) if attr_dim_summation else weighted
            maps.append(found.relu() if relu_attributions else found)
        return self.enlarge(tuple(maps) if len(maps) > 1 else maps[0], inputs, interpolate_mode)

    def weights(self, gradients: Tensor, activations: Tensor) -> Tensor:
        """Weight of each channel, (batch, channels, 1, 1): its mean gradient."""
        return gradients.mean(tuple(range(2, gradients.dim())), keepdim=True) if gradients.dim() > 2 else gradients

    @staticmethod
    def enlarge(maps: Inputs, inputs: Inputs, interpolate_mode: str | None) -> Inputs:
        """Maps at the size of the (first) input."""
        if interpolate_mode is None:
            return maps
        size = tuple((inputs[0] if isinstance(inputs, tuple) else inputs).shape[2:])
        each = maps if isinstance(maps, tuple) else (maps,)
        try:
            larger = tuple(LayerAttribution.interpolate(m, size, interpolate_mode) for m in each)
        except (ValueError, NotImplementedError) as error:
            raise InputError(f"interpolate_mode={interpolate_mode!r} cannot enlarge maps to {size}: {error}") from None
        return larger if isinstance(maps, tuple) else larger[0]

    def _laid_out(self, features: Tensor, size: tuple[int, ...]) -> Tensor:
        if callable(self.reshape_transform):
            return self.reshape_transform(features)
        if self.reshape_transform == "auto" and (features.dim() == 2 or len(size) != 2):
            return features  # as Captum: axis 1 holds the channels
        return as_map(features, self.reshape_transform, self.forward_func, size)


class GradCAMPlusPlus(GradCAM):
    """Grad-CAM++ (arXiv 1710.11063, equations 10 and 19): a channel's weight is the sum of its positive gradients g,
    each times g^2 / (2 g^2 + g^3 sum A) with its activations A. The factor exp(score), constant over a map, is left
    out. Arguments as in `GradCAM`."""

    def weights(self, gradients: Tensor, activations: Tensor) -> Tensor:
        """Weight of each channel, (batch, channels, 1, 1)."""
        if gradients.dim() < 3:
            raise InputError(f"expected a layer with spatial axes for Grad-CAM++, got {tuple(gradients.shape)}")
        places = tuple(range(2, gradients.dim()))
        below = 2 + gradients * activations.sum(places, keepdim=True)
        coefficients = torch.where((gradients == 0) | (below == 0), 0.0, 1 / below)
        return (coefficients * gradients.relu()).sum(places, keepdim=True)


class TokenIG(GradientAttribution):  # type: ignore[misc]
    """Integrated gradients of a text's embeddings, like Captum's `LayerIntegratedGradients`, added up over the
    dimensions of an embedding: one number for each token or word. `embedding`: the layer that embeds tokens; None:
    `default_embedding`, the first one."""

    def __init__(self, forward_func: Callable[..., Any], embedding: nn.Module | None = None) -> None:
        super().__init__(forward_func)
        embedding = default_embedding(forward_func) if embedding is None else embedding
        self.of_layer = LayerIntegratedGradients(forward_func, embedding)

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Tensor,
        baselines: Tensor | int | None = None,
        target: Any = None,
        feature_mask: Tensor | None = None,
        additional_forward_args: object = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
    ) -> Tensor:
        """Attributions (n, tokens) of (n, tokens) token numbers; arguments as of `captum.attr.IntegratedGradients`.

        `baselines` are (n, tokens) or (tokens,) token numbers, as from `captum.attr.TokenReferenceBase`; None: 0.
        `feature_mask` (n or 1, tokens) has the same integer for tokens of one word (`safexplain.explain.words`), which
        all get the sum of the word; None: one number for each token.
        """
        if isinstance(baselines, Tensor):
            baselines = baselines.expand_as(inputs)
        tokens: Tensor = self.of_layer.attribute(
            inputs, baselines, target, additional_forward_args, n_steps, method, internal_batch_size
        ).sum(-1)
        if feature_mask is None:
            return tokens
        word = torch.unique(feature_mask, return_inverse=True)[1].expand_as(tokens).flatten(1)
        sums = tokens.new_zeros(len(tokens), int(word.max()) + 1).scatter_add_(1, word, tokens.flatten(1))
        return sums.gather(1, word).view_as(tokens)


# Layers: which one is explained, and its output as a map

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _parts_of(forward_func: object) -> list[nn.Module]:
    return [part for module in modules_of(forward_func) for part in module.modules()]


def default_layer(forward_func: object) -> nn.Module:
    """The layer that Grad-CAM's paper recommends (arXiv 1610.02391), the last convolution of a module or a function
    around one, or without any the second to last linear layer.

    Raises:
        InputError: neither exists, or the last convolution cuts an image into patches, as in a transformer.
    """
    parts = _parts_of(forward_func)
    convolutions = [part for part in parts if isinstance(part, _CONVOLUTIONS)]
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    size: Any = convolutions[-1].kernel_size if convolutions else ()
    if convolutions and not (max(size) > 1 and size == convolutions[-1].stride):  # which would cut patches
        return convolutions[-1]
    if not convolutions and len(linear) > 1:
        return linear[-2]
    raise InputError(
        "expected a model with convolutions up to its last layers or two linear layers, not an exported graph. Give"
        " layer=, for a vision transformer the first normalisation of its last block: model.blocks[-1].norm1 in timm"
    )


def default_embedding(forward_func: object) -> nn.Module:
    """The first embedding of a model, in transformers that of the tokens; InputError if there is none."""
    for part in _parts_of(forward_func):
        if isinstance(part, nn.Embedding):
            return part
    raise InputError("expected a text model with an nn.Embedding of its tokens, found none. Give embedding=")


def whole_layer(activations: Tensor) -> Tensor:
    """The sum (batch,) of a layer's output (batch, ...): a `neuron_selector` that fits every layer."""
    return activations.flatten(1).sum(1)


def as_map(features: Tensor, layout: str, forward_func: object = None, size: tuple[int, ...] = (1, 1)) -> Tensor:
    """A layer's output as (batch, channels, height, width).

    Args:
        features: (batch, channels, height, width); (batch, height, width, channels); or (batch, tokens, channels), the
            tokens of a square image row by row, after prefix tokens (such as a class token).
        layout: "channels_first", "channels_last", "tokens", or "auto": tokens if there are three axes; channels last if
            the model normalises the last axis, and the two axes before it have nearly the image's aspect ratio; else
            channels first.
        forward_func: the model, whose `num_prefix_tokens` counts the prefix tokens; without it, they are those before
            the largest square.
        size: height and width of the image.

    Raises:
        InputError: an unknown layout, or axes or tokens that do not fit it.
    """
    if layout == "auto":
        last = _looks_last(features, forward_func, size)
        layout = "tokens" if features.dim() == 3 else "channels_last" if last else "channels_first"
    if layout == "channels_first" and features.dim() > 2:
        return features
    if layout == "channels_last" and features.dim() > 2:
        return features.movedim(-1, 1)
    if layout == "tokens" and features.dim() == 3:
        prefix = _prefix(forward_func, features.shape[1])
        side = math.isqrt(max(0, features.shape[1] - prefix))
        if side and side * side == features.shape[1] - prefix:
            places = features[:, prefix:].transpose(1, 2)
            return places.reshape(*places.shape[:2], side, side)
        raise InputError(
            f"expected the tokens of a square image after {prefix} prefix tokens, got {features.shape[1]} tokens: give"
            " reshape_transform=, a function (batch, tokens, channels) -> (batch, channels, height, width)"
        )
    raise InputError(
        f"expected a layer whose output is a map in the layout {layout!r}, got {tuple(features.shape)}: choose another"
        " layer, or give reshape_transform= as channels_first, channels_last, tokens or a function"
    )


def _looks_last(features: Tensor, forward_func: object, size: tuple[int, ...]) -> bool:
    norms = {tuple(getattr(part, "normalized_shape", ())) for part in _parts_of(forward_func)}
    if features.dim() != 4 or len(size) != 2 or features.shape[3:] not in norms:
        return False
    last, first = (abs(math.log(h * size[1] / (w * size[0]))) for h, w in (features.shape[1:3], features.shape[2:]))
    return last < first


def _prefix(forward_func: object, tokens: int) -> int:
    for part in _parts_of(forward_func):
        count: Any = getattr(part, "num_prefix_tokens", None)
        if isinstance(count, int):
            return count
    return tokens - math.isqrt(tokens) ** 2


_KINDS = (DeepLift, attr.LayerDeepLift, attr.NeuronDeepLift, attr.NeuronDeepLiftShap)
_RELU_KINDS = (attr.GuidedBackprop, attr.Deconvolution)
_UNSUPPORTED: tuple[type[nn.Module], ...] = (
    *(nn.GELU, nn.SiLU, nn.Mish, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh),
    *(nn.SELU, nn.CELU, nn.PReLU, nn.GLU),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase),
)
_CHANGED_BY_TRAINING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
_RELU_FUNCTIONS = frozenset({nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
_TOLERANCE = 1e-3
_REWRITE_EXAMPLE = """
    from safexplain.explain import rewrite_functional
    model = rewrite_functional(model, inputs=x)"""

_CONTAINERS = frozenset(
    {nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.DataParallel, nn.parallel.DistributedDataParallel}
    | {Probability, Logits}
)
"""Modules that only hold or call others."""

_MODELESS_PACKAGES = ("torch.fx", "torch.export", "torch._dynamo", "torch.ao.nn.quantized")
"""Of modules that compute the same in both modes, or wrap others."""

_warned: WeakSet[nn.Module] = WeakSet()
_checked: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Model -> checks that it has passed in a call."""


def in_training_mode(model: nn.Module) -> list[str]:
    """Names of the parts of a model that are in training mode, unknown classes included; modules without a mode do not
    count: containers, wrappers, activations, and exported graphs.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    >>> in_training_mode(nn.Sequential(net, nn.Softmax(1))), in_training_mode(Probability(net.train()))
    ([], ['model.0', 'model.1'])
    """
    return [
        name or type(part).__name__ for name, part in model.named_modules() if part.training and _depends_on_mode(part)
    ]


def _depends_on_mode(part: nn.Module) -> bool:
    kind = type(part)
    if kind in _CONTAINERS or kind.__module__.startswith(_MODELESS_PACKAGES):
        return False
    holds = bool(part._parameters or part._buffers or part._modules)
    return holds or isinstance(part, _CHANGED_BY_TRAINING) or not kind.__module__.startswith("torch.nn.modules")


def check_mode(explained: object, *, stacklevel: int = 4) -> None:
    """Warn once (TrainingModeWarning) for each model in an object, see `modules_of`, that is in training mode."""
    check_modes(modules_of(explained), stacklevel=stacklevel + 1)


def check_modes(models: tuple[nn.Module, ...], *, stacklevel: int = 4) -> bool:
    """Warn like `check_mode`; return whether a part of one of these models is in training mode."""
    trains = False
    for network in map(unwrapped, models):  # a new wrapper may be made for each explainer
        if not (names := in_training_mode(network)):
            continue
        trains = True
        if network in _warned:
            continue
        _warned.add(network)
        warnings.warn(
            f"{type(network).__name__} is in training mode ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}):"
            " every answer differs, and repeating a query averages the noise away. Call model.eval() first",
            TrainingModeWarning,
            stacklevel=stacklevel,
        )
    return trains


def check_modules(explainer: Attribution) -> None:
    """RefusedError for a DeepLift if the model has modules without a rule, or is an exported graph without modules; and
    for a method that needs ReLU modules if there are none."""
    if isinstance(explainer, _RELU_KINDS) and not _relus(explainer.model):
        raise RefusedError(_without_relus(explainer, "has none"))
    if not isinstance(explainer, _KINDS):
        return
    parts = list(explainer.forward_func.modules())
    found = {type(part).__name__ for part in parts if isinstance(part, _UNSUPPORTED)}
    if not any(isinstance(part, tuple(SUPPORTED_NON_LINEAR)) for part in parts):
        found |= {"an exported graph" for part in parts if isinstance(part, GraphModule)}
    if found:
        raise RefusedError(
            f"DeepLift has no rule for {', '.join(sorted(found))} in {_class_name(explainer.forward_func)}: its values"
            " would not add up. Use HardenedIG"
        )


def check_first_call(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """The checks that need data, once for each model; RefusedError if the model silently turns the method into another
    one. The explainer's model is a copy, and may be hooked."""
    if isinstance(explainer, _KINDS):
        _check_sum(explainer, original, options)
    elif isinstance(explainer, _RELU_KINDS):
        _check_relus_run(explainer, original, options)


def _check_sum(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """Compare the sum of DeepLift's attributions with f(x) - f(baseline), for each model in evaluation mode once
    without baselines (zeros) and once with some; for methods of neurons, at the first output. They may differ by 0.1 %
    of the attributions' total size, plus rounding errors."""
    model, given = explainer.forward_func, options.get("baselines")
    case = "given baselines" if given is not None and not callable(given) else "zeros"
    if case in _checked.get(original, ()) or _changed_by_training(model):
        return
    rows = tuple(x.requires_grad_() for x in _detached_inputs(options))
    arguments, target = options.get("additional_forward_args"), options.get("target")
    if isinstance(explainer, attr.NeuronAttribution):
        target = (0,) * (_run_model(model, rows, arguments).dim() - 1) or None
    found, delta = DeepLift(model).attribute(
        rows,
        baselines=_matching_baselines(given, len(rows[0])) if case == "given baselines" else None,
        target=target,
        additional_forward_args=arguments,
        return_convergence_delta=True,
    )
    size = torch.stack([f.detach().abs().flatten(1).sum(1) for f in found]).sum(0)
    off, eps = delta.detach().abs(), torch.finfo(size.dtype).eps
    if bool((off > max(_TOLERANCE, 64 * eps) * size + 8 * eps).any()):
        share = float((off / size.clamp_min(torch.finfo(size.dtype).tiny)).max())
        raise RefusedError(
            f"DeepLift's values do not add up on {_class_name(model)}: the sum is off by {share:.1%} of their size."
            " It calls functions as activations or one module several times, or has parts without a correct rule"
            " (nn.Softmax; max pooling if the baseline is not flat). Explain logits, use HardenedIG, or turn functions"
            f" into modules, one for each call:{_REWRITE_EXAMPLE}"
        )
    if bool(((size > 0) & off.isfinite()).any()):  # inputs equal to the baseline prove nothing
        _checked.setdefault(original, set()).add(case)


def _changed_by_training(model: nn.Module) -> bool:
    return any(part.training for part in model.modules() if isinstance(part, _CHANGED_BY_TRAINING))


def _matching_baselines(baselines: Any, batch: int) -> Any:
    """The last of a set of baselines (the first is often zero), for methods that average over the set."""
    if isinstance(baselines, tuple):
        return tuple(_matching_baselines(b, batch) for b in baselines)
    return baselines[-1:] if isinstance(baselines, Tensor) and len(baselines) not in (1, batch) else baselines


def _detached_inputs(options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    inputs = options["inputs"]
    return tuple(x.detach().clone() for x in (inputs if isinstance(inputs, tuple) else (inputs,)))


def _run_model(model: nn.Module, rows: tuple[Tensor, ...], arguments: Any) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(*rows, *(_format_additional_forward_args(arguments) or ()))
    return output


def _check_relus_run(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    if "ReLU" in _checked.get(original, ()):
        return
    ran: list[int] = []
    handles = [relu.register_forward_hook(lambda *_: ran.append(1)) for relu in _relus(explainer.model)]
    rows, counted = _detached_inputs(options), _ReluCounter()
    try:
        with torch.random.fork_rng(sorted({x.get_device() for x in rows if x.is_cuda})), counted:  # dropout may draw
            _run_model(explainer.model, rows, options.get("additional_forward_args"))
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise RefusedError(_without_relus(explainer, "calls none of its own"))
    if counted.calls > len(ran):
        some = f"calls {counted.calls - len(ran)} of {counted.calls} ReLUs as functions"
        raise RefusedError(_without_relus(explainer, some))
    _checked.setdefault(original, set()).add("ReLU")


class _ReluCounter(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls += func in _RELU_FUNCTIONS
        return func(*args, **(kwargs or {}))


def _relus(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.ReLU)]


def is_estimator(model: object) -> bool:
    """Whether a model is a scikit-learn classifier, which predicts each row independently."""
    return isinstance(unwrapped(model), EstimatorModule)


def _class_name(model: nn.Module) -> str:
    return type(unwrapped(model)).__name__


def _without_relus(explainer: Attribution, fact: str) -> str:
    kind = next(kind for kind in _RELU_KINDS if isinstance(explainer, kind))
    return (
        f"{kind.__name__} changes the gradient of nn.ReLU modules, and {_class_name(explainer.model)} {fact}: the"
        f" answer would be a plain gradient. Use HardenedSaliency, or turn functions into modules:{_REWRITE_EXAMPLE}"
    )


# Functions as modules, by symbolic tracing

_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_ACTIVATIONS: tuple[tuple[type[nn.Module], tuple[str, ...], tuple[Any, ...]], ...] = (
    (nn.ReLU, ("inplace",), (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")),
    (nn.LeakyReLU, ("negative_slope", "inplace"), (F.leaky_relu, F.leaky_relu_)),
    (nn.ELU, ("alpha", "inplace"), (F.elu, F.elu_)),
    (nn.Softplus, ("beta", "threshold"), (F.softplus,)),
    (nn.Sigmoid, (), (torch.sigmoid, F.sigmoid, torch.sigmoid_, "sigmoid", "sigmoid_")),
    (nn.Tanh, (), (torch.tanh, F.tanh, torch.tanh_, "tanh", "tanh_")),
    (nn.MaxPool1d, _POOL, (F.max_pool1d, torch.max_pool1d)),
    (nn.MaxPool2d, _POOL, (F.max_pool2d, torch.max_pool2d)),
    (nn.MaxPool3d, _POOL, (F.max_pool3d, torch.max_pool3d)),
)
"""Modules with rules in DeepLift; their arguments behind the input, in order; and the functions, and methods of tensors
by name, that compute the same."""


def rewrite_functional(model: nn.Module, inputs: Tensor | tuple[Tensor, ...] | None = None) -> nn.Module:
    """The same network with a module for each call of an activation or of max pooling.

        from safexplain.explain import rewrite_functional
        model = rewrite_functional(model, inputs=x)
        HardenedDeepLift(model).attribute(x, target=y)

    Functions (`F.relu`, `x.relu()`, `F.max_pool2d`, ...) become modules, and such modules that are called several times
    become several. The new network is a `torch.fx.GraphModule` that shares all parameters and buffers with the old one,
    under the same names; parts that its `forward` does not call are left out, and dropout functions are off. Its digest
    differs from the model's, and is the same each time: rewrite again to load a certificate.

    Args:
        model: in evaluation mode, the same calls for all inputs.
        inputs: on which both networks' outputs are compared, (batch, ...) or several of these. None: no comparison.

    Returns:
        The new network, in evaluation mode; `model` itself if there is nothing to rewrite.

    Raises:
        RefusedError: the calls depend on the input and cannot be traced; or the outputs differ in any bit.
        InputError: the model is in training mode, or does not accept the inputs.
    """
    if model.training:
        raise InputError(
            f"expected a network in evaluation mode, got {type(model).__name__} in training mode: call eval()"
        )
    tensors = (*model.parameters(), *model.buffers())
    try:
        root = copy.deepcopy(model, {id(t): t for t in tensors})
        graph = fx.Tracer().trace(root)
    except Exception as error:  # anything that a network does with a symbolic input
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RefusedError(
            f"the calls of {type(model).__name__} depend on its input and cannot be traced ({reason}). Write its"
            " activations as modules by hand, one for each call, or use HardenedIG"
        ) from error
    if not _rewrite(graph, root):
        return model
    rewritten = fx.GraphModule(root, graph)
    rewritten.graph = _AllLeaves().trace(rewritten)  # with its names after pickling
    if inputs is not None:
        _compare(model, rewritten.eval(), inputs if isinstance(inputs, tuple) else (inputs,))
    return rewritten.eval()


class _AllLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _rewrite(graph: fx.Graph, root: nn.Module) -> bool:
    """Replace each function by a module; return whether there was one, or a module that is called again."""
    changed, called = False, set[str]()
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op == "call_module":
            part = root.get_submodule(str(node.target))
            if isinstance(part, tuple(kind for kind, _, _ in _ACTIVATIONS)) and node.target in called:
                node.target = _added(root, copy.deepcopy(part))
                changed = True
            called.add(str(node.target))
            continue
        made, in_place = _module_of(node) if node.op in ("call_function", "call_method") else (None, False)
        if made is None:
            continue
        given = node.args[0]
        with graph.inserting_before(node):
            new = graph.call_module(_added(root, made), (given,))
        node.replace_all_uses_with(new)
        if in_place and isinstance(given, fx.Node):  # later users of the changed tensor use its new numbers
            later = {user for user, place in order.items() if place > order[node]}
            given.replace_all_uses_with(new, later.__contains__)
        graph.erase_node(node)
        order[new] = order[node]
        changed = True
    graph.lint()
    return changed


def _added(root: nn.Module, module: nn.Module) -> str:
    kind = type(module).__name__.lower()
    name = next(n for n in (f"{kind}_{i}" for i in count(1)) if not hasattr(root, n))
    root.add_module(name, module)
    return name


def _module_of(node: fx.Node) -> tuple[nn.Module | None, bool]:
    """The module that replaces a call, if there is one, and whether the call changes its input."""
    for kind, names, calls in _ACTIVATIONS:
        if node.args and node.target in calls:
            options = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
            in_place = options.pop("inplace", False) or getattr(node.target, "__name__", str(node.target)).endswith("_")
            if not any(isinstance(value, fx.Node) for value in options.values()):
                return kind(**options), bool(in_place)
    return None, False


def _compare(model: nn.Module, rewritten: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Both must return the same bits for the inputs, one row of them, and ten and minus one times them."""
    given = tuple(x.detach() for x in inputs)
    batches = [given, tuple(x[:1] for x in given)]
    if all(x.is_floating_point() for x in given):
        batches += [tuple(factor * x for x in given) for factor in (10.0, -1.0)]
    with torch.no_grad():
        for rows in batches:
            try:
                expected, found = (network(*(x.clone() for x in rows)) for network in (model, rewritten))
            except Exception as error:  # any error of the network
                raise InputError(
                    f"{type(model).__name__} fails for inputs of shape {[tuple(x.shape) for x in rows]}:"
                    f" {(str(error) or type(error).__name__).splitlines()[0]}; give inputs= that it accepts"
                ) from None
            if not torch.allclose(expected, found, 0, 0, equal_nan=True):
                raise RefusedError(
                    f"expected the same outputs after rewriting {type(model).__name__}, got others. Write its"
                    " activations as modules by hand, or use HardenedIG"
                )
