"""The contents of a report: attacked configurations, example pictures, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.report.root_cause import Ablation
from safexplain.audit.usefulness import Utility
from safexplain.verdict.canaries.result import Finding
from safexplain.verdict.privacy_statement import PrivacyStatement
from safexplain.verdict.result import AuditResult
from safexplain.verdict.words import limits

NATIVE, ENDPOINT = "native", "endpoint"
"""Names of releases: the native explanations; the answers of a service, whose native explanations are unknown."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """A release of explanations, and what the attacks found in it."""

    name: str  # such as "native", "recommended" or "custom"
    description: str  # the hardening in Python
    result: AuditResult
    utility: Utility | None = None  # agreement with the native explanation; None for the native one itself
    says: str = ""  # the released content, in words


@dataclass(frozen=True, eq=False)
class Pictures:
    """A few examples with their explanations, as images."""

    images: NDArray[np.floating[Any]] | None  # (k, c, h, w) in [0, 1] with c = 1 (grey) or 3 (RGB)
    native: NDArray[np.floating[Any]]  # (k, c', h, w) attributions; channels are summed for display
    released: NDArray[np.floating[Any]] | None  # (k, c', h, w), the same examples hardened
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything that a report shows."""

    title: str  # what was audited, such as "digits MLP"
    explainer: str  # the released explanation, in words
    configurations: tuple[Configuration, ...]
    """At least one. The last one is judged; the others are shown for comparison."""
    provenance: Mapping[str, str]  # rows of that table, in order; the one named "command" reproduces the audit
    pictures: Pictures | None = None
    notes: tuple[str, ...] = ()  # warnings and caveats, shown with the verdict
    root_cause: tuple[Ablation, ...] = ()  # what the attacks find in versions of the native map
    root_cause_sentence: str = ""  # the conclusion from these
    privacy: PrivacyStatement | None = None  # the guarantee of the model's training
    canaries: Finding | None = None  # the result of canaries on that training
    keyed: bool = False  # whether the release adds noise under a key that reference models do not have
    subject_data: str | None = None
    """The data whose members were attacked, a name in `verdict.certificate.write.SUBJECT_DATA`; None: trained once."""
    endpoint: str | None = None  # URL of the service whose answers were attacked without access to its model

    @property
    def audited(self) -> Configuration:
        """The configuration that is judged."""
        return self.configurations[-1]

    @property
    def limits(self) -> tuple[tuple[str, str], ...]:
        """What the audit does not show, each a headline and a sentence."""
        return limits(self.audited.result, keyed=self.keyed, endpoint=self.endpoint is not None)
