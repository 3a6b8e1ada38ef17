"""`LikelihoodRatio` of several models at once, each scored as if it were the target, a few examples at a time.

What a reference model released is scored with the other references as its references. Their means and squared
deviations are those of all references less one model,

    mean' = mean - (x - mean) / (c - 1),    SS' = SS - (x - mean)^2 c / (c - 1),    c models on the side of x,

so that p models cost O(p n d) beside the O(m n d) of one. What is subtracted is centred; what rounding leaves of a
variance is far below `Moments.pooled`'s floor. The scores are those of plain calls, which are the tests' oracle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats
from safexplain.audit.attacks.likelihood.moments import shrunk, transformed
from safexplain.audit.attacks.likelihood.ratio import GlobalVariance, LikelihoodRatio, SeparateVariance, SharedVariance
from safexplain.audit.storage.maps import are_stored, windows
from safexplain.errors import InputError

Array = NDArray[np.float64]
MOST_VIEWED = 1 << 26
"""Numbers of which a view is made at once; of more, a few examples at a time, twice."""

View = Callable[[Floats], Floats]
Cut = Callable[[int], Iterator[tuple[int, Floats]]]
"""(models, n, d) numbers in parts of this many examples: (first example, (models, p, d))."""

CHUNK = 1 << 20
"""Numbers of the reference signals held in double precision at a time."""

SILENT = 1 << 30
"""Numbers that are read before progress is told: half a minute, about."""


def likelihood_ratios(
    attack: LikelihoodRatio,
    values: Floats,
    membership: Bools,
    references: NDArray[np.int64],
    reads: Sequence[int],
    view: View | None = None,
    tick: Callable[[float], object] | None = None,
) -> Array:
    """Scores of what each of `reads` released; a model that is read is nobody's reference.

    Args:
        attack: of any transform and variance.
        values: (m, n) or (m, n, d) finite signals of all models, or maps on disk; they are never copied as a whole.
        membership: (m, n) bool.
        references: indices of the reference models.
        reads: indices of the models to score.
        view: of (..., d) arrays, applied to a few examples at a time.
        tick: told the share that is done, every so often, where there is much to do.

    Returns:
        (len(reads), n) log likelihood ratios, 0 where the models left have no example on one of the sides.

    Raises:
        InputError: as the attack.
    """
    place = {int(model): i for i, model in enumerate(references)}
    member, n = membership[references], values.shape[1]
    out = np.zeros((len(reads), n))
    if values.ndim == 3:
        if attack.transform == "log":
            raise InputError("the logarithm is for one-number signals, not for vectors")
        outside = [read for read in reads if read not in place]
        models = np.array([*references, *outside], dtype=np.int64)
        at = [place[read] if read in place else len(references) + outside.index(read) for read in reads]

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

        return _ratios(attack, cut, (n, values.shape[2]), member, at)
    for read in [None, *(read for read in reads if read not in place)]:
        mine = [i for i, r in enumerate(reads) if (r in place if read is None else r == read)]
        if not mine:
            continue
        target, shadows = transformed(
            attack.transform, values[references[0] if read is None else read], values[references]
        )
        numbers = np.concatenate([shadows, target[None]])[:, :, None]
        at = [place.get(int(reads[i]), len(references)) for i in mine]

        def pieces(step: int, numbers: Floats = numbers) -> Iterator[tuple[int, Floats]]:
            return ((start, numbers[:, start : start + step]) for start in range(0, n, step))

        out[mine] = _ratios(attack, pieces, (n, 1), member, at)
    return out


def _ahead(view: View, parts: Iterator[tuple[int, Floats]]) -> Iterator[tuple[int, Floats]]:
    """The parts in their order, their views made in threads: sorting takes most of the time, and needs no lock."""
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

    def without(self, one: Array, chosen: Bools | None) -> tuple[Array, Array, Array]:
        """Of the model `one` (p, d), left out where it is on this side: counts, distances from the mean, their weight.

        The squared deviations lose distance^2 * weight; the distance from the mean of the others is `factor` larger.
        """
        away = one - self.mean
        if chosen is None:
            return self.count, away, np.zeros_like(self.count)
        mine = chosen[:, None]
        ratio = self.count / np.maximum(self.count - 1, 1)
        return self.count - mine, away, np.where(mine, ratio, 0.0)


def _ratios(attack: LikelihoodRatio, cut: Cut, size: tuple[int, int], member: Bools, reads: Sequence[int]) -> Array:
    """(len(reads), n) scores of (models, p, d) numbers; the first len(member) models are the references."""
    (n, d), m = size, len(member)
    inside = member.sum(0)
    usable = []
    for read in reads:
        less = member[read] if read < m else np.zeros(n, dtype=bool)
        left, others = inside - less, m - (read < m)
        usable.append((left > 0) & (left < others))
        if not usable[-1].any():
            raise InputError("no example has reference models both with and without it; train more reference models")
    total, dof = np.zeros((len(reads), 2, d)), np.zeros((len(reads), 2))
    for part, values, sides in _parts(cut, d, member):
        for k, read in enumerate(reads):
            good = usable[k][part].astype(np.float64)
            for s, side in enumerate(sides):
                count, away, lost = side.without(values[:, read], _chosen(member, read, part, s))
                total[k, s] += good @ side.ss - (good * lost[:, 0]) @ np.square(away, out=away)
                dof[k, s] += (good * np.maximum(count[:, 0] - 1, 0)).sum()
    total = np.maximum(total, 0.0)
    scores = np.zeros((len(reads), n))
    for part, values, sides in _parts(cut, d, member):
        for k, read in enumerate(reads):
            pooled = [
                (ss / max(f, 1.0))[None]
                for ss, f in (*zip(total[k], dof[k], strict=True), (total[k].sum(0), dof[k].sum()))
            ]
            floor = 1e-9 * float(pooled[2].mean()) or 1.0
            squares, ss, free = [], [], []
            for s, side in enumerate(sides):
                count, away, lost = side.without(values[:, read], _chosen(member, read, part, s))
                square = np.square(away, out=away)
                ss.append(np.maximum(side.ss - square * lost, 0.0) if lost.any() else side.ss)
                squares.append(np.multiply(square, np.where(lost > 0, lost, 1.0) ** 2, out=square))
                free.append(np.maximum(count - 1, 0))
            scores[k, part] = _difference(attack, squares, ss, free, pooled, floor)
    for k in range(len(reads)):
        scores[k, ~usable[k]] = 0.0
    return scores


def _chosen(member: Bools, read: int, part: slice, side: int) -> Bools | None:
    if read >= len(member):
        return None
    mine = member[read, part]
    return mine if side == 0 else ~mine


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


def _difference(
    attack: LikelihoodRatio, squares: list[Array], ss: list[Array], dof: list[Array], pooled: list[Array], floor: float
) -> Array:
    """(p,) log ratios, summed over the features."""
    match attack.variance:
        case SharedVariance(shrink):
            v = shrunk(ss[0] + ss[1], dof[0] + dof[1], shrink, pooled[2]) + floor
            shared: Array = 0.5 * (_distance(squares[1], v) - _distance(squares[0], v)).sum(1)
            return shared
        case SeparateVariance(shrink):
            v_in, v_out = (shrunk(ss[s], dof[s], shrink, pooled[s]) + floor for s in (0, 1))
        case GlobalVariance(separate):
            v_in, v_out = (pooled[0] + floor, pooled[1] + floor) if separate else (pooled[2] + floor,) * 2
    logs = np.broadcast_to(np.log(v_out) - np.log(v_in), squares[0].shape)
    out: Array = 0.5 * (logs + _distance(squares[1], v_out) - _distance(squares[0], v_in)).sum(1)
    return out


def _distance(square: Array, variance: Array) -> Array:
    with np.errstate(over="ignore"):
        out: Array = np.minimum(square / variance, 1e290)
    return out
