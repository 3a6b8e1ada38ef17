"""Data, networks and sizes: a pool of Tiny ImageNet to pre-train on, and three tasks to fine-tune to.

Members are drawn from the first images of Tiny ImageNet. Fine-tuned is on coarse classes of its other images (ten
groups of neighbouring WordNet numbers), on CIFAR-10, and on traffic signs (GTSRB), which look like neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit import Dither, FineTune, Population, Recipe, Shadows, train_shadows
from safexplain.audit.references.fine_tuning import Trainable

from ...shared.run import Progress, load

MEAN, DEVIATION = 0.45, 0.27
"""Public constants, the same for all images."""
GROUPS = 10
"""Coarse classes."""
NOISE = 0.05
"""Standard deviation of queries about models that were trained on images as they are, as a share of the pixels'."""
DELTA, CLIP = 1e-5, 5.0
"""Of the DP heads, as in the paper."""


ADAM = Recipe(lr=1e-3, epochs=20, batch_size=64, schedule="cosine")
SGD = Recipe(optimizer="sgd", lr=0.01, weight_decay=1e-5, epochs=20, batch_size=128, schedule="cosine")
"""As in the paper (C.2); its heads are trained with the same."""


def _pretraining() -> Recipe:
    return replace(ADAM, lr=2e-3, batch_size=32)


def _with_crops() -> tuple[Recipe, int]:
    return replace(_pretraining(), epochs=40, augmentation="crop-flip"), 13


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        other: recipe of a second pre-training, and its models: with crops and flips where the first has none.
        deep: recipe where more trains than the head.
        private: recipe of a DP head.
    """

    pool: int = 2400  # images of which members and others are drawn
    challenged: int = 2400  # first images of the pool that are asked about where a table's first column stands
    fewer: int = 1000  # the same for all other settings
    models: int = 33  # all but the target are its references
    deep_models: int = 17  # of them, where more trains than the head
    targets: int = 33  # models that take turns as the target
    queries: int = 4  # about every image, beside the plain one
    downstream: int = 4000  # images that are fine-tuned on, of which each model sees a random 85 %
    tested: int = 1000  # others, on which fine-tuned models are tested
    pretrain: Recipe = field(default_factory=_pretraining)  # recipe of the pre-training
    other: tuple[Recipe, int] = field(default_factory=_with_crops)
    head: Recipe = ADAM  # recipe of a head
    deep: Recipe = field(default_factory=lambda: replace(ADAM, epochs=2, batch_size=32))
    private: Recipe = field(
        default_factory=lambda: replace(SGD, lr=0.05, momentum=0.0, epochs=10, batch_size=512, schedule="constant")
    )
    learned: tuple[int, int] = (8, 1000)  # targets and images on which metaclassifiers are run
    explained: int = 500  # images of which explanations are asked, natively and hardened
    network: str = "small"  # name in `NETWORKS`


_SHORT = Recipe(epochs=1, batch_size=32)
QUICK = Size(
    pool=60, challenged=60, fewer=60, models=7, deep_models=5, targets=2, queries=2, downstream=60, tested=40,
    pretrain=_SHORT, other=(replace(_SHORT, augmentation="crop-flip"), 5), head=_SHORT, deep=_SHORT,
    private=replace(_SHORT, optimizer="sgd", lr=0.1, momentum=0.0), learned=(1, 20), explained=20,
)  # fmt: skip

_LONG = replace(SGD, epochs=100)
FULL = Size(
    pool=8000, challenged=2000, fewer=1000, models=129, deep_models=129, targets=129, queries=8,
    pretrain=replace(_LONG, augmentation="crop-flip"), other=(_LONG, 33), head=SGD, deep=SGD, learned=(129, 2000),
    explained=1000, network="resnet34",
)  # fmt: skip
"""As in the paper (C.2), of the data that is here: 8,000 images for its 50,000."""


def small(classes: int) -> Callable[[int], nn.Module]:
    """Four blocks of a convolution with BatchNorm, 2 x 2 averages, and a linear head on 512 features."""

    def block(i: int, o: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    def build(seed: int) -> nn.Module:
        body = block(3, 32, 2), block(32, 64, 2), block(64, 128, 2), block(128, 128, 1)
        return nn.Sequential(*body, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(512, classes))

    return build


def resnet34(classes: int) -> Callable[[int], nn.Module]:
    """torchvision's ResNet-34, as in the paper."""

    def build(seed: int) -> nn.Module:
        from torchvision.models import resnet34 as made

        network: nn.Module = made(num_classes=classes)
        return network

    return build


