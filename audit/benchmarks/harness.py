"""Shared by the benchmarks: a run with targets, calls in turns, ratios within a round, and peak memory.

Other work on the machine disturbs processor time less than time on the clock, and the ratio of two times of one round
less than either. So calls take turns (A B C, C B A, ...) on one thread, figures are medians over rounds, and a ratio is
the median of the ratios of each round. On a GPU, times are those on the clock, once everything started is done.
"""

from __future__ import annotations

import gc
import importlib
import math
import multiprocessing
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from ..shared.run import Run, peak_bytes, write_json

Call = Callable[[], object]
LEAST_ROUNDS = 3


class Benchmark(Run):
    """One run of a benchmark from the command line, on limited threads; a quick run has three rounds and no targets.

    Args:
        name, doc, argv, flags: as for `Run`; every benchmark also has --rounds, --threads and --device.
        rounds: default of a full run.
    """

    def __init__(self, name: str, doc: str | None, argv: Sequence[str] | None, rounds: int, **flags: Any) -> None:
        common = {"rounds": rounds, "threads": 1, "device": "cpu"}
        super().__init__(name, doc, argv, **common, **flags)
        if self.quick:
            self.options.rounds = min(self.options.rounds, LEAST_ROUNDS)
        use_threads(self.options.threads)
        warnings.filterwarnings("ignore", module="opacus|captum")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")

    def conclude(self, report: Mapping[str, Any], targets: Mapping[str, dict[str, Any]]) -> int:
        """Write the result with hardware, versions and date, and print its tables as the page shows them.

        Args:
            report: what was measured.
            targets: name -> `at_most(...)` or `at_least(...)`.

        Returns:
            The exit code: 1 if a full run missed a target.
        """
        options = self.options
        content = {
            "benchmark": options.name, "quick": self.quick, "rounds": options.rounds, **report, "targets": targets,
            **self.provenance(),
        }  # fmt: skip
        write_json(self.out, content)
        tables = importlib.import_module("audit.benchmarks.tables").TABLES
        for name, (result, table) in tables.items():
            if result == options.name:
                print(f"{name}\n\n{table(content)}\n")
        missed = [f"{name}: {t['found']:.4g}, target {t['target']:.4g}" for name, t in targets.items() if not t["met"]]
        met = f"{len(targets) - len(missed)} of {len(targets)} targets met"
        return self.end(missed, "a quick run has no targets" if self.quick else met)


def use_threads(threads: int) -> None:
    """Of torch, and of the libraries behind NumPy."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)


# ----------------------------------------------------------------------------------------------------------------- time


def timed(call: Call, device: str = "cpu") -> tuple[float, float]:
    """Seconds of the processor, and on the clock."""
    _wait(device)
    busy, clock = time.process_time(), time.perf_counter()
    call()
    _wait(device)
    return time.process_time() - busy, time.perf_counter() - clock


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Turns:
    """Times of calls that take turns.

    Attributes:
        busy, clock: name -> seconds of the processor and on the clock of one call, in each round.
        first: name -> seconds on the clock of the call that comes before the rounds, and does not count.
        judged: `busy`, or `clock` on a GPU: what ratios are of.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        rounds: int,
        *,
        device: str = "cpu",
        limit: float = math.inf,
        often: Mapping[str, int] | None = None,
        warm: bool = True,
    ) -> None:
        """Run them: `often` calls of one in a round; no further round after `limit` seconds, but at least three."""
        self.first = {name: timed(call, device)[1] for name, call in calls.items()} if warm else {}
        self.busy: dict[str, list[float]] = {name: [] for name in calls}
        self.clock: dict[str, list[float]] = {name: [] for name in calls}
        self.judged = self.clock if device.startswith("cuda") else self.busy
        end, names = time.perf_counter() + limit, list(calls)
        for i in range(rounds):
            for name in names if i % 2 == 0 else names[::-1]:
                times = (often or {}).get(name, 1)
                busy, clock = timed(lambda name=name, times=times: [calls[name]() for _ in range(times)], device)
                self.busy[name].append(busy / times)
                self.clock[name].append(clock / times)
            if time.perf_counter() > end and i + 1 >= LEAST_ROUNDS:
                break
            print(f"round {i + 1}", file=sys.stderr, flush=True)

    def ms(self, name: str, digits: int = 2) -> float:
        """Median of the judged times, in milliseconds."""
        return round(1e3 * statistics.median(self.judged[name]), digits)

    def shortest_ms(self, name: str, digits: int = 2) -> float:
        """Shortest of the judged times, in milliseconds."""
        return round(1e3 * min(self.judged[name]), digits)

    def ratios(self, name: str, to: str) -> list[float]:
        """One call's time over another's, in each round."""
        return [a / b for a, b in zip(self.judged[name], self.judged[to], strict=True)]

    def ratio(self, name: str, to: str, digits: int = 3) -> float:
        """Median of the ratios."""
        return round(statistics.median(self.ratios(name, to)), digits)

    def quartiles(self, name: str, to: str, digits: int = 3) -> list[float]:
        """Lower and upper quartile of the ratios."""
        low, _, high = statistics.quantiles(self.ratios(name, to), n=4)
        return [round(low, digits), round(high, digits)]


# --------------------------------------------------------------------------------------------------------------- memory


def peak_mib(call: Call, device: str = "cpu") -> float | None:
    """Highest memory during one call over that before it, in MiB: resident, or allocated on the GPU; Linux only."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        extra: int | None = torch.cuda.max_memory_allocated() - before
    else:
        gc.collect()
        extra = peak_bytes(call)
    return None if extra is None else round(extra / 2**20, 2)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a process of its own, with one thread: nothing ran there before."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=use_threads, initargs=(1,)) as pool:
        return pool.submit(function, *arguments).result()


# -------------------------------------------------------------------------------------------------------------- targets


def at_most(target: float, found: float) -> dict[str, Any]:
    """A target that is met from below."""
    return {"target": target, "found": found, "met": found <= target}


def at_least(target: float, found: float) -> dict[str, Any]:
    """A target that is met from above."""
    return {"target": target, "found": found, "met": found >= target}
