"""Features by index or by name: how constraints refer to columns, and tables in another order are found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.frames import close_to

Column = int | str
Features = int | tuple[str, ...]
Limit = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64] | None


def width_of(features: Features) -> int:
    """Number of columns."""
    return features if isinstance(features, int) else len(features)


def check_features(features: Any) -> Features:
    """The features, as a number of columns or as distinct names.

    Raises:
        ConfigurationError: neither, fewer than one, or a name twice.
    """
    if isinstance(features, (int, np.integer)) and not isinstance(features, bool):
        if features < 1:
            raise ConfigurationError(f"features: expected at least one column, got {features}")
        return int(features)
    if isinstance(features, Mapping):
        raise ConfigurationError(
            f"features: expected a number of columns or a tuple of names, got the mapping {dict(features)!r}; pass"
            f" features={tuple(features)!r}, and limits as lower= and upper="
        )
    names = None if isinstance(features, str) or not isinstance(features, Iterable) else tuple(map(str, features))
    if not names:
        raise ConfigurationError(f"features: expected a number of columns or a tuple of names, got {features!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"features: names must differ, these occur twice: {', '.join(twice)}")
    return names


def position(features: Features, feature: Any, what: str) -> int:
    """Column of a feature given by index or by name.

    Raises:
        ConfigurationError: no such feature; the message lists the known names.
    """
    if isinstance(feature, (int, np.integer)) and not isinstance(feature, bool):
        if 0 <= feature < width_of(features):
            return int(feature)
        raise ConfigurationError(f"{what}: column {feature} of {width_of(features)} (0 to {width_of(features) - 1})")
    if isinstance(features, int):
        raise ConfigurationError(f"{what}: unknown feature {feature!r}; to use names, pass features=(names of columns)")
    if feature not in features:
        raise ConfigurationError(f"{what}: unknown feature {feature!r}; known: {', '.join(features)}")
    return features.index(feature)


def check_known(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise ConfigurationError for a name that is not known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{what}: unknown feature {unknown[0]!r}{close_to(unknown[0], known)}; known: {', '.join(known)}"
        )


def positions(features: Features, given: Any, what: str) -> list[int]:
    """Columns of several features; a single one may be given alone.

    Raises:
        ConfigurationError: an unknown feature, or a mapping, whose values would be ignored.
    """
    if isinstance(given, Mapping):
        raise ConfigurationError(
            f"{what}: expected names of features, got the mapping {dict(given)!r}; pass {what}={tuple(given)!r}, and"
            " numbers as lower=, upper=, largest_change= or step="
        )
    return [position(features, feature, what) for feature in listed(given)]


def label(features: Features, column: int) -> str:
    """How messages call a column."""
    return f"column {column}" if isinstance(features, int) else features[column]


def number_of(value: Any, what: str) -> float:
    """One number.

    Raises:
        ConfigurationError: none, or several.
    """
    number = real_numbers(value, what, ConfigurationError)
    if number.ndim:
        raise ConfigurationError(f"{what}: expected one number, got shape {number.shape}")
    return float(number) + 0.0


def limits(features: Features, given: Limit, what: str, missing: float) -> NDArray[np.float64]:
    """(d,) limits from one number, a mapping feature -> number, or d numbers.

    Raises:
        ConfigurationError: not numbers, another length, or NaN.
    """
    array = np.full(width_of(features), missing)
    if is_mapping(given):
        for feature, value in given.items():
            array[position(features, feature, what)] = number_of(value, f"{what} of {feature}")
    elif given is not None:
        values = real_numbers(given, what, ConfigurationError)
        if values.ndim and values.shape != array.shape:
            raise ConfigurationError(
                f"{what}: expected one number, a mapping, or {width_of(features)} numbers, got shape {values.shape}"
            )
        array[:] = values
    if np.isnan(array).any():
        raise ConfigurationError(f"{what}: NaN for {label(features, int(np.isnan(array).argmax()))}")
    return array


def hashable(features: Features, given: Limit, what: str, missing: float) -> Any:
    """Limits as None, one number, or d numbers."""
    if is_mapping(given):
        return tuple(limits(features, given, what, missing).tolist())
    if given is None:
        return None
    numbers = real_numbers(given, what, ConfigurationError)
    return tuple(numbers.tolist()) if numbers.ndim else float(numbers)


def listed(given: Any) -> tuple[Any, ...]:
    """Several features as a tuple; a single one may be given alone, and None is none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


def is_mapping(given: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether numbers are given by feature: a mapping, or a pandas Series."""
    return hasattr(given, "keys")


def column_names(x: Any) -> tuple[str, ...] | None:
    """Names of the columns of a table, or of the entries of a single row; None: it has none, or numbers them."""
    names = getattr(x, "columns", None)
    if names is not None and not callable(names):
        return None if list(names) == list(range(len(names))) else tuple(map(str, names))
    names = getattr(x, "index", None) if getattr(x, "ndim", None) == 1 else None
    if names is None or callable(names) or all(isinstance(name, (int, np.integer)) for name in names):
        return None
    return tuple(map(str, names))


def training_columns(model: Any) -> tuple[str, ...] | None:
    """Names of the columns of the table that a scikit-learn model was trained on; None: it had none."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(map(str, names))


def check_columns(features: Features | None, x: Any, select: str = "x[list(constraints.features)]") -> None:
    """Refuse tables and rows whose columns have other names, or stand in another order, than the features.

    Args:
        features: with names; of a number, or None, nothing can be said.
        x: anything; only what names its columns is looked at, in a list its entries.
        select: what to pass instead.

    Raises:
        InputError: they differ.
    """
    if not isinstance(features, tuple):
        return
    for part in x if isinstance(x, (list, tuple)) else (x,):
        found = column_names(part)
        if found not in (None, features):
            raise InputError(
                f"x: expected the columns {', '.join(features)}, in this order, got {', '.join(found or ())}; pass"
                f" {select}"
            )