NETWORKS = {"small": small, "resnet34": resnet34}


@dataclass(frozen=True, eq=False)
class Images:
    """Everything that is trained on."""

    pool: Population  # that is pre-trained on
    tasks: Mapping[str, Population]  # to fine-tune to
    tests: Mapping[str, Population]  # of the same tasks, never trained on
    coarse: NDArray[np.int64]  # (n,) the coarse classes of the pool
    sources: list[dict[str, str]] = field(default_factory=list)  # of the data

    @classmethod
    def of(cls, folder: Path, size: Size) -> Images:
        """From three files.

        Raises:
            Unusable: a file or an array in it is missing.
        """
        tiny, *sources = load(folder, "tinyimagenet32_100", ("x_train", "y_train", "x_test", "y_test", "wnids"))
        rank = np.argsort(np.argsort(tiny["wnids"]))
        coarse = rank * GROUPS // len(rank)
        n, many = size.pool, size.downstream
        spare_x = np.concatenate([tiny["x_train"][n:], tiny["x_test"]])
        spare_y = coarse[np.concatenate([tiny["y_train"][n:], tiny["y_test"]])]
        last = len(spare_y) if size.tested + many > len(spare_y) else many + size.tested
        tasks = {"coarse": _images(spare_x[: last - size.tested][:many], spare_y[: last - size.tested][:many])}
        tests = {"coarse": _images(spare_x[last - size.tested : last], spare_y[last - size.tested : last])}
        for name in ("cifar10", "gtsrb"):
            arrays, source = load(folder, name, ("x_train", "y_train", "x_test", "y_test"))
            sources.append(source)
            tasks[name] = _images(arrays["x_train"][:many], arrays["y_train"][:many])
            tests[name] = _images(arrays["x_test"][: size.tested], arrays["y_test"][: size.tested])
        pool = _images(tiny["x_train"][:n], tiny["y_train"][:n])
        return cls(pool, tasks, tests, coarse[tiny["y_train"][:n]].astype(np.int64), sources)


def _images(x: NDArray[Any], y: NDArray[Any]) -> Population:
    return Population.of((x.transpose(0, 3, 1, 2) / 255.0 - MEAN) / DEVIATION, y)


def pretrained(
    images: Images, size: Size, cache: Path, device: str, progress: Progress, other: bool = False
) -> Shadows:
    """Each on a coin-flip half of the pool."""
    recipe, models = size.other if other else (size.pretrain, size.models)
    build = NETWORKS[size.network](images.pool.classes)
    return train_shadows(
        images.pool, recipe, build=build, models=models, device=device, cache=str(cache), progress=progress
    )


def untrained(shadows: Shadows, images: Images, size: Size, device: str) -> Shadows:
    """New networks that have seen nothing, with the membership of those that have: what is found is no membership."""
    build, models = NETWORKS[size.network](images.pool.classes), []
    for seed in range(len(shadows.models)):
        with torch.random.fork_rng([]):
            torch.manual_seed(0x417 + seed)
            models.append(build(seed).to(device).eval())
    return Shadows(tuple(models), shadows.membership)


@dataclass(frozen=True, eq=False)
class WithMembers(FineTune):
    """Fine-tuning also on those examples of the pool that were in the pre-training (table 7 of arXiv 2306.01181)."""

    pool: Population | None = None  # examples of the pool, with labels of the downstream task
    rows: NDArray[np.int64] | None = None  # (k,) where they are in it

    def shares(self, seed: int, number: int, member: NDArray[np.bool_]) -> list[tuple[Population, NDArray[np.int64]]]:
        """As `FineTune`, and the members."""
        assert self.pool is not None
        assert self.rows is not None
        return [*super().shares(seed, number, member), (self.pool, np.flatnonzero(member[self.rows]))]


