"""The suite of releases: what it computes beside the library is right, and what its result says is what was judged."""

import json

import numpy as np
import pytest
import torch
from evidence import ROOT
from torch import nn

from audit.shared import resampling
from audit.suites.releases import suite, tables, tasks
from safexplain import Probability
from safexplain.verdict.stats import roc

RESULT = ROOT / "audit" / "results" / "releases.json"


def network(inputs=64, classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes)).eval()


@pytest.fixture
def queries():
    torch.manual_seed(1)
    return torch.rand(6, 64), torch.arange(6)


def test_native_maps_are_captums(queries):
    import captum.attr

    x, target = queries
    model = network()
    for name, of_captum, options, within in (
        ("InputXGradient", "InputXGradient", {}, 1e-6),
        ("Saliency", "Saliency", {}, 1e-6),
        ("IG", "IntegratedGradients", {"n_steps": 200}, 2e-3),
        ("FeatureAblation", "FeatureAblation", {}, 1e-6),
    ):
        native = getattr(captum.attr, of_captum)(Probability(model))
        expected = native.attribute(x.clone().requires_grad_(), target=target, **options)
        found = tasks.NATIVE[name][1](model, x, target)
        assert found.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=within), name


def test_shapley_values_add_up_to_what_the_groups_change_and_are_exact_of_sums(queries):
    x, target = queries
    weight = torch.randn(64, generator=torch.Generator().manual_seed(2))

    class Linear(nn.Module):
        def forward(self, x):
            p = (0.5 + 0.005 * (x @ weight)).clamp(0, 1)
            return torch.stack([p, *[(1 - p) / 9] * 9], 1)

    found = tasks.kernel_shap(Linear(), x, torch.zeros_like(target))
    square = [(i // 8) // 2 * 4 + (i % 8) // 2 for i in range(64)]
    expected = torch.zeros(6, 16).index_add_(1, torch.tensor(square), 0.005 * x * weight)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    model = network()
    weights = tasks.kernel_shap(model, x, target)
    p = model(torch.stack([x, torch.zeros_like(x)])).softmax(-1)[:, range(6), target]
    assert weights.sum(1).numpy() == pytest.approx((p[0] - p[1]).detach().numpy(), abs=1e-5)


def test_rates_with_ties_are_those_of_the_interpolated_curve():
    rng = np.random.default_rng(3)
    member = rng.random(400) < 0.5
    signal = np.round(rng.normal(size=400) + 0.5 * member, 1)
    weights = np.concatenate([np.ones((400, 1)), rng.multinomial(400, np.full(400, 1 / 400), size=4).T], axis=1)
    auc, *tprs = resampling.interpolated_rates(signal, member, weights.astype(np.float32), (0.01, 0.05, 0.5))
    for b in range(5):
        again = np.repeat(np.arange(400), weights[:, b].astype(int))
        curve = roc(signal[again], member[again])
        assert auc[b] == pytest.approx(curve.auc, abs=1e-6)
        for fpr, tpr in zip((0.01, 0.05, 0.5), tprs, strict=True):
            assert tpr[b] == pytest.approx(np.interp(fpr, curve.fpr, curve.tpr), abs=1e-5)


def test_deletion_and_insertion_of_the_right_features():
    class Two(nn.Module):
        """The probability of class 0 is .5 + the first feature less the second."""

        def forward(self, x):
            p = 0.5 + x[:, 0] - x[:, 1]
            return torch.stack([p, 1 - p], 1)

    x = torch.tensor([[0.3, 0.1, 0.2, 0.0, 0.0]])
    label = np.zeros(1, dtype=np.int64)
    deletion, insertion = suite.faithful(Two(), x, label, np.array([[3.0, -1.0, 0, 0, 0]]), 2)
    assert deletion == pytest.approx(0.3)
    assert insertion == pytest.approx(0.3)
    assert suite.faithful(Two(), x, label, np.array([[-3.0, 1.0, 0, 0, 0]]), 1) == pytest.approx((-0.1, -0.1))
    assert suite.faithful(Two(), x, label, np.zeros((1, 5)), 4) == (0, 0)


def figures(deletion=0.9, tpr=(0.0, 0.0), auc=(0.0, 0.0), **other):
    found = {name: {"value": value, "se": se} for name, (value, se) in {"tpr": tpr, "auc": auc}.items()}
    nothing = {name: {"value": 0.0, "se": 0.0} for name in found}
    levels = {"1": {"attacks": {"A": nothing}}, "40": {"attacks": {"A": nothing, "B": found}}}
    return {"levels": levels, "deletion": deletion, "insertion": 0.5, "utility": 0.5, "sign_errors": 0.0, **other}


def test_each_criterion_fails_where_it_should():
    for row, safe, faithful in (
        (figures(), True, True),
        (figures(tpr=(0.009, 0.0)), True, True),
        (figures(tpr=(0.005, 0.004)), False, True),
        (figures(auc=(0.015, 0.004)), False, True),
        (figures(auc=(0.015, 0.002)), True, True),
        (figures(deletion=0.87), True, False),
        (figures(deletion=0.881), True, True),
        (figures(deletion=0.79, tpr=(0.1, 0.0)), False, False),
    ):
        rows = {"native": figures(0.9, tpr=(0.1, 0.01)), "row": row, suite.PUBLIC: figures(0.8)}
        judged = suite.judge(rows)["row"]
        assert (judged["safe"], judged["faithful"], judged["passes"]) == (safe, faithful, safe and faithful), row


@pytest.mark.skipif(not RESULT.is_file(), reason="no result yet")
def test_the_committed_verdicts_follow_from_the_committed_figures():
    found = json.loads(RESULT.read_text())
    again = {f"{t} {x}": suite.judge(cell["releases"]) for t, x, cell in tables.cells(found)}
    for task, explainer, cell in tables.cells(found):
        for name, row in cell["releases"].items():
            said = again[f"{task} {explainer}"][name]
            assert row["judged"]["passes"] == said["passes"], (task, explainer, name)
        assert cell["releases"]["random map"]["judged"]["auc"]["upper"] <= 0.02, "attacks find something in random maps"
