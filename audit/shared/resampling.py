"""Rates of scores under resamples of the examples, all resamples at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


def weights_of(n: int, resamples: int, seed: int = 0xB007, groups: NDArray[Any] | None = None) -> Floats:
    """(n, 1 + resamples) how often each example counts: once in column 0, then as it (or its group) was resampled."""
    unit = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(unit.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=resamples).T
    return np.concatenate([np.ones((n, 1)), drawn[unit]], axis=1).astype(np.float32)


def resampled_rates(
    scores: Floats, member: Bools, weights: Floats, fpr: float, columns: int = 64
) -> tuple[Floats, Floats]:
    """AUC and conservative TPR at `fpr` when example i counts weights[i, b] times: (n,), (n,), (n, b) -> two (b,).

    `columns` resamples are worked on at a time, which is fastest while they stay in the processor's cache.
    """
    return _rates(scores, member, weights, (fpr,), columns, conservative=True)


def interpolated_rates(
    scores: Floats, member: Bools, weights: Floats, fprs: tuple[float, ...], columns: int = 64
) -> tuple[Floats, ...]:
    """AUC, and TPR at each of `fprs` with ties broken at random, as `resampled_rates`.

    Where two scores are compared, one of them with many ties (labels), breaking these must not pass for a gain.
    """
    return _rates(scores, member, weights, fprs, columns, conservative=False)


def _rates(
    scores: Floats, member: Bools, weights: Floats, fprs: tuple[float, ...], columns: int, *, conservative: bool
) -> tuple[Floats, ...]:
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    inside = member[order, None]
    auc, tprs = np.empty(weights.shape[1]), [np.empty(weights.shape[1]) for _ in fprs]
    for part in (slice(start, start + columns) for start in range(0, weights.shape[1], columns)):
        count = weights[order, part]
        found, false_positives = np.cumsum(count * inside, axis=0)[ends], np.cumsum(count * ~inside, axis=0)[ends]
        members, others = found[-1], false_positives[-1]
        steps = np.diff(false_positives, axis=0, prepend=0)
        twice = np.einsum("gb,gb->b", steps, 2 * found, dtype=np.float64)
        gained = np.diff(found, axis=0, prepend=0)
        auc[part] = (twice - np.einsum("gb,gb->b", steps, gained, dtype=np.float64)) / (2.0 * members * others)
        for fpr, tpr in zip(fprs, tprs, strict=True):
            allowed = fpr * others * (1 + 1e-6)
            kept = (false_positives <= (np.floor(allowed) if conservative else allowed)).sum(0)
            best = _at(found, kept - 1)
            if not conservative:
                last = np.minimum(kept, len(ends) - 1)
                low, step = _at(false_positives, kept - 1), np.take_along_axis(steps, last[None], 0)[0]
                share = np.clip((allowed - low) / np.maximum(step, 1e-12), 0, 1)
                best = best + np.where(kept < len(ends), share * (_at(found, last) - best), 0)
            tpr[part] = best / members
    return auc, *tprs


def _at(counts: Floats, place: NDArray[np.integer[Any]]) -> Floats:
    """The count of each column at its place, 0 before the first."""
    found: Floats = np.take_along_axis(counts, np.maximum(place, 0)[None], 0)[0]
    return np.where(place >= 0, found, 0)
