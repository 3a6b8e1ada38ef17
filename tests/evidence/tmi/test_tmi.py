"""audit/suites/paper_e_tmi: the linear game is the lemmas', evaluations and attacks are what they say."""

import math

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient
from scipy.special import expit
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from audit.suites.paper_e_tmi import evaluate, explanations, tasks
from audit.suites.paper_e_tmi.attacks import AtTargetLabel, Metaclassifier, OverQueries
from safexplain import Probability
from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio


def _scores(leak, t=12, n=800, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.random((t, n)) < 0.5
    return rng.normal(size=(t, n)) + leak * member, member


def test_as_published_is_one_roc_of_scaled_scores():
    found, member = _scores(0.7)
    found[3] *= 50  # a target whose scores are on another scale
    got = evaluate.as_published(found, member, probability=False)
    scaled = (found - found.min(1, keepdims=True)) / np.ptp(found, axis=1)[:, None]
    fpr, tpr, _ = roc_curve(member.ravel(), scaled.ravel(), drop_intermediate=False)
    assert got["auc"][0] == pytest.approx(roc_auc_score(member.ravel(), scaled.ravel()))
    assert got["tpr at 0.01"][0] == pytest.approx(tpr[fpr <= 0.01].max())
    likely = evaluate.as_published(found, member, probability=True)
    assert likely["auc"][0] == pytest.approx(evaluate.as_published(expit(found), member, False)["auc"][0])


def test_corrected_is_the_mean_over_targets():
    found, member = _scores(0.7)
    got = evaluate.figures(found, member)
    assert got["auc"][0] == pytest.approx(np.mean([roc_auc_score(m, s) for s, m in zip(found, member, strict=True)]))
    assert got["tpr at 0.001"] is None, "less than one non-member of a target"
    assert got["auc"][1] < got["auc"][0] < got["auc"][2]


def test_explanations_of_all_classes_are_captum_s():
    model = tasks.small(4)(0).eval()
    x = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = explanations.every_class(model, x)
    for c in range(4):
        expected = InputXGradient(Probability(model)).attribute(x.clone().requires_grad_(), target=c)
        assert torch.allclose(maps[:, c], expected.detach(), atol=1e-6 * float(expected.detach().abs().max()) + 1e-9)
    released = explanations.Releases()
    target = torch.tensor([0, 1, 2, 3, 0])
    native, top, noisy = released(model, x, target)
    assert torch.equal(native, maps[torch.arange(5), target])
    assert set(top.unique().tolist()) <= {0.0, 1.0}, "the recommended release is a set"
    assert not torch.equal(noisy, native)


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


def world(n, m, k, queries):
    """Prediction vectors: a point's own level, noise of the model and of the query, a shift of its own for members."""
    rng = np.random.default_rng(0)
    member = rng.random((m + 1, n)) < 0.5
    shift = rng.normal(size=(n, k)) + 0.5
    noise = rng.normal(size=(m + 1, n, 1, k)) + 0.5 * rng.normal(size=(m + 1, n, queries, k))
    odds = rng.normal(0, 2, (n, 1, k)) + noise + member[..., None, None] * shift[:, None]
    odds = odds.reshape(m + 1, n, queries * k)
    return odds[0], odds[1:], member[1:]


def rows_of(case, i, attack):
    """The rows of point i, their labels and what the target says, on the attack's scale."""
    target, shadows, membership = case
    queries = attack.queries
    rows = np.array([answer for model in shadows for answer in model[i].reshape(queries, -1)])
    label = np.array([member for member in membership[:, i] for _ in range(queries)])
    asked = target[i].reshape(queries, -1)
    return *(np.array([r / max(1.0, np.linalg.norm(r)) for r in a]) for a in (rows, asked)), label


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


@pytest.mark.parametrize(("n", "m", "queries"), [(3, 41, 2), (70, 6, 1)], ids=["several batches", "several parts"])
def test_all_networks_at_once_are_as_one_after_the_other(n, m, queries):
    case = world(n, m, 4, queries)
    attack = Metaclassifier(queries, seed=3)
    found = attack(*case)
    both = case[2].any(0) & ~case[2].all(0)
    points = np.flatnonzero(both)[[0, 1, -1]] if n > 3 else np.flatnonzero(both)
    assert len(points) >= 2
    assert np.allclose(found[points], [slow_mlp(case, i, attack) for i in points], atol=1e-4)
