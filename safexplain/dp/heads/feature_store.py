"""Arrays on disk that are computed in pieces: each appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import InputError
from safexplain.whole_file import whole_file

__all__ = ["FeatureStore"]


class FeatureStore:
    """One array of shape (n, d) as KEY.npy, and until it is complete as KEY.START.npy for rows from START on.

    Args:
        folder: made when missing.
        key: names what made the array.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the cache folder {folder}: {error.strerror or error}") from None

    def whole(self, rows: int) -> Tensor | None:
        """The complete array; None where there is none, or it is damaged."""
        return _read(self.folder / f"{self.key}.npy", rows)

    def piece(self, start: int, rows: int) -> Tensor | None:
        """The rows from `start` on; None where they are not there, or damaged."""
        return _read(self._piece(start), rows)

    def keep(self, start: int, rows: Tensor) -> None:
        """Store a piece."""
        _write(self._piece(start), rows)

    def finish(self, whole: Tensor) -> None:
        """Store the complete array and remove its pieces."""
        _write(self.folder / f"{self.key}.npy", whole)
        for path in self.folder.glob(f"{self.key}.*.npy"):
            path.unlink(missing_ok=True)

    def _piece(self, start: int) -> Path:
        return self.folder / f"{self.key}.{start}.npy"


def _read(path: Path, rows: int) -> Tensor | None:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(found) if found.ndim == 2 and len(found) == rows else None


def _write(path: Path, rows: Tensor) -> None:
    with whole_file(path) as partial, partial.open("wb") as file:
        np.save(file, rows.numpy())
