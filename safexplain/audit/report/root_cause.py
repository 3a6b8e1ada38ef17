"""What carries the leak, and who is exposed most; none of it affects the verdict.

Each row of `VERSIONS` is a likelihood-ratio attack (LiRA, arXiv 2112.03570, section IV) on transformed native maps. A
property carries the leak if most of the AUC above 1/2 remains with it alone and is lost without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks import LikelihoodRatio
from safexplain.audit.controls.splits import Splits
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc, tpr_at_fpr
from safexplain.verdict.thresholds import (
    by_score,
    found_above,
    lower_bound,
    lower_bound_rank,
    ranked,
    units_of,
    upper_bound,
    upper_bound_rank,
    weights_of,
)

Maps = NDArray[np.floating[Any]]
Kind = Literal["native", "alone", "removed"]
Property = Literal["norm", "signs", "magnitudes", "ranks", "sparsity", "strongest", ""]

CONFIDENCE = 0.95
"""Of each interval, and of the two statements that an attack is above chance (with Bonferroni's correction)."""

HALF = 0.5  # share of the AUC above 1/2 that the carrier of a leak must keep alone, and cost when removed
TOP = 0.1  # share of the coordinates that counts as the most sensitive ones

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
    """What the attack finds in one version of the maps; bounds of the AUC are DeLong's, those of the share of members
    found as in `thresholds`, each at 95 %."""

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
    """One version of the maps."""

    name: str
    says: str
    kind: Kind
    of: Property
    make: Callable[[Maps, NDArray[np.bool_]], Maps]
    """(k, d) maps of one model and (k, d) which coordinates are the strongest -> (k,) or (k, d')."""
    scalar: str = ""  # the stored signal, used if no maps are


def _l1(a: Maps) -> Maps:
    return np.asarray(np.abs(a).sum(1, dtype=np.float64))


def _rms(a: Maps) -> Maps:
    largest = np.abs(a).max(1, keepdims=True)
    return np.asarray(largest * np.sqrt(np.square(a / np.where(largest > 0, largest, 1)).mean(1, keepdims=True)))


def _unit(a: Maps) -> Maps:
    """Maps divided by their root mean square; zeros stay zeros."""
    rms = _rms(a)
    return np.asarray(a / np.where(rms > 0, rms, 1))


def _ranks(a: Maps) -> Maps:
    return (np.argsort(np.argsort(a, axis=1, kind="stable"), axis=1) / max(a.shape[1] - 1, 1)).astype(np.float32)


def _rest(a: Maps, top: NDArray[np.bool_]) -> Maps:
    return a[~top].reshape(len(a), -1)


STRONGEST = "the coordinates that are largest on average over the reference models"

VERSIONS: tuple[Version, ...] = (
    Version("L1 norm", "sum of all magnitudes", "native", "", lambda a, top: _l1(a), "l1"),
    Version("whole map", "every entry, as it is", "native", "", lambda a, top: a),
    Version("norm alone", "L1 norm, nothing else", "alone", "norm", lambda a, top: _l1(a), "l1"),
    Version("variance alone", "over the entries", "alone", "norm", lambda a, top: a.var(1, dtype=float), "variance"),
    Version("signs alone", "−1, 0 or +1 for each entry", "alone", "signs", lambda a, top: np.sign(a)),
    Version("magnitudes alone", "no signs, unit norm", "alone", "magnitudes", lambda a, top: _unit(np.abs(a))),
    Version("ranks alone", "each entry's place in the order", "alone", "ranks", lambda a, top: _ranks(a)),
    Version("sparsity alone", "mean magnitude / RMS", "alone", "sparsity", lambda a, top: _l1(_unit(a)), "sparsity"),
    Version(f"strongest {TOP:.0%} alone", STRONGEST, "alone", "strongest", lambda a, top: a[top].reshape(len(a), -1)),
    Version("norm removed", "each map divided by its RMS", "removed", "norm", lambda a, top: _unit(a)),
    Version("signs removed", "magnitudes at their size", "removed", "signs", lambda a, top: np.abs(a)),
    Version("magnitudes removed", "signs times the RMS", "removed", "magnitudes", lambda a, top: np.sign(a) * _rms(a)),
    Version(f"strongest {TOP:.0%} removed", "all others", "removed", "strongest", lambda a, top: _rest(a, top)),
)


def sentence(ablations: Sequence[Ablation]) -> str:
    """Which property carries the leak; "" for no ablations."""
    whole = [a for a in ablations if a.kind == "native"]
    if not whole:
        return ""
    native = max(whole, key=lambda a: a.auc)
    alone = [a for a in ablations if a.kind == "alone"]
    if not any(_above_chance(a, len(whole)) for a in whole):
        hidden = max((a for a in alone if _above_chance(a, len(alone))), key=lambda a: a.auc, default=None)
        if hidden is None:
            return f"Nothing to explain: the attacks on the native map are at chance (AUC {native.auc:.2f})."
        text = f"The attacks on the whole native map are at chance (AUC {native.auc:.2f}), but the attack on"
        return f"{text} {NOUNS[hidden.of]} alone is not (AUC {hidden.auc:.2f})."
    kept = {
        p: max((a for a in alone if a.of == p), key=lambda a: a.auc) for p in NOUNS if any(a.of == p for a in alone)
    }
    lost = {a.of: a for a in ablations if a.kind == "removed"}
    return _carrier(native, kept, lost)


def _carrier(native: Ablation, kept: dict[Property, Ablation], lost: dict[Property, Ablation]) -> str:
    """The property that keeps the leak alone and loses it when removed; else the best of either kind."""
    shares = {
        p: (kept[p].excess / native.excess, 1 - max(lost[p].excess, 0.0) / native.excess) for p in kept if p in lost
    }
    carriers = [p for p, both in shares.items() if min(both) >= HALF]
    whole = f"whole map: {native.auc:.2f}"
    if carriers:
        p = max(carriers, key=lambda p: sum(shares[p]))
        start = f"{NOUNS[p][0].upper()}{NOUNS[p][1:]} {'carry' if p in PLURAL else 'carries'} the leak"
        return f"{start}: AUC {kept[p].auc:.2f} alone, {lost[p].auc:.2f} when removed ({whole})."
    most = max(kept.values(), key=lambda a: a.auc)
    text = f"alone, {NOUNS[most.of]} {'have' if most.of in PLURAL else 'has'} the highest AUC"
    text += f" ({most.auc:.2f}; {whole})"
    if not lost:
        return f"Whole maps were not stored, so no property could be removed; {text}."
    least = min(lost.values(), key=lambda a: a.auc)
    return f"No single property carries the leak: {text}; removing {NOUNS[least.of]} costs most (AUC {least.auc:.2f})."


def _above_chance(a: Ablation, tried: int) -> bool:
    """Whether the AUC is significantly above 1/2, as one of several that were tried."""
    if a.auc_low <= 0.5 or a.auc == 1.0:
        return a.auc_low > 0.5
    middle, low = (math.log(p / (1 - p)) for p in (a.auc, a.auc_low))
    z = NormalDist().inv_cdf
    return middle > (middle - low) * z(1 - (1 - CONFIDENCE) / (2 * tried)) / z((1 + CONFIDENCE) / 2)


MIN_EXAMPLES = 100  # members, and non-members, outside the certification split below which all examples are used
MAX_NUMBERS = 1 << 26  # numbers in the maps of all models, at most; examples are drawn at random if there are more
MAX_TARGETS = 64  # models that take turns as the target, at most; more only cost time, as each example is attacked once


def draw_targets(signals: Signals, seed: int) -> NDArray[np.int64]:
    """(n,) a target for each example, at random, so that results are averages."""
    rng = np.random.default_rng([seed, 0xA551])
    targets = np.array(signals.targets)
    if len(targets) > MAX_TARGETS:
        targets = np.sort(rng.choice(targets, MAX_TARGETS, replace=False))
    return np.asarray(targets[rng.integers(len(targets), size=len(signals))])


def sample(signals: Signals, policy: Policy, *, trains: bool = True, seed: int = 0) -> tuple[NDArray[np.bool_], str]:
    """(n,) bool, the examples outside the certification split (all, if these are too few), and a sentence that names
    them; `trains` says whether the audit trained something, an attack or a blind control."""
    splits = Splits.of(signals, policy, trains=trains)
    outside = splits.selection | splits.training
    member = signals.membership[draw_targets(signals, seed), np.arange(len(signals))]
    members, others = int(member[outside].sum()), int((~member[outside]).sum())
    if min(members, others) >= MIN_EXAMPLES:
        says = f"Measured on {members:,} members and {others:,} non-members outside the certification split."
        return outside, says
    return (
        splits.certification | outside,
        f"Measured on all examples, including those of the verdict, because fewer than {MIN_EXAMPLES} members"
        " or non-members lie outside the certification split: do not choose a hardening by this and then certify on the"
        " same examples.",
    )


def root_cause(
    signals: Signals,
    *,
    rows: NDArray[np.bool_] | None = None,
    target: NDArray[np.int64] | None = None,
    seed: int = 0,
    fpr: float = 0.01,
    progress: Progress = silent,
) -> tuple[Ablation, ...]:
    """Attack the native maps, and versions of them with one property alone or without it.

    Versions are skipped if neither maps nor their scalar are stored. The (n,) `rows` (see `sample`; None: all) are
    attacked, each for the model in `target` (n,) (None: drawn from the targets); none with fewer than two references.
    InputError: the rows hold only members or only non-members.
    """
    if len(signals.models) < 3:
        return ()
    target = draw_targets(signals, seed) if target is None else target
    chosen = _chosen(signals, np.ones(len(signals), dtype=bool) if rows is None else rows, seed)
    member = signals.membership[target, np.arange(len(signals))][chosen]
    if member.all() or not member.any():
        raise InputError(f"the rows hold {int(member.sum())} members and {int((~member).sum())} non-members; need both")
    maps = signals.attributions
    found = [
        v
        for v in VERSIONS
        if (v.scalar in signals.values if maps is None else maps.shape[2] > 1 or v.of != "strongest")
    ]
    top = None if maps is None else _strongest(signals, maps, target, chosen)
    out = []
    for i, version in enumerate(found):
        scores = _scores(signals, version, target, chosen, top)
        out.append(_measured(version, scores, member, fpr, seed))
        progress("root cause", i + 1, len(found))
    return tuple(out)


def _chosen(signals: Signals, rows: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Indices of the attacked examples, whose maps fit `MAX_NUMBERS`."""
    chosen: NDArray[np.int64] = np.flatnonzero(rows)
    size = 0 if signals.attributions is None else len(signals.models) * signals.attributions.shape[2]
    most = max(2 * MIN_EXAMPLES, MAX_NUMBERS // max(size, 1))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng([seed, 0x0CA5]).choice(chosen, most, replace=False))
    return chosen


def _groups(targets: NDArray[np.int64], chosen: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each target with the places in `chosen` of its examples."""
    for target in np.unique(targets[chosen]).tolist():
        yield target, np.flatnonzero(targets[chosen] == target)


def _scores(
    signals: Signals,
    version: Version,
    targets: NDArray[np.int64],
    chosen: NDArray[np.int64],
    top: NDArray[np.bool_] | None,
) -> NDArray[np.float64]:
    """(s,) likelihood ratios of the chosen examples; one model's maps are transformed at a time."""
    scores = np.zeros(len(chosen))
    for target, places in _groups(targets, chosen):
        mine, others = chosen[places], np.array(signals.references(target))
        inside = signals.membership[others][:, mine]
        if not (inside.any(0) & ~inside.all(0)).any():
            continue
        if signals.attributions is None:
            stored = signals.values[version.scalar][:, mine]
            scores[places] = LikelihoodRatio()(stored[target], stored[others], inside)
            continue
        strongest = np.zeros((len(mine), 0), dtype=bool) if top is None else top[places]
        values = version.make(signals.attributions[target, mine], strongest)
        references = np.empty((len(others), *values.shape), dtype=values.dtype)
        for i, model in enumerate(others):
            references[i] = version.make(signals.attributions[model, mine], strongest)
        scores[places] = LikelihoodRatio()(values, references, inside)
    return scores


def _strongest(
    signals: Signals, maps: Maps, targets: NDArray[np.int64], chosen: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(s, d) bool, the coordinates with the largest mean magnitude per example over its reference models."""
    d = maps.shape[2]
    number = min(max(1, round(TOP * d)), max(d - 1, 1))
    top = np.zeros((len(chosen), d), dtype=bool)
    for target, places in _groups(targets, chosen):
        total = np.zeros((len(places), d))
        for model in signals.references(target):
            total += np.abs(maps[model, chosen[places]])
        part = np.zeros(total.shape, dtype=bool)
        np.put_along_axis(part, np.argsort(-total, axis=1, kind="stable")[:, :number], True, axis=1)
        top[places] = part
    return top


def _measured(
    version: Version, scores: NDArray[np.float64], member: NDArray[np.bool_], fpr: float, seed: int
) -> Ablation:
    curve, order, risk = roc(scores, member), ranked(scores, member, seed), (1 - CONFIDENCE) / 4
    lower_rank, share = lower_bound_rank(curve.non_members, fpr, risk)
    upper_rank = upper_bound_rank(curve.non_members, fpr, risk)
    return Ablation(
        version.name,
        version.says,
        curve.auc,
        *auc_interval(curve, CONFIDENCE),
        tpr_at_fpr(curve, fpr=fpr).tpr,
        lower_bound(found_above(order, lower_rank), curve.members, risk) * share,
        upper_bound(found_above(order, upper_rank), curve.members, risk),
        fpr,
        version.kind,
        version.of,
    )


FEWEST_MEMBERS = 20  # members (or groups) below which a part of the data has no row, as its interval would be too wide


@dataclass(frozen=True)
class SliceRow:
    """One part of the data; a group that is found in part counts in part."""

    value: str
    found: float
    members: int
    low: float
    high: float
    false_positives: float
    non_members: int

    @property
    def rate(self) -> float:
        """Share of the members that are found."""
        return self.found / self.members

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "rate": self.rate}


@dataclass(frozen=True)
class SliceTable:
    """The parts of the data by one column, the most exposed first."""

    name: str
    fpr: float  # share of all non-members above the threshold, at most that of the policy
    confidence: float  # with which all intervals of the table hold together
    left_out: int  # parts with fewer than `FEWEST_MEMBERS` members
    rows: tuple[SliceRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}


@dataclass(frozen=True)
class ExposedMember:
    """A member that an attack finds: its index, its score, and the share of non-members that score as high."""

    example: int
    score: float
    fpr: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def by_slice(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    slices: Mapping[str, NDArray[Any]],
    policy: Policy,
    *,
    groups: NDArray[np.integer[Any]] | None = None,
    seed: int = 0,
) -> tuple[SliceTable, ...]:
    """Members found in each part of the data by (s,) scores, at one threshold: the lowest whose false-positive rate
    over all non-members is at most the policy's.

    Intervals are Clopper & Pearson's over the members of a part, given that threshold; with Bonferroni's correction,
    those of one table hold together with the policy's confidence.
    """
    order = by_score(scores, seed)
    weights = weights_of(member, groups)
    outside = np.cumsum(np.where(member, 0.0, weights)[order])
    above = np.zeros(len(scores), dtype=bool)
    above[order[: np.searchsorted(outside, policy.fpr * outside[-1] * (1 + 1e-9), side="right")]] = True
    fpr = float(weights[above & ~member].sum() / outside[-1])

    def found(part: NDArray[np.bool_]) -> tuple[float, int]:
        """How many of a part lie above the threshold, and its size."""
        each = weights_of(np.ones(int(part.sum()), dtype=bool), None if groups is None else groups[part])
        return min(float(each[above[part]].sum()), float(units_of(each))), units_of(each)

    tables = []
    for name, values in slices.items():
        distinct = np.unique(values)
        parts = [(str(v), found((values == v) & member), found((values == v) & ~member)) for v in distinct]
        parts = [part for part in parts if part[1][1] >= FEWEST_MEMBERS]
        each = 1 - policy.risk / max(len(parts), 1)
        rows = [SliceRow(v, *inside, *clopper_pearson(*inside, each), *others) for v, inside, others in parts]
        rows.sort(key=lambda row: (-row.rate, row.value))
        tables.append(SliceTable(name, fpr, policy.confidence, len(distinct) - len(rows), tuple(rows)))
    return tuple(tables)


def most_exposed(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    k: int,
    *,
    at: NDArray[np.integer[Any]] | None = None,
    groups: NDArray[np.integer[Any]] | None = None,
) -> tuple[ExposedMember, ...]:
    """The k members with the highest (s,) scores, the most exposed first; `at` (s,) are their indices in the signals.

    The list names members and is only for the owner of the data.
    """
    index = np.arange(len(scores)) if at is None else at
    weights = weights_of(member, groups)[~member]
    inside = np.flatnonzero(member)
    first = inside[np.argsort(-scores[inside], kind="stable")][:k]
    fprs = [float(weights[scores[~member] >= scores[i]].sum() / weights.sum()) for i in first]
    return tuple(ExposedMember(int(index[i]), float(scores[i]), round(f, 12)) for i, f in zip(first, fprs, strict=True))
