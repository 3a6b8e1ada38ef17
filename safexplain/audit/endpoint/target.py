"""A service as the audited model, asked over HTTP. Errors hold no secrets: no header, and no user, password, query or
fragment of a URL."""

from __future__ import annotations

import email.utils
import hashlib
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain._validate import check_whole
from safexplain.audit.endpoint.payload import Payload, without_credentials
from safexplain.audit.queries import Dither, Population, Queries, batches, levels_of
from safexplain.errors import ConfigurationError, InputError, needs_extra
from safexplain.verdict.policy import Policy

BUSY = (429, 503)  # status of a server that did not process the question
FAILED = (408, 425, 500, 502, 504)  # status after which the same question may be sent again
LARGEST_ANSWER = 1 << 28  # bytes of one answer at most

FIRST_WAIT, LONGEST_BACKOFF = 0.5, 60.0  # seconds before the first retry if the server gives none, and at most

_SHOWN = 160  # characters quoted from a server's error


class EndpointError(InputError):
    """A service gives no answer, or an unexpected one; earlier answers are kept."""


class Client:
    """Sends questions to one service and reads its answers; raises as `Endpoint`.

    User and password in the URL become basic authentication. Questions are counted in `store`, a file or (None) memory,
    before they are sent; `report` takes a note about a wait.
    """

    def __init__(
        self,
        url: str,
        payload: Payload,
        store: str | Path | None = None,
        report: Callable[[str], None] = lambda note: None,
    ) -> None:
        with needs_extra("endpoint"):
            import httpx
        self._httpx, self.payload = httpx, payload
        self.url, self.label_url = _checked(url), payload.label_url(url)
        if self.label_url:
            _checked(self.label_url)
        self._report = report
        self._last = -float("inf")
        self._http = httpx.Client(
            headers={"Accept": "application/json", **payload.headers()},
            timeout=payload.asking.timeout,
            follow_redirects=False,
        )
        self.store = AnswerStore(store, {"endpoint": without_credentials(url), "payload": payload.digest})

    def close(self) -> None:
        """Close the connections and the store."""
        self._http.close()
        self.store.close()

    def explain(self, x: NDArray[np.float32]) -> Any:
        """The answer about rows (n, ...) as JSON; `EndpointError` if there is none, or the budget is spent."""
        return self._post(self.url, x, counts=True)

    def predict(self, x: NDArray[np.float32]) -> Any:
        """The answer of the label URL about the same rows, which do not count as further questions."""
        return self._post(self.label_url, x, counts=False)

    def _post(self, url: str, x: NDArray[np.float32], *, counts: bool) -> Any:
        content = json.dumps(self.payload.body(x), allow_nan=False).encode()
        asking, wait, reason = self.payload.asking, FIRST_WAIT, ""
        for tried in range(asking.retries + 1):
            if counts and asking.budget is not None and (left := asking.budget - self.store.asked) < len(x):
                raise _failed(
                    url,
                    f"the budget of {asking.budget:,} questions is spent ({left:,} left, {len(x):,} needed"
                    f"{f'; the last answer: {reason}' if reason else ''}); raise asking.budget, and resume",
                )
            self._pause()
            if counts:
                self.store.charge(len(x))
            answered, delay, found = self._once(url, content)
            if counts and not answered:
                self.store.charge(-len(x))
            if not isinstance(found, str):
                return found[0]
            reason = found
            if delay is not None and delay > asking.longest_wait:
                until = datetime.fromtimestamp(time.time() + delay, UTC)
                raise _failed(
                    url,
                    f"{reason}, and requests a wait of {delay:,.0f} seconds, until {until:%Y-%m-%d %H:%M} UTC"
                    f" (longest_wait is {asking.longest_wait:,.0f})",
                )
            if tried < asking.retries:
                pause = random.uniform(0.5, 1.0) * wait if delay is None else delay
                self._report(f"busy, next try in {pause:.0f} s")
                time.sleep(pause)
                wait = min(2 * wait, LONGEST_BACKOFF)
        raise _failed(url, f"{reason}, after {asking.retries + 1} tries; resume when the service answers")

    def _once(self, url: str, content: bytes) -> tuple[bool, float | None, str | tuple[Any]]:
        """One request: whether the questions may have been answered, the wait that the server requests, and the answer
        in a tuple or, if another try may succeed, the reason why there is none."""
        httpx, deadline = self._httpx, time.monotonic() + self.payload.asking.timeout
        try:
            headers = {"Content-Type": "application/json"}
            with self._http.stream("POST", url, content=content, headers=headers) as response:
                raw = bytearray()
                for chunk in response.iter_bytes():
                    raw += chunk
                    if len(raw) > LARGEST_ANSWER:
                        raise _failed(url, f"its answer has over {LARGEST_ANSWER >> 20} MiB; lower asking.batch")
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("too slow")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return False, None, f"no connection ({_words(error)})"
        except httpx.TimeoutException:
            return True, None, f"no answer within {self.payload.asking.timeout:g} seconds"
        except (httpx.TransportError, httpx.DecodingError) as error:
            return True, None, f"the answer was cut off ({_words(error)})"
        except (httpx.InvalidURL, ValueError) as error:
            if isinstance(error, EndpointError):
                raise
            raise _failed(url, f"the request cannot be sent ({type(error).__name__})") from None
        status, body = response.status_code, bytes(raw)
        if status in BUSY:
            after = _retry_after(response.headers.get("Retry-After"))
            return False, after, f"it is busy (status {status}{_quoted(body)})"
        if status in FAILED:
            return True, None, f"it fails (status {status}{_quoted(body)})"
        if 300 <= status < 400:
            raise _failed(url, f"it redirects (status {status}); give the final URL")
        if status >= 400:
            hint = "; put headers into a TOML file (request.headers)" if status in (401, 403) else ""
            raise _failed(url, f"it rejects the question (status {status}{_quoted(body)}){hint}")
        try:
            return True, None, (json.loads(body),)
        except (ValueError, RecursionError):
            kind = response.headers.get("Content-Type", "no content type").split(";")[0]
            begins = " ".join(body[:60].decode("utf-8", "replace").split())
            raise _failed(url, f"its answer is not JSON ({kind[:60]}: {begins!r}); check the URL") from None

    def _pause(self) -> None:
        due = self._last + 1 / self.payload.asking.rate
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        self._last = time.monotonic()


