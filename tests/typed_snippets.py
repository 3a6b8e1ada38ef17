"""What users write, right and wrong: `tests/test_typing.py` runs mypy on it and expects the errors in the comments."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain import (
    GaussianNoise,
    HardenedGradCAM,
    HardenedIG,
    HardenedOcclusion,
    HardenedSaliency,
    HardenedSmoothGrad,
    Hardening,
    TopKMask,
    UnitNorm,
    harden,
    lime,
    shap,
)
from safexplain.aix360 import ProtodashExplainer
from safexplain.alibi import CEM as CEM  # error: attr-defined: Module "safexplain.alibi" has no attribute "CEM"
from safexplain.alibi import AnchorTabular, KernelShap
from safexplain.captum import IntegratedGradients, LayerGradCam
from safexplain.captum import NoiseTunnel as NoiseTunnel  # error: attr-defined: has no attribute "NoiseTunnel"
from safexplain.lime import LimeTabularExplainer


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    explainer = HardenedIG(model, hardening=Hardening(clip=UnitNorm(), noise=GaussianNoise(0.1, key=b"k" * 32)))
    return explainer.attribute(x, target=1, n_steps=25, method="gausslegendre")


def two_inputs(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return IntegratedGradients(model).attribute((x, y), target=[0, 1], baselines=0.0)


def a_misspelt_option(model: nn.Module, x: Tensor) -> Tensor:
    return HardenedIG(model).attribute(x, n_step=3)  # error: call-arg: Unexpected keyword argument "n_step"


def a_delta(model: nn.Module, x: Tensor) -> Tensor:
    return HardenedIG(model).attribute(x, return_convergence_delta=True)  # error: arg-type: "return_convergence_delta"


def a_hardening_by_name(model: nn.Module) -> HardenedIG:
    return HardenedIG(model, hardening="recommended")  # error: arg-type: expected "Hardening | None"


def a_mask_for_a_clip() -> Hardening:
    return Hardening(clip=TopKMask(0.1))  # error: arg-type: Argument "clip" to "Hardening"


def an_option_left_out(model: nn.Module, x: Tensor) -> Tensor:
    return HardenedOcclusion(model).attribute(x, target=0)  # error: call-arg: "sliding_window_shapes"


def another_answer(model: nn.Module, x: Tensor) -> None:
    top: int = HardenedSaliency(model).attribute(x, target=0)  # error: assignment: expression has type "Tensor"
    print(top)


def another_aggregate(model: nn.Module, x: Tensor) -> Tensor:
    tunnel = HardenedSmoothGrad(model)
    return tunnel.attribute(x, nt_type="vargrad", target=0)  # error: arg-type: expected "Literal['smoothgrad']"


def layers(model: nn.Module, layer: nn.Module, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    enlarged: Tensor = HardenedGradCAM(model, layer).attribute(x, target=0, interpolate_mode="bilinear")
    del enlarged
    return LayerGradCam(model, layer).attribute(x, target=0)


def a_layer_left_out(model: nn.Module) -> LayerGradCam:
    return LayerGradCam(model)  # error: call-arg: Missing positional argument "layer"


def certified(model: nn.Module, x: Tensor) -> Tensor:
    explainer: HardenedIG = HardenedIG.from_certificate(model, Path("certificate.json"), key_file="key")
    return explainer.attribute(x)


def uncertified(model: nn.Module) -> HardenedIG:
    return HardenedIG.from_certificate(model)  # error: call-arg: Missing positional argument "path"


def any_native_explainer(native: Any) -> Any:
    return harden(native, Hardening.recommended())


def anchors(predict: Any, rows: NDArray[np.float64]) -> Any:
    explainer = AnchorTabular(predict, ["age", "income"], seed=1).fit(rows, disc_perc=(25, 50, 75))
    return explainer.explain(rows[0], threshold=0.95).anchor


def nameless_anchors(predict: Any) -> AnchorTabular:
    return AnchorTabular(predict)  # error: call-arg: Missing positional argument "feature_names"


def kernels(predict: Any, rows: NDArray[np.float64]) -> Any:
    return KernelShap(predict, link="logit", seed=0).fit(rows).explain(rows, silent=True).shap_values


def prototypes(rows: NDArray[np.float64]) -> NDArray[Any]:
    weights, _, _ = ProtodashExplainer(public=rows).explain(rows[:1], m=3, kernelType="Gaussian")
    return weights


def tables(predict: Any, rows: NDArray[np.float64]) -> list[tuple[str, float]]:
    explainer = LimeTabularExplainer(rows, feature_names=["age", "income"], random_state=0)
    return explainer.explain_instance(rows[0], predict, num_features=2).as_list()


def reasons_up(predict: Any, rows: NDArray[np.float64]) -> Any:
    return LimeTabularExplainer(rows, mode="regression").explain_instance(rows[0], predict, direction="up")


def reasons_sideways(predict: Any, rows: NDArray[np.float64]) -> Any:
    explainer = LimeTabularExplainer(rows)
    return explainer.explain_instance(rows[0], predict, direction="left")  # error: arg-type: "direction"


def what_does_not_leave(predict: Any, rows: NDArray[np.float64]) -> Any:
    explanation = lime.lime_tabular.LimeTabularExplainer(rows).explain_instance(rows[0], predict)
    return explanation.intercept  # error: attr-defined: has no attribute "intercept"


def trees(model: Any, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return shap.TreeExplainer(model, rows).shap_values(rows, check_additivity=False)


def another_sample_count(model: Any, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    explainer = shap.KernelExplainer(model, shap.sample(rows, 10))
    return explainer.shap_values(rows, n_samples=100)  # error: call-arg: keyword argument "n_samples"
