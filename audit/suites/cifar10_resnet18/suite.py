"""The demo at CIFAR-10 scale, for a GPU: ResNet-18 on a pool of 20,000, native against recommended hardening.

17 models, each trained on the half of the pool that its coin flips chose, take turns as the target. Explained is the
predicted probability, by InputXGradient and Saliency; every attack of `safexplain.audit` runs on the native and on the
hardened maps, under a policy at 1 % FPR. Scalars are kept for all examples, whole maps for the first
`--map-examples` only (as half precision, scaled by the largest number of each map), which is what memory and disk
allow.

Three stages, each of which resumes where it was stopped, so that none needs to run longer than a scheduler's limit:

    python -m audit.suites.cifar10_resnet18 --stage train      # one file a finished model
    python -m audit.suites.cifar10_resnet18 --stage signals    # one file a model, explainer and hardening
    python -m audit.suites.cifar10_resnet18 --stage attack     # writes the results
    python -m audit.suites.cifar10_resnet18 --quick            # 400 images of 16 x 16, 3 models, 1 epoch; runs on a CPU
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain import Hardening, Probability
from safexplain._files import whole_file
from safexplain.audit import (
    ModelCache,
    Policy,
    Population,
    Recipe,
    Shadows,
    Signals,
    certify,
    collect_signals,
    train_shadows,
)
from safexplain.explain.wrap import HARDENED
from safexplain.verdict.judgement import AuditResult

from ...shared.run import Progress, Unusable, code_of, destination, load, parser, provenance, table, write_json

POLICY = Policy(fpr=0.01, patience=(1,))
EXPLAINERS = ("InputXGradient", "Saliency")
KEY = hashlib.sha256(b"safexplain audit/suites/cifar10_resnet18.py").digest()
HARDENINGS = {"native": Hardening.none(), "recommended": Hardening.recommended(key=KEY)}


@dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    pool: int
    models: int
    epochs: int
    map_examples: int
    stride: int
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        """Plain SGD, as ResNets on CIFAR-10 are usually trained; no augmentation, so that the model overfits."""
        return Recipe(
            optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, epochs=self.epochs, batch_size=128,
            schedule="cosine",
        )  # fmt: skip


def build(seed: int) -> nn.Module:
    """ResNet-18 with the stem for small images: a 3 x 3 convolution, no pooling."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def population(plan: Plan, folder: Path) -> tuple[Population, dict[str, str]]:
    arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
    images = arrays["x_train"][: plan.pool, :: plan.stride, :: plan.stride]
    x = (images.transpose(0, 3, 1, 2) / 255.0 - 0.47) / 0.25
    return Population.of(x, arrays["y_train"][: plan.pool]), source


def pick_device(options: Namespace) -> str:
    """cuda where it is there; a CPU would need days and must be asked for."""
    if options.device != "auto":
        return str(options.device)
    if torch.cuda.is_available():
        return "cuda"
    if options.cpu_anyway or options.quick:
        return "cpu"
    raise Unusable("no CUDA device was found; this suite needs hours on a CPU: pass --cpu-anyway or --quick")


def train(plan: Plan, pool: Population, device: str, cache: Path, progress: Progress) -> Shadows:
    """All models; those that are stored are only loaded."""
    return train_shadows(
        pool, plan.recipe, build=build, models=plan.models, seed=plan.seed, device=device,
        cache=ModelCache(cache / "models"), progress=progress,
    )  # fmt: skip


def explain(explainer: str, hardening: Hardening) -> Any:
    """A function (model, x, target) -> maps: the public hardened class, which is the native one without hardening."""
    kind = HARDENED[explainer]

    def call(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        maps: Tensor = kind(Probability(model), hardening=hardening).attribute(x, target=target)
        return maps

    return call


def signals_of_model(
    plan: Plan, shadows: Shadows, i: int, pool: Population, explainer: str, name: str, path: Path, progress: Progress
) -> None:
    """Explain the whole pool with one model and store what is kept of it."""
    if path.is_file():
        return
    one = Shadows(shadows.models[i : i + 1], shadows.membership[i : i + 1])
    found = collect_signals(
        one, pool, explain(explainer, HARDENINGS[name]), patience=(1,), batch_size=500, progress=progress
    )
    assert found.attributions is not None
    maps = found.attributions[0, : plan.map_examples]
    scale = np.maximum(np.abs(maps).max(1, keepdims=True), 1e-30)
    values = {name: of[0] for name, of in found.values.items()}
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, maps=(maps / scale).astype(np.float16), scale=scale, **values)


def stored(folder: Path, plan: Plan, explainer: str, name: str) -> list[Path]:
    return [folder / f"{explainer}-{name}-{i:02}.npz" for i in range(plan.models)]


