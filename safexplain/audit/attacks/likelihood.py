"""Likelihood ratios: does the target's signal look more like models trained with the example, or without it?

    score = log p(signal | trained with the example) - log p(signal | trained without it)

The Gaussian form is LiRA (Carlini et al., arXiv 2112.03570, section IV) applied to a number or a vector computed from
the explanation, as in L1-, L2- and VAR-LRT (Huang et al., "Explaining the Model, Protecting Your Data", Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals, references_for
from safexplain.audit.store import windows
from safexplain.errors import ConfigurationError, InputError

Array = NDArray[np.float64]
Transform = Literal["auto", "log", "identity"]
View = Callable[[Floats], Floats]
Tick = Callable[[float], object]

SHRINK = 16.0  # weight, in observations, of the variances of examples with a similar centre
STRATA, MIN_PER_STRATUM = 10, 50  # most groups of examples with a similar centre, and fewest examples in each
VECTOR_SHRINK = 8.0  # for vectors: weight, in observations, of a feature's mean variance over examples
CHUNK = 1 << 20  # numbers of vectors held in double precision at a time
NUMBERS_PER_TICK = 1 << 30  # numbers read between two reports of progress, about half a minute
MIN_PER_BIN = 50  # fewest reference values in a bin of `PooledDensityRatio`


@dataclass(frozen=True)
class LikelihoodRatio:
    """Gaussian likelihood ratio per example, with means and variances estimated from the reference models.

    With few references, an example's change of mean by training on it is poorly known. So it is shrunk towards that of
    examples with a similar centre (empirical Bayes: Efron & Morris, 1973), which are cut into ten strata by the mean of
    all their references. In each, with gap_i = mu_in - mu_out, pooled variances p_in and p_out of the two sides, and
    SS_i the squared deviations from either mean divided by its side's p,

        u_i = (SS_i + 16) / (dof_i + 16),    v_in = u_i p_in,    v_out = u_i p_out,
        e_i = v_in / k_in + v_out / k_out,    tau = max(0, mean (gap_i - G)^2 - mean e_i),    G = mean gap_i,
        g_i = G + tau / (tau + e_i) (gap_i - G),

    and the means are the most likely two that lie g_i apart. For vectors the log ratios of the features are summed (a
    diagonal Gaussian), with plain means and one variance per feature for both sides, shrunk towards its mean over
    examples.

    Args:
        transform: "log" fits the Gaussians to the logarithm (norms and losses are closer to log-normal; zeros are
            raised to half of the smallest positive value); "identity" to the signal itself; "auto" takes the
            logarithm of one-number signals that are never negative.

    Raises:
        ConfigurationError: another transform.
    """

    transform: Transform = "auto"

    def __post_init__(self) -> None:
        check_transform(self.transform)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) or (n, d) signals, by those of m reference models (m, n) or (m, n, d).

        The ratio is 0 if no reference model was trained with, or none without, the example.

        Raises:
            InputError: shapes disagree, values are not finite, no example has references on both sides, or the
                logarithm of a negative signal or of vectors was asked for.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        m = len(membership)
        values: Floats = np.concatenate([shadows, target[None]])
        everyone = np.arange(m)
        scores: Array = likelihood_ratios(self, values, membership, everyone, [m], others=[everyone])[0]
        return scores


def likelihood_ratios(
    attack: LikelihoodRatio,
    values: Floats,
    membership: Bools,
    references: NDArray[np.int64],
    reads: Sequence[int],
    view: View | None = None,
    tick: Tick | None = None,
    others: Sequence[NDArray[np.int64]] | None = None,
) -> Array:
    """(len(reads), n) log ratios of several models' signals, each compared with `others` (None: its `references_for`).

    `values` are finite signals (models, n) or (models, n, d), or maps on disk, which are read in parts; `view`
    transforms (..., d) maps, a few examples at a time, and `tick` receives the share that is done.
    """
    others = others or [references_for(read, references, membership) for read in reads]
    if values.ndim == 3:
        if attack.transform == "log":
            raise InputError("transform: expected auto or identity for vectors, got log, which is for single numbers")
        return _ratios_of_vectors(values, membership[references], references.tolist(), reads, others, view, tick)
    return np.stack(
        [
            _ratios_of_numbers(attack.transform, values[read], values[refs], membership[refs])
            for read, refs in zip(reads, others, strict=True)
        ]
    )


# ---------------------------------------------------------------------------------------------------- one number


def _ratios_of_numbers(transform: Transform, target: Floats, shadows: Floats, membership: Bools) -> Array:
    """(n,) log ratios of one number an example, (n,) and (m, n)."""
    usable = two_sided(membership)
    t, x = (np.asarray(a, dtype=np.float64) for a in transformed(transform, target, shadows))
    largest = max(float(np.abs(t).max()), float(np.abs(x[:, usable]).max())) or 1.0  # its squares are finite
    t, x = t / largest, np.where(usable, x, 0.0) / largest
    first = x[0]
    x, t = centred(x, t)
    sides = np.stack([membership, ~membership])
    count = np.maximum(sides.sum(1), 1).astype(np.float64)
    mean = np.where(sides, x, 0.0).sum(1) / count
    ss = np.where(sides, np.square(x - mean[:, None]), 0.0).sum(1)
    dof = (count - 1) * usable
    floor = 1e-9 * float(ss.sum() / max(dof.sum(), 1.0)) or 1.0
    level = first + (mean * count).sum(0) / count.sum(0)
    mean, variance = _shrunk_by_strata(level, mean, ss, count, dof, usable, floor)
    log_p = -0.5 * (np.log(variance) + _distance(t - mean, variance))
    scores: Array = np.where(usable, log_p[0] - log_p[1], 0.0)
    return scores


def _shrunk_by_strata(
    level: Array, mean: Array, ss: Array, count: Array, dof: Array, usable: Bools, floor: float
) -> tuple[Array, Array]:
    """(2, n) means and variances with and without each example, shrunk as in `LikelihoodRatio`."""
    level = level.astype(np.float32)  # equal levels belong to one stratum, however they were rounded
    strata = min(STRATA, max(1, int(usable.sum()) // MIN_PER_STRATUM))
    cuts = np.quantile(level[usable], np.arange(1, strata) / strata)
    stratum = np.searchsorted(cuts, level, side="right")

    def summed(a: Array) -> Array:
        """Over the usable examples of each stratum."""
        return np.asarray(np.bincount(stratum, np.where(usable, a, 0.0), strata), dtype=np.float64)

    number, free = np.maximum(summed(np.ones_like(level)), 1), np.stack([summed(d) for d in dof])
    deviations = np.stack([summed(s) for s in ss])
    alone = deviations / np.maximum(free, 1.0)
    both = deviations.sum(0) / np.maximum(free.sum(0), 1.0)
    pooled = (np.where((free > 0).all(0), alone, both) + floor)[:, stratum]
    scale = ((ss / pooled).sum(0) + SHRINK) / (dof.sum(0) + SHRINK)
    variance = scale * pooled
    error = variance / count
    gap = mean[0] - mean[1]
    centre = (summed(gap) / number)[stratum]
    spread = np.maximum(summed(np.square(gap - centre)) - summed(error.sum(0)), 0.0) / number
    weight = spread[stratum] / (spread[stratum] + error.sum(0))
    gap = centre + weight * (gap - centre)
    without = (mean[1] * error[0] + (mean[0] - gap) * error[1]) / error.sum(0)
    return np.stack([without + gap, without]), variance


# ------------------------------------------------------------------------------------------------------- vectors


@dataclass(frozen=True)
class _Side:
    """Models with (or without) the examples of a part: their number, means and squared deviations."""

    count: Array  # (p, 1)
    mean: Array  # (p, d)
    ss: Array  # (p, d)

    @classmethod
    def of(cls, values: Array, squares: Array, weight: Array) -> _Side:
        """From (p, m, d) centred values, their squares, and weights (p, 1, m): 1 for the models of this side."""
        count = weight.sum(-1)
        mean = (weight @ values)[:, 0] / np.maximum(count, 1)
        ss = (weight @ squares)[:, 0] - count * np.square(mean)
        return cls(count, mean, np.maximum(ss, 0.0))

    def without(self, one: Array, chosen: Bools) -> _Side:
        """The side without the model of values `one` (p, d), for the `chosen` (p,) examples, which have it here."""
        mine, left = chosen[:, None], np.maximum(self.count - 1, 1)
        away = (one - self.mean) * mine
        ss = np.maximum(self.ss - np.square(away) * (self.count / left), 0.0)
        return _Side(self.count - mine, self.mean - away / left, ss)


def _ratios_of_vectors(
    values: Floats,
    member: Bools,
    references: Sequence[int],
    reads: Sequence[int],
    others: Sequence[NDArray[np.int64]],
    view: View | None,
    tick: Tick | None,
) -> Array:
    """(len(reads), n) log ratios of (models, n, d) numbers, a few examples at a time; `member` is the references'.

    Models that a read one is not compared with are removed from the means and squared deviations of all references,

        mean' = mean - (x - mean) / (c - 1),    SS' = SS - (x - mean)^2 c / (c - 1),    c models on the side of x,

    so that p models cost O(p n d) on top of the O(m n d) for one.
    """
    (_, n, d), m = values.shape, len(references)
    models = np.array([*references, *(read for read in reads if read not in references)], dtype=np.int64)
    place = {int(model): i for i, model in enumerate(models)}
    excluded = [[place[model] for model in references if model not in compared] for compared in others]
    usable = [two_sided(np.delete(member, left, axis=0)) for left in excluded]

    def parts(passes: int) -> Iterator[tuple[slice, Array, tuple[_Side, _Side]]]:
        """Slices of the examples, their (p, models, d) values less the references' mean, and both sides of these."""
        every, ticks = max(1, NUMBERS_PER_TICK // max(models.size * d, 1)), 0
        for start, found in windows(values, models, max(1, CHUNK // (max(d, 1) * (m + 1)))):
            if tick is not None and start // every > ticks:
                ticks = start // every
                tick((passes + start / n) / 2)
            part = slice(start, start + found.shape[1])
            viewed = np.asarray(found if view is None else view(found), dtype=np.float64)
            x = np.ascontiguousarray(centred(viewed)[0].transpose(1, 0, 2))
            x -= x[:, :m].mean(1, keepdims=True)
            known, inside = x[:, :m], member[:, part].T[:, None, :].astype(np.float64)
            squares = np.square(known)
            yield part, x, (_Side.of(known, squares, inside), _Side.of(known, squares, 1 - inside))

    def less(left: Sequence[int], part: slice, x: Array, sides: tuple[_Side, _Side]) -> tuple[_Side, _Side]:
        inside, outside = sides
        for i in left:
            inside, outside = inside.without(x[:, i], member[i, part]), outside.without(x[:, i], ~member[i, part])
        return inside, outside

    total, dof = np.zeros((len(reads), d)), np.zeros(len(reads))
    for part, x, sides in parts(0):
        for k, left in enumerate(excluded):
            good = usable[k][part].astype(np.float64)
            for side in less(left, part, x, sides):
                total[k] += good @ side.ss
                dof[k] += (good * np.maximum(side.count[:, 0] - 1, 0)).sum()
    scores = np.zeros((len(reads), n))
    for part, x, sides in parts(1):
        for k, (read, left) in enumerate(zip(reads, excluded, strict=True)):
            pooled = total[k] / max(dof[k], 1.0)
            inside, outside = less(left, part, x, sides)
            free = np.maximum(inside.count - 1, 0) + np.maximum(outside.count - 1, 0)
            v = shrunk(inside.ss + outside.ss, free, VECTOR_SHRINK, pooled) + (1e-9 * float(pooled.mean()) or 1.0)
            away = (_distance(x[:, place[read]] - side.mean, v) for side in (outside, inside))
            scores[k, part] = np.where(usable[k][part], 0.5 * np.subtract(*away).sum(1), 0.0)
    return scores


def _distance(away: Array, variance: Array) -> Array:
    """Squares over variances, capped so that their sums and differences are finite."""
    with np.errstate(over="ignore"):
        out: Array = np.minimum(np.square(away) / variance, 1e290)
    return out


# -------------------------------------------------------------------------------------------------------- labels


@dataclass(frozen=True)
class LabelLikelihoodRatio:
    """Likelihood ratio of a released class label: the counts of each label among models with and without the example.

    Probabilities are smoothed towards the label's share among all reference models on the example, with the weight of
    `smoothing` models. The label is released anyway, so hardening does not change this attack.

    Args:
        smoothing: positive pseudo-count.
    """

    smoothing: float = 1.0

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, above=0)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) released class indices, by those of m reference models (m, n).

        Raises:
            InputError: shapes disagree or labels are not one number per example.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"labels: expected one number per example, got shape {target.shape}")
        same = shadows == target
        inside, n = membership.sum(0), len(membership)
        prior = self.smoothing * (same.sum(0) + 1) / (n + 2)
        p_in = ((same & membership).sum(0) + prior) / (inside + self.smoothing)
        p_out = ((same & ~membership).sum(0) + prior) / (n - inside + self.smoothing)
        out: Array = np.log(p_in / p_out)
        return out


