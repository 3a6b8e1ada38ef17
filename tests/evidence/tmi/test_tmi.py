"""audit/suites/paper_e_tmi: the linear game is the lemmas', both evaluations are what they say, and the suite runs."""

import json
import math

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient
from evidence import needs, twice
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score, roc_curve

from audit.shared.run import RESULTS
from audit.suites.paper_e_tmi import evaluate, explanations, suite, tables, tasks
from audit.suites.paper_e_tmi.linear import PUBLISHED, Linear
from safexplain import Probability


def test_figure_3_is_lemma_4_2_at_the_best_weight():
    for shift, alpha, auc in ((5.0, 0.764, 0.960), (10.0, 0.517, 0.784)):
        linear = Linear(d=12_000, n=1000, m=100, shift=shift)
        assert (linear.alpha, linear.auc(linear.alpha)) == pytest.approx((alpha, auc), abs=5e-4)
        assert linear.auc_exact(linear.alpha) == pytest.approx(linear.auc(linear.alpha), abs=1e-4)
        assert (linear.alpha, linear.auc(linear.alpha)) == pytest.approx(PUBLISHED[shift], abs=0.01)


def test_the_statistic_has_the_moments_of_lemma_4_1_but_for_the_variance_of_members():
    """With two records the slip is large: 2 alpha^2 / n^2 for alpha^2 / n^2."""
    d, n, alpha, rounds = 50, 2, 0.9, 60_000
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rounds, n, d)), rng.normal(size=(rounds, d)) / math.sqrt(10)
    released = alpha * x.mean(1) + (1 - alpha) * y
    member, other = (released * x[:, 0]).sum(1), (released * rng.normal(size=(rounds, d))).sum(1)
    noise = alpha**2 / n + (1 - alpha) ** 2 / 10
    assert other.var() == pytest.approx(d * noise, rel=0.03)
    assert member.mean() == pytest.approx(alpha * d / n, rel=0.01)
    assert member.var() == pytest.approx(d * (noise + (alpha / n) ** 2), rel=0.03)
    assert member.var() < 0.9 * d * (noise + 2 * (alpha / n) ** 2)


def test_the_game_is_won_as_often_as_the_lemma_says_by_both_attacks():
    linear = Linear(d=2000, n=200, m=30, shift=2.0)
    found = linear.play(targets=20, challenges=100, references=150)
    for name in ("known means", "ratio"):
        error = found[name]["high"] - found[name]["low"]
        assert found[name]["auc"] == pytest.approx(linear.auc(linear.alpha), abs=error)
    far = Linear(d=2000, n=200, m=30, shift=400.0)
    assert far.alpha < 0.01
    assert far.play(targets=10, challenges=100, references=50)["known means"]["auc"] == pytest.approx(0.5, abs=0.06)


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


def test_what_is_not_released_is_spread_evenly():
    k = 3
    p = np.random.default_rng(0).dirichlet(np.ones(8), size=(4, 30))
    got = expit(evaluate.top_k(logit(p), k))
    assert got.sum(-1) == pytest.approx(1.0)
    order = np.argsort(-p, axis=-1)
    kept, hidden = (np.take_along_axis(got, o, -1) for o in (order[..., :k], order[..., k:]))
    assert kept == pytest.approx(np.take_along_axis(p, order[..., :k], -1))
    assert hidden == pytest.approx(np.repeat(hidden[..., :1], 8 - k, -1))


def test_what_dp_allows_is_its_roc():
    """The paper's Table 7 prints 1.7 and 2.7 % at 1 %."""
    assert [evaluate.allowed(e, 1e-5, 0.01) for e in (0.5, 1.0)] == pytest.approx([0.0165, 0.0272], abs=1e-4)
    assert [evaluate.allowed_auc(e, 0.0) for e in (0.0, 1.0)] == pytest.approx([0.5, 1 / (1 + math.exp(-1))], abs=1e-4)


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


@needs("tinyimagenet32_100.npz", "cifar10.npz", "gtsrb.npz", "dbpedia14k.npz", "agnews_test.npz")
@pytest.mark.slow
def test_the_suite_runs_quickly_and_resumes(tmp_path):
    first, again = twice("audit.suites.paper_e_tmi", tmp_path)
    assert first["quick"]
    assert first["results"]["cells"] == again["results"]["cells"]
    for name, make in tables.TABLES.items():
        assert make(first), name


RESULT = RESULTS / "paper_e_tmi.json"


@pytest.fixture(scope="module")
def found():
    if not RESULT.is_file():
        pytest.skip("audit/results/paper_e_tmi.json is not there: python -m audit.suites.paper_e_tmi")
    return json.loads(RESULT.read_text())["results"]


def test_the_goals_are_reached_and_the_controls_hold_in_the_committed_result(found):
    assert suite.missed(found) == []
    assert set(found["cells"]) | set(found["not_run"]) >= {s.name for s in tasks.SETTINGS}


def test_the_guide_has_the_figures_of_the_result(found):
    """docs/pretraining.md, by what stands before each figure."""
    page = " ".join((RESULTS.parents[1] / "docs" / "pretraining.md").read_text().split())
    cells, explained = found["cells"], found["explanations"]["attacks"]
    head, joint = cells["cifar10, head"]["attacks"], "joint ratio, one query"

    def row(one):
        return f"{short(one['auc'][0])} | {one['tpr at 0.01'][0]:.1%} |".replace("%", " %")

    def short(auc):
        return f"{auc:.3f}".removeprefix("0")

    def aucs(*names):
        return [short(cells[name]["attacks"][joint]["auc"][0]) for name in names]

    for said, one in {
        "label of one query": head["label"],
        "adapted LiRA, four queries": head["adapted LiRA"],
        "network for each image, four queries": head["network"],
        "joint ratio of one prediction": head[joint],
        "backbones that were never trained": cells["cifar10, head, untrained"]["attacks"][joint],
        "with its label": found["pretraining"]["attacks"]["LiRA"],
    }.items():
        assert f"{said} | {row(one)}" in page
    first, *others = aucs("cifar10, head, fewer models", "cifar10, last 1", "cifar10, last 2", "cifar10, all")
    assert f"{first} for the head alone (17 models here), {others[0]} with the last block, {others[1]} with two" in page
    assert f"{others[1]} with two, {others[2]} with everything" in page
    signs, cropped = aucs("gtsrb, head, fewer models", "cifar10, head, other pre-training")
    assert f"a head for traffic signs has {signs}" in page
    assert f"with random crops and flips, they have {cropped}" in page
    coarse = "coarse, head, "
    assert (
        "{} and {}, of {} without".format(*aucs(f"{coarse}epsilon 1", f"{coarse}epsilon 0.5", f"{coarse}fewer models"))
        in page
    )
    norms, all_of_it, hardened = (
        short(explained[name]["auc"][0])
        for name in ("native, L1 of all classes", "prediction", "recommended, L1 of all classes")
    )
    assert f"all ten classes have {norms}, where the prediction has {all_of_it}" in page
    assert f"the norms have {hardened}" in page
