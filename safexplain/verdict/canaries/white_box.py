"""What was seen of a training's steps, check by check, and what follows for its claim. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from safexplain._privacy_loss import VACUOUS, epsilon_of
from safexplain._validate import check_follows, from_table
from safexplain.errors import InputError
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.finding import TOLERANCE, Finding, Verdict

__all__ = ["Check", "WhiteBoxResult"]

SCALES = ("sensitivity", "size of the noise")
"""Checks that find a factor by which a step is less private than claimed."""


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

    def __post_init__(self) -> None:
        if self.found is not None and not math.isfinite(self.found):
            raise InputError(f"check {self.name!r}: expected a finite number, got {self.found}")

    @property
    def passed(self) -> bool | None:
        """Whether no more was found than is allowed; None: it could not be checked."""
        return None if self.found is None else bool(self.found <= self.allowed)


@dataclass(frozen=True)
class WhiteBoxResult(Finding):
    """What `WhiteBox` saw of a training.

    Args:
        claim: of the training, with its mechanism.
        checks: in the order in which they were made.
        runs: trainings that were watched.
        seconds: that they took.
        setting: what was trained on what, for readers.

    Raises:
        InputError: no checks or runs, or a claim without a mechanism.
    """

    claim: Claim
    checks: tuple[Check, ...]
    runs: int
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)
    scenario: ScenarioName = "white-box"

    def __post_init__(self) -> None:
        if not self.checks or self.runs < 1 or self.claim.mechanism is None:
            raise InputError("a white box's result: expected checks, runs, and a claim with its mechanism")

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that found what the mechanism does not allow."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def open(self) -> tuple[Check, ...]:
        """Checks that could not be made."""
        return tuple(check for check in self.checks if check.passed is None)

    @property
    def verdict(self) -> Verdict:
        """Refuted if a check failed, as claimed if all passed; not refuted if one could not be made."""
        return "refuted" if self.failed else "not refuted" if self.open else "as claimed"

    @property
    def epsilon_seen(self) -> float | None:
        """Epsilon, under the claim's adjacency, of steps that are all like the worst that was seen; at most 500.

        None where no factor says how much worse than claimed it is, as where the model depends on a record by more than
        the noisy sums: no noise hides that, so that no epsilon follows.
        """
        mechanism = self.claim.mechanism
        assert mechanism is not None
        if any(check.name not in SCALES for check in self.failed):
            return None
        worse = math.prod(max(1.0, check.found or 1.0) for check in self.checks if check.name in SCALES)
        like = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / worse)
        return min(epsilon_of([like], self.claim.delta, self.claim.adjacency), VACUOUS)

    @property
    def sentence(self) -> str:
        """The verdict with what it rests on."""
        if self.failed:
            seen = self.epsilon_seen
            much = f". With steps like the worst seen, epsilon is {seen:.3g}, not {self.claimed:.3g}" if seen else ""
            return f"Refuted: {'; '.join(check.says for check in self.failed)}{much}."
        if self.open:
            return f"Not refuted, and not confirmed: {'; '.join(check.says for check in self.open)}."
        return (
            f"As claimed: all {len(self.checks)} checks of the steps of {self.runs} trainings passed; epsilon is"
            f" {self.claimed:.3g} under {self.claim.adjacency} (delta {self.claim.delta:g})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: what outside scripts read, with what it was computed from."""
        names = ("verdict", "epsilon_seen", "runs", "seconds_per_run", "sentence", "seconds", "scenario")
        return {
            **self._stated(),
            **{name: getattr(self, name) for name in names},
            "claim": self.claim.to_dict(),
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
            "setting": dict(self.setting),
        }

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise InputError where what is stated differs from what follows from the checks."""
        again = self.to_dict()
        for name in ("verdict", "epsilon_add_remove", "epsilon_substitute", "epsilon_seen"):
            check_follows(content[name], again[name], name, "the checks", (TOLERANCE, TOLERANCE))
        for stated, check in zip(content["checks"], self.checks, strict=True):
            check_follows(stated["passed"], check.passed, f"check {check.name!r}", "its numbers", (0.0, 0.0))


def white_box_of(content: Mapping[str, Any]) -> WhiteBoxResult:
    """What `to_dict` gave; what can be derived is not read."""
    rows = [{k: row[k] for k in ("name", "found", "allowed", "says")} for row in content["checks"]]
    checks = tuple(from_table(Check, row, "check") for row in rows)
    claim = Claim.from_dict(content["claim"])
    return WhiteBoxResult(claim, checks, content["runs"], content["seconds"], dict(content["setting"]))
