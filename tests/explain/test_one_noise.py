"""One query, one noise: what leaves the native map bit for bit as it is leaves the released map, and what changes the
native map changes the noise. For every method of the catalog, and for attacks that once averaged noise away.
"""

import functools
import inspect
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from captum.attr import LayerFeatureAblation, NeuronGradient, NoiseTunnel
from explain_nets import NOISY, image_net, images, net_for, quiet, tensors
from torch import nn

from safexplain import HardenedGradientShap, HardenedIG, HardenedInputXGradient
from safexplain._digest import model_digest
from safexplain.errors import OpaqueModelWarning, RefusedError
from safexplain.explain import CATALOG, default_layer, harden
from safexplain.explain.hardened import HARDENED, ModelShapes, _rows_of, _selecting_options, probe
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
SHAPE = (3, 8, 8)
FEW = {"n_samples": 4, "nt_samples": 2, "n_steps": 4}


class Reshaped(nn.Module):
    """A model that takes the same numbers in any shape, as all do that begin with Flatten."""

    def __init__(self, net, one_number=False):
        super().__init__()
        self.net, self.one_number = net, one_number

    def forward(self, x, scale=1.0):
        logits = self.net((x * scale).reshape(len(x), *SHAPE))
        return logits[:, 3] if self.one_number else logits


@functools.cache
def model_of(row, seed=0):
    twice = row.name == "LayerFeaturePermutation"  # Captum 0.9.0 chooses the target twice
    net = image_net(seed) if twice else net_for(row, seed)
    return Reshaped(net, twice).eval()


def inputs():
    x = images(2)
    x[:, 0, 0, :3] = torch.tensor([0.0, 2.0, -1.0])
    x[:, :, -1, -2:] = 0
    return x


class Question:
    """Inputs and options of one call, which changes may alter."""

    def __init__(self, row, model=None):
        self.row, self.model, self.x = row, model or model_of(row), inputs()
        self.signature = inspect.signature(row.native.attribute).parameters
        self.options = {name: value for name, value in FEW.items() if name in self.signature} | row.options(self.x)
        if row.target and row.name != "LayerFeaturePermutation":
            self.options["target"] = 1
        if row.of == "neuron":
            self.options["neuron_selector"] = (1, 2, 3)

    def asked(self, explainer):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it
        return tensors(explainer.attribute(self.x, **self.options))

    def native(self):
        return [t.detach() for t in self.asked(self.row.explainer(self.model, self.layer))]

    def released(self, hardening=NOISY):
        layer = () if self.row.of == "input" else (self.layer,)
        return self.asked(HARDENED[self.row.name](self.model, *layer, hardening=hardening))

    @property
    def layer(self):
        return None if self.row.of == "input" else default_layer(self.model)


def in_shape(*shape):
    """The same numbers in another shape."""

    def reshape(value):
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            return value.expand(len(value), *SHAPE).reshape(len(value), *shape)
        return value

    def change(question):
        question.x = reshape(question.x)
        question.options = {name: reshape(value) for name, value in question.options.items()}

    return change


def axes_of_one_with_windows(question):
    question.x = question.x[:, None]
    for name in ("sliding_window_shapes", "strides"):
        question.options[name] = (1, *question.options[name])


def with_option(name, value):
    """The option, or what a function makes of the inputs."""

    def change(question):
        question.options[name] = value(question.x) if callable(value) else value

    return change


def negative_zeros(question):
    question.x = torch.where(question.x == 0, -0.0, question.x)


def other_memory(question):
    question.x = question.x.transpose(2, 3).contiguous().transpose(2, 3)


def truthy(question):
    for name, parameter in question.signature.items():
        if isinstance(parameter.default, bool) and name != "return_convergence_delta":
            question.options[name] = 300 if parameter.default else 0


def defaults_spelled_out(question):
    for name, parameter in question.signature.items():
        if parameter.default is not parameter.empty:
            question.options.setdefault(name, parameter.default)


