"""Distinct questions of each client in a period, counted in the database of a ledger, and groups of near-duplicates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safexplain._validate import check_whole
from safexplain.errors import BudgetExhausted, ConfigurationError, LedgerError
from safexplain.ledger import records
from safexplain.ledger.maintenance import copy, prepare
from safexplain.ledger.records import PERIODS, next_period, period_start, principal_name
from safexplain.ledger.storage import (
    CHUNK,
    Execute,
    MemoryStorage,
    Storage,
    identity_of,
    keyed_digest,
    open_storage,
    paged,
    rows_of,
)

EVERYBODY = ""  # principal of the grant that holds for every client without its own
MAX_CACHED_CLIENTS = 100_000  # clients whose last durable question a process remembers


@dataclass(frozen=True)
class Limit:
    """A number of questions (at least 1) in each period: "lifetime", "day", "week" or "month"."""

    number: int
    period: str

    def __post_init__(self) -> None:
        check_whole("limit", self.number, 1)
        if self.period not in PERIODS:
            raise ConfigurationError(f"period: expected one of {', '.join(PERIODS)}, got {self.period!r}")


@dataclass(frozen=True)
class Question:
    """A recorded question: its number among its client's questions, from 1, the number of the first question of its
    group of near-duplicates, and a sketch for comparison with others."""

    number: int
    first: int
    sketch: bytes


@dataclass(frozen=True)
class NearDuplicates:
    """Groups of near-duplicate questions, and the limits of each group.

    Args:
        space: only sketches of the same space are compared.
        sketches: one for each digest.
        after: number of the last question that `assign` knows.
        assign: (positions, number, later) -> for the new questions at these positions, numbered from `number` on, the
            number of the first question of each one's group; `later` are the questions after `after`. It runs in the
            transaction and must not use the ledger.
        limits: on questions of one group, its first included; all must hold.
    """

    space: str
    sketches: Sequence[bytes]
    after: int
    assign: Callable[[Sequence[int], int, Sequence[Question]], Sequence[int]]
    limits: tuple[Limit, ...]


class Questions:
    """Counts the distinct questions of each client, durably and exactly; threads and processes may share the database.

    Args:
        url: of a ledger, as for `Ledger`, created if there is none; None: in memory, until this process ends.
        timeout: seconds to wait for other writers.
        clock: microseconds since 1970, for tests.

    Raises:
        ConfigurationError, InputError, LedgerError, MissingExtraError: as `Ledger`.
    """

    def __init__(self, url: str | None, *, timeout: float = 10.0, clock: Callable[[], int] | None = None) -> None:
        self._storage: Storage = MemoryStorage(timeout, clock) if url is None else open_storage(url, timeout, clock)
        prepare(self._storage)
        self.identity, self._secret = identity_of(self._storage.read)
        self.is_durable = url is not None
        self._durable: dict[str, int] = {}  # client -> number of a question that is known to be on the disk

    def ask(
        self,
        client: str,
        digests: Sequence[bytes],
        limit: Limit,
        near_duplicates: Callable[[], NearDuplicates] | None = None,
    ) -> int:
        """Count questions durably, all or none, and return how many are new; earlier ones of this client are free.

        Args:
            client: name.
            digests: of the questions; equal digests are one question. They are stored under the ledger's secret.
            limit: on new questions; a grant to this client, or to everybody, replaces its number.
            near_duplicates: finds groups of near-duplicates; called before the transaction if a question is new.

        Raises:
            BudgetExhausted: the new questions do not all fit; none was counted. The error is about the limit that
                renews last.
            LedgerError: the database cannot be written. The questions may have been counted, and are then free.
        """
        name, keyed = principal_name(client), list(map(self.keyed, digests))
        found = _numbers(self._storage.read, name, keyed)
        if len(found) == len(set(keyed)):
            number = max(found.values(), default=0)
            if number > self._durable.get(name, 0):  # another process may have committed it a moment ago
                self._storage.sync()
                self._remember(name, number)
            return 0
        groups = None if near_duplicates is None else near_duplicates()
        with self._storage.transaction() as execute:
            now = _time(execute, self._storage)
            numbers = _record(execute, name, now, keyed, _granted(execute, name, limit), groups)
        if numbers:
            self._remember(name, numbers[-1])
        return len(numbers)

    def _remember(self, client: str, number: int) -> None:
        if len(self._durable) >= MAX_CACHED_CLIENTS:
            self._durable.clear()  # costs each client one sync
        self._durable[client] = number

    def keyed(self, digest: bytes) -> bytes:
        """HMAC-SHA256 of a digest under the ledger's secret, 32 bytes."""
        return keyed_digest(self._secret, digest)

    def history(self, client: str, space: str, after: int = 0) -> list[Question]:
        """Questions of a client with sketches of one space and numbers above `after`, in their order."""
        return _history(self._storage.read, principal_name(client), space, after)

    def counts(self) -> dict[str, int]:
        """Client -> distinct questions over all time, by name."""
        rows = self._storage.read("SELECT principal, MAX(number) FROM ledger_questions GROUP BY principal", ())
        return dict(sorted((name, int(number)) for name, number in rows))

    def grants(self) -> dict[str, int]:
        """Client (or `EVERYBODY`) -> distinct questions per period that were granted last."""
        return dict(self._storage.read("SELECT principal, questions FROM ledger_question_grants ORDER BY id", ()))

    def grant(self, client: str | None, questions: int, note: str = "") -> None:
        """Replace the limit of a client, or with None of every client without its own grant, from now on."""
        row = (EVERYBODY if client is None else principal_name(client), check_whole("questions", questions, 1))
        with self._storage.transaction() as execute:
            now = _time(execute, self._storage)
            execute(
                "INSERT INTO ledger_question_grants (principal, questions, time, note) VALUES (?, ?, ?, ?)",
                (*row, now, records.text("note", note)),
            )

    def record_service(self, name: str, limits: Mapping[str, Any]) -> None:
        """Store the limits of a service, in JSON types; `safexplain ledger show` prints them."""
        sql = "INSERT INTO ledger_services VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET limits = excluded.limits"
        with self._storage.transaction() as execute:
            execute(sql, (records.text("name", name), records.as_json("limits", limits)))

    def services(self) -> dict[str, dict[str, Any]]:
        """Service -> its stored limits."""
        rows = self._storage.read("SELECT name, limits FROM ledger_services ORDER BY name", ())
        return {name: json.loads(limits) for name, limits in rows}

    def verify(self) -> int:
        """The number of questions; LedgerError unless those of each client are numbered without gaps."""
        sql = (
            "SELECT principal, COUNT(*), MIN(number), MAX(number), SUM(CASE WHEN first < 1 OR first > number THEN 1"
            " ELSE 0 END) FROM ledger_questions GROUP BY principal"
        )
        rows = self._storage.read(sql, ())
        if wrong := [name for name, total, least, most, stray in rows if (least, most) != (1, total) or stray]:
            raise LedgerError(
                f"the ledger is damaged: the questions of {wrong[0]!r} have gaps; restore a backup, and check who can"
                " write to it"
            )

        return sum(int(row[1]) for row in rows)

    def backup(self, path: Path) -> None:
        """Copy the whole ledger, as `Ledger.backup`."""
        copy(self._storage, path)

    def ping(self) -> None:
        """Raise LedgerError if the database cannot be reached."""
        self._storage.read("SELECT version FROM ledger_schema_version", ())

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        self._storage.close()

    def __enter__(self) -> Questions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _time(execute: Execute, storage: Storage) -> int:
    """In a transaction: keep other writers out, and return the time, which never goes back."""
    now = storage.lock(execute)
    [(last,)] = execute("SELECT time FROM ledger_accounts WHERE principal = ''", ())
    if now > last:
        execute("UPDATE ledger_accounts SET time = ? WHERE principal = ''", (now,))
    return max(now, int(last))


