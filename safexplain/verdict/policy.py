"""What counts as a leak, written down before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from safexplain._validate import check_number, check_whole, from_table, from_toml
from safexplain.errors import ConfigurationError, ConfigurationTypeError

Release = Literal["explanation", "explanation+prediction", "prediction"]
Claim = Literal["whole", "excess"]

PATIENCE = (1, 32)
"""Default numbers of queries an example; more than thirty hardly reveal more about labels (docs/evidence)."""

AVERAGING = 200
"""Additional number of queries if a release has noise, to average it out."""

MOST_TOLERATED, LEAST_EXCESS, MOST_PATIENCE = 0.9, 1e-4, 1_000_000
RANGES = {"fpr": (1e-5, 0.2), "max_tpr": (1e-5, MOST_TOLERATED), "confidence": (0.8, 1 - 1e-6)}
"""Allowed ranges."""


@dataclass(frozen=True)
class Policy:
    """What counts as a leak, and for which attacker.

    Args:
        fpr: share of non-members that the attacker may falsely identify as members.
        max_tpr: largest tolerated share of members found at that rate; chance is `fpr`.
        confidence: a false leak and a false certificate each have a probability of at most 1 - confidence.
        release: what the service releases besides the label: the explanation, the prediction (its probabilities, hence
            the loss), or both.
        claim: "excess" judges what the explanation adds to the labels (or predictions) of the same queries, by a paired
            comparison; "whole" judges all that is released together, always so if that is only the prediction.
        max_excess: for "excess": largest tolerated difference of the two true-positive rates. None: max_tpr - fpr.
        suite: names of attacks to run (such as "LikelihoodRatio"); empty: all that fit the signals.
        selection: share of the examples set aside for choosing a configuration; the verdict never uses them.
        training: share of the examples set aside to train attacks that learn. 0: they learn from reference models'
            answers about the scored examples, without the target's membership; the blind control then trains on one
            half and tests on the other.
        patience: numbers of queries about each example, each slightly different; every one is judged. By default,
            `audit` adds `AVERAGING` queries if the release has noise.
        references: smallest number of reference models for a certificate.
        uncounted: certify although earlier verdicts on the same examples cannot be counted; the certificate states it.
        reason: why this policy was chosen, for readers of the certificate.
        look, looks: number of this look at the same model, and how many were declared before the first.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value of the wrong type or out of range, or max_tpr below fpr.
    """

    fpr: float = 0.01
    max_tpr: float = 0.03
    confidence: float = 0.95
    release: Release = "explanation"
    claim: Claim = "excess"
    max_excess: float | None = None
    suite: tuple[str, ...] = ()
    selection: float = 0.0
    training: float = 0.0
    patience: tuple[int, ...] = PATIENCE
    references: int = 8
    uncounted: bool = False
    reason: str = ""
    look: int = 1
    looks: int = 1

    def __post_init__(self) -> None:
        for name in ("fpr", "max_tpr", "confidence", "max_excess", "selection", "training"):
            if (value := getattr(self, name)) is not None or name != "max_excess":
                object.__setattr__(self, name, check_number(f"policy: {name}", value))
        for name, (low, high) in RANGES.items():
            self._need(name, low <= getattr(self, name) <= high, f"a number in [{low:g}, {high:g}]")
        self._need("max_tpr", self.max_tpr >= self.fpr, f"at least fpr = {self.fpr:g}, which guessing alone reaches")
        for name, allowed in (("release", get_args(Release)), ("claim", get_args(Claim))):
            self._need(name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")
        if self.release == "prediction":
            object.__setattr__(self, "claim", "whole")
        least, most = LEAST_EXCESS, MOST_TOLERATED
        in_range = self.max_excess is None or least <= self.max_excess <= most
        self._need("max_excess", in_range, f"a number in [{least:g}, {most:g}]")
        if self.claim == "excess" and self.tolerated_excess <= 0:
            raise ConfigurationError(
                'policy: the claim "excess" needs a limit above 0: set max_excess, or max_tpr above fpr'
            )
        if isinstance(self.suite, str) or not all(isinstance(name, str) for name in self.suite):
            raise ConfigurationTypeError(f"policy: suite: expected a list of names of attacks, got {self.suite!r}")
        object.__setattr__(self, "suite", tuple(self.suite))
        if not isinstance(self.patience, Sequence) or not self.patience or isinstance(self.patience, str):
            raise ConfigurationTypeError(
                f"policy: patience: expected a list of numbers of queries, got {self.patience!r}"
            )
        levels = {check_whole("policy: patience", level, 1) for level in self.patience}
        self._need("patience", max(levels) <= MOST_PATIENCE, f"at most {MOST_PATIENCE:,} queries")
        object.__setattr__(self, "patience", tuple(sorted(levels)))
        for name in ("references", "look", "looks"):
            check_whole(f"policy: {name}", getattr(self, name), 1)
        self._need("look", self.look <= self.looks, f"at most looks = {self.looks}")
        if not isinstance(self.uncounted, bool) or not isinstance(self.reason, str):
            raise ConfigurationTypeError(
                f"policy: expected uncounted true or false and reason a text, got {self.uncounted!r}, {self.reason!r}"
            )
        for name in ("selection", "training"):
            self._need(name, 0 <= getattr(self, name) < 1, "a share in [0, 1)")
        self._need(
            "training", self.selection + self.training <= 0.9, f"0.9 or less with selection {self.selection:g}, so that"
            " enough examples are left to certify",
        )  # fmt: skip

    def _need(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigurationError(f"policy: {name}: expected {expected}, got {getattr(self, name)!r}")

    @property
    def risk(self) -> float:
        """Largest probability of either wrong verdict at this look.

        All looks share 1 - confidence (Bonferroni): the first gets half, the others equal parts of the rest.
        """
        share = 1.0 if self.looks == 1 else 0.5 if self.look == 1 else 0.5 / (self.looks - 1)
        return share * (1 - self.confidence)

    @property
    def tolerated_excess(self) -> float:
        """Largest tolerated difference under the claim "excess"."""
        return self.max_tpr - self.fpr if self.max_excess is None else self.max_excess

    @property
    def limit(self) -> float:
        """Limit of the bounds under the claim."""
        return self.max_tpr if self.claim == "whole" else self.tolerated_excess

    @property
    def weaker(self) -> tuple[str, ...]:
        """How this policy demands less than the default one."""
        default, found, most = Policy(), list[str](), max(self.patience)
        if self.claim == "excess" and self.tolerated_excess > default.tolerated_excess * (1 + 1e-9):
            found.append(f"excess {100 * self.tolerated_excess:.4g} points")
        if self.claim == "whole" and self.max_tpr > default.max_tpr * max(1.0, self.fpr / default.fpr) * (1 + 1e-9):
            found.append(f"{100 * self.max_tpr:.4g}% of members")
        if self.fpr > default.fpr:
            found.append(f"{100 * self.fpr:.4g}% false positives")
        if self.confidence < default.confidence:
            found.append(f"{100 * self.confidence:.4g}% confidence")
        if most < max(default.patience):
            found.append("asked once only" if most == 1 else f"asked {most} times at most")
        elif 1 not in self.patience:
            found.append("not asked once")
        if self.references < default.references:
            found.append(f"{self.references} reference{'' if self.references == 1 else 's'}")
        if self.suite:
            found.append(f"only {', '.join(self.suite)}")
        return tuple(found)

    @property
    def changes(self) -> str:
        """Differences from the default policy."""
        default, values = Policy().to_dict(), self.to_dict()
        changes = [f"{k} = {v}" for k, v in values.items() if k != "reason" and v != default.get(k)]
        return ", ".join(changes) or "default policy"

    def patient(self, *, noise: bool) -> Policy:
        """This policy, with `AVERAGING` added to the default patience for noise."""
        if noise and self.patience == PATIENCE:
            return replace(self, patience=(*PATIENCE, AVERAGING))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        written = {**asdict(self), "suite": list(self.suite), "patience": list(self.patience)}
        if self.looks == 1:
            del written["look"], written["looks"]
        return written

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """Read what `to_dict` wrote; `ConfigurationError` for unknown names, defaults for missing ones."""
        return from_table(cls, values, "policy")

    @classmethod
    def from_toml(cls, path: str | Path) -> Policy:
        """Read a policy from TOML: one `name = value` a line, with the names of the arguments.

        Raises:
            InputError: the file cannot be read or is not TOML.
            ConfigurationError: as `from_dict`.
        """
        return from_toml(cls, path, "policy")
