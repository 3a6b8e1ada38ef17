"""The contract: a table of clauses, the function that checks an explainer against it, and what it found."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from safexplain.errors import ConfigurationError, SafexplainError
from safexplain.hardening.hardening import Hardening
from safexplain.testing import leaks, noises, states, values
from safexplain.testing.case import Broken, Case, Skip, Untried, seeded
from safexplain.testing.states import Snapshot

__all__ = ["CLAUSES", "Clause", "ContractError", "ContractReport", "Outcome", "check_explainer"]


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
        outcomes: in the order of `CLAUSES`.
    """

    explainer: str
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, clause: str) -> Outcome:
        return {outcome.clause: outcome for outcome in self.outcomes}[clause]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(names)} {state}" for state, names in self._states.items() if names)
        rest = ["no clause can see:", *(f"          {sentence}" for sentence in self.unchecked)]
        return "\n".join([f"{self.explainer}: {counts}", *map(str, self.outcomes), *rest])

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What no clause can see, a sentence each; what could not be tried here stands in the outcomes."""
        return UNCHECKED

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


@dataclass(frozen=True)
class Clause:
    """One promise.

    Args:
        check: yields a sentence for each thing that is broken, and `Untried` for what could not be tried; its first
            line of documentation is the promise.
        needs: names of clauses without which this one cannot be told.
    """

    check: Callable[[Case], Iterable[str]]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name by which it can be skipped."""
        return self.check.__name__

    @property
    def promise(self) -> str:
        """What it says."""
        return (inspect.getdoc(self.check) or "").partition("\n")[0]


_EXACT = "equals_native_without_hardening"
_AGAIN = "asking_again_gives_the_same_answer"

CLAUSES: tuple[Clause, ...] = (
    Clause(values.answers),
    Clause(values.equals_native_without_hardening),
    Clause(leaks.keeps_native_signatures),
    Clause(values.returns_native_types),
    Clause(values.no_examples_no_answers),
    Clause(noises.asking_again_gives_the_same_answer),
    Clause(values.clips_then_masks_then_noises, (_EXACT, _AGAIN)),
    Clause(noises.noise_belongs_to_the_query, (_EXACT, _AGAIN)),
    Clause(noises.noise_ignores_the_batch, (_EXACT, _AGAIN)),
    Clause(values.memory_layout_changes_nothing, (_EXACT, _AGAIN)),
    Clause(noises.double_precision_is_no_way_around, (_EXACT, _AGAIN)),
    Clause(values.nan_and_infinity_do_not_leave),
    Clause(leaks.only_listed_arrays_leave),
    Clause(leaks.nothing_is_said_beside_the_answer),
    Clause(leaks.released_arrays_are_detached),
    Clause(leaks.no_way_around_the_hardening),
    Clause(states.leaves_nothing_behind),
    Clause(states.threads_get_right_answers, (_AGAIN,)),
    Clause(noises.works_in_any_gradient_mode, (_AGAIN,)),
    Clause(noises.a_pickled_copy_answers_alike, (_AGAIN,)),
)
"""What any hardened explainer has to keep, in the order in which it is checked."""

UNCHECKED: tuple[str, ...] = (
    "whether the noise is large enough: `safexplain audit` measures what an attacker finds",
    "how long an answer takes, and the memory that it needs: both can depend on secrets",
    "files, network connections, other processes, and loggers that do not hand their records to the root logger",
    "functions, classes and modules within an answer, and what they refer to",
    f"batches of more than {noises.LARGEST_BATCH} examples, and shapes, types and devices other than those given",
    "options other than those given, and inputs that nearly are the same question",
    "what happens after a certain time, or only at certain inputs, or only after more calls than are made here",
    "an explainer that recognises this test",
)
"""What no clause can see: an explainer that keeps the contract may still leak this way."""


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
    seed: int = 0,
) -> ContractReport:
    """Check a hardened explainer against every clause of the contract.

    It asks a few hundred times and changes the model for moments (hooks, training mode, parameters), and puts it back.
    While it runs, nobody else should use the model, and the native class is planted with markers in the whole process.

    Args:
        explainer_factory: (model, hardening=...) -> explainer, as a hardened class is; or (model, hardening); or
            (model), and then its attribute `hardening` is set.
        model: what is explained. A small one will do; with dropout or batch normalisation more is tested.
        inputs: as the explainer takes them: a tensor (batch, ...), a tuple of such, or whatever its library takes. Two
            or more different examples, or the clauses about batches are skipped.
        target: None where the explainer takes none.
        options: more keyword arguments for each call, or a function from inputs to them. None: what the catalog
            says that the method needs, or nothing.
        native: the native class; None: the explainer's `_native`.
        native_factory: model -> the native explainer to compare with. None: it is rebuilt from the attributes
            of a hardened Captum explainer; for others the clauses that compare are skipped.
        entry: name of the method that explains; None: the explainer's `_entry`, or "attribute".
        plant: (native result, native explainer) -> the result with `MARKER_TEXT` and `MARKER_NUMBER` in it where
            secrets would be. Needed where results are no tensors.
        hardening: the hardening of most clauses. None: noise alone, as large as the native numbers, with a fixed key.
        skip: names of clauses to leave out.
        seed: of the global generators for each call, which afterwards are as before.

    Returns:
        The outcome of each clause; none is broken.

    Raises:
        ContractError: a clause is broken; the message lists all that are, `report` holds the outcomes.
        ConfigurationError: `skip` names no clause.
    """
    unknown = set(skip) - {clause.name for clause in CLAUSES}
    if unknown:
        names = ", ".join(clause.name for clause in CLAUSES)
        raise ConfigurationError(f"skip: expected names of clauses, got {sorted(unknown)}; there are {names}")
    case = Case(
        explainer_factory, model, inputs, target, options, native, native_factory, entry, plant, hardening, seed
    )
    outcomes: dict[str, Outcome] = {}
    before = Snapshot(model, {"inputs": inputs, "target": target})
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Captum's, about hooks and leaf tensors
        for clause in CLAUSES:
            outcomes[clause.name] = _outcome(clause, case, skip, outcomes)
            if before.differences():  # what one clause found must not spoil the next
                before.restore()
    name = case.kind.__name__ if outcomes["answers"].state != "broken" else _name(explainer_factory)
    report = ContractReport(name, tuple(outcomes.values()))
    if report.broken:
        raise ContractError(report)
    return report


def _outcome(clause: Clause, case: Case, skip: Collection[str], before: Mapping[str, Outcome]) -> Outcome:
    if clause.name in skip:
        return Outcome(clause.name, clause.promise, "skipped", ("left out by skip=",))
    for name in ("answers", *clause.needs):
        if name in before and before[name].state == "broken":
            return Outcome(clause.name, clause.promise, "skipped", (f"cannot be told while {name} is broken",))
    details: list[str] = []
    try:
        for sentence in clause.check(case):
            details.append(sentence)
    except Skip as reason:
        if not details:
            return Outcome(clause.name, clause.promise, "skipped", (str(reason),))
        details.append(Untried(reason))
    except Broken as error:
        details.append(str(error))
    except Exception as error:
        details.append(f"expected an answer, got {type(error).__name__}: {error!s:.200}")
    broken = [d for d in details if not isinstance(d, Untried)]
    if broken:
        return Outcome(clause.name, clause.promise, "broken", tuple(broken))
    return Outcome(clause.name, clause.promise, "passed", tuple(f"not tried: {d}" for d in details))


def _name(factory: Any) -> str:
    return str(getattr(factory, "__name__", None) or type(factory).__name__)
