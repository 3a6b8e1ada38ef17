"""From signals to a verdict: attacks, counts, controls, and judgement. Each target is judged on its own, and the most
exposed one decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.suite import MIN_FOR_NULL, Scorer, SuiteRow, families_allowed, fitting, gaps
from safexplain.audit.controls.checks import (
    accuracy,
    blind_baseline,
    null_model,
    recipe_fit,
    reference_coverage,
    shuffled_membership,
)
from safexplain.audit.controls.splits import Splits, Uses, copies_together, uses_of
from safexplain.audit.report.root_cause import by_slice, most_exposed
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.verdict.judgement import MAIN, baseline_name, is_judged, lower_risks
from safexplain.verdict.policy import Policy
from safexplain.verdict.result import SHOWN_FPRS, AttackResult, AuditResult
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.stats.paired import count_pairs, difference_bounds, rank_at
from safexplain.verdict.thresholds import (
    by_score,
    found_above,
    lower_bound,
    lower_bound_rank,
    units_of,
    upper_bound_rank,
    weights_of,
)
from safexplain.verdict.words import VERDICTS, title

SplitName = Literal["certification", "selection"]
Bools = NDArray[np.bool_]
Groups = NDArray[np.integer[Any]]
Order = NDArray[np.int64]


def certify(
    signals: Signals,
    policy: Policy | None = None,
    *,
    inputs: NDArray[np.floating[Any]] | None = None,
    suite: Sequence[SuiteRow] | None = None,
    split: SplitName = "certification",
    uses: Uses | None = None,
    counted: bool = True,
    force: bool = False,
    seed: int = 0,
    exposed: int = 0,
    scorers: dict[int, Scorer] | None = None,
    progress: Progress = silent,
    **about: Any,
) -> AuditResult:
    """Run every attack that fits the signals, run the controls, and judge under the policy.

    The references of a target are all other trained models. Signals without an explanation are judged as the release
    of predictions alone; the policy of the result states this.

    Args:
        signals: the released numbers.
        policy: default `Policy()`.
        inputs: (n, ...) examples, for the blind control, exact copies and the count of uses; default the signals'.
        suite: attacks to run instead of those that fit; one that leaves out any of these certifies nothing.
        split: "selection" attacks the examples set aside for choosing a configuration, without a verdict.
        uses: counter of verdicts on the same examples. None: this user's file.
        counted: whether this is a use of the examples; False if nothing is decided by it.
        force: certify although the examples were used for other configurations; the certificate says so.
        seed: of ties, controls and attacks that learn.
        exposed: number of the most exposed members to list, for the owner of the data.
        scorers: target -> scorer of another release of the same models and queries, whose scores without explanations
            are reused; replaced by this release's.
        progress: called after each attack.
        about: further fields of the result, such as `quick`.

    Returns:
        The most exposed target's result, with the others' within it.

    Raises:
        InputError: no attack fits the release, the scored examples are all members or all non-members, an exact copy
            of a member is a non-member, or uses cannot be counted.
    """
    if inputs is not None and signals.inputs is None:
        signals = replace(signals, inputs=np.asarray(inputs))
    signals, copies = copies_together(signals)
    rows, policy = _rows(signals, policy or Policy(), suite)
    splits = Splits.of(signals, policy, trains=any(r.learns for r in rows))
    if not counted or split != "certification":
        uses = None
    elif uses is None:
        uses = uses_of(signals, policy, [f"{r.name} on {r.signal}" for r in rows], seed, force)
    else:
        uses.check()
    scored = splits.selection if split == "selection" else splits.certification
    for target in signals.targets:  # before the attacks
        if len(np.unique(member := signals.membership[target, scored])) < 2:
            raise InputError(
                f"expected members and non-members of model {target} in the {split} split, got {int(member.sum())} and"
                f" {int((~member).sum())}"
            )

    scorers = {} if scorers is None else scorers
    groups = None if signals.groups is None else signals.groups[scored]
    judged, targets, found = judged_among(rows, policy), len(signals.targets), []
    for target in signals.targets:
        all_members, references = signals.membership[target], signals.references(target)
        member, (null, kind) = all_members[scored], _null_model(signals, target)
        known = scorers.get(target)

        def named(stage: str, done: float, total: float, note: str = "", target: int = target) -> None:
            progress(f"model {target}, {stage}" if targets > 1 else stage, done, total, note)

        scorer = scorers[target] = Scorer(
            signals, rows, target=target, training=splits.training, seed=seed, also=null, known=known, progress=named
        )
        scores = [s[scored] for s in scorer.scores(target)]
        orders = [by_score(s, seed) for s in scores]
        of_null: dict[str, NDArray[np.float64]] = {}
        for read in null:
            each = scorer.scores(read)
            of_null = {title(rows[i].name, rows[i].signal): each[i][scored] for i in judged}
        alarm = _alarm(rows, judged, orders, policy, targets, groups)
        controls = (
            blind_baseline(signals.inputs, all_members, splits.training, scored, policy, seed, signals.groups),
            null_model(of_null, member, policy, kind, seed, groups),
            shuffled_membership(alarm, member, policy, seed, groups),
            reference_coverage(signals, references, scored),
            recipe_fit(signals, target, references, scored, [rows[i].signal for i in judged]),
            *(accuracy(signals.meta) if targets == 1 else ()),
            copies,
        )
        more = {
            **about,
            "references": len(references) if any(rows[i].needs_references for i in judged) else 0,
            "controls": controls,
            "omitted": tuple(n for n in families_allowed(signals, policy) if n not in {r.name for r in rows}),
            "gaps": gaps(signals, rows, policy) if suite is None and not policy.suite else (),
            "split": split,
            "sizes": splits.sizes,
            "target": target if targets > 1 else None,
        }
        result = conclude(rows, scores, orders, member, policy, groups=groups, targets=targets, **more)
        if signals.slices or exposed:
            best = scores[result.attacks.index(result.strongest)]
            parts = {name: values[scored] for name, values in signals.slices.items()}
            listed = most_exposed(best, member, exposed, at=np.flatnonzero(scored), groups=groups) if exposed else ()
            slices = by_slice(best, member, parts, policy, groups=groups, seed=seed)
            result = replace(result, slices=slices, exposed=listed)
        found.append(result)

    first = max(found, key=_exposure)
    others = [r for r in found if r is not first]
    noted: dict[str, Any] = {"uses": None}
    if uses is not None:
        alone = replace(first, uses=1, others=tuple(replace(r, uses=1) for r in others))
        says = f"{policy.changes}: {VERDICTS[alone.verdict].lower()}"
        used, tried = uses.record(signals, splits.certification, says)
        noted = {"uses": used, "tried": tried, "forced": uses.force}
    return replace(first, **noted, others=tuple(replace(r, **noted) for r in others))


def _rows(signals: Signals, policy: Policy, suite: Sequence[SuiteRow] | None) -> tuple[list[SuiteRow], Policy]:
    """The rows to run, and the policy."""
    rows = fitting(signals, policy) if suite is None else list(suite)
    if not _explained(rows):
        every = fitting(signals, replace(policy, suite=())) if suite is None else rows
        if not _explained(every) and any(r.role == "loss" for r in every):
            policy = replace(policy, release="prediction")
            rows = fitting(signals, policy) if suite is None else rows
    if any(r.role == "loss" for r in rows) if policy.release == "prediction" else _explained(rows):
        return rows, policy
    if policy.suite and (others := families_allowed(signals, policy)):
        needs = ": Stacked needs at least two attacks and four references" if MAIN in policy.suite else ""
        raise InputError(
            f"the signals do not suit the policy's suite, {', '.join(policy.suite)}{needs}; choose from"
            f" {', '.join(others)}"
        )
    expected = "prediction, loss or margin"
    if policy.release != "prediction":
        expected = "l1, l2, variance or attributions, or prediction"
    raise InputError(f"expected signals such as {expected}, got {sorted(signals.values)}")


def _explained(rows: Sequence[SuiteRow]) -> bool:
    return any("explanation" in r.role for r in rows)


def _null_model(signals: Signals, target: int) -> tuple[list[int], str]:
    """A model trained independently of the target's members, if there is one, and its kind."""
    models = np.array(signals.models)
    if len(models) >= MIN_FOR_NULL:
        return [int(models[(np.searchsorted(models, target) + 1) % len(models)])], "a reference model"
    return [int(read) for read in signals.null[:1]], "an untrained model" if signals.null else ""


