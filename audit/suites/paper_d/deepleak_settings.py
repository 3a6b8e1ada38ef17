"""What DeepLeak's released code ran, where that differs from its Table VIII (arXiv 2601.03429)."""

from typing import Any

_SUPERPIXELS: dict[str, Any] = {"n_segments": [10, 100], "compactness": [1.0, 50.0]}
_TUNNEL_RAN: dict[str, Any] = {
    "inner": "IntegratedGradients",
    "nt_samples": 5,
    "stdevs": [0.01, 2.0],
    "nt_samples_batch_size": 3,
}
_SURROGATE_RAN = {**_SUPERPIXELS, "n_samples": [1, 25], "target": "predicted class"}
_CAM_RAN = {"method": "GuidedGradCam on the last Conv2d", "interpolate_mode": "nearest"}

SETTINGS: dict[str, dict[str, Any]] = {
    "IG": {"n_steps": 50, "method": "gausslegendre"},
    "Deconvolution": {"method": "GuidedBackprop"},
    "SmoothGrad": _TUNNEL_RAN,
    "VarGrad": _TUNNEL_RAN,
    "Occlusion": {"sliding_window_shapes": (3, 16, 16), "strides": (3, 1, 1), "perturbations_per_eval": 5},
    "ShapleyValueSampling": {**_SUPERPIXELS, "n_samples": 25, "released as": "SHAP"},
    "KernelShap": _SURROGATE_RAN,
    "Lime": {**_SURROGATE_RAN, "interpretable_model": "linear regression", "kernel_width": 1000.0},
    "GradCAM": {"method": "failed with a TypeError"},
    "GradCAMPlusPlus": _CAM_RAN,
    "GuidedGradCam": {"released as": "GradCAM++"},
    "ProtoDash": {"sigma": 2.0, "kernelType": "other, in which sigma has no effect"},
}
"""Name in safexplain.explain.CATALOG -> the options that its code used, a range as a list."""
