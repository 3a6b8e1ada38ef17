"""Creation, migration, export, backup and verification of a whole ledger; files are complete or not written at all."""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import IO, Any

from safexplain._digest import sha256
from safexplain._files import atomic_file
from safexplain.errors import ConfigurationError, InputError, LedgerError
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, EMPTY, TOTAL, Balance, Settings, save_balances
from safexplain.ledger.composition import MAIN_SHARE, Composition, best_order
from safexplain.ledger.records import Charge, period_start
from safexplain.ledger.releases import Concentrated, from_json, to_json
from safexplain.ledger.storage import (
    CHUNK,
    QUESTIONS,
    SCHEMA,
    VERSION,
    Execute,
    Storage,
    identity_of,
    keyed_digest,
    paged,
)

_SETTINGS = "SELECT name, value FROM ledger_settings"
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


def prepare(storage: Storage) -> None:
    """Create the tables, name and secret of a ledger, or migrate one that 0.2 wrote."""
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
    """Replay charges, as 0.2 counted losses in 1e-18, and Gaussian streams by the sum of mu^2, now under the stricter
    renyi rule: a mu-GDP answer has Renyi divergences of at most alpha mu^2 / 2."""
    rows = execute(_SETTINGS, ())
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
    """Key all digests of questions; trainings keep the digest of their weights."""
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
    """The settings of the ledger in a storage."""
    if storage.version() is None:
        given.with_defaults()  # checked before a file is created
    prepare(storage)
    rows = storage.read(_SETTINGS)
    if "adjacency" not in dict(rows):  # new, or it only counted questions so far, or 0.2 did not store it
        if not rows:
            given.with_defaults()
        with storage.transaction() as execute:
            storage.lock(execute)
            rows = execute(_SETTINGS, ())  # another process may have been faster
            if not rows:
                given.with_defaults().save(execute)
            elif "adjacency" not in dict(rows):
                stated = json.dumps(given.adjacency or "substitute")
                execute("INSERT INTO ledger_settings VALUES ('adjacency', ?)", (stated,))
            rows = execute(_SETTINGS, ())
    stored = Settings.load(rows)
    given.check_against(stored)
    return stored


COLUMNS = (
    "id", "time", "principal", "mechanism", "kind", "epsilon", "delta", "mu", "steps", "parameters", "period",
    "question", "digest", "repeated", "rho", "orders", "divergences", "adjacency",
)  # fmt: skip


@contextmanager
def replacing(target: str | PathLike[str], protected: Sequence[Path]) -> Iterator[Path]:
    """A path whose file, of mode 0600, replaces the target."""
    path = Path(target)
    if any(path.resolve() == file.resolve() for file in protected):
        raise ConfigurationError(f"{path} is a file of the ledger itself; choose another path")
    try:
        with atomic_file(path) as partial:
            partial.unlink(missing_ok=True)  # SQLite would write into the rest of a killed process
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            partial.chmod(0o600)  # whatever the umask
            yield partial
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def charge_as_json(charge: Charge) -> dict[str, Any]:
    """A charge as JSON types."""
    release = json.loads(to_json(charge.release))
    return {
        "id": charge.id,
        "time": charge.time.isoformat(),
        "principal": charge.principal,
        "mechanism": charge.mechanism,
        **{name: release.get(name) for name in ("kind", "epsilon", "delta", "mu", "steps")},
        "parameters": dict(charge.parameters),
        "period": charge.period.isoformat() if charge.period else None,
        "question": charge.question,
        "digest": charge.digest,
        "repeated": charge.repeated,
        **{name: release[name] for name in ("rho", "orders", "divergences", "adjacency") if name in release},
    }


def write_charges(
    charges: Iterable[Charge], target: str | PathLike[str] | IO[str], format: str, protected: Sequence[Path] = ()
) -> int:
    """As `Ledger.export`; `protected` files are never replaced."""
    if format not in ("jsonl", "csv"):
        raise ConfigurationError(f'format: expected "jsonl" or "csv", got {format!r}')
    if isinstance(target, str | PathLike):
        with replacing(target, protected) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
            return write_charges(charges, stream, format)
    table = csv.DictWriter(target, COLUMNS, lineterminator="\n")
    if format == "csv":
        table.writeheader()
    count = 0
    for charge in charges:
        content = charge_as_json(charge)
        if format == "csv":
            table.writerow({**content, "parameters": json.dumps(content["parameters"])})
        else:
            target.write(json.dumps(content) + "\n")
        count += 1
    return count


