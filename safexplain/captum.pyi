# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import captum.attr
from torch import Tensor, nn

from safexplain.explain.hardened import Hardened
from safexplain.hardening.hardening import Hardening

TensorOrTuple = TypeVar("TensorOrTuple", Tensor, tuple[Tensor, ...])

__all__ = [
    "LRP",
    "Deconvolution",
    "DeepLift",
    "DeepLiftShap",
    "FeatureAblation",
    "FeaturePermutation",
    "GradientShap",
    "GuidedBackprop",
    "GuidedGradCam",
    "InputXGradient",
    "IntegratedGradients",
    "InternalInfluence",
    "KernelShap",
    "LayerActivation",
    "LayerConductance",
    "LayerDeepLift",
    "LayerDeepLiftShap",
    "LayerFeatureAblation",
    "LayerFeaturePermutation",
    "LayerGradCam",
    "LayerGradientShap",
    "LayerGradientXActivation",
    "LayerIntegratedGradients",
    "LayerLRP",
    "Lime",
    "NeuronConductance",
    "NeuronDeconvolution",
    "NeuronDeepLift",
    "NeuronDeepLiftShap",
    "NeuronFeatureAblation",
    "NeuronGradient",
    "NeuronGradientShap",
    "NeuronGuidedBackprop",
    "NeuronIntegratedGradients",
    "Occlusion",
    "Saliency",
    "ShapleyValueSampling",
    "ShapleyValues",
]

class Deconvolution(Hardened, captum.attr.Deconvolution):
    """Hardened Deconvolution. Gradient in which each ReLU stops negative gradients and passes all others.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedDeconvolution` and `safexplain.captum.Deconvolution` are the same class.

    Takes the arguments of `Deconvolution`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self, model: nn.Module, *, hardening: Hardening | None = None, model_digest: bytes | None = None
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
    ) -> TensorOrTuple: ...

class DeepLift(Hardened, captum.attr.DeepLift):
    """Hardened DeepLift. Differences from a baseline carried back through the activations (the rescale rule).

    Source: Shrikumar, Greenside, Kundaje: Learning Important Features, arXiv 1704.02685.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedDeepLift` and `safexplain.captum.DeepLift` are the same class.

    Takes the arguments of `DeepLift`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        multiply_by_inputs: bool = True,
        eps: float = 1e-10,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: tuple[object, ...] | None = None,
        return_convergence_delta: Literal[False] = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> TensorOrTuple: ...

class DeepLiftShap(Hardened, captum.attr.DeepLiftShap):
    """Hardened DeepLiftShap. Mean of DeepLift over a set of baselines.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedDeepLiftShap` and `safexplain.captum.DeepLiftShap` are the same class.

    Takes the arguments of `DeepLiftShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: TensorOrTuple | Callable[..., TensorOrTuple],
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: tuple[object, ...] | None = None,
        return_convergence_delta: Literal[False] = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> TensorOrTuple: ...

class FeatureAblation(Hardened, captum.attr.FeatureAblation):
    """Hardened FeatureAblation. Change of the output when a group of features is replaced by a baseline.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    `HardenedFeatureAblation` and `safexplain.captum.FeatureAblation` are the same class.

    Takes the arguments of `FeatureAblation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor | Any],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> TensorOrTuple: ...

