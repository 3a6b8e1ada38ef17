"""The catalog tells the truth: each fact in a row is compared with what the native class does."""

import inspect
import pickle
import re
import subprocess
import sys
import warnings

import captum.attr
import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, LayerGradCam, NoiseTunnel, Saliency
from explain_nets import TORCH_ROWS, image_net, images, net_for, quiet, target_for, tensors, torch_rows
from torch import nn

import safexplain.captum
from safexplain import superpixels
from safexplain.errors import ConfigurationError
from safexplain.explain import CATALOG, default_layer, find_row
from safexplain.explain.catalog import EXTRAS, FAMILIES, LICENCES
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import HARDENED

pytestmark = quiet
FEW = {"n_samples": 4, "nt_samples": 2, "n_steps": 4}


def native(row, model=None, x=None, seed=0, **more):
    """The native answer of a row, with few samples and the given seed, as a tuple."""
    model, x = net_for(row) if model is None else model, images() if x is None else x
    explainer = row.explainer(model)
    taken = inspect.signature(type(explainer).attribute).parameters
    options = {name: value for name, value in FEW.items() if name in taken} | target_for(row)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - captum's GradientShap draws from it
    return tensors(explainer.attribute(x, **{**options, **row.options(x), **more}))


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_every_row_says_what_the_method_is_and_where_it_comes_from():
    for row in CATALOG.values():
        assert row.family in FAMILIES, row.name
        assert row.licence == LICENCES[row.library]
        assert len(row.citation) > 10
        assert row.summary.endswith(".")
        assert row.summary[0].isupper()
        assert row.of in ("input", "layer", "neuron")
        assert CATALOG[row.name] is row
        assert row.in_base == (row.library not in EXTRAS)


def test_search_spaces_list_values_or_give_a_range():
    for row in CATALOG.values():
        for name, values in {**row.search_space}.items():
            assert name.isidentifier()
            if isinstance(values, list):
                low, high = values
                assert low < high
            else:
                assert isinstance(values, tuple)
                assert len(set(values)) == len(values) > 1


def test_every_row_of_the_base_install_has_its_hardened_class():
    for row in TORCH_ROWS:
        kind = HARDENED[row.name]
        assert kind.__name__ == row.hardened_name
        assert issubclass(kind, Hardened)
        assert issubclass(kind, row.native)
        assert kind._row is row
        assert pickle.loads(pickle.dumps(kind)) is kind


def test_captums_own_names_are_generated_from_the_catalog():
    of_captum = [row for row in TORCH_ROWS if row.library == "captum" and not row.nt_type]
    assert safexplain.captum.__all__ == dir(safexplain.captum) == sorted(row.source.__name__ for row in of_captum)
    for row in of_captum:
        kind = getattr(safexplain.captum, row.source.__name__)
        assert kind is HARDENED[row.name]
        assert getattr(captum.attr, row.source.__name__) in kind.__mro__
        assert f"safexplain.captum.{row.source.__name__}" in kind.__doc__
    with pytest.raises(AttributeError, match="NoiseTunnel is not hardened"):
        safexplain.captum.NoiseTunnel  # noqa: B018


@pytest.mark.parametrize("library", LICENCES)
def test_options_to_search_are_parameters_of_the_native_class(library):
    known_to_all = set(inspect.signature(superpixels).parameters)
    for row in (row for row in CATALOG.values() if row.library == library and row.search_space):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what the library imports
                native = row.native
        except ImportError as error:
            pytest.skip(f"{row.library} cannot be imported: {error}")
        functions = (native.__init__, getattr(native, row.entry))
        known = known_to_all.union(*(inspect.signature(f).parameters for f in functions))
        assert set(row.search_space) <= known, row.name


