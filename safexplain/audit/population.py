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
        groups: (n,) int64, equal for examples that belong together, such as records of one person or near-copies of
            one image: one coin is flipped for each group. None: each example stands for itself.

    Raises:
        InputError: sizes differ, fewer than 2 classes, a negative label, or NaN or infinity in x.
    """

    x: Tensor
    y: Tensor
    groups: NDArray[np.int64] | None = None

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
        if self.groups is not None and (self.groups.shape != (len(self.y),) or self.groups.dtype != np.int64):
            raise InputError(
                f"groups must be int64 of shape ({len(self.y)},), one number an example, got {self.groups.dtype}"
                f" {self.groups.shape}"
            )

    @classmethod
    def of(cls, x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Population:
        """From arrays of any numeric type: x becomes float32, y int64 (whole numbers only); groups of any kind."""
        labels = np.asarray(y)
        if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
            raise InputError("labels must be whole numbers, the indices of classes")
        together = None if groups is None else numbered(groups)
        return cls(torch.as_tensor(np.asarray(x, dtype=np.float32)), torch.as_tensor(labels.astype(np.int64)), together)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.y.max()) + 1

    def flip(self, models: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models, (models, n) bool: independent fair coin flips, one for each group."""
        units, unit = (len(self), None) if self.groups is None else _units(self.groups)
        heads = np.random.default_rng([seed, 0xF11B]).random((models, units)) < 0.5
        return heads if unit is None else heads[:, unit]

    def draw(self, models: int, members: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models with as many members each, (models, n) bool: uniformly random subsets.

        Whole groups are drawn until the number is as near to `members` as it comes; without groups it is exact.

        Raises:
            InputError: more members than examples, or fewer than one.
        """
        if not 1 <= members <= len(self):
            raise InputError(f"expected 1 to {len(self)} members, got {members}")
        units, unit = (len(self), np.arange(len(self))) if self.groups is None else _units(self.groups)
        sizes, rng = np.bincount(unit), np.random.default_rng([seed, 0xD4A3])
        drawn = np.zeros((models, units), dtype=bool)
        for row in drawn:
            order = rng.permutation(units)
            row[order[: int(np.abs(np.cumsum(sizes[order]) - members).argmin()) + 1]] = True
        return drawn[:, unit]

    def digest(self) -> str:
        """SHA-256 of the arrays, as hex; groups that are numbered otherwise are the same."""
        h = hashlib.sha256()
        arrays = [self.x.cpu().numpy(), self.y.cpu().numpy()]
        if self.groups is not None:
            arrays.append(_units(self.groups)[1])
        for a in map(np.ascontiguousarray, arrays):
            h.update(f"{a.dtype}{a.shape}".encode())
            h.update(a.data)
        return h.hexdigest()


def numbered(groups: ArrayLike) -> NDArray[np.int64]:
    """(n,) int64 numbers, equal where the groups' names (numbers or texts) are.

    Raises:
        InputError: not one name an example, or one that is missing (NaN).
    """
    names = np.asarray(groups)
    if names.ndim != 1 or names.dtype.kind not in "biufUS":
        raise InputError(f"groups must be (n,) numbers or texts, one an example, got {names.dtype} {names.shape}")
    if names.dtype.kind == "f" and np.isnan(names).any():
        raise InputError(f"{int(np.isnan(names).sum())} examples have no group; give each without one its own number")
    return names.astype(np.int64) if names.dtype.kind in "bi" else np.unique(names, return_inverse=True)[1]


def _units(groups: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """How many groups there are, and the number of each example's, counted in the order of their first examples."""
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return len(first), place[unit]
