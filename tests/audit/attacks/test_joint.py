"""The joint likelihood ratio: equal to a slow one, the same for any mix of its columns, better than one by one."""

import math

import numpy as np
import pytest
from scipy import linalg
from scipy import stats as distributions

from safexplain.audit.attacks import JointLikelihoodRatio, likelihood
from safexplain.errors import InputError
from safexplain.verdict.stats import auc_interval, roc

ATTACK = JointLikelihoodRatio("identity")
MIX = np.array([[1.0, 0.8, 0.0], [0.0, 0.6, -0.5], [0.0, 0.0, 1.2]])


def world(n=2000, m=32, leak=(1.0, 0.0, 0.0), seed=0, calm=1.0):
    """Three correlated numbers: an example's own level, noise (`calm` times that on members), `leak` less on members.

    A leak in the first of the three unmixed numbers is spread over all columns.
    """
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    noise = rng.normal(size=(m + 1, n, 3)) * np.where(member, calm, 1.0)[..., None]
    signal = rng.normal(0, 2, (n, 3)) + (noise - np.asarray(leak) * member[..., None]) @ MIX
    return signal[0], signal[1:], member[1:], member[0]


def scatter(values):
    away = values - values.mean(0)
    return away.T @ away


def root(matrix):
    return np.real(linalg.sqrtm(matrix))


def slow_joint_ratio(target, shadows, membership):
    """One example after the other, with the normal distribution of SciPy; square roots of another basis."""
    n, k = target.shape
    usable = [i for i in range(n) if 0 < membership[:, i].sum() < len(membership)]
    groups = {i: (shadows[membership[:, i], i], shadows[~membership[:, i], i]) for i in usable}
    totals = [sum(scatter(groups[i][s]) for i in usable) for s in (0, 1)]
    dofs = [sum(len(groups[i][s]) - 1 for i in usable) for s in (0, 1)]
    gaps = np.stack([groups[i][0].mean(0) - groups[i][1].mean(0) for i in usable])
    base = np.linalg.cholesky((sum(totals) + gaps.T @ gaps) / (sum(dofs) + len(gaps)))
    flat = np.linalg.inv(base)
    pooled = [totals[s] / dofs[s] for s in (0, 1)]
    frames = [base @ root(flat @ p @ flat.T) for p in pooled]
    unframes = [np.linalg.inv(f) for f in frames]
    stacked = np.stack([np.concatenate([unframes[s] @ groups[i][s].mean(0) for s in (0, 1)]) for i in usable])
    noise = np.concatenate([np.full(k, np.mean([1 / len(groups[i][s]) for i in usable])) for s in (0, 1)])
    between = np.cov(stacked.T, bias=True) - np.diag(noise)
    w, v = np.linalg.eigh(between)
    between = (v * np.maximum(w, 0)) @ v.T  # what is less than noise is none
    scores = np.zeros(n)
    for row, i in enumerate(usable):
        own = [scatter(groups[i][s]) for s in (0, 1)]
        white = sum(unframes[s] @ own[s] @ unframes[s].T for s in (0, 1))
        spread = (white + 16 * np.eye(k)) / (len(membership) - 2 + 16)
        error = linalg.block_diag(*(spread / len(groups[i][s]) for s in (0, 1)))
        centre = stacked.mean(0) + between @ np.linalg.inv(between + error) @ (stacked[row] - stacked.mean(0))
        log_p = [
            distributions.multivariate_normal.logpdf(
                target[i], frames[s] @ centre[s * k : s * k + k], frames[s] @ spread @ frames[s].T
            )
            for s in (0, 1)
        ]
        scores[i] = log_p[0] - log_p[1]
    return scores


