"""What was seen of a training's steps, check by check, and what follows for its claim. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safexplain.verdict.canaries.claim import Claim


@dataclass(frozen=True)
class Check:
    """One thing that the claimed mechanism promises of its steps.

    Args:
        name: of the check.
        found: what was seen, a number; None: it could not be checked.
        allowed: the most that it may be.
        says: what was seen, in words.
    """

    name: str
    found: float | None
    allowed: float
    says: str

    @property
    def passed(self) -> bool | None:
        """Whether no more was found than is allowed; None: it could not be checked."""
        return None if self.found is None else self.found <= self.allowed


@dataclass(frozen=True)
class WhiteBoxResult:
    claim: Claim
    checks: tuple[Check, ...]
    runs: int
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        passed = [check.passed for check in self.checks]
        return "refuted" if False in passed else "not refuted" if None in passed else "as claimed"
