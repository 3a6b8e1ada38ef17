"""The search itself: trials one after the other, what they found on disk, and the confirmation of what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.shadows import Build, Shadows
from safexplain.audit.run import AuditOptions, Output
from safexplain.tune.tuned import Tuned
from safexplain.verdict.policy import Policy


def tune(
    model: nn.Module,
    population: Population,
    recipe: Recipe | Train | Any = None,
    *,
    member: NDArray[np.bool_],
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]],
    space: str = "default",
    trials: int = 100,
    folder: str | Path | None = None,
    public_models: Sequence[nn.Module] = (),
    output: Output = "probability",
    arguments: Mapping[str, Any] | None = None,
    build: Build | None = None,
    references: int = 16,
    shadows: Shadows | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    seed: int = 0,
    cache: ModelCache | str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Search for the release that tells least and keeps most, and have it confirmed.

    Being built: the signature stands.
    """
    raise NotImplementedError
