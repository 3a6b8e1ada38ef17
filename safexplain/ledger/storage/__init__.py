"""The database of a ledger: its tables, and what a database must do (`Storage`).

Sums are whole numbers as text, as they may exceed 64 bits; `losses` has one for each condition. The account "" is that
of all principals together: its time is the latest recorded one, its charges are trainings. `first` is the number of the
question that another one is a near-duplicate of. Questions are stored under HMAC-SHA256 with the ledger's secret, so
that nobody can find one in a log or an export by digesting guesses.

No thread is inside the database while a process forks. SQLite must be closed before: a child inherits its record of
locks but not the locks, so a parent that closes the file deletes the log that the child goes on writing.
"""

from __future__ import annotations

import ctypes
import hmac
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from safexplain.errors import LedgerError

Rows = list[tuple[Any, ...]]
Execute = Callable[[str, Sequence[Any]], Rows]

VERSION = 8
"""Version of the tables. 0.2 wrote 6, which `safexplain.ledger.opening` migrates."""

QUESTIONS = (
    "CREATE TABLE ledger_services (name TEXT PRIMARY KEY, limits TEXT NOT NULL)",
    "CREATE TABLE ledger_question_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
    " questions BIGINT NOT NULL, note TEXT NOT NULL)",
)
"""Tables of services, besides the questions themselves (`safexplain.serve.questions`)."""

SCHEMA = (
    "CREATE TABLE ledger_schema_version (version BIGINT NOT NULL)",
    f"INSERT INTO ledger_schema_version VALUES ({VERSION})",
    "CREATE TABLE ledger_identity (id TEXT PRIMARY KEY, secret BYTEA)",
    "CREATE TABLE ledger_settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE ledger_accounts (principal TEXT PRIMARY KEY, period BIGINT NOT NULL, time BIGINT NOT NULL,"
    " rule TEXT NOT NULL, alpha DOUBLE PRECISION NOT NULL, prefix_epsilon TEXT NOT NULL, prefix_delta TEXT NOT NULL,"
    " epsilon TEXT NOT NULL, delta TEXT NOT NULL, losses TEXT NOT NULL, unbounded BIGINT NOT NULL,"
    " charges BIGINT NOT NULL, granted_epsilon DOUBLE PRECISION, granted_delta DOUBLE PRECISION)",
    "INSERT INTO ledger_accounts VALUES ('', 0, 0, '', 0, '0', '0', '0', '0', '', 0, 0, NULL, NULL)",
    "CREATE TABLE ledger_charges (id {identity}, principal TEXT NOT NULL, period BIGINT NOT NULL, time BIGINT NOT NULL,"
    " mechanism TEXT NOT NULL, parameters TEXT NOT NULL, release TEXT NOT NULL, question TEXT, digest TEXT,"
    " repeated BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX ledger_charges_of ON ledger_charges (principal, id)",
    "CREATE UNIQUE INDEX ledger_charges_once ON ledger_charges (principal, question) WHERE question IS NOT NULL",
    "CREATE TABLE ledger_answers (question TEXT PRIMARY KEY, value TEXT NOT NULL, release TEXT NOT NULL)",
    "CREATE TABLE ledger_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
    " epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE ledger_questions (principal TEXT NOT NULL, number BIGINT NOT NULL, digest BYTEA NOT NULL,"
    " time BIGINT NOT NULL, first BIGINT NOT NULL, space TEXT, sketch BYTEA, PRIMARY KEY (principal, number))",
    "CREATE UNIQUE INDEX ledger_questions_once ON ledger_questions (principal, digest)",
    "CREATE INDEX ledger_questions_when ON ledger_questions (principal, time, number)",
    "CREATE INDEX ledger_questions_looks ON ledger_questions (principal, first, time)",
    *QUESTIONS,
)
"""`repeated`: not counted in the total again."""

CHUNK = 500  # questions or accounts per statement; every database accepts that many values
PAGE = 2000  # rows read by one statement


def paged(execute: Execute, query: str, values: Sequence[Any] = (), after: int = 0) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends in "number > ? ORDER BY number LIMIT ?" and selects the number first."""
    while rows := execute(query, (*values, after, PAGE)):
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def rows_of(execute: Execute, query: str, values: Sequence[Any], keys: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends in "key IN", for these keys."""
    distinct = sorted(set(keys))
    for start in range(0, len(distinct), CHUNK):
        part = distinct[start : start + CHUNK]
        yield from execute(f"{query} ({', '.join('?' * len(part))})", (*values, *part))