def _exposure(result: AuditResult) -> tuple[float, float]:
    bounds = result.decisive.values()
    above = max((low - result.limit for low, _ in bounds), default=0.0)
    return max(above, 0.0), max((high for _, high in bounds), default=1.0)


def conclude(
    rows: Sequence[SuiteRow],
    scores: Sequence[NDArray[np.float64]],
    orders: Sequence[Order],
    member: Bools,
    policy: Policy,
    *,
    groups: Groups | None = None,
    targets: int = 1,
    **about: Any,
) -> AuditResult:
    """Count the members that each attack's (s,) scores find above the ranks that the policy fixes, alone and compared
    with the baseline of its level, an attack on the labels (or predictions) of the same queries.

    The (s,) orders are `by_score` with one seed; examples of one of the (s,) groups are one unit on each side. `about`
    has further fields of the result.
    """
    base = _baselines(rows, policy)
    judged = judged_among(rows, policy)
    risks = dict(zip(judged, lower_risks([rows[i].name for i in judged], policy, targets), strict=True))
    weights = None if groups is None else weights_of(member, groups)
    w = np.ones(len(member)) if weights is None else weights
    units, others = (units_of(w[side]) for side in (member, ~member))
    upper = upper_bound_rank(others, policy.fpr, policy.risk / 2)
    results = []
    shown = sorted({*SHOWN_FPRS, policy.fpr})
    for i, (row, s, order) in enumerate(zip(rows, scores, orders, strict=True)):
        risk = risks.get(i, policy.risk / targets / (len(judged) + 1))
        by_rank, heavy = member[order], None if weights is None else weights[order]
        low = found_above(by_rank, lower_bound_rank(others, policy.fpr, risk / 2)[0], heavy, strict=True)
        pair = None
        if base.get(row.level, i) != i:
            pair = count_pairs(order, orders[base[row.level]], member, policy.fpr, weights)
        curve = roc(s, member)
        rates = tuple(tpr_at_fpr(curve, fpr=f, confidence=policy.confidence) for f in shown)
        found, high = found_above(by_rank, rank_at(others, policy.fpr), heavy), found_above(by_rank, upper, heavy)
        counts = (found, max(high, low), low, pair)
        results.append(AttackResult(row.name, row.signal, row.role, row.level, *counts, curve=curve, rates=rates))
    return AuditResult(
        policy,
        tuple(results),
        units,
        others,
        grouped=None if weights is None else len(member),
        targets=targets,
        orders=tuple(member[orders[i]] for i in judged),
        **{"references": 0, "sizes": {"certification": len(member)}, **about},
    )


