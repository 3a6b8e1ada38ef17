"""What was recorded, read back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from safexplain.errors import ConfigurationTypeError
from safexplain.ledger.periods import instant, microseconds
from safexplain.ledger.records import CHARGE_COLUMNS, Charge, Grant, charge_of
from safexplain.ledger.storage.schema import Execute

PAGE = 1000
"""Rows read at once."""


def charges(read: Execute, principal: str | None = None, since: datetime | None = None) -> Iterator[Charge]:
    """Recorded releases, oldest first; no transaction stays open between pages.

    Args:
        read: runs a statement.
        principal: only of this one.
        since: only from this time on; without a time zone it is UTC.
    """
    where, values = "", list[Any]()
    if principal is not None:
        where, values = " AND principal = ?", [principal]
    if since is not None:
        if not isinstance(since, datetime):
            raise ConfigurationTypeError(f"since: expected a datetime, got {since!r}")
        since = since if since.tzinfo else since.replace(tzinfo=UTC)
        where, values = where + " AND time >= ?", [*values, microseconds(since)]
    query = f"SELECT {CHARGE_COLUMNS} FROM ledger_charges WHERE id > ?{where} ORDER BY id LIMIT {PAGE}"
    last = 0
    while rows := read(query, (last, *values)):
        yield from map(charge_of, rows)
        last = rows[-1][0]


def grants(read: Execute) -> list[Grant]:
    """Every budget that replaced another, oldest first."""
    rows = read("SELECT principal, time, epsilon, delta, note FROM ledger_grants ORDER BY id", ())
    return [Grant(name, instant(time), *rest) for name, time, *rest in rows]
