"""Metaclassifiers: as a loop over points trains them, finding what is there, and nothing where nothing is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from audit.suites.paper_e_tmi.metaclassifier import Metaclassifier
from audit.suites.paper_e_tmi.transfer import AtTargetLabel, OverQueries
from safexplain.audit.attacks import Attack
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import auc_interval, roc

KINDS = [
    Metaclassifier("mlp", queries=2),
    Metaclassifier("logistic", queries=2),
    Metaclassifier("knn", queries=2),
    Metaclassifier("mlp", queries=2, scale="unit"),
    Metaclassifier("logistic", queries=2, scale="unit"),
]
GLOBAL = [Metaclassifier(kind, per_example=False, queries=2, epochs=5) for kind in ("mlp", "logistic", "knn")]


def world(n=400, m=24, k=5, queries=2, leak=1.0, seed=0, fixed=False):
    """Prediction vectors: a point's own level, noise of the model and of the query, a shift of its own for members.

    Args:
        fixed: every point is a member of as many models, so that the references' membership tells the target's.
    """
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    if fixed:
        member = rng.permuted(np.arange(m + 1)[:, None] < np.full((1, n), (m + 1) // 2), axis=0)
    shift = leak * rng.normal(size=(n, k)) + leak * 0.5
    noise = rng.normal(size=(m + 1, n, 1, k)) + 0.5 * rng.normal(size=(m + 1, n, queries, k))
    odds = rng.normal(0, 2, (n, 1, k)) + noise + member[..., None, None] * shift[:, None]
    odds = odds.reshape(m + 1, n, queries * k)
    return odds[0], odds[1:], member[1:], member[0]


def auc_of(attack, case):
    return roc(attack(*case[:3]), case[3]).auc


# -------------------------------------------------------------------------------------------------- slow oracles


def rows_of(case, i, attack):
    """The rows of point i, their labels and what the target says, on the attack's scale."""
    target, shadows, membership, _ = case
    queries = attack.queries
    rows = np.array([answer for model in shadows for answer in model[i].reshape(queries, -1)])
    label = np.array([member for member in membership[:, i] for _ in range(queries)])
    asked = target[i].reshape(queries, -1)
    if attack.scale == "unit":
        return *(np.array([r / max(1.0, np.linalg.norm(r)) for r in a]) for a in (rows, asked)), label
    centre, deviation = rows.mean(0), rows.std(0)
    deviation = np.where(deviation > 0, deviation, np.inf)
    return *(np.clip((a - centre) / deviation, -10, 10) for a in (rows, asked)), label


def prior(label):
    return math.log(label.mean() / (1 - label.mean()))