def test_the_ranges_are_those_of_deepleaks_table_viii():
    space = {name: dict(row.search_space) for name, row in CATALOG.items()}
    rules = ("gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid")
    assert set(space["IG"]["method"]) == set(rules)
    assert set(space["IG"]["multiply_by_inputs"]) == {True, False}
    for name in ("SmoothGrad", "VarGrad"):
        assert space[name]["stdevs"] == [0.01, 2.0]
        assert set(space[name]["draw_baseline_from_distrib"]) == {True, False}
    for name in ("GradCAM", "GradCAMPlusPlus", "GuidedGradCam"):
        assert set(space[name]["interpolate_mode"]) == {"nearest", "area", "bilinear", "bicubic"}
        assert set(space[name]["attribute_to_layer_input"]) == {True, False}
    assert space["Occlusion"]["sliding_window_shapes"] == ((3, 1, 1), (3, 32, 32))
    for name in ("KernelShap", "Lime"):
        assert (space[name]["n_segments"], space[name]["compactness"]) == ([10, 100], [1.0, 50.0])
    assert {"threshold", "tau", "delta", "batch_size"} <= set(space["Anchors"])
    assert space["ProtoDash"]["sigma"] == [0.1, 3.0]
    assert set(space["ProtoDash"]["kernelType"]) == {"other", "Gaussian"}


@torch_rows
def test_a_row_is_stochastic_if_and_only_if_two_seeds_give_two_answers(row):
    assert same(native(row, seed=0), native(row, seed=0))
    assert same(native(row, seed=0), native(row, seed=1)) is not row.stochastic


@torch_rows
def test_a_row_has_hooks_if_and_only_if_the_method_registers_some(row, monkeypatch):
    registered = []
    for name in dir(nn.Module):
        if name.startswith("register_") and name.endswith("_hook") and "state_dict" not in name:
            plain = getattr(nn.Module, name)

            def spy(module, *args, _plain=plain, **kwargs):
                registered.append(module)
                return _plain(module, *args, **kwargs)

            monkeypatch.setattr(nn.Module, name, spy)
    native(row)
    assert bool(registered) is row.hooks


@torch_rows
def test_a_row_writes_if_and_only_if_the_method_writes_to_parameters(row):
    model = net_for(row)
    before = [(p.data_ptr(), p._version) for p in model.parameters()]
    native(row, model)
    assert ([(p.data_ptr(), p._version) for p in model.parameters()] != before) is row.writes
    assert not (row.writes and not row.hooks)


@torch_rows
def test_a_row_has_a_delta_if_and_only_if_the_method_returns_one(row):
    def ask():
        if row.nt_type:  # as its inner method
            tunnel = NoiseTunnel(IntegratedGradients(image_net()))
            return tunnel.attribute(images(), target=1, **row.options(images()), return_convergence_delta=True)
        return native(row, return_convergence_delta=True)

    if row.delta:
        found, delta = ask()
        assert delta.dim() == 1
        assert found.dim() > 1
    elif "kwargs" in inspect.signature(row.native.attribute).parameters:  # takes any argument and does not look at it
        assert same(ask(), native(row))
    else:
        with pytest.raises(TypeError, match="return_convergence_delta"):
            ask()


@torch_rows
def test_a_row_mixes_the_batch_if_and_only_if_other_examples_change_an_answer(row):
    x, other = images(), images(seed=8)
    other[0] = x[0]
    changed = [
        not torch.allclose(a[0], b[0], atol=1e-5) for a, b in zip(native(row, x=x), native(row, x=other), strict=True)
    ]
    assert all(changed) is row.mixes_batch
    assert any(changed) is row.mixes_batch


@torch_rows
def test_a_row_wants_leaf_inputs_if_and_only_if_captum_warns_about_others(row):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        native(row)
    assert any("did not already require gradients" in str(w.message) for w in heard) is row.leaf_inputs


@torch_rows
def test_a_row_needs_relus_if_and_only_if_it_is_the_plain_gradient_without(row):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5))
    if row.name in ("LRP", "LayerLRP"):
        pytest.skip("LRP has no rule for nn.GELU and says so")
    if row.name == "TokenIG":
        pytest.skip("it explains models of texts")
    x = images()
    if row.of == "neuron":
        z = x.clone().requires_grad_()
        plain = (torch.autograd.grad(model[:3](z).sum(), z)[0],)
    else:
        plain = (Saliency(model).attribute(x, target=1, abs=False),)
    if row.name == "GuidedGradCam":  # is that times a map
        cam = LayerGradCam(model, default_layer(model)).attribute(x, target=1, relu_attributions=True)
        plain = (plain[0] * LayerGradCam.interpolate(cam, (8, 8)),)
    answer = native(row, model, x, **({"abs": False} if row.name == "Saliency" else {}))
    is_gradient = answer[0].shape == plain[0].shape and torch.allclose(answer[0], plain[0], atol=1e-6)
    assert is_gradient is (row.needs_relu or row.name in ("Saliency", "NeuronGradient"))


