"""The pool that members and non-members are drawn from: one set of examples, one transform, coin flips."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from safexplain.audit.controls.splits import spread
from safexplain.audit.signals import hash_examples
from safexplain.errors import InputError

SAMPLING = np.uint64(0x5C02ED)  # makes the order of scored examples differ from that of `Splits`


@dataclass(frozen=True, eq=False)
class Population:
    """One pool of labelled examples, from which members and non-members of every model come by independent coin flips.

    Args:
        x: (n, ...) float32 inputs of the model.
        y: (n,) int64 labels.
        groups: (n,) int64, equal for examples that belong together, such as records of one person or near-copies of
            one image: one coin is flipped for each group. None: each example is its own group.

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
            raise InputError("expected finite x, got NaN or infinite values; clean or drop these rows")
        if bool((self.y < 0).any()):
            raise InputError(f"expected class indices from 0 as labels, got {int(self.y.min())}")
        if len(torch.unique(self.y)) < 2:
            raise InputError(
                f"expected at least 2 classes in y, got {self.y[:1].tolist()} only; membership needs a task to learn"
            )
        if self.groups is not None and (self.groups.shape != (len(self.y),) or self.groups.dtype != np.int64):
            raise InputError(
                f"expected groups (int64) of shape ({len(self.y)},), one number per example, got {self.groups.dtype}"
                f" {self.groups.shape}"
            )

    @classmethod
    def of(cls, x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Population:
        """From arrays of any numeric type: x becomes float32, y int64 (from integers); groups are numbers or texts."""
        labels = np.asarray(y)
        if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
            raise InputError("expected integers as labels, the indices of classes, got other numbers")
        together = None if groups is None else numbered(groups)
        return cls(torch.as_tensor(np.asarray(x, dtype=np.float32)), torch.as_tensor(labels.astype(np.int64)), together)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.y.max()) + 1

    def flip(self, models: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models, (models, n) bool: fair coin flips, one for each group, in complementary pairs.

        Models 0, 2, 4, ... are flipped independently; model 2k + 1 is trained on the examples that model 2k is not. As
        its membership follows from its partner's, an attack on one leaves the other out (`Signals.references`).
        """
        units, unit = self._units
        heads = np.random.default_rng([seed, 0xF11B]).random(((models + 1) // 2, units)) < 0.5
        paired: NDArray[np.bool_] = np.stack([heads, ~heads], axis=1).reshape(-1, units)[:models]
        return paired if self.groups is None else paired[:, unit]

    def part(self, rows: NDArray[np.int64]) -> Population:
        """Some of the examples, with their groups."""
        at = torch.from_numpy(rows)
        return Population(self.x[at], self.y[at], None if self.groups is None else self.groups[rows])

    def sample(self, member: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
        """A random sample of the examples for scoring: (k,) indices in increasing order.

        Half of them are members, or as many as there are; examples of one group stay together. The draw depends only on
        the contents of the examples, not on seed or order, and larger samples contain smaller ones.

        Args:
            member: (n,) bool, of the target.
            number: examples, to the nearest group.
        """
        hashes = spread(hash_examples(self.x.cpu().numpy()) ^ SAMPLING)
        units, unit = self._units
        smallest = np.full(units, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(smallest, unit, hashes)
        place, inside = smallest[unit], int(member.sum())
        members = min(inside, max(number // 2, number - (len(self) - inside)))
        chosen = np.zeros(units, dtype=bool)
        for side, most in ((member, members), (~member, number - members)):
            candidates = np.flatnonzero(side)
            chosen[unit[candidates[np.argsort(place[candidates], kind="stable")[:most]]]] = True
        return np.flatnonzero(chosen[unit])

    def draw(self, models: int, members: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models with `members` members each, (models, n) bool: uniformly random subsets.

        Whole groups are drawn until the number is as close as possible. InputError if it is not one of 1 .. n.
        """
        if not 1 <= members <= len(self):
            raise InputError(f"expected 1 to {len(self)} members, got {members}")
        units, unit = self._units
        sizes, rng = np.bincount(unit), np.random.default_rng([seed, 0xD4A3])
        drawn = np.zeros((models, units), dtype=bool)
        for row in drawn:
            order = rng.permutation(units)
            row[order[: int(np.abs(np.cumsum(sizes[order]) - members).argmin()) + 1]] = True
        return drawn[:, unit]

    def digest(self) -> str:
        """SHA-256 of the arrays, as hex; the numbers that name groups do not matter."""
        h = hashlib.sha256()
        arrays = [self.x.cpu().numpy(), self.y.cpu().numpy()]
        if self.groups is not None:
            arrays.append(self._units[1])
        for a in map(np.ascontiguousarray, arrays):
            h.update(f"{a.dtype}{a.shape}".encode())
            h.update(a.data)
        return h.hexdigest()

    @property
    def _units(self) -> tuple[int, NDArray[np.int64]]:
        """Number of groups, and the group of each example, numbered in order of first appearance."""
        if self.groups is None:
            return len(self), np.arange(len(self))
        _, first, unit = np.unique(self.groups, return_index=True, return_inverse=True)
        return len(first), np.argsort(np.argsort(first))[unit]


def numbered(groups: ArrayLike) -> NDArray[np.int64]:
    """(n,) int64 numbers, equal where the groups' names (numbers or texts) are; InputError if one is missing (NaN)."""
    names = np.asarray(groups)
    if names.ndim != 1 or names.dtype.kind not in "biufUS":
        raise InputError(f"expected (n,) numbers or texts as groups, one per example, got {names.dtype} {names.shape}")
    if names.dtype.kind == "f" and np.isnan(names).any():
        raise InputError(f"{int(np.isnan(names).sum())} examples have no group (NaN); give each of them its own number")
    return names.astype(np.int64) if names.dtype.kind in "bi" else np.unique(names, return_inverse=True)[1]
