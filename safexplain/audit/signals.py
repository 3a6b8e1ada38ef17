"""Signals: the numbers that each model released about each example, and the membership; also a file format (.npz).
Whole maps that do not fit in memory are one memory-mapped array (models, examples, features), float32."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._files import RESERVED_BY_NUMPY, ArrayFile, FileStore, make_folder, read_arrays, write_arrays, write_npz
from safexplain.errors import InputError
from safexplain.verdict.judgement import WHOLE_MAP, at_level, split_level

Numbers = NDArray[np.floating[Any]]
Array = NDArray[Any]

LARGEST_MAPS = 2 << 30  # bytes of whole maps of all models up to which these are kept in memory
BLOCK = 1 << 25  # numbers of maps read at a time: 128 MiB in single precision


def are_stored(maps: object) -> bool:
    """Whether an array is on disk."""
    return isinstance(maps, np.memmap)


def on_disk(shape: tuple[int, ...], folder: str | Path | None = None) -> NDArray[np.float32]:
    """(shape) float32 zeros in a file that is deleted with the array, in a folder or (None) the temporary one;
    InputError: the disk is too small or not writable."""
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
    """(shape) maps, written to disk model by model; InputError if they are not finite, or as `on_disk`."""
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
    """Blocks (model, examples, their maps) of an (m, n, ...) array, of at most `most` numbers."""
    m, n = maps.shape[:2]
    for model in range(m):
        for part in parts(n, math.prod(maps.shape[2:]), most):
            yield model, part, maps[model, part]


def windows(maps: Any, models: NDArray[np.int64], step: int) -> Iterator[tuple[int, Numbers]]:
    """(First example, (models, step, d) maps of these models) for every `step` examples."""
    for start in range(0, maps.shape[1], step):
        yield start, maps[:, start : start + step][models]


def all_finite(values: Any) -> bool:
    """Whether an (m, n, ...) array is finite; maps on disk were checked when written."""
    return are_stored(values) or all(bool(np.isfinite(part).all()) for _, _, part in blocks(values))


@dataclass(frozen=True, eq=False)
class Explanations:
    """Maps that one model, or each of m models, released about n examples."""

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
        """Store the answers of a model, all or nothing; InputError if the disk is full or not writable."""
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


OPTIONAL = ("attributions", "inputs", "out_of_distribution", "groups", "examples")  # optional arrays of the format
RESERVED = ("membership", *OPTIONAL, "meta")  # names that signals cannot have
SLICE = "slice_"  # prefix of arrays that assign each example to a part of the data
LONGEST_SLICE = 200  # characters of a slice's value at most
WIDEST_SLICE = 4096  # bytes of one entry of a column at most: NumPy stores each text in the size of the longest
LONGEST_META = 2**26  # bytes of the meta data at most, four per character
CELL, PROJECTIONS = 0.01, 8  # width of the cells of an example's projections, and how many of these are hashed
NEAR = np.uint64(2**40 - 1)  # bits of a hash that near-duplicates share


def hash_examples(x: NDArray[Any]) -> NDArray[np.uint64]:
    """(n,) uint64 hashes of (n, ...) numbers: equal for copies, with nearly always equal low 40 bits for near copies.

    These bits are a locality-sensitive hash (Datar et al. 2004, SoCG, section 3) of arcsinh(x): eight random
    projections of the flattened example, divided by the root of its size, are cut into cells of .01. If all numbers
    change by a relative 1e-4, 94 in 100 examples keep these bits; at a difference of .1 (root mean square, of arcsinh)
    fewer than one in a million do. The other bits are BLAKE2b of the numbers as float32, with -0 as 0.
    """
    rows = np.asarray(x).reshape(len(x), -1) if len(x) else np.zeros((0, 1))
    width = max(rows.shape[1], 1)
    rng = np.random.RandomState(0)
    directions = rng.standard_normal((rows.shape[1], PROJECTIONS)) / math.sqrt(width)
    shift = rng.random_sample(PROJECTIONS)
    hashes = bytearray()
    for part in parts(len(rows), width):
        cells = np.floor(np.arcsinh(rows[part].astype(np.float64)) @ directions / CELL + shift).astype("<i8")
        exact = rows[part].astype("<f4") + np.float32(0)
        for cell, row in zip(cells, exact, strict=True):
            hashes += hashlib.blake2b(cell.tobytes(), digest_size=5, person=b"near").digest()
            hashes += hashlib.blake2b(row.tobytes(), digest_size=3, person=b"example").digest()
    return np.frombuffer(bytes(hashes), dtype="<u8").astype(np.uint64)


def near(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(n,) the bits of `hash_examples` that near-duplicates share."""
    return hashes & NEAR


