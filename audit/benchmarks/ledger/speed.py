"""The ledger: charges a second from 4 processes, SQLite and PostgreSQL, and what a million records cost to read.

This ledger, which lets one sync serve several commits, beside SQLite with a write-ahead log and SQLite as it comes,
both with synchronous = FULL, at equal durability, with the same tables and statements; in memory, which tells the
disk's share; and PostgreSQL of the `pgserver` wheel. Four processes charge for `--seconds`, each to its own principal
and then all to the same. A million records: opened, read and charged, beside composing them with dp-accounting. Figures
are medians over rounds, each of which ends with `Ledger.verify`.

    python -m audit.benchmarks.ledger.speed [--rounds 3] [--seconds 4] [--out FILE]
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from safexplain.ledger import Concentrated, Ledger, Pure
from safexplain.ledger.accounts import Balance, save_balances
from safexplain.ledger.composition import Composition
from safexplain.ledger.releases import Release, from_json, to_json
from safexplain.ledger.storage import SqliteStorage

from ...shared.run import ROOT, finish
from ..harness import Benchmark, at_least, at_most

PROCESSES, RECORDS = 4, 1_000_000
TARGETS = {"SQLite": 2000.0, "PostgreSQL": 500.0}
COLD_MS = 50.0
FORK = multiprocessing.get_context("fork")


KINDS = {"SQLite": "", "SQLite, WAL and FULL": "WAL", "SQLite as it comes": "DELETE"}
"""Name -> journal of SQLite with synchronous = FULL and its own waiting; "" is this ledger."""

SHARED_MEMORY = Path("/dev/shm")
WHOSE = {"own principals": False, "one principal": True, "one principal in memory": True}
"""How the processes charge -> whether all do the same principal; in memory a sync costs nothing. SQLite only, there."""


class PlainSqlite(SqliteStorage):
    """SQLite that syncs every commit under the lock, and waits for locks as it does."""

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = FULL")

    def _start(self) -> None:
        super()._start()
        self._queue.acquire = lambda timeout: True  # type: ignore[method-assign]
        self._queue.release = lambda: None  # type: ignore[method-assign]

    def sync(self) -> None:
        """Done by the commit."""


def made(url: str, journal: str) -> dict[str, Any]:
    """A new ledger, and what opens it in another process."""
    with Ledger(url, epsilon=1e6, delta=1e-6, timeout=60) as ledger:
        state = ledger.__getstate__()
    if journal:
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            [(found,)] = connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
            assert found == journal.lower(), found
    return state


def opened(state: dict[str, Any], journal: str) -> Ledger:
    ledger = Ledger.__new__(Ledger)
    ledger.__setstate__(state)
    if journal:
        ledger._storage = PlainSqlite(ledger._storage.path, 60)  # type: ignore[attr-defined]
    return ledger


def work(state: dict[str, Any], journal: str, name: str, seconds: float, begin: Any, pipe: Any) -> None:
    """Charge for some seconds; how often, and the longest wait."""
    with opened(state, journal) as ledger:
        ledger.charge(name, epsilon=0.01)
        begin.wait()
        count, longest, now = 0, 0.0, time.perf_counter()
        end = now + seconds
        while now < end:
            ledger.charge(name, epsilon=0.01)
            count, before, now = count + 1, now, time.perf_counter()
            longest = max(longest, now - before)
        pipe.send((count, longest))


def charges_a_second(url: str, shared: bool, seconds: float, journal: str = "") -> dict[str, float]:
    """All processes together; and the longest that one had to wait."""
    state, begin, pipes = made(url, journal), FORK.Barrier(PROCESSES), []
    processes = []
    for i in range(PROCESSES):
        here, there = FORK.Pipe(duplex=False)
        name = "all" if shared else f"process {i}"
        processes.append(FORK.Process(target=work, args=(state, journal, name, seconds, begin, there)))
        pipes.append(here)
        processes[-1].start()
    done = [here.recv() for here in pipes]
    for process in processes:
        process.join()
    with opened(state, journal) as ledger:
        assert ledger.verify() >= sum(count for count, _ in done) + PROCESSES
    return {
        "charges_a_second": sum(count for count, _ in done) / seconds,
        "longest_wait_ms": 1e3 * max(longest for _, longest in done),
    }


def charge(url: str, journal: str, count: int) -> None:
    """What strace looks at."""
    with opened(made(url, journal), journal) as ledger:
        for _ in range(count):
            ledger.charge("ann", epsilon=0.01)


def syncs_a_charge(folder: str, journal: str, count: int = 100) -> float | None:
    """fsync and fdatasync together; None without strace."""
    if not (strace := shutil.which("strace")):
        return None
    calls = []
    for charges in (0, count):
        url, trace = f"sqlite:///{folder}/syncs{journal}{charges}.db", f"{folder}/trace{journal}{charges}"
        code = f"from audit.benchmarks.ledger.speed import charge; charge({url!r}, {journal!r}, {charges})"
        command = [strace, "-f", "-e", "trace=fsync,fdatasync", "-o", trace, sys.executable, "-c", code]
        subprocess.run(command, check=True, cwd=ROOT)
        calls.append(sum("sync(" in line for line in Path(trace).read_text().splitlines()))
    return (calls[1] - calls[0]) / count


def fdatasync_ms(folder: str, count: int = 100) -> float:
    """One page written and synced."""
    file = os.open(f"{folder}/sync", os.O_RDWR | os.O_CREAT)
    begun = time.perf_counter()
    for i in range(count):
        os.pwrite(file, b"x" * 4096, 4096 * (i % 50))
        os.fdatasync(file)
    os.close(file)
    return 1e3 * (time.perf_counter() - begun) / count


def fill(url: str, release: Release) -> None:
    """A ledger with a million records of one principal."""
    with Ledger(url, epsilon=2.0, delta=1e-6) as ledger, ledger._storage.transaction() as execute:
        sums = Composition().add(release, ledger._settings.principal_budget).add_under_rule(release, RECORDS - 1)
        execute(
            "INSERT INTO ledger_charges (principal, period, time, mechanism, parameters, release)"
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " SELECT 'ann', 0, 5, 'm', '{}', ? FROM n",
            (RECORDS, to_json(release)),
        )
        save_balances(execute, Balance("ann", 0, 5, sums), Balance("", 0, 5, sums))


def from_sums(url: str, release: Release) -> float:
    with Ledger(url) as ledger:
        spent = ledger.spent("ann")
        ledger.charge("ann", release)
    return spent


def from_records(path: str) -> float:
    """Read every record, compose them with dp-accounting."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        counts = Counter(text for (text,) in connection.execute("SELECT release FROM ledger_charges"))
    accountant = RdpAccountant()
    for text, count in counts.items():
        release = from_json(text)
        if isinstance(release, Concentrated):
            accountant.compose(GaussianDpEvent(1 / math.sqrt(2 * release.rho)), count)
        elif isinstance(release, Pure):
            accountant.compose(LaplaceDpEvent(1 / release.epsilon), count)
    return float(accountant.get_epsilon(1e-6))


