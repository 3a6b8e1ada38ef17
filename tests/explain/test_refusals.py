"""What hardened explainers refuse, and that the refusal says what to do instead."""

import inspect

import captum.attr
import pytest
import torch
from captum.attr import Attribution, GuidedBackprop, GuidedGradCam, IntegratedGradients, NoiseTunnel, Saliency
from explain_nets import NOISY, TORCH_ROWS, hardened_class, image_net, images, net_for, quiet, run
from torch import nn
from torch.nn import functional as F

from safexplain import (
    HardenedDeepLift,
    HardenedGuidedBackprop,
    HardenedIG,
    HardenedSaliency,
    HardenedSmoothGrad,
    HardenedVarGrad,
)
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain import CATALOG, harden
from safexplain.explain.catalog import REFUSED
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
IG = CATALOG["IG"]


def test_a_convergence_delta_is_refused_by_keyword_and_need_not_be_named():
    explainer = hardened_class(IG)(image_net(), hardening=NOISY)
    for yes in (True, 1, "yes", torch.tensor(True)):
        with pytest.raises(RefusedError, match="convergence delta"):
            run(explainer, IG, images(), return_convergence_delta=yes)
    assert isinstance(run(explainer, IG, images(), return_convergence_delta=False), torch.Tensor)


@pytest.mark.parametrize("name", ["IG", "DeepLift", "GradientShap"])
def test_a_convergence_delta_is_refused_by_position(name):
    row = CATALOG[name]
    parameters = inspect.signature(row.native.attribute).parameters
    x = images()
    given = {"inputs": x, "target": 1, **row.options(x), "return_convergence_delta": True}
    names = list(parameters)[1 : list(parameters).index("return_convergence_delta") + 1]
    arguments = [given.get(name, parameters[name].default) for name in names]
    native = row.explainer(image_net()).attribute(*arguments)
    assert isinstance(native, tuple)
    with pytest.raises(RefusedError, match="reveals the noise on the map"):
        hardened_class(row)(image_net(), hardening=NOISY).attribute(*arguments)


def test_no_other_way_to_a_delta_or_a_native_map_is_open():
    explainer, x = hardened_class(IG)(image_net(), hardening=NOISY), images()
    assert explainer.has_convergence_delta() is False
    with pytest.raises(RefusedError):
        explainer.compute_convergence_delta(x, torch.zeros_like(x), x, target=1)
    with pytest.raises(RefusedError):
        explainer.attribute_future(x, target=1)
    with pytest.raises(RefusedError, match="outermost"):
        explainer.attribute.__wrapped__(explainer, x, target=1)
    with pytest.raises(RefusedError, match=r"harden\(NoiseTunnel"):
        NoiseTunnel(explainer).attribute(x, target=1)


def test_a_hardened_explainer_inside_a_hardened_tunnel_is_refused():
    inner = HardenedIG(image_net(), hardening=NOISY)
    for build in (lambda: HardenedSmoothGrad(inner), lambda: harden(NoiseTunnel(inner))):
        with pytest.raises(RefusedError, match="outermost"):
            build()


def test_the_other_aggregate_is_refused():
    with pytest.raises(ConfigurationError, match="nt_type='vargrad', got 'smoothgrad'"):
        HardenedVarGrad(image_net()).attribute(images(), "smoothgrad", target=1)
    with pytest.raises(ConfigurationError, match="takes every nt_type"):
        HardenedSmoothGrad(image_net()).attribute(images(), nt_type="smoothgrad_sq", target=1)


class FunctionalReLU(nn.Module):
    def __init__(self, with_idle_module):
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 3)
        if with_idle_module:
            self.relu = nn.ReLU()

    def forward(self, x):
        return self.second(F.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize(
    ("native", "model"),
    [
        (captum.attr.GuidedBackprop, nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU6(), nn.Linear(8, 3))),
        (captum.attr.Deconvolution, FunctionalReLU(with_idle_module=False)),
    ],
    ids=["GuidedBackprop of ReLU6", "Deconvolution of functions"],
)
def test_a_model_without_relu_modules_is_refused_when_the_explainer_is_made(native, model):
    x = torch.randn(2, 3, 2, 2)
    plain = Saliency(model).attribute(x, target=1, abs=False)
    assert torch.equal(native(model).attribute(x, target=1), plain)  # what would come out silently
    with pytest.raises(RefusedError, match=r"has none:"):
        hardened_class(CATALOG[native.__name__])(model)
    for explainer in (native(model), NoiseTunnel(native(model))):
        with pytest.raises(RefusedError, match="plain gradient"):
            harden(explainer)


