"""A ledger in an SQLite file: write-ahead log, writers in a queue, commits of several processes synced together.

SQLite syncs its log while it holds the lock on writing (synchronous = FULL), so that everybody waits for every sync.
Here it does not (NORMAL); whoever committed lets the next one in, then syncs the log, and only then is the transaction
acknowledged. The kernel serves syncs that wait together by one, and a synced log holds every commit before, so what was
acknowledged survives a power failure as under FULL.

Time is read once from the wall clock and then counted by a clock that only goes forward. Time of a ledger is the later
of this and of the last time that it recorded, so a clock that is set back never opens a period again. A wall clock that
is set forward goes unnoticed by running processes, but one that starts then opens the period of that date early; the
ledger stays at that time until the date is reached, and renews nothing before.

Whoever deletes or replaces an open file leaves the process that holds it alone with what it goes on writing, while
everybody else counts from another file; so it is checked that the file at the path is still the one that is open.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safexplain.errors import InputError, LedgerError
from safexplain.ledger.storage import Rows, watch
from safexplain.ledger.storage.schema import Execute, check_identity, version_of

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows: SQLite's own waiting has to do)
    fcntl = None  # type: ignore[assignment]

_STEADY = getattr(time, "CLOCK_BOOTTIME", None) or time.CLOCK_MONOTONIC  # the first also counts while suspended


def steady() -> int:
    """Nanoseconds since some point in the past."""
    return time.clock_gettime_ns(_STEADY)


@dataclass
class AnchoredClock:
    """Microseconds since 1970: the wall clock at the first call, a steady clock from there.

    Args:
        wall: nanoseconds since 1970.
        steady: nanoseconds that only go forward.
    """

    wall: Callable[[], int] = time.time_ns
    steady: Callable[[], int] = steady
    _anchor: int | None = field(default=None, init=False)

    def __call__(self) -> int:
        """Now."""
        if self._anchor is None:
            self._anchor = self.wall() - self.steady()
        return (self._anchor + self.steady()) // 1000


PROCESS_CLOCK = AnchoredClock()
"""One anchor for all ledgers of a process."""


class OpenFile:
    """A file, as it is when this is made.

    Args:
        path: of the file, which is there.

    Raises:
        OSError: it is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)

    def stands(self) -> bool:
        """Whether the path still leads to it."""
        try:
            return _identity(self.path) == self._identity
        except FileNotFoundError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


ADVICE = {
    sqlite3.SQLITE_BUSY: "is locked by another program; close it, or raise timeout=",
    sqlite3.SQLITE_LOCKED: "is locked by another program; close it, or raise timeout=",
    sqlite3.SQLITE_READONLY: "cannot be written: the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: look at the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "cannot be opened: look at the permissions of the file and of its folder",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; name another file, or restore it from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "could not be read or written: the disk reported an error",
}


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of the database, and of the files beside it, into LedgerErrors.

    Args:
        name: of the ledger.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        advice = ADVICE.get(code & 0xFF if code is not None else -1, "could not be used")
        raise LedgerError(f"ledger {name} {advice} ({error})") from error
    except OSError as error:
        raise LedgerError(f"ledger {name}: {error}; look at the permissions there") from error


