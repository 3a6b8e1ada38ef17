# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import captum.attr
from torch import Tensor, nn

from safexplain._digest.digests import model_digest as model_digest
from safexplain.aix360 import ProtodashExplainer as HardenedProtoDash
from safexplain.captum import Deconvolution as HardenedDeconvolution
from safexplain.captum import DeepLift as HardenedDeepLift
from safexplain.captum import GradientShap as HardenedGradientShap
from safexplain.captum import GuidedBackprop as HardenedGuidedBackprop
from safexplain.captum import InputXGradient as HardenedInputXGradient
from safexplain.captum import IntegratedGradients as HardenedIG
from safexplain.captum import KernelShap as HardenedKernelShap
from safexplain.captum import Lime as HardenedLime
from safexplain.captum import Occlusion as HardenedOcclusion
from safexplain.captum import Saliency as HardenedSaliency
from safexplain.explain.alibi.tables import HardenedAnchors as HardenedAnchors
from safexplain.explain.captum.explainers import GradCAM as _GradCAM
from safexplain.explain.captum.explainers import GradCAMPlusPlus as _GradCAMPlusPlus
from safexplain.explain.feature_groups import superpixels as superpixels
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import harden as harden
from safexplain.hardening.amounts import Relative as Relative
from safexplain.hardening.clips import NormClip as NormClip
from safexplain.hardening.clips import RangeClip as RangeClip
from safexplain.hardening.clips import RankNorm as RankNorm
from safexplain.hardening.clips import UnitNorm as UnitNorm
from safexplain.hardening.formats import Levels as Levels
from safexplain.hardening.formats import TopKSet as TopKSet
from safexplain.hardening.hardening import Hardening as Hardening
from safexplain.hardening.masks import ThresholdMask as ThresholdMask
from safexplain.hardening.masks import TopKMask as TopKMask
from safexplain.hardening.noise import GaussianNoise as GaussianNoise
from safexplain.outputs import Probability as Probability
from safexplain.recourse.counterfactual import HardenedCounterfactual as HardenedCounterfactual
from safexplain.shap import KernelExplainer as HardenedKernelExplainer
from safexplain.shap import TreeExplainer as HardenedTreeExplainer

TensorOrTuple = TypeVar("TensorOrTuple", Tensor, tuple[Tensor, ...])
__version__: str
__all__ = [
    "GaussianNoise",
    "HardenedAnchors",
    "HardenedCounterfactual",
    "HardenedDeconvolution",
    "HardenedDeepLift",
    "HardenedGradCAM",
    "HardenedGradCAMPlusPlus",
    "HardenedGradientShap",
    "HardenedGuidedBackprop",
    "HardenedIG",
    "HardenedInputXGradient",
    "HardenedKernelExplainer",
    "HardenedKernelShap",
    "HardenedLime",
    "HardenedOcclusion",
    "HardenedProtoDash",
    "HardenedSaliency",
    "HardenedSmoothGrad",
    "HardenedTreeExplainer",
    "HardenedVarGrad",
    "Hardening",
    "Levels",
    "NormClip",
    "Probability",
    "RangeClip",
    "RankNorm",
    "Relative",
    "ThresholdMask",
    "TopKMask",
    "TopKSet",
    "UnitNorm",
    "__version__",
    "harden",
    "model_digest",
    "superpixels",
]

class HardenedGradCAM(Hardened, _GradCAM):
    """Hardened GradCAM. A layer's channels added up, weighted by their mean gradients.

    Source: Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM, arXiv 1610.02391.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    Takes the arguments of `GradCAM`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | None = None,
        device_ids: list[int] | None = None,
        reshape_transform: str | Callable[[Tensor], Tensor] = "auto",
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: Any = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = False,
        attr_dim_summation: bool = True,
        grad_kwargs: Mapping[str, Any] | None = None,
        interpolate_mode: str | None = None,
    ) -> TensorOrTuple: ...

class HardenedGradCAMPlusPlus(Hardened, _GradCAMPlusPlus):
    """Hardened GradCAMPlusPlus. A layer's channels added up, weighted by positive gradients, each place by its curvature.

    Source: Chattopadhay, Sarkar, Howlader, Balasubramanian: Grad-CAM++, arXiv 1710.11063.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    Takes the arguments of `GradCAMPlusPlus`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | None = None,
        device_ids: list[int] | None = None,
        reshape_transform: str | Callable[[Tensor], Tensor] = "auto",
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: Any = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = False,
        attr_dim_summation: bool = True,
        grad_kwargs: Mapping[str, Any] | None = None,
        interpolate_mode: str | None = None,
    ) -> TensorOrTuple: ...

class HardenedSmoothGrad(Hardened, captum.attr.NoiseTunnel):
    """Hardened SmoothGrad. Mean of an explanation over inputs with Gaussian noise.

    Source: Smilkov, Thorat, Kim, Viegas, Wattenberg: SmoothGrad, arXiv 1706.03825.

    Takes any Captum explainer, as NoiseTunnel does, or a model, which stands for its signed gradient (`Gradient`). `nt_type` is 'smoothgrad'. The hardening comes after the tunnel.

    Takes the arguments of `NoiseTunnel`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        attribution_method: captum.attr.Attribution | Callable[..., Any],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        nt_type: Literal["smoothgrad"] = "smoothgrad",
        nt_samples: int = 5,
        nt_samples_batch_size: int | None = None,
        stdevs: float | tuple[float, ...] = 1.0,
        draw_baseline_from_distrib: bool = False,
        **kwargs: Any,
    ) -> TensorOrTuple: ...

class HardenedVarGrad(Hardened, captum.attr.NoiseTunnel):
    """Hardened VarGrad. Variance of an explanation over inputs with Gaussian noise.

    Source: Adebayo, Gilmer, Goodfellow, Kim: Local Explanation Methods, arXiv 1810.03307.

    Takes any Captum explainer, as NoiseTunnel does, or a model, which stands for its signed gradient (`Gradient`). `nt_type` is 'vargrad'. The hardening comes after the tunnel.

    Takes the arguments of `NoiseTunnel`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        attribution_method: captum.attr.Attribution | Callable[..., Any],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        nt_type: Literal["vargrad"] = "vargrad",
        nt_samples: int = 5,
        nt_samples_batch_size: int | None = None,
        stdevs: float | tuple[float, ...] = 1.0,
        draw_baseline_from_distrib: bool = False,
        **kwargs: Any,
    ) -> TensorOrTuple: ...
