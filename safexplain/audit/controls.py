"""Controls: audits of what cannot leak. One that finds something has failed: members and non-members differ by more
than training, or the tool is broken, and the verdict is then inconclusive.

    blind baseline       a classifier that sees inputs only
    null model           the attacks, on a model that knows nothing of the target's members
    shuffled membership  the judged attacks, with the members drawn at random

Each fails by mistake with a probability of about 1 %. Two more ask whether the attacks were strong enough: where they
fail, nothing is certified, but a leak that was found stands.

    references           whether reference models with and without the scored examples are there
    recipe               whether the target's losses look like those of the reference models
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.attacks.scoring import Assignment
from safexplain.audit.signals import Signals
from safexplain.verdict.evidence import Control
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, ranked, ranks_of

RISK = 0.01
"""Probability with which each control fails by mistake."""

SHUFFLES = 200
FEWEST_TO_TRAIN = 40
MOST_FEATURES = 256
"""Inputs of more numbers are reduced to their principal components for the blind baseline."""


def blind_baseline(
    inputs: NDArray[np.floating[Any]] | None,
    member: NDArray[np.bool_],
    training: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    policy: Policy,
    seed: int,
) -> Control:
    """A classifier of members and non-members that sees what was asked, but no answer.

    Gradient-boosted trees and a logistic regression on the inputs (or their principal components), their ranks
    averaged; fitted to the training split and tested on the scored examples, or, without a training split, fitted to
    either half of the scored examples and tested on the other. (Das, Zhang & Tramer, arXiv 2406.16201, on
    why membership attacks must beat blind ones.)

    Args:
        inputs: (n, ...) what models were asked about.
        member: (n,) of the target that each example is scored against.
        training: (n,) bool.
        scored: (n,) bool.
        policy: whose false-positive rate is looked at.
        seed: of the classifiers.
    """
    name = "blind baseline"
    if inputs is None:
        return Control(
            name, None, "the inputs are not in the signals, so a distribution shift cannot be looked for", {}
        )
    folds = [(training, scored)]
    if training.sum() < FEWEST_TO_TRAIN:
        half = np.random.default_rng([seed, 0xB11D]).random(len(scored)) < 0.5
        folds = [(scored & half, scored & ~half), (scored & ~half, scored & half)]
    if any(
        fit.sum() < FEWEST_TO_TRAIN or len(np.unique(member[part])) < 2 for fit, test in folds for part in (fit, test)
    ):
        return Control(name, None, "too few examples to train a classifier on", {})
    tests = []
    for fit, test in folds:
        scores = _classified(inputs, member, fit, test, seed)
        tests.append(_test(scores, member[test], policy, RISK / len(folds)))
    auc, low, rate = max(tests, key=lambda t: max(t[1] - 0.5, t[2] - policy.fpr))
    failed = bool(low > 0.5 or rate > policy.fpr)
    verb = "tells" if failed else "does not tell"
    says = f"a classifier that sees inputs only {verb} members from non-members (AUC {auc:.3f})"
    return Control(name, failed, says, {"auc": auc, "auc_low": low, "tpr_low": rate})


def null_model(
    scores: Mapping[str, NDArray[np.float64]], member: NDArray[np.bool_], policy: Policy, kind: str
) -> Control:
    """The attacks, read off a model that knows nothing of the target's members.

    Args:
        scores: (s,) by attack, of the scored examples.
        member: (s,) of the target.
        policy: whose false-positive rate is looked at.
        kind: which model was read, in words.
    """
    found = {name: _test(s, member, policy, RISK / max(len(scores), 1)) for name, s in scores.items()}
    if not found:
        return Control("null model", None, "there is no model that knows nothing of the target's members", {})
    worst = max(found, key=lambda n: (max(found[n][1] - 0.5, found[n][2] - policy.fpr), found[n][0]))
    auc, low, rate = found[worst]
    failed = bool(low > 0.5 or rate > policy.fpr)
    verb = "finds the target's members in" if failed else "finds nothing in"
    says = f"{worst} {verb} what {kind} released (AUC {auc:.3f})"
    return Control("null model", failed, says, {"auc": auc, "auc_low": low, "tpr_low": rate})


def shuffled_membership(orders: Sequence[NDArray[np.int64]], members: int, policy: Policy, seed: int) -> Control:
    """How often the judged attacks would find more than chance if the members had been drawn at random.

    This is the false-alarm rate of this very audit, on its own scores; its expectation is at most 1 - confidence.

    Args:
        orders: for each judged attack, (s,) indices of the scored examples from the highest score to the lowest.
        members: how many of them are members.
        policy: whose confidence is tested.
        seed: of the draws.
    """
    if not orders:
        return Control("shuffled membership", None, "no attack was judged", {})
    n = len(orders[0])
    r = ranks_of(policy, n - members, len(orders))
    rng = np.random.default_rng([seed, 0x5AFF])
    first = np.zeros(n, dtype=bool)
    first[:members] = True
    lows = (lower_bound(k, members, r.lower_risk / 2) * r.lower_bound_share for k in range(members + 1))
    enough = next((k for k, low in enumerate(lows) if low > policy.fpr), n)
    alarms = 0
    for _ in range(SHUFFLES):
        member = rng.permutation(first)
        alarms += any(found_above(member[order], r.lower_bound_rank) >= enough for order in orders)
    share, low = alarms / SHUFFLES, clopper_pearson(alarms, SHUFFLES, 1 - 2 * RISK)[0]
    says = f"with members drawn at random, {alarms} of {SHUFFLES} audits find more than chance"
    return Control(
        "shuffled membership", bool(low > policy.risk), says, {"share": share, "expected_at_most": policy.risk}
    )


def other_source(
    outside: NDArray[np.bool_] | None, inputs: NDArray[np.floating[Any]] | None, training: NDArray[np.bool_], seed: int
) -> tuple[Control, ...]:
    """How well inputs tell out-of-distribution examples from the others: what an attack trained on both may learn.

    Informative: it never fails. Nothing is returned without such examples.
    """
    if outside is None or not outside.any():
        return ()
    name = "other source"
    if inputs is None or training.sum() < 20 or outside.sum() < 20:
        return (Control(name, None, "out-of-distribution examples were used, without inputs to compare them by", {}),)
    half = np.random.default_rng([seed, 0x00D]).random(len(outside)) < 0.5
    either = training | outside
    scores = _classified(inputs, outside, either & half, either & ~half, seed)
    auc = roc(scores, outside[either & ~half]).auc
    says = (
        "an attack was trained with non-members of another source, which a classifier that sees inputs only tells"
        f" from the examples of this one (AUC {auc:.3f}): it may have learned the source instead of membership"
    )
    return (Control(name, None, says, {"auc": auc}),)


def _test(
    scores: NDArray[np.float64], member: NDArray[np.bool_], policy: Policy, risk: float
) -> tuple[float, float, float]:
    """AUC, and lower bounds of the AUC and of the true-positive rate, each at half of the risk."""
    curve = roc(scores, member)
    rank, share = lower_bound_rank(curve.non_members, policy.fpr, risk / 4)
    found = found_above(ranked(scores, member), rank)
    return curve.auc, auc_interval(curve, 1 - risk)[0], lower_bound(found, curve.members, risk / 4) * share


def _classified(
    inputs: NDArray[np.floating[Any]],
    member: NDArray[np.bool_],
    training: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    seed: int,
) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.nan_to_num(np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1))
    if x.shape[1] > MOST_FEATURES:
        parts = min(64, int(training.sum()) - 1)
        moments = np.stack([x.mean(1), x.std(1), x.min(1), x.max(1)], axis=1)
        reduced = PCA(parts, svd_solver="randomized", random_state=seed).fit(x[training]).transform(x)
        x = np.concatenate([moments, reduced], axis=1)
    scores = np.zeros(int(scored.sum()))
    for model in (
        HistGradientBoostingClassifier(max_iter=100, random_state=seed),
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, C=0.1)),
    ):
        p = model.fit(x[training], member[training]).predict_proba(x[scored])[:, 1]
        scores += np.argsort(np.argsort(p, kind="stable"))
    return scores


FEWEST_BOTH_SIDES = 0.8
"""Share of the scored examples that must have reference models with and without them; four references give 7/8."""

FEWEST_TO_COMPARE = 4
"""Reference models below which their recipe is not compared with the target's."""


