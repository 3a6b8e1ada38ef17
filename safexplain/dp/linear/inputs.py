"""Checks of a private linear model's inputs, and bounds on its records."""

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
"""Rows are scaled to this norm instead of 1, so that rounding cannot put one outside the unit ball."""


def check_bound(norm_bound: Any) -> float:
    """The public bound on the norm of a row, which is never read off the data."""
    if norm_bound is None:
        raise ConfigurationError(
            "norm_bound is missing: the noise is calibrated to records of bounded norm, and a bound read off the data"
            " would reveal something about one record. Pass a public number, such as sqrt(n_features) times the largest"
            " value that a feature can take; longer rows are shortened to it"
        )
    return check_number("norm_bound", norm_bound, above=0.0)


def check_classes(classes: Any) -> NDArray[Any]:
    """(k,) the public list of classes, sorted, which is never read off the data."""
    if classes is None:
        raise ConfigurationError(
            "classes is missing: the labels that occur would reveal something about one record. Pass the public list of"
            " all classes, such as classes=[0, 1], whether or not they all occur"
        )
    given = np.asarray(classes)
    found: NDArray[Any] = np.unique(given)
    if given.ndim != 1 or len(found) < 2 or len(found) != len(given):
        raise ConfigurationError(f"classes: expected a list of at least two different labels, got {classes!r}")
    return found


def positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) positions of the labels in the list of classes; InputError if a label is not in it."""
    place = {label: i for i, label in enumerate(classes.tolist())}
    found = [place.get(label, -1) for label in labels.tolist()]
    if -1 in found:
        raise InputError(
            f"y: expected labels in classes={classes.tolist()}, got {labels.tolist()[found.index(-1)]!r};"
            f" {found.count(-1)} of {len(found)} rows have such labels. Add them to the list, or leave out these rows"
        )
    return np.asarray(found, dtype=np.int64)


def in_unit_ball(rows: NDArray[np.float64], bound: float, constant: float) -> NDArray[np.float64]:
    """(n, n_features + 1) rows shortened to the bound, with a constant column, scaled to norm at most 1."""
    with np.errstate(over="ignore"):  # a norm beyond float64 is infinite, and its row becomes 0
        norms: NDArray[np.float64] = np.hypot.reduce(rows, axis=1)
    column = np.full((len(rows), 1), constant)
    joined = np.concatenate([rows / np.maximum(norms, bound)[:, None], column], axis=1)
    return np.asarray(joined * (INSIDE / math.hypot(1.0, constant)))


def noise_generator(random_state: Any) -> Randomness:
    """A cryptographic source of noise; with a random_state NumPy's, but never its global one."""
    if random_state is None:
        return SecureGenerator()
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(0, 2**32, size=4, dtype=np.uint32))


def on_grid(weights: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Noised weights rounded to multiples of a public power of two, about 1e-8 of the noise on a logit.

    Sums of floating-point numbers lie on a lattice that depends on the terms: 0 plus noise can take values that .1 plus
    noise never takes. A grid that is coarse compared to the lattice and fine compared to the noise hides this.
    """
    grid = 2.0 ** max(math.floor(math.log2(noise)) - 27, -1000)
    return np.asarray(np.round(weights / grid) * grid)
