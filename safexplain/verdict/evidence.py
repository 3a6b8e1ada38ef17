"""What a verdict is made of: counts of members found, paired counts and controls. NumPy only.

Also what attacks and signals are called, as the files have them and as people read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.policy import Policy

Verdict = Literal["certified", "leak", "inconclusive"]
Role = Literal["explanation", "label", "loss", "explanation+label", "explanation+loss"]
ROLES: tuple[Role, ...] = get_args(Role)

EXIT_CODES: dict[Verdict, int] = {"certified": 0, "leak": 1, "inconclusive": 3}
"""Exit code of the command line for each verdict; 2 is unusable input."""


@dataclass(frozen=True)
class Evidence:
    """How many members one attack found.

    Args:
        attack, signal: which attack on what.
        role: what it reads: the explanation, the label, the loss, or two of these.
        loose: members above the threshold that is surely loose (see `thresholds`).
        tight: members above the threshold that is surely tight.
    """

    attack: str
    signal: str
    role: Role
    loose: int
    tight: int


@dataclass(frozen=True)
class Pair:
    """Members that an attack found and the baseline did not, and the other way round; the same members, paired.

    Args:
        attack, signal: the attack on the release.
        loose_only, loose_missed: with the attack's threshold surely loose and the baseline's surely tight.
        tight_only, tight_missed: with the attack's threshold surely tight and the baseline's surely loose.
    """

    attack: str
    signal: str
    loose_only: int
    loose_missed: int
    tight_only: int
    tight_missed: int


STRENGTH = ("references", "recipe")
"""Controls of the attacks' strength: when they fire, nothing is certified, but a leak that was found stands."""


@dataclass(frozen=True)
class Control:
    """One check that members and non-members differ by nothing but training, or that the attacks are strong enough.

    Args:
        name: blind baseline, null model, shuffled membership, references, recipe or other source.
        fired: it found what must not be there; None: it could not be run.
        says: what was found, or why it was not run, in a sentence.
        numbers: behind it.
    """

    name: str
    fired: bool | None
    says: str
    numbers: Mapping[str, float]

    @property
    def spares_leaks(self) -> bool:
        """Whether a leak is a leak although it fired: it says that attacks were weak, not that they were fooled."""
        return self.name in STRENGTH

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"name": self.name, "fired": self.fired, "says": self.says, "numbers": dict(self.numbers)}


def is_judged(role: Role, policy: Policy) -> bool:
    """Whether the verdict rests on attacks that read this."""
    prediction, excess = policy.release == "explanation+prediction", policy.claim == "excess"
    match role:
        case "explanation":
            return True
        case "explanation+label":
            return prediction or excess
        case "explanation+loss":
            return prediction
        case _:
            return prediction and not excess


def code(of: Evidence | Pair) -> str:
    """Name as the JSON has it."""
    return f"{of.attack} on {of.signal}"


def paired(found: NDArray[np.bool_], baseline: NDArray[np.bool_]) -> tuple[int, int]:
    """Members found by the first only, and by the second only."""
    return int((found & ~baseline).sum()), int((baseline & ~found).sum())


WHOLE_MAP = "attributions"
"""Name of the signal that is the whole attribution vector."""

ATTACK_NAMES = {
    "Threshold": "Threshold",
    "LikelihoodRatio": "Likelihood ratio",
    "LabelLikelihoodRatio": "Likelihood ratio",
    "JointLikelihoodRatio": "Joint likelihood ratio",
    "RMIA": "RMIA",
    "Learned": "Learned classifier",
    "LearnedElsewhere": "Classifier learned with non-members of another source",
    "CounterfactualDistance": "CFD",
    "CounterfactualLRT-global": "CFD-LRT",
    "CounterfactualLRT-local": "Local CFD-LRT",
    "DirectionAttack": "Direction attack",
    "DirectionLRT": "Direction likelihood ratio",
    "DirectionDensity": "Direction density ratio",
    "AveragingAttack": "Averaging attack",
}
SIGNAL_NAMES = {
    "l1": "L1 norm",
    "l2": "L2 norm",
    "variance": "variance",
    "mean": "signed mean",
    "positive": "share of positive entries",
    "support": "share of non-zero entries",
    "sparsity": "sparsity",
    "peak": "peak",
    WHOLE_MAP: "whole map",
    f"{WHOLE_MAP}:sign": "signs of the map",
    f"{WHOLE_MAP}:rank": "ranks of the map",
    "label": "predicted label",
    "loss": "loss",
    "margin": "margin",
    "class_l1": "L1 norms of several classes",
    "class_l2": "L2 norms of several classes",
    "class_mean": "signed means of several classes",
    "l1+mean+positive+sparsity+peak": "summary numbers of the map",
    "near_l1+near_mean+near_positive": "summary numbers (near-duplicates averaged)",
    "repeated_l1+repeated_mean+repeated_positive": "summary numbers (repeated queries averaged)",
    "near_map": "whole map, near-duplicates averaged",
    "distance": "recourse distance",
    "signed_distance": "recourse distance, signed by the true label",
    "score": "released score",
    "recovered_margin": "margin read from the answers",
    "regressed_margin": "margin regressed from the scores",
    "averaged_distance": "recourse distance of averaged answers",
}
"""Attacks and signals as people read them."""

AVERAGED = {"near_": "near-duplicates averaged", "repeated_": "repeated queries averaged"}
"""Prefix of signals computed from averages of several answers -> what was averaged."""


def signal_name(signal: str) -> str:
    """Readable name of a signal, or of several joined by +."""
    if signal in SIGNAL_NAMES:
        return SIGNAL_NAMES[signal]
    if "+" in signal:
        return " and ".join(signal_name(part) for part in signal.split("+"))
    for prefix, what in AVERAGED.items():
        if signal.startswith(prefix):
            return f"{signal_name(signal.removeprefix(prefix))} ({what})"
    return signal


def title(attack: str, signal: str) -> str:
    """Readable name of an attack on a signal."""
    name = ATTACK_NAMES.get(attack, attack)
    if name.isupper():
        return f"{name} on the {signal_name(signal)}"
    if attack in ATTACK_NAMES:
        name = name[:1].lower() + name[1:]
    return f"{name} of the {signal_name(signal)}"
