"""What a verdict is made of: counts of members found, paired counts, controls, and where the thresholds lie.

NumPy and SciPy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.policy import Policy
from safexplain.verdict.thresholds import loose_rank, tight_rank

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
        loose: members above the threshold that is surely loose (see `bounds`).
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


@dataclass(frozen=True)
class Ranks:
    """Ranks among the non-members that every attack of a judgement uses, and the risk of each kind of error."""

    loose: int | None
    tight: int
    tight_share: float
    upper_risk: float
    lower_risk: float


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


def ranks_of(policy: Policy, non_members: int, attacks: int) -> Ranks:
    """Where thresholds lie, from the policy and the sizes alone: nobody can choose them after a look at the scores."""
    upper, lower = policy.risk, policy.risk / max(attacks, 1)
    parts = 4 if policy.claim == "excess" else 2
    tight, share = tight_rank(non_members, policy.fpr, lower / parts)
    return Ranks(loose_rank(non_members, policy.fpr, upper / parts), tight, share, upper, lower)


def code(of: Evidence | Pair) -> str:
    """Name as the JSON has it."""
    return f"{of.attack} on {of.signal}"


def paired(found: NDArray[np.bool_], baseline: NDArray[np.bool_]) -> tuple[int, int]:
    """Members found by the first only, and by the second only."""
    return int((found & ~baseline).sum()), int((baseline & ~found).sum())
