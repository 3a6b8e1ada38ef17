"""Numbers of finished runs on disk, so that an interrupted audit goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safexplain._files import FileStore, read_arrays, write_npz

__all__ = ["FinishedRuns"]

Array = NDArray[np.float64]


class FinishedRuns:
    """Arrays by the number of a run, or of a block of runs, each in a file of its own as soon as it is there; the key
    is a digest of all else that they depend on. Without a folder they are kept in memory."""

    def __init__(self, folder: str | Path | None, key: str) -> None:
        self.folder, self._memory = folder, dict[int, Array]()
        self._files, self._key = None if folder is None else FileStore(folder, "finished runs"), key

    def load(self, number: int) -> Array | None:
        """What was saved; None: nothing."""
        if self._files is None:
            return self._memory.get(number)
        return self._files.load(f"{self._key}-{number}.npz", lambda path: read_arrays(path, "values")["values"])

    def save(self, number: int, values: Array) -> None:
        """All or nothing."""
        if self._files is None:
            self._memory[number] = values
        else:
            self._files.save(f"{self._key}-{number}.npz", lambda path: write_npz(path, {"values": values}))
