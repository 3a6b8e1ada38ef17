"""The contract: a table of clauses, the function that checks an explainer against them, and its report."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from safexplain.errors import ConfigurationError, SafexplainError
from safexplain.hardening.hardening import Hardening
from safexplain.testing import clauses
from safexplain.testing.case import Case, Skip, Snapshot, Untried, seeded

State = Literal["passed", "skipped", "broken"]


@dataclass(frozen=True)
class Outcome:
    """The result of one clause: its name and promise, and what was found."""

    clause: str
    promise: str
    state: State
    details: tuple[str, ...] = ()  # why it was skipped; each fault; or, if it passed, the parts that were not tried

    def __str__(self) -> str:
        return "\n".join([f"{self.state:<8}{self.clause}: {self.promise}", *(f"          {d}" for d in self.details)])


@dataclass(frozen=True)
class ContractReport:
    """The outcomes of all clauses for one explainer."""

    explainer: str  # name of its class
    outcomes: tuple[Outcome, ...]  # in the order of `CLAUSES`

    def __getitem__(self, clause: str) -> Outcome:
        return {outcome.clause: outcome for outcome in self.outcomes}[clause]

    def __str__(self) -> str:
        states = [outcome.state for outcome in self.outcomes]
        counts = ", ".join(f"{states.count(state)} {state}" for state in get_args(State) if state in states)
        rest = ["no clause can check:", *(f"          {sentence}" for sentence in self.unchecked)]
        return "\n".join([f"{self.explainer}: {counts}", *map(str, self.outcomes), *rest])

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What no clause can check, a sentence each. Parts that could not be tried are in the outcomes."""
        return UNCHECKED

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the clauses that hold."""
        return self._in_state("passed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the clauses that do not apply or could not be tried; the outcome gives the reason."""
        return self._in_state("skipped")

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the clauses that do not hold."""
        return self._in_state("broken")

    def _in_state(self, state: State) -> tuple[str, ...]:
        return tuple(outcome.clause for outcome in self.outcomes if outcome.state == state)


class ContractError(SafexplainError, AssertionError):
    """An explainer breaks clauses of the contract; the message lists each, `report` is the whole `ContractReport`."""

    def __init__(self, report: ContractReport) -> None:
        self.report = report
        broken = [str(outcome) for outcome in report.outcomes if outcome.state == "broken"]
        head = f"{report.explainer} breaks {len(broken)} of {len(report.outcomes)} clauses of the contract"
        super().__init__("\n".join([head, *broken]))


_NOISE = ("equals_native_without_hardening", "asking_again_gives_the_same_answer")

CLAUSES: Mapping[Callable[[Case], Iterable[str]], tuple[str, ...]] = {
    clauses.answers: (),
    clauses.equals_native_without_hardening: (),
    clauses.no_examples_no_answers: (),
    clauses.asking_again_gives_the_same_answer: (),
    clauses.clips_then_masks_then_noises: _NOISE,
    clauses.noise_belongs_to_the_query: _NOISE,
    clauses.noise_ignores_the_batch: _NOISE,
    clauses.only_listed_arrays_leave: (),
    clauses.released_arrays_are_detached: (),
    clauses.no_way_around_the_hardening: (),
    clauses.leaves_nothing_behind: (),
    clauses.threads_get_right_answers: _NOISE[1:],
    clauses.works_in_any_gradient_mode: _NOISE[1:],
}
"""Clause -> clauses that must hold for it to be checked, in the order of checking. The first line of a clause's
docstring is its promise."""

UNCHECKED: tuple[str, ...] = (
    "whether the noise is large enough: `safexplain audit` measures what an attacker finds",
    "time and memory of an answer, which can depend on secrets",
    "output, logs, warnings, files, network connections and other processes",
    "functions, classes and modules within an answer, and what they refer to",
    "shapes, types, devices, memory layouts, precisions, batch sizes and options other than the given ones",
    "near-duplicate queries, and native numbers that are NaN or infinite",
    "behaviour after a certain time, for certain inputs, or after more calls than are made here",
    "an explainer that recognises this test",
)
"""What no clause can check: an explainer that keeps the contract may still leak this way."""


def check_explainer(
    explainer_factory: Callable[..., Any],
    model: Any,
    inputs: Any,
    target: Any = None,
    *,
    options: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    native: type | None = None,
    native_factory: Callable[[Any], Any] | None = None,
    entry: str | None = None,
    plant: Callable[[Any, Any], Any] | None = None,
    hardening: Hardening | None = None,
    skip: Collection[str] = (),
) -> ContractReport:
    """Check a hardened explainer against every clause of the contract; the report has the outcome of each.

    It makes a few hundred calls, and temporarily changes the model (hooks, training mode, parameters), the native class
    and the global generators. Nothing else should use them meanwhile.

    Args:
        explainer_factory: (model, hardening=...) -> explainer, like a hardened class; or (model, hardening); or
            (model), whose attribute `hardening` is then set.
        model: a small model is enough; dropout or batch normalisation tests more.
        inputs: as the explainer takes them: a tensor (batch, ...), a tuple of such, or any type of its library. With
            fewer than two different examples, the clauses about batches are skipped.
        target: None if the explainer takes none.
        options: more keyword arguments for each call, or a function from inputs to them. None: those that the catalog
            lists for the method, if any.
        native: the native class; None: the explainer's `_native`.
        native_factory: model -> the native explainer to compare with. None: rebuilt from the attributes of a hardened
            Captum explainer; for others, the clauses that compare are skipped.
        entry: name of the method that explains; None: the explainer's `_entry`, or "attribute".
        plant: (native result, native explainer) -> the result with `MARKER_TEXT` and `MARKER_NUMBER` in place of
            secrets. Needed if results are no tensors.
        hardening: the hardening of most clauses. None: noise alone, as large as the native numbers, with a fixed key.
        skip: names of clauses to skip.

    Raises:
        ContractError: a clause is broken; the message lists all broken ones, `report` holds the outcomes.
        ConfigurationError: `skip` has an unknown name.
    """
    names = [clause.__name__ for clause in CLAUSES][1:]
    if unknown := set(skip) - set(names):
        raise ConfigurationError(f"skip: expected some of {', '.join(names)}; got {sorted(unknown)}")
    case = Case(explainer_factory, model, inputs, target, options, native, native_factory, entry, plant, hardening)
    outcomes: dict[str, Outcome] = {}
    before = Snapshot(model, {"inputs": inputs, "target": target})
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Captum's, about hooks and leaf tensors
        for clause, needs in CLAUSES.items():
            name, promise = clause.__name__, (inspect.getdoc(clause) or "").partition("\n")[0]
            cannot = [n for n in ("answers", *needs) if n in outcomes and outcomes[n].state == "broken"]
            if name in skip:
                outcomes[name] = Outcome(name, promise, "skipped", ("skipped by skip=",))
            elif cannot:
                outcomes[name] = Outcome(name, promise, "skipped", (f"cannot be checked while {cannot[0]} is broken",))
            else:
                outcomes[name] = Outcome(name, promise, *_result(clause, case))
            if before.differences():  # a broken clause must not affect the next one
                before.restore()
    made = type(case.plain) if outcomes["answers"].state != "broken" else explainer_factory
    report = ContractReport(getattr(made, "__name__", type(made).__name__), tuple(outcomes.values()))
    if report.broken:
        raise ContractError(report)
    return report


def _result(clause: Callable[[Case], Iterable[str]], case: Case) -> tuple[State, tuple[str, ...]]:
    """State and details of a clause."""
    details: list[str] = []
    try:
        for sentence in clause(case):
            details.append(sentence)
    except Skip as reason:
        if not details:
            return "skipped", (str(reason),)
        details.append(Untried(reason))
    except Exception as error:
        details.append(f"expected an answer, got {type(error).__name__}: {error!s:.200}")
    if broken := [d for d in details if not isinstance(d, Untried)]:
        return "broken", tuple(broken)
    return "passed", tuple(f"not tried: {d}" for d in details)
