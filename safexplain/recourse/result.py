"""What an answer holds: the listed arrays and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import real_numbers
from safexplain.errors import InfeasibleError, InputError
from safexplain.recourse.reasons import MOST_REASONS, Advice, columns_of_changes, letters_of, reasons_of

Floats = NDArray[np.float64]


class Table(Protocol):
    """What gives rows of the table back as people have them: a `safexplain.recourse.Preprocessing`."""

    def frame(self, table: Any, like: Any = None) -> Any:
        """Rows (n, D) as a frame of the kind of `like`."""


@dataclass(frozen=True, eq=False)
class Recourse:
    """Answers to n queries about rows of d columns; nothing in it is NaN or infinite.

    Args:
        x: (n, d) the queries, as they came.
        counterfactual: (n, d) what to change x to; x itself where it is favourable already, and where nothing was
            found.
        valid: (n,) bool, whether the counterfactual reaches the target, within the constraints, by the scores that the
            answer is made from.
        distance: (n,) cost of the change, in the units of the cost.
        score: (n,) released score of x: the logit of the favourable outcome, noised where the mechanism noises it.
        favourable: (n,) bool, the released decision about x; nothing needs to change there.
        censored: (n,) bool, whether the released number was moved to the end of its public range.
        proven: (n,) bool, whether no allowed change costs less, or, where nothing was found, none reaches the target,
            by the released scores and up to rounding. None: for no query.
        table: the preprocessing that x and counterfactual are rows of; None: they are rows as they came.
        like: the queries as they came, for `frame`.
        advice: how the answer may be put in words; None: by its numbers alone.
    """

    x: Floats
    counterfactual: Floats
    valid: NDArray[np.bool_]
    distance: Floats
    score: Floats
    favourable: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    proven: NDArray[np.bool_] = None  # type: ignore[assignment]
    table: Table | None = field(default=None, repr=False)
    like: Any = field(default=None, repr=False)
    advice: Advice | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.proven is None:
            object.__setattr__(self, "proven", np.zeros(len(self.x), dtype=bool))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def change(self) -> Floats:
        """(n, d) counterfactual - x."""
        return self.counterfactual - self.x

    @property
    def frame(self) -> Any:
        """The counterfactuals as a frame of the kind that came: its columns, types, labels and index.

        Without a preprocessing, a pandas or polars frame of numbers comes back as one, and anything else as (n, d)
        array.
        """
        if self.table is not None:
            return self.table.frame(self.counterfactual, self.like)
        names = getattr(self.like, "columns", None)
        if type(self.like).__name__ != "DataFrame" or names is None or len(names) != self.counterfactual.shape[1]:
            return self.counterfactual
        columns = dict(zip(names, self.counterfactual.T, strict=True))
        index = getattr(self.like, "index", None)
        return type(self.like)(columns) if index is None else type(self.like)(columns, index=index)

    def reasons(self, language: str = "en") -> tuple[tuple[str, ...], ...]:
        """What each person would have to change, in sentences.

        Args:
            language: "en" or "de".

        Returns:
            For each query a sentence for each feature that has to change, the one with the largest share of the cost
            first; none where the decision is favourable, and one that says so where there is no recourse. Numbers are
            rounded so that the sentences stay true.

        Raises:
            ConfigurationError: another language.
        """
        return reasons_of(self, language)

    def letters(
        self,
        language: str = "en",
        *,
        names: Sequence[str] | None = None,
        guarantee: Any = None,
        most_reasons: int = MOST_REASONS,
    ) -> list[str]:
        """Letters to the persons who were turned down, in the order of the queries: the principal reasons, and what
        would have led to approval.

        For a person without recourse the reasons are what would have to change if only the public ranges limited it,
        where the model is linear; the letter then says that no change within the constraints would do.

        Args:
            language: "en" or "de".
            names: (n,) of all persons, for the salutation.
            guarantee: of the mechanism that answered, to be stated in a sentence.
            most_reasons: principal reasons at most; all changes are listed in any case.

        Raises:
            ConfigurationError: another language, or another number of names.
            RefusedError: a guarantee of nothing.
        """
        return letters_of(self, language, names, guarantee, most_reasons)

    @property
    def changes(self) -> Any:
        """Every change of every person, one a row, as a frame of the kind that came (else pandas, or a dict of lists):
        `row` is the number of the query, `share` that of its cost; `to` is rounded as in `reasons`.
        """
        found = columns_of_changes(self)
        if type(self.like).__module__.startswith("polars"):
            texts = {name: list(map(_plain_text, found[name])) for name in ("from", "to")}
            return type(self.like)({**found, **texts})
        try:
            import pandas
        except ImportError:
            return found
        return pandas.DataFrame(found)

    def required(self) -> Recourse:
        """This result, if every query has an answer.

        Raises:
            InfeasibleError: some have none; the error's `result` is this one.
        """
        if self.valid.all():
            return self
        rows = np.flatnonzero(~self.valid)
        certain = int(self.proven[rows].sum())
        known = f"proven for {'all' if certain == len(rows) else certain} of these" if certain else "not proven"
        raise InfeasibleError(
            f"{len(rows)} of {len(self)} queries have no recourse within the constraints (rows {first_of(rows)};"
            f" {known}); loosen the constraints (free what is immutable, widen lower, upper and largest_change, raise"
            ' most_changes, drop rules), ask for a lower target, or pass infeasible="mark" to have valid=False.'
            " The others are in .result",
            result=self,
            rows=rows,
        )


def _plain_text(value: Any) -> str:
    """A number or label as text: a column of polars holds one type."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def first_of(rows: NDArray[np.intp]) -> str:
    """Numbers of rows, as messages list them: the first five."""
    return ", ".join(map(str, rows[:5].tolist())) + (", ..." if len(rows) > 5 else "")


def as_rows(x: ArrayLike, features: int | None = None) -> Floats:
    """(n, d) float64 copy of queries; one row may be given as (d,).

    Raises:
        InputError: not finite real numbers, not one or two dimensions, or another number of features.
    """
    rows = real_numbers(
        x,
        "x",
        expected="expected numbers, one column a feature; encode categories (one column each) and dates first, or give"
        " the mechanism or the search a preprocessing=Preprocessing(...) that reads people's frames",
    )
    shape = rows.shape
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or (features is not None and rows.shape[1] != features):
        expected = "(n, d)" if features is None else f"(n, {features}) or ({features},)"
        raise InputError(f"x: expected shape {expected}, got {shape}")
    if not np.isfinite(rows).all():
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        raise InputError(f"x: NaN or infinite numbers in {len(bad)} rows (first: {bad[0]}); fill or leave them out")
    return rows
