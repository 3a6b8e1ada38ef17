"""Any recourse mechanism behind the call of Alibi's `Counterfactual`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from numpy.typing import ArrayLike
from scipy.special import expit

from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.recourse.mechanisms.mechanism import RecourseMechanism
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.result import Recourse, as_rows


class HardenedCounterfactual:
    """Answers `explain(X)` as `alibi.explainers.Counterfactual` does, from a recourse mechanism.

    What leaves is built from a list: the counterfactual, its distance, the class that is reached, and the released
    class and probability of X. The path of the search (`all`, `lambda`, `index`, `loss`) does not leave, and neither
    does the probability of the counterfactual: the fields are there, and empty. Where alibi is installed the answer is
    an `alibi.api.interfaces.Explanation`, otherwise an object with the same attributes. Source of the native method:
    Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399.

    Args:
        mechanism: one of `safexplain.recourse`, fitted, or a `MeteredRecourse`, which charges a ledger.
        principal: who asks, where the mechanism is metered and `explain` is not told.

    Raises:
        ConfigurationTypeError: not a mechanism, or a principal without a ledger.
        RefusedError: the mechanism is not private; `AsPublishedLaplace` is for study.
    """

    def __init__(self, mechanism: RecourseMechanism | MeteredRecourse, *, principal: str | None = None) -> None:
        if not isinstance(mechanism, RecourseMechanism | MeteredRecourse):
            raise ConfigurationTypeError(
                "expected a mechanism of safexplain.recourse, such as DPModelRecourse(model), got"
                f" {type(mechanism).__name__}; Alibi's own Counterfactual searches a model that is not private"
            )
        _check_principal(mechanism, principal)
        if not mechanism.guarantee.is_private:
            raise RefusedError(f"{type(mechanism).__name__} is not private: {mechanism.guarantee.why}")
        self.mechanism = mechanism
        self.principal = principal

    @property
    def meta(self) -> dict[str, Any]:
        """Name, kind and guarantee, as Alibi's explainers describe themselves."""
        from safexplain import __version__

        return {
            "name": type(self).__name__,
            "type": ["blackbox"],
            "explanations": ["local"],
            "params": {"guarantee": self.mechanism.guarantee.to_dict()},
            "version": __version__,
        }

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> HardenedCounterfactual:
        """Nothing, as Alibi's: the mechanism has been fitted.

        Args:
            X: not used.
            y: not used.
        """
        return self

    def explain(self, X: ArrayLike, *, principal: str | None = None) -> Any:
        """The counterfactual of one row.

        Args:
            X: (1, d), one instance with a batch dimension, as Alibi takes it.
            principal: who asks, for a metered mechanism; None: as the constructor was told.

        Returns:
            An explanation with `meta` and `data`: `cf` with X (1, d), distance and class, or None where there is no
            recourse within the constraints; `orig_class`, `orig_proba` and `success`.

        Raises:
            InputError: not a single row of numbers, or columns in another order than the constraints'.
            ConfigurationTypeError: a principal without a ledger.
            BudgetExhausted: the ledger refuses; nothing is charged.
        """
        _check_principal(self.mechanism, principal)
        rows = as_rows(X)
        if len(rows) != 1:
            raise InputError(f"X: expected one instance of shape (1, d), got {len(rows)}; ask for one after the other")
        if isinstance(self.mechanism, MeteredRecourse):
            asks = self.principal if principal is None else principal
            answer = self.mechanism.explain(X, principal=asks, infeasible="mark")
        else:
            answer = self.mechanism.explain(X, infeasible="mark")
        return explanation_class()(meta=self.meta, data=_data(answer, self._served))

    @property
    def _served(self) -> RecourseMechanism:
        return self.mechanism.mechanism if isinstance(self.mechanism, MeteredRecourse) else self.mechanism


class CounterfactualExplanation:
    """What `alibi.api.interfaces.Explanation` is, where alibi is not installed: `meta`, `data`, and their entries."""

    def __init__(self, meta: dict[str, Any], data: dict[str, Any]) -> None:
        self.meta, self.data = meta, data
        for name, value in {**data, **meta}.items():
            setattr(self, name, value)

    def to_json(self) -> str:
        """Both as JSON."""
        return json.dumps({"meta": self.meta, "data": self.data}, default=lambda a: a.tolist())

    def __repr__(self) -> str:
        return f"Explanation(meta={self.meta!r}, data={self.data!r})"


def _check_principal(mechanism: RecourseMechanism | MeteredRecourse, principal: str | None) -> None:
    if principal is not None and not isinstance(mechanism, MeteredRecourse):
        raise ConfigurationTypeError("principal: nothing is charged without a ledger; pass MeteredRecourse(...)")


def explanation_class() -> type[Any]:
    """Alibi's class where alibi is installed, else `CounterfactualExplanation`."""
    if find_spec("alibi") is None:
        return CounterfactualExplanation
    from safexplain.explain.alibi.library import load_alibi

    load_alibi()
    from alibi.api.interfaces import Explanation

    return Explanation  # type: ignore[no-any-return]


def _data(answer: Recourse, mechanism: RecourseMechanism) -> dict[str, Any]:
    """The fields of Alibi's answer, of one query."""
    favourable, chance = bool(answer.favourable[0]), float(expit(answer.score[0]))
    found = bool(answer.valid[0]) and not favourable
    cf = {
        "X": answer.counterfactual.copy(),
        "distance": float(answer.distance[0]),
        "lambda": None,
        "index": None,
        "class": mechanism.labels[1],
        "proba": None,
        "loss": None,
    }
    return {
        "cf": cf if found else None,
        "all": {},
        "orig_class": mechanism.labels[favourable],
        "orig_proba": max(chance, 1 - chance) if mechanism.scores_are_logits else None,
        "success": found,
    }
