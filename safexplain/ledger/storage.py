"""The database of a ledger: its tables, what a database must do (`Storage`), and SQLite and PostgreSQL.

Writers commit without waiting for the disk, let the next one in, and then wait for one sync of every earlier commit.
"""

from __future__ import annotations

import ctypes
import hmac
import logging
import os
import random
import shlex
import sqlite3
import stat
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, InputError, LedgerError, MissingExtraError

try:
    import fcntl
except ImportError:  # on Windows, SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]

_logger = logging.getLogger("safexplain.ledger")

Rows = list[tuple[Any, ...]]
Execute = Callable[[str, Sequence[Any]], Rows]

VERSION = 8
"""Version of the tables."""

QUESTIONS = (
    "CREATE TABLE ledger_services (name TEXT PRIMARY KEY, limits TEXT NOT NULL)",
    "CREATE TABLE ledger_question_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
    " questions BIGINT NOT NULL, note TEXT NOT NULL)",
)
"""Tables of services."""

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
"""Sums are whole numbers as text, as they may exceed 64 bits. The account "" is that of all principals together. A
question is a near-duplicate of the one whose number is `first`."""

CHUNK = 500  # questions or accounts per statement; every database accepts that many values
PAGE = 2000  # rows read by one statement


def paged(execute: Execute, query: str, values: Sequence[Any] = (), after: int = 0) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends in "number > ? ORDER BY number LIMIT ?" and selects it first."""
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
    """HMAC-SHA256 of a question's digest, 32 bytes."""
    return hmac.digest(secret, digest, "sha256")


class Storage(ABC):
    """A database with serial transactions. SQL uses ? for parameters.

    Args:
        name: for messages, without a password.
        address: URL that is valid from any working directory.
        timeout: seconds to wait for other writers.
        clock: microseconds since 1970; None: that of the database.
    """

    identity: ClassVar[str]
    """SQL type of a column that numbers its rows."""
    _has_tables: ClassVar[str]  # query that returns a row if there is a ledger
    _errors: tuple[type[Exception], ...]  # raised as LedgerErrors, with `_advice`
    _advice: ClassVar[str]

    def __init__(self, name: str, address: str, timeout: float, clock: Callable[[], int] | None) -> None:
        self.name, self.address, self.timeout, self._clock = name, address, timeout, clock
        self.ledger: str | None = None  # identity that every connection must find, once it is known
        self.files: tuple[Path, ...] = ()  # on this machine, written by nothing else
        self._start()
        _OPEN.add(self)

    def _start(self) -> None:
        self.guard = threading.RLock()  # held by the thread that uses the connection
        self._connection: Any = None

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Rows as of the last commit."""
        with self.guard, self._as_ledger_errors():
            return self._run(sql, parameters)

    @abstractmethod
    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Rows of a statement outside any transaction."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Execute]:
        """A transaction, durable when the block ends."""

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self.guard.acquire(timeout=self.timeout):
            raise LedgerError(f"ledger {self.name}: other threads held it for {self.timeout:g} s; raise timeout=")
        try:
            yield
        finally:
            self.guard.release()

    @contextmanager
    def _as_ledger_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise LedgerError(f"ledger {self.name} cannot be used: {str(error).strip()}. {self._advice}") from error

    def _check_identity(self, execute: Execute) -> None:
        if self.ledger and not execute("SELECT 1 FROM ledger_identity WHERE id = ?", (self.ledger,)):
            raise LedgerError(
                f"ledger {self.name} was replaced while it was in use. Put the first one back, or restart"
            )

    @abstractmethod
    def lock(self, execute: Execute) -> int:
        """In a transaction: keep other writers out until it ends, and return the time."""

    @abstractmethod
    def sync(self) -> None:
        """Make everything that was read durable."""

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
        """Create an empty database, if there is none."""

    @abstractmethod
    def now(self) -> int:
        """Microseconds since 1970."""

    @abstractmethod
    def backup(self, path: Path) -> None:
        """Copy everything that was acknowledged to a file."""

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self.guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def before_fork(self) -> None:  # noqa: B027
        """Close everything that must not be open in two processes."""

    def after_fork_in_child(self) -> None:
        """Drop the connection without closing it, and make a new guard."""
        self._start()


_OPEN: weakref.WeakSet[Storage] = weakref.WeakSet()
_FORKING = threading.Lock()
_held_for_fork: list[Storage] = []


def _before() -> None:
    _FORKING.acquire()
    for storage in sorted(_OPEN, key=id):
        storage.guard.acquire()
        _held_for_fork.append(storage)
        storage.before_fork()


def _after(*, in_child: bool) -> None:
    while _held_for_fork:
        storage = _held_for_fork.pop()
        if in_child:
            storage.after_fork_in_child()
        else:
            storage.guard.release()
    _FORKING.release()


# A child inherits SQLite's record of locks but not the locks: a parent that closes the file deletes the child's log.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=partial(_after, in_child=False), after_in_child=partial(_after, in_child=True)
    )


def steady() -> int:
    """Nanoseconds since a fixed point in the past."""
    with_suspension: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if with_suspension is None else time.clock_gettime_ns(with_suspension)


def anchored_clock(wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = steady) -> Callable[[], int]:
    """A clock (microseconds) that starts at the wall clock, then follows a steady one (nanoseconds)."""
    anchor = wall() - steady()
    return lambda: (anchor + steady()) // 1000


PROCESS_CLOCK = anchored_clock()  # one anchor for all ledgers of a process


def _sync_file(file: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync leaves it in the drive's cache
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        getattr(os, "fdatasync", os.fsync)(file)


def _is_same_file(path: Path, file: os.stat_result) -> bool:
    """Whether the path still leads to this file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), file)
    return False


