"""harden() takes any Captum explainer, also those outside the catalog."""

import copy
import pickle

import captum.attr as native
import pytest
import torch
from explain_nets import NOISY, image_net, images, quiet, run

from safexplain import HardenedIG
from safexplain.explain import CATALOG, harden
from safexplain.explain.hardened import Hardened
from safexplain.hardening.hardening import Hardening

pytestmark = quiet

OUTSIDE = {
    "NoiseTunnel": (lambda m: native.NoiseTunnel(native.Saliency(m)), {"target": 1, "nt_type": "smoothgrad_sq"}),
    "TunnelOverHooks": (lambda m: native.NoiseTunnel(native.DeepLift(m)), {"target": 1}),
    "FeatureAblation": (
        native.FeatureAblation,
        {"target": 1, "feature_mask": torch.arange(192).view(1, 3, 8, 8) // 16},
    ),
    "KernelShap": (native.KernelShap, {"target": 1, "feature_mask": torch.arange(192).view(1, 3, 8, 8) // 32}),
    "GuidedGradCam": (lambda m: native.GuidedGradCam(m, m[3]), {"target": 1}),
    "LayerGradCam": (lambda m: native.LayerGradCam(m, m[3]), {"target": 1}),
    "LayerConductance": (lambda m: native.LayerConductance(m, m[3]), {"target": 1, "n_steps": 5}),
    "NeuronGradient": (lambda m: native.NeuronGradient(m, m[3]), {"neuron_selector": (1, 2, 2)}),
    "DeepLiftShap": (native.DeepLiftShap, {"target": 1, "baselines": torch.zeros(2, 3, 8, 8)}),
    "LRP": (lambda m: native.LRP(torch.nn.Sequential(m[0], m[2])), {"target": (1, 2, 2)}),
}


def outside(name):
    make, options = OUTSIDE[name]
    return make, options, images(3)


def call(explainer, x, options):
    torch.manual_seed(0)
    return explainer.attribute(x, **options)


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_numbers_are_the_native_ones_and_the_noise_comes_on_top(name):
    make, options, x = outside(name)
    explainer = make(image_net())
    expected = call(explainer, x, options)
    released = call(harden(explainer, Hardening.none()), x, options)
    assert torch.equal(released, expected)
    hardened = harden(explainer, NOISY)
    noise = call(hardened, x, options) - expected
    assert noise.shape == expected.shape
    assert 0.02 < noise.std() < 0.1
    assert isinstance(hardened, type(explainer))
    assert isinstance(hardened, Hardened)


@pytest.mark.parametrize("name", ["NoiseTunnel", "TunnelOverHooks", "GuidedGradCam", "NeuronGradient"])
def test_classes_made_on_the_fly_pickle_and_copy(name):
    make, options, x = outside(name)
    hardened = harden(make(image_net()), NOISY)
    for twin in (pickle.loads(pickle.dumps(hardened)), copy.deepcopy(hardened)):
        assert type(twin) is type(hardened)
        assert torch.equal(call(twin, x, options), call(hardened, x, options))


def test_catalog_methods_get_their_public_class():
    assert type(harden(native.IntegratedGradients(image_net()), NOISY)) is HardenedIG
    one, two = (harden(native.LayerGradCam(m, m[0]), NOISY) for m in (image_net(), image_net()))
    assert type(one) is type(two)
    assert type(one).__name__ == "HardenedLayerGradCam"


def test_constructor_options_travel_along_and_the_native_explainer_is_left_alone():
    explainer = native.IntegratedGradients(image_net(), multiply_by_inputs=False)
    before = dict(vars(explainer))
    hardened = harden(explainer, Hardening.none())
    assert hardened.multiplies_by_inputs is False
    assert torch.equal(hardened.attribute(images(), target=1), explainer.attribute(images(), target=1))
    assert vars(explainer) == before


def test_a_hardened_instance_and_a_wrapped_one_give_the_same_answer():
    row, model = CATALOG["IG"], image_net()
    wrapped = harden(row.explainer(model), NOISY)
    assert torch.equal(run(wrapped, row, images()), run(HardenedIG(model, hardening=NOISY), row, images()))


def test_two_layers_of_a_model_have_independent_noise():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
    x = torch.randn(64, 6)
    noises = []
    for layer in (model[0], model[2]):
        explainer = native.LayerActivation(model, layer)
        noises.append(harden(explainer, NOISY).attribute(x) - explainer.attribute(x))
    assert abs(torch.corrcoef(torch.stack([n.detach().flatten() for n in noises]))[0, 1]) < 0.2


def test_a_method_that_writes_to_weights_writes_to_a_copy():
    class Scribbler(native.Saliency):
        def attribute(self, inputs, target=None):
            with torch.no_grad():
                self.forward_func[0].weight.mul_(0)
            return super().attribute(inputs, target=target)

    model = image_net()
    weight = model[0].weight.clone()
    harden(Scribbler(model), NOISY).attribute(images(), target=1)
    assert torch.equal(model[0].weight, weight)
