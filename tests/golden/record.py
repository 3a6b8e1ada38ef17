"""What moving, merging and renaming modules must not change, computed from public names alone.

`python tests/golden/record.py` computes every subject again and overwrites the committed values; `python
tests/golden/record.py hardening ledger` does so for these subjects only. Run it only when a change of behaviour is
intended, in a commit of its own that says so: a move of code that needs it has changed something.

A subject is a function without arguments that returns plain values and arrays, nested in dicts. Arrays are kept in
`arrays.npz`, everything else in `values.json`. What a subject starts from (attributions, inputs, weights) lies in
`arrays.npz` too, under `given/`, and is read, never drawn again: models have the same digest on every machine, so that
keyed noise is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import safexplain
from safexplain import (
    GaussianNoise,
    Hardening,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    UnitNorm,
    dp,
    harden,
)

HERE = Path(__file__).parent
VALUES, ARRAYS = HERE / "values.json", HERE / "arrays.npz"
KEY = b"the golden record's noise key..."
ENVIRONMENT = {"SAFEXPLAIN_NOISE_KEY": KEY.decode()}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """These environment variables for a while, and the noise key where a hardening carries none."""
    variables = {**ENVIRONMENT, **variables}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# --- what subjects start from -----------------------------------------------------------------------------------------


def drawn() -> dict[str, np.ndarray]:
    """The first draw of everything under `given/`; kept ever after."""
    rng = np.random.default_rng(20240611)
    rows = rng.standard_t(3, (7, 12)).astype(np.float32)
    rows[1] = 0  # no direction at all
    rows[2, ::2] = 0
    rows[3] = rng.integers(-2, 3, 12)  # ties
    rows[4, :5] = (np.nan, np.inf, -np.inf, -0.0, 3e38)
    rows[5] = np.abs(rows[5])
    rows[6] *= 1e-30
    small = (rng.standard_t(3, (3, 1, 8, 8)) * 1e-3).astype(np.float32)
    small[1, 0, :, 3:6] = 0
    large = (rng.standard_t(3, (4, 1, 33, 33)) * 5).astype(np.float32)
    large[1, 0, 4:20] = 0
    large[2] = np.abs(large[2])
    large[3] = np.round(large[3])

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=shape) * scale).astype(np.float32)

    return {
        "rows": rows,
        "small": small,
        "large": large,
        "rows_asked": normal(7, 12),
        "small_asked": normal(3, 1, 8, 8),
        "large_asked": normal(4, 2),
        "images": normal(3, 1, 8, 8),
        "cnn/0.weight": normal(4, 1, 3, 3, scale=0.5),
        "cnn/0.bias": normal(4, scale=0.3),
        "cnn/2.weight": normal(6, 4, 3, 3, scale=0.4),
        "cnn/2.bias": normal(6, scale=0.3),
        "cnn/5.weight": normal(3, 96, scale=0.3),
        "cnn/5.bias": normal(3, scale=0.3),
        "table": normal(4, 6),
        "mlp/0.weight": normal(10, 6, scale=0.6),
        "mlp/0.bias": normal(10, scale=0.3),
        "mlp/2.weight": normal(2, 10, scale=0.6),
        "mlp/2.bias": normal(2, scale=0.3),
    }


@cache
def kept_arrays() -> dict[str, np.ndarray]:
    """Every committed array, by `subject/path`."""
    if not ARRAYS.exists():
        return {}
    with np.load(ARRAYS) as file:
        return {name: file[name] for name in file.files}


def given(name: str) -> np.ndarray:
    """One committed array to start from."""
    return kept_arrays()[f"given/{name}"].copy()


def weighted(net: nn.Module, name: str) -> nn.Module:
    """The network with its committed weights, in evaluation mode."""
    net.load_state_dict({k: torch.from_numpy(given(f"{name}/{k}")) for k in net.state_dict()})
    return net.eval()


def cnn() -> nn.Module:
    """A small network of images."""
    convolutions = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU()
    return weighted(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(96, 3)), "cnn")


def mlp() -> nn.Module:
    """A small network of tables."""
    return weighted(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2)), "mlp")


def digest(array: np.ndarray) -> str:
    """SHA-256 of type, shape and bytes."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


# --- 1. hardening -----------------------------------------------------------------------------------------------------

