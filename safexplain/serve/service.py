"""The core of a service that explains, whatever the platform. A request is answered completely or not at all.

If one row is refused before the model is asked, no row is charged. `Metrics` and the audit log hold no input or answer.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from torch import Tensor

from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    ConfigurationError,
    InputError,
    LedgerError,
    ProhibitedReasonError,
    RefusedError,
    RequestError,
    SafexplainError,
    UnavailableError,
)
from safexplain.explain.served import Release
from safexplain.hardening.noise import as_hashed
from safexplain.serve.inputs import ANONYMOUS, numbers, principal
from safexplain.serve.loading import Generation, Options, Remembered
from safexplain.serve.questions import Questions

__all__ = ["SETTINGS", "Answer", "Service"]

_log = logging.getLogger("safexplain.serve")

audit_log = logging.getLogger("safexplain.serve.audit")
"""One JSON object per line, for the handlers of this logger."""

SETTINGS = "SAFEXPLAIN_SERVE"
"""Environment variable with the arguments of `Service.load` as JSON."""

MEMORY_BYTES = 256 * 2**20  # size of all remembered answers; the least recently used are dropped first

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, eq=False)
class Answer:
    """Everything that leaves for n inputs.

    Args:
        explanation: (n, ...) float32, or n dictionaries of JSON types; None: only labels were requested.
        label: (n,) int64, the predicted classes, which are explained.
        certificate: hexadecimal SHA-256 of the certificate's file.
        uncertified: whether no audit has certified this release.
        probabilities: (n, classes) float32, or None unless the service returns them.
    """

    explanation: NDArray[np.float32] | list[Any] | None
    label: NDArray[np.int64]
    certificate: str
    uncertified: bool
    probabilities: NDArray[np.float32] | None = None


@dataclass(eq=False)
class _Flight:
    """New questions in progress, shared by equal requests of one client."""

    keys: list[bytes]
    waiting: int = 0
    job: Future[list[Remembered]] | None = None
    answers: Future[dict[bytes, Remembered]] = field(default_factory=Future)


class Service(AbstractContextManager["Service"]):
    """Answers from one model and its certificate, for many clients; threads may share it. See `Service.load`.

    Attributes:
        name: of the model, in URLs.
        now: the model and certificate in use, which a reload replaces.
        metrics: counts of requests and answers.
    """

    def __init__(self, options: Options) -> None:
        self._options, self.name = options, options.name
        self._ledger = Questions(options.ledger)  # once: a reload keeps all counts
        self._memory: Any = LRUCache(MEMORY_BYTES, getsizeof=lambda answer: answer.size)
        self.metrics = Metrics()
        self._loaded_files = options.file_states()
        self.now = options.generation(self._ledger)
        self._seats = Seats(2 * options.batch_rows)  # half are charged while the other half is computed
        self._batches = Batches(options.batch_rows, self.metrics.batches.observe)
        self._guard, self._reloading = threading.Lock(), threading.Lock()
        self._flights: dict[frozenset[bytes], _Flight] = {}
        self._degraded = False
        self._closing = threading.Event()
        self._announce()
        if options.watch:
            threading.Thread(target=self._watch, name="safexplain watch", daemon=True).start()

    @classmethod
    def load(cls, model: Any, certificate: str | Path | None = None, **options: Any) -> Service:
        """A service, after checking that certificate, key, model and its file belong together.

        Args:
            model: the model's file, or the model itself.
            certificate: its certificate; None: with `uncertified`, `explainer` and `hardening`.
            options: see `Options`.

        Raises:
            CertificateError: damaged, altered, unsigned, of another model or file, or not "certified".
            RefusedError: noise without a key or with a weak one, or answers that depend on other rows of a batch.
            InputError, ConfigurationError, MissingExtraError, LedgerError: something cannot be read or used.
        """
        return cls(Options.of(model, certificate, options))

    @classmethod
    def from_environment(cls, **options: Any) -> Service:
        """The service of SAFEXPLAIN_SERVE: the arguments of `load` as a JSON object, which `options` override."""
        try:
            given = {**json.loads(os.environ.get(SETTINGS) or "{}"), **options}
            model = given.pop("model")
        except (ValueError, TypeError, KeyError):
            example = '{"model": "model.pt2", "certificate": "certificate.json"}'
            raise ConfigurationError(f"{SETTINGS}: expected a JSON object such as {example}") from None
        return cls.load(model, **given)

    @property
    def digest(self) -> str:
        """SHA-256 of the certificate in use, hexadecimal."""
        return self.now.release.digest

    def explain(self, x: Any, *, client: str = ANONYMOUS) -> Answer:
        """Explanations of the predicted classes, and these classes.

        Args:
            x: (n, ...) numbers; converted to float32.
            client: whose budget is charged.

        Raises:
            RequestError: inputs of another shape, not finite, out of range, or too many.
            BudgetExhausted: the client's budget is spent; `renews` is when it renews.
            UnavailableError, LedgerError: no answer now; asking again is free if it was charged.
            RefusedError: the model is no longer the certified one.
            InputError: the model's scores of an input are NaN; it is charged.
        """
        return self._answer("explain", x, client)

    def predict(self, x: Any, *, client: str = ANONYMOUS) -> Answer:
        """Predicted classes, which are charged like explanations; see `explain`."""
        return self._answer("predict", x, client)

    def ready(self) -> dict[str, Any]:
        """Whether and from which certificate the service can answer, in JSON types.

        `status` is "ready"; "degraded" if a newer certificate could not be loaded, so an older one is in use; or
        "unavailable" if the ledger cannot be reached or the service is closed.
        """
        now = self.now
        certificate = now.release.certificate
        found: dict[str, Any] = {
            "status": "degraded" if self._degraded else "ready",
            "model": self.name,
            "method": now.release.method,
            "certificate": now.release.digest,
            "verdict": "none" if certificate is None else certificate.verdict,
            "age": None,
            "budget": now.budget.describe(),
        }
        if certificate is not None:
            found["claim"] = certificate.judgement.claim
            found["signature"] = certificate.signature
            with suppress(ValueError, KeyError):
                made = datetime.strptime(certificate.environment["date"], "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC)
                found["age"] = round((datetime.now(UTC) - made).total_seconds())
        if now.release.uncertified:
            found["uncertified"] = True
        if self._degraded:
            found["reload"] = "not loaded; see the log"
        try:
            self._ledger.ping()
        except LedgerError:
            found["status"], found["ledger"] = "unavailable", "cannot be reached"
        if self._closing.is_set():
            found["status"] = "unavailable"
        self.metrics.ready.set({"ready": 1.0, "degraded": 0.5, "unavailable": 0.0}[found["status"]])
        return found

    def reload(self) -> None:
        """Load model and certificate again, and replace both together while requests go on.

        Raises:
            SafexplainError: as `load`; the old pair stays in use, and `ready` reports "degraded".
        """
        with self._reloading:
            self._loaded_files = self._options.file_states()
            try:
                self.now = self._options.generation(self._ledger)
            except Exception as error:
                self._degraded = True
                self.metrics.reloads.labels("refused").inc()
                self.ready()
                _log.error("the new model and certificate are not served: %s", error)
                raise
            self._degraded = False
            self.metrics.reloads.labels("loaded").inc()
            _log.warning("now serving certificate %s", self.digest)
            self._announce()
            gc.collect()  # a model is full of cycles

    def _announce(self) -> None:
        budget, certificate = self.now.budget.describe(), self.now.release.certificate
        limits = {name: budget[name] for name in ("questions", "period", "looks", "most_looks")}
        self._ledger.record_service(self.name, limits)
        if certificate is not None and certificate.signature != "valid":
            _log.warning("the certificate's checksum detects accidents, not tampering; sign it, and use --public-key")
        self.ready()

    def record_problem(self, operation: str, client: str, error: BaseException) -> Problem:
        """The client's view of an error, which is recorded unless `explain` or `predict` recorded it."""
        problem = problem_of(error)
        if not getattr(error, "recorded", False):
            if problem.status == 500:
                _log.error("%s: %s", operation, type(error).__name__)
            self._record(
                self.now.release, (), time.perf_counter(), operation, client=client, status=problem.status, remembered=0
            )
        return problem

    def close(self) -> None:
        """Finish submitted questions, and refuse new ones."""
        self._closing.set()
        self.metrics.ready.set(0.0)
        self._batches.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _answer(self, operation: str, x: Any, client: str) -> Answer:
        started, now, status = time.perf_counter(), self.now, 500
        digests: list[bytes] = []
        remembered = 0
        try:
            if self._closing.is_set():
                raise UnavailableError("the service is closed")
            client, array = principal(client), numbers(x, "input")
            now.check(array)
            inputs = as_hashed(torch.from_numpy(np.array(array, order="C")))
            digests = [now.question(row) for row in inputs.numpy()]
            found, remembered = self._find(operation, client, now, inputs, digests)
            status = 200
            self.metrics.answers.labels("computed").inc(len(found) - remembered)
            self.metrics.answers.labels("remembered").inc(remembered)
            return _assemble(operation, found, now)
        except BaseException as error:
            problem = problem_of(error)
            status = problem.status
            setattr(error, "recorded", True)  # noqa: B010 (any exception may come)
            if status >= 500 or problem.type == "reasons":  # messages of libraries may contain numbers of the input
                ours = isinstance(error, SafexplainError) and not isinstance(error, InputError)
                _log.error("%s: %s%s", operation, type(error).__name__, f": {error}" if ours else "")
            raise
        finally:
            client = client if isinstance(client, str) else ""
            self._record(now.release, digests, started, operation, client=client, status=status, remembered=remembered)

    def _record(
        self, release: Release, digests: Sequence[bytes], started: float, operation: str, *, status: int, **about: Any
    ) -> None:
        seconds = time.perf_counter() - started
        self.metrics.requests.labels(operation, str(status)).inc()
        self.metrics.seconds.labels(operation).observe(seconds)
        if audit_log.isEnabledFor(logging.INFO):
            line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "operation": operation}
            line |= {"status": status, **about, "certificate": release.digest, "rows": len(digests)}
            line["seconds"] = round(seconds, 4)
            line["questions"] = [self._ledger.keyed(digest).hex() for digest in digests]  # inputs cannot be guessed
            audit_log.info(json.dumps(line | ({"uncertified": True} if release.uncertified else {})))

    def _find(
        self, operation: str, client: str, now: Generation, x: Tensor, digests: Sequence[bytes]
    ) -> tuple[list[Remembered], int]:
        prefix = f"{operation}\0{client}\0".encode()  # response times reveal nothing about other clients' questions
        keys = [prefix + digest for digest in digests]
        with self._guard:
            found = {key: self._memory[key] for key in keys if key in self._memory}
        remembered = sum(key in found for key in keys)
        rows = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        if rows:
            until = time.monotonic() + self._options.timeout
            with self._guard:
                flight = self._flights.get(frozenset(rows))
                is_new = flight is None
                if flight is None:
                    flight = self._flights[frozenset(rows)] = _Flight(list(rows))
                flight.waiting += 1
            if is_new:
                index = list(rows.values())
                self._start(flight, operation, client, now, x[index], [digests[i] for i in index])
            found |= self._wait_for(flight, until)
        return [found[key] for key in keys], remembered

    def _start(
        self, flight: _Flight, operation: str, client: str, now: Generation, x: Tensor, digests: Sequence[bytes]
    ) -> None:
        def done(job: Future[list[Remembered]]) -> None:
            self._seats.release(len(x))
            cancelled = UnavailableError("nobody waited for it")
            self._finish(flight, cancelled if job.cancelled() else job.exception(), job)

        has_seats = False
        try:
            self._seats.acquire(client, len(x), self._options.timeout)
            has_seats = True
            if self._closing.is_set():
                raise UnavailableError("the service is closed")
            now.budget.charge(client, digests, x.numpy())
            flight.job = self._batches.submit(now.explain if operation == "explain" else now.label, x)
        except BaseException as error:
            if has_seats:
                self._seats.release(len(x))
            self._finish(flight, error)
        else:
            flight.job.add_done_callback(done)

    def _finish(
        self, flight: _Flight, error: BaseException | None, job: Future[list[Remembered]] | None = None
    ) -> None:
        found = dict(zip(flight.keys, job.result(), strict=True)) if job is not None and error is None else {}
        with self._guard:
            del self._flights[frozenset(flight.keys)]
            for key, answer in found.items():
                if answer.size <= MEMORY_BYTES:
                    self._memory[key] = answer
        if error is not None:
            flight.answers.set_exception(error)
        else:
            flight.answers.set_result(found)

    def _wait_for(self, flight: _Flight, until: float) -> dict[bytes, Remembered]:
        """The answers of a flight; a job that has not begun is cancelled when the last request stops waiting."""
        try:
            return flight.answers.result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            raise UnavailableError(f"no answer within {self._options.timeout:g} s; ask again, which is free") from None
        finally:
            with self._guard:
                flight.waiting -= 1
                is_last = flight.waiting == 0
            if is_last and flight.job is not None:
                flight.job.cancel()

    def _watch(self) -> None:
        while not self._closing.wait(self._options.watch):
            if self._options.file_states() != self._loaded_files:
                with suppress(Exception):  # `reload` logged it, and the next change may be a good one
                    self.reload()