def gather(paths: list[Path], membership: NDArray[np.bool_], plan: Plan) -> tuple[Signals, Signals]:
    """Scalars of all examples; and whole maps with the labels of the first ones."""
    if missing := [p.name for p in paths if not p.is_file()]:
        raise Unusable(f"{len(missing)} files of signals are missing ({missing[0]}, ...); run --stage signals first")
    files = [dict(np.load(p)) for p in paths]
    scalars = {k: np.stack([f[k] for f in files]) for k in files[0] if k not in ("maps", "scale")}
    maps = np.stack([f["maps"].astype(np.float32) * f["scale"].astype(np.float32) for f in files])
    some, side = slice(0, plan.map_examples), 32 // plan.stride
    label, shape = {"label": scalars["label"][:, some]}, {"shape": [3, side, side]}
    return Signals(membership, scalars), Signals(membership[:, some], label, maps, shape)


def attack(folder: Path, plan: Plan, membership: NDArray[np.bool_]) -> dict[str, Any]:
    """The scalar attacks on all examples and the attack on whole maps, for each explainer and hardening."""
    results: dict[str, Any] = {}
    for explainer in EXPLAINERS:
        for name in HARDENINGS:
            scalars, maps = gather(stored(folder, plan, explainer, name), membership, plan)
            found = {"scalars": certify(scalars, POLICY), "whole_maps": certify(maps, POLICY)}
            results[f"{explainer} {name}"] = {k: v.to_dict() for k, v in found.items()}
            print("\n" + show(f"{explainer}, {name}", found), flush=True)
    return results


def show(title: str, found: dict[str, AuditResult]) -> str:
    rows = [
        (f"{a.title}{' (fewer examples)' if part == 'whole_maps' else ''}", f"{a.auc:.3f}", f"{rate.tpr:.2%}",
         f"[{rate.low:.2%}, {rate.high:.2%}]")
        for part, result in found.items() for a in result.attacks for rate in [a.at(POLICY.fpr)]
    ]  # fmt: skip
    return table((title, "AUC", "TPR at 1 %", "interval"), rows) + "".join(f"\n{r.sentence}" for r in found.values())


def main(argv: list[str] | None = None) -> int:
    """Run one stage or all; 0 when it is done."""
    p = parser("cifar10_resnet18", __doc__)
    p.add_argument("--stage", choices=("train", "signals", "attack", "all"), default="all")
    p.add_argument("--device", default="auto", help="auto: cuda when there")
    p.add_argument("--cpu-anyway", action="store_true", help="run the full size without a GPU")
    p.add_argument("--models", type=int, default=17)
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--map-examples", type=int, default=2000, help="examples whose whole maps are kept and attacked")
    options = p.parse_args(argv)
    start, progress = time.perf_counter(), Progress()
    plan = (
        Plan(pool=400, models=3, epochs=1, map_examples=200, stride=2)
        if options.quick
        else Plan(20_000, options.models, options.epochs, options.map_examples, stride=1)
    )
    device = pick_device(options)
    warnings.filterwarnings("ignore", module="captum")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    pool, source = population(plan, options.data)
    print(f"{plan} on {device}", flush=True)
    shadows = train(plan, pool, device, options.cache, progress)
    print(f"{len(shadows.models)} models trained, {time.perf_counter() - start:.0f} s", flush=True)
    what = json.dumps([repr(plan), repr(HARDENINGS), source, code_of(__package__), device, _weights_digest(shadows)])
    folder = options.cache / "cifar10_resnet18" / hashlib.sha256(what.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    if options.stage in ("signals", "all"):
        for explainer in EXPLAINERS:
            for name in HARDENINGS:
                for i, path in enumerate(stored(folder, plan, explainer, name)):
                    progress.prefix = f"{explainer} {name}, model {i + 1} of {plan.models}: "
                    signals_of_model(plan, shadows, i, pool, explainer, name, path, progress)
        print(f"signals stored, {time.perf_counter() - start:.0f} s", flush=True)
    if options.stage in ("attack", "all"):
        report = {
            "suite": "cifar10_resnet18",
            "quick": options.quick,
            "plan": plan.__dict__,
            "results": attack(folder, plan, shadows.membership),
            "data": source,
            **provenance(time.perf_counter() - start, device),
        }
        out = destination(options)
        write_json(out, report)
        print(f"\nwritten to {out}")
    return 0


def _weights_digest(shadows: Shadows) -> str:
    h = hashlib.sha256()
    for model in shadows.models:
        for tensor in model.state_dict().values():
            h.update(tensor.cpu().numpy().tobytes())
    return h.hexdigest()
