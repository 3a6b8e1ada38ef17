"""Our gradient function gives Captum's bits; Captum's own is the slow oracle."""

import captum.attr
import pytest
import torch
from captum._utils.gradient import compute_gradients
from explain_nets import TwoInputs, image_net, quiet
from sklearn.ensemble import RandomForestClassifier
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

import safexplain.captum
from safexplain.explain import hardened
from safexplain.explain import isolation as module
from safexplain.explain.isolation import gradients, gradients_in_blocks, lend
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import EstimatorModule

pytestmark = quiet


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5)).eval()


def exported():
    rows = {0: torch.export.Dim("rows", min=1)}
    return torch.export.export(mlp(), (torch.randn(4, 12),), dynamic_shapes=(rows,)).module()


def resnet():
    torch.manual_seed(0)
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5).eval()


def numbers(rows, *shape):
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(rows)).requires_grad_()


def both(find, model, inputs, target=None, extra=None):
    """What Captum's function and another one say: gradients, or an error's type and message."""
    found = []
    for each in (compute_gradients, find):
        try:
            found.append(each(model, inputs, target, extra))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def agree(one, other):
    if isinstance(one[0], torch.Tensor):
        return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@pytest.mark.parametrize(
    ("find", "build", "shape", "rows"),
    [
        (gradients, mlp, (12,), 3_000),
        (gradients_in_blocks, mlp, (12,), 3_000),
        (gradients_in_blocks, exported, (12,), 1_100),
        (gradients_in_blocks, resnet, (3, 16, 16), 40),
    ],
)
def test_the_bits_are_captums(find, build, shape, rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1_024 if rows > 1_024 else 32)
    model, x = build(), numbers(rows, *shape)
    target = model(x).argmax(1)
    assert agree(*both(find, model, x, target))
    assert agree(*both(find, model, (x,), target))


def test_every_way_of_naming_a_target_and_other_arguments_gives_captums_bits(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 32)
    net, x = mlp(), numbers(100, 12)

    def grid(x, *more):
        factors = [m if isinstance(m, torch.Tensor) else torch.tensor(float(m)) for m in more if m is not None]
        scale = torch.stack([f.expand(len(x)) for f in factors]).prod(0) if factors else torch.ones(len(x))
        return (net(x) * scale[:, None])[:, :4].view(-1, 2, 2)

    each = [i % 5 for i in range(100)]
    for target in (3, -1, torch.tensor(2), torch.tensor([2]), torch.tensor(each), each, (1,)):
        assert agree(*both(gradients_in_blocks, net, (x,), target)), target
    for target in ((1, 0), [(i % 2, 1) for i in each]):
        for extra in (None, 2.0, (2.0, None), (torch.arange(100.0),), (torch.tensor(3.0), torch.arange(100.0))):
            assert agree(*both(gradients_in_blocks, grid, (x,), target, extra)), (target, extra)
    assert agree(*both(gradients_in_blocks, TwoInputs().eval(), (numbers(90, 3, 8, 8), numbers(90, 5)), 1))


def test_a_wrong_question_gets_captums_error_and_one_output_for_all_rows_its_gradient(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 32)
    net, x = mlp(), numbers(100, 12)
    wrong = [(net, None), (net, [1, 2]), (lambda x: net(x).sum(), None), (lambda x: net(x).detach(), 1)]
    wrong += [(lambda x: net(x).to(torch.complex64), 1), (lambda x: (net(x),), None), (lambda x: net(x[:0]), 1)]
    for model, target in wrong:
        for find in (gradients, gradients_in_blocks):
            captums, ours = both(find, model, (x,), target)
            assert isinstance(captums[0], type), target
            assert ours[0] is captums[0], target
    assert "multiple outputs" in both(gradients, net, (x,))[1][1]
    assert agree(*both(gradients_in_blocks, net, (x[:0],), 1))
    assert agree(*both(gradients_in_blocks, lambda x: net(x).square().sum().reshape(1), (x,)))
    assert agree(*both(gradients_in_blocks, lambda x: net(x).square().sum(0), (x,), 2))


def test_blocks_are_only_for_models_that_nobody_hooks_and_that_do_not_train():
    net = image_net()
    kinds = {"IntegratedGradients": gradients_in_blocks, "GuidedBackprop": gradients, "DeepLift": gradients}
    for name, expected in kinds.items():
        kind = getattr(captum.attr, name)
        with lend(kind, vars(kind(net))) as lent:
            assert lent.gradient_func is expected
    tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(net.train()))
    with lend(captum.attr.NoiseTunnel, vars(tunnel)) as lent:
        assert lent.attribution_method.gradient_func is gradients
    assert tunnel.attribution_method.gradient_func is compute_gradients  # the caller's own stays


@pytest.mark.parametrize("name", ["FeatureAblation", "Lime"])
def test_a_classifier_is_asked_about_many_rows_at_once_and_the_numbers_are_captums(name):
    x = numbers(60, 6).detach()
    forest = EstimatorModule(RandomForestClassifier(5, random_state=0).fit(x.numpy(), (x[:, 0] > 0).int().numpy()))
    calls, found = [], []
    forest.register_forward_hook(lambda *_: calls.append(1))
    ours = getattr(safexplain.captum, name)(forest, hardening=Hardening.none())
    for explainer, options in (
        (getattr(captum.attr, name)(forest), {}),
        (ours, {"perturbations_per_eval": 1}),
        (ours, {}),
    ):
        torch.manual_seed(0)
        before = len(calls)
        found.append((explainer.attribute(x[:4], target=1, **options), len(calls) - before))
    (native, often), (chosen, as_often), (released, seldom) = found
    assert torch.equal(chosen, native)
    assert torch.equal(released, native)
    assert seldom < often / 2 < as_often


def test_as_many_rows_are_asked_about_at_once_as_fit(monkeypatch):
    x = numbers(60, 6).detach()
    forest = EstimatorModule(RandomForestClassifier(5, random_state=0).fit(x.numpy(), (x[:, 0] > 0).int().numpy()))
    rows = []
    forest.register_forward_hook(lambda *hook: rows.append(len(hook[2])))
    explainer = safexplain.captum.FeatureAblation(forest, hardening=Hardening.none())
    for values, largest in ((3 * 24, 3 * 4), (23, 4)):  # of 24 numbers in four rows
        monkeypatch.setattr(hardened, "_VALUES_PER_CALL", values)
        rows.clear()
        explainer.attribute(x[:4], target=1)
        assert max(rows) == largest
