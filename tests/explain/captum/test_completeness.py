"""Values that must add up and do not are told to the operator; right methods with few steps are not."""

import logging

import captum.attr
import numpy as np
import pytest
import torch
from explain_nets import quiet
from sklearn.datasets import load_digits
from torch import nn

from safexplain import Hardening, harden
from safexplain.native_maps import collecting
from safexplain.outputs import Probability

pytestmark = quiet
PLAIN = Hardening.none()


def trained(net):
    """On 400 digits, until it is sure of them."""
    digits = load_digits()
    x, y = torch.tensor(digits.data[:400] / 16, dtype=torch.float32), torch.tensor(digits.target[:400])
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


X = torch.tensor(load_digits().data[500:516] / 16, dtype=torch.float32)


@pytest.fixture(scope="module")
def networks():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
        return [
            trained(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))),
            trained(nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *conv)),
        ]


def kinds(explainer, x=X, **options):
    """What is found in one call of the hardened explainer."""
    model = explainer.forward_func
    with collecting() as told:
        harden(explainer, PLAIN).attribute(x, target=model(x).argmax(1), **options)
    return [f.kind for f in told.findings(model)]


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("output", [lambda net: net, Probability])
def test_right_methods_with_few_steps_are_no_finding(networks, output, batch):
    x, zero = X[:batch], torch.zeros(1, 64)
    for model in map(output, networks):
        for steps in (1, 3, 10):
            assert kinds(captum.attr.IntegratedGradients(model), x, n_steps=steps) == []
            assert kinds(captum.attr.IntegratedGradients(model), x, n_steps=steps, baselines=0.5) == []
        for seed in range(2):
            np.random.seed(seed)  # noqa: NPY002 - GradientShap draws from it
            for samples in (1, 5):
                shap = captum.attr.GradientShap(model)
                assert kinds(shap, x, n_samples=samples, baselines=zero) == []
                assert kinds(shap, x, n_samples=samples, baselines=X[8:13]) == []
                assert kinds(shap, x, n_samples=samples, baselines=zero, stdevs=1.0) == []


def test_other_right_methods_and_their_variants_are_no_finding(networks):
    model = networks[0]
    mask = torch.arange(64)[None] // 8
    halves = captum.attr.IntegratedGradients(model, multiply_by_inputs=False)  # gradients: these sum to nothing
    assert kinds(halves) == []
    assert kinds(captum.attr.DeepLift(model)) == []
    assert kinds(captum.attr.DeepLiftShap(model), baselines=X[:5]) == []
    assert kinds(captum.attr.LayerIntegratedGradients(model, model[0]), n_steps=5) == []
    assert kinds(captum.attr.ShapleyValueSampling(model), n_samples=1) == []
    assert kinds(captum.attr.ShapleyValueSampling(model), n_samples=2, feature_mask=mask) == []
    assert kinds(captum.attr.InputXGradient(model)) == []
    assert kinds(captum.attr.IntegratedGradients(model), baselines=X) == []  # nothing to add up


def times(kind, factor):
    """A native class whose maps are so many times too large."""

    class Wrong(kind):
        def attribute(self, inputs, *args, **kwargs):
            return factor * super().attribute(inputs, *args, **kwargs)

    return Wrong


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("factor", [-1.0, 1e-6, 0.5, 1.5, 3.0])
def test_a_wrong_method_is_found(networks, factor, batch):
    for model in (*networks, Probability(networks[0])):
        assert kinds(times(captum.attr.IntegratedGradients, factor)(model), X[:batch], n_steps=10) == ["incomplete"]
    assert kinds(times(captum.attr.ShapleyValueSampling, factor)(networks[0]), X[:batch]) == ["incomplete"]
    deep = times(captum.attr.DeepLift, factor)(networks[0])
    assert kinds(deep, X[:batch]) == ["incomplete"]
    shap = times(captum.attr.GradientShap, factor)(networks[0])
    assert kinds(shap, X[:batch], baselines=torch.zeros(1, 64), n_samples=25) == ["incomplete"]


def test_a_model_whose_gradients_are_not_those_of_its_outputs_is_found(networks):
    class Detached(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x.detach() * 0.9 + x * 0.1)

    assert kinds(captum.attr.IntegratedGradients(Detached(networks[0]).eval())) == ["incomplete"]


def test_it_is_looked_at_once_for_each_model_and_method(networks):
    model, calls = networks[0], []

    class Counted(captum.attr.IntegratedGradients):
        def attribute(self, inputs, *args, **kwargs):
            calls.append(len(inputs))
            return 2 * super().attribute(inputs, *args, **kwargs)

    with collecting() as told:
        for _ in range(3):
            harden(Counted(model), PLAIN).attribute(X, target=1, n_steps=5)
        assert calls == [16, 4, 16, 16]
        assert [(f.kind, f.maps) for f in told.findings(model)] == [("incomplete", 16)]
        harden(captum.attr.IntegratedGradients(model), PLAIN).attribute(X, target=1)
        assert len(told.findings(model)) == 1


def test_the_answer_its_random_numbers_and_its_errors_stay_as_they_are(networks, caplog):
    caplog.set_level(logging.WARNING, logger="safexplain")
    model, zero = networks[0], torch.zeros(1, 64)
    wrong = times(captum.attr.GradientShap, 3.0)
    answers, after = [], []
    for explainer in (wrong(model), harden(wrong(model), PLAIN)):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - GradientShap draws from it
        answers.append(explainer.attribute(X, baselines=zero, target=1).detach())
        after.append((float(torch.rand(())), np.random.random()))  # noqa: NPY002 - GradientShap draws from it
    assert torch.equal(*answers)
    assert after[0] == after[1]
    (record,) = caplog.records
    assert "do not add up" in record.getMessage()

    class OnlyOnce(captum.attr.IntegratedGradients):
        def attribute(self, inputs, target=None, n_steps=50):
            if n_steps > 10:
                raise RuntimeError("out of memory")
            return 2 * super().attribute(inputs, target=target, n_steps=n_steps)

    released = harden(OnlyOnce(model), PLAIN).attribute(X, target=1, n_steps=5)
    assert released.shape == X.shape
