"""Features by index or by name: how constraints refer to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, InputError

Feature = int | str
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


def positions(features: Features, given: Any, what: str) -> list[int]:
    """Columns of several features; a single one may be given alone."""
    return [position(features, feature, what) for feature in listed(given)]


def label(features: Features, column: int) -> str:
    """How messages call a column."""
    return f"column {column}" if isinstance(features, int) else features[column]


def limits(features: Features, given: Limit, what: str, missing: float) -> NDArray[np.float64]:
    """(d,) limits from one number, a mapping feature -> number, or d numbers.

    Raises:
        ConfigurationError: another length, or NaN.
    """
    array = np.full(width_of(features), missing)
    if isinstance(given, Mapping):
        for feature, value in given.items():
            array[position(features, feature, what)] = value
    elif given is not None:
        values = np.asarray(given, dtype=np.float64)
        if values.ndim and values.shape != array.shape:
            raise ConfigurationError(
                f"{what}: expected one number, a mapping, or {width_of(features)} numbers, got shape {values.shape}"
            )
        array[:] = values
    if np.isnan(array).any():
        raise ConfigurationError(f"{what}: NaN for {label(features, int(np.isnan(array).argmax()))}")
    return array


def members_of(features: Features, groups: tuple[NDArray[np.intp], ...]) -> NDArray[np.bool_]:
    """(d,) bool, which columns are in a one-hot group; refuses overlaps."""
    count = np.zeros(width_of(features), dtype=int)
    for group in groups:
        if len(group) < 2:
            raise ConfigurationError("one_hot: expected groups of at least two columns; a 0/1 column is integer=")
        np.add.at(count, group, 1)
    if (count > 1).any():
        raise ConfigurationError(f"one_hot: {label(features, int(count.argmax()))} is listed more than once")
    member: NDArray[np.bool_] = count == 1
    return member


def listed(given: Any) -> tuple[Any, ...]:
    """Several features as a tuple; a single one may be given alone."""
    return (given,) if isinstance(given, (int, str, np.integer)) else tuple(given)


def hashable(features: Features, given: Limit, what: str) -> Any:
    """Limits as None, one number, or d numbers."""
    if given is None or isinstance(given, (int, float)):
        return given
    if isinstance(given, Mapping):
        return tuple(limits(features, given, what, -np.inf if what == "lower" else np.inf).tolist())
    return tuple(np.asarray(given, dtype=np.float64).ravel().tolist()) if np.ndim(given) else float(given)  # type: ignore[arg-type]


def check_columns(features: Features, x: Any) -> None:
    """Refuse a table whose columns have other names, or stand in another order, than the features.

    Args:
        features: with names, or a number, of which nothing can be said.
        x: anything; only what has `columns` is looked at.

    Raises:
        InputError: they differ.
    """
    columns = getattr(x, "columns", None)
    if columns is None or not isinstance(features, tuple):
        return
    found = tuple(str(name) for name in columns)
    if found != features:
        raise InputError(
            f"x: expected the columns {', '.join(features)}, in this order, got {', '.join(found)}; pass"
            " x[list(constraints.features)]"
        )
