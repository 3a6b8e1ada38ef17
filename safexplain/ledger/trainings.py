"""Trainings with differential privacy: charged once, to the total and to every account of the period.

A training is identified by the digest of its weights, and recorded as a charge of the principal "" whose answer is its
privacy statement; `verify` finds a statement that was altered.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache

from safexplain._digest import sha256
from safexplain._privacy_loss import Adjacency, Steps
from safexplain.errors import ConfigurationTypeError, LedgerError, RefusedError
from safexplain.ledger.accounts import (
    ACCOUNT_COLUMNS,
    TOTAL,
    Balance,
    Balances,
    Entry,
    add_up,
    save_balances,
    trainings_since,
)
from safexplain.ledger.records import CHARGE_COLUMNS, Charge, charge_from_row, period_start
from safexplain.ledger.releases import Renyi, Training, to_json
from safexplain.ledger.storage import CHUNK, Execute
from safexplain.verdict.privacy_statement import PrivacyStatement


def training_of(statement: PrivacyStatement, adjacency: Adjacency) -> Training:
    """The training of a privacy statement under an adjacency, with all bounds that an account can use.

    Steps of full batches with Gaussian noise are together mu-GDP, where mu^2 is the sum of (distance / noise
    multiplier)^2 over the steps, with a distance of 2 clip bounds under substitution and 1 otherwise (Dong, Roth and Su
    2019, arXiv 1905.02383, Corollary 3.3). Poisson and fixed-size batches have a Renyi curve (`Renyi.of_steps`).

    Raises RefusedError as `Ledger.charge_training`, and ConfigurationTypeError for another type.
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


def question_of(weights: str) -> str:
    """Digest under which the training of these weights is recorded; no principal's question has it."""
    return sha256(b"training:" + weights.encode())


_CHARGED = (
    f"SELECT {', '.join(f'c.{name}' for name in CHARGE_COLUMNS.split(', '))}, a.value FROM ledger_charges c"
    " LEFT JOIN ledger_answers a ON a.question = c.question WHERE c.principal = ?"
)
"""Charges of trainings, each with its statement."""


def recorded(execute: Execute, statement: PrivacyStatement) -> Charge | None:
    """The charge of a training, or None; RefusedError if the weights were charged with another statement."""
    rows = execute(f"{_CHARGED} AND c.question = ?", (TOTAL, question_of(statement.weights)))
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
    """In a transaction that holds the ledger: count a new training in every account, and record it.

    The balances are those of the total. Raises BudgetExhausted as `Ledger.charge_training`.
    """
    settings = balances.settings
    value = _dump(statement)
    entry = Entry(
        training, statement.mechanism, json.dumps({"weights": statement.weights}), question_of(statement.weights),
        sha256(value),
    )  # fmt: skip
    total, limit = balances.total.sums, balances.total_budget
    after = balances.check_fits(total.add(training, balances.total_rule_budget), total, limit, entry, TOTAL)
    start = period_start(settings.period or "", balances.time)
    earlier = trainings_since(execute, start)

    def check_new_period(balance: Balance) -> None:
        """Raise BudgetExhausted if the trainings of this period do not fit into an account without other releases."""
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
