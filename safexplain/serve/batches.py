"""Whose turn it is, and questions of several requests computed together.

    a request --Seats: in turn with other clients--> charged --Batches: with others'--> model and explainer

`Seats` bound the rows that are charged and computed at once; who waits for one has paid nothing yet and may leave. One
thread asks the explainer, in batches that fill while it works, so that no two explanations of a model are ever made at
once.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safexplain.errors import UnavailableError

Compute = Callable[[Tensor], Sequence[Any]]
"""(n, ...) float32 -> n answers, one for each row."""


class Room:
    """So much of something for all clients, of which one has its share at most; usable from threads.

    Who has nothing yet gets more than the share, and where nothing is taken more than all, lest what is larger is never
    served.

    Args:
        what: in messages.
        total: of all clients.
        share: of one.
    """

    def __init__(self, what: str, total: int, share: int) -> None:
        self.what, self.total, self.share = what, total, share
        self._taken: Counter[str] = Counter()
        self._all = 0
        self._guard = threading.Lock()

    def take(self, client: str, amount: int) -> None:
        """Raise UnavailableError, which is a 503, where there is no room for so much more."""
        with self._guard:
            mine = self._taken[client]
            if (mine and mine + amount > self.share) or (self._all and self._all + amount > self.total):
                raise UnavailableError(f"overloaded: too many {self.what} wait already; ask again later")
            self._taken[client] += amount
            self._all += amount

    def give(self, client: str, amount: int) -> None:
        """Back what was taken."""
        with self._guard:
            self._all -= amount
            self._taken[client] -= amount
            if not self._taken[client]:
                del self._taken[client]


class Seats:
    """Rows that are charged and computed at once; clients get them in turn, however many requests of one wait.

    Args:
        rows: at once; a request with more of them has all to itself.
        waiting: rows that wait, of all clients and of one.
    """

    def __init__(self, rows: int, waiting: tuple[int, int] = (1024, 512)) -> None:
        self._rows = self._free = rows
        self._room = Room("rows", *waiting)
        self._queues: OrderedDict[str, deque[tuple[int, threading.Event]]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, client: str, rows: int, seconds: float) -> None:
        """Wait for so many; `give` them back.

        Raises:
            UnavailableError: too many rows wait already, or the time is up: nothing was taken.
        """
        mine = (min(rows, self._rows), threading.Event())
        self._room.take(client, rows)
        try:
            with self._guard:
                self._queues.setdefault(client, deque()).append(mine)
                self._seat()
            if mine[1].wait(seconds):
                return
            with self._guard:
                if mine[1].is_set():
                    return
                self._queues[client].remove(mine)
                self._seat()
        finally:
            self._room.give(client, rows)
        raise UnavailableError(f"no answer within {seconds:g} s; ask again later")

    def give(self, rows: int) -> None:
        """Back what was taken."""
        with self._guard:
            self._free += min(rows, self._rows)
            self._seat()

    def _seat(self) -> None:
        """The first request of each client in turn, as long as there is a place; a large one is not overtaken."""
        while self._queues:
            client, waiting = self._queues.popitem(last=False)
            if waiting:
                rows, seated = waiting[0]
                if rows > self._free:
                    self._queues[client] = waiting
                    self._queues.move_to_end(client, last=False)
                    return
                self._free -= rows
                waiting.popleft()
                seated.set()
                if waiting:
                    self._queues[client] = waiting


@dataclass(eq=False)
class _Job:
    compute: Compute
    x: Tensor
    done: Future[list[Any]] = field(default_factory=Future)


class Batches:
    """A queue of questions and the thread that answers them.

    A batch is what came while the one before was computed: nobody waits for company.

    Args:
        rows: in one batch, at most; a request with more of them is a batch of its own.
        on_batch: told how many rows each batch had.
    """

    def __init__(self, rows: int = 32, on_batch: Callable[[int], None] = lambda rows: None) -> None:
        self.rows, self._on_batch = rows, on_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="safexplain batches", daemon=True)
        self._thread.start()

    def submit(self, compute: Compute, x: Tensor) -> Future[list[Any]]:
        """Answers to the rows of x, computed together with those of others that have the same `compute`.

        Args:
            compute: what answers.
            x: (n, ...) float32.

        Raises:
            UnavailableError: it is closed.
        """
        with self._guard:
            if self._closed:
                raise UnavailableError("the service is closed")
            job = _Job(compute, x)
            self._queue.put(job)
        return job.done

    def close(self) -> None:
        """Answer what was submitted, then stop."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        held: list[_Job | None] = []
        while True:
            jobs = self._batch(held)
            if not jobs:
                return
            self._answer(jobs)
            del jobs  # what waits here for the next question must not keep a model that was replaced

    def _batch(self, held: list[_Job | None]) -> list[_Job]:
        """The next jobs that can be computed together; none: it is closed. `held` keeps one that cannot."""
        first = held.pop() if held else self._queue.get()
        if first is None:
            return []
        jobs, count = [first], len(first.x)
        while count < self.rows and not self._queue.empty():
            job = self._queue.get()
            if job is None or not _alike(job, first) or count + len(job.x) > self.rows:
                held.append(job)
                break
            jobs.append(job)
            count += len(job.x)
        return jobs

    def _answer(self, jobs: list[_Job]) -> None:
        self._on_batch(sum(len(job.x) for job in jobs))
        try:
            answers = list(jobs[0].compute(torch.cat([job.x for job in jobs]) if len(jobs) > 1 else jobs[0].x))
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
            else:  # whose question it was shows when each is asked alone
                for job in jobs:
                    self._answer([job])
            return
        start = 0
        for job in jobs:
            job.done.set_result(answers[start : start + len(job.x)])
            start += len(job.x)


def _alike(job: _Job, first: _Job) -> bool:
    return job.compute == first.compute and job.x.shape[1:] == first.x.shape[1:]
