"""audit/suites/paper_e_tmi: the linear game is the lemmas', both evaluations are what they say, and the suite runs."""

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient
from scipy.special import expit
from sklearn.metrics import roc_auc_score, roc_curve

from audit.suites.paper_e_tmi import evaluate, explanations, tasks
from safexplain import Probability


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
