"""Mixed-integer linear programs, built row by row and solved by HiGHS (`scipy.optimize.milp`)."""

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
"""Relative gap at which HiGHS may stop; the gap of answers is wider (`program.CLOSE`)."""
SHORTEST = 0.02
"""Minimum seconds for HiGHS, which checks its clock only occasionally."""

_OUTPUT = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep lines of HiGHS off standard output, some of which no option suppresses ("HighsMipSolverData::..."), and pass
    on the output of other threads."""
    with _OUTPUT, tempfile.TemporaryFile() as held:
        try:
            sys.stdout.flush()
            output = os.dup(1)
        except (AttributeError, OSError, ValueError):  # no standard output, or a closed one
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
    """Result of HiGHS.

    Args:
        values: (n,) of the variables; None: no solution was found.
        bound: lower bound on the cost; infinite: certainly no solution.
    """

    values: Floats | None
    bound: float


@dataclass(eq=False)
class Program:
    """min cost.v, lower <= A v <= upper, low <= v <= high, some of v whole; grows by variables and rows.

    HiGHS tolerates violations of rows by 1e-6, so that important rows should have numbers of about a thousand.
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
        """Add a variable; its number."""
        self._low.append(low)
        self._high.append(high)
        self.cost.append(cost)
        self._whole.append(whole)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        """Add a variable that is 0 or 1; its number."""
        return self.variable(0.0, 1.0, cost=cost, whole=True)

    def row(
        self,
        columns: Sequence[int] | NDArray[np.intp],
        entries: Sequence[float] | Floats,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """Add a row; its number."""
        self._columns += [int(column) for column in columns]
        self._entries += [float(entry) for entry in entries]
        self._ends.append(len(self._columns))
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def solve(self, time_limit: float) -> Solved:
        """The best solution found in so many seconds, and a bound; nothing is printed."""
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
