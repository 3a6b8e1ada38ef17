"""The core of a service that explains: it answers questions and knows no platform.

    x --checked--> canonical input --digest--> remembered for this client?  yes: the same answer, free
        no: may the client ask?  --> model and explainer, with others in a batch --> charged --> remembered --> answer

The server decides what is explained (the class that the model predicts) and how (as the certificate says). An answer is
all or nothing: if one row is refused, nothing is computed or charged; what cannot be charged is not given out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import weight_files
from safexplain._validate import check_number, check_whole
from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    ConfigurationError,
    InputError,
    LedgerError,
    RefusedError,
    RequestError,
    SafexplainError,
    UnavailableError,
)
from safexplain.explain.served import Release, load_release
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import KEY_VARIABLE, as_hashed
from safexplain.ledger import Ledger
from safexplain.loading.data.load import load_inputs
from safexplain.loading.models.load import load_model
from safexplain.outputs import are_probabilities
from safexplain.serve.batches import Batches
from safexplain.serve.budget import Budget, Limits, open_ledger
from safexplain.serve.memory import Memory, Remembered, open_memory
from safexplain.serve.telemetry import Metrics, record, span
from safexplain.verdict.certificate.read import load_certificate

__all__ = ["SETTINGS", "Answer", "Service", "status_of"]

SETTINGS = "SAFEXPLAIN_SERVE"
"""Environment variable with the arguments of `Service.load` as JSON: how workers and containers are told."""

ANONYMOUS = "anonymous"
"""The client of requests that do not say whose they are; all of them share one budget."""

_LONGEST_CLIENT = 200
_MOST_KNOWN = 10_000
_log = logging.getLogger("safexplain.serve")


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


@dataclass(frozen=True, eq=False)
class _Generation:
    """Model, certificate and all that hangs on them, which are replaced as one."""

    release: Release
    budget: Budget
    scope: bytes
    shape: tuple[int, ...] | None
    written: float
    probabilities: bool

    def explain(self, x: Tensor) -> list[Remembered]:
        scores = self._scores(x)
        target = scores.argmax(1)
        maps = self.release.explain(x, target)
        if len(maps) != len(x):
            raise RefusedError(f"the explainer gave {len(maps)} answers to {len(x)} inputs")
        found = zip(target.tolist(), maps, self._probabilities(scores), strict=True)
        return [Remembered(label, _own(one), p) for label, one, p in found]

    def label(self, x: Tensor) -> list[Remembered]:
        self.release.check()
        scores = self._scores(x)
        found = zip(scores.argmax(1).tolist(), self._probabilities(scores), strict=True)
        return [Remembered(label, None, p) for label, p in found]

    def _scores(self, x: Tensor) -> Tensor:
        """(n, classes), what the model returns.

        Raises:
            RequestError: nobody said what shape inputs have, and the model cannot take this one.
        """
        try:
            scores = self.release.predict(x)
            if scores.shape[:1] != x.shape[:1] or scores.dim() != 2:
                raise ValueError(f"scores of shape {_written(scores.shape)} for {len(x)} inputs")
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if self.shape is not None or isinstance(error, SafexplainError):
                raise
            raise RequestError(f"the model takes no inputs of shape {_written(x.shape[1:])}", field="input") from None
        return scores

    def key(self, operation: str, client: str, digest: bytes) -> str:
        """Under which an answer is remembered: whose it is, to what, and what belongs to it."""
        what = f"{operation}\0{self.probabilities}\0{client}\0"
        return hashlib.sha256(what.encode() + digest).hexdigest()

    def _probabilities(self, scores: Tensor) -> list[tuple[float, ...] | None]:
        if not self.probabilities:
            return [None] * len(scores)
        p = scores if are_probabilities(scores) else scores.softmax(1)
        return [tuple(row) for row in p.tolist()]


@dataclass(frozen=True, eq=False)
class _Known:
    """A request that was answered: what it asked, and how its answer is written."""

    generation: _Generation
    operation: str
    client: str
    digests: tuple[bytes, ...]
    form: Any


def _own(explanation: Any) -> Any:
    """Not a part of the batch it was computed in."""
    return np.array(explanation, dtype=np.float32) if isinstance(explanation, np.ndarray) else explanation


class Service:
    """Answers from one model and its certificate, for many clients; threads may share it. See `Service.load`."""

    def __init__(self, make: Callable[[], _Generation], memory: Memory, options: _Options) -> None:
        self._make, self._memory, self._options = make, memory, options
        self.name = options.name
        self.metrics = Metrics()
        self._generation = make()
        self._batches = Batches(options.batch_rows, options.batch_wait, on_batch=self.metrics.batch)
        self._guard, self._reloading = threading.Lock(), threading.Lock()
        self._flights: dict[str, Future[Remembered]] = {}
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._failed = ""
        self._seen = options.files()
        self._closing = threading.Event()
        self.metrics.ready("ready")
        if options.watch:
            threading.Thread(target=self._watch, name="safexplain watch", daemon=True).start()

    @classmethod
    def load(
        cls,
        model: str | Path | nn.Module | Any,
        certificate: str | Path | None,
        *,
        key: bytes | str | Path | None = None,
        public_key: str | Path | bytes | None = None,
        ledger: Ledger | str | None = None,
        cache: str | None = None,
        public: Any = None,
        limits: Limits | Mapping[str, Any] | None = None,
        uncertified: bool = False,
        probabilities: bool = False,
        explainer: str | None = None,
        hardening: Hardening | str | Mapping[str, Any] | None = None,
        arch: str | None = None,
        trust_pickle: bool = False,
        trust_types: Sequence[str] = (),
        columns: str | Path | None = None,
        input_shape: Sequence[int] | None = None,
        input_range: Sequence[float] | None = None,
        name: str = "model",
        device: str = "cpu",
        most_rows: int = 64,
        batch_rows: int = 32,
        batch_wait: float = 0.005,
        lifetime: float = 3600.0,
        timeout: float = 60.0,
        watch: float = 0.0,
    ) -> Service:
        """A service, once certificate, key, model and its file are seen to belong together.

        Args:
            model: the model's file, of any kind that `safexplain audit` reads; or the model itself, a module in
                evaluation mode or a fitted estimator of scikit-learn.
            certificate: its certificate. None: there is none yet; with `uncertified`, `explainer` and `hardening`.
            key: the noise key, as bytes, or the path of its file. None: the environment variable SAFEXPLAIN_NOISE_KEY.
                Where the certified hardening has no noise, none is asked for.
            public_key: ed25519, PEM: path or bytes. Given, the certificate must be signed with its private key.
            ledger: where distinct questions are counted, as `Ledger` or its URL; of several workers the same one. None:
                in this process, which forgets them when it ends.
            cache: "redis://..." for several workers; None: in this process.
            public: (rows, ...) public rows, or a file of them (`load_inputs`): they set what counts as a
                near-duplicate, and are the background of methods that need one.
            limits: of each client. None: `Limits()`.
            uncertified: serve although no certificate says that it is safe; every answer and readiness say so.
            probabilities: give the probabilities of all classes too; the certificate must be about a release that has
                them (`Policy(release="explanation+prediction")`).
            explainer: without a certificate, the method's name in the catalog.
            hardening: without a certificate, what is done to each explanation; None: `Hardening.recommended()`.
            arch: how the network of a state_dict is built, see `load_model`.
            trust_pickle: unpickle the model's file, which can run any code in it.
            trust_types: names of types in a skops file that are accepted although skops does not trust them.
            columns: of a classifier that takes texts or missing numbers, the file columns.json of its audit; requests
                then have rows in its codes.
            input_shape: of one input, where neither certificate nor model file says it.
            input_range: least and greatest number of an input; None: any finite one.
            name: of the model, in URLs.
            device: where the model is asked.
            most_rows: of one request.
            batch_rows: rows of several requests that are computed together, at most.
            batch_wait: seconds that a question waits for others, at most; it waits only while others are on their way.
            lifetime: seconds that answers are remembered.
            timeout: seconds that a request waits for its answer, at most.
            watch: seconds between looks at the files, which are loaded again when they change; 0: never.

        Raises:
            CertificateError: damaged, altered, unsigned, of another model or file, or not "certified".
            RefusedError: there is noise and no key or a weak one; or answers depend on other rows of a batch.
            InputError, ConfigurationError, MissingExtraError, LedgerError: something cannot be read or used.
        """
        limits = _limits(limits)
        ledger = open_ledger(ledger)  # once: what was counted is not forgotten when model and certificate are reloaded
        given = dict(locals())
        options = _Options(**{field.name: given[field.name] for field in fields(_Options)})
        options.check()
        return cls(options.generation, open_memory(cache, options.lifetime), options)

    @classmethod
    def from_environment(cls) -> Service:
        """The service that SAFEXPLAIN_SERVE describes: the arguments of `load` as a JSON object.

        Raises:
            ConfigurationError: it is not set, or no such object.
            SafexplainError: as `load`.
        """
        text = os.environ.get(SETTINGS, "")
        try:
            given = json.loads(text)
            if not isinstance(given, dict):
                raise ValueError(f"got {type(given).__name__}")
            model, certificate = given.pop("model"), given.pop("certificate", None)
            unknown = given.keys() - {field.name for field in fields(_Options)}
            if unknown:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        except (ValueError, KeyError) as error:
            raise ConfigurationError(
                f'{SETTINGS}: expected a JSON object such as {{"model": "model.pt2", "certificate":'
                f' "certificate.json"}} ({error})'
            ) from None
        return cls.load(model, certificate, **given)

    @property
    def digest(self) -> str:
        """Of the certificate that is served."""
        return self._generation.release.digest

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one input, where it is known."""
        return self._generation.shape

    @property
    def probabilities(self) -> bool:
        """Whether answers have the probabilities of all classes."""
        return self._options.probabilities

    @property
    def uncertified(self) -> bool:
        """Whether no audit has certified what is served."""
        return self._generation.release.uncertified

    def explain(self, x: Any, *, client: str = ANONYMOUS, request: bytes = b"", form: Any = None) -> Answer:
        """Explanations of the classes that the model predicts, and these classes.

        Args:
            x: (n, ...) numbers; taken as float32.
            client: who asks, and whose budget it is.
            request: names the request that the inputs were read from, and its client; for `again`.
            form: what `again` gives back with the answer.

        Raises:
            RequestError: the inputs are of another shape, not finite, out of range, or too many.
            BudgetExhausted: the client may not ask this now; `renews` says when it may.
            UnavailableError, LedgerError: it cannot be answered now; nothing was charged.
            RefusedError: the model is no longer the certified one.
        """
        return self._answer("explain", x, client, request, form)

    def predict(self, x: Any, *, client: str = ANONYMOUS, request: bytes = b"", form: Any = None) -> Answer:
        """The classes that the model predicts, which are counted as explanations are; see `explain`."""
        return self._answer("predict", x, client, request, form)

    def again(self, request: bytes) -> tuple[Any, Answer] | None:
        """The form of a request that was answered before, and its answer, where all of it is remembered: reading the
        numbers of an image takes longer than all the rest.

        Args:
            request: as `explain` or `predict` was given it.
        """
        started = time.perf_counter()
        with self._guard:
            known = self._known.get(request)
        if known is None or known.generation is not self._generation or self._closing.is_set():
            return None
        found = self._memory.get([known.generation.key(known.operation, known.client, d) for d in known.digests])
        answers = [answer for answer in found if answer is not None]
        if len(answers) < len(found):
            return None
        self.metrics.answers(0, len(answers))
        self._told(known.operation, known.client, 200, known.generation, known.digests, len(answers), started)
        return known.form, _assembled(known.operation, answers, known.generation)

    def ready(self) -> dict[str, Any]:
        """Whether it can answer, and from what, in JSON types.

        `status` is "ready"; "degraded", where an older certificate is served because a newer one could not be loaded;
        or "unavailable", where the ledger cannot be reached or the service is closed.
        """
        now = self._generation
        certificate = now.release.certificate
        found: dict[str, Any] = {
            "status": "degraded" if self._failed else "ready",
            "model": self.name,
            "method": now.release.method,
            "certificate": now.release.digest,
            "verdict": "none" if certificate is None else certificate.verdict,
            "age": max(0, round(time.time() - now.written)),
            "budget": now.budget.describe(),
        }
        if certificate is not None:
            found["claim"] = certificate.judgement.claim
            found["signature"] = certificate.signature
        if now.release.uncertified:
            found["uncertified"] = True
        if self._failed:
            found["reload"] = self._failed
        try:
            now.budget.ping()
        except LedgerError:
            found["status"], found["ledger"] = "unavailable", "cannot be reached"
        if self._closing.is_set():
            found["status"] = "unavailable"
        self.metrics.ready(found["status"])
        return found

    def reload(self) -> None:
        """Load model and certificate again; both are replaced as one, while requests go on.

        Raises:
            SafexplainError: as `load`; what was served is served on, and `ready` says "degraded".
        """
        with self._reloading:
            self._seen = self._options.files()
            try:
                new = self._make()
            except Exception as error:  # whatever it is, what was served is served on, and readiness says so
                self._failed = f"not loaded: {self._options.without_folders(str(error))}"
                self.metrics.reload("refused")
                self.metrics.ready("degraded")
                _log.error("the new model and certificate are not served: %s", error)
                raise
            self._generation, self._failed = new, ""
            self.metrics.reload("loaded")
            self.metrics.ready("ready")
            _log.warning("now serving certificate %s", new.release.digest)

    def refused(self, operation: str, client: str, error: BaseException) -> None:
        """Record a request that was refused before it could become a question: it is in metrics and audit log."""
        status, now = status_of(error), self._generation.release
        self.metrics.request(operation, status, 0.0)
        record(
            operation=operation,
            client=client,
            status=status,
            certificate=now.digest,
            questions=[],
            remembered=0,
            seconds=0.0,
            uncertified=now.uncertified,
        )

    def close(self) -> None:
        """Answer what is asked already, and nothing more."""
        self._closing.set()
        self.metrics.ready("unavailable")
        self._batches.close()
        self._memory.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _answer(self, operation: str, x: Any, client: str, request: bytes, form: Any) -> Answer:
        started, now, status = time.perf_counter(), self._generation, 500
        digests: list[bytes] = []
        remembered = 0
        try:
            with span(f"safexplain.{operation}", certificate=now.release.digest):
                inputs = self._checked(x, now, client)
                digests = [_question(now.scope, row) for row in inputs.numpy()]
                found, remembered = self._find(operation, client, now, inputs, digests)
            status = 200
            if request:
                self._keep(request, _Known(now, operation, client, tuple(digests), form))
            self.metrics.answers(len(found) - remembered, remembered)
            return _assembled(operation, found, now)
        except BaseException as error:
            status = status_of(error)
            if status >= 500:
                _log.error("%s: %s%s", operation, type(error).__name__, _safe_words(error))
            raise
        finally:
            self._told(operation, client if isinstance(client, str) else "", status, now, digests, remembered, started)

    def _told(
        self,
        operation: str,
        client: str,
        status: int,
        now: _Generation,
        digests: Sequence[bytes],
        remembered: int,
        started: float,
    ) -> None:
        """A request is in metrics and audit log."""
        seconds = time.perf_counter() - started
        self.metrics.request(operation, status, seconds)
        record(
            operation=operation,
            client=client,
            status=status,
            certificate=now.release.digest,
            questions=[digest.hex() for digest in digests],
            remembered=remembered,
            seconds=seconds,
            uncertified=now.release.uncertified,
        )

    def _keep(self, request: bytes, known: _Known) -> None:
        with self._guard:
            self._known[request] = known
            self._known.move_to_end(request)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def _checked(self, x: Any, now: _Generation, client: str) -> Tensor:
        if self._closing.is_set():
            raise UnavailableError("the service is closed")
        if not isinstance(client, str) or not 0 < len(client) <= _LONGEST_CLIENT or not client.isprintable():
            raise RequestError(
                f"X-Client-Id: expected 1 to {_LONGEST_CLIENT} printable characters", field="X-Client-Id"
            )
        try:
            array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
        except (ValueError, TypeError, OverflowError):
            raise RequestError("expected numbers (n, ...), all rows of one shape", field="input") from None
        if array.dtype.kind not in "iuf" or array.ndim == 0:
            raise RequestError(f"expected numbers (n, ...), got {array.dtype}", field="input")
        if len(array) > self._options.most_rows:
            raise RequestError(
                f"expected at most {self._options.most_rows} rows a request, got {len(array)}; send several requests",
                field="input",
            )
        expected = now.shape
        if expected is not None and len(array) and array.shape[1:] != expected:
            raise RequestError(
                f"expected inputs of shape {_written(expected)}, got {_written(array.shape[1:])}", field="input"
            )
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(array).all():
            raise RequestError("expected finite numbers; there is NaN, infinity, or one beyond float32", field="input")
        limits = self._options.input_range
        if limits is not None and len(array) and (array.min() < limits[0] or array.max() > limits[1]):
            raise RequestError(f"expected numbers from {limits[0]:g} to {limits[1]:g}", field="input")
        return as_hashed(torch.from_numpy(array.copy()))

    def _find(
        self, operation: str, client: str, now: _Generation, x: Tensor, digests: Sequence[bytes]
    ) -> tuple[list[Remembered], int]:
        """The answer to each row, and how many of them were remembered."""
        keys = [now.key(operation, client, digest) for digest in digests]
        kept = dict(zip(keys, self._memory.get(keys), strict=True))
        found = {key: answer for key, answer in kept.items() if answer is not None}
        remembered = sum(key in found for key in keys)
        rows = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        if rows:
            with self._owned(rows) as (mine, theirs):
                if not theirs:
                    found |= self._computed(operation, client, now, x, digests, rows)
                    for key in mine:
                        self._flights[key].set_result(found[key])
            try:
                found |= {key: self._wait(flight) for key, flight in theirs.items()}
            except UnavailableError:
                raise
            except Exception:  # for another row of that request, it may be; so these are asked by themselves
                found |= self._computed(operation, client, now, x, digests, rows)
        return [found[key] for key in keys], remembered

    @contextmanager
    def _owned(self, rows: Mapping[str, int]) -> Iterator[tuple[list[str], dict[str, Future[Remembered]]]]:
        """Which questions others may wait for, as this request answers them; or the answers to all of its own that it
        waits for, as others are at them already.

        A request that has to answer one of its questions answers them all, lest it is charged for that one and another,
        which somebody else was asked to answer, is refused.
        """
        with self._guard:
            mine = [key for key in rows if key not in self._flights]
            theirs = {} if mine else {key: self._flights[key] for key in rows}
            self._flights |= {key: Future() for key in mine}
        try:
            yield mine, theirs
        except BaseException as error:
            for key in mine:
                if not self._flights[key].done():
                    self._flights[key].set_exception(error)
            raise
        finally:
            with self._guard:
                for key in mine:
                    del self._flights[key]

    def _computed(
        self,
        operation: str,
        client: str,
        now: _Generation,
        x: Tensor,
        digests: Sequence[bytes],
        rows: Mapping[str, int],
    ) -> dict[str, Remembered]:
        """Answers to these rows, charged and remembered."""
        index = list(rows.values())
        asked, inputs = [digests[i] for i in index], x[index]
        with self._batches.coming():
            now.budget.check(client, asked, inputs.numpy())
        answers = self._wait(self._batches.submit(now.explain if operation == "explain" else now.label, inputs))
        now.budget.charge(client, asked, inputs.numpy())
        made = dict(zip(rows, answers, strict=True))
        self._memory.put(made)
        return made

    def _wait(self, flight: Future[Any]) -> Any:
        try:
            return flight.result(self._options.timeout)
        except FutureTimeout:
            raise UnavailableError(f"no answer within {self._options.timeout:g} s; ask again later") from None

    def _watch(self) -> None:
        while not self._closing.wait(self._options.watch):
            seen = self._options.files()
            if seen != self._seen:
                with suppress(Exception):  # it was told in `reload`, and the next change may be a good one
                    self.reload()


