"""Checks of numbers and of tables: single numbers, arrays, and dataclasses read from TOML and JSON."""

from __future__ import annotations

import math
import operator
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, SafexplainError


def keep_number(
    step: object, name: str, *, minimum: float | None = None, above: float | None = None, below: float | None = None
) -> None:
    """Check a field of a frozen dataclass and store it as a plain float, because equal configurations (1, 1.0 and
    NumPy's 1; 0 and -0.0) must give the same JSON and so the same noise."""
    owner = f"{type(step).__name__} {name}"
    value = check_number(owner, getattr(step, name), minimum=minimum, above=above, below=below)
    object.__setattr__(step, name, value)


def check_number(
    name: str, value: float, *, minimum: float | None = None, above: float | None = None, below: float | None = None
) -> float:
    """The value as a float, checked to be finite, real and within its limits; ConfigurationTypeError: not a number;
    ConfigurationError: out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationTypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(f"{name} must be finite, got {value!r}")
    if minimum is not None and value < minimum:
        raise ConfigurationError(f"{name} must be at least {minimum:g}, got {value!r}")
    if above is not None and value <= above:
        raise ConfigurationError(f"{name} must be greater than {above:g}, got {value!r}")
    if below is not None and value >= below:
        raise ConfigurationError(f"{name} must be less than {below:g}, got {value!r}")
    return number


def checked_digest(given: bytes | None) -> bytes | None:
    """A digest of the caller's own; ConfigurationTypeError: not bytes; ConfigurationError: under 16 of them."""
    if given is not None and not isinstance(given, bytes):
        raise ConfigurationTypeError(f"model_digest: expected bytes, got {type(given).__name__}")
    if given is not None and len(given) < 16:
        raise ConfigurationError(
            f"model_digest: expected 16 bytes or more, got {len(given)}; hashlib.sha256 of the model's file gives 32"
        )
    return given


def check_whole(name: str, value: object, least: int) -> int:
    """The value, checked to be an int of at least `least`; ConfigurationError: anything else, bools and NumPy's
    integers, which JSON lacks, included."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "" if type(value) is int else f"{type(value).__name__} "
        raise ConfigurationError(f"{name}: expected a whole number of at least {least}, got {kind}{value!r}")
    return value


def whole_number(name: str, value: object, least: int) -> int:
    """The same as an int; NumPy's integers are accepted too."""
    return check_whole(name, operator.index(value) if isinstance(value, np.integer) else value, least)


_NO_NUMBERS = (str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64)


def real_numbers(
    given: Any, what: str, error: type[SafexplainError] = InputError, expected: str = ""
) -> NDArray[np.float64]:
    """Float64 copy of real numbers, in their shape; None becomes NaN. Texts, dates, complex numbers, masked values,
    numbers beyond float64 and tensors without data raise `error`, which calls them `what` and says what was
    `expected`."""
    array = readable(given, what, error)
    try:
        array = np.asarray(array)
        if array.dtype.kind in "biuf" or (
            array.dtype.kind == "O" and not any(isinstance(value, _NO_NUMBERS) for value in array.flat)
        ):
            return np.array(array, dtype=np.float64)
    except OverflowError:
        raise error(f"{what}: a number is too large for float64") from None
    except (TypeError, ValueError, RuntimeError):
        pass
    raise error(f"{what}: {expected or f'expected numbers, got {reprlib.repr(given)}'}") from None


def readable(given: Any, what: str, error: type[SafexplainError] = InputError) -> Any:
    """`given` with its tensors, also those in a list, as NumPy arrays, for NumPy and scikit-learn to read; `error`:
    masked entries, or a tensor without data."""
    if isinstance(given, (list, tuple)):
        arrays = [hasattr(part, "detach") or isinstance(part, np.ma.MaskedArray) for part in given]
        return [readable(part, what, error) if array else part for part, array in zip(given, arrays, strict=True)]
    if isinstance(given, np.ma.MaskedArray) and (masked := np.count_nonzero(given.mask)):
        raise error(f"{what}: expected no masked entries, got {masked}; fill them or remove their rows")
    if not hasattr(given, "detach"):
        return given
    try:
        tensor = given.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
    except (TypeError, RuntimeError) as cause:
        raise error(f"{what}: expected a dense tensor with data, got an unreadable one ({cause})") from cause