def _assemble(operation: str, found: Sequence[Remembered], now: Generation) -> Answer:
    label = np.array([answer.label for answer in found], np.int64)
    maps: Any = None
    if operation == "explain":
        maps = [answer.explanation for answer in found]
        if all(isinstance(m, np.ndarray) for m in maps):
            maps = np.stack(maps) if maps else np.zeros((0, *(now.shape or ())), np.float32)
    given = [answer.probabilities for answer in found if answer.probabilities is not None]
    probabilities = np.array(given, np.float32) if now.probabilities else None
    return Answer(maps, label, now.release.digest, now.release.uncertified, probabilities)


class Seats:
    """Rows that may be charged and computed at once, for clients in turn; a larger request gets all seats."""

    def __init__(self, rows: int) -> None:
        self._rows = self._free = rows
        self._queues: OrderedDict[str, deque[tuple[int, threading.Event]]] = OrderedDict()
        self._guard = threading.Lock()

    def acquire(self, client: str, rows: int, seconds: float) -> None:
        """Wait for seats, to `release` later; UnavailableError after this many seconds."""
        mine = (min(rows, self._rows), threading.Event())
        with self._guard:
            self._queues.setdefault(client, deque()).append(mine)
            self._admit()
        if mine[1].wait(seconds):
            return
        with self._guard:
            if not mine[1].is_set():
                self._queues[client].remove(mine)
                self._admit()
                raise UnavailableError(f"no answer within {seconds:g} s; ask again later")

    def release(self, rows: int) -> None:
        """Release the seats of a request with this many rows."""
        with self._guard:
            self._free += min(rows, self._rows)
            self._admit()

    def _admit(self) -> None:
        """Admit the first request of each client in turn, while seats are free; a large request is not overtaken."""
        while self._queues:
            client, waiting = self._queues.popitem(last=False)
            if waiting:
                rows, admitted = waiting[0]
                if rows > self._free:
                    self._queues[client] = waiting
                    self._queues.move_to_end(client, last=False)
                    return
                self._free -= rows
                waiting.popleft()
                admitted.set()
                if waiting:
                    self._queues[client] = waiting