def _failed(url: str, reason: str) -> EndpointError:
    return EndpointError(f"{without_credentials(url)}: {reason}")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigurationError(
            f"expected the URL of a service, such as http://host:port/path, got {without_credentials(url)!r:.100}"
        )
    return url


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None if it has neither."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    try:
        until = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _quoted(body: bytes) -> str:
    """A server's explanation of an error, printable and short."""
    text = body[:4096].decode("utf-8", "replace")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None if "<" in text else text
    if isinstance(content, dict):
        content = next((content[name] for name in ("detail", "error", "message", "title") if name in content), None)
    if not isinstance(content, str):
        return ""
    words = " ".join("".join(c if c.isprintable() else " " for c in content).split())
    return f", {words[:_SHOWN]!r}" if words else ""


def _words(error: Exception) -> str:
    """The text of a transport error, or its type if the text has a URL."""
    text = " ".join(str(error).split())
    return type(error).__name__ if not text or "://" in text else text[:_SHOWN]


SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, question BLOB NOT NULL, again INTEGER NOT NULL,"
    " map BLOB, label INTEGER, scores BLOB, UNIQUE (question, again))",
)

WHOLE = "map IS NOT NULL AND label IS NOT NULL"  # earlier versions also stored explanations without their label


class StoredAnswer(NamedTuple):
    """(...) explanation, label and (classes,) scores, or (0,) without scores."""

    map: NDArray[np.float32]
    label: int
    scores: NDArray[np.float64]


