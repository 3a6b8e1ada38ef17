"""What attacks find, evaluated twice: as the paper does, and as it should be.

as published    The scores of each target are scaled to [0, 1] by their least and largest, those of all targets are
                put into one list, and one ROC is read from it, as if the answers of 33 models about one image were
                33 images. Network scores are probabilities; 0 and 1 come often.
corrected       Each target has a ROC of its own, read conservatively; shown is the mean. The interval comes from
                resampling images, each with its scores by all targets. It is about other images and these models.
                Where a false-positive rate is less than one image of a target, no rate is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import expit

from safexplain.audit.attacks import Attack, JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio

from ...shared.resampling import resampled_rates, weights_of
from .attacks import AtTargetLabel, Metaclassifier, OverQueries

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
RATES = (0.01, 0.001)
RESAMPLES = 200
Z = 1.96


@dataclass(frozen=True)
class Against:
    """An attack, what it reads, and on how much it is run."""

    signal: str  # name in what was asked
    attack: Attack  # that reads it
    targets: int | None = None  # at most so many; None: all
    points: int | None = None  # the first so many examples; None: all
    probability: bool = False  # scores are log odds, which the paper would evaluate as probabilities


def attacks(queries: int, learned: tuple[int, int]) -> dict[str, Against]:
    """What is run on every setting."""
    mean, each = f"prediction@{queries}", f"predictions@{queries}"
    joint = JointLikelihoodRatio("identity")
    return {
        "label": Against("label", LabelLikelihoodRatio()),
        "adapted LiRA, one query": Against("prediction", AtTargetLabel()),
        "adapted LiRA": Against(each, OverQueries(AtTargetLabel(), queries)),
        "network": Against(each, Metaclassifier(queries), *learned, probability=True),
        "joint ratio, one query": Against("prediction", joint),
        "joint ratio, mean of queries": Against(mean, joint),
        "joint ratio, summed": Against(each, OverQueries(joint, queries)),
    }


LIRA = Against("margin", LikelihoodRatio("identity"))
"""On the pre-trained model, with the true labels."""


def scores(against: Against, values: Mapping[str, Floats], membership: Bools, targets: int) -> tuple[Floats, Bools]:
    """(t, p) scores, each of the first t models the target in turn and all others its references; and membership."""
    n = membership.shape[1] if against.points is None else min(against.points, membership.shape[1])
    signal, member, found = values[against.signal][:, :n], membership[:, :n], []
    turns = min(targets, len(member), targets if against.targets is None else against.targets)
    for target in range(turns):
        others = np.arange(len(member)) != target
        found.append(against.attack(signal[target], signal[others], member[others]))
    return np.array(found), member[:turns]


def figures(found: Floats, member: Bools, probability: bool = False) -> dict[str, Any]:
    """Both evaluations of (t, n) scores of t targets."""
    t, n = found.shape
    weights = weights_of(n, RESAMPLES)
    fewest = int((~member).sum(1).min())
    out: dict[str, Any] = {"targets": t, "points": n, "published": as_published(found, member, probability)}
    for rate in RATES:
        if rate * fewest < 1:
            out[f"tpr at {rate:g}"] = None
            if "auc" in out:
                continue
        each = [resampled_rates(s, m, weights, rate) for s, m in zip(found, member, strict=True)]
        auc, tpr = (np.mean(part, axis=0) for part in zip(*each, strict=True))
        out.setdefault("auc", _interval(auc))
        if rate * fewest >= 1:
            out[f"tpr at {rate:g}"] = _interval(tpr)
    return out


def _interval(replicates: Floats) -> list[float]:
    """The value and its normal 95 % interval."""
    value, error = float(replicates[0]), Z * float(replicates[1:].std(ddof=1))
    return [value, value - error, value + error]


def as_published(found: Floats, member: Bools, probability: bool) -> dict[str, list[float]]:
    """One ROC of all pairs of a target and an example, with intervals as if these were independent."""
    given = expit(found) if probability else found
    low, high = given.min(1, keepdims=True), given.max(1, keepdims=True)
    scaled, inside = ((given - low) / np.where(high > low, high - low, 1.0)).ravel(), member.ravel()
    order = np.argsort(-scaled, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scaled[order])), len(order) - 1)
    hits, misses = np.cumsum(inside[order])[ends], np.cumsum(~inside[order])[ends]
    members, others = int(hits[-1]), int(misses[-1])
    tpr, fpr = np.append(0.0, hits / members), np.append(0.0, misses / others)
    auc = float(trapezoid(tpr, fpr))
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)  # Hanley and McNeil 1982
    spread = auc * (1 - auc) + (members - 1) * (q1 - auc**2) + (others - 1) * (q2 - auc**2)
    out = {"auc": _between(auc, float(np.sqrt(max(spread, 0.0) / (members * others))))}
    for rate in RATES:
        at = float(tpr[np.flatnonzero(fpr <= rate)[-1]])
        out[f"tpr at {rate:g}"] = _between(at, float(np.sqrt(at * (1 - at) / members)))
    return out


def _between(value: float, error: float) -> list[float]:
    return [value, value - Z * error, value + Z * error]


def judged(
    against: Mapping[str, Against], values: Mapping[str, Floats], membership: Bools, targets: int
) -> dict[str, dict[str, Any]]:
    """Figures of each attack."""
    return {name: figures(*scores(one, values, membership, targets), one.probability) for name, one in against.items()}


def allowed(epsilon: float, delta: float, fpr: float) -> float:
    """Largest TPR at this FPR that (epsilon, delta)-DP of the membership allows (Kairouz et al. 2015)."""
    grown = np.exp(epsilon) * fpr + delta, 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return float(np.clip(min(grown), 0.0, 1.0))


def allowed_auc(epsilon: float, delta: float) -> float:
    """Area under the ROC of `allowed`."""
    grid = np.linspace(0.0, 1.0, 100_001)
    return float(trapezoid([allowed(epsilon, delta, f) for f in grid[::10]], grid[::10]))
