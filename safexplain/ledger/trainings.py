"""Trainings: what a model that was trained with differential privacy costs everybody, once.

Whoever is given answers from a trained model, or the model, is told of its training; the ledger does not follow whom a
model reaches, so it counts as told to everybody: in the total of all principals, and in each of their accounts, also of
those who first ask later in the same period. It must fit into all of them, as a filter that lets one release through
that does not fit is no filter (`safexplain.ledger.composition`).

A training is known by the digest of its weights, so that it is charged once whoever asks for it, and recorded as one
charge of the principal "" whose answer is its statement: `verify` then finds a statement that was altered.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache

from safexplain._digest import sha256
from safexplain._privacy_loss import Adjacency, Steps
from safexplain.errors import ConfigurationTypeError, LedgerError, RefusedError
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, TOTAL, Balance, Balances, Entry, added_up, save_balances, told
from safexplain.ledger.composition import Composition
from safexplain.ledger.curves import Renyi
from safexplain.ledger.records import CHARGE_COLUMNS, Charge, begins, charge_of
from safexplain.ledger.releases import Training, to_json
from safexplain.ledger.storage.schema import CHUNK, Execute
from safexplain.verdict.privacy_statement import PrivacyStatement


def training_of(statement: PrivacyStatement, adjacency: Adjacency) -> Training:
    """What a statement says about one model under an adjacency, in all ways that an account can count it.

    Steps of full batches with Gaussian noise are together mu-GDP, mu^2 being the sum of (distance / noise multiplier)^2
    over the steps, with a distance of 2 clip bounds under substitution and of 1 else (Dong, Roth and Su 2019, arXiv
    1905.02383, Corollary 3.3); Poisson and fixed-size batches have a Renyi curve (`Renyi.of_steps`). A pure epsilon
    counts as it is.

    Raises:
        RefusedError: it names no weights, promises nothing under this adjacency, is about persons, or tells the number
            of records and so does not hide whether one was there.
        ConfigurationTypeError: not a statement.
    """
    if not isinstance(statement, PrivacyStatement):
        raise ConfigurationTypeError(
            f"statement: expected a PrivacyStatement, such as model.privacy_ or PrivacyStatement.load(file), got"
            f" {type(statement).__name__}"
        )
    if not statement.weights:
        raise RefusedError(
            "the privacy statement names no weights, so that nothing says which model it is about: charge the one that"
            " the training gave (model.privacy_), or statement.bound_to(model) for one of your own"
        )
    if statement.unit != "record":
        raise RefusedError(
            f'the statement is about each {statement.unit} with all of their rows (unit="{statement.unit}"), what else'
            " this ledger counts is about single records: sums of both would mean nothing. Charge it as"
            " Approximate(epsilon, delta) to a ledger of which every release is about persons"
        )
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the statement tells the true number of records, so that nothing hides whether one was added, which a"
            ' ledger about add_remove promises: keep one with adjacency="zero_out" (the same epsilons), or train'
            ' DPLogisticRegression(adjacency="add_remove")'
        )
    epsilon = statement.epsilons.of(adjacency)
    if not math.isfinite(epsilon):
        raise RefusedError(f"the statement promises nothing under {adjacency}: its epsilon is infinite")
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
    """Under which digest the training of these weights is recorded; that of no question of a principal."""
    return sha256(b"training:" + weights.encode())


_CHARGED = (
    f"SELECT {', '.join(f'c.{name}' for name in CHARGE_COLUMNS.split(', '))}, a.value FROM ledger_charges c"
    " LEFT JOIN ledger_answers a ON a.question = c.question WHERE c.principal = ?"
)
"""Charges of trainings, each with its statement."""


def recorded(execute: Execute, statement: PrivacyStatement) -> Charge | None:
    """The charge of a training; None: it has not been charged.

    Raises:
        RefusedError: the same weights were charged by another statement.
        LedgerError: the statement that was charged is missing or damaged.
    """
    rows = execute(f"{_CHARGED} AND c.question = ?", (TOTAL, question_of(statement.weights)))
    if not rows:
        return None
    *row, stored = rows[0]
    charge = charge_of(tuple(row))
    if stored != _written(statement) and (found := _read(stored, charge.id)) != statement:
        raise RefusedError(
            f"the weights {statement.weights[:16]}... were charged by another statement ({found}); these weights have"
            f" one training, and so one statement, not also this ({statement})"
        )
    return charge


def statements(execute: Execute) -> list[tuple[Charge, PrivacyStatement]]:
    """Every training that was charged, with its statement, oldest first."""
    rows = execute(f"{_CHARGED} ORDER BY c.id", (TOTAL,))
    return [(charge := charge_of(tuple(row)), _read(stored, charge.id)) for *row, stored in rows]


def _written(statement: PrivacyStatement) -> str:
    return json.dumps(statement.to_dict(), sort_keys=True, allow_nan=False)


def _read(stored: str | None, number: int) -> PrivacyStatement:
    try:
        return PrivacyStatement.from_dict(json.loads(stored or ""))
    except ValueError as error:
        raise LedgerError(
            f"the statement of charge {number} cannot be read ({error}); if somebody altered it, restore the ledger"
            " from a backup"
        ) from None


def charge_everybody(execute: Execute, balances: Balances, statement: PrivacyStatement, training: Training) -> Charge:
    """Inside a transaction that holds the ledger: count a training in every account, and record it.

    Args:
        execute: runs SQL.
        balances: opened for the total.
        statement: of a training that is not recorded.
        training: what it says.

    Raises:
        BudgetExhausted: it does not fit into the total, into the budget of a principal who begins now, or into an
            account that is there.
    """
    settings = balances.settings
    value = _written(statement)
    entry = Entry(
        training, statement.mechanism, json.dumps({"weights": statement.weights}), question_of(statement.weights),
        sha256(value),
    )  # fmt: skip
    total, limit = balances.total.sums, balances.total_budget
    after = balances.checked(total.add(training, balances.opening), total, limit, entry, TOTAL)
    begun = begins(settings.period or "", balances.time)
    earlier = told(execute, begun)

    def begin(balance: Balance) -> Composition:
        """The sums of an account that has only been told of trainings in this period, with this one."""
        budget = balance.granted or settings.each
        before, who = added_up(earlier, budget), balance.principal or None
        return balances.checked(before.add(training, budget), before, budget, entry, who)

    begin(Balance(TOTAL))
    changed = []
    for row in execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts WHERE principal <> ?", (TOTAL,)):
        balance = Balance.of(row)
        if balance.period != begun:  # it begins anew when it is next opened
            if balance.granted is not None:
                begin(balance)
            continue
        budget, before = balance.granted or settings.each, balance.sums
        sums = balances.checked(before.add(training, budget), before, budget, entry, balance.principal)
        changed.append(replace(balance, sums=sums))
    for start in range(0, len(changed), CHUNK):
        save_balances(execute, *changed[start : start + CHUNK])
    whole = replace(balances.total, time=balances.time, sums=after)
    charge = Balances(settings, balances.time, whole, whole).record(execute, [entry])[0]
    execute("INSERT INTO ledger_answers VALUES (?, ?, ?)", (entry.question, value, to_json(training)))
    return charge
