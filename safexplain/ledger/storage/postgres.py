"""A ledger in PostgreSQL, for several machines: writers queue at the row of the total, and time is the server's.

Transactions commit without waiting for the log, which releases the locks early. An empty message is then written to the
log and synced with everything before it; only then is the transaction acknowledged, so it survives a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safexplain.errors import ConfigurationError, LedgerError, MissingExtraError
from safexplain.ledger.storage import Execute, Rows, Storage, check_identity, never_close

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError:  # pragma: no cover
    psycopg = None

_FLUSH = "BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, 'safexplain', ''); COMMIT"
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ADVISORY_LOCK = 0x73616665  # held while tables are created


class PostgresStorage(Storage):
    """A server, by a URL as libpq reads it; a connection that the server closed is opened again."""

    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    _has_tables = (  # to_regclass would answer from a cache that may be older than the lock
        "SELECT 1 FROM pg_catalog.pg_class"
        " WHERE relname = 'ledger_schema_version' AND pg_catalog.pg_table_is_visible(oid)"
    )

    def __init__(self, url: str, timeout: float, clock: Callable[[], int] | None = None) -> None:
        if psycopg is None:
            raise MissingExtraError(
                'a ledger in PostgreSQL needs psycopg; install the extra: pip install "safexplain[postgres]"'
            )
        self._clock = clock
        super().__init__(_without_password(url), url, timeout)

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """See Storage."""
        with self.guard, self._as_ledger_errors():
            return self._run_first(sql, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """See Storage."""
        with self._exclusive(), self._as_ledger_errors():
            self._run_first(
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
                connection.close()  # its state is unknown; the next use opens another
                if not isinstance(error, psycopg.Error):
                    raise
                raise LedgerError(
                    f"ledger {self.name}: the server failed during a commit, so the charge may or may not be"
                    f" recorded; check charges() ({str(error).strip()})"
                ) from error

    def version(self, execute: Execute | None = None) -> int | None:
        """See Storage; in a transaction, others wait until it ends."""
        if execute is not None:
            execute("SELECT pg_advisory_xact_lock(?)", (_ADVISORY_LOCK,))
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
        with self.guard, self._as_ledger_errors():
            try:
                self._run_first(_FLUSH)
            except BaseException:
                self.close()
                raise

    def _run_first(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run the first statement of a transaction; try once more if the connection was cut meanwhile."""
        fresh = self._connection is None or self._connection.closed
        try:
            return _run(self._open(), sql, parameters)
        except psycopg.OperationalError:
            if fresh or not self._connection.closed:
                raise
            return _run(self._open(), sql, parameters)

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(self.address, autocommit=True, **_timeouts(self.address, self.timeout))
            try:
                if self.ledger is not None:
                    check_identity(partial(_run, connection), self.ledger, self.name)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextmanager
    def _as_ledger_errors(self) -> Iterator[None]:
        """Raise errors of the database as LedgerErrors with advice."""
        try:
            yield
        except psycopg.Error as error:
            raise LedgerError(
                f"ledger {self.name} cannot be used: {str(error).strip()}. If others hold a lock, raise timeout=;"
                " otherwise check the URL, the server and this user's rights"
            ) from error

    def backup(self, path: Path) -> None:
        """See Storage."""
        raise ConfigurationError("backup() is for SQLite; for PostgreSQL use the server's tools, such as pg_dump")

    def after_fork_in_child(self) -> None:
        """See Storage."""
        if self._connection is not None:
            never_close(self._connection)
        super().after_fork_in_child()


def _run(connection: Any, statement: str, parameters: Sequence[Any] = ()) -> Rows:
    cursor = connection.execute(statement.replace("?", "%s"), parameters or None)
    return cursor.fetchall() if cursor.description else []


def _timeouts(url: str, timeout: float) -> dict[str, Any]:
    """Options by which libpq notices that a server vanished, unless the URL sets them."""
    options = {
        "connect_timeout": max(1, round(timeout)),
        "tcp_user_timeout": max(1000, round(1000 * timeout)),
        "keepalives_idle": max(1, round(timeout)),
        "keepalives_interval": 2,
        "keepalives_count": 3,
    }
    given = conninfo_to_dict(url)
    return {name: value for name, value in options.items() if name == "connect_timeout" or name not in given}


def _without_password(url: str) -> str:
    try:
        return str(make_conninfo(**{k: v for k, v in conninfo_to_dict(url).items() if "password" not in k}))
    except psycopg.Error:
        return "in PostgreSQL"
