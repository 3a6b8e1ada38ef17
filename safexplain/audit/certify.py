"""From signals to a verdict: split, assign, attack, control, count, judge; see `judgement` for the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit import controls
from safexplain.audit.attacks.scoring import Assignment, score
from safexplain.audit.attacks.suite import Row, fitting, values_of
from safexplain.audit.counting import conclude
from safexplain.audit.holdout_uses import Uses
from safexplain.audit.references.shadows import Progress, silent
from safexplain.audit.signals import Signals
from safexplain.audit.splits import SplitName, Splits
from safexplain.audit.strength import recipe_fit, reference_coverage
from safexplain.errors import InputError
from safexplain.verdict.evidence import is_judged
from safexplain.verdict.names import title
from safexplain.verdict.policy import Policy
from safexplain.verdict.result import AuditResult
from safexplain.verdict.thresholds import by_score

__all__ = ["audit", "certify"]


def certify(
    signals: Signals,
    policy: Policy | None = None,
    *,
    inputs: NDArray[np.floating[Any]] | None = None,
    suite: Sequence[Row] | None = None,
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
    rows = fitting(signals, policy.suite) if suite is None else list(suite)
    if not any(r.role == "explanation" for r in rows):
        raise InputError(
            f"no explanation signal among {sorted(signals.values)}; expected l1, l2, variance or attributions"
        )
    inputs = signals.inputs if inputs is None else inputs
    splits = Splits.of(signals, policy, trains=any(r.learns for r in rows))
    scored = splits.selection if split == "selection" else splits.certification
    to = Assignment.drawn(signals, seed)
    everyone = signals.membership[to.target, np.arange(signals.examples)]
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
    found = (
        controls.blind_baseline(inputs, everyone, splits.training, scored, policy, seed),
        controls.null_model(of_null, member, policy, kind),
        controls.shuffled_membership(
            [o for o, r in zip(orders, rows, strict=True) if r in judged], int(member.sum()), policy, seed
        ),
        reference_coverage(signals, to, scored),
        recipe_fit(signals, to, scored),
        *controls.other_source(signals.out_of_distribution, inputs, splits.training, seed),
    )
    references = len(signals.models) - 1 if any(r.needs_references for r in rows) else 0
    used = None if counted is None else counted.record(splits.identity)
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


def audit(
    signals: Signals,
    policy: Policy | None = None,
    *,
    suite: Sequence[Row] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditResult:
    """`certify` without counting the use of the examples: for looking at what attacks find."""
    return certify(signals, policy, suite=suite, seed=seed, progress=progress)
