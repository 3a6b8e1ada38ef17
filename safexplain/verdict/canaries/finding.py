"""From what an audit by canaries found to a verdict about a claim. No torch here: a certificate can carry it.

There are three verdicts. Trained models can refute a claim and never confirm it: what canaries did not refute is "not
refuted", with the epsilon that they would have found. "As claimed" takes the white box, which saw the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from safexplain._validate import check_follows
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.stats.detectable import Promise, promise_of

__all__ = ["EXIT_CODES", "BoundFinding", "Finding", "Verdict"]

Verdict = Literal["refuted", "not refuted", "as claimed"]

EXIT_CODES: dict[Verdict, int] = {"refuted": 1, "not refuted": 3, "as claimed": 0}
"""Exit code of the command line for each verdict."""

TOLERANCE = 5e-3
"""Versions of the accountant may differ by so much in a stated bound, absolutely and relatively."""

DETECTABLE_TOLERANCE = 0.05
"""The same for an epsilon that would have been found, relatively."""

FREE = ("clopper-pearson", "steinke")
"""Bounds that take nothing of the mechanism as given."""


class Finding(ABC):
    """What was found about a training's claim."""

    scenario: ScenarioName
    claim: Claim
    runs: int
    seconds: float
    setting: Mapping[str, Any]

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """What follows for the claim."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The verdict with its numbers."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: what outside scripts read, with what it was computed from."""

    @abstractmethod
    def check(self, content: Mapping[str, Any]) -> None:
        """Raise InputError where what is stated differs from what follows from the counts."""

    @property
    def exit_code(self) -> int:
        """0 as claimed, 1 refuted, 3 not refuted."""
        return EXIT_CODES[self.verdict]

    @property
    def seconds_per_run(self) -> float:
        """Of training and scoring."""
        return self.seconds / self.runs

    def __str__(self) -> str:
        return self.sentence

    def _stated(self) -> dict[str, Any]:
        """What every finding says of its claim."""
        claimed = {"add_remove": self.claim.add_remove, "substitute": self.claim.substitute}
        return {f"epsilon_{name}": v if v is not None and math.isfinite(v) else None for name, v in claimed.items()}


class BoundFinding(Finding):
    """A lower bound on epsilon under substitution, beside what was claimed: a `CanaryResult` or a `OneRunResult`."""

    method: str
    confidence: float

    @cached_property
    def epsilon_lower(self) -> float:
        """What epsilon under substitution is at least, for the released model; at most 500, which promises nothing."""
        return self._bound(without_errors=False)

    @cached_property
    def ceiling(self) -> float:
        """The bound if the adversary had made no error: more could not have been shown with these runs."""
        return self._bound(without_errors=True)

    @abstractmethod
    def _bound(self, *, without_errors: bool) -> float:
        """The bound, or what it would be with these runs and no error."""

    @abstractmethod
    def _detectable(self, promise: Promise) -> float | None:
        """The smallest epsilon that would have been found beyond what is promised; None: none."""

    @abstractmethod
    def _counts(self) -> dict[str, Any]:
        """What it was computed from, as plain JSON types."""

    @property
    def claimed(self) -> float:
        """The epsilon that is claimed, under the claim's own adjacency."""
        found = self.claim.add_remove if self.claim.adjacency == "add_remove" else self.claim.substitute
        assert found is not None
        return found

    @cached_property
    def detectable(self) -> float | None:
        """The smallest epsilon of a training that these canaries would have refuted in 95 of 100 audits.

        Of one with less noise than claimed, by as many runs, the same method and threshold rule, with a canary as
        strong as its errors show it to be in the training at hand (`safexplain.verdict.stats.detectable`). None: they
        would not have found even a training whose epsilon promises nothing.
        """
        c = self.claim
        promise = promise_of(self.claimed, c.delta, c.mechanism, c.adjacency, c.group)
        return None if promise is None else self._detectable(promise)

    @property
    def verdict(self) -> Verdict:
        """Refuted if the bound is above the claim, which happens to a right one in at most 1 - confidence of audits.

        A claim under add/remove is one about what a record contains, and refuted by more than it promises: nothing
        need be wrong with the training, only with promising the smaller number.
        """
        return "refuted" if self.epsilon_lower > self.claimed else "not refuted"

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        group, add_remove, substitute = self.claim.group, self.claim.add_remove, self.claim.substitute
        record = "a substituted record" if group == 1 else f"{group} substituted records"
        assumed = "" if self.method in FREE else ", if all of the mechanism but its noise is as claimed"
        found = (
            f"epsilon for {record} is at least {self.epsilon_lower:.2f}{assumed} ({self.confidence:.0%} confidence,"
            f" delta {self.claim.delta:g}); {self.claimed:.2f} is claimed"
        )
        if self.verdict == "refuted":
            if self.claim.adjacency == "add_remove" and (substitute is None or self.epsilon_lower <= substitute):
                found += " for an added or removed one, which promises nothing about what a record contains"
            return f"Refuted: {found}."
        beyond = ""
        if self.claim.adjacency == "substitute" and add_remove is not None and self.epsilon_lower > add_remove:
            beyond = f" An added or removed record's {add_remove:.2f} promises nothing about what it contains."
        if self.detectable is None:
            would = "These canaries are too weak to tell: they would not have found even a training without noise."
        else:
            would = f"A training that leaks {self.detectable:.2g} or more would have been found in 95 of 100 audits."
        return f"Not refuted: {found}.{beyond} {would}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: what outside scripts read, with what it was computed from."""
        names = ("verdict", "detectable", "runs", "seconds_per_run", "sentence", "seconds", "scenario", "method")
        return {
            "epsilon_lower": self.epsilon_lower,
            "confidence": self.confidence,
            **self._stated(),
            "ceiling": self.ceiling,
            **{name: getattr(self, name) for name in names},
            "claim": self.claim.to_dict(),
            **self._counts(),
            "setting": dict(self.setting),
        }

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise InputError where what is stated differs from what follows from the counts."""
        again, near = self.to_dict(), (TOLERANCE, TOLERANCE)
        for name in ("epsilon_lower", "ceiling", "epsilon_add_remove", "epsilon_substitute", "verdict"):
            check_follows(content[name], again[name], name, "the counts", near)
        wide = (DETECTABLE_TOLERANCE, DETECTABLE_TOLERANCE)
        check_follows(content["detectable"], self.detectable, "detectable", "the counts", wide)
