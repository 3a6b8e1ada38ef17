"""Attacks on recourse: how far is the way to the other side, and which way does it point?

Training pushes the decision boundary away from the examples trained on, so that recourse is farther for members
(Pawelczyk, Lakkaraju & Neel, "On the Privacy Risks of Algorithmic Recourse", arXiv 2211.05427, sections 4.1 and 4.2).
For a linear model the recourse vector also points along the weights: its direction alone, whatever noise its length
has, gives every example's margin up to a factor.

`safexplain.audit.collect_recourse.collect_recourse` computes the signals that are read here, distances and margins; for
the margins it reads the decision boundary from the answers (`offset_of`, `ridge_boundaries`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.attacks.base import Bools, Floats, Threshold, check_signals
from safexplain.audit.attacks.likelihood import transformed
from safexplain.errors import ConfigurationError, InputError


@dataclass(frozen=True, eq=False)
class LinearBoundary:
    """The points x with direction . x + offset = 0; the favourable side is where it is above 0.

    Args:
        direction: (d,) of norm 1, or zeros where no answer told anything.
        offset: signed distance of the origin from it.
    """

    direction: NDArray[np.float64]
    offset: float


def offset_of(projection: Floats, reached: Floats, score: Floats | None, target: float) -> float:
    """The boundary's offset from (n,) projections of x, (a,) those of the answers' counterfactuals, and (n,) scores."""
    if score is not None and len(projection) > 1:
        centred = projection - projection.mean()
        slope = float(centred @ score) / max(float(centred @ centred), 1e-300)
        if slope > 0:
            return float((score.mean() - target) / slope - projection.mean())
    return -float(np.median(reached)) if len(reached) else 0.0


def margins(boundary: LinearBoundary, x: Floats, favourable: Bools) -> NDArray[np.float64]:
    """(n,) signed distances from the boundary, above 0 on the side of the true label.

    Args:
        boundary: as read.
        x: (n, d).
        favourable: (n,) bool, whether the true label is the favourable one.
    """
    side = np.where(np.asarray(favourable, dtype=bool), 1.0, -1.0)
    out: NDArray[np.float64] = side * (np.asarray(x) @ boundary.direction + boundary.offset)
    return out


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vector at norm 1; zeros stay zeros."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def ridge_boundaries(x: Floats, scores: Floats) -> list[LinearBoundary]:
    """Boundaries of m models, regressed from their released scores on all that was asked; no direction is needed.

    Ridge regression whose penalty each model's own generalised cross-validation chooses (Golub, Heath & Wahba,
    Technometrics 21, 1979): almost none where scores are exact, more the noisier they are.

    Args:
        x: (n, d).
        scores: (m, n) released scores, target 0.
    """
    mean = x.mean(0)
    left, values, right = np.linalg.svd(x - mean, full_matrices=False)
    levels = scores.mean(1)
    rotated = (scores - levels[:, None]) @ left  # (m, r)
    residual = np.maximum(((scores - levels[:, None]) ** 2).sum(1) - (rotated**2).sum(1), 0.0)
    power = values**2
    found = []
    for own, level, rest in zip(rotated, levels, residual, strict=True):
        best = min(
            (max(float(power[0]), 1e-300) * 10.0**e for e in range(-10, 3)),
            key=lambda p, own=own, rest=rest: _validation(power, own, rest, len(x), p),  # type: ignore[misc]
        )
        weights = right.T @ (values / (power + best) * own)
        size = float(np.linalg.norm(weights))
        found.append(LinearBoundary(unit(weights), float(level - mean @ weights) / size if size > 0 else 0.0))
    return found


def _validation(power: NDArray[np.float64], rotated: NDArray[np.float64], rest: float, n: int, penalty: float) -> float:
    kept = power / (power + penalty)
    error = float((((1 - kept) * rotated) ** 2).sum()) + rest
    return error / max(n - 1 - float(kept.sum()), 1e-9) ** 2


Spread = Literal["global", "local"]


@dataclass(frozen=True)
class CounterfactualDistance(Threshold):
    """Members are farther from the decision boundary, so a large recourse distance says "member" (CFD).

    arXiv 2211.05427, section 4.1. The threshold is chosen when the score is read.
    """

    member_when_low: bool = False


@dataclass(frozen=True)
class CounterfactualLRT:
    """Is the recourse farther than that of models which never saw the example (CFD-LRT, one-sided)?

    arXiv 2211.05427, Algorithm 1 and section 4.2: the logarithm of the distance is Gaussian over models not trained on
    the example,

        z = (log d - mu_out) / (sd_out sqrt(1 + 1 / k)),

    with k such reference models; large says "member". (Algorithm 1 as printed in "Accurate, Explainable, and Private
    Models" calls these non-members.) Members and non-members alike are compared only with references that were not
    trained on them: references trained on the scored non-members alone, as in the released code of arXiv 2211.05427,
    find "members" where there are none.

    Args:
        variance: "global", one for all examples; or "local", one an example, then z is referred to Student's t with
            k - 1 degrees of freedom and returned on the normal scale, so that examples with different k compare.
    """

    variance: Spread = "global"

    def __post_init__(self) -> None:
        if self.variance not in get_args(Spread):
            raise ConfigurationError(f"variance is global or local, got {self.variance!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) recourse distances of the target model, at least 0.
            shadows: (m, n) distances of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) scores; 0 for examples on which too many reference models were trained: fewer than one that was not
            (two for "local").

        Raises:
            InputError: shapes disagree, a distance is negative or not finite, or no example has two references that
                were not trained on it.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"recourse distances are one number per example, got shape {target.shape}")
        log_target, log_shadows = transformed("log", np.asarray(target), np.asarray(shadows))
        without = ~membership
        count = without.sum(0).astype(np.float64)
        if count.max(initial=0.0) < 2:
            raise InputError("no example has two reference models that were not trained on it; train more of them")
        mean = np.where(without, log_shadows, 0.0).sum(0) / np.maximum(count, 1)
        squares = np.where(without, (log_shadows - mean) ** 2, 0.0).sum(0)
        if self.variance == "global":
            usable, variance = count >= 1, np.full(len(count), squares.sum() / np.maximum(count - 1, 0).sum())
        else:
            usable, variance = count >= 2, squares / np.maximum(count - 1, 1)
        spread = np.sqrt(np.maximum(variance, 1e-10) * (1 + 1 / np.maximum(count, 1)))
        z = np.where(usable, (log_target - mean) / spread, 0.0)
        return z if self.variance == "global" else _on_normal_scale(z, np.maximum(count - 1, 1))


def _on_normal_scale(t: NDArray[np.float64], freedom: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normal quantile with the tail probability of t: from the smaller tail, so that both stay finite."""
    tail = distributions.t.logsf(np.abs(t), freedom)
    out: NDArray[np.float64] = np.sign(t) * -distributions.norm.ppf(np.exp(np.maximum(tail, -700.0)))
    return out
