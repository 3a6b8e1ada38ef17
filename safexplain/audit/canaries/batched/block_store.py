"""Blocks of runs, each stored when it is finished, trained on one device or on several."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import safexplain.dp.sgd.clipping
from safexplain.audit.canaries.batched.plan import Block, Place
from safexplain.audit.references.shadows import Progress
from safexplain.digests import sources_digest
from safexplain.errors import InputError
from safexplain.whole_file import whole_file

__all__ = ["Store", "Tick", "TrainBlock", "code_version", "train_blocks"]

Array = NDArray[np.float64]
Tick = Callable[[float], None]
"""Called with the share of a block that is done."""
TrainBlock = Callable[[Block, Place, Tick], Array]

_CANARIES = (
    "dense", "draws", "inserted", "job", "many_canaries", "mlp", "networks", "pieces", "plan", "score", "steps", "train"
)  # fmt: skip
_DP = ("clipping", "gaussian", "head_batches", "head_optimizer", "head_recipe", "head_step")


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


def code_version() -> str:
    """Digest of the code that trains and scores, and the torch version: other code does not reuse old numbers."""
    folders = ((Path(__file__).parent, _CANARIES), (Path(safexplain.dp.sgd.clipping.__file__).parent, _DP))
    return sources_digest(folder / f"{name}.py" for folder, names in folders for name in names)
