"""The five canaries of paper C, from the strongest adversary to the most natural one (arXiv 2511.21804, table 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from safexplain.errors import ConfigurationError

__all__ = ["SCENARIOS", "Scenario", "ScenarioName", "scenario_of"]

ScenarioName = Literal["worst-case", "gradient", "crafted", "mislabelled", "natural"]


@dataclass(frozen=True)
class Scenario:
    """A row of the table.

    Args:
        number: of the paper.
        substitutes: what stands in the record's place, in words.
        observed: what the adversary sees, in words.
    """

    number: str
    substitutes: str
    observed: str


SCENARIOS: dict[ScenarioName, Scenario] = {
    "worst-case": Scenario(
        "S1", "the opposite gradient, where all other records have none", "the sum of all noisy gradients"
    ),
    "gradient": Scenario("S2", "the opposite gradient along the parameter that moves least", "that parameter"),
    "crafted": Scenario("S3", "an input whose gradient is made to oppose the record's", "the outputs for both"),
    "mislabelled": Scenario("S4", "the same input under the label that opposes it most", "the outputs for both"),
    "natural": Scenario("S5", "another record, whose gradient opposes it most", "the outputs for both"),
}


def scenario_of(name: str) -> ScenarioName:
    """A name or the paper's number, as "gradient" or "S2".

    Raises:
        ConfigurationError: neither.
    """
    found = {row.number.lower(): key for key, row in SCENARIOS.items()}.get(name.lower(), name)
    if found not in get_args(ScenarioName):
        known = ", ".join(f"{key} ({row.number})" for key, row in SCENARIOS.items())
        raise ConfigurationError(f"scenario: expected one of {known}; got {name!r}")
    return cast(ScenarioName, found)
