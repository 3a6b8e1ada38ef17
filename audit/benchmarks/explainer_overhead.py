"""What hardening adds to the time of an explanation: HardenedX over the native explainer, measured side by side.

Each round runs the native and the hardened explainer once, in alternating order, so that whatever else the machine does
falls on both; the figure is the median over rounds of the ratio of the two times, with its quartiles. Beside it stands
the ratio of the two shortest times, on which a busy machine has least influence. The target for integrated gradients is
at most 5 % (ratio 1.05).

    python audit/benchmarks/explainer_overhead.py [--all] [--rounds 15] [--threads 1] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import captum
import torch
from torchvision.models.resnet import BasicBlock, ResNet

import safexplain.explain
from safexplain.explain import CATALOG
from safexplain.hardening import Hardening

TARGET = 1.05
DEFAULT_OUT = Path(__file__).parents[1] / "results" / "explainer_overhead.json"


class Block(BasicBlock):  # type: ignore[misc]
    """ResNet-18's block with a module for each ReLU, which DeepLift needs; the arithmetic is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        """Features (batch, channels, height, width)."""
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.last_relu(inner + (x if self.downsample is None else self.downsample(x)))


def seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Seconds of both explainers, and their ratio round by round."""
    row = CATALOG[name]
    options = row.options(x) | ({"n_steps": 25} if name == "IG" else {})
    native = row.explainer(model)
    hardened = getattr(safexplain.explain, row.hardened_name)(model, hardening=Hardening.recommended(key=bytes(32)))
    calls = [lambda e=e: e.attribute(x, target=target, **options) for e in (native, hardened)]
    for call in calls:
        call()
    times: list[list[float]] = [[], []]
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            times[which].append(seconds(calls[which], x.device))
    ratios = [h / n for n, h in zip(*times, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "native_ms": round(1e3 * statistics.median(times[0]), 2),
        "hardened_ms": round(1e3 * statistics.median(times[1]), 2),
        "ratio_median": round(median, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
        "ratio_of_minima": round(min(times[1]) / min(times[0]), 4),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every method of the catalog, not IG alone")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = ResNet(Block, [2, 2, 2, 2], num_classes=10).eval().to(device)
    x = torch.randn(arguments.batch, 3, 32, 32, device=device)
    target = torch.randint(10, (arguments.batch,), device=device)
    results = {}
    for name in CATALOG if arguments.all else ["IG"]:
        results[name] = measure(name, model, x, target, arguments.rounds)
        print(f"{name:15}", results[name], flush=True)
    report = {
        "what": f"resnet18, batch {arguments.batch} x 3 x 32 x 32, IG with n_steps 25, Hardening.recommended()",
        "hardening": Hardening.recommended(key=bytes(32)).to_dict(),
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else processor(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "captum": captum.__version__,
            "torchvision": version("torchvision"),
        },
        "target": {"IG ratio_median": TARGET, "met": results["IG"]["ratio_median"] <= TARGET},
        "results": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"IG: {results['IG']['ratio_median']:.3f}, target {TARGET}; written to {arguments.out}")


if __name__ == "__main__":
    main()
