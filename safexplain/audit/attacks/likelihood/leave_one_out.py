"""`LikelihoodRatio` of whole maps of several models at once, each scored as the target, a few examples at a time.

What a reference model released is scored with the other references as its references. Their means and squared
deviations are those of all references less one model,

    mean' = mean - (x - mean) / (c - 1),    SS' = SS - (x - mean)^2 c / (c - 1),    c models on the side of x,

so that p models cost O(p n d) beside the O(m n d) of one. What is subtracted is centred; what rounding leaves of a
variance is far below the floor that is added to all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats
from safexplain.audit.attacks.likelihood.moments import shrunk
from safexplain.audit.maps import are_stored, windows
from safexplain.errors import InputError

Array = NDArray[np.float64]
MOST_VIEWED = 1 << 26
"""Numbers of which a view is made at once; of more, a few examples at a time, twice."""

View = Callable[[Floats], Floats]
Cut = Callable[[int], Iterator[tuple[int, Floats]]]
"""(models, n, d) numbers in parts of this many examples: (first example, (models, p, d))."""

CHUNK = 1 << 20
"""Numbers of the reference signals held in double precision at a time."""

SHRINK = 8.0
"""Observations that the mean over examples of a feature's variance is worth beside those of the example."""

SILENT = 1 << 30
"""Numbers that are read before progress is told: half a minute, about."""


