"""A ledger in PostgreSQL, for several machines: writers queue at the row of the total, time is that of the server.

Every charge locks the row of the total, so a server that syncs its log before it lets go of locks makes everybody wait
for every sync. Therefore transactions commit without waiting for the log, which frees the locks; then a message of no
content is written to the log and synced, together with those of others who wait, and with everything before it. Only
then is a transaction acknowledged, so what was acknowledged survives a crash of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safexplain.errors import ConfigurationError, LedgerError, MissingExtraError
from safexplain.ledger.storage import Rows, Storage, abandon
from safexplain.ledger.storage.schema import Execute, check_identity

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError:  # pragma: no cover
    psycopg = None

_FLUSH = "BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, 'safexplain', ''); COMMIT"
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LEDGER = 0x73616665  # key of the advisory lock under which tables are made


class PostgresStorage(Storage):
    """A server; the connection is opened again when the server closed it.

    Args:
        url: as libpq reads it.
        timeout: seconds to wait for the server and for other writers.
        clock: microseconds since 1970; None for the server's clock.

    Raises:
        MissingExtraError: psycopg is not installed.
    """

    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    _has_tables = (  # to_regclass would answer from a cache that may be older than the lock
        "SELECT 1 FROM pg_catalog.pg_class"
        " WHERE relname = 'ledger_schema_version' AND pg_catalog.pg_table_is_visible(oid)"
    )

    def __init__(self, url: str, timeout: float, clock: Callable[[], int] | None = None) -> None:
        if psycopg is None:
            raise MissingExtraError('a ledger in PostgreSQL needs psycopg: pip install "safexplain[postgres]"')
        self._clock = clock
        super().__init__(_without_password(url), url, timeout)

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """See Storage."""
        with self.guard, self._explained():
            return self._first(sql, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        with self._alone(), self._explained():
            self._first(
                f"BEGIN; SET LOCAL lock_timeout = {max(1, int(self.timeout * 1000))};"
                " SET LOCAL synchronous_commit = off; SET LOCAL transaction_isolation = 'read committed'"
            )
            connection = self._connection
            try:
                yield partial(_run, connection)
            except BaseException:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute(f"COMMIT; {_FLUSH}")
            except BaseException as error:
                connection.close()  # whatever state the session is in, the next use opens another
                if not isinstance(error, psycopg.Error):
                    raise
                raise LedgerError(
                    f"ledger {self.name}: the server failed during a commit, so what was being charged may or may"
                    f" not be recorded; look at charges() ({str(error).strip()})"
                ) from error

    def version(self, execute: Execute | None = None) -> int | None:
        """See Storage; inside a transaction others wait until it ends."""
        if execute is not None:
            execute("SELECT pg_advisory_xact_lock(?)", (_LEDGER,))
        return super().version(execute)

    def now(self) -> int:
        """See Storage."""
        if self._clock:
            return self._clock()
        return int(self.read(f"SELECT {_CLOCK}")[0][0])

    def lock(self, execute: Execute) -> int:
        """See Storage."""
        rows = execute(f"SELECT {_CLOCK} FROM ledger_accounts WHERE principal = '' FOR UPDATE", ())
        return self._clock() if self._clock else int(rows[0][0]) if rows else 0

    def sync(self) -> None:
        """See Storage."""
        with self.guard, self._explained():
            try:
                self._first(_FLUSH)
            except BaseException:
                self.close()
                raise

    def _first(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """A statement with which a transaction begins: on a connection that was cut meanwhile, tried once more."""
        fresh = self._connection is None or self._connection.closed
        try:
            return _run(self._open(), sql, parameters)
        except psycopg.OperationalError:
            if fresh or not self._connection.closed:
                raise
            return _run(self._open(), sql, parameters)

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(self.address, autocommit=True, **_patience(self.address, self.timeout))
            try:
                if self.ledger is not None:
                    check_identity(partial(_run, connection), self.ledger, self.name)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the database into ones that say what to do."""
        try:
            yield
        except psycopg.Error as error:
            raise LedgerError(
                f"ledger {self.name} cannot be used: {str(error).strip()}. If others hold a lock, raise timeout=; else"
                " look at the URL, at the server and at the rights of this user"
            ) from error

    def backup(self, path: Path) -> None:
        """See Storage."""
        raise ConfigurationError("a ledger in PostgreSQL is backed up with the server's tools, such as pg_dump")

    def forget(self) -> None:
        """In a forked child: leave the parent's connection alone, not even close it, and open another when needed."""
        if self._connection is not None:
            abandon(self._connection)
        super().forget()


def _run(connection: Any, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    cursor = connection.execute(statement.replace("?", "%s"), parameters or None)
    return cursor.fetchall() if cursor.description else []


def _patience(url: str, timeout: float) -> dict[str, Any]:
    """Options of libpq by which a server that vanished without a word is noticed, where the URL has none of its own."""
    wait = {
        "connect_timeout": max(1, round(timeout)),
        "tcp_user_timeout": max(1000, round(1000 * timeout)),
        "keepalives_idle": max(1, round(timeout)),
        "keepalives_interval": 2,
        "keepalives_count": 3,
    }
    own = conninfo_to_dict(url)
    return {name: value for name, value in wait.items() if name == "connect_timeout" or name not in own}


def _without_password(url: str) -> str:
    try:
        return str(make_conninfo(**{k: v for k, v in conninfo_to_dict(url).items() if "password" not in k}))
    except psycopg.Error:
        return "in PostgreSQL"
