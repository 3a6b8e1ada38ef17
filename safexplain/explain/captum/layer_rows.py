"""The rows of Captum's methods that explain layers and neurons."""

from __future__ import annotations

from typing import Any

from captum import attr

from safexplain.explain.captum import required_arguments as needs
from safexplain.explain.captum.rows import ROWS
from safexplain.explain.row import Row

__all__ = ["LAYER_ROWS"]

_INPUT_ROWS = {row.source.__name__: row for row in ROWS if row.library == "captum" and not row.nt_type}
_INFLUENCE = "Leino, Sen, Datta, Fredrikson, Li: Influence-Directed Explanations, arXiv 1802.03788"
_CONDUCTANCE = "Dhamdhere, Sundararajan, Yan: How Important Is a Neuron?, arXiv 1805.12233"


def _derived(of: str, source: Any, base: str, summary: str, **more: Any) -> Row:
    """A row with what it has in common with the method for inputs that it is made from."""
    row = _INPUT_ROWS[base]
    kept = {"stochastic": row.stochastic, "mixes_batch": row.mixes_batch, "needs_relu": row.needs_relu}
    facts = {"family": "representation", "citation": row.citation, "hooks": True, **kept, **more}
    return Row(source.__name__, source, summary=summary, of=of, **facts)


def _layer(source: Any, base: str, summary: str, **more: Any) -> Row:
    return _derived("layer", source, base, summary, **more)


def _neuron(source: Any, base: str, summary: str, needs_of: Any = needs.neuron, **more: Any) -> Row:
    row = _INPUT_ROWS[base]
    facts = {"target": False, "leaf_inputs": row.leaf_inputs, "needs_relu": row.needs_relu, **more}
    return _derived("neuron", source, base, summary, needs=needs_of, **facts)


LAYER_ROWS = (
    Row(
        "LayerActivation",
        attr.LayerActivation,
        family="representation",
        citation="none: the layer's output itself",
        summary="The output of a layer.",
        of="layer",
        target=False,
        hooks=True,
    ),
    Row(
        "InternalInfluence",
        attr.InternalInfluence,
        family="representation",
        citation=_INFLUENCE,
        summary="Integral of a layer's gradients from a baseline to the input.",
        of="layer",
        hooks=True,
    ),
    Row(
        "LayerConductance",
        attr.LayerConductance,
        family="representation",
        citation=_CONDUCTANCE,
        summary="How much of the integrated gradients flows through each unit of a layer.",
        of="layer",
        hooks=True,
        delta=True,
    ),
    Row(
        "LayerGradCam",
        attr.LayerGradCam,
        family="representation",
        citation=_INPUT_ROWS["GuidedGradCam"].citation,
        summary="Grad-CAM, as Captum has it: without enlarging.",
        of="layer",
        hooks=True,
    ),
    _layer(attr.LayerGradientXActivation, "InputXGradient", "A layer's output times its gradient."),
    _layer(attr.LayerIntegratedGradients, "IntegratedGradients", "Integrated gradients of a layer.", delta=True),
    _layer(attr.LayerDeepLift, "DeepLift", "DeepLift of a layer.", delta=True),
    _layer(attr.LayerDeepLiftShap, "DeepLiftShap", "DeepLiftShap of a layer.", delta=True, needs=needs.zero_baselines),
    _layer(attr.LayerGradientShap, "GradientShap", "GradientShap of a layer.", delta=True, needs=needs.zero_baselines),
    _layer(attr.LayerFeatureAblation, "FeatureAblation", "Change of the output when a layer's units are replaced."),
    _layer(
        attr.LayerFeaturePermutation, "FeaturePermutation", "Change of the output when a layer's units are shuffled."
    ),
    _layer(attr.LayerLRP, "LRP", "LRP of a layer.", delta=True, writes=True, leaf_inputs=True),
    _neuron(
        attr.NeuronConductance,
        "IntegratedGradients",
        "How much of the output reaches a neuron from each input feature.",
        citation=_CONDUCTANCE,
        target=True,
    ),
    _neuron(attr.NeuronGradient, "Saliency", "Gradient of a neuron."),
    _neuron(attr.NeuronIntegratedGradients, "IntegratedGradients", "Integrated gradients of a neuron."),
    _neuron(attr.NeuronDeepLift, "DeepLift", "DeepLift of a neuron."),
    _neuron(attr.NeuronDeepLiftShap, "DeepLiftShap", "DeepLiftShap of a neuron.", needs.neuron_and_zero),
    _neuron(attr.NeuronGradientShap, "GradientShap", "GradientShap of a neuron.", needs.neuron_and_zero),
    _neuron(attr.NeuronGuidedBackprop, "GuidedBackprop", "Guided backpropagation from a neuron."),
    _neuron(attr.NeuronDeconvolution, "Deconvolution", "Deconvolution from a neuron."),
    _neuron(attr.NeuronFeatureAblation, "FeatureAblation", "Change of a neuron when features are replaced."),
)
