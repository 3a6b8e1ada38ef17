"""The explanation methods as rows of a table, from which `hardened` makes classes. A new explainer is one more row, its
sentence in `SUMMARIES` and its source in `PAPERS`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from captum import attr
from torch import Tensor, nn

from safexplain.errors import ConfigurationError, did_you_mean
from safexplain.explain.captum import GradCAM, GradCAMPlusPlus, Gradient, TokenIG, default_layer, whole_layer
from safexplain.explain.feature_groups import grid_segments, superpixels, words
from safexplain.explain.libraries import load

SearchSpace = Mapping[str, tuple[Any, ...] | list[Any]]
"""Parameter -> values to try: a tuple lists them, a pair in a list is a range."""

FAMILIES = ("gradient", "perturbation", "representation", "approximation")
"""DeepLeak's families of methods (arXiv 2601.03429, section II-A)."""

LICENCES: Mapping[str, str] = {
    "captum": "BSD-3-Clause",
    "safexplain": "Apache-2.0",
    "alibi": "Apache-2.0 up to 0.9.4, Business Source Licence 1.1 from 0.9.5",
    "aix360": "Apache-2.0",
    "lime": "BSD-2-Clause",
    "shap": "MIT",
}

ENTRIES = {"alibi": "explain", "aix360": "explain", "lime": "explain_instance", "shap": "shap_values"}
"""Library -> the native method that explains rows of a table; the others have `attribute`, which returns maps."""

EXTRAS = {"alibi": "alibi", "aix360": "aix360", "lime": "aix360", "shap": "shap"}
"""Library -> the extra that installs it; the others come with the base install."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Reading a signature takes as long as a small explanation."""
    return frozenset(inspect.signature(function).parameters)


