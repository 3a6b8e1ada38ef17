"""A training of many runs, all that it depends on, and how its blocks are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.audit.canaries.batched.block_store import Store, Tick, TrainBlock, code_version, train_blocks
from safexplain.audit.canaries.batched.canary_gradients import Inserted
from safexplain.audit.canaries.batched.networks import Network
from safexplain.audit.canaries.batched.plan import Block, Place, blocks_of, places_of, rows_at_once
from safexplain.audit.canaries.batched.sampling import START, KeyedDraws, stream
from safexplain.audit.canaries.batched.steps import steps_of
from safexplain.audit.canaries.checks import check_records, check_target
from safexplain.audit.references.shadows import Progress, silent
from safexplain.digests import digest
from safexplain.dp.heads.head_step import Rows
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import ConfigurationError, InputError

__all__ = ["Job"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Job:
    """What all blocks of runs share.

    Args:
        network: the shape of the models.
        x: (n, d) features of all records, and
        y: (n,) their labels.
        targets: rows that are left out, the canaries' places.
        recipe: of the training.
        noise_multiplier: of the noise.
        runs: how many.
        seed: of all randomness.
        initial: (1 or runs, P), or None.
        shared_batches: whether all runs meet the same other records at a step.

    Raises:
        InputError: something has another shape than said here, or is not finite.
        ConfigurationError: arguments that contradict each other.
    """

    network: Network
    x: Tensor
    y: Tensor
    targets: tuple[int, ...]
    recipe: HeadRecipe
    noise_multiplier: float
    runs: int
    seed: int
    initial: Tensor | None
    shared_batches: bool

    def __post_init__(self) -> None:
        check_records("data", self.network, self.x, self.y)
        for target in self.targets:
            check_target(target, len(self.x))
        if len(set(self.targets)) < len(self.targets):
            raise InputError("targets: expected different rows, got one of them twice")
        _check_training(self.network, self.recipe, self.noise_multiplier)
        if self.initial is not None:
            parameters = self.network.parameters
            if self.initial.shape not in ((1, parameters), (self.runs, parameters)):
                raise InputError(
                    f"initial: expected shape ({parameters},) or ({self.runs}, {parameters}), got"
                    f" {tuple(self.initial.shape)}"
                )
            if not bool(self.initial.isfinite().all()):
                raise InputError("initial: expected finite parameters, got NaN or infinity")

    @classmethod
    def of(
        cls,
        network: Network,
        x: Tensor,
        y: Tensor,
        targets: Sequence[int],
        recipe: HeadRecipe,
        noise_multiplier: float,
        runs: int,
        generator: torch.Generator,
        initial: Tensor | None,
        shared_batches: bool,
    ) -> Job:
        """From the arguments of `train_runs`; the generator's next number is the seed."""
        if network.features is None:
            raise ConfigurationError("expected a LinearHead or an MLP, whose runs are trained side by side")
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        start = initial[None] if initial is not None and initial.dim() == 1 else initial
        x, rows = x if x.dtype == torch.float64 else x.float(), tuple(int(t) for t in targets)
        return cls(network, x, y, rows, recipe, noise_multiplier, runs, seed, start, shared_batches)

    def start(self, block: Block, place: Place) -> Tensor:
        """(runs of the block, P) before the first step."""
        device, dtype = place.device, self.x.dtype
        if self.initial is None:
            return self.network.initial(len(block), stream(device, self.seed, START, block.number), device, dtype)
        own = self.initial if len(self.initial) == 1 else self.initial[block.first : block.last]
        return own.to(device, dtype).expand(len(block), -1).clone()

    def train(self, block: Block, place: Place, theta: Tensor, inserted: Inserted, tick: Tick) -> Iterator[int]:
        """Train a block, stopping after each step; theta changes in place.

        Raises:
            InputError: the weights diverged.
        """
        kept = torch.ones(len(self.x), dtype=torch.bool)
        kept[list(self.targets)] = False
        others = (t[kept.to(t.device)].to(place.device) for t in (self.x, self.y))
        rows = Rows.of(next(others), next(others).long(), bias=self.network.bias)
        at_once = rows_at_once(self.network, len(block), self.x, not self.shared_batches, place.memory)
        draws = KeyedDraws(
            self.seed, block.number, self.recipe.sample_rate, self.recipe.steps, self.shared_batches, place.device
        )
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
        shape: Callable[[Block], tuple[int, ...]],
        depends_on: Any,
        *,
        devices: Sequence[torch.device | str] | None,
        memory: int | None,
        cache: str | Path | None,
        progress: Progress | None,
        tf32: bool,
    ) -> list[Array]:
        """The numbers of each block of runs.

        Args:
            train: trains one.
            shape: of a block's numbers.
            depends_on: what decides the numbers beside this job.
            devices: where to train; None: where the data are.
            memory: bytes on each device; None: as `places_of` finds.
            cache: a folder, or None.
            progress: told in runs.
            tf32: whether GPUs may multiply with 10 bits of mantissa.
        """
        places = places_of([torch.device(d) for d in devices or [self.x.device]], memory)
        kinds = {place.device.type for place in places}
        if len(kinds) > 1:
            raise ConfigurationError(f"devices: expected one kind, whose random numbers agree, got {sorted(kinds)}")
        tf32 = tf32 and "cuda" in kinds
        blocks = blocks_of(self.runs, self.network.parameters, places[0].device)
        store = Store(None, "")
        if cache is not None:
            everything = {**vars(self), "network": [type(self.network).__name__, vars(self.network)]}
            store = Store(Path(cache), digest(everything, depends_on, kinds, tf32, code_version()))
        with _precision(tf32):
            return train_blocks(blocks, shape, train, places, store, progress or silent)


def _check_training(network: Network, recipe: HeadRecipe, noise_multiplier: float) -> None:
    """Raise ConfigurationError unless these make a training."""
    ours = (recipe.classes, recipe.bias, recipe.one_logit)
    theirs = (network.classes, network.bias, network.one_logit)
    if ours != theirs:
        raise ConfigurationError(
            f"classes, bias and one_logit: the recipe has {ours} and the network {theirs}; make them agree"
        )
    if not 0 <= noise_multiplier < float("inf"):
        raise ConfigurationError(f"noise_multiplier: expected a finite number of at least 0, got {noise_multiplier!r}")
    if recipe.clipping is None and noise_multiplier:
        raise ConfigurationError("noise without clipping protects nobody: give the recipe a clipping")


@contextmanager
def _precision(tf32: bool) -> Iterator[None]:
    """Of products of float32 matrices on a GPU, for the whole process."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
