"""Membership attacks on one signal, on several together, or on whole maps.

Frozen dataclasses with `__call__(target, shadows, membership) -> scores`.
"""

from safexplain.audit.attacks.base import Attack
from safexplain.audit.attacks.learned.attack import Learned
from safexplain.audit.attacks.learned.classifier import FittedLearned
from safexplain.audit.attacks.likelihood.joint import JointLikelihoodRatio
from safexplain.audit.attacks.likelihood.ratio import (
    GlobalVariance,
    LabelLikelihoodRatio,
    LikelihoodRatio,
    SeparateVariance,
    SharedVariance,
)
from safexplain.audit.attacks.rmia import RMIA
from safexplain.audit.attacks.threshold import Threshold

__all__ = [
    "RMIA",
    "Attack",
    "FittedLearned",
    "GlobalVariance",
    "JointLikelihoodRatio",
    "LabelLikelihoodRatio",
    "Learned",
    "LikelihoodRatio",
    "SeparateVariance",
    "SharedVariance",
    "Threshold",
]
