"""Prediction vectors of another task: the class that the target predicts, and sums over several queries."""

import numpy as np
import pytest

from audit.suites.paper_e_tmi.attacks import AtTargetLabel, OverQueries
from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio


def predictions(n=600, m=16, k=4, queries=1, leak=1.0, level=0.0, seed=0):
    """Log odds of k classes, query after query, `leak` more for the members at every point's likely class."""
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    likely = rng.integers(0, k, n)
    own = np.where(np.arange(k) == likely[:, None], 3.0, -1.0)
    moved = leak * member[..., None, None] * (np.arange(k) == likely[:, None])[:, None]
    odds = (
        own[:, None] + moved + 0.7 * rng.normal(size=(m + 1, n, 1, k)) + 0.5 * rng.normal(size=(m + 1, n, queries, k))
    )
    odds = odds.reshape(m + 1, n, queries * k) + level
    return odds[0], odds[1:], member[1:], member[0]


def slow_at_target_label(attack, target, shadows, membership):
    """One point after the other, as Algorithm 2 says it."""
    seen = np.array([max(row) for row in target])
    references = np.empty(membership.shape)
    for i, row in enumerate(target):
        label = list(row).index(max(row))
        for model in range(len(shadows)):
            references[model, i] = shadows[model, i, label]
    return attack(seen, references, membership)


def test_the_class_that_the_target_predicts_is_read_in_all_models():
    target, shadows, membership, _ = predictions(leak=0.5)
    assert (shadows.argmax(2) != target.argmax(1)).any()  # some references predict another class
    found = AtTargetLabel()(target, shadows, membership)
    expected = slow_at_target_label(LikelihoodRatio("identity"), target, shadows, membership)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("attack", [AtTargetLabel(), LikelihoodRatio(), JointLikelihoodRatio("identity")], ids=repr)
def test_scores_are_added_up_over_the_queries(attack):
    target, shadows, membership, _ = predictions(queries=3)
    parts = [attack(target[:, s], shadows[:, :, s], membership) for s in (slice(0, 4), slice(4, 8), slice(8, 12))]
    found = OverQueries(attack, 3)(target, shadows, membership)
    assert np.allclose(found, parts[0] + parts[1] + parts[2], rtol=1e-12)
    assert np.array_equal(OverQueries(attack, 1)(target[:, :4], shadows[:, :, :4], membership), parts[0])
