"""Stacks: nothing is lost where nothing is added, and what is added is found."""

import numpy as np
import pytest
from scipy.optimize import minimize

from safexplain.audit.attacks.learned import Stacked
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import roc

PSEUDO_TARGETS, EXAMPLES = 8, 4_000


def ratios(effects, seed, scale=1.0):
    """Log ratios of Gaussian columns with these effects, of a target and of pseudo-targets, and their membership."""
    rng = np.random.default_rng(seed)
    member = rng.random((1 + PSEUDO_TARGETS, EXAMPLES)) < 0.5
    d = np.asarray(effects)
    x = rng.normal(size=(*member.shape, len(d))) + member[..., None] * d
    values = d * (x - d / 2)
    values[..., d == 0] = x[..., d == 0]
    values[..., 1:] *= scale
    return values[0], values[1:], member[1:], member[0]


def tpr(scores, member, fpr=0.01):
    curve = roc(scores, member)
    return float(np.interp(fpr, curve.fpr, curve.tpr))


def test_columns_that_add_nothing_leave_the_order_of_the_first_as_it_is():
    same = 0
    for seed in range(10):
        target, shadows, membership, _ = ratios([1.0, 0.0, 0.0], seed)
        same += np.array_equal(Stacked()(target, shadows, membership), target[:, 0])
    assert same >= 9


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["calibrated", "overconfident"])
def test_a_column_that_adds_is_used_whatever_its_scale(scale):
    gained = []
    for seed in range(3):
        target, shadows, membership, member = ratios([1.0, 1.0], seed, scale)
        scores = Stacked()(target, shadows, membership)
        gained.append(tpr(scores, member) - tpr(target[:, 0], member))
        assert roc(scores, member).auc == pytest.approx(roc(target.sum(1), member).auc, abs=0.01) or scale > 1
    assert np.mean(gained) > 0.03  # of .093 for the first alone and .178 for the sum


def test_a_few_absurd_ratios_of_one_pseudo_target_do_not_hide_what_a_column_adds():
    """Ratios of labels that references never gave reach minus 1e10; under log likelihoods, forty of them decided."""
    for seed in range(3):
        target, shadows, membership, member = ratios([1.0, 1.0], seed)
        shadows, membership = shadows[:, :1500], membership[:, :1500]
        shadows[0, np.flatnonzero(membership[0])[:40], 1] = -np.geomspace(1e2, 1e8, 40)
        fitted = Stacked().fit(shadows, membership)
        assert fitted.adds
        assert roc(fitted.scores(target), member).auc > roc(target[:, 0], member).auc + 0.05


def test_weights_are_those_of_the_penalised_likelihood():
    shadows, membership = ratios([1.0, 0.7], 3)[1:3]
    fitted = Stacked().fit(shadows, membership)
    assert fitted.adds
    x, y = fitted.scale(shadows).reshape(-1, 2), membership.ravel()

    def cost(w):
        odds = x @ w[:2] + w[2]
        return (np.logaddexp(0, odds) - y * odds).mean() + 0.5e-4 * (w[:2] ** 2).sum()

    best = minimize(cost, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(fitted.weights, best, atol=1e-4)


def test_a_column_that_never_differs_changes_nothing():
    target, shadows, membership, _ = ratios([1.0, 1.0, 0.0], 1)
    target[:, 2], shadows[..., 2] = 7.0, 7.0
    with_it = Stacked()(target, shadows, membership)
    np.testing.assert_allclose(with_it, Stacked()(target[:, :2], shadows[..., :2], membership), atol=1e-6)


def test_one_column_is_itself():
    target, shadows, membership, _ = ratios([1.0], 1)
    assert np.array_equal(Stacked()(target, shadows, membership), target[:, 0])


@pytest.mark.parametrize("options", [{"fpr": 0.0}, {"fpr": 1.0}])
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigurationError):
        Stacked(**options)


def test_one_pseudo_target_is_too_few():
    target, shadows, membership, _ = ratios([1.0, 1.0], 1)
    with pytest.raises(InputError, match="p >= 2"):
        Stacked()(target, shadows[:1], membership[:1])
