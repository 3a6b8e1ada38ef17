"""An answer: the listed arrays with their guarantee, which is differential privacy in numbers and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from safexplain._privacy_loss import PROTECTS, Adjacency, check_adjacency
from safexplain._secure_random import GENERATOR
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InfeasibleError
from safexplain.recourse.letters import MOST_REASONS, Advice, change_columns, letters_of, reasons_of
from safexplain.recourse.preprocessing import PUBLIC_PREPROCESSING, Preprocessing
from safexplain.recourse.solution import Solution, rows_where
from safexplain.verdict.privacy_statement import PUBLIC, PrivacyStatement, randomness

Per = Literal["model", "answer"]
"""What spends epsilon: the training, once for any number of answers, or each answer."""

PUBLIC_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound, the clamp and public weights were not"
    " computed from the training data"
)
PRIVATE_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound and the clamp were not computed from the"
    " training data; weights come from a training with differential privacy, whose epsilon counts once in addition"
)
NO_TIMING = (
    "attackers cannot time answers to within 50 microseconds (larger noise takes longer to draw); if they can, the"
    " service must answer at fixed intervals"
)
FAILURES_HIDDEN = "recipients of answers do not learn whether training failed, nor with which error or warning"
PUBLIC_QUERIES = "queries are not training data, or are asked by their owner: epsilon protects the training records"
VOUCHED = "the model was trained as its privacy statement says; this is its owner's word and was not checked"
NOT_CHARGED = "the provider counts the answers: these were charged to no ledger, and n of them spend n epsilon"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of recourse.

    Args:
        mechanism: its name and source.
        per: what spends epsilon: "model" (training, once) or "answer" (each answer; `MeteredRecourse` charges them).
        epsilon: bound on the privacy loss.
        delta: probability with which the bound may fail.
        adjacency: how neighbouring training sets differ.
        released: what is released.
        why: the proof in a sentence.
        statement: of the trained model, or of the model that provides public weights and spends once in addition; None:
            before `fit`, or no privately trained model.
        vouched: whether the statement about a training outside this package is only its owner's word.
        assumptions: conditions of the guarantee.
        preprocessing: digest of the public preprocessing of frames; None: rows are plain numbers.
        ledger: identity of the ledger that was charged (`Ledger.identity`); "": none.
        charges: numbers of the charges there: of the training, if any, then of each answer.

    Raises:
        ConfigurationError: numbers out of range.
    """

    mechanism: str
    per: Per
    epsilon: float
    delta: float
    adjacency: Adjacency
    released: str
    why: str
    statement: PrivacyStatement | None = None
    vouched: bool = False
    assumptions: tuple[str, ...] = ()
    preprocessing: str | None = None
    ledger: str = ""
    charges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_number("epsilon", self.epsilon, above=0)
        check_number("delta", self.delta, minimum=0, below=1)
        if bool(self.ledger) != bool(self.charges):
            raise ConfigurationError("a guarantee needs both the ledger and its charges, or neither")

    @property
    def protects(self) -> str:
        """What an observer of the answers cannot infer, up to epsilon and delta."""
        return PROTECTS[self.adjacency]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        listed = {"assumptions": list(self.assumptions), "charges": list(self.charges), "protects": self.protects}
        return {**asdict(self), **listed, "statement": None if self.statement is None else self.statement.to_dict()}

    def __str__(self) -> str:
        once = "once, for any number of answers" if self.per == "model" else "for each answer"
        numbers = f"epsilon {self.epsilon:g}, delta {self.delta:g} ({self.adjacency})"
        text = f"{self.mechanism}: {numbers} {once}. {_sentence(self.why)}"
        return f"{text}. {_sentence(VOUCHED)}" if self.vouched else text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def assumptions(*, seeded: bool | None, noised: bool = False, preprocessed: bool = False) -> tuple[str, ...]:
    """Assumptions of every mechanism. `seeded`: whether noise comes from a seed (None: a statement records its source);
    `noised`: whether each answer has its own noise."""
    timing = (NO_TIMING,) if noised else ()
    ranges = (PUBLIC_PREPROCESSING,) if preprocessed else ()
    drawn = () if seeded is None else (randomness("" if seeded else GENERATOR, seeded=seeded, whole=noised),)
    return (PUBLIC, PUBLIC_GEOMETRY, *ranges, PUBLIC_QUERIES, FAILURES_HIDDEN, *timing, *drawn)


