"""The core of a service that explains: it answers questions and knows no platform.

    x --checked--> canonical input --digest--> remembered for this client?  yes: the same answer, free
        no: a seat, in turn --> charged, if the client may ask --> model and explainer, with others --> remembered

The server decides what is explained (the class that the model predicts) and how (as the certificate says). An answer is
all or nothing: if one row is refused before the model is asked, none costs anything. What is charged is computed to its
end and remembered, also where the model fails or nobody waits any more: asking again is free.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import threading
import time
from collections.abc import Sequence
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
from safexplain.hardening.noise import as_hashed
from safexplain.serve.batches import Batches, Seats
from safexplain.serve.inputs import ANONYMOUS, numbers, principal
from safexplain.serve.loading import Generation, Options, Remembered
from safexplain.serve.questions import Questions
from safexplain.serve.telemetry import READY, Metrics, record

__all__ = ["SETTINGS", "Answer", "Service"]

_log = logging.getLogger("safexplain.serve")

SETTINGS = "SAFEXPLAIN_SERVE"
"""Environment variable with the arguments of `Service.load` as JSON: how workers and containers are told."""

MOST_REMEMBERED = 256 * 2**20
"""Bytes of answers that are remembered; those that were not asked for longest are forgotten first."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What leaves for n inputs, and nothing else does.

    Args:
        explanation: (n, ...) float32, or n dictionaries of plain JSON values; None: labels were asked alone.
        label: (n,) int64, the predicted classes, which are what is explained.
        certificate: hexadecimal SHA-256 of the certificate's file.
        uncertified: whether no audit has certified what is served.
        probabilities: (n, classes) float32, only where the service was told to give them.
    """

    explanation: NDArray[np.float32] | list[Any] | None
    label: NDArray[np.int64]
    certificate: str
    uncertified: bool
    probabilities: NDArray[np.float32] | None = None


@dataclass(eq=False)
class _Flight:
    """A request that is being answered, for all of one client that ask the same at the same time."""

    keys: list[bytes]
    waiting: int = 0
    job: Future[list[Remembered]] | None = None
    found: Future[dict[bytes, Remembered]] = field(default_factory=Future)


class Service(AbstractContextManager["Service"]):
    """Answers from one model and its certificate, for many clients; threads may share it. See `Service.load`.

    Attributes:
        name: of the model, in URLs.
        now: what is served, which a reload replaces.
        metrics: what is counted.
    """

    def __init__(self, options: Options) -> None:
        self._options, self.name = options, options.name
        self._ledger = Questions(options.ledger)  # once: a reload forgets nothing that was counted
        self._memory: Any = LRUCache(MOST_REMEMBERED, getsizeof=lambda answer: answer.size)
        self.metrics = Metrics()
        self._seen = options.files()
        self.now = options.generation(self._ledger)
        self._seats = Seats(2 * options.batch_rows)  # half of them are charged while the others are computed
        self._batches = Batches(options.batch_rows, self.metrics.batches.observe)
        self._guard, self._reloading = threading.Lock(), threading.Lock()
        self._flights: dict[frozenset[bytes], _Flight] = {}
        self._degraded = False
        self._closing = threading.Event()
        self.metrics.ready.set(READY["ready"])
        self._began()
        if options.watch:
            threading.Thread(target=self._watch, name="safexplain watch", daemon=True).start()

    @classmethod
    def load(cls, model: Any, certificate: str | Path | None = None, **options: Any) -> Service:
        """A service, once certificate, key, model and its file are seen to belong together.

        Args:
            model: the model's file, or the model itself.
            certificate: its certificate; None: with `uncertified`, `explainer` and `hardening`.
            options: see `Options`.

        Raises:
            CertificateError: damaged, altered, unsigned, of another model or file, or not "certified".
            RefusedError: there is noise and no key or a weak one; or answers depend on other rows of a batch.
            InputError, ConfigurationError, MissingExtraError, LedgerError: something cannot be read or used.
        """
        return cls(Options.of(model, certificate, options))

    @classmethod
    def from_environment(cls, **options: Any) -> Service:
        """The service that SAFEXPLAIN_SERVE describes: the arguments of `load` as a JSON object; `options` go before.

        Raises:
            ConfigurationError: it is no such object, or nobody says which model.
            SafexplainError: as `load`.
        """
        try:
            given = {**json.loads(os.environ.get(SETTINGS) or "{}"), **options}
            model = given.pop("model")
        except (ValueError, TypeError, KeyError):
            wanted = '{"model": "model.pt2", "certificate": "certificate.json"}'
            raise ConfigurationError(f"{SETTINGS}: expected a JSON object such as {wanted}") from None
        return cls.load(model, **given)

    @property
    def digest(self) -> str:
        """Of the certificate that is served."""
        return self.now.release.digest

    def explain(self, x: Any, *, client: str = ANONYMOUS) -> Answer:
        """Explanations of the classes that the model predicts, and these classes.

        Args:
            x: (n, ...) numbers; taken as float32.
            client: who asks, and whose budget it is.

        Raises:
            RequestError: the inputs are of another shape, not finite, out of range, or too many.
            BudgetExhausted: the client may not ask this now; `renews` says when it may.
            UnavailableError, LedgerError: it cannot be answered now; asking again is free, if it was charged.
            RefusedError: the model is no longer the certified one.
            InputError: the model's scores of an input are NaN; it was charged.
        """
        return self._answer("explain", x, client)

    def predict(self, x: Any, *, client: str = ANONYMOUS) -> Answer:
        """The classes that the model predicts, which are counted as explanations are; see `explain`."""
        return self._answer("predict", x, client)

    def ready(self) -> dict[str, Any]:
        """Whether it can answer, and from what, in JSON types.

        `status` is "ready"; "degraded", where an older certificate is served because a newer one could not be loaded;
        or "unavailable", where the ledger cannot be reached or the service is closed.
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
        self.metrics.ready.set(READY[found["status"]])
        return found

    def reload(self) -> None:
        """Load model and certificate again; both are replaced as one, while requests go on.

        Raises:
            SafexplainError: as `load`; what was served is served on, and `ready` says "degraded".
        """
        with self._reloading:
            self._seen = self._options.files()
            try:
                new = self._options.generation(self._ledger)
            except Exception as error:  # whatever it is, what was served is served on; the reason stands in the log
                self._degraded = True
                self.metrics.reloads.labels("refused").inc()
                self.metrics.ready.set(READY["degraded"])
                _log.error("the new model and certificate are not served: %s", error)
                raise
            self.now, self._degraded = new, False
            self.metrics.reloads.labels("loaded").inc()
            self.metrics.ready.set(READY["ready"])
            _log.warning("now serving certificate %s", new.release.digest)
            self._began()
            gc.collect()  # a model is full of cycles

    def _began(self) -> None:
        """Say what is served: its limits to the ledger, and in the log whether nobody has signed for it."""
        budget, certificate = self.now.budget.describe(), self.now.release.certificate
        self._ledger.served(self.name, {name: budget[name] for name in ("questions", "period", "looks", "most_looks")})
        if certificate is not None and certificate.signature != "valid":
            _log.warning(
                "the certificate's signature is not checked: its checksum protects from accidents, not from somebody"
                " who can write the file. Sign it, and serve with --public-key"
            )

    def refused(self, operation: str, client: str, error: BaseException) -> Problem:
        """What a client is told about an error; if it came before there was a question, it is recorded here."""
        problem = problem_of(error)
        if not getattr(error, "recorded", False):
            if problem.status == 500:
                _log.error("%s: %s", operation, type(error).__name__)
            self._told(operation, client, problem.status, self.now, (), 0, time.perf_counter())
        return problem

    def close(self) -> None:
        """Answer what is being computed, and nothing more."""
        self._closing.set()
        self.metrics.ready.set(READY["unavailable"])
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
            return _assembled(operation, found, now)
        except BaseException as error:
            problem = problem_of(error)
            status = problem.status
            setattr(error, "recorded", True)  # noqa: B010 (any exception may come)
            if status >= 500 or problem.type == "reasons":  # into other words a library may have put any number
                ours = isinstance(error, SafexplainError) and not isinstance(error, InputError)
                _log.error("%s: %s%s", operation, type(error).__name__, f": {error}" if ours else "")
            raise
        finally:
            self._told(operation, client if isinstance(client, str) else "", status, now, digests, remembered, started)

    def _told(
        self,
        operation: str,
        client: str,
        status: int,
        now: Generation,
        digests: Sequence[bytes],
        remembered: int,
        started: float,
    ) -> None:
        """A request is in metrics and audit log."""
        seconds = time.perf_counter() - started
        self.metrics.requests.labels(operation, str(status)).inc()
        self.metrics.seconds.labels(operation).observe(seconds)
        record(
            operation=operation,
            client=client,
            status=status,
            certificate=now.release.digest,
            questions=(self._ledger.keyed(digest).hex() for digest in digests),  # made where they are written
            remembered=remembered,
            seconds=seconds,
            uncertified=now.release.uncertified,
        )

    def _find(
        self, operation: str, client: str, now: Generation, x: Tensor, digests: Sequence[bytes]
    ) -> tuple[list[Remembered], int]:
        """The answer to each row, and how many of them were remembered.

        What one client asked is never looked up for another, so that how fast an answer comes tells nobody what others
        asked. Equal requests of one client at the same time are computed once.
        """
        of = f"{operation}\0{client}\0".encode()
        keys = [of + digest for digest in digests]
        with self._guard:
            found = {key: self._memory[key] for key in keys if key in self._memory}
        remembered = sum(key in found for key in keys)
        rows = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        if rows:
            until = time.monotonic() + self._options.timeout
            with self._guard:
                flight = self._flights.get(frozenset(rows))
                mine = flight is None
                if flight is None:
                    flight = self._flights[frozenset(rows)] = _Flight(list(rows))
                flight.waiting += 1
            if mine:
                index = list(rows.values())
                self._start(flight, operation, client, now, x[index], [digests[i] for i in index])
            found |= self._landed(flight, until)
        return [found[key] for key in keys], remembered

    def _start(
        self, flight: _Flight, operation: str, client: str, now: Generation, x: Tensor, asked: Sequence[bytes]
    ) -> None:
        """Have rows charged and computed; the flight gets their answers, or why there are none."""

        def done(job: Future[list[Remembered]]) -> None:
            self._seats.give(len(x))
            late = UnavailableError("nobody waited for it")
            self._end(flight, late if job.cancelled() else job.exception(), job)

        seated = False
        try:
            self._seats.take(client, len(x), self._options.timeout)
            seated = True
            if self._closing.is_set():
                raise UnavailableError("the service is closed")
            now.budget.charge(client, asked, x.numpy())
            flight.job = self._batches.submit(now.explain if operation == "explain" else now.label, x)
        except BaseException as error:
            if seated:
                self._seats.give(len(x))
            self._end(flight, error)
        else:
            flight.job.add_done_callback(done)

    def _end(self, flight: _Flight, error: BaseException | None, job: Future[list[Remembered]] | None = None) -> None:
        """Remember the answers, also where nobody waits for them any more, and give them to who does."""
        found = dict(zip(flight.keys, job.result(), strict=True)) if job is not None and error is None else {}
        with self._guard:
            del self._flights[frozenset(flight.keys)]
            for key, answer in found.items():
                if answer.size <= MOST_REMEMBERED:
                    self._memory[key] = answer
        if error is not None:
            flight.found.set_exception(error)
        else:
            flight.found.set_result(found)

    def _landed(self, flight: _Flight, until: float) -> dict[bytes, Remembered]:
        """The answers of a flight, once they are there; what is not begun when the last one leaves is cancelled."""
        try:
            return flight.found.result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            raise UnavailableError(f"no answer within {self._options.timeout:g} s; ask again, which is free") from None
        finally:
            with self._guard:
                flight.waiting -= 1
                left = flight.waiting == 0
            if left and flight.job is not None:
                flight.job.cancel()

    def _watch(self) -> None:
        while not self._closing.wait(self._options.watch):
            if self._options.files() != self._seen:
                with suppress(Exception):  # it was told in `reload`, and the next change may be a good one
                    self.reload()


