"""The policy from the command line: a file, and options that go before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from safexplain.audit import Policy
from safexplain.errors import ConfigurationError

PolicyFile = Annotated[Path | None, typer.Option("--policy", help="TOML file; the options below go before it.")]
PolicyFpr = Annotated[
    float | None, typer.Option(help="False-positive rate at which members are counted.  [default: 0.01]")
]
MaxTpr = Annotated[float | None, typer.Option(help="Largest tolerated share of members found.  [default: 0.03]")]
Confidence = Annotated[float | None, typer.Option(help="Of the verdict as a whole.  [default: 0.95]")]
Released = Annotated[str | None, typer.Option(help="explanation, or explanation+prediction.")]
ClaimOf = Annotated[str | None, typer.Option(help="whole, or excess: what the explanation adds.")]
MaxExcess = Annotated[float | None, typer.Option(help="Tolerated excess.  [default: max-tpr - policy-fpr]")]
Attacks = Annotated[str | None, typer.Option(help="Names of attacks, separated by commas; default all that fit.")]


def policy_of(
    file: Path | None,
    fpr: float | None,
    max_tpr: float | None,
    confidence: float | None,
    release: str | None,
    claim: str | None,
    max_excess: float | None,
    attacks: str | None,
) -> Policy:
    """The policy of the file, or the default one, with the options that were given.

    Raises:
        InputError, ConfigurationError: as `Policy`.
    """
    given: dict[str, Any] = {
        "fpr": fpr,
        "max_tpr": max_tpr,
        "confidence": confidence,
        "release": release,
        "claim": claim,
        "max_excess": max_excess,
        "suite": None if attacks is None else tuple(name.strip() for name in attacks.split(",") if name.strip()),
    }
    values = {name: value for name, value in given.items() if value is not None}
    if attacks is not None and not values["suite"]:
        raise ConfigurationError("--attacks takes names of attacks separated by commas, got nothing")
    start = Policy() if file is None else Policy.from_toml(file)
    return replace(start, **values)
