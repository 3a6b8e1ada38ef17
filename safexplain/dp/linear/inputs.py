"""What a private linear model takes from its user, checked, and its records, bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from safexplain._secure_random import Randomness, SecureGenerator
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, InputError

INSIDE = 1 - 1e-9
"""Rows are scaled to this norm, not to 1, so that rounding cannot carry one outside of the unit ball."""


def check_bound(norm_bound: Any) -> float:
    """The public bound on the norm of a row, which is never read off the data."""
    if norm_bound is None:
        raise ConfigurationError(
            "norm_bound is missing: the noise is for records of bounded norm, and a bound read off the data would"
            " itself tell about one record. Give a number that follows from public knowledge, such as"
            " sqrt(n_features) times the largest value that a feature can take; longer rows are shortened to it"
        )
    return check_number("norm_bound", norm_bound, above=0.0)


def check_classes(classes: Any) -> NDArray[Any]:
    """(k,) the public list of classes, sorted, which is never read off the data."""
    if classes is None:
        raise ConfigurationError(
            "classes is missing: which labels occur would itself tell about one record. Give the public list of all"
            " classes, such as classes=[0, 1], whether or not they all occur"
        )
    given = np.asarray(classes)
    found: NDArray[Any] = np.unique(given)
    if given.ndim != 1 or len(found) < 2 or len(found) != len(given):
        raise ConfigurationError(f"classes: expected a list of at least two different labels, got {classes!r}")
    return found


def positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) places of the labels in the list of classes.

    Raises:
        InputError: a label that is not in the list.
    """
    place = {label: i for i, label in enumerate(classes.tolist())}
    found = [place.get(label, -1) for label in labels.tolist()]
    if -1 in found:
        raise InputError(
            f"expected labels out of classes={classes.tolist()}, got {labels.tolist()[found.index(-1)]!r}, and such"
            f" labels in {found.count(-1)} of {len(found)} rows; add them to the public list, or leave these rows out"
        )
    return np.asarray(found, dtype=np.int64)


def in_unit_ball(rows: NDArray[np.float64], bound: float, constant: float) -> NDArray[np.float64]:
    """(n, n_features + 1) rows shortened to the bound, a constant column beside them, scaled to norm at most 1."""
    with np.errstate(over="ignore"):  # a norm beyond float64 is infinite, and its row becomes 0
        norms: NDArray[np.float64] = np.hypot.reduce(rows, axis=1)
    column = np.full((len(rows), 1), constant)
    joined = np.concatenate([rows / np.maximum(norms, bound)[:, None], column], axis=1)
    return np.asarray(joined * (INSIDE / math.hypot(1.0, constant)))


def noise_generator(random_state: Any) -> Randomness:
    """Source of noise: a cryptographic one; with a random_state NumPy's, never its global one."""
    if random_state is None:
        return SecureGenerator()
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(0, 2**32, size=4, dtype=np.uint32))


def on_grid(weights: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Noised weights rounded to multiples of a public power of two, some 1e-8 of the noise on a logit.

    Sums of floating-point numbers lie on a lattice that depends on the terms: a weight of exactly 0 with noise can be a
    number that one of .1 with noise can never be. Relative rounding keeps that visible near 0; on a grid that is coarse
    against the lattice and fine against the noise it disappears. `noise` is the public standard deviation on a logit.
    """
    grid = 2.0 ** max(math.floor(math.log2(noise)) - 27, -1000)
    return np.asarray(np.round(weights / grid) * grid)
