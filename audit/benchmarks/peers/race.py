"""Two sides that do the same work in turns, and the ratio of their times, round by round.

Whatever else the machine does falls on both sides of a round about equally, so that a ratio is taken within each round
and the median and quartiles over rounds are told. The time of the processor is what is compared: other processes
disturb it less than the time on the clock, and both sides have one thread.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ...shared.run import ROOT
from .environments import ONE_THREAD, Skipped, last_line

START = f"import sys; from {__package__}.worker import main; main(*sys.argv[1:])"

LEAST_ROUNDS = 3
"""Rounds that are run even where time is up."""


@dataclass(frozen=True)
class Run:
    """One run of one side.

    Args:
        seconds: on the clock, for one unit of the work.
        processor: of the processor, for one unit.
        values: what was answered, plain.
        arrays: what was answered, as arrays.
    """

    seconds: float
    processor: float
    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)


class Side(Protocol):
    """Who does the work."""

    def set_up(self, call: str) -> float:
        """Make a call ready, imports included; seconds."""

    def run(self, call: str) -> Run:
        """Do the work once."""


class Worker:
    """A side in a process of its own, which waits while the other one works.

    Args:
        python: interpreter of its environment.
        module: of `work`, by full name.
        work: file of arrays.
        extra: further environment variables.
        longest: seconds on the clock after which a call is given up, and with it the process.
    """

    def __init__(
        self, python: Path, module: str, work: Path, extra: dict[str, str] | None = None, longest: float = 600.0
    ) -> None:
        self._longest = longest
        self._command = [str(python), "-W", "ignore", "-c", START, module, str(work)]
        self._environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), **(extra or {})}

    def __enter__(self) -> Worker:
        self._folder = tempfile.TemporaryDirectory()
        self._said = Path(self._folder.name) / "stderr"
        self._process = subprocess.Popen(
            [*self._command, self._folder.name], cwd=ROOT, env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said.open("w"),
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def set_up(self, call: str) -> float:
        """As `Side`; raises `Skipped`, as `run` does, where the process or the call fails."""
        return float(self._asked(call, run=False)["set_up_seconds"])

    def run(self, call: str) -> Run:
        """As `Side`; times and units are the process's own."""
        reply = self._asked(call, run=True)
        with np.load(reply["arrays"]) as file:
            arrays = {key: file[key] for key in file.files}
        return Run(reply["seconds"] / reply["units"], reply["processor"] / reply["units"], reply["values"], arrays)

    def _asked(self, call: str, run: bool) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call, "run": run}) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], self._longest)[0]:
                self._process.kill()
                raise Skipped(f"{call}: no answer within {self._longest:.0f} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Skipped(f"{call}: the process ended: {last_line(self._said.read_text())}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Skipped(f"{call}: {last_line(reply['error'])}")
        return reply


@dataclass(frozen=True)
class Race:
    """What both sides took and answered.

    Args:
        ours: one run a round, in order.
        theirs: likewise.
        set_up: seconds that each took before it could start.
    """

    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]
    set_up: tuple[float, float]

    def ratios(self, clock: bool = False) -> list[float]:
        """Their time over ours, a number a round: above 1 we are faster."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [t.seconds / o.seconds if clock else t.processor / o.processor for o, t in pairs]


def race(
    ours: tuple[Side, str], theirs: tuple[Side, str], rounds: int, limit: float,
    clock: Callable[[], float] = time.perf_counter, once: bool = False,
) -> Race:  # fmt: skip
    """A B A B ...: ours, then theirs, in every round, after one run of each that does not count.

    Args:
        ours: a side and the call that it is asked for.
        theirs: likewise.
        rounds: most rounds.
        limit: seconds after which no further round starts, once there are `LEAST_ROUNDS`.
        clock: seconds.
        once: one run of each, which counts.

    Raises:
        Skipped: a side does not work.
    """
    sides = (ours, theirs)
    set_up = (ours[0].set_up(ours[1]), theirs[0].set_up(theirs[1]))
    if once:
        return Race((ours[0].run(ours[1]),), (theirs[0].run(theirs[1]),), set_up)
    start = clock()
    for side, call in sides:
        side.run(call)
    runs: tuple[list[Run], list[Run]] = ([], [])
    for done in range(rounds):
        if done >= LEAST_ROUNDS and clock() - start > limit:
            break
        for kept, (side, call) in zip(runs, sides, strict=True):
            kept.append(side.run(call))
    return Race(tuple(runs[0]), tuple(runs[1]), set_up)


def quartiles(numbers: Sequence[float]) -> dict[str, float]:
    """Median and the quartiles beside it; of one number, that number."""
    if len(numbers) == 1:
        return dict.fromkeys(("median", "low", "high"), float(numbers[0]))
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}
