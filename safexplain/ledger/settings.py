"""What a ledger was made with: budgets and period, stored in its database."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from safexplain.errors import ConfigurationError, LedgerError
from safexplain.ledger.arguments import number
from safexplain.ledger.composition import Budget
from safexplain.ledger.periods import PERIODS
from safexplain.ledger.storage.schema import Execute


@dataclass(frozen=True)
class Settings:
    """Budgets of a ledger. What is None was not given.

    Args:
        epsilon: of each principal and period.
        delta: the same.
        period: "lifetime", "day", "week" or "month".
        total_epsilon: of all principals together, for ever; None: no limit.
        total_delta: the same; None: delta.

    Raises:
        ConfigurationError: a value out of range.
    """

    epsilon: float | None = None
    delta: float | None = None
    period: str | None = None
    total_epsilon: float | None = None
    total_delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "total_epsilon"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_epsilon(name, getattr(self, name)))
        for name in ("delta", "total_delta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_delta(name, getattr(self, name)))
        if self.period is not None and self.period not in PERIODS:
            raise ConfigurationError(f"period: expected one of {', '.join(PERIODS)}, got {self.period!r}")
        if self.total_delta is not None and self.total_epsilon is None and self.epsilon is not None:
            raise ConfigurationError("total_delta= needs total_epsilon=: without it there is no limit on the total")

    def completed(self) -> Settings:
        """With defaults in place of what was not given.

        Raises:
            ConfigurationError: no epsilon.
        """
        if self.epsilon is None:
            raise ConfigurationError(
                "there is no ledger yet, and a new one needs a budget; for example Ledger(url, epsilon=1.0, delta=1e-6)"
            )
        delta = self.delta or 0.0
        total_delta = delta if self.total_delta is None else self.total_delta
        return replace(
            self,
            delta=delta,
            period=self.period or "lifetime",
            total_delta=None if self.total_epsilon is None else total_delta,
        )

    def save(self, execute: Execute) -> None:
        """Write them into a new ledger."""
        for name, value in asdict(self).items():
            execute("INSERT INTO ledger_settings VALUES (?, ?)", (name, json.dumps(value)))

    @classmethod
    def load(cls, rows: list[tuple[Any, ...]]) -> Settings:
        """From the rows that `save` wrote.

        Raises:
            LedgerError: they are damaged.
        """
        try:
            return cls(**{name: json.loads(value) for name, value in rows}).completed()
        except (TypeError, ValueError) as error:
            raise LedgerError(f"the ledger's settings are damaged ({error}); restore it from a backup") from None

    def agree(self, stored: Settings) -> None:
        """Raise ConfigurationError where what was given differs from what is stored."""
        for field in fields(self):
            given, found = getattr(self, field.name), getattr(stored, field.name)
            if given is not None and given != found:
                raise ConfigurationError(
                    f"{field.name}: this ledger was made with {found!r}, not {given!r}; leave it out to take what is"
                    " stored, and change what a principal may spend with `safexplain ledger grant`"
                )

    @property
    def each(self) -> Budget:
        """Of a principal to whom nothing else was granted."""
        return Budget(self.epsilon or 0.0, self.delta or 0.0)

    @property
    def total(self) -> Budget:
        """Of all principals together; epsilon may be infinite."""
        if self.total_epsilon is None:
            return Budget(math.inf, self.delta or 0.0)
        return Budget(self.total_epsilon, self.total_delta or 0.0)


def checked_epsilon(name: str, value: Any) -> float:
    """A budget's epsilon.

    Raises:
        ConfigurationError: it is out of range.
    """
    found = number(name, value)
    if not 0 < found < math.inf:
        raise ConfigurationError(f"{name}: expected a finite number above 0, got {value!r}")
    return found


def checked_delta(name: str, value: Any) -> float:
    """A budget's delta.

    Raises:
        ConfigurationError: it is out of range.
    """
    found = number(name, value)
    if not 0 <= found < 1:
        raise ConfigurationError(f"{name}: expected a number of at least 0 and below 1, got {value!r}")
    return found
