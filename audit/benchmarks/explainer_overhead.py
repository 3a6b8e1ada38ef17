"""What hardening adds to the time and memory of an explanation: HardenedX over the native explainer, side by side.

Each round runs the native explainer, the hardened one, and one hardened with noise (`Hardening.ranked()`) once, in
alternating order, so that whatever else the machine does falls on all; the figure is the median over rounds of the
ratio of two processor times, which other processes disturb less than the time on the clock (on a GPU: of the times on
the clock). Its quartiles and the ratio of the two shortest times stand beside it. Targets, for the recommended
hardening: a ratio of at most 1.05 for gradient methods and 1.02 for perturbation methods, at batch 32; with `--large`,
ResNet-50 at 224, 1.02 for IG and 1.10 for Saliency. Memory is the highest resident size (on a GPU: the highest
allocation) during one call over that before it, in a process of its own.

With `--gradients` it compares our gradients with Captum's own, on networks from an MLP to a ResNet-18: the ratios of
times without hardening and with the recommended one, and whether the maps without have the same bits; see
docs/evidence/captum-gradient.md.

    python -m audit.benchmarks.explainer_overhead [--all | --large | --gradients] [--memory] [--rounds 15]
        [--threads 1] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from safexplain.explain import CATALOG
from safexplain.explain.wrap import HARDENED
from safexplain.hardening.hardening import Hardening

from ..shared.run import RESULTS, ROOT, peak_bytes, provenance, write_json

TARGETS = {"gradient": 1.05, "perturbation": 1.02}
LARGE_TARGETS = {"IG": 1.02, "Saliency": 1.10}
SINGLE_PASS = ["Saliency", "InputXGradient", "GuidedBackprop", "Deconvolution", "LRP"]
"""Methods that take a pass or two, of which whatever is added is the largest share."""
DEFAULT_OUT = RESULTS / "explainer_overhead.json"


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


def seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.process_time()
        call()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def calls(name: str, batch: int, device: torch.device, large: bool = False) -> tuple[Callable[[], object], ...]:
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
    hardenings = (Hardening.recommended(), Hardening.ranked(key=bytes(32)))
    explainers = (native, *(kind(model, *layer, hardening=hardening) for hardening in hardenings))
    return tuple(lambda e=e: e.attribute(x, target=target, **options) for e in explainers)


def measure(
    name: str, batch: int, device: torch.device, rounds: int, limit: float, large: bool = False
) -> dict[str, Any]:
    """Seconds of all explainers, and their ratios round by round, until `limit` seconds are over."""
    pair = calls(name, batch, device, large)
    for call in pair:
        call()
    times: list[list[float]] = [[], [], []]
    start = time.perf_counter()
    for i in range(rounds):
        for which in (0, 1, 2) if i % 2 == 0 else (2, 1, 0):
            times[which].append(seconds(pair[which], device))
        if time.perf_counter() - start > limit and i >= 2:
            break
    ratios = [h / n for n, h in zip(*times[:2], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "family": CATALOG[name].family,
        "rounds": len(ratios),
        "native_ms": round(1e3 * statistics.median(times[0]), 2),
        "hardened_ms": round(1e3 * statistics.median(times[1]), 2),
        "ratio_median": round(median, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "ratio_of_minima": round(min(times[1]) / min(times[0]), 4),
        "with_noise_ratio_median": round(statistics.median(h / n for n, h in zip(times[0], times[2], strict=True)), 4),
        "with_noise_ratio_of_minima": round(min(times[2]) / min(times[0]), 4),
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
        target = model(x).argmax(1)
        ours = (HARDENED[name](model, hardening=h) for h in (Hardening.none(), Hardening.recommended()))
        explainers = (CATALOG[name].explainer(model), *ours)
        asked = [partial(e.attribute, x.clone().requires_grad_(name != "IG"), target=target) for e in explainers]
        equal, times, start = torch.equal(asked[0](), asked[1]()), list[list[float]](), time.perf_counter()
        asked[2]()
        often = 10 * rounds if seconds(asked[0], x.device) < 0.01 else rounds
        while len(times) < often and (len(times) < 3 or time.perf_counter() - start < limit):
            times.append([seconds(call, x.device) for call in asked])
        native, plain, hardened = (list(column) for column in zip(*times, strict=True))
        results[words] = {
            "captum_ms": round(1e3 * min(native), 2),
            "ours_ms": round(1e3 * min(plain), 2),
            "ratio_median": round(statistics.median(b / a for a, b in zip(native, plain, strict=True)), 3),
            "equal_bits": equal,
            "hardened_ms": round(1e3 * min(hardened), 2),
            "hardened_ratio_median": round(statistics.median(b / a for a, b in zip(native, hardened, strict=True)), 3),
        }
        print(f"{words:60}", results[words], flush=True)
    return results


def peak_mib(name: str, which: int, batch: int, device: torch.device) -> float | None:
    """Highest memory during one call over that before it, in MiB; on a CPU on Linux only."""
    call = calls(name, batch, device)[which]
    call()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    extra = peak_bytes(call)
    return None if extra is None else round(extra / 2**20, 1)


def memory(name: str, batch: int, device: torch.device) -> dict[str, float | None]:
    """`peak_mib` of both explainers, each in a fresh process."""
    found = {}
    for which, key in enumerate(("native_peak_mib", "hardened_peak_mib")):
        command = [
            sys.executable,
            "-m",
            "audit.benchmarks.explainer_overhead",
            "--peak-of",
            name,
            str(which),
            "--batch",
            str(batch),
            "--device",
            str(device),
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found[key] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met, 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every method of the catalog, not IG alone")
    parser.add_argument("--large", action="store_true", help="IG and Saliency of ResNet-50 at 224")
    parser.add_argument("--gradients", action="store_true", help="gradients as safexplain and as Captum takes them")
    parser.add_argument("--memory", action="store_true", help="measure memory as well, in processes of its own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one method, after which rounds end")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="what it does not measure stays in it")
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.peak_of:
        name, which = arguments.peak_of
        print(json.dumps(peak_mib(name, int(which), arguments.batch, device)))
        return 0
    before = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    start, results = time.perf_counter(), {}
    if arguments.gradients:
        results = compare_gradients(arguments.rounds, arguments.limit)
        own = {"threads": arguments.threads, "results": results}
        own |= provenance(time.perf_counter() - start, arguments.device)
        write_json(arguments.out, {**before, "gradients": own})
        return 0 if all(r["equal_bits"] for r in results.values()) else 1
    for name in LARGE_TARGETS if arguments.large else methods(arguments.all):
        results[name] = measure(name, arguments.batch, device, arguments.rounds, arguments.limit, arguments.large)
        results[name] |= memory(name, arguments.batch, device) if arguments.memory else {}
        print(f"{name:20}", results[name], flush=True)
    limits = LARGE_TARGETS if arguments.large else {n: TARGETS.get(r["family"]) for n, r in results.items()}
    met = {name: results[name]["ratio_median"] <= most for name, most in limits.items() if most}
    network = "resnet50, batch {} x 3 x 224 x 224" if arguments.large else "resnet18, batch {} x 3 x 32 x 32"
    report = {
        "what": f"{network.format(arguments.batch)}, IG with n_steps 25, 16 groups of features, layer2 in"
        " methods of layers, Hardening.recommended(), and with noise Hardening.ranked()",
        "hardening": Hardening.recommended().to_dict(),
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "target": {"ratio_median": LARGE_TARGETS if arguments.large else TARGETS, "met": met},
        "results": results,
        **provenance(time.perf_counter() - start, arguments.device),
    }
    write_json(arguments.out, report | {name: before[name] for name in ("gradients",) if name in before})
    print(f"{sum(met.values())} of {len(met)} within their target; written to {arguments.out}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
