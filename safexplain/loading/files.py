"""Reading a stranger's file, one sentence for each thing that can go wrong; optional libraries."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safexplain.errors import InputError, MissingExtraError, needs_extra


def read_bytes(path: str | Path, what: str) -> bytes:
    """The whole file, read once, so that what is hashed is what is loaded; InputError, about `what` it should be
    ("model", "data"): missing, a directory, unreadable or empty."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the {what} file {path} cannot be read: {error.strerror or error}") from None
    if not raw:
        raise InputError(f"the {what} file {path} is empty (0 bytes); write it again")
    return raw


def is_safetensors(raw: bytes) -> bool:
    """Whether bytes are the length of a JSON header, the header, and more."""
    return raw[8:9] == b"{" and int.from_bytes(raw[:8], "little") <= len(raw) - 8


def one_line(error: BaseException | str, limit: int = 200) -> str:
    """The first line of an exception's message, shortened: what may stand inside a one-line error."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def described(what: str, remedy: str = "") -> Iterator[None]:
    """Whatever error the code of others raises, as an InputError in one line: what failed, the error, what to do."""
    try:
        yield
    except (InputError, MissingExtraError):
        raise
    except Exception as error:
        raise InputError(f"{what}: {type(error).__name__}: {one_line(error)}{remedy}") from None


@contextmanager
def quiet(level: int = logging.CRITICAL) -> Iterator[None]:
    """Without log lines up to a level, which repeat at length what an error says in a line."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def require(module: str, extra: str) -> Any:
    """A module that an extra of this package brings; MissingExtraError where it cannot be imported."""
    try:
        with needs_extra(extra):
            return importlib.import_module(module)
    except MissingExtraError:
        raise
    except ImportError as error:  # installed, but not for the versions beside it
        raise MissingExtraError(
            f"{module} cannot be imported: {one_line(error)} (extra: safexplain[{extra}])"
        ) from None
