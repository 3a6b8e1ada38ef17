"""What LIME draws its samples from: a generator for each call, and the same samples for the same question."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from torch import Tensor

from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key

__all__ = ["private_copy", "seeded"]

_NUMPYS_OWN = np.random.mtrand._rand  # what LIME draws from when it is given no random_state
_PARTS = ("base", "discretizer")


def seeded(hardening: Hardening, inputs: Tensor, name: str) -> np.random.RandomState:
    """A generator that is a function of the noise key and what is explained; of that alone where there is no noise."""
    key = b"" if hardening.noise is None else resolve_key(hardening.noise.key)
    seed = query_seeds(key, inputs=inputs, method=f"{name} samples")[0]
    return np.random.RandomState(np.frombuffer(seed, dtype="<u4"))


def private_copy(explainer: Any, without: np.random.RandomState | None) -> Any:
    """A shallow copy of a LIME explainer that draws from copies of its generators, so that those never move.

    Args:
        explainer: of the lime package.
        without: what stands where the caller gave no generator.
    """
    mine = copy.copy(explainer)
    for name in _PARTS:
        if getattr(mine, name, None) is not None:
            setattr(mine, name, copy.copy(getattr(mine, name)))
    copies: dict[int, Any] = {}
    for part in (mine, *(getattr(mine, name, None) for name in _PARTS)):
        if part is not None:
            given = part.random_state
            part.random_state = without if given is None or given is _NUMPYS_OWN else copy.deepcopy(given, copies)
    return mine
