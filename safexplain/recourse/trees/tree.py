"""Decision trees whose every split is one comparison: left where a column's value is at most a float64 number.

Libraries compare after rounding to float32 (scikit-learn's trees, XGBoost), by `<` (XGBoost) or `<=` (the others), and
look categories up in sets. Rounding is monotone, so each of their splits is the same as `value <= t` for one float64 t,
and a set of categories the same as a few such splits in a row. Nodes may have several parents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.result import Floats

Ints = NDArray[np.intp]
LEAF = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree of m nodes; the first is the root.

    Args:
        column: (m,) column that a node looks at; -1: a leaf.
        threshold: (m,) float64; rows go left where their value is at most this.
        left: (m,) number of the left child; of leaves, anything.
        right: (m,) number of the right child.
        missing_left: (m,) bool, where rows go whose value is NaN.
        value: (m, k) what a leaf adds to each output.
    """

    column: Ints
    threshold: Floats
    left: Ints
    right: Ints
    missing_left: NDArray[np.bool_]
    value: NDArray[np.floating[Any]]

    def leaf(self, rows: Floats) -> Ints:
        """(n,) node where each row (n, d) ends."""
        at = np.zeros(len(rows), dtype=np.intp)
        going = np.flatnonzero(self.column[at] != LEAF)
        while len(going):
            node = at[going]
            value = rows[going, self.column[node]]
            with np.errstate(invalid="ignore"):
                left = np.where(np.isnan(value), self.missing_left[node], value <= self.threshold[node])
            at[going] = np.where(left, self.left[node], self.right[node])
            going = going[self.column[at[going]] != LEAF]
        return at


@dataclass(eq=False)
class Growing:
    """A tree that is put together node by node; `root` may be any node in the end."""

    outputs: int
    _column: list[int] = field(default_factory=list)
    _threshold: list[float] = field(default_factory=list)
    _left: list[int] = field(default_factory=list)
    _right: list[int] = field(default_factory=list)
    _missing_left: list[bool] = field(default_factory=list)
    _value: list[Any] = field(default_factory=list)

    def leaf(self, value: Any) -> int:
        """A new leaf; its number."""
        return self._node(LEAF, 0.0, 0, 0, False, value)

    def split(self, column: int, threshold: float, left: int, right: int, missing_left: bool) -> int:
        """A new split; its number. Where no number or every number goes left, still a split."""
        return self._node(column, threshold, left, right, missing_left, None)

    def choose(self, column: int, runs: Iterable[tuple[float, int]], last: int, missing: int) -> int:
        """Splits that lead to the first run whose greatest value is at least a row's; else to the last one."""
        node = last
        for greatest, target in reversed(list(runs)):
            node = target if target == node else self.split(column, greatest, target, node, False)
        if node == missing:
            return node
        # NaN leaves at the first split: -infinity sends numbers to the right
        return self.split(column, -np.inf, missing, node, True)

    def replace(self, node: int, other: int) -> None:
        """Let a node be what another one is."""
        parts: tuple[list[Any], ...] = (self._column, self._threshold, self._left, self._right, self._missing_left)
        for part in (*parts, self._value):
            part[node] = part[other]

    def _node(self, column: int, threshold: float, left: int, right: int, missing_left: bool, value: Any) -> int:
        self._column.append(column)
        self._threshold.append(threshold)
        self._left.append(left)
        self._right.append(right)
        self._missing_left.append(missing_left)
        self._value.append(value)
        return len(self._column) - 1

    def tree(self, root: int, dtype: Any = np.float64) -> Tree:
        """The tree, with the root first."""
        order = [root, *(node for node in range(len(self._column)) if node != root)]
        place = np.argsort(order)
        value = np.zeros((len(order), self.outputs), dtype=dtype)
        for at, node in enumerate(order):
            if self._value[node] is not None:
                value[at] = self._value[node]
        left, right = (place[np.array(side, dtype=np.intp)[order]] for side in (self._left, self._right))
        return Tree(
            np.array(self._column, dtype=np.intp)[order],
            np.array(self._threshold, dtype=np.float64)[order],
            left,
            right,
            np.array(self._missing_left, dtype=bool)[order],
            value,
        )


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What is read from a fitted model.

    Args:
        trees: of it.
        width: number of columns.
        base: (k,) what the sum of the trees starts from, in the type in which the library adds up.
        decide: (n, k) sums -> (n,) number of the predicted class, as the library's `predict` decides.
        scores: (n, k) sums -> (n, k) what the library reports; (n, 1) is a margin for the second of two classes.
        classes: labels, by number.
        predict: (n, d) rows -> (n,) labels, by the library itself.
        names: of the columns; None: they have none.
        categorical: columns that hold codes of categories.
    """

    trees: tuple[Tree, ...]
    width: int
    base: NDArray[np.floating[Any]]
    decide: Callable[[NDArray[np.floating[Any]]], Ints]
    scores: Callable[[NDArray[np.floating[Any]]], NDArray[np.floating[Any]]]
    classes: tuple[Any, ...]
    predict: Callable[[Floats], NDArray[Any]]
    names: tuple[str, ...] | None = None
    categorical: tuple[int, ...] = ()


def argmax(sums: NDArray[np.floating[Any]]) -> Ints:
    """(n,) first greatest of (n, k)."""
    return np.asarray(sums.argmax(axis=1), dtype=np.intp)


def same(sums: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """The sums themselves."""
    return sums


def up_to_float32(limit: Any) -> Floats:
    """Greatest float64 numbers that float32 rounds to at most these float64 numbers."""
    limit = np.asarray(limit, dtype=np.float64)
    with np.errstate(over="ignore"):
        single = limit.astype(np.float32)
    single = np.where(single.astype(np.float64) > limit, np.nextafter(single, np.float32(-np.inf)), single)
    return _greatest_rounding_to(single)


def below_float32(limit: Any) -> Floats:
    """Greatest float64 numbers that float32 rounds to less than these float32 numbers."""
    return _greatest_rounding_to(np.nextafter(np.asarray(limit, dtype=np.float32), np.float32(-np.inf)))


def _greatest_rounding_to(single: NDArray[np.float32]) -> Floats:
    """Greatest float64 that float32 rounds to this; infinite where that is the greatest float32 or beyond."""
    with np.errstate(over="ignore", invalid="ignore"):
        after = np.nextafter(single, np.float32(np.inf)).astype(np.float64)
        middle = single.astype(np.float64) / 2 + after / 2  # exact: one more digit than float32 has
        greatest = np.where(middle.astype(np.float32) == single, middle, np.nextafter(middle, -np.inf))
    return np.where(np.isfinite(after), greatest, np.where(single == -np.inf, -np.inf, np.inf))
