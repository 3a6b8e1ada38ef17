"""Tables of a ledger.

Sums are whole numbers kept as text, as they may have more than 64 bits; `losses` has one for each condition. Times are
microseconds since 1970, UTC. The account "" is that of all principals together; its time is the last that the ledger
saw, and its charges are trainings. Questions are numbered by principal; `first` is the number of the one that a
question is another look at.

A ledger has a random name in its database, so that another one in its place is not taken for it, and a random secret.
Digests of questions are kept under HMAC-SHA256 with that secret, so that a log or an export which holds them cannot be
searched by digesting guesses. The secret does not protect from anybody who can read the database.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from safexplain.errors import LedgerError

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

VERSION = 8
"""Of the tables. 0.2 wrote 6, which `safexplain.ledger.opening` brings up to date."""

QUESTIONS = (
    "CREATE TABLE ledger_services (name TEXT PRIMARY KEY, limits TEXT NOT NULL)",
    "CREATE TABLE ledger_question_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
    " questions BIGINT NOT NULL, note TEXT NOT NULL)",
)
"""What a service keeps besides the questions (`safexplain.serve.questions`)."""

SCHEMA = (
    "CREATE TABLE ledger_schema_version (version BIGINT NOT NULL)",
    f"INSERT INTO ledger_schema_version VALUES ({VERSION})",
    "CREATE TABLE ledger_identity (id TEXT PRIMARY KEY, secret BYTEA)",
    "CREATE TABLE ledger_settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE ledger_accounts (principal TEXT PRIMARY KEY, period BIGINT NOT NULL, time BIGINT NOT NULL,"
    " rule TEXT NOT NULL, alpha DOUBLE PRECISION NOT NULL, prefix_epsilon TEXT NOT NULL, prefix_delta TEXT NOT NULL,"
    " epsilon TEXT NOT NULL, delta TEXT NOT NULL, losses TEXT NOT NULL, unbounded BIGINT NOT NULL,"
    " charges BIGINT NOT NULL, granted_epsilon DOUBLE PRECISION, granted_delta DOUBLE PRECISION)",
    "INSERT INTO ledger_accounts VALUES ('', 0, 0, '', 0, '0', '0', '0', '0', '', 0, 0, NULL, NULL)",
    "CREATE TABLE ledger_charges (id {identity}, principal TEXT NOT NULL, period BIGINT NOT NULL, time BIGINT NOT NULL,"
    " mechanism TEXT NOT NULL, parameters TEXT NOT NULL, release TEXT NOT NULL, question TEXT, digest TEXT,"
    " repeated BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX ledger_charges_of ON ledger_charges (principal, id)",
    "CREATE UNIQUE INDEX ledger_charges_once ON ledger_charges (principal, question) WHERE question IS NOT NULL",
    "CREATE TABLE ledger_answers (question TEXT PRIMARY KEY, value TEXT NOT NULL, release TEXT NOT NULL)",
    "CREATE TABLE ledger_grants (id {identity}, principal TEXT NOT NULL, time BIGINT NOT NULL,"
    " epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE ledger_questions (principal TEXT NOT NULL, number BIGINT NOT NULL, digest BYTEA NOT NULL,"
    " time BIGINT NOT NULL, first BIGINT NOT NULL, space TEXT, sketch BYTEA, PRIMARY KEY (principal, number))",
    "CREATE UNIQUE INDEX ledger_questions_once ON ledger_questions (principal, digest)",
    "CREATE INDEX ledger_questions_when ON ledger_questions (principal, time, number)",
    "CREATE INDEX ledger_questions_looks ON ledger_questions (principal, first, time)",
    *QUESTIONS,
)
"""`repeated`: not counted again in the total."""

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


def check_identity(execute: Execute, wanted: str, name: str) -> None:
    """Raise LedgerError where another ledger than the `wanted` one, which was opened, stands in the place `name`."""
    if execute("SELECT 1 FROM ledger_identity WHERE id = ?", (wanted,)):
        return
    raise LedgerError(
        f"ledger {name} is another one than was opened first: it was replaced. Put the first one back, or start again"
    )
