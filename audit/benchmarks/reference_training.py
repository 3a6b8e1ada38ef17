"""Reference models one after the other: how many examples a second each setting of a recipe trains.

Every round trains one model of each variant on the same random images; a ratio is to plain float32, images by channels,
in the same round. How long 256 models x 10,000 members x 30 epochs would take is **an extrapolation**; the goals on an
H100 are 30 minutes for ResNet-18 and 10 for a network of airbench94's size (arXiv 2404.00498, section 3; 2 M
parameters). On a CPU processor time counts, the network is smaller, and there is no goal.

    python -m audit.benchmarks.reference_training --device cuda [--minutes 8] [--network NAME] [--out FILE]
    python -m audit.benchmarks.reference_training [--threads 1] [--minutes 4]       # a small network, on a CPU
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain.audit import Recipe
from safexplain.audit.references.recipe import forget
from safexplain.audit.references.shadows import train_models

from ..shared.run import finish
from .harness import LEAST_ROUNDS, Benchmark, Turns, at_most

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
    BEFORE: {},
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


class Trainings:
    """One network, trained in every way."""

    def __init__(self, network: str, members: int, recipe: Recipe, device: str) -> None:
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(members, 3, 32, 32, generator=g).to(device)
        self.y = torch.randint(0, 10, (members,), generator=g).to(device)
        self.recipe, self.device = recipe, device
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.untrained = NETWORKS[network](0).to(device)

    def train(self, variant: str) -> None:
        """One model."""
        model, g, options = copy.deepcopy(self.untrained), torch.Generator().manual_seed(0), dict(VARIANTS[variant])
        size = self.recipe.batch_size * options.pop("larger", 1)
        recipe = replace(self.recipe, batch_size=min(size, len(self.y)), **options)
        if variant == BEFORE:
            before(recipe, model, self.x, self.y, g)
        else:
            train_models(recipe, [model], self.x, self.y, [torch.arange(len(self.y))], [g])

    def measure(self, seconds: float) -> dict[str, Any]:
        """Rates of all variants, and their ratios to the loop of before; at least three rounds."""
        calls = {variant: partial(self.train, variant) for variant in VARIANTS}
        rounds = LEAST_ROUNDS if seconds == 0 else 10**6
        turns = Turns(calls, rounds, device=self.device, limit=seconds)
        return {
            variant: {
                "examples_a_second": round(
                    len(self.y) * self.recipe.epochs / statistics.median(turns.judged[variant]), 1
                ),
                "ratio_median": turns.ratio(BEFORE, variant),
                "ratio_quartiles": turns.quartiles(BEFORE, variant),
                "first_training_seconds": round(turns.first[variant], 1),
                "rounds": len(turns.judged[variant]),
            }
            for variant in VARIANTS
        }


def minutes_of_all(rate: float) -> float:
    """What all models of the goal would take at this rate."""
    return round(MODELS * MEMBERS * EPOCHS / rate / 60, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every goal is met by some setting or none applies, 1 otherwise."""
    run = Benchmark(
        "reference_training",
        __doc__,
        argv,
        rounds=0,
        network={"action": "append", "choices": tuple(NETWORKS), "help": "default: those that suit the device"},
        minutes={"type": float, "default": 4.0, "help": "for all networks; at least three rounds are run"},
        batch=128,
        augmentation={"default": "flip", "choices": ("none", "flip", "crop-flip")},
    )
    options = run.options
    on_gpu = options.device == "cuda"
    members, epochs = (MEMBERS, 5) if on_gpu and not options.quick else (1024, 1)
    recipe = Recipe(
        optimizer="sgd", lr=0.01, epochs=epochs, batch_size=options.batch, schedule="cosine",
        augmentation=options.augmentation,
    )  # fmt: skip
    networks = options.network or (list(GOALS) if on_gpu else ["small CNN"])
    results, minutes, goals = {}, dict[str, Any](), dict[str, Any]()
    for name in networks:
        seconds = 0.0 if options.quick else 60 * options.minutes / len(networks)
        results[name] = Trainings(name, members, recipe, options.device).measure(seconds)
        forget()
        minutes[name] = {variant: minutes_of_all(r["examples_a_second"]) for variant, r in results[name].items()}
        if on_gpu and name in GOALS:
            goals[f"{name}, minutes"] = at_most(GOALS[name], min(minutes[name].values()))
    report = {
        "what": f"one model after the other, {members:,} random images of 3 x 32 x 32, batches of {options.batch},"
        f" {epochs} epochs, SGD, augmentation {options.augmentation}; ratios to the loop of before in the same round",
        "measured_on": torch.cuda.get_device_name() if on_gpu else "a CPU, in processor time: says nothing of a GPU",
        "results": results,
        "extrapolated_minutes": {
            "what": f"EXTRAPOLATED from these rates, not run: {MODELS} models x {MEMBERS:,} members x {EPOCHS} epochs",
            **minutes,
        },
    }
    return run.conclude(report, goals)


if __name__ == "__main__":
    finish(main)
