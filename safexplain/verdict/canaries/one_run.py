"""What one training with many canaries says about the claim. No torch here: a certificate can carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from safexplain._privacy_loss import VACUOUS
from safexplain.errors import InputError
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.result import check_mechanism
from safexplain.verdict.stats import one_run_ceiling, one_run_lower_bound
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["OneRunResult"]


@dataclass(frozen=True)
class OneRunResult(Finding):
    """Guesses of the coins of many canaries in one training.

    Args:
        claim: what was audited.
        method: of `safexplain.verdict.stats.one_run_lower_bound`.
        confidence: of the bound.
        canaries: coins, each of which chose one of two opposite gradients.
        guesses: coins that were guessed, a number fixed beforehand; those whose score was the largest.
        correct: guesses that were right.
        seconds: that the training took.
        setting: what was trained on what, for readers; plain values by name.

    Raises:
        ConfigurationError: method "f-dp", and the claim names no mechanism.
        InputError: not 0 <= correct <= guesses <= canaries.
    """

    claim: Claim
    method: OneRunMethod
    confidence: float
    canaries: int
    guesses: int
    correct: int
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1
    scenario: ScenarioName = "gradient"

    def __post_init__(self) -> None:
        check_mechanism("f-dp", self.method, self.claim, instead="steinke")
        if not 0 <= self.correct <= self.guesses <= self.canaries or not self.guesses or self.runs != 1:
            raise InputError(
                "expected 0 <= correct <= guesses <= canaries, at least one guess and one run; got"
                f" {self.correct} of {self.guesses} of {self.canaries}, {self.runs} runs"
            )

    @cached_property
    def epsilon_lower(self) -> float:
        """What epsilon under substitution is at least."""
        counts = (self.correct, self.guesses, self.canaries)
        return min(one_run_lower_bound(*counts, self.claim.delta, self.method, **self._family()), VACUOUS)

    @cached_property
    def ceiling(self) -> float:
        """The bound if all guesses had been right."""
        return min(
            one_run_ceiling(self.guesses, self.canaries, self.claim.delta, self.method, **self._family()), VACUOUS
        )

    def _family(self) -> dict[str, Any]:
        return {"confidence": self.confidence, **self.claim.sampled()}

    def to_dict(self) -> dict[str, Any]:
        """See `Finding`."""
        return {
            **self._stated(),
            "scenario": self.scenario,
            "method": self.method,
            "claim": self.claim.to_dict(),
            "canaries": self.canaries,
            "guesses": self.guesses,
            "correct": self.correct,
            "setting": dict(self.setting),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> OneRunResult:
        """Read what `to_dict` gave; other fields are ignored.

        Raises:
            InputError: fields are missing, or a stated bound, epsilon or verdict does not follow from the counts.
        """
        names = ("method", "confidence", "canaries", "guesses", "correct", "seconds", "setting", "runs")
        try:
            found = cls(claim=Claim.from_dict(content["claim"]), **{name: content[name] for name in names})
            found.check(content)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InputError(f"canary result: {error}") from None
        return found