def groups_in_full(question):
    question.options["feature_mask"] = question.options["feature_mask"].expand(-1, *SHAPE).clone()


def a_set_of_negative_zeros(question):
    question.options["baselines"] = -question.options["baselines"]


CHANGES = {
    "flattened": (in_shape(192), "LayerGradientShap LayerFeatureAblation"),
    "in 1 x 3 x 1 x 8 x 8": (in_shape(1, 3, 1, 8, 8), "LayerDeepLift LayerDeepLiftShap"),
    "in 8 x 24": (in_shape(8, 24), "LayerLRP NeuronGradient"),
    "in 2 x 2 x 2 x 24": (in_shape(2, 2, 2, 24), "NeuronDeepLift NeuronDeepLiftShap"),
    "windows with an axis of size 1": (axes_of_one_with_windows, "Occlusion"),
    "negative target": (with_option("target", -4), "LayerGradCam LayerGradientXActivation"),
    "target in a tuple": (with_option("target", (1,)), "Saliency LayerFeatureAblation"),
    "a tensor of targets": (with_option("target", torch.tensor([1, 1])), "LRP SmoothGrad"),
    "a list of targets": (with_option("target", [1, 1]), "TokenIG Occlusion"),
    "neuron from behind": (
        with_option("neuron_selector", (-3, -2, np.int64(-1))),
        "NeuronConductance NeuronIntegratedGradients",
    ),
    "negative zeros": (negative_zeros, "SmoothGrad VarGrad"),
    "other memory": (other_memory, "TokenIG Occlusion FeatureAblation"),
    "truthy switches": (truthy, "GradCAM GradCAMPlusPlus"),
    "defaults spelled out": (defaults_spelled_out, "FeaturePermutation ShapleyValueSampling ShapleyValues"),
    "more passes": (with_option("perturbations_per_eval", 1), "KernelShap Lime"),
    "baselines 0": (with_option("baselines", 0), "DeepLift InternalInfluence"),
    "baselines -0": (with_option("baselines", lambda x: -torch.zeros_like(x[:1])), "IG NeuronFeatureAblation"),
    "the model's own default": (
        with_option("additional_forward_args", 1.0),
        "LayerFeaturePermutation NeuronDeconvolution",
    ),
    "groups in full": (groups_in_full, "FeatureAblation FeaturePermutation"),
    "a set of negative zeros": (a_set_of_negative_zeros, "DeepLiftShap GradientShap"),
}
"""Another way to ask the same -> methods that it is tried on; each method is tried at least once."""


@functools.cache
def answers_of(row):
    return Question(row).native(), Question(row).released()


def same(one, two):
    return all(torch.equal(a.reshape(-1), b.reshape(-1)) for a, b in zip(one, two, strict=True))


def tried(changes):
    """Rows of the catalog and the changes that are tried on them."""
    return [
        pytest.param(CATALOG[row], change, id=f"{row}, {name}")
        for name, (change, rows) in changes.items()
        for row in rows.split()
    ]


@pytest.mark.parametrize(("row", "change"), tried(CHANGES))
def test_what_leaves_the_native_map_leaves_the_released_one(row, change):
    native, released = answers_of(row)
    question = Question(row)
    change(question)
    assert same(native, question.native())
    assert same(released, question.released())


def correlation(one, two):
    return abs(float(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]))


def noise_of(question):
    return torch.cat([(a - b).flatten(1) for a, b in zip(question.released(), question.native(), strict=True)], 1)


def nudged(question):
    question.x = question.x.clone()
    question.x[:, 1, 3, 3] += 0.5


def unlike_switch(question):
    name = next(n for n in ("abs", "attribute_to_layer_input", "attribute_to_neuron_input") if n in question.signature)
    question.options[name] = not question.signature[name].default


def other_baseline(question):
    question.options["baselines"] = question.options["baselines"] + 0.5


def other_model(question):
    question.model = model_of(question.row, seed=1)