NOISE, TENTH = GaussianNoise(0.05, key=KEY), GaussianNoise(Relative(0.1), key=KEY)
HARDENINGS: dict[str, Hardening] = {
    "none": Hardening.none(),
    "recommended": Hardening.recommended(KEY),
    "range": Hardening(clip=RangeClip(-0.5, 0.75)),
    "norm": Hardening(clip=NormClip(0.9)),
    "unit": Hardening(clip=UnitNorm()),
    "unit 3": Hardening(clip=UnitNorm(3.0)),
    "rank": Hardening(clip=RankNorm()),
    "rank balanced": Hardening(clip=RankNorm(norm=2.0, shape=1.0, balanced_from=2)),
    "rank balanced from 1,024": Hardening(clip=RankNorm(balanced_from=1024)),
    "threshold": Hardening(mask=ThresholdMask(0.4)),
    "relative threshold": Hardening(clip=UnitNorm(), mask=ThresholdMask(Relative(0.8))),
    "top half": Hardening(mask=TopKMask(0.5)),
    "range, top fifth": Hardening(clip=RangeClip(-1, 1), mask=TopKMask(0.2)),
    "noise": Hardening(noise=NOISE),
    "noise on its own grid": Hardening(noise=NOISE, grid=0.03),
    "range, noise": Hardening(clip=RangeClip(-1, 2), noise=TENTH),
    "norm, threshold, noise": Hardening(clip=NormClip(1.5), mask=ThresholdMask(Relative(0.5)), noise=TENTH),
    "unit, top half, noise": Hardening(clip=UnitNorm(), mask=TopKMask(0.5), noise=TENTH),
    "rank, noise, grid": Hardening(clip=RankNorm(shape=2.0), noise=TENTH, grid=1 / 64),
    "grid": Hardening(grid=0.25),
}
SAMPLED = {"rows": 1, "small": 3, "large": 61}
"""Of the hardened numbers of each shape, every which one is kept beside their digest."""


def released_by(hardening: Hardening, name: str, kind: torch.dtype, target: Any = (1,)) -> np.ndarray:
    """The committed attributions of one shape, hardened."""
    asked = {"inputs": torch.from_numpy(given(f"{name}_asked")), "target": target}
    attributions = torch.from_numpy(given(name)).to(kind)
    with environment():
        return hardening(attributions, **asked, model_digest=b"model", method="golden").numpy()


def hardening() -> dict[str, Any]:
    """Every clip, mask, noise and grid on committed arrays, with a fixed key."""
    digests: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    for name, every in SAMPLED.items():
        for kind in (torch.float32, torch.float64):
            case = f"{name} {str(kind).removeprefix('torch.')}"
            released = {label: released_by(h, name, kind) for label, h in HARDENINGS.items()}
            digests[case] = {label: digest(array) for label, array in released.items()}
            samples[case] = np.stack([array.ravel()[::every] for array in released.values()])
    recommended, pair = HARDENINGS["recommended"], HARDENINGS["unit, top half, noise"]
    digests["rows float16"] = {"recommended": digest(released_by(recommended, "rows", torch.float16))}
    each = released_by(HARDENINGS["noise"], "rows", torch.float32, [*range(7)])
    digests["rows, a target each"] = {"noise": digest(each)}
    two = torch.from_numpy(given("rows")), torch.from_numpy(given("large"))[[0, 1, 2, 3, 0, 1, 2]]
    both = pair(two, inputs=(two[1], torch.from_numpy(given("rows_asked"))), target=None, method="golden")
    digests["two tensors"] = {str(i): digest(array.numpy()) for i, array in enumerate(both)}
    steps = {label: [h.noise_std(64), h.grid_step(64)] for label, h in HARDENINGS.items()}
    return {"digests": digests, "samples": samples, "noise and grid": steps, "machine": machine()}


def machine() -> dict[str, str]:
    """What rounding of elementary functions may differ with."""
    return {"torch": torch.__version__.split("+")[0], "vectors": torch.backends.cpu.get_cpu_capability()}


def hardening_json() -> dict[str, Any]:
    """The text of each hardening, which its noise is a function of, and what is read back from it."""
    return {
        label: {"json": h.to_json(), "read back": Hardening.from_json(h.to_json()).to_json(), "repr": repr(h)}
        for label, h in HARDENINGS.items()
    }


