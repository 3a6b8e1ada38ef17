"""Transforms of an attribution before it is released: clips, masks, formats and noise, which `Hardening` joins."""

from safexplain.hardening.clips import (
    Levels,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    TopKSet,
    UnitNorm,
)
from safexplain.hardening.features import Features as Features
from safexplain.hardening.hardening import Hardening
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
