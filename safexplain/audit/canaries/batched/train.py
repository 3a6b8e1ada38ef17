"""Training many models side by side, half of them with the canary in the target record's place.

Algorithm 1 of arXiv 2511.21804 for linear heads, DP-SGD or DP-Adam with Poisson sampling. A step sums the clipped
gradients of the batch, adds what the canary contributes to the runs whose coin puts it in, adds noise, divides by the
expected batch size, and updates (lines 11 to 21).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._digest import code_digest, digest
from safexplain._progress import Progress, silent
from safexplain.audit.canaries.batched.blocks import Block, Tick, blocks_of, rows_at_once, train_blocks
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.batched.sampling import START, Direction, Inserted, KeyedDraws, Substitutes, stream
from safexplain.audit.canaries.canary import (
    FOR_FUNCTIONS,
    Canary,
    GradientCanary,
    at_least_single,
    check_records,
    check_target,
    record_scores,
)
from safexplain.audit.canaries.store import FinishedRuns
from safexplain.dp.heads.closed_form import HeadRecipe, Rows
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Scores

__all__ = ["Job", "steps_of", "train_runs"]

Array = NDArray[np.float64]

TRAINERS = ("safexplain.audit.canaries.batched.train",)
"""Modules that train blocks: stored blocks are not used again when their code, or what it imports, has changed."""


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
    progress: Progress = silent,
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
    job = Job(network, x, y, canary, recipe, noise_multiplier, runs, generator, initial)
    steps = [*range(every, recipe.steps, every), recipe.steps]

    def train(block: Block, device: torch.device, tick: Tick) -> Array:
        theta, found = job.start(block, device), list[Tensor]()
        start = theta.clone()
        for step in job.train(block, theta, tick):
            if step == steps[len(found)]:
                found.append(job.scores(theta, step, start))
        return np.asarray(torch.stack(found).double().cpu())

    places = [torch.device(d) for d in devices or [x.device]]
    kinds = {place.type for place in places}
    if len(kinds) > 1:
        raise ConfigurationError(f"devices: expected one kind, whose random numbers agree, got {sorted(kinds)}")
    key = ""
    if cache is not None:
        everything = {**vars(job), "network": [type(network).__name__, vars(network)]}
        key = digest(everything, steps, kinds, torch.get_float32_matmul_precision(), code_digest(*TRAINERS))
    blocks = blocks_of(runs, network.parameters, places[0])
    values = train_blocks(blocks, train, places, FinishedRuns(cache, key), progress)
    together = np.concatenate(values, axis=1)
    return Scores(tuple(steps), together[:, ::2], together[:, 1::2])


@dataclass(frozen=True, eq=False)
class Job:
    """What all blocks of runs share; the generator's next number is the seed of all randomness.

    Raises:
        InputError, ConfigurationError: a canary that cannot be used.
    """

    network: LinearHead
    x: Tensor  # (n, d) features of all records, in whose precision is trained; half precision is raised
    y: Tensor  # (n,)
    canary: Canary
    recipe: HeadRecipe
    noise_multiplier: float
    runs: int
    generator: InitVar[torch.Generator]
    initial: Tensor | None  # (P,) or (runs, P)
    seed: int = field(init=False)

    def __post_init__(self, generator: torch.Generator) -> None:
        canary = self.canary
        check_target(canary.target, len(self.x))
        object.__setattr__(self, "seed", int(torch.randint(2**62, (), generator=generator, device=generator.device)))
        object.__setattr__(self, "x", at_least_single(self.x))
        if self.initial is not None:
            object.__setattr__(self, "initial", self.initial.reshape(-1, self.network.parameters))
        if not isinstance(canary, GradientCanary):
            if canary.scenario == "outlier":
                raise ConfigurationError(FOR_FUNCTIONS)
            check_records("canary", self.network, canary.x[None], torch.tensor([canary.y]))
            return
        if self.recipe.clipping is None:
            raise ConfigurationError("a gradient canary is as long as the clipping bound: give the recipe a clipping")
        if not 0 <= canary.coordinate < self.network.parameters:
            raise InputError(f"coordinate: expected 0 to {self.network.parameters - 1}, got {canary.coordinate}")
        if canary.drift is not None and canary.drift.shape != (self.recipe.steps + 1,):
            raise InputError(f"drift: expected shape ({self.recipe.steps + 1},), got {tuple(canary.drift.shape)}")

    def start(self, block: Block, device: torch.device) -> Tensor:
        """(runs of the block, P) before the first step."""
        dtype = self.x.dtype
        if self.initial is None:
            return self.network.initial(len(block), stream(device, self.seed, START, block.number), device, dtype)
        own = self.initial if len(self.initial) == 1 else self.initial[block.first : block.last]
        return own.to(device, dtype).expand(len(block), -1).clone()

    def train(self, block: Block, theta: Tensor, tick: Tick) -> Iterator[int]:
        """Train a block, stopping after each step; theta changes in place. InputError: the weights diverged."""
        kept = torch.ones(len(self.x), dtype=torch.bool)
        kept[self.canary.target] = False
        others = (t[kept.to(t.device)].to(theta.device) for t in (self.x, self.y))
        rows = Rows.of(next(others), next(others).long(), bias=self.network.bias)
        at_once = rows_at_once(len(block), self.network.numbers_per_row, theta.device)
        draws = KeyedDraws(self.seed, block.number, self.recipe.sample_rate, self.recipe.steps, theta.device)
        every, inserted = max(1, self.recipe.steps // 100), self._inserted(block, theta)
        training = steps_of(self.network, rows, inserted, self.recipe, self.noise_multiplier, theta, draws, at_once)
        for step in training:
            yield step
            if step % every == 0:
                tick(step / self.recipe.steps)
        if not bool(theta.isfinite().all()):
            raise InputError("the weights of a run are no longer finite; lower the learning rate")

    def scores(self, theta: Tensor, step: int, start: Tensor) -> Tensor:
        """(runs of the block,), higher on D, from the parameters after a step and before the first.

        A gradient on D moves its parameter down by lr C / B at each step that has it in the batch, on D' up; less the
        drift, scores are centred on 0.
        """
        canary = self.canary
        if isinstance(canary, GradientCanary):
            drift = 0.0 if canary.drift is None else canary.drift[step].to(theta)
            return drift - (theta[:, canary.coordinate] - start[:, canary.coordinate])
        logits = self.network.logits(theta, self._pair(canary.x).to(theta))
        return record_scores(logits[:, 0], logits[:, 1], int(self.y[canary.target]), canary.y, canary.scenario)

    def _inserted(self, block: Block, theta: Tensor) -> Inserted:
        """Even runs are on D: the target, or +C at the coordinate; on D' the canary's record, or -C."""
        canary, on_d = self.canary, torch.arange(block.first, block.last, device=theta.device) % 2 == 0
        if isinstance(canary, GradientCanary):
            assert self.recipe.clipping is not None
            gradients = self.recipe.clipping.bound * (2 * on_d.to(theta) - 1)
            nothing = theta.new_zeros(0, self.x.shape[1]), torch.zeros(0, dtype=torch.long, device=theta.device)
            return Direction(*nothing, canary.coordinate, gradients)
        labels = torch.tensor([int(self.y[canary.target]), canary.y], device=theta.device)
        return Substitutes(self._pair(canary.x).to(theta), labels, on_d)

    def _pair(self, x: Tensor) -> Tensor:
        return torch.stack([self.x[self.canary.target], x.to(self.x)])


def steps_of(
    network: LinearHead,
    others: Rows,
    inserted: Inserted,
    recipe: HeadRecipe,
    noise_multiplier: float,
    theta: Tensor,
    draws: KeyedDraws,
    rows_at_once: int,
) -> Iterator[int]:
    """Train theta (runs, P) in place, stopping after each step with its number, from 1.

    All runs share `others`, records without the canary's place, where `inserted` stands. `rows_at_once` are the rows of
    a batch that are computed together, which bounds the memory.
    """
    runs, records = len(theta), len(others.x)
    rows = others
    if len(inserted.x):
        new = Rows.of(inserted.x, inserted.y, bias=network.bias)
        pairs = ((others.x, new.x), (others.labels, new.labels), (others.norms, new.norms))
        rows = Rows(*(torch.cat(pair) for pair in pairs))
    update = recipe.make_update(theta)
    std = noise_multiplier * recipe.clipping.bound if recipe.clipping is not None else 0.0
    for step, (index, weight) in enumerate(draws.batches(records), 1):
        coins = draws.coins(runs)
        if len(inserted.x):
            count = records if index is None else len(index)
            everyone = torch.ones(1, 1, dtype=torch.bool, device=theta.device) if weight is None else weight
            weight = torch.cat([everyone.expand(runs, count), inserted.weights(coins)], 1)
            if index is not None:
                index = torch.cat([index, torch.arange(records, len(rows.x), device=index.device)])
        total = _clipped_sum(network, theta, rows, index, weight, recipe, rows_at_once)
        inserted.add(total, coins)
        if std:
            total.add_(draws.noise(theta, std))
        update(total.div_(recipe.expected_batch_size))
        yield step


def _clipped_sum(
    network: LinearHead,
    theta: Tensor,
    rows: Rows,
    index: Tensor | None,
    weight: Tensor | None,
    recipe: HeadRecipe,
    at_once: int,
) -> Tensor:
    """(runs, P) sum over the batch, some rows after the others."""
    count, total = len(rows.x) if index is None else len(index), None
    for first in range(0, max(1, count), at_once):
        part = slice(first, first + at_once)
        some = Rows(rows.x[part], rows.labels[part], rows.norms[part]) if index is None else rows.take(index[part])
        found = network.clipped_sum(theta, some, None if weight is None else weight[:, part], recipe.clipping)
        total = found if total is None else total.add_(found)
    assert total is not None
    return total
