"""Errors of SQLite, said so that one knows what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from safexplain.errors import LedgerError

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