def copy(storage: Storage, path: str | PathLike[str]) -> None:
    """As `Ledger.backup`."""
    with replacing(path, storage.files) as partial:
        storage.backup(partial)


def verify(execute: Execute) -> int:
    """As `Ledger.verify`, in a transaction that holds the ledger."""
    rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal", ())
    stored = {row[0]: Balance.of(row) for row in rows}
    tallies, count, wrong = tally(execute, stored)
    for name, balance in stored.items():
        if tallies[name].replayed() != balance.sums:
            wrong.append(f"the sums of {repr(name) if name else 'the total'} differ from its charges")
    wrong += _mismatched_answers(execute)
    if wrong:
        shown = "; ".join(wrong[:5])
        raise LedgerError(f"the ledger is damaged: {shown}. Restore it from a backup, and check who can write to it")
    return count


def tally(execute: Execute, stored: dict[str, Balance]) -> tuple[dict[str, _Tally], int, list[str]]:
    """Releases of each account, number of charges, and messages about strays."""
    tallies = {name: _Tally(balance.sums) for name, balance in stored.items()}
    strays: dict[str, None] = {}
    count = 0
    calendar = Settings.load(execute(_SETTINGS, ())).period or ""
    query = "SELECT id, principal, period, release, repeated, time FROM ledger_charges WHERE id > ? ORDER BY id LIMIT ?"
    for _, principal, period, release, repeated, time in paged(execute, query):
        count += 1
        if principal == TOTAL:  # a training, which counts for everybody
            start = period_start(calendar, time)
            for name in (name for name, balance in stored.items() if name and balance.period == start):
                tallies[name].count(release)
        elif principal not in stored:
            strays[principal] = None
        elif stored[principal].period == period:
            tallies[principal].count(release)
        if not repeated:
            tallies[TOTAL].count(release)
    return tallies, count, [f"{name!r} has charges but no account" for name in strays]


class _Tally:
    """Counts of releases before and after a change of rule."""

    def __init__(self, sums: Composition) -> None:
        self.sums = sums
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.epsilon = self.delta = 0

    def count(self, text: str) -> None:
        sums = self.sums
        if sums.rule == "basic" or (self.epsilon, self.delta) == (sums.prefix_epsilon, sums.prefix_delta):
            self.after[text] += 1
            return
        self.before[text] += 1
        one = EMPTY.add_under_rule(from_json(text))
        self.epsilon, self.delta = self.epsilon + one.epsilon, self.delta + one.delta

    def replayed(self) -> Composition:
        found = replace(
            EMPTY, rule=self.sums.rule, order=self.sums.order, prefix_epsilon=self.epsilon,
            prefix_delta=self.delta, charges=self.before.total(),
        )  # fmt: skip
        for text, times in self.after.items():
            found = found.add_under_rule(from_json(text), times)
        return found


def _mismatched_answers(execute: Execute) -> list[str]:
    orphans = execute(
        "SELECT question FROM ledger_answers WHERE question NOT IN"
        " (SELECT question FROM ledger_charges WHERE question IS NOT NULL) LIMIT 5",
        (),
    )
    wrong = [f"the answer to {question[:12]}... was charged to nobody" for (question,) in orphans]
    query = (
        "SELECT c.id, c.digest, a.value FROM ledger_charges c LEFT JOIN ledger_answers a ON a.question = c.question"
        " WHERE c.question IS NOT NULL AND c.id > ? ORDER BY c.id LIMIT ?"
    )
    for number, digest, value in paged(execute, query):
        if value is None or sha256(value) != digest:
            wrong.append(f"the answer of charge {number} is {'missing' if value is None else 'altered'}")
    return wrong
