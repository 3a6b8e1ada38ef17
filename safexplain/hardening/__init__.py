"""What happens to an attribution before it leaves: clip, then mask, then noise, in no other order.

`clips` bound the size of each row, `masks` set its small numbers to zero, `noise` adds a keyed function of the query;
amounts are in the units of the attribution or relative to the clip. `hardening` has the table of what may stand in
each slot, applies the slots in their order, and is written and read as JSON. A new clip is one class and its name in
that table.
"""

from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, Relative, UnitNorm
from safexplain.hardening.features import Features as Features
from safexplain.hardening.formats import Levels, TopKSet
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise

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
