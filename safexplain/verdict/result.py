"""The result of an audit: a judgement with each attack's curve and rates. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict import words
from safexplain.verdict.judgement import Evidence, Judgement, code
from safexplain.verdict.stats import RocCurve, auc_interval
from safexplain.verdict.stats.roc import RateAtFpr

SHOWN_FPRS = (0.001, 0.01, 0.05, 0.1)
"""False-positive rates at which every attack is reported, besides the policy's."""


@dataclass(frozen=True, eq=False)
class AttackResult(Evidence):
    """Evidence of one attack, with its curve and rates."""

    curve: RocCurve = field(kw_only=True)  # ROC of the scored examples
    rates: tuple[RateAtFpr, ...] = field(kw_only=True)  # TPR at each reported false-positive rate

    @property
    def auc(self) -> float:
        """Area under the ROC; 0.5 is chance."""
        return self.curve.auc

    @property
    def title(self) -> str:
        """Readable name."""
        return words.title(self.attack, self.signal)

    @property
    def code(self) -> str:
        """Name as the JSON has it."""
        return code(self)

    def at(self, fpr: float) -> RateAtFpr:
        """The TPR at one of the reported false-positive rates."""
        return next(r for r in self.rates if r.fpr == fpr)

    def shown(self) -> dict[str, Any]:
        """Its curve and rates as plain JSON types."""
        low, high = auc_interval(self.curve)
        return {
            **{name: getattr(self, name) for name in ("attack", "signal", "role", "level")},
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
class AuditResult(Judgement):
    """All attacks under one policy, and the verdict.

    Args:
        evidence: the attacks, in the order of the suite.
        orders: for each judged attack, membership from the highest score to the lowest.
        sizes: examples in each split.
        slices: TPR of the strongest attack in parts of the members, such as the classes.
        exposed: the members that it finds most surely, if requested.
    """

    evidence: tuple[AttackResult, ...]
    orders: tuple[NDArray[np.bool_], ...] = field(kw_only=True)
    sizes: dict[str, int] = field(kw_only=True)
    slices: tuple[Any, ...] = field(default=(), kw_only=True)
    exposed: tuple[Any, ...] = field(default=(), kw_only=True)

    @property
    def attacks(self) -> tuple[AttackResult, ...]:
        """All attacks, judged or not."""
        return self.evidence

    @cached_property
    def judged(self) -> tuple[AttackResult, ...]:
        """The attacks that the verdict rests on."""
        return tuple(a for a in self.attacks if self.is_judged(a))

    @cached_property
    def strongest(self) -> AttackResult:
        """The strongest judged attack."""
        best = super().strongest
        return next(a for a in self.attacks if a is best)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return words.sentence(self)

    def __str__(self) -> str:
        return words.text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        numbers = super().to_dict()
        return {
            "verdict": self.verdict,
            **words.written(self),
            **numbers,
            "attacks": [a.shown() for a in self.attacks],
            "splits": dict(self.sizes),
            "slices": [one.to_dict() for one in self.slices],
            "exposed": [one.to_dict() for one in self.exposed],
        }

    def summary(self) -> dict[str, Any]:
        """Verdict, sentence and levels only, as plain JSON types."""
        return {"verdict": self.verdict, "sentence": self.sentence, "levels": self.levels}
