"""From what an audit by canaries found to a verdict about a claim. No torch here: a certificate can carry it.

There are three verdicts. Trained models can refute a claim and never confirm it: what canaries did not refute is "not
refuted", with the epsilon that they would have found. "As claimed" takes the white box, which saw the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from safexplain.verdict.canaries.claim import Claim, ScenarioName

__all__ = ["EXIT_CODES", "Finding", "Verdict"]

Verdict = Literal["refuted", "not refuted", "as claimed"]

EXIT_CODES: dict[Verdict, int] = {"refuted": 1, "not refuted": 3, "as claimed": 0}
"""Exit code of the command line for each verdict."""

TOLERANCE = 5e-3
"""Versions of the accountant may differ by so much in a stated bound, absolutely and relatively."""


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
    def claimed(self) -> float:
        """The epsilon that is claimed, under the claim's own adjacency."""
        found = self.claim.add_remove if self.claim.adjacency == "add_remove" else self.claim.substitute
        assert found is not None
        return found

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
