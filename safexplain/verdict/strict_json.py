"""JSON with one meaning and one canonical text: nothing that parsers disagree about (RFC 8259, sections 4 and 6), such
as duplicate names and NaN, or that exhausts them, such as deep nesting and huge integers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from safexplain.errors import CertificateError, InputError, SafexplainError

LARGEST = 8 << 20  # bytes of a file
DEEPEST = 32
MOST_VALUES = 500_000  # counted before parsing
LARGEST_INTEGER = 2**53


def load(path: str | Path, what: str, error: type[SafexplainError] = InputError) -> dict[str, Any]:
    """The object in a file; raises `error` if it is refused."""
    return parse(read_limited(path, what, error), f"the {what} {path}", error)


def read_limited(path: str | Path, what: str, error: type[SafexplainError] = CertificateError) -> bytes:
    """A file's bytes; `InputError`, or `error` if there are too many."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST + 1)
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise InputError(f"the {what} {path} cannot be read: {reason}; check the path") from None
    if len(raw) > LARGEST:
        raise error(f"{path} is not a {what}: expected at most {LARGEST >> 20} MiB")
    return raw


def parse(raw: bytes, where: str, error: type[SafexplainError] = CertificateError) -> dict[str, Any]:
    """One JSON object in UTF-8; raises `error` if it is refused."""

    def refuse(why: str) -> NoReturn:
        raise error(f"{where} cannot be read as JSON: {why}")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else refuse(f"{text:.20} is not a finite number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                refuse(f"the name {name!r:.60} is given twice in one object")
            found[name] = value
        return found

    values = 1 + sum(map(raw.count, (b",", b"[", b"{")))  # one of these stands before each
    if values > MOST_VALUES:
        refuse(f"it holds up to {values:,} values; expected at most {MOST_VALUES:,}")
    try:
        content = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique,
            parse_float=number,
            parse_constant=lambda text: refuse(f"{text} is not a JSON number"),
        )
    except SafexplainError:
        raise
    except RecursionError:
        refuse("it is nested too deeply")
    except ValueError as cause:  # bad UTF-8, bad JSON, an integer of thousands of digits
        refuse(str(cause).splitlines()[0][:160])
    if not isinstance(content, dict):
        refuse(f"expected an object, got a {type(content).__name__}")
    for depth, value in inside(content):
        if depth > DEEPEST:
            refuse(f"it is nested more than {DEEPEST} levels deep")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            refuse(f"it holds an integer beyond 2^53 ({value!s:.20}...)")
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            refuse("a text holds half of a surrogate pair")
    return content


def inside(content: Any) -> Iterator[tuple[int, Any]]:
    """(depth, value) of every part of parsed JSON, names of objects included."""
    waiting: list[tuple[int, Any]] = [(0, content)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, dict):
            waiting += [(depth + 1, part) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            waiting += [(depth + 1, part) for part in value]


def canonical(content: Any) -> bytes:
    """The canonical text: sorted names, no spaces, ASCII, 1 for 1.0."""
    return json.dumps(_plain(content), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