def ratios_of_vectors(
    values: Floats,
    membership: Bools,
    references: NDArray[np.int64],
    reads: Sequence[int],
    others: Sequence[NDArray[np.int64]],
    view: View | None = None,
    tick: Callable[[float], object] | None = None,
) -> Array:
    """Scores of what each of `reads` released.

    Args:
        values: (m, n, d) finite signals of all models, or maps on disk; they are never copied as a whole.
        membership: (references, n) bool.
        references: indices of the reference models.
        reads: indices of the models to score.
        others: of each of these, the references that it is compared with (`references_for`).
        view: of (..., d) arrays, applied to a few examples at a time.
        tick: told the share that is done, every so often, where there is much to do.

    Returns:
        (len(reads), n) log likelihood ratios, 0 where the models left have no example on one of the sides.

    Raises:
        InputError: no example has references on both sides.
    """
    n, known = values.shape[1], [int(model) for model in references]
    models = np.array([*known, *(read for read in reads if read not in known)], dtype=np.int64)
    place = {int(model): i for i, model in enumerate(models)}
    out = [[place[model] for model in known if model not in kept] for kept in others]
    if view is not None and values.size <= MOST_VIEWED and not are_stored(values):
        values, view = view(values), None
    cuts = [0]  # passes over all examples so far, of two

    def cut(step: int) -> Iterator[tuple[int, Floats]]:
        every, told = max(1, SILENT // max(models.size * values.shape[2], 1)), 0
        found = windows(values, models, step)
        for start, chosen in found if view is None else _ahead(view, found):
            if tick is not None and start // every > told:
                told = start // every
                tick((cuts[0] + start / n) / 2)
            yield start, chosen
        cuts[0] += 1

    return _ratios(cut, (n, values.shape[2]), membership, [place[read] for read in reads], out)


def _ahead(view: View, parts: Iterator[tuple[int, Floats]]) -> Iterator[tuple[int, Floats]]:
    """The parts in their order, their views made in threads: sorting takes most of the time, and needs no lock."""
    import torch  # whose threads these are, and which signals without maps do not need

    with ThreadPoolExecutor(workers := torch.get_num_threads()) as pool:
        waiting = deque[tuple[int, Future[Floats]]]()
        for start, part in parts:
            waiting.append((start, pool.submit(view, part)))
            if len(waiting) > 2 * workers:
                first, made = waiting.popleft()
                yield first, made.result()
        for first, made in waiting:
            yield first, made.result()


@dataclass(frozen=True)
class _Side:
    """Models with (or without) the examples of a part: how many, their means and squared deviations."""

    count: Array  # (p, 1)
    mean: Array  # (p, d)
    ss: Array  # (p, d)

    @classmethod
    def of(cls, values: Array, squares: Array, weight: Array) -> _Side:
        """Of (p, m, d) centred values, their squares, and weights (p, 1, m): 1 for the models of this side."""
        count = weight.sum(-1)
        mean = (weight @ values)[:, 0] / np.maximum(count, 1)
        ss = (weight @ squares)[:, 0] - count * np.square(mean)
        return cls(count, mean, np.maximum(ss, 0.0))

    def without(self, one: Array, chosen: Bools) -> _Side:
        """Without the model of values `one` (p, d), on the examples where it is `chosen` (p,): on this side."""
        mine, left = chosen[:, None], np.maximum(self.count - 1, 1)
        away = (one - self.mean) * mine
        ss = np.maximum(self.ss - np.square(away) * (self.count / left), 0.0)
        return _Side(self.count - mine, self.mean - away / left, ss)


def _ratios(
    cut: Cut, size: tuple[int, int], member: Bools, reads: Sequence[int], out: Sequence[Sequence[int]]
) -> Array:
    """(len(reads), n) scores of (models, p, d) numbers; the first len(member) models are the references.

    `out` are those of the references that are left out for each of `reads`.
    """
    (n, d), m = size, len(member)
    usable = []
    for left in out:
        inside = member.sum(0) - member[left].sum(0)
        usable.append((inside > 0) & (inside < m - len(left)))
        if not usable[-1].any():
            raise InputError("no example has reference models both with and without it; train more reference models")
    total, dof = np.zeros((len(reads), d)), np.zeros(len(reads))
    for part, values, sides in _parts(cut, d, member):
        for k, left in enumerate(out):
            good = usable[k][part].astype(np.float64)
            for side in _left(sides, values, member[:, part], left):
                total[k] += good @ side.ss
                dof[k] += (good * np.maximum(side.count[:, 0] - 1, 0)).sum()
    scores = np.zeros((len(reads), n))
    for part, values, sides in _parts(cut, d, member):
        for k, (read, left) in enumerate(zip(reads, out, strict=True)):
            pooled = total[k] / max(dof[k], 1.0)
            floor = 1e-9 * float(pooled.mean()) or 1.0
            with_it, without = _left(sides, values, member[:, part], left)
            free = np.maximum(with_it.count - 1, 0) + np.maximum(without.count - 1, 0)
            v = shrunk(with_it.ss + without.ss, free, SHRINK, pooled) + floor
            distances = (_distance(values[:, read] - side.mean, v) for side in (without, with_it))
            scores[k, part] = 0.5 * np.subtract(*distances).sum(1)
    for k in range(len(reads)):
        scores[k, ~usable[k]] = 0.0
    return scores


def _left(sides: tuple[_Side, _Side], values: Array, member: Bools, out: Sequence[int]) -> tuple[_Side, _Side]:
    """Both sides without some of their models."""
    inside, outside = sides
    for i in out:
        inside, outside = inside.without(values[:, i], member[i]), outside.without(values[:, i], ~member[i])
    return inside, outside


def _parts(cut: Cut, d: int, member: Bools) -> Iterator[tuple[slice, Array, tuple[_Side, _Side]]]:
    """Slices of the examples, their (p, models, d) values less the mean of the references, and both sides of these."""
    m = len(member)
    step = max(1, CHUNK // (max(d, 1) * (m + 1)))
    for start, found in cut(step):
        part = slice(start, start + found.shape[1])
        values = np.array(found.transpose(1, 0, 2), dtype=np.float64, order="C")
        values -= values[:, :m].mean(1, keepdims=True)
        known, inside = values[:, :m], member[:, part].T[:, None, :].astype(np.float64)
        squares = np.square(known)
        yield part, values, (_Side.of(known, squares, inside), _Side.of(known, squares, 1 - inside))


def _distance(away: Array, variance: Array) -> Array:
    with np.errstate(over="ignore"):
        out: Array = np.minimum(np.square(away) / variance, 1e290)
    return out
