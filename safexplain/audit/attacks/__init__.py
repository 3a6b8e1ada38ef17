"""Membership attacks on one signal, on several together, or on whole maps.

Each is a frozen dataclass with `__call__(target, shadows, membership) -> scores`. `suite` is the table of attacks, and
`scoring` runs it against one target.
"""

from safexplain.audit.attacks.base import Attack, Threshold
from safexplain.audit.attacks.joint import JointLikelihoodRatio
from safexplain.audit.attacks.learned import Learned
from safexplain.audit.attacks.likelihood import LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.rmia import RMIA

__all__ = [
    "RMIA",
    "Attack",
    "JointLikelihoodRatio",
    "LabelLikelihoodRatio",
    "Learned",
    "LikelihoodRatio",
    "Threshold",
]
