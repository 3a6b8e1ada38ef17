"""Likelihood ratio of several numbers jointly, with their covariance.

    score = log N(t; mu_in, S_in) - log N(t; mu_out, S_out),    t a vector of k numbers, S full k x k covariances

LiRA with several queries (Carlini et al., arXiv 2112.03570, section VI-A) sums this over independent numbers. As one
example has few reference models, its covariances are shrunk towards those of the other examples, and its means get a
normal prior (empirical Bayes, as in Efron & Morris, 1973).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood import Transform, check_transform, shrunk, two_sided
from safexplain.audit.store import parts
from safexplain.errors import InputError

MAX_JOINT = 32  # most numbers per example that are used directly; an example's covariance of more cannot be estimated
MAX_COLUMNS = 2048  # most numbers per example; time grows with their cube, and memory with their square
FLOOR = 1e-9  # least variance in any direction, as a share of the pooled variance
SHRINK = 16.0  # weight, in observations, of the pooled covariance
CHUNK = 1 << 22  # numbers of the reference signals held in double precision at a time

Array = NDArray[np.float64]


@dataclass(frozen=True)
class JointLikelihoodRatio:
    """Gaussian likelihood ratio of a vector per example, with full covariances; the same for any linear mix of columns.

    With P_in and P_out the pooled covariances over examples (two, as models vary less on their training examples) and L
    L^T = P, the covariance of example i under each hypothesis is L R_i L^T with

        R_i = (W_i + 16 * identity) / (dof_i + 16),

    W_i the squared deviations L^-1 (t - mu) summed over the reference models of both sides, and dof_i their degrees of
    freedom. The in- and out-mean of an example get a joint normal prior that is fitted to those of all examples.

    More than 32 numbers are first mapped to uncorrelated directions v, the same for all examples, ordered by the gaps
    between in- and out-means relative to the spread,

        B v = lambda P v,    B = mean of gap_i gap_i^T - (P_in mean(1 / c_in) + P_out mean(1 / c_out)),

    P the pooled covariance and c the numbers of references on a side; the subtracted term is the noise of the gaps.
    This is Fisher's discriminant (Fisher, 1936; Rao, 1948, for several directions), between the sides of every example.
    The ratio above uses the first 32 directions. Ratios of the other directions are added one by one, with gaps shrunk
    towards 0 by a normal prior whose variance is their mean lambda.

    Args:
        transform: "log", "identity", or "auto": the logarithm of every column that is never negative.

    Raises:
        ConfigurationError: another transform.
    """

    transform: Transform = "auto"

    def __post_init__(self) -> None:
        check_transform(self.transform)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log likelihood ratios of (n,) or (n, k) numbers, k <= 2,048, by those of m reference models (m, n[, k]).

        The ratio is 0 if no reference model was trained with, or none without, the example.

        Raises:
            InputError: shapes disagree, values are not finite, there are more than 2,048 columns, no example has
                references on both sides, or transform is "log" for a negative signal.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        k = target.shape[1]
        if not 1 <= k <= MAX_COLUMNS:
            raise InputError(f"expected 1 to {MAX_COLUMNS} numbers per example, got {k}; use LikelihoodRatio for more")
        usable = two_sided(membership)
        columns = _Columns.of(self.transform, target, shadows)
        scores = (
            _many(columns, target, shadows, membership, usable)
            if k > MAX_JOINT
            else _few(columns(target), columns(shadows), membership, usable)
        )
        scores[~usable] = 0.0
        return scores


# ----------------------------------------------------------------------------------------------------- few columns


def _few(t: Array, values: Array, membership: Bools, usable: Bools) -> Array:
    """(n,) log ratios of (n, k) and (m, n, k) numbers of about the same size, k <= 32."""
    n, k = t.shape
    cut = list(parts(n, len(values) * k, CHUNK))
    count, mean = np.empty((2, n, 1)), np.empty((2, n, k))
    total = np.zeros((2, k, k))
    ss = np.empty(0)
    for part in cut:
        count[:, part], mean[:, part], ss = _sides(values[:, part], membership[:, part])
        total += ss[:, usable[part]].sum(1)
    dof = np.maximum(count - 1, 0)[..., None]
    frames, log_det = _frames(total, dof[:, usable].sum((1, 2, 3)), mean[:, usable])
    mean, count = mean @ frames, np.maximum(count, 1)
    prior = _Prior.of(mean[:, usable], count[:, usable])
    scores = np.zeros(n)
    for part in cut:
        if len(cut) > 1:
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


@dataclass(frozen=True)
class _Prior:
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
        """(2, p, r) posterior means; `means` have the noise root diag(variance) root^T, independent for the sides."""
        _, p, r = means.shape
        scale = root / np.sqrt(variance)[..., None, :]
        gram = np.einsum("spia,siuj,upjb->psaub", scale, self.covariance, scale, optimize=True)
        x = ((means - self.mean[:, None])[:, :, None] @ scale)[:, :, 0].transpose(1, 0, 2).reshape(p, 2 * r, 1)
        gram = gram.reshape(p, 2 * r, 2 * r)
        unit = (1 + 1e-14 * gram.trace(axis1=1, axis2=2))[:, None, None] * np.eye(2 * r)  # a little more: not singular
        y = np.linalg.solve(gram + unit, x).reshape(p, 2, r, 1).transpose(1, 0, 2, 3)
        moved: Array = means - ((root * np.sqrt(variance)[..., None, :]) @ y)[..., 0]
        return moved


# ---------------------------------------------------------------------------------------------------- many columns


def _many(columns: _Columns, target: Floats, shadows: Floats, membership: Bools, usable: Bools) -> Array:
    """(n,) log ratios in the directions of `_Directions`: the first 32 together, the others one by one."""
    m, n, k = shadows.shape
    cut = list(parts(n, m * k, CHUNK))
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


@dataclass(frozen=True, eq=False)
class _Columns:
    """The scale of every column: a logarithm if applicable (see `transformed`), then division by the largest size."""

    floor: Array  # (k,) lower limit before the logarithm; 0: no logarithm
    largest: Array  # (k,)

    @classmethod
    def of(cls, transform: Transform, target: Floats, shadows: Floats) -> _Columns:
        """Of (n, k) and (m, n, k) numbers.

        Raises:
            InputError: transform "log" for a negative signal.
        """
        lowest = np.minimum(target.min(0), shadows.min((0, 1))).astype(np.float64)
        highest = np.maximum(target.max(0), shadows.max((0, 1))).astype(np.float64)
        if transform == "log" and lowest.min() < 0:
            raise InputError(f"the signal has negative values (down to {lowest.min():g}); use transform='identity'")
        logs = np.zeros(len(lowest), dtype=bool) if transform == "identity" else lowest >= 0
        smallest = np.where(lowest > 0, lowest, np.inf)
        for j in np.flatnonzero(logs & (lowest == 0) & (highest > 0)):
            smallest[j] = min(a[a > 0].min() for a in (target[:, j], shadows[:, :, j]) if (a > 0).any())
        floor = np.where(logs, np.maximum(np.where(np.isfinite(smallest), smallest, 1.0) / 2, 5e-324), 0.0)
        safe = np.where(logs, floor, 1.0)
        ends = (np.where(logs, np.log(np.maximum(safe, np.abs(end))), np.abs(end)) for end in (lowest, highest))
        largest = np.maximum(*map(np.abs, ends))
        return cls(floor, np.where(largest > 0, largest, 1.0))

    def __call__(self, values: Floats) -> Array:
        """(..., k) on that scale, in double precision."""
        out, logs = np.array(values, dtype=np.float64), self.floor > 0
        if logs.any():
            out[..., logs] = np.log(np.maximum(out[..., logs], self.floor[logs]))
        out /= self.largest
        return out


@dataclass(frozen=True, eq=False)
class _Directions:
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