@dataclass(frozen=True)
class Row:
    """One explanation method.

    Args:
        name: key in `CATALOG`; the hardened class is called Hardened + name.
        source: the native class, or its path if the library is an extra ("alibi.explainers:AnchorTabular").
        family: one of `FAMILIES`; "other" for a class outside the catalog.
        citation: where the method was published.
        summary: one sentence.
        of: "input", "layer" or "neuron": what the attributions are of, or for.
        hooks: it registers hooks on the model's modules, so it must run on a private copy.
        writes: it writes to the model's parameters, so the copy must have its own.
        needs_relu: it changes nn.ReLU modules, and without any it silently is the plain gradient.
        leaf_inputs: Captum needs inputs that require gradients, and warns about others.
        stochastic: it draws from torch's global generator (some methods also from NumPy's), as natively.
        mixes_batch: an example's answer depends on the others in its batch.
        nt_type: for a NoiseTunnel, the aggregate that the class stands for.
        search_space: options that do not change the question, with values to try, from DeepLeak's Table VIII (arXiv
            2601.03429); `n_segments` and `compactness` are of `safexplain.superpixels`.
        needs: (inputs) -> required arguments, a default choice.
        derive: (inputs, options) -> arguments made of both, as a `feature_mask`; the options are the same for all
            inputs.
    """

    name: str
    source: Any
    family: str
    citation: str
    summary: str
    of: str = "input"
    hooks: bool = False
    writes: bool = False
    needs_relu: bool = False
    leaf_inputs: bool = False
    stochastic: bool = False
    mixes_batch: bool = False
    nt_type: str | None = None
    search_space: SearchSpace = field(default_factory=lambda: _NOTHING, hash=False)
    needs: Callable[[Tensor], dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)
    derive: Callable[..., dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)

    @property
    def native(self) -> Any:
        """The native class; MissingExtraError: its library is not installed."""
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        return getattr(load(module), name)

    @property
    def library(self) -> str:
        """The native library."""
        module = self.source.partition(":")[0] if isinstance(self.source, str) else self.source.__module__
        return str(module.partition(".")[0])

    @property
    def entry(self) -> str:
        """Name of the native method that explains."""
        return ENTRIES.get(self.library, "attribute")

    @property
    def target(self) -> bool:
        """Whether the entry (for tables, the hardened one) takes the explained output as `target`."""
        return not self.in_base or self._entry_options("target")

    @property
    def delta(self) -> bool:
        """Whether the native class can return a convergence delta, which the hardened class refuses."""
        return self.in_base and self._entry_options("return_convergence_delta")

    def _entry_options(self, name: str) -> bool:
        """Whether `attribute` has this parameter; a NoiseTunnel passes parameters on to its explainer."""
        return self.nt_type is not None or name in _parameters(self.native.attribute)

    @property
    def derives(self) -> frozenset[str]:
        """Names of the options that `derive` takes."""
        return frozenset(list(inspect.signature(self.derive).parameters)[1:])

    @property
    def in_base(self) -> bool:
        """Whether the base install includes it, and so `native`."""
        return self.library not in EXTRAS

    @property
    def hardened_name(self) -> str:
        """Name of the hardened class."""
        return f"Hardened{self.name}"

    @property
    def licence(self) -> str:
        """Licence of the native implementation."""
        return LICENCES[self.library]

    def explainer(self, forward_func: Callable[..., Any], layer: nn.Module | None = None) -> Any:
        """The native explainer of a function; a NoiseTunnel gets its signed gradient (`Gradient`). Methods of layers
        and neurons get `layer`, or `default_layer(forward_func)`."""
        if self.of == "input":
            return self.native(Gradient(forward_func) if self.nt_type else forward_func)
        return self.native(forward_func, default_layer(forward_func) if layer is None else layer)

    def options(self, inputs: Tensor, chosen: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Arguments of the native entry for inputs (n, ...), beside these and the target. `chosen` overrides defaults;
        those in `derives` are turned into others, as `n_segments` into the `feature_mask` of `superpixels`."""
        options = self.needs(inputs) | ({"nt_type": self.nt_type} if self.nt_type else {})
        derived = {name: chosen[name] for name in self.derives & chosen.keys()}
        options |= self.derive(inputs, **derived) if derived else {}
        return options | {name: value for name, value in chosen.items() if name not in derived}


# Defaults of required arguments, from the inputs alone.


def _zero_baselines(x: Tensor) -> dict[str, Any]:
    """A set of two, to average over or to draw from."""
    return {"baselines": torch.zeros_like(x[:1]).repeat(2, *[1] * (x.dim() - 1))}


def _windows(x: Tensor) -> dict[str, Any]:
    """Windows of a quarter of each axis at steps of an eighth; the first of several axes is not divided."""
    channels, axes = (x.shape[1:2], x.shape[2:]) if x.dim() > 2 else ((), x.shape[1:])
    shares = {"sliding_window_shapes": 4, "strides": 8}
    return {name: (*channels, *(max(1, n // share) for n in axes)) for name, share in shares.items()}


def _groups(x: Tensor) -> dict[str, Any]:
    """Features in groups: 4 x 4 squares of an image, or columns of a table, 16 in one call of the model."""
    if x.dim() > 2:
        return {"feature_mask": grid_segments(x, 4)}
    return {"feature_mask": torch.arange(x.shape[1], device=x.device)[None], "perturbations_per_eval": 16}


def _few_groups(x: Tensor) -> dict[str, Any]:
    """Four groups of neighbouring positions: the number of orders is the factorial of the number of groups."""
    d = math.prod(x.shape[1:])
    return {"feature_mask": torch.arange(d, device=x.device).view(1, *x.shape[1:]) * min(4, d) // max(d, 1)}


def _neuron(x: Tensor) -> dict[str, Any]:
    return {"neuron_selector": whole_layer}


def _neuron_and_zero(x: Tensor) -> dict[str, Any]:
    return {**_neuron(x), **_zero_baselines(x)}


# Arguments made of the inputs and of options.


def _of_superpixels(inputs: Tensor, n_segments: int = 50, compactness: float = 10.0) -> dict[str, Any]:
    return {"feature_mask": superpixels(inputs, n_segments, compactness)}


def of_words(
    inputs: Tensor, continues: Sequence[int] = (), special: Sequence[int] = (), reference: int = 0
) -> dict[str, Any]:
    """Words as groups of tokens, see `words`, and a baseline of the token `reference` that keeps special tokens."""
    kept = torch.isin(inputs.round(), torch.tensor([*special], dtype=inputs.dtype, device=inputs.device))
    return {"feature_mask": words(inputs, continues), "baselines": inputs.where(kept, reference)}


PAPERS = {
    "Adebayo 2018": "Adebayo et al.: Local Explanation Methods, arXiv 1810.03307",
    "Bach 2015": "Bach et al.: On Pixel-Wise Explanations, PLoS ONE 10(7), 2015",
    "Breiman 2001": "Breiman: Random Forests, Machine Learning 45, 2001",
    "Castro 2009": "Castro et al.: Polynomial calculation of the Shapley value based on sampling, 2009",
    "Chattopadhay 2017": "Chattopadhay et al.: Grad-CAM++, arXiv 1710.11063",
    "Dhamdhere 2018": "Dhamdhere et al.: How Important Is a Neuron?, arXiv 1805.12233",
    "Gurumoorthy 2017": "Gurumoorthy et al.: Efficient Data Representation, arXiv 1707.01212",
    "Leino 2018": "Leino et al.: Influence-Directed Explanations, arXiv 1802.03788",
    "Lundberg 2017": "Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874",
    "Lundberg 2018": "Lundberg et al.: Consistent Individualized Feature Attribution, arXiv 1802.03888",
    "Ribeiro 2016": 'Ribeiro et al.: "Why Should I Trust You?", arXiv 1602.04938',
    "Ribeiro 2018": "Ribeiro et al.: Anchors, AAAI 2018",
    "Selvaraju 2016": "Selvaraju et al.: Grad-CAM, arXiv 1610.02391",
    "Shapley 1953": "Shapley: A Value for n-Person Games, 1953",
    "Shrikumar 2016": "Shrikumar et al.: Not Just a Black Box, arXiv 1605.01713",
    "Shrikumar 2017": "Shrikumar et al.: Learning Important Features, arXiv 1704.02685",
    "Simonyan 2013": "Simonyan et al.: Deep Inside Convolutional Networks, arXiv 1312.6034",
    "Smilkov 2017": "Smilkov et al.: SmoothGrad, arXiv 1706.03825",
    "Springenberg 2014": "Springenberg et al.: Striving for Simplicity, arXiv 1412.6806",
    "Sundararajan 2017": "Sundararajan et al.: Axiomatic Attribution for Deep Networks, arXiv 1703.01365",
    "Zeiler 2013": "Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
}

# Methods that explain inputs: what each is, and how it behaves.

SUMMARIES = {
    "IG": "Integral of gradients from a baseline straight to the input, times their difference.",
    "Saliency": "Magnitude (or, with abs=False, value) of the gradient with respect to the input.",
    "InputXGradient": "Input times the gradient with respect to it.",
    "GuidedBackprop": "Gradient in which each ReLU also stops negative gradients.",
    "Deconvolution": "Gradient in which each ReLU stops negative gradients and passes all others.",
    "DeepLift": "Differences from a baseline carried back through the activations (the rescale rule).",
    "DeepLiftShap": "Mean of DeepLift over a set of baselines.",
    "LRP": "The output passed back layer by layer to the inputs (layer-wise relevance propagation).",
    "SmoothGrad": "Mean of an explanation over inputs with Gaussian noise.",
    "VarGrad": "Variance of an explanation over inputs with Gaussian noise.",
    "GradientShap": "Mean gradient at random points between noisy inputs and baselines, times their difference.",
    "TokenIG": "Integrated gradients of a text's embeddings, added up for each token or word.",
    "Occlusion": "Change of the output when a window of the input is replaced by a baseline.",
    "FeatureAblation": "Change of the output when a group of features is replaced by a baseline.",
    "FeaturePermutation": "Change of the output when a group of features is shuffled among the examples of the batch.",
    "ShapleyValueSampling": "Mean contribution of a group of features over random orders of adding them to a baseline.",
    "ShapleyValues": "Mean contribution of a group of features over all orders: for a handful of groups.",
    "KernelShap": "Shapley values of groups of features by a weighted linear regression on random coalitions.",
    "Lime": "Weights of a sparse linear model fitted to the output around the input.",
    "GradCAM": "A layer's channels added up, weighted by their mean gradients.",
    "GradCAMPlusPlus": "A layer's channels added up, weighted by positive gradients, each place by its curvature.",
    "GuidedGradCam": "Guided backpropagation times the enlarged Grad-CAM map.",
    "Anchors": "Conditions on a few features under which the prediction stays as it is.",
    "ProtoDash": "A few weighted examples, from a set that may be shown, that stand for the explained ones.",
    "LimeTabular": "Weights of a linear model fitted to the output around a row of a table, in bins of public rows.",
    "AlibiKernelShap": "Shapley values of the features of a row by a weighted linear regression, against public rows.",
    "TreeShap": "Shapley values of the features of a row, exactly, for a forest or boosted trees of scikit-learn.",
    "TreeExplainer": "Shapley values of the features of a row, exactly, for forests and boosted trees of any library.",
    "LinearExplainer": "Shapley values of the features of a row, exactly, for the log odds of a linear model.",
    "KernelExplainer": "Shapley values of the features of a row by a weighted linear regression, against public rows.",
}

_TIMES_INPUTS: dict[str, Any] = {"multiply_by_inputs": (True, False)}
_STEPS: dict[str, Any] = {
    "n_steps": (10, 25, 50, 100),
    "method": ("gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid"),
}
_FEW = (5, 10, 25, 50)
_TUNNEL: dict[str, Any] = {"nt_samples": _FEW, "stdevs": [0.01, 2.0], "draw_baseline_from_distrib": (False, True)}
_NOISY: dict[str, Any] = {"n_samples": _FEW, "stdevs": [0.0, 1.0], **_TIMES_INPUTS}
_WINDOWS = {"sliding_window_shapes": ((3, 1, 1), (3, 32, 32)), "strides": ((3, 1, 1), (3, 32, 32))}
_SUPERPIXELS: dict[str, Any] = {"n_segments": [10, 100], "compactness": [1.0, 50.0]}
_SURROGATE = {**_SUPERPIXELS, "n_samples": (50, 100, 200, 500)}
_CAM = {"interpolate_mode": ("nearest", "area", "bilinear", "bicubic"), "attribute_to_layer_input": (False, True)}
_ANCHORS: dict[str, Any] = {
    **{name: [0.0, 1.0] for name in ("threshold", "tau", "delta")},
    "batch_size": (50, 100, 200),
    "coverage_samples": (1_000, 10_000),
    "beam_size": (1, 2, 4),
}
_KERNELS: dict[str, Any] = {"sigma": [0.1, 3.0], "kernelType": ("other", "Gaussian")}
_SAMPLES = {"num_samples": (500, 1_000, 5_000)}
_GROUPED: dict[str, Any] = {"derive": _of_superpixels, "needs": _groups}


def _method(
    family: str, source: Any, paper: str, flags: str = "", space: SearchSpace = _NOTHING, name: str = "", **more: Any
) -> Row:
    """A row named as the native class, unless `name` is given; `flags` names the facts that are true."""
    name = name or (source.partition(":")[2] if isinstance(source, str) else source.__name__)
    facts = dict.fromkeys(flags.split(), True) | more
    return Row(name, source, family, PAPERS[paper], SUMMARIES[name], search_space=space, **facts)


_gradient, _perturbation, _representation, _approximation = (partial(_method, family) for family in FAMILIES)

_ROWS = (
    _gradient(attr.IntegratedGradients, "Sundararajan 2017", space={**_STEPS, **_TIMES_INPUTS}, name="IG"),
    _gradient(attr.Saliency, "Simonyan 2013", "leaf_inputs", {"abs": (True, False)}),
    _gradient(attr.InputXGradient, "Shrikumar 2016", "leaf_inputs"),
    _gradient(attr.GuidedBackprop, "Springenberg 2014", "hooks needs_relu leaf_inputs"),
    _gradient(attr.Deconvolution, "Zeiler 2013", "hooks needs_relu leaf_inputs"),
    _gradient(attr.DeepLift, "Shrikumar 2017", "hooks leaf_inputs", {**_TIMES_INPUTS, "eps": [1e-10, 1e-4]}),
    _gradient(attr.DeepLiftShap, "Lundberg 2017", "hooks", _TIMES_INPUTS, needs=_zero_baselines),
    _gradient(attr.LRP, "Bach 2015", "hooks writes leaf_inputs"),
    _gradient(attr.NoiseTunnel, "Smilkov 2017", "stochastic", _TUNNEL, name="SmoothGrad", nt_type="smoothgrad"),
    _gradient(attr.NoiseTunnel, "Adebayo 2018", "stochastic", _TUNNEL, name="VarGrad", nt_type="vargrad"),
    _gradient(attr.GradientShap, "Lundberg 2017", "stochastic", _NOISY, needs=_zero_baselines),
    _gradient(TokenIG, "Sundararajan 2017", "hooks", _STEPS, derive=of_words),
    _perturbation(attr.Occlusion, "Zeiler 2013", space=_WINDOWS, needs=_windows),
    _perturbation(attr.FeatureAblation, "Zeiler 2013", space=_SUPERPIXELS, **_GROUPED),
    _perturbation(attr.FeaturePermutation, "Breiman 2001", "stochastic mixes_batch", _SUPERPIXELS, **_GROUPED),
    _perturbation(
        attr.ShapleyValueSampling, "Castro 2009", "stochastic", {**_SUPERPIXELS, "n_samples": _FEW}, **_GROUPED
    ),
    _perturbation(attr.ShapleyValues, "Shapley 1953", needs=_few_groups),
    _perturbation(attr.KernelShap, "Lundberg 2017", "stochastic", _SURROGATE, **_GROUPED),
    _approximation(attr.Lime, "Ribeiro 2016", "stochastic", _SURROGATE, **_GROUPED),
    _representation(GradCAM, "Selvaraju 2016", "hooks", _CAM, of="layer"),
    _representation(GradCAMPlusPlus, "Chattopadhay 2017", "hooks", _CAM, of="layer"),
    _representation(attr.GuidedGradCam, "Selvaraju 2016", "hooks needs_relu leaf_inputs", _CAM, of="layer"),
    _perturbation("alibi.explainers:AnchorTabular", "Ribeiro 2018", "stochastic", _ANCHORS, name="Anchors"),
    _approximation(
        "aix360.algorithms.protodash:ProtodashExplainer", "Gurumoorthy 2017", space=_KERNELS, name="ProtoDash"
    ),
    _approximation(
        "lime.lime_tabular:LimeTabularExplainer", "Ribeiro 2016", "stochastic", _SAMPLES, name="LimeTabular"
    ),
    _perturbation("alibi.explainers:KernelShap", "Lundberg 2017", "stochastic", name="AlibiKernelShap"),
    _perturbation("alibi.explainers:TreeShap", "Lundberg 2018"),
    _perturbation("shap:TreeExplainer", "Lundberg 2018"),
    _perturbation("shap:LinearExplainer", "Lundberg 2017"),
    _perturbation("shap:KernelExplainer", "Lundberg 2017", "stochastic"),
)


# Methods that explain layers and neurons.

_INPUT_ROWS = {row.source.__name__: row for row in _ROWS if row.library == "captum" and not row.nt_type}


def _inner(source: Any, summary: str, base: str = "", paper: str = "", **more: Any) -> Row:
    """A row with the facts of the corresponding method for inputs, if there is one."""
    name = source.__name__
    of = "neuron" if name.startswith("Neuron") else "layer"
    facts: dict[str, Any] = {"needs": _neuron} if of == "neuron" else {}
    if row := _INPUT_ROWS.get(base or name.removeprefix("Layer").removeprefix("Neuron")):
        alike = ("citation", "stochastic", "mixes_batch", "needs_relu", "writes")
        facts |= {fact: getattr(row, fact) for fact in (*alike, *(["leaf_inputs"] if of == "neuron" else []))}
    facts |= {"citation": PAPERS[paper]} if paper else {}
    return Row(name, source, "representation", summary=summary, of=of, hooks=True, **facts | more)


_INNER_ROWS = (
    _inner(attr.LayerActivation, "The output of a layer.", citation="none: the layer's output itself"),
    _inner(attr.InternalInfluence, "Integral of a layer's gradients from a baseline to the input.", paper="Leino 2018"),
    _inner(
        attr.LayerConductance,
        "How much of the integrated gradients flows through each unit of a layer.",
        paper="Dhamdhere 2018",
    ),
    _inner(attr.LayerGradCam, "Grad-CAM, as Captum has it: without enlarging.", paper="Selvaraju 2016"),
    _inner(attr.LayerGradientXActivation, "A layer's output times its gradient.", "InputXGradient"),
    _inner(attr.LayerIntegratedGradients, "Integrated gradients of a layer."),
    _inner(attr.LayerDeepLift, "DeepLift of a layer."),
    _inner(attr.LayerDeepLiftShap, "DeepLiftShap of a layer.", needs=_zero_baselines),
    _inner(attr.LayerGradientShap, "GradientShap of a layer.", needs=_zero_baselines),
    _inner(attr.LayerFeatureAblation, "Change of the output when a layer's units are replaced."),
    _inner(attr.LayerFeaturePermutation, "Change of the output when a layer's units are shuffled."),
    _inner(attr.LayerLRP, "LRP of a layer.", leaf_inputs=True),
    _inner(
        attr.NeuronConductance,
        "How much of the output reaches a neuron from each input feature.",
        paper="Dhamdhere 2018",
    ),
    _inner(attr.NeuronGradient, "Gradient of a neuron.", "Saliency"),
    _inner(attr.NeuronIntegratedGradients, "Integrated gradients of a neuron."),
    _inner(attr.NeuronDeepLift, "DeepLift of a neuron."),
    _inner(attr.NeuronDeepLiftShap, "DeepLiftShap of a neuron.", needs=_neuron_and_zero),
    _inner(attr.NeuronGradientShap, "GradientShap of a neuron.", needs=_neuron_and_zero),
    _inner(attr.NeuronGuidedBackprop, "Guided backpropagation from a neuron."),
    _inner(attr.NeuronDeconvolution, "Deconvolution from a neuron."),
    _inner(attr.NeuronFeatureAblation, "Change of a neuron when features are replaced."),
)

CATALOG: Mapping[str, Row] = MappingProxyType({row.name: row for row in (*_ROWS, *_INNER_ROWS)})
"""Every method, by name."""

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        [f"{of}Attribution" for of in ("", "Gradient", "Perturbation", "Layer", "Neuron")],
        "it is an abstract base class: harden an explainer of a subclass",
    ),
    "DataLoaderAttribution": "it explains a metric over a data set and has no `inputs` that noise could depend on",
    **dict.fromkeys(
        ("LLMAttribution", "LLMGradientAttribution", "RemoteLLMAttribution"),
        "its result holds the tokens of a generated text, beside the attributions",
    ),
}
"""Captum's explainers that `harden` refuses -> why."""


def find_row(name: str) -> Row:
    """The row of a method in any spelling: "IG", "integrated_gradients", "HardenedIG"; ConfigurationError: no such one.

    >>> find_row("integrated-gradients").name, find_row("smoothgrad").name, find_row("Grad-CAM++").name
    ('IG', 'SmoothGrad', 'GradCAMPlusPlus')
    """
    names = {_normalised(row.name): row for row in CATALOG.values()}
    natives = {_normalised(row.source.__name__): row for row in CATALOG.values() if row.nt_type is None and row.in_base}
    wanted = _normalised(name)
    for key in (wanted, wanted.removeprefix("hardened")):
        if row := (natives | names).get(key):
            return row
    raise ConfigurationError(f"expected one of {', '.join(CATALOG)}; got {name!r}{did_you_mean(name, CATALOG)}")


def _normalised(name: str) -> str:
    return "".join(character for character in name.lower().replace("++", "plusplus") if character.isalnum())
