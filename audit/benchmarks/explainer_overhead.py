"""What hardening adds to the time and memory of an explanation: HardenedX over the native explainer, side by side.

The figure is the median over rounds of the ratio of two times. Targets for the recommended hardening: at most 1.05 for
gradient methods and 1.02 for perturbation methods, at batch 32; with `--large`, ResNet-50 at 224, 1.02 for IG and 1.10
for Saliency. Memory is the highest resident size (on a GPU: allocation) during one call over that before it, in a
process of its own. `--gradients` compares our gradients with Captum's; see docs/evidence/captum-gradient.md.

    python -m audit.benchmarks.explainer_overhead [--all | --large | --gradients] [--memory] [--rounds 15]
        [--threads 1] [--out FILE]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from safexplain.explain import CATALOG
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening

from ..shared.run import finish, write_json
from .harness import Benchmark, Call, Turns, at_most, in_fresh_process, peak_mib, timed

TARGETS = {"gradient": 1.05, "perturbation": 1.02}
LARGE_TARGETS = {"IG": 1.02, "Saliency": 1.10}
SINGLE_PASS = ["Saliency", "InputXGradient", "GuidedBackprop", "Deconvolution", "LRP"]
"""Methods that take a pass or two, of which whatever is added is the largest share."""


class Block(BasicBlock):  # type: ignore[misc]
    """ResNet-18's block with a module for each ReLU, which DeepLift needs; the arithmetic is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        """Features (batch, channels, height, width)."""
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.last_relu(inner + (x if self.downsample is None else self.downsample(x)))


def methods(every: bool) -> list[str]:
    """Names of the rows to measure: those that explain inputs, and Grad-CAM's relatives."""
    rows = [row for row in CATALOG.values() if row.entry == "attribute"]
    wanted = [r.name for r in rows if r.of == "input" or r.library == "safexplain" or r.name == "GuidedGradCam"]
    return wanted if every else ["IG", *SINGLE_PASS]


def calls(name: str, batch: int, device: str, large: bool = False) -> dict[str, Call]:
    """The native call, the hardened one, and one hardened with noise."""
    torch.manual_seed(0)
    row = CATALOG[name]
    model = ResNet(Bottleneck, [3, 4, 6, 3]) if large else ResNet(Block, [2, 2, 2, 2], num_classes=10)
    model = model.eval().to(device)
    side = 224 if large else 32
    x = torch.randn(batch, 3, side, side, device=device)
    target = torch.randint(10, (batch,), device=device)
    chosen: dict[str, Any] = {"n_steps": 25} if name == "IG" else {}
    if row.family in ("perturbation", "approximation"):
        chosen["perturbations_per_eval"] = 16 if row.name not in ("KernelShap", "Lime") else 25
    options = row.options(x, chosen)
    layer = (model.layer2[-1],) if row.of == "layer" else ()
    native = row.explainer(model, *layer)
    kind = HARDENED[row.name]
    explainers = {
        "native": native,
        "hardened": kind(model, *layer, hardening=Hardening.recommended()),
        "with noise": kind(model, *layer, hardening=Hardening.ranked(key=bytes(32))),
    }
    return {which: lambda e=e: e.attribute(x, target=target, **options) for which, e in explainers.items()}


def measure(name: str, batch: int, device: str, rounds: int, limit: float, large: bool = False) -> dict[str, Any]:
    """Milliseconds of the native and the hardened explainer, and their ratios, until `limit` seconds are over."""
    turns = Turns(calls(name, batch, device, large), rounds, device=device, limit=limit)
    return {
        "family": CATALOG[name].family,
        "rounds": len(turns.judged["native"]),
        "native_ms": turns.ms("native"),
        "hardened_ms": turns.ms("hardened"),
        "ratio_median": turns.ratio("hardened", "native", 4),
        "ratio_quartiles": turns.quartiles("hardened", "native", 4),
        "with_noise_ratio_median": turns.ratio("with noise", "native", 4),
    }


