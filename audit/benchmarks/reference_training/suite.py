"""Reference models one after the other: how many examples a second each setting of a recipe trains.

Every round trains one model of each variant on the same random images, in alternating order; a ratio is to the loop of
before in the same round: plain float32, images by channels, everything random drawn and moved for each batch. Compiling
is done before and said apart. From the median rate follows how long 256 models x 10,000 members x 30 epochs would take:
**an extrapolation**, as nothing near that is run. The goals are 30 minutes for ResNet-18 and 10 for the network of
airbench's size, on one H100. On a CPU processor time counts, the network is smaller, and there is no goal.

The latter has the size of airbench94's (arXiv 2404.00498, section 3: 2 x 2 whitening, then three blocks of two
convolutions of 64, 256 and 256 channels with GELU; 2 M parameters), without its initialisation, schedule and frozen
layer.

    python -m audit.benchmarks.reference_training --device cuda [--minutes 8] [--network NAME] [--out FILE]
    python -m audit.benchmarks.reference_training [--threads 1] [--minutes 4]       # a small network, on a CPU
    python -m audit.benchmarks.reference_training --quick                           # shows that everything works
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain.audit import Recipe
from safexplain.audit.references.compiled import forget
from safexplain.audit.references.training import train_models

from ...shared.run import RESULTS, provenance, table, write_json

MODELS, MEMBERS, EPOCHS = 256, 10_000, 30
GOALS = {"ResNet-18": 30.0, "airbench-sized": 10.0}
"""Minutes for all that, on one H100."""

BEFORE = "loop of before"


def block(channels: int, width: int) -> list[nn.Module]:
    """Two convolutions, the first one halving the sides."""
    first = (nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.GELU())
    return [*first, nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.GELU()]


def airbench_sized(seed: int) -> nn.Module:
    """Eight layers, 2 M parameters, for 3 x 32 x 32."""
    blocks = [*block(24, 64), *block(64, 256), *block(256, 256)]
    return nn.Sequential(
        nn.Conv2d(3, 24, 2), nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10, bias=False)
    )


def small(seed: int) -> nn.Module:
    """Four convolutions, 73 k parameters."""
    return nn.Sequential(*block(3, 32), *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet18(seed: int) -> nn.Module:
    """With the stem for small images: a 3 x 3 convolution, no pooling."""
    from torchvision.models import resnet18 as published

    model = published(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18": resnet18,
    "airbench-sized": airbench_sized,
    "small CNN": small,
}

FAST = {"precision": "bf16", "channels_last": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, channels last": {"channels_last": True},
    "float32, channels last, compiled": {"channels_last": True, "compile": True},
    "bf16": {"precision": "bf16"},
    "bf16, channels last": FAST,
    "bf16, channels last, compiled": FAST | {"compile": True},
    "bf16, channels last, compiled, batches 4 times as large": FAST | {"compile": True, "larger": 4},
}


def before(recipe: Recipe, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """The training loop as it was: everything drawn and moved for each batch."""
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)
    schedule = recipe.make_schedule(optimizer, recipe.steps_per_epoch(len(y)) * recipe.epochs)
    model.train()
    for _ in range(recipe.epochs):
        for index in torch.randperm(len(y), generator=generator).split(recipe.batch_sizes(len(y))):
            images = augmented(x[index.to(device)], recipe.augmentation, generator)
            loss = F.cross_entropy(model(images), y[index.to(device)])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()


def augmented(x: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Crops and flips as they were: drawn and moved for each batch, crops of a padded copy."""
    pad, (b, _, h, w) = x.shape[2] // 8, x.shape
    if kind == "none":
        return x
    if kind == "flip":
        mirrored = (torch.rand(b, generator=generator) < 0.5).to(x.device)
        return torch.where(mirrored[:, None, None, None], x.flip(3), x)
    rows, columns = (torch.randint(0, 2 * pad + 1, (b,), generator=generator) for _ in range(2))
    mirrored = (torch.rand(b, generator=generator) < 0.5).to(x.device)
    rows = (torch.arange(h)[None] + rows[:, None]).to(x.device)
    columns = (torch.arange(w)[None] + columns[:, None]).to(x.device)
    padded = F.pad(x, (pad, pad, pad, pad), mode="reflect").permute(0, 2, 3, 1)
    each = torch.arange(b, device=x.device)[:, None, None]
    found = padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return torch.where(mirrored[:, None, None, None], found.flip(3), found)


