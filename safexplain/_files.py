"""Files that are written whole or not at all: any file, stores of finished pieces, .npz files of plain arrays."""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

Piece = TypeVar("Piece")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path`, where an older one stays, once the block is left
    without an error; OSError: it cannot be written, and nothing partial is left where it can be removed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: str | Path, raw: bytes, what: str = "", hint: str = "") -> Path:
    """Write a file, all or nothing: an older one stays until the new one is on disk.

    Raises:
        InputError: it cannot be written (no such folder, no permission, disk full); `what` names it, as "the report",
            and `hint` says at the end what to do.
    """
    path = Path(path)
    try:
        with whole_file(path) as partial, partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        name = f"{what} {path}" if what else str(path)
        raise InputError(f"cannot write {name}: {error.strerror or error}{hint}") from None
    return path


def made_folder(folder: str | Path) -> Path:
    """The folder, made where it is missing.

    Raises:
        InputError: it cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    return folder


class PieceStore:
    """Finished pieces of long work in a folder, a file each, so that an interrupted run can be taken up.

    A piece appears whole or not at all; one that is damaged, or does not fit any more, is as if it were not there.

    Args:
        folder: made when missing.
        what: a piece is, in messages: "a trained model".

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, folder: str | Path, what: str) -> None:
        self.folder, self.what = Path(folder), what
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the cache folder {self.folder}: {error.strerror or error}") from None

    def load(self, name: str, read: Callable[[Path], Piece | None]) -> Piece | None:
        """What `read` makes of the file of that name; None where it is not there, or `read` fails."""
        try:
            return read(self.folder / name)
        except Exception:  # whatever libraries raise on damaged files: the piece is computed again
            return None

    def save(self, name: str, write: Callable[[Path], object]) -> None:
        """Let `write` write the file of that name.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        try:
            with whole_file(self.folder / name) as partial:
                write(partial)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"cannot store {self.what} in {self.folder} ({error}); free some space and resume: what was stored"
                " before is kept"
            ) from None

    def remove(self, pattern: str) -> None:
        """Delete the files whose names match."""
        for path in self.folder.glob(pattern):
            path.unlink(missing_ok=True)


UNWRITABLE = ("file", "allow_pickle")
"""Names that no array can have: `numpy.savez` takes them for itself."""

_UNREADABLE = (
    *(OSError, ValueError, EOFError, MemoryError, NotImplementedError, RuntimeError, KeyError, SyntaxError, TypeError),
    *(TokenError, BadZipFile, zlib.error, struct.error),
)
"""What NumPy and zipfile raise on damaged files."""

_read_magic: Callable[..., tuple[int, int]] = np.lib.format.read_magic
_PARSE: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Of headers, by the format's version; 3.0 is only of records whose fields have names that Latin-1 lacks."""

_EXPANDS = 1032
"""DEFLATE makes at most so many bytes of one (RFC 1951: a match of 258 bytes takes at least two bits)."""

_LONGEST_HEADER = 12 + 10_000
"""Bytes before an array's numbers that NumPy reads (`max_header_size`)."""


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the .npz; if that fails, what was there before stays.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(path)
    try:
        with whole_file(path) as partial:
            write_npz(partial, arrays)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], *, compressed: bool = True) -> None:
    """Write the .npz where it stands; the archive is closed on errors, as NumPy's own is not."""
    write: Callable[..., None] = np.lib.format.write_array
    with ZipFile(path, "w", ZIP_DEFLATED if compressed else ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                write(file, np.asanyarray(array), allow_pickle=False)


class Header(NamedTuple):
    """What an array in a file says of itself."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ArrayFile:
    """An .npz of a stranger, looked at before anything is read: names, then dtypes and shapes, then what is wanted.

    Only what `read` is asked for is decompressed, so whatever else lies in the file costs nothing. What is read has the
    size that its header claims, the zip directory claims the same, and a file of that length can hold it: all of this
    is known before memory is taken.

    Args:
        source: the path, or the bytes of the file.
        where: what messages call it; the path, where it is None.

    Raises:
        InputError: missing, no zip archive or damaged; two arrays of one name, names with a path, encryption.
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
            if self._file.read(6) == b"\x93NUMPY":
                raise InputError(f"{self.where} is a single array (.npy); expected an .npz with named arrays")
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
        """Of all arrays, in the file's order."""
        return tuple(self._entries)

    def header(self, name: str) -> Header:
        """Dtype and shape of one array; its numbers are not touched.

        Raises:
            InputError: no array has that name, it is pickled or a record, or claims another size than the file holds.
        """
        if name not in self._entries:
            raise InputError(f"{self.where} has no array {name!r:.60}; found {', '.join(self.names)[:200] or 'none'}")
        if name not in self._headers:
            self._headers[name] = self._header(name, self._entries[name])
        return self._headers[name]

    def read(self, *names: str) -> dict[str, NDArray[Any]]:
        """Arrays by name.

        Raises:
            InputError: as `header`; they are damaged, or do not fit into this machine's memory.
        """
        claimed = sum(math.prod(shape) * dtype.itemsize for dtype, shape in map(self.header, names))
        if claimed > (memory := machine_memory()):
            raise InputError(f"{self.where} holds {claimed >> 20:,} MiB of arrays, this machine {memory >> 20:,} MiB")
        return {name: self._read(name) for name in names}

    def entries(self, name: str) -> Iterator[NDArray[Any]]:
        """The entries of an array along its first axis, one after the other, so that never all of it is in memory.

        Raises:
            InputError: as `header`; it is damaged, or in Fortran's order.
        """
        dtype, shape = self.header(name)
        with self._reasons(name), self._archive.open(self._entries[name]) as file:
            if _PARSE[_read_magic(file)](file)[1]:
                self._refuse(f"array {name!r:.60} is in Fortran's order, and too large for that; save it in C's")
            for _ in range(shape[0]):
                raw = file.read(math.prod(shape[1:]) * dtype.itemsize)
                yield np.frombuffer(raw, dtype).reshape(shape[1:])
            file.read(1)  # the end, where the checksum is looked at

    def _read(self, name: str) -> NDArray[Any]:
        read: Callable[..., NDArray[Any]] = np.lib.format.read_array
        with self._reasons(name), self._archive.open(self._entries[name]) as file:
            array = read(file, allow_pickle=False)
            file.read(1)  # the end, where the checksum is looked at
        return array

    def _checked(self, entries: list[ZipInfo]) -> dict[str, ZipInfo]:
        """The arrays among the entries, by name."""
        found: dict[str, ZipInfo] = {}
        end = 0
        entries = [entry for entry in entries if entry.filename.endswith(".npy")]
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name = entry.filename
            if "/" in name or "\\" in name or "\0" in entry.orig_filename:
                self._refuse(f"it has an entry {name!r:.80}, and names of arrays have no path")
            if entry.flag_bits & 0x1:
                self._refuse(f"its entry {name!r:.80} is encrypted")
            if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                self._refuse(f"its entry {name!r:.80} is compressed in another way than numpy does it")
            if entry.header_offset < end or entry.header_offset + entry.compress_size > self._length:
                self._refuse(f"its entry {name!r:.80} lies over another one or beyond the file's end")
            end = entry.header_offset + entry.compress_size
            if entry.file_size > (_EXPANDS * entry.compress_size if entry.compress_type else entry.compress_size):
                self._refuse(f"its entry {name!r:.80} claims {entry.file_size:,} bytes, more than it can hold")
            if name[:-4] in found:
                self._refuse(f"it holds two arrays of the name {name[:-4]!r:.60}")
            found[name[:-4]] = entry
        return {entry.filename[:-4]: entry for entry in entries}

    def _header(self, name: str, entry: ZipInfo) -> Header:
        what = f"array {name!r:.60}"
        with self._reasons(name), self._archive.open(entry) as file:
            start = file.read(_LONGEST_HEADER)
        with self._reasons(name):
            head = io.BytesIO(start)
            version = _read_magic(head)
            if version not in _PARSE:
                self._refuse(f"{what} is a record, or of format {version[0]}.{version[1]}; expected plain numbers")
            shape, _, dtype = _PARSE[version](head)
        if dtype.hasobject:
            self._refuse(
                f"{what} holds Python objects, which can run code when loaded; save it with a numeric or string dtype"
            )
        if dtype.names or dtype.itemsize == 0 or any(side < 0 for side in shape):
            self._refuse(f"{what} is of dtype {dtype!s:.60} and shape {shape}; expected plain numbers or texts")
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - head.tell()
        if claimed != held:
            self._refuse(
                f"{what} claims to be {dtype} of shape {shape}, {claimed:,} bytes, where the file holds {held:,}"
            )
        return Header(dtype, shape)

    @contextmanager
    def _reasons(self, name: str = "") -> Iterator[None]:
        """One sentence for whatever NumPy and zipfile raise on damaged files."""
        try:
            yield
        except InputError:
            raise
        except _UNREADABLE as error:
            what = f"array {name!r:.60} is" if name else "it is"
            self._refuse(f"{what} damaged or cut short: {str(error).partition(chr(10))[0][:160]}")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.where} is not a readable .npz of plain arrays ({why}); save it again") from None


def machine_memory() -> int:
    """Bytes of memory that this machine, or this container, has; a bound that no file reaches where neither tells."""
    found = 1 << 62
    with suppress(AttributeError, ValueError, OSError):
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(ValueError, OSError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def read_arrays(path: str | Path, *names: str) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz: those of these names, or all. Pickled ones are refused.

    Raises:
        InputError: missing, damaged, pickled, or not an .npz; see `ArrayFile`.
    """
    with ArrayFile(path) as file:
        return file.read(*(names or file.names))