OTHERS = {
    "another pixel": (nudged, "DeepLift DeepLiftShap LRP"),
    "another target": (with_option("target", 2), "KernelShap Lime GradCAM"),
    "another neuron": (
        with_option("neuron_selector", (1, 2, 2)),
        "NeuronDeepLift NeuronDeepLiftShap NeuronGradientShap",
    ),
    "a switch": (unlike_switch, "Saliency GuidedGradCam NeuronGuidedBackprop"),
    "other baselines": (other_baseline, "DeepLiftShap GradientShap LayerGradientShap"),
    "a baseline": (with_option("baselines", 0.5), "IG LayerConductance"),
    "another model": (other_model, "KernelShap Lime GradCAM"),
    "another argument": (
        with_option("additional_forward_args", 1.5),
        "LayerConductance LayerGradCam LayerGradientXActivation",
    ),
}


@pytest.mark.parametrize(("row", "change"), tried(OTHERS))
def test_what_changes_the_native_map_changes_the_noise(row, change):
    """Six standard errors of a correlation: chance alone fails once in 500 million."""
    question = Question(row)
    change(question)
    assert not same(answers_of(row)[0], question.native())
    base = noise_of(Question(row))
    distinct = len(set((base[0] * 1e4).round().tolist())) * len(base)  # one noise for a group of places
    assert correlation(base, noise_of(question)) < 6 / math.sqrt(distinct)


class AnyLength(nn.Module):
    """Mean over places after convolutions: takes any height and width, and sees which they are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.features(x).relu().mean((2, 3)))


def spread(one, two):
    return correlation(one, two) < 6 / math.sqrt(one.numel())


def plain_noise(model, x, target=1):
    native = HardenedInputXGradient(model, hardening=Hardening.none()).attribute(x, target=target)
    return (HardenedInputXGradient(model, hardening=NOISY).attribute(x, target=target) - native).flatten(1)


def test_a_model_that_can_tell_shapes_apart_has_a_noise_for_each():
    """Else the difference of the answers would be that of the native maps, without noise."""
    model, x = AnyLength().eval(), torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    assert spread(plain_noise(model, x), plain_noise(model, x.reshape(2, 1, 4, 16)))


class Sums(nn.Module):
    """A sum over steps, for which zeros count nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.step, self.head = nn.Linear(4, 16, bias=False), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.step(x).tanh().sum(1))


def test_zeros_appended_to_a_sequence_give_no_fresh_noise():
    """They leave the native map as it is, so that averaging over their number would take the noise away."""
    x = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(2))
    one, other = (plain_noise(Sums().eval(), torch.cat([x, torch.zeros(3, k, 4)], 1)) for k in (0, 7))
    assert one.std() > 0.02
    torch.testing.assert_close(other[:, :48], one, atol=1e-5, rtol=0)


