"""CIFAR-10 as the features of a pretrained network, which Figure 3 fine-tunes heads on.

The paper's network is a ViT-B/16 of ImageNet-21k; this is a MobileNet v2 of ImageNet, which lies in the data folder.
Features are computed once and kept.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.dp.heads import features

from ...shared.run import Progress, load, public_networks
from ..dp_attacks.heads import Classifier

NETS = {"full": "mobilenet_v2_1.0_224_imagenet", "quick": "mobilenet_v1_0.25_128_imagenet"}
CLASSES = 10
PAIR = (3, 5)
"""Cats and dogs."""

Records = tuple[Tensor, Tensor]
"""(n, d) features and (n,) labels."""


@dataclass(frozen=True)
class Images:
    """Which images, and through what."""

    net: str = NETS["full"]  # weight file of the backbone
    side: int = 96  # pixels that images are enlarged to for it
    shots: int = 50  # images of each of ten classes; five times as many of each of two
    auxiliary: int = 3000  # images that are not trained on


FULL = Images()
QUICK = Images(NETS["quick"], side=32, shots=4, auxiliary=60)


@dataclass(frozen=True)
class Sets:
    """Features, standardised by what is not trained on."""

    ten: Records  # records of ten classes
    ten_outside: Records  # others
    two: Records  # records of two classes, 0 and 1
    two_outside: Records  # others
    about: dict[str, Any]  # what is recorded: data, weights, and how large images were


def chosen(y: NDArray[np.integer[Any]], classes: Sequence[int], shots: int) -> NDArray[np.int64]:
    """The first `shots` rows of each class, in order."""
    return np.sort(np.concatenate([np.flatnonzero(y == c)[:shots] for c in classes]))


def standardised(seen: Tensor, public: Tensor) -> Tensor:
    """By mean and standard deviation of the public rows, one constant for all: gradients keep their directions."""
    return (seen - public.mean(0)) / public.std()


def sets(options: Namespace, size: Images) -> Sets:
    """The records, through the network.

    Raises:
        Unusable: data or weights are missing.
    """
    arrays, source = load(options.data, "cifar10", ("x_train", "y_train"))
    y = arrays["y_train"].astype(np.int64)
    ten, two = chosen(y, range(CLASSES), size.shots), chosen(y, PAIR, 5 * size.shots)
    unused = np.setdiff1d(np.arange(len(y)), np.union1d(ten, two))[-size.auxiliary :]
    rows = np.concatenate([ten, two, unused])
    pixels = torch.from_numpy(arrays["x_train"][rows].transpose(0, 3, 1, 2).astype(np.float32))
    model, pixels, net = through(options, size, pixels)
    seen = features(
        model.to(options.device).eval(), "head", pixels, batch_size=50, cache=options.cache / "canary_features",
        progress=Progress(),
    )  # fmt: skip
    outside = slice(len(ten) + len(two), None)
    seen, labels = standardised(seen, seen[outside]), torch.from_numpy(y[rows])
    of_pair = torch.isin(labels, torch.tensor(PAIR))
    of_pair[: len(ten) + len(two)] = False
    first, second = slice(len(ten)), slice(len(ten), len(ten) + len(two))
    return Sets(
        (seen[first], labels[first]),
        (seen[outside], labels[outside]),
        (seen[second], (labels[second] == PAIR[1]).long()),
        (seen[of_pair], (labels[of_pair] == PAIR[1]).long()),
        {"data": source, **net, "auxiliary": len(unused)},
    )


def through(options: Namespace, size: Images, pixels: Tensor) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """The network, the images as it takes them, and what is recorded about it; pixels (n, 3, 32, 32) from 0 to 255."""
    nets, files = public_networks(options.data, (size.net,))
    net: Any = nets[size.net]
    model = Classifier(net, size.side, net.convs[-1].in_channels)
    return model, (pixels - 128) / 128, {"weights": files, "side": size.side}
