"""What a training claims, and the verdict of an audit by canaries about it. No torch.

Trained models can refute a claim but never confirm it; "as claimed" needs the white box, which watches the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast, get_args

from safexplain._privacy_loss import Adjacency, Epsilons, Steps, check_adjacency, check_delta, composed
from safexplain._validate import from_table
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.privacy_statement import PrivacyStatement

__all__ = ["EXIT_CODES", "SCENARIOS", "Claim", "Finding", "ScenarioName", "Verdict", "scenario_of"]


@dataclass(frozen=True)
class Claim:
    """A claimed mechanism and its epsilon.

    Args:
        mechanism: claimed steps of the sampled Gaussian mechanism; None: unknown, which requires `epsilon` and a method
            for bounds without a mechanism.
        delta: in [1e-12, 1).
        epsilon: claimed for one record; None: computed by the accountant from the mechanism.
        adjacency: of the claimed epsilon, "substitute" or "add_remove".

    Raises:
        ConfigurationError: neither mechanism nor epsilon is given, or a value is out of range.
    """

    mechanism: Steps | None
    delta: float
    epsilon: float | None = None
    adjacency: Adjacency = "substitute"

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_delta(self.delta)
        if self.adjacency == "zero_out":
            raise ConfigurationError(
                'adjacency: expected "substitute" or "add_remove", because canaries substitute records; got "zero_out"'
            )
        if self.mechanism is None and self.epsilon is None:
            raise ConfigurationError("a claim needs a mechanism (noise multiplier, rate, steps) or an epsilon")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigurationError(f"epsilon: expected a finite number above 0, got {self.epsilon!r}")

    @classmethod
    def of(cls, statement: PrivacyStatement, adjacency: Adjacency = "substitute") -> Claim:
        """The claim of a training's privacy statement; raises `ConfigurationError` unless it has one phase."""
        if len(statement.phases) != 1:
            raise ConfigurationError(
                f"expected a statement with one phase of training, got {len(statement.phases)}; pass"
                " Claim(None, delta, epsilon) to audit the epsilon alone"
            )
        return cls(statement.phases[0], statement.delta, adjacency=adjacency)

    @cached_property
    def accounted(self) -> Epsilons | None:
        """The mechanism's epsilons by the accountant; None: the mechanism is unknown."""
        return None if self.mechanism is None else composed([self.mechanism], self.delta)

    @property
    def add_remove(self) -> float | None:
        """Epsilon for one record added or removed: as claimed, otherwise as accounted; None: unknown."""
        return self._of("add_remove")

    @property
    def substitute(self) -> float | None:
        """The same for one record substituted."""
        return self._of("substitute")

    def _of(self, adjacency: Adjacency) -> float | None:
        if self.epsilon is not None and self.adjacency == adjacency:
            return self.epsilon
        return None if self.accounted is None else self.accounted.of(adjacency)

    def after(self, steps: int) -> Claim:
        """The claim about a model released after this many steps, with its epsilon by the accountant."""
        if self.mechanism is None or steps == self.mechanism.steps:
            return self
        return replace(self, mechanism=replace(self.mechanism, steps=steps), epsilon=None)

    def sampled(self) -> dict[str, Any]:
        """The mechanism's arguments for bounds: all but the noise, which they test."""
        of_steps = {} if self.mechanism is None else asdict(self.mechanism)
        return {k: v for k, v in of_steps.items() if k != "noise_multiplier"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read what `to_dict` wrote; raises `InputError` if it is not a claim."""
        try:
            return from_table(cls, content, "claim")
        except ConfigurationError as error:
            raise InputError(str(error)) from None


ScenarioName = Literal["worst-case", "gradient", "crafted", "mislabelled", "natural", "outlier", "white-box"]


SCENARIOS: dict[ScenarioName, str | None] = {
    "worst-case": "S1",
    "gradient": "S2",
    "crafted": "S3",
    "mislabelled": "S4",
    "natural": "S5",
    "outlier": None,
    "white-box": None,
}
"""Canary -> its number in the paper; None: not in the paper. docs/canaries.md describes each."""


def scenario_of(name: str) -> ScenarioName:
    """The canary of a name or number, as "gradient" or "S2"; raises `ConfigurationError` if there is none."""
    numbers = {number.lower(): key for key, number in SCENARIOS.items() if number}
    found = numbers.get(name.lower(), name)
    if found not in get_args(ScenarioName):
        known = ", ".join(f"{key} ({number})" if number else key for key, number in SCENARIOS.items())
        raise ConfigurationError(f"scenario: expected one of {known}; got {name!r}")
    return cast(ScenarioName, found)


Verdict = Literal["refuted", "not refuted", "as claimed"]

EXIT_CODES: dict[Verdict, int] = {"refuted": 1, "not refuted": 3, "as claimed": 0}
"""Exit code of the command line for each verdict."""

TOLERANCE = 5e-3
"""Absolute and relative difference of a stated bound that is allowed between versions of the accountant."""


class Finding(ABC):
    """The result of an audit about a training's claim."""

    scenario: ScenarioName
    claim: Claim
    runs: int
    seconds: float
    setting: Mapping[str, Any]

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """The verdict about the claim."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The verdict with its numbers."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: results for scripts, with the counts behind them."""

    @abstractmethod
    def check(self, content: Mapping[str, Any]) -> None:
        """Raise `InputError` if a stated value does not follow from the counts."""

    @property
    def claimed(self) -> float:
        """The claimed epsilon, under the claim's adjacency."""
        found = self.claim.add_remove if self.claim.adjacency == "add_remove" else self.claim.substitute
        assert found is not None
        return found

    @property
    def exit_code(self) -> int:
        """0 as claimed, 1 refuted, 3 not refuted."""
        return EXIT_CODES[self.verdict]

    @property
    def seconds_per_run(self) -> float:
        """Time of training and scoring a run."""
        return self.seconds / self.runs

    def __str__(self) -> str:
        return self.sentence

    def _stated(self) -> dict[str, Any]:
        """The claimed epsilons; None: unknown or infinite."""
        claimed = {"add_remove": self.claim.add_remove, "substitute": self.claim.substitute}
        return {f"epsilon_{name}": v if v is not None and math.isfinite(v) else None for name, v in claimed.items()}
