"""Tables of a ledger, as numbered steps: a database is brought from the step it is at to the last one.

Sums are whole numbers kept as text, as they may have more than 64 bits; `loss` has one for each condition. Times are
microseconds since 1970, UTC. The account "" is that of all principals together; its time is the last that the ledger
saw, and its charges are trainings. Questions are numbered by principal; `first` is the number of the one that a
question is another look at.

A ledger has a random name in its database, so that another one in its place is not taken for it, and a random secret.
Digests of questions are kept under HMAC-SHA256 with that secret, so that a log or an export which holds them cannot be
searched by digesting guesses. The secret does not protect from anybody who can read the database.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from safexplain.errors import LedgerError

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE ledger_settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE ledger_accounts (principal TEXT PRIMARY KEY, period BIGINT NOT NULL, time BIGINT NOT NULL,"
        " rule TEXT NOT NULL, alpha DOUBLE PRECISION NOT NULL, prefix_epsilon TEXT NOT NULL,"
        " prefix_delta TEXT NOT NULL, epsilon TEXT NOT NULL, delta TEXT NOT NULL, loss TEXT NOT NULL,"
        " unbounded BIGINT NOT NULL, charges BIGINT NOT NULL, granted_epsilon DOUBLE PRECISION,"
        " granted_delta DOUBLE PRECISION)",
        "CREATE TABLE ledger_charges (id {identity}, principal TEXT NOT NULL, period BIGINT NOT NULL,"
        " time BIGINT NOT NULL, mechanism TEXT NOT NULL, parameters TEXT NOT NULL, release TEXT NOT NULL)",
        "CREATE INDEX ledger_charges_of ON ledger_charges (principal, id)",
        "CREATE TABLE ledger_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
        " epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, note TEXT NOT NULL)",
    ),
    (
        "CREATE TABLE ledger_answers (question TEXT PRIMARY KEY, value TEXT NOT NULL, release TEXT NOT NULL)",
        "ALTER TABLE ledger_charges ADD COLUMN question TEXT",
        "ALTER TABLE ledger_charges ADD COLUMN digest TEXT",
        "ALTER TABLE ledger_charges ADD COLUMN repeated BIGINT NOT NULL DEFAULT 0",
        "CREATE UNIQUE INDEX ledger_charges_once ON ledger_charges (principal, question) WHERE question IS NOT NULL",
    ),
    ("CREATE TABLE ledger_identity (id TEXT PRIMARY KEY)",),
    (
        "CREATE TABLE ledger_questions (principal TEXT NOT NULL, number BIGINT NOT NULL, digest BYTEA NOT NULL,"
        " time BIGINT NOT NULL, first BIGINT NOT NULL, space TEXT, sketch BYTEA, PRIMARY KEY (principal, number))",
        "CREATE UNIQUE INDEX ledger_questions_once ON ledger_questions (principal, digest)",
        "CREATE INDEX ledger_questions_when ON ledger_questions (principal, time, number)",
        "CREATE INDEX ledger_questions_looks ON ledger_questions (principal, first, time)",
        "ALTER TABLE ledger_accounts ADD COLUMN questions BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE ledger_accounts ADD COLUMN granted_questions BIGINT",
        "ALTER TABLE ledger_grants ADD COLUMN questions BIGINT",
    ),
    (),  # charges may be Renyi curves, which an older safexplain could not read
    (),  # charges may be trainings, which count in every account: an older safexplain would leave them out
    (  # `name_ledger` then makes the secret, and keys what was asked before; a running process of 0.2 finds no `loss`
        "ALTER TABLE ledger_accounts RENAME COLUMN loss TO losses",
        "ALTER TABLE ledger_identity ADD COLUMN secret BYTEA",
        "CREATE TABLE ledger_services (name TEXT PRIMARY KEY, limits TEXT NOT NULL)",
    ),
)
"""Steps never change once released; a new one is added behind them. `repeated`: not counted again in the total."""

VERSION = len(MIGRATIONS)

CHUNK = 500
"""Questions or accounts looked up or written by one statement; they have fewer values than any database takes."""

PAGE = 2000
"""Rows read at once."""


def paged(execute: Execute, query: str, values: Sequence[Any] = (), after: int = 0) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends in "number > ? ORDER BY number LIMIT ?", with their number as the first column.

    No transaction stays open between pages.
    """
    while rows := execute(query, (*values, after, PAGE)):
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def rows_of(execute: Execute, query: str, values: Sequence[Any], keys: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends in "key IN", for these keys."""
    distinct = sorted(set(keys))
    for start in range(0, len(distinct), CHUNK):
        part = distinct[start : start + CHUNK]
        yield from execute(f"{query} ({', '.join('?' * len(part))})", (*values, *part))


def migrate(execute: Execute, identity: str, at: int | None, to: int = VERSION) -> None:
    """Bring a database from version `at` (None: no ledger) to another; in a transaction that nobody else runs beside.

    Raises:
        LedgerError: it was written by a newer safexplain.
    """
    if at is not None and at > VERSION:
        raise LedgerError(
            f"the ledger was written by a newer safexplain: its schema is version {at}, this one knows up to {VERSION};"
            " upgrade safexplain on this machine"
        )
    if at is None:
        execute("CREATE TABLE ledger_schema_version (version BIGINT NOT NULL)", ())
        execute("INSERT INTO ledger_schema_version VALUES (0)", ())
    for step in MIGRATIONS[at or 0 : to]:
        for statement in step:
            execute(statement.replace("{identity}", identity), ())
    execute("UPDATE ledger_schema_version SET version = ?", (to,))


def name_ledger(execute: Execute) -> None:
    """Give a ledger a name and a secret, where it has none; with the secret, what was asked before is keyed."""
    if not execute("SELECT 1 FROM ledger_identity", ()):
        execute("INSERT INTO ledger_identity (id) VALUES (?)", (secrets.token_hex(16),))
    if execute("SELECT 1 FROM ledger_identity WHERE secret IS NULL", ()):
        secret = secrets.token_bytes(32)
        _key_questions(execute, secret)
        execute("UPDATE ledger_identity SET secret = ?", (secret,))


def identity_of(execute: Execute) -> tuple[str, bytes]:
    """The name of a ledger, and its secret.

    Raises:
        LedgerError: it has none.
    """
    rows = execute("SELECT id, secret FROM ledger_identity WHERE secret IS NOT NULL", ())
    if len(rows) != 1:
        raise LedgerError("the ledger is damaged: it has no identity; restore it from a backup")
    return str(rows[0][0]), bytes(rows[0][1])


def keyed(secret: bytes, digest: bytes) -> bytes:
    """HMAC-SHA256 of a digest, 32 bytes."""
    return hmac.digest(secret, digest, "sha256")


def _key_questions(execute: Execute, secret: bytes) -> None:
    """Key all digests of questions that a ledger before step 7 holds, several by one statement; trainings, which are
    charges of all principals together, stay under the digest of their weights."""
    trainings = "SELECT question FROM ledger_charges WHERE principal = '' AND question IS NOT NULL"
    for table, row, column, those in (
        ("ledger_questions", ("principal", "number"), "digest", "TRUE"),
        ("ledger_answers", ("question",), "question", f"question NOT IN ({trainings})"),
        ("ledger_charges", ("id",), "question", "principal <> ''"),
    ):
        names, places = ", ".join(row), f"({'?, ' * len(row)}?)"
        found = execute(f"SELECT {names}, {column} FROM {table} WHERE {column} IS NOT NULL AND {those}", ())
        same = " AND ".join(f"{table}.{name} = old.{name}" for name in row)
        for start in range(0, len(found), CHUNK):
            values: list[Any] = []
            for *key, digest in (part := found[start : start + CHUNK]):
                text = isinstance(digest, str)  # hexadecimal, of `Ledger.answer`
                values += [*key, keyed(secret, digest.encode()).hex() if text else keyed(secret, bytes(digest))]
            execute(
                f"WITH old ({names}, keyed) AS (VALUES {', '.join([places] * len(part))})"
                f" UPDATE {table} SET {column} = old.keyed FROM old WHERE {same}",
                values,
            )


def check_identity(execute: Execute, wanted: str, name: str) -> None:
    """Raise LedgerError where another ledger than the `wanted` one, which was opened, stands in the place `name`."""
    if execute("SELECT 1 FROM ledger_identity WHERE id = ?", (wanted,)):
        return
    raise LedgerError(
        f"ledger {name} is another one than was opened first: it was replaced. Put the first one back, or start again"
    )
