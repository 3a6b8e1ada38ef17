"""Queries that break their constraints, and what the refusal says.

Queries are compared exactly, as every answer satisfies its constraints exactly, and an answer to a favourable query is
the query. Float32 turns an upper limit of .1 into .10000000149: such a query is refused too, and told what happened.
Moving it to the limit would answer another query than the one that came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.recourse.result import Floats, first_of

if TYPE_CHECKING:
    from safexplain.recourse.constraints import Constraints

FLOAT32 = 2.0**-24
"""Relative error of rounding to float32."""


def check_queries(rules: Constraints, x: Floats) -> None:
    """Refuse queries that break the constraints; see `Constraints.check`."""
    if x.ndim != 2 or x.shape[1] != rules.width:
        raise InputError(f"x: expected shape (n, {rules.width}), as the constraints have it, got {x.shape}")
    for group in rules.groups:
        columns = x[:, group]
        bad = (columns.sum(axis=1) != 1) | ((columns != 0) & (columns != 1)).any(axis=1)
        if bad.any():
            names = ", ".join(rules.label(int(column)) for column in group)
            raise InputError(
                f"x: one-hot group ({names}) needs exactly one 1 and otherwise 0 ({_rows(bad)}); an unseen category,"
                " perhaps: an encoder that ignores unknown categories writes all zeros"
            )
    outside = (x < rules.low) | (x > rules.high)
    if outside.any():
        _refuse(rules, x, outside, int(outside.any(axis=0).argmax()))
    fraction = (x != np.rint(x)) & rules.whole
    if fraction.any():
        column = int(fraction.any(axis=0).argmax())
        raise InputError(
            f"x: {rules.label(column)} is an integer feature and not whole ({_rows(fraction[:, column])}); round it,"
            " or if it was standardised, give the constraints and the model its original units"
        )


def _refuse(rules: Constraints, x: Floats, outside: NDArray[np.bool_], column: int) -> None:
    low, high = float(rules.low[column]), float(rules.high[column])
    bad = outside[:, column]
    values = x[bad, column]
    limit = np.where(values > high, high, low)
    said, advice = f"{low:g} to {high:g}", "correct the rows or widen the limits"
    if (np.abs(values - limit) <= FLOAT32 * np.abs(limit)).all():
        said = f"{low!r} to {high!r}, at {float(values[0])!r}"
        advice = (
            "it is the limit but for rounding, as float32 rounds: pass float64 numbers, or"
            " np.clip(np.float64(x), constraints.low, constraints.high)"
        )
    raise InputError(f"x: {rules.label(column)} lies outside {said} ({_rows(bad)}); {advice}")


def _rows(bad: NDArray[np.bool_]) -> str:
    rows = np.flatnonzero(bad)
    return f"row{'s' if len(rows) > 1 else ''} {first_of(rows)}"
