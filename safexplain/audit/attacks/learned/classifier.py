"""A trained classifier of maps, and how maps reach it: on its device, a part at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit.attacks.base import Floats
from safexplain.audit.attacks.learned.maps import SCALARS, Standardisation, unit_maps
from safexplain.audit.attacks.likelihood.moments import parts
from safexplain.errors import InputError


@dataclass(frozen=True, eq=False)
class FittedLearned:
    """A trained classifier of maps.

    Args:
        network: in eval mode.
        standardise: of the scalars.
        features: entries of a map.
        epoch: the one that was kept.
        auc: on the held-out reference models; optimistic, since the epoch was chosen by it.
    """

    network: nn.Module
    standardise: Standardisation
    features: int
    epoch: int
    auc: float

    def scores(self, maps: Floats) -> NDArray[np.float64]:
        """(n,) logits of (n, d) maps; higher says "member".

        Raises:
            InputError: another number of features than trained on, or values that are not finite.
        """
        maps = np.asarray(maps)
        if maps.ndim != 2 or maps.shape[1] != self.features or not np.isfinite(maps).all():
            raise InputError(f"expected finite maps (n, {self.features}), got shape {maps.shape}")
        unit, scalars = unit_maps_of(maps, self.standardise.mean.device, (np.arange(len(maps)),))
        return logits_of(self.network, unit, self.standardise(scalars))


def unit_maps_of(maps: Floats, device: torch.device, at: tuple[NDArray[np.int64], ...]) -> tuple[Tensor, Tensor]:
    """(p, d) float32 unit maps and their (p, 6) scalars on the device.

    Args:
        maps: (..., d); only `CHUNK` numbers at a time are copied in double precision.
        device: where to.
        at: index arrays of length p into all but the last axis.
    """
    p, d = len(at[0]), maps.shape[-1]
    unit = torch.empty((p, d), dtype=torch.float32, device=device)
    scalars = torch.empty((p, len(SCALARS)), dtype=torch.float64, device=device)
    for part in parts(p, d):
        values = torch.from_numpy(maps[tuple(index[part] for index in at)]).to(device)
        unit[part], scalars[part] = unit_maps(values.double())
    return unit, scalars


@torch.no_grad()
def logits_of(network: nn.Module, maps: Tensor, scalars: Tensor) -> NDArray[np.float64]:
    """(p,) logits; the network is in eval mode."""
    logits = torch.empty(len(maps), dtype=torch.float64, device=maps.device)
    for part in parts(*maps.shape):
        logits[part] = network(maps[part], scalars[part])
    return logits.cpu().numpy()
