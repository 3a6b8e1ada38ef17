"""Rows of queries, and solutions found for them; solutions have no privacy guarantee, only answers of mechanisms do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import real_numbers
from safexplain.errors import InputError

Floats = NDArray[np.float64]

NO_NUMBERS = (
    "expected numbers, one column for each feature; encode categories (one column each) and dates first, or pass"
    " preprocessing=Preprocessing(...), which reads frames of people"
)


@dataclass(frozen=True, eq=False)
class Solution:
    """Solutions for n queries of d columns; all numbers are finite.

    Args:
        x: (n, d) the queries.
        counterfactual: (n, d) the rows to change x to; x itself where it is favourable or nothing was found.
        valid: (n,) bool, whether the counterfactual reaches the target within the constraints.
        distance: (n,) cost of the change, in the units of the cost.
        score: (n,) the score of x that was used: the logit of the favourable outcome.
        favourable: (n,) bool, the decision about x; no change is needed there.
        censored: (n,) bool, whether the score was moved to the end of its public range.
        proven: (n,) bool, whether no allowed change costs less or, where nothing was found, reaches the target, up to
            rounding. None: for no query.
    """

    x: Floats
    counterfactual: Floats
    valid: NDArray[np.bool_]
    distance: Floats
    score: Floats
    favourable: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    proven: NDArray[np.bool_] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.proven is None:
            object.__setattr__(self, "proven", np.zeros(len(self.x), dtype=bool))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def change(self) -> Floats:
        """(n, d) counterfactual - x."""
        return self.counterfactual - self.x


def rows_where(bad: NDArray[np.bool_]) -> str:
    """The first five rows marked in (n,) bool, for messages: "row 3", or "rows 0, 2, 5"."""
    rows = np.flatnonzero(bad).tolist()
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:5]))}{', ...' * (len(rows) > 5)}"


def as_rows(x: ArrayLike, features: int | None = None) -> Floats:
    """(n, d) float64 copy of queries, of which a single one may be (d,); InputError: not finite real numbers, not one
    or two dimensions, or another number of features."""
    rows = real_numbers(x, "x", expected=NO_NUMBERS)
    shape = rows.shape
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or (features is not None and rows.shape[1] != features):
        expected = "(n, d)" if features is None else f"(n, {features}) or ({features},)"
        raise InputError(f"x: expected shape {expected}, got {shape}")
    if not np.isfinite(rows).all():
        bad = rows_where(~np.isfinite(rows).all(axis=1))
        raise InputError(f"x: expected finite numbers, got NaN or infinity in {bad}; fill or remove them")
    return rows
