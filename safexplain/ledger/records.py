"""What a ledger records and hands out: accounts, charges, grants and answers, and what may stand in them.

Instants are microseconds since 1970; periods of budgets are those of the calendar, in UTC.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from safexplain.errors import ConfigurationTypeError, InputError, LedgerError
from safexplain.ledger.releases import Release, from_json
from safexplain.ledger.storage.schema import Execute, paged

PERIODS = ("lifetime", "day", "week", "month")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(when: datetime) -> int:
    """Of a datetime with a time zone."""
    return (when - EPOCH) // timedelta(microseconds=1)


def instant(micros: int) -> datetime:
    """As a datetime in UTC."""
    return EPOCH + timedelta(microseconds=micros)


def begins(period: str, micros: int) -> int:
    """When the period that an instant lies in began; 0 for a lifetime. A week begins on Monday."""
    if period == "lifetime":
        return 0
    day = instant(micros).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        day -= timedelta(days=day.weekday())
    elif period == "month":
        day = day.replace(day=1)
    return microseconds(day)


def renews(period: str, micros: int) -> datetime | None:
    """When the next period begins; None for a lifetime."""
    if period == "lifetime":
        return None
    begun = instant(begins(period, micros))
    if period == "month":
        return begun.replace(year=begun.year + begun.month // 12, month=begun.month % 12 + 1)
    return begun + timedelta(days=7 if period == "week" else 1)


@dataclass(frozen=True)
class Account:
    """How a principal stands now.

    Args:
        principal: who; "" for all principals together.
        spent: epsilon spent in this period, at `delta`.
        remaining: `epsilon` less `spent`, at least 0.
        epsilon: budget of a period; infinite where there is none.
        delta: the same; of a total without a limit, the ledger's, or what it takes to hold all that was charged.
        charges: number of releases in this period.
        period: "lifetime", "day", "week" or "month".
        renews: when the next period begins, UTC; None: never.
        rule: which sums decide, see `safexplain.ledger.composition`; "" before the first release.
        trainings: how many of the releases were trainings, which everybody is told of.
        training_epsilon: what these alone come to, of what is spent.
    """

    principal: str
    spent: float
    remaining: float
    epsilon: float
    delta: float
    charges: int
    period: str
    renews: datetime | None
    rule: str = ""
    trainings: int = 0
    training_epsilon: float = 0.0


@dataclass(frozen=True)
class Charge:
    """A recorded release.

    Args:
        id: number in the ledger.
        principal: who was told; "" for a training, of which everybody is.
        release: what it can reveal.
        mechanism: what made the answer.
        parameters: of the mechanism.
        time: UTC.
        period: when the period of the account began; None for a lifetime.
        question: digest of the question under the ledger's secret, hexadecimal, or None.
        digest: SHA-256 of the answer as stored, or None for a charge without one.
        repeated: the answer had been made for another principal, so it was not counted again in the total.
    """

    id: int
    principal: str
    release: Release
    mechanism: str
    parameters: Mapping[str, Any]
    time: datetime
    period: datetime | None
    question: str | None = None
    digest: str | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Grant:
    """A budget that replaced another.

    Args:
        principal: whose; "" for all principals together.
        time: UTC.
        epsilon: of a period.
        delta: the same.
        note: why.
    """

    principal: str
    time: datetime
    epsilon: float
    delta: float
    note: str


@dataclass(frozen=True)
class Answer:
    """An answer, and what it cost.

    Args:
        value: as JSON gives it back.
        charge: None where it was free: this principal had been given it before.
        paid: number of the charge that paid for it, now or then.
    """

    value: Any
    charge: Charge | None
    paid: int


CHARGE_COLUMNS = "id, principal, period, time, mechanism, parameters, release, question, digest, repeated"


def charge_of(row: tuple[Any, ...]) -> Charge:
    """The charge in a row of CHARGE_COLUMNS.

    Raises:
        LedgerError: it is damaged.
    """
    number, principal, period, time, mechanism, parameters, release, question, digest, repeated = row
    try:
        return Charge(
            number, principal, from_json(release), mechanism, json.loads(parameters), instant(time),
            instant(period) if period else None, question, digest, bool(repeated),
        )  # fmt: skip
    except (TypeError, ValueError, OverflowError) as error:
        raise LedgerError(
            f"the ledger is damaged: charge {number} cannot be read ({error}); restore it from a backup"
        ) from None


def charges(read: Execute, principal: str | None = None, since: datetime | None = None) -> Iterator[Charge]:
    """As `Ledger.charges`."""
    where, values = "", list[Any]()
    if principal is not None:
        where, values = "principal = ? AND ", [principal]
    if since is not None:
        if not isinstance(since, datetime):
            raise ConfigurationTypeError(f"since: expected a datetime, got {since!r}")
        since = since if since.tzinfo else since.replace(tzinfo=UTC)
        where, values = where + "time >= ? AND ", [*values, microseconds(since)]
    query = f"SELECT {CHARGE_COLUMNS} FROM ledger_charges WHERE {where}id > ? ORDER BY id LIMIT ?"
    return map(charge_of, paged(read, query, values))


def grants(read: Execute) -> list[Grant]:
    """Every budget that replaced another, oldest first."""
    rows = read("SELECT principal, time, epsilon, delta, note FROM ledger_grants ORDER BY id", ())
    return [Grant(name, instant(time), *rest) for name, time, *rest in rows]


def named(principal: str) -> str:
    """A principal's name in Unicode's normal form KC: spellings that look the same are one account. Case is kept.

    Raises:
        InputError: empty, longer than 500 bytes of UTF-8, or with white space outside, control or format characters.
    """
    if not isinstance(principal, str):
        raise ConfigurationTypeError(f"principal: expected a name, got {type(principal).__name__}")
    name = unicodedata.normalize("NFKC", text("principal", principal))
    if not 0 < len(name.encode()) <= 500 or name != name.strip() or not name.isprintable():
        raise InputError(
            "principal: expected 1 to 500 bytes of UTF-8, without white space before or after, control or format"
            f" characters, got {principal[:40]!a}"
        )
    return name


def text(name: str, value: Any) -> str:
    """Text that every database keeps as it is.

    Raises:
        InputError: it has a NUL, or characters that UTF-8 does not.
    """
    found = str(value)
    if "\0" in found or found.encode(errors="ignore").decode() != found:  # what UTF-8 cannot hold
        raise InputError(f"{name}: expected text in UTF-8 without NUL, got {found[:40]!a}")
    return found


def described(mechanism: str, parameters: Mapping[str, Any] | None) -> tuple[str, str]:
    """What is recorded beside a release."""
    return text("mechanism", mechanism), as_json("parameters", parameters or {})


def as_json(name: str, value: Mapping[str, Any]) -> str:
    """A mapping as it is stored.

    Raises:
        InputError: it is not of JSON types.
    """
    try:
        return json.dumps(dict(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: expected a mapping of JSON types without NaN or infinity ({error})") from None
