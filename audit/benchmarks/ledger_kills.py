"""Four workers charge one ledger and are killed (signal 9) amid charges: is anything lost, doubled or overspent?

A worker says in shared memory when it is inside a charge, and is killed then, at a random moment up to `LATEST` seconds
later; another takes its place. Half of the charges are answers to new questions. After `BLOCK` kills the workers go on
until the budget refuses everybody, and the records are compared with what was acknowledged:

- lost: an acknowledged charge that is not recorded;
- unasked: recorded charges beyond the acknowledged ones and one for each kill, whose caller never learned of it;
- doubled: a question that was charged twice to its principal;
- overspent: a sum of recorded epsilons above the budget; and `Ledger.verify` adds up every sum again.

    python -m audit.benchmarks.ledger_kills [--kills 200] [--database postgres|sqlite] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safexplain.errors import BudgetExhausted
from safexplain.ledger import Ledger, Pure

from ..shared.run import RESULTS, provenance, write_json
from .ledger_speed import postgres, schema

WORKERS, BLOCK, LATEST = 4, 20, 0.003
EPSILON, EACH = 12.5, 1 / 64
FORK = multiprocessing.get_context("fork")


def work(url: str, seed: int, inside: Any, pipe: Any) -> None:
    """Charge until refused; the number of each charge goes into the pipe once it was acknowledged."""
    draw = random.Random(seed)
    with Ledger(url, timeout=60) as ledger:
        while True:
            who = f"principal {draw.randrange(3)}"
            inside.value = 1
            try:
                if draw.random() < 0.5:
                    charge = ledger.charge(who, epsilon=EACH)
                else:
                    answer = ledger.answer(who, f"{seed} {draw.random()}", lambda: [draw.random()], Pure(EACH))
                    charge = answer.charge  # type: ignore[assignment]
            except BudgetExhausted:
                if ledger.total().remaining < EACH:
                    return
                continue
            finally:
                inside.value = 0
            os.write(pipe.fileno(), b"%d\n" % charge.id)


class Worker:
    """A process, whether it is inside a charge, and what it was told."""

    def __init__(self, url: str, seed: int) -> None:
        self.inside = FORK.Value("b", 0, lock=False)
        self.here, there = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=work, args=(url, seed, self.inside, there), daemon=True)
        self.process.start()
        there.close()

    def told(self) -> set[int]:
        """Numbers of acknowledged charges, once it has ended."""
        self.process.join()
        found = b""
        while part := os.read(self.here.fileno(), 1 << 16):
            found += part
        return set(map(int, found.split()))


def block(url: str, kills: int, draw: random.Random) -> Counter[str]:
    """One ledger, filled to its budget while workers are killed."""
    Ledger(url, epsilon=EPSILON, total_epsilon=2.5 * EPSILON).close()
    workers, told, done = [Worker(url, draw.getrandbits(32)) for _ in range(WORKERS)], set[int](), 0
    while done < kills and any(worker.process.is_alive() for worker in workers):
        at = draw.randrange(WORKERS)
        if not (workers[at].process.is_alive() and workers[at].inside.value):
            continue
        time.sleep(draw.uniform(0, LATEST))
        if not workers[at].inside.value:
            continue
        os.kill(workers[at].process.pid or 0, signal.SIGKILL)
        told |= workers[at].told()
        workers[at], done = Worker(url, draw.getrandbits(32)), done + 1
    for worker in workers:
        told |= worker.told()
    with Ledger(url, timeout=60) as ledger:
        charges = list(ledger.charges())
        recorded = {charge.id for charge in charges}
        questions = Counter((charge.principal, charge.question) for charge in charges if charge.question)
        accounts = [*ledger.accounts(), ledger.total()]
        return Counter({
            "kills": done, "charges": len(charges), "verified": int(ledger.verify() == len(charges)),
            "lost": len(told - recorded), "unasked": max(0, len(recorded - told) - done),
            "unacknowledged": len(recorded - told), "doubled": sum(n - 1 for n in questions.values()),
            "overspent": sum(account.spent > account.epsilon for account in accounts)
            + (len(charges) * EACH > 2.5 * EPSILON),
            "full": int(len(charges) * EACH == 2.5 * EPSILON),
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
            raise SystemExit("PostgreSQL is missing: pip install psycopg pgserver")
        yield lambda n: schema(server, f"block_{n}")


def main() -> int:
    """Run, write and judge."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    p.add_argument("--out", type=Path, default=RESULTS / "ledger_kills.json")
    options = p.parse_args()
    begun, draw, blocks = time.perf_counter(), random.Random(0), list[Counter[str]]()
    with place(options.database) as url:
        while (done := sum(found["kills"] for found in blocks)) < options.kills:
            blocks.append(block(url(len(blocks)), min(BLOCK, options.kills - done), draw))
            print(f"{done + blocks[-1]['kills']} of {options.kills} kills: {dict(blocks[-1])}", file=sys.stderr)
    total = {name: sum(found[name] for found in blocks) for name in blocks[0]}
    wrong = [name for name in ("lost", "unasked", "doubled", "overspent") if total[name]]
    met = not wrong and total["verified"] == total["full"] == len(blocks)
    content = {"database": options.database, "workers": WORKERS, "ledgers": len(blocks), **total, "met": met}
    write_json(options.out, {"suite": "ledger_kills", **provenance(time.perf_counter() - begun), "results": content})
    print(content)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