class Race:
    """One network, trained in every way."""

    def __init__(self, network: str, members: int, side: int, recipe: Recipe, device: str) -> None:
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(members, 3, side, side, generator=g).to(device)
        self.y = torch.randint(0, 10, (members,), generator=g).to(device)
        self.build, self.device, self.recipe = NETWORKS[network], device, recipe

    def examples_a_second(self, variant: str) -> float:
        """Of one model's whole training; of processor time on a CPU."""
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = self.build(0).to(self.device)
        g, options = torch.Generator().manual_seed(0), dict(VARIANTS.get(variant, {}))
        size = self.recipe.batch_size * options.pop("larger", 1)
        recipe = replace(self.recipe, batch_size=min(size, len(self.y)), **options)
        start = self.clock()
        if variant == BEFORE:
            before(recipe, model, self.x, self.y, g)
        else:
            train_models(recipe, [model], self.x, self.y, [torch.arange(len(self.y))], [g])
        return len(self.y) * recipe.epochs / (self.clock() - start)

    def clock(self) -> float:
        """Seconds, once all that was started is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


def measure(race: Race, seconds: float) -> dict[str, Any]:
    """Rates and ratios of all variants, round by round; at least three rounds."""
    first, order = {}, [BEFORE, *VARIANTS]
    for variant in order:
        start = time.perf_counter()
        race.examples_a_second(variant)
        first[variant] = time.perf_counter() - start
    rates: dict[str, list[float]] = {variant: [] for variant in order}
    start = time.perf_counter()
    while len(rates[BEFORE]) < 3 or time.perf_counter() - start < seconds:
        for variant in order if len(rates[BEFORE]) % 2 == 0 else order[::-1]:
            rates[variant].append(race.examples_a_second(variant))
    found = {}
    for variant in order:
        ratios = [a / b for a, b in zip(rates[variant], rates[BEFORE], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        rate = statistics.median(rates[variant])
        found[variant] = {
            "examples_a_second": round(rate, 1),
            "ratio_median": round(median, 3),
            "ratio_quartiles": [round(low, 3), round(high, 3)],
            "first_training_seconds": round(first[variant], 1),
            "rounds": len(ratios),
        }
    return found


def minutes_of_all(rate: float) -> float:
    """What all models of the goal would take at this rate."""
    return MODELS * MEMBERS * EPOCHS / rate / 60


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every goal is met by some setting or none applies, 1 otherwise."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--network", action="append", choices=tuple(NETWORKS), help="default: those that suit the device")
    p.add_argument("--minutes", type=float, default=4.0, help="for all networks; at least three rounds are run")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--augmentation", default="flip", choices=("none", "flip", "crop-flip"))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    p.add_argument("--out", type=Path)
    options = p.parse_args(argv)
    torch.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    members, side, epochs = (MEMBERS, 32, 5) if on_gpu and not options.quick else (1024, 32, 1)
    recipe = Recipe(
        optimizer="sgd", lr=0.01, epochs=epochs, batch_size=options.batch, schedule="cosine",
        augmentation=options.augmentation,
    )  # fmt: skip
    networks = options.network or (list(GOALS) if on_gpu else ["small CNN"])
    start, results = time.perf_counter(), {}
    for name in networks:
        race = Race(name, members, side, recipe, options.device)
        results[name] = measure(race, 0.0 if options.quick else 60 * options.minutes / len(networks))
        forget()
        print(table((f"{name}, {options.device}", "examples a second", "times as fast", "quartiles", "all, minutes"), [
            (variant, f"{r['examples_a_second']:,.0f}", f"{r['ratio_median']:.2f}",
             "{:.2f} to {:.2f}".format(*r["ratio_quartiles"]), f"{minutes_of_all(r['examples_a_second']):,.0f}")
            for variant, r in results[name].items()
        ]), flush=True)  # fmt: skip
    extrapolated = {
        name: {variant: round(minutes_of_all(r["examples_a_second"]), 1) for variant, r in found.items()}
        for name, found in results.items()
    }
    fastest = {name: min(extrapolated[name].values()) for name in results if on_gpu and name in GOALS}
    goals = {name: {"minutes": GOALS[name], "met": took <= GOALS[name]} for name, took in fastest.items()}
    report = {
        "benchmark": "reference_training",
        "what": f"one model after the other, {members:,} random images of 3 x {side} x {side}, batches of"
        f" {options.batch}, {epochs} epochs, SGD, augmentation {options.augmentation}; ratios to the"
        " loop of before in the same round",
        "measured_on": torch.cuda.get_device_name() if on_gpu else "a CPU, in processor time: says nothing of a GPU",
        "quick": options.quick,
        "results": results,
        "extrapolated_minutes": {
            "what": f"EXTRAPOLATED from these rates, not run: {MODELS} models x {MEMBERS:,} members x {EPOCHS} epochs",
            **extrapolated,
        },
        "goals_of_one_h100": goals,
        **provenance(time.perf_counter() - start, options.device),
    }
    suffix = ("_cuda" if on_gpu else "") + (".quick" if options.quick else "")
    out = options.out or RESULTS / f"reference_training{suffix}.json"
    write_json(out, report)
    print(f"goals: {goals or 'none on a CPU'}; written to {out}")
    return 0 if all(goal["met"] for goal in goals.values()) else 1
