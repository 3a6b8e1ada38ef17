"""What no change may move unless it says so: releases, audits and canaries, computed from public names alone.

`python tests/golden/record.py hardening audits` computes these subjects again (all without arguments) and overwrites
the committed values, in a commit of its own. A subject is a function that returns plain values and arrays in dicts.
Arrays are kept in `arrays.npz`, all else in `values.json`; what subjects start from lies under `given/`, so that models
have the same digest, and keyed noise is the same, on every machine.
"""

import hashlib
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from verdicts import signal_files, whole_audits

import safexplain
from safexplain import (
    GaussianNoise,
    Hardening,
    Levels,
    NormClip,
    Probability,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    TopKSet,
    UnitNorm,
    audit,
    dp,
    harden,
)
from safexplain._versions import RELEASE_FORMAT
from safexplain.audit import canaries

HERE = Path(__file__).parent
VALUES, ARRAYS = HERE / "values.json", HERE / "arrays.npz"
FORMATS = HERE / "release_formats.json"
"""For each `RELEASE_FORMAT` the digests of what is released under it."""
KEY = b"the golden record's noise key..."
ENVIRONMENT = {"SAFEXPLAIN_NOISE_KEY": KEY.decode()}


def environment(**variables: str) -> Any:
    """These environment variables for a while, and the noise key where a hardening carries none."""
    return patch.dict(os.environ, {**ENVIRONMENT, **variables})


@cache
def kept_arrays() -> dict[str, np.ndarray]:
    """Every committed array: those under `given/`, and for each subject one vector of each type."""
    with np.load(ARRAYS) as file:
        return {name: file[name] for name in file.files}


def given(name: str) -> np.ndarray:
    return kept_arrays()[f"given/{name}"].copy()


def weighted(net: nn.Module, name: str) -> nn.Module:
    net.load_state_dict({k: torch.from_numpy(given(f"{name}/{k}")) for k in net.state_dict()})
    return net.eval()


def cnn() -> nn.Module:
    convolutions = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU()
    return weighted(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(96, 3)), "cnn")


def mlp() -> nn.Module:
    return weighted(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2)), "mlp")


