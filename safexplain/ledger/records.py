"""What a ledger hands out: accounts, charges, grants and answers.

Calendar periods of budgets, in UTC; instants are microseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from safexplain.errors import LedgerError
from safexplain.ledger.releases import Release, from_json

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
        delta: the same.
        charges: number of releases in this period.
        period: "lifetime", "day", "week" or "month".
        renews: when the next period begins, UTC; None: never.
        rule: which sums decide, see `safexplain.ledger.composition`; "" before the first release.
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


@dataclass(frozen=True)
class Charge:
    """A recorded release.

    Args:
        id: number in the ledger.
        principal: who was told.
        release: what it can reveal.
        mechanism: what made the answer.
        parameters: of the mechanism.
        time: UTC.
        period: when the period of the account began; None for a lifetime.
        question: SHA-256 of the question, or None.
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
    """

    value: Any
    charge: Charge | None


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