class FeaturePermutation(Hardened, captum.attr.FeaturePermutation):
    """Hardened FeaturePermutation. Change of the output when a group of features is shuffled among the examples of the batch.

    Source: Breiman: Random Forests, Machine Learning 45, 2001.

    `HardenedFeaturePermutation` and `safexplain.captum.FeaturePermutation` are the same class.

    Takes the arguments of `FeaturePermutation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor | Any],
        perm_func: Callable[[Tensor, Tensor], Tensor] = ...,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: TensorOrTuple | None = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> TensorOrTuple: ...

class GradientShap(Hardened, captum.attr.GradientShap):
    """Hardened GradientShap. Mean gradient at random points between noisy inputs and baselines, times their difference.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    `HardenedGradientShap` and `safexplain.captum.GradientShap` are the same class.

    Takes the arguments of `GradientShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: TensorOrTuple | Callable[..., TensorOrTuple],
        n_samples: int = 5,
        stdevs: float | tuple[float, ...] = 0.0,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        return_convergence_delta: Literal[False] = False,
    ) -> TensorOrTuple: ...

class GuidedBackprop(Hardened, captum.attr.GuidedBackprop):
    """Hardened GuidedBackprop. Gradient in which each ReLU also stops negative gradients.

    Source: Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity, arXiv 1412.6806.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedGuidedBackprop` and `safexplain.captum.GuidedBackprop` are the same class.

    Takes the arguments of `GuidedBackprop`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self, model: nn.Module, *, hardening: Hardening | None = None, model_digest: bytes | None = None
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
    ) -> TensorOrTuple: ...

class GuidedGradCam(Hardened, captum.attr.GuidedGradCam):
    """Hardened GuidedGradCam. Guided backpropagation times the enlarged Grad-CAM map.

    Source: Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM, arXiv 1610.02391.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedGuidedGradCam` and `safexplain.captum.GuidedGradCam` are the same class.

    Takes the arguments of `GuidedGradCam`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        interpolate_mode: str = "nearest",
        attribute_to_layer_input: bool = False,
    ) -> TensorOrTuple: ...

class InputXGradient(Hardened, captum.attr.InputXGradient):
    """Hardened InputXGradient. Input times the gradient with respect to it.

    Source: Shrikumar, Greenside, Shcherbina, Kundaje: Not Just a Black Box, arXiv 1605.01713.

    `HardenedInputXGradient` and `safexplain.captum.InputXGradient` are the same class.

    Takes the arguments of `InputXGradient`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
    ) -> TensorOrTuple: ...

class IntegratedGradients(Hardened, captum.attr.IntegratedGradients):
    """Hardened IG. Integral of gradients from a baseline straight to the input, times their difference.

    Source: Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365.

    `HardenedIG` and `safexplain.captum.IntegratedGradients` are the same class.

    Takes the arguments of `IntegratedGradients`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: Literal[False] = False,
    ) -> TensorOrTuple: ...

class InternalInfluence(Hardened, captum.attr.InternalInfluence):
    """Hardened InternalInfluence. Integral of a layer's gradients from a baseline to the input.

    Source: Leino, Sen, Datta, Fredrikson, Li: Influence-Directed Explanations, arXiv 1802.03788.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedInternalInfluence` and `safexplain.captum.InternalInfluence` are the same class.

    Takes the arguments of `InternalInfluence`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        attribute_to_layer_input: bool = False,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class KernelShap(Hardened, captum.attr.KernelShap):
    """Hardened KernelShap. Shapley values of groups of features by a weighted linear regression on random coalitions.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    `HardenedKernelShap` and `safexplain.captum.KernelShap` are the same class.

    Takes the arguments of `KernelShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        return_input_shape: bool = True,
        show_progress: bool = False,
    ) -> TensorOrTuple: ...

