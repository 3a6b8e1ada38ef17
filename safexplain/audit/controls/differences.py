"""Audits of what cannot leak. If one finds something, members and non-members differ in more than training, or the
tool is broken; the verdict is then inconclusive.

    blind baseline       a classifier that sees only inputs
    null model           the attacks, on a model that was not trained on the target's members
    shuffled membership  the judged attacks, with members drawn at random

Each fails by mistake with a probability of about 1 %. All concern one target. They test one random member and one
random non-member of each group, so that examples are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.evidence import Control
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, ranked

RISK = 0.01
"""Probability with which each control fails by mistake."""

SHUFFLES = 200
FEWEST_TO_TRAIN = 40
MOST_FEATURES = 256
"""Larger inputs are reduced to principal components for the blind baseline."""


def blind_baseline(
    inputs: NDArray[np.floating[Any]] | None,
    member: NDArray[np.bool_],
    training: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    policy: Policy,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """A classifier of members and non-members that sees the (n, ...) inputs of models, but no answers.

    It averages the ranks of gradient-boosted trees and a logistic regression on the inputs (or their principal
    components). It is fitted to the training split and tested on the scored examples; without a training split, it is
    fitted to each half of the scored examples and tested on the other. No group is in both. (Das, Zhang & Tramer, arXiv
    2406.16201: membership attacks must beat blind ones.)
    """
    name = "blind baseline"
    if inputs is None:
        return Control(
            name, None, "the inputs are not in the signals, so a distribution shift cannot be looked for", {}
        )
    folds = [(training, scored)]
    if training.sum() < FEWEST_TO_TRAIN:
        group = np.arange(len(scored)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        half = (np.random.default_rng([seed, 0xB11D]).random(int(group.max()) + 1) < 0.5)[group]
        folds = [(scored & half, scored & ~half), (scored & ~half, scored & half)]
    if any(
        fit.sum() < FEWEST_TO_TRAIN or len(np.unique(member[part])) < 2 for fit, test in folds for part in (fit, test)
    ):
        return Control(name, None, "too few examples to train a classifier on", {})
    tests, alone = [], one_of_each(groups, member, seed)
    for fit, whole in folds:
        test = whole & alone
        scores = _classified(inputs, member, fit, test, seed)
        tests.append(_test(scores, member[test], policy, RISK / len(folds)))
    auc, low, rate = max(tests, key=lambda t: max(t[1] - 0.5, t[2] - policy.fpr))
    failed = bool(low > 0.5 or rate > policy.fpr)
    verb = "distinguishes" if failed else "does not distinguish"
    says = f"a classifier that sees only inputs {verb} members from non-members (AUC {auc:.3f})"
    return Control(name, failed, says, {"auc": auc, "auc_low": low, "tpr_low": rate})


def null_model(
    scores: Mapping[str, NDArray[np.float64]],
    member: NDArray[np.bool_],
    policy: Policy,
    kind: str,
    seed: int = 0,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """The (s,) scores of attacks on a model, described by `kind`, that was not trained on the (s,) target's members."""
    alone = one_of_each(groups, member, seed)
    found = {name: _test(s[alone], member[alone], policy, RISK / max(len(scores), 1)) for name, s in scores.items()}
    if not found:
        return Control("null model", None, "there is no model that was not trained on the target's members", {})
    worst = max(found, key=lambda n: (max(found[n][1] - 0.5, found[n][2] - policy.fpr), found[n][0]))
    auc, low, rate = found[worst]
    failed = bool(low > 0.5 or rate > policy.fpr)
    verb = "finds the target's members in" if failed else "finds nothing in"
    says = f"{worst} {verb} the releases of {kind} (AUC {auc:.3f})"
    return Control("null model", failed, says, {"auc": auc, "auc_low": low, "tpr_low": rate})


def shuffled_membership(
    alarm: Callable[[NDArray[np.bool_]], bool] | None,
    member: NDArray[np.bool_],
    policy: Policy,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """How often the judged attacks find more than chance with members drawn at random.

    This is the false-alarm rate of the audit on its own scores; its expectation is at most 1 - confidence. `alarm`
    returns whether the audit would prove more than chance if the given (s,) were the members; None: no attack is
    judged. As many members are drawn as there are, or as many groups as have mostly members.
    """
    name = "shuffled membership"
    if alarm is None:
        return Control(name, None, "no attack was judged", {})
    group = np.arange(len(member)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    drawn = np.bincount(group, np.where(member, 1.0, -1.0)) > 0
    if drawn.all() or not drawn.any():
        return Control(name, None, "too few groups of examples to draw members from", {})
    rng = np.random.default_rng([seed, 0x5AFF])
    alarms = sum(alarm(rng.permutation(drawn)[group]) for _ in range(SHUFFLES))
    share, low = alarms / SHUFFLES, clopper_pearson(alarms, SHUFFLES, 1 - 2 * RISK)[0]
    says = f"with members drawn at random, {alarms} of {SHUFFLES} audits find more than chance"
    return Control(name, bool(low > policy.risk), says, {"share": share, "expected_at_most": policy.risk})


def one_of_each(groups: NDArray[np.integer[Any]] | None, member: NDArray[np.bool_], seed: int) -> NDArray[np.bool_]:
    """(n,) bool: one random member and one random non-member of each group; all examples without groups."""
    if groups is None:
        return np.ones(len(member), dtype=bool)
    order = np.random.default_rng([seed, 0x0E5]).permutation(len(member))
    unit = 2 * np.unique(groups, return_inverse=True)[1].reshape(-1) + member
    alone = np.zeros(len(member), dtype=bool)
    alone[order[np.unique(unit[order], return_index=True)[1]]] = True
    return alone


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