def identity_of(execute: Execute) -> tuple[str, bytes]:
    """A ledger's name and secret; LedgerError if it has none."""
    rows = execute("SELECT id, secret FROM ledger_identity WHERE secret IS NOT NULL", ())
    if len(rows) != 1:
        raise LedgerError("the ledger is damaged: it has no identity; restore it from a backup")
    return str(rows[0][0]), bytes(rows[0][1])


def keyed_digest(secret: bytes, digest: bytes) -> bytes:
    """HMAC-SHA256 of a digest, 32 bytes."""
    return hmac.digest(secret, digest, "sha256")


def check_identity(execute: Execute, identity: str, name: str) -> None:
    """Raise LedgerError unless the ledger at the place `name` has this identity."""
    if not execute("SELECT 1 FROM ledger_identity WHERE id = ?", (identity,)):
        raise LedgerError(f"ledger {name} was replaced while it was in use. Put the first one back, or restart")


class Storage(ABC):
    """A database with serial transactions. SQL uses ? for parameters.

    Args:
        name: for messages, without a password.
        address: URL that is valid from any working directory.
        timeout: seconds to wait for other writers.

    Attributes:
        identity: SQL type of a column that numbers its rows.
        ledger: identity that every connection must find; None before it is known.
        guard: lock under which threads use the connection.
        files: on this machine, written by nothing else.
    """

    identity: ClassVar[str]
    _has_tables: ClassVar[str]
    """Query that returns a row if there is a ledger."""

    def __init__(self, name: str, address: str, timeout: float) -> None:
        self.name, self.address, self.timeout = name, address, timeout
        self.ledger: str | None = None
        self.files: tuple[Path, ...] = ()
        self._start()
        _OPEN.add(self)

    def _start(self) -> None:
        self.guard = threading.RLock()
        self._connection: Any = None

    @abstractmethod
    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Rows as of the last commit."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Execute]:
        """A transaction that is durable when the block ends, and rolled back if it raises."""

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the guard; LedgerError after the timeout."""
        if not self.guard.acquire(timeout=self.timeout):
            raise LedgerError(f"ledger {self.name}: other threads held it for {self.timeout:g} s; raise timeout=")
        try:
            yield
        finally:
            self.guard.release()

    @abstractmethod
    def lock(self, execute: Execute) -> int:
        """In a transaction: keep other writers out until it ends, and return the time, as `now`."""

    @abstractmethod
    def sync(self) -> None:
        """Make everything that was read durable; others may have committed it a moment ago."""

    def version(self, execute: Execute | None = None) -> int | None:
        """Version of the tables; None: there is no ledger yet."""
        rows = execute or self.read
        if not rows(self._has_tables, ()):
            return None
        try:
            return int(rows("SELECT version FROM ledger_schema_version", ())[0][0])
        except (IndexError, TypeError, ValueError):
            raise LedgerError("the ledger is damaged: it has no version; restore it from a backup") from None

    def create(self) -> None:  # noqa: B027
        """Create an empty database, if there is none; InputError if its folder does not exist."""

    @abstractmethod
    def now(self) -> int:
        """Microseconds since 1970, by the clock of this database."""

    @abstractmethod
    def backup(self, path: Path) -> None:
        """Copy everything that was acknowledged to a file, while others go on."""

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self.guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def before_fork(self) -> None:  # noqa: B027
        """In the parent, under the guard: close everything that must not be open in two processes."""

    def after_fork_in_child(self) -> None:
        """Drop the connection without closing it, and make a new guard."""
        self._start()


_OPEN: weakref.WeakSet[Storage] = weakref.WeakSet()
_FORKING = threading.Lock()
_held_for_fork: list[Storage] = []


def never_close(connection: object) -> None:
    """Leak a connection of the parent process: closing it would drop its locks or end its session."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _FORKING.acquire()
    for storage in sorted(_OPEN, key=id):
        storage.guard.acquire()
        _held_for_fork.append(storage)
        storage.before_fork()


def _in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop().guard.release()
    _FORKING.release()


def _in_child() -> None:
    while _held_for_fork:
        _held_for_fork.pop().after_fork_in_child()
    _FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
