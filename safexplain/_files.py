"""Files written completely or not at all: single files, folders of finished results, .npz files of plain arrays."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn, Self, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

Result = TypeVar("Result")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` if the block ends without an error, and is removed otherwise."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_atomically(path: str | Path, raw: bytes, what: str = "", hint: str = "") -> Path:
    """Write a file; an older one stays until the new one is on disk. InputError: it cannot be written; the message
    calls it `what` and ends with the `hint`."""
    path = Path(path)
    try:
        with atomic_file(path) as partial, partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        name = f"{what} {path}" if what else str(path)
        raise InputError(f"cannot write {name}: {error.strerror or error}{hint}") from None
    return path


def make_folder(folder: str | Path) -> Path:
    """The folder, created if missing; InputError: it cannot be created."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    return folder


class FileStore:
    """Finished results of a long run (`what`, such as "a trained model") in a folder, one file each; a damaged one
    counts as missing. InputError: the folder cannot be created."""

    def __init__(self, folder: str | Path, what: str) -> None:
        self.folder, self.what = make_folder(folder), what

    def load(self, name: str, read: Callable[[Path], Result | None]) -> Result | None:
        """The result of `read` on the file of that name; None: it is missing, or `read` fails."""
        try:
            return read(self.folder / name)
        except Exception:  # libraries raise many errors on damaged files; the result is computed again
            return None

    def save(self, name: str, write: Callable[[Path], object]) -> None:
        """Let `write` write the file of that name; InputError: the disk is full or not writable."""
        try:
            with atomic_file(self.folder / name) as partial:
                write(partial)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"cannot store {self.what} in {self.folder} ({error}); free some space and resume: stored files are"
                " kept"
            ) from None

    def remove(self, pattern: str) -> None:
        """Delete the files whose names match the pattern."""
        for path in self.folder.glob(pattern):
            path.unlink(missing_ok=True)


RESERVED_BY_NUMPY = ("file", "allow_pickle")  # parameters of `numpy.savez`, so that no array can have these names

