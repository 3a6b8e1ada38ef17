"""harden() takes any Captum explainer, also those outside the catalog."""

import copy
import pickle

import captum.attr as native
import pytest
import torch
from explain_nets import NOISY, image_net, images, quiet

from safexplain.explain import harden
from safexplain.hardening.hardening import Hardening

pytestmark = quiet


def call(explainer, x, options):
    torch.manual_seed(0)
    return explainer.attribute(x, **options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda m: native.NoiseTunnel(native.Saliency(m)), {"target": 1, "nt_type": "smoothgrad_sq"}),
        (lambda m: native.NeuronGradient(m, m[3]), {"neuron_selector": (1, 2, 2)}),
    ],
)
def test_classes_made_on_the_fly_pickle_and_copy(make, options):
    hardened, x = harden(make(image_net()), NOISY), images(3)
    for twin in (pickle.loads(pickle.dumps(hardened)), copy.deepcopy(hardened)):
        assert type(twin) is type(hardened)
        assert torch.equal(call(twin, x, options), call(hardened, x, options))


def test_constructor_options_travel_along_and_the_native_explainer_is_left_alone():
    explainer = native.IntegratedGradients(image_net(), multiply_by_inputs=False)
    before = dict(vars(explainer))
    hardened = harden(explainer, Hardening.none())
    assert hardened.multiplies_by_inputs is False
    assert torch.equal(hardened.attribute(images(), target=1), explainer.attribute(images(), target=1))
    assert vars(explainer) == before


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