Made = TypeVar("Made")


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Content of a TOML file; messages call it `what`. InputError: it is unreadable or not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the {what} {path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read the {what} {path}: expected TOML, got a file that is not text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"cannot read the {what} {path}: expected TOML, got an error: {error}") from None


def from_table(kind: type[Made], values: Any, what: str) -> Made:
    """Build a dataclass from a table of TOML or JSON, called `what` in messages: lists become tuples, tables the
    dataclasses of their fields, and missing names take their defaults.

    Raises:
        ConfigurationError: an unknown name, a missing name without a default, or an error of the constructor.
        ConfigurationTypeError: not a table, or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationTypeError(f"{what} must be a table, got {values!r:.60}")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if unknown := values.keys() - known.keys():
        raise ConfigurationError(f"{what}: unknown {sorted(unknown)}; known are {sorted(known)}")
    needed = [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in values]
    if needed:
        raise ConfigurationError(f"{what} lacks {', '.join(needed)}")
    hints = check_types(kind, values, what)
    return kind(**{name: _converted(v, hints[name], f"{what}: {name}") for name, v in values.items()})


_hints = cache(get_type_hints)  # slow, and a certificate has a table for each attack


def _converted(value: Any, hint: Any, what: str) -> Any:
    for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if isinstance(value, Mapping) and isinstance(part, type) and is_dataclass(part):
            return from_table(part, value, what)
        if isinstance(value, list | tuple) and get_origin(part) is tuple:
            return tuple(_converted(one, get_args(part)[0], what) for one in value)
    return tuple(value) if isinstance(value, list) and hint is not Any else value


def check_types(kind: type, values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Type hints of a dataclass by field; ConfigurationTypeError: a value has another type than its field."""
    hints = _hints(kind)
    for name, value in values.items():
        if not _has_type(value, hints[name]):
            raise ConfigurationTypeError(f"{what}: {name} must be {_type_name(hints[name])}, got {value!r:.60}")
    return hints


def from_toml(kind: type[Made], path: str | Path, what: str) -> Made:
    """Build a dataclass from a TOML file with a line `name = value` for each field; see `read_toml`, `from_table`."""
    return from_table(kind, read_toml(path, what), f"{what} {path}")


_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}


def _type_name(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_type_name, get_args(hint)))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin is tuple:
        return "a list" if get_args(hint)[0] is Any else f"a list, each entry {_type_name(get_args(hint)[0])}"
    if origin is dict:
        return "a table" if get_args(hint)[1] is Any else f"a table, each value {_type_name(get_args(hint)[1])}"
    return "a table" if is_dataclass(hint) else _TYPE_NAMES.get(hint, str(hint))


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value of TOML or JSON fits a type hint: a list counts as a tuple, an int as a float, no bool as a
    number, and for literals the constructor checks the value."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_has_type(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(allowed) for allowed in get_args(hint))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_has_type(v, get_args(hint)[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_has_type(v, get_args(hint)[1]) for v in value.values())
    if hint is Any or (is_dataclass(hint) and isinstance(value, Mapping)):
        return True
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


_MISSING = object()


def check_follows(
    found: Any, computed: Any, where: str, source: str, tolerance: tuple[float, float] = (1e-9, 1e-12)
) -> None:
    """Compare JSON `found` in a file with the same values `computed` from other parts of it (`source`), at any depth;
    floats within the relative and absolute `tolerance`, as versions of SciPy round differently. InputError: the first
    difference, at `where`."""
    if found is _MISSING:
        raise InputError(f"{where} is missing")
    if isinstance(computed, Mapping) and isinstance(found, Mapping):
        if unknown := sorted(found.keys() - computed.keys()):
            raise InputError(f"{where}.{unknown[0]} is unknown")
        for name, value in computed.items():
            check_follows(found.get(name, _MISSING), value, f"{where}.{name}", source, tolerance)
    elif isinstance(computed, list | tuple) and isinstance(found, list) and len(found) == len(computed):
        for i, (one, other) in enumerate(zip(found, computed, strict=True)):
            check_follows(one, other, f"{where}[{i}]", source, tolerance)
    else:
        number = isinstance(computed, float) and isinstance(found, int | float) and not isinstance(found, bool)
        near = {"rel_tol": tolerance[0], "abs_tol": tolerance[1]}
        same = math.isclose(found, computed, **near) if number else found == computed
        if not same or not (number or type(found) is type(computed)):
            raise InputError(f"{where} says {_shown(found)}, but {_shown(computed)} follows from {source}")


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else f"{value!r:.120}"
