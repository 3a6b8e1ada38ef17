"""The decision boundary of a linear model, as its answers tell it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats
from safexplain.errors import InputError


@dataclass(frozen=True, eq=False)
class Boundary:
    """The points x with direction . x + offset = 0; the favourable side is where it is above 0.

    Args:
        direction: (d,) of norm 1, or zeros where no answer told anything.
        offset: signed distance of the origin from it.
    """

    direction: NDArray[np.float64]
    offset: float


def read_boundary(x: Floats, change: Floats, score: Floats | None = None, target: float = 0.0) -> Boundary:
    """Read the boundary from recourse.

    Direction: the mean of the unit vectors of all answers, which for a linear model without constraints are all the
    same, noise on their lengths or not. Offset: where the line fitted to released scores against the projections on the
    direction reaches the target; without scores, from the counterfactuals, which lie on the boundary (the median, since
    lengths may be noised).

    Args:
        x: (n, d) what was asked.
        change: (n, d) counterfactual - x; zeros where there was no answer.
        score: (n,) released scores, or None.
        target: score at the boundary.

    Raises:
        InputError: shapes disagree.
    """
    x, change = np.asarray(x, dtype=np.float64), np.asarray(change, dtype=np.float64)
    if x.ndim != 2 or change.shape != x.shape:
        raise InputError(f"expected x and its changes of one shape (n, d), got {x.shape} and {change.shape}")
    length = np.linalg.norm(change, axis=1)
    answered = length > 0
    direction = unit((change[answered] / length[answered, None]).sum(0))
    projection = x @ direction
    reached = projection[answered] + change[answered] @ direction
    return Boundary(direction, offset_of(projection, reached, score, target))


def offset_of(projection: Floats, reached: Floats, score: Floats | None, target: float) -> float:
    """The boundary's offset from (n,) projections of x, (a,) those of the answers' counterfactuals, and (n,) scores."""
    if score is not None and len(projection) > 1:
        centred = projection - projection.mean()
        slope = float(centred @ score) / max(float(centred @ centred), 1e-300)
        if slope > 0:
            return float((score.mean() - target) / slope - projection.mean())
    return -float(np.median(reached)) if len(reached) else 0.0


def margins(boundary: Boundary, x: Floats, favourable: Bools) -> NDArray[np.float64]:
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


def ridge_boundaries(x: Floats, scores: Floats) -> list[Boundary]:
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
        found.append(Boundary(unit(weights), float(level - mean @ weights) / size if size > 0 else 0.0))
    return found


def _validation(power: NDArray[np.float64], rotated: NDArray[np.float64], rest: float, n: int, penalty: float) -> float:
    kept = power / (power + penalty)
    error = float((((1 - kept) * rotated) ** 2).sum()) + rest
    return error / max(n - 1 - float(kept.sum()), 1e-9) ** 2