def test_a_model_whose_relu_modules_never_run_is_refused_at_the_call():
    explainer = HardenedGuidedBackprop(FunctionalReLU(with_idle_module=True), hardening=NOISY)
    with pytest.raises(RefusedError, match=r"calls none of its own"):
        explainer.attribute(torch.randn(2, 3, 2, 2), target=1)


def test_guided_backprop_inside_another_explainer_is_checked_as_well():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    with pytest.raises(RefusedError, match="GuidedBackprop"):
        harden(GuidedGradCam(model, model[0]))
    with pytest.raises(RefusedError, match="GuidedBackprop"):
        HardenedSmoothGrad(GuidedBackprop(model))


def test_more_tensors_than_inputs_are_refused():
    class Chatty(IntegratedGradients):
        def attribute(self, inputs, target=None):
            return super().attribute(inputs, target=target), torch.ones(len(inputs))

    with pytest.raises(RefusedError, match="expected 1 attributions from the native explainer"):
        harden(Chatty(image_net()), NOISY).attribute(images(), target=1)


def test_what_is_no_captum_explainer_cannot_be_hardened():
    with pytest.raises(ConfigurationTypeError, match="explainer of Captum, Alibi"):
        harden(image_net())
    with pytest.raises(ConfigurationTypeError, match="already hardened"):
        harden(HardenedIG(image_net(), hardening=NOISY))
    with pytest.raises(ConfigurationTypeError, match="must be a Hardening"):
        HardenedIG(image_net(), hardening=0.1)
    with pytest.raises(ConfigurationTypeError, match="a Captum explainer or a model"):
        HardenedSmoothGrad(3)
    with pytest.raises(RefusedError, match="no `inputs`"):
        harden(captum.attr.DataLoaderAttribution(captum.attr.FeatureAblation(image_net())))


def test_inputs_that_are_no_tensors_are_named():
    with pytest.raises(InputError, match="got list"):
        HardenedSaliency(image_net()).attribute([1.0, 2.0], target=1)


def test_deeplift_refuses_an_exported_graph_where_it_would_be_input_times_gradient():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    shapes = ({0: torch.export.Dim("batch")},)
    graph = torch.export.export(model.eval(), (torch.rand(2, 6),), dynamic_shapes=shapes).module()
    assert HardenedDeepLift(model)
    with pytest.raises(RefusedError, match="exported graph"):
        HardenedDeepLift(graph)


OUTSIDE = {"LimeBase", "NoiseTunnel"}
"""What `harden` takes without a row of its own."""


def test_every_explainer_of_captum_has_exactly_one_place():
    """One that is new needs a row in the catalog or, if it cannot be hardened, its reason in REFUSED."""
    kinds = {name: getattr(captum.attr, name) for name in captum.attr.__all__}
    explainers = [name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Attribution)]
    rows = [row.native.__name__ for row in TORCH_ROWS if row.library == "captum" and row.nt_type is None]
    assert sorted(explainers) == sorted([*rows, *REFUSED, *OUTSIDE])


def refused_instance(name):
    """An instance as a user would have it; of explainers of language models, without the language model."""
    kind, model = getattr(captum.attr, name), image_net()
    if "LLM" in name:
        return object.__new__(kind)
    if name == "DataLoaderAttribution":
        return kind(captum.attr.FeatureAblation(model))
    return kind(model, model[3]) if name in ("LayerAttribution", "NeuronAttribution") else kind(model)


def test_what_is_refused_is_refused_with_its_reason():
    for name, reason in REFUSED.items():
        with pytest.raises(RefusedError) as refused:
            harden(refused_instance(name), NOISY)
        assert str(refused.value) == f"{name} cannot be hardened: {reason}"


def test_an_explainer_of_a_row_gets_the_public_class_of_the_row():
    for row in TORCH_ROWS:
        kind = type(harden(row.explainer(net_for(row)), NOISY))
        assert kind.__name__ == "HardenedNoiseTunnel" if row.nt_type else kind is HARDENED[row.name]


def test_a_subclass_of_a_row_gets_a_class_of_its_own_and_keeps_what_it_adds():
    class Doubled(captum.attr.IntegratedGradients):
        """Twice the attributions."""

        def attribute(self, inputs, target=None):
            return 2 * captum.attr.IntegratedGradients.attribute.__wrapped__(self, inputs, target=target)

    model, x = image_net(), images(2)
    plain = run(HardenedIG(model, hardening=Hardening.none()), CATALOG["IG"], x)
    hardened = harden(Doubled(model), Hardening.none())
    assert isinstance(hardened, Doubled)
    torch.testing.assert_close(hardened.attribute(x, target=1), 2 * plain)