_read_magic: Callable[..., tuple[int, int]] = np.lib.format.read_magic
_PARSE: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # by version of the format; 3.0 is for records only
_EXPANDS = 1032  # bytes that DEFLATE makes of one at most (RFC 1951: a match of 258 bytes takes at least two bits)
_LONGEST_HEADER = 12 + 10_000  # bytes of a header that NumPy reads at most (`max_header_size`)


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz; an older file stays if that fails. InputError: it cannot be written."""
    path = Path(path)
    try:
        with atomic_file(path) as partial:
            write_npz(partial, arrays)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], *, compressed: bool = True) -> None:
    """Write an .npz in place. Unlike `numpy.savez`, this closes the archive on errors."""
    write: Callable[..., None] = np.lib.format.write_array
    with ZipFile(path, "w", ZIP_DEFLATED if compressed else ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                write(file, np.asanyarray(array), allow_pickle=False)


class Header(NamedTuple):
    """Dtype and shape of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ArrayFile:
    """An untrusted .npz. Only requested arrays are decompressed, after the size in their headers was compared with the
    zip directory and the length of the file.

    Args:
        source: the path, or the content of the file.
        where: its name in messages; None: the path.

    Raises:
        InputError: missing, damaged or not a zip archive; two arrays of one name, names with a path, encryption.
    """

    def __init__(self, source: str | Path | bytes, where: str | None = None) -> None:
        self.where = where or (f"{len(source)} bytes" if isinstance(source, bytes) else str(source))
        try:
            self._file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise InputError(f"no such file: {self.where}") from None
        except OSError as error:
            self._refuse(f"{error.strerror or error}")
        try:
            self._length = self._file.seek(0, io.SEEK_END)
            self._file.seek(0)
            if self._file.read(6) == np.lib.format.MAGIC_PREFIX:
                raise InputError(f"expected an .npz with named arrays, got a single array (.npy): {self.where}")
            with self._reasons():
                self._archive = ZipFile(self._file)
            self._entries = self._checked(self._archive.infolist())
        except BaseException:
            self._file.close()
            raise
        self._headers: dict[str, Header] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays, in the order of the file."""
        return tuple(self._entries)

    def header(self, name: str) -> Header:
        """Dtype and shape of one array, without reading its numbers; InputError: no array has that name, it is pickled
        or a record, or its header gives a wrong size."""
        if name not in self._entries:
            raise InputError(f"{self.where} has no array {name!r:.60}; it has {', '.join(self.names)[:200] or 'none'}")
        if name not in self._headers:
            self._headers[name] = self._header(name)
        return self._headers[name]

    def read(self, *names: str) -> dict[str, NDArray[Any]]:
        """Arrays by name; InputError: as `header`; damaged arrays, or more than this machine's memory holds."""
        claimed = sum(math.prod(shape) * dtype.itemsize for dtype, shape in map(self.header, names))
        if claimed > (memory := machine_memory()):
            raise InputError(
                f"{self.where} holds {claimed >> 20:,} MiB of arrays, but this machine has {memory >> 20:,} MiB of"
                " memory; use a larger machine or fewer rows"
            )
        read: Callable[..., NDArray[Any]] = np.lib.format.read_array
        found = {}
        for name in names:
            with self._opened(name) as file:
                found[name] = read(file, allow_pickle=False)
        return found

    def entries(self, name: str) -> Iterator[NDArray[Any]]:
        """Entries of an array along its first axis, one at a time, so that the whole array is never in memory;
        InputError: as `header`; a damaged array, or one in Fortran order."""
        dtype, shape = self.header(name)
        with self._opened(name) as file:
            if _PARSE[_read_magic(file)](file)[1]:
                self._refuse(f"array {name!r:.60} is too large to be in Fortran order; save it in C order")
            for _ in range(shape[0]):
                raw = file.read(math.prod(shape[1:]) * dtype.itemsize)
                yield np.frombuffer(raw, dtype).reshape(shape[1:])

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        """An array's bytes, which the block must read to their end, where the checksum is verified."""
        with self._reasons(name), self._archive.open(self._entries[name]) as file:
            yield file
            file.read(1)

    def _checked(self, entries: list[ZipInfo]) -> dict[str, ZipInfo]:
        entries = [entry for entry in entries if entry.filename.endswith(".npy")]
        end = 0  # of the entry before
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name, start, packed = entry.filename, entry.header_offset, entry.compress_size
            most = packed * (_EXPANDS if entry.compress_type else 1)
            wrong = {
                "has a path as its name": "/" in name or "\\" in name or "\0" in entry.orig_filename,
                "is encrypted": entry.flag_bits & 0x1,
                "uses a compression that numpy does not": entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED),
                "overlaps another one or ends beyond the file": start < end or start + packed > self._length,
                f"claims {entry.file_size:,} bytes, more than it can hold": entry.file_size > most,
            }
            for what, is_wrong in wrong.items():
                if is_wrong:
                    self._refuse(f"its entry {name!r:.80} {what}")
            end = start + packed
        arrays: dict[str, ZipInfo] = {}
        for entry in entries:
            if arrays.setdefault(name := entry.filename[:-4], entry) is not entry:
                self._refuse(f"it holds two arrays named {name!r:.60}")
        return arrays

    def _header(self, name: str) -> Header:
        what, entry = f"array {name!r:.60}", self._entries[name]
        with self._reasons(name):
            with self._archive.open(entry) as file:
                head = io.BytesIO(file.read(_LONGEST_HEADER))
            version = _read_magic(head)
            if version not in _PARSE:
                self._refuse(f"{what} is a record, or has format {version[0]}.{version[1]}; expected plain numbers")
            shape, _, dtype = _PARSE[version](head)
        if dtype.hasobject:
            self._refuse(
                f"{what} holds Python objects, which can run code when loaded; save it with a numeric or string dtype"
            )
        if dtype.names or dtype.itemsize == 0 or any(side < 0 for side in shape):
            self._refuse(f"{what} has dtype {dtype!s:.60} and shape {shape}; expected plain numbers or texts")
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - head.tell()
        if claimed != held:
            self._refuse(
                f"{what} claims dtype {dtype} and shape {shape}, {claimed:,} bytes, but the file holds {held:,}"
            )
        return Header(dtype, shape)

    @contextmanager
    def _reasons(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # NumPy and zipfile raise many kinds
            what = f"array {name!r:.60} is" if name else "it is"
            self._refuse(f"{what} damaged or cut short: {str(error).partition(chr(10))[0][:160]}")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.where} is not a readable .npz of plain arrays ({why}); save it again") from None


def machine_memory() -> int:
    """Bytes of memory of this machine or container; 2^62 where neither reports it."""
    found = 1 << 62
    with suppress(AttributeError, ValueError, OSError):
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(ValueError, OSError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def read_arrays(path: str | Path, *names: str) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz, or all of them; InputError: missing, damaged, pickled, or not an .npz."""
    with ArrayFile(path) as file:
        return file.read(*(names or file.names))
