"""Adaptive queries: an attacker who asks more than once, the same or nearly the same, and averages the answers.

Fresh noise falls away as 1/sqrt(q) when one query is asked q times. Noise that is a function of the query stays, but a
query that differs by a pixel or a rounding error is another one: near-duplicates take that noise away as well, wherever
the map itself hardly changes between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from safexplain.audit.population import Population
from safexplain.errors import ConfigurationError, ConfigurationTypeError

Back = Callable[[Tensor], Tensor]
"""Maps about near-duplicates -> maps about the examples themselves."""

SAME = 1e-5
"""Answers that differ by less than this share of a map's largest entry are the same: devices round differently."""


@dataclass(frozen=True)
class Queries:
    """What is asked about each example beside the plain query.

    Args:
        repeats: the same query, this many times more.
        near: queries of near-duplicates.
        shift: images are moved by at most this many pixels each way.
        noise: uniform noise of +- this share of the range of the population: of all pixels for images (c, h, w), of
            each feature for everything else.
        seed: the near-duplicates of an example are a function of the seed and the example's index.
        keep_maps: also keep the map averaged over the near-duplicates.

    Raises:
        ConfigurationError: a negative number, or one that is not finite.
        ConfigurationTypeError: something that is no number, or no whole one.
    """

    repeats: int = 2
    near: int = 4
    shift: int = 1
    noise: float = 4 / 255
    seed: int = 0
    keep_maps: bool = False

    def __post_init__(self) -> None:
        for name in ("repeats", "near", "shift", "seed", "noise"):
            value, kind = getattr(self, name), int | float if name == "noise" else int
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ConfigurationTypeError(f"queries: {name} is a{' whole' * (kind is int)} number, got {value!r}")
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"queries: {name} is 0 or more and finite, got {value!r}")

    @classmethod
    def none(cls) -> Queries:
        """Ask once."""
        return cls(repeats=0, near=0)


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """Near-duplicates of the examples of a population: the same for every model, whatever the batches.

    Args:
        queries: how many, how far.
        noise: amplitude of the noise, in the units of the inputs; a number or one for each feature.
        image: (h, w) where the examples are images, else None.
    """

    queries: Queries
    noise: Tensor
    image: tuple[int, int] | None

    @classmethod
    def of(cls, population: Population, queries: Queries) -> NearDuplicates:
        """For this population."""
        x = population.x
        if x.dim() == 4 and min(x.shape[2:]) > 1:
            return cls(queries, queries.noise * (x.max() - x.min()).cpu(), (x.shape[2], x.shape[3]))
        return cls(queries, queries.noise * (x.amax(0) - x.amin(0)).cpu(), None)

    def __call__(self, x: Tensor, index: Iterable[int]) -> Iterator[tuple[Tensor, Back]]:
        """`queries.near` times: near-duplicates of the examples, and what brings maps about them back.

        Args:
            x: (batch, ...) examples.
            index: of each of them in the population.
        """
        index = list(index)
        for copy in range(self.queries.near):
            draws = [np.random.default_rng([self.queries.seed, 0x2EA2, i, copy]) for i in index]
            shifts = torch.zeros(len(index), 2, dtype=torch.int64)
            if self.image:
                most = min(self.queries.shift, *(side - 1 for side in self.image))
                shifts = torch.from_numpy(np.stack([d.integers(-most, most + 1, size=2) for d in draws]))
            unit = np.stack([d.random(x.shape[1:], dtype=np.float32) for d in draws])
            noise = (2 * torch.from_numpy(unit) - 1) * self.noise
            yield shifted(x, shifts) + noise.to(x.device, x.dtype), self._back(shifts)

    def _back(self, shifts: Tensor) -> Back:
        """Maps of another size than the image, and of tables, stay as they are."""
        return lambda maps: shifted(maps, -shifts) if self.image and maps.shape[-2:] == self.image else maps


def shifted(images: Tensor, by: Tensor) -> Tensor:
    """Images moved so that pixel (i, j) shows what was at (i + by_0, j + by_1), reflected at the border.

    Args:
        images: (batch, ..., h, w).
        by: (batch, 2) int64, smaller than h and w.
    """
    for axis in (0, 1):
        moved = by[:, axis].to(images.device)
        if images.dim() < 3 or not bool(moved.any()):
            continue
        size = images.shape[axis - 2]
        source = (torch.arange(size, device=images.device) + moved[:, None]).abs()
        source = torch.where(source < size, source, 2 * (size - 1) - source)
        view = [len(images), *[1] * (images.dim() - 1)]
        view[axis - 2] = size
        images = images.gather(axis - 2, source.reshape(view).expand(images.shape))
    return images


def averaged(plain: Tensor, answers: Iterable[Tensor]) -> tuple[Tensor, bool]:
    """The mean of all answers, one of them held at a time, and whether any differs from the plain one.

    Args:
        plain: (batch, ...) maps.
        answers: maps of the same shape.

    Returns:
        (batch, ...) float64, and False where all answers are the same up to rounding (`SAME`).
    """
    rows = plain.reshape(len(plain), -1)
    room = SAME * rows.abs().amax(1, keepdim=True)
    total, number, differs = plain.to(torch.float64, copy=True), 1, False
    for answer in answers:
        differs = differs or bool(((answer.reshape(rows.shape) - rows).abs() > room).any())
        total += answer
        number += 1
        del answer  # before the next is made
    return total / number, differs
