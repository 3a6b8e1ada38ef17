"""Training many models side by side, half of them with the canary in the target record's place.

Algorithm 1 of arXiv 2511.21804 for linear heads: DP-SGD or DP-Adam with Poisson sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._progress import Progress
from safexplain.audit.canaries.batched.blocks import Block, Tick
from safexplain.audit.canaries.batched.job import Job
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.batched.sampling import Directions, Inserted, Substitutes
from safexplain.audit.canaries.canary import (
    FOR_FUNCTIONS,
    Canary,
    GradientCanary,
    RecordCanary,
    check_records,
    record_scores,
)
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Scores

__all__ = ["train_runs"]

Array = NDArray[np.float64]

Score = Callable[[Tensor, int], Tensor]
"""(runs, P) parameters after a step, and its number -> (runs,)."""


def train_runs(
    network: LinearHead,
    x: Tensor,
    y: Tensor,
    canary: Canary,
    recipe: HeadRecipe,
    *,
    noise_multiplier: float,
    runs: int,
    every: int,
    generator: torch.Generator,
    initial: Tensor | None = None,
    cache: str | Path | None = None,
    devices: Sequence[torch.device | str] | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Train runs on D, with record z = row `canary.target`, and on D', with z' in its place, and score them.

    The canary joins each run's batch by that run's own coin, with probability `recipe.sample_rate` at each step. Runs
    differ in coins, in noise, and in where they start unless `initial` (P,) or (runs, P) says it. All meet one Poisson
    sample of the other records at a step: the guarantee that is put to the test, and its dominating pair, hold given
    that sample, and given it runs are independent. The scores are a function of the arguments, of the generator's next
    number and of the kind of device, not of how many there are: each of `devices`, None for that of x, has a thread of
    its own. Finished blocks of runs are kept in the folder `cache`. Even runs are on D.

    Raises:
        InputError: a canary that cannot be used, or weights that diverged.
        ConfigurationError: too few runs, or steps to score after that there are not.
    """
    if runs < 2:
        raise ConfigurationError(f"runs: expected at least 2, one on D and one on D', got {runs}")
    if not 1 <= every <= recipe.steps:
        raise ConfigurationError(f"every: expected 1 to {recipe.steps}, the steps, got {every}")
    if isinstance(canary, RecordCanary) and canary.scenario == "outlier":
        raise ConfigurationError(FOR_FUNCTIONS)
    rows = canary.rows if isinstance(canary, RecordCanary) else (canary.target,)
    job = Job(network, x, y, rows, recipe, noise_multiplier, runs, generator, initial)
    watch = _gradients(canary, job) if isinstance(canary, GradientCanary) else _records(canary, job)
    steps = [*range(every, recipe.steps, every), recipe.steps]

    def train(block: Block, device: torch.device, tick: Tick) -> Array:
        theta = job.start(block, device)
        found: list[Tensor] = []
        inserted, score = watch(block, theta)
        for step in job.train(block, theta, inserted, tick):
            if step == steps[len(found)]:
                found.append(score(theta, step))
        return np.asarray(torch.stack(found).double().cpu())

    values = job.blocks(train, [canary, steps], devices=devices, cache=cache, progress=progress)
    together = np.concatenate(values, axis=1)
    return Scores(tuple(steps), together[:, ::2], together[:, 1::2])


def _gradients(canary: GradientCanary, job: Job) -> Callable[[Block, Tensor], tuple[Inserted, Score]]:
    """D has +C at the coordinate, D' -C.

    On D the gradient moves the parameter down by lr C / B at each step that has it in the batch, on D' up; less the
    drift, scores are centred on 0.
    """
    if not 0 <= canary.coordinate < job.network.parameters:
        raise InputError(f"coordinate: expected 0 to {job.network.parameters - 1}, got {canary.coordinate}")
    if canary.drift is not None and canary.drift.shape != (job.recipe.steps + 1,):
        raise InputError(f"drift: expected shape ({job.recipe.steps + 1},), got {tuple(canary.drift.shape)}")
    at = torch.tensor([canary.coordinate])

    def watch(block: Block, theta: Tensor) -> tuple[Inserted, Score]:
        signs = 2 * _on_d(block, theta.device)[:, None].to(theta) - 1
        before = theta[:, canary.coordinate].clone()

        def score(now: Tensor, step: int) -> Tensor:
            drift = 0.0 if canary.drift is None else canary.drift[step].to(now)
            return drift - (now[:, canary.coordinate] - before)

        return Directions.of(at, signs, job.recipe.clipping, job.x.shape[1], theta), score

    return watch


def _records(canary: RecordCanary, job: Job) -> Callable[[Block, Tensor], tuple[Inserted, Score]]:
    """D has the target, D' the canary's record."""
    z, label = job.x[canary.target], int(job.y[canary.target])
    check_records("canary", job.network, canary.x[None], torch.tensor([canary.y]))
    pair, copies = torch.stack([z, canary.x.to(z)]), len(canary.rows)
    labels = torch.tensor([label, canary.y]).repeat_interleave(copies)

    def watch(block: Block, theta: Tensor) -> tuple[Inserted, Score]:
        both = pair.to(theta)

        def score(now: Tensor, step: int) -> Tensor:
            logits = job.network.logits(now, both)
            return record_scores(logits[:, 0], logits[:, 1], label, canary.y, canary.scenario)

        inserted = both.repeat_interleave(copies, 0), labels.to(theta.device)
        return Substitutes(*inserted, _on_d(block, theta.device)), score

    return watch


def _on_d(block: Block, device: torch.device) -> Tensor:
    """(runs of the block,) bool: every other run."""
    return torch.arange(block.first, block.last, device=device) % 2 == 0