@dataclass(frozen=True, eq=False)
class _Options:
    """The arguments of `Service.load`."""

    model: Any
    certificate: str | Path | None = None
    key: bytes | str | Path | None = None
    public_key: str | Path | bytes | None = None
    ledger: Ledger | None = None
    cache: str | None = None
    public: Any = None
    limits: Limits = Limits()  # noqa: RUF009 (frozen)
    uncertified: bool = False
    probabilities: bool = False
    explainer: str | None = None
    hardening: Hardening | str | Mapping[str, Any] | None = None
    arch: str | None = None
    trust_pickle: bool = False
    trust_types: Sequence[str] = ()
    columns: str | Path | None = None
    input_shape: Sequence[int] | None = None
    input_range: Sequence[float] | None = None
    name: str = "model"
    device: str = "cpu"
    most_rows: int = 64
    batch_rows: int = 32
    batch_wait: float = 0.005
    lifetime: float = 3600.0
    timeout: float = 60.0
    watch: float = 0.0

    def check(self) -> None:
        """Raise ConfigurationError for numbers and names that make no sense."""
        check_whole("most_rows", self.most_rows, 1)
        check_whole("batch_rows", self.batch_rows, 1)
        for name in ("batch_wait", "watch"):
            check_number(name, getattr(self, name), minimum=0.0)
        for name in ("lifetime", "timeout"):
            check_number(name, getattr(self, name), above=0.0)
        if not self.name or not self.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ConfigurationError(f"name: expected letters, digits, -, _ and . for URLs, got {self.name!r:.80}")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError):
            raise ConfigurationError(f"device: expected cpu, or a GPU of this machine, got {self.device!r}") from None
        if self.input_range is not None:
            if not isinstance(self.input_range, Sequence) or len(self.input_range) != 2:
                raise ConfigurationError(f"input_range: expected (least, greatest), got {self.input_range!r}")
            low, high = (check_number("input_range", value) for value in self.input_range)
            if low >= high:
                raise ConfigurationError(f"input_range: expected the least number first, got {low:g}, {high:g}")

    def without_folders(self, text: str) -> str:
        """A sentence in which files are called by their names alone: where they lie is nobody's business outside."""
        for path in (self.model, self.certificate, self.public, self.key, self.public_key):
            if isinstance(path, str | Path) and Path(path).name:
                text = text.replace(str(path), Path(path).name)
        return text

    def files(self) -> tuple[Any, ...]:
        """What is known of the files without reading them."""
        found: list[Any] = []
        for path in (self.model, self.certificate, self.public):
            if isinstance(path, str | Path):
                try:
                    for part in weight_files(Path(path)) or [Path(path)]:
                        state = os.stat(part)
                        found.append((state.st_ino, state.st_size, state.st_mtime_ns))
                except OSError:
                    found.append(None)
        return tuple(found)

    def generation(self) -> _Generation:
        """Model and certificate as the files are now."""
        shape = None if self.input_shape is None else tuple(self.input_shape)
        model: Any = self.model
        file: str | Path | None = None
        if isinstance(model, str | Path):
            loaded = load_model(
                model,
                arch=self.arch,
                trust_pickle=self.trust_pickle,
                input_shape=shape,
                trust_types=self.trust_types,
                columns=self.columns,
            )
            shape = shape or _shape_of(loaded.model)
            file, model = model, loaded.model.to(self.device)
        public = load_inputs(self.public) if isinstance(self.public, str | Path) else self.public
        if public is not None:
            public = np.asarray(public, np.float32)
            shape = shape or tuple(public.shape[1:])
        if file is not None and not self._names_file():
            file = None
        release = load_release(
            model,
            self.certificate,
            file=file,
            key=self.key,
            public_key=self.public_key,
            public=public,
            uncertified=self.uncertified,
            **self._without_certificate(shape),
        )
        if release.mixes_batch:
            raise RefusedError(
                f"{release.method} answers by shuffling the rows of a batch, so that answers to one client would depend"
                " on what others ask; serve another method"
            )
        if release.shape is not None and shape is not None and release.shape != shape:
            raise InputError(
                f"the certificate is about inputs of shape {_written(release.shape)}, and the model file, the public"
                f" rows or input_shape say {_written(shape)}"
            )
        shape = release.shape or shape
        if self.probabilities and release.certificate is not None:
            released = release.certificate.judgement.policy.release
            if released != "explanation+prediction" and not self.uncertified:
                raise CertificateError(
                    f"{self.certificate} is about the release of the {released}, and the service was told to give"
                    ' probabilities too: audit with release = "explanation+prediction" in the policy, or leave them out'
                )
            if released != "explanation+prediction":  # more leaves than the certificate is about
                release = replace(release, uncertified=True)
        judged = () if release.certificate is None else release.certificate.judgement.policy.patience
        budget = Budget(
            self.ledger,
            self.limits,
            public=public,
            most_looks=max(judged, default=None) if judged else None,
            subject=release.model_digest.hex(),
        )
        scope = hashlib.sha256(b"\0".join([release.model_digest, release.digest.encode(), _secret(self.key)])).digest()
        return _Generation(release, budget, scope, shape, _written_at(release), self.probabilities)

    def _names_file(self) -> bool:
        """Whether the certificate names the SHA-256 of a model's file."""
        return self.certificate is not None and bool(load_certificate(self.certificate).digests("sha256"))

    def _without_certificate(self, shape: tuple[int, ...] | None) -> dict[str, Any]:
        if self.certificate is not None:
            if self.explainer is not None or self.hardening is not None:
                raise ConfigurationError("explainer and hardening: the certificate says that; leave them out")
            return {}
        if not self.uncertified or self.explainer is None:
            raise ConfigurationError(
                "expected a certificate; to serve without one, say so: uncertified=True, explainer=..., hardening=..."
            )
        given = self.hardening
        if isinstance(given, str):
            given = Hardening.from_json(given)
        elif isinstance(given, Mapping):
            given = Hardening.from_json(json.dumps(dict(given)))
        return {"method": self.explainer, "hardening": given or Hardening.recommended(), "shape": shape}


