"""A service under load for half an hour: many names, models that are loaded again, servers that are killed.

Every question is asked until it is answered, over HTTP, across `kill -9` and reloads; then the ledger must count
exactly the distinct questions that were answered. Memory and time a question are sampled all the way. With
`--in-process` a million names ask one question each of a service in this process, without HTTP, which is faster.

    python -m audit.suites.red_team.soak [--minutes 30] [--names 100000] [--in-process] [--quick]
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from safexplain import Hardening

from ...shared.run import concluded, destination, earlier, finish, parser, provenance, write_json
from .served import MB, PREDICT, Rows, Server, certificate, certified, command, digits, folder, model, public_rows

CLIENTS = 4
KILLS = (0.1, 0.2, 0.3)
"""When the server is killed, as shares of the time: afterwards one process lives on, whose memory must be flat."""

STEPS = 30
"""Samples; after every second one the model is loaded again."""


def row(i: int) -> Rows:
    """(1, 64), the i-th question."""
    return np.random.default_rng(i).random((1, 64), np.float32)


def sample(start: float, answered: int, resident: int, used: float, wait: float) -> dict[str, Any]:
    """Seconds since `start`, questions answered, resident bytes, and seconds of processor and of waiting a question."""
    times = {"processor_ms": 1e3 * used, "wait_ms": 1e3 * wait}
    return {
        "seconds": round(time.monotonic() - start),
        "answered": answered,
        "resident_mb": round(resident / MB),
        **times,
    }


def soaked(minutes: float, names: int, told: Callable[[str], None] = print) -> dict[str, Any]:
    """Load a server and count.

    Args:
        minutes: how long, restarts aside.
        names: of clients, who take turns.
        told: a line after each sample.

    Returns:
        Samples, and how many questions were answered, refused and counted by the ledger.
    """
    path = Path(shutil.copy(model(), folder() / "soaked.pt2"))
    right = certificate(folder() / "soaked.json", path, Hardening.recommended())
    given = ("--questions", 10**6, "--public-data", public_rows(), "--watch", 0.5)
    server = Server("soak", command(*given, certificate=right, of=path))
    numbers, over, guard = itertools.count(), threading.Event(), threading.Lock()
    waits: list[float] = []
    totals = {"answered": 0, "refused": 0, "again": 0}

    def client() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not over.is_set():
                i = next(numbers)
                body, name = {"instances": row(i).tolist()}, {"X-Client-Id": f"name-{i % names}"}
                while True:
                    begin = time.perf_counter()
                    try:
                        status = http.post(PREDICT, json=body, headers=name).status_code
                    except httpx.TransportError:  # it was killed
                        status = 503
                    if status != 503:
                        break
                    totals["again"] += 1
                    time.sleep(0.2)
                with guard:
                    totals["answered" if status == 200 else "refused"] += 1
                    waits.append(time.perf_counter() - begin)

    start, samples, kills, loads = time.monotonic(), [], list(KILLS), 0
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(client) for _ in range(CLIENTS)]
            try:
                for step in range(1, STEPS + 1):
                    seconds, answered = server.seconds(), totals["answered"]
                    waits.clear()
                    time.sleep(60 * minutes / STEPS)
                    done = max(1, totals["answered"] - answered)
                    used = (server.seconds() - seconds) / done
                    wait = float(np.median(waits or [0]))
                    samples.append(sample(start, totals["answered"], server.memory(), used, wait))
                    told(f"{samples[-1]}")
                    if kills and step / STEPS >= kills[0]:
                        kills.pop(0)
                        server.stop(kill=True)
                        server.start()
                    elif step % 2 and step < STEPS:
                        shutil.copy(path, path.with_suffix(".new"))
                        os.replace(path.with_suffix(".new"), path)
                        loads += 1
            finally:
                over.set()
            for one in running:
                one.result()
        counted = server.charged()
    finally:
        server.stop()
    loaded = server.log.read_text().count("now serving")
    killed = len(KILLS) - len(kills)
    return {"minutes": minutes, "names": names, **totals, "counted": counted, "kills": killed, "reloads": loaded,
            "samples": samples}  # fmt: skip


def asked_in_process(names: int, told: Callable[[str], None] = print) -> dict[str, Any]:
    """A question of each name, eight at a time, of a service in this process with a ledger in a file: samples as of
    `soaked`."""
    from safexplain.serve import Limits, Service

    samples, part = [], max(1, names // 20)
    with (
        tempfile.TemporaryDirectory() as place,
        Service.load(
            model(), certified(), public=digits()[900:1700], limits=Limits(questions=10**6),
            ledger=f"sqlite:///{place}/ledger.db",
        ) as service,
        ThreadPoolExecutor(8) as pool,
    ):  # fmt: skip

        def ask(i: int) -> None:
            service.predict(row(i), client=f"name-{i}")

        begin = time.monotonic()
        for start in range(0, names, part):
            clock, used = time.perf_counter(), time.process_time()
            for at in range(start, start + part, 1000):
                list(pool.map(ask, range(at, min(at + 1000, start + part))))
            wait, used = time.perf_counter() - clock, time.process_time() - used
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            samples.append(sample(begin, start + part, resident, used / part, wait / part))
            told(f"{samples[-1]}")
    return {"names": names, "samples": samples}


def judged(found: dict[str, Any]) -> list[str]:
    """What is not as it must be, in words."""
    missed = []
    if (one := found.get("over HTTP")) is not None:
        if one["answered"] != one["counted"] or one["refused"]:
            missed.append(f"{one['answered']:,} answered, {one['refused']:,} refused, {one['counted']:,} counted")
        late = [s["resident_mb"] for s in one["samples"][len(one["samples"]) * 3 // 5 :]]
        if late[-1] - late[0] > 50:
            missed.append(f"memory grows: {late[0]:,} → {late[-1]:,} MB in the last two fifths of the time")
    if (one := found.get("in process")) is not None:
        last = one["samples"][-1]
        if last["resident_mb"] >= 2000 or last["processor_ms"] >= 2:
            missed.append(f"{last['resident_mb']:,} MB, {last['processor_ms']:.1f} ms at {one['names']:,} names")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Soak a service and write what was seen; 1 where something is not as it must be."""
    p = parser("red_team_soak", __doc__)
    p.add_argument("--minutes", type=float, default=30.0)
    p.add_argument("--names", type=int, help="default: 100,000; with --in-process a million")
    p.add_argument(
        "--in-process", action="store_true", help="one question of each name, without HTTP, kills and reloads"
    )
    options = p.parse_args(argv)
    begun, out = time.perf_counter(), destination(options)

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if options.in_process:
        now = {"in process": asked_in_process(options.names or (1_000 if options.quick else 10**6), told)}
    else:
        minutes, names = (0.5, 1_000) if options.quick else (options.minutes, 100_000)
        now = {"over HTTP": soaked(minutes, options.names or names, told)}
    results = {**earlier(out, options.quick), **now}
    write_json(out, {"suite": "red_team_soak", "quick": options.quick, "results": results,
                     "provenance": provenance(time.perf_counter() - begun)})  # fmt: skip
    return concluded(judged(results), out)


if __name__ == "__main__":
    finish(main)