def partners(membership: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(m,) for each model of (m, n) the one that was trained on exactly the other examples (`Population.flip`), or -1.
    A target is scored without it, as the numbers of references with and without an example would reveal membership."""
    rows = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(membership))}
    return np.array([rows.get(row.tobytes(), -1) for row in np.ascontiguousarray(~membership)], dtype=np.int64)


def _check(name: str, fits: bool, expected: str, a: NDArray[Any]) -> None:
    if not fits:
        raise InputError(f"{name}: expected {expected}, got {a.dtype} {a.shape}")


@dataclass(frozen=True, eq=False)
class Signals:
    """Released numbers of m models about n examples.

    File format, an .npz of plain arrays:

        membership           bool (m, n): which model was trained on which example
        l1, loss, ...        numbers (m, n), or (m, n, k); any other name is a signal
        l1@200, ...          the same for the average answer to 200 queries, each a little different
        kept@200             share of these queries, (m, n) in [0, 1], with the label of the plain query
        shares@200           share of these queries, (m, n, classes) in [0, 1], with each label
        attributions@200     averaged maps, (m, n, d)
        prediction           of each class, (m, n, classes), best as log p - log(1 - p) from the logits; probabilities
                             that sum to 1 are converted
        prediction@200       its mean over these queries
        predictions@5        of each of 5 queries, one after the other, (m, n, 5 * classes)
        attributions         optional float (m, n, d): whole maps, flattened
        inputs               optional float (n, ...): the examples
        examples             optional uint64 (n,): `hash_examples`, if inputs are too large
        groups               optional integers (n,), equal for examples of one person, or near-copies
        slice_NAME           optional integers or short texts (n,): class, region, ..., by which results are shown
        out_of_distribution  optional bool (n,): examples from another source that no model was trained on
        meta                 optional JSON object as a string

    In `meta`, `targets` lists the models that are attacked, each on its own (default: all trained ones), `null` the
    untrained models, `shape` is the shape of one map, and `population` the digest of the examples. Other entries are
    kept. The arguments are these arrays, with signals in `values` and slices in `slices`; maps may be on disk, and
    `examples` default to the hashes of the inputs.

    Raises:
        InputError: shapes disagree, values are not finite, a level or a share is invalid, a null model has members, an
            example out of distribution is a member, or there is nothing to attack.
    """

    membership: NDArray[np.bool_]
    values: Mapping[str, Numbers]
    attributions: Numbers | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    inputs: Numbers | None = None
    out_of_distribution: NDArray[np.bool_] | None = None
    groups: NDArray[np.integer[Any]] | None = None
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    examples: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        m, outside, maps, x = self.membership, self.out_of_distribution, self.attributions, self.inputs
        _check("membership", m.ndim == 2 and m.dtype == np.bool_, "bool of shape (models, examples)", m)
        if 0 in m.shape:
            raise InputError(f"membership: expected at least one model and example, got shape {m.shape}")
        if not self.values and maps is None:
            raise InputError("expected signals such as l1, l2, loss or attributions, got none")
        taken = sorted(
            name for name in self.values if name in (*RESERVED, *RESERVED_BY_NUMPY) or name.startswith(SLICE)
        )
        if taken:
            raise InputError(f"{', '.join(taken)}: this name is reserved by the file format; rename the signal")
        for name, a in self.values.items():
            fits = a.ndim in (2, 3) and a.shape[:2] == m.shape and a.shape[2:] != (0,) and a.dtype.kind in "fiub"
            _check(f"signal {name!r}", fits, f"numbers of shape {m.shape} or {m.shape} + (k,)", a)
            if not all_finite(a):
                raise InputError(f"signal {name!r} has {int((~np.isfinite(a)).sum())} NaN or infinite values")
            self._check_level(name, a)
        if maps is not None:
            fits = maps.ndim == 3 and maps.shape[:2] == m.shape and maps.dtype.kind == "f"
            _check("attributions", fits, f"floats of shape {m.shape} + (features,)", maps)
        n = (len(self),)
        if x is not None:
            _check("inputs", x.shape[:1] == n and x.dtype.kind == "f", f"floats of shape ({len(self)}, ...)", x)
        for name, floats in (("attributions", maps), ("inputs", None if x is None else x[None])):
            if floats is not None and not all_finite(floats):
                raise InputError(f"{name} have NaN or infinite values")
        if outside is not None:
            fits = outside.shape == n and outside.dtype == np.bool_
            _check("out_of_distribution", fits, f"bool of shape {n}", outside)
        if (g := self.groups) is not None:
            _check("groups", g.shape == n and g.dtype.kind in "iu", f"integers of shape {n}", g)
        if (e := self.examples) is not None:
            _check("examples", e.shape == n and e.dtype == np.uint64, f"hashes, uint64 of shape {n}", e)
        for name, s in self.slices.items():
            fits = bool(name) and s.shape == n and s.dtype.kind in "iubU"
            _check(f"slice {name!r}", fits, f"integers or short texts of shape {n}", s)
            if s.dtype.kind == "U" and (longest := int(np.char.str_len(s).max(initial=0))) > LONGEST_SLICE:
                raise InputError(f"slice {name!r} has a text of {longest} characters; expected at most {LONGEST_SLICE}")
        if outside is not None and m[:, outside].any():
            wrong = int(m[:, outside].any(0).sum())
            raise InputError(f"expected no member out of distribution, got {wrong}; mark only other examples")
        if trained := [i for i in self.null if m[i].any()]:
            raise InputError(f"expected null models without members, but models {trained} have some")
        if not self.models:
            raise InputError("expected at least one trained model, got null models only")
        if not self.targets:
            raise InputError(f"meta['targets']: expected models 0 .. {len(m) - 1}, got []")
        if self.shape is not None and maps is not None and math.prod(self.shape) != maps.shape[2]:
            raise InputError(
                f"meta['shape']: expected a shape of {maps.shape[2]} numbers, as of attributions, got"
                f" {list(self.shape)}"
            )
        if self.examples is None and x is not None:
            object.__setattr__(self, "examples", hash_examples(x))

    def _check_level(self, name: str, a: Numbers) -> None:
        """Raise InputError unless the part after @ is a level, and the array fits its name."""
        plain, level = split_level(name)
        if "@" in name and (level == 1 or at_level(plain, level) != name or "@" in plain):
            raise InputError(
                f"signal {name!r}: expected NAME@L with L queries, at least 2; signals of one query have no @"
            )
        if plain == "predictions" and (level == 1 or a.ndim != 3 or a.shape[2] % level):
            expected = "predictions@L of shape (models, examples, L * classes), or prediction of one query"
            raise InputError(f"{name}: expected {expected}, got {a.shape}")
        if plain in RESERVED and plain != WHOLE_MAP:
            raise InputError(f"{name}: {plain} has no level, as it does not depend on the queries; rename the signal")
        if plain == "label" and not (a.ndim == 2 and bool((np.floor(a) == a).all()) and (np.abs(a) < 2**31).all()):
            raise InputError(f"{name}: expected predicted classes, integers of shape {self.membership.shape}")
        if level == 1:
            return
        if plain == WHOLE_MAP:
            d = a.shape[-1] if self.attributions is None else self.attributions.shape[2]
            fits = a.ndim == 3 and a.dtype.kind == "f" and a.shape[2] == d
            _check(name, fits, f"floats of shape (models, examples, {d})", a)
        elif plain in ("kept", "shares"):
            ndim, shape = (2, "(models, examples)") if plain == "kept" else (3, "(models, examples, classes)")
            _check(name, a.ndim == ndim, f"numbers of shape {shape}", a)
            if a.size and not (a.min() >= 0 and a.max() <= 1):
                raise InputError(f"{name}: expected shares of queries in [0, 1], got {a.min():g} .. {a.max():g}")

    def __len__(self) -> int:
        """Number of examples."""
        return int(self.membership.shape[1])

    @property
    def null(self) -> tuple[int, ...]:
        """The untrained models."""
        return self._models("null", ())

    @property
    def models(self) -> tuple[int, ...]:
        """The trained models."""
        null = set(self.null)
        return tuple(i for i in range(len(self.membership)) if i not in null)

    @property
    def targets(self) -> tuple[int, ...]:
        """The models that are attacked."""
        return self._models("targets", self.models)

    def references(self, target: int) -> tuple[int, ...]:
        """The trained models that are neither the target nor its partner (`partners`)."""
        partner = partners(self.membership)[target]
        return tuple(i for i in self.models if i not in (target, partner))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one map, if known."""
        sides = self.meta.get("shape")
        try:
            shape = None if sides is None else tuple(operator.index(s) for s in sides)
        except TypeError:
            shape = (0,)
        if shape is not None and min(shape, default=1) < 1:
            raise InputError(f"meta['shape']: expected a list of positive sizes, got {sides!r:.60}")
        return shape

    def _models(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        listed = self.meta.get(key, default)
        try:
            models = tuple(operator.index(i) for i in listed)
        except TypeError:
            raise InputError(f"meta[{key!r}]: expected a list of models, got {listed!r:.60}") from None
        if any(not 0 <= i < len(self.membership) for i in models):
            raise InputError(f"meta[{key!r}]: expected models 0 .. {len(self.membership) - 1}, got {list(models)}")
        return models

    @property
    def on_disk(self) -> dict[str, Numbers]:
        """The maps on disk, by name."""
        found = {**self.values, **({} if self.attributions is None else {WHOLE_MAP: self.attributions})}
        return {name: a for name, a in found.items() if are_stored(a)}

    def save(self, path: str | Path) -> None:
        """Write the .npz, all or nothing, without maps on disk, which the meta data name under "left_out"; InputError:
        it cannot be written."""
        omitted = {name: list(a.shape) for name, a in self.on_disk.items()}
        meta = {**self.meta, **({"left_out": omitted} if omitted else {})}
        arrays = {**self.values, **{SLICE + name: s for name, s in self.slices.items()}}
        arrays |= {name: a for name in OPTIONAL if (a := getattr(self, name)) is not None}
        arrays |= {"membership": self.membership, "meta": np.array(json.dumps(meta))}
        write_arrays(path, {name: a for name, a in arrays.items() if name not in omitted})

    @classmethod
    def load(cls, path: str | Path) -> Signals:
        """Read an .npz without pickled arrays; maps of more than 2 GiB in single precision go to a temporary file.

        Raises:
            InputError: the file is missing, not an .npz or without membership; or as the constructor.
        """
        with ArrayFile(path) as file:
            if "membership" not in file.names:
                raise InputError(
                    f"{path}: expected an array 'membership' (bool, models x examples), got {sorted(file.names)}"
                )
            for name in file.names:
                _check_header(name, *file.header(name), file.header("membership").shape)
            sizes = {name: file.header(name).shape for name in file.names if _are_maps(name, *file.header(name))}
            if 4 * sum(map(math.prod, sizes.values())) <= LARGEST_MAPS:
                sizes = {}
            arrays: dict[str, Any] = file.read(*(name for name in file.names if name not in sizes))
            arrays |= {name: filled(file.entries(name), size) for name, size in sizes.items()}
        for name in ("membership", "out_of_distribution"):
            if name in arrays and arrays[name].dtype != np.bool_ and np.isin(arrays[name], (0, 1)).all():
                arrays[name] = arrays[name].astype(bool)
        member, meta = arrays.pop("membership"), arrays.pop("meta", None)
        optional: dict[str, Any] = {name: arrays.pop(name, None) for name in OPTIONAL}
        slices = {name.removeprefix(SLICE): arrays.pop(name) for name in list(arrays) if name.startswith(SLICE)}
        return cls(member, arrays, meta=_meta(path, meta), slices=slices, **optional)


def _check_header(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    """Raise InputError unless an array has its size in the format; `size` is that of membership."""
    if len(size) != 2:
        raise InputError(f"membership: expected bool of shape (models, examples), got {size}")
    if name == "meta":
        fits, expected = shape == () and dtype.itemsize <= LONGEST_META, f"one text of at most {LONGEST_META:,} bytes"
    elif name in ("groups", "examples", "out_of_distribution") or name.startswith(SLICE):
        fits = shape == size[1:] and dtype.itemsize <= WIDEST_SLICE
        expected = f"short texts or numbers of shape {size[1:]}"
    elif name == "inputs":
        fits, expected = shape[:1] == size[1:], f"numbers of shape ({size[1]}, ...)"
    else:
        fits, expected = shape[:2] == size and len(shape) in (2, 3), f"numbers of shape {size} or {size} + (k,)"
    if not fits:
        raise InputError(f"array {name!r}: expected {expected}, got {dtype} {shape}")


def _are_maps(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return split_level(name)[0] == WHOLE_MAP and dtype.kind == "f" and len(shape) == 3 and 0 not in shape


def _meta(path: str | Path, raw: NDArray[Any] | None) -> dict[str, Any]:
    if raw is None:
        return {}
    try:
        meta = json.loads(str(raw))
    except ValueError:
        return {"note": str(raw)}
    if not isinstance(meta, dict):
        raise InputError(f"{path}: meta: expected a JSON object, got {meta!r:.60}")
    return meta
