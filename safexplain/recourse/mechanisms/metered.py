"""A mechanism whose answers are charged to a `safexplain.ledger`: each question once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.ledger.releases import Pure
from safexplain.recourse.guarantee import NOT_CHARGED, Guarantee
from safexplain.recourse.mechanisms.laplace_score import LaplaceScore, NoisyScores
from safexplain.recourse.mechanisms.mechanism import Infeasible, RecourseMechanism, check_infeasible
from safexplain.recourse.result import Recourse
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
"""What is stored of an answer; the query is not. What an older safexplain did not store is False."""


class MeteredRecourse:
    """Answers as the mechanism does, if the principal's budget allows; the same question again is free.

    Every row is a question. Its answer is stored with its charge in one transaction and handed out after that: there is
    no charge without an answer, and no answer without a charge. A query without recourse within the constraints is
    answered too ("none"), as the released score says so. Mechanisms that spend by model answer without a charge for
    the answer; their training is charged once, before the first one (`Ledger.charge_training`), and so is that of a
    model of the same records that public weights come from.

    Args:
        mechanism: one of `safexplain.recourse`, fitted; keep it (pickle it) between restarts, as a new fit is another
            model, whose answers are new.
        ledger: where releases are recorded.

    Raises:
        ConfigurationError: the ledger counts releases about other neighbours than the mechanism's.
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
                f"adjacency: {type(mechanism).__name__} is private under {mechanism.adjacency}, this ledger counts"
                f" releases under {ledger.adjacency}: sums of both would mean nothing. Make the mechanism with"
                f' adjacency="{ledger.adjacency}", or keep two ledgers'
            )
        self.mechanism = mechanism
        self.ledger = ledger

    @property
    def guarantee(self) -> Guarantee:
        """The mechanism's, of each answer or of the model; that of an answer names the charges too."""
        own = self.mechanism.guarantee
        return replace(own, assumptions=tuple(line for line in own.assumptions if line != NOT_CHARGED))

    def explain(self, x: ArrayLike, *, principal: str | None, infeasible: Infeasible = "raise") -> Recourse:
        """Answers to the rows of x as the mechanism's, charged to the principal who asks: all of them or none.

        Raises:
            ConfigurationError: no principal, or another `infeasible`; nothing was charged.
            BudgetExhausted: the rows do not all fit, or the training of the model does not; nothing was answered.
            InfeasibleError: some have no recourse; its `result` has all that was charged for.
            InputError: queries that the mechanism would not answer; nothing was charged.
            LedgerError: the ledger cannot be written; nothing was answered.
        """
        check_infeasible(infeasible)
        result = self._charged_answer(x, principal)
        return result.required() if infeasible == "raise" else result

    def explain_diverse(self, x: ArrayLike, answers: int, *, principal: str | None) -> tuple[Recourse, ...]:
        """Several answers to each row that differ in what they change, for the price of one.

        The first is that of `explain`, whichever is asked for first, and is stored as there; what was paid for is free,
        and more answers to it are free too.

        Statement. All answers to a row together, however many and whenever they are asked for, reveal no more than its
        first: they are epsilon-private once.

        Proof. What is released of the private model is the noised score, which is stored with its charge. All answers
        are made from this stored number, from the query and from public weights, costs and constraints, by
        `LaplaceScore._solver_of`, which draws no noise and does not look at the model: post-processing of one release
        (Dwork and Roth 2014, proposition 2.1). Were noise drawn for each, n answers would cost n epsilon.

        Args:
            x: as for `explain`.
            answers: how many, at least 1.
            principal: who asks.

        Returns:
            As `LaplaceScore.explain_diverse`: `answers` results, valid=False where the options have run out.

        Raises:
            ConfigurationError: fewer than one answer.
            BudgetExhausted, InputError, LedgerError: as `explain`.
        """
        wanted = whole_number("answers", answers, 1)
        mechanism = self.mechanism
        if not isinstance(mechanism, LaplaceScore):
            rows = mechanism.rows(x)  # what cannot be answered is not charged
            guarantee = self._charge_training()
            return mechanism._diverse_answers(mechanism._solver(rows), rows, x, wanted, guarantee)
        first = self._charged_answer(x, principal)
        released = NoisyScores(first.score, first.favourable, first.censored, first.guarantee)
        solve = mechanism._solver_of(first.x, released)
        return (first, *mechanism._diverse_answers(solve, first.x, x, wanted, first.guarantee)[1:])

    def _charged_answer(self, x: ArrayLike, principal: str | None) -> Recourse:
        """Charged and stored, or repeated; queries without recourse are marked."""
        mechanism = self.mechanism
        if mechanism.per == "answer" and principal is None:
            raise ConfigurationTypeError("principal: expected who asks, as each answer is charged; got None")
        rows = mechanism.rows(x)  # looks at the names of columns too; what cannot be answered is not charged
        guarantee = self._charge_training()
        if mechanism.per == "model":
            return mechanism._with_guarantee(mechanism._solver(rows)(mechanism._frozen_columns(rows)), x, guarantee)

        def compute(positions: list[int]) -> list[dict[str, Any]]:
            new = rows[positions]
            found = mechanism._solver(new)(mechanism._frozen_columns(new))
            return [{name: getattr(found, name)[i].tolist() for name in FIELDS} for i in range(len(positions))]

        stored = self.ledger.answer_many(
            principal or "",
            [self._question(row) for row in rows],
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
        return mechanism._with_guarantee(Solution(x=rows, **columns), x, charged)

    def _charge_training(self) -> Guarantee:
        """The guarantee, once the training of the model that answers, or that public weights come from, is charged."""
        guarantee = self.guarantee
        if guarantee.statement is None:
            return guarantee
        charge = self.ledger.charge_training(guarantee.statement)
        return replace(guarantee, ledger=self.ledger.identity, charges=(charge.id,))

    def _question(self, row: np.ndarray[Any, np.dtype[np.float64]]) -> bytes:
        """The fit, with its frozen parameters, and the query; zeros of either sign are one question."""
        return self.mechanism.identity.encode() + (row + 0.0).tobytes()
