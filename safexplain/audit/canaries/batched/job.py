"""A training of many runs, all that it depends on, and the steps of DP-SGD or DP-Adam for a block of them at once.

A step sums the clipped gradients of the batch, adds what the canary contributes to the runs whose coin puts it in, adds
noise, divides by the expected batch size, and updates (arXiv 2511.21804, Algorithm 1, lines 11 to 21).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._digest import code_digest, digest
from safexplain._progress import Progress, silent
from safexplain.audit.canaries.batched.blocks import Block, Tick, TrainBlock, blocks_of, rows_at_once, train_blocks
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.batched.sampling import START, Inserted, KeyedDraws, stream
from safexplain.audit.canaries.canary import check_records, check_target
from safexplain.audit.canaries.store import FinishedRuns
from safexplain.dp.heads.closed_form import Rows
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import ConfigurationError, InputError

__all__ = ["Job", "steps_of"]

Array = NDArray[np.float64]


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
        coins = draws.coins(runs, inserted.canaries)
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


TRAINERS = ("safexplain.audit.canaries.batched.train",)
"""Modules that train blocks: stored blocks are not used again when their code, or what it imports, has changed."""


@dataclass(frozen=True, eq=False)
class Job:
    """What all blocks of runs share.

    Raises:
        InputError: something has another shape than said here, or is not finite.
        ConfigurationError: arguments that contradict each other.
    """

    network: LinearHead
    x: Tensor  # (n, d) features of all records, in whose precision is trained; half precision is raised
    y: Tensor  # (n,)
    targets: Sequence[int]  # rows that are left out, the canaries' places
    recipe: HeadRecipe
    noise_multiplier: float
    runs: int
    generator: InitVar[torch.Generator]  # its next number is the seed of all randomness
    initial: Tensor | None  # (P,) or (runs, P)
    seed: int = field(init=False)

    def __post_init__(self, generator: torch.Generator) -> None:
        def keep(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        keep("seed", int(torch.randint(2**62, (), generator=generator, device=generator.device)))
        keep("x", self.x if self.x.dtype == torch.float64 else self.x.float())
        keep("targets", tuple(int(t) for t in self.targets))
        if self.initial is not None and self.initial.dim() == 1:
            keep("initial", self.initial[None])
        check_records("data", self.network, self.x, self.y)
        for target in self.targets:
            check_target(target, len(self.x))
        if len(set(self.targets)) < len(self.targets):
            raise InputError("targets: expected different rows, got one of them twice")
        ours = (self.recipe.classes, self.recipe.bias, self.recipe.one_logit)
        theirs = (self.network.classes, self.network.bias, self.network.one_logit)
        if ours != theirs:
            raise ConfigurationError(
                f"classes, bias and one_logit: the recipe has {ours} and the network {theirs}; make them agree"
            )
        if not 0 <= self.noise_multiplier < float("inf"):
            raise ConfigurationError(
                f"noise_multiplier: expected a finite number of at least 0, got {self.noise_multiplier!r}"
            )
        if self.recipe.clipping is None and self.noise_multiplier:
            raise ConfigurationError("noise without clipping protects nobody: give the recipe a clipping")
        if self.initial is not None:
            parameters = self.network.parameters
            if self.initial.shape not in ((1, parameters), (self.runs, parameters)):
                raise InputError(
                    f"initial: expected shape ({parameters},) or ({self.runs}, {parameters}), got"
                    f" {tuple(self.initial.shape)}"
                )
            if not bool(self.initial.isfinite().all()):
                raise InputError("initial: expected finite parameters, got NaN or infinity")

    def start(self, block: Block, device: torch.device) -> Tensor:
        """(runs of the block, P) before the first step."""
        dtype = self.x.dtype
        if self.initial is None:
            return self.network.initial(len(block), stream(device, self.seed, START, block.number), device, dtype)
        own = self.initial if len(self.initial) == 1 else self.initial[block.first : block.last]
        return own.to(device, dtype).expand(len(block), -1).clone()

    def train(self, block: Block, theta: Tensor, inserted: Inserted, tick: Tick) -> Iterator[int]:
        """Train a block, stopping after each step; theta changes in place.

        Raises:
            InputError: the weights diverged.
        """
        kept = torch.ones(len(self.x), dtype=torch.bool)
        kept[list(self.targets)] = False
        others = (t[kept.to(t.device)].to(theta.device) for t in (self.x, self.y))
        rows = Rows.of(next(others), next(others).long(), bias=self.network.bias)
        at_once = rows_at_once(len(block), self.network.numbers_per_row, theta.device)
        draws = KeyedDraws(self.seed, block.number, self.recipe.sample_rate, self.recipe.steps, theta.device)
        every = max(1, self.recipe.steps // 100)
        training = steps_of(self.network, rows, inserted, self.recipe, self.noise_multiplier, theta, draws, at_once)
        for step in training:
            yield step
            if step % every == 0:
                tick(step / self.recipe.steps)
        if not bool(theta.isfinite().all()):
            raise InputError("the weights of a run are no longer finite; lower the learning rate")

    def blocks(
        self,
        train: TrainBlock,
        depends_on: Any,
        *,
        devices: Sequence[torch.device | str] | None = None,
        cache: str | Path | None,
        progress: Progress | None,
    ) -> list[Array]:
        """What `train` gives for each block of runs, which is a function of this job and of `depends_on`."""
        places = [torch.device(d) for d in devices or [self.x.device]]
        kinds = {place.type for place in places}
        if len(kinds) > 1:
            raise ConfigurationError(f"devices: expected one kind, whose random numbers agree, got {sorted(kinds)}")
        key = ""
        if cache is not None:
            everything = {**vars(self), "network": [type(self.network).__name__, vars(self.network)]}
            arithmetic = (kinds, torch.get_float32_matmul_precision())
            key = digest(everything, depends_on, arithmetic, code_digest(*TRAINERS))
        blocks = blocks_of(self.runs, self.network.parameters, places[0])
        return train_blocks(blocks, train, places, FinishedRuns(cache, key), progress or silent)
