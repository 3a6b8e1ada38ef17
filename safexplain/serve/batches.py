"""Questions of several requests, computed together: one thread asks the explainer, in batches that fill while it works.

A batch waits for company only while other requests are on their way, and never longer than the time limit. One thread
computes, so that no two explanations of a model are ever made at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safexplain.errors import UnavailableError

Compute = Callable[[Tensor], Sequence[Any]]
"""(n, ...) float32 -> n answers, one for each row."""


@dataclass(eq=False)
class _Job:
    compute: Compute
    x: Tensor
    done: Future[list[Any]] = field(default_factory=Future)


class Batches:
    """A queue of questions and the thread that answers them.

    Args:
        rows: in one batch, at most; a request with more of them is a batch of its own.
        wait: seconds that the first question of a batch waits for others, at most.
        most_waiting: rows in the queue, beyond which a question is turned away.
        on_batch: told how many rows each batch had.
    """

    def __init__(
        self,
        rows: int = 32,
        wait: float = 0.005,
        most_waiting: int = 1024,
        on_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.rows, self.wait, self.most_waiting, self._on_batch = rows, wait, most_waiting, on_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._waiting = 0
        self._coming = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="safexplain batches", daemon=True)
        self._thread.start()

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Within, a request is on its way that may become a question, for which a batch may wait."""
        with self._guard:
            self._coming += 1
        try:
            yield
        finally:
            with self._guard:
                self._coming -= 1

    def submit(self, compute: Compute, x: Tensor) -> Future[list[Any]]:
        """Answers to the rows of x, computed together with those of others that have the same `compute`.

        Args:
            compute: what answers.
            x: (n, ...) float32.

        Raises:
            UnavailableError: too many rows wait already, or the service is closed.
        """
        with self._guard:
            if self._closed:
                raise UnavailableError("the service is closed")
            if self._waiting and self._waiting + len(x) > self.most_waiting:
                raise UnavailableError(f"overloaded: {self._waiting} rows wait already; ask again later")
            self._waiting += len(x)
            job = _Job(compute, x)
            self._queue.put(job)
        return job.done

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        held: _Job | None = None
        while True:
            first = held or self._queue.get()
            held = None
            if first is None:
                return
            jobs, count, until = [first], len(first.x), time.monotonic() + self.wait
            stop = False
            while count < self.rows:
                job = self._next(until)
                if job is None:
                    break
                if job == _CLOSE:
                    stop = True
                    break
                if not _alike(job, first) or count + len(job.x) > self.rows:
                    held = job
                    break
                jobs.append(job)
                count += len(job.x)
            self._answer(jobs)
            with self._guard:
                self._waiting -= count
            if stop:
                return

    def _next(self, until: float) -> Any:
        """The next job; None: nobody else is coming, or the time is up."""
        try:
            job = self._queue.get_nowait()
        except queue.Empty:
            if not self._coming:
                return None
            try:
                job = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
        return _CLOSE if job is None else job

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


_CLOSE = object()


def _alike(job: _Job, first: _Job) -> bool:
    return job.compute == first.compute and job.x.shape[1:] == first.x.shape[1:]
