"""Signals from recourse, which for a linear model without constraints points along the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.signals import Signals
from safexplain.errors import InfeasibleError, InputError

Floats = NDArray[np.float64]
Train = Callable[[Floats, NDArray[Any], int], Any]
"""train(X, y, seed) -> an object whose explain(x) returns a `Recourse`, such as a fitted mechanism."""

AT_ONCE = 1 << 20  # numbers in one call of `explain`; larger arrays cost more to allocate than to fill
MOST_TO_REGRESS = 2048  # features up to which weights are regressed from the released scores


def coin_flips(n: int, models: int, *, size: int | None = None, seed: int = 0) -> NDArray[np.bool_]:
    """(models, n) bool membership by independent coin flips, or `size` random members per model; InputError if models
    are fewer than two, or `size` is not in 1 .. n - 1."""
    if models < 2 or (size is not None and not 0 < size < n):
        raise InputError(f"expected at least 2 models and a size of 1 .. {n - 1} or None, got {models} and {size}")
    draws = np.random.default_rng([seed, 0xF11B]).random((models, n))
    if size is None:
        return draws < 0.5
    return draws.argsort(1).argsort(1) < size


def collect_recourse(
    train: Train,
    x: ArrayLike,
    y: ArrayLike,
    *,
    models: int,
    repeats: int = 1,
    size: int | None = None,
    keep_changes: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Signals:
    """Train models on random halves of one pool, query each about every example, and keep what an attacker sees.

        distance           length of the recourse; if x is favourable already, its distance from the boundary by the
                           released score, at the rate of distance to score of the other answers
        signed_distance    the same, above 0 if the released decision is the true label
        score              released score
        label              released decision
        recovered_margin   signed distance from the boundary recovered from the answers, above 0 on the side of the true
                           label
        regressed_margin   the same with the boundary regressed from all released scores, up to 2,048 features
        averaged_distance  distance by the mean of `repeats` answers; if these differ

    `attributions` are the changes, counterfactual - x, of the first answers.

    Args:
        train: see `Train`; called once per model with its members and a seed.
        x: (n, d) the pool, preprocessed by public constants only.
        y: (n,) two labels; the larger one is the favourable outcome.
        models: number of models; each is a target in turn.
        repeats: queries per example.
        size: members of every model; None: by coin flips.
        keep_changes: keep the changes and the inputs, float32, (models + 1) n d numbers.
        seed: of the membership and of the seeds that `train` gets.
        progress: called after each model.

    Raises:
        InputError: not two labels, shapes disagree, or answers are not finite.
    """
    rows, labels = np.asarray(x, dtype=np.float64), np.asarray(y)
    if rows.ndim != 2 or labels.shape != (len(rows),) or len(np.unique(labels)) != 2:
        raise InputError(f"expected x (n, d) and y (n,) with two labels, got {rows.shape} and {labels.shape}")
    if repeats < 1:
        raise InputError(f"repeats: expected at least 1, got {repeats!r}")
    favourable = labels == labels.max()
    member = coin_flips(len(rows), models, size=size, seed=seed)
    seeds = np.random.SeedSequence([seed, 0x5EED]).generate_state(models)
    found: dict[str, list[Floats]] = {}
    changes = np.zeros((models, *rows.shape), np.float32) if keep_changes else None
    for i in range(models):
        mechanism = train(rows[member[i]], labels[member[i]], int(seeds[i]))
        first = Answers.collect(mechanism, rows, None if changes is None else changes[i])
        signals = {
            "distance": np.abs(first.signed),
            "signed_distance": np.where(favourable, -first.signed, first.signed),
            "score": first.score,
            "label": first.favourable.astype(np.float64),
            "recovered_margin": margins(*first.boundary(rows), rows, favourable),
            "averaged_distance": np.abs(_averaged(mechanism, rows, first, repeats)),
        }
        for name, values in signals.items():
            found.setdefault(name, []).append(values)
        progress("asking", i + 1, models)
    collected = {name: np.array(v) for name, v in found.items()}
    if (collected["averaged_distance"] == collected["distance"]).all():
        del collected["averaged_distance"]
    if rows.shape[1] <= MOST_TO_REGRESS and (collected["score"] != 0).any():
        boundaries = ridge_boundaries(rows, collected["score"])
        collected["regressed_margin"] = np.array([margins(*boundary, rows, favourable) for boundary in boundaries])
    meta = {"recourse": {"models": models, "repeats": repeats, "size": size, "seed": seed}}
    return Signals(member, collected, changes, meta, rows.astype(np.float32) if keep_changes else None)


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of one model about n examples."""

    signed: Floats  # (n,) distance from the boundary, above 0 if x is not favourable
    score: Floats  # (n,) released scores less the target
    favourable: NDArray[np.bool_]  # (n,) released decisions
    direction: Floats  # (d,) of norm 1, mean of the unit vectors of all changes; zeros without any
    reached: Floats  # (a,) positions of the counterfactuals along it

    def boundary(self, rows: Floats) -> tuple[Floats, float]:
        """Direction and offset of the boundary.

        The offset is the zero of the line fitted to the scores against the projections on that direction; without
        scores it is the median of the counterfactuals, which lie on the boundary but for noise in their lengths.
        """
        projection = rows @ self.direction
        if (self.score != self.score[0]).any() and len(projection) > 1:
            centred = projection - projection.mean()
            slope = float(centred @ self.score) / max(float(centred @ centred), 1e-300)
            if slope > 0:
                return self.direction, float(self.score.mean() / slope - projection.mean())
        return self.direction, -float(np.median(self.reached)) if len(self.reached) else 0.0

    @classmethod
    def collect(cls, mechanism: Any, rows: Floats, keep: NDArray[np.float32] | None = None) -> Answers:
        """Query about (n, d) rows; the changes are written to `keep`, (n, d), if it is given."""
        n, d = rows.shape
        distance, score, decided = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
        total, reached = np.zeros(d), []
        step = max(1, AT_ONCE // d)
        for part in (slice(start, start + step) for start in range(0, n, step)):
            answer = explain(mechanism, rows[part])
            change = np.asarray(answer.counterfactual) - rows[part]
            length = np.linalg.norm(change, axis=1)
            moved = length > 0
            total += (1 / length[moved]) @ change[moved]
            reached.append(answer.counterfactual[moved] @ unit(total))
            distance[part] = answer.distance
            score[part] = np.asarray(answer.score) - float(getattr(mechanism, "target", 0.0))
            decided[part] = answer.favourable
            if keep is not None:
                keep[part] = change
        answered = (distance > 0) & (score < 0)
        rate = float(np.median(distance[answered] / -score[answered])) if answered.any() else 1.0
        signed = np.where(distance > 0, distance, -score * rate)
        return cls(signed, score, decided, unit(total), np.concatenate(reached))


def explain(mechanism: Any, rows: Floats) -> Any:
    """The `Recourse` of rows, in which those without recourse are marked."""
    try:
        return mechanism.explain(rows)
    except InfeasibleError as error:
        return error.result


def _averaged(mechanism: Any, rows: Floats, first: Answers, repeats: int) -> Floats:
    """(n,) mean signed distances of `repeats` answers, or the first ones if a few repeated answers are equal."""
    few = rows[:64]
    if repeats == 1 or (Answers.collect(mechanism, few).score == first.score[: len(few)]).all():
        return first.signed
    more = [Answers.collect(mechanism, rows).signed for _ in range(repeats - 1)]
    return np.asarray(np.mean([first.signed, *more], axis=0))


def unit(vector: Floats) -> Floats:
    """The vector scaled to norm 1; zeros stay zeros."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def margins(direction: Floats, offset: float, x: Floats, favourable: NDArray[np.bool_]) -> Floats:
    """(n,) signed distances of (n, d) rows from direction . x + offset = 0, above 0 on the side of the true label."""
    return np.asarray(np.where(favourable, 1.0, -1.0) * (x @ direction + offset))


def ridge_boundaries(x: Floats, scores: Floats) -> list[tuple[Floats, float]]:
    """Directions and offsets of m models, regressed from their (m, n) released scores on the (n, d) queries.

    Ridge regression with the penalty of each model by generalised cross-validation (Golub, Heath & Wahba,
    Technometrics 21, 1979).
    """
    mean = x.mean(0)
    left, values, right = np.linalg.svd(x - mean, full_matrices=False)
    levels = scores.mean(1)
    rotated = (scores - levels[:, None]) @ left  # (m, r)
    residual = np.maximum(((scores - levels[:, None]) ** 2).sum(1) - (rotated**2).sum(1), 0.0)
    power = values**2
    penalties = max(float(power[0]), 1e-300) * 10.0 ** np.arange(-10.0, 3.0)
    shrinkage = power / (power + penalties[:, None])  # (penalties, r)
    found = []
    for coefficients, level, rest in zip(rotated, levels, residual, strict=True):
        error = np.square((1 - shrinkage) * coefficients).sum(1) + rest
        best = penalties[np.argmin(error / np.maximum(len(x) - 1 - shrinkage.sum(1), 1e-9) ** 2)]
        weights = right.T @ (values / (power + best) * coefficients)
        size = float(np.linalg.norm(weights))
        found.append((unit(weights), float(level - mean @ weights) / size if size > 0 else 0.0))
    return found
