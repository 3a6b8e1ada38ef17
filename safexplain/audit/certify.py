"""From signals to a verdict: split, attack, run the controls, count, judge; `verdict.judgement` has the rule.

Each target is judged on its own, and the most exposed one speaks for all. Of each attack's scores, `conclude` counts
the members above the ranks that the policy fixed, alone and beside the baseline of the same level of patience: what
the labels (or predictions) of the same queries tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL, Scorer
from safexplain.audit.attacks.suite import SuiteRow, families_allowed, fitting
from safexplain.audit.controls.accuracy import accuracy
from safexplain.audit.controls.differences import blind_baseline, null_model, other_source, shuffled_membership
from safexplain.audit.controls.strength import recipe_fit, reference_coverage
from safexplain.audit.exposure import by_slice, most_exposed
from safexplain.audit.holdout_uses import Uses, uses_of
from safexplain.audit.signals import Signals
from safexplain.audit.splits import Splits, copies_together
from safexplain.errors import InputError
from safexplain.verdict.evidence import Control, baseline_name, is_judged, title
from safexplain.verdict.judgement import MAIN, SHOWN_FPRS, AttackResult, AuditResult, lower_risks
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc, tpr_at_fpr
from safexplain.verdict.stats.paired import count_pairs, difference_bounds, rank_at
from safexplain.verdict.stats.paired_auc import Ties, area_bounds, compare_areas
from safexplain.verdict.thresholds import (
    by_score,
    found_above,
    lower_bound,
    lower_bound_rank,
    units_of,
    upper_bound_rank,
    weights_of,
)

SplitName = Literal["certification", "selection"]


def certify(
    signals: Signals,
    policy: Policy | None = None,
    *,
    inputs: NDArray[np.floating[Any]] | None = None,
    suite: Sequence[SuiteRow] | None = None,
    split: SplitName = "certification",
    uses: Uses | None = None,
    force: bool = False,
    seed: int = 0,
    exposed: int = 0,
    scorers: dict[int, Scorer] | None = None,
    progress: Progress = silent,
) -> AuditResult:
    """Run every attack that fits the signals, run the controls, and judge under the policy.

    Every model that the signals name as a target is judged on its own, with all other trained models as references.
    Signals that hold predictions and no explanation are judged as those of a service that releases predictions alone,
    whatever the policy says of the release; the result's policy then says so.

    Args:
        signals: what was released.
        policy: default `Policy()`.
        inputs: (n, ...) what models were asked about, for the blind control, exact copies and the count of uses;
            default those of the signals.
        suite: attacks to run instead of those that fit; a suite that leaves some of those out certifies nothing.
        split: "selection" attacks the examples set aside for choosing a configuration, as often as one likes; nothing
            is decided there.
        uses: where verdicts on the same examples are counted. None: in this user's file (`holdout_uses`), unless the
            policy says uncounted.
        force: certify although the examples were used for other configurations; the certificate says so.
        seed: of ties, of the controls and of attacks that learn.
        exposed: how many of the members that are found most surely are listed, for the owner of the data.
        scorers: target -> scorer of another release of the same models to the same queries: what it found without an
            explanation is not computed again. Those of this release are put in its place.
        progress: told after each attack.

    Returns:
        The most exposed target's result, the others' within it.

    Raises:
        InputError: no attack fits what is released, the scored examples are all members or all non-members, an exact
            copy of a member is a non-member, or uses cannot be counted.
    """
    policy = policy or Policy()
    if inputs is not None and signals.inputs is None:
        signals = replace(signals, inputs=np.asarray(inputs))
    signals, copies = copies_together(signals)
    rows = fitting(signals, policy) if suite is None else list(suite)
    if not any("explanation" in r.role for r in rows):
        policy = _of_release(signals, policy, suite)
        rows = fitting(signals, policy) if suite is None else rows
    if not any(r.role == "loss" if policy.release == "prediction" else "explanation" in r.role for r in rows):
        if policy.suite and (others := families_allowed(signals, policy)):
            joins = ": Stacked joins two attacks or more, by four references or more" if MAIN in policy.suite else ""
            raise InputError(
                f"these signals do not suit {', '.join(policy.suite)}{joins}; expected some of {', '.join(others)}"
            )
        what = {"prediction": ("prediction", "prediction, loss or margin")}.get(policy.release)
        kind, such = what or ("explanation", "l1, l2, variance or attributions, or prediction")
        raise InputError(f"no {kind} signal among {sorted(signals.values)}; expected {such}")
    splits = Splits.of(signals, policy, trains=any(r.learns for r in rows))
    if split == "certification" and uses is None:
        uses = uses_of(signals, policy, [f"{r.name} on {r.signal}" for r in rows], seed, force)
    counted = uses if split == "certification" and not policy.uncounted else None
    if counted is not None:
        counted.check()
    scorers = {} if scorers is None else scorers
    one = _Judge(signals, policy, rows, splits, split, seed, exposed, copies, scorers, progress)
    for target in signals.targets:
        one.check(target)
    found = [one.judge(target) for target in signals.targets]
    used = None if counted is None else counted.record(signals, splits.certification)
    forced = counted is not None and counted.force
    found = [replace(r, uses=used, forced=forced) for r in found]
    first = max(range(len(found)), key=lambda i: (*_exposure(found[i]), -i))
    rest = tuple(r for i, r in enumerate(found) if i != first)
    return replace(found[first], others=rest)


def _of_release(signals: Signals, policy: Policy, suite: Sequence[SuiteRow] | None) -> Policy:
    """The policy, or, where there are predictions and no explanation, that for predictions alone."""
    rows = fitting(signals, replace(policy, suite=())) if suite is None else suite
    if any("explanation" in r.role for r in rows) or not any(r.role == "loss" for r in rows):
        return policy
    return replace(policy, release="prediction")


def _exposure(result: AuditResult) -> tuple[float, float]:
    """How far a leak is proven, and the highest bound."""
    bounds = result.decisive.values()
    above = max((low - result.limit for low, _ in bounds), default=0.0)
    return max(above, 0.0), max((high for _, high in bounds), default=1.0)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Attacks one target and judges it."""

    signals: Signals
    policy: Policy
    rows: Sequence[SuiteRow]
    splits: Splits
    split: SplitName
    seed: int
    exposed: int
    copies: Control
    scorers: dict[int, Scorer]
    progress: Progress

    @property
    def scored(self) -> NDArray[np.bool_]:
        return self.splits.selection if self.split == "selection" else self.splits.certification

    def check(self, target: int) -> None:
        """See that both sides are there, before anything long."""
        member = self.signals.membership[target, self.scored]
        if member.all() or not member.any():
            raise InputError(
                f"the {self.split} split has {int(member.sum())} members and {int((~member).sum())} non-members of"
                f" model {target}; it needs both"
            )

    def judge(self, target: int) -> AuditResult:
        """The result for one target, uses not yet counted."""
        signals, policy, rows, scored = self.signals, self.policy, self.rows, self.scored
        targets, everyone = len(signals.targets), signals.membership[target]
        member = everyone[scored]
        groups = None if signals.groups is None else signals.groups[scored]
        about = f"model {target}, " if targets > 1 else ""

        def told(stage: str, done: float, total: float, note: str = "") -> None:
            self.progress(f"{about}{stage}", done, total, note)

        null, kind = self._null(target)
        training = self.splits.training
        known = self.scorers.get(target)
        scorer = Scorer(
            signals, rows, target=target, training=training, seed=self.seed, also=null, known=known, progress=told
        )
        self.scorers[target] = scorer
        scores = [s[scored] for s in scorer.scores(target)]
        orders = [by_score(s, self.seed) for s in scores]
        references = signals.references(target)
        result = conclude(rows, scores, orders, member, policy, groups=groups, targets=targets)
        judged = [result.is_judged(e) for e in result.evidence]
        of_null: dict[str, NDArray[np.float64]] = {}
        for read in null:
            of_each = zip(rows, scorer.scores(read), judged, strict=True)
            of_null = {title(r.name, r.signal): found[scored] for r, found, j in of_each if j}
        judged_orders = [order for order, j in zip(orders, judged, strict=True) if j]
        base = _baselines(rows, policy) if result.compared else {}
        bases = [base.get(r.level) for r, j in zip(rows, judged, strict=True) if j]
        compared_with = [None if b is None else orders[b] for b in bases]
        judged_scores = [s for s, j in zip(scores, judged, strict=True) if j]
        alarm = (
            _alarm_by_area(result, judged_scores, [None if b is None else scores[b] for b in bases], policy, groups)
            if result.claim == "auc"
            else _alarm(result, judged_orders, compared_with, policy, groups)
        )
        names = [r.signal for r, j in zip(rows, judged, strict=True) if j]
        found = (
            blind_baseline(signals.inputs, everyone, self.splits.training, scored, policy, self.seed, signals.groups),
            null_model(of_null, member, policy, kind, self.seed, groups),
            shuffled_membership(alarm, member, policy, self.seed, groups),
            reference_coverage(signals, references, scored),
            recipe_fit(signals, target, references, scored, names),
            *(accuracy(signals.meta) if targets == 1 else ()),
            *other_source(signals.out_of_distribution, signals.inputs, self.splits.training, self.seed),
            self.copies,
        )
        needing = any(r.needs_references and j for r, j in zip(rows, judged, strict=True))
        run = {r.name for r in rows}
        result = replace(
            result,
            references=len(references) if needing else 0,
            controls=found,
            omitted=tuple(name for name in families_allowed(signals, policy) if name not in run),
            split=self.split,
            sizes=self.splits.sizes,
            mixture=int(signals.meta.get("mixture", 1)),
            target=target if targets > 1 else None,
        )
        best = scores[next(i for i, a in enumerate(result.attacks) if a is result.strongest)]
        index = np.flatnonzero(scored)
        parts = {name: values[scored] for name, values in signals.slices.items()}
        return replace(
            result,
            slices=by_slice(best, member, parts, policy, groups=groups, seed=self.seed),
            exposed=most_exposed(best, member, self.exposed, at=index, groups=groups) if self.exposed else (),
        )

    def _null(self, target: int) -> tuple[list[int], str]:
        """The model that knows nothing of the target's members, where there is one, and which this is."""
        models = np.array(self.signals.models)
        if len(models) >= FEWEST_FOR_NULL:
            return [int(models[(np.searchsorted(models, target) + 1) % len(models)])], "a reference model"
        return [int(read) for read in self.signals.null[:1]], "an untrained model" if self.signals.null else ""


