"""Where a ledger is kept: one small protocol, two databases."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from safexplain.ledger.storage.schema import Execute

Rows = list[tuple[Any, ...]]


class Storage(Protocol):
    """A database that runs transactions one after another. SQL has ? for parameters.

    Attributes:
        name: to show in messages, without a password.
        identity: type of a column that numbers its rows.
        ledger: identity of the ledger that every connection must lead to; None before it is known.
        files: on this machine, which nothing else may write.
    """

    name: str
    identity: str
    ledger: str | None

    @property
    def files(self) -> tuple[Path, ...]:
        """See the class."""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Rows as of the last commit."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """All or nothing, durable once the block is left; rolled back if it raises.

        Raises:
            LedgerError: the database cannot be written, or others did not let go of it within the timeout.
        """

    def lock(self, execute: Execute) -> int:
        """Inside a transaction: keep other writers out until it ends; the time, as `now`."""

    def sync(self) -> None:
        """Make durable what was read; others may have committed it a moment ago."""

    def version(self, execute: Execute | None = None) -> int | None:
        """Version of the schema found; None: there is no ledger yet."""

    def exists(self) -> bool:
        """False where there is no database to connect to; `make` makes one."""

    def make(self) -> None:
        """Make an empty database, if there is none.

        Raises:
            InputError: there is no place for it.
            LedgerError: it cannot be made.
        """

    def now(self) -> int:
        """Microseconds since 1970 by the clock that this database goes by."""

    @property
    def address(self) -> str:
        """URL that names it from any working directory."""

    def backup(self, path: Path) -> None:
        """Write a copy of everything that was acknowledged, while others go on.

        Raises:
            ConfigurationError: the database has tools of its own for that.
            LedgerError: it cannot be written.
        """

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
