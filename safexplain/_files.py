"""Files that are written whole or not at all: any file, stores of finished pieces, .npz files of plain arrays."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeVar
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

Piece = TypeVar("Piece")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` once the block is left without an error.

    Args:
        path: of the file; what is there stays until then.

    Raises:
        OSError: it cannot be written; nothing partial is left where it can be removed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


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

_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, NotImplementedError, TokenError, BadZipFile, zlib.error)
"""What NumPy and zipfile raise on damaged files."""


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


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the .npz where it stands; the archive is closed on errors, as NumPy's own is not."""
    write: Callable[..., None] = np.lib.format.write_array
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                write(file, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz; pickled ones are refused.

    Raises:
        InputError: missing, damaged, pickled, or not an .npz.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.ndarray):
            with file:
                return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except _UNREADABLE as error:
        raise InputError(f"{path} is not a readable .npz of plain arrays ({error})") from None
    raise InputError(f"{path} is a single array; expected an .npz with membership and signals")