class FlatPlaces(nn.Module):
    """Flattens the places and keeps the channels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.head = nn.Conv1d(3, 4, 5), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.mix(x.flatten(2)).relu().mean(2))


def seen_by(model, *shape):
    explainer = CATALOG["Saliency"].explainer(model)
    return probe(lambda: nullcontext(explainer), model_digest(model), "Saliency", (torch.ones(1, *shape),), ())


def test_axes_are_merged_as_far_as_the_model_does_not_notice():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    assert {seen_by(flat, *shape).shapes for shape in [(64,), (1, 8, 8), (2, 32), (4, 1, 4, 4)]} == {((),)}
    places = FlatPlaces().eval()
    assert {seen_by(places, 3, *shape).shapes for shape in [(64,), (8, 8), (8, 1, 8), (4, 16)]} == {((64,),)}
    convolution = AnyLength().eval()
    assert seen_by(convolution, 1, 8, 8).shapes == ((8,),)
    assert seen_by(convolution, 1, 4, 16).shapes == ((16,),)
    assert seen_by(convolution, 1, 4, 16).outputs == (5,)
    assert seen_by(nn.Unflatten(0, (-1, 1))).outputs == (1,)  # an example is one number


@pytest.mark.parametrize(("of_input", "place"), [(True, 5), (False, 3)])
def test_a_neuron_from_behind_has_its_place_in_the_layers_input_or_output(of_input, place):
    net = nn.Sequential(nn.Linear(6, 4))
    options = {"neuron_selector": (-1,), "attribute_to_neuron_input": of_input}
    said = _selecting_options((NeuronGradient(net, net[0]),), options, ModelShapes((), None, ((6,), (4,))))
    assert f"neuron_selector={(place,)}" in said


def digits_net(*head):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), *head).eval()


def digits():
    return torch.rand(8, 64, generator=torch.Generator().manual_seed(5)).mul(16).round().div(16)


TEN = (3, -7, (3,), (-7,), torch.tensor(3), [3] * 8, [(-7,)] * 8, torch.full((8,), 3))
ONE = (None, 0, -1, (0,), (-1,), (), [0] * 8, [(-1,)] * 8)


@pytest.mark.parametrize(("outputs", "targets"), [(10, TEN), (1, ONE)])
def test_an_output_has_one_noise_however_it_is_named(outputs, targets):
    explainer = HardenedIG(digits_net(nn.Linear(32, outputs)), hardening=NOISY)
    answers = [explainer.attribute(digits(), target=target) for target in targets]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_inputs_that_the_noise_cannot_tell_apart_are_explained_alike():
    """In a float64 model, numbers below float32's smallest, and those that float32 rounds to one."""
    model, x = digits_net(nn.Linear(32, 10)).double(), digits().double()
    explainer = HardenedIG(model, hardening=NOISY)
    scale = 1e-60
    assert torch.equal(explainer.attribute(x * scale, target=3), explainer.attribute(x * 0, target=3))
    near = x * (1 + 1e-10)
    assert torch.equal(explainer.attribute(near, target=3), explainer.attribute(x, target=3))
    plain = HardenedIG(model, hardening=Hardening.none())
    assert not torch.equal(plain.attribute(near, target=3), plain.attribute(x, target=3))  # without noise: as natively
    baseline = torch.full_like(x, 1e-60)
    assert torch.equal(explainer.attribute(x, baselines=baseline, target=3), explainer.attribute(x, target=3))


class Opaque:
    """A model in which nothing can be read."""

    def __call__(self, x):
        return x.flatten(1).cumsum(1)


def test_a_function_in_which_no_model_is_found_has_one_noise_too():
    explainer = HARDENED["FeatureAblation"](Opaque(), hardening=NOISY)
    with pytest.warns(OpaqueModelWarning):
        one, again = (explainer.attribute(digits(), target=3) for _ in range(2))
    assert torch.equal(one, again)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):  # the model's own error
        explainer.attribute(digits(), target=3, additional_forward_args=1.0)


def test_baselines_that_are_a_function_are_refused():
    model, x = digits_net(nn.Linear(32, 10)), digits()
    with pytest.raises(RefusedError, match="pass its result"):
        HardenedGradientShap(model, hardening=NOISY).attribute(x, baselines=lambda: torch.randn(4, 64), target=3)


def test_coefficients_of_groups_have_one_noise_whatever_the_groups_are_called():
    name = "KernelShap"
    model, x = image_net(), images(2)
    mask = CATALOG[name].options(x)["feature_mask"]
    swap = torch.randperm(int(mask.max()) + 1, generator=torch.Generator().manual_seed(0))

    def noise(mask):
        found = []
        for hardening in (NOISY, Hardening.none()):
            torch.manual_seed(0)
            options = {"target": 1, "feature_mask": mask, "return_input_shape": False, "n_samples": 40}
            found.append(HARDENED[name](model, hardening=hardening).attribute(x, **options))
        return found[0] - found[1]

    torch.testing.assert_close(noise(swap[mask])[:, swap], noise(mask), atol=1e-5, rtol=0)