def conclude(
    rows: Sequence[SuiteRow],
    scores: Sequence[NDArray[np.float64]],
    orders: Sequence[NDArray[np.int64]],
    member: NDArray[np.bool_],
    policy: Policy,
    *,
    groups: NDArray[np.integer[Any]] | None = None,
    targets: int = 1,
) -> AuditResult:
    """Count what each attack found, alone and beside the baseline of its level.

    Args:
        rows: the attacks.
        scores: (s,) of each.
        orders: (s,) of each, `by_score` with one seed for all, so that equal scores are in one order.
        member: (s,) bool.
        policy: what counts as a leak.
        groups: (s,) of examples that belong together; None: each is a unit of its own.
        targets: models that are judged, each on its own.

    Returns:
        A result that knows of no references, no controls and no uses yet.
    """
    base = _baselines(rows, policy)
    weights = None if groups is None else weights_of(member, groups)
    claim = policy.claim if base else "whole"
    judged = [is_judged(r.role, policy, claim) and r.level in policy.patience for r in rows]
    w = np.ones(len(member)) if weights is None else weights
    units, others = (units_of(w[side]) for side in (member, ~member))
    shared = lower_risks([r.name for r, j in zip(rows, judged, strict=True) if j], policy, targets)
    risks, spare = iter(shared), policy.risk / targets / (sum(judged) + 1)
    fprs = sorted({*SHOWN_FPRS, policy.fpr})
    upper = upper_bound_rank(others, policy.fpr, policy.risk / 2)
    ties = [Ties.of(s) for s in scores] if policy.claim == "auc" else []
    results, ordered = [], []
    for i, (row, s, order) in enumerate(zip(rows, scores, orders, strict=True)):
        risk = next(risks) if judged[i] else spare
        by_rank, heavy = member[order], None if weights is None else weights[order]
        high = found_above(by_rank, upper, heavy)
        low = found_above(by_rank, lower_bound_rank(others, policy.fpr, risk / 2)[0], heavy, strict=True)
        pair = None
        if row.level in base and base[row.level] != i:
            pair = count_pairs(order, orders[base[row.level]], member, policy.fpr, weights)
        area = None
        if policy.claim == "auc" and base.get(row.level) != i and (not base or row.level in base):
            area = compare_areas(ties[i], ties[base[row.level]] if base else None, member, groups, weights)
        curve = roc(s, member)
        results.append(
            AttackResult(
                row.name,
                row.signal,
                row.role,
                row.level,
                found_above(by_rank, rank_at(others, policy.fpr), heavy),
                max(high, low),
                low,
                pair,
                area,
                curve=curve,
                rates=tuple(tpr_at_fpr(curve, fpr=f, confidence=policy.confidence) for f in fprs),
            )
        )
        if judged[i]:
            ordered.append(by_rank)
    return AuditResult(
        policy,
        tuple(results),
        units,
        others,
        0,
        grouped=None if weights is None else len(member),
        targets=targets,
        orders=tuple(ordered),
        sizes={"certification": len(member)},
    )


