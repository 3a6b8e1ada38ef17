"""From scores to counts: members above the ranks that the policy fixed, and pairs of attacks on the same members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.suite import Row
from safexplain.verdict.evidence import Control, Evidence, Pair, is_judged, paired, ranks_of
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.names import title
from safexplain.verdict.policy import Policy
from safexplain.verdict.result import SHOWN_FPRS, AttackResult, AuditResult
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.thresholds import found_above, loose_rank, tight_rank


def conclude(
    rows: Sequence[Row],
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
        loose, tight = found_above(by_rank, r.loose), found_above(by_rank, r.tight)
        evidence = Evidence(row.name, row.title_signal, row.role, max(loose, tight), tight)
        rates = tuple(tpr_at_fpr(curve, fpr=f, confidence=policy.confidence) for f in fprs)
        results.append(AttackResult(evidence, curve, rates))
        if counts:
            ordered.append(by_rank)
    pairs, baseline = _pairs(rows, orders, member, policy)
    judgement = Judgement(
        policy,
        tuple(a.evidence for a in results),
        int(member.sum()),
        int((~member).sum()),
        references,
        found,
        pairs,
        baseline,
        split,
        uses,
        forced,
    )
    return AuditResult(judgement, tuple(results), tuple(ordered), sizes or {"certification": len(member)})


def _pairs(
    rows: Sequence[Row], orders: Sequence[NDArray[np.int64]], member: NDArray[np.bool_], policy: Policy
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
    upper, lower = policy.risk / 4, policy.risk / max(len(compared), 1) / 4
    n0 = int((~member).sum())
    wide, narrow = (
        (loose_rank(n0, policy.fpr, upper), tight_rank(n0, policy.fpr, upper)),
        (
            loose_rank(n0, policy.fpr, lower),
            tight_rank(n0, policy.fpr, lower),
        ),
    )
    pairs = []
    for i in compared:
        loose = paired(_accepted(orders[i], member, wide[0]), _accepted(orders[base], member, _sure(wide[1])))
        tight = paired(_accepted(orders[i], member, _sure(narrow[1])), _accepted(orders[base], member, narrow[0]))
        pairs.append(Pair(rows[i].name, rows[i].title_signal, *loose, *tight))
    return tuple(pairs), name


def _sure(tight: tuple[int, float]) -> int:
    """A rank that is surely tight: nobody is accepted where only a share could be."""
    rank, share = tight
    return rank if share == 1.0 else 0


def _accepted(order: NDArray[np.int64], member: NDArray[np.bool_], rank: int | None) -> NDArray[np.bool_]:
    """(members,) bool: which members stand above the rank-th highest non-member; all for None, none for 0."""
    accepted = np.zeros(len(member), dtype=bool)
    if rank is None:
        accepted[:] = True
    elif rank > 0:
        accepted[order[: np.flatnonzero(~member[order])[rank - 1]]] = True
    return accepted[member]
