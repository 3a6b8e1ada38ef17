"""Whole maps of all models that do not fit in memory: 16 bits a number on disk, read a block at a time.

A file holds the maps of one model, one record an example: the largest magnitude in the map as float32, and every entry
as a share of it in float16, times 2^15. So maps of any size keep 11 bits of every entry down to 2^-29 of their largest
one, and something of it down to 2^-39: gradients of 1e-12 are as good as any. `StoredMaps` reads such files like an
array (models, examples, features) of float32; `blocks` cuts any such array into parts that fit in memory.
"""

from __future__ import annotations

import io
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

BLOCK = 1 << 25
"""Numbers of maps that are held at a time: 128 MiB in single precision."""

LARGEST_READ = 1 << 28
"""Numbers that are read by one index, at most: 1 GiB in single precision."""

UNIT = np.float32(2.0**-15)
"""What a number in a file is multiplied by, beside the scale of its map: the largest one is 2^15."""

Numbers = NDArray[np.floating[Any]]
Records = NDArray[np.void]


def record(features: int) -> np.dtype[np.void]:
    """One map in a file."""
    return np.dtype([("scale", "<f4"), ("numbers", "<f2", (features,))])


def packed(maps: NDArray[np.float32]) -> Records:
    """(p,) records of (p, d) maps.

    Raises:
        InputError: they have NaN or infinite values.
    """
    records = np.zeros(len(maps), record(maps.shape[1]))
    for part in parts(*maps.shape):
        scale = np.abs(maps[part]).max(1)
        if not np.isfinite(scale).all():
            raise InputError("attributions have NaN or infinite values in single precision")
        records["scale"][part] = scale
        shares = maps[part] / np.where(scale > 0, scale, np.float32(1))[:, None]
        records["numbers"][part] = np.divide(shares, UNIT, out=shares)
    return records