def gradient_cases() -> dict[str, tuple[str, torch.nn.Module, torch.Tensor]]:
    """Words -> method, network and inputs."""
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).eval()
    rows = {0: torch.export.Dim("rows", min=1)}
    exported = torch.export.export(mlp, (torch.randn(4, 64),), dynamic_shapes=(rows,)).module()
    layers: list[torch.nn.Module] = []
    for inner, outer in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(inner, outer, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    cnn = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(1024, 10)).eval()
    resnet = ResNet(Block, [2, 2, 2, 2], num_classes=10).eval()
    table, images = torch.randn(256, 64), torch.randn(64, 3, 32, 32)
    return {
        "IG, 50 steps, 256 rows, MLP 64-32-10": ("IG", mlp, table),
        "the same network from torch.export": ("IG", exported, table),
        "Saliency, 5 rows, MLP": ("Saliency", mlp, table[:5]),
        "InputXGradient, 5 rows, MLP": ("InputXGradient", mlp, table[:5]),
        "GuidedBackprop, 5 rows, MLP": ("GuidedBackprop", mlp, table[:5]),
        "DeepLift, 5 rows, MLP": ("DeepLift", mlp, table[:5]),
        "IG, 50 steps, 5 rows, MLP": ("IG", mlp, table[:5]),
        "Saliency, 256 rows, MLP": ("Saliency", mlp, table),
        "InputXGradient, 256 rows, MLP": ("InputXGradient", mlp, table),
        "IG, 50 steps, 64 images 32 x 32, CNN of three convolutions": ("IG", cnn, images),
        "IG, 50 steps, 8 images 32 x 32, ResNet-18": ("IG", resnet, images[:8]),
        "Saliency, 32 images 32 x 32, ResNet-18": ("Saliency", resnet, images[:32]),
        "InputXGradient, 32 images 32 x 32, ResNet-18": ("InputXGradient", resnet, images[:32]),
    }


def compare_gradients(rounds: int, limit: float) -> dict[str, Any]:
    """Of each case the shortest times, native, without hardening and with the recommended one, the median ratios, and
    whether the bits without hardening are equal. A call of less than 10 ms is repeated ten times as often."""
    results = {}
    for words, (name, model, x) in gradient_cases().items():
        explainers = {
            "captum": CATALOG[name].explainer(model),
            "ours": HARDENED[name](model, hardening=Hardening.none()),
            "hardened": HARDENED[name](model, hardening=Hardening.recommended()),
        }
        target = model(x).argmax(1)
        asked = {
            which: partial(e.attribute, x.clone().requires_grad_(name != "IG"), target=target)
            for which, e in explainers.items()
        }
        equal = torch.equal(asked["captum"](), asked["ours"]())
        more = 10 if timed(asked["captum"])[0] < 0.01 else 1
        turns = Turns(asked, more * rounds, limit=limit)
        results[words] = {f"{which}_ms": turns.shortest_ms(which) for which in asked} | {
            "ratio_median": turns.ratio("ours", "captum"),
            "hardened_ratio_median": turns.ratio("hardened", "captum"),
            "equal_bits": equal,
        }
    return results


def peak_of(name: str, which: str, batch: int, device: str) -> float | None:
    """`peak_mib` of the second call of one explainer."""
    call = calls(name, batch, device)[which]
    call()
    return peak_mib(call, device)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met, 1 otherwise. What a run does not measure stays in the result."""
    run = Benchmark(
        "explainer_overhead",
        __doc__,
        argv,
        rounds=15,
        all={"action": "store_true", "help": "every method of the catalog, not those of a single pass and IG"},
        large={"action": "store_true", "help": "IG and Saliency of ResNet-50 at 224"},
        gradients={"action": "store_true", "help": "gradients as safexplain and as Captum takes them"},
        memory={"action": "store_true", "help": "measure memory as well, in processes of its own"},
        limit={"type": float, "default": 60.0, "help": "seconds for one method, after which rounds end"},
        batch=32,
    )
    options = run.options
    if options.quick:
        options.batch, options.limit = 2, 1.0
    before = json.loads(run.out.read_text()) if run.out.is_file() else {}
    if options.gradients:
        own: dict[str, Any] = {"results": compare_gradients(options.rounds, options.limit)}
        own |= run.provenance()
        write_json(run.out, {**before, "gradients": own})
        return 0 if all(r["equal_bits"] for r in own["results"].values()) else 1
    results = {}
    for name in LARGE_TARGETS if options.large else methods(options.all):
        results[name] = measure(name, options.batch, options.device, options.rounds, options.limit, options.large)
        for which in ("native", "hardened") if options.memory else ():
            results[name][f"{which}_peak_mib"] = in_fresh_process(peak_of, name, which, options.batch, options.device)
        print(f"{name:20}", results[name], flush=True)
    limits = LARGE_TARGETS if options.large else {n: TARGETS.get(r["family"]) for n, r in results.items()}
    network = "resnet50, batch {} x 3 x 224 x 224" if options.large else "resnet18, batch {} x 3 x 32 x 32"
    report = {
        "what": f"{network.format(options.batch)}, IG with n_steps 25, 16 groups of features, layer2 in"
        " methods of layers, Hardening.recommended(), and with noise Hardening.ranked()",
        "hardening": Hardening.recommended().to_dict(),
        "results": results,
        **{name: before[name] for name in ("gradients",) if name in before},
    }
    targets = {name: at_most(most, results[name]["ratio_median"]) for name, most in limits.items() if most}
    return run.conclude(report, targets)


if __name__ == "__main__":
    finish(main)
