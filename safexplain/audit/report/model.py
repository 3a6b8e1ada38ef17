"""What a report is made of: attacked configurations, example pictures, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.root_cause import Ablation
from safexplain.audit.usefulness import Utility
from safexplain.errors import InputError
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.privacy_statement import PrivacyStatement
from safexplain.verdict.result import AuditResult

NATIVE, ENDPOINT = "native", "endpoint"
"""Names of releases: explanations as they are; what a service answers, of which no native explanation is known."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """One way of releasing explanations, and what the attacks found in it.

    Args:
        name: short, such as "native", "recommended" or "custom".
        description: the hardening as it would be written in Python.
        result: of the audit.
        utility: agreement with the native explanation; None for the native one.
        says: what is released, in words.

    Raises:
        InputError: no attack on the explanation was run, so there is nothing to report; unless predictions alone are
            released.
    """

    name: str
    description: str
    result: AuditResult
    utility: Utility | None = None
    says: str = ""

    def __post_init__(self) -> None:
        alone = self.result.policy.release == "prediction"
        if not (alone or any("explanation" in a.role for a in self.result.attacks)):
            raise InputError(
                f"configuration {self.name!r} has no attack on the explanation, so nothing can be judged;"
                " audit signals of the explanation (l1, l2, variance or attributions)"
            )


@dataclass(frozen=True, eq=False)
class Pictures:
    """A few examples with their explanations, as images.

    Args:
        images: (k, c, h, w) in [0, 1] with c = 1 (grey) or 3 (RGB), or None.
        native: (k, c', h, w) attributions; channels are summed for display.
        released: (k, c', h, w), the same examples hardened, or None.
        captions: k texts.

    Raises:
        InputError: shapes disagree, or c is neither 1 nor 3.
    """

    images: NDArray[np.floating[Any]] | None
    native: NDArray[np.floating[Any]]
    released: NDArray[np.floating[Any]] | None
    captions: tuple[str, ...]

    def __post_init__(self) -> None:
        native, released, images = self.native, self.released, self.images
        if native.ndim != 4 or native.size == 0:
            raise InputError(f"native maps must be of shape (k, channels, height, width), got {native.shape}")
        if released is not None and released.shape != native.shape:
            raise InputError(
                f"released maps must have the shape of the native ones {native.shape}, got {released.shape}"
            )
        if images is not None and (images.ndim != 4 or len(images) != len(native) or images.shape[1] not in (1, 3)):
            raise InputError(f"images must be of shape ({len(native)}, 1 or 3, height, width), got {images.shape}")
        if len(self.captions) != len(native):
            raise InputError(f"expected one caption for each of {len(native)} examples, got {len(self.captions)}")


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything that a report shows.

    Args:
        title: what was audited, such as "digits MLP".
        explainer: which explanation is released, in words.
        configurations: at least one; the verdict of the last one is the verdict of the report, the ones before it
            are shown for comparison.
        provenance: rows of the provenance table, in order; a row named "command" is also shown as the way to
            reproduce the audit.
        pictures: of image data.
        notes: warnings and caveats, shown beside the verdict.
        root_cause: what the attacks find in versions of the native map; None or empty: left out.
        root_cause_sentence: what follows; "": the sentence of `ablation.sentence`.
        privacy: the guarantee of the model's training; None: none is stated.
        canaries: what canaries found about that training; None: none were trained.
        keyed: whether the release has noise with a key, which reference models do not have.
        subject_data: whose membership was attacked, a name in `SUBJECT_DATA` of `safexplain.verdict.certificate.write`;
            None: the model was trained once.
        endpoint: URL of the service whose answers were attacked, without its model being seen; None: there is none.

    Raises:
        InputError: there is no configuration.
    """

    title: str
    explainer: str
    configurations: tuple[Configuration, ...]
    provenance: Mapping[str, str]
    pictures: Pictures | None = None
    notes: tuple[str, ...] = ()
    root_cause: tuple[Ablation, ...] | None = None
    root_cause_sentence: str = ""
    privacy: PrivacyStatement | None = None
    canaries: Finding | None = None
    keyed: bool = False
    subject_data: str | None = None
    endpoint: str | None = None

    def __post_init__(self) -> None:
        if not self.configurations:
            raise InputError("a report needs at least one audited configuration, got none")

    @property
    def audited(self) -> Configuration:
        """The configuration whose verdict is the verdict of the report."""
        return self.configurations[-1]