def _baselines(rows: Sequence[SuiteRow], policy: Policy) -> dict[int, int]:
    return {r.level: i for i, r in enumerate(rows) if r.name == baseline_name(policy)}


def judged_among(rows: Sequence[SuiteRow], policy: Policy) -> list[int]:
    """Indices of the rows on which the verdict rests."""
    claim = policy.claim if _baselines(rows, policy) else "whole"
    return [i for i, r in enumerate(rows) if is_judged(r.role, policy, claim) and r.level in policy.patience]


def _alarm(
    rows: Sequence[SuiteRow],
    judged: Sequence[int],
    orders: Sequence[Order],
    policy: Policy,
    targets: int,
    groups: Groups | None,
) -> Callable[[Bools], bool] | None:
    """Whether this audit would find more than chance if given examples were the members."""
    if not judged:
        return None
    base = {} if policy.claim == "whole" else _baselines(rows, policy)
    risks = lower_risks([rows[i].name for i in judged], policy, targets)
    attacks = [
        (orders[i], orders[base[rows[i].level]] if rows[i].level in base else None, risk)
        for i, risk in zip(judged, risks, strict=True)
    ]
    attacks = [a for a in attacks if a[1] is None or not np.array_equal(a[0], a[1])]  # else the baseline itself
    weights = weights_of(np.zeros(len(orders[0]), dtype=bool), groups)

    def alarm(member: Bools) -> bool:
        inside, outside = units_of(weights[member]), units_of(weights[~member])
        for order, compared, risk in attacks:
            if compared is not None:
                pair = count_pairs(order, compared, member, policy.fpr, weights)
                if pair.only <= pair.missed:
                    continue
                low, chance = difference_bounds(pair, inside, outside, policy.fpr, risk, policy.risk)[0], 0.0
            else:
                rank, share = lower_bound_rank(outside, policy.fpr, risk / 2)
                found = found_above(member[order], rank, weights[order], strict=True)
                low, chance = lower_bound(found, inside, risk / 2) * share, policy.fpr
            if low > chance:
                return True
        return False

    return alarm
