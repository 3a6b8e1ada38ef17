"""The catalog tells the truth: each fact in a row is compared with what the native class does."""

import inspect
import pickle
import re
import warnings

import captum.attr
import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, LayerGradCam, NoiseTunnel, Saliency
from explain_nets import TORCH_ROWS, images, net_for, quiet, target_for, tensors, torch_rows
from torch import nn

import safexplain.captum
from safexplain import superpixels
from safexplain.errors import ConfigurationError
from safexplain.explain import CATALOG, default_layer, find_row, grid_segments
from safexplain.explain.catalog import EXTRAS, FAMILIES, LICENCES
from safexplain.explain.hardened import HARDENED, Hardened

pytestmark = quiet
FEW = {"n_samples": 4, "nt_samples": 2, "n_steps": 4}
RELU_ROWS = [row for row in TORCH_ROWS if row.needs_relu or row.name in ("IG", "NeuronIntegratedGradients")]


def native(row, model, x, seed=0, **more):
    """The native answer of a row, with few samples and the given seed, as a tuple."""
    explainer = row.explainer(model)
    taken = inspect.signature(type(explainer).attribute).parameters
    options = {name: value for name, value in FEW.items() if name in taken} | target_for(row)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - captum's GradientShap draws from it
    return tensors(explainer.attribute(x, **{**options, **row.options(x), **more}))


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def hooks_registered(monkeypatch):
    """A list that grows with each hook on a module."""
    registered = []
    for name in dir(nn.Module):
        if name.startswith("register_") and name.endswith("_hook") and "state_dict" not in name:
            plain = getattr(nn.Module, name)

            def spy(module, *args, _plain=plain, **kwargs):
                registered.append(module)
                return _plain(module, *args, **kwargs)

            monkeypatch.setattr(nn.Module, name, spy)
    return registered


def returns_delta(row, model, x):
    """Whether a convergence delta comes where one is asked for."""
    if row.nt_type:  # as its inner method
        tunnel = NoiseTunnel(IntegratedGradients(model))
        found, delta = tunnel.attribute(x, target=1, **row.options(x), return_convergence_delta=True)
        return delta.dim() == 1 and found.dim() > 1
    try:
        found = native(row, model, x, return_convergence_delta=True)
    except TypeError:
        return False
    return len(found) == 2 and found[1].dim() == 1  # `kwargs` take any argument and do not look at it


def expected_shape(row, model, x):
    """Of the input, or of the layer's output, of which maps of classes are the mean over channels."""
    if row.of != "layer" or row.name == "GuidedGradCam":
        return x.shape
    outputs = []
    handle = default_layer(model).register_forward_hook(lambda *hook: outputs.append(hook[2]))
    model(x)
    handle.remove()
    return outputs[0][:, :1].shape if row.name in ("GradCAM", "GradCAMPlusPlus", "LayerGradCam") else outputs[0].shape


@torch_rows
def test_a_row_says_what_the_native_method_does(row, monkeypatch):
    model, x, other = net_for(row), images(), images(seed=8)
    other[0] = x[0]
    before, registered = [(p.data_ptr(), p._version) for p in model.parameters()], hooks_registered(monkeypatch)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        first = native(row, model, x)
    found = {
        "hooks": bool(registered),
        "writes": [(p.data_ptr(), p._version) for p in model.parameters()] != before,
        "leaf_inputs": any("did not already require gradients" in str(w.message) for w in heard),
        "delta": returns_delta(row, net_for(row), x),
        "stochastic": not same(first, native(row, net_for(row), x, seed=1)),
        "mixes_batch": not torch.allclose(native(row, net_for(row), other)[0][0], first[0][0], atol=1e-5),
    }
    assert found == {name: getattr(row, name) for name in found}
    assert same(first, native(row, net_for(row), x))
    assert first[0].shape == expected_shape(row, net_for(row), x)


@pytest.mark.parametrize("row", RELU_ROWS, ids=lambda row: row.name)
def test_a_row_needs_relus_if_and_only_if_it_is_the_plain_gradient_without(row):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5))
    x = images()
    plain = Saliency(model).attribute(x, target=1, abs=False)
    if row.of == "neuron":
        z = x.clone().requires_grad_()
        (plain,) = torch.autograd.grad(model[:3](z).sum(), z)
    if row.name == "GuidedGradCam":  # is that times a map
        cam = LayerGradCam(model, default_layer(model)).attribute(x, target=1, relu_attributions=True)
        plain = plain * LayerGradCam.interpolate(cam, (8, 8))
    (answer,) = native(row, model, x)
    assert torch.allclose(answer, plain, atol=1e-6) is row.needs_relu


