"""From a lower bound on epsilon to a verdict about a claim. No torch here: a certificate can carry it.

A bound above the claim refutes it, however few the runs. A bound below it speaks for the claim only if the audit had
the power to find otherwise: at least `POWER` against a training that spends twice the claim.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal, get_args

from safexplain._validate import check_follows
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.stats.bound_power import Excess, excess_over

__all__ = ["Finding", "Verdict"]

Verdict = Literal[
    "consistent with substitute",
    "violates add/remove as a claim about records or attributes",
    "violates the claim: a bug",
    "inconclusive: weak canary",
]

_CONSISTENT, _ADD_REMOVE, _BUG, _INCONCLUSIVE = get_args(Verdict)

_MEANING: dict[Verdict, str] = {
    "consistent with substitute": "Nothing speaks against the claim.",
    "violates add/remove as a claim about records or attributes": (
        "That is within the epsilon of a substituted record; the epsilon of an added or removed one promises nothing"
        " about what a record, its label or its attributes are."
    ),
    "violates the claim: a bug": (
        "No training with this guarantee does that: its noise, clipping, sampling or accounting is wrong."
    ),
    "inconclusive: weak canary": "That speaks neither for the claim nor against it.",
}

POWER = 0.8
"""Least power with which a claim that was not refuted is called kept."""

TOLERANCE = 5e-3
"""Versions of the accountant may differ by so much in a stated bound, absolutely and relatively."""

POWER_TOLERANCE = 0.02
"""The same for a stated power, absolutely."""

FREE = ("clopper-pearson", "steinke")
"""Bounds that take nothing of the mechanism as given."""


_STATED = (
    "epsilon_lower", "confidence", "epsilon_add_remove", "epsilon_substitute", "ceiling", "verdict", "power", "runs",
    "seconds_per_run", "keeps_claim", "sentence", "seconds", "scenario", "method",
)  # fmt: skip


class Finding(ABC):
    """A lower bound on epsilon under substitution, beside what was claimed: a `CanaryResult` or a `OneRunResult`."""

    scenario: ScenarioName
    claim: Claim
    method: str
    confidence: float
    runs: int
    seconds: float
    setting: Mapping[str, Any]

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
    def _power_of(self, times: float) -> float:
        """The power of so many times the runs, errors in the same proportion."""

    @abstractmethod
    def _advice(self) -> str:
        """How many runs, or what else, would give the power that is missing."""

    @cached_property
    def power(self) -> float:
        """Probability that such an audit refutes the claim where the training spends twice as much, in [0, 1].

        As many runs, by the same method and threshold rule, with this canary as strong as its errors show it to be in
        the training at hand (`safexplain.verdict.stats.bound_power`). 0 where the claim promises nothing.
        """
        return self._power_of(1.0)

    @property
    def _excess(self) -> Excess | None:
        """The training that spends twice the claim, in the adjacency in which it is made; None: nothing is promised."""
        c = self.claim
        claimed = c.add_remove if c.adjacency == "add_remove" else c.substitute
        assert claimed is not None
        return excess_over(claimed, c.delta, c.mechanism, c.adjacency, c.group)

    @property
    def verdict(self) -> Verdict:
        """What the released models show.

        A bug: more than the epsilon of a substituted record, as at most 1 - confidence of the audits of a correct
        training say. Otherwise, a violation of add/remove: more than the epsilon of an added or removed record;
        nothing need be wrong with the training, only with promising the smaller number for what records contain.
        Otherwise consistent if twice the claim would have been found with a power of `POWER`, or inconclusive.
        """
        lower, substitute, add_remove = self.epsilon_lower, self.claim.substitute, self.claim.add_remove
        if substitute is not None and lower > substitute:
            return "violates the claim: a bug"
        if add_remove is not None and lower > add_remove:
            return "violates add/remove as a claim about records or attributes"
        return "consistent with substitute" if self.power >= POWER else "inconclusive: weak canary"

    @property
    def keeps_claim(self) -> bool | None:
        """Whether the claim stands, under the adjacency in which it was made; None: the runs do not tell.

        More than add/remove promises refutes a claim under add/remove. A claim under substitution is not touched by
        it, and kept if the audit had the power to find twice of it.
        """
        if self.verdict == _BUG or (self.verdict == _ADD_REMOVE and self.claim.adjacency == "add_remove"):
            return False
        return True if self.power >= POWER else None

    @property
    def exit_code(self) -> int:
        """0 the claim is kept, 1 it is violated, 3 inconclusive."""
        return {True: 0, False: 1, None: 3}[self.keeps_claim]

    @property
    def seconds_per_run(self) -> float:
        """Of training and scoring."""
        return self.seconds / self.runs

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        both = {"a substituted record": self.claim.substitute, "an added or removed one": self.claim.add_remove}
        claimed = [f"{value:.2f} for {what}" for what, value in both.items() if value is not None]
        assumed = "" if self.method in FREE else ", if all of the mechanism but its noise is as claimed"
        group = self.claim.group
        record = "a substituted record" if group == 1 else f"{group} substituted records"
        return (
            f"Epsilon for {record} is at least {self.epsilon_lower:.2f}{assumed}"
            f" ({self.confidence:.0%} confidence, delta {self.claim.delta:g}; at most {self.ceiling:.2f} could have"
            f" been shown); claimed are {' and '.join(claimed)}. {_MEANING[self.verdict]}{self._about_power()}"
        )

    def _about_power(self) -> str:
        """What the verdict is worth, where it is not a proven violation."""
        if self.keeps_claim is False:
            return ""
        claimed = max(n for n in (self.claim.substitute, self.claim.add_remove) if n is not None)
        if claimed == 0:
            return " The claimed epsilon is 0 at this delta: nothing can be found that would be twice as much."
        share = f" This canary showed {self.epsilon_lower / claimed:.0%} of what is claimed;"
        found = "if it is as strong as it looks, it would have found twice the claim with a probability of"
        if self.keeps_claim:
            return f"{share} {found} {_percent(self.power)}."
        whether = "" if self.verdict == _INCONCLUSIVE else " Whether the claim is kept remains open."
        missing = f"only {_percent(self.power)}, of {POWER:.0%} that a verdict needs"
        return f"{whether}{share} {found} {missing}. {self._advice()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: what outside scripts read, with what it was computed from."""
        claimed = {f"epsilon_{name}": _finite(getattr(self.claim, name)) for name in ("add_remove", "substitute")}
        content = {name: claimed[name] if name in claimed else getattr(self, name) for name in _STATED}
        content["claim"] = self.claim.to_dict()
        counts = {k: v for k, v in asdict(self).items() if k not in {*content, "setting"}}  # type: ignore[call-overload]
        for at in counts.get("errors", ()):
            at["threshold"] = at["threshold"] if math.isfinite(at["threshold"]) else str(at["threshold"])
        return content | {k: [*v] if k == "errors" else v for k, v in counts.items()} | {"setting": dict(self.setting)}

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise InputError where what is stated differs from what follows from the counts."""
        again, near = self.to_dict(), (TOLERANCE, TOLERANCE)
        for name in ("epsilon_lower", "ceiling", "epsilon_add_remove", "epsilon_substitute", "verdict"):
            check_follows(content[name], again[name], name, "the counts", near)
        check_follows(content["power"], self.power, "power", "the counts", (0.0, POWER_TOLERANCE))

    def __str__(self) -> str:
        return self.sentence


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _percent(share: float) -> str:
    """Rounded down, so that what is too little never reads as enough."""
    return f"{math.floor(100 * share + 1e-9)}%"
