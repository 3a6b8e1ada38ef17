"""What hardened explainers refuse, and that the refusal says what to do instead."""

import inspect

import captum.attr
import pytest
import torch
from captum.attr import GuidedBackprop, GuidedGradCam, IntegratedGradients, NoiseTunnel, Saliency
from explain_nets import NOISY, ROWS, hardened_class, image_net, images, quiet, rows, run
from torch import nn
from torch.nn import functional as F

from safexplain import (
    HardenedDeconvolution,
    HardenedDeepLift,
    HardenedGuidedBackprop,
    HardenedIG,
    HardenedSaliency,
    HardenedSmoothGrad,
    HardenedVarGrad,
)
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain import CATALOG, harden

pytestmark = quiet
DELTA_ROWS = [row for row in ROWS if row.delta]


@pytest.mark.parametrize("row", DELTA_ROWS, ids=lambda row: row.name)
def test_a_convergence_delta_is_refused_by_keyword(row):
    explainer = hardened_class(row)(image_net(), hardening=NOISY)
    for yes in (True, 1, "yes", torch.tensor(True)):
        with pytest.raises(RefusedError, match="convergence delta"):
            run(explainer, row, images(), return_convergence_delta=yes)


@pytest.mark.parametrize("row", DELTA_ROWS, ids=lambda row: row.name)
def test_a_convergence_delta_is_refused_by_position(row):
    parameters = inspect.signature(row.native.attribute).parameters
    if "return_convergence_delta" not in parameters:
        pytest.skip("travels in **kwargs only")
    x = images()
    given = {"inputs": x, "target": 1, **row.options(x), "return_convergence_delta": True}
    names = list(parameters)[1 : list(parameters).index("return_convergence_delta") + 1]
    arguments = [given.get(name, parameters[name].default) for name in names]
    native = row.explainer(image_net()).attribute(*arguments)
    assert isinstance(native, tuple)
    with pytest.raises(RefusedError, match="f\\(baseline\\)"):
        hardened_class(row)(image_net(), hardening=NOISY).attribute(*arguments)


@pytest.mark.parametrize("row", [row for row in DELTA_ROWS if not row.nt_type], ids=lambda row: row.name)
def test_saying_that_no_delta_is_wanted_is_fine(row):
    explainer = hardened_class(row)(image_net(), hardening=NOISY)
    assert isinstance(run(explainer, row, images(), return_convergence_delta=False), torch.Tensor)


@rows
def test_no_other_way_to_a_delta_or_a_native_map_is_open(row):
    explainer, x = hardened_class(row)(image_net(), hardening=NOISY), images()
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


WITHOUT_RELU = {
    "ReLU6": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU6(), nn.Linear(8, 3)),
    "GELU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3)),
    "functional": lambda: FunctionalReLU(with_idle_module=False),
}


@pytest.mark.parametrize("kind", WITHOUT_RELU)
@pytest.mark.parametrize("native", [captum.attr.GuidedBackprop, captum.attr.Deconvolution])
def test_a_model_without_relu_modules_is_refused_when_the_explainer_is_made(kind, native):
    model, x = WITHOUT_RELU[kind](), torch.randn(2, 3, 2, 2)
    plain = Saliency(model).attribute(x, target=1, abs=False)
    assert torch.equal(native(model).attribute(x, target=1), plain)  # what would come out silently
    with pytest.raises(RefusedError, match=r"has no nn\.ReLU module"):
        hardened_class(CATALOG[native.__name__])(model)
    for explainer in (native(model), NoiseTunnel(native(model))):
        with pytest.raises(RefusedError, match="plain gradient"):
            harden(explainer)


@pytest.mark.parametrize("kind", [HardenedGuidedBackprop, HardenedDeconvolution])
def test_a_model_whose_relu_modules_never_run_is_refused_at_the_call(kind):
    explainer = kind(FunctionalReLU(with_idle_module=True), hardening=NOISY)
    with pytest.raises(RefusedError, match=r"called none of its nn\.ReLU modules"):
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

    with pytest.raises(RefusedError, match="where 1 attributions were expected"):
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


def test_a_wrong_argument_fails_as_natively():
    with pytest.raises(TypeError, match="n_step"):
        HardenedIG(image_net()).attribute(images(), target=1, n_step=3)


def test_deeplift_refuses_an_exported_graph_where_it_would_be_input_times_gradient() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    shapes = ({0: torch.export.Dim("batch")},)
    graph = torch.export.export(model.eval(), (torch.rand(2, 6),), dynamic_shapes=shapes).module()
    assert HardenedDeepLift(model)
    with pytest.raises(RefusedError, match="exported graph"):
        HardenedDeepLift(graph)


def test_baselines_of_a_wrong_shape_get_the_native_error() -> None:
    explainer = HardenedIG(nn.Linear(6, 3), hardening=NOISY)
    with pytest.raises(AssertionError, match=r"[Bb]aseline"):
        explainer.attribute(torch.rand(5, 6), torch.rand(4, 6), target=0)