class LRP(Hardened, captum.attr.LRP):
    """Hardened LRP. The output handed back layer by layer to what made it (layer-wise relevance propagation).

    Source: Bach, Binder, Montavon, Klauschen, Mueller, Samek: On Pixel-Wise Explanations, PLoS ONE 10(7), 2015.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLRP` and `safexplain.captum.LRP` are the same class.

    Takes the arguments of `LRP`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self, model: nn.Module, *, hardening: Hardening | None = None, model_digest: bytes | None = None
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        return_convergence_delta: Literal[False] = False,
        verbose: bool = False,
    ) -> TensorOrTuple: ...

class LayerActivation(Hardened, captum.attr.LayerActivation):
    """Hardened LayerActivation. The output of a layer.

    Source: none: the layer's output itself.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerActivation` and `safexplain.captum.LayerActivation` are the same class.

    Takes the arguments of `LayerActivation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        layer: nn.Module | list[nn.Module],
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        additional_forward_args: object | None = None,
        attribute_to_layer_input: bool = False,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerConductance(Hardened, captum.attr.LayerConductance):
    """Hardened LayerConductance. How much of the integrated gradients flows through each unit of a layer.

    Source: Dhamdhere, Sundararajan, Yan: How Important Is a Neuron?, arXiv 1805.12233.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerConductance` and `safexplain.captum.LayerConductance` are the same class.

    Takes the arguments of `LayerConductance`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: int | float | Tensor | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerDeepLift(Hardened, captum.attr.LayerDeepLift):
    """Hardened LayerDeepLift. DeepLift of a layer.

    Source: Shrikumar, Greenside, Kundaje: Learning Important Features, arXiv 1704.02685.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerDeepLift` and `safexplain.captum.LayerDeepLift` are the same class.

    Takes the arguments of `LayerDeepLift`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerDeepLiftShap(Hardened, captum.attr.LayerDeepLiftShap):
    """Hardened LayerDeepLiftShap. DeepLiftShap of a layer.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerDeepLiftShap` and `safexplain.captum.LayerDeepLiftShap` are the same class.

    Takes the arguments of `LayerDeepLiftShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | tuple[Tensor, ...] | Callable[..., Tensor | tuple[Tensor, ...]],
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: tuple[object, ...] | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerFeatureAblation(Hardened, captum.attr.LayerFeatureAblation):
    """Hardened LayerFeatureAblation. Change of the output when a layer's units are replaced.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerFeatureAblation` and `safexplain.captum.LayerFeatureAblation` are the same class.

    Takes the arguments of `LayerFeatureAblation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        layer_baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        layer_mask: Tensor | tuple[Tensor, ...] | None = None,
        attribute_to_layer_input: bool = False,
        perturbations_per_eval: int = 1,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerFeaturePermutation(Hardened, captum.attr.LayerFeaturePermutation):
    """Hardened LayerFeaturePermutation. Change of the output when a layer's units are shuffled.

    Source: Breiman: Random Forests, Machine Learning 45, 2001.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerFeaturePermutation` and `safexplain.captum.LayerFeaturePermutation` are the same class.

    Takes the arguments of `LayerFeaturePermutation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        layer_mask: TensorOrTuple | None = None,
        perturbations_per_eval: int = 1,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerGradCam(Hardened, captum.attr.LayerGradCam):
    """Hardened LayerGradCam. Grad-CAM, as Captum has it: without enlarging.

    Source: Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM, arXiv 1610.02391.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerGradCam` and `safexplain.captum.LayerGradCam` are the same class.

    Takes the arguments of `LayerGradCam`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = False,
        attr_dim_summation: bool = True,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerGradientShap(Hardened, captum.attr.LayerGradientShap):
    """Hardened LayerGradientShap. GradientShap of a layer.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerGradientShap` and `safexplain.captum.LayerGradientShap` are the same class.

    Takes the arguments of `LayerGradientShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: TensorOrTuple | Callable[..., TensorOrTuple],
        n_samples: int = 5,
        stdevs: float | tuple[float, ...] = 0.0,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerGradientXActivation(Hardened, captum.attr.LayerGradientXActivation):
    """Hardened LayerGradientXActivation. A layer's output times its gradient.

    Source: Shrikumar, Greenside, Shcherbina, Kundaje: Not Just a Black Box, arXiv 1605.01713.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerGradientXActivation` and `safexplain.captum.LayerGradientXActivation` are the same class.

    Takes the arguments of `LayerGradientXActivation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module | list[nn.Module],
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        memory_efficient: bool = False,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        attribute_to_layer_input: bool = False,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerIntegratedGradients(Hardened, captum.attr.LayerIntegratedGradients):
    """Hardened LayerIntegratedGradients. Integrated gradients of a layer.

    Source: Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerIntegratedGradients` and `safexplain.captum.LayerIntegratedGradients` are the same class.

    Takes the arguments of `LayerIntegratedGradients`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module | list[nn.Module],
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, ...]: ...

class LayerLRP(Hardened, captum.attr.LayerLRP):
    """Hardened LayerLRP. LRP of a layer.

    Source: Bach, Binder, Montavon, Klauschen, Mueller, Samek: On Pixel-Wise Explanations, PLoS ONE 10(7), 2015.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedLayerLRP` and `safexplain.captum.LayerLRP` are the same class.

    Takes the arguments of `LayerLRP`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module | list[nn.Module],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        return_convergence_delta: Literal[False] = False,
        attribute_to_layer_input: bool = False,
        verbose: bool = False,
    ) -> Tensor | tuple[Tensor, ...]: ...

