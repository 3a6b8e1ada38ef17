"""What an audit found: each attack's curve and rates, and the judgement that follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.evidence import Control, Evidence, Role, Verdict, code, is_judged
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.names import title
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import Needed, could_certify, needed
from safexplain.verdict.stats import RateAtFpr, RocCurve, auc_interval

SHOWN_FPRS = (0.001, 0.01, 0.05, 0.1)
"""False-positive rates at which every attack is reported, beside the policy's."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What one attack found.

    Args:
        evidence: the counts that the verdict uses.
        curve: its ROC over the scored examples.
        rates: its TPR at each reported false-positive rate, with Clopper-Pearson intervals at the realised rate.
    """

    evidence: Evidence
    curve: RocCurve
    rates: tuple[RateAtFpr, ...]

    @property
    def attack(self) -> str:
        """Name of the attack."""
        return self.evidence.attack

    @property
    def signal(self) -> str:
        """Name of what it reads."""
        return self.evidence.signal

    @property
    def role(self) -> Role:
        """What kind of release it reads."""
        return self.evidence.role

    @property
    def auc(self) -> float:
        """Area under the ROC; 0.5 is chance."""
        return self.curve.auc

    @property
    def title(self) -> str:
        """Readable name."""
        return title(self.attack, self.signal)

    @property
    def code(self) -> str:
        """Name as the JSON has it."""
        return code(self.evidence)

    def at(self, fpr: float) -> RateAtFpr:
        """The rate at one of the reported false-positive rates."""
        return next(r for r in self.rates if r.fpr == fpr)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        low, high = auc_interval(self.curve)
        return {
            "attack": self.attack,
            "signal": self.signal,
            "role": self.role,
            "auc": self.auc,
            "auc_low": low,
            "auc_high": high,
            "balanced_accuracy": self.curve.balanced_accuracy,
            "tpr": [
                {k: getattr(r, k) for k in ("fpr", "realised_fpr", "tpr", "low", "high", "confidence")}
                for r in self.rates
            ],
        }


@dataclass(frozen=True, eq=False)
class AuditResult:
    """All attacks under one policy, and what follows.

    Args:
        judgement: counts, controls and the verdict.
        attacks: in the order of the suite.
        orders: for each judged attack, who is a member from the highest score to the lowest.
        sizes: examples in each split.
    """

    judgement: Judgement
    attacks: tuple[AttackResult, ...]
    orders: tuple[NDArray[np.bool_], ...]
    sizes: dict[str, int]

    @property
    def policy(self) -> Policy:
        """What counts as a leak."""
        return self.judgement.policy

    @property
    def members(self) -> int:
        """Members scored."""
        return self.judgement.members

    @property
    def non_members(self) -> int:
        """Non-members scored."""
        return self.judgement.non_members

    @property
    def references(self) -> int:
        """Models that stood in for the target."""
        return self.judgement.references

    @property
    def uses(self) -> int | None:
        """Which configuration this is that was judged on these examples; None: not counted."""
        return self.judgement.uses

    @property
    def controls(self) -> tuple[Control, ...]:
        """Checks that only training tells members from non-members."""
        return self.judgement.controls

    @property
    def judged(self) -> tuple[AttackResult, ...]:
        """The attacks that the verdict rests on."""
        return tuple(a for a in self.attacks if is_judged(a.role, self.policy))

    @property
    def judged_confidence(self) -> float:
        """Confidence of each lower bound, so that all of them hold together (Bonferroni)."""
        return 1 - self.judgement.ranks.lower_risk

    def bounds(self, attack: AttackResult) -> tuple[float, float]:
        """Lower and upper bound of the attack's true-positive rate at the policy's false-positive rate."""
        return self.judgement.bounds(attack.evidence)

    def proven(self, attack: AttackResult) -> bool:
        """Whether this attack alone proves a leak."""
        return self.judgement.proven(attack.evidence)

    @property
    def strongest(self) -> AttackResult:
        """The judged attack that decides."""
        best = self.judgement.strongest
        return next(a for a in self.attacks if a.evidence is best)

    @property
    def verdict(self) -> Verdict:
        """Certified, leak or inconclusive."""
        return self.judgement.verdict

    @property
    def exit_code(self) -> int:
        """0 certified, 1 leak, 3 inconclusive."""
        return self.judgement.exit_code

    @cached_property
    def could_certify(self) -> float:
        """Smallest `max_tpr` that one guessing attack stays below here, with a probability of 90 %."""
        return could_certify(self.policy, self.members, self.non_members)

    @cached_property
    def needed(self) -> Needed | None:
        """A sample that would probably decide; None if the verdict is there or none would."""
        if self.verdict != "inconclusive" or self.judgement.fired or self.policy.claim == "excess" or not self.orders:
            return None
        return needed(self.policy, list(self.orders))

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        text = self.judgement.sentence
        if self.verdict != "inconclusive" or self.judgement.fired or self.judgement.split != "certification":
            return text
        if self.needed is not None and self.references:
            n = self.needed
            what = "certify" if n.verdict == "certified" else "prove a leak"
            text += f" About {n.members:,} members and {n.non_members:,} non-members would probably {what}."
        if self.policy.claim == "whole":
            text += f" This sample could at best have certified {self.could_certify:.1%}."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        n = self.needed
        return {
            **self.judgement.to_dict(),
            "sentence": self.sentence,
            "judged": [
                {"attack": a.attack, "signal": a.signal, "low": self.bounds(a)[0], "high": self.bounds(a)[1]}
                for a in self.judged
            ],
            "attacks": [a.to_dict() for a in self.attacks],
            "could_certify": self.could_certify,
            "needed": None if n is None else {"members": n.members, "non_members": n.non_members, "verdict": n.verdict},
            "splits": dict(self.sizes),
        }
