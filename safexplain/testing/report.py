"""What a contract check found: one outcome a clause, and the error that lists the broken ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safexplain.errors import SafexplainError

__all__ = ["ContractError", "ContractReport", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """How one clause came out.

    Args:
        clause: its name.
        promise: what it says, a sentence.
        state: "passed", "skipped" or "broken".
        details: why it was skipped; each thing that is broken, what was expected and what came; or, where it passed,
            which parts could not be tried.
    """

    clause: str
    promise: str
    state: Literal["passed", "skipped", "broken"]
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.state:<8}{self.clause}: {self.promise}", *(f"          {d}" for d in self.details)])


@dataclass(frozen=True)
class ContractReport:
    """The outcomes of all clauses for one explainer.

    Args:
        explainer: name of its class.
        outcomes: in the order of `safexplain.testing.CLAUSES`.
    """

    explainer: str
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, clause: str) -> Outcome:
        return {outcome.clause: outcome for outcome in self.outcomes}[clause]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(names)} {state}" for state, names in self._states.items() if names)
        return "\n".join([f"{self.explainer}: {counts}", *map(str, self.outcomes)])

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the clauses that hold."""
        return self._states["passed"]

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the clauses that do not apply, or could not be tried; the outcome says why."""
        return self._states["skipped"]

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the clauses that do not hold."""
        return self._states["broken"]

    @property
    def _states(self) -> dict[str, tuple[str, ...]]:
        states = ("passed", "skipped", "broken")
        return {state: tuple(o.clause for o in self.outcomes if o.state == state) for state in states}


class ContractError(SafexplainError, AssertionError):
    """An explainer breaks clauses of the contract; the message lists each of them.

    Attributes:
        report: the whole `ContractReport`.
    """

    def __init__(self, report: ContractReport) -> None:
        self.report = report
        broken = [str(outcome) for outcome in report.outcomes if outcome.state == "broken"]
        head = f"{report.explainer} breaks {len(broken)} of {len(report.outcomes)} clauses of the contract"
        super().__init__("\n".join([head, *broken]))

    def __reduce__(self) -> tuple[type[ContractError], tuple[ContractReport]]:
        return type(self), (self.report,)
