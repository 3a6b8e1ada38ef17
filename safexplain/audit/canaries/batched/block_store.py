"""Blocks of runs, each stored when it is finished, trained on one device or on several.

Where blocks of runs are trained, how large they are, and how many rows of a batch they take at once.
"""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._files import whole_file
from safexplain._progress import Progress
from safexplain.audit.canaries.batched.networks import Network
from safexplain.errors import ConfigurationError, InputError

__all__ = [
    "Block",
    "Place",
    "Store",
    "Tick",
    "TrainBlock",
    "blocks_of",
    "places_of",
    "rows_at_once",
    "train_blocks",
]

_PARAMETERS = {"cpu": 2**19, "cuda": 2**24}
"""Parameters of the runs of a block: what a processor's cache holds, or what keeps a GPU busy."""
_COPIES = 8
"""Tensors like theta that a step holds at once: itself, two of Adam's, sums, their parts, noise, the update."""
_CPU_MEMORY = 2**30
_CUDA_SHARE = 0.8


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


@dataclass(frozen=True)
class Place:
    """Where one block at a time is trained.

    Args:
        device: of the tensors.
        memory: bytes.
    """

    device: torch.device
    memory: int


def blocks_of(runs: int, parameters: int, device: torch.device) -> list[Block]:
    """Blocks whose size depends on the model and the kind of device alone: results do not depend on memory."""
    size = max(2, _PARAMETERS.get(device.type, _PARAMETERS["cpu"]) // parameters)
    return [Block(i, first, min(first + size, runs)) for i, first in enumerate(range(0, runs, size))]


def places_of(devices: Sequence[torch.device], memory: int | None) -> list[Place]:
    """A place for each device, and for each time that it is named.

    Args:
        devices: at least one.
        memory: bytes on each device; None: 1 GiB, or most of what a GPU has free.
    """
    return [Place(d, _bytes(d, memory) // devices.count(d)) for d in devices]


def rows_at_once(network: Network, runs: int, x: Tensor, own_batches: bool, memory: int) -> int:
    """How many rows of a batch are computed together so that a block of runs stays within its memory.

    Args:
        network: the shape of the models.
        runs: of the block.
        x: (n, d), the data.
        own_batches: whether each run gathers rows of its own.
        memory: bytes for the block.

    Raises:
        ConfigurationError: not even one row fits.
    """
    rows, columns = x.shape[0], x.shape[1] + 1
    numbers = runs * network.parameters * _COPIES + 3 * rows * columns
    sampling = rows * runs * (40 if own_batches else 2)
    a_row = x.element_size() * (runs * (network.numbers_per_row + (columns if own_batches else 0)) + columns)
    left = memory - x.element_size() * numbers - sampling
    if left < a_row:
        raise ConfigurationError(
            f"memory: {runs} runs of {network.parameters:,} parameters on {rows:,} rows need"
            f" {(memory - left + a_row) / 2**20:,.0f} MiB at once, there are {memory / 2**20:,.0f}; give more, or fewer"
            " devices at once"
        )
    return min(left // a_row, rows + 2)


def _bytes(device: torch.device, given: int | None) -> int:
    if given is not None:
        return given
    if device.type != "cuda":
        return _CPU_MEMORY
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for new tensors
    return int(_CUDA_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))


Array = NDArray[np.float64]
Tick = Callable[[float], None]
"""Called with the share of a block that is done."""
TrainBlock = Callable[[Block, Place, Tick], Array]


class _Stopped(Exception):
    """Another block failed, or the user interrupted."""


@dataclass(frozen=True)
class Store:
    """Finished blocks on disk.

    Args:
        folder: where; None: nowhere.
        key: digest of all that the numbers depend on, but the block.
    """

    folder: Path | None
    key: str

    def load(self, block: Block, shape: tuple[int, ...]) -> Array | None:
        """What was stored, None where there is nothing, or it is damaged or of another shape."""
        if self.folder is None:
            return None
        try:
            with np.load(self._path(self.folder, block), allow_pickle=False) as file:
                found: Array = file["values"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return found if found.shape == shape and found.dtype == np.float64 else None

    def save(self, block: Block, values: Array) -> None:
        """All or nothing.

        Raises:
            InputError: the folder cannot be written; what was stored before stays.
        """
        if self.folder is None:
            return
        path = self._path(self.folder, block)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as partial, partial.open("wb") as file:
                np.savez(file, values=values)
        except OSError as error:
            raise InputError(
                f"cannot store finished runs in {self.folder} ({error}); free some space and resume: the runs stored"
                " before are kept"
            ) from None

    def _path(self, folder: Path, block: Block) -> Path:
        return folder / f"{self.key}-{block.number}.npz"


def train_blocks(
    blocks: Sequence[Block],
    shape: Callable[[Block], tuple[int, ...]],
    train: TrainBlock,
    places: Sequence[Place],
    store: Store,
    progress: Progress,
) -> list[Array]:
    """Train the blocks that are not stored yet, in turn on the places, each of which has a thread of its own.

    An error or an interrupt ends all threads at their next progress; blocks that were finished are stored.

    Args:
        blocks: all runs.
        shape: of a block's numbers.
        train: trains a block at a place.
        places: where.
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

    def work(place: Place, own: Sequence[Block]) -> None:
        for block in own:
            found[block] = train(block, place, partial(tell, block))
            store.save(block, found[block])
            tell(block, 1.0)

    if len(places) == 1 or len(missing) < 2:
        work(places[0], missing)
        return [found[block] for block in blocks]
    with ThreadPoolExecutor(len(places)) as pool:
        futures = [pool.submit(work, place, missing[i :: len(places)]) for i, place in enumerate(places)]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in done:
        future.result()
    return [found[block] for block in blocks]
