"""From signals to a verdict: split, assign, attack, run the controls, count, judge; `verdict.judgement` has the rule.

Of each attack's scores, `conclude` counts the members above the ranks that the policy fixed, and pairs attacks on the
same members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.scoring import Assignment, score
from safexplain.audit.attacks.suite import SuiteRow, fitting, values_of
from safexplain.audit.controls.differences import (
    blind_baseline,
    more_than_chance,
    null_model,
    other_source,
    shuffled_membership,
)
from safexplain.audit.controls.strength import recipe_fit, reference_coverage
from safexplain.audit.holdout_uses import Uses
from safexplain.audit.signals import Signals
from safexplain.audit.splits import Splits, copies_together
from safexplain.errors import InputError
from safexplain.verdict.evidence import Control, Pair, is_judged, paired, title
from safexplain.verdict.judgement import SHOWN_FPRS, AttackResult, AuditResult
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.thresholds import by_score, found_above, lower_bound_rank, ranks_of, upper_bound_rank

SplitName = Literal["certification", "selection"]


def conclude(
    rows: Sequence[SuiteRow],
    scores: Sequence[NDArray[np.float64]],
    orders: Sequence[NDArray[np.int64]],
    member: NDArray[np.bool_],
    policy: Policy,
    found: tuple[Control, ...] = (),
    references: int = 1,
    split: str = "certification",
    sizes: dict[str, int] | None = None,
    uses: int | None = None,
    forced: bool = False,
) -> AuditResult:
    """Count what each attack found and judge it.

    Args:
        rows: the attacks.
        scores: (s,) of each.
        orders: (s,) of each, `by_score`.
        member: (s,) bool.
        policy: what counts as a leak.
        found: controls.
        references: models that stood in for the target.
        split: which examples these are.
        sizes: examples in each split.
        uses: which configuration this is that is judged on them; None: not counted.
        forced: certify although it is not the first.
    """
    judged = [is_judged(r.role, policy) for r in rows]
    r = ranks_of(policy, int((~member).sum()), sum(judged))
    fprs = sorted({*SHOWN_FPRS, policy.fpr})
    results, ordered = [], []
    for row, s, order, counts in zip(rows, scores, orders, judged, strict=True):
        curve, by_rank = roc(s, member), member[order]
        upper, lower = found_above(by_rank, r.upper_bound_rank), found_above(by_rank, r.lower_bound_rank)
        rates = tuple(tpr_at_fpr(curve, fpr=f, confidence=policy.confidence) for f in fprs)
        results.append(
            AttackResult(row.name, row.title_signal, row.role, max(upper, lower), lower, curve=curve, rates=rates)
        )
        if counts:
            ordered.append(by_rank)
    pairs, baseline = _pairs(rows, orders, member, policy)
    return AuditResult(
        policy,
        tuple(results),
        int(member.sum()),
        int((~member).sum()),
        references,
        found,
        pairs,
        baseline,
        split,
        uses,
        forced,
        orders=tuple(ordered),
        sizes=sizes or {"certification": len(member)},
    )


def _pairs(
    rows: Sequence[SuiteRow], orders: Sequence[NDArray[np.int64]], member: NDArray[np.bool_], policy: Policy
) -> tuple[tuple[Pair, ...], str]:
    """Every judged attack against the one that knows the prediction only (or, of explanations, the label only)."""
    wanted: tuple[tuple[str, str], ...] = (("LabelLikelihoodRatio", "label"),)
    if policy.release == "explanation+prediction":
        wanted = (("LikelihoodRatio", "loss"), ("Threshold", "loss"), *wanted)
    named = {(r.name, r.title_signal): i for i, r in enumerate(rows)}
    base = next((named[w] for w in wanted if w in named), None)
    if base is None:
        return (), ""
    name = title(rows[base].name, rows[base].title_signal)
    beside = replace(policy, claim="excess", max_excess=policy.max_excess or 0.5)
    compared = [i for i, r in enumerate(rows) if is_judged(r.role, beside)]
    n0, each = int((~member).sum()), policy.risk / max(len(compared), 1)

    def ranks(risk: float) -> tuple[int | None, int]:
        """Of the upper and of the lower bound; the latter accepts nobody where only a share could be."""
        rank, share = lower_bound_rank(n0, policy.fpr, risk)
        return upper_bound_rank(n0, policy.fpr, risk), rank if share == 1.0 else 0

    (wide, narrow), (wide_for_lower, narrow_for_lower) = ranks(policy.risk / 4), ranks(each / 4)
    pairs = []
    for i in compared:
        own, other = orders[i], orders[base]
        for_upper = paired(_accepted(own, member, wide), _accepted(other, member, narrow))
        for_lower = paired(_accepted(own, member, narrow_for_lower), _accepted(other, member, wide_for_lower))
        pairs.append(Pair(rows[i].name, rows[i].title_signal, *for_upper, *for_lower))
    return tuple(pairs), name


def _accepted(order: NDArray[np.int64], member: NDArray[np.bool_], rank: int | None) -> NDArray[np.bool_]:
    """(members,) bool: which members stand above the rank-th highest non-member; all for None, none for 0."""
    accepted = np.zeros(len(member), dtype=bool)
    if rank is None:
        accepted[:] = True
    elif rank > 0:
        accepted[order[: np.flatnonzero(~member[order])[rank - 1]]] = True
    return accepted[member]


def certify(
    signals: Signals,
    policy: Policy | None = None,
    *,
    inputs: NDArray[np.floating[Any]] | None = None,
    suite: Sequence[SuiteRow] | None = None,
    split: SplitName = "certification",
    uses: Uses | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditResult:
    """Run every attack that fits the signals, run the controls, and judge under the policy.

    Each example is scored once: against the one target, or, where several models may be targets, against one of them
    drawn at random, with all other models as references. Scored examples are then independent.

    Args:
        signals: what was released.
        policy: default `Policy()`.
        inputs: (n, ...) what models were asked about, for the blind control; default those of the signals.
        suite: attacks to run instead of those that fit.
        split: "selection" attacks the examples set aside for choosing a configuration, as often as one likes; nothing
            is decided there.
        uses: where verdicts on the same examples are counted. None: nowhere.
        seed: of the assignment of examples to targets, of the controls and of attacks that learn.
        progress: told after each attack.

    Raises:
        InputError: no attack fits, the scored examples are all members or all non-members, or uses cannot be counted.
    """
    policy = policy or Policy()
    rows = fitting(signals, policy) if suite is None else list(suite)
    if not any(r.role == "explanation" for r in rows):
        raise InputError(
            f"no explanation signal among {sorted(signals.values)}; expected l1, l2, variance or attributions"
        )
    inputs = signals.inputs if inputs is None else inputs
    signals, copies = copies_together(signals)
    splits = Splits.of(signals, policy, trains=any(r.learns for r in rows))
    scored = splits.selection if split == "selection" else splits.certification
    to = Assignment.drawn(signals, seed)
    everyone = signals.membership[to.target, np.arange(len(signals))]
    member = everyone[scored]
    if member.all() or not member.any():
        raise InputError(
            f"the {split} split has {int(member.sum())} members and {int((~member).sum())} non-members; it needs both"
        )
    counted = uses if split == "certification" else None
    if counted is not None:
        counted.check()
    judged = [r for r in rows if is_judged(r.role, policy)]
    null = to.to_null(signals)
    scores: list[NDArray[np.float64]] = []
    of_null: dict[str, NDArray[np.float64]] = {}
    for i, row in enumerate(rows):
        values = values_of(signals, row.signal)
        scores.append(score(signals, row, to, splits.training, values)[scored])
        if null is not None and row in judged and not row.learns:
            of_null[title(row.name, row.title_signal)] = score(signals, row, null, splits.training, values)[scored]
        progress("attacking", i + 1, len(rows))
    orders = [by_score(s, seed) for s in scores]
    kind = "a reference model" if null is not None and null.read[0] in signals.models else "an untrained model"
    judged_orders = [o for o, r in zip(orders, rows, strict=True) if r in judged]
    groups = None if signals.groups is None else signals.groups[scored]
    target = signals.targets[0]
    found = (
        blind_baseline(inputs, everyone, splits.training, scored, policy, seed, signals.groups),
        null_model(of_null, member, policy, kind, seed, groups),
        shuffled_membership(more_than_chance(judged_orders, int(member.sum()), policy), member, policy, seed, groups),
        reference_coverage(signals, signals.references(target), scored),
        recipe_fit(signals, target, signals.references(target), scored),
        *other_source(signals.out_of_distribution, inputs, splits.training, seed),
        copies,
    )
    references = len(signals.models) - 1 if any(r.needs_references for r in rows) else 0
    used = None if counted is None else counted.record(signals, scored)
    return conclude(
        rows,
        scores,
        orders,
        member,
        policy,
        found,
        references,
        split,
        splits.sizes,
        used,
        uses is not None and uses.force,
    )
