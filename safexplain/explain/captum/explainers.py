"""Explainers that Captum lacks, in its conventions; the default layer of a model, and layouts of layers as maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from captum._utils.common import _format_additional_forward_args
from captum._utils.gradient import compute_layer_gradients_and_eval
from captum.attr import GradientAttribution, LayerAttribution, LayerGradCam, LayerIntegratedGradients, Saliency
from captum.log import log_usage
from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.errors import InputError

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

    Called like Captum's `LayerGradCam`, it returns the same numbers. In addition the layer has a default, layers of
    transformers give maps, and maps can be enlarged.

    Args:
        forward_func: as in Captum.
        layer: None: `safexplain.explain.default_layer`, the last convolution.
        device_ids: for a DataParallel model, as in Captum.
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
        """Maps of a batch; other arguments as of `captum.attr.LayerGradCam`.

        Args:
            inputs: tensor (batch, ...) or a tuple of such.
            target: the explained output, as in Captum.
            additional_forward_args: as in Captum.
            attribute_to_layer_input: explain the layer's input in place of its output.
            relu_attributions: True for the paper's map, without negative values.
            attr_dim_summation: False to keep a map for each channel.
            grad_kwargs: for torch.autograd.grad.
            interpolate_mode: of torch.nn.functional.interpolate, to the first input's size. None: the layer's size.

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
        """Attributions (n, tokens) of tokens; other arguments as of `captum.attr.IntegratedGradients`.

        Args:
            inputs: (n, tokens) token numbers, integers or (in an audit) floats.
            baselines: (n, tokens) or (tokens,) token numbers, as from `captum.attr.TokenReferenceBase`; None: 0.
            target: the explained output, as in Captum.
            feature_mask: (n or 1, tokens) integers, the same for tokens of one word (`safexplain.explain.words`), which
                all get the sum of the word. None: one number for each token.
            additional_forward_args: as in Captum.
            n_steps: points of the integral.
            method: its rule.
            internal_batch_size: most points in one call of the model; None: all.
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
