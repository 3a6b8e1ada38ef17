"""Any recourse mechanism behind the call of Alibi's `Counterfactual`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike
from scipy.special import expit

from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.recourse.frames import columns_of, kind_of, values_of
from safexplain.recourse.mechanisms.mechanism import Guarantee, RecourseMechanism
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.result import Recourse, as_rows


@dataclass(frozen=True, eq=False)
class CounterfactualExplanation:
    """The answer to one query; nothing else is in it.

    Args:
        cf: `X` the counterfactual, (1, d) or, where the mechanism has a preprocessing and a frame came, a frame as it;
            its `distance` and the `class` that it reaches. None where the query is favourable already, and where there
            is no recourse within the constraints.
        orig_class: the released class of the query.
        orig_proba: the released probability of that class; None where the released score is no logit.
        success: whether a counterfactual was found.
        guarantee: what the answer tells at most.
    """

    cf: Mapping[str, Any] | None
    orig_class: Any
    orig_proba: float | None
    success: bool
    guarantee: Guarantee

    def to_json(self) -> str:
        """All of it as JSON."""
        cf = None if self.cf is None else {**self.cf, "X": _plain(self.cf["X"])}
        return json.dumps({**vars(self), "cf": cf, "guarantee": self.guarantee.to_dict()})


class HardenedCounterfactual:
    """Answers `explain(X)` as `alibi.explainers.Counterfactual` does, from a recourse mechanism.

    What leaves is built from a list: the counterfactual, its distance, the class that is reached, and the released
    class and probability of X, under the names that Alibi gives them. The path of the search does not leave, and
    neither does the probability of the counterfactual. Source of the native method: Wachter, Mittelstadt and Russell
    2017, arXiv 1711.00399.

    Args:
        mechanism: one of `safexplain.recourse`, fitted, or a `MeteredRecourse`, which charges a ledger.
        principal: who asks, where the mechanism is metered.

    Raises:
        ConfigurationTypeError: not a mechanism, or a principal without a ledger.
        RefusedError: the mechanism is not private.
    """

    def __init__(self, mechanism: RecourseMechanism | MeteredRecourse, *, principal: str | None = None) -> None:
        if not isinstance(mechanism, RecourseMechanism | MeteredRecourse):
            raise ConfigurationTypeError(
                "expected a mechanism of safexplain.recourse, such as DPModelRecourse(model), got"
                f" {type(mechanism).__name__}; Alibi's own Counterfactual searches a model that is not private"
            )
        if principal is not None and not isinstance(mechanism, MeteredRecourse):
            raise ConfigurationTypeError("principal: nothing is charged without a ledger; pass MeteredRecourse(...)")
        if not mechanism.guarantee.is_private:
            raise RefusedError(f"{type(mechanism).__name__} is not private: {mechanism.guarantee.why}")
        self.mechanism = mechanism
        self._metered: MeteredRecourse | None = mechanism if isinstance(mechanism, MeteredRecourse) else None
        self.principal = principal

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> HardenedCounterfactual:
        """Nothing, as Alibi's: the mechanism has been fitted."""
        return self

    def explain(self, X: ArrayLike) -> CounterfactualExplanation:
        """The counterfactual of one row.

        Args:
            X: (1, d), one instance with a batch dimension, as Alibi takes it; or a frame of one person.

        Raises:
            InputError: not a single row of numbers, or columns in another order than the constraints'.
            BudgetExhausted: the ledger refuses; nothing is charged.
        """
        mechanism: Any = self.mechanism if self._metered is None else self._metered.mechanism
        rows = as_rows(X) if mechanism.preprocessing is None else mechanism.rows(X)
        if len(rows) != 1:
            raise InputError(f"X: expected one instance of shape (1, d), got {len(rows)}; ask for one after the other")
        if self._metered is not None:
            return _explanation(self._metered.explain(X, principal=self.principal, infeasible="mark"), mechanism)
        return _explanation(mechanism.explain(X, infeasible="mark"), mechanism)


def _plain(x: Any) -> Any:
    """A counterfactual in JSON types: an array's numbers, a frame's columns."""
    if kind_of(x) is None:
        return x.tolist()
    keys = {"pandas": "columns", "polars": "columns", "series": "index"}.get(str(kind_of(x)))
    names = [str(name) for name in (getattr(x, keys) if keys else x[0] if kind_of(x) == "records" else x)]
    return {name: values_of(column) for name, column in columns_of(x, names)[0].items()}


def _explanation(answer: Recourse, mechanism: RecourseMechanism) -> CounterfactualExplanation:
    """What leaves of the answer to one query."""
    favourable, chance = bool(answer.favourable[0]), float(expit(answer.score[0]))
    found = bool(answer.valid[0]) and not favourable
    cf = {
        "X": answer.counterfactual.copy() if kind_of(answer.like) is None or answer.table is None else answer.frame,
        "distance": float(answer.distance[0]),
        "class": mechanism.labels[1],
    }
    return CounterfactualExplanation(
        cf=MappingProxyType(cf) if found else None,
        orig_class=mechanism.labels[favourable],
        orig_proba=max(chance, 1 - chance) if mechanism.scores_are_logits else None,
        success=found,
        guarantee=mechanism.guarantee,
    )
