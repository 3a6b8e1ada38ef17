"""The explanation methods as rows of a table: what each one is, where it comes from and what it needs.

A row holds facts only. `safexplain.explain.wrap` turns rows into the hardened classes, `safexplain.captum` names them
as Captum does, and whoever tunes or audits reads the same rows for options to search and for arguments that a method
cannot do without. A new explainer is one more row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from captum import attr
from torch import Tensor, nn

from safexplain.errors import ConfigurationError, near
from safexplain.explain.captum.explainers import GradCAM, GradCAMPlusPlus, Gradient, TokenIG
from safexplain.explain.captum.layers import default_layer, whole_layer
from safexplain.explain.feature_groups import grid_segments, superpixels, words
from safexplain.explain.libraries import load

__all__ = ["CATALOG", "EXTRAS", "FAMILIES", "LICENCES", "REFUSED", "Row", "SearchSpace", "find_row"]

SearchSpace = Mapping[str, tuple[Any, ...] | list[Any]]
"""Parameter -> values to try: a tuple lists them, a pair in a list is a range."""

FAMILIES = ("gradient", "perturbation", "representation", "approximation")
"""DeepLeak's families of methods (arXiv 2601.03429, section II-A)."""

LICENCES = MappingProxyType(
    {
        "captum": "BSD-3-Clause",
        "safexplain": "Apache-2.0",
        "alibi": "Apache-2.0 up to 0.9.4, Business Source Licence 1.1 from 0.9.5",
        "aix360": "Apache-2.0",
        "lime": "BSD-2-Clause",
        "shap": "MIT",
    }
)
"""Library -> its licence."""

ENTRIES = MappingProxyType({"alibi": "explain", "aix360": "explain", "lime": "explain_instance", "shap": "shap_values"})
"""Library -> the native method that explains rows of a table; the others have `attribute`, which gives maps."""