def digests_of(x: NDArray[np.float32]) -> list[bytes]:
    """BLAKE2b of each row of (n, ...), flattened, with -0 as 0."""
    rows = np.ascontiguousarray(x.reshape(len(x), -1), dtype="<f4") + np.float32(0)
    return [hashlib.blake2b(row, digest_size=16, person=b"endpoint").digest() for row in rows]


class AnswerStore:
    """Answers of one endpoint by the digest of the question, in an SQLite file or (None) in memory; InputError if it
    cannot be used, another process uses it, or it is not about `about`."""

    def __init__(self, path: str | Path | None, about: Mapping[str, str]) -> None:
        self.path = path
        with self._reasons():
            self._db = sqlite3.connect(":memory:" if path is None else path, timeout=1, isolation_level=None)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")  # one write to the disk a commit
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            for statement in SCHEMA:
                self._db.execute(statement)
            kept = dict(self._db.execute("SELECT name, value FROM about"))
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", about.items())
            self._db.execute("COMMIT")
        if wrong := [name for name, value in about.items() if kept.get(name, value) != value]:
            self.close()
            raise InputError(
                f"{path}: expected answers of the {wrong[0]} {about[wrong[0]]:.100}, got {kept[wrong[0]]:.100}: use"
                " another run directory"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def asked(self) -> int:
        """Questions sent in all runs together, less those certainly not answered."""
        return int(self._about("asked") or 0)

    @property
    def answered(self) -> int:
        """Questions with an answer, including those asked again."""
        with self._reasons():
            found = self._db.execute(f"SELECT COUNT(*) FROM answers WHERE {WHOLE}")
            return int(found.fetchone()[0])

    def charge(self, questions: int) -> None:
        """Count questions that are about to be sent; a negative number uncounts some."""
        self._set("asked", str(self.asked + questions))

    def get(self, questions: Sequence[bytes], again: bool = False) -> dict[bytes, StoredAnswer]:
        """The answer to each question that has one."""
        found = dict[bytes, StoredAnswer]()
        shape = tuple(json.loads(self._about("shape") or "[]"))
        query = f"SELECT map, label, scores FROM answers WHERE again = ? AND question = ? AND {WHOLE}"
        with self._reasons():
            for question in questions:
                if (row := self._db.execute(query, (int(again), question)).fetchone()) is not None:
                    maps, label, scores = row
                    found[question] = StoredAnswer(
                        np.frombuffer(maps, "<f4").reshape(shape), label, np.frombuffer(scores or b"", "<f8")
                    )
        return found

    def put(
        self,
        questions: Sequence[bytes],
        maps: NDArray[np.float32],
        labels: NDArray[np.int64],
        scores: NDArray[np.float64] | None,
        again: bool = False,
    ) -> None:
        """Store the answers to n questions durably, all or nothing; InputError if the (n, ...) explanations differ in
        shape from earlier ones."""
        shape = json.dumps(list(maps.shape[1:]))
        if (before := self._about("shape")) is None:
            self._set("shape", shape)
        elif before != shape:
            raise InputError(f"its explanations have the shape {shape}, but earlier ones {before}")
        given = np.zeros((len(maps), 0)) if scores is None else scores
        rows = [
            (question, int(again), np.asarray(row, "<f4").tobytes(), label, np.asarray(score, "<f8").tobytes())
            for question, row, label, score in zip(questions, maps, labels.tolist(), given, strict=True)
        ]
        with self._reasons(), self._db:
            self._db.execute("BEGIN")
            columns = "question, again, map, label, scores"
            self._db.executemany(f"INSERT OR REPLACE INTO answers ({columns}) VALUES (?, ?, ?, ?, ?)", rows)

    def _about(self, name: str) -> str | None:
        with self._reasons():
            found = self._db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def _set(self, name: str, value: str) -> None:
        with self._reasons():
            self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise InputError(f"another audit is using {self.path}; wait for it, or stop it") from None
            raise InputError(f"answers cannot be stored in {self.path}: {error}") from None
        except sqlite3.Error as error:
            raise InputError(f"{self.path} is not a store of answers ({error}): use another run directory") from None


READ = 256  # examples whose answers are looked up together
SAME = 1e-3  # distance of two maps over the norm of the first, above which they count as different answers
GUESSING = 1.5  # multiple of chance agreement below which the labels may be in another order


@dataclass(frozen=True)
class Plan:
    """How many questions an audit asks."""

    examples: int
    each: int  # questions per example, including the plain one
    twice: int  # questions that are asked again at the end
    requests: int  # at most, one after the other
    seconds: float  # at least, by the rate
    stored: int  # answers that exist already
    budget: int | None  # questions in all runs together; None: any number

    @property
    def questions(self) -> int:
        """All questions."""
        return self.examples * self.each + self.twice

    def __str__(self) -> str:
        lasts = f"{self.seconds / 60:,.0f} minutes" if self.seconds >= 120 else f"{self.seconds:.0f} seconds"
        stored = f"; {self.stored:,} of them are answered already" if self.stored else ""
        budget = "" if self.budget is None else f", of a budget of {self.budget:,}"
        return (
            f"{self.questions:,} questions ({_times(self)}){budget}, in at most {self.requests:,} requests that take at"
            f" least {lasts}{stored}"
        )


class Endpoint(nn.Module):
    """A running service as the target of `safexplain.audit.audit`.

    Its scores are the probabilities in the payload or, without any, 1 for the predicted class and 0 for the others.
    Every answer is stored as it arrives, and no question is sent twice.

    Args:
        url: answers with explanations. User, password and query are sent to the service only.
        payload: a `Payload`, or an argument of `Payload.read`: "json", "kserve-v1", "v2" or a TOML file.
        classes: outputs of its model, as of the reference models.
        store: file of the answers, from which an interrupted audit resumes; None: memory.

    Raises:
        InputError: the store cannot be used, or is of another endpoint or payload.
        ConfigurationError: the URL or the payload is not valid, or a header's environment variable is not set.
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        payload: Payload | str | Path = "json",
        *,
        classes: int,
        store: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.given, self.url = url, without_credentials(url)
        self.payload = payload if isinstance(payload, Payload) else Payload.read(payload)
        self.classes = check_whole("classes", classes, 2)
        names = self.payload.answer.classes
        if names and len(names) != classes:
            raise ConfigurationError(
                f"payload: answer.classes: expected the {classes} classes of the models, got {len(names)}"
            )
        self.shape: tuple[int, ...] | None = None
        self.digest = ""
        self._report: Callable[[str], None] = lambda note: None
        self._client = Client(url, self.payload, store, lambda note: self._report(note))
        self._store = self._client.store
        self.eval()

    def close(self) -> None:
        """Close the connections and the store."""
        self._client.close()

    def plan(self, examples: int, patience: Sequence[int]) -> Plan:
        """The questions that an audit of so many examples asks; ConfigurationError if the budget is too small, with the
        highest patience that it allows."""
        asking = self.payload.asking
        levels = levels_of(patience)
        each, twice = 1 + max(levels, default=0), min(asking.twice, examples)
        rows = 1 if self.payload.request.single else asking.batch
        requests = each * sum(-(-len(part) // rows) for part in batches(examples, READ)) + -(-twice // rows)
        requests *= 2 if self._client.label_url else 1
        stored = min(self._store.answered, examples * each + twice)
        plan = Plan(examples, each, twice, requests, requests / asking.rate, stored, asking.budget)
        allowed = None if asking.budget is None else asking.budget - self._store.asked + stored
        if allowed is None or plan.questions <= allowed:
            return plan
        fits = (allowed - twice) // examples - 1
        how = ""
        if fits >= 0:
            highest = max(fits, 1)  # as dithered queries are asked in addition to the plain one
            lower = [level for level in sorted({1, *levels}) if level < highest]
            how = f"set patience = {[*lower, highest]} in a policy (--policy FILE.toml), the highest that fits, "
        spent = f", of which {self._store.asked:,} are spent" if self._store.asked else ""
        raise ConfigurationError(
            f"{self.url}: patience {', '.join(map(str, sorted({1, *levels})))} takes {plan.questions:,} questions"
            f" ({_times(plan)}), but asking.budget is {asking.budget:,}{spent}: {how}raise asking.budget, or score"
            " fewer examples, which can decide less"
        )

    def policy_for(self, policy: Policy) -> Policy:
        """The policy with the release of the payload; ConfigurationError if it judges predictions alone."""
        if policy.release == "prediction":
            raise ConfigurationError(
                'policy: release: expected "explanation" or "explanation+prediction", got "prediction": an endpoint is'
                " audited for its explanations"
            )
        if self.payload.releases_probabilities and policy.release == "explanation":
            return Policy.from_dict({**policy.to_dict(), "release": "explanation+prediction"})
        if policy.release == "explanation+prediction" and not self.payload.releases_probabilities:
            raise ConfigurationError(
                'policy: release is "explanation+prediction", but the payload has no probabilities: set their path as'
                " answer.probabilities in a TOML file"
            )
        return policy

    def begin(
        self,
        population: Population,
        member: NDArray[np.bool_],
        shape: tuple[int, ...] | None,
        progress: Progress = silent,
    ) -> None:
        """Ask the plain questions. InputError if the endpoint fails, its maps have another `shape` than those of
        reference models (if known), or its labels another order, by the (n,) members."""
        self.shape = shape
        labels = []
        for part in batches(len(member), READ):
            self._report = partial(progress, "asking the endpoint once", part.start, len(member))
            labels.append(self._answers(population.x[part.start : part.stop].numpy())[1])
            progress("asking the endpoint once", part.stop, len(member))
        self._check_labels(np.concatenate(labels)[member], population.y.numpy()[member])

    def _check_labels(self, labels: NDArray[np.int64], y: NDArray[np.int64]) -> None:
        """Raise InputError if labels of members hardly agree with the data, but would in another order."""
        from scipy.optimize import linear_sum_assignment

        size = max(self.classes, int(y.max()) + 1)
        if (agree := float((labels == y).mean())) >= GUESSING / len(np.unique(y)):
            return
        table = np.zeros((size, size), np.int64)
        np.add.at(table, (labels, y), 1)
        best = float(table[linear_sum_assignment(-table)].sum()) / len(y)
        if best >= max(0.5, 3 * agree):
            raise InputError(
                f"{self.url}: its labels agree with the data for {agree:.1%} of the members, but would for {best:.1%}"
                " in another order: list its labels in the order of the data's classes as answer.classes in a TOML file"
            )

    def ask(
        self, population: Population, patience: Sequence[int], dither: Dither, progress: Progress = silent
    ) -> tuple[str, ...]:
        """Ask all questions that have no answer yet, and a few again; returns sentences for the report. `digest` is
        then the SHA-256 of all answers in order."""
        most, n = max(levels_of(patience), default=0), len(population)
        queries, found = Queries.of(population, dither), hashlib.sha256()
        total = self.plan(n, patience).questions
        for part in batches(n, READ):
            for number in range(-1, most):
                x = population.x[part.start : part.stop] if number < 0 else queries(part, number)
                done = part.start * (1 + most) + len(part) * (number + 1)
                self._report = partial(progress, "asking the endpoint", done, total)
                maps, labels, scores = self._answers(x.numpy())
                for array in (labels, maps, scores):
                    found.update(np.ascontiguousarray(array).tobytes())
                progress("asking the endpoint", done + len(part), total)
        self.digest = found.hexdigest()
        notes = self._repeat(population.x.numpy())
        progress("asking the endpoint", total, total)
        return notes

    def _repeat(self, x: NDArray[np.float32]) -> tuple[str, ...]:
        """Ask a few plain questions again, and say what changed."""
        number = min(self.payload.asking.twice, len(x))
        if not number:
            return ("No question was repeated, so the endpoint may answer the same question differently.",)
        rows = x[np.unique(np.linspace(0, len(x) - 1, number).astype(int))]
        (maps, labels, _), (maps2, labels2, _) = self._answers(rows), self._answers(rows, again=True)
        norm, distance = (np.linalg.norm(m.reshape(len(rows), -1), axis=1) for m in (maps, maps - maps2))
        other_maps, other_labels = (distance > SAME * np.maximum(norm, 1e-12)).sum(), (labels != labels2).sum()
        if not other_maps and not other_labels:
            return (f"{len(rows)} questions were repeated at the end and got the same answers.",)
        return (
            f"The endpoint answers the same question differently: {len(rows)} questions were repeated, and"
            f" {other_maps} explanations and {other_labels} labels changed. An attacker can average over repeated"
            " questions; this audit asked each question once.",
        )

    def __getstate__(self) -> Any:
        raise TypeError("an endpoint cannot be pickled: its credentials stay in the process that made it")

    def forward(self, x: Tensor) -> Tensor:
        """(n, classes) scores, float64: see the class."""
        _, labels, scores = self._answers(x.detach().cpu().numpy())
        if scores.shape[1]:
            return torch.from_numpy(scores).to(x.device)
        return torch.nn.functional.one_hot(torch.from_numpy(labels), self.classes).double().to(x.device)

    def explain(self, x: Tensor) -> Tensor:
        """(n, ...) its maps, float32."""
        return torch.from_numpy(self._answers(x.detach().cpu().numpy())[0]).to(x.device)

    @property
    def caveat(self) -> str:
        """The first note of the report."""
        kind = "probabilities" if self.payload.releases_probabilities else "labels"
        return (
            f"The verdict is about the explanations and {kind} of {self.url}, whose model was not available."
            f" {self._store.asked:,} questions were asked."
        )

    def _answers(
        self, x: NDArray[np.float32], again: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]:
        """(n, ...) maps, (n,) labels and (n, classes) or (n, 0) scores, from the store or else from the endpoint."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        questions = digests_of(x)
        known = self._store.get(questions, again)
        new = {q: i for i, q in reversed([*enumerate(questions)]) if q not in known}  # equal rows are one question
        size = 1 if self.payload.request.single else self.payload.asking.batch
        rows = sorted(new.values())
        for start in range(0, len(rows), size):
            self._ask(x[rows[start : start + size]], again)
        if rows:
            known = self._store.get(questions, again)
        maps, labels, scores = zip(*(known[q] for q in questions), strict=True)
        return self._shaped(np.stack(maps)), np.array(labels, np.int64), np.stack(scores)

    def _ask(self, x: NDArray[np.float32], again: bool) -> None:
        try:
            body = self._client.explain(x)
            maps = self.payload.maps(body, len(x))
            self._shaped(maps)
            if self._client.label_url:
                body = self._client.predict(x)
            labels, scores = self.payload.labels(body, len(x), self.classes)
            self._store.put(digests_of(x), maps, labels, scores, again)
        except EndpointError:
            raise
        except InputError as error:
            raise EndpointError(f"{self.url}: {error}") from None

    def _shaped(self, maps: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, ...) maps in the shape of the reference models', if they are flat or differ in axes of size 1."""
        if self.shape is None or maps.shape[1:] == self.shape:
            return maps
        plain = tuple(size for size in self.shape if size != 1)
        numbers = int(np.prod(self.shape))
        got = tuple(size for size in maps.shape[1:] if size != 1)
        if got == plain or got == (numbers,) or (got == () and numbers == 1):
            return maps.reshape(len(maps), *self.shape)
        raise InputError(
            f"expected explanations of shape {list(self.shape)}, as of the reference models, got"
            f" {list(maps.shape[1:])}: name its explainer (--explainer), or set answer.explanations, or"
            ' request.channels = "last", in a TOML file'
        )


def _times(plan: Plan) -> str:
    again = f", and {plan.twice} asked twice" if plan.twice else ""
    return f"{plan.examples:,} examples, {plan.each:,} each{again}"
