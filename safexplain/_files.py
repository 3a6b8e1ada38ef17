"""Files that are written whole or not at all, and .npz files of plain arrays, read without pickles."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError


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
    write: Callable[..., None] = np.lib.format.write_array
    try:
        # the archive is closed on errors, as NumPy's own is not
        with whole_file(path) as partial, ZipFile(partial, "w", ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    write(file, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


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
