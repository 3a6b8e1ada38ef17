"""Membership attacks on one signal, on several together, or on whole maps.

Each is a frozen dataclass with `__call__(target, shadows, membership) -> scores` (`base`, which also has the threshold
attack). `likelihood` and `joint` compare the target with models that were trained with and without the example,
`learned` trains a classifier on whole maps, `boosted` trains trees on reference features, `rmia` and `recourse` are
families of their own, and `stacked` combines attacks. `suite` is the table of attacks; `scoring` runs it against one
target, and fits learning attacks on references that play the target.
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