def digest(array: np.ndarray) -> str:
    """Half of the SHA-256 of type, shape and bytes."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


NOISE, TENTH = GaussianNoise(0.05, key=KEY), GaussianNoise(Relative(0.1), key=KEY)
HARDENINGS: dict[str, Hardening] = {
    "none": Hardening.none(),
    "recommended": Hardening.recommended(),
    "ranked": Hardening.ranked(KEY),
    "set": Hardening(clip=TopKSet(k=3)),
    "levels": Hardening(clip=Levels(3)),
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
SAMPLED = {"rows": 1, "small": 5, "large": 121}
"""Of the hardened numbers of each shape, every which one is kept beside their digest."""


def released_by(hardening: Hardening, name: str, kind: torch.dtype, target: Any = (1,)) -> np.ndarray:
    asked = {"inputs": torch.from_numpy(given(f"{name}_asked")), "target": target}
    attributions = torch.from_numpy(given(name)).to(kind)
    with environment():
        return hardening(attributions, **asked, model_digest=b"model", method="golden").numpy()


def hardening() -> dict[str, Any]:
    digests: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    for name, every in SAMPLED.items():
        for kind in (torch.float32, torch.float64):
            case = f"{name} {str(kind).removeprefix('torch.')}"
            released = {label: released_by(h, name, kind) for label, h in HARDENINGS.items()}
            digests[case] = {label: digest(array) for label, array in released.items()}
            samples[case] = np.stack([array.ravel()[::every] for array in released.values()])
            every *= 2  # of float64
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


def explainers() -> dict[str, Any]:
    """What hardened explainers release about a network with committed weights: unhardened and with noise."""
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
        "noised": Hardening(clip=UnitNorm(), noise=GaussianNoise(Relative(0.5), key=KEY)),
        "recommended": Hardening.recommended(),
        "ranked": Hardening.ranked(KEY),
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


MODELS, TARGETS, EXAMPLES = 11, 3, 200


def pool() -> audit.Population:
    """Digits of 4 x 4 pixels with labels of no meaning, which only memory can tell."""
    from sklearn.datasets import load_digits

    pixels = load_digits().images[:EXAMPLES].reshape(EXAMPLES, 4, 2, 4, 2).sum((2, 4)).reshape(EXAMPLES, 16) / 16 - 2
    return audit.Population.of(pixels, np.random.default_rng(3).integers(0, 3, EXAMPLES))


def untrained(seed: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3))


RECIPE = audit.Recipe(optimizer="sgd", lr=0.05, epochs=100, batch_size=20)


def training() -> dict[str, Any]:
    population = pool()
    shadows = audit.train_shadows(population, RECIPE, build=untrained, models=MODELS, seed=1)
    weights = [nn.utils.parameters_to_vector(m.parameters()).detach().numpy() for m in shadows.models]
    return {
        "population": population.digest(),
        "members": digest(shadows.membership),
        "recipe": RECIPE.to_toml(),
        "weights": np.stack(weights),
    }


def trained() -> audit.Shadows:
    models = [untrained() for _ in range(MODELS)]
    for model, weights in zip(models, kept("training")["weights"], strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())
        model.eval().requires_grad_(False)
    return audit.Shadows(tuple(models), pool().flip(MODELS, seed=1))


ATTACKS = ("Threshold", "LikelihoodRatio")
EASY = {"patience": (1, 3), "references": 4, "uncounted": True}
STRICT = audit.Policy(0.2, 0.3, claim="whole", release="explanation+prediction", suite=ATTACKS, **EASY)
LENIENT = audit.Policy(fpr=0.1, max_tpr=0.75, training=0.2, **EASY)


def audits() -> dict[str, Any]:
    population, shadows = pool(), trained()

    def explained_by(made: Hardening) -> Callable[..., Tensor]:
        def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
            return safexplain.HardenedInputXGradient(Probability(model), hardening=made).attribute(x, target=target)

        return explain

    found: dict[str, Any] = {}
    for name, made, policy in (("native", Hardening.none(), STRICT), ("hardened", Hardening.recommended(), LENIENT)):
        signals = audit.collect_signals(
            shadows,
            population,
            explained_by(made),
            targets=tuple(range(TARGETS)),
            patience=(1, 3),
            dither=audit.Dither(seed=4),
            classes=(0, 2),
            keep_inputs=True,
        )
        found[name] = {
            "signals": {signal: values[:3, ::40] for signal, values in sorted(signals.values.items())},
            "maps": signals.attributions[:2, ::25],
            "about": dict(signals.meta),
        }
        with tempfile.TemporaryDirectory() as folder, environment(SAFEXPLAIN_USES=f"{folder}/uses.sqlite"):
            result = audit.certify(signals, policy, seed=2)
        about = {"exit code": result.exit_code, "strongest": result.strongest.code}
        found[name]["judged"] = unnumbered(shortened(result.to_dict())) | about
    return found


def shortened(content: dict[str, Any]) -> dict[str, Any]:
    """An audit's JSON with the rates of its first attack only, and one number for each of the others."""
    areas = {f"{a['attack']} {a['signal']}": a["auc"] for a in content["attacks"]}
    counted = ("role", "upper_bound_count", "lower_bound_count")
    counts = {f"{e['attack']} {e['signal']}": [e[name] for name in counted] for e in content["evidence"]}
    first = {name: content[name][:1] for name in ("attacks", "evidence")}
    others = [shortened(other) for other in content["others"]]
    return {**content, **first, "others": others, "areas": areas, "counts": counts}


ELSEWHERE = ("checksum", "environment", "materials", "subject", "accountant", "weights", "version")
"""Names of digests, times and versions, of which only that they are there is recorded."""


