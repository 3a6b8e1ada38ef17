"""Questions that are counted: how many distinct ones a client asked in a period, in the database of a ledger.

A question is a digest, and its number says the how manieth of its client it is, over all time and without a gap. What
was asked before a period began is then the number of the last question before it, so that counting reads one row of an
index however many there are.

A question may be another look at something that an earlier question was about. Who asks brings a sketch of each
question, which is kept, and says which earlier one each belongs to (`Looks`); this module counts the looks and leaves
to others what is alike. All of it happens inside the transaction that records the questions.
"""

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
from safexplain.ledger.inspection import copy
from safexplain.ledger.opening import open_storage, prepare
from safexplain.ledger.records import PERIODS, next_period, period_start, principal_name
from safexplain.ledger.storage import CHUNK, Execute, Storage, identity_of, keyed_digest, paged, rows_of
from safexplain.ledger.storage.sqlite import MemoryStorage

EVERYBODY = ""
"""Whose grant holds for each client to whom nothing was granted."""

MOST_REMEMBERED = 100_000
"""Clients of whom a process keeps what is on the disk."""


@dataclass(frozen=True)
class Most:
    """A limit: so many in each period.

    Args:
        number: how many.
        period: "lifetime", "day", "week" or "month".

    Raises:
        ConfigurationError: a number below 1, or another period.
    """

    number: int
    period: str

    def __post_init__(self) -> None:
        check_whole("most", self.number, 1)
        if self.period not in PERIODS:
            raise ConfigurationError(f"period: expected one of {', '.join(PERIODS)}, got {self.period!r}")


@dataclass(frozen=True)
class Seen:
    """A question that was asked.

    Args:
        number: of the question, 1 for the first of its principal.
        first: number of the question that it is another look at; its own where it is the first.
        sketch: what it is compared by.
    """

    number: int
    first: int
    sketch: bytes


Place = Callable[[Sequence[int], int, Sequence[Seen]], Sequence[int]]
"""place(positions, number, later) -> for the new questions at these positions of what is asked, numbered from `number`
on, the number of the first question each is a look at, or its own; `later` are those asked after `Looks.after`."""


@dataclass(frozen=True)
class Looks:
    """Which questions are alike, and how many looks at one thing there may be, the first question included.

    Args:
        space: what sketches can be compared: only questions of the same space are.
        sketches: of each digest.
        after: number of the last question that `place` knows.
        place: see `Place`. It runs inside the transaction: it must be quick and not use the ledger.
        most: all of these hold.
    """

    space: str
    sketches: Sequence[bytes]
    after: int
    place: Place
    most: tuple[Most, ...]


