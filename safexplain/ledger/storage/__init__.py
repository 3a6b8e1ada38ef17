"""Where a ledger is kept: one protocol, two databases.

`protocol` says what a database must do, `schema` has the tables; `sqlite` and `postgres` do it, with `write_queue` and
`forks` for the processes that share one file or one connection. `open_storage` picks by URL; only the database that is
asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError
from safexplain.ledger.storage.protocol import Storage


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
