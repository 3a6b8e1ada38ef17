"""Accounts: the budgets of a ledger, what was spent of them, and whether a release still fits.

`Settings` are the budgets that a ledger was made with. A `Balance` is a row of the table of accounts: the running sums
of one principal in its current period. `Balances` are those of a principal and of all principals together, read and
locked inside a transaction; entries are charged to both, and both are written back. Nothing here knows which database
it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from safexplain._privacy_loss import check_adjacency
from safexplain._validate import check_number, check_whole
from safexplain.errors import BudgetExhausted, ConfigurationError, LedgerError
from safexplain.ledger.composition import Budget, Composition, epsilon_alone
from safexplain.ledger.curves import Concentrated, Renyi
from safexplain.ledger.records import CHARGE_COLUMNS, PERIODS, Account, Charge, begins, charge_of, renews
from safexplain.ledger.releases import Gaussian, Release, to_json
from safexplain.ledger.storage import Storage
from safexplain.ledger.storage.schema import VERSION, Execute, check_version, identity_of, migrate, name_ledger

NOTHING = Composition()
TOTAL = ""
"""The principal whose account is that of all together."""

ACCOUNT_COLUMNS = (
    "principal, period, time, rule, alpha, prefix_epsilon, prefix_delta, epsilon, delta, loss, unbounded, charges,"
    " granted_epsilon, granted_delta, questions, granted_questions"
)
_NAMES = ACCOUNT_COLUMNS.split(", ")
_ROW = f"({', '.join('?' * len(_NAMES))})"
_STORE = f"INSERT INTO ledger_accounts ({ACCOUNT_COLUMNS}) VALUES "
_REPLACE = f" ON CONFLICT (principal) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NAMES[1:])}"
_INSERT = (
    "INSERT INTO ledger_charges (principal, period, time, mechanism, parameters, release, question, digest, repeated)"
    f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {CHARGE_COLUMNS}"
)


@dataclass(frozen=True)
class Settings:
    """Budgets of a ledger, as `Ledger` takes and checks them. What is None was not given."""

    epsilon: float | None = None
    delta: float | None = None
    period: str | None = None
    total_epsilon: float | None = None
    total_delta: float | None = None
    questions: float | None = None
    adjacency: str | None = None

    def __post_init__(self) -> None:
        if self.adjacency is not None:
            check_adjacency(self.adjacency)
        for name in ("epsilon", "total_epsilon"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_number(name, getattr(self, name), above=0))
        for name in ("delta", "total_delta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_number(name, getattr(self, name), minimum=0, below=1))
        if self.period is not None and self.period not in PERIODS:
            raise ConfigurationError(f"period: expected one of {', '.join(PERIODS)}, got {self.period!r}")
        if self.total_delta is not None and self.total_epsilon is None and self.epsilon is not None:
            raise ConfigurationError("total_delta= needs total_epsilon=: without it there is no limit on the total")
        if self.questions is not None and self.questions != math.inf:
            check_whole("questions", self.questions, 1)

    def completed(self) -> Settings:
        """With defaults in place of what was not given.

        Raises:
            ConfigurationError: neither epsilon nor questions, or only parts of a budget of epsilon.
        """
        if self.epsilon is None and (self.questions is None or self.delta or self.total_epsilon or self.total_delta):
            raise ConfigurationError(
                "there is no ledger yet, and a new one needs a budget; for example Ledger(url, epsilon=1.0,"
                ' delta=1e-6), or Ledger(url, questions=1000, period="day") to count questions alone'
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


@dataclass(frozen=True)
class Balance:
    """A row of accounts.

    Args:
        principal: whose.
        period: when it began, microseconds; 0 for a lifetime.
        time: of the last charge.
        sums: of this period.
        granted: a budget of its own, or None.
        questions: distinct ones counted, over all time.
        granted_questions: a limit of its own on those of a period, or None; of the total, everybody's.
    """

    principal: str
    period: int = 0
    time: int = 0
    sums: Composition = NOTHING
    granted: Budget | None = None
    questions: int = 0
    granted_questions: int | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Balance:
        """From a row of ACCOUNT_COLUMNS.

        Raises:
            LedgerError: its sums are not numbers.
        """
        principal, period, time, rule, order, *sums, unbounded, charges, epsilon, delta, questions, most = row
        try:
            prefix_epsilon, prefix_delta, spent, failures = map(int, sums[:4])
            losses = tuple(map(int, sums[4].split()))
            found = Composition(rule, order, prefix_epsilon, prefix_delta, spent, failures, losses, unbounded, charges)
            granted = None if epsilon is None else Budget(float(epsilon), float(delta))
        except (TypeError, ValueError):
            raise LedgerError(f"the account of {principal!r} is damaged; restore the ledger from a backup") from None
        return cls(principal, period, time, found, granted, questions, most)

    @property
    def row(self) -> tuple[Any, ...]:
        """Values of ACCOUNT_COLUMNS."""
        s = self.sums
        granted = (None, None) if self.granted is None else (self.granted.epsilon, self.granted.delta)
        head = (self.principal, self.period, self.time, s.rule, s.order)
        asked = (self.questions, self.granted_questions)
        sums = map(str, (s.prefix_epsilon, s.prefix_delta, s.epsilon, s.delta))
        return (*head, *sums, " ".join(map(str, s.loss)), s.unbounded, s.charges, *granted, *asked)


def _agree_on_neighbours(execute: Execute, adjacency: str) -> None:
    """Inside a transaction: the first release that names its neighbours names those of the ledger."""
    rows = execute("SELECT value FROM ledger_settings WHERE name = 'adjacency'", ())
    stored = json.loads(rows[0][0]) if rows else None
    if stored is None:
        execute("DELETE FROM ledger_settings WHERE name = 'adjacency'", ())
        execute("INSERT INTO ledger_settings VALUES ('adjacency', ?)", (json.dumps(adjacency),))
    elif stored != adjacency:
        raise ConfigurationError(
            f"the release is about neighbours under {adjacency}, this ledger about {stored}: sums of both would mean"
            " nothing. Compute its curve under the ledger's, or keep two ledgers"
        )


def save_balances(execute: Execute, *balances: Balance) -> None:
    """Write rows of accounts."""
    values = [value for balance in balances for value in balance.row]
    execute(_STORE + ", ".join([_ROW] * len(balances)) + _REPLACE, values)


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
class Balances:
    """The account of one principal, in the period that `time` lies in, and that of all together.

    The time, in microseconds, is not before anything recorded.
    """

    settings: Settings
    time: int
    total: Balance
    mine: Balance

    @classmethod
    def open(cls, execute: Execute, settings: Settings, principal: str, now: int) -> Balances:
        """Read both accounts, at `now` microseconds since 1970."""
        rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts WHERE principal IN (?, ?)", (TOTAL, principal))
        return cls.of(settings, {row[0]: Balance.of(row) for row in rows}, principal, now)

    @classmethod
    def of(cls, settings: Settings, found: Mapping[str, Balance], principal: str, now: int) -> Balances:
        """From accounts that were read.

        Raises:
            LedgerError: there is none of the total.
        """
        if TOTAL not in found:
            raise LedgerError("the ledger has no account of the total; restore it from a backup")
        time = max(now, found[TOTAL].time)
        mine, begun = found.get(principal, Balance(principal)), begins(settings.period or "", time)
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

    def charged(self, entries: list[Entry]) -> Balances:
        """The balances after some releases.

        Raises:
            BudgetExhausted: one of them does not fit.
            ConfigurationError: a Gaussian release or a Renyi curve without delta.
        """
        if self.settings.epsilon is None and self.mine.granted is None:
            raise ConfigurationError(
                "this ledger counts questions and has no budget of epsilon; make another one with epsilon=, or give"
                " this principal one with `safexplain ledger grant`"
            )
        mine, total = self.mine.sums, self.total.sums
        limit = self.total_budget
        opening = limit if math.isfinite(limit.epsilon) else Budget(self.settings.each.epsilon, limit.delta)
        for entry in entries:
            if isinstance(entry.release, Gaussian | Concentrated | Renyi) and not (
                self.budget.delta and (limit.delta or limit is not opening)
            ):
                what = "a Gaussian release" if isinstance(entry.release, Gaussian) else "a Renyi curve"
                raise ConfigurationError(f"{what} needs a budget with delta above 0, as Ledger(..., delta=1e-6)")
            mine = self._checked(mine.add(entry.release, self.budget), mine, self.budget, entry, self.mine.principal)
            if not entry.repeated:
                total = self._checked(total.add(entry.release, opening), total, limit, entry, None)
        return replace(
            self,
            total=replace(self.total, time=self.time, sums=total),
            mine=replace(self.mine, time=self.time, sums=mine),
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

    def record(self, execute: Execute, entries: list[Entry]) -> list[Charge]:
        """Store both accounts and record the entries that brought them here.

        Raises:
            ConfigurationError: a release speaks of other neighbours than the ledger.
        """
        for entry in entries:
            if adjacency := getattr(entry.release, "adjacency", ""):
                _agree_on_neighbours(execute, adjacency)
        self.save(execute)
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

    def granted(self, budget: Budget | None, questions: int | None) -> Balances:
        """The balances after a grant; what is None stays."""

        def with_grant(balance: Balance) -> Balance:
            limit = balance.granted_questions if questions is None else questions
            return replace(balance, granted=budget or balance.granted, granted_questions=limit)

        total = replace(self.total, time=self.time)
        if self.mine.principal == TOTAL:
            return replace(self, total=with_grant(total))
        return replace(self, mine=with_grant(self.mine), total=total)

    def asked(self, new: int) -> Balances:
        """The balances after so many new questions."""
        mine = replace(self.mine, time=self.time, questions=self.mine.questions + new)
        return replace(self, mine=mine, total=replace(self.total, time=self.time, questions=self.total.questions + new))

    @property
    def were_questions_granted(self) -> bool:
        """Whether a limit on them was granted, to the principal or to everybody."""
        return self.mine.granted_questions is not None or self.total.granted_questions is not None

    @property
    def most_questions(self) -> int | None:
        """Of the principal in a period; None: no limit."""
        limits = (self.mine.granted_questions, self.total.granted_questions, self.settings.questions)
        found = next((limit for limit in limits if limit is not None), math.inf)
        return None if found == math.inf else int(found)

    def save(self, execute: Execute) -> None:
        """Write both accounts back."""
        save_balances(execute, *([self.mine] if self.mine.principal != TOTAL else []), self.total)

    def account(self, questions: int) -> Account:
        """How the principal stands, with this many questions in this period; of all together where these were opened
        for the total."""
        whole = self.mine.principal == TOTAL
        balance, budget = (self.total, self.total_budget) if whole else (self.mine, self.budget)
        spent, period = balance.sums.spent(budget), "lifetime" if whole else self.settings.period or ""
        return Account(
            balance.principal, spent, max(0.0, budget.epsilon - spent) if spent < math.inf else 0.0, budget.epsilon,
            budget.delta, balance.sums.charges, period, renews(period, self.time), balance.sums.rule,
            balance.questions if whole else questions, None if whole else self.most_questions,
        )  # fmt: skip


def prepare(storage: Storage, given: Settings) -> Settings:
    """The settings that hold for the ledger in a storage, which is made if it is not there.

    Raises:
        ConfigurationError: there is no ledger and no budget for one, or other settings are stored.
        LedgerError: the database cannot be used, or is of a newer version.
    """
    if not storage.lasting and (given.questions is None or given.epsilon is not None):
        raise ConfigurationError(
            "a ledger in memory would forget what was spent; it counts questions alone: questions= without epsilon="
        )
    at = storage.version() if storage.exists() else None
    check_version(at)
    if at is None:
        given.completed()  # before a file is made
        storage.make()
    if at != VERSION:
        with storage.transaction() as execute:
            at = storage.version(execute)  # somebody may have been faster
            if at != VERSION:
                migrate(execute, storage.identity, at)
                name_ledger(execute)
            if at is None:
                given.completed().save(execute)
                save_balances(execute, Balance(TOTAL))
    storage.ledger = identity_of(storage.read)
    stored = Settings.load(storage.read("SELECT name, value FROM ledger_settings"))
    given.agree(stored)
    return stored
