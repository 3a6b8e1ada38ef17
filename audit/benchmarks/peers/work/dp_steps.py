"""Training with differential privacy: a step of a small convolutional network, and a whole run of a linear head.

The network has two convolutions with GroupNorm between and one linear layer (25,000 parameters), batch 64 of 3 x 32 x
32, flat clipping at 1, SGD, the same noise multiplier. What a step does without noise has to agree; that is part of the
answer. Heads are those of `dp_head.py`: 500 x 768 features, 10 classes, q = .25, noise 5.57, 100 steps, the engine
made anew each run, as every run needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

BATCH, STEPS, LR, SIGMA = 64, 100, 0.1, 1.0


def prepare(data: Path, quick: bool) -> Work:
    """A batch of images and labels, and the steps of a head."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 3, 32, 32)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 10, BATCH), "steps": np.array(5 if quick else STEPS)}


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """Of a step: the size of the change that it makes without noise, for both sides the same."""
    return dict(run.values)


def network() -> Any:
    """The network, from the same seed on both sides, and SGD."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), lr=LR)


def _weights(model: Any) -> Any:
    import torch

    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _step(work: Work, made: Callable[[float], tuple[Any, Callable[[Any, Any], None]]]) -> Call:
    """One noisy step a run; before, one without noise, of which the change of the weights is told.

    Args:
        work: the batch.
        made: a noise multiplier -> model and step.
    """
    import torch

    x, y = torch.from_numpy(work["x"]), torch.from_numpy(work["y"])
    model, quiet = made(0.0)
    before = _weights(model)
    quiet(x, y)
    change = _weights(model) - before
    told = {"change without noise": float(change.norm()), "its first weight": float(change[0])}
    _, step = made(SIGMA)

    def run() -> dict[str, Any]:
        step(x, y)
        return dict(told)

    return run


def ours(mode: str, float_safe: bool = True) -> Callable[[Work], Call]:
    """A step of `make_step`, which `DPFineTuner` takes."""

    def made(noise: float) -> tuple[Any, Callable[[Any, Any], None]]:
        from safexplain.dp import FlatClipping
        from safexplain.dp.sgd.plan import cross_entropy
        from safexplain.dp.sgd.steps import make_step

        model, optimizer = network()
        step = make_step(
            model, optimizer, clipping=FlatClipping(1.0), noise_multiplier=noise, expected_batch_size=BATCH,
            loss=cross_entropy, mode=mode, float_safe=float_safe,
        )  # fmt: skip

        def run(x: Any, y: Any) -> None:
            step.accumulate(x, y)
            step.step()

        return model, run

    return lambda work: _step(work, made)


def opacus(mode: str) -> Callable[[Work], Call]:
    """A step as Opacus' tutorials take it."""

    def made(noise: float) -> tuple[Any, Callable[[Any, Any], None]]:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from torch import nn

        model, optimizer = network()
        options = {"noise_multiplier": noise, "expected_batch_size": BATCH, "max_grad_norm": 1.0}
        criterion: Any = nn.CrossEntropyLoss()
        if mode == "ghost":
            watched: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
            private: Any = DPOptimizerFastGradientClipping(optimizer, **options)
            criterion = DPLossFastGradientClipping(watched, private, criterion)
        else:
            watched, private = GradSampleModule(model), DPOptimizer(optimizer, **options)

        def run(x: Any, y: Any) -> None:
            private.zero_grad()
            criterion(watched(x), y).backward()
            private.step()

        return model, run

    return lambda work: _step(work, made)


def head(way: Callable[[Any, Any, Any, int], Any], runs: int = 1) -> Callable[[Work], Call]:
    """`runs` whole trainings of a head, a unit each."""

    def ready(work: Work) -> Call:
        import torch

        from audit.benchmarks import dp_head

        torch.set_num_threads(1)
        x, y = dp_head.data("cpu")

        def run() -> dict[str, Any]:
            weight = way(dp_head, x, y, int(work["steps"]))
            return {"units": runs, "size of the weights": float(weight.reshape(runs, -1).norm(dim=1).mean())}

        return run

    return ready


CALLS: dict[str, Callable[[Work], Call]] = {
    "make_step, ghost": ours("ghost"),
    "make_step, ghost, plain noise": ours("ghost", float_safe=False),
    "make_step, hooks": ours("hooks"),
    "make_step, hooks, plain noise": ours("hooks", float_safe=False),
    "Opacus, ghost": opacus("ghost"),
    "Opacus, hooks": opacus("hooks"),
    "train_heads": head(lambda m, x, y, steps: m.batched(x, y, steps, 1, False, True)),
    "train_heads, 17 at once": head(lambda m, x, y, steps: m.batched(x, y, steps, 17, False, True), 17),
    "Opacus, head": head(lambda m, x, y, steps: m.by_opacus(x, y, steps)),
}