def _granted(execute: Execute, client: str, limit: Limit) -> Limit:
    sql = (
        "SELECT questions FROM ledger_question_grants WHERE principal IN (?, ?)"
        " ORDER BY CASE principal WHEN '' THEN 1 ELSE 0 END, id DESC LIMIT 1"
    )
    rows = execute(sql, (client, EVERYBODY))
    return Limit(int(rows[0][0]), limit.period) if rows else limit


def _numbers(execute: Execute, client: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    query = "SELECT digest, number FROM ledger_questions WHERE principal = ? AND digest IN"
    return {bytes(digest): number for digest, number in rows_of(execute, query, (client,), digests)}


def _history(execute: Execute, client: str, space: str, after: int) -> list[Question]:
    query = (
        "SELECT number, first, sketch FROM ledger_questions WHERE principal = ? AND space = ? AND number > ?"
        " ORDER BY number LIMIT ?"
    )
    rows = paged(execute, query, (client, space), after)
    return [Question(number, first, bytes(sketch)) for number, first, sketch in rows]


def _last_number(execute: Execute, client: str, before: int | None = None) -> int:
    when, values = ("", ()) if before is None else ("AND time < ? ", (before,))
    sql = f"SELECT number FROM ledger_questions WHERE principal = ? {when}ORDER BY time DESC, number DESC LIMIT 1"
    rows = execute(sql, (client, *values))
    return int(rows[0][0]) if rows else 0


def _record(
    execute: Execute, client: str, now: int, digests: Sequence[bytes], limit: Limit, groups: NearDuplicates | None
) -> range:
    known, last = _numbers(execute, client, digests), _last_number(execute, client)
    new = sorted({d: i for i, d in reversed(list(enumerate(digests))) if d not in known}.values())
    numbers = range(last + 1, last + 1 + len(new))
    if not new:
        return numbers
    start = period_start(limit.period, now)
    asked = last - (_last_number(execute, client, start) if start else 0)
    refusals = [_refusal(client, now, limit, len(new), asked)]
    first: Sequence[int] = numbers
    if groups is not None:
        first = groups.assign(new, last + 1, _history(execute, client, groups.space, groups.after))
        size = "SELECT COUNT(*) FROM ledger_questions WHERE principal = ? AND first = ? AND time >= ?"
        for group_limit in groups.limits:
            for group, count in Counter(first).items():
                since = period_start(group_limit.period, now)
                earlier = execute(size, (client, group, since))[0][0] if group <= last else 0
                refusals.append(
                    _refusal(client, now, group_limit, count, earlier, " too close to earlier ones", " about one map")
                )
    if raised := [refusal for refusal in refusals if refusal is not None]:
        raise max(raised, key=lambda r: r.renews or datetime.max.replace(tzinfo=UTC))
    rows = [
        (client, n, digests[i], now, f, groups and groups.space, groups and groups.sketches[i])
        for n, f, i in zip(numbers, first, new, strict=True)
    ]
    for i in range(0, len(rows), CHUNK):
        part = rows[i : i + CHUNK]
        execute(
            "INSERT INTO ledger_questions (principal, number, digest, time, first, space, sketch) VALUES "
            + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(part)),
            [value for row in part for value in row],
        )
    return numbers


def _refusal(
    client: str, now: int, limit: Limit, new: int, asked: int, which: str = "", about: str = ""
) -> BudgetExhausted | None:
    if asked + new <= limit.number:
        return None
    renewal = next_period(limit.period, now)
    period = "over all time" if limit.period == "lifetime" else f"a {limit.period}"
    when = f"; the count renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else "; the count never renews"
    return BudgetExhausted(
        f"principal {client!r}: {new} new question{'s' if new > 1 else ''}{which} would exceed {limit.number}"
        f" {period}{about}, with {asked} asked already; none was counted{when}",
        principal=client, requested=new, spent=asked, budget=limit.number, renews=renewal,
    )  # fmt: skip