Compute = Callable[[Tensor], Sequence[Any]]  # (n, ...) float32 -> n answers, one for each row


@dataclass(eq=False)
class _Job:
    compute: Compute
    x: Tensor
    done: Future[list[Any]] = field(default_factory=Future)


class Batches:
    """A queue of questions, and the thread that answers them in batches of at most `rows` rows, without waiting for a
    full one; a longer request is its own batch. `on_batch` gets the size of each."""

    def __init__(self, rows: int = 32, on_batch: Callable[[int], None] = lambda rows: None) -> None:
        self.rows, self._on_batch = rows, on_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="safexplain batches", daemon=True)
        self._thread.start()

    def submit(self, compute: Compute, x: Tensor) -> Future[list[Any]]:
        """Answers to the rows of x, computed together with others of the same `compute`; cancellable until then."""
        with self._guard:
            if self._closed:
                raise UnavailableError("the service is closed")
            job = _Job(compute, x)
            self._queue.put(job)
        return job.done

    def close(self) -> None:
        """Answer everything that was submitted, then stop."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        leftover: list[_Job | None] = []
        while True:
            jobs = self._next_batch(leftover)
            if not jobs:
                return
            if wanted := [job for job in jobs if job.done.set_running_or_notify_cancel()]:
                self._answer(wanted)
            del jobs, wanted  # otherwise they would keep a replaced model alive until the next question

    def _next_batch(self, leftover: list[_Job | None]) -> list[_Job]:
        first = leftover.pop() if leftover else self._queue.get()
        if first is None:
            return []
        jobs, count = [first], len(first.x)
        while count < self.rows and not self._queue.empty():
            job = self._queue.get()
            differs = job is None or job.compute != first.compute or job.x.shape[1:] != first.x.shape[1:]
            if job is None or differs or count + len(job.x) > self.rows:
                leftover.append(job)
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
            else:  # only the job that caused the error gets it
                for job in jobs:
                    self._answer([job])
            return
        start = 0
        for job in jobs:
            job.done.set_result(answers[start : start + len(job.x)])
            start += len(job.x)


class Metrics:
    """Prometheus metrics of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        by = ["operation", "status"]
        self.requests = Counter("safexplain_requests", "Requests by operation and status", by, **own)
        seconds = ("safexplain_request_seconds", "Seconds per request", ["operation"])
        self.seconds = Histogram(*seconds, buckets=_BUCKETS, **own)
        self.answers = Counter("safexplain_answers", "Answers by source: computed or remembered", ["source"], **own)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram("safexplain_batch_rows", "Rows computed together", buckets=sizes, **own)
        self.reloads = Counter("safexplain_reloads", "Reloads by outcome", ["outcome"], **own)
        values = "1 ready, 0.5 degraded, 0 unavailable"
        self.ready = Gauge("safexplain_ready", values, multiprocess_mode="livemin", **own)

    def text(self) -> tuple[bytes, str]:
        """The exposition and its content type; of all workers if PROMETHEUS_MULTIPROC_DIR is set."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST


@dataclass(frozen=True)
class Problem:
    """A refusal or an error as a client sees it (application/problem+json, RFC 9457).

    `renews`, of type "budget" only, is when the budget renews (RFC 3339); None: never. `retry_after` is in seconds, for
    the header Retry-After; 0: no header.
    """

    status: int
    type: str
    title: str
    detail: str
    field: str = ""
    renews: str | None = None
    retry_after: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The members of the body."""
        found: dict[str, Any] = {"type": f"urn:safexplain:problem:{self.type}", "title": self.title}
        found |= {"status": self.status, "detail": self.detail}
        found |= {"field": self.field} if self.field else {}
        return found | ({"renews": self.renews} if self.type == "budget" else {})