@contextlib.contextmanager
def postgres() -> Iterator[str | None]:
    """The URL of a server, None where it cannot be had."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pgserver
            import psycopg
    except ImportError:
        print("no PostgreSQL: pgserver and psycopg are not installed", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri()) as connection:
                print(connection.execute("SELECT version()").fetchone()[0], file=sys.stderr)  # type: ignore[index]
            yield server.get_uri()
        finally:
            server.cleanup()


def schema(server: str, name: str) -> str:
    """A new place on the server."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


def measure(options: Namespace) -> dict[str, dict[str, Any]]:
    """Name -> medians."""
    found: dict[str, list[dict[str, float]]] = {}
    releases = {"Gaussian": Concentrated(2e-8), "pure": Pure(1e-4)}
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else options.folder
    ways = [way for way in WHOSE if "memory" not in way or memory is SHARED_MEMORY]
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        tempfile.TemporaryDirectory(dir=memory) as fast,
        postgres() as server,
    ):
        for name, release in releases.items():
            fill(f"sqlite:///{folder}/{name}.db", release)
        syncs = {name: syncs_a_charge(folder, journal) for name, journal in KINDS.items()}
        for i in range(options.rounds):
            measured: dict[str, dict[str, float]] = {"fdatasync": {"ms": fdatasync_ms(folder)}}
            for whose in ways:
                shared, place = WHOSE[whose], fast if "memory" in whose else folder
                for k in range(len(KINDS)):
                    kind, journal = list(KINDS.items())[(i + k) % len(KINDS)]
                    url = f"sqlite:///{place}/{i}{shared}{journal}.db"
                    measured[f"{kind}, {whose}"] = charges_a_second(url, shared, options.seconds, journal)
                if server and place == folder:
                    url = schema(server, f"round_{i}_{shared}".lower())
                    measured[f"PostgreSQL, {whose}"] = charges_a_second(url, shared, options.seconds)
            for name, release in releases.items():
                for kind, call in (
                    ("sums", lambda n=name, r=release: from_sums(f"sqlite:///{folder}/{n}.db", r)),
                    ("records", lambda n=name: from_records(f"{folder}/{n}.db")),
                ):
                    begun = time.perf_counter()
                    epsilon = call()
                    measured[f"a million {name}, from {kind}"] = {
                        "ms": 1e3 * (time.perf_counter() - begun),
                        "epsilon": epsilon,
                    }
            for name, values in measured.items():
                found.setdefault(name, []).append(values)
            print(f"round {i + 1} of {options.rounds}", file=sys.stderr, flush=True)
    results = {
        name: {key: round(statistics.median(v[key] for v in rounds), 4) for key in rounds[0]}
        for name, rounds in found.items()
    }
    for whose in ways:
        for kind in KINDS:
            name = f"{kind}, {whose}"
            if syncs[kind] is not None and "memory" not in whose:
                results[name]["syncs_a_charge"] = syncs[kind]
            pairs = zip(found[f"SQLite, {whose}"], found[name], strict=True)
            ratios = [ours["charges_a_second"] / its["charges_a_second"] for ours, its in pairs]
            results[name]["ours_over_it"] = round(statistics.median(ratios), 3)
    ordered = [f"{kind}, {whose}" for whose in ways for kind in (*KINDS, "PostgreSQL")]
    return {name: results[name] for name in (*ordered, *results) if name in results}


def judged(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Targets and what was reached."""
    targets: dict[str, Any] = {}
    for kind, target in TARGETS.items():
        named = [f"{kind}, {whose}" for whose in WHOSE if "memory" not in whose]
        if rates := [results[name]["charges_a_second"] for name in named if name in results]:
            targets[f"{kind}, charges a second"] = at_least(target, min(rates))
    slowest = max(r["ms"] for name, r in results.items() if name.endswith("from sums"))
    return {**targets, "a million records, ms": at_most(COLD_MS, slowest)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when the targets are met, 1 otherwise."""
    run = Benchmark(
        "ledger_speed",
        __doc__,
        argv,
        rounds=3,
        seconds=4.0,
        folder={"type": Path, "help": "on the disk to measure (default: that of temporary files)"},
    )
    options = run.options
    if options.quick:
        options.seconds, options.rounds = 0.2, 1
    results = measure(options)
    report = {
        "processes": PROCESSES, "records": RECORDS, "seconds_each": options.seconds, "sqlite": sqlite3.sqlite_version,
        "results": results,
    }  # fmt: skip
    return run.conclude(report, judged(results))


if __name__ == "__main__":
    finish(main)
