"""Files that a ledger writes for others: whole or not at all, and never over the ledger itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from safexplain.errors import ConfigurationError, InputError
from safexplain.whole_file import whole_file


@contextmanager
def replacing(target: str | PathLike[str], kept: Sequence[Path]) -> Iterator[Path]:
    """A path to write to, whose file takes the place of the target once the block is left without an error.

    Args:
        target: path.
        kept: files that must not be replaced.

    Raises:
        ConfigurationError: the target is one of them.
        InputError: there is no such folder, or it cannot be written.
    """
    path = Path(target)
    if any(path.resolve() == file.resolve() for file in kept):
        raise ConfigurationError(f"{path} is a file of the ledger itself; name another one")
    try:
        with whole_file(path) as partial:
            partial.unlink(missing_ok=True)  # SQLite would write into what a killed process left
            yield partial
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
