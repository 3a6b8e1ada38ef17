"""How an account stands: a row of the table of accounts, read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safexplain.errors import LedgerError
from safexplain.ledger.composition import Budget, Composition
from safexplain.ledger.storage.schema import Execute

NOTHING = Composition()
TOTAL = ""
"""The principal whose account is that of all together."""

ACCOUNT_COLUMNS = (
    "principal, period, time, rule, alpha, prefix_epsilon, prefix_delta, epsilon, delta, loss, unbounded, charges,"
    " granted_epsilon, granted_delta"
)
_NAMES = ACCOUNT_COLUMNS.split(", ")
_ROW = f"({', '.join('?' * len(_NAMES))})"
_STORE = f"INSERT INTO ledger_accounts ({ACCOUNT_COLUMNS}) VALUES "
_REPLACE = f" ON CONFLICT (principal) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NAMES[1:])}"


@dataclass(frozen=True)
class Standing:
    """A row of accounts.

    Args:
        principal: whose.
        period: when it began, microseconds; 0 for a lifetime.
        time: of the last charge.
        sums: of this period.
        granted: a budget of its own, or None.
    """

    principal: str
    period: int = 0
    time: int = 0
    sums: Composition = NOTHING
    granted: Budget | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Standing:
        """From a row of ACCOUNT_COLUMNS.

        Raises:
            LedgerError: its sums are not numbers.
        """
        principal, period, time, rule, order, *sums, unbounded, charges, epsilon, delta = row
        try:
            prefix_epsilon, prefix_delta, spent, failures = map(int, sums[:4])
            losses = tuple(map(int, sums[4].split()))
            found = Composition(rule, order, prefix_epsilon, prefix_delta, spent, failures, losses, unbounded, charges)
            granted = None if epsilon is None else Budget(float(epsilon), float(delta))
        except (TypeError, ValueError):
            raise LedgerError(f"the account of {principal!r} is damaged; restore the ledger from a backup") from None
        return cls(principal, period, time, found, granted)

    @property
    def row(self) -> tuple[Any, ...]:
        """Values of ACCOUNT_COLUMNS."""
        s = self.sums
        granted = (None, None) if self.granted is None else (self.granted.epsilon, self.granted.delta)
        head = (self.principal, self.period, self.time, s.rule, s.order)
        sums = map(str, (s.prefix_epsilon, s.prefix_delta, s.epsilon, s.delta))
        return (*head, *sums, " ".join(map(str, s.loss)), s.unbounded, s.charges, *granted)


def store(execute: Execute, *standings: Standing) -> None:
    """Write rows of accounts."""
    values = [value for standing in standings for value in standing.row]
    execute(_STORE + ", ".join([_ROW] * len(standings)) + _REPLACE, values)