@torch_rows
def test_attributions_are_of_what_the_row_says(row):
    x, model = images(), net_for(row)
    (found,) = native(row, model, x)
    assert len(found) == len(x)
    if row.of == "layer":
        activation = []
        handle = default_layer(model).register_forward_hook(lambda *_: activation.append(_[2]))
        model(x)
        handle.remove()
        cam = "Cam" in row.name or "CAM" in row.name
        expected = activation[0][:, :1].shape if cam and row.name != "GuidedGradCam" else activation[0].shape
        assert found.shape == (x.shape if row.name == "GuidedGradCam" else expected)
    else:
        assert found.shape == x.shape


def test_a_row_takes_a_target_if_and_only_if_its_entry_does():
    for row in TORCH_ROWS:
        signature = inspect.signature(row.native.attribute).parameters
        assert ("target" in signature or row.nt_type is not None) is row.target


def test_captum_chooses_the_target_of_layer_feature_permutation_twice():
    """Why the tests give this method a model with one output: should this fail, `net_for` needs no special case."""
    model, x, row = image_net(), images(), CATALOG["LayerFeaturePermutation"]
    with pytest.raises(AssertionError, match="Cannot choose target column"):
        row.explainer(model).attribute(x, target=1)


def test_without_the_arguments_that_a_row_supplies_the_method_cannot_be_called():
    x = images()
    for row in TORCH_ROWS:
        needed = row.options(x)
        required = [
            name
            for name, parameter in inspect.signature(row.native.attribute).parameters.items()
            if parameter.default is parameter.empty and name not in ("self", "inputs", "kwargs")
        ]
        assert set(required) <= set(needed), row.name


@pytest.mark.parametrize(
    ("name", "spellings"),
    {
        "IG": ("ig", "IG", "integrated gradients", "IntegratedGradients", "HardenedIG", "integrated_gradients"),
        "GradCAM": ("gradcam", "Grad-CAM", "grad_cam", "HardenedGradCAM", "GRADCAM"),
        "GradCAMPlusPlus": ("gradcam++", "Grad-CAM++", "gradcam_plus_plus", "GradCAMPlusPlus", "HardenedGradCAM++"),
        "LayerGradCam": ("layer_gradcam", "LayerGradCam", "layer grad-cam", "HardenedLayerGradCam"),
        "GuidedGradCam": ("guided_gradcam", "GuidedGradCam", "guided-grad-cam"),
        "KernelShap": ("kernel_shap", "KernelSHAP", "kernelshap"),
        "SmoothGrad": ("smoothgrad", "SMOOTHGRAD", "smooth_grad"),
        "ProtoDash": ("protodash", "ProtoDash", "HardenedProtoDash"),
        "Anchors": ("anchors", "HardenedAnchors"),
        "LayerLRP": ("layer lrp", "layer-lrp"),
    }.items(),
)
def test_a_method_is_found_under_its_usual_spellings(name, spellings):
    for spelling in spellings:
        assert find_row(spelling) is CATALOG[name]


def test_every_row_is_found_by_its_names():
    for row in CATALOG.values():
        assert find_row(row.name) is row
        assert find_row(row.hardened_name) is row
        assert find_row(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", row.name).lower()) is row
        if row.in_base and row.nt_type is None:
            assert find_row(row.native.__name__) is row


@pytest.mark.parametrize("name", ["", "tcav", "noise tunnel", "hardened", "gradcam pro"])
def test_other_names_are_answered_with_the_list(name):
    with pytest.raises(ConfigurationError, match=r"expected one of IG, Saliency.*got '"):
        find_row(name)


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("alibi", "aix360", "lime", "shap"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from safexplain.explain import CATALOG
for row in CATALOG.values():
    try:
        row.native
    except Exception as error:
        print(row.name, row.in_base, type(error).__name__, error)
"""


def test_rows_of_extras_that_are_missing_name_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    extras = [row for row in CATALOG.values() if row.library in EXTRAS]
    assert len(said) == len(extras) == 8
    for line, row in zip(said, extras, strict=True):
        assert line.startswith(f"{row.name} False MissingExtraError")
        assert f"safexplain[{EXTRAS[row.library]}]" in line
