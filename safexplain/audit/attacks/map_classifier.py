"""The classifier of attribution maps, by a unit map and a few numbers about its size and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit.attacks.base import Floats
from safexplain.audit.signals import parts

SCALARS = ("log RMS", "log L1", "log variance", "mean / RMS", "share positive", "log max")  # of `unit_maps`
CLIP = 10.0  # largest standardised scalar


def unit_maps(maps: Tensor) -> tuple[Tensor, Tensor]:
    """(p, d) float32 maps divided by their root mean square (zeros stay), and their (p, 6) float64 `SCALARS`."""
    largest = maps.abs().amax(1, keepdim=True)
    part = maps / torch.where(largest > 0, largest, 1.0)  # squares of what is at most 1 neither overflow nor vanish
    mean = part.mean(1, keepdim=True)
    rms = part.square().mean(1, keepdim=True).sqrt()
    safe = torch.where(rms > 0, rms, 1.0)
    scale = largest.log()
    scalars = [
        rms.log() + scale,
        part.abs().sum(1, keepdim=True).log() + scale,
        (part - mean).square().mean(1, keepdim=True).log() + 2 * scale,
        mean / safe,
        (part > 0).double().mean(1, keepdim=True),
        scale,
    ]
    return (part / safe).float(), torch.cat(scalars, 1)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Shift and scale of the scalars over the training rows."""

    floor: Tensor  # (6,) replaces the logarithm of zero: that of half of the smallest positive value
    mean: Tensor  # (6,) after that
    deviation: Tensor  # (6,) 1 for scalars that never change

    @classmethod
    def of(cls, scalars: Tensor) -> Standardisation:
        """Fitted to (p, 6) scalars."""
        lowest = torch.where(scalars.isinf(), torch.inf, scalars).amin(0)
        floor = torch.where(lowest.isinf(), 0.0, lowest) - math.log(2)
        filled = torch.where(scalars.isinf(), floor, scalars)
        deviation = filled.std(0, correction=0)
        return cls(floor, filled.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, scalars: Tensor) -> Tensor:
        """(p, 6) float32 standardised scalars."""
        filled = torch.where(scalars.isinf(), self.floor, scalars)
        return ((filled - self.mean) / self.deviation).clamp(-CLIP, CLIP).float()


def unit_maps_of(maps: Floats, device: torch.device, at: tuple[NDArray[np.int64], ...]) -> tuple[Tensor, Tensor]:
    """(p, d) float32 unit maps and their (p, 6) scalars on the device, of (..., d) maps at the p indices `at`."""
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


WIDTH = 64  # length of the hidden vectors

F32 = torch.float32  # not the default type, which would change the initial weights


class MapClassifier(nn.Module):
    """A dense branch for patterns at fixed places and, for image maps (c, h, w), a convolutional one for any place."""

    def __init__(self, features: int, shape: tuple[int, ...] | None, dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.dense = nn.Sequential(nn.Linear(features, WIDTH, dtype=F32), nn.ReLU(), nn.Dropout(dropout))
        hidden = WIDTH + len(SCALARS)
        self.local: nn.Module | None = None
        if shape is not None:
            self.local = nn.Sequential(
                nn.Conv2d(shape[0], 16, 3, stride=2, padding=1, dtype=F32),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1, dtype=F32),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(4),
                nn.Flatten(),
                nn.Linear(32 * 16, WIDTH, dtype=F32),
                nn.ReLU(),
                nn.Dropout(dropout),
            )
            hidden += WIDTH
        self.joint = nn.Sequential(
            nn.Linear(hidden, WIDTH, dtype=F32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(WIDTH, 1, dtype=F32)
        )

    def forward(self, maps: Tensor, scalars: Tensor) -> Tensor:
        """(p,) logits from (p, features) maps and (p, 6) scalars."""
        parts = [self.dense(maps), scalars]
        if self.local is not None and self.shape is not None:
            parts.append(self.local(maps.reshape(-1, *self.shape)))
        logits: Tensor = self.joint(torch.cat(parts, 1))[:, 0]
        return logits
