"""Pretrained networks of which everything trains, and how `networks.py` fine-tunes them.

Editing this file makes stored weights be trained again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._progress import Progress
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping
from safexplain.dp.sgd.finetune import DPFineTuned, DPFineTuner

from ...shared.run import Unusable
from ..third_party.suite import third_party
from .heads import CLASSES, DELTA, Budget, Size

SIDES = {
    "vit_tiny_patch16_224": 224,
    "vit_small_patch16_224": 224,
    "mobilenet_v2_1.0_224_imagenet": 64,
    "mobilenet_v1_0.25_128_imagenet": 64,
}
"""Networks, transformers of timm and files of the weights folder -> pixels that images are enlarged to. All expect
inputs from -1 to 1."""

UNCLIPPED = FlatClipping(1e30)


class Resized(nn.Module):
    """Enlarges images for a network whose classifier starts at zero."""

    def __init__(self, net: nn.Module, head: nn.Linear, side: int) -> None:
        super().__init__()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.net, self.side = net, side

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) normalised pixels -> (n, classes)."""
        logits: Tensor = self.net(F.interpolate(x, size=(self.side, self.side), mode="bilinear"))
        return logits


class SamePadding(nn.Module):
    """TensorFlow's padding "SAME": the output has 1 / stride of the pixels, rounded up."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width), padded."""
        high, wide = (max((math.ceil(n / self.stride) - 1) * self.stride + self.kernel - n, 0) for n in x.shape[2:])
        return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


class MobileNet(nn.Module):
    """A MobileNet of the weights folder, in layers of torch's own types: Opacus' rules go by type.

    Its BatchNorm is folded into the convolutions, so that nothing has to be replaced for DP training.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_layer(conv) for conv in net.convs[:-1])
        self.back = [row[-1] for row in net.spec[:-1]]
        self.head = nn.Linear(net.convs[-1].in_channels, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, d)."""
        outputs = [x]
        for layer, back in zip(self.layers, self.back, strict=True):
            y = layer(outputs[-1])
            outputs.append(y + outputs[-back] if back else y)
        return outputs[-1].mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def _layer(conv: Any) -> nn.Sequential:
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    plain = nn.Conv2d(conv.in_channels, conv.out_channels, kernel, stride, groups=conv.groups)
    plain.load_state_dict(conv.state_dict())
    return nn.Sequential(SamePadding(kernel, stride), plain, nn.ReLU6() if conv.act else nn.Identity())


def transformer(name: str, side: int, *, pretrained: bool = True) -> nn.Module:
    """A vision transformer of timm for images of this side, with a new classifier.

    Raises:
        Unusable: timm or the weights are not to be had.
    """
    try:
        import timm

        return timm.create_model(name, pretrained=pretrained, num_classes=CLASSES, img_size=side)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        files = " or ".join(n for n in SIDES if n.startswith("mobilenet"))
        raise Unusable(
            f"timm gives no pretrained {name} ({str(error).partition(chr(10))[0]}); use --net {files}"
        ) from None


def network(size: Size, folder: Path) -> tuple[nn.Module, dict[str, str]]:
    """The pretrained network that all models start from, and the digest of its weights.

    Raises:
        Unusable: the weights are not to be had.
    """
    if size.net.startswith("vit_"):
        net = transformer(size.net, size.side)
        return Resized(net, net.get_classifier(), size.side), {size.net: model_digest(net).hex()}
    nets, files = third_party(folder, (size.net,))
    plain = MobileNet(nets[size.net])
    return Resized(plain, plain.head, size.side), files


def fine_tuned(
    start: nn.Module, size: Size, x: Tensor, y: Tensor, budget: Budget, *, seed: int, device: torch.device,
    checkpoint: Path | None, progress: Progress,
) -> DPFineTuned:  # fmt: skip
    """A network trained on its members by the recipe of paper A; without privacy neither clipped nor noisy.

    The sample rate is exact: the number of members counts as known. The seed makes results repeatable; a model that is
    given away must not have one.

    Args:
        start: what it starts from, left as it is.
        size: the recipe.
        x: (n, ...) inputs of the members.
        y: (n,) their labels.
        budget: gives the noise.
        seed: of batches and noise.
        device: where to train.
        checkpoint: file from which an interrupted training goes on.
        progress: told how far it is.
    """
    return DPFineTuner(
        start, (x, y), epsilon=None, delta=DELTA, adjacency="add_remove", noise_multiplier=budget.sigma,
        steps=size.steps, batch_size=size.sample_rate * len(y),
        clipping=AutoSClipping(1.0, gamma=0.01) if budget.sigma else UNCLIPPED, optimizer="adam", lr=size.lr,
        piece=64 if device.type == "cpu" else 256, device=device, seed=seed, checkpoint=checkpoint, progress=progress,
    ).fit()  # fmt: skip