def test_a_layer_has_one_noise_whatever_wraps_its_model():
    from captum.attr import LayerActivation

    model, x = image_net(), images(2)
    expected = harden(LayerActivation(model, model[3]), NOISY).attribute(x)
    for wrapped in (nn.DataParallel(model), nn.Sequential(model)):
        assert torch.equal(harden(LayerActivation(wrapped, model[3]), NOISY).attribute(x), expected)


X = images(4)


def seed():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it


def noise(make, x=X, **options):
    seed()
    native = make(Hardening.none()).attribute(x, **options)
    seed()
    return make(NOISY).attribute(x, **options) - native


@pytest.mark.parametrize("name", ["GradientShap", "DeepLiftShap"])
def test_a_set_of_baselines_is_part_of_the_query_whatever_its_order(name):
    model, baselines = image_net(), torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def make(hardening):
        return HARDENED[name](model, hardening=hardening)

    one = noise(make, target=1, baselines=baselines)
    for same in (baselines[[2, 0, 1]], baselines.repeat(2, 1, 1, 1)):
        torch.testing.assert_close(noise(make, target=1, baselines=same), one, atol=1e-5, rtol=0)
    for other in (baselines[:2], baselines[[0, 0, 1, 2]], baselines + 1e-3, X[:3]):
        other_noise = noise(make, target=1, baselines=other)
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other_noise.flatten()]))[0, 1]) < 0.15


def test_baselines_of_a_layer_are_part_of_the_query():
    model = image_net()

    def make(hardening):
        return harden(LayerFeatureAblation(model, model[3]), hardening)

    mask = torch.arange(64).view(1, 4, 4, 4)
    zero, one = (noise(make, target=1, layer_mask=mask, layer_baselines=b) for b in (0.0, 1.0))
    assert abs(torch.corrcoef(torch.stack([zero.flatten(), one.flatten()]))[0, 1]) < 0.25
    ones = noise(make, target=1, layer_mask=mask, layer_baselines=torch.ones(1, 4, 4, 4))
    torch.testing.assert_close(ones, one, atol=1e-5, rtol=0)


def test_every_aggregate_of_a_tunnel_has_its_own_noise():
    model, noises = image_net(), []
    for nt_type in ("smoothgrad", "smoothgrad_sq", "vargrad"):

        def make(hardening):
            return harden(NoiseTunnel(CATALOG["Saliency"].explainer(model)), hardening)

        noises.append(noise(make, target=1, nt_samples=2, nt_type=nt_type).flatten())
    assert torch.corrcoef(torch.stack(noises)).fill_diagonal_(0).abs().max() < 0.15


def test_arguments_in_tables_and_lists_are_part_of_the_query():
    net = image_net()

    def scaled(x, options):
        return net(x * options["scale"] * sum(options["more"]))

    def make(hardening):
        return HARDENED["InputXGradient"](scaled, hardening=hardening)

    asked = {"scale": 1.0, "more": [0.5, 0.5]}
    one = noise(make, target=1, additional_forward_args=(asked,))
    again = noise(make, target=1, additional_forward_args=({"more": [0.5, 0.5], "scale": 1.0},))
    torch.testing.assert_close(again, one, atol=1e-5, rtol=0)
    for other in (asked | {"scale": 1.5}, {"scale": 1.0, "more": [0.5, 1.0]}):
        unlike = noise(make, target=1, additional_forward_args=(other,))
        assert abs(torch.corrcoef(torch.stack([one.flatten(), unlike.flatten()]))[0, 1]) < 0.15
    assert _rows_of(({"b": "word", "a": None},), 4)[1] == ["{'a': None, 'b': 'word'}"]
    each, whole = torch.arange(6.0).reshape(3, 2), torch.arange(2.0)
    rows, words = _rows_of((each, whole, 5), 3)
    assert torch.equal(rows[0], each)
    assert torch.equal(rows[1], whole.expand(3, 2))
    assert (rows[2].tolist(), words) == ([5, 5, 5], ["()", "()", "()"])