@dataclass(frozen=True)
class OwnLabelRatio:
    """Likelihood ratio of the log odds that a query gets the label that the target gave to the plain query.

    Label-only attacks estimate an example's distance from the decision boundary from the labels of its neighbours
    (Choquette-Choo et al., arXiv 2007.14321; Li & Zhang, arXiv 2007.15528), here the dithered queries whose
    explanations an audit averages. Unlike the signal `kept`, it compares all models on the target's label.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log ratios of (n, 1 + classes) numbers: the label of the plain query, and log odds of every class."""
        target, shadows, membership = check_signals(target, shadows, membership)
        classes = target.shape[-1] - 1
        if target.ndim != 2 or classes < 1:
            raise InputError(f"expected (n, 1 + classes) labels and log odds of the classes, got {target.shape}")
        own = target[:, 0].astype(np.int64)
        if own.min() < 0 or own.max() >= classes:
            raise InputError(f"labels: expected 0 to {classes - 1}, one of the classes; got {own.min()} to {own.max()}")
        place = np.arange(len(own)), 1 + own
        return LikelihoodRatio("identity")(target[place], shadows[(slice(None), *place)], membership)


# ----------------------------------------------------------------------------------------- densities over examples


@dataclass(frozen=True)
class PooledDensityRatio:
    """Ratio of the densities of members' and non-members' signals, pooled over all references and examples.

    The reference values are cut into bins of equal counts. A bin's log ratio compares the shares of members' and
    non-members' values in it, each count with one added, and is interpolated between the middles of bins. Nothing is
    estimated per example, so a few references are enough.

    Args:
        bins: at most; each holds at least `MIN_PER_BIN` values.
    """

    bins: int = 200

    def __post_init__(self) -> None:
        check_whole("bins", self.bins, 2)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log ratios of (n,) numbers, by those of reference models (m, n)."""
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"PooledDensityRatio: expected one number per example, got shape {target.shape}")
        if membership.all() or not membership.any():
            raise InputError("membership: expected members and non-members of the reference models, got one kind only")
        order = np.argsort(shadows, axis=None)
        values, member = shadows.ravel()[order].astype(np.float64), membership.ravel()[order]
        bins = max(2, min(self.bins, len(values) // MIN_PER_BIN))
        cuts = np.linspace(0, len(values), bins + 1).astype(np.int64)[:-1]
        cuts = np.unique(np.searchsorted(values, values[cuts]))  # equal values share a bin
        inside = np.add.reduceat(member.astype(np.int64), cuts) + 1
        outside = np.diff(np.append(cuts, len(values))) + 2 - inside
        ratio = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
        middle = values[(cuts + np.append(cuts[1:], len(values))) // 2]
        return np.asarray(np.interp(np.asarray(target, dtype=np.float64), middle, ratio))


# ------------------------------------------------------------------------------------------ shared with other attacks


def centred(values: Array, *others: Array) -> tuple[Array, ...]:
    """Numbers of models (m, ...) and the others (...) less those of the first model, so that values that are all equal
    deviate from their mean by exactly 0."""
    return tuple(a - values[0] for a in (values, *others))


def two_sided(membership: Bools) -> Bools:
    """(n,) whether an example has reference models trained with it and without it.

    Raises:
        InputError: none has.
    """
    inside = membership.sum(0)
    usable: Bools = (inside > 0) & (inside < len(membership))
    if not usable.any():
        raise InputError("no example has reference models with and without it; train more reference models")
    return usable


def shrunk(ss: Array, dof: Array, shrink: float, pooled: Array) -> Array:
    """Variances (ss + shrink * pooled) / (dof + shrink), shrunk towards the pooled ones; broadcast."""
    out: Array = (ss + shrink * pooled) / (dof + shrink)
    return out


def check_transform(transform: str) -> None:
    """Raise ConfigurationError for another name."""
    if transform not in ("auto", "log", "identity"):
        raise ConfigurationError(f"transform: expected auto, log or identity, got {transform!r}")


def transformed(transform: Transform, target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
    """Signals (n,) and (m, n) on the scale that `LikelihoodRatio` describes.

    Raises:
        InputError: transform "log" for a negative signal.
    """
    lowest = min(target.min(), shadows.min())
    if transform == "log" and lowest < 0:
        raise InputError(f"the signal has negative values (down to {lowest:g}); use transform='identity'")
    if transform == "identity" or lowest < 0:
        return target, shadows
    target, shadows = target.astype(np.float64), shadows.astype(np.float64)
    smallest = min((float(a[a > 0].min()) for a in (target, shadows) if (a > 0).any()), default=1.0)
    floor = max(smallest / 2, 5e-324)
    return np.log(np.maximum(target, floor)), np.log(np.maximum(shadows, floor))
