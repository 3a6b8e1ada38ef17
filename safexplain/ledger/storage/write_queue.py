"""A queue for the processes that write one file: SQLite's own waiting polls at growing intervals and starves some."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows: SQLite's own waiting has to do)
    fcntl = None  # type: ignore[assignment]


class FileQueue:
    """A lock on a file beside the database; the kernel releases it when its holder dies.

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
