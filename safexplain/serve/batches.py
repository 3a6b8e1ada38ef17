"""Whose turn it is, and questions of several requests computed together.

    a request --Seats: in turn with other clients--> charged --Batches: with others'--> model and explainer

`Seats` bound the rows that are charged and computed at once; who waits for one has paid nothing yet and may leave. One
thread asks the explainer, in batches that fill while it works, so that no two explanations of a model are ever made at
once.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safexplain.errors import UnavailableError

Compute = Callable[[Tensor], Sequence[Any]]
"""(n, ...) float32 -> n answers, one for each row."""


class Seats:
    """Rows that are charged and computed at once; clients get them in turn, however many requests of one wait.

    Args:
        rows: at once; a request with more of them has all to itself.
    """

    def __init__(self, rows: int) -> None:
        self._rows = self._free = rows
        self._queues: OrderedDict[str, deque[tuple[int, threading.Event]]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, client: str, rows: int, seconds: float) -> None:
        """Wait for so many; `give` them back.

        Raises:
            UnavailableError: the time is up, and nothing was taken.
        """
        mine = (min(rows, self._rows), threading.Event())
        with self._guard:
            self._queues.setdefault(client, deque()).append(mine)
            self._seat()
        if mine[1].wait(seconds):
            return
        with self._guard:
            if not mine[1].is_set():
                self._queues[client].remove(mine)
                self._seat()
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
        """Answers to the rows of x, computed together with those of others that have the same `compute`; until that
        begins, it can be cancelled.

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
            if wanted := [job for job in jobs if job.done.set_running_or_notify_cancel()]:
                self._answer(wanted)
            del jobs, wanted  # what waits here for the next question must not keep a model that was replaced

    def _batch(self, held: list[_Job | None]) -> list[_Job]:
        """The next jobs that can be computed together; none: it is closed. `held` keeps one that cannot."""
        first = held.pop() if held else self._queue.get()
        if first is None:
            return []
        jobs, count = [first], len(first.x)
        while count < self.rows and not self._queue.empty():
            job = self._queue.get()
            unlike = job is None or job.compute != first.compute or job.x.shape[1:] != first.x.shape[1:]
            if job is None or unlike or count + len(job.x) > self.rows:
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
