"""An audit's files: answers of finished models, so that it resumes, and maps that do not fit in memory.

Such maps of all models are one memory-mapped array (models, examples, features), float32, read a part at a time.
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

LARGEST_MAPS = 2 << 30  # bytes of whole maps of all models up to which these are kept in memory
BLOCK = 1 << 25  # numbers of maps read at a time: 128 MiB in single precision


def are_stored(maps: object) -> bool:
    """Whether an array is on disk."""
    return isinstance(maps, np.memmap)


def on_disk(shape: tuple[int, ...], folder: str | Path | None = None) -> NDArray[np.float32]:
    """(shape) float32 zeros in a file that is deleted with the array, in a folder that is made, or (None) the temporary
    one; InputError if the disk is too small or not writable."""
    place = Path(tempfile.gettempdir()) if folder is None else make_folder(folder)
    need, free = 4 * math.prod(shape), free_space(place)
    if need > free:
        raise InputError(
            f"whole maps need {need / 2**30:.3g} GiB in {place}, which has {free / 2**30:.3g} GiB free: free some"
            " space, or set TMPDIR to a larger disk"
        )
    with tempfile.NamedTemporaryFile(dir=place, prefix="safexplain-maps-", suffix=".npy", delete=False) as file:
        path = Path(file.name)
    opened: Any = np.lib.format.open_memmap
    maps: NDArray[np.float32] = opened(path, mode="w+", dtype=np.float32, shape=shape)
    with suppress(OSError):  # Windows does not delete open files
        path.unlink()
    return maps


def filled(maps: Iterable[NDArray[np.floating[Any]]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """(shape) maps, written to disk model by model; InputError if they are not finite, or the disk is too small."""
    stored = on_disk(shape)
    for row, values in zip(stored, maps, strict=True):
        with np.errstate(over="ignore"):
            row[:] = values
        if not all(bool(np.isfinite(row[part]).all()) for part in parts(*row.shape)):
            raise InputError("attributions have NaN or infinite values in single precision")
    return stored


def free_space(folder: Path | None) -> int:
    """Free bytes in a folder, which need not exist; None: that of temporary files."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder.absolute()
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free


def parts(n: int, width: int, most: int = 1 << 22) -> Iterator[slice]:
    """Slices of n examples with `width` numbers each: at most `most` numbers, or one example, per slice."""
    step = max(1, most // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def blocks(maps: Any, most: int = BLOCK) -> Iterator[tuple[int, slice, Numbers]]:
    """Blocks (model, examples, their maps) of an (m, n, ...) array, with at most `most` numbers each."""
    m, n = maps.shape[:2]
    for model in range(m):
        for part in parts(n, math.prod(maps.shape[2:]), most):
            yield model, part, maps[model, part]


def windows(maps: Any, models: NDArray[np.int64], step: int) -> Iterator[tuple[int, Numbers]]:
    """(First example, (models, step, d) maps of these models) for every `step` examples."""
    for start in range(0, maps.shape[1], step):
        yield start, maps[:, start : start + step][models]


def all_finite(values: Any) -> bool:
    """Whether all numbers of an (m, n, ...) array are finite; those on disk were checked when written."""
    return are_stored(values) or all(bool(np.isfinite(part).all()) for _, _, part in blocks(values))


@dataclass(frozen=True, eq=False)
class Explanations:
    """The maps that one model, or each of m models, released about n examples."""

    summaries: dict[int, dict[str, Array]]  # level -> name -> (n,), (n, k) or (m, n), (m, n, k) float64
    maps: dict[int, NDArray[np.float32]]  # level -> (n, d) or (m, n, d), explainers side by side; empty if not kept
    shapes: tuple[tuple[int, ...], ...]  # of the map of one example, for each explainer


@dataclass(eq=False)
class Store:
    """Answers of finished models in a folder, each under a key of everything that made it; without folder, none."""

    folder: Path | None = None
    keys: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, store: Store | str | Path | None) -> Store:
        """The store itself, or one in this folder."""
        return store if isinstance(store, Store) else cls(None if store is None else Path(store))

    def load(self, key: str) -> Explanations | None:
        """The answers under a key; None if they are missing or damaged."""
        if self.folder is None or not key or not (self.folder / f"{key}.npz").exists():
            return None
        found = FileStore(self.folder, "the answers of a model").load(f"{key}.npz", _read)
        if found is not None:
            self.keys.add(key)
        return found

    def save(self, key: str, answers: Explanations) -> None:
        """Store the answers of a finished model, all or nothing; InputError if the disk is full or not writable."""
        if self.folder is None or not key:
            return
        arrays = {f"{name}@{level}": a for level, values in answers.summaries.items() for name, a in values.items()}
        arrays |= {f"@{level}": maps for level, maps in answers.maps.items()}
        arrays["shapes"] = np.array(json.dumps(answers.shapes))
        files = FileStore(self.folder, "the answers of a model")
        files.save(f"{key}.npz", lambda path: write_npz(path, arrays, compressed=False))
        self.keys.add(key)

    def finish(self) -> None:
        """Delete the files that were written or read."""
        for key in self.keys:
            assert self.folder is not None  # else there are no keys
            (self.folder / f"{key}.npz").unlink(missing_ok=True)


def _read(path: Path) -> Explanations:
    arrays = read_arrays(path)
    shapes = tuple(map(tuple, json.loads(str(arrays.pop("shapes")))))
    summaries: dict[int, dict[str, Array]] = {}
    maps: dict[int, NDArray[np.float32]] = {}
    for named, array in arrays.items():
        name, _, level = named.rpartition("@")
        if name:
            summaries.setdefault(int(level), {})[name] = array
        else:
            maps[int(level)] = array
    return Explanations(summaries, maps, shapes)
