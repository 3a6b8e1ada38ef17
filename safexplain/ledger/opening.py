"""Opening a ledger's database: create it if there is none, and migrate it if safexplain 0.2 wrote it.

0.2 had no secret, counted losses in 1e-18, and had a rule for Gaussian streams, the sum of mu^2. Their charges are
replayed under the stricter renyi rule: a mu-GDP answer has Renyi divergences of at most alpha mu^2 / 2.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, LedgerError
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, Balance, Settings, save_balances
from safexplain.ledger.composition import MAIN_SHARE, best_order
from safexplain.ledger.inspection import tally
from safexplain.ledger.releases import Concentrated
from safexplain.ledger.storage import CHUNK, QUESTIONS, SCHEMA, VERSION, Execute, Storage, identity_of, keyed_digest

VERSION_OF_0_2 = 6  # version of the tables that 0.2 wrote

MIGRATION = (
    "ALTER TABLE ledger_accounts RENAME COLUMN loss TO losses",  # stops running processes of 0.2
    "ALTER TABLE ledger_identity ADD COLUMN secret BYTEA",
    *QUESTIONS,
    "INSERT INTO ledger_question_grants (principal, time, questions, note) SELECT principal, time, questions, note"
    " FROM ledger_grants WHERE questions IS NOT NULL ORDER BY id",
    "INSERT INTO ledger_question_grants (principal, time, questions, note) SELECT '', 0, CAST(value AS BIGINT), 'the"
    " limit of the ledger, by 0.2' FROM ledger_settings WHERE name = 'questions' AND value NOT IN ('null', 'Infinity')"
    " AND NOT EXISTS (SELECT 1 FROM ledger_question_grants WHERE principal = '')",
    "ALTER TABLE ledger_grants DROP COLUMN questions",
    "ALTER TABLE ledger_accounts DROP COLUMN questions",
    "ALTER TABLE ledger_accounts DROP COLUMN granted_questions",
    "DELETE FROM ledger_settings"
    " WHERE EXISTS (SELECT 1 FROM ledger_settings WHERE name = 'epsilon' AND value = 'null')",
    "DELETE FROM ledger_settings WHERE name = 'questions' OR (name = 'adjacency' AND value = 'null')",
)


def open_storage(url: str, timeout: float, clock: Callable[[], int] | None = None) -> Storage:
    """The storage of a URL, not connected yet; arguments and errors as for `Ledger`."""
    timeout = check_number("timeout", timeout, above=0.0)
    scheme, separator, rest = str(url).partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from safexplain.ledger.storage.postgres import PostgresStorage

        return PostgresStorage(str(url), timeout, clock)
    if separator and scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
        from safexplain.ledger.storage.sqlite import SqliteStorage

        if "?" in rest:
            raise ConfigurationError(f"url: expected no options after the file's name, got {url!r}")
        return SqliteStorage(Path(rest[1:]).absolute(), timeout, clock)
    raise ConfigurationError(
        f'url: expected "sqlite:///file.db" or "postgresql://user@host/database", got {url!r}; a ledger in memory would'
        " forget its charges"
    )


def prepare(storage: Storage) -> None:
    """Create the tables, name and secret of a ledger, or migrate one that 0.2 wrote; errors as for `Ledger`."""
    at = storage.version()
    if at is None:
        storage.create()
    if at != VERSION:
        with storage.transaction() as execute:
            if (at := storage.version(execute)) is None:  # another process may have been faster
                for statement in SCHEMA:
                    execute(statement.replace("{identity}", storage.identity), ())
                name = (secrets.token_hex(16), secrets.token_bytes(32))
                execute("INSERT INTO ledger_identity (id, secret) VALUES (?, ?)", name)
            elif at != VERSION:
                _migrate_from_0_2(execute, storage, at)
    storage.ledger, _ = identity_of(storage.read)


def _migrate_from_0_2(execute: Execute, storage: Storage, at: int) -> None:
    if at != VERSION_OF_0_2:
        writer = "a newer safexplain" if at > VERSION else "a safexplain before 0.2"
        advice = "upgrade safexplain on this machine" if at > VERSION else "open it once with safexplain 0.2"
        raise LedgerError(
            f"the ledger was written by {writer}: expected tables of version {VERSION_OF_0_2} or {VERSION}, found {at};"
            f" {advice}"
        )
    storage.lock(execute)
    for statement in MIGRATION:
        execute(statement.replace("{identity}", storage.identity), ())
    secret = secrets.token_bytes(32)
    _key_questions(execute, secret)
    execute("UPDATE ledger_identity SET secret = ?", (secret,))
    _recount(execute)
    execute("UPDATE ledger_schema_version SET version = ?", (VERSION,))


def _recount(execute: Execute) -> None:
    """Replay charges to get sums of losses in the units of this version; the gaussian rule becomes the renyi rule."""
    rows = execute("SELECT name, value FROM ledger_settings", ())
    if not rows:
        return
    settings, stored = Settings.load(rows), {}
    for row in execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts", ()):
        balance = Balance.of(row)
        if balance.sums.rule == "gaussian":  # the order that allows the most Gaussian answers
            budget = balance.granted or (settings.principal_budget if balance.principal else settings.total_rule_budget)
            order = best_order(Concentrated(1e-6), budget.epsilon, budget.delta * MAIN_SHARE)
            balance = replace(balance, sums=replace(balance.sums, rule="renyi", order=order))
        stored[balance.principal] = balance
    tallies, _, _ = tally(execute, stored)
    changed = [replace(b, sums=tallies[n].replayed()) for n, b in stored.items() if b.sums.rule == "renyi"]
    for start in range(0, len(changed), CHUNK):
        save_balances(execute, *changed[start : start + CHUNK])


def _key_questions(execute: Execute, secret: bytes) -> None:
    """Key all digests of questions in a ledger of 0.2; trainings keep the digest of their weights."""
    trainings = "SELECT question FROM ledger_charges WHERE principal = '' AND question IS NOT NULL"
    for table, row, column, condition in (
        ("ledger_questions", ("principal", "number"), "digest", "TRUE"),
        ("ledger_answers", ("question",), "question", f"question NOT IN ({trainings})"),
        ("ledger_charges", ("id",), "question", "principal <> ''"),
    ):
        names, places = ", ".join(row), f"({'?, ' * len(row)}?)"
        found = execute(f"SELECT {names}, {column} FROM {table} WHERE {column} IS NOT NULL AND {condition}", ())
        same = " AND ".join(f"{table}.{name} = old.{name}" for name in row)
        for start in range(0, len(found), CHUNK):
            values: list[Any] = []
            for *key, digest in (part := found[start : start + CHUNK]):
                if isinstance(digest, str):  # hexadecimal, of `Ledger.answer`
                    values += [*key, keyed_digest(secret, digest.encode()).hex()]
                else:
                    values += [*key, keyed_digest(secret, bytes(digest))]
            execute(
                f"WITH old ({names}, keyed) AS (VALUES {', '.join([places] * len(part))})"
                f" UPDATE {table} SET {column} = old.keyed FROM old WHERE {same}",
                values,
            )


def load_or_create(storage: Storage, given: Settings) -> Settings:
    """The settings of the ledger in a storage, which is created if there is none; errors as for `Ledger`."""
    query = "SELECT name, value FROM ledger_settings"
    if storage.version() is None:
        given.with_defaults()  # checked before a file is created
    prepare(storage)
    rows = storage.read(query)
    if "adjacency" not in dict(rows):  # new, or it only counted questions so far, or 0.2 did not store it
        if not rows:
            given.with_defaults()
        with storage.transaction() as execute:
            storage.lock(execute)
            rows = execute(query, ())  # another process may have been faster
            if not rows:
                given.with_defaults().save(execute)
            elif "adjacency" not in dict(rows):
                stated = json.dumps(given.adjacency or "substitute")
                execute("INSERT INTO ledger_settings VALUES ('adjacency', ?)", (stated,))
            rows = execute(query, ())
    stored = Settings.load(rows)
    given.check_against(stored)
    return stored
