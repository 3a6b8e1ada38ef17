"""What each finished model answered, on disk, so that an interrupted audit resumes; the pieces go when it has ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._files import PieceStore, read_arrays, write_npz

Array = NDArray[Any]


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
        found = PieceStore(self.folder, "what a model released").load(f"{key}.npz", _read)
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
        pieces = PieceStore(self.folder, "what a model released")
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
