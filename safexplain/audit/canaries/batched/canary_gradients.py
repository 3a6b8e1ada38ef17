"""What stands at the canary's place in each run: one of two records, or gradients along single parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

__all__ = ["Directions", "Inserted", "Substitutes"]


class Inserted(Protocol):
    """Joins each run's batch by that run's coins."""

    @property
    def canaries(self) -> int:
        """Coins of each run and step."""

    @property
    def x(self) -> Tensor:
        """(k, d) records to be put behind the others; k may be 0."""

    @property
    def y(self) -> Tensor:
        """(k,) labels of these."""

    def weights(self, coins: Tensor) -> Tensor:
        """(runs, canaries) bool -> (runs, k) bool, which of these records are in the batch."""

    def add(self, total: Tensor, coins: Tensor) -> None:
        """Add gradients that are no record's to the sums (runs, P)."""


@dataclass(frozen=True, eq=False)
class Substitutes:
    """Record z in the runs of world a, z' in those of world b; one coin a run.

    Args:
        x: (2, d), of z and z'.
        y: (2,), of z and z'.
        world_a: (runs,) bool.
    """

    x: Tensor
    y: Tensor
    world_a: Tensor
    canaries: int = 1

    def weights(self, coins: Tensor) -> Tensor:
        """(runs, 1) -> (runs, 2)."""
        return coins & torch.stack([self.world_a, ~self.world_a], 1)

    def add(self, total: Tensor, coins: Tensor) -> None:
        """Nothing."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Gradients along single parameters, one coin a run for each.

    Args:
        x: (0, d).
        y: (0,).
        coordinates: (m,) flat coordinates.
        gradients: (runs, m): C or -C.
    """

    x: Tensor
    y: Tensor
    coordinates: Tensor
    gradients: Tensor

    @classmethod
    def of(
        cls, coordinates: Tensor, signs: Tensor, clipping: Clipping | None, features: int, like: Tensor
    ) -> Directions:
        """Gradients as long as the clipping bound, with signs (runs, m), on the device and of the type of `like`.

        Raises:
            ConfigurationError: there is no clipping.
        """
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
