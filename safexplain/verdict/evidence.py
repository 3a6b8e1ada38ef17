"""The evidence behind a verdict: members found, alone and compared with the baseline, and controls."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from safexplain.verdict.policy import Claim, Policy
from safexplain.verdict.stats.paired import PairedCounts

Verdict = Literal["certified", "leak", "inconclusive"]
Role = Literal["explanation", "label", "loss", "explanation+label", "explanation+loss"]
ROLES: tuple[Role, ...] = get_args(Role)

EXIT_CODES: dict[Verdict, int] = {"certified": 0, "leak": 1, "inconclusive": 3}
"""Exit code of the command line for each verdict; 2 is unusable input."""


@dataclass(frozen=True)
class Evidence:
    """How many members one attack found, alone and compared with the baseline at its number of queries.

    Counts are of independent units (see `thresholds.weights_of`): whole numbers if each example is a unit.
    """

    attack: str
    signal: str
    role: Role  # what it reads: the explanation, the label, the loss, or two of these
    level: int  # number of queries about each example
    found: float  # members above the rank of the policy's false-positive rate: the estimate
    upper_bound_count: float  # members above the threshold of the upper bound (see `thresholds`)
    lower_bound_count: float  # members above the higher threshold of the lower bound
    pair: PairedCounts | None = None  # comparison with the baseline; None: this is the baseline, or there is none

    @property
    def is_baseline(self) -> bool:
        """Whether it reads only the labels (or predictions) of the queries."""
        return self.attack in BASELINES

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        pair = None if self.pair is None else asdict(self.pair)
        return {f.name: getattr(self, f.name) for f in fields(Evidence)} | {"pair": pair}


BASELINES = {"LabelPatience": "labels", "PredictionPatience": "predictions"}
"""Attacks on what is released anyway -> what they read."""


def baseline_name(policy: Policy) -> str:
    """The attack on what is released anyway; "" if predictions alone are released, so that nothing is added."""
    return {"explanation": "LabelPatience", "explanation+prediction": "PredictionPatience"}.get(policy.release, "")


STRENGTH = ("references", "recipe", "accuracy")
"""Controls of the attacks' strength and of the data: if one fails, nothing is certified, but a proven leak stands."""


@dataclass(frozen=True)
class Control:
    """One check that members and non-members differ only by training, or that the attacks are strong enough."""

    name: str  # blind baseline, null model, shuffled membership, references, recipe, accuracy or other source
    failed: bool | None  # None: it could not be run
    says: str  # the finding, or why it was not run, in a sentence
    numbers: dict[str, float]  # behind the finding


def is_judged(role: Role, policy: Policy, claim: Claim | None = None) -> bool:
    """Whether the verdict rests on attacks of this role: those that the stated attacker can run, under the claim
    "excess" those on the explanation together with what is released anyway. `claim` replaces the policy's."""
    if policy.release == "prediction":
        return role in ("label", "loss")
    predictions = policy.release == "explanation+prediction"
    if (claim or policy.claim) != "whole":
        return role == ("explanation+loss" if predictions else "explanation+label")
    return predictions or role in ("explanation", "label", "explanation+label")


def code(of: Evidence) -> str:
    """Name of an attack in JSON."""
    return f"{of.attack} on {of.signal}"


def at_level(signal: str, level: int) -> str:
    """Name in the file of a signal after `level` queries: l1, l1@200."""
    return signal if level == 1 else f"{signal}@{level}"


def split_level(signal: str) -> tuple[str, int]:
    """Signal and number of queries of a name in the file; a suffix that is no number belongs to the name."""
    name, at, level = signal.rpartition("@")
    return (name, int(level)) if at and name and level.isdecimal() and int(level) > 1 else (signal, 1)


WHOLE_MAP = "attributions"
"""Name of the signal that holds whole attribution vectors."""