class Lime(Hardened, captum.attr.Lime):
    """Hardened Lime. Weights of a sparse linear model fitted to the output around the input.

    Source: Ribeiro, Singh, Guestrin: "Why Should I Trust You?", arXiv 1602.04938.

    `HardenedLime` and `safexplain.captum.Lime` are the same class.

    Takes the arguments of `Lime`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        interpretable_model: Any | None = None,
        similarity_func: Callable[..., Any] | None = None,
        perturb_func: Callable[..., Any] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        return_input_shape: bool = True,
        show_progress: bool = False,
    ) -> TensorOrTuple: ...

class NeuronConductance(Hardened, captum.attr.NeuronConductance):
    """Hardened NeuronConductance. How much of the output reaches a neuron from each input feature.

    Source: Dhamdhere, Sundararajan, Yan: How Important Is a Neuron?, arXiv 1805.12233.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronConductance` and `safexplain.captum.NeuronConductance` are the same class.

    Takes the arguments of `NeuronConductance`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "riemann_trapezoid",
        internal_batch_size: int | None = None,
        attribute_to_neuron_input: bool = False,
        grad_kwargs: dict[str, Any] | None = None,
    ) -> TensorOrTuple: ...

class NeuronDeconvolution(Hardened, captum.attr.NeuronDeconvolution):
    """Hardened NeuronDeconvolution. Deconvolution from a neuron.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronDeconvolution` and `safexplain.captum.NeuronDeconvolution` are the same class.

    Takes the arguments of `NeuronDeconvolution`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> TensorOrTuple: ...

class NeuronDeepLift(Hardened, captum.attr.NeuronDeepLift):
    """Hardened NeuronDeepLift. DeepLift of a neuron.

    Source: Shrikumar, Greenside, Kundaje: Learning Important Features, arXiv 1704.02685.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronDeepLift` and `safexplain.captum.NeuronDeepLift` are the same class.

    Takes the arguments of `NeuronDeepLift`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> TensorOrTuple: ...

class NeuronDeepLiftShap(Hardened, captum.attr.NeuronDeepLiftShap):
    """Hardened NeuronDeepLiftShap. DeepLiftShap of a neuron.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronDeepLiftShap` and `safexplain.captum.NeuronDeepLiftShap` are the same class.

    Takes the arguments of `NeuronDeepLiftShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: TensorOrTuple | Callable[..., TensorOrTuple],
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
        custom_attribution_func: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> TensorOrTuple: ...

class NeuronFeatureAblation(Hardened, captum.attr.NeuronFeatureAblation):
    """Hardened NeuronFeatureAblation. Change of a neuron when features are replaced.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronFeatureAblation` and `safexplain.captum.NeuronFeatureAblation` are the same class.

    Takes the arguments of `NeuronFeatureAblation`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: TensorOrTuple | None = None,
        attribute_to_neuron_input: bool = False,
        perturbations_per_eval: int = 1,
    ) -> TensorOrTuple: ...

class NeuronGradient(Hardened, captum.attr.NeuronGradient):
    """Hardened NeuronGradient. Gradient of a neuron.

    Source: Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, arXiv 1312.6034.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronGradient` and `safexplain.captum.NeuronGradient` are the same class.

    Takes the arguments of `NeuronGradient`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> TensorOrTuple: ...

class NeuronGradientShap(Hardened, captum.attr.NeuronGradientShap):
    """Hardened NeuronGradientShap. GradientShap of a neuron.

    Source: Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronGradientShap` and `safexplain.captum.NeuronGradientShap` are the same class.

    Takes the arguments of `NeuronGradientShap`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: TensorOrTuple | Callable[..., TensorOrTuple],
        n_samples: int = 5,
        stdevs: float = 0.0,
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> TensorOrTuple: ...

