"""What DeepLeak searches (arXiv 2601.03429): the ranges of its Algorithm 2, the options of its Algorithm 1.

`safexplain.explain.CATALOG` holds the options of the paper's Table VIII. Its released code ran others in places, which
stand here, in one table, and where a range would take hours of a CPU here, a part of it: `of_full` says what.

Its search is Optuna's with two objectives, 20 trials and the sampler that was the default then, NSGA-II with a
population of 50: the first 50 trials of that are drawn at random. So trials are drawn at random here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from captum._utils.models.linear_model import SkLearnLinearRegression

from safexplain import GaussianNoise, Hardening, RangeClip, ThresholdMask
from safexplain.explain import CATALOG

HARDENING: dict[str, tuple[float, float]] = {
    "clip_low": (-5.0, 0.0),
    "clip_high": (0.0, 5.0),
    "mask": (1e-4, 0.05),
    "noise": (0.001, 0.2),
}
"""Algorithm 2: what is drawn uniformly, in the unit of the attributions; the ranges of the released code."""

Draw = Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class Explainer:
    """One method of DeepLeak's fifteen, and what its search may change.

    Args:
        name: in the catalog.
        default: options as released, as far as they are affordable; Algorithm 2 applies where `draw` is None.
        draw: options of one trial of Algorithm 1.
        cost: 0 cheap, 1 dear, 2 very dear: which numbers of images and trials are used.
        of_full: what differs from the released code, in words.
        full: options of a full run instead of these.
    """

    name: str
    default: dict[str, Any] = field(default_factory=dict)
    draw: Draw | None = None
    cost: int = 0
    of_full: str = ""
    full: dict[str, Any] = field(default_factory=dict)

    def trials(self, number: int, seed: int, full: bool = False) -> list[tuple[dict[str, Any], Hardening]]:
        """Default first, then what is drawn, without repetitions: options, and hardening (none in Algorithm 1)."""
        rng, fixed = np.random.default_rng([seed, *self.name.encode()]), self.default | (self.full if full else {})
        found = [(fixed, Hardening.none())]
        for _ in range(8 * number):
            one = (fixed, drawn_hardening(rng)) if self.draw is None else (fixed | self.draw(rng), Hardening.none())
            if one not in found and len(found) <= number:
                found.append(one)
        return found


def drawn_hardening(rng: np.random.Generator) -> Hardening:
    """One trial of Algorithm 2: clip, then mask, then noise."""
    v = {name: float(rng.uniform(*between)) for name, between in HARDENING.items()}
    return Hardening(RangeClip(v["clip_low"], v["clip_high"]), ThresholdMask(v["mask"]), GaussianNoise(v["noise"]))


def _listed(name: str, *chosen: str) -> Draw:
    space = CATALOG[name].search_space
    return lambda rng: {k: space[k][int(rng.integers(len(space[k])))] for k in chosen}


def _superpixels(rng: np.random.Generator) -> dict[str, Any]:
    return {"n_segments": int(rng.integers(10, 101)), "compactness": float(rng.uniform(1, 50))}


def _stdevs(rng: np.random.Generator) -> dict[str, Any]:
    return {"stdevs": float(rng.uniform(0.01, 2.0))}


def _windows(rng: np.random.Generator) -> dict[str, Any]:
    """Windows of 4 to 24 pixels, at most 81 of them."""
    while True:
        size = int(rng.integers(4, 25))
        stride = int(rng.integers(max(1, size // 4), size + 1))
        if ((32 - size) // stride + 1) ** 2 <= 81:
            return {"sliding_window_shapes": (3, size, size), "strides": (3, stride, stride)}


_NOISE = "over gradients, as the methods are defined; released: over IntegratedGradients"
_SLIC = {"n_segments": 50, "compactness": 10.0}

EXPLAINERS: dict[str, Explainer] = {
    e.name: e
    for e in (
        Explainer("Saliency"),
        Explainer("InputXGradient"),
        Explainer("GuidedBackprop"),
        Explainer("Deconvolution", of_full="released: calls GuidedBackprop"),
        Explainer("DeepLift", of_full="released: crashes"),
        Explainer("GradCAM", {"interpolate_mode": "nearest", "attribute_to_layer_input": False},
                  _listed("GradCAM", "interpolate_mode", "attribute_to_layer_input"), of_full="released: a TypeError"),
        Explainer(
            "GradCAMPlusPlus", {"interpolate_mode": "nearest", "attribute_to_layer_input": False},
            _listed("GradCAMPlusPlus", "interpolate_mode", "attribute_to_layer_input"),
            of_full="released: GuidedGradCam under this name",
        ),
        Explainer(
            "IG", {"n_steps": 6, "method": "gausslegendre", "multiply_by_inputs": True},
            _listed("IG", "method", "multiply_by_inputs"), 1, "6 steps; released: 50", {"n_steps": 50},
        ),
        Explainer("SmoothGrad", {"nt_samples": 5, "stdevs": 1.0}, _stdevs, 1, _NOISE),
        Explainer("VarGrad", {"nt_samples": 5, "stdevs": 1.0}, _stdevs, 1, _NOISE),
        Explainer(
            "Occlusion", {"sliding_window_shapes": (3, 16, 16), "strides": (3, 4, 4)}, _windows, 1,
            "strides of 4, at most 81 windows; released: strides of 1", {"strides": (3, 1, 1)},
        ),
        Explainer("ShapleyValueSampling", {**_SLIC, "n_samples": 1}, _superpixels, 2,
                  "SHAP; 1 order; released: 25", {"n_samples": 25}),
        Explainer(
            "Lime", {**_SLIC, "n_samples": 25, "perturbations_per_eval": 25,
                     "interpretable_model": SkLearnLinearRegression()},
            lambda rng: {**_superpixels(rng), "n_samples": int(rng.integers(5, 26))}, 2,
            "kernel of Captum's default width; released: 1000",
        ),
    )
}  # fmt: skip
"""Name in the catalog -> what is searched; thirteen of the fifteen: ProtoDash and Anchors explain by no map."""
