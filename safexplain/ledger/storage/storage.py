"""Where a ledger is kept: one small protocol, two databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError
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


def open_storage(url: str, timeout: float, clock: Callable[[], int] | None = None) -> Storage:
    """The storage that a URL names; nothing is connected yet.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute.db" or "postgresql://user@host/database".
        timeout: seconds to wait for others.
        clock: microseconds since 1970, instead of the usual clock.

    Raises:
        ConfigurationError: the URL is of another kind, or the timeout is not a number of seconds.
        MissingExtraError: PostgreSQL without the extra.
    """
    timeout = check_number("timeout", timeout, above=0.0)
    scheme, separator, rest = str(url).partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from safexplain.ledger.storage.postgres import PostgresStorage

        return PostgresStorage(str(url), timeout, clock)
    if separator and scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
        from safexplain.ledger.storage.sqlite import SqliteStorage

        if "?" in rest:
            raise ConfigurationError(f"url: options after ? are not known, got {url!r}; name the file alone")
        return SqliteStorage(Path(rest[1:]).absolute(), timeout, clock)
    raise ConfigurationError(
        f'url: expected "sqlite:///file.db" or "postgresql://user@host/database", got {url!r}; a ledger in memory would'
        " forget what was spent"
    )
