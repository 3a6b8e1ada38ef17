"""The pool that members and non-members are drawn from: one set of examples, one transform, coin flips."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from safexplain.errors import InputError


@dataclass(frozen=True, eq=False)
class Population:
    """One pool of labelled examples.

    Members and non-members of every model come from this pool by independent coin flips and meet the same code
    afterwards, so that nothing but training can tell them apart.

    Args:
        x: (n, ...) float32 inputs, as the model takes them.
        y: (n,) int64 labels.

    Raises:
        InputError: sizes differ, fewer than 2 classes, a negative label, or NaN or infinity in x.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dim() < 2 or self.y.shape != self.x.shape[:1]:
            raise InputError(f"expected x (n, ...) and y (n,), got {tuple(self.x.shape)} and {tuple(self.y.shape)}")
        if not bool(torch.isfinite(self.x).all()):
            raise InputError("x holds NaN or infinity; clean or drop those rows first")
        if bool((self.y < 0).any()):
            raise InputError(f"labels are class indices from 0, got {int(self.y.min())}")
        if len(torch.unique(self.y)) < 2:
            raise InputError(
                f"y has one class only ({self.y[:1].tolist()}); membership needs a task that can be learned"
            )

    @classmethod
    def of(cls, x: ArrayLike, y: ArrayLike) -> Population:
        """From arrays of any numeric type: x becomes float32, y int64 (whole numbers only)."""
        labels = np.asarray(y)
        if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
            raise InputError("labels must be whole numbers, the indices of classes")
        return cls(torch.as_tensor(np.asarray(x, dtype=np.float32)), torch.as_tensor(labels.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.y.max()) + 1

    def flip(self, models: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models, (models, n) bool: independent fair coin flips."""
        return np.random.default_rng([seed, 0xF11B]).random((models, len(self))) < 0.5

    def digest(self) -> str:
        """SHA-256 of the arrays, as hex."""
        h = hashlib.sha256()
        for t in (self.x, self.y):
            a = np.ascontiguousarray(t.cpu().numpy())
            h.update(f"{a.dtype}{a.shape}".encode())
            h.update(a.tobytes())
        return h.hexdigest()
