"""What hardened Captum explainers promise beyond the contract that `tests/testing` runs over every row."""

import copy
import pickle
import warnings

import captum.attr
import pytest
import torch
from explain_nets import (
    NOISY,
    TwoInputs,
    hardened_class,
    image_net,
    images,
    net_for,
    quiet,
    run,
    target_for,
    tensors,
    torch_rows,
)
from torch import nn

from safexplain import HardenedSaliency, HardenedSmoothGrad, harden
from safexplain.explain.catalog import CATALOG
from safexplain.hardening.hardening import Hardening
from safexplain.testing import check_explainer

pytestmark = quiet


@pytest.mark.parametrize("name", ["IG", "SmoothGrad", "Occlusion", "KernelShap"])
def test_tuples_come_back_as_tuples_with_the_native_numbers(name):
    row = CATALOG[name]
    model, x = TwoInputs().eval(), (images(), torch.randn(4, 5))
    native = run(row.explainer(model), row, x)
    released = run(hardened_class(row)(model, hardening=Hardening.none()), row, x)
    assert isinstance(released, tuple)
    assert all(torch.equal(a, b) for a, b in zip(released, native, strict=True))
    noisy = run(hardened_class(row)(model, hardening=NOISY), row, x)
    assert [t.shape for t in noisy] == [t.shape for t in x]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("IG", [{"n_steps": 10}, {"n_steps": 40}, {"internal_batch_size": 4}, {"method": "riemann_trapezoid"}]),
        ("SmoothGrad", [{"nt_samples": 2}, {"nt_samples": 4}, {"nt_samples_batch_size": 1}, {"stdevs": 0.1}]),
        ("GradientShap", [{"n_samples": 2}, {"n_samples": 6}, {"stdevs": 0.1}]),
    ],
)
def test_options_that_reestimate_the_same_quantity_give_no_fresh_noise(name, options):
    row, model, x = CATALOG[name], image_net(), images()
    explainer = hardened_class(row)(model, hardening=NOISY)
    noises = [run(explainer, row, x, **o) - run(row.explainer(model), row, x, **o) for o in options]
    for noise in noises[1:]:
        torch.testing.assert_close(noise, noises[0], atol=1e-5, rtol=0)


def test_the_caller_hears_nothing_about_inputs_that_did_not_require_gradients():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HardenedSaliency(image_net(), hardening=NOISY).attribute(images(), target=1)


def test_a_model_that_writes_into_its_input_does_not_write_into_the_callers():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(2).flatten(1)

    x, row = images(), CATALOG["Occlusion"]
    run(hardened_class(row)(InPlace(), hardening=NOISY, model_digest=b"the model in use"), row, x)
    assert torch.equal(x, images())


def test_a_model_in_place_of_an_explainer_gives_the_smoothgrad_of_the_paper():
    """arXiv 1706.03825: the mean of signed gradients at noisy inputs, written out."""
    model, x = image_net(), images(2)
    released = run(HardenedSmoothGrad(model, hardening=Hardening.none()), CATALOG["SmoothGrad"], x, stdevs=0.3)
    torch.manual_seed(0)
    noisy = (x.repeat_interleave(5, 0) + torch.normal(0, torch.tensor(0.3).repeat(10, 3, 8, 8))).requires_grad_()
    (gradient,) = torch.autograd.grad(model(noisy)[:, 1].sum(), noisy)
    torch.testing.assert_close(released, gradient.view(2, 5, 3, 8, 8).mean(1))


def test_arguments_without_names_reach_the_native_method():
    class Forwarding(captum.attr.Saliency):
        def attribute(self, inputs, *args, **kwargs):
            return 3 * super().attribute(inputs, *args, **kwargs)

    class ByPlace(captum.attr.Saliency):
        def attribute(self, inputs, target=None, /, *, abs=True):
            return super().attribute(inputs, target, abs)

    model, x = image_net(), images(2)
    native = captum.attr.Saliency(model).attribute(x, 1, abs=False)
    for kind, factor in ((Forwarding, 3), (ByPlace, 1)):
        explainer = harden(kind(model), Hardening.none())
        assert torch.equal(explainer.attribute(x, 1, abs=False), factor * native)
    assert torch.equal(harden(Forwarding(model), Hardening.none()).attribute(x, target=1, abs=False), 3 * native)


def call(explainer, x, options):
    torch.manual_seed(0)
    return explainer.attribute(x, **options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda m: captum.attr.NoiseTunnel(captum.attr.Saliency(m)), {"target": 1, "nt_type": "smoothgrad_sq"}),
        (lambda m: captum.attr.NeuronGradient(m, m[3]), {"neuron_selector": (1, 2, 2)}),
    ],
)
def test_classes_made_on_the_fly_pickle_and_copy(make, options):
    hardened, x = harden(make(image_net()), NOISY), images(3)
    for twin in (pickle.loads(pickle.dumps(hardened)), copy.deepcopy(hardened)):
        assert type(twin) is type(hardened)
        assert torch.equal(call(twin, x, options), call(hardened, x, options))


def test_constructor_options_travel_along_and_the_native_explainer_is_left_alone():
    explainer = captum.attr.IntegratedGradients(image_net(), multiply_by_inputs=False)
    before = dict(vars(explainer))
    hardened = harden(explainer, Hardening.none())
    assert hardened.multiplies_by_inputs is False
    assert torch.equal(hardened.attribute(images(), target=1), explainer.attribute(images(), target=1))
    assert vars(explainer) == before


def test_a_method_that_writes_to_weights_writes_to_a_copy():
    class Scribbler(captum.attr.Saliency):
        def attribute(self, inputs, target=None):
            with torch.no_grad():
                self.forward_func[0].weight.mul_(0)
            return super().attribute(inputs, target=target)

    model = image_net()
    weight = model[0].weight.clone()
    harden(Scribbler(model), NOISY).attribute(images(), target=1)
    assert torch.equal(model[0].weight, weight)


@pytest.mark.gpu
@torch_rows
def test_answers_stay_on_the_device_with_the_noise_of_the_cpu(row):
    if row.stochastic:
        pytest.skip("draws from another generator on a GPU")
    noises = []
    for device in ("cpu", "cuda"):
        model, x = net_for(row).to(device), images().to(device)
        make = hardened_class(row)
        native, released = (tensors(run(make(model, hardening=h), row, x)) for h in (Hardening.none(), NOISY))
        assert {t.device.type for t in released} == {device}
        noises.append([(r - n).cpu() for r, n in zip(released, native, strict=True)])
    for on_cpu, on_gpu in zip(*noises, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, atol=1e-4, rtol=0)


@pytest.mark.gpu
@torch_rows
def test_the_contract_holds(row):
    x = images().cuda()
    check_explainer(hardened_class(row), net_for(row).cuda(), x, target_for(row).get("target"), options=row.options(x))
