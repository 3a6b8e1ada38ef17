"""Accounts: the budgets of a ledger, how much of them is spent, and whether a release or a training still fits.

A training is a charge of the total, and counts at once in every account, or when one is opened or starts a new period.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from safexplain._digest import sha256
from safexplain._privacy_loss import Adjacency, Steps, check_adjacency
from safexplain._validate import check_number
from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError, LedgerError, RefusedError
from safexplain.ledger.composition import FAILURES, Budget, Composition, amount, budgeted, charged, epsilon_alone
from safexplain.ledger.records import (
    CHARGE_COLUMNS,
    PERIODS,
    Account,
    Charge,
    charge_from_row,
    next_period,
    period_start,
)
from safexplain.ledger.releases import Concentrated, Release, Renyi, Training, from_json, to_json
from safexplain.ledger.storage import CHUNK, Execute
from safexplain.verdict.privacy_statement import PrivacyStatement

EMPTY = Composition()
TOTAL = ""  # the principal of the account of all principals together

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
    """Arguments of `Ledger`; None: not given."""

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
            raise ConfigurationError("total_delta= needs total_epsilon=; without it, the total has no limit")

    def with_defaults(self) -> Settings:
        """Settings of a new ledger."""
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
        """Write the settings into a new ledger."""
        for name, value in asdict(self).items():
            execute("INSERT INTO ledger_settings VALUES (?, ?)", (name, json.dumps(value)))

    @classmethod
    def load(cls, rows: list[tuple[Any, ...]]) -> Settings:
        """The settings that `save` wrote."""
        try:
            return cls(**{name: json.loads(value) for name, value in rows}).with_defaults()
        except (TypeError, ValueError) as error:
            raise LedgerError(f"the ledger's settings are damaged ({error}); restore it from a backup") from None

    def check_against(self, stored: Settings) -> None:
        """Raise ConfigurationError if one differs from the stored one."""
        for field in fields(self):
            given, found = getattr(self, field.name), getattr(stored, field.name)
            if given is not None and given != found:
                raise ConfigurationError(
                    f"{field.name}: this ledger was created with {found!r}, got {given!r}; omit it to use the stored"
                    " value, and change the budget of a principal with `safexplain ledger grant`"
                )

    @property
    def principal_budget(self) -> Budget:
        """Budget of a principal without a grant."""
        return Budget(self.epsilon or 0.0, self.delta or 0.0)

    @property
    def total_budget(self) -> Budget:
        """Budget of all principals together; epsilon may be infinite."""
        if self.total_epsilon is None:
            return Budget(math.inf, self.delta or 0.0)
        return Budget(self.total_epsilon, self.total_delta or 0.0)

    @property
    def total_rule_budget(self) -> Budget:
        """Finite budget by which the total chooses its rule."""
        return Budget(self.total_epsilon or self.principal_budget.epsilon, self.total_budget.delta)


@dataclass(frozen=True)
class Balance:
    """A row of the table of accounts."""

    principal: str
    period: int = 0  # its start, microseconds; 0 for a lifetime
    time: int = 0  # of the last charge
    sums: Composition = EMPTY  # of this period
    granted: Budget | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Balance:
        """The balance in a row of ACCOUNT_COLUMNS."""
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
    """A release to charge; fields as in `Charge`."""

    release: Release
    mechanism: str = ""
    parameters: str = "{}"
    question: str | None = None
    digest: str | None = None
    repeated: bool = False


def trainings_since(execute: Execute, time: int) -> list[Release]:
    """Trainings charged from a time on, oldest first."""
    rows = execute("SELECT release FROM ledger_charges WHERE principal = ? AND time >= ? ORDER BY id", (TOTAL, time))
    return [from_json(text) for (text,) in rows]


def add_up(releases: Sequence[Release], budget: Budget) -> Composition:
    """Sums of an account that starts with these releases."""
    sums = EMPTY
    for release in releases:
        sums = sums.add(release, budget)
    return sums


@dataclass(frozen=True)
class Balances:
    """The accounts of one principal, in the period of `time`, and of all together."""

    settings: Settings
    time: int
    total: Balance
    mine: Balance

    @classmethod
    def open(cls, execute: Execute, settings: Settings, principal: str, now: int) -> Balances:
        """Read both accounts, at `now` microseconds since 1970."""
        rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts WHERE principal IN (?, ?)", (TOTAL, principal))
        found = {row[0]: Balance.of(row) for row in rows}
        return cls.of(settings, found, principal, now, lambda since: trainings_since(execute, since))

    @classmethod
    def of(
        cls,
        settings: Settings,
        found: Mapping[str, Balance],
        principal: str,
        now: int,
        trainings: Callable[[int], Sequence[Release]],
    ) -> Balances:
        """The same from accounts; `trainings` returns those since a time."""
        if TOTAL not in found:
            raise LedgerError("the ledger has no account of the total; restore it from a backup")
        time = max(now, found[TOTAL].time)
        mine, start = found.get(principal, Balance(principal)), period_start(settings.period or "", time)
        if principal != TOTAL and (mine.period != start or principal not in found):
            budget = mine.granted or settings.principal_budget
            mine = replace(mine, period=start, sums=add_up(trainings(start), budget))
        return cls(settings, time, found[TOTAL], mine)

    @property
    def budget(self) -> Budget:
        """Budget of the principal."""
        return self.mine.granted or self.settings.principal_budget

    @property
    def total_budget(self) -> Budget:
        """Budget of all principals together."""
        return self.total.granted or self.settings.total_budget

    @property
    def total_rule_budget(self) -> Budget:
        """Finite budget by which the total chooses its rule."""
        return self.total.granted or self.settings.total_rule_budget

    @property
    def _reported_total_budget(self) -> Budget:
        limit, sums = self.total_budget, self.total.sums
        if math.isfinite(limit.epsilon):
            return limit
        needed = amount(sums.prefix_delta + sums.delta * (1 if sums.rule == "basic" else FAILURES))
        return replace(limit, delta=min(max(limit.delta, needed), 1.0))

    def after_charging(self, entries: list[Entry]) -> Balances:
        """The balances after these releases; errors as of `Ledger.charge`."""
        mine, total = self.mine.sums, self.total.sums
        limit, rule_budget = self.total_budget, self.total_rule_budget
        for entry in entries:
            stated, own = getattr(entry.release, "adjacency", ""), self.settings.adjacency
            if stated and stated != own:
                raise ConfigurationError(
                    f"adjacency: expected {own}, as in this ledger, got a release under {stated}; state the release"
                    f" under {own}, or keep two ledgers"
                )
            if isinstance(entry.release, Concentrated | Renyi) and not (
                self.budget.delta and (limit.delta or limit is not rule_budget)
            ):
                raise ConfigurationError(
                    "a Gaussian release or a Renyi curve needs a budget with delta above 0, as Ledger(..., delta=1e-6)"
                )
            mine = self.check_fits(mine.add(entry.release, self.budget), mine, self.budget, entry, self.mine.principal)
            if not entry.repeated:
                total = self.check_fits(total.add(entry.release, rule_budget), total, limit, entry, TOTAL)
        return replace(
            self,
            total=replace(self.total, time=self.time, sums=total),
            mine=replace(self.mine, time=self.time, sums=mine),
        )

    def check_fits(
        self, after: Composition, before: Composition, budget: Budget, entry: Entry, principal: str | None
    ) -> Composition:
        """The sums after an entry, or BudgetExhausted; `principal` None: a new one."""
        if math.isinf(budget.epsilon) or after.within(budget):
            return after
        requested, spent = epsilon_alone(entry.release, budget.delta), before.spent(budget)
        renewal = None if principal == TOTAL else next_period(self.settings.period or "", self.time)
        names = {TOTAL: "all principals together", None: "a new principal"}
        subject, hint = f"a release of epsilon {requested:.6g}", ""
        if isinstance(entry.release, Training):
            name = entry.mechanism or "of a model"
            subject = f"the training ({name}) of epsilon {requested:.6g} at delta {entry.release.delta:g}"
            hint = ". A training counts in every account and in the total"
            if before.rule in ("", "basic") and budgeted(budget.delta) < before.delta + charged(entry.release.delta):
                hint += (
                    f"; the deltas of the trainings exceed this budget's {budget.delta:g}: create a ledger with a"
                    " larger delta="
                )
        when = f"; the budget renews at {renewal:%Y-%m-%d %H:%M} UTC" if renewal else ""
        raise BudgetExhausted(
            f"{names.get(principal, f'principal {principal!r}')}: {subject} exceeds the budget: {spent:.6g}"
            f" of {budget.epsilon:g} is spent at delta {budget.delta:g}; nothing was charged{when}{hint}",
            principal=principal or None, requested=requested, spent=spent, budget=budget.epsilon, renews=renewal,
        )  # fmt: skip

    def record(self, execute: Execute, entries: list[Entry]) -> list[Charge]:
        """Store both accounts and their new entries."""
        self.save(execute)
        principal = self.mine.principal
        return [
            charge_from_row(
                execute(
                    _INSERT,
                    (principal, self.mine.period, self.time, e.mechanism, e.parameters, to_json(e.release), e.question,
                     e.digest, int(e.repeated)),
                )[0]
            )
            for e in entries
        ]  # fmt: skip

    def after_grant(self, budget: Budget) -> Balances:
        """The balances after a grant."""
        total = replace(self.total, time=self.time)
        if self.mine.principal == TOTAL:
            return replace(self, total=replace(total, granted=budget))
        return replace(self, mine=replace(self.mine, granted=budget), total=total)

    def save(self, execute: Execute) -> None:
        """Write both accounts back."""
        save_balances(execute, *([self.mine] if self.mine.principal != TOTAL else []), self.total)

    def account(self, trainings: Sequence[Release] = ()) -> Account:
        """The account with these trainings."""
        is_total = self.mine.principal == TOTAL
        balance, budget = (self.total, self._reported_total_budget) if is_total else (self.mine, self.budget)
        trained = add_up(trainings, self.total_rule_budget if is_total else budget)
        spent, period = balance.sums.spent(budget), "lifetime" if is_total else self.settings.period or ""
        return Account(
            balance.principal, spent, max(0.0, budget.epsilon - spent) if spent < math.inf else 0.0, budget.epsilon,
            budget.delta, balance.sums.charges, period, next_period(period, self.time), balance.sums.rule,
            trained.charges, trained.spent(budget),
        )  # fmt: skip


def training_of(statement: PrivacyStatement, adjacency: Adjacency) -> Training:
    """The training of a privacy statement under an adjacency; RefusedError as `Ledger.charge_training`.

    Steps of full batches are together mu-GDP, where mu^2 is the sum of (distance / noise multiplier)^2, with a distance
    of 2 clip bounds under substitution and 1 otherwise (Dong, Roth and Su 2019, arXiv 1905.02383, Corollary 3.3). Other
    batches have a Renyi curve.
    """
    if not isinstance(statement, PrivacyStatement):
        raise ConfigurationTypeError(
            f"statement: expected a PrivacyStatement, such as model.privacy_ or PrivacyStatement.load(file), got"
            f" {type(statement).__name__}"
        )
    if not statement.weights:
        raise RefusedError(
            "the privacy statement has no digest of weights, so its model is unknown; charge the statement of the"
            " training (model.privacy_), or statement.bound_to(model)"
        )
    if statement.unit != "record":
        raise RefusedError(
            f'expected a statement about single records, like this ledger, got unit="{statement.unit}"; charge it as'
            f" Approximate(epsilon, delta) to a ledger in which every release is about each {statement.unit}"
        )
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the statement reveals the number of records, so it does not hide whether one was added, as this add_remove"
            ' ledger promises; use a ledger with adjacency="zero_out" (the same epsilons), or train'
            ' DPLogisticRegression(adjacency="add_remove")'
        )
    epsilon = statement.epsilons.of(adjacency)
    if not math.isfinite(epsilon):
        raise RefusedError(f"expected a statement with a finite epsilon under {adjacency}, got infinity")
    if statement.pure_epsilon is not None:
        return Training(epsilon, adjacency=adjacency)
    delta, phases = statement.delta, tuple(p for p in statement.phases if p.steps)
    if not phases:
        return Training(epsilon, delta, adjacency=adjacency)
    if all(p.sample_rate == 1 for p in phases):
        distance = 2.0 if adjacency == "substitute" else 1.0
        mu = math.sqrt(sum(p.steps * (distance / p.noise_multiplier) ** 2 for p in phases))
        return Training(epsilon, delta, mu, adjacency=adjacency)
    curve = _curve(phases, adjacency)
    return Training(epsilon, delta, None, curve.orders, curve.divergences, adjacency)


@lru_cache(maxsize=64)
def _curve(phases: tuple[Steps, ...], adjacency: Adjacency) -> Renyi:
    return Renyi.of_steps(phases, adjacency)


_CHARGED = (
    f"SELECT {', '.join(f'c.{name}' for name in CHARGE_COLUMNS.split(', '))}, a.value FROM ledger_charges c"
    " LEFT JOIN ledger_answers a ON a.question = c.question WHERE c.principal = ?"
)


def recorded(execute: Execute, statement: PrivacyStatement) -> Charge | None:
    """The charge of a training, or None; RefusedError for another statement."""
    rows = execute(f"{_CHARGED} AND c.question = ?", (TOTAL, _question_of(statement)))
    if not rows:
        return None
    *row, stored = rows[0]
    charge = charge_from_row(tuple(row))
    if stored != _dump(statement) and (found := _load(stored, charge.id)) != statement:
        raise RefusedError(
            f"the weights {statement.weights[:16]}... were charged with another statement ({found}), got"
            f" ({statement}); one training has one statement"
        )
    return charge


def statements(execute: Execute) -> list[tuple[Charge, PrivacyStatement]]:
    """Charged trainings with their statements, oldest first."""
    rows = execute(f"{_CHARGED} ORDER BY c.id", (TOTAL,))
    return [(charge := charge_from_row(tuple(row)), _load(stored, charge.id)) for *row, stored in rows]


def _question_of(statement: PrivacyStatement) -> str:
    return sha256(b"training:" + statement.weights.encode())


def _dump(statement: PrivacyStatement) -> str:
    return json.dumps(statement.to_dict(), sort_keys=True, allow_nan=False)


def _load(stored: str | None, number: int) -> PrivacyStatement:
    try:
        return PrivacyStatement.from_dict(json.loads(stored or ""))
    except ValueError as error:
        raise LedgerError(
            f"the ledger is damaged: the statement of charge {number} cannot be read ({error}); restore the ledger from"
            " a backup"
        ) from None


def charge_everybody(execute: Execute, balances: Balances, statement: PrivacyStatement, training: Training) -> Charge:
    """Count a training in every account; the balances are those of the total."""
    settings = balances.settings
    value = _dump(statement)
    entry = Entry(
        training, statement.mechanism, json.dumps({"weights": statement.weights}), _question_of(statement),
        sha256(value),
    )  # fmt: skip
    total, limit = balances.total.sums, balances.total_budget
    after = balances.check_fits(total.add(training, balances.total_rule_budget), total, limit, entry, TOTAL)
    start = period_start(settings.period or "", balances.time)
    earlier = trainings_since(execute, start)

    def check_new_period(balance: Balance) -> None:
        budget = balance.granted or settings.principal_budget
        before = add_up(earlier, budget)
        balances.check_fits(before.add(training, budget), before, budget, entry, balance.principal or None)

    check_new_period(Balance(TOTAL))
    changed = []
    for row in execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts WHERE principal <> ?", (TOTAL,)):
        balance = Balance.of(row)
        if balance.period != start:  # its next use starts a new period
            if balance.granted is not None:
                check_new_period(balance)
            continue
        budget, before = balance.granted or settings.principal_budget, balance.sums
        sums = balances.check_fits(before.add(training, budget), before, budget, entry, balance.principal)
        changed.append(replace(balance, sums=sums))
    for i in range(0, len(changed), CHUNK):
        save_balances(execute, *changed[i : i + CHUNK])
    changed_total = replace(balances.total, time=balances.time, sums=after)
    charge = Balances(settings, balances.time, changed_total, changed_total).record(execute, [entry])[0]
    execute("INSERT INTO ledger_answers VALUES (?, ?, ?)", (entry.question, value, to_json(training)))
    return charge
