"""The queries of patient attackers: many per example, each a little different (dithered), the same for all models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._validate import check_whole, keep_number
from safexplain.audit.population import Population
from safexplain.audit.references.recipe import padding, shift_and_flip
from safexplain.errors import ConfigurationError, InputError

Kind = Literal["multiplicative", "additive", "crop-flip"]
Labels = Literal["own", "foreign"]  # kind of the pool's labels: classes of the models' task, or of another

Answer = Tensor | Sequence[Tensor]
Explain = Callable[[nn.Module, Tensor, Tensor], Answer]
"""explain(model, x, target) -> attributions (batch, ...), native or hardened, from any library; or several, one for
each explainer that is released."""

BLOCK = 64  # number of examples that share a random generator


@dataclass(frozen=True)
class Dither:
    """How one query about an example differs from the next.

    Args:
        kind: "multiplicative": x exp(amplitude z); "additive": x + amplitude * scale * z, with the standard deviation
            of the population as scale: over all pixels of images (n, c, h, w), of each feature otherwise. z is
            standard normal. "crop-flip": a random crop of an image, as in `Recipe(augmentation="crop-flip")`.
        amplitude: 0 repeats the plain query; not used by "crop-flip".
        seed: of the draws, with the example's index and the number of the query, so that they are the same for every
            model.

    Raises:
        ConfigurationError, ConfigurationTypeError: an unknown kind, or a number out of range.
    """

    kind: Kind = "multiplicative"
    amplitude: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"dither: kind: expected one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        keep_number(self, "amplitude", minimum=0.0)
        check_whole("dither: seed", self.seed, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Queries:
    """The dithered queries about the (n, ...) examples of a population."""

    x: Tensor
    dither: Dither
    scale: Tensor  # of additive dither, a number or one for each feature

    @classmethod
    def of(cls, population: Population, dither: Dither) -> Queries:
        """About this population; InputError if crops are asked of other data than images, or of too small ones."""
        x = population.x.cpu().float()
        if dither.kind == "crop-flip" and not can_crop(population):
            raise InputError(
                "crop-flip: expected images (examples, channels, height, width) that can be padded by max(height // 8,"
                f" 1) < height, width, got {tuple(x.shape)}"
            )
        image = x.dim() == 4 and min(x.shape[2:]) > 1
        return cls(x, dither, x.std(correction=0) if image else x.std(0, correction=0))

    def __call__(self, index: Sequence[int] | NDArray[np.int64] | range, number: int) -> Tensor:
        """The query of this number, counted from 0, about these examples: (len(index), ...) float32 on the CPU."""
        at = np.asarray(index, dtype=np.int64)
        x = self.x[torch.from_numpy(at)]
        if self.dither.kind == "crop-flip":
            return self._cropped(x, at, number)
        drawn = np.empty(x.shape, np.float32)
        for here, place, rng in self._blocks(at, number):
            drawn[here] = rng.standard_normal((int(place.max()) + 1, *x.shape[1:]), dtype=np.float32)[place]
        z = torch.from_numpy(drawn)
        if self.dither.kind == "multiplicative":
            return x * z.mul_(self.dither.amplitude).exp_()
        return x + z.mul_(self.dither.amplitude) * self.scale

    def _cropped(self, x: Tensor, at: NDArray[np.int64], number: int) -> Tensor:
        pad = padding(x)
        drawn = np.empty((3, len(at)), np.int64)
        for here, place, rng in self._blocks(at, number):
            drawn[:, here] = rng.integers(0, [[2 * pad + 1], [2 * pad + 1], [2]], (3, BLOCK))[:, place]
        rows, columns, mirrored = torch.from_numpy(drawn)
        return shift_and_flip(x, rows, columns, mirrored.bool())

    def _blocks(
        self, at: NDArray[np.int64], number: int
    ) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64], np.random.Generator]]:
        """For each block of examples: which of `at` are in it, their places there, and its generator."""
        blocks = at // BLOCK
        for block in np.unique(blocks):
            mask = blocks == block
            yield mask, at[mask] - block * BLOCK, np.random.default_rng([self.dither.seed, 0xD17E, number, int(block)])


def with_channels_last(model: nn.Module, x: Tensor) -> nn.Module:
    """The network with weights in channels-last format, which halves the time of convolutions and pooling on a CPU. Not
    changed if it is no such network, or if outputs or gradients for (n, ...) inputs change by more than rounding."""
    if x.dim() != 4 or not any(p.dim() == 4 and p.device.type == "cpu" for p in model.parameters()):
        return model

    def answers() -> tuple[Tensor, Tensor]:
        some = x[:2].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            out = model(some)
            return out.detach(), torch.autograd.grad(out.sum(), some)[0]

    try:
        before = answers()
        model.to(memory_format=torch.channels_last)
        near = [torch.allclose(a, b, 1e-3, 1e-4 * float(a.abs().max())) for a, b in zip(before, answers(), strict=True)]
    except Exception:  # a view that this layout does not allow; other errors are raised when the model is queried
        near = [False]
    return model if all(near) else model.to(memory_format=torch.contiguous_format)


def can_crop(population: Population) -> bool:
    """Whether these are images that can be reflect-padded for crops."""
    return population.x.dim() == 4 and padding(population.x) < min(population.x.shape[2:])


def levels_of(patience: Sequence[int]) -> tuple[int, ...]:
    """The levels above one query, in increasing order; ConfigurationError if one is not an integer of at least 1."""
    return tuple(sorted({check_whole("patience", level, 1) for level in patience} - {1}))


def batches(n: int, size: int) -> Iterator[range]:
    """0 .. n - 1 in parts of this size."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