def check_folder(folder: Path) -> None:
    """Raise LedgerError if every user may delete files in the folder."""
    mode = folder.stat().st_mode
    if fcntl is not None and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise LedgerError(
            "expected the ledger in a folder that only its owner or group can write to, found mode"
            f" {stat.S_IMODE(mode):04o}, so anybody can replace the ledger: chmod o-w {shlex.quote(str(folder))}"
        )


def make_private(path: Path) -> bool:
    """Set a file's mode to 0600; return whether others had access to it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"expected a file at {path}, found a folder, a link or a device; choose another path")
    if fcntl is None:
        return False
    if found.st_uid != (user := os.geteuid()):
        take = "rm" if path.name.endswith("-queue") else f"chown {user}"
        raise LedgerError(
            f"expected {path} to belong to the user of this process (uid {user}), found uid {found.st_uid}. Run this"
            f" process as that user (sudo -u '#{found.st_uid}' ...) or, if you trust that user, take the file over:"
            f" sudo {take} {shlex.quote(str(path))}"
        )
    if stat.S_IMODE(found.st_mode) != 0o600:
        with suppress(FileNotFoundError):  # another process that closed the ledger may have deleted its log
            path.chmod(0o600)
    return bool(found.st_mode & 0o077)


class _FileQueue:
    """A lock on a file next to the database, because SQLite's own waiting starves some processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self, timeout: float) -> bool:
        if fcntl is None:
            return True
        if self._file is None:
            file = os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                make_private(self.path)
            except BaseException:
                os.close(file)
                raise
            self._file = file
        until = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(random.uniform(1e-4, 6e-4))

    def release(self) -> None:
        if fcntl is not None and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _LocalStorage(Storage):
    """The common part of databases in a file and in memory, with the clock of the process."""

    identity = "INTEGER PRIMARY KEY"
    _has_tables = "SELECT 1 FROM sqlite_master WHERE name = 'ledger_schema_version'"
    _errors = (sqlite3.Error, OSError)
    _advice = (
        "If it is locked, close the other program or raise timeout=; if it is damaged, restore it from a backup;"
        " otherwise check the disk and the permissions of file and folder"
    )

    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        return _run_sqlite(self._open(), sql, parameters)

    def lock(self, execute: Execute) -> int:
        return self.now()

    def now(self) -> int:
        return (self._clock or PROCESS_CLOCK)()

    def backup(self, path: Path) -> None:
        with self.guard, self._as_ledger_errors(), closing(sqlite3.connect(path)) as copy:
            self._open().backup(copy)

    def _open(self) -> Any:
        return self._connection

    @contextmanager
    def _committed(self, connection: sqlite3.Connection) -> Iterator[Execute]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield partial(_run_sqlite, connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


class SqliteStorage(_LocalStorage):
    """A write-ahead log in a file, by its absolute path, and a queue of writers.

    With synchronous = FULL, every writer would wait for every sync; here, each syncs the log after its commit. The
    files have mode 0600 and belong to the user of the process, because a lock on the queue stops every writer, and the
    database holds names and a secret.
    """

    def __init__(self, path: Path, timeout: float, clock: Callable[[], int] | None = None) -> None:
        self.path = path
        super().__init__(str(path), f"sqlite:///{path}", timeout, clock)
        self.files = (path, *map(self._sibling, ("-wal", "-shm", "-queue")))

    def _start(self) -> None:
        super()._start()
        self._queue = _FileQueue(self._sibling("-queue"))
        self._file: os.stat_result | None = None
        self._log: tuple[int, os.stat_result] | None = None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        until = time.monotonic() + self.timeout
        with self._exclusive(), self._as_ledger_errors():
            connection = self._open()
            if not self._queue.acquire(until - time.monotonic()):
                raise LedgerError(f"ledger {self.name}: other processes held it for {self.timeout:g} s")
            try:
                with self._committed(connection) as execute:
                    yield execute
            finally:
                self._queue.release()
        self.sync()

    def sync(self) -> None:
        """See Storage."""
        with self._as_ledger_errors():
            with self.guard:
                self._open()
                if self._log is None:
                    log = os.open(self._sibling("-wal"), os.O_RDWR if fcntl is None else os.O_RDONLY)
                    self._log = log, os.stat(self._sibling("-wal"))
                opened = self._log
                log = os.dup(opened[0])  # another thread may close it meanwhile
            try:
                _sync_file(log)
            finally:
                os.close(log)
            if not _is_same_file(self._sibling("-wal"), opened[1]):
                with self.guard:  # unless this process closed it, which deletes the log
                    lost = self._log is opened
                if lost:
                    raise LedgerError(
                        f"ledger {self.name}: its log ({self.path.name}-wal) was deleted while in use, so new records"
                        " would be lost. Close the ledger wherever it is open, which saves the log, and restart"
                    )

    def close(self) -> None:
        """See Storage."""
        with self.guard:
            super().close()
            self._queue.close()
            if self._log is not None:
                os.close(self._log[0])
                self._log = None

    def version(self, execute: Execute | None = None) -> int | None:
        """See Storage."""
        return super().version(execute) if self.path.exists() else None

    def create(self) -> None:
        """See Storage."""
        if not self.path.parent.is_dir():
            raise InputError(f"there is no folder {self.path.parent} for the ledger; create it, or choose another")
        with self._as_ledger_errors():
            check_folder(self.path.parent)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))

    def _sibling(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def _open(self) -> Any:
        if self._connection is None:
            if not self.path.exists():
                raise LedgerError(f"ledger {self.name} no longer exists; put it back, or restore it from a backup")
            self._make_private()
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=self.timeout, isolation_level=None,
                check_same_thread=False, cached_statements=64,
            )  # fmt: skip
            try:
                self._set_up(connection)
                self._file = os.stat(self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        elif self._file is not None and not _is_same_file(self.path, self._file):
            raise LedgerError(
                f"ledger {self.name} was deleted or replaced while it was in use. Put it back or restore it from a"
                " backup, and restart"
            )
        return self._connection

    def _make_private(self) -> None:
        """Keep other users from all files, which older versions did not."""
        check_folder(self.path.parent)
        if [make_private(file) for file in self.files].count(True):
            self._sibling("-queue").unlink(missing_ok=True)  # another user may hold a lock on the old one
            _logger.warning("other users could read the ledger %s; its files now have mode 0600", self.name)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "ledger_schema_version" not in tables:
            raise LedgerError(f"expected a ledger in {self.name}, found another SQLite database; choose another file")
        self._check_identity(partial(_run_sqlite, connection))
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._queue.acquire(self.timeout)  # SQLite does not wait here
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            finally:
                self._queue.release()
        connection.execute("PRAGMA synchronous = NORMAL")  # durable, see `sync`
        connection.execute("PRAGMA wal_autocheckpoint = 4000")

    def before_fork(self) -> None:
        """See Storage; both processes open it again on the next use."""
        self.close()


class MemoryStorage(_LocalStorage):
    """A database in memory; a forked child continues with a copy."""

    def __init__(self, timeout: float, clock: Callable[[], int] | None = None) -> None:
        super().__init__("in memory", "memory:", timeout, clock)
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage; it is not durable."""
        with self._exclusive(), self._as_ledger_errors(), self._committed(self._open()) as execute:
            yield execute

    def sync(self) -> None:
        """See Storage; there is no disk."""

    def close(self) -> None:
        """Do nothing: the content lives as long as this object."""

    def after_fork_in_child(self) -> None:
        """Keep the copy, under a new guard."""
        self.guard = threading.RLock()


def _run_sqlite(connection: sqlite3.Connection, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    return connection.execute(statement, parameters).fetchall()


_FLUSH = "BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, 'safexplain', ''); COMMIT"
"""Writes an empty message to the log and syncs it with everything before it."""

_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ADVISORY_LOCK = 0x73616665  # held while tables are created


class PostgresStorage(Storage):
    """A server for several machines, by a URL as libpq reads it; writers queue at the row of the total.

    Time is the server's. A connection that the server closed is opened again.
    """

    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    _has_tables = (  # to_regclass would answer from a cache that may be older than the lock
        "SELECT 1 FROM pg_catalog.pg_class"
        " WHERE relname = 'ledger_schema_version' AND pg_catalog.pg_table_is_visible(oid)"
    )

    _advice = "If others hold a lock, raise timeout=; otherwise check the URL, the server and this user's rights"

    def __init__(self, url: str, timeout: float, clock: Callable[[], int] | None = None) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict, make_conninfo
        except ImportError:
            raise MissingExtraError(
                'a ledger in PostgreSQL needs psycopg; install the extra: pip install "safexplain[postgres]"'
            ) from None
        self._library: Any = psycopg
        self._errors = (psycopg.Error,)
        try:
            self._given: dict[str, Any] = conninfo_to_dict(url)
            name = str(make_conninfo(**{k: v for k, v in self._given.items() if "password" not in k}))
        except psycopg.Error:
            self._given, name = {}, "in PostgreSQL"
        super().__init__(name, url, timeout, clock)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        with self._exclusive(), self._as_ledger_errors():
            self._run(
                f"BEGIN; SET LOCAL lock_timeout = {max(1, int(self.timeout * 1000))};"
                " SET LOCAL synchronous_commit = off; SET LOCAL transaction_isolation = 'read committed'"
            )
            connection = self._connection
            try:
                yield partial(_run_postgres, connection)
            except BaseException:
                with suppress(*self._errors):
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute(f"COMMIT; {_FLUSH}")
            except BaseException as error:
                connection.close()  # its state is unknown; the next use opens another
                if not isinstance(error, self._errors):
                    raise
                raise LedgerError(
                    f"ledger {self.name}: the server failed during a commit, so the charge may be recorded; check"
                    f" charges() ({str(error).strip()})"
                ) from error

    def version(self, execute: Execute | None = None) -> int | None:
        """See Storage; in a transaction, others wait until it ends."""
        if execute is not None:
            execute("SELECT pg_advisory_xact_lock(?)", (_ADVISORY_LOCK,))
        return super().version(execute)

    def now(self) -> int:
        """See Storage."""
        if self._clock:
            return self._clock()
        return int(self.read(f"SELECT {_CLOCK}")[0][0])

    def lock(self, execute: Execute) -> int:
        """See Storage."""
        rows = execute(f"SELECT {_CLOCK} FROM ledger_accounts WHERE principal = '' FOR UPDATE", ())
        return self._clock() if self._clock else int(rows[0][0]) if rows else 0

    def sync(self) -> None:
        """See Storage."""
        with self.guard, self._as_ledger_errors():
            try:
                self._run(_FLUSH)
            except BaseException:
                self.close()
                raise

    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run the first statement of a transaction; try once more if the connection was cut meanwhile."""
        fresh = self._connection is None or self._connection.closed
        try:
            return _run_postgres(self._open(), sql, parameters)
        except self._library.OperationalError:
            if fresh or not self._connection.closed:
                raise
            return _run_postgres(self._open(), sql, parameters)

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            connection = self._library.connect(self.address, autocommit=True, **self._timeouts())
            try:
                self._check_identity(partial(_run_postgres, connection))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _timeouts(self) -> dict[str, Any]:
        """Options by which libpq notices that a server vanished."""
        seconds = max(1, round(self.timeout))
        unless_given = {
            "tcp_user_timeout": max(1000, round(1000 * self.timeout)),
            "keepalives_idle": seconds,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        return {"connect_timeout": seconds} | {k: v for k, v in unless_given.items() if k not in self._given}

    def backup(self, path: Path) -> None:
        """See Storage."""
        raise ConfigurationError("backup() is for SQLite; for PostgreSQL use the server's tools, such as pg_dump")

    def after_fork_in_child(self) -> None:
        """See Storage; closing the connection would end the parent's session."""
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        super().after_fork_in_child()


def _run_postgres(connection: Any, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    cursor = connection.execute(statement.replace("?", "%s"), parameters or None)
    return cursor.fetchall() if cursor.description else []


def open_storage(url: str, timeout: float, clock: Callable[[], int] | None = None) -> Storage:
    """The storage of a URL, not connected yet; arguments as for `Ledger`."""
    timeout = check_number("timeout", timeout, above=0.0)
    scheme, separator, rest = str(url).partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        return PostgresStorage(str(url), timeout, clock)
    if separator and scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
        if "?" in rest:
            raise ConfigurationError(f"url: expected no options after the file's name, got {url!r}")
        return SqliteStorage(Path(rest[1:]).absolute(), timeout, clock)
    raise ConfigurationError(
        f'url: expected "sqlite:///file.db" or "postgresql://user@host/database", got {url!r}; a ledger in memory would'
        " forget its charges"
    )
