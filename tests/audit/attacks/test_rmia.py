"""RMIA: equal to the dense n x n computation, at any size of the numbers, blind where there is no leak."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import rankdata

from safexplain.audit.attacks import RMIA
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import auc_interval, roc

VARIANTS = [RMIA(), RMIA(offline=True), RMIA(0.0, offline=True), RMIA(1.0, offline=True)]


def world(n=3000, m=16, leak=1.0, seed=0):
    """Losses of a target and m references: an example's own level, noise, and exp(leak) times smaller on members."""
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    loss = np.exp(rng.normal(-1, 1.5, n) + rng.normal(0, 0.5, (m + 1, n)) - leak * member)
    return loss[0], loss[1:], member[1:], member[0]


def slow_ratios(target, shadows, membership, attack):
    """p(x | model) / p(x) of one example after the other, on plain probabilities."""
    ratios = []
    for i, loss in enumerate(target):
        p = np.exp(-shadows[:, i])
        with_it, without = p[membership[:, i]], p[~membership[:, i]]
        if attack.offline:
            mean = ((1 + attack.a) * without.mean() + (1 - attack.a)) / 2 if len(without) else None
        else:
            mean = (with_it.mean() + without.mean()) / 2 if len(with_it) and len(without) else None
        ratios.append(1.0 if mean is None else math.exp(-loss) / mean)
    return np.array(ratios)


def dense_shares(ratios):
    """The n x n matrix of ratio(x) / ratio(z) >= 1, its diagonal left out."""
    won = ratios[:, None] / ratios[None] >= 1
    np.fill_diagonal(won, False)
    return won.sum(1)


@pytest.mark.parametrize("attack", VARIANTS, ids=repr)
def test_scores_are_the_dense_shares_with_ties_broken_by_less_than_a_step(attack):
    target, shadows, membership, _ = world(200, 8)
    membership[:, 3], membership[:, 4] = True, False
    target[20], shadows[:, 20], membership[:, 20] = target[21], shadows[:, 21], membership[:, 21]
    ratios = slow_ratios(target, shadows, membership, attack)
    found = attack(target, shadows, membership)
    assert np.array_equal(np.floor(found * 200 + 1e-9), dense_shares(ratios))
    assert found[20] == found[21]
    assert ((found >= 0) & (found <= 1)).all()
    keep = np.arange(200) != 20
    assert np.array_equal(rankdata(found[keep]), rankdata(ratios[keep]))


def test_probabilities_below_the_smallest_float_are_told_apart():
    rng = np.random.default_rng(0)
    member = rng.random((9, 400)) < 0.5
    loss = 2000 + rng.normal(0, 1, (9, 400)) - 3 * member
    assert (np.exp(-loss) == 0).all()
    assert roc(RMIA()(loss[0], loss[1:], member[1:]), member[0]).auc > 0.9
    shifted = RMIA()(loss[0] - 1900, loss[1:] - 1900, member[1:])
    assert np.array_equal(np.argsort(shifted), np.argsort(RMIA()(loss[0], loss[1:], member[1:])))


@pytest.mark.parametrize("offline", [False, True])
def test_a_leak_is_found_and_no_leak_is_not(offline):
    for leak in (1.0, 0.0):
        target, shadows, membership, member = world(leak=leak)
        low, high = auc_interval(roc(RMIA(offline=offline)(target, shadows, membership), member), 0.999)
        assert (low > 0.6) if leak else (low < 0.5 < high)


def test_what_it_cannot_use_is_refused():
    target, shadows, membership, _ = world(6, 4)
    membership[:2] = [[True], [False]]
    with pytest.raises(InputError, match="pass the loss"):
        RMIA()(-target, shadows, membership)
    with pytest.raises(InputError, match="one loss per example"):
        RMIA()(target[:, None], shadows[..., None], membership)
    with pytest.raises(InputError, match="train more reference models"):
        RMIA()(target, shadows, np.zeros_like(membership))
    assert np.isfinite(RMIA(offline=True)(target, shadows, np.zeros_like(membership))).all()
    with pytest.raises(InputError, match="needs reference models without the example"):
        RMIA(offline=True)(target, shadows, np.ones_like(membership))


@pytest.mark.parametrize("options", [{"a": -0.1}, {"a": 1.1}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigurationError):
        RMIA(**options)
