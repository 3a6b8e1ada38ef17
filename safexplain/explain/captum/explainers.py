"""Explainers that Captum lacks, in its conventions: the signed gradient, on which SmoothGrad and VarGrad are defined;
Grad-CAM and Grad-CAM++, for convolutions and for the tokens of transformers; integrated gradients of words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from captum._utils.common import _format_additional_forward_args
from captum._utils.gradient import compute_layer_gradients_and_eval
from captum.attr import GradientAttribution, LayerAttribution, LayerGradCam, LayerIntegratedGradients, Saliency
from captum.log import log_usage
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.explain.captum.layers import as_map, default_embedding, default_layer

__all__ = ["GradCAM", "GradCAMPlusPlus", "Gradient", "TokenIG"]

Inputs = Tensor | tuple[Tensor, ...]


class Gradient(Saliency):  # type: ignore[misc]
    """The signed gradient of the output with respect to the input: Captum's Saliency with `abs=False` by default.

    SmoothGrad and VarGrad are defined on this (arXiv 1706.03825 and 1810.03307): averaging magnitudes instead lets the
    noise that the average should remove add up.
    """

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self, inputs: Inputs, target: Any = None, abs: bool = False, additional_forward_args: object = None
    ) -> Inputs:
        """Gradients of the same structure and shapes as `inputs`; arguments as in `captum.attr.Saliency`."""
        gradients: Inputs = Saliency.attribute.__wrapped__(self, inputs, target, abs, additional_forward_args)
        return gradients


class GradCAM(LayerGradCam):  # type: ignore[misc]
    """Grad-CAM (arXiv 1610.02391, equations 1 and 2): a layer's channels added up, weighted by their mean gradients.

    Called as Captum's `LayerGradCam`, the numbers are Captum's. Beyond that the layer has a default, layers of
    transformers give maps, and the map can be enlarged to the input.

    Args:
        forward_func, device_ids: as in Captum.
        layer: None: `safexplain.explain.default_layer`, the last convolution.
        device_ids: for a DataParallel model, as in Captum.
        reshape_transform: how the layer's output is laid out: a layout of `safexplain.explain.captum.layers.as_map`, or
            a function to (batch, channels, height, width).
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
        """Maps of a batch.

        Args:
            inputs: tensor (batch, ...) or a tuple of such.
            target: the explained output, as in Captum.
            additional_forward_args: as in Captum.
            attribute_to_layer_input: explain the layer's input in place of its output.
            relu_attributions: True for the paper's map, without negative values.
            attr_dim_summation: False to keep a map for each channel.
            grad_kwargs: for torch.autograd.grad.
            interpolate_mode: of torch.nn.functional.interpolate, to the (first) input's size. None: the layer's own.

        Returns:
            (batch, 1, height, width), or a tuple of such where the layer gives several tensors.

        Raises:
            InputError: the layer's output is no map, see `reshape_transform`; or a map that cannot be enlarged.
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
            raise InputError(f"interpolate_mode={interpolate_mode!r} does not fit maps to {size}: {error}") from None
        return larger if isinstance(maps, tuple) else larger[0]

    def _laid_out(self, features: Tensor, size: tuple[int, ...]) -> Tensor:
        if callable(self.reshape_transform):
            return self.reshape_transform(features)
        if self.reshape_transform == "auto" and (features.dim() == 2 or len(size) != 2):
            return features  # as Captum: axis 1 holds the channels
        return as_map(features, self.reshape_transform, self.forward_func, size)


class GradCAMPlusPlus(GradCAM):
    """Grad-CAM++ (arXiv 1710.11063, equations 10 and 19): a channel's weight is the sum of its positive gradients,
    each times a coefficient that makes a small region of the channel count as much as a large one.

    With gradients g and activations A of a channel the coefficients are g^2 / (2 g^2 + g^3 sum A), for an output that
    is the exponential of the explained score; its factor exp(score), the same for a whole map, is left out, as usual.

    Arguments as in `GradCAM`.
    """

    def weights(self, gradients: Tensor, activations: Tensor) -> Tensor:
        """Weight of each channel, (batch, channels, 1, 1)."""
        if gradients.dim() < 3:
            raise InputError(f"Grad-CAM++ needs a layer with places, got an output of shape {tuple(gradients.shape)}")
        places = tuple(range(2, gradients.dim()))
        below = 2 + gradients * activations.sum(places, keepdim=True)
        coefficients = torch.where((gradients == 0) | (below == 0), 0.0, 1 / below)
        return (coefficients * gradients.relu()).sum(places, keepdim=True)


class TokenIG(GradientAttribution):  # type: ignore[misc]
    """Integrated gradients of a text's embeddings, as Captum's `LayerIntegratedGradients` has them, added up over the
    dimensions of an embedding: one number for each token, or for each word.

    Args:
        forward_func: the model, of token numbers, or a function around one.
        embedding: its layer that embeds tokens; None: `safexplain.explain.default_embedding`, the first one.
    """

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
        """Attributions of tokens.

        Args:
            inputs: (n, tokens) token numbers, integers or, as an audit has them, floats.
            baselines: (n, tokens) or (tokens,) token numbers, such as `captum.attr.TokenReferenceBase` makes; None: 0.
            target: the explained output, as in Captum.
            feature_mask: (n or 1, tokens) integers, the same for tokens of one word (`safexplain.explain.words`): each
                gets the sum of the word. None: tokens stand for themselves.
            additional_forward_args: as in Captum.
            n_steps: points of the integral, as in `captum.attr.IntegratedGradients`.
            method: its rule, as there.
            internal_batch_size: at most so many points in one call of the model; None: all.

        Returns:
            (n, tokens), of the embeddings' dtype.
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
