"""The classifier of attribution maps: one hidden vector from the map, joined by its scalars, to one logit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from safexplain.audit.attacks.learned.maps import SCALARS

WIDTH = 64
"""Numbers of the hidden vectors."""

F32 = torch.float32  # whatever the default is: another precision would draw other initial weights


class MapClassifier(nn.Module):
    """A dense branch for patterns at fixed places; for images also a convolutional one for patterns anywhere.

    Args:
        features: entries of a map.
        shape: (c, h, w) of image maps, else None.
        dropout: of the hidden vectors.
    """

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