def test_the_joint_ratio_equals_the_slow_one():
    target, shadows, membership, _ = world(80, 12, leak=(1.5, 0.5, 0.0), calm=0.7)
    shadows = shadows + membership[..., None] * np.random.default_rng(1).normal(0, 2, (80, 3))  # a leak of each example
    membership[:, 3], membership[:, 4] = True, False
    found = ATTACK(target, shadows, membership)
    assert np.allclose(found, slow_joint_ratio(target, shadows, membership), rtol=1e-6, atol=1e-6)
    assert found[3] == found[4] == 0
    assert np.count_nonzero(found) == 78
    once = np.arange(12)[:, None] < 1 + (np.arange(80) == 0)  # two models with the first example: a degree of freedom
    few = target[:, :1], shadows[..., :1], once
    assert np.allclose(ATTACK(*few), slow_joint_ratio(*few), rtol=1e-6, atol=1e-6)


def test_a_mix_of_the_columns_scores_as_the_columns():
    target, shadows, membership, _ = world(100, 12, calm=0.7)
    mix = np.array([[2.0, 1.0, 0.0], [0.0, 1e-3, 5.0], [1.0, 0.0, 1e4]])
    assert np.allclose(ATTACK(target @ mix, shadows @ mix, membership), ATTACK(target, shadows, membership), atol=1e-5)


@pytest.mark.parametrize("attack", [JointLikelihoodRatio(), ATTACK], ids=repr)
def test_a_constant_column_decides_nothing(attack):
    target, shadows, membership, _ = world(100, 12)
    without = attack(target, shadows, membership)
    for value in (0.0, 0.1, -7e8):
        wide = np.append(target, np.full((100, 1), value), 1), np.append(shadows, np.full((12, 100, 1), value), 2)
        assert np.allclose(attack(*wide, membership), without, atol=1e-6)


def test_without_a_leak_nothing_is_found():
    for seed in range(3):
        target, shadows, membership, member = world(1500, 16, leak=(0, 0, 0), seed=seed)
        low, high = auc_interval(roc(ATTACK(target, shadows, membership), member), 0.999)
        assert low < 0.5 < high


def wide(n, m, k, leak=2.5):
    """k columns mixed of as many independent numbers, which are moved by membership."""
    rng = np.random.default_rng(0)
    member = rng.random((m + 1, n)) < 0.5
    mix = rng.normal(size=(k, k)) / math.sqrt(k) * np.linspace(0.1, 3, k)
    own = rng.normal(size=(m + 1, n, k))
    own += leak / math.sqrt(k) * rng.normal(size=(n, k)) * member[..., None]
    signal = own @ mix + rng.normal(0, 3, (n, k))
    return signal[0], signal[1:], member[1:], member[0]


def slow_many(target, shadows, membership):
    """Fisher's directions by the generalised eigenproblem: the first 32 together, the others one example at a time."""
    n, k = target.shape
    sides = [(shadows[membership[:, i], i], shadows[~membership[:, i], i]) for i in range(n)]
    dofs = [sum(len(one[s]) - 1 for one in sides) for s in (0, 1)]
    pooled = [sum(scatter(one[s]) for one in sides) / dofs[s] for s in (0, 1)]
    both = (dofs[0] * pooled[0] + dofs[1] * pooled[1]) / sum(dofs)
    gaps = np.stack([inside.mean(0) - outside.mean(0) for inside, outside in sides])
    scarce = [np.mean([1 / len(one[s]) for one in sides]) for s in (0, 1)]
    moved, frame = linalg.eigh(gaps.T @ gaps / n - pooled[0] * scarce[0] - pooled[1] * scarce[1], both)
    moved, frame = moved[::-1], frame[:, ::-1]
    scores = slow_joint_ratio(target @ frame[:, :32], shadows @ frame[:, :32], membership)
    prior = max(moved[32:].mean(), 0.0)
    for j in range(32, k):
        spread = [frame[:, j] @ p @ frame[:, j] for p in pooled]
        for i in range(n):
            t, values = target[i] @ frame[:, j], [one @ frame[:, j] for one in sides[i]]
            dof = sum(len(v) - 1 for v in values)
            scale = (sum(((v - v.mean()) ** 2).sum() / s for v, s in zip(values, spread, strict=True)) + 16) / (
                dof + 16
            )
            variance = [scale * s for s in spread]
            noise = [v / len(one) for v, one in zip(variance, values, strict=True)]
            gap = values[0].mean() - values[1].mean()
            precise = 1 / noise[0], 1 / noise[1]
            level = (values[0].mean() * precise[0] + values[1].mean() * precise[1]) / sum(precise)
            gap *= prior / (prior + sum(noise))
            share = noise[0] / sum(noise)
            means = level + share * gap, level - (1 - share) * gap
            log_p = [distributions.norm.logpdf(t, m, math.sqrt(v)) for m, v in zip(means, variance, strict=True)]
            scores[i] += log_p[0] - log_p[1]
    return scores


