"""Reading requests: the body, its numbers, and the client's name. Everything is bounded before it is expanded."""

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

ANONYMOUS = "anonymous"  # the client of requests without a name; all of them share one budget
USER_PREFIX = "user:"  # of authenticated users, so that a header cannot claim to be one
MAX_BODY_BYTES = 32 << 20  # of a request's body, for any shape of an input
_BYTES_A_NUMBER = 40  # JSON with a sign, 17 digits, an exponent, a comma, and some indentation
_OTHER_MARKS = 1000  # marks of a body besides those of its numbers: names, the V2 envelope, an `id`
_DEFAULT_MAXIMA = (1 << 23, 1 << 17)  # numbers and lists of a body, if the shape of an input is unknown
_MAX_DIMENSIONS = 9


@dataclass(frozen=True)
class Bounds:
    """Maxima of a request's body: its rows, their numbers and their nested lists."""

    rows: int
    numbers: int
    lists: int

    @classmethod
    def of(cls, shape: tuple[int, ...] | None, rows: int) -> Bounds:
        """The bounds for inputs of a shape (None: unknown) and this many rows."""
        if shape is None:
            return cls(rows, *_DEFAULT_MAXIMA)
        return cls(rows, rows * math.prod(shape), rows * sum(math.prod(shape[:i]) for i in range(len(shape))))

    @property
    def size(self) -> int:
        """Maximum of bytes."""
        return min(MAX_BODY_BYTES, (self.numbers + self.lists) * _BYTES_A_NUMBER + 16 * _OTHER_MARKS)

    def load(self, body: bytes | bytearray) -> Any:
        """The JSON of a body, whose marks are counted first, because 30 MiB of `{}` would parse to a gigabyte."""
        most = {b",": self.numbers, b"[": self.lists, b"{": 0, b":": 0, b'"': 0}
        if any(body.count(mark) > number + _OTHER_MARKS for mark, number in most.items()):
            each = self.numbers // self.rows
            raise RequestError(f"expected at most {self.rows:,} rows of {each:,} numbers", status=413)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"expected JSON (without NaN or Infinity), got an error at byte {error.pos}") from None


def numbers(values: Any, name: str) -> NDArray[np.float32]:
    """Nested lists, an array or a tensor as float32, checked before NumPy gets them.

    Raises RequestError for text, null, booleans, lists of different lengths, and numbers beyond float64.
    """
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    if isinstance(values, list | tuple):
        if _shape(values) is None:
            raise RequestError(f"{name}: expected nothing but lists of numbers, all of one length", field=name)
    elif not hasattr(values, "__array__") or np.asarray(values).dtype.kind not in "iuf":
        raise RequestError(f"{name}: expected numbers (n, ...), got {type(values).__name__:.40}", field=name)
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, None if hasattr(values, "dtype") else np.float64).astype(np.float32)
    except OverflowError:
        raise RequestError(f"{name}: expected numbers that float32 can hold", field=name) from None


def _shape(values: Any, depth: int = 1) -> tuple[int, ...] | None:
    kinds = set(map(type, values))
    if kinds <= {int, float} or all(issubclass(kind, np.integer | np.floating) for kind in kinds):
        return (len(values),)
    if not kinds <= {list, tuple} or depth == _MAX_DIMENSIONS:
        return None
    shapes = {_shape(one, depth + 1) for one in values}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(values), *inner)


def client_name(header: Sequence[str], user: str = "") -> str:
    """The client: "user:..." for an authenticated user, or else the one name in X-Client-Id, or `ANONYMOUS`."""
    if user:
        return principal(USER_PREFIX + user)
    given = header[0] if header else ANONYMOUS
    with suppress(UnicodeError):  # servers read the UTF-8 of a header as Latin-1
        given = given.encode("latin-1").decode()
    name = principal(given)
    if len(header) > 1 or name.startswith(USER_PREFIX):
        raise RequestError(f"X-Client-Id: expected one name without the prefix {USER_PREFIX}", field="X-Client-Id")
    return name


def principal(client: str) -> str:
    """A client's name as the ledger stores it; RequestError for one that `principal_name` refuses."""
    try:
        return principal_name(client)
    except (InputError, ConfigurationTypeError) as error:
        raise RequestError(f"X-Client-Id: {error}", field="X-Client-Id") from None