class Questions:
    """Counts the distinct questions of each client, durably and exactly; threads and processes may share the database.

    Args:
        url: of a ledger, as of `Ledger`, which is made if there is none; None: in memory, by this process alone, and
            forgotten when it ends.
        timeout: seconds to wait for others who write.
        clock: microseconds since 1970, for tests.

    Raises:
        ConfigurationError, InputError, LedgerError, MissingExtraError: as `Ledger`.
    """

    def __init__(self, url: str | None, *, timeout: float = 10.0, clock: Callable[[], int] | None = None) -> None:
        self._storage: Storage = MemoryStorage(timeout, clock) if url is None else open_storage(url, timeout, clock)
        prepare(self._storage)
        self.identity, self._secret = identity_of(self._storage.read)
        self.lasting = url is not None
        self._durable: dict[str, int] = {}  # client -> number of a question that is known to be on the disk

    def ask(self, client: str, digests: Sequence[bytes], most: Most, looks: Callable[[], Looks] | None = None) -> int:
        """Count questions, all or none. What this client asked before, whenever, is free.

        Args:
            client: who asks.
            digests: of the questions; two of one digest are one question. They are stored under the ledger's secret.
            most: limit on new questions; a number that was granted, to this client or to everybody, takes its place.
            looks: makes what says which questions are alike, and how many such there may be; called before the
                transaction, if there is anything new.

        Returns:
            How many of them were new. They are durable.

        Raises:
            BudgetExhausted: the new ones do not all fit; none was counted. Of several limits, the one that renews last
                is told.
            LedgerError: the database cannot be written; if it failed during the commit, they may have been counted, and
                asking again is then free.
        """
        name, asked = principal_name(client), list(map(self.keyed, digests))
        found = _known(self._storage.read, name, asked)
        if len(found) == len(set(asked)):
            number = max(found.values(), default=0)
            if number > self._durable.get(name, 0):  # another process may have committed it a moment ago
                self._storage.sync()
                self._remember(name, number)
            return 0
        alike = None if looks is None else looks()
        with self._storage.transaction() as execute:
            now = _clock(execute, self._storage)
            granted = _granted(execute, name)
            limit = most if granted is None else Most(granted, most.period)
            numbers = _record(execute, name, now, asked, limit, alike)
        if numbers:
            self._remember(name, numbers[-1])
        return len(numbers)

    def _remember(self, client: str, number: int) -> None:
        if len(self._durable) >= MOST_REMEMBERED:
            self._durable.clear()  # costs each of them a sync
        self._durable[client] = number

    def keyed(self, digest: bytes) -> bytes:
        """HMAC-SHA256 of a digest under the secret of the ledger, 32 bytes: what it stores of a question.

        A log that names questions by it cannot be searched by digesting guesses, unless the reader has the ledger too.
        """
        return keyed_digest(self._secret, digest)

    def seen(self, client: str, space: str, after: int = 0) -> list[Seen]:
        """Questions of a client whose sketches are of one space, in their order, from the next after a number on."""
        return _seen(self._storage.read, principal_name(client), records.text("space", space), after)

    def counts(self) -> dict[str, int]:
        """Client -> distinct questions over all time, by name."""
        rows = self._storage.read("SELECT principal, MAX(number) FROM ledger_questions GROUP BY principal", ())
        return dict(sorted((name, int(number)) for name, number in rows))

    def grants(self) -> dict[str, int]:
        """Client (`EVERYBODY` for all others) -> the number of distinct questions of a period that was granted last."""
        return dict(self._storage.read("SELECT principal, questions FROM ledger_question_grants ORDER BY id", ()))

    def grant(self, client: str | None, questions: int, note: str = "") -> None:
        """Replace the limit of a client, or with None of everybody to whom no number was granted, from now on.

        Raises:
            ConfigurationError: not a number from 1 up.
            LedgerError: the database cannot be written.
        """
        row = (EVERYBODY if client is None else principal_name(client), check_whole("questions", questions, 1))
        with self._storage.transaction() as execute:
            now = _clock(execute, self._storage)
            execute(
                "INSERT INTO ledger_question_grants (principal, questions, time, note) VALUES (?, ?, ?, ?)",
                (*row, now, records.text("note", note)),
            )

    def served(self, name: str, limits: Mapping[str, Any]) -> None:
        """Store what a service that counts here enforces for each client, in place of what it stored before.

        `safexplain ledger show` prints it.

        Args:
            name: of the service.
            limits: JSON types, as {"questions": 200, "period": "week"}.
        """
        row = (records.text("name", name), records.as_json("limits", limits))
        with self._storage.transaction() as execute:
            execute(
                "INSERT INTO ledger_services VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET limits = excluded.limits",
                row,
            )

    def services(self) -> dict[str, dict[str, Any]]:
        """What each service `served`, by its name."""
        rows = self._storage.read("SELECT name, limits FROM ledger_services ORDER BY name", ())
        return {name: json.loads(limits) for name, limits in rows}

    def verify(self) -> int:
        """Whether the questions of each client are numbered without a gap; how many there are.

        Raises:
            LedgerError: they are not.
        """
        sql = (
            "SELECT principal, COUNT(*), MIN(number), MAX(number), SUM(CASE WHEN first < 1 OR first > number THEN 1"
            " ELSE 0 END) FROM ledger_questions GROUP BY principal"
        )
        rows = self._storage.read(sql, ())
        if wrong := [name for name, total, least, most, stray in rows if (least, most) != (1, total) or stray]:
            raise LedgerError(
                f"the ledger is damaged: the questions of {wrong[0]!r} are not numbered without a gap. Restore it"
                " from a backup, and look who can write it"
            )
        return sum(int(row[1]) for row in rows)

    def backup(self, path: Path) -> None:
        """Write a copy of the whole ledger; see `safexplain.ledger.inspection.copy`."""
        copy(self._storage, path)

    def ping(self) -> None:
        """Raise LedgerError where the database cannot be reached."""
        self._storage.read("SELECT version FROM ledger_schema_version", ())

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        self._storage.close()

    def __enter__(self) -> Questions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _clock(execute: Execute, storage: Storage) -> int:
    """Inside a transaction: the time, which never goes back; others who write wait from here on."""
    now = storage.lock(execute)
    [(last,)] = execute("SELECT time FROM ledger_accounts WHERE principal = ''", ())
    if now > last:
        execute("UPDATE ledger_accounts SET time = ? WHERE principal = ''", (now,))
    return max(now, int(last))


