"""Accounts inside a transaction: read and locked, charged, written back. Nothing here knows which database it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from safexplain.errors import BudgetExhausted, ConfigurationError, LedgerError
from safexplain.ledger.composition import Budget, Composition
from safexplain.ledger.divergence import epsilon_alone
from safexplain.ledger.periods import begins, renews
from safexplain.ledger.records import CHARGE_COLUMNS, Account, Charge, charge_of
from safexplain.ledger.releases import Gaussian, Release, to_json
from safexplain.ledger.settings import Settings
from safexplain.ledger.standing import ACCOUNT_COLUMNS, NOTHING, TOTAL, Standing, store
from safexplain.ledger.storage.schema import Execute

_INSERT = (
    "INSERT INTO ledger_charges (principal, period, time, mechanism, parameters, release, question, digest, repeated)"
    f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {CHARGE_COLUMNS}"
)


@dataclass(frozen=True)
class Entry:
    """A release to charge; fields as in Charge, parameters as JSON."""

    release: Release
    mechanism: str = ""
    parameters: str = "{}"
    question: str | None = None
    digest: str | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Book:
    """The account of one principal and that of all together, at one time.

    Args:
        settings: of the ledger.
        time: microseconds, not before anything recorded.
        total: of all together.
        mine: of the principal, in the period that the time lies in.
    """

    settings: Settings
    time: int
    total: Standing
    mine: Standing

    @classmethod
    def open(cls, execute: Execute, settings: Settings, principal: str, now: int) -> Book:
        """Read both accounts.

        Args:
            execute: runs a statement.
            settings: of the ledger.
            principal: whose account.
            now: microseconds since 1970.
        """
        rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts WHERE principal IN (?, ?)", (TOTAL, principal))
        return cls.of(settings, {row[0]: Standing.of(row) for row in rows}, principal, now)

    @classmethod
    def of(cls, settings: Settings, found: Mapping[str, Standing], principal: str, now: int) -> Book:
        """From accounts that were read.

        Raises:
            LedgerError: there is none of the total.
        """
        if TOTAL not in found:
            raise LedgerError("the ledger has no account of the total; restore it from a backup")
        time = max(now, found[TOTAL].time)
        mine, begun = found.get(principal, Standing(principal)), begins(settings.period or "", time)
        if principal != TOTAL and mine.period != begun:
            mine = replace(mine, period=begun, sums=NOTHING)
        return cls(settings, time, found[TOTAL], mine)

    @property
    def budget(self) -> Budget:
        """Of the principal."""
        return self.mine.granted or self.settings.each

    @property
    def total_budget(self) -> Budget:
        """Of all together."""
        return self.total.granted or self.settings.total

    def with_entries(self, entries: list[Entry]) -> Book:
        """The book after some releases.

        Raises:
            BudgetExhausted: one of them does not fit.
            ConfigurationError: a Gaussian release without delta.
        """
        mine, total = self.mine.sums, self.total.sums
        limit = self.total_budget
        opening = limit if math.isfinite(limit.epsilon) else Budget(self.settings.each.epsilon, limit.delta)
        for entry in entries:
            if isinstance(entry.release, Gaussian) and not (
                self.budget.delta and (limit.delta or limit is not opening)
            ):
                raise ConfigurationError(
                    "a Gaussian release needs a budget with delta above 0, as Ledger(..., delta=1e-6)"
                )
            mine = self._checked(mine.add(entry.release, self.budget), mine, self.budget, entry, self.mine.principal)
            if not entry.repeated:
                total = self._checked(total.add(entry.release, opening), total, limit, entry, None)
        return Book(
            self.settings,
            self.time,
            Standing(TOTAL, 0, self.time, total, self.total.granted),
            Standing(self.mine.principal, self.mine.period, self.time, mine, self.mine.granted),
        )

    def _checked(
        self, after: Composition, before: Composition, budget: Budget, entry: Entry, principal: str | None
    ) -> Composition:
        if after.within(budget):
            return after
        asked, spent = epsilon_alone(entry.release, budget.delta), before.spent(budget)
        renewal = None if principal is None else renews(self.settings.period or "", self.time)
        whose = "all principals together" if principal is None else f"principal {principal!r}"
        when = f"; the budget renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else ""
        raise BudgetExhausted(
            f"{whose}: a release of epsilon {asked:.6g} does not fit, {spent:.6g} of {budget.epsilon:g} being spent at"
            f" delta {budget.delta:g}; nothing was charged{when}",
            principal=principal, requested=asked, spent=spent, budget=budget.epsilon, renews=renewal,
        )  # fmt: skip

    def write(self, execute: Execute, entries: list[Entry]) -> list[Charge]:
        """Store both accounts and record the entries that brought them here."""
        self.store(execute)
        who = self.mine.principal
        return [
            charge_of(
                execute(
                    _INSERT,
                    (who, self.mine.period, self.time, e.mechanism, e.parameters, to_json(e.release), e.question,
                     e.digest, int(e.repeated)),
                )[0]
            )
            for e in entries
        ]  # fmt: skip

    def with_budget(self, budget: Budget) -> Book:
        """The book after a grant."""
        if self.mine.principal == TOTAL:
            return replace(self, total=replace(self.total, granted=budget, time=self.time))
        return replace(self, mine=replace(self.mine, granted=budget), total=replace(self.total, time=self.time))

    def store(self, execute: Execute) -> None:
        """Write both accounts back."""
        store(execute, *([self.mine] if self.mine.principal != TOTAL else []), self.total)

    def account(self) -> Account:
        """How the principal stands; of all together where the book was opened for the total."""
        whole = self.mine.principal == TOTAL
        standing, budget = (self.total, self.total_budget) if whole else (self.mine, self.budget)
        spent, period = standing.sums.spent(budget), "lifetime" if whole else self.settings.period or ""
        return Account(
            standing.principal, spent, max(0.0, budget.epsilon - spent) if spent < math.inf else 0.0, budget.epsilon,
            budget.delta, standing.sums.charges, period, renews(period, self.time), standing.sums.rule,
        )  # fmt: skip
