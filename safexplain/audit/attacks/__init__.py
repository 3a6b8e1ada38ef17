"""Membership attacks, frozen dataclasses with `__call__(target, shadows, membership) -> scores`.

`suite` is the table of attacks, and `scoring` runs it against one target.
"""

from safexplain.audit.attacks.base import Attack, Threshold
from safexplain.audit.attacks.learned import Learned
from safexplain.audit.attacks.likelihood import RMIA, JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio

__all__ = [
    "RMIA",
    "Attack",
    "JointLikelihoodRatio",
    "LabelLikelihoodRatio",
    "Learned",
    "LikelihoodRatio",
    "Threshold",
]
