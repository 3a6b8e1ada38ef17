"""Mixed-integer linear programs, put together row by row and solved by HiGHS (`scipy.optimize.milp`)."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeWarning, milp
from scipy.sparse import coo_array

from safexplain.recourse.found import Floats

GAP = 1e-8
"""Share by which HiGHS may stop short of its proof; answers are held to a wider one (`moves.CLOSE`)."""
SHORTEST = 0.02
"""Seconds that HiGHS gets at least, as it looks at its clock only now and then."""


_OUTPUT = threading.Lock()
_held: list[Any] = []
"""What stands for standard output meanwhile, its descriptor, and how many programs are being solved."""
_UNASKED = b"Highs"


@contextmanager
def _held_output() -> Iterator[None]:
    """Hold back what is written to the process's standard output, and let all of it but HiGHS's own lines through.

    HiGHS writes a line now and then that no option keeps back ("HighsMipSolverData::...").
    """
    with _OUTPUT:
        if _held:
            _held[2] += 1
        else:
            _begin()
    try:
        yield
    finally:
        with _OUTPUT:
            if _held:
                _held[2] -= 1
                if not _held[2]:
                    _end()


def _begin() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        output = os.dup(1)
    except (OSError, ValueError):  # closed: nothing to hold back
        return
    instead = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _end
    os.dup2(instead.fileno(), 1)
    _held[:] = [instead, output, 1]


def _end() -> None:
    instead, output, _ = _held
    _held.clear()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os.dup2(output, 1)
    os.close(output)
    with instead:
        instead.seek(0)
        for line in instead:
            if not line.startswith(_UNASKED):
                os.write(1, line)


@dataclass(frozen=True, eq=False)
class Solved:
    """What HiGHS says.

    Args:
        values: (n,) of the variables; None: nothing was found.
        bound: no solution costs less; infinite where there is proven to be none.
    """

    values: Floats | None
    bound: float

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no solution."""
        return self.bound == np.inf


@dataclass(eq=False)
class Program:
    """min cost.v, lower <= A v <= upper, low <= v <= high, some of v whole; grows by variables and rows.

    HiGHS allows rows to be missed by 1e-6: those that matter are best written in numbers of about a thousand.
    """

    _cost: list[float] = field(default_factory=list)
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)
    _whole: list[bool] = field(default_factory=list)
    _rows: list[NDArray[np.intp]] = field(default_factory=list)
    _columns: list[NDArray[np.intp]] = field(default_factory=list)
    _entries: list[Floats] = field(default_factory=list)
    _lower: list[float] = field(default_factory=list)
    _upper: list[float] = field(default_factory=list)

    def variable(self, low: float, high: float, *, cost: float = 0.0, whole: bool = False) -> int:
        """A new variable; its number."""
        self._low.append(low)
        self._high.append(high)
        self._cost.append(cost)
        self._whole.append(whole)
        return len(self._cost) - 1

    def binaries(self, costs: Sequence[float] | Floats) -> NDArray[np.intp]:
        """New variables that are 0 or 1, with their costs; their numbers."""
        first = len(self._cost)
        self._low += [0.0] * len(costs)
        self._high += [1.0] * len(costs)
        self._cost += [float(cost) for cost in costs]
        self._whole += [True] * len(costs)
        return np.arange(first, first + len(costs))

    def shares(self, count: int) -> NDArray[np.intp]:
        """New variables from 0 to 1 without costs; their numbers."""
        numbers = self.binaries(np.zeros(count))
        self._whole[len(self._whole) - count :] = [False] * count
        return numbers

    def row(
        self,
        columns: Sequence[int] | NDArray[np.intp],
        entries: Sequence[float] | Floats,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """A new row; its number."""
        columns = np.asarray(columns, dtype=np.intp)
        return self.rows(1, np.zeros(len(columns), dtype=np.intp), columns, entries, lower, upper)

    def rows(
        self,
        count: int,
        rows: NDArray[np.intp],
        columns: NDArray[np.intp],
        entries: Sequence[float] | Floats,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """New rows with the same sides, by the place of each entry among them; the number of the first."""
        first = len(self._lower)
        self._rows.append(rows + first)
        self._columns.append(columns)
        self._entries.append(np.asarray(entries, dtype=np.float64))
        self._lower += [lower] * count
        self._upper += [upper] * count
        return first

    def limit_cost(self, most: float) -> int:
        """A new row: the cost is at most this; its number."""
        cost = np.array(self._cost)
        used = np.flatnonzero(cost)
        return self.row(used, cost[used], -np.inf, most)

    def charge(self, variable: int, cost: float) -> None:
        """Let a variable cost more."""
        self._cost[variable] += cost

    def solve(self, time_limit: float, presolve: bool = True) -> Solved:
        """The best that HiGHS finds in so many seconds, and its bound.

        Args:
            time_limit: seconds.
            presolve: whether HiGHS simplifies the program first.

        Nothing is printed; an interrupt of the keyboard is raised once HiGHS has returned.
        """
        empty = not self._lower
        matrix = coo_array(
            (
                np.concatenate([np.empty(0), *self._entries]),
                tuple(
                    np.concatenate([np.empty(0, dtype=np.intp), *part]).astype(np.int32)
                    for part in (self._rows, self._columns)
                ),
            ),
            shape=(len(self._lower), len(self._cost)),
        ).tocsc()
        whole = np.array(self._whole, dtype=np.uint8)
        with _held_output(), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            found = milp(
                np.array(self._cost),
                integrality=whole,
                bounds=Bounds(np.array(self._low), np.array(self._high)),
                constraints=None if empty else LinearConstraint(matrix, np.array(self._lower), np.array(self._upper)),
                options={
                    "disp": False,
                    "time_limit": max(time_limit, SHORTEST),
                    "mip_rel_gap": GAP,
                    "presolve": presolve,
                },
            )
        if found.status == 2:
            return Solved(None, np.inf)
        bound = found.mip_dual_bound if whole.any() else (found.fun if found.status == 0 else None)
        return Solved(found.x, -np.inf if bound is None or np.isnan(bound) else float(bound))