EXTRAS = MappingProxyType({"alibi": "alibi", "aix360": "aix360", "lime": "aix360", "shap": "shap"})
"""Library -> the extra that brings it; the others come with the base install."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """One explanation method.

    Args:
        name: key in `CATALOG`; the hardened class is called Hardened + name.
        source: the native class, or where it stands if the library is an extra ("alibi.explainers:AnchorTabular").
        family: one of `FAMILIES`; "other" for a class outside the catalog.
        citation: where the method was published.
        summary: one sentence.
        of: "input", "layer" or "neuron": what the attributions are of, or for.
        hooks: it registers hooks on the model's modules, so that it must run on a private copy.
        writes: it writes to the model's parameters, so that the copy must have its own.
        needs_relu: it changes what nn.ReLU modules do, and without any it silently is the plain gradient.
        leaf_inputs: Captum wants inputs that require gradients, and warns about others.
        stochastic: it draws from torch's global generator (some also from NumPy's), as natively.
        mixes_batch: an example's answer depends on the others in its batch.
        nt_type: for a NoiseTunnel, the one aggregate that the class stands for.
        search_space: options that do not change what is asked for, with values to try: those of DeepLeak's Table VIII
            (arXiv 2601.03429) where it has them, plus sample counts. `n_segments` and `compactness` are those of
            `safexplain.superpixels`.
        needs: (inputs as a tuple) -> arguments without which the entry cannot be called, a plain choice of them.
        derive: (inputs, options that are the same for all inputs) -> arguments made of both, as a `feature_mask`.
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
    needs: Callable[[tuple[Tensor, ...]], dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)
    derive: Callable[..., dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)

    @property
    def native(self) -> Any:
        """The native class.

        Raises:
            MissingExtraError: its library is not installed.
        """
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        return getattr(load(module), name)

    @property
    def library(self) -> str:
        """Whose class it is, a key of `LICENCES` for rows of the catalog."""
        module = self.source.partition(":")[0] if isinstance(self.source, str) else self.source.__module__
        return str(module.partition(".")[0])

    @property
    def entry(self) -> str:
        """Name of the native method that explains, see `ENTRIES`."""
        return ENTRIES.get(self.library, "attribute")

    @cached_property
    def target(self) -> bool:
        """Whether the entry takes the explained output as `target`; of rows of a table, ours does."""
        return not self.in_base or self._takes("target")

    @cached_property
    def delta(self) -> bool:
        """Whether natively it can return a convergence delta, which the hardened class refuses."""
        return self.in_base and self._takes("return_convergence_delta")

    def _takes(self, name: str) -> bool:
        """Whether `attribute` has this parameter; a NoiseTunnel passes on what its explainer takes."""
        return self.nt_type is not None or name in inspect.signature(self.native.attribute).parameters

    @property
    def derives(self) -> frozenset[str]:
        """Names of the options that `derive` takes."""
        return frozenset(list(inspect.signature(self.derive).parameters)[1:])

    @property
    def in_base(self) -> bool:
        """Whether the base install brings it, so that `native` can be had."""
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
        """The native explainer of a forward function.

        Args:
            forward_func: what is explained. A NoiseTunnel is put over its signed gradient (`Gradient`).
            layer: for methods of layers and neurons; None: `default_layer(forward_func)`.
        """
        if self.nt_type:
            return self.native(Gradient(forward_func))
        if self.of == "input":
            return self.native(forward_func)
        return self.native(forward_func, default_layer(forward_func) if layer is None else layer)

    def options(self, inputs: Tensor | tuple[Tensor, ...], chosen: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Arguments of the native entry for these inputs, beside them and the target.

        Args:
            inputs: as the entry takes them.
            chosen: arguments, which go before the plain choice; those in `derives` become others, as `n_segments` the
                `feature_mask` of `superpixels`, for which the inputs must be images.
        """
        options = self.needs(inputs if isinstance(inputs, tuple) else (inputs,))
        if not isinstance(inputs, tuple):
            options = {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}
        options |= {"nt_type": self.nt_type} if self.nt_type else {}
        own = {name: chosen[name] for name in self.derives & chosen.keys()}
        options |= self.derive(inputs, **own) if own else {}
        return options | {name: value for name, value in chosen.items() if name not in own}


# Arguments without which a native method cannot be called: a plain choice of them, from the inputs alone.

Inputs = tuple[Tensor, ...]


def zero_baselines(inputs: Inputs) -> dict[str, Any]:
    """Two baselines of zeros, a set of which each method takes the mean or draws."""
    return {"baselines": tuple(torch.zeros_like(x[:1]).repeat(2, *[1] * (x.dim() - 1)) for x in inputs)}


def windows(inputs: Inputs) -> dict[str, Any]:
    """Windows of a quarter of each axis at steps of an eighth; the first of several axes stays whole."""
    shapes, strides = [], []
    for x in inputs:
        channels, axes = (x.shape[1:2], x.shape[2:]) if x.dim() > 2 else ((), x.shape[1:])
        shapes.append((*channels, *(max(1, n // 4) for n in axes)))
        strides.append((*channels, *(max(1, n // 8) for n in axes)))
    return {"sliding_window_shapes": tuple(shapes), "strides": tuple(strides)}


def groups(inputs: Inputs) -> dict[str, Any]:
    """Features in groups, so that a few dozen numbers are estimated: 4 x 4 squares of an image, columns of a table, of
    which several are asked about in one call of the model."""
    together = {"perturbations_per_eval": 16} if all(x.dim() == 2 for x in inputs) else {}
    return {"feature_mask": _masks(inputs, side=4, columns=None), **together}


def few_groups(inputs: Inputs) -> dict[str, Any]:
    """Four groups in all, of neighbouring places: the number of orders to go through is that of groups, factorial."""
    return {"feature_mask": _masks(inputs, side=None, columns=max(1, 4 // len(inputs)))}


def _masks(inputs: Inputs, side: int | None, columns: int | None) -> Inputs:
    masks, first = [], 0
    for x in inputs:
        d = math.prod(x.shape[1:])
        index = torch.arange(d, device=x.device).view(1, *x.shape[1:])
        mask = grid_segments(x, side) if side and x.dim() > 2 else index * min(columns or d, d) // max(d, 1)
        masks.append(mask + first)
        first += int(mask.max()) + 1 if mask.numel() else 0
    return tuple(masks)


def neuron(inputs: Inputs) -> dict[str, Any]:
    """The sum over the layer as the neuron."""
    return {"neuron_selector": whole_layer}


def neuron_and_zero(inputs: Inputs) -> dict[str, Any]:
    """The sum over the layer as the neuron, and baselines of zeros."""
    return {**neuron(inputs), **zero_baselines(inputs)}


# Arguments made of the inputs and of options that are the same for all inputs.


def of_superpixels(inputs: Tensor, n_segments: int = 50, compactness: float = 10.0) -> dict[str, Any]:
    """Superpixels of images as groups."""
    return {"feature_mask": superpixels(inputs, n_segments, compactness)}


def of_words(
    inputs: Tensor, continues: Sequence[int] = (), special: Sequence[int] = (), reference: int = 0
) -> dict[str, Any]:
    """Words as groups of tokens, see `words`, and a baseline of the token `reference` in which special tokens stay."""
    stays = torch.isin(inputs.round(), torch.tensor([*special], dtype=inputs.dtype, device=inputs.device))
    return {"feature_mask": words(inputs, continues), "baselines": inputs.where(stays, reference)}


# Methods that explain inputs.

_GRADCAM_PAPER = "Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM, arXiv 1610.02391"
_SHAP_PAPER = "Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874"
_TREE_SHAP_PAPER = "Lundberg, Erion, Lee: Consistent Individualized Feature Attribution, arXiv 1802.03888"
_LIME_PAPER = 'Ribeiro, Singh, Guestrin: "Why Should I Trust You?", arXiv 1602.04938'
_SAMPLING_PAPER = "Castro, Gomez, Tejada: Polynomial calculation of the Shapley value based on sampling, 2009"
_RULES = ("gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid")
_MODES = ("nearest", "area", "bilinear", "bicubic")
_TUNNEL: dict[str, Any] = {
    "nt_samples": (5, 10, 25, 50),
    "stdevs": [0.01, 2.0],
    "draw_baseline_from_distrib": (False, True),
}
_SUPERPIXELS: dict[str, Any] = {"n_segments": [10, 100], "compactness": [1.0, 50.0]}
_SURROGATE = {**_SUPERPIXELS, "n_samples": (50, 100, 200, 500)}


def _method(family: str, source: Any, *, name: str = "", **facts: Any) -> Row:
    """A row under the name of the native class, unless another is given."""
    native = source.partition(":")[2] if isinstance(source, str) else source.__name__
    return Row(name or native, source, family=family, **facts)


_gradient, _perturbation, _representation, _approximation = (partial(_method, family) for family in FAMILIES)

_ROWS = (
    _gradient(
        attr.IntegratedGradients,
        name="IG",
        citation="Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365",
        summary="Integral of gradients from a baseline straight to the input, times their difference.",
        search_space={"n_steps": (10, 25, 50, 100), "method": _RULES, "multiply_by_inputs": (True, False)},
    ),
    _gradient(
        attr.Saliency,
        citation="Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, arXiv 1312.6034",
        summary="Magnitude (or, with abs=False, value) of the gradient with respect to the input.",
        leaf_inputs=True,
        search_space={"abs": (True, False)},
    ),
    _gradient(
        attr.InputXGradient,
        citation="Shrikumar, Greenside, Shcherbina, Kundaje: Not Just a Black Box, arXiv 1605.01713",
        summary="Input times the gradient with respect to it.",
        leaf_inputs=True,
    ),
    _gradient(
        attr.GuidedBackprop,
        citation="Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity, arXiv 1412.6806",
        summary="Gradient in which each ReLU also stops negative gradients.",
        hooks=True,
        needs_relu=True,
        leaf_inputs=True,
    ),
    _gradient(
        attr.Deconvolution,
        citation="Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
        summary="Gradient in which each ReLU stops negative gradients and passes all others.",
        hooks=True,
        needs_relu=True,
        leaf_inputs=True,
    ),
    _gradient(
        attr.DeepLift,
        citation="Shrikumar, Greenside, Kundaje: Learning Important Features, arXiv 1704.02685",
        summary="Differences from a baseline carried back through the activations (the rescale rule).",
        hooks=True,
        leaf_inputs=True,
        search_space={"multiply_by_inputs": (True, False), "eps": [1e-10, 1e-4]},
    ),
    _gradient(
        attr.DeepLiftShap,
        citation=_SHAP_PAPER,
        summary="Mean of DeepLift over a set of baselines.",
        hooks=True,
        search_space={"multiply_by_inputs": (True, False)},
        needs=zero_baselines,
    ),
    _gradient(
        attr.LRP,
        citation="Bach, Binder, Montavon, Klauschen, Mueller, Samek: On Pixel-Wise Explanations, PLoS ONE 10(7), 2015",
        summary="The output handed back layer by layer to what made it (layer-wise relevance propagation).",
        hooks=True,
        writes=True,
        leaf_inputs=True,
    ),
    _gradient(
        attr.NoiseTunnel,
        name="SmoothGrad",
        citation="Smilkov, Thorat, Kim, Viegas, Wattenberg: SmoothGrad, arXiv 1706.03825",
        summary="Mean of an explanation over inputs with Gaussian noise.",
        stochastic=True,
        nt_type="smoothgrad",
        search_space=_TUNNEL,
    ),
    _gradient(
        attr.NoiseTunnel,
        name="VarGrad",
        citation="Adebayo, Gilmer, Goodfellow, Kim: Local Explanation Methods, arXiv 1810.03307",
        summary="Variance of an explanation over inputs with Gaussian noise.",
        stochastic=True,
        nt_type="vargrad",
        search_space=_TUNNEL,
    ),
    _gradient(
        attr.GradientShap,
        citation=_SHAP_PAPER,
        summary="Mean gradient at random points between noisy inputs and baselines, times their difference.",
        stochastic=True,
        search_space={"n_samples": (5, 10, 25, 50), "stdevs": [0.0, 1.0], "multiply_by_inputs": (True, False)},
        needs=zero_baselines,
    ),
    _gradient(
        TokenIG,
        citation="Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365",
        summary="Integrated gradients of a text's embeddings, added up for each token or word.",
        hooks=True,
        search_space={"n_steps": (10, 25, 50, 100), "method": _RULES},
        derive=of_words,
    ),
    _perturbation(
        attr.Occlusion,
        citation="Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
        summary="Change of the output when a window of the input is replaced by a baseline.",
        search_space={"sliding_window_shapes": ((3, 1, 1), (3, 32, 32)), "strides": ((3, 1, 1), (3, 32, 32))},
        needs=windows,
    ),
    _perturbation(
        attr.FeatureAblation,
        citation="Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
        summary="Change of the output when a group of features is replaced by a baseline.",
        search_space=_SUPERPIXELS,
        derive=of_superpixels,
        needs=groups,
    ),
    _perturbation(
        attr.FeaturePermutation,
        citation="Breiman: Random Forests, Machine Learning 45, 2001",
        summary="Change of the output when a group of features is shuffled among the examples of the batch.",
        stochastic=True,
        mixes_batch=True,
        search_space=_SUPERPIXELS,
        derive=of_superpixels,
        needs=groups,
    ),
    _perturbation(
        attr.ShapleyValueSampling,
        citation=_SAMPLING_PAPER,
        summary="Mean contribution of a group of features over random orders of adding them to a baseline.",
        stochastic=True,
        search_space={**_SUPERPIXELS, "n_samples": (5, 10, 25, 50)},
        derive=of_superpixels,
        needs=groups,
    ),
    _perturbation(
        attr.ShapleyValues,
        citation="Shapley: A Value for n-Person Games, 1953",
        summary="Mean contribution of a group of features over all orders: for a handful of groups.",
        needs=few_groups,
    ),
    _perturbation(
        attr.KernelShap,
        citation=_SHAP_PAPER,
        summary="Shapley values of groups of features by a weighted linear regression on random coalitions.",
        stochastic=True,
        search_space=_SURROGATE,
        derive=of_superpixels,
        needs=groups,
    ),
    _approximation(
        attr.Lime,
        citation=_LIME_PAPER,
        summary="Weights of a sparse linear model fitted to the output around the input.",
        stochastic=True,
        search_space=_SURROGATE,
        derive=of_superpixels,
        needs=groups,
    ),
    _representation(
        GradCAM,
        citation=_GRADCAM_PAPER,
        summary="A layer's channels added up, weighted by their mean gradients.",
        of="layer",
        hooks=True,
        search_space={"interpolate_mode": _MODES, "attribute_to_layer_input": (False, True)},
    ),
    _representation(
        GradCAMPlusPlus,
        citation="Chattopadhay, Sarkar, Howlader, Balasubramanian: Grad-CAM++, arXiv 1710.11063",
        summary="A layer's channels added up, weighted by positive gradients, each place by its curvature.",
        of="layer",
        hooks=True,
        search_space={"interpolate_mode": _MODES, "attribute_to_layer_input": (False, True)},
    ),
    _representation(
        attr.GuidedGradCam,
        citation=_GRADCAM_PAPER,
        summary="Guided backpropagation times the enlarged Grad-CAM map.",
        of="layer",
        hooks=True,
        needs_relu=True,
        leaf_inputs=True,
        search_space={"interpolate_mode": _MODES, "attribute_to_layer_input": (False, True)},
    ),
    _perturbation(
        "alibi.explainers:AnchorTabular",
        name="Anchors",
        citation="Ribeiro, Singh, Guestrin: Anchors, AAAI 2018",
        summary="Conditions on a few features under which the prediction stays as it is.",
        stochastic=True,
        search_space={
            "threshold": [0.0, 1.0],
            "tau": [0.0, 1.0],
            "delta": [0.0, 1.0],
            "batch_size": (50, 100, 200),
            "coverage_samples": (1_000, 10_000),
            "beam_size": (1, 2, 4),
        },
    ),
    _approximation(
        "aix360.algorithms.protodash:ProtodashExplainer",
        name="ProtoDash",
        citation="Gurumoorthy, Dhurandhar, Cecchi, Aggarwal: Efficient Data Representation, arXiv 1707.01212",
        summary="A few weighted examples, from a set that may be shown, that stand for the explained ones.",
        search_space={"sigma": [0.1, 3.0], "kernelType": ("other", "Gaussian")},
    ),
    _approximation(
        "lime.lime_tabular:LimeTabularExplainer",
        name="LimeTabular",
        citation=_LIME_PAPER,
        summary="Weights of a linear model fitted to the output around a row of a table, in bins of public rows.",
        stochastic=True,
        search_space={"num_samples": (500, 1_000, 5_000)},
    ),
    _perturbation(
        "alibi.explainers:KernelShap",
        name="AlibiKernelShap",
        citation=_SHAP_PAPER,
        summary="Shapley values of the features of a row by a weighted linear regression, against public rows.",
        stochastic=True,
    ),
    _perturbation(
        "alibi.explainers:TreeShap",
        citation=_TREE_SHAP_PAPER,
        summary="Shapley values of the features of a row, exactly, for a forest or boosted trees of scikit-learn.",
    ),
    _perturbation(
        "shap:TreeExplainer",
        citation=_TREE_SHAP_PAPER,
        summary="Shapley values of the features of a row, exactly, for forests and boosted trees of any library.",
    ),
    _perturbation(
        "shap:LinearExplainer",
        citation=_SHAP_PAPER,
        summary="Shapley values of the features of a row, exactly, for the log odds of a linear model.",
    ),
    _perturbation(
        "shap:KernelExplainer",
        citation=_SHAP_PAPER,
        summary="Shapley values of the features of a row by a weighted linear regression, against public rows.",
        stochastic=True,
    ),
)


# Methods that explain layers and neurons.

_INPUT_ROWS = {row.source.__name__: row for row in _ROWS if row.library == "captum" and not row.nt_type}
_INFLUENCE = "Leino, Sen, Datta, Fredrikson, Li: Influence-Directed Explanations, arXiv 1802.03788"
_CONDUCTANCE = "Dhamdhere, Sundararajan, Yan: How Important Is a Neuron?, arXiv 1805.12233"


def _inner(source: Any, summary: str, base: str = "", **more: Any) -> Row:
    """A row with what it has in common with the method for inputs that it is made from, if there is one."""
    name = source.__name__
    of = "neuron" if name.startswith("Neuron") else "layer"
    facts: dict[str, Any] = {"family": "representation", "hooks": True}
    if row := _INPUT_ROWS.get(base or name.removeprefix("Layer").removeprefix("Neuron")):
        facts |= {"citation": row.citation, "stochastic": row.stochastic, "mixes_batch": row.mixes_batch}
        facts |= {"needs_relu": row.needs_relu, "writes": row.writes}
        facts |= {"leaf_inputs": row.leaf_inputs} if of == "neuron" else {}
    facts |= {"needs": neuron} if of == "neuron" else {}
    return Row(name, source, summary=summary, of=of, **facts | more)


_INNER_ROWS = (
    _inner(attr.LayerActivation, "The output of a layer.", citation="none: the layer's output itself"),
    _inner(
        attr.InternalInfluence, "Integral of a layer's gradients from a baseline to the input.", citation=_INFLUENCE
    ),
    _inner(
        attr.LayerConductance,
        "How much of the integrated gradients flows through each unit of a layer.",
        citation=_CONDUCTANCE,
    ),
    _inner(attr.LayerGradCam, "Grad-CAM, as Captum has it: without enlarging.", citation=_GRADCAM_PAPER),
    _inner(attr.LayerGradientXActivation, "A layer's output times its gradient.", "InputXGradient"),
    _inner(attr.LayerIntegratedGradients, "Integrated gradients of a layer."),
    _inner(attr.LayerDeepLift, "DeepLift of a layer."),
    _inner(attr.LayerDeepLiftShap, "DeepLiftShap of a layer.", needs=zero_baselines),
    _inner(attr.LayerGradientShap, "GradientShap of a layer.", needs=zero_baselines),
    _inner(attr.LayerFeatureAblation, "Change of the output when a layer's units are replaced."),
    _inner(attr.LayerFeaturePermutation, "Change of the output when a layer's units are shuffled."),
    _inner(attr.LayerLRP, "LRP of a layer.", leaf_inputs=True),
    _inner(
        attr.NeuronConductance,
        "How much of the output reaches a neuron from each input feature.",
        citation=_CONDUCTANCE,
    ),
    _inner(attr.NeuronGradient, "Gradient of a neuron.", "Saliency"),
    _inner(attr.NeuronIntegratedGradients, "Integrated gradients of a neuron."),
    _inner(attr.NeuronDeepLift, "DeepLift of a neuron."),
    _inner(attr.NeuronDeepLiftShap, "DeepLiftShap of a neuron.", needs=neuron_and_zero),
    _inner(attr.NeuronGradientShap, "GradientShap of a neuron.", needs=neuron_and_zero),
    _inner(attr.NeuronGuidedBackprop, "Guided backpropagation from a neuron."),
    _inner(attr.NeuronDeconvolution, "Deconvolution from a neuron."),
    _inner(attr.NeuronFeatureAblation, "Change of a neuron when features are replaced."),
)

CATALOG: Mapping[str, Row] = MappingProxyType({row.name: row for row in (*_ROWS, *_INNER_ROWS)})
"""Every method, by name."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            [f"{of}Attribution" for of in ("", "Gradient", "Perturbation", "Layer", "Neuron")],
            "it is an abstract base without a method of its own: harden an explainer made from it",
        ),
        "DataLoaderAttribution": "it explains a metric over a whole data set and has no `inputs` to tie noise to",
        **dict.fromkeys(
            ("LLMAttribution", "LLMGradientAttribution", "RemoteLLMAttribution"),
            "its result holds the tokens of a text that the model generated, beside the attributions",
        ),
    }
)
"""Captum's explainers that `harden` refuses -> why."""


def find_row(name: str) -> Row:
    """The row of a method, whatever the spelling: "IG", "integrated_gradients", "IntegratedGradients",
    "HardenedIG".

    Raises:
        ConfigurationError: no such method; the message lists all.

    >>> find_row("integrated-gradients").name, find_row("smoothgrad").name, find_row("Grad-CAM++").name
    ('IG', 'SmoothGrad', 'GradCAMPlusPlus')
    """
    names = {_plain(row.name): row for row in CATALOG.values()}
    natives = {_plain(row.source.__name__): row for row in CATALOG.values() if row.nt_type is None and row.in_base}
    wanted = _plain(name)
    for key in (wanted, wanted.removeprefix("hardened")):
        if row := (natives | names).get(key):
            return row
    raise ConfigurationError(f"expected one of {', '.join(CATALOG)}; got {name!r}{near(name, CATALOG)}")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower().replace("++", "plusplus") if character.isalnum())
