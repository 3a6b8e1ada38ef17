"""What is audited: pools of examples with their models, the plan, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from safexplain.audit import Population, Queries, Shadows
from safexplain.audit.report.model import Configuration
from safexplain.cli.release import Method
from safexplain.hardening.hardening import Hardening
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.policy import Policy
from safexplain.verdict.privacy_statement import PrivacyStatement

QUERIES = Queries(repeats=1, near=2)
"""What the command line asks beside the plain query; each near-duplicate costs as much as the plain one."""


@dataclass(frozen=True, eq=False)
class Pool:
    """A population and the models over it, the target first.

    Args:
        population: the examples.
        shadows: models and membership; model 0 is the target.
        untrained: a model like the target before training, for the null control where references are few.
    """

    population: Population
    shadows: Shadows
    untrained: nn.Module | None = None

    @property
    def null(self) -> tuple[int, ...]:
        """Index of the untrained model among `asked`."""
        return () if self.untrained is None else (len(self.shadows.models),)

    @property
    def asked(self) -> Shadows:
        """The models that are asked: all, and last the untrained one, which has no members."""
        if self.untrained is None:
            return self.shadows
        nobody = np.zeros((1, len(self.population)), dtype=bool)
        return Shadows((*self.shadows.models, self.untrained), np.concatenate([self.shadows.membership, nobody]))


@dataclass(frozen=True, eq=False)
class Plan:
    """What is audited and how.

    Args:
        title: for the report.
        method: what is explained.
        name: of the hardening: recommended, custom or native.
        hardening: of the released explanations.
        policy: what counts as a leak.
        seed: of everything random; also makes the audit's own noise key.
        batch_size: examples an explanation call.
        queries: what is asked about each example beside the plain query, of hardened releases.
        classes: that are explained beside the predicted one.
        recipe: how reference models were trained, in words or TOML.
        force: judge although the examples were used for another verdict.
        subject: name -> {algorithm: digest} of the audited models; empty: digests of their parameters.
        materials: name -> digest, for provenance.
        notes: caveats for the reader.
        privacy: the guarantee of the model's training, if it was differentially private.
        canaries: what canaries found about that training, if they were trained.
    """

    title: str
    method: Method
    name: str
    hardening: Hardening
    policy: Policy
    seed: int
    batch_size: int = 256
    queries: Queries = QUERIES
    classes: tuple[int, ...] = ()
    recipe: str = ""
    force: bool = False
    subject: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    materials: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    privacy: PrivacyStatement | None = None
    canaries: Finding | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came out: configurations in the report's order (the last one is judged), and the files."""

    configurations: tuple[Configuration, ...]
    folder: Path
    notes: tuple[str, ...]
    files: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the judged configuration's result at the top level."""
        judged = self.configurations[-1]
        return {
            **judged.result.to_dict(),
            "configuration": judged.name,
            "utility": judged.utility.to_dict() if judged.utility else None,
            "compared": {c.name: c.result.to_dict() for c in self.configurations[:-1]},
            "notes": list(self.notes),
            "run_dir": str(self.folder),
            "files": dict(self.files),
        }
