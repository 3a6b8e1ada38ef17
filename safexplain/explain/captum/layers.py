"""Which layer of a model is explained where nobody says, and how a layer's output is laid out as a map."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.errors import InputError

__all__ = ["as_map", "default_embedding", "default_layer", "whole_layer"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _parts_of(forward_func: object) -> list[nn.Module]:
    return [part for module in modules_of(forward_func) for part in module.modules()]


def default_layer(forward_func: object) -> nn.Module:
    """The layer that Grad-CAM's paper recommends (arXiv 1610.02391): the last convolution; without one, the
    second to last linear layer.

    Args:
        forward_func: a module, or a function around one.

    Raises:
        InputError: neither exists, or the last convolution cuts an image into patches, as at the start of a
            transformer.
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
        "no layer to choose: expected a model with convolutions up to its last layers or two linear layers, and no"
        " exported graph. Give layer=, for a vision transformer the first normalisation of its last block:"
        " layer=model.blocks[-1].norm1 of timm's, layer=model.model.vit.encoder.layer[-1].layernorm_before of a ViT of"
        " transformers"
    )


def default_embedding(forward_func: object) -> nn.Module:
    """The first embedding of a model, which in transformers is that of the tokens.

    Raises:
        InputError: it has none.
    """
    for part in _parts_of(forward_func):
        if isinstance(part, nn.Embedding):
            return part
    raise InputError("expected a model of texts, with an nn.Embedding of its tokens: found none. Give embedding=")


def whole_layer(activations: Tensor) -> Tensor:
    """The sum (batch,) of a layer's output (batch, ...): a `neuron_selector` that fits every layer."""
    return activations.flatten(1).sum(1)


def as_map(features: Tensor, layout: str, forward_func: object = None, size: tuple[int, ...] = (1, 1)) -> Tensor:
    """A layer's output as (batch, channels, height, width).

    Args:
        features: (batch, channels, height, width); (batch, height, width, channels); or (batch, tokens, channels),
            the tokens being the square image row by row, after those that stand for no place (a class token).
        layout: "channels_first", "channels_last", "tokens", or "auto": tokens where there are three axes; channels last
            where the model has a normalisation over channels of that number at the end, and the two axes before are
            nearer to the image in shape than the last two; else channels first.
        forward_func: the model, whose `num_prefix_tokens` says how many tokens stand for no place; without it, those in
            front of the largest square.
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
            f"expected the tokens of a square image after {prefix} others, got {features.shape[1]}: give"
            " reshape_transform=, which takes (batch, tokens, channels) to (batch, channels, height, width)"
        )
    raise InputError(
        f"a layer's output of shape {tuple(features.shape)} is no map as {layout!r}: choose another layer, or give"
        " reshape_transform= as channels_first, channels_last, tokens or a function"
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