def problem_of(error: BaseException) -> Problem:
    """The client's view of an error: sentences of this package about the request, and nothing of any other error."""
    if isinstance(error, RequestError):
        return Problem(error.status, "request", "The request cannot be answered", str(error), error.field)
    if isinstance(error, BudgetExhausted):
        renews, seconds = None, 0
        if error.renews is not None:
            renews = error.renews.isoformat().replace("+00:00", "Z")
            seconds = max(1, math.ceil((error.renews - datetime.now(UTC)).total_seconds()))
        spent = "The budget of this client is spent"
        return Problem(429, "budget", spent, str(error), renews=renews, retry_after=seconds)
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", "The service cannot answer now", str(error), retry_after=1)
    if isinstance(error, LedgerError):
        detail = "the ledger cannot be reached, and every new question needs it; ask again later"
        return Problem(503, "unavailable", "The service cannot answer now", detail, retry_after=5)
    if isinstance(error, CertificateError | RefusedError):
        detail = "the certificate does not match the model; the operator's log has the reason"
        return Problem(503, "certificate", "Nothing certified can be served", detail)
    if isinstance(error, ProhibitedReasonError):
        return Problem(422, "reasons", "There are no reasons to give", "the operator's log has the reason")
    if isinstance(error, InputError):  # raised by the model, so its message may contain anything
        return Problem(422, "request", "The request cannot be answered", "the model cannot take this input")
    return Problem(500, "internal", "Internal error", "the request failed; the operator's log has the reason")
