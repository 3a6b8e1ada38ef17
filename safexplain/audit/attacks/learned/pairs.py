"""Which maps of which reference models a learned attack trains on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from safexplain.audit.attacks.base import Bools
from safexplain.errors import InputError


def eligible(
    membership: Bools, rows: ArrayLike | None, out_of_distribution: Bools | None, as_non_members: bool
) -> Bools:
    """(m, n) bool: maps that may be trained on.

    Args:
        membership: (m, n) bool.
        rows: indices of the examples allowed; None: all.
        out_of_distribution: (n,) bool, examples of another source.
        as_non_members: those are the only non-members; otherwise they are left out.

    Raises:
        InputError: rows are not indices, or the examples of another source are missing or were trained on.
    """
    _, n = membership.shape
    allowed = np.zeros(n, dtype=bool)
    chosen = np.arange(n) if rows is None else np.asarray(rows)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or ((chosen < 0) | (chosen >= n)).any():
        raise InputError(f"rows must be indices of examples in 0 .. {n - 1}, got {chosen.dtype} {chosen.shape}")
    allowed[chosen] = True
    if out_of_distribution is None:
        if as_non_members:
            raise InputError("non_members='out-of-distribution' needs out_of_distribution, (n,) bool: which they are")
        return np.broadcast_to(allowed, membership.shape)
    other = np.asarray(out_of_distribution)
    if other.dtype != np.bool_ or other.shape != (n,):
        raise InputError(f"out_of_distribution must be bool of shape ({n},), got {other.dtype} {other.shape}")
    if not as_non_members:
        return np.broadcast_to(allowed & ~other, membership.shape)
    if not (other & allowed).any():
        raise InputError("no example that may be trained on is out of distribution; add such examples, or allow them")
    if membership[:, other].any():
        raise InputError("reference models were trained on examples marked out of distribution; unmark these")
    mixed: Bools = (membership | other) & allowed
    return mixed


@dataclass(frozen=True, eq=False)
class Pairs:
    """(reference model, example) pairs, and whether the model was trained on the example; arrays of one length."""

    model: NDArray[np.int64]
    example: NDArray[np.int64]
    member: Bools

    @classmethod
    def draw(
        cls, usable: Bools, membership: Bools, models: NDArray[np.int64], most: int, rng: np.random.Generator
    ) -> Pairs:
        """At most `most` usable pairs of the given models.

        Raises:
            InputError: no members or no non-members among them.
        """
        place, example = np.nonzero(usable[models])
        if len(place) > most:
            kept = np.sort(rng.choice(len(place), most, replace=False, shuffle=False))
            place, example = place[kept], example[kept]
        model = models[place]
        member = membership[model, example]
        if member.all() or not member.any():
            raise InputError(
                f"{int(member.sum())} members and {int((~member).sum())} non-members among what may be trained on with"
                f" {len(models)} reference models; both are needed: allow more rows or train more reference models"
            )
        return cls(model, example, member)

    def weights(self) -> Tensor:
        """Float32 weights: an example's maps with and without it weigh the same, and so do all members and others."""
        own, other = (np.bincount(self.example[side], minlength=self.example.max() + 1) for side in self._sides())
        with_it, without = own[self.example], other[self.example]
        same = np.where(self.member, with_it, without)
        weight = np.where((with_it > 0) & (without > 0), (with_it + without) / np.maximum(2 * same, 1), 1.0)
        for side in self._sides():
            weight[side] *= len(weight) / 2 / weight[side].sum()
        return torch.tensor(weight, dtype=torch.float32)

    def _sides(self) -> tuple[Bools, Bools]:
        return self.member, ~self.member
