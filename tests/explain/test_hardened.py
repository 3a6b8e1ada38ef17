"""What hardened Captum explainers promise beyond the contract that `tests/testing` runs over every row."""

import warnings

import captum.attr
import pytest
import torch
from explain_nets import KEY, NOISY, TwoInputs, hardened_class, image_net, images, quiet, run
from torch import nn

from safexplain import HardenedIG, HardenedSaliency, HardenedSmoothGrad, harden
from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise

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


def test_repr_names_method_and_hardening_and_shows_no_array_or_key():
    for name in ("IG", "SmoothGrad", "GradientShap"):
        text = repr(hardened_class(CATALOG[name])(image_net(), hardening=NOISY))
        assert text.startswith(f"Hardened{name}(")
        assert "GaussianNoise(std=0.05" in text
        assert "tensor" not in text
        assert "thirty-two" not in text


def test_a_model_in_place_of_an_explainer_gives_the_smoothgrad_of_the_paper():
    """arXiv 1706.03825: the mean of signed gradients at noisy inputs, written out."""
    model, x = image_net(), images(2)
    released = run(HardenedSmoothGrad(model, hardening=Hardening.none()), CATALOG["SmoothGrad"], x, stdevs=0.3)
    torch.manual_seed(0)
    noisy = (x.repeat_interleave(5, 0) + torch.normal(0, torch.tensor(0.3).repeat(10, 3, 8, 8))).requires_grad_()
    (gradient,) = torch.autograd.grad(model(noisy)[:, 1].sum(), noisy)
    torch.testing.assert_close(released, gradient.view(2, 5, 3, 8, 8).mean(1))


def test_the_default_hardening_is_the_recommended_one(monkeypatch):
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", KEY.decode())
    assert HardenedIG(image_net()).hardening == Hardening.recommended()


def test_noise_has_the_stated_scale():
    model, x = image_net(), images(8)
    native = CATALOG["IG"].explainer(model).attribute(x, target=1)
    for std in (0.02, 0.2):
        hardening = Hardening(noise=GaussianNoise(std, key=KEY))
        noise = HardenedIG(model, hardening=hardening).attribute(x, target=1) - native
        assert noise.std().item() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize(
    ("name", "rows", "target"),
    [
        ("Saliency", 1, "listed"),
        ("InputXGradient", 300, "each"),
        ("IG", 5, "last"),
        ("DeepLift", 300, "one"),
        ("GuidedBackprop", 5, "listed"),
        ("Deconvolution", 1, "each"),
    ],
)
def test_what_is_released_is_captums_map_hardened(name, rows, target):
    """Captum's own loop over outputs is the slow oracle of the gradient of all rows at once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)).eval()
    x, each = torch.randn(rows, 12), torch.arange(rows) % 5
    chosen = {"one": 3, "last": -1, "each": each, "listed": each.tolist()}[target]
    native = CATALOG[name].explainer(model).attribute(x.clone(), target=chosen).detach()
    assert torch.equal(HARDENED[name](model, hardening=Hardening.none()).attribute(x, target=chosen), native)
    hardening = Hardening.recommended()
    assert torch.equal(HARDENED[name](model, hardening=hardening).attribute(x, target=chosen), hardening(native))


def test_wrong_arguments_get_pythons_own_errors():
    explainer, x = HARDENED["Saliency"](image_net()), images(2)
    for arguments, options in (((), {}), ((x,), {"inputs": x}), ((x, 1, True, None, 5), {}), ((x,), {"steps": 3})):
        with pytest.raises(TypeError):
            explainer.attribute(*arguments, **options)
    assert torch.equal(explainer.attribute(x, 1, False), explainer.attribute(abs=False, inputs=x, target=1))


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
