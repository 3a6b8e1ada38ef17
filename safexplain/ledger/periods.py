"""Calendar periods of budgets, in UTC; instants are microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