def _baselines(rows: Sequence[SuiteRow], policy: Policy) -> dict[int, int]:
    """Level -> index of the row that the others of this level are compared with."""
    return {r.level: i for i, r in enumerate(rows) if r.name == baseline_name(policy)}


def _alarm(
    result: AuditResult,
    orders: Sequence[NDArray[np.int64]],
    bases: Sequence[NDArray[np.int64] | None],
    policy: Policy,
    groups: NDArray[np.integer[Any]] | None,
) -> Callable[[NDArray[np.bool_]], bool] | None:
    """Whether this audit would find more than chance, were these the members, all or none of each group.

    Args:
        result: of this audit, for the risks of its judged attacks.
        orders: of each judged attack.
        bases: order of what it is compared with; None: its rate is compared with the policy's.
        policy: what counts.
        groups: (s,) of examples that belong together; None: each stands alone.
    """
    if not orders:
        return None
    risks = [result.lower_risk(e) for e in result.judged]
    rows = [
        (order, base, risk)
        for order, base, risk in zip(orders, bases, risks, strict=True)
        if base is None or not np.array_equal(order, base)  # which finds exactly what the baseline finds
    ]
    weights = weights_of(np.zeros(len(orders[0]), dtype=bool), groups)

    def alarm(member: NDArray[np.bool_]) -> bool:
        inside, outside = units_of(weights[member]), units_of(weights[~member])
        for order, base, risk in rows:
            if base is not None:
                pair = count_pairs(order, base, member, policy.fpr, weights)
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


def _alarm_by_area(
    result: AuditResult,
    scores: Sequence[NDArray[np.float64]],
    bases: Sequence[NDArray[np.float64] | None],
    policy: Policy,
    groups: NDArray[np.integer[Any]] | None,
) -> Callable[[NDArray[np.bool_]], bool] | None:
    """`_alarm` under the claim "auc"; arguments are its own, but scores in place of orders."""
    if not scores:
        return None
    risks = [result.lower_risk(e) for e in result.judged]
    known = {id(b): Ties.of(b) for b in bases if b is not None}
    rows = [
        (Ties.of(s), None if b is None else known[id(b)], risk)
        for s, b, risk in zip(scores, bases, risks, strict=True)
        if b is None or not np.array_equal(s, b)
    ]
    weights = weights_of(np.zeros(len(scores[0]), dtype=bool), groups)

    def alarm(member: NDArray[np.bool_]) -> bool:
        sizes = units_of(weights[member]), units_of(weights[~member])
        heavy = None if groups is None else weights
        for attack, base, risk in rows:
            found = compare_areas(attack, base, member, groups, heavy)
            if found.difference > 0 and area_bounds(found, *sizes, risk, policy.risk)[0] > 0:
                return True
        return False

    return alarm