def slow_mlp(case, i, attack):
    """One `nn.Sequential` and one `torch.optim.Adam` for the point."""
    rows, asked, label = rows_of(case, i, attack)
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(label.astype(np.int64))
    generator = torch.Generator().manual_seed(attack.seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    k = x.shape[1]

    def uniform(shape, inputs):
        return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(inputs)

    with torch.no_grad():
        first = uniform((k + 1, 64), k)
        network[0].weight.copy_(first[:-1].T)
        network[0].bias.copy_(first[-1])
        network[2].weight.copy_(uniform((2, 64), 64))
        network[2].bias.copy_(uniform((2,), 64))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    for _ in range(attack.epochs):
        for index in torch.randperm(len(x), generator=generator).split(64):
            mask = (torch.rand((len(index), 64), generator=generator) >= 0.5) / 0.5
            logits = network[2](network[1](network[0](x[index])) * mask)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, y[index]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        z = network(torch.tensor(asked, dtype=torch.float32)).double()
    return float((z[:, 1] - z[:, 0]).mean()) - prior(label)


def slow_logistic(case, i, attack):
    rows, asked, label = rows_of(case, i, attack)
    fitted = LogisticRegression(C=1 / attack.penalty, tol=1e-8, max_iter=10_000).fit(rows, label)
    return fitted.decision_function(asked).mean() - prior(label)


def slow_knn(case, i, attack):
    rows, asked, label = rows_of(case, i, attack)
    near = {"sqrt": round(math.sqrt(len(rows))), "models": len(case[1])}.get(attack.neighbours, attack.neighbours)
    found = KNeighborsClassifier(near, algorithm="brute").fit(rows, label).predict_proba(asked)[:, 1] * near
    p = label.mean()
    return np.log((found + p) / (near - found + 1 - p)).mean() - prior(label)


@pytest.mark.parametrize("scale", ["standard", "unit"])
@pytest.mark.parametrize(("n", "m", "queries"), [(3, 41, 2), (70, 6, 1)], ids=["several batches", "several parts"])
def test_all_networks_at_once_are_as_one_after_the_other(scale, n, m, queries):
    case = world(n, m, k=4, queries=queries)
    attack = Metaclassifier("mlp", queries=queries, scale=scale, seed=3)
    found = attack(*case[:3])
    both = case[2].any(0) & ~case[2].all(0)
    points = np.flatnonzero(both)[[0, 1, -1]] if n > 3 else np.flatnonzero(both)
    assert len(points) >= 2
    assert np.allclose(found[points], [slow_mlp(case, i, attack) for i in points], atol=1e-4)


@pytest.mark.parametrize("k", [4, 60], ids=["few columns", "more columns than rows"])
@pytest.mark.parametrize(("scale", "penalty"), [("standard", 1.0), ("standard", 30.0), ("unit", 0.1)])
def test_all_logistic_regressions_at_once_are_as_one_after_the_other(scale, penalty, k):
    case = world(40, 12, k=k)
    attack = Metaclassifier("logistic", queries=2, scale=scale, penalty=penalty)
    expected = [slow_logistic(case, i, attack) for i in range(40)]
    assert np.allclose(attack(*case[:3]), expected, atol=1e-3)
    assert np.ptp(expected) > 0.5


@pytest.mark.parametrize("scale", ["standard", "unit"])
@pytest.mark.parametrize("neighbours", ["sqrt", "models", 1, 7])
def test_all_nearest_neighbours_at_once_are_as_one_after_the_other(neighbours, scale):
    case = world(30, 12)
    attack = Metaclassifier("knn", queries=2, neighbours=neighbours, scale=scale)
    expected = [slow_knn(case, i, attack) for i in range(30)]
    assert np.allclose(attack(*case[:3]), expected, atol=1e-9)
    assert np.ptp(expected) > 0.5


def test_more_neighbours_than_rows_are_all_rows():
    case = world(30, 6)
    assert not np.round(Metaclassifier("knn", queries=2, neighbours=10**6)(*case[:3]), 12).any()


@pytest.mark.parametrize("attack", KINDS, ids=repr)
def test_work_in_parts_gives_the_same_scores(attack, monkeypatch):
    case = world(50, 10)[:3]
    whole = attack(*case)
    monkeypatch.setattr("audit.suites.paper_e_tmi.metaclassifier.CHUNK", 10 * 10 * 7)
    monkeypatch.setattr("audit.suites.paper_e_tmi.metaclassifier.TOGETHER", {"cpu": 3, "cuda": 3})
    assert np.allclose(attack(*case), whole, atol=2e-5)


@pytest.mark.parametrize("attack", GLOBAL, ids=repr)
def test_one_classifier_for_all_points_is_trained_on_those_of_the_other_half(attack):
    case = world(60, 8)
    scores = attack(*case[:3])
    first = np.zeros(60, dtype=bool)
    first[np.random.default_rng([0, 0x7311]).permutation(60)[:30]] = True
    for half in (first, ~first):
        changed = np.where(half, ~case[2], case[2])  # the labels of the other half stay as they are
        again = attack(case[0], case[1], changed)
        assert np.array_equal(again[half], scores[half])
        assert not np.array_equal(again[~half], scores[~half])


def test_one_regression_for_all_points_is_that_of_their_rows():
    target, shadows, membership, _ = world(40, 6, k=3, queries=1)
    first = np.zeros(40, dtype=bool)
    first[np.random.default_rng([0, 0x7311]).permutation(40)[:20]] = True
    found = Metaclassifier("logistic", per_example=False)(target, shadows, membership)
    for half in (first, ~first):
        rows, label = shadows[:, ~half].reshape(-1, 3), membership[:, ~half].ravel()
        centre, deviation = rows.mean(0), rows.std(0)
        fitted = LogisticRegression(tol=1e-8).fit((rows - centre) / deviation, label)
        expected = fitted.decision_function((target[half] - centre) / deviation) - prior(label)
        assert np.allclose(found[half], expected, atol=1e-3)


# ------------------------------------------------------------------------------------- leaks, and none, both ways


@pytest.mark.parametrize("attack", KINDS, ids=repr)
def test_a_leak_that_every_point_has_in_its_own_way_is_found(attack):
    assert auc_of(attack, world(leak=0.8)) > 0.7


@pytest.mark.parametrize("attack", GLOBAL, ids=repr)
def test_a_leak_that_all_points_have_in_common_is_found_by_one_classifier(attack):
    rng = np.random.default_rng(0)
    member = rng.random((9, 400)) < 0.5
    odds = rng.normal(size=(9, 400, 2, 5)) + rng.normal(size=(400, 1, 5)) + 1.0 * member[..., None, None]
    odds = odds.reshape(9, 400, 10)
    assert auc_of(attack, (odds[0], odds[1:], member[1:], member[0])) > 0.75


@pytest.mark.parametrize("fixed", [False, True], ids=["drawn", "as many members of every point"])
@pytest.mark.parametrize("attack", [*KINDS, *GLOBAL], ids=repr)
def test_without_a_leak_nothing_is_found(attack, fixed):
    for seed in range(2):
        target, shadows, membership, member = world(600, 14, leak=0.0, seed=seed, fixed=fixed)
        low, high = auc_interval(roc(attack(target, shadows, membership), member), 0.999)
        assert low < 0.5 < high


@pytest.mark.parametrize("kind", ["mlp", "logistic", "knn"])
def test_references_with_the_targets_membership_do_not_tell_it(kind):
    """As in the paper's language models: whoever has them knows the membership of other points only."""
    target, shadows, _, member = world(600, 8, leak=0.0)
    membership = np.repeat(member[None], 8, 0)
    scores = Metaclassifier(kind, per_example=False, queries=2, epochs=5)(target, shadows, membership)
    low, high = auc_interval(roc(scores, member), 0.999)
    assert low < 0.5 < high


@pytest.mark.parametrize("kind", ["mlp", "logistic", "knn"])
def test_more_queries_find_more(kind):
    case = world(700, 24, queries=6, leak=0.7)
    noisy = np.random.default_rng(1).normal(0, 1.5, (25, *case[0].shape))
    case = case[0] + noisy[0], case[1] + noisy[1:], *case[2:]
    one = auc_of(Metaclassifier(kind), (case[0][:, :5], case[1][:, :, :5], *case[2:]))
    assert auc_of(Metaclassifier(kind, queries=6), case) > one + 0.02


# ------------------------------------------------------------------------------------------------- odd signals


@pytest.mark.parametrize("attack", [*KINDS, *GLOBAL], ids=repr)
def test_scores_are_always_finite(attack):
    rng = np.random.default_rng(0)
    odd = np.array([0.0, 5e-324, 1e-300, 1.0, -1.0, 1e-9, 1e100, 1e300, -1.7e308])
    for _ in range(6):
        m, n, k = rng.integers(4, 6), rng.integers(8, 12), rng.integers(1, 4)
        membership = rng.random((m, n)) < 0.5
        signal = np.where(rng.random((m + 1, n, 2 * k)) < 0.5, rng.choice(odd, (m + 1, n, 2 * k)), rng.normal(size=1))
        scores = attack(signal[0], signal[1:], membership)
        assert scores.shape == (n,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("attack", KINDS, ids=repr)
def test_points_with_references_on_one_side_score_0(attack):
    target, shadows, membership, _ = world(20, 8)
    membership[:, 3], membership[:, 4] = True, False
    scores = attack(target, shadows, membership)
    assert scores[3] == scores[4] == 0
    assert np.count_nonzero(scores) >= 16


@pytest.mark.parametrize("kind", ["mlp", "logistic", "knn"])
def test_a_number_that_never_differs_among_the_references_decides_nothing(kind):
    target, shadows, membership, _ = world(20, 8, queries=1)
    attack = Metaclassifier(kind, neighbours=3)
    for value in (0.0, 0.1, -7e8):
        wide = np.append(target, target[:, :1], 1), np.append(shadows, np.full((8, 20, 1), value), 2)
        narrow = np.append(target, np.zeros((20, 1)), 1), np.append(shadows, np.zeros((8, 20, 1)), 2)
        assert np.allclose(attack(*wide, membership), attack(*narrow, membership), atol=1e-6)


@pytest.mark.parametrize("attack", [*KINDS, *GLOBAL], ids=repr)
def test_the_same_seed_gives_the_same_scores_and_leaves_other_random_numbers_alone(attack):
    case = world(30, 8)[:3]
    before = torch.get_rng_state()
    assert np.array_equal(attack(*case), attack(*case))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_precision_of_torch_changes_nothing():
    case = world(10, 8)[:3]
    attack = Metaclassifier(queries=2, epochs=3)
    expected = attack(*case)
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(attack(*case), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["mlp", "logistic", "knn"])
def test_one_number_is_a_vector_of_one(kind):
    target, shadows, membership, _ = world(20, 8, k=3, queries=1)
    plain = Metaclassifier(kind)(target[:, 0], shadows[..., 0], membership)
    assert np.array_equal(plain, Metaclassifier(kind)(target[:, :1], shadows[..., :1], membership))
    assert AtTargetLabel(Metaclassifier(kind))(target, shadows, membership).shape == (20,)
    assert OverQueries(Metaclassifier(kind), 3)(target, shadows, membership).shape == (20,)


# ------------------------------------------------------------------------------------------------------- errors


def test_it_is_an_attack_that_compares_and_prints():
    attack = Metaclassifier("knn", queries=4)
    assert isinstance(attack, Attack)
    assert attack == Metaclassifier("knn", queries=4)
    assert eval(repr(attack)) == attack


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "svm"},
        {"per_example": 1},
        {"queries": 0},
        {"queries": 2.0},
        {"scale": "minmax"},
        {"neighbours": 0},
        {"neighbours": "all"},
        {"penalty": 0.0},
        {"penalty": math.nan},
        {"epochs": 0},
        {"seed": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigurationError):
        Metaclassifier(**options)


@pytest.mark.parametrize("attack", [*KINDS, *GLOBAL], ids=repr)
def test_signals_that_do_not_fit_are_refused(attack):
    target, shadows, membership, _ = world(20, 8)
    with pytest.raises(InputError, match="expected target"):
        attack(target[:-1], shadows, membership)
    with pytest.raises(InputError, match="NaN or infinite"):
        attack(np.where(target > 1, np.nan, target), shadows, membership)
    with pytest.raises(InputError, match="a multiple of 2 numbers a point; got 9"):
        attack(target[:, :9], shadows[..., :9], membership)
    with pytest.raises(InputError, match=r"train more reference models|give more points"):
        attack(target, shadows, np.ones_like(membership))
