"""What chance decides in some runs (batches, coins, noise), and what a coin puts at the canary's place in each.

The canary of a run is one of two records, or a gradient along a single parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from safexplain.dp.heads.closed_form import Batch, separate_batches
from safexplain.dp.sgd.sampling import gaussian

__all__ = ["Direction", "Inserted", "KeyedDraws", "Substitutes", "stream"]

_BATCHES, _COINS, _NOISE, START = range(4)


class KeyedDraws:
    """Poisson sampling and Gaussian noise, functions of a seed and, but for the batches, of the block of runs."""

    def __init__(self, seed: int, block: int, sample_rate: float, steps: int, device: torch.device) -> None:
        self.sample_rate, self.steps = sample_rate, steps
        self._batches = stream(device, seed, _BATCHES, 0)
        self._coins = stream(device, seed, _COINS, block)
        self._noise = stream(device, seed, _NOISE, block)

    def batches(self, records: int) -> Iterator[Batch]:
        """The other records' part of each step's batch, the same for all runs, as from `separate_batches` for one."""
        if not records:
            return ((None, None) for _ in range(self.steps))
        members = torch.ones(1, records, dtype=torch.bool, device=self._batches.device)
        return separate_batches(self.sample_rate, members, self.steps, self._batches)

    def coins(self, runs: int) -> Tensor:
        """(runs,) bool, each True with probability q."""
        drawn = torch.rand(runs, generator=self._coins, device=self._coins.device, dtype=torch.float64)
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
    """Record z in the runs on D, z' in those on D'."""

    x: Tensor  # (2, d): z, z'
    y: Tensor  # (2,)
    on_d: Tensor  # (runs,) bool

    def weights(self, coins: Tensor) -> Tensor:
        """(runs,) -> (runs, 2)."""
        return torch.stack([coins & self.on_d, coins & ~self.on_d], 1)

    def add(self, total: Tensor, coins: Tensor) -> None:
        """Nothing."""


@dataclass(frozen=True, eq=False)
class Direction:
    """A gradient along a single parameter."""

    x: Tensor  # (0, d)
    y: Tensor  # (0,)
    coordinate: int  # flat
    gradients: Tensor  # (runs,): C or -C

    def weights(self, coins: Tensor) -> Tensor:
        """(runs, 0)."""
        return coins[:, None][:, :0]

    def add(self, total: Tensor, coins: Tensor) -> None:
        """The gradient in those runs whose coin says so."""
        total[:, self.coordinate] += self.gradients * coins


Inserted = Substitutes | Direction
"""What joins each run's batch by that run's coin: records `x` with labels `y` behind the others, or a gradient."""