class NeuronGuidedBackprop(Hardened, captum.attr.NeuronGuidedBackprop):
    """Hardened NeuronGuidedBackprop. Guided backpropagation from a neuron.

    Source: Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity, arXiv 1412.6806.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronGuidedBackprop` and `safexplain.captum.NeuronGuidedBackprop` are the same class.

    Takes the arguments of `NeuronGuidedBackprop`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module,
        device_ids: list[int] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        additional_forward_args: object | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> TensorOrTuple: ...

class NeuronIntegratedGradients(Hardened, captum.attr.NeuronIntegratedGradients):
    """Hardened NeuronIntegratedGradients. Integrated gradients of a neuron.

    Source: Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365.

    Runs on a private copy of the model, so that other threads may use the model meanwhile.

    `HardenedNeuronIntegratedGradients` and `safexplain.captum.NeuronIntegratedGradients` are the same class.

    Takes the arguments of `NeuronIntegratedGradients`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module,
        device_ids: list[int] | None = None,
        multiply_by_inputs: bool = True,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        neuron_selector: int | tuple[int | slice, ...] | Callable[[Tensor | tuple[Tensor, ...]], Tensor],
        baselines: Tensor | tuple[Tensor, ...] | None = None,
        additional_forward_args: object | None = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> TensorOrTuple: ...

class Occlusion(Hardened, captum.attr.Occlusion):
    """Hardened Occlusion. Change of the output when a window of the input is replaced by a baseline.

    Source: Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901.

    `HardenedOcclusion` and `safexplain.captum.Occlusion` are the same class.

    Takes the arguments of `Occlusion`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        sliding_window_shapes: tuple[int, ...] | tuple[tuple[int, ...], ...],
        strides: int | tuple[int, ...] | tuple[int | tuple[int, ...], ...] | None = None,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> TensorOrTuple: ...

class Saliency(Hardened, captum.attr.Saliency):
    """Hardened Saliency. Magnitude (or, with abs=False, value) of the gradient with respect to the input.

    Source: Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, arXiv 1312.6034.

    `HardenedSaliency` and `safexplain.captum.Saliency` are the same class.

    Takes the arguments of `Saliency`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        abs: bool = True,
        additional_forward_args: object | None = None,
    ) -> TensorOrTuple: ...

class ShapleyValueSampling(Hardened, captum.attr.ShapleyValueSampling):
    """Hardened ShapleyValueSampling. Mean contribution of a group of features over random orders of adding them to a baseline.

    Source: Castro, Gomez, Tejada: Polynomial calculation of the Shapley value based on sampling, 2009.

    `HardenedShapleyValueSampling` and `safexplain.captum.ShapleyValueSampling` are the same class.

    Takes the arguments of `ShapleyValueSampling`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor | Any],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: tuple[object, ...] | None = None,
        feature_mask: TensorOrTuple | None = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> TensorOrTuple: ...

class ShapleyValues(Hardened, captum.attr.ShapleyValues):
    """Hardened ShapleyValues. Mean contribution of a group of features over all orders: for a handful of groups.

    Source: Shapley: A Value for n-Person Games, 1953.

    `HardenedShapleyValues` and `safexplain.captum.ShapleyValues` are the same class.

    Takes the arguments of `ShapleyValues`, and two more.

    Args:
        hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be read; None for `safexplain.model_digest` of it.
    """
    def __init__(
        self,
        forward_func: Callable[..., int | float | Tensor | Any],
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def attribute(
        self,
        inputs: TensorOrTuple,
        baselines: Tensor | int | float | tuple[Tensor | int | float, ...] | None = None,
        target: int | tuple[int, ...] | Tensor | list[tuple[int, ...]] | list[int] | None = None,
        additional_forward_args: object | None = None,
        feature_mask: TensorOrTuple | None = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> TensorOrTuple: ...