@dataclass(frozen=True, eq=False)
class Recourse(Solution):
    """Answers to n queries: the listed arrays of `Solution`, with the released score, and nothing else.

    Args:
        guarantee: limit on what the answers reveal about training records.
        advice: what sentences need besides the numbers.
        table: the preprocessing, if x and counterfactual are rows of its table; None: they are plain numbers.
        like: the original queries, for `frame`.

    Raises:
        ConfigurationTypeError: no guarantee.
    """

    guarantee: Guarantee = field(kw_only=True)
    advice: Advice = field(kw_only=True, repr=False)
    table: Preprocessing | None = field(default=None, repr=False)
    like: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guarantee, Guarantee):
            raise ConfigurationTypeError(f"guarantee: expected a Guarantee, got {self.guarantee!r:.60}")

    @property
    def frame(self) -> Any:
        """The counterfactuals as a frame like the queries, with their columns, types, labels and index.

        Without a preprocessing, a pandas or polars frame of numbers is returned as one, anything else as (n, d) array.
        """
        if self.table is not None:
            return self.table.frame(self.counterfactual, self.like)
        names = getattr(self.like, "columns", ())
        if type(self.like).__name__ != "DataFrame" or len(names) != self.counterfactual.shape[1]:
            return self.counterfactual
        index = {"index": self.like.index} if hasattr(self.like, "index") else {}
        return type(self.like)(dict(zip(names, self.counterfactual.T, strict=True)), **index)

    def reasons(self) -> tuple[tuple[str, ...], ...]:
        """The changes that each person would have to make, in sentences.

        Returns:
            For each query one sentence per feature to change, by decreasing share of the cost; none if the decision is
            favourable, and a single sentence if there is no recourse. Numbers are rounded so that sentences stay true.
        """
        return reasons_of(self)

    def letters(self, *, names: Sequence[str] | None = None, most_reasons: int = MOST_REASONS) -> list[str]:
        """Letters to declined applicants: the principal reasons, the changes that would have led to approval, and the
        protection of the training records.

        Without recourse, the reasons of a linear model are the changes that would do if only public ranges and
        directions limited them.

        Args:
            names: (n,) names of all applicants, for the salutation.
            most_reasons: largest number of principal reasons; all changes are listed in any case.

        Raises:
            ConfigurationError: no preprocessing, features missing in `describe`, or another number of names.
        """
        return letters_of(self, names, most_reasons)

    @property
    def changes(self) -> Any:
        """All changes, one per row, as a polars frame if the queries are one, else as a pandas frame, or without pandas
        as a dict of lists. `row` is the position of the query, `share` the share of its cost; `to` is rounded as in
        `reasons`."""
        found = change_columns(self)
        if type(self.like).__module__.startswith("polars"):
            texts = {name: list(map(_plain_text, found[name])) for name in ("from", "to")}
            return type(self.like)({**found, **texts})
        try:
            import pandas
        except ImportError:
            return found
        return pandas.DataFrame(found)

    def required(self) -> Recourse:
        """This result, if every query has recourse.

        Raises:
            InfeasibleError: some have none; the error's `result` is this result.
        """
        if self.valid.all():
            return self
        rows = np.flatnonzero(~self.valid)
        certain = int(self.proven[rows].sum())
        known = f"proven for {'all' if certain == len(rows) else certain} of these" if certain else "not proven"
        raise InfeasibleError(
            f"{len(rows)} of {len(self)} queries have no recourse within the constraints ({rows_where(~self.valid)};"
            f' {known}); loosen the constraints, lower the target, or pass infeasible="mark" to get valid=False for'
            " these. The other answers are in .result",
            result=self,
            rows=rows,
        )


def _plain_text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
