"""A mechanism whose answers are charged to a `safexplain.ledger`, each query once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.ledger.releases import Pure
from safexplain.recourse.mechanisms.laplace_score import LaplaceScore, NoisyScores
from safexplain.recourse.mechanisms.mechanism import Infeasible, RecourseMechanism, check_infeasible
from safexplain.recourse.result import NOT_CHARGED, Guarantee, Recourse
from safexplain.recourse.solution import Solution

if TYPE_CHECKING:
    from safexplain.ledger import Ledger

FIELDS: dict[str, type] = {
    "counterfactual": float,
    "valid": bool,
    "distance": float,
    "score": float,
    "favourable": bool,
    "censored": bool,
    "proven": bool,
}
"""Stored fields of an answer, without the query; fields that an older safexplain did not store are False."""


class MeteredRecourse:
    """Answers like the mechanism if the principal's budget allows; repeated queries are free.

    The answer to each row is stored with its charge in one transaction before it is returned. A query without recourse
    is charged too, as the released score reveals this. Where the training spends the budget, only the training is
    charged, once before the first answer (`Ledger.charge_training`); so is that of a model of the same records that
    provides public weights.

    Args:
        mechanism: a fitted mechanism of `safexplain.recourse`; pickle it between restarts, as answers of a new fit are
            charged again.
        ledger: the ledger of releases.

    Raises:
        ConfigurationError: the ledger's adjacency differs from the mechanism's.
        ConfigurationTypeError: not a mechanism, or not a ledger.
    """

    def __init__(self, mechanism: RecourseMechanism, ledger: Ledger) -> None:
        if not isinstance(mechanism, RecourseMechanism):
            raise ConfigurationTypeError(
                f"expected a mechanism of safexplain.recourse, such as LaplaceScore, got {type(mechanism).__name__}"
            )
        if not callable(getattr(ledger, "answer_many", None)) or isinstance(ledger, type):
            raise ConfigurationTypeError(
                f"ledger: expected an open Ledger, such as Ledger(url), got {type(ledger).__name__} {ledger!r}"
            )
        if ledger.adjacency != mechanism.adjacency:
            raise ConfigurationError(
                f"adjacency: expected {ledger.adjacency}, as in the ledger, got {mechanism.adjacency} in"
                f" {type(mechanism).__name__}, whose epsilon cannot be added; make the mechanism with"
                f' adjacency="{ledger.adjacency}", or use two ledgers'
            )
        self.mechanism = mechanism
        self.ledger = ledger

    @property
    def guarantee(self) -> Guarantee:
        """The mechanism's guarantee without the assumption that answers are counted elsewhere."""
        found = self.mechanism.guarantee
        return replace(found, assumptions=tuple(line for line in found.assumptions if line != NOT_CHARGED))

    def explain(self, x: ArrayLike, *, principal: str | None, infeasible: Infeasible = "raise") -> Recourse:
        """Answers to all rows of x, or none, charged to the principal who asks.

        Raises:
            ConfigurationError: no principal, or an invalid `infeasible`; nothing was charged.
            BudgetExhausted: the budget does not cover all rows, or the training; nothing was answered.
            InfeasibleError: some have no recourse; its `result` has all answers that were charged.
            InputError: queries that the mechanism refuses; nothing was charged.
            LedgerError: the ledger cannot be written; nothing was answered.
        """
        check_infeasible(infeasible)
        result = self._charged_answer(x, principal)
        return result.required() if infeasible == "raise" else result

    def explain_diverse(self, x: ArrayLike, answers: int, *, principal: str | None) -> tuple[Recourse, ...]:
        """Several answers to each row that change different features, as by the mechanism, for the price of one: the
        first is that of `explain`; once it is charged, all are free.

        Statement. All answers to a row together, at any time and in any number, are epsilon-private once.

        Proof. Only the noised score depends on the private model; it is stored with its charge, and all answers are
        computed from it, the query, and public weights, costs and constraints: post-processing of one release (Dwork
        and Roth 2014, proposition 2.1).

        Raises:
            ConfigurationError: fewer than one answer.
            BudgetExhausted, InputError, LedgerError: as `explain`.
        """
        wanted = whole_number("answers", answers, 1)
        mechanism = self.mechanism
        if not isinstance(mechanism, LaplaceScore):
            rows = mechanism.rows(x)  # invalid queries are not charged
            guarantee = self._charge_training()
            return mechanism._diverse_answers(mechanism._solver(rows), rows, x, wanted, guarantee)
        first = self._charged_answer(x, principal)
        released = NoisyScores(first.score, first.favourable, first.censored, first.guarantee)
        solve = mechanism._solver_of(first.x, released)
        return (first, *mechanism._diverse_answers(solve, first.x, x, wanted, first.guarantee)[1:])

    def _charged_answer(self, x: ArrayLike, principal: str | None) -> Recourse:
        mechanism = self.mechanism
        if mechanism.per == "answer" and principal is None:
            raise ConfigurationTypeError("principal: expected a name to charge each answer to, got None")
        rows = mechanism.rows(x)  # invalid queries are not charged
        guarantee = self._charge_training()
        if mechanism.per == "model":
            return mechanism._answer(mechanism._solver(rows)(mechanism._frozen_columns(rows)), x, guarantee)

        def compute(positions: list[int]) -> list[dict[str, Any]]:
            new = rows[positions]
            found = mechanism._solver(new)(mechanism._frozen_columns(new))
            return [{name: getattr(found, name)[i].tolist() for name in FIELDS} for i in range(len(positions))]

        stored = self.ledger.answer_many(
            principal or "",
            [mechanism.identity.encode() + (row + 0.0).tobytes() for row in rows],  # zeros of either sign are equal
            compute,
            Pure(float(mechanism.epsilon)),
            mechanism=type(mechanism).__name__,
            parameters={"model": mechanism.identity, "adjacency": guarantee.adjacency},
        )
        columns: dict[str, Any] = {
            name: np.array([answer.value.get(name, False) for answer in stored], kind) for name, kind in FIELDS.items()
        }
        columns["counterfactual"] = columns["counterfactual"].reshape(rows.shape)
        charges = (*guarantee.charges, *(answer.paid for answer in stored))
        charged = replace(guarantee, ledger=self.ledger.identity if charges else "", charges=charges)
        return mechanism._answer(Solution(x=rows, **columns), x, charged)

    def _charge_training(self) -> Guarantee:
        """The guarantee after charging the training of the model that answers or provides public weights."""
        guarantee = self.guarantee
        if guarantee.statement is None:
            return guarantee
        charge = self.ledger.charge_training(guarantee.statement)
        return replace(guarantee, ledger=self.ledger.identity, charges=(charge.id,))