@pytest.mark.parametrize("leak", [2.5, 10.0])  # of which the second is in the last directions too, beyond their noise
def test_the_joint_ratio_of_many_columns_equals_the_slow_one(leak):
    target, shadows, membership, _ = wide(150, 16, 40, leak)
    membership[:, :4] = np.arange(16)[:, None] < [1, 15, 0, 16]  # the third and fourth are known from one side only
    found = ATTACK(target, shadows, membership)
    usable = np.isin(np.arange(150), [2, 3], invert=True)
    expected = slow_many(target[usable], shadows[:, usable], membership[:, usable])
    assert np.allclose(found[usable], expected, rtol=1e-5, atol=1e-5)
    assert found[~usable].tolist() == [0, 0]


def test_means_that_differ_only_by_noise_become_equal_however_wide_their_prior():
    certain = likelihood._Prior(np.zeros((2, 1)), np.full((2, 1, 2, 1), 1e12))  # without and with are always the same
    found = certain.posterior(np.array([[[1.0]], [[0.0]]]), np.ones((2, 1, 1, 1)), np.ones((2, 1, 1)))
    assert found.ravel() == pytest.approx([0.5, 0.5], abs=0.02)
    assert found[0] > found[1]  # never beyond


def test_many_columns_in_parts_give_the_same_scores(monkeypatch):
    case = wide(60, 10, 50)[:3]
    whole = JointLikelihoodRatio()(*case)
    monkeypatch.setattr(likelihood, "JOINT_CHUNK", 10 * 50 * 7)
    assert np.allclose(JointLikelihoodRatio()(*case), whole, rtol=1e-6, atol=1e-8)


def test_each_of_many_columns_has_its_scale_as_each_of_few():
    target, shadows, membership, _ = wide(60, 10, 40)
    target[:, :20], shadows[..., :20] = np.exp(target[:, :20]), np.exp(shadows[..., :20])
    shadows[0, 0, 3], shadows[1, :, 5], target[2, 7] = 0.0, 0.0, 0.0
    t, s = target.copy(), shadows.copy()
    for j in range(20):
        least = min(a[a > 0].min() for a in (t[:, j], s[..., j])) / 2
        t[:, j], s[..., j] = np.log(np.maximum(t[:, j], least)), np.log(np.maximum(s[..., j], least))
    by_hand = JointLikelihoodRatio("identity")(t, s, membership)
    assert np.allclose(JointLikelihoodRatio()(target, shadows, membership), by_hand, atol=1e-8)
    assert not np.allclose(JointLikelihoodRatio("identity")(target, shadows, membership), by_hand, atol=0.1)


def test_scores_are_always_finite():
    rng = np.random.default_rng(0)
    odd = np.array([0.0, 5e-324, 1e-300, 1.0, -1.0, 1e-9, 1e100, 1e300])
    for _ in range(60):
        m, n, k = rng.integers(2, 5), rng.integers(1, 5), rng.integers(1, 4)
        membership = rng.random((m, n)) < 0.5
        membership[:2, 0] = True, False
        signal = np.where(rng.random((m + 1, n, k)) < 0.5, rng.choice(odd, (m + 1, n, k)), rng.normal(size=k))
        assert np.isfinite(JointLikelihoodRatio()(signal[0], signal[1:], membership)).all()


def test_more_than_2048_numbers_are_refused():
    signal = np.random.default_rng(0).normal(size=(5, 6, 2049))
    membership = np.arange(24).reshape(4, 6) % 5 < 2
    with pytest.raises(InputError, match=r"1 to 2048 numbers per example, got 2049; use LikelihoodRatio"):
        JointLikelihoodRatio()(signal[0], signal[1:], membership)
