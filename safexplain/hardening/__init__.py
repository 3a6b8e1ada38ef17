"""Transforms of an attribution before it is released: clips, masks, formats and noise, which `Hardening` joins."""

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
