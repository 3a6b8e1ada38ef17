"""Which property of a map carries the leak: the same attack on maps of which one property is kept, or taken away.

Each row is a likelihood-ratio attack (LiRA, arXiv 2112.03570, section IV) on what a transformation leaves of the native
maps. A property carries the leak where most of the AUC above 1/2 is kept with it alone, and lost without it. This
describes; nothing is certified here, so it looks at the examples outside of the certification split where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.ablation import CONFIDENCE, TOP, VERSIONS, Ablation, Maps, Version
from safexplain.audit.attacks import LikelihoodRatio
from safexplain.audit.attacks.scoring import Assignment
from safexplain.audit.signals import Signals
from safexplain.audit.splits import Splits
from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, roc, tpr_at_fpr
from safexplain.verdict.thresholds import found_above, loose_rank, lower_bound, ranked, tight_rank, upper_bound

__all__ = ["Sample", "root_cause", "sample"]

FEWEST = 100
"""Members, and non-members, below which all examples are looked at rather than those outside of the certification."""

MOST_NUMBERS = 1 << 26
"""Numbers in the maps of all models that are looked at; of more examples a part is drawn by lot."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Which examples are looked at.

    Args:
        rows: (n,) bool.
        says: which these are, in a sentence.
    """

    rows: NDArray[np.bool_]
    says: str


def sample(signals: Signals, policy: Policy, *, trains: bool = True, seed: int = 0) -> Sample:
    """The examples outside of the certification split, or all where these are too few.

    Args:
        signals: as audited under the policy.
        policy: says how the examples are split.
        trains: whether the audit trained something: an attack that learns, or, when it was given inputs, a blind
            control.
        seed: of the assignment of examples to targets, as in the audit.
    """
    splits = Splits.of(signals, policy, trains=trains)
    outside = splits.selection | splits.training
    member = signals.membership[Assignment.drawn(signals, seed).target, np.arange(signals.examples)]
    members, others = int(member[outside].sum()), int((~member[outside]).sum())
    if min(members, others) >= FEWEST:
        says = f"Measured on {members:,} members and {others:,} non-members outside of the certification split."
        return Sample(outside, says)
    everyone = splits.certification | outside
    return Sample(
        everyone,
        f"Measured on all examples, those of the verdict included, because fewer than {FEWEST} members or non-members"
        " lie outside of the certification split: choose no hardening by it and certify on the same examples.",
    )


def root_cause(
    signals: Signals,
    *,
    rows: NDArray[np.bool_] | None = None,
    to: Assignment | None = None,
    seed: int = 0,
    fpr: float = 0.01,
    other_output: Signals | None = None,
    other_name: str = "logit",
    progress: Progress = silent,
) -> tuple[Ablation, ...]:
    """Attack the native maps, and versions of them with one property alone or without it.

    Args:
        signals: of the native release; versions for which neither maps nor the scalar are stored are left out.
        rows: (n,) bool, the examples to look at (see `sample`); default all.
        to: which target each example is scored against; default drawn from the seed.
        seed: of that, and of the lot where there are more than `MOST_NUMBERS` numbers.
        fpr: false-positive rate at which members are counted.
        other_output: the native release of another output of the same models on the same examples.
        other_name: what that output is called.
        progress: told after each version.

    Returns:
        One row a version; empty where there are fewer than two reference models.

    Raises:
        InputError: the rows hold only members or only non-members, or the other signals have another membership.
    """
    if len(signals.models) < 3:
        return ()
    to = to or Assignment.drawn(signals, seed)
    chosen = _chosen(signals, np.ones(signals.examples, dtype=bool) if rows is None else rows, seed)
    member = signals.membership[to.target, np.arange(signals.examples)][chosen]
    if member.all() or not member.any():
        raise InputError(f"the rows hold {int(member.sum())} members and {int((~member).sum())} non-members; need both")
    found = [(signals, v) for v in _possible(signals, VERSIONS)]
    if other_output is not None:
        if not np.array_equal(other_output.membership, signals.membership):
            raise InputError("the other output must come from the same models and examples; its membership differs")
        pair = (
            Version(f"{other_name}: {v.name}", f"{v.says}, of the {other_name}", "other", "", v.make, v.scalar)
            for v in VERSIONS
            if v.kind == "native"
        )
        found += [(other_output, v) for v in _possible(other_output, pair)]
    top = None if signals.attributions is None else _strongest(signals, signals.attributions, to, chosen)
    out = []
    for i, (source, version) in enumerate(found):
        scores = _scores(source, version, to, chosen, top)
        out.append(_measured(version, scores, member, fpr, seed))
        progress("root cause", i + 1, len(found))
    return tuple(out)


def _chosen(signals: Signals, rows: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Indices of the examples looked at, in order, not too many."""
    chosen: NDArray[np.int64] = np.flatnonzero(rows)
    size = 0 if signals.attributions is None else len(signals.models) * signals.attributions.shape[2]
    most = max(2 * FEWEST, MOST_NUMBERS // max(size, 1))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng([seed, 0x0CA5]).choice(chosen, most, replace=False))
    return chosen


def _groups(to: Assignment, chosen: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each target with the places in `chosen` of the examples scored against it."""
    for target in np.unique(to.target[chosen]).tolist():
        yield target, np.flatnonzero(to.target[chosen] == target)


def _possible(signals: Signals, versions: Iterable[Version]) -> list[Version]:
    """The versions for which the maps, or else the scalar, are stored; one number has no strongest coordinates."""
    if signals.attributions is None:
        return [v for v in versions if v.scalar in signals.values]
    return [v for v in versions if v.of != "strongest" or signals.attributions.shape[2] > 1]


def _scores(
    signals: Signals, version: Version, to: Assignment, chosen: NDArray[np.int64], top: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    """(s,) likelihood ratios of the chosen examples; one model's maps are transformed at a time."""
    scores = np.zeros(len(chosen))
    for target, places in _groups(to, chosen):
        mine, others = chosen[places], to.references(signals, target, target)
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


def _strongest(signals: Signals, maps: Maps, to: Assignment, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(s, d) bool: per example the coordinates with the largest mean magnitude; the target is not looked at."""
    d = maps.shape[2]
    number = min(max(1, round(TOP * d)), max(d - 1, 1))
    top = np.zeros((len(chosen), d), dtype=bool)
    for target, places in _groups(to, chosen):
        total = np.zeros((len(places), d))
        for model in to.references(signals, target, target):
            total += np.abs(maps[model, chosen[places]])
        part = np.zeros(total.shape, dtype=bool)
        np.put_along_axis(part, np.argsort(-total, axis=1, kind="stable")[:, :number], True, axis=1)
        top[places] = part
    return top


def _measured(
    version: Version, scores: NDArray[np.float64], member: NDArray[np.bool_], fpr: float, seed: int
) -> Ablation:
    curve, order, risk = roc(scores, member), ranked(scores, member, seed), (1 - CONFIDENCE) / 4
    tight, share = tight_rank(curve.non_members, fpr, risk)
    loose = loose_rank(curve.non_members, fpr, risk)
    return Ablation(
        version.name,
        version.says,
        curve.auc,
        *auc_interval(curve, CONFIDENCE),
        tpr_at_fpr(curve, fpr=fpr).tpr,
        lower_bound(found_above(order, tight), curve.members, risk) * share,
        upper_bound(found_above(order, loose), curve.members, risk),
        fpr,
        version.kind,
        version.of,
    )
