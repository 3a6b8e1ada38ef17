"""Membership attacks on one signal, on several together, or on whole maps.

Each is a frozen dataclass with `__call__(target, shadows, membership) -> scores`, as `base` says, where the threshold
attack also is. `likelihood` and `joint` compare with models that saw the example and models that did not, `learned`
trains a classifier on whole maps, `boosted` trains trees on what references say, `rmia` and `recourse` are families of
their own, `stacked` joins attacks. `suite` is the table of what is run, one line an attack; `scoring` runs it against
one target, and fits what learns on references that play the target.
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
