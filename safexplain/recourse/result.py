"""An answer: the listed arrays with their privacy guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safexplain.errors import ConfigurationTypeError, InfeasibleError
from safexplain.recourse.guarantee import Guarantee
from safexplain.recourse.letters import MOST_REASONS, Advice, change_columns, letters_of, reasons_of
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.solution import Solution, rows_where


@dataclass(frozen=True, eq=False)
class Recourse(Solution):
    """Answers to n queries of d columns, with their privacy guarantee: the listed arrays of `Solution`, with the
    released score, and nothing else.

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
        """Letters to declined applicants, in the order of the queries: the principal reasons, the changes that would
        have led to approval, and the protection of the training records.

        Without recourse, the letter states that no change within the constraints would lead to approval; with a linear
        model, the reasons are then the changes that would do if only public ranges and directions limited them.

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
    """A number or label as text, as a polars column holds a single type."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)
