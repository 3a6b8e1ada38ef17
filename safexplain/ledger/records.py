"""What a ledger records and returns; times are microseconds since 1970, UTC."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from safexplain.errors import ConfigurationTypeError, InputError, LedgerError
from safexplain.ledger.releases import Release, from_json
from safexplain.ledger.storage import Execute, paged

PERIODS = ("lifetime", "day", "week", "month")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(when: datetime) -> int:
    """Microseconds since 1970 of a datetime with a time zone."""
    return (when - EPOCH) // timedelta(microseconds=1)


def instant(micros: int) -> datetime:
    """Datetime in UTC."""
    return EPOCH + timedelta(microseconds=micros)


def period_start(period: str, micros: int) -> int:
    """Start of the period that contains a time; 0 for a lifetime. Weeks start on Monday."""
    if period == "lifetime":
        return 0
    day = instant(micros).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        day -= timedelta(days=day.weekday())
    elif period == "month":
        day = day.replace(day=1)
    return microseconds(day)


def next_period(period: str, micros: int) -> datetime | None:
    """Start of the next period; None for a lifetime."""
    if period == "lifetime":
        return None
    begun = instant(period_start(period, micros))
    if period == "month":
        return begun.replace(year=begun.year + begun.month // 12, month=begun.month % 12 + 1)
    return begun + timedelta(days=7 if period == "week" else 1)


@dataclass(frozen=True)
class Account:
    """The balance of a principal.

    Args:
        principal: name; "" for all principals together.
        spent: epsilon spent in this period, at `delta`.
        remaining: `epsilon` minus `spent`, at least 0.
        epsilon: budget of a period; infinite: no limit.
        delta: of the budget; without a limit, the ledger's, or as much as all charges need.
        charges: number of releases in this period.
        period: "lifetime", "day", "week" or "month".
        renews: start of the next period, UTC; None: never.
        rule: how releases add up, "basic" or "renyi"; "" before the first.
        trainings: number of trainings among the releases.
        training_epsilon: epsilon of these alone, included in `spent`.
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
        principal: who got the answer; "" for a training.
        release: bound on what the answer reveals.
        mechanism: that made the answer.
        parameters: of the mechanism.
        time: UTC.
        period: start of the account's period; None for a lifetime.
        question: hexadecimal digest of the question under the ledger's secret.
        digest: SHA-256 of the stored answer.
        repeated: another principal had got the answer, so the total was not charged again.
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
        principal: name; "" for all principals together.
        time: UTC.
        epsilon: of a period.
        delta: of a period.
        note: reason.
    """

    principal: str
    time: datetime
    epsilon: float
    delta: float
    note: str


@dataclass(frozen=True)
class Answer:
    """An answer and its cost.

    Args:
        value: JSON types.
        charge: None if this principal had received it before.
        paid: number of the charge that paid for it.
    """

    value: Any
    charge: Charge | None
    paid: int


CHARGE_COLUMNS = "id, principal, period, time, mechanism, parameters, release, question, digest, repeated"


def charge_from_row(row: tuple[Any, ...]) -> Charge:
    """The charge in a row of CHARGE_COLUMNS."""
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
    return map(charge_from_row, paged(read, query, values))


def grants(read: Execute) -> list[Grant]:
    """Every budget that replaced another, oldest first."""
    rows = read("SELECT principal, time, epsilon, delta, note FROM ledger_grants ORDER BY id", ())
    return [Grant(name, instant(time), *rest) for name, time, *rest in rows]


def principal_name(principal: str) -> str:
    """A principal's name in NFKC, so that spellings that look the same are one account, or InputError."""
    if not isinstance(principal, str):
        raise ConfigurationTypeError(f"principal: expected a name, got {type(principal).__name__}")
    name = unicodedata.normalize("NFKC", text("principal", principal))
    if not 0 < len(name.encode()) <= 500 or name != name.strip() or not name.isprintable():
        raise InputError(
            "principal: expected 1 to 500 bytes of UTF-8 without surrounding white space, control or format"
            f" characters, got {principal[:40]!a}"
        )
    return name


def text(name: str, value: Any) -> str:
    """Text that every database stores unchanged, or InputError."""
    found = str(value)
    if "\0" in found or found.encode(errors="ignore").decode() != found:
        raise InputError(f"{name}: expected text in UTF-8 without NUL, got {found[:40]!a}")
    return found


def mechanism_columns(mechanism: str, parameters: Mapping[str, Any] | None) -> tuple[str, str]:
    """Mechanism and parameters as they are recorded."""
    return text("mechanism", mechanism), as_json("parameters", parameters or {})


def as_json(name: str, value: Mapping[str, Any]) -> str:
    """A mapping as it is stored, or InputError."""
    try:
        return json.dumps(dict(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: expected a mapping of JSON types without NaN or infinity ({error})") from None