def _assembled(operation: str, found: Sequence[Remembered], now: Generation) -> Answer:
    label = np.array([answer.label for answer in found], np.int64)
    maps: Any = None
    if operation == "explain":
        maps = [answer.explanation for answer in found]
        if all(isinstance(m, np.ndarray) for m in maps):
            maps = np.stack(maps) if maps else np.zeros((0, *(now.shape or ())), np.float32)
    given = [answer.probabilities for answer in found if answer.probabilities is not None]
    probabilities = np.array(given, np.float32) if now.probabilities else None
    return Answer(maps, label, now.release.digest, now.release.uncertified, probabilities)


# What a client is told instead of an answer: a status and a sentence about the request (RFC 9457), nothing computed


@dataclass(frozen=True)
class Problem:
    """An answer in application/problem+json.

    Args:
        status: of HTTP.
        type: the kind of problem, at the end of a URN.
        title: the same for all of a type.
        detail: what was expected, what came and what to do.
        field: of the request, where one is wrong.
        renews: when the budget does (RFC 3339), None: never; only of the type "budget".
        retry_after: seconds, for the header Retry-After; 0: it is not given.
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
    """What a client is told about an error: sentences of this package about the request, and nothing else.

    Args:
        error: raised by `Service` or while a request was read; of any other the client learns nothing.
    """
    if isinstance(error, RequestError):
        return Problem(error.status, "request", "The request cannot be answered", str(error), error.field)
    if isinstance(error, BudgetExhausted):
        spent = (429, "budget", "The budget of this client is spent", str(error))
        if error.renews is None:
            return Problem(*spent)
        seconds = math.ceil((error.renews - datetime.now(UTC)).total_seconds())
        renews = error.renews.isoformat().replace("+00:00", "Z")
        return Problem(*spent, renews=renews, retry_after=max(1, seconds))
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", "The service cannot answer now", str(error), retry_after=1)
    if isinstance(error, LedgerError):
        said = "the ledger cannot be reached, and no new question is answered without it; ask again later"
        return Problem(503, "unavailable", "The service cannot answer now", said, retry_after=5)
    if isinstance(error, CertificateError | RefusedError):
        said = "the certificate does not hold for what is served; the operator is told in the log"
        return Problem(503, "certificate", "Nothing certified can be served", said)
    if isinstance(error, ProhibitedReasonError):
        return Problem(422, "reasons", "There are no reasons to give", "the operator is told why in the log")
    if isinstance(error, InputError):  # raised behind the checks of the service: its words may hold anything
        return Problem(422, "request", "The request cannot be answered", "the model cannot take this input")
    return Problem(500, "internal", "Internal error", "the request failed; the operator is told in the log")