class FileQueue:
    """The processes that write one database, in turn: a lock on a file beside it.

    The kernel releases the lock when its holder dies. SQLite's own waiting polls at growing intervals and starves some.

    Args:
        path: of the file, which stays empty.
        like: file whose permissions it gets, as whoever may write that one waits here.
    """

    def __init__(self, path: Path, like: Path) -> None:
        self.path = path
        self.like = like
        self._file: int | None = None

    def acquire(self, timeout: float) -> bool:
        """Whether the lock was had within so many seconds."""
        if fcntl is None:  # pragma: no cover
            return True
        if self._file is None:
            self._file = self._open()
        until = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(random.uniform(1e-4, 6e-4))

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            file, owner = os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), os.stat(self.like)
            with suppress(PermissionError):  # somebody else made it meanwhile
                os.fchmod(file, owner.st_mode & 0o666)
                os.fchown(file, owner.st_uid, owner.st_gid)
            return file

    def release(self) -> None:
        """Let the next one in."""
        if fcntl is not None and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; in a forked child this leaves the parent's lock alone."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class SqliteStorage:
    """One connection a process, shared by its threads.

    Args:
        path: absolute, of the file.
        timeout: seconds to wait for other writers.
        clock: microseconds since 1970; None for the clock of the process.
    """

    identity = "INTEGER PRIMARY KEY"

    def __init__(self, path: Path, timeout: float, clock: Callable[[], int] | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.timeout = timeout
        self.ledger: str | None = None
        self._clock = clock or PROCESS_CLOCK
        self._start()
        watch(self)

    def _start(self) -> None:
        self.guard = threading.RLock()
        self._queue = FileQueue(self._beside("-queue"), like=self.path)
        self._connection: sqlite3.Connection | None = None
        self._file: OpenFile | None = None
        self._log: int | None = None
        self._log_file: OpenFile | None = None

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """See Storage."""
        with self.guard, explained(self.name):
            return _run(self._open(), sql, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        until = time.monotonic() + self.timeout
        if not self.guard.acquire(timeout=self.timeout):
            raise LedgerError(f"ledger {self.name}: other threads held it for {self.timeout:g} s; raise timeout=")
        try:
            with explained(self.name):
                connection = self._open()
                if not self._queue.acquire(until - time.monotonic()):
                    raise LedgerError(f"ledger {self.name}: other processes held it for {self.timeout:g} s")
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    try:
                        yield partial(_run, connection)
                        connection.execute("COMMIT")
                    except BaseException:
                        with suppress(sqlite3.Error):
                            connection.execute("ROLLBACK")
                        raise
                finally:
                    self._queue.release()
        finally:
            self.guard.release()
        self.sync()

    def lock(self, execute: Execute) -> int:
        """See Storage; nobody else writes anyway."""
        return self._clock()

    def sync(self) -> None:
        """See Storage; after it every commit that was seen is durable."""
        with explained(self.name):
            with self.guard:
                self._open()
                if self._log is None or self._log_file is None:
                    self._log = os.open(self._beside("-wal"), os.O_RDONLY | os.O_CLOEXEC)
                    self._log_file = OpenFile(self._beside("-wal"))
                log, file = os.dup(self._log), self._log_file  # another thread may close the ledger meanwhile
            try:
                getattr(os, "fdatasync", os.fsync)(log)
            finally:
                os.close(log)
            if not file.stands():
                with self.guard:  # closing empties the log into the database and deletes it
                    lost = self._log_file is file
                if lost:
                    raise LedgerError(
                        f"ledger {self.name}: its log ({file.path.name}) was deleted while it was in use, and what is"
                        " recorded would be lost with this process. Close the ledger wherever it is open, which writes"
                        " the log's content into the database, and start again"
                    )

    def version(self, execute: Execute | None = None) -> int | None:
        """See Storage."""
        rows = execute or self.read
        if not rows("SELECT 1 FROM sqlite_master WHERE name = 'ledger_schema_version'", ()):
            return None
        return version_of(rows("SELECT version FROM ledger_schema_version", ()))

    def now(self) -> int:
        """See Storage."""
        return self._clock()

    def close(self) -> None:
        """See Storage."""
        with self.guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._close_files()

    @property
    def address(self) -> str:
        """See Storage."""
        return f"sqlite:///{self.path}"

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def make(self) -> None:
        """See Storage."""
        if not self.path.parent.is_dir():
            raise InputError(f"there is no folder {self.path.parent} for the ledger; make it, or name another")
        with explained(self.name):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def backup(self, path: Path) -> None:
        """See Storage; SQLite copies page by page and begins again where others write."""
        with self.guard, explained(self.name), closing(sqlite3.connect(path)) as copy:
            self._open().backup(copy)

    @property
    def files(self) -> tuple[Path, ...]:
        """The database and what stands beside it."""
        return self.path, *map(self._beside, ("-wal", "-shm", "-queue"))

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self.path.exists():
                raise LedgerError(f"ledger {self.name} is not there any more; put it back, or restore it from a backup")
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=self.timeout, isolation_level=None,
                check_same_thread=False, cached_statements=64,
            )  # fmt: skip
            try:
                self._set_up(connection)
                self._file = OpenFile(self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        elif self._file is not None and not self._file.stands():
            raise LedgerError(
                f"ledger {self.name} was deleted or replaced while it was in use; nothing more is counted in what is"
                " left of it here. Put it back, or restore it from a backup, and start again"
            )
        return self._connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "ledger_schema_version" not in tables:
            raise LedgerError(f"{self.name} is an SQLite database of something else, not a ledger; name another file")
        if self.ledger is not None:
            check_identity(partial(_run, connection), self.ledger, self.name)
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._queue.acquire(self.timeout)  # SQLite itself does not wait here
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            finally:
                self._queue.release()
        connection.execute("PRAGMA synchronous = NORMAL")  # the module's docstring says why this is durable
        connection.execute("PRAGMA wal_autocheckpoint = 4000")

    def _close_files(self) -> None:
        self._queue.close()
        if self._log is not None:
            os.close(self._log)
            self._log = self._log_file = None

    def before_fork(self) -> None:
        """See Storage; both processes open it again when they need it."""
        self.close()

    def forget(self) -> None:
        """See Storage."""
        self._start()


def _run(connection: sqlite3.Connection, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    return connection.execute(statement, parameters).fetchall()
