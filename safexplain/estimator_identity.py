"""A digest of a fitted scikit-learn estimator that survives a restart, as `safexplain._digest` has it for modules.

The digest is a BLAKE2b hash (RFC 7693) of what the estimator would be pickled as, read part by part: classes by name,
numbers and arrays by value, mappings in the order of their keys. So a fitted estimator and one loaded from a file have
the same digest, whichever objects they share inside. Nothing is pickled or loaded.
"""

from __future__ import annotations

import hashlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

__all__ = ["estimator_digest", "is_estimator"]

_PERSON = b"sklearn digest"
_SAMPLES = 8
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, np.ufunc)
_digests: WeakKeyDictionary[Any, tuple[tuple[Any, ...], list[bytes], bytes | None]] = WeakKeyDictionary()
_guard = threading.Lock()


def is_estimator(value: object) -> bool:
    """Whether an object is a scikit-learn estimator, found out without importing scikit-learn."""
    return any(base.__name__ == "BaseEstimator" and base.__module__ == "sklearn.base" for base in type(value).__mro__)


def estimator_digest(estimator: Any) -> bytes | None:
    """32 bytes that name a fitted estimator, or None where a part of it could not be pickled.

    Cached for each estimator; hashed anew when an attribute was assigned, as `fit` does, or a sample of 8 numbers of an
    array in it has changed, as `partial_fit` does. A single number written into an array may be missed.

    >>> from sklearn.linear_model import LinearRegression
    >>> one, other = (LinearRegression().fit([[0.0], [1.0]], [0.0, slope]) for slope in (1.0, 2.0))
    >>> estimator_digest(one) == estimator_digest(other)
    False
    """
    kept, samples = tuple(_parts(estimator)), list(_samples(estimator))
    with _guard:
        known = _digests.get(estimator)
    if known and len(known[0]) == len(kept) and all(map(_same, known[0], kept)) and known[1] == samples:
        return known[2]
    digest = hashlib.blake2b(digest_size=32, person=_PERSON)
    try:
        _read(estimator, digest.update, ())
        found: bytes | None = digest.digest()
    except Exception:  # whatever an attribute does when it is asked to be pickled: locks, files, local functions
        found = None
    with _guard:
        _digests[estimator] = (kept, samples, found)
    return found


def _same(one: object, other: object) -> bool:
    return one is other


def _parts(value: Any) -> Iterator[Any]:
    """The attributes of an estimator, and of those inside it, in lists too."""
    inside = vars(value).values() if is_estimator(value) else value.values() if isinstance(value, dict) else value
    for part in inside:
        yield part
        if isinstance(part, dict | list | tuple) or is_estimator(part):
            yield from _parts(part)


def _samples(estimator: Any) -> Iterator[bytes]:
    for part in _parts(estimator):
        if isinstance(part, np.ndarray) and part.dtype.kind in "biuf" and part.size:
            yield part.reshape(-1)[:: max(1, part.size // _SAMPLES)][:_SAMPLES].tobytes()


def _read(value: Any, write: Callable[[bytes], None], above: tuple[int, ...]) -> None:
    """Write an object part by part; an object within itself by its distance."""
    if id(value) in above:
        write(f"up {len(above) - above.index(id(value))};".encode())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        plain = value.item() if isinstance(value, np.generic) else value
        write(f"{type(plain).__name__} {plain!r};".encode("utf-8", "surrogatepass"))
    elif isinstance(value, np.ndarray) and value.dtype.names:
        write(f"record {value.shape};".encode())
        for name in value.dtype.names:  # by field: the bytes between fields are anything
            write(f"{name} ".encode())
            _read(np.ascontiguousarray(value[name]), write, above)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        write(f"array {value.dtype.str} {value.shape};".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, np.dtype):
        write(f"dtype {value.str};".encode())
    elif isinstance(value, (*_NAMED, types.ModuleType)):
        if "<locals>" in (name := getattr(value, "__qualname__", value.__name__)) or name == "<lambda>":
            raise TypeError(f"{name} has no name to go by")
        write(f"name {getattr(value, '__module__', '')} {name};".encode())
    else:
        _read_parts(value, write, (*above, id(value)))


def _read_parts(value: Any, write: Callable[[bytes], None], above: tuple[int, ...]) -> None:
    write(f"{type(value).__module__} {type(value).__qualname__}(".encode())
    if isinstance(value, dict):
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            _read(key, write, above)
            _read(value[key], write, above)
    elif isinstance(value, set | frozenset):
        write(" ".join(sorted(map(repr, value))).encode())
    elif isinstance(value, list | tuple | np.ndarray):
        for item in value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value:
            _read(item, write, above)
    else:
        for part in value.__reduce_ex__(2):
            _read(list(part) if isinstance(part, Iterator) else part, write, above)
    write(b")")
