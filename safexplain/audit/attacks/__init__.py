"""Membership attacks on one signal, on several together, or on whole maps.

Each is a frozen dataclass with `__call__(target, shadows, membership) -> scores`, as `base` says, where the threshold
attack also is. `likelihood/` compares with models that saw the example and models that did not, `learned/` trains a
classifier on whole maps, `boosted` trains trees on what references say, `rmia` and `recourse` are families of their
own. `transfer` has what any attack needs to read predictions of a fine-tuned model, `metaclassifier` trains a
classifier for each point on them. `patience` reads the labels of many queries, `stacked` joins attacks. `suite` is the
table of what is run, one line an attack; `scoring` runs it against one target, and fits what learns on references that
play the target.
"""

from typing import TYPE_CHECKING, Any

from safexplain.audit.attacks.base import Attack, Threshold
from safexplain.audit.attacks.learned.attack import Learned
from safexplain.audit.attacks.likelihood.joint import JointLikelihoodRatio
from safexplain.audit.attacks.likelihood.ratio import GlobalVariance as GlobalVariance
from safexplain.audit.attacks.likelihood.ratio import LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.rmia import RMIA
from safexplain.audit.attacks.transfer import AtTargetLabel
from safexplain.audit.attacks.transfer import OverQueries as OverQueries

if TYPE_CHECKING:
    from safexplain.audit.attacks.metaclassifier import Metaclassifier

__all__ = [
    "RMIA",
    "AtTargetLabel",
    "Attack",
    "JointLikelihoodRatio",
    "LabelLikelihoodRatio",
    "Learned",
    "LikelihoodRatio",
    "Metaclassifier",
    "Threshold",
]


def __getattr__(name: str) -> Any:
    """`Metaclassifier` is imported when it is asked for: no other attack loads PyTorch before it trains."""
    if name == "Metaclassifier":
        from safexplain.audit.attacks.metaclassifier import Metaclassifier

        return Metaclassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
