"""What is trained on what: the size of a run, the pool of examples with its coin flips, and the budgets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._privacy_loss import epsilons, noise_multiplier

from ...shared.run import load

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 8.0, math.inf)


@dataclass(frozen=True)
class Size:
    """How large a run is. The recipe is that of paper A for CIFAR-10, on fewer examples."""

    models: int = 17  # that take turns as the target
    pool: int = 4000  # most examples; a coin decides for each model and example whether it is a member
    explained: int = 800  # the first examples, on which the attacks are scored
    mapped: int = 400  # the first of these, of which IG is computed and whole maps are kept
    net: str = "mobilenet_v1_0.25_128_imagenet"  # the pretrained network
    side: int = 64  # pixels that images are enlarged to
    epochs: float = 30  # over a model's members
    sample_rate: float = 0.1  # q, of a member in a step
    lr: float = 5e-3  # of Adam; 5e-3 in the paper's Table 4 (its code has 5e-4)
    points: int = 4  # of IG, on the straight line from zero
    resamples: int = 100  # of examples, for intervals of means over targets

    @property
    def steps(self) -> int:
        """Of the optimizer."""
        return round(self.epochs / self.sample_rate)


# ------------------------------------------------------------------------------------------------------------- the data

Images = tuple[NDArray[Any], NDArray[Any], dict[str, str]]


def _cifar10(folder: Path) -> Images:
    arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
    return arrays["x_train"], arrays["y_train"], source


def _tinyimagenet(folder: Path) -> Images:
    arrays, source = load(folder, "tinyimagenet32_100", ("x_train", "y_train"))
    return arrays["x_train"], arrays["y_train"], source


def _gtsrb(folder: Path) -> Images:
    """One frame of each track, the one nearest to the middle: all frames of a track are nearly the same picture."""
    arrays, source = load(folder, "gtsrb", ("x_train", "y_train", "track_train", "frame_train"))
    off_middle = np.abs(arrays["frame_train"].astype(int) - 15)
    order = np.lexsort((off_middle, arrays["track_train"]))
    rows = order[np.unique(arrays["track_train"][order], return_index=True)[1]]
    rows = np.random.default_rng(0).permutation(rows)
    return arrays["x_train"][rows], arrays["y_train"][rows], source


SOURCES: dict[str, tuple[int, Callable[[Path], Images]]] = {
    "cifar10": (10, _cifar10),
    "gtsrb": (43, _gtsrb),
    "tinyimagenet": (100, _tinyimagenet),
}
"""Name -> classes, and what reads the images: paper A's CIFAR-10; one of its five data sets, photographs of street
signs for those of house numbers; and 100 classes for CIFAR-100."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Images, labels and who is a member of which model."""

    x: Tensor
    y: Tensor
    membership: NDArray[np.bool_]
    source: dict[str, str]
    classes: int = 10

    @classmethod
    def of(cls, size: Size, folder: Path, data: str = "cifar10") -> Pool:
        """The first rows of a data set, from -1 to 1 as the networks expect them, and coin flips."""
        classes, read = SOURCES[data]
        images, labels, source = read(folder)
        x = (images[: size.pool].transpose(0, 3, 1, 2).astype(np.float32) - 128) / 128
        y = torch.from_numpy(labels[: size.pool].astype(np.int64))
        coins = np.random.default_rng(0xD9).random((size.models, len(x))) < 0.5
        return cls(torch.from_numpy(x), y, coins, source, classes)

    def digest(self) -> str:
        """Of images and labels."""
        return hashlib.sha256(self.x.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()


# ---------------------------------------------------------------------------------------------------------- the budgets


@dataclass(frozen=True)
class Budget:
    """What a group of models spends: the noise, and what it guarantees.

    Args:
        add_remove, substitute: of that noise.
    """

    nominal: float  # add/remove, as paper A states it; infinite: no noise and no clipping
    sigma: float  # noise multiplier
    add_remove: float
    substitute: float

    @classmethod
    def of(cls, nominal: float, size: Size) -> Budget:
        """Calibrated for added or removed records."""
        if math.isinf(nominal):
            return cls(nominal, 0.0, math.inf, math.inf)
        sigma = noise_multiplier(nominal, size.sample_rate, size.steps, DELTA, adjacency="add_remove")
        true = epsilons(sigma, size.sample_rate, size.steps, DELTA)
        return cls(nominal, sigma, true.add_remove, true.substitute)

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.nominal:g}"

    def to_dict(self) -> dict[str, Any]:
        """Infinity as null."""
        return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(self).items()}
