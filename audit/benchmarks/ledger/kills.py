"""Four workers charge one ledger and are killed (signal 9) amid charges: is anything lost, doubled or overspent?

A worker says in shared memory which charge it is inside, and is killed then; another takes its place and asks the
question again. After `BLOCK` kills the workers go on until the budget refuses everybody, and the records are compared
with what was acknowledged, attempt by attempt:

- lost: an acknowledged charge that is not recorded;
- unasked: a recorded charge that was neither acknowledged nor the one that its worker was killed in;
- doubled: an attempt that is recorded twice, or a question that was charged twice to its principal;
- overspent: a principal, or all together, whose recorded epsilons are above the budget.

    python -m audit.benchmarks.ledger.kills [--kills 200] [--database postgres|sqlite] [--out FILE]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from safexplain.errors import BudgetExhausted
from safexplain.ledger import Ledger, Pure

from ...shared.run import Unusable, finish
from ..harness import Benchmark, at_most
from .speed import postgres, schema

WORKERS, BLOCK, LATEST = 4, 20, 0.015
EPSILON, TOTAL, EACH = 12.5, 31.25, 1 / 64
PRINCIPALS, ATTEMPTS = 3, 10**6
FORK = multiprocessing.get_context("fork")


def work(url: str, first: int, again: int, inside: Any, pipe: Any) -> None:
    """Charge until refused, attempts `first`, `first` + 1, ...; those acknowledged go into the pipe.

    An attempt of an even number is an answer to the question of that number; `again` is one to be asked first, or 0.
    """
    with Ledger(url, timeout=60) as ledger:
        attempt = first
        while True:
            question, again = again or attempt, 0
            who, how = f"principal {question % PRINCIPALS}", {"attempt": attempt, "question": question}
            inside.value = attempt
            try:
                if question % 2:
                    charge = ledger.charge(who, epsilon=EACH, parameters=how)
                else:
                    made = partial(list, (attempt,))
                    answer = ledger.answer(who, str(question), made, Pure(EACH), parameters=how)
                    charge = answer.charge  # type: ignore[assignment]
                os.write(pipe.fileno(), b"%d %d\n" % (attempt, charge is not None))
            except BudgetExhausted:
                if ledger.total().remaining < EACH:
                    return
            finally:
                inside.value = 0
            attempt += 1


class Worker:
    """A process, which attempt it is inside of, and which it was told of."""

    def __init__(self, url: str, number: int, again: int = 0) -> None:
        self.inside = FORK.Value("q", 0, lock=False)
        self.here, there = FORK.Pipe(duplex=False)
        first = number * ATTEMPTS
        self.process = FORK.Process(target=work, args=(url, first, again, self.inside, there), daemon=True)
        self.process.start()
        there.close()

    def told(self) -> dict[int, bool]:
        """Attempts that were acknowledged -> whether they were charged, once the process has ended."""
        self.process.join()
        found = b""
        while part := os.read(self.here.fileno(), 1 << 16):
            found += part
        return {int(attempt): charged == b"1" for attempt, charged in map(bytes.split, found.splitlines())}


def block(url: str, kills: int, draw: random.Random) -> Counter[str]:
    """One ledger, filled to its budget while workers are killed."""
    Ledger(url, epsilon=EPSILON, total_epsilon=TOTAL).close()
    workers, told, inside, begun = [Worker(url, n + 1) for n in range(WORKERS)], dict[int, bool](), list[int](), WORKERS
    while len(inside) < kills and any(worker.process.is_alive() for worker in workers):
        at = draw.randrange(WORKERS)
        if not (workers[at].process.is_alive() and workers[at].inside.value):
            time.sleep(0.0005)
            continue
        time.sleep(draw.uniform(0, LATEST))
        os.kill(workers[at].process.pid or 0, signal.SIGKILL)
        told |= workers[at].told()
        inside += [amid] if (amid := workers[at].inside.value) else []
        begun += 1
        workers[at] = Worker(url, begun, 0 if amid % 2 else amid)
    for worker in workers:
        told |= worker.told()
    return judged(url, told, inside)


def judged(url: str, told: dict[int, bool], inside: list[int]) -> Counter[str]:
    """What is recorded, beside the attempts that were acknowledged and those that workers were killed in."""
    with Ledger(url, timeout=60) as ledger:
        charges, verified = list(ledger.charges()), ledger.verify()
    recorded = Counter(charge.parameters["attempt"] for charge in charges)
    questions = Counter(charge.parameters["question"] for charge in charges)  # of one principal each
    spent = Counter(charge.principal for charge in charges)
    acknowledged, killed = {attempt for attempt, charged in told.items() if charged}, set(inside)
    return Counter({
        "kills": len(inside), "charges": len(charges), "verified": int(verified == len(charges)),
        "lost": len(acknowledged - recorded.keys()),
        "unasked": len(recorded.keys() - acknowledged - killed),
        "doubled": sum(n - 1 for n in (*recorded.values(), *questions.values())),
        "overspent": sum(n * EACH > EPSILON for n in spent.values()) + (len(charges) * EACH > TOTAL),
        "uncommitted": len(killed - recorded.keys() - told.keys()),
        "committed": len((killed & recorded.keys()) - told.keys()),
        "repeats_free": len(told) - len(acknowledged),
        "full": int(len(charges) * EACH == TOTAL),
    })  # fmt: skip


@contextlib.contextmanager
def place(database: str) -> Iterator[Any]:
    """Number of a block -> URL of a new ledger."""
    if database == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield lambda n: f"sqlite:///{folder}/{n}.db"
        return
    with postgres() as server:
        if not server:
            raise Unusable("PostgreSQL is missing: pip install psycopg pgserver")
        yield lambda n: schema(server, f"block_{n}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 when nothing was lost, doubled or overspent and every ledger was filled, 1 otherwise."""
    run = Benchmark(
        "ledger_kills",
        __doc__,
        argv,
        rounds=1,
        kills=200,
        database={"choices": ("postgres", "sqlite"), "default": "postgres"},
    )
    options = run.options
    draw, blocks = random.Random(0), list[Counter[str]]()
    kills = BLOCK if options.quick else options.kills
    with place(options.database) as url:
        while (done := sum(found["kills"] for found in blocks)) < kills:
            blocks.append(block(url(len(blocks)), min(BLOCK, kills - done), draw))
            print(f"{done + blocks[-1]['kills']} of {kills} kills: {dict(blocks[-1])}", file=sys.stderr)
    total = {name: sum(found[name] for found in blocks) for name in blocks[0]}
    targets = {name: at_most(0, total[name]) for name in ("lost", "unasked", "doubled", "overspent")}
    targets |= {f"ledgers not {name}": at_most(0, len(blocks) - total[name]) for name in ("verified", "full")}
    results = {"database": options.database, "workers": WORKERS, "ledgers": len(blocks), **total}
    return run.conclude({"results": results}, targets)


if __name__ == "__main__":
    finish(main)