def test_every_row_says_what_the_method_is_where_it_comes_from_and_is_found_by_its_names():
    for row in CATALOG.values():
        assert row.family in FAMILIES, row.name
        assert row.licence == LICENCES[row.library]
        assert len(row.citation) > 10
        assert row.summary.endswith(".")
        assert row.of in ("input", "layer", "neuron")
        assert row.in_base == (row.library not in EXTRAS)
        names = [row.name, row.hardened_name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", row.name).lower()]
        names += [row.native.__name__] if row.in_base and row.nt_type is None else []
        assert [find_row(name) for name in names] == [row] * len(names)


def test_a_method_is_found_under_its_usual_spellings_and_another_name_is_answered_with_the_list():
    spellings = {
        "IG": ("ig", "integrated gradients", "integrated_gradients"),
        "GradCAM": ("Grad-CAM", "grad_cam", "GRADCAM"),
        "GradCAMPlusPlus": ("gradcam++", "Grad-CAM++", "gradcam_plus_plus", "HardenedGradCAM++"),
        "LayerGradCam": ("layer grad-cam", "HardenedLayerGradCam"),
        "KernelShap": ("KernelSHAP",),
    }
    assert {name: {find_row(s).name for s in each} for name, each in spellings.items()} == {n: {n} for n in spellings}
    for name in ("", "tcav", "hardened", "gradcam pro"):
        with pytest.raises(ConfigurationError, match=r"expected one of IG, Saliency.*got '"):
            find_row(name)


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


def test_the_ranges_are_those_of_deepleaks_table_viii_and_counts_of_samples():
    space = {name: dict(row.search_space) for name, row in CATALOG.items()}
    rules = ("gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid")
    steps = {"n_steps": (10, 25, 50, 100), "method": rules}
    few, both, unit = (5, 10, 25, 50), (True, False), [0.0, 1.0]
    superpixels = {"n_segments": [10, 100], "compactness": [1.0, 50.0]}
    windows, modes = ((3, 1, 1), (3, 32, 32)), ("nearest", "area", "bilinear", "bicubic")
    tunnel = {"nt_samples": few, "stdevs": [0.01, 2.0], "draw_baseline_from_distrib": (False, True)}
    expected = {
        "IG": {**steps, "multiply_by_inputs": both},
        "SmoothGrad": tunnel,
        "VarGrad": tunnel,
        "GradientShap": {"n_samples": few, "stdevs": unit, "multiply_by_inputs": both},
        "Saliency": {"abs": both},
        "DeepLift": {"eps": [1e-10, 1e-4], "multiply_by_inputs": both},
        "ShapleyValueSampling": {**superpixels, "n_samples": few},
        "Occlusion": {"sliding_window_shapes": windows, "strides": windows},
        "KernelShap": {**superpixels, "n_samples": (50, 100, 200, 500)},
        "Lime": {**superpixels, "n_samples": (50, 100, 200, 500)},
        "GradCAM": {"interpolate_mode": modes, "attribute_to_layer_input": (False, True)},
        "ProtoDash": {"sigma": [0.1, 3.0], "kernelType": ("other", "Gaussian")},
        "LimeTabular": {"num_samples": (500, 1000, 5000)},
        "Anchors": {
            **dict.fromkeys(("threshold", "tau", "delta"), unit),
            "batch_size": (50, 100, 200),
            "coverage_samples": (1000, 10000),
            "beam_size": (1, 2, 4),
        },
    }
    assert {name: space[name] for name in expected} == expected


def test_the_plain_choice_of_arguments_has_these_values():
    image, table, signal = torch.ones(2, 3, 32, 16), torch.ones(2, 7), torch.ones(2, 5, 40)
    windows = CATALOG["Occlusion"].options
    assert windows(image) == {"sliding_window_shapes": (3, 8, 4), "strides": (3, 4, 2)}
    assert windows(signal) == {"sliding_window_shapes": (5, 10), "strides": (5, 5)}
    assert windows(table) == {"sliding_window_shapes": (1,), "strides": (1,)}
    squares, columns = CATALOG["KernelShap"].options(image), CATALOG["KernelShap"].options(table)
    assert torch.equal(squares["feature_mask"], grid_segments(image, 4))
    assert squares.keys() == {"feature_mask"}
    assert (columns["feature_mask"].tolist(), columns["perturbations_per_eval"]) == ([[0, 1, 2, 3, 4, 5, 6]], 16)
    few = CATALOG["ShapleyValues"].options
    assert few(table)["feature_mask"].tolist() == [[0, 0, 1, 1, 2, 2, 3]]
    assert few(torch.ones(2, 3))["feature_mask"].tolist() == [[0, 1, 2]]
    baselines = CATALOG["GradientShap"].options(image)["baselines"]
    assert (baselines.shape, baselines.any().item()) == ((2, 3, 32, 16), False)