@dataclass(frozen=True)
class Setting:
    """What is fine-tuned."""

    task: str  # of `Images.tasks`
    trainable: Trainable = "head"  # as in `FineTune`
    epsilon: float | None = None  # of a DP head; None: without
    overlap: bool = False  # whether members of the pool are also fine-tuned on, and asked about
    whole: bool = False  # whether all challenged images are asked about
    few: bool = False  # whether the models are those on which more than the head trains in other settings
    backbone: str = "pre-trained"  # "pre-trained", "other pre-training" or "untrained"

    @property
    def name(self) -> str:
        """In the result."""
        what = self.trainable if isinstance(self.trainable, str) else f"last {self.trainable}"
        parts = [self.task, what]
        parts += [f"epsilon {self.epsilon:g}"] if self.epsilon else []
        parts += ["overlap"] if self.overlap else []
        parts += ["fewer models"] if self.few and self.trainable == "head" and not self.epsilon else []
        return ", ".join([*parts, *([] if self.backbone == "pre-trained" else [self.backbone])])

    def models(self, size: Size) -> int:
        """How many are fine-tuned."""
        if self.backbone == "other pre-training":
            return size.other[1]
        return min(size.deep_models, size.models) if self.few or self.trainable != "head" else size.models

    def how(self, images: Images, size: Size) -> FineTune:
        """The fine-tuning."""
        recipe = size.head if self.trainable == "head" else size.deep
        if self.epsilon is not None:
            dp = {"epsilon": self.epsilon, "delta": DELTA, "adjacency": "add_remove", "clipping": "flat", "clip": CLIP}
            recipe = replace(size.private, dp=dp)
        if not self.overlap:
            return FineTune(images.tasks[self.task], recipe, trainable=self.trainable)
        rows = self.rows(size)
        pool = Population(images.pool.x[rows], torch.from_numpy(images.coarse[rows]))
        return WithMembers(images.tasks[self.task], recipe, trainable=self.trainable, pool=pool, rows=rows)

    def dither(self, size: Size) -> Dither:
        """How queries differ: as what was trained on, or hardly."""
        recipe = size.other[0] if self.backbone == "other pre-training" else size.pretrain
        return Dither("crop-flip") if recipe.augmentation == "crop-flip" else Dither("additive", NOISE)

    def rows(self, size: Size) -> NDArray[np.int64]:
        """Images of the pool that are asked about."""
        return np.arange(size.challenged if self.whole else min(size.fewer, size.challenged))


SETTINGS = (
    Setting("coarse", whole=True),
    Setting("cifar10", whole=True),
    Setting("gtsrb", few=True),
    Setting("coarse", few=True),
    Setting("cifar10", few=True),
    Setting("cifar10", 1),
    Setting("cifar10", 2),
    Setting("cifar10", "all"),
    Setting("gtsrb", "all"),
    *(Setting(task, epsilon=epsilon, few=True) for task in ("coarse", "cifar10") for epsilon in (1.0, 0.5)),
    *(Setting("coarse", epsilon=epsilon, overlap=True, few=True) for epsilon in (None, 1.0, 0.5)),
    Setting("cifar10", backbone="other pre-training"),
    Setting("cifar10", backbone="untrained"),
)
"""In the order of the page: Tables 1, 2, 3, 6 and 7, and the null control."""

CIFAR10_HEAD = Setting("cifar10", whole=True)
"""What the goals, and explanations, are about."""


def accuracy(shadows: Shadows, test: Population) -> float:
    """Mean share of test examples on which the models are right."""
    right = [float((outputs(model, test.x).argmax(1).cpu() == test.y).double().mean()) for model in shadows.models]
    return float(np.mean(right))


def outputs(model: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    """(n, classes) on the model's device."""
    device = next(model.parameters()).device
    with torch.no_grad():
        return torch.cat([model(part.to(device)) for part in torch.split(x, batch)])
