"""Versions of a map with one property alone, or without it, and what follows from what an attack finds in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Maps = NDArray[np.floating[Any]]
Kind = Literal["native", "alone", "removed", "other"]
Property = Literal["norm", "signs", "magnitudes", "ranks", "sparsity", "strongest", ""]

CONFIDENCE = 0.95
"""Of each interval, and of the two statements that something is above chance (over all that were tried: Bonferroni)."""

HALF = 0.5
"""Share of the AUC above 1/2 that a property must keep alone, and cost when removed, to be named the carrier."""

TOP = 0.1
"""Share of the coordinates that counts as the most sensitive ones."""

NOUNS: dict[Property, str] = {
    "norm": "the norm",
    "signs": "the signs",
    "magnitudes": "the pattern of magnitudes",
    "ranks": "the order of the entries",
    "sparsity": "the sparsity",
    "strongest": f"the strongest {TOP:.0%} of the coordinates",
}
"""Properties in words."""

PLURAL = ("signs", "strongest")


@dataclass(frozen=True)
class Ablation:
    """What the attack finds in one version of the maps.

    Args:
        name: short, such as "norm removed".
        says: what was done to the maps.
        auc, auc_low, auc_high: area under the ROC and its 95 % interval (DeLong).
        tpr, tpr_low, tpr_high: share of the members found at the false-positive rate, and bounds that hold with the
            threshold's own uncertainty (see `bounds`), 95 % together.
        fpr: that rate.
        kind: the native map as it is, one property alone, one removed, or another output of the model explained.
        of: which property.
    """

    name: str
    says: str
    auc: float
    auc_low: float
    auc_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    fpr: float
    kind: Kind = "native"
    of: Property = ""

    @property
    def excess(self) -> float:
        """AUC above that of guessing."""
        return self.auc - 0.5


@dataclass(frozen=True)
class Version:
    """A row of the table: one version of the maps.

    Args:
        name, says, kind, of: as in `Ablation`.
        make: (k, d) maps of one model and (k, d) which coordinates are the strongest -> (k,) or (k, d').
        scalar: signal that is the same number, for where no maps are stored.
    """

    name: str
    says: str
    kind: Kind
    of: Property
    make: Callable[[Maps, NDArray[np.bool_]], Maps]
    scalar: str = ""


def _unit(a: Maps) -> Maps:
    """Maps divided by their root mean square; zeros stay zeros."""
    largest = np.abs(a).max(1, keepdims=True)
    part = a / np.where(largest > 0, largest, 1)
    rms = np.sqrt(np.square(part).mean(1, keepdims=True))
    out: Maps = part / np.where(rms > 0, rms, 1)
    return out


def _rms(a: Maps) -> Maps:
    largest = np.abs(a).max(1, keepdims=True)
    out: Maps = largest * np.sqrt(np.square(a / np.where(largest > 0, largest, 1)).mean(1, keepdims=True))
    return out


def _ranks(a: Maps) -> Maps:
    out: Maps = (np.argsort(np.argsort(a, axis=1, kind="stable"), axis=1) / max(a.shape[1] - 1, 1)).astype(np.float32)
    return out


VERSIONS: tuple[Version, ...] = (
    Version("L1 norm", "sum of all magnitudes", "native", "", lambda a, top: np.abs(a).sum(1, dtype=np.float64), "l1"),
    Version("whole map", "every entry, as it is", "native", "", lambda a, top: a),
    Version(
        "norm alone", "L1 norm, nothing else", "alone", "norm", lambda a, top: np.abs(a).sum(1, dtype=np.float64), "l1"
    ),
    Version(
        "variance alone",
        "variance over the entries",
        "alone",
        "norm",
        lambda a, top: a.var(1, dtype=np.float64),
        "variance",
    ),
    Version("signs alone", "−1, 0 or +1 for each entry", "alone", "signs", lambda a, top: np.sign(a)),
    Version("magnitudes alone", "no signs, unit norm", "alone", "magnitudes", lambda a, top: _unit(np.abs(a))),
    Version("ranks alone", "each entry's place in the order", "alone", "ranks", lambda a, top: _ranks(a)),
    Version(
        "sparsity alone",
        "mean magnitude / RMS",
        "alone",
        "sparsity",
        lambda a, top: np.abs(_unit(a)).mean(1),
        "sparsity",
    ),
    Version(
        f"strongest {TOP:.0%} alone",
        "the coordinates that are largest on average over the reference models",
        "alone",
        "strongest",
        lambda a, top: a[top].reshape(len(a), -1),
    ),
    Version("norm removed", "each map divided by its RMS", "removed", "norm", lambda a, top: _unit(a)),
    Version("signs removed", "magnitudes at their size", "removed", "signs", lambda a, top: np.abs(a)),
    Version(
        "magnitudes removed",
        "signs times the RMS of the map",
        "removed",
        "magnitudes",
        lambda a, top: np.sign(a) * _rms(a),
    ),
    Version(
        f"strongest {TOP:.0%} removed",
        "all coordinates but these",
        "removed",
        "strongest",
        lambda a, top: a[~top].reshape(len(a), -1),
    ),
)
"""The versions that are attacked, fixed before anything is measured."""


def sentence(ablations: Sequence[Ablation]) -> str:
    """Which property carries the leak, in plain words; empty for no ablations."""
    whole = [a for a in ablations if a.kind == "native"]
    if not whole:
        return ""
    native = max(whole, key=lambda a: a.auc)
    alone = [a for a in ablations if a.kind == "alone"]
    if not any(_above_chance(a, len(whole)) for a in whole):
        hidden = max((a for a in alone if _above_chance(a, len(alone))), key=lambda a: a.auc, default=None)
        if hidden is None:
            return f"Nothing to explain: the attacks on the native map are at chance (AUC {native.auc:.2f})."
        text = f"The attacks on the native map as it is are at chance (AUC {native.auc:.2f}), but that on"
        return f"{text} {NOUNS[hidden.of]} alone is not (AUC {hidden.auc:.2f})."
    kept = {
        p: max((a for a in alone if a.of == p), key=lambda a: a.auc) for p in NOUNS if any(a.of == p for a in alone)
    }
    lost = {a.of: a for a in ablations if a.kind == "removed"}
    text = _carrier(native, kept, lost)
    other = max((a for a in ablations if a.kind == "other"), key=lambda a: a.auc, default=None)
    if other is not None:
        text += f" With the {other.name.partition(':')[0]} explained instead, the AUC is {other.auc:.2f}."
    return text


def _carrier(native: Ablation, kept: dict[Property, Ablation], lost: dict[Property, Ablation]) -> str:
    """The property that both keeps the leak alone and loses it when removed; else the best of either kind."""
    shares = {
        p: (kept[p].excess / native.excess, 1 - max(lost[p].excess, 0.0) / native.excess) for p in kept if p in lost
    }
    carriers = [p for p, both in shares.items() if min(both) >= HALF]
    as_it_is = f"the map as it is: {native.auc:.2f}"
    if carriers:
        p = max(carriers, key=lambda p: sum(shares[p]))
        start = f"{NOUNS[p][0].upper()}{NOUNS[p][1:]} {'carry' if p in PLURAL else 'carries'} the leak"
        return f"{start}: alone AUC {kept[p].auc:.2f}, without AUC {lost[p].auc:.2f} ({as_it_is})."
    if not kept:
        return (
            f"The attack on the native map is above chance (AUC {native.auc:.2f}); no version of the map was compared."
        )
    most = max(kept.values(), key=lambda a: a.auc)
    text = f"of what is kept alone, {NOUNS[most.of]} {'have' if most.of in PLURAL else 'has'} the highest AUC"
    text += f" ({most.auc:.2f}; {as_it_is})"
    if not lost:
        return f"Whole maps were not stored, so nothing could be removed; {text}."
    least = min(lost.values(), key=lambda a: a.auc)
    return f"No single property carries the leak: {text}; removing {NOUNS[least.of]} costs most (AUC {least.auc:.2f})."


def _above_chance(a: Ablation, tried: int) -> bool:
    """Whether the AUC is surely above 1/2, when it is one of several that were tried."""
    if a.auc_low <= 0.5 or a.auc == 1.0:
        return a.auc_low > 0.5
    middle, low = (math.log(p / (1 - p)) for p in (a.auc, a.auc_low))
    z = NormalDist().inv_cdf
    return middle > (middle - low) * z(1 - (1 - CONFIDENCE) / (2 * tried)) / z((1 + CONFIDENCE) / 2)