def reference_coverage(signals: Signals, to: Assignment, scored: NDArray[np.bool_]) -> Control:
    """Whether most scored examples have reference models on both sides; likelihood ratios say nothing about others."""
    both = np.zeros(len(signals), dtype=bool)
    for target in np.unique(to.target):
        inside = signals.membership[to.references(signals, target, target)]
        mine = to.target == target
        both[mine] = (inside.any(0) & ~inside.all(0))[mine]
    if len(signals.models) < 3:
        return Control("references", None, "there are no reference models", {})
    share = float(both[scored].mean())
    says = f"{share:.0%} of the scored examples have reference models both with and without them"
    return Control("references", share < FEWEST_BOTH_SIDES, says, {"share": share})


def recipe_fit(signals: Signals, to: Assignment, scored: NDArray[np.bool_]) -> Control:
    """Whether the target's losses look like those of reference models, trained by the same recipe as they should be.

    Trained alike, the target's mean log loss over its members is one more draw of what the reference models have over
    theirs, and so for non-members. It fails where the target's lies further from theirs than a t-test at `RISK` allows
    and by more than a tenth (in natural logarithms): a leak found is a leak, but a certificate would rest on attackers
    who know less than they may.

    Args:
        signals: with the signal `loss`; without it the control is not run.
        to: targets of the examples; the control looks at a single target only.
        scored: (n,) bool.
    """
    name, targets = "recipe", np.unique(to.target)
    others = to.references(signals, int(targets[0]), int(targets[0]))
    if len(targets) > 1:
        return Control(name, None, "targets take turns, and each is the others' reference", {})
    if "loss" not in signals.values or len(others) < FEWEST_TO_COMPARE:
        return Control(name, None, "without losses, or with few reference models, recipes cannot be compared", {})
    logs = np.log(np.maximum(signals.values["loss"][:, scored].astype(np.float64), 1e-12))
    inside = signals.membership[:, scored]
    apart = []
    for side in (inside, ~inside):
        means = (logs * side).sum(1) / np.maximum(side.sum(1), 1)
        mine, theirs = means[targets[0]], means[others]
        spread = theirs.std(ddof=1) * np.sqrt(1 + 1 / len(theirs))
        reach = max(distributions.t.isf(RISK / 4, len(theirs) - 1) * spread, 0.1)
        apart.append((abs(mine - theirs.mean()) / reach, mine - theirs.mean()))
    worst, by = max(apart)
    what = f"the target's losses are {np.exp(by):.2g} times those of the reference models"
    says = f"{what}: they do not repeat its recipe" if worst > 1 else f"{what}, within what recipes like theirs give"
    return Control(name, bool(worst > 1), says, {"ratio": float(np.exp(by)), "of_tolerated": float(worst)})
