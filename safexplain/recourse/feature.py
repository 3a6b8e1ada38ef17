"""One feature of a person: which columns of the table are its own, and the way there and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.recourse.found import Floats, rows_where
from safexplain.recourse.frames import close_to, is_missing, numbers_of, values_of

Kind = Literal["numeric", "category", "ordinal"]
Label = str | int | float | bool


@dataclass(frozen=True)
class Feature:
    """A person's feature and its columns in the table.

    A numeric or ordinal feature has one column for its value, a category one 0/1 column for each label; behind them
    stands one 0/1 column for each state (special value, or missing). While a number or level is in a state, its value
    column holds `middle`.

    Args:
        name: of the frame's column.
        kind: "numeric", "category" or "ordinal".
        first: its first column in the table.
        low: least value in the table; 0 for an ordinal feature.
        high: greatest value.
        labels: categories, or the levels in order.
        states: special values, None for missing, which is the last.
        unit: of a numeric feature, for messages.
    """

    name: str
    kind: Kind
    first: int
    low: float
    high: float
    labels: tuple[Label, ...]
    states: tuple[Label | None, ...]
    unit: str = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its columns: "age", or "job=clerk" for each category; "age=-9" for a state."""
        regular = [f"{self.name}={_text(label)}" for label in self.labels] if self.kind == "category" else [self.name]
        names = regular + [f"{self.name}={_text(state)}" for state in self.states if state is not None]
        missing = f"{self.name}=missing" if f"{self.name}=missing" not in names else f"{self.name}=(missing)"
        return (*names, missing) if None in self.states else tuple(names)

    @property
    def columns(self) -> slice:
        """All of its columns."""
        return slice(self.first, self.first + len(self.names))

    @property
    def state_columns(self) -> slice:
        """The columns of special and missing values."""
        return slice(self.columns.stop - len(self.states), self.columns.stop)

    @property
    def offset(self) -> float:
        """The number or level that is 0 in the scaled table."""
        return 0.0 if self.kind == "category" else self.low + (self.high - self.low) / 2

    @property
    def scale(self) -> float:
        """How far from the offset a number or level is that is 1 in the scaled table."""
        return 1.0 if self.kind == "category" else (self.high - self.low) / 2 or 1.0

    @property
    def longest(self) -> float:
        """Largest square that its scaled columns add up to."""
        if self.kind == "category":
            return 1.0
        end = max(abs(self.low - self.offset), abs(self.high - self.offset)) / self.scale
        middle = (self.middle - self.offset) / self.scale
        return max(end**2, 1.0 + middle**2 if self.states else 0.0)

    @property
    def regular(self) -> tuple[float, float]:
        """Ends of its regular values: next to an end of the range that is a special value, so that no answer is one."""
        low, high = self.low, self.high
        if self.kind == "numeric":
            while low in self.states:
                low = math.nextafter(low, math.inf)
            while high in self.states:
                high = math.nextafter(high, -math.inf)
        return low, high

    @property
    def middle(self) -> float:
        """What stands in the value column of a row whose value is special: the middle of the range, rounded down to a
        whole number where the range is wide or both ends are whole."""
        middle = self.low + (self.high - self.low) / 2
        whole = self.high - self.low >= 2 or (self.low == int(self.low) and self.high == int(self.high))
        return float(math.floor(middle)) if whole else middle

    def read(self, column: Any, *, clip: bool = False) -> Floats:
        """(n, k) its columns of the table.

        Args:
            column: n values as people have them.
            clip: numbers outside of the public range count as its ends; else they are refused.

        Raises:
            InputError: a value that is not declared; with its row.
        """
        value, state = self._numbers(column, clip) if self.kind == "numeric" else self._codes(column)
        if self.kind == "category":
            regular = (value[:, None] == np.arange(len(self.labels))) & (state < 0)[:, None]
        else:
            regular = np.where(state < 0, value, self.middle)[:, None]
        return np.hstack([regular, state[:, None] == np.arange(len(self.states))]).astype(np.float64)

    def values(self, own: Floats) -> list[Any]:
        """n values as people have them, from its columns (n, k) of the table."""
        if self.kind == "category":
            every = (*self.labels, *self.states)
            return [every[i] for i in own.argmax(axis=1).tolist()]
        found: list[Any] = own[:, 0].tolist()
        if self.kind == "ordinal":
            found = [self.labels[int(level)] for level in found]
        for row, state in zip(*np.nonzero(own[:, 1:]), strict=True):
            found[row] = self.states[state]
        return found

    def check(self, own: Floats) -> None:
        """Raise InputError unless its columns (n, k) hold what it may be, regular or in one state."""
        flags = own if self.kind == "category" else own[:, 1:]
        count = flags.sum(axis=1)
        bad = ((flags != 0) & (flags != 1)).any(axis=1) | (count > 1) | ((count < 1) & (self.kind == "category"))
        if bad.any():
            raise InputError(f"x: {self.name} has no one category or state in {rows_where(bad)} of the table")
        if self.kind == "category":
            return
        self._check_range(own[:, 0], (own[:, 0] < self.low) | (own[:, 0] > self.high))
        between = (own[:, 0] != np.rint(own[:, 0])) & (self.kind == "ordinal")
        if between.any():
            raise InputError(f"x: {self.name} is no whole level in {rows_where(between)} of the table")

    def _numbers(self, column: Any, clip: bool) -> tuple[Floats, NDArray[np.intp]]:
        """(n,) regular values, and the number of each row's state, -1 for none."""
        values, narrow = numbers_of(column, self.name)
        special = [float(state) for state in self.states if state is not None]
        if narrow:  # float32 has no .1: its nearest number is what was meant
            for public in (self.low, self.high, *special):
                values[values == np.float64(np.float32(public))] = public
        state = np.full(len(values), -1)
        for i, value in enumerate(self.states):
            state[np.isnan(values) if value is None else values == value] = i
        lost = np.isnan(values) & (state < 0)
        if lost.any():
            raise InputError(self._missing(rows_where(lost)))
        infinite = np.isinf(values) & (state < 0)
        if infinite.any():
            raise InputError(f"{self.name}: infinite in {rows_where(infinite)}; correct or leave out")
        if not clip:
            self._check_range(values, ((values < self.low) | (values > self.high)) & (state < 0))
        return np.clip(values, self.low, self.high) + 0.0, state

    def _codes(self, column: Any) -> tuple[Floats, NDArray[np.intp]]:
        """Likewise, of labels: (n,) their places in the list."""
        known = (*self.labels, *self.states)
        place = {label: i for i, label in enumerate(known)}
        found = []
        for row, value in enumerate(values_of(column)):
            try:
                found.append(place[None if is_missing(value) else value])
            except (KeyError, TypeError):  # a list, say, is no key
                if is_missing(value):
                    raise InputError(self._missing(f"row {row}")) from None
                kind = "level" if self.kind == "ordinal" else "category"
                listed = ", ".join(repr(label) for label in known if label is not None)
                raise InputError(
                    f"{self.name}: unknown {kind} {value!r} in row {row}{close_to(value, known)}; known: {listed}."
                    f" Correct the row, or add it to the public list of {self.name}"
                ) from None
        codes = np.array(found, dtype=np.intp)
        return codes.astype(np.float64), np.maximum(codes - len(self.labels), -1)

    def _missing(self, where: str) -> str:
        return f"{self.name}: missing in {where}; fill it, or declare that it may be: missing=({self.name!r},)"

    def _check_range(self, values: Floats, outside: NDArray[np.bool_]) -> None:
        if outside.any():
            value, unit = float(values[outside.argmax()]), self.unit and f" {self.unit}"
            raise InputError(
                f"{self.name}: {value:.15g} in {rows_where(outside)} lies outside of the public range {self.low:.15g}"
                f" to {self.high:.15g}{unit}; correct the row, widen numeric={{{self.name!r}: (...)}}, or if the value"
                f" stands for something else, declare special={{{self.name!r}: [{value:.15g}]}}"
            )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)
