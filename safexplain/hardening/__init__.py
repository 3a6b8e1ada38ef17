"""What happens to an attribution before it leaves: `clips` (or `formats`), `masks`, `noise`, joined by `hardening`.

A new clip or mask is one class, and its name in `clips.CLIPS` or `masks.MASKS`.
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
