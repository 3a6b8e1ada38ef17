"""Pretrained networks, from files, from timm or trained here on public images, and how `networks.py` fine-tunes them.

Editing this file makes stored weights be trained again.
"""

from __future__ import annotations

import hashlib
import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._progress import Progress
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping
from safexplain.dp.sgd.finetune import DPFineTuned, DPFineTuner

from ...shared.run import Unusable, code_of
from ...shared.timm_networks import Backbone, backbone
from ..third_party.suite import third_party
from .heads import save
from .plan import DELTA, SOURCES, Budget, Pool, Size

SMALL_VIT = "small_vit"
SIDES = {
    "vit_tiny_patch16_224": 224,
    "vit_small_patch16_224": 224,
    "mobilenet_v2_1.0_224_imagenet": 64,
    "mobilenet_v1_0.25_128_imagenet": 64,
    SMALL_VIT: 32,
}
"""Networks -> pixels that images are enlarged to: transformers of timm, files of the weights folder, and one that is
trained here first."""
PUBLIC = {"cifar10": "tinyimagenet", "gtsrb": "cifar10", "tinyimagenet": "cifar10"}
"""Data of the private training -> images that the small transformer is trained on before."""
PUBLIC_EPOCHS, PUBLIC_LR = 8, 2e-3

UNCLIPPED = FlatClipping(1e30)


class Resized(nn.Module):
    """Enlarges images for a network that expects pixels from -1 to 1; its classifier starts at zero."""

    def __init__(self, net: nn.Module, head: nn.Linear, side: int) -> None:
        super().__init__()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.net, self.side = net, side

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) from -1 to 1 -> (n, classes)."""
        logits: Tensor = self.net(F.interpolate(x, size=(self.side, self.side), mode="bilinear"))
        return logits


class FromZeroToOne(nn.Module):
    """A network of timm whose weights were given, which scales and enlarges pixels itself; its head starts at zero."""

    def __init__(self, net: Backbone) -> None:
        super().__init__()
        nn.init.zeros_(net.head.weight)
        nn.init.zeros_(net.head.bias)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, height, width) from -1 to 1 -> (n, classes)."""
        logits: Tensor = self.net((x + 1) / 2)
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

    def __init__(self, net: Any, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_layer(conv) for conv in net.convs[:-1])
        self.back = [row[-1] for row in net.spec[:-1]]
        self.head = nn.Linear(net.convs[-1].in_channels, classes)

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


# ---------------------------------------------------------------------------------------------------- what is to be had


def transformer(name: str, side: int, classes: int = 10, *, pretrained: bool = True) -> nn.Module:
    """A vision transformer of timm for images of this side, with a new classifier; timm downloads its weights.

    Raises:
        Unusable: timm or the weights are not to be had.
    """
    try:
        import timm

        return timm.create_model(name, pretrained=pretrained, num_classes=classes, img_size=side)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        files = " or ".join(n for n in SIDES if n.startswith("mobilenet"))
        told = str(error).partition("\n")[0]
        raise Unusable(
            f"timm gives no pretrained {name} ({told}); give --weights FILE --arch NAME, or use --net {files}"
        ) from None


def small_vit(classes: int) -> nn.Module:
    """Four blocks of 64 numbers on 16 patches of 8 x 8 pixels: what a CPU fine-tunes in seconds.

    Raises:
        Unusable: timm is missing.
    """
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ImportError:
        raise Unusable("the small transformer is made by timm: pip install 'safexplain[vision]'") from None
    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=4, num_classes=classes, global_pool="avg"
    )


def trained_on_public(
    rows: int, classes: int, options: Namespace, data: str, progress: Progress
) -> tuple[nn.Module, dict[str, Any]]:
    """The small transformer after a training without privacy on public images, kept in the cache folder.

    Args:
        rows: how many images.
        classes: of its new classifier.
        options: name the folders of the data and of the cache.
        data: what it will be fine-tuned on, which is another data set.
        progress: told each epoch.
    """
    public = PUBLIC[data]
    pool = Pool.of(Size(models=1, pool=rows), options.data, public)
    what = [pool.digest(), PUBLIC_EPOCHS, PUBLIC_LR, code_of(__package__, "safexplain.errors")]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
    path = options.cache / "dp_networks" / f"{SMALL_VIT}-{name}.npz"
    torch.manual_seed(0)
    net = small_vit(SOURCES[public][0])
    if not path.is_file():
        _fit(net, pool, progress)
        save(path, {name: tensor.numpy() for name, tensor in net.state_dict().items()})
    with np.load(path, allow_pickle=False) as file:
        net.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})
    net.eval().reset_classifier(classes)  # type: ignore[operator]
    return net, {"trained on": {**pool.source, "rows": len(pool.x), "epochs": PUBLIC_EPOCHS}}


def _fit(net: nn.Module, pool: Pool, progress: Progress) -> None:
    """Adam with a linear decay, images mirrored at random."""
    draw, batch = torch.Generator().manual_seed(0), 100
    steps = PUBLIC_EPOCHS * math.ceil(len(pool.x) / batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=PUBLIC_LR, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * (1 - step / steps)
    )
    for epoch in range(PUBLIC_EPOCHS):
        for rows in torch.randperm(len(pool.x), generator=draw).split(batch):
            x = pool.x[rows]
            mirrored = torch.rand(len(x), 1, 1, 1, generator=draw) < 0.5
            loss = F.cross_entropy(net(torch.where(mirrored, x.flip(3), x)), pool.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress("training on public images", epoch + 1, PUBLIC_EPOCHS)


def network(
    size: Size, classes: int, options: Namespace, data: str, progress: Progress
) -> tuple[nn.Module, dict[str, Any]]:
    """The pretrained network that all models start from, and the digest of its weights.

    Args:
        size: names it.
        classes: of its new classifier.
        options: `data`, `cache` and `weights`.
        data: what it will be fine-tuned on.
        progress: told how far a training on public images is.

    Raises:
        Unusable: the weights are not to be had.
    """
    if options.weights:
        given, named = backbone(size.net, Path(options.weights), classes)
        return FromZeroToOne(given), dict(named)
    if size.net == SMALL_VIT:
        net, about = trained_on_public(size.public, classes, options, data, progress)
        return Resized(net, net.get_classifier(), size.side), about | {size.net: model_digest(net).hex()}  # type: ignore[operator]
    if size.net.startswith("mobilenet"):
        nets, files = third_party(options.data, (size.net,))
        plain = MobileNet(nets[size.net], classes)
        return Resized(plain, plain.head, size.side), dict(files)
    net = transformer(size.net, size.side, classes)
    return Resized(net, net.get_classifier(), size.side), {size.net: model_digest(net).hex()}  # type: ignore[operator]


def fine_tuned(
    start: nn.Module, size: Size, x: Tensor, y: Tensor, budget: Budget, *, seed: int, device: torch.device,
    checkpoint: Path | None, progress: Progress, trainable: str = "all",
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
        trainable: what trains, as `DPFineTuner` takes it.
    """
    return DPFineTuner(
        start, (x, y), epsilon=None, delta=DELTA, adjacency="add_remove", noise_multiplier=budget.sigma,
        steps=size.steps, batch_size=size.sample_rate * len(y),
        clipping=AutoSClipping(1.0, gamma=0.01) if budget.sigma else UNCLIPPED, optimizer="adam", lr=size.lr,
        piece=64 if device.type == "cpu" else 256, device=device, seed=seed, checkpoint=checkpoint,
        progress=progress, trainable=trainable,
    ).fit()  # fmt: skip
