"""What each finished model released, on disk, so that nothing that was explained is explained again.

A finished model is a small .npz under a key of everything that made it: its summaries and, where all maps fit in
memory, its maps. Larger ones lie beside it, a file a level (`maps`), and are attacked where they lie. An interrupted
audit takes up what is there. When it has finished, the pieces go: what is kept of an audit is what it writes itself;
large maps go with the last signals that refer to them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from safexplain._files import PieceStore, made_folder, read_arrays, write_npz
from safexplain.audit.storage.maps import MapFiles, Records, StoredMaps, packed, record, write_maps
from safexplain.errors import InputError

LARGEST_MAPS = 2 << 30
"""Bytes of whole maps of all models that are kept in memory; more of them go to disk."""


@dataclass(frozen=True, eq=False)
class Explained:
    """What one model released about each of n examples.

    Args:
        summaries: name, with its level -> (n, ...) float64.
        maps: level -> maps of several explainers side by side: (n, d) float32, or (n,) records (`maps.packed`) where
            all of them together do not fit in memory; empty where none are kept.
        shapes: of the map of one example, one of each explainer.
    """

    summaries: dict[str, NDArray[np.float64]]
    maps: dict[int, NDArray[np.float32] | Records]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def large(self) -> dict[int, Records]:
        """The maps that go to disk."""
        return {level: cast("Records", a) for level, a in self.maps.items() if a.dtype.names}


@dataclass(eq=False)
class ExplainedStore:
    """Finished models in a folder; without one, large maps alone, in temporary folders that go with this object.

    Args:
        folder: made when something is written.
        keys: that were written or found.
    """

    folder: Path | None
    keys: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, store: ExplainedStore | str | Path | None) -> ExplainedStore:
        """The store itself, or one in this folder."""
        return store if isinstance(store, ExplainedStore) else cls(None if store is None else Path(store))

    def load(self, key: str) -> tuple[Explained, dict[int, Path]] | None:
        """What a model released, and the files of its large maps; None where the piece is missing or damaged.

        Large maps are compared with their checksum, and stay where they are.
        """
        if self.folder is None or not key or not (self.folder / f"{key}.npz").exists():
            return None

        def read(path: Path) -> tuple[Explained, dict[int, Path]] | None:
            arrays = read_arrays(path)
            about = json.loads(str(arrays.pop("about")))
            maps = {level: arrays.pop(f"maps@{level}") for level in about["maps"]}
            files = {int(level): self._file(key, int(level)) for level in about["large"]}
            if any(_checksum(path) != about["large"][str(level)] for level, path in files.items()):
                return None
            return Explained(arrays, maps, tuple(map(tuple, about["shapes"]))), files

        found = PieceStore(self.folder, "what a model released").load(f"{key}.npz", read)
        if found is not None:
            self.keys.add(key)
        return found

    def save(self, key: str, found: Explained) -> dict[int, Path]:
        """Write what a finished model released, all or nothing.

        Args:
            key: "": it cannot be told what made it, and only large maps are written, under a name of their own.
            found: what it released.

        Returns:
            The files of its large maps.

        Raises:
            InputError: the disk is full or not writable; what was written before stays.
        """
        if (self.folder is None or not key) and not found.large:
            return {}
        folder = self._own_folder() if self.folder is None or not key else self.folder
        store, name, files = PieceStore(folder, "what a model released"), key or "maps", {}
        for level, records in found.large.items():
            files[level] = self._file(name, level, folder)
            store.save(files[level].name, _writing(records))
        if self.folder is None or not key:
            return files
        small = {level: a for level, a in found.maps.items() if level not in files}
        about = {
            "maps": list(small),
            "large": {str(level): _checksum(path) for level, path in files.items()},
            "shapes": found.shapes,
        }
        arrays = {**found.summaries, **{f"maps@{level}": a for level, a in small.items()}}
        whole = {**arrays, "about": np.array(json.dumps(about))}
        store.save(f"{key}.npz", lambda path: write_npz(path, whole, compressed=False))
        self.keys.add(key)
        return files

    def finish(self) -> None:
        """Delete the pieces but for large maps, which `MapFiles.delete_in_the_end` deletes."""
        if self.folder is None:
            return
        for key in self.keys:
            (self.folder / f"{key}.npz").unlink(missing_ok=True)

    def _own_folder(self) -> Path:
        """A new folder, within the store where there is one, that goes with this object."""
        made = tempfile.mkdtemp(
            prefix="safexplain-maps-", dir=None if self.folder is None else made_folder(self.folder)
        )
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return Path(made)

    def _file(self, key: str, level: int, folder: Path | None = None) -> Path:
        place = folder or self.folder
        assert place is not None
        return place / f"{key}.{level}.npy"


def on_disk(maps: Iterable[NDArray[np.floating[Any]]], models: int, examples: int, features: int) -> StoredMaps:
    """Maps that come model by model, each (examples, features), in a temporary folder that goes with the result.

    Raises:
        InputError: they have NaN or infinite values, or the disk is full.
    """
    store, paths = ExplainedStore(None), list[Path]()
    need, free = bytes_on_disk(models * examples, features), free_space(None)
    if need > free:
        raise InputError(
            f"whole maps take {need / 2**30:.3g} GiB in {tempfile.gettempdir()}, where {free / 2**30:.3g} GiB are free:"
            " set TMPDIR to a larger disk"
        )
    folder = store._own_folder()
    for i, each in enumerate(maps):
        with np.errstate(over="ignore"):
            records = packed(np.asarray(each, np.float32))
        paths.append(folder / f"{i}.npy")
        PieceStore(folder, "the maps of a model").save(paths[-1].name, _writing(records))
    return StoredMaps((MapFiles(tuple(paths), examples, features, store),))


def free_space(folder: Path | None) -> int:
    """Bytes that fit into a folder, which may have to be made yet; None: that of temporary files."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder.absolute()
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free


def bytes_on_disk(maps: int, features: int) -> int:
    """What so many maps of so many features take there."""
    return maps * record(features).itemsize


def _writing(records: Records) -> Callable[[Path], None]:
    return lambda path: write_maps(path, records)


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while part := file.read(1 << 24):
            found = zlib.crc32(part, found)
    return found