def _granted(execute: Execute, client: str) -> int | None:
    """What a client may ask in a period; None: nothing was granted to it or to everybody."""
    sql = (
        "SELECT questions FROM ledger_question_grants WHERE principal IN (?, ?)"
        " ORDER BY CASE principal WHEN '' THEN 1 ELSE 0 END, id DESC LIMIT 1"
    )
    rows = execute(sql, (client, EVERYBODY))
    return int(rows[0][0]) if rows else None


def _known(execute: Execute, client: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Digest -> number, of those that the client asked before."""
    query = "SELECT digest, number FROM ledger_questions WHERE principal = ? AND digest IN"
    return {bytes(digest): number for digest, number in rows_of(execute, query, (client,), digests)}


def _seen(execute: Execute, client: str, space: str, after: int) -> list[Seen]:
    query = (
        "SELECT number, first, sketch FROM ledger_questions WHERE principal = ? AND space = ? AND number > ?"
        " ORDER BY number LIMIT ?"
    )
    rows = paged(execute, query, (client, space), after)
    return [Seen(number, first, bytes(sketch)) for number, first, sketch in rows]


def _last(execute: Execute, client: str, before: int | None = None) -> int:
    """Number of a client's last question, or of the last one before a time; 0: none."""
    when, values = ("", ()) if before is None else ("AND time < ? ", (before,))
    sql = f"SELECT number FROM ledger_questions WHERE principal = ? {when}ORDER BY time DESC, number DESC LIMIT 1"
    rows = execute(sql, (client, *values))
    return int(rows[0][0]) if rows else 0


def _record(
    execute: Execute, client: str, now: int, digests: Sequence[bytes], most: Most, looks: Looks | None
) -> list[int]:
    """Inside a transaction that holds the ledger: number and record the questions that are new.

    Raises:
        BudgetExhausted: as `Questions.ask`.
    """
    old, before = _known(execute, client, digests), _last(execute, client)
    positions = {digest: i for i, digest in reversed(list(enumerate(digests))) if digest not in old}
    new = sorted(positions.values())
    numbers = list(range(before + 1, before + 1 + len(new)))
    if not new:
        return numbers
    begun = period_start(most.period, now)
    asked = before - (_last(execute, client, begun) if begun else 0)
    refusals = [_refusal(client, now, most, len(new), asked)]
    first: Sequence[int] = numbers
    if looks is not None:
        first = looks.place(new, before + 1, _seen(execute, client, looks.space, looks.after))
        for limit in looks.most:
            for number, times in Counter(first).items():
                looked = _looked(execute, client, number, period_start(limit.period, now)) if number <= before else 0
                refusals.append(
                    _refusal(client, now, limit, times, looked, " too close to earlier ones", " about one map")
                )
    if told := [refusal for refusal in refusals if refusal is not None]:
        raise max(told, key=lambda r: r.renews or datetime.max.replace(tzinfo=UTC))
    rows = [
        (client, n, digests[i], now, f, looks and looks.space, looks and looks.sketches[i])
        for n, f, i in zip(numbers, first, new, strict=True)
    ]
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        execute(
            "INSERT INTO ledger_questions (principal, number, digest, time, first, space, sketch) VALUES "
            + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(part)),
            [value for row in part for value in row],
        )
    return numbers


def _looked(execute: Execute, client: str, first: int, since: int) -> int:
    """How many looks at what a question was the first about there were from a time on."""
    sql = "SELECT COUNT(*) FROM ledger_questions WHERE principal = ? AND first = ? AND time >= ?"
    return int(execute(sql, (client, first, since))[0][0])


def _refusal(
    client: str, now: int, limit: Most, new: int, asked: int, which: str = "", about: str = ""
) -> BudgetExhausted | None:
    """Of so many new questions where so many were asked; None: they fit."""
    if asked + new <= limit.number:
        return None
    renewal = next_period(limit.period, now)
    period = "over all time" if limit.period == "lifetime" else f"a {limit.period}"
    when = f"; the count renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else "; the count never renews"
    return BudgetExhausted(
        f"principal {client!r}: {new} new question{'s' if new > 1 else ''}{which} would exceed {limit.number}"
        f" {period}{about}, {asked} being asked; none was counted{when}",
        principal=client, requested=new, spent=asked, budget=limit.number, renews=renewal,
    )  # fmt: skip
