"""What a verdict is made of: counts of members found, paired counts and controls. NumPy only.

Also what attacks and signals are called, as the files have them and as people read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.verdict.policy import Policy

Verdict = Literal["certified", "leak", "inconclusive"]
Role = Literal["explanation", "label", "loss", "explanation+label", "explanation+loss"]
ROLES: tuple[Role, ...] = get_args(Role)

EXIT_CODES: dict[Verdict, int] = {"certified": 0, "leak": 1, "inconclusive": 3}
"""Exit code of the command line for each verdict; 2 is unusable input."""

KEYS = {
    "upper_bound_count": "loose",
    "lower_bound_count": "tight",
    "upper_bound_only": "loose_only",
    "upper_bound_missed": "loose_missed",
    "lower_bound_only": "tight_only",
    "lower_bound_missed": "tight_missed",
    "upper_bound_rank": "loose",
    "lower_bound_rank": "tight",
    "lower_bound_share": "tight_share",
    "failed": "fired",
}
"""Fields whose names in files are others: those of version 2 of the certificate, which stays readable."""


@dataclass(frozen=True)
class Evidence:
    """How many members one attack found.

    Args:
        attack, signal: which attack on what.
        role: what it reads: the explanation, the label, the loss, or two of these.
        upper_bound_count: members above the threshold of the upper bound (see `thresholds`).
        lower_bound_count: members above that of the lower bound, which is higher.
    """

    attack: str
    signal: str
    role: Role
    upper_bound_count: int
    lower_bound_count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return _written(self, Evidence)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Evidence:
        """Read what `to_dict` wrote.

        Raises:
            InputError: a count is no whole number.
            KeyError, TypeError: a field is missing, or there are none.
        """
        return cls(str(content["attack"]), str(content["signal"]), content["role"], *_counts(cls, content))


@dataclass(frozen=True)
class Pair:
    """Members that an attack found and the baseline did not, and the other way round; the same members, paired.

    Args:
        attack, signal: the attack on the release.
        upper_bound_only, upper_bound_missed: above the attack's threshold of an upper bound, and the baseline's of a
            lower one.
        lower_bound_only, lower_bound_missed: above the attack's threshold of a lower bound, and the baseline's of an
            upper one.
    """

    attack: str
    signal: str
    upper_bound_only: int
    upper_bound_missed: int
    lower_bound_only: int
    lower_bound_missed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return _written(self, Pair)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Pair:
        """Read what `to_dict` wrote.

        Raises:
            InputError: a count is no whole number.
            KeyError, TypeError: a field is missing, or there are none.
        """
        return cls(str(content["attack"]), str(content["signal"]), *_counts(cls, content))


STRENGTH = ("references", "recipe")
"""Controls of the attacks' strength: when they fail, nothing is certified, but a leak that was found stands."""


@dataclass(frozen=True)
class Control:
    """One check that members and non-members differ by nothing but training, or that the attacks are strong enough.

    Args:
        name: blind baseline, null model, shuffled membership, references, recipe or other source.
        failed: it found what must not be there; None: it could not be run.
        says: what was found, or why it was not run, in a sentence.
        numbers: behind it.
    """

    name: str
    failed: bool | None
    says: str
    numbers: Mapping[str, float]

    @property
    def spares_leaks(self) -> bool:
        """Whether a leak is a leak although it failed: it says that attacks were weak, not that they were fooled."""
        return self.name in STRENGTH

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**_written(self, Control), "numbers": dict(self.numbers)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Control:
        """Read what `to_dict` wrote.

        Raises:
            InputError: it is neither failed, passed nor not run.
            KeyError, TypeError, ValueError: a field is missing or of the wrong type.
        """
        failed = content[KEYS["failed"]]
        if failed is not None and not isinstance(failed, bool):
            raise InputError(f"{UNREADABLE}: {KEYS['failed']} is true, false or null, got {failed!r:.60}")
        numbers = {str(k): float(v) for k, v in content["numbers"].items()}
        return cls(str(content["name"]), failed, str(content["says"]), numbers)


UNREADABLE = "not the outcome of an audit"


def count_in(content: Mapping[str, Any], key: str) -> int:
    """A whole number under this name.

    Raises:
        InputError: it is none.
    """
    value = content[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{UNREADABLE}: {key} is a count, got {value!r:.60}")
    return value


def _written(of: Any, kind: type[Evidence | Pair | Control]) -> dict[str, Any]:
    return {KEYS.get(f.name, f.name): getattr(of, f.name) for f in fields(kind)}


def _counts(of: type[Evidence | Pair], content: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(count_in(content, KEYS[f.name]) for f in fields(of) if f.name in KEYS)


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


def at_level(signal: str, level: int) -> str:
    """Name in the file of a signal that an attacker gets who asks `level` times: l1, l1@200."""
    return signal if level == 1 else f"{signal}@{level}"


def split_level(signal: str) -> tuple[str, int]:
    """The signal and the level that a name in the file means; what is no level belongs to the name."""
    name, at, level = signal.rpartition("@")
    return (name, int(level)) if at and name and level.isdecimal() and int(level) > 1 else (signal, 1)


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
    "LabelPatience": "Best label attack",
    "PredictionPatience": "Best prediction attack",
    "Boosted": "Boosted trees",
    "Stacked": "Stacked attacks",
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
    "prediction": "prediction",
    "kept": "share of queries that kept the label",
    "shares": "shares of queries with each label",
    "explanation": "whole explanation",
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
    """Readable name of a signal, or of several joined by +; what an attacker gets by asking often says how often."""
    if signal in SIGNAL_NAMES:
        return SIGNAL_NAMES[signal]
    parts = signal.split("+")
    level = split_level(parts[0].partition(":")[0])[1]
    for size in range(len(parts), 0, -1):
        plain = "+".join(parts[:size]).replace(f"@{level}", "")
        if plain in SIGNAL_NAMES and (size > 1 or len(parts) == 1):
            known = SIGNAL_NAMES[plain] + (f", {level} queries" if level > 1 else "")
            return " and ".join([known, *map(signal_name, parts[size:])])
    if len(parts) > 1:
        return " and ".join(map(signal_name, parts))
    for prefix, what in AVERAGED.items():
        if signal.startswith(prefix):
            return f"{signal_name(signal.removeprefix(prefix))} ({what})"
    return split_level(signal)[0] + (f", {level} queries" if level > 1 else "")


def title(attack: str, signal: str) -> str:
    """Readable name of an attack on a signal."""
    name = ATTACK_NAMES.get(attack, attack)
    if name.isupper():
        return f"{name} on the {signal_name(signal)}"
    if attack in ATTACK_NAMES:
        name = name[:1].lower() + name[1:]
    of = "on" if attack in ("Boosted", "Stacked", "LabelPatience", "PredictionPatience") else "of"
    return f"{name} {of} the {signal_name(signal)}"
