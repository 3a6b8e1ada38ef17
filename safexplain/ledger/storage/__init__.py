"""Where a ledger is kept: `Storage` says what a database must do, `schema` has its tables.

`sqlite` and `postgres` are the two databases; `Ledger` picks one by its URL, and only that one is imported.

A storage has one connection a process, which its threads share. No thread is inside the database while a process forks,
and the child opens a connection of its own. SQLite must not even be open: a child takes over SQLite's record of locks,
but not the locks, so that a parent which closes the file deletes the log that the child goes on writing. A connection
of other code to the same file remains its owner's duty.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from safexplain.errors import LedgerError
from safexplain.ledger.storage.schema import Execute

Rows = list[tuple[Any, ...]]


class Storage(ABC):
    """A database that runs transactions one after another; one connection a process, shared by its threads.

    SQL has ? for parameters.

    Args:
        name: to show in messages, without a password.
        address: URL that names it from any working directory.
        timeout: seconds to wait for other writers.

    Attributes:
        identity: type of a column that numbers its rows.
        lasting: whether it outlives the process.
        ledger: identity of the ledger that every connection must lead to; None before it is known.
        guard: the lock under which threads use the connection.
        files: on this machine, which nothing else may write.
    """

    identity: ClassVar[str]
    lasting: ClassVar[bool] = True
    _has_tables: ClassVar[str]
    """Statement with a row where there is a ledger."""

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
        """All or nothing, durable once the block is left; rolled back if it raises.

        Raises:
            LedgerError: the database cannot be written, or others did not let go of it within the timeout.
        """

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The guard, or a LedgerError after the timeout."""
        if not self.guard.acquire(timeout=self.timeout):
            raise LedgerError(f"ledger {self.name}: other threads held it for {self.timeout:g} s; raise timeout=")
        try:
            yield
        finally:
            self.guard.release()

    @abstractmethod
    def lock(self, execute: Execute) -> int:
        """Inside a transaction: keep other writers out until it ends; the time, as `now`."""

    @abstractmethod
    def sync(self) -> None:
        """Make durable what was read; others may have committed it a moment ago."""

    def version(self, execute: Execute | None = None) -> int | None:
        """Version of the schema found; None: there is no ledger yet."""
        rows = execute or self.read
        if not rows(self._has_tables, ()):
            return None
        try:
            return int(rows("SELECT version FROM ledger_schema_version", ())[0][0])
        except (IndexError, TypeError, ValueError):
            raise LedgerError("the ledger is damaged: it has no version; restore it from a backup") from None

    def make(self) -> None:  # noqa: B027
        """Make an empty database, if there is none.

        Raises:
            InputError: there is no place for it.
            LedgerError: it cannot be made.
        """

    @abstractmethod
    def now(self) -> int:
        """Microseconds since 1970 by the clock that this database goes by."""

    @abstractmethod
    def backup(self, path: Path) -> None:
        """Write a copy of everything that was acknowledged, while others go on.

        Raises:
            ConfigurationError: the database has tools of its own for that.
            LedgerError: it cannot be written.
        """

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        with self.guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def before_fork(self) -> None:  # noqa: B027
        """In the parent, under the guard: close what must not be open in two processes."""

    def forget(self) -> None:
        """In the child: drop the connection without closing it, make a new guard."""
        self._start()


_OPEN: weakref.WeakSet[Storage] = weakref.WeakSet()
_FORKING = threading.Lock()
_held: list[Storage] = []


def abandon(connection: object) -> None:
    """Never close a connection that belongs to the parent: that would drop its locks, or end its session."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _FORKING.acquire()
    for storage in sorted(_OPEN, key=id):
        storage.guard.acquire()
        _held.append(storage)
        storage.before_fork()


def _in_parent() -> None:
    while _held:
        _held.pop().guard.release()
    _FORKING.release()


def _in_child() -> None:
    while _held:
        _held.pop().forget()
    _FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
