"""What a training claims, and the verdict of an audit by canaries about it. No torch.

The five canaries of paper C range from the strongest adversary to the most natural one (arXiv 2511.21804, table 1); two
more find bugs of training loops that those miss. Trained models can refute a claim but never confirm it: the best they
reach is "not refuted", with the epsilon that they would have detected. "As claimed" needs the white box, which watches
the steps.
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
    """A mechanism and the epsilon that is promised for it.

    Args:
        mechanism: steps of the sampled Gaussian mechanism that the training is said to take; None where it is not
            known: then `epsilon` is needed, and bounds that need no mechanism.
        delta: in [1e-12, 1).
        epsilon: as promised for one record; None: as the accountant finds for the mechanism.
        adjacency: under which it is promised, "substitute" or "add_remove".

    Raises:
        ConfigurationError: neither mechanism nor epsilon, or a value out of range.
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
                'adjacency: canaries substitute records; expected "substitute" or "add_remove", got "zero_out", whose'
                " epsilon says no more about substitution than add_remove's"
            )
        if self.mechanism is None and self.epsilon is None:
            raise ConfigurationError("a claim needs the mechanism (its noise multiplier, rate, steps), or an epsilon")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigurationError(f"epsilon: expected a finite number above 0, got {self.epsilon!r}")

    @classmethod
    def of(cls, statement: PrivacyStatement, adjacency: Adjacency = "substitute") -> Claim:
        """The claim that a training's statement makes.

        Raises:
            ConfigurationError: it is of several phases, or of another mechanism than noisy sums of gradients.
        """
        if len(statement.phases) != 1:
            raise ConfigurationError(
                f"a statement of one phase of training can be audited, got one of {len(statement.phases)}; give"
                " Claim(None, delta, epsilon) to audit the epsilon alone"
            )
        return cls(statement.phases[0], statement.delta, adjacency=adjacency)

    @cached_property
    def accounted(self) -> Epsilons | None:
        """What the accountant finds for the mechanism, under each adjacency; None where it is not known."""
        return None if self.mechanism is None else composed([self.mechanism], self.delta)

    @property
    def add_remove(self) -> float | None:
        """Epsilon for one record more or less: as promised, otherwise as accounted; None: not known."""
        return self._of("add_remove")

    @property
    def substitute(self) -> float | None:
        """Epsilon for one record substituted: as promised, otherwise as accounted; None: not known."""
        return self._of("substitute")

    def _of(self, adjacency: Adjacency) -> float | None:
        if self.epsilon is not None and self.adjacency == adjacency:
            return self.epsilon
        return None if self.accounted is None else self.accounted.of(adjacency)

    def after(self, steps: int) -> Claim:
        """The claim about a model that is released after so many steps; a promised epsilon is for all of them."""
        if self.mechanism is None or steps == self.mechanism.steps:
            return self
        return replace(self, mechanism=replace(self.mechanism, steps=steps), epsilon=None)

    def sampled(self) -> dict[str, Any]:
        """The arguments that bounds take of the mechanism, whose noise they put to the test."""
        of_steps = {} if self.mechanism is None else self.mechanism.to_dict()
        return {k: v for k, v in of_steps.items() if k != "noise_multiplier"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"mechanism": None if self.mechanism is None else self.mechanism.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read what `to_dict` gave; InputError: it is not such a claim."""
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
"""The paper's number of each; None: not in the paper. docs/canaries.md says what stands in the record's place."""


def scenario_of(name: str) -> ScenarioName:
    """A name or the paper's number, as "gradient" or "S2"; ConfigurationError: neither."""
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
