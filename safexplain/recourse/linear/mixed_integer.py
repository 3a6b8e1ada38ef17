"""Mixed-integer linear programs, put together row by row and solved by HiGHS (`scipy.optimize.milp`)."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeWarning, milp
from scipy.sparse import csr_array

from safexplain.recourse.solution import Floats

GAP = 1e-8
"""Share by which HiGHS may stop short of its proof; answers are held to a wider one (`solve.CLOSE`)."""
SHORTEST = 0.02
"""Seconds that HiGHS gets at least, as it looks at its clock only now and then."""


_OUTPUT = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep HiGHS's own lines off standard output, and pass on what others write there meanwhile.

    HiGHS writes a line now and then that no option keeps back ("HighsMipSolverData::...").
    """
    with _OUTPUT, tempfile.TemporaryFile() as held:
        try:
            sys.stdout.flush()
            output = os.dup(1)
        except (AttributeError, OSError, ValueError):  # there is no standard output, or it is closed
            yield
            return
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(output, 1)
            held.seek(0)
            for line in held:
                if not line.startswith(b"Highs"):
                    os.write(output, line)
            os.close(output)


@dataclass(frozen=True, eq=False)
class Solved:
    """What HiGHS says.

    Args:
        values: (n,) of the variables; None: nothing was found.
        bound: no solution costs less; infinite where there is proven to be none.
    """

    values: Floats | None
    bound: float


@dataclass(eq=False)
class Program:
    """min cost.v, lower <= A v <= upper, low <= v <= high, some of v whole; grows by variables and rows.

    HiGHS allows rows to be missed by 1e-6: those that matter are best written in numbers of about a thousand.
    """

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)
    _whole: list[bool] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _entries: list[float] = field(default_factory=list)
    _ends: list[int] = field(default_factory=lambda: [0])

    def variable(self, low: float, high: float, *, cost: float = 0.0, whole: bool = False) -> int:
        """A new variable; its number."""
        self._low.append(low)
        self._high.append(high)
        self.cost.append(cost)
        self._whole.append(whole)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        """A new variable that is 0 or 1; its number."""
        return self.variable(0.0, 1.0, cost=cost, whole=True)

    def row(
        self,
        columns: Sequence[int] | NDArray[np.intp],
        entries: Sequence[float] | Floats,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """A new row; its number."""
        self._columns += [int(column) for column in columns]
        self._entries += [float(entry) for entry in entries]
        self._ends.append(len(self._columns))
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def solve(self, time_limit: float) -> Solved:
        """The best that HiGHS finds in so many seconds, and its bound.

        Nothing is printed; an interrupt of the keyboard is raised once HiGHS has returned.
        """
        shape = len(self.lower), len(self.cost)
        indices = np.array(self._columns, dtype=np.int32), np.array(self._ends, dtype=np.int32)
        matrix = csr_array((np.array(self._entries), *indices), shape=shape)
        whole = np.array(self._whole, dtype=np.uint8)
        with _silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            found = milp(
                np.array(self.cost),
                integrality=whole,
                bounds=Bounds(np.array(self._low), np.array(self._high)),
                constraints=LinearConstraint(matrix, np.array(self.lower), np.array(self.upper)),
                options={"time_limit": max(time_limit, SHORTEST), "mip_rel_gap": GAP},
            )
        if found.status == 2:
            return Solved(None, np.inf)
        bound = found.mip_dual_bound if whole.any() else (found.fun if found.status == 0 else None)
        return Solved(found.x, -np.inf if bound is None or np.isnan(bound) else float(bound))
