"""Connections over a fork: no thread is inside the database while a process forks, and the child opens its own.

SQLite must not even be open: a child takes over SQLite's record of locks, but not the locks, so that a parent which
closes the file deletes the log that the child goes on writing. A connection of other code to the same file remains its
owner's duty.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """Something with a connection, used under a lock."""

    guard: threading.RLock

    def before_fork(self) -> None:
        """In the parent, under the lock: close what must not be open in two processes."""

    def forget(self) -> None:
        """In the child: drop the connection without closing it, make a new lock."""


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_FORKING = threading.Lock()
_held: list[Any] = []


def watch(storage: Forkable) -> None:
    """Look after the storage whenever this process forks."""
    _OPEN.add(storage)


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
