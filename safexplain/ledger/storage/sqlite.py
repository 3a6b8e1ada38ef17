"""A ledger in an SQLite file: write-ahead log, a queue of writers, one sync for the commits of several processes.

With synchronous = FULL, every writer would wait for every sync. Here it is NORMAL: a writer commits, lets the next one
in, syncs the log, and only then acknowledges. A synced log holds every earlier commit, so acknowledged charges survive
a power failure as they do under FULL.

The files have mode 0600 and belong to the user of the process, also for root, because a lock on the queue stops every
writer, and the database holds names and a secret. Windows has no such modes, so nothing is checked there.
"""

from __future__ import annotations

import logging
import os
import random
import shlex
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safexplain.errors import InputError, LedgerError
from safexplain.ledger.storage import Execute, Rows, Storage, check_identity

try:
    import fcntl
except ImportError:  # on Windows, SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]

_logger = logging.getLogger("safexplain.ledger")

_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # which also counts while suspended


def steady() -> int:
    """Nanoseconds since a fixed point in the past."""
    return time.monotonic_ns() if _STEADY is None else time.clock_gettime_ns(_STEADY)


def anchored_clock(wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = steady) -> Callable[[], int]:
    """A clock of microseconds since 1970 that starts at the wall clock and then follows a steady one (nanoseconds)."""
    anchor = wall() - steady()
    return lambda: (anchor + steady()) // 1000


PROCESS_CLOCK = anchored_clock()  # one anchor for all ledgers of a process


def _sync_file(file: int) -> None:
    """Write the system's buffers of an open file to the disk."""
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
    """Raise LedgerError if every user of the machine may rename and delete files in the folder."""
    mode = folder.stat().st_mode
    if fcntl is not None and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise LedgerError(
            "expected the ledger in a folder that only its owner or group can write to, found mode"
            f" {stat.S_IMODE(mode):04o}, so anybody can replace the ledger: chmod o-w {shlex.quote(str(folder))}"
        )


def make_private(path: Path) -> bool:
    """Set the mode of an existing file to 0600; return whether other users had access to it before."""
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


@contextmanager
def as_ledger_errors(name: str) -> Iterator[None]:
    """Raise errors of the database and its files as LedgerErrors with advice."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(
            f"ledger {name} cannot be used: {error}. If it is locked, close the other program or raise timeout=; if it"
            " is damaged, restore it from a backup; otherwise check the disk and the permissions of file and folder"
        ) from error


class FileQueue:
    """A lock on a file next to the database, because SQLite's own waiting starves some processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self, timeout: float) -> bool:
        """Whether the lock was acquired within this many seconds."""
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
        """Release the lock."""
        if fcntl is not None and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; in a forked child, this keeps the parent's lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class LocalStorage(Storage):
    """The common part of databases in a file and in memory; the default clock is that of the process."""

    identity = "INTEGER PRIMARY KEY"
    _has_tables = "SELECT 1 FROM sqlite_master WHERE name = 'ledger_schema_version'"

    def __init__(self, name: str, address: str, timeout: float, clock: Callable[[], int] | None) -> None:
        self._clock = clock or PROCESS_CLOCK
        super().__init__(name, address, timeout)

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """See Storage."""
        with self.guard, as_ledger_errors(self.name):
            return _run(self._open(), sql, parameters)

    def lock(self, execute: Execute) -> int:
        """See Storage; other writers are out already."""
        return self._clock()

    def now(self) -> int:
        """See Storage."""
        return self._clock()

    def backup(self, path: Path) -> None:
        """See Storage; SQLite copies page by page, and starts again if others write."""
        with self.guard, as_ledger_errors(self.name), closing(sqlite3.connect(path)) as copy:
            self._open().backup(copy)

    def _open(self) -> Any:
        return self._connection

    @contextmanager
    def _committed(self, connection: sqlite3.Connection) -> Iterator[Execute]:
        """A transaction, not durable yet."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield partial(_run, connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


class SqliteStorage(LocalStorage):
    """A database in a file, by its absolute path."""

    def __init__(self, path: Path, timeout: float, clock: Callable[[], int] | None = None) -> None:
        self.path = path
        super().__init__(str(path), f"sqlite:///{path}", timeout, clock)
        self.files = (path, *map(self._sibling, ("-wal", "-shm", "-queue")))

    def _start(self) -> None:
        super()._start()
        self._queue = FileQueue(self._sibling("-queue"))
        self._file: os.stat_result | None = None
        self._log: tuple[int, os.stat_result] | None = None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        until = time.monotonic() + self.timeout
        with self._exclusive(), as_ledger_errors(self.name):
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
        with as_ledger_errors(self.name):
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
                        " would be lost with this process. Close the ledger wherever it is open, which writes the"
                        " log's content into the database, and restart"
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
        with as_ledger_errors(self.name):
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
                f"ledger {self.name} was deleted or replaced while it was in use, so nothing more is recorded in it."
                " Put it back or restore it from a backup, and restart"
            )
        return self._connection

    def _make_private(self) -> None:
        """Keep other users from all files; older versions let them read everything."""
        check_folder(self.path.parent)
        if [make_private(file) for file in self.files].count(True):
            self._sibling("-queue").unlink(missing_ok=True)  # another user may hold a lock on the old one
            _logger.warning("other users could read the ledger %s; its files now have mode 0600", self.name)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "ledger_schema_version" not in tables:
            raise LedgerError(f"expected a ledger in {self.name}, found another SQLite database; choose another file")
        if self.ledger is not None:
            check_identity(partial(_run, connection), self.ledger, self.name)
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._queue.acquire(self.timeout)  # SQLite does not wait here
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            finally:
                self._queue.release()
        connection.execute("PRAGMA synchronous = NORMAL")  # the module's docstring says why this is durable
        connection.execute("PRAGMA wal_autocheckpoint = 4000")

    def before_fork(self) -> None:
        """See Storage; both processes open it again on the next use."""
        self.close()


class MemoryStorage(LocalStorage):
    """A database in memory that ends with the process; a forked child continues with a copy."""

    def __init__(self, timeout: float, clock: Callable[[], int] | None = None) -> None:
        super().__init__("in memory", "memory:", timeout, clock)
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage; it is not durable."""
        with self._exclusive(), as_ledger_errors(self.name), self._committed(self._open()) as execute:
            yield execute

    def sync(self) -> None:
        """See Storage; there is no disk."""

    def close(self) -> None:
        """Do nothing: the content lives as long as this object."""

    def after_fork_in_child(self) -> None:
        """Keep the copy, under a new guard."""
        self.guard = threading.RLock()


def _run(connection: sqlite3.Connection, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    return connection.execute(statement, parameters).fetchall()
