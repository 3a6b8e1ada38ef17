"""What an audit keeps on disk: answers of finished models, so that it resumes, and maps that do not fit in memory.

Maps of all models are one array (models, examples, features), in memory or, if that is too small, one of NumPy's
memory-mapped arrays, float32, whose file has no name any more once it is mapped: it goes with the array. An index of
one model, or a slice, reads nothing before it is used; attacks read a part at a time.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._files import FileStore, make_folder, read_arrays, write_npz
from safexplain.errors import InputError

Array = NDArray[Any]
Numbers = NDArray[np.floating[Any]]

LARGEST_MAPS = 2 << 30
"""Bytes of whole maps of all models that are kept in memory; more of them go to disk."""

BLOCK = 1 << 25
"""Numbers of maps that are read at a time: 128 MiB in single precision."""


def are_stored(maps: object) -> bool:
    """Whether an array lies on disk."""
    return isinstance(maps, np.memmap)


def on_disk(shape: tuple[int, ...], folder: str | Path | None = None) -> NDArray[np.float32]:
    """(shape) float32 zeros on disk; the file goes with the array.

    Args:
        shape: of the array.
        folder: where it lies; made if missing. None: that of temporary files.

    Raises:
        InputError: the disk is too small or not writable.
    """
    place = Path(tempfile.gettempdir()) if folder is None else make_folder(folder)
    need, free = 4 * math.prod(shape), free_space(place)
    if need > free:
        raise InputError(
            f"whole maps take {need / 2**30:.3g} GiB in {place}, where {free / 2**30:.3g} GiB are free: make space"
            " there, or set TMPDIR to a larger disk"
        )
    with tempfile.NamedTemporaryFile(dir=place, prefix="safexplain-maps-", suffix=".npy", delete=False) as file:
        path = Path(file.name)
    opened: Any = np.lib.format.open_memmap
    maps: NDArray[np.float32] = opened(path, mode="w+", dtype=np.float32, shape=shape)
    with suppress(OSError):  # Windows deletes no file that is open
        path.unlink()
    return maps


def zeros(shape: tuple[int, ...], *, large: bool, folder: str | Path | None = None) -> NDArray[np.float32]:
    """(shape) float32 zeros, on disk if they are `large`."""
    return on_disk(shape, folder) if large else np.zeros(shape, np.float32)


def filled(maps: Iterable[NDArray[np.floating[Any]]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """(shape) maps on disk that come model by model.

    Raises:
        InputError: they have NaN or infinite values, or the disk is too small.
    """
    stored = on_disk(shape)
    for row, each in zip(stored, maps, strict=True):
        with np.errstate(over="ignore"):
            row[:] = each
        if not all(bool(np.isfinite(row[part]).all()) for part in parts(*row.shape)):
            raise InputError("attributions have NaN or infinite values in single precision")
    return stored


def free_space(folder: Path | None) -> int:
    """Bytes that fit into a folder, which may have to be made yet; None: that of temporary files."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder.absolute()
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free


def parts(n: int, width: int, most: int = 1 << 22) -> Iterator[slice]:
    """Slices of n examples of `width` numbers each, with at most `most` numbers (or one example) a slice."""
    step = max(1, most // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def blocks(maps: Any, most: int = BLOCK) -> Iterator[tuple[int, slice, Numbers]]:
    """Any (m, n, ...) array, model by model: (model, examples, their maps), at most `most` numbers at a time."""
    m, n = maps.shape[:2]
    for model in range(m):
        for part in parts(n, math.prod(maps.shape[2:]), most):
            yield model, part, maps[model, part]


def windows(maps: Any, models: NDArray[np.int64], step: int) -> Iterator[tuple[int, Numbers]]:
    """All of these models' maps about `step` examples after the other: (first example, (models, step, d))."""
    for start in range(0, maps.shape[1], step):
        yield start, maps[:, start : start + step][models]


def all_finite(values: Any) -> bool:
    """Whether all numbers of an (m, n, ...) array are; those on disk were looked at when they were written."""
    return are_stored(values) or all(bool(np.isfinite(part).all()) for _, _, part in blocks(values))


@dataclass(frozen=True, eq=False)
class Answers:
    """What one model released about each of n examples.

    Args:
        summaries: level -> name -> (n, ...) float64.
        maps: level -> (n, d) float32 maps of all explainers side by side; empty if none are kept.
        shapes: of the map of one example, one of each explainer.
    """

    summaries: dict[int, dict[str, Array]]
    maps: dict[int, Array]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class Store:
    """Answers of finished models in a folder, each under a key of everything that made it; without a folder, none."""

    folder: Path | None = None
    keys: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, store: Store | str | Path | None) -> Store:
        """The store itself, or one in this folder."""
        return store if isinstance(store, Store) else cls(None if store is None else Path(store))

    def load(self, key: str) -> Answers | None:
        """The answers under a key; None if they are missing or damaged."""
        if self.folder is None or not key or not (self.folder / f"{key}.npz").exists():
            return None
        found = FileStore(self.folder, "what a model released").load(f"{key}.npz", _read)
        if found is not None:
            self.keys.add(key)
        return found

    def save(self, key: str, answers: Answers) -> None:
        """Keep what a finished model released, all or nothing.

        Raises:
            InputError: the disk is full or not writable; what was written before stays.
        """
        if self.folder is None or not key:
            return
        named = {f"{name}@{level}": a for level, values in answers.summaries.items() for name, a in values.items()}
        whole = {
            **named,
            **{f"@{level}": maps for level, maps in answers.maps.items()},
            "shapes": np.array(json.dumps(answers.shapes)),
        }
        pieces = FileStore(self.folder, "what a model released")
        pieces.save(f"{key}.npz", lambda path: write_npz(path, whole, compressed=False))
        self.keys.add(key)

    def finish(self) -> None:
        """Delete the pieces that were written or found."""
        for key in self.keys if self.folder is not None else ():
            assert self.folder is not None
            (self.folder / f"{key}.npz").unlink(missing_ok=True)


def _read(path: Path) -> Answers:
    arrays = read_arrays(path)
    shapes = tuple(map(tuple, json.loads(str(arrays.pop("shapes")))))
    summaries: dict[int, dict[str, Array]] = {}
    maps: dict[int, Array] = {}
    for named, array in arrays.items():
        name, _, level = named.rpartition("@")
        if name:
            summaries.setdefault(int(level), {})[name] = array
        else:
            maps[int(level)] = array
    return Answers(summaries, maps, shapes)
