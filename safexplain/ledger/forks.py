"""Connections over a fork: no thread is inside the database while a process forks, and the child opens its own."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """Something with a connection, used under a lock."""

    lock: threading.RLock

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
        storage.lock.acquire()
        _held.append(storage)


def _in_parent() -> None:
    while _held:
        _held.pop().lock.release()
    _FORKING.release()


def _in_child() -> None:
    while _held:
        _held.pop().forget()
    _FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