# --- 2. explainers ----------------------------------------------------------------------------------------------------


def explainers() -> dict[str, Any]:
    """What hardened explainers release about a network with committed weights: unhardened, clipped, and with noise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting (forward, )?backward hooks|You are providing multiple")  # of Captum
        return _explained()


def _explained() -> dict[str, Any]:
    from captum.attr import IntegratedGradients, Saliency

    images, net = torch.from_numpy(given("images")), cnn()
    zero, blocks = torch.zeros(1, 1, 8, 8), torch.arange(64).reshape(1, 1, 8, 8) // 8
    calls: dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]] = {
        name: (getattr(safexplain, f"Hardened{name}"), of, options)
        for name, of, options in (
            ("IG", (net,), {"n_steps": 12, "baselines": 0.1}),
            ("Saliency", (net,), {"abs": False}),
            ("InputXGradient", (net,), {}),
            ("GuidedBackprop", (net,), {}),
            ("Deconvolution", (net,), {}),
            ("DeepLift", (net,), {"baselines": 0.0}),
            ("SmoothGrad", (Saliency(net),), {"nt_samples": 4, "stdevs": 0.2, "abs": False}),
            ("VarGrad", (IntegratedGradients(net),), {"nt_samples": 4, "stdevs": 0.2, "n_steps": 5}),
            ("GradientShap", (net,), {"baselines": torch.cat([zero, zero + 0.2]), "n_samples": 4, "stdevs": 0.1}),
            ("Occlusion", (net,), {"sliding_window_shapes": (1, 3, 3), "strides": (1, 2, 2)}),
            ("KernelShap", (net,), {"n_samples": 40, "feature_mask": blocks}),
            ("Lime", (net,), {"n_samples": 40, "feature_mask": blocks}),
            ("GradCAM", (net,), {"interpolate_mode": "bilinear"}),
            ("GradCAMPlusPlus", (net, net[0]), {}),
        )
    }
    calls["harden"] = (lambda made, hardening: harden(made, hardening), (IntegratedGradients(net),), {"n_steps": 7})
    forms = {
        "plain": Hardening.none(),
        "unit": Hardening(clip=UnitNorm(), mask=TopKMask(0.5)),
        "noised": Hardening(clip=UnitNorm(), noise=GaussianNoise(Relative(0.5), key=KEY)),
        "recommended": Hardening.recommended(KEY),
    }
    found: dict[str, Any] = {}
    for name, (make, of, options) in calls.items():
        found[name] = {}
        for form, made in forms.items():
            torch.manual_seed(5)
            np.random.seed(5)  # noqa: NPY002 - GradientShap draws its baselines from it
            explainer = make(*of, hardening=made)
            with environment():
                released = explainer.attribute(images, target=torch.tensor([0, 1, 2]), **options)
            found[name][form] = released.numpy()
    table, tabular = torch.from_numpy(given("table")), mlp()
    for name in ("IG", "Saliency", "DeepLift"):
        explainer = getattr(safexplain, f"Hardened{name}")(tabular, hardening=forms["noised"])
        found[f"{name} of a table"] = {"noised": explainer.attribute(table, target=1).numpy()}
    return found


# --- 4. accounting ----------------------------------------------------------------------------------------------------

SETTINGS: tuple[tuple[float, float, int, float, str], ...] = (
    (1.0, 0.01, 100, 1e-5, "poisson"),
    (0.7, 0.05, 20, 1e-6, "poisson"),
    (5.5728, 0.25, 500, 1e-5, "poisson"),
    (2.0, 0.001, 5000, 1e-8, "poisson"),
    (1.0, 0.1, 1, 1e-5, "poisson"),
    (2.5, 0.25, 40, 1e-5, "fixed-size"),
    (4.0, 0.01, 1000, 1e-6, "fixed-size"),
    (3.6, 1.0, 20, 1e-5, "full-batch"),
    (40.0, 1.0, 300, 1e-9, "full-batch"),
    (0.0, 0.1, 10, 1e-5, "poisson"),
    (1.0, 0.1, 0, 1e-5, "poisson"),
    (0.3, 1.0, 1000, 1e-5, "full-batch"),
)


def accounting() -> dict[str, Any]:
    """Epsilons of steps, under each adjacency, and the noise and steps of budgets."""
    spent: dict[str, Any] = {}
    for sigma, rate, steps, delta, sampling in SETTINGS:
        found = dp.epsilons(sigma, rate, steps, delta, sampling=sampling)
        group = dp.group_privacy_epsilon(sigma, rate, steps, delta, sampling=sampling)
        spent[f"{sigma} {rate} {steps} {delta} {sampling}"] = {
            "add_remove": found.add_remove,
            "substitute": found.substitute,
            "zero_out": found.zero_out,
            "group": group,
        }
    phases = [dp.Steps(1.2, 0.05, 50), dp.Steps(2.0, 0.1, 30, "fixed-size"), dp.Steps(9.0, 1.0, 5, "full-batch")]
    together = dp.composed(phases, 1e-5)
    budgets = {
        f"{epsilon} {rate} {steps} {delta} {adjacency} {sampling}": dp.noise_multiplier(
            epsilon, rate, steps, delta, adjacency, sampling=sampling
        )
        for epsilon, rate, steps, delta, adjacency, sampling in (
            (8.0, 0.1, 100, 1e-5, "substitute", "poisson"),
            (1.0, 0.1, 100, 1e-5, "add_remove", "poisson"),
            (2.0, 0.2, 30, 1e-6, "substitute", "fixed-size"),
            (3.0, 1.0, 50, 1e-5, "zero_out", "full-batch"),
        )
    }
    within = {
        f"{epsilon} {sigma} {rate} {adjacency} {sampling}": dp.steps_within(
            epsilon, sigma, rate, 1e-5, adjacency, sampling=sampling
        )
        for epsilon, sigma, rate, adjacency, sampling in (
            (4.0, 1.5, 0.1, "substitute", "poisson"),
            (4.0, 1.5, 0.1, "add_remove", "poisson"),
            (2.0, 30.0, 1.0, "substitute", "full-batch"),
            (0.5, 0.5, 0.5, "substitute", "poisson"),
        )
    }
    return {
        "epsilons": spent,
        "composed": {name: together.of(name) for name in ("add_remove", "substitute", "zero_out")},
        "noise multipliers": budgets,
        "steps within": within,
        "sentence": str(dp.epsilons(3.6, 1.0, 20, 1e-5, sampling="full-batch")),
    }


# --- all of them ------------------------------------------------------------------------------------------------------

SUBJECTS: dict[str, Callable[[], dict[str, Any]]] = {
    "hardening": hardening,
    "hardening as JSON": hardening_json,
    "explainers": explainers,
    "accounting": accounting,
}


def parted(found: Any, path: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Nested values with `{"array": path}` in place of arrays, and the arrays by path."""
    if isinstance(found, np.ndarray):
        return {"array": path}, {path: found}
    if isinstance(found, Tensor):
        return parted(found.numpy(), path)
    if not isinstance(found, dict):
        return found, {}
    parts = {str(name): parted(value, f"{path}/{name}") for name, value in found.items()}
    return {name: value for name, (value, _) in parts.items()}, {k: v for _, a in parts.values() for k, v in a.items()}


def joined(values: Any) -> Any:
    """What `parted` took apart, from the committed arrays."""
    if not isinstance(values, dict):
        return values
    if values.keys() == {"array"}:
        return kept_arrays()[values["array"]]
    return {name: joined(value) for name, value in values.items()}


def kept(subject: str) -> dict[str, Any]:
    """The committed record of a subject."""
    return joined(json.loads(VALUES.read_text())[subject])


def main(subjects: list[str]) -> None:
    """Write the record of these subjects anew."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    if not any(name.startswith("given/") for name in kept_arrays()):
        kept_arrays().update({f"given/{name}": array for name, array in drawn().items()})
    values = json.loads(VALUES.read_text()) if VALUES.exists() else {}
    arrays = dict(kept_arrays())
    for subject in subjects or SUBJECTS:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(f"{subject}/")}
        values[subject], made = parted(SUBJECTS[subject](), subject)
        arrays |= made
    VALUES.write_text(json.dumps({name: values[name] for name in SUBJECTS}, indent=1) + "\n")
    np.savez_compressed(ARRAYS, **{name: arrays[name] for name in sorted(arrays)})
    print(f"{VALUES.name}: {VALUES.stat().st_size:,} bytes, {ARRAYS.name}: {ARRAYS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
