"""A mechanism whose answers are charged to a `safexplain.ledger`: each question once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.ledger.releases import Pure
from safexplain.recourse.mechanisms.mechanism import Guarantee, Infeasible, RecourseMechanism, check_infeasible
from safexplain.recourse.result import Recourse

if TYPE_CHECKING:
    from safexplain.ledger import Ledger

FIELDS: dict[str, type] = {
    "counterfactual": float,
    "valid": bool,
    "distance": float,
    "score": float,
    "favourable": bool,
    "censored": bool,
}
"""What is stored of an answer; the query is not."""


class MeteredRecourse:
    """Answers as the mechanism does, if the principal's budget allows; the same question again is free.

    Every row is a question. Its answer is stored with its charge in one transaction and handed out after that: there is
    no charge without an answer, and no answer without a charge. A query without recourse within the constraints is
    answered too ("none"), as the released score says so. Mechanisms that spend by model answer without a charge.
    Several answers to one question are not metered yet: `explain_diverse` of the mechanism itself does not ask the
    ledger.

    Args:
        mechanism: one of `safexplain.recourse`, fitted; keep it (pickle it) between restarts, as a new fit is another
            model, whose answers are new.
        ledger: where releases are recorded; of the same adjacency as everything else that it counts.

    Raises:
        RefusedError: the mechanism is not private: a ledger that charged it would state what is not so.
        ConfigurationTypeError: not a mechanism, or not a ledger.
    """

    def __init__(self, mechanism: RecourseMechanism, ledger: Ledger) -> None:
        if not isinstance(mechanism, RecourseMechanism):
            raise ConfigurationTypeError(
                f"expected a mechanism of safexplain.recourse, such as LaplaceScore, got {type(mechanism).__name__}"
            )
        if not mechanism.guarantee.is_private:
            raise RefusedError(f"{type(mechanism).__name__} cannot be charged: {mechanism.guarantee.why}")
        if not callable(getattr(ledger, "answer_many", None)) or isinstance(ledger, type):
            raise ConfigurationTypeError(
                f"ledger: expected an open Ledger, such as Ledger(url), got {type(ledger).__name__} {ledger!r}"
            )
        self.mechanism = mechanism
        self.ledger = ledger

    @property
    def guarantee(self) -> Guarantee:
        """The mechanism's, of each answer or of the model."""
        return self.mechanism.guarantee

    def explain(self, x: ArrayLike, *, principal: str | None, infeasible: Infeasible = "raise") -> Recourse:
        """Answers to the rows of x as the mechanism's, charged to the principal who asks: all of them or none.

        Raises:
            ConfigurationError: no principal, or another `infeasible`; nothing was charged.
            BudgetExhausted: the rows do not all fit; nothing was charged.
            InfeasibleError: some have no recourse; its `result` has all that was charged for.
            InputError: queries that the mechanism would not answer; nothing was charged.
            LedgerError: the ledger cannot be written; nothing was answered.
        """
        check_infeasible(infeasible)
        if self.guarantee.per == "model":
            return self.mechanism.explain(x, infeasible=infeasible)
        if principal is None:
            raise ConfigurationTypeError("principal: expected who asks, as each answer is charged; got None")
        costs = [Pure(float(epsilon)) for epsilon in self.mechanism.release(x)]
        rows = self.mechanism.rows(x)  # looks at the names of columns too

        def compute(positions: list[int]) -> list[dict[str, Any]]:
            found = self.mechanism.explain(rows[positions], infeasible="mark")
            return [{name: getattr(found, name)[i].tolist() for name in FIELDS} for i in range(len(positions))]

        stored = self.ledger.answer_many(
            principal,
            [self._question(row) for row in rows],
            compute,
            costs,
            mechanism=type(self.mechanism).__name__,
            parameters={"model": self.mechanism.identity, "adjacency": self.guarantee.adjacency},
        )
        columns: dict[str, Any] = {
            name: np.array([answer.value[name] for answer in stored], kind) for name, kind in FIELDS.items()
        }
        columns["counterfactual"] = columns["counterfactual"].reshape(rows.shape)
        result = Recourse(x=rows, **columns, table=self.mechanism.preprocessing, like=x)
        return result.required() if infeasible == "raise" else result

    def _question(self, row: np.ndarray[Any, np.dtype[np.float64]]) -> bytes:
        """The fit, with its frozen parameters, and the query; zeros of either sign are one question."""
        return self.mechanism.identity.encode() + (row + 0.0).tobytes()
