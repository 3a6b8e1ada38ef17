"""Blocks of runs: how large they are, trained on one device or on several, each stored when it is finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from numpy.typing import NDArray

from safexplain._progress import Progress
from safexplain.audit.canaries.store import FinishedRuns

__all__ = ["Block", "Tick", "TrainBlock", "blocks_of", "rows_at_once", "train_blocks"]

_PARAMETERS = {"cpu": 2**19, "cuda": 2**24}
"""Parameters of the runs of a block: what a processor's cache holds, or what keeps a GPU busy."""
_NUMBERS = {"cpu": 2**27, "cuda": 2**28}
"""Numbers that the rows of a batch which are computed together may take, in all runs of a block."""


@dataclass(frozen=True)
class Block:
    """Runs [first, last), whose randomness is a function of the seed and `number`."""

    number: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


def blocks_of(runs: int, parameters: int, device: torch.device) -> list[Block]:
    """Blocks whose size depends on the model and the kind of device alone, as results depend on it."""
    size = max(2, _PARAMETERS.get(device.type, _PARAMETERS["cpu"]) // parameters)
    return [Block(i, first, min(first + size, runs)) for i, first in enumerate(range(0, runs, size))]


def rows_at_once(runs: int, numbers_per_row: int, device: torch.device) -> int:
    """How many rows of a batch are computed together for so many runs; at least one, whatever it takes."""
    return max(1, _NUMBERS.get(device.type, _NUMBERS["cpu"]) // (runs * numbers_per_row))


Array = NDArray[np.float64]
Tick = Callable[[float], None]
"""Called with the share of a block that is done."""
TrainBlock = Callable[[Block, torch.device, Tick], Array]


def train_blocks(
    blocks: Sequence[Block], train: TrainBlock, devices: Sequence[torch.device], store: FinishedRuns, progress: Progress
) -> list[Array]:
    """The numbers of each block: those that are not stored are trained in turn on the devices, with a thread for each
    time that one is named; each is stored when it is finished.
    """
    found = {block: values for block in blocks if (values := store.load(block.number)) is not None}
    missing = [block for block in blocks if block not in found]
    shares = {block: float(block in found) for block in blocks}
    total, lock = sum(map(len, blocks)), threading.Lock()

    def tell(block: Block, share: float) -> None:
        with lock:
            shares[block] = share
            progress("training", sum(len(b) * s for b, s in shares.items()), total)

    def work(block: Block, device: torch.device) -> None:
        found[block] = train(block, device, partial(tell, block))
        store.save(block.number, found[block])
        tell(block, 1.0)

    tasks = [delayed(work)(block, devices[i % len(devices)]) for i, block in enumerate(missing)]
    Parallel(min(len(devices), len(missing) or 1), backend="threading")(tasks)
    return [found[block] for block in blocks]
