"""Accounts: the budgets of a ledger, what was spent of them, and whether a release still fits.

`Settings` are the budgets that a ledger was made with. A `Balance` is a row of the table of accounts: the running sums
of one principal in its current period. `Balances` are those of a principal and of all principals together, read and
locked inside a transaction; entries are charged to both, and both are written back. Nothing here knows which database
it is.

A training is told to everybody: its charge is one of the total, principal "", and counts in every account of the period
that it was made in. Accounts that are there then get it in that moment (`safexplain.ledger.trainings`); an account that
is opened later, or begins a new period, begins with the trainings of that period.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from safexplain._privacy_loss import check_adjacency
from safexplain._validate import check_number
from safexplain.errors import BudgetExhausted, ConfigurationError, LedgerError
from safexplain.ledger.composition import FAILURES, Budget, Composition, amount, budgeted, charged, epsilon_alone
from safexplain.ledger.curves import Concentrated, Renyi
from safexplain.ledger.records import CHARGE_COLUMNS, PERIODS, Account, Charge, begins, charge_of, renews
from safexplain.ledger.releases import Release, Training, from_json, to_json
from safexplain.ledger.storage.schema import Execute

NOTHING = Composition()
TOTAL = ""
"""The principal whose account is that of all together."""

ACCOUNT_COLUMNS = (
    "principal, period, time, rule, alpha, prefix_epsilon, prefix_delta, epsilon, delta, losses, unbounded, charges,"
    " granted_epsilon, granted_delta"
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
            adjacency=self.adjacency or "substitute",
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

    @property
    def opening(self) -> Budget:
        """By which the total chooses its rule; finite."""
        return Budget(self.total_epsilon or self.each.epsilon, self.total.delta)


@dataclass(frozen=True)
class Balance:
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
    def of(cls, row: tuple[Any, ...]) -> Balance:
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


def told(execute: Execute, since: int) -> list[Release]:
    """Trainings that everybody was told of from a time on, in their order."""
    rows = execute("SELECT release FROM ledger_charges WHERE principal = ? AND time >= ? ORDER BY id", (TOTAL, since))
    return [from_json(text) for (text,) in rows]


def added_up(releases: Sequence[Release], budget: Budget) -> Composition:
    """The sums of an account that begins with these."""
    sums = NOTHING
    for release in releases:
        sums = sums.add(release, budget)
    return sums


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
        found = {row[0]: Balance.of(row) for row in rows}
        return cls.of(settings, found, principal, now, lambda since: told(execute, since))

    @classmethod
    def of(
        cls,
        settings: Settings,
        found: Mapping[str, Balance],
        principal: str,
        now: int,
        trainings: Callable[[int], Sequence[Release]],
    ) -> Balances:
        """From accounts that were read, and the trainings since a time, which are asked for where one begins.

        Raises:
            LedgerError: there is none of the total.
        """
        if TOTAL not in found:
            raise LedgerError("the ledger has no account of the total; restore it from a backup")
        time = max(now, found[TOTAL].time)
        mine, begun = found.get(principal, Balance(principal)), begins(settings.period or "", time)
        if principal != TOTAL and (mine.period != begun or principal not in found):
            mine = replace(mine, period=begun, sums=added_up(trainings(begun), mine.granted or settings.each))
        return cls(settings, time, found[TOTAL], mine)

    @property
    def budget(self) -> Budget:
        """Of the principal."""
        return self.mine.granted or self.settings.each

    @property
    def total_budget(self) -> Budget:
        """Of all together."""
        return self.total.granted or self.settings.total

    @property
    def opening(self) -> Budget:
        """By which the total chooses its rule; finite."""
        return self.total.granted or self.settings.opening

    @property
    def _total_told(self) -> Budget:
        """Of all together; where there is no limit, with a delta that holds all that was charged."""
        limit, sums = self.total_budget, self.total.sums
        if math.isfinite(limit.epsilon):
            return limit
        needed = amount(sums.prefix_delta + sums.delta * (1 if sums.rule == "basic" else FAILURES))
        return replace(limit, delta=min(max(limit.delta, needed), 1.0))

    def charged(self, entries: list[Entry]) -> Balances:
        """The balances after some releases.

        Raises:
            BudgetExhausted: one of them does not fit.
            ConfigurationError: a Renyi curve without delta, or a release about other neighbours than the ledger's.
        """
        mine, total = self.mine.sums, self.total.sums
        limit, opening = self.total_budget, self.opening
        for entry in entries:
            check_neighbours(entry.release, self.settings)
            if isinstance(entry.release, Concentrated | Renyi) and not (
                self.budget.delta and (limit.delta or limit is not opening)
            ):
                raise ConfigurationError(
                    "a Gaussian release or a Renyi curve needs a budget with delta above 0, as Ledger(..., delta=1e-6)"
                )
            mine = self.checked(mine.add(entry.release, self.budget), mine, self.budget, entry, self.mine.principal)
            if not entry.repeated:
                total = self.checked(total.add(entry.release, opening), total, limit, entry, TOTAL)
        return replace(
            self,
            total=replace(self.total, time=self.time, sums=total),
            mine=replace(self.mine, time=self.time, sums=mine),
        )

    def checked(
        self, after: Composition, before: Composition, budget: Budget, entry: Entry, principal: str | None
    ) -> Composition:
        """The sums after an entry; those of all together for the principal "", of whoever begins for None.

        Raises:
            BudgetExhausted: they are not within the budget, and it has a limit.
        """
        if math.isinf(budget.epsilon) or after.within(budget):
            return after
        asked, spent = epsilon_alone(entry.release, budget.delta), before.spent(budget)
        renewal = None if principal == TOTAL else renews(self.settings.period or "", self.time)
        whose = {TOTAL: "all principals together", None: "whoever asks for the first time"}
        what, hint = f"a release of epsilon {asked:.6g}", ""
        if isinstance(entry.release, Training):
            what = f"the training ({entry.mechanism or 'of a model'}) of epsilon {asked:.6g} at delta"
            what += f" {entry.release.delta:g}"
            hint = ". A model is told to everybody, so its training counts in every account and in the total"
            if before.rule in ("", "basic") and budgeted(budget.delta) < before.delta + charged(entry.release.delta):
                hint += (
                    f"; deltas of trainings add up to more than this budget's {budget.delta:g}: a ledger that is made"
                    " with a larger delta= has room for it"
                )
        when = f"; the budget renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else ""
        raise BudgetExhausted(
            f"{whose.get(principal, f'principal {principal!r}')}: {what} does not fit, {spent:.6g} of"
            f" {budget.epsilon:g} being spent at delta {budget.delta:g}; nothing was charged{when}{hint}",
            principal=principal or None, requested=asked, spent=spent, budget=budget.epsilon, renews=renewal,
        )  # fmt: skip

    def record(self, execute: Execute, entries: list[Entry]) -> list[Charge]:
        """Store both accounts and record the entries that brought them here."""
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

    def granted(self, budget: Budget) -> Balances:
        """The balances after a grant."""
        total = replace(self.total, time=self.time)
        if self.mine.principal == TOTAL:
            return replace(self, total=replace(total, granted=budget))
        return replace(self, mine=replace(self.mine, granted=budget), total=total)

    def save(self, execute: Execute) -> None:
        """Write both accounts back."""
        save_balances(execute, *([self.mine] if self.mine.principal != TOTAL else []), self.total)

    def account(self, trainings: Sequence[Release] = ()) -> Account:
        """How the principal stands, with these trainings; of all together where these were opened for the total."""
        whole = self.mine.principal == TOTAL
        balance, budget = (self.total, self._total_told) if whole else (self.mine, self.budget)
        alone = added_up(trainings, self.opening if whole else budget)
        spent, period = balance.sums.spent(budget), "lifetime" if whole else self.settings.period or ""
        return Account(
            balance.principal, spent, max(0.0, budget.epsilon - spent) if spent < math.inf else 0.0, budget.epsilon,
            budget.delta, balance.sums.charges, period, renews(period, self.time), balance.sums.rule,
            alone.charges, alone.spent(budget),
        )  # fmt: skip


def check_neighbours(release: Release, settings: Settings) -> None:
    """Raise ConfigurationError for a release that names other neighbours than the ledger is about."""
    own = getattr(release, "adjacency", "")
    if own and own != settings.adjacency:
        raise ConfigurationError(
            f"adjacency: the release is about neighbours under {own}, this ledger about {settings.adjacency}: sums of"
            f" both would mean nothing. State the release under {settings.adjacency}, or keep two ledgers"
        )