def unpacked(records: Records, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """(p, d) float32 maps of (p,) records."""
    numbers: NDArray[np.float32] = np.multiply(records["numbers"], UNIT, out=out, dtype=np.float32)
    np.multiply(numbers, records["scale"][:, None], out=numbers)
    return numbers


def parts(n: int, width: int, most: int = 1 << 22) -> Iterator[slice]:
    """Slices of n examples of `width` numbers each, with at most `most` numbers (or one example) a slice."""
    step = max(1, most // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


@dataclass(frozen=True, eq=False)
class MapFiles:
    """The maps of m models about the same n examples, a file each, as `write_maps` wrote them.

    Args:
        paths: of the models, in order.
        examples: n.
        features: d.
        keeper: whatever deletes them when nothing refers to it any more; None: they stay.
    """

    paths: tuple[Path, ...]
    examples: int
    features: int
    keeper: object = None

    def delete_in_the_end(self) -> None:
        """Delete the files when nothing refers to this object any more, or Python ends."""
        weakref.finalize(self, _delete, self.paths)

    def read(self, model: int, rows: NDArray[np.int64]) -> Records:
        """Records of these examples.

        Raises:
            InputError: the file is not there any more, or is another one.
        """
        path, kind, head = self.paths[model], record(self.features), self._head
        try:
            with path.open("rb") as file:
                if file.read(len(head)) != head or file.seek(0, 2) != len(head) + self.examples * kind.itemsize:
                    raise InputError(f"{path} does not hold the maps that were written there")
                if (np.diff(rows) == 1).all():
                    file.seek(len(head) + int(rows[0]) * kind.itemsize)
                    return np.fromfile(file, kind, len(rows))
                mapped: Records = np.memmap(file, kind, "r", len(head), (self.examples,))
                return mapped[rows]
        except OSError as error:
            raise InputError(f"cannot read the maps in {path}: {error}; explain the models again") from None

    @cached_property
    def _head(self) -> bytes:
        """What such a file begins with, as NumPy writes it."""
        describe: Any = np.lib.format.dtype_to_descr
        head, described = io.BytesIO(), describe(record(self.features))
        write: Any = np.lib.format.write_array_header_1_0
        write(head, {"descr": described, "fortran_order": False, "shape": (self.examples,)})
        return head.getvalue()


def write_maps(path: Path, records: Records) -> None:
    """Write the maps of one model.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("wb") as file:
        write: Any = np.lib.format.write_array
        write(file, records, allow_pickle=False)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class StoredMaps:
    """Maps (models, examples, features) on disk, read as float32 arrays where they are indexed.

    Models and examples are indexed as those of an array, by whole numbers, slices, arrays of indices or of bool. What
    would not fit in memory is refused, so that nothing reads all of them by mistake; `blocks` reads them in parts. They
    are finite: nothing else is ever written.

    Args:
        sides: files of disjoint sets of examples, one set after the other, of the same models.

    Raises:
        InputError: they differ in the number of models or features.
    """

    sides: tuple[MapFiles, ...]

    def __post_init__(self) -> None:
        if len({(len(side.paths), side.features) for side in self.sides}) != 1:
            raise InputError("maps can only be put side by side of as many models, and of one size")

    ndim = 3
    dtype = np.dtype(np.float32)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, d)."""
        return len(self.sides[0].paths), sum(s.examples for s in self.sides), self.sides[0].features

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        m, n, d = self.shape
        return m * n * record(d).itemsize

    def delete_in_the_end(self) -> None:
        """Delete the files when nothing refers to them any more, or Python ends."""
        for side in self.sides:
            side.delete_in_the_end()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        models, rows, rest = key if isinstance(key, tuple) and len(key) == 3 else (*_two(key), slice(None))
        (m, n, d), outer = self.shape, isinstance(models, slice) or isinstance(rows, slice)
        which, at = _indices(models, m, "models"), _indices(rows, n, "examples")
        if outer:
            size = (*which.shape, *at.shape)
            out: NDArray[np.float32] = _room(size, d).reshape(which.size, at.size, d)
            for one, into in zip(which.ravel().tolist(), out, strict=True):
                self._read(one, at.ravel(), into)
            return out.reshape(*size, d)[..., rest]
        which, at = np.broadcast_arrays(which, at)
        out = _room(which.shape, d).reshape(which.size, d)
        order = np.argsort(which.ravel(), kind="stable")
        for place in np.split(order, np.flatnonzero(np.diff(which.ravel()[order])) + 1):
            if len(place):
                read = np.empty((len(place), d), np.float32)
                self._read(int(which.ravel()[place[0]]), at.ravel()[place], read)
                out[place] = read
        return out.reshape(*which.shape, d)[..., rest]

    def _read(self, model: int, at: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Maps of one model about these examples."""
        first = 0
        for side in self.sides:
            here: Any = slice(None)
            if len(self.sides) > 1:
                here = np.flatnonzero((at >= first) & (at < first + side.examples))
            rows = at[here] - first
            first += side.examples
            if not len(rows):
                continue
            for part in parts(len(rows), side.features):
                found = side.read(model, rows[part])
                if isinstance(here, slice):
                    unpacked(found, out[part])
                else:
                    out[here[part]] = unpacked(found)


def are_stored(maps: object) -> TypeGuard[StoredMaps]:
    """Whether these are maps on disk, which are finite, and never to be read as a whole."""
    return isinstance(maps, StoredMaps)


def joined(maps: Sequence[Any]) -> Any:
    """Maps of the same models about disjoint sets of examples, one after the other: on disk where one of them is.

    Raises:
        InputError: some are on disk and others are not.
    """
    if not any(map(are_stored, maps)):
        return np.concatenate([np.asarray(each) for each in maps], axis=1)
    if not all(map(are_stored, maps)):
        raise InputError("maps on disk can only be put beside others on disk; collect all signals in the same way")
    return StoredMaps(tuple(side for each in maps for side in each.sides))


def blocks(maps: Any, most: int = BLOCK) -> Iterator[tuple[int, slice, Numbers]]:
    """Any (m, n, ...) array, model by model: (model, examples, their maps), at most `most` numbers at a time."""
    m, n = maps.shape[:2]
    for model in range(m):
        for part in parts(n, math.prod(maps.shape[2:]), most):
            yield model, part, maps[model, part]


def windows(maps: Any, models: NDArray[np.int64], step: int, most: int = BLOCK) -> Iterator[tuple[int, Numbers]]:
    """All of these models' maps about `step` examples after the other: (first example, (models, step, d)).

    What lies on disk is read in larger parts, so that few reads are short.
    """
    _, n, d = maps.shape
    wide = step * max(1, most // max(step * len(models) * d, 1)) if are_stored(maps) else step
    for start in range(0, n, wide):
        read = maps[models, start : start + wide] if are_stored(maps) else maps[:, start : start + wide][models]
        for first in range(0, read.shape[1], step):
            yield start + first, read[:, first : first + step]


def all_finite(values: Any) -> bool:
    """Whether all numbers of an (m, n, ...) array are, looked at a block at a time; those on disk are."""
    return are_stored(values) or all(bool(np.isfinite(part).all()) for _, _, part in blocks(values))


def _two(key: Any) -> tuple[Any, Any]:
    models, *rows = key if isinstance(key, tuple) else (key,)
    if len(rows) > 1:
        raise IndexError(f"maps on disk are indexed by models, examples and features; got {len(rows) + 1} indices")
    return models, rows[0] if rows else slice(None)


def _indices(key: Any, length: int, what: str) -> NDArray[np.int64]:
    """The places that an index of one axis names."""
    if isinstance(key, slice):
        return np.arange(length)[key]
    at = np.asarray(key)
    if at.dtype == np.bool_ and at.shape == (length,):
        return np.flatnonzero(at)
    if at.size == 0:
        at = at.astype(np.int64)
    if at.dtype.kind not in "iu" or (at.size and not (at.min() >= -length and at.max() < length)):
        raise IndexError(f"expected {what} of 0 .. {length - 1}, or bool ({length},); got {key!r:.60}")
    return np.where(at < 0, at + length, at).astype(np.int64)


def _room(size: tuple[int, ...], d: int) -> NDArray[np.float32]:
    """For maps of this many models and examples.

    Raises:
        InputError: too large to be read at once.
    """
    if (numbers := math.prod(size) * d) > LARGEST_READ:
        raise InputError(
            f"{numbers * 4 / 2**30:.1f} GiB of maps were asked for at once, and at most {LARGEST_READ * 4 >> 20} MiB"
            " are read: they are on disk because they do not fit in memory; read a few examples at a time"
        )
    return np.empty((*size, d), np.float32)
