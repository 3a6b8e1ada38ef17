"""What chance decides in some runs (batches, coins, noise), and what a coin puts at the canary's place in each.

The canary of a run is one of two records, or gradients along single parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from safexplain.dp.heads.recipe import Batch, own_batches
from safexplain.dp.sgd.clipping import Clipping
from safexplain.dp.sgd.sampling import gaussian
from safexplain.errors import ConfigurationError

__all__ = ["Directions", "Inserted", "KeyedDraws", "Substitutes", "stream"]

_BATCHES, _COINS, _NOISE, START = range(4)


class KeyedDraws:
    """Poisson sampling and Gaussian noise, functions of a seed and, but for the batches, of the block of runs."""

    def __init__(self, seed: int, block: int, sample_rate: float, steps: int, device: torch.device) -> None:
        self.sample_rate, self.steps = sample_rate, steps
        self._batches = stream(device, seed, _BATCHES, 0)
        self._coins = stream(device, seed, _COINS, block)
        self._noise = stream(device, seed, _NOISE, block)

    def batches(self, records: int) -> Iterator[Batch]:
        """The other records' part of each step's batch, the same for all runs, as `own_batches` gives it for one."""
        if not records:
            return ((None, None) for _ in range(self.steps))
        members = torch.ones(1, records, dtype=torch.bool, device=self._batches.device)
        return own_batches(self.sample_rate, members, self.steps, self._batches)

    def coins(self, runs: int, canaries: int) -> Tensor:
        """(runs, canaries) bool, each True with probability q."""
        device = self._coins.device
        drawn = torch.rand(runs, canaries, generator=self._coins, device=device, dtype=torch.float64)
        return drawn < self.sample_rate

    def noise(self, like: Tensor, std: float) -> Tensor:
        """Like `like`, of standard deviation `std`."""
        return gaussian(like, std, self._noise, float_safe=False)


def stream(device: torch.device, *key: int) -> torch.Generator:
    """A generator that is a function of the numbers of its key."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return torch.Generator(device=device).manual_seed(seed)


@dataclass(frozen=True, eq=False)
class Substitutes:
    """Record z in the runs on D, z' in those on D', k copies of each; one coin a run for every copy."""

    x: Tensor  # (2 k, d): z k times, then z' k times
    y: Tensor  # (2 k,)
    on_d: Tensor  # (runs,) bool

    @property
    def canaries(self) -> int:
        """The k."""
        return len(self.x) // 2

    def weights(self, coins: Tensor) -> Tensor:
        """(runs, k) -> (runs, 2 k)."""
        return torch.cat([coins & self.on_d[:, None], coins & ~self.on_d[:, None]], 1)

    def add(self, total: Tensor, coins: Tensor) -> None:
        """Nothing."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Gradients along single parameters, one coin a run for each."""

    x: Tensor  # (0, d)
    y: Tensor  # (0,)
    coordinates: Tensor  # (m,) flat coordinates
    gradients: Tensor  # (runs, m): C or -C

    @classmethod
    def of(
        cls, coordinates: Tensor, signs: Tensor, clipping: Clipping | None, features: int, like: Tensor
    ) -> Directions:
        """Gradients as long as the clipping bound, with signs (runs, m), on the device and of the type of `like`."""
        if clipping is None:
            raise ConfigurationError("a gradient canary is as long as the clipping bound: give the recipe a clipping")
        x, y = like.new_zeros(0, features), torch.zeros(0, dtype=torch.long, device=like.device)
        return cls(x, y, coordinates.to(like.device), signs.to(like) * clipping.bound)

    @property
    def canaries(self) -> int:
        """The m."""
        return len(self.coordinates)

    def weights(self, coins: Tensor) -> Tensor:
        """(runs, 0)."""
        return coins[:, :0]

    def add(self, total: Tensor, coins: Tensor) -> None:
        """The gradients of those canaries whose coin says so."""
        total.index_add_(1, self.coordinates, self.gradients * coins)


Inserted = Substitutes | Directions
"""What joins each run's batch by that run's coins: records `x` with labels `y` behind the others, or gradients."""
