"""What a client sends, before it becomes a question: a body, the numbers in it, and the name of who asks.

All of it is bounded before it is expanded. What a body may hold follows from the shape of an input and the most rows of
a request (`Bounds`), and is counted in its bytes before they are parsed; numbers are looked at one by one before NumPy
sees them, which pads texts of unequal length to the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from safexplain.errors import ConfigurationTypeError, InputError, RequestError
from safexplain.ledger.records import principal_name

ANONYMOUS = "anonymous"
"""The client of requests that do not say whose they are; all of them share one budget."""

USER = "user:"
"""Before the names of authenticated users, lest a header gives one out for another."""

MOST_BYTES = 32 << 20
"""Of a request's body, whatever the shape of an input."""

_BYTES_A_NUMBER = 40
"""In JSON, with a sign, 17 digits, an exponent, a comma, and some indentation."""

_SLACK = 1000
"""Marks of a body beside those of its numbers: of names, of the V2 envelope, of an `id`."""

_UNKNOWN = (1 << 23, 1 << 17)
"""Numbers and lists of a body, at most, where the shape of an input is not known."""

_MOST_DIMENSIONS = 9


@dataclass(frozen=True)
class Bounds:
    """What the body of a request may hold.

    Args:
        rows: of a request.
        numbers: of all rows.
        lists: nested ones, of all rows.
    """

    rows: int
    numbers: int
    lists: int

    @classmethod
    def of(cls, shape: tuple[int, ...] | None, rows: int) -> Bounds:
        """Of inputs of this shape (None: not known), so many rows in a request."""
        if shape is None:
            return cls(rows, *_UNKNOWN)
        return cls(rows, rows * math.prod(shape), rows * sum(math.prod(shape[:i]) for i in range(len(shape))))

    @property
    def size(self) -> int:
        """Bytes of a body, at most."""
        return min(MOST_BYTES, (self.numbers + self.lists) * _BYTES_A_NUMBER + 16 * _SLACK)

    def load(self, body: bytes | bytearray) -> Any:
        """The JSON of a body, parsed once its marks were counted: 30 MiB of `{}` would parse to a gigabyte.

        Args:
            body: of a request, as read.

        Raises:
            RequestError: more lists, objects, texts or numbers than so many rows have (413), or no JSON.
        """
        most = {b",": self.numbers, b"[": self.lists, b"{": 0, b":": 0, b'"': 0}
        if any(body.count(mark) > number + _SLACK for mark, number in most.items()):
            raise RequestError(
                f"expected at most {self.rows:,} rows of {self.numbers // self.rows:,} numbers", status=413
            )
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError(
                f"expected JSON, which has no NaN or Infinity; byte {error.pos} cannot be read"
            ) from None


def numbers(values: Any, name: str) -> NDArray[np.float32]:
    """Nested lists of numbers, or an array or tensor of numbers, as float32.

    Args:
        values: nested lists or tuples, or what NumPy takes for an array as it is.
        name: of the field, for messages.

    Raises:
        RequestError: text, null, true and false, lists of different lengths, or a number beyond float64.
    """
    if isinstance(values, list | tuple):
        if _shape(values) is None:
            raise RequestError(f"{name}: expected lists of numbers, all of one length, and nothing else", field=name)
    else:
        values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
        if not hasattr(values, "__array__") or np.asarray(values).dtype.kind not in "iuf":
            raise RequestError(f"{name}: expected numbers (n, ...), got {type(values).__name__:.40}", field=name)
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, None if hasattr(values, "dtype") else np.float64).astype(np.float32)
    except OverflowError:
        raise RequestError(f"{name}: expected numbers that float32 can hold", field=name) from None


def _shape(values: Any, depth: int = 1) -> tuple[int, ...] | None:
    """Of nested lists that hold numbers alone and are all of one length; None: these do not."""
    kinds = set(map(type, values))
    if kinds <= {int, float} or all(issubclass(kind, np.integer | np.floating) for kind in kinds):
        return (len(values),)
    if not kinds <= {list, tuple} or depth == _MOST_DIMENSIONS:
        return None
    shapes = {_shape(one, depth + 1) for one in values}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(values), *inner)


def client_of(header: Sequence[str], user: str = "") -> str:
    """Who asks.

    Args:
        header: values of X-Client-Id.
        user: the platform's authenticated user, who goes before the header; "": it has none.

    Returns:
        "user:..." for a user; the header's name; or, without either, the name that all such requests share.

    Raises:
        RequestError: several names, one that gives itself out for a user's, or none that `principal` takes.
    """
    if user:
        return principal(USER + user)
    given = header[0] if header else ANONYMOUS
    with suppress(UnicodeError):  # servers read the UTF-8 of a header as Latin-1
        given = given.encode("latin-1").decode()
    name = principal(given)
    if len(header) > 1 or name.startswith(USER):
        raise RequestError(f"X-Client-Id: expected one name that does not begin with {USER}", field="X-Client-Id")
    return name


def principal(client: str) -> str:
    """A client's name as the ledger writes it: in Unicode's NFKC, so that full-width `ann` is `ann`; case is kept.

    Raises:
        RequestError: empty, too long, with white space outside or control characters.
    """
    try:
        return principal_name(client)
    except (InputError, ConfigurationTypeError) as error:
        raise RequestError(f"X-Client-Id: {error}", field="X-Client-Id") from None
