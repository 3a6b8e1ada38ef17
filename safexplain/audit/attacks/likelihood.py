"""Likelihood ratios: log p(signal | trained with the example) - log p(signal | trained without it)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number
from safexplain.audit.attacks.base import Bools, Floats, check_signals, references_for
from safexplain.audit.signals import parts, windows
from safexplain.errors import ConfigurationError, InputError

Array = NDArray[np.float64]
Transform = Literal["auto", "identity"]
View = Callable[[Floats], Floats]

SHRINK = 16.0  # weight, in observations, of the variances of examples with a similar centre
STRATA, MIN_PER_STRATUM = 10, 50  # most groups of examples with a similar centre, and fewest examples in each
VECTOR_SHRINK = 8.0  # for vectors: weight, in observations, of a feature's mean variance over examples
CHUNK = 1 << 20  # numbers of vectors held in double precision at a time
MAX_BINS, MIN_PER_BIN = 200, 50  # most bins of `PooledDensityRatio`, and fewest reference values in each


@dataclass(frozen=True)
class LikelihoodRatio:
    """Gaussian likelihood ratio per example, with means and variances estimated from the reference models.

    LiRA (Carlini et al., arXiv 2112.03570, section IV) on a number or a vector computed from the explanation, as in
    L1-, L2- and VAR-LRT (Huang et al., "Explaining the Model, Protecting Your Data", Algorithm 1). As few references
    tell an example's change of mean poorly, it is shrunk towards that of examples in the same of ten strata by the mean
    of all references (empirical Bayes: Efron & Morris, 1973). In each, with gap_i = mu_in - mu_out, pooled variances
    p_in and p_out of the two sides, and SS_i the squared deviations from either mean divided by its side's p,

        u_i = (SS_i + 16) / (dof_i + 16),    v_in = u_i p_in,    v_out = u_i p_out,
        e_i = v_in / k_in + v_out / k_out,    tau = max(0, mean (gap_i - G)^2 - mean e_i),    G = mean gap_i,
        g_i = G + tau / (tau + e_i) (gap_i - G),

    and the means are the most likely two that lie g_i apart. For vectors the log ratios of the features are summed (a
    diagonal Gaussian), with plain means and one variance per feature for both sides, shrunk towards its mean over
    examples.

    Args:
        transform: "auto" takes the logarithm of one-number signals that are never negative, as norms and losses are
            closer to log-normal, with zeros raised to half of the smallest positive value; "identity" takes none.

    Raises:
        ConfigurationError: another transform.
    """

    transform: Transform = "auto"

    def __post_init__(self) -> None:
        check_transform(self.transform)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) or (n, d) signals, by those of m reference models (m, n) or (m, n, d).

        Without references on both sides, an example's is 0. InputError: shapes disagree, values are not finite, or no
        example has references on both sides.
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
    others: Sequence[NDArray[np.int64]] | None = None,
) -> Array:
    """(len(reads), n) log ratios of several models' signals (models, n) or (models, n, d), each compared with `others`
    (None: its `references_for`). `view` transforms (..., d) maps, a few examples at a time."""
    others = others or [references_for(read, references, membership) for read in reads]
    if values.ndim == 3:
        return _ratios_of_vectors(values, membership[references], references.tolist(), reads, others, view)
    return np.stack(
        [
            _ratios_of_numbers(attack.transform, values[read], values[refs], membership[refs])
            for read, refs in zip(reads, others, strict=True)
        ]
    )


def _ratios_of_numbers(transform: Transform, target: Floats, shadows: Floats, membership: Bools) -> Array:
    """(n,) log ratios of one number an example, (n,) and (m, n)."""
    usable = two_sided(membership)
    t, x = (np.asarray(a, dtype=np.float64) for a in transformed(transform, target, shadows))
    largest = max(float(np.abs(t).max()), float(np.abs(x[:, usable]).max())) or 1.0  # its squares are finite
    t, x = t / largest, np.where(usable, x, 0.0) / largest
    first, (x, t) = x[0], centred(x, t)
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


class _Side(NamedTuple):
    """Number, means and squared deviations of the models with (or without) the examples of a part."""

    number: Array  # (p, 1)
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
        """Without the model of values `one` (p, d), for the `chosen` (p,) examples, which have it here."""
        mine, left = chosen[:, None], np.maximum(self.number - 1, 1)
        away = (one - self.mean) * mine
        ss = np.maximum(self.ss - np.square(away) * (self.number / left), 0.0)
        return _Side(self.number - mine, self.mean - away / left, ss)


def _ratios_of_vectors(
    values: Floats,
    member: Bools,
    references: Sequence[int],
    reads: Sequence[int],
    others: Sequence[NDArray[np.int64]],
    view: View | None,
) -> Array:
    """(len(reads), n) log ratios of (models, n, d) numbers, a few examples at a time; `member` is the references'.

    Models that a read one is not compared with are removed from the sums over all references, for c models on a side:

        mean' = mean - (x - mean) / (c - 1),    SS' = SS - (x - mean)^2 c / (c - 1)
    """
    (_, n, d), m = values.shape, len(references)
    models = np.array([*references, *(read for read in reads if read not in references)], dtype=np.int64)
    place = {int(model): i for i, model in enumerate(models)}
    excluded = [[place[model] for model in references if model not in compared] for compared in others]
    usable = [two_sided(np.delete(member, left, axis=0)) for left in excluded]

    def parts() -> Iterator[tuple[slice, Array, tuple[_Side, _Side]]]:
        """Slices of the examples, their (p, models, d) values less the references' mean, and both sides."""
        for start, found in windows(values, models, max(1, CHUNK // (max(d, 1) * (m + 1)))):
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
    for part, x, sides in parts():
        for k, left in enumerate(excluded):
            good = usable[k][part].astype(np.float64)
            for side in less(left, part, x, sides):
                total[k] += good @ side.ss
                dof[k] += (good * np.maximum(side.number[:, 0] - 1, 0)).sum()
    scores = np.zeros((len(reads), n))
    for part, x, sides in parts():
        for k, (read, left) in enumerate(zip(reads, excluded, strict=True)):
            pooled = total[k] / max(dof[k], 1.0)
            inside, outside = less(left, part, x, sides)
            free = np.maximum(inside.number - 1, 0) + np.maximum(outside.number - 1, 0)
            v = shrunk(inside.ss + outside.ss, free, VECTOR_SHRINK, pooled) + (1e-9 * float(pooled.mean()) or 1.0)
            away = (_distance(x[:, place[read]] - side.mean, v) for side in (outside, inside))
            scores[k, part] = np.where(usable[k][part], 0.5 * np.subtract(*away).sum(1), 0.0)
    return scores


def _distance(away: Array, variance: Array) -> Array:
    """Squares over variances, capped so that their sums and differences are finite."""
    with np.errstate(over="ignore"):
        out: Array = np.minimum(np.square(away) / variance, 1e290)
    return out


@dataclass(frozen=True)
class LabelLikelihoodRatio:
    """Likelihood ratio of a released class label: the counts of each label among models with and without the example.

    Probabilities are smoothed by one more model with the label's share among all reference models on the example.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) class indices, by those of m models (m, n); InputError: wrong shapes."""
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"labels: expected one number per example, got shape {target.shape}")
        same = shadows == target
        inside, n = membership.sum(0), len(membership)
        prior = (same.sum(0) + 1) / (n + 2)
        p_in = ((same & membership).sum(0) + prior) / (inside + 1)
        p_out = ((same & ~membership).sum(0) + prior) / (n - inside + 1)
        out: Array = np.log(p_in / p_out)
        return out


@dataclass(frozen=True)
class OwnLabelRatio:
    """Likelihood ratio of the log odds that a query gets the label that the target gave to the plain query.

    Label-only attacks estimate an example's distance from the decision boundary from the labels of its neighbours
    (Choquette-Choo et al., arXiv 2007.14321; Li & Zhang, arXiv 2007.15528), here dithered queries.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log ratios of (n, 1 + classes) numbers: the label of the plain query, and log odds of every class."""
        target, shadows, membership = check_signals(target, shadows, membership)
        place = np.arange(len(target)), 1 + target[:, 0].astype(np.int64)
        return LikelihoodRatio("identity")(target[place], shadows[(slice(None), *place)], membership)


@dataclass(frozen=True)
class RMIA:
    """Share of the other examples z that x beats: ratio(x) / ratio(z) >= 1 (eqs. 2-4, gamma = 1).

    Zarifzadeh, Liu & Shokri, arXiv 2312.03262: whether the model raises the probability of an example's label more than
    that of other examples. ratio(x) = p(x | model) / p(x), and p(x | model) = exp(-loss) is the probability of the true
    label. p(x) averages it over reference models:

        online    (mean over models with x + mean over models without x) / 2              (eq. 10)
        offline   ((1 + a) * mean over models without x + (1 - a)) / 2                    (eq. 11)

    Ties in the share are broken by the ratio, by less than one step.

    Args:
        a: of the offline average, in [0, 1], about the slope of mean-with against mean-without; a lower value assumes
            that training raises p more on members.
        offline: use only reference models without the example.

    Raises:
        ConfigurationError: `a` out of range.
    """

    a: float = 0.3
    offline: bool = False

    def __post_init__(self) -> None:
        if not 0 <= check_number("a", self.a) <= 1:
            raise ConfigurationError(f"a: expected a number in [0, 1], got {self.a!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) shares in [0, 1], from cross-entropies on the true labels, (n,), and those of m reference models (m, n).

        Without the reference models it needs, an example's ratio is 1. InputError: shapes disagree, a value is negative
        or not finite, fewer than two examples, or none has the models it needs.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        n = len(target)
        if target.ndim != 1 or n < 2:
            raise InputError(f"RMIA: expected one loss per example and at least 2 examples, got shape {target.shape}")
        lowest = min(target.min(), shadows.min())
        if lowest < 0:
            raise InputError(f"RMIA: expected cross-entropies, which are never negative, got {lowest:g}; pass the loss")
        log_without = _log_mean(shadows, ~membership)
        if self.offline:
            usable = ~membership.all(0)
            if not usable.any():
                raise InputError("offline RMIA needs reference models without the example, got none; train more")
            with np.errstate(divide="ignore"):
                log_p = np.logaddexp(np.log((1 + self.a) / 2) + log_without, np.log((1 - self.a) / 2))
        else:
            usable = two_sided(membership)
            log_p = np.logaddexp(log_without, _log_mean(shadows, membership)) - np.log(2)
        ratio = np.zeros(n)
        ratio[usable] = -np.asarray(target, dtype=np.float64)[usable] - log_p[usable]
        ordered = np.sort(ratio)
        beaten = np.searchsorted(ordered, ratio, side="right") - 1  # not itself
        share: Array = (beaten + np.searchsorted(ordered, ratio) / n) / n
        return share


def _log_mean(losses: Floats, chosen: Bools) -> Array:
    losses = np.asarray(losses, dtype=np.float64)
    low = np.where(chosen, losses, np.inf).min(0)
    low = np.where(np.isfinite(low), low, 0.0)
    total = np.where(chosen, np.exp(np.minimum(low - losses, 0.0)), 0.0).sum(0, dtype=np.float64)
    with np.errstate(divide="ignore"):
        out: Array = np.log(total) - np.log(np.maximum(chosen.sum(0), 1)) - low
    return out


@dataclass(frozen=True)
class PooledDensityRatio:
    """Ratio of the densities of members' and non-members' signals, pooled over all references and examples.

    The reference values are cut into bins of equal counts. A bin's log ratio compares the shares of members' and
    non-members' values in it, each count with one added, and is interpolated between the middles of bins.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log ratios of (n,) numbers, by those of reference models (m, n)."""
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"PooledDensityRatio: expected one number per example, got shape {target.shape}")
        if membership.all() or not membership.any():
            raise InputError("membership: expected members and non-members of the reference models, got one kind only")
        order = np.argsort(shadows, axis=None)
        values, member = shadows.ravel()[order].astype(np.float64), membership.ravel()[order]
        bins = max(2, min(MAX_BINS, len(values) // MIN_PER_BIN))
        cuts = np.linspace(0, len(values), bins + 1).astype(np.int64)[:-1]
        cuts = np.unique(np.searchsorted(values, values[cuts]))  # equal values share a bin
        inside = np.add.reduceat(member.astype(np.int64), cuts) + 1
        outside = np.diff(np.append(cuts, len(values))) + 2 - inside
        ratio = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
        middle = values[(cuts + np.append(cuts[1:], len(values))) // 2]
        return np.asarray(np.interp(np.asarray(target, dtype=np.float64), middle, ratio))


def centred(values: Array, *others: Array) -> tuple[Array, ...]:
    """All less the first of `values`, so that equal ones deviate from their mean by exactly 0."""
    return tuple(a - values[0] for a in (values, *others))


def two_sided(membership: Bools) -> Bools:
    """(n,) whether an example has reference models trained with it and without it; InputError: none has."""
    inside = membership.sum(0)
    usable: Bools = (inside > 0) & (inside < len(membership))
    if not usable.any():
        raise InputError("no example has reference models with and without it; train more reference models")
    return usable


def shrunk(ss: Array, dof: Array, shrink: float, pooled: Array) -> Array:
    """Variances, shrunk towards the pooled ones."""
    out: Array = (ss + shrink * pooled) / (dof + shrink)
    return out


def check_transform(transform: str) -> None:
    """Raise ConfigurationError for another name."""
    if transform not in get_args(Transform):
        raise ConfigurationError(f"transform: expected auto or identity, got {transform!r}")


def transformed(transform: Transform, target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
    """Signals (n,) and (m, n) on the scale that `LikelihoodRatio` describes."""
    floor = log_floors(transform, target[:, None], shadows[:, :, None])[0]
    if not floor:
        return target, shadows
    return np.log(np.maximum(target.astype(np.float64), floor)), np.log(np.maximum(shadows.astype(np.float64), floor))


def log_floors(transform: Transform, target: Floats, shadows: Floats) -> Array:
    """(k,) half of the smallest positive value of each column, (n, k) and (m, n, k); 0: it gets no logarithm."""
    lowest = np.minimum(target.min(0), shadows.min((0, 1))).astype(np.float64)
    smallest = lowest.copy()
    for j in np.flatnonzero(lowest == 0):
        smallest[j] = min((a[a > 0].min() for a in (target[:, j], shadows[:, :, j]) if (a > 0).any()), default=1.0)
    logs = (lowest >= 0) & (transform == "auto")
    return np.where(logs, np.maximum(smallest / 2, 5e-324), 0.0)


MAX_JOINT = 32  # most numbers whose covariance is estimated for each example
MAX_COLUMNS = 2048  # most numbers per example; time grows with their cube, and memory with their square
FLOOR = 1e-9  # least variance in any direction, as a share of the pooled variance
JOINT_CHUNK = 1 << 22  # numbers of the reference signals held in double precision at a time


@dataclass(frozen=True)
class JointLikelihoodRatio:
    """Gaussian likelihood ratio of a vector t of k numbers per example; the same for any linear mix of columns.

        score = log N(t; mu_in, S_in) - log N(t; mu_out, S_out),    S full k x k covariances

    LiRA with several queries (Carlini et al., arXiv 2112.03570, section VI-A) sums this over independent numbers. Here
    estimates of an example are shrunk towards those of all (Efron & Morris, 1973).

    With P_in and P_out the pooled covariances over examples (two, as models vary less on their training examples) and L
    L^T = P, the covariance of example i under each hypothesis is L R_i L^T with

        R_i = (W_i + 16 * identity) / (dof_i + 16),

    W_i the squared deviations L^-1 (t - mu) summed over the reference models of both sides, and dof_i their degrees of
    freedom. The in- and out-mean of an example get a joint normal prior that is fitted to those of all examples.

    More than 32 numbers are first mapped to uncorrelated directions v, the same for all examples, ordered by the gaps
    between in- and out-means relative to the spread,

        B v = lambda P v,    B = mean of gap_i gap_i^T - (P_in mean(1 / c_in) + P_out mean(1 / c_out)),

    P the pooled covariance and c the numbers of references on a side; the subtracted term is the noise of the gaps
    (Fisher's discriminant: Fisher, 1936; Rao, 1948). The ratio above uses the first 32 directions. Ratios of the others
    are added one by one, with gaps shrunk towards 0 by a normal prior whose variance is their mean lambda.

    Args:
        transform: "identity", or "auto": the logarithm of every column that is never negative.

    Raises:
        ConfigurationError: another transform.
    """

    transform: Transform = "auto"

    def __post_init__(self) -> None:
        check_transform(self.transform)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) or (n, k) numbers, k <= 2,048, by those of m reference models (m, n[, k]).

        Without references on both sides, an example's is 0. InputError: shapes disagree, values are not finite, too
        many columns, or no example has references on both sides.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        k = target.shape[1]
        if not 1 <= k <= MAX_COLUMNS:
            raise InputError(f"expected 1 to {MAX_COLUMNS} numbers per example, got {k}; use LikelihoodRatio for more")
        usable = two_sided(membership)
        columns = _Columns.of(self.transform, target, shadows)
        if k > MAX_JOINT:
            scores = _many(columns, target, shadows, membership, usable)
        else:
            scores = _few(columns(target), columns(shadows), membership, usable)
        scores[~usable] = 0.0
        return scores


def _few(t: Array, values: Array, membership: Bools, usable: Bools) -> Array:
    """(n,) log ratios of (n, k) and (m, n, k) numbers of about the same size, k <= 32."""
    n, k = t.shape
    cut = list(parts(n, len(values) * k, JOINT_CHUNK))
    count, mean = np.empty((2, n, 1)), np.empty((2, n, k))
    total = np.zeros((2, k, k))
    for part in cut:
        count[:, part], mean[:, part], ss = _sides(values[:, part], membership[:, part])
        total += ss[:, usable[part]].sum(1)
    dof = np.maximum(count - 1, 0)[..., None]
    frames, log_det = _frames(total, dof[:, usable].sum((1, 2, 3)), mean[:, usable])
    mean, count = mean @ frames, np.maximum(count, 1)
    prior = _Prior.of(mean[:, usable], count[:, usable])
    scores = np.zeros(n)
    for part in cut:
        ss = _sides(values[:, part], membership[:, part])[2]
        whitened = (frames.transpose(0, 2, 1)[:, None] @ ss @ frames[:, None]).sum(0)
        spread, root = np.linalg.eigh(shrunk(whitened, dof[:, part].sum(0), SHRINK, np.eye(whitened.shape[-1])))
        spread = np.maximum(spread, np.maximum(FLOOR, 1e-13 * spread.max(-1, keepdims=True, initial=0.0)))
        centre = prior.posterior(mean[:, part], root, spread / count[:, part])
        away = ((t[part] @ frames - centre)[:, :, None] @ root)[:, :, 0]
        distance = np.minimum((away**2 / spread).sum(-1), 1e290)
        log_p = -0.5 * (distance + np.log(spread).sum(-1) + log_det[:, None])
        scores[part] = log_p[0] - log_p[1]
    return scores


def _sides(values: Array, membership: Bools) -> tuple[Array, Array, Array]:
    """Of (m, p, k) values: counts (2, p, 1), means (2, p, k), squared deviations (2, p, k, k) with and without."""
    x = np.ascontiguousarray(values.transpose(1, 0, 2))
    weight = np.stack([membership.T, ~membership.T]).astype(np.float64)
    count = weight.sum(2)[..., None]
    mean = (weight[:, :, None] @ x)[:, :, 0] / np.maximum(count, 1)
    away = (x - mean[:, :, None]) * weight[..., None]
    return count, mean, away.transpose(0, 1, 3, 2) @ away


def _frames(total: Array, dof: Array, mean: Array) -> tuple[Array, Array]:
    """(2, k, r) coordinates in which each side's pooled covariance is the identity, and (2,) its log det."""
    gap = mean[0] - mean[1]
    basis = _basis((total.sum(0) + gap.T @ gap) / (dof.sum() + len(gap)))
    frames, log_det = [], []
    for side in range(2):
        one = slice(side, side + 1) if dof[side] > 0 else slice(None)
        pooled = basis.T @ total[one].sum(0) @ basis / max(dof[one].sum(), 1.0)
        w, v = np.linalg.eigh(pooled)
        w = np.maximum(w, FLOOR)
        frames.append(basis @ (v / np.sqrt(w)) @ v.T)
        log_det.append(np.log(w).sum())
    return np.stack(frames), np.array(log_det)


def _basis(change: Array) -> Array:
    """(k, r) coordinates in which `change` is the identity, without constant directions."""
    deviation = np.sqrt(np.diag(change))
    inverse = np.where(deviation > 1e-12, 1 / np.maximum(deviation, 1e-12), 0.0)  # else: rounding of a constant
    w, v = np.linalg.eigh(change * inverse * inverse[:, None])
    varying = w > 1e-10
    basis: Array = inverse[:, None] * v[:, varying] / np.sqrt(w[varying])
    return basis


class _Prior(NamedTuple):
    """A normal prior of the 2 r in- and out-means of an example."""

    mean: Array  # (2, r)
    covariance: Array  # (2, r, 2, r)

    @classmethod
    def of(cls, means: Array, count: Array) -> _Prior:
        """Fitted to the (2, n, r) means of n examples from `count` (2, n, 1) models with pooled covariance identity."""
        centre = means.mean(1)
        r = means.shape[2]
        away = np.concatenate(list(means - centre[:, None]), axis=1)
        noise = np.repeat((1 / count).mean((1, 2)), r)
        w, v = np.linalg.eigh(away.T @ away / len(away) - np.diag(noise))
        return cls(centre, ((v * np.maximum(w, 0.0)) @ v.T).reshape(2, r, 2, r))

    def posterior(self, means: Array, root: Array, variance: Array) -> Array:
        """(2, p, r) posterior means, for noise root diag(variance) root^T of the `means`, independent on the sides."""
        _, p, r = means.shape
        scale = root / np.sqrt(variance)[..., None, :]
        gram = np.einsum("spia,siuj,upjb->psaub", scale, self.covariance, scale, optimize=True)
        x = ((means - self.mean[:, None])[:, :, None] @ scale)[:, :, 0].transpose(1, 0, 2).reshape(p, 2 * r, 1)
        gram = gram.reshape(p, 2 * r, 2 * r)
        unit = (1 + 1e-14 * gram.trace(axis1=1, axis2=2))[:, None, None] * np.eye(2 * r)  # a little more: not singular
        y = np.linalg.solve(gram + unit, x).reshape(p, 2, r, 1).transpose(1, 0, 2, 3)
        moved: Array = means - ((root * np.sqrt(variance)[..., None, :]) @ y)[..., 0]
        return moved


def _many(columns: _Columns, target: Floats, shadows: Floats, membership: Bools, usable: Bools) -> Array:
    """(n,) log ratios in the directions of `_Directions`: the first 32 together, the others one by one."""
    m, n, k = shadows.shape
    cut = list(parts(n, m * k, JOINT_CHUNK))
    found = _Directions.of(columns, shadows, membership, usable, cut)
    r = min(MAX_JOINT, found.frame.shape[1])
    t, values, scores = np.empty((n, r)), np.empty((m, n, r)), np.zeros(n)
    for part in cut:
        one, many = columns(target[part]) @ found.frame, columns(shadows[:, part]) @ found.frame
        t[part], values[:, part] = one[:, :r], many[..., :r]
        if r < found.frame.shape[1]:
            scores[part] = _one_by_one(one[:, r:], many[..., r:], membership[:, part], found)
    if r == 0:
        return scores
    largest = np.maximum(np.abs(t).max(0), np.abs(values).max((0, 1)))
    largest[largest == 0] = 1.0
    return scores + _few(t / largest, values / largest, membership, usable)


def _one_by_one(t: Array, values: Array, member: Bools, found: _Directions) -> Array:
    """(p,) summed log ratios of (p, d) and (m, p, d) numbers in the last directions, as if independent."""
    pooled = found.spread[:, None, -t.shape[1] :]
    if (found.dof == 0).any():
        pooled = np.ones_like(pooled)
    weight = np.stack([member, ~member]).astype(np.float64)
    count = weight.sum(1)[..., None]
    mean = np.einsum("smp,mpd->spd", weight, values, optimize=True) / np.maximum(count, 1)
    ss = np.stack([np.einsum("mp,mpd->pd", w, np.square(values - c)) for w, c in zip(weight, mean, strict=True)])
    dof, count = np.maximum(count - 1, 0).sum(0), np.maximum(count, 1)
    spread = np.maximum(shrunk((ss / pooled).sum(0), dof, SHRINK, np.ones(1)), FLOOR) * pooled
    noise = spread / count
    gap, share = mean[0] - mean[1], noise[0] / noise.sum(0)
    level = mean[0] - share * gap  # the means weighted by their precision
    gap = gap * found.prior / (found.prior + noise.sum(0))
    mean = np.stack([level + share * gap, level - (1 - share) * gap])
    log_p = -0.5 * (np.minimum((t - mean) ** 2 / spread, 1e290) + np.log(spread)).sum(-1)
    out: Array = log_p[0] - log_p[1]
    return out


class _Columns(NamedTuple):
    """The scale of every column: a logarithm if applicable, then division by the largest size."""

    floor: Array  # (k,), see `log_floors`
    largest: Array  # (k,)

    @classmethod
    def of(cls, transform: Transform, target: Floats, shadows: Floats) -> _Columns:
        plain = cls(log_floors(transform, target, shadows), np.ones(target.shape[1]))
        lowest, highest = (f(np.stack([f(target, 0), f(shadows, (0, 1))]), 0) for f in (np.min, np.max))
        largest = np.abs(plain(np.stack([lowest, highest]))).max(0)
        return cls(plain.floor, np.where(largest > 0, largest, 1.0))

    def __call__(self, values: Floats) -> Array:
        """(..., k) on that scale, in double precision."""
        out, logs = np.array(values, dtype=np.float64), self.floor > 0
        if logs.any():
            out[..., logs] = np.log(np.maximum(out[..., logs], self.floor[logs]))
        out /= self.largest
        return out


class _Directions(NamedTuple):
    """Uncorrelated directions of unit spread, pooled over both sides, those with the largest gaps first."""

    frame: Array  # (k, r)
    spread: Array  # (2, r) pooled variance of each side
    dof: Array  # (2,) degrees of freedom of these
    prior: float  # mean square of the gaps beyond the first 32 directions, less that of their noise

    @classmethod
    def of(cls, columns: _Columns, shadows: Floats, membership: Bools, usable: Bools, cut: list[slice]) -> _Directions:
        """Of the references' (m, n, k) numbers, a part of the examples at a time."""
        k, number = shadows.shape[2], int(usable.sum())
        total, gaps = np.zeros((2, k, k)), np.zeros((k, k))
        dof, scarce = np.zeros(2), np.zeros(2)
        for part in cut:
            chosen = usable[part]
            x, inside = columns(shadows[:, part][:, chosen]), membership[:, part][:, chosen]
            means = []
            for side, member in enumerate((inside, ~inside)):
                count = member.sum(0)
                means.append(np.einsum("mn,mnk->nk", member.astype(np.float64), x, optimize=True) / count[:, None])
                away = (x - means[side])[member]
                total[side] += away.T @ away
                dof[side] += (count - 1).sum()
                scarce[side] += (1 / count).sum() / number
            gap = means[0] - means[1]
            gaps += gap.T @ gap
        basis = _basis((total.sum(0) + gaps) / (dof.sum() + number))
        total, gaps = basis.T @ total @ basis / np.maximum(dof, 1.0)[:, None, None], basis.T @ gaps @ basis / number
        w, v = np.linalg.eigh((total * dof[:, None, None]).sum(0) / max(dof.sum(), 1.0))
        white = v / np.sqrt(np.maximum(w, FLOOR))
        between = white.T @ (gaps - (total * scarce[:, None, None]).sum(0)) @ white
        moved, found = np.linalg.eigh(between)
        white = white @ found[:, ::-1]
        spread = np.maximum(np.einsum("kr,skl,lr->sr", white, total, white, optimize=True), FLOOR)
        rest = moved[::-1][MAX_JOINT:]
        return cls(basis @ white, spread, dof, max(float(rest.mean()), 0.0) if len(rest) else 0.0)
