"""Transforms of an attribution before it is released: `clips`, `selection` (masks and formats) and `noise`.

`hardening` joins them. A new clip or mask is one class, and its name in `clips.CLIPS` or `selection.MASKS`.
"""

from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, Relative, UnitNorm
from safexplain.hardening.features import Features as Features
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.hardening.selection import Levels, ThresholdMask, TopKMask, TopKSet

__all__ = [
    "GaussianNoise",
    "Hardening",
    "Levels",
    "NormClip",
    "RangeClip",
    "RankNorm",
    "Relative",
    "ThresholdMask",
    "TopKMask",
    "TopKSet",
    "UnitNorm",
]
