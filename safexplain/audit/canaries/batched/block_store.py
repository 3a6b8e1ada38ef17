"""Blocks of runs: how large they are, trained on one device or on several, and each stored when it is finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain._files import PieceStore, read_arrays, write_npz
from safexplain._progress import Progress

__all__ = ["Block", "BlockStore", "Tick", "TrainBlock", "blocks_of", "rows_at_once", "train_blocks"]

_PARAMETERS = {"cpu": 2**19, "cuda": 2**24}
"""Parameters of the runs of a block: what a processor's cache holds, or what keeps a GPU busy."""
_NUMBERS = {"cpu": 2**27, "cuda": 2**28}
"""Numbers that the rows of a batch which are computed together may take, in all runs of a block."""


@dataclass(frozen=True)
class Block:
    """Runs [first, last), whose randomness is a function of the seed and `number`.

    Args:
        number: of the block.
        first: run.
        last: the run after the last.
    """

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


class _Stopped(Exception):
    """Another block failed, or the user interrupted."""


class BlockStore:
    """Finished blocks on disk.

    Args:
        folder: where, made when missing; None: nowhere.
        key: digest of all that the numbers depend on, but the block.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._pieces, self._key = None if folder is None else PieceStore(folder, "finished runs"), key

    def load(self, block: Block, shape: tuple[int, ...]) -> Array | None:
        """What was stored, None where there is nothing, or it is damaged or of another shape."""
        if self._pieces is None:
            return None
        found = self._pieces.load(self._name(block), lambda path: read_arrays(path, "values")["values"])
        return found if found is not None and found.shape == shape and found.dtype == np.float64 else None

    def save(self, block: Block, values: Array) -> None:
        """All or nothing.

        Raises:
            InputError: the folder cannot be written; what was stored before stays.
        """
        if self._pieces is not None:
            self._pieces.save(self._name(block), lambda path: write_npz(path, {"values": values}))

    def _name(self, block: Block) -> str:
        return f"{self._key}-{block.number}.npz"


def train_blocks(
    blocks: Sequence[Block],
    shape: Callable[[Block], tuple[int, ...]],
    train: TrainBlock,
    devices: Sequence[torch.device],
    store: BlockStore,
    progress: Progress,
) -> list[Array]:
    """Train the blocks that are not stored yet, in turn on the devices, with a thread for each time that one is named.

    An error or an interrupt ends all threads at their next progress; blocks that were finished are stored.

    Args:
        blocks: all runs.
        shape: of a block's numbers.
        train: trains a block on a device.
        devices: where.
        store: of finished blocks.
        progress: told in runs.

    Returns:
        The numbers of each block.
    """
    found = {block: values for block in blocks if (values := store.load(block, shape(block))) is not None}
    missing = [block for block in blocks if block not in found]
    shares = {block: float(block in found) for block in blocks}
    total, lock, stop = sum(map(len, blocks)), threading.Lock(), threading.Event()

    def tell(block: Block, share: float) -> None:
        if stop.is_set():
            raise _Stopped
        with lock:
            shares[block] = share
            progress("training", sum(len(b) * s for b, s in shares.items()), total)

    def work(device: torch.device, own: Sequence[Block]) -> None:
        for block in own:
            found[block] = train(block, device, partial(tell, block))
            store.save(block, found[block])
            tell(block, 1.0)

    if len(devices) == 1 or len(missing) < 2:
        work(devices[0], missing)
        return [found[block] for block in blocks]
    with ThreadPoolExecutor(len(devices)) as pool:
        futures = [pool.submit(work, device, missing[i :: len(devices)]) for i, device in enumerate(devices)]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in done:
        future.result()
    return [found[block] for block in blocks]
