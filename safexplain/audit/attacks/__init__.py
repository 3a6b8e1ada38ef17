"""Membership attacks on one signal: frozen dataclasses with `__call__(target, shadows, membership) -> scores`."""

from safexplain.audit.attacks.base import Attack
from safexplain.audit.attacks.likelihood import (
    GlobalVariance,
    LabelLikelihoodRatio,
    LikelihoodRatio,
    SeparateVariance,
    SharedVariance,
)
from safexplain.audit.attacks.threshold import Threshold

__all__ = [
    "Attack",
    "GlobalVariance",
    "LabelLikelihoodRatio",
    "LikelihoodRatio",
    "SeparateVariance",
    "SharedVariance",
    "Threshold",
]