def _limits(given: Limits | Mapping[str, Any] | None) -> Limits:
    if given is None or isinstance(given, Limits):
        return given or Limits()
    names = [field.name for field in fields(Limits)]
    if not isinstance(given, Mapping) or given.keys() - set(names):
        raise ConfigurationError(f"limits: expected Limits(...) or a mapping of {', '.join(names)}, got {given!r:.80}")
    return Limits(**given)


def status_of(error: BaseException) -> int:
    """The status of HTTP that goes with an error of the service."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, BudgetExhausted):
        return 429
    if isinstance(error, UnavailableError | LedgerError | CertificateError | RefusedError):
        return 503
    return 422 if isinstance(error, InputError) else 500


def _safe_words(error: BaseException) -> str:
    """The sentence of an error that holds no number of model or input: those of this package about certificates, keys
    and ledgers. Of others, of which a library may have put anything into the words, the kind has to do."""
    said = isinstance(error, UnavailableError | LedgerError | CertificateError | RefusedError)
    return f": {error}" if said else ""


def _assembled(operation: str, found: Sequence[Remembered], now: _Generation) -> Answer:
    label = np.array([answer.label for answer in found], np.int64)
    maps: Any = None
    if operation == "explain":
        maps = [answer.explanation for answer in found]
        if all(isinstance(m, np.ndarray) for m in maps):
            empty = np.zeros((0, *(now.shape or ())), np.float32)
            maps = np.stack(maps) if maps else empty
    given = [answer.probabilities for answer in found if answer.probabilities is not None]
    probabilities = np.array(given, np.float32) if now.probabilities else None
    return Answer(maps, label, now.release.digest, now.release.uncertified, probabilities)


def _question(scope: bytes, row: NDArray[np.float32]) -> bytes:
    """Names a question: the model, its certificate and the canonical input (the class is a function of them)."""
    head = hashlib.blake2b(scope + repr(row.shape).encode(), digest_size=32, person=b"safexplain ask")
    head.update(np.ascontiguousarray(row).data)
    return head.digest()


def _secret(key: bytes | str | Path | None) -> bytes:
    """Makes digests of questions something that nobody finds by trying inputs, where there is a noise key."""
    if isinstance(key, bytes):
        return key
    with suppress(OSError):
        return os.environ.get(KEY_VARIABLE, "").encode() if key is None else Path(key).read_bytes().strip()
    return b""


def _shape_of(model: nn.Module) -> tuple[int, ...] | None:
    """Of one input, where an exported model says all of it."""
    shape = getattr(model, "input_shape", None)
    return tuple(shape) if shape is not None and all(isinstance(n, int) for n in shape) else None


def _written(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _written_at(release: Release) -> float:
    """When the certificate was made, in seconds since 1970; now, where it does not say."""
    date = "" if release.certificate is None else release.certificate.environment.get("date", "")
    try:
        return datetime.strptime(date, "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return time.time()
