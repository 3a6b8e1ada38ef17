"""What happens to an attribution before it leaves: clip, then mask, then noise, in no other order.

`amounts` are absolute or relative to the clip; `clips` and `masks` work on rows; `noise` is a keyed function of the
query;
`hardening` holds the three slots, applies them in their order and is written as JSON.
"""

from safexplain.hardening.amounts import Relative
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise

__all__ = [
    "GaussianNoise",
    "Hardening",
    "NormClip",
    "RangeClip",
    "RankNorm",
    "Relative",
    "ThresholdMask",
    "TopKMask",
    "UnitNorm",
]