def unnumbered(content: Any) -> Any:
    """JSON types without what lies `ELSEWHERE`, and sentences without numbers and the strongest attack's name."""
    if isinstance(content, dict):
        return {
            name: (sorted(value) if isinstance(value, dict) else type(value).__name__)
            if name in ELSEWHERE
            else unnumbered(value)
            for name, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [unnumbered(value) for value in content]
    if isinstance(content, str):
        return re.sub(r"(?<![A-Za-z_])\d[\d.,]*", "#", re.sub(r"attack \(.*\) finds", "attack (#) finds", content))
    return content


def canary_runs() -> dict[str, Any]:
    large = canaries.preset("logit-768")
    recipe = replace(large.recipe, steps=12, sample_rate=1.0, expected_batch_size=50.0, lr=0.5, bias=True)
    claim = canaries.Claim(dp.Steps(3.0, 1.0, 12, "full-batch"), 1e-5)
    aside = large.auxiliary[0][:50, :20], large.auxiliary[1][:50]
    small = replace(large, x=large.x[:50, :20], y=large.y[:50], recipe=recipe, claim=claim, auxiliary=aside)
    runs = {
        scenario: canaries.run_canaries(small, scenario, runs=100, every=6, seed=2).to_dict()
        for scenario in ("worst-case", "gradient", "crafted", "mislabelled", "natural")
    }
    timed = ("seconds", "seconds_per_run")
    return {
        "preset": dict(large.describe()),
        "runs": {name: unnumbered({k: v for k, v in run.items() if k not in timed}) for name, run in runs.items()},
    }


SUBJECTS: dict[str, Callable[[], dict[str, Any]]] = {
    "hardening": hardening,
    "hardening as JSON": hardening_json,
    "explainers": explainers,
    "training": training,
    "audits": audits,
    "signal files": signal_files,
    "whole audits": whole_audits,
    "canary runs": canary_runs,
}


class Packed:
    """Arrays of a subject, end to end in one vector for each type."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.parts: dict[str, list[np.ndarray]] = {}

    def put(self, array: np.ndarray) -> dict[str, Any]:
        """Keep an array, and say where it lies."""
        name = f"{self.subject}/{array.dtype.name}"
        parts = self.parts.setdefault(name, [])
        place = {"array": name, "start": sum(map(len, parts)), "shape": list(array.shape)}
        parts.append(array.ravel())
        return place

    def vectors(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts) for name, parts in self.parts.items()}


def parted(found: Any, packed: Packed) -> Any:
    """Nested values as JSON types, with places in the packed vectors instead of arrays."""
    if isinstance(found, np.ndarray):
        return packed.put(found)
    if isinstance(found, np.generic):
        return found.item()
    if isinstance(found, list | tuple):
        return [parted(value, packed) for value in found]
    return {str(k): parted(v, packed) for k, v in found.items()} if isinstance(found, dict) else found


def joined(values: Any) -> Any:
    """What `parted` took apart, from the committed arrays."""
    if isinstance(values, list):
        return [joined(value) for value in values]
    if not isinstance(values, dict):
        return values
    if values.keys() == {"array", "start", "shape"}:
        shape, start = values["shape"], values["start"]
        return kept_arrays()[values["array"]][start : start + math.prod(shape)].reshape(shape)
    return {name: joined(value) for name, value in values.items()}


@cache
def kept_values() -> dict[str, Any]:
    return json.loads(VALUES.read_text())


def kept(subject: str) -> dict[str, Any]:
    return joined(kept_values()[subject])


RELEASES = ("hardening", "hardening as JSON", "explainers")
"""Subjects that are what certified explainers release, and what their noise is a function of."""


def release_digests() -> dict[str, str]:
    """Of everything that the committed record says is released: a name -> a digest."""
    found: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{path}/{name}")
        elif isinstance(value, np.ndarray):
            found[path] = digest(value)[:16]
        else:
            found[path] = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

    for subject in RELEASES:
        content = kept(subject)
        for name in content.keys() - {"samples", "machine"}:  # rows of one array; where it was made
            walk(content[name], f"{subject}/{name}")
    return dict(sorted(found.items()))


def moved(recorded: dict[str, str], present: dict[str, str]) -> list[str]:
    """What was released before and is another number now, or gone; what is new moves nothing."""
    return [name for name, value in recorded.items() if present.get(name) != value]


def release_formats() -> dict[str, dict[str, str]]:
    return json.loads(FORMATS.read_text())


def record_format() -> None:
    """Keep the digests of the record under the present format; SystemExit where they are another format's."""
    known, present = release_formats(), release_digests()
    if other := moved(known.get(str(RELEASE_FORMAT), {}), present):
        raise SystemExit(
            f"{len(other)} releases are other numbers than release format {RELEASE_FORMAT} has: {', '.join(other[:5])}."
            " Certificates name this format: count RELEASE_FORMAT in safexplain/_versions/__init__.py up, say so in"
            " CHANGELOG.md under Privacy, and run this again; or restore tests/golden"
        )
    FORMATS.write_text(written({**known, str(RELEASE_FORMAT): present}) + "\n")


def written(values: Any, depth: int = 4) -> str:
    """JSON with a line for each entry of the outer levels."""
    if depth == 0 or not isinstance(values, dict) or not values:
        return json.dumps(values)
    lines = [f"{json.dumps(str(name))}: {written(value, depth - 1)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def main(subjects: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    values, arrays = kept_values(), kept_arrays()
    for subject in subjects or SUBJECTS:
        packed = Packed(subject)
        values[subject] = parted(SUBJECTS[subject](), packed)
        for name in [name for name in arrays if name.startswith(f"{subject}/")]:
            del arrays[name]
        arrays.update(packed.vectors())  # for subjects that go on from this one, too
    VALUES.write_text(written({name: values[name] for name in SUBJECTS if name in values}) + "\n")
    np.savez_compressed(ARRAYS, **{name: arrays[name] for name in sorted(arrays)})
    kept_values.cache_clear()
    kept_arrays.cache_clear()
    record_format()


if __name__ == "__main__":
    main(sys.argv[1:])
