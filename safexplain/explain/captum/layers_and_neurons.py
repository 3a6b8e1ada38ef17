"""Captum's explainers of layers and neurons, hardened: each class is a row of the catalog put through `build`."""

from __future__ import annotations

from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import build

__all__ = [
    "HardenedInternalInfluence",
    "HardenedLayerActivation",
    "HardenedLayerConductance",
    "HardenedLayerDeepLift",
    "HardenedLayerDeepLiftShap",
    "HardenedLayerFeatureAblation",
    "HardenedLayerFeaturePermutation",
    "HardenedLayerGradCam",
    "HardenedLayerGradientShap",
    "HardenedLayerGradientXActivation",
    "HardenedLayerIntegratedGradients",
    "HardenedLayerLRP",
    "HardenedNeuronConductance",
    "HardenedNeuronDeconvolution",
    "HardenedNeuronDeepLift",
    "HardenedNeuronDeepLiftShap",
    "HardenedNeuronFeatureAblation",
    "HardenedNeuronGradient",
    "HardenedNeuronGradientShap",
    "HardenedNeuronGuidedBackprop",
    "HardenedNeuronIntegratedGradients",
]

HardenedLayerActivation: type[Hardened] = build(CATALOG["LayerActivation"], module=__name__)
HardenedInternalInfluence: type[Hardened] = build(CATALOG["InternalInfluence"], module=__name__)
HardenedLayerConductance: type[Hardened] = build(CATALOG["LayerConductance"], module=__name__)
HardenedLayerGradCam: type[Hardened] = build(CATALOG["LayerGradCam"], module=__name__)
HardenedLayerGradientXActivation: type[Hardened] = build(CATALOG["LayerGradientXActivation"], module=__name__)
HardenedLayerIntegratedGradients: type[Hardened] = build(CATALOG["LayerIntegratedGradients"], module=__name__)
HardenedLayerDeepLift: type[Hardened] = build(CATALOG["LayerDeepLift"], module=__name__)
HardenedLayerDeepLiftShap: type[Hardened] = build(CATALOG["LayerDeepLiftShap"], module=__name__)
HardenedLayerGradientShap: type[Hardened] = build(CATALOG["LayerGradientShap"], module=__name__)
HardenedLayerFeatureAblation: type[Hardened] = build(CATALOG["LayerFeatureAblation"], module=__name__)
HardenedLayerFeaturePermutation: type[Hardened] = build(CATALOG["LayerFeaturePermutation"], module=__name__)
HardenedLayerLRP: type[Hardened] = build(CATALOG["LayerLRP"], module=__name__)
HardenedNeuronGradient: type[Hardened] = build(CATALOG["NeuronGradient"], module=__name__)
HardenedNeuronIntegratedGradients: type[Hardened] = build(CATALOG["NeuronIntegratedGradients"], module=__name__)
HardenedNeuronDeepLift: type[Hardened] = build(CATALOG["NeuronDeepLift"], module=__name__)
HardenedNeuronDeepLiftShap: type[Hardened] = build(CATALOG["NeuronDeepLiftShap"], module=__name__)
HardenedNeuronGradientShap: type[Hardened] = build(CATALOG["NeuronGradientShap"], module=__name__)
HardenedNeuronGuidedBackprop: type[Hardened] = build(CATALOG["NeuronGuidedBackprop"], module=__name__)
HardenedNeuronDeconvolution: type[Hardened] = build(CATALOG["NeuronDeconvolution"], module=__name__)
HardenedNeuronFeatureAblation: type[Hardened] = build(CATALOG["NeuronFeatureAblation"], module=__name__)
HardenedNeuronConductance: type[Hardened] = build(CATALOG["NeuronConductance"], module=__name__)
