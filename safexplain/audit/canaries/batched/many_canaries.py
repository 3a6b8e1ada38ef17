"""Training with many gradient canaries at once, so that one run tells much (Steinke et al. 2023, arXiv 2305.08846)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._progress import Progress
from safexplain.audit.canaries.batched.block_store import Block, Place, Tick
from safexplain.audit.canaries.batched.canary_gradients import Directions
from safexplain.audit.canaries.batched.job import Job
from safexplain.audit.canaries.batched.networks import Network
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import InputError

__all__ = ["train_one_run"]

Array = NDArray[np.float64]


def train_one_run(
    network: Network,
    x: Tensor,
    y: Tensor,
    coordinates: Tensor,
    signs: Tensor,
    recipe: HeadRecipe,
    *,
    noise_multiplier: float,
    targets: Sequence[int],
    generator: torch.Generator,
    initial: Tensor | None = None,
    shared_batches: bool = True,
    cache: str | Path | None = None,
    devices: Sequence[torch.device | str] | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
    tf32: bool = False,
) -> Array:
    """Train with many gradient canaries at once, each in place of a record, with a sign and coins of its own.

    Where a canary is in the batch, by its own coin with probability `recipe.sample_rate`, its sign times the clipping
    bound is added to one coordinate of the sum of clipped gradients: the gradients of different canaries are
    orthogonal. The other arguments are those of `train_runs`.

    Args:
        network: the shape of the models.
        x: (n, d) features.
        y: (n,) class indices.
        coordinates: (m,) different flat coordinates.
        signs: (m,), or (runs, m) for each run its own, of 1 and -1.
        recipe: of the training.
        noise_multiplier: of the noise.
        targets: m rows whose records the canaries replace.
        generator: its next number is the seed.
        initial: (P,) or (runs, P).
        shared_batches: of the records that are left.
        cache: a folder.
        devices: where to train.
        progress: told in runs.
        memory: bytes on each device.
        tf32: as in `train_runs`.

    Returns:
        (runs, m): how far each coordinate went down from its start; higher where the sign is 1.

    Raises:
        InputError: data, coordinates or signs that cannot be used, or weights that diverged.
        ConfigurationError: as in `train_runs`.
    """
    signs = signs[None] if signs.dim() == 1 else signs
    m = len(coordinates)
    if coordinates.dim() != 1 or not m or len(set(coordinates.tolist())) < m or len(targets) != m:
        raise InputError(f"coordinates: expected different ones, one for each of {len(targets)} targets, got {m}")
    if int(coordinates.min()) < 0 or int(coordinates.max()) >= network.parameters:
        raise InputError(f"coordinates: expected 0 to {network.parameters - 1}, got others")
    if signs.shape[1:] != (m,) or not bool((signs.abs() == 1).all()):
        raise InputError(f"signs: expected 1 and -1 of shape ({m},) or (runs, {m}), got {tuple(signs.shape)}")
    job = Job.of(network, x, y, targets, recipe, noise_multiplier, len(signs), generator, initial, shared_batches)

    def train(block: Block, place: Place, tick: Tick) -> Array:
        theta = job.start(block, place)
        own = signs[block.first : block.last]
        inserted = Directions.of(coordinates, own, recipe.clipping, x.shape[1], theta)
        before = theta[:, inserted.coordinates]
        for _ in job.train(block, place, theta, inserted, tick):
            pass
        return np.asarray((before - theta[:, inserted.coordinates]).double().cpu())

    values = job.blocks(
        train, lambda block: (len(block), m), [coordinates, signs],
        devices=devices, memory=memory, cache=cache, progress=progress, tf32=tf32,
    )  # fmt: skip
    return np.concatenate(values)
