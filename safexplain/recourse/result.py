"""What an answer holds: the listed arrays, and the guarantee that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safexplain.errors import ConfigurationTypeError, InfeasibleError
from safexplain.recourse.found import Found, first_of
from safexplain.recourse.guarantee import Guarantee
from safexplain.recourse.letters import MOST_REASONS, Advice, columns_of_changes, letters_of, reasons_of
from safexplain.recourse.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Recourse(Found):
    """Answers to n queries about rows of d columns, with the privacy guarantee that they have: the listed arrays of
    `Found`, where the score is the released one, and nothing else.

    Args:
        guarantee: what the answers tell of the training records at most: by the statement of the model that they come
            from, or by the noise on each and its charge. There is no answer without one.
        table: the preprocessing that x and counterfactual are rows of; None: they are rows as they came.
        like: the queries as they came, for `frame`.
        advice: how the answer may be put in words; None: by its numbers alone.

    Raises:
        ConfigurationTypeError: no guarantee.
    """

    guarantee: Guarantee = field(kw_only=True)
    table: Preprocessing | None = field(default=None, repr=False)
    like: Any = field(default=None, repr=False)
    advice: Advice | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guarantee, Guarantee):
            raise ConfigurationTypeError(f"guarantee: expected a Guarantee, got {self.guarantee!r:.60}")

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

    def reasons(self) -> tuple[tuple[str, ...], ...]:
        """What each person would have to change, in sentences.

        Returns:
            For each query a sentence for each feature that has to change, the one with the largest share of the cost
            first; none where the decision is favourable, and one that says so where there is no recourse. Numbers are
            rounded so that the sentences stay true.
        """
        return reasons_of(self)

    def letters(self, *, names: Sequence[str] | None = None, most_reasons: int = MOST_REASONS) -> list[str]:
        """Letters to the persons who were turned down, in the order of the queries: the principal reasons, what would
        have led to approval, and how the records are protected, by `guarantee`.

        A letter calls features what the preprocessing's `describe` calls them. For a person without recourse the
        reasons are what would have to change if only the public ranges and directions limited it, where the model is
        linear; the letter then says that no change within the constraints would do.

        Args:
            names: (n,) of all persons, for the salutation.
            most_reasons: principal reasons at most; all changes are listed in any case.

        Raises:
            ConfigurationError: no preprocessing, features that `describe` has no words for, or another number of
                names.
        """
        return letters_of(self, names, most_reasons)

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
