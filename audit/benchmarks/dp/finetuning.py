"""Time and memory of one DP-SGD step of a whole vision transformer: this package beside Opacus, on one model.

Every way takes the same step on the same batch: flat clipping at 1, noise, SGD. Times are those on the clock; the ratio
to Opacus' ghost clipping is the median over rounds of the ratio within a round. Memory is the highest in a process of
its own: on the GPU as torch counts it, on the CPU the resident size. "plain noise" draws one number where `float_safe`
draws four, as Opacus does without its secure mode. The target is a ratio of at most 1.05 for ghost.

    python -m audit.benchmarks.dp.finetuning [--device cuda] [--batch 32] [--rounds 9] [--out FILE]
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from safexplain.dp import FlatClipping
from safexplain.dp.models.prepare import Mode, prepare
from safexplain.dp.sgd.steps import make_step
from safexplain.dp.sgd.train_loop import cross_entropy

from ...shared.run import finish
from ..harness import Benchmark, Turns, at_most, in_fresh_process

TARGET = 1.05
REFERENCE = "Opacus, ghost"
Step = Callable[[], None]


def transformer(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A ViT of 2.7 M parameters for 32 x 32 images, position embeddings and class token frozen; and SGD."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    model = prepare(model, "all").to(device)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)


def images(size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and its labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(0, 10, (size,), generator=generator).to(device)


def ours(mode: Mode, float_safe: bool, size: int, device: str) -> Step:
    """A step of `make_step`."""
    model, optimizer = transformer(device)
    step = make_step(
        model, optimizer, clipping=FlatClipping(1.0), noise_multiplier=1.0, expected_batch_size=size,
        loss=cross_entropy, mode=mode, float_safe=float_safe,
    )  # fmt: skip
    x, y = images(size, device)

    def run() -> None:
        step.accumulate(x, y)
        step.step()

    return run


def opacus(mode: Mode, size: int, device: str) -> Step:
    """A step as Opacus' tutorials take it."""
    model, optimizer = transformer(device)
    options = {"noise_multiplier": 1.0, "expected_batch_size": size, "max_grad_norm": 1.0}
    criterion: Any = nn.CrossEntropyLoss()
    if mode == "ghost":
        watched: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        private: Any = DPOptimizerFastGradientClipping(optimizer, **options)
        criterion = DPLossFastGradientClipping(watched, private, criterion)
    else:
        watched, private = GradSampleModule(model), DPOptimizer(optimizer, **options)
    return sgd(watched, private, criterion, *images(size, device))


def not_private(size: int, device: str) -> Step:
    """A step of SGD."""
    return sgd(*transformer(device), nn.CrossEntropyLoss(), *images(size, device))


def sgd(model: Any, optimizer: Any, criterion: Any, x: torch.Tensor, y: torch.Tensor) -> Step:
    """A step of any optimizer."""

    def run() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return run


WAYS: dict[str, Callable[[int, str], Step]] = {
    REFERENCE: partial(opacus, "ghost"),
    "safexplain, ghost": partial(ours, "ghost", True),
    "safexplain, ghost, plain noise": partial(ours, "ghost", False),
    "Opacus, hooks": partial(opacus, "hooks"),
    "safexplain, hooks": partial(ours, "hooks", True),
    "not private": not_private,
}


def memory(way: str, size: int, device: str) -> float:
    """MiB of three steps in this process."""
    step = WAYS[way](size, device)
    for _ in range(3):
        step()
    if device == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when the target is met, 1 otherwise."""
    run = Benchmark("dp_finetuning", __doc__, argv, rounds=9, batch=32)
    options = run.options
    peak = {way: in_fresh_process(memory, way, options.batch, options.device) for way in WAYS}
    steps = {way: make(options.batch, options.device) for way, make in WAYS.items()}
    turns = Turns(steps, options.rounds, device=options.device)
    turns.judged = turns.clock
    results = {
        way: {
            "ms_median": turns.ms(way, 1),
            "ms_shortest": turns.shortest_ms(way, 1),
            "ratio_to_opacus_ghost": turns.ratio(way, REFERENCE),
            "peak_mib": peak[way],
        }
        for way in WAYS
    }
    ratio = results["safexplain, ghost"]["ratio_to_opacus_ghost"]
    report = {"model": "ViT 192 x 6, 65 tokens, 2.7 M parameters", "batch": options.batch, "results": results}
    return run.conclude(report, {"ghost, over that of Opacus": at_most(TARGET, ratio)})


if __name__ == "__main__":
    finish(main)
