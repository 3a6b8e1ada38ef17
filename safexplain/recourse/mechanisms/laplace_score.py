"""Recourse from a noised logit and public weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import check_number, readable
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.laplace import laplace_release
from safexplain.recourse.mechanisms.mechanism import DiverseAnswers, Frozen
from safexplain.recourse.mechanisms.stable_score import StableScoreMechanism
from safexplain.recourse.result import Floats, Recourse


@dataclass(frozen=True, eq=False)
class NoisyScores:
    """Released scores of n queries, (n,) each: noised logits within the public bound, and the rest as in `Recourse`."""

    score: Floats
    favourable: NDArray[np.bool_]
    censored: NDArray[np.bool_]


@dataclass(eq=False, kw_only=True)
class LaplaceScore(StableScoreMechanism, DiverseAnswers):
    """Releases the logit of a query with Laplace noise, and nothing else of the model: each answer is epsilon-private.

    Statement. For neighbouring training sets D and D', any query x and any set A of answers,
    Pr[answer on D in A] <= exp(epsilon) Pr[answer on D' in A].

    Proof. The logit f(x) changes by at most |u| S, u the query in units of the norm bound with the constant column
    (`safexplain.recourse.mechanisms.stable_score`; S from `safexplain.dp.linear.mechanisms`, the solver's error and
    rounding included). Clipping it to the public [-score_bound, score_bound] does not increase that.
    `safexplain.recourse.mechanisms.laplace` adds the noise for it, on a grid, by integers. Decision, flag and
    counterfactual are functions of the released number, of x and of public weights, constraints and costs:
    post-processing (Dwork and Roth 2014, proposition 2.1). Neither the trained weights nor their norm take part. n
    answers compose to at most n epsilon, to the same question too.

    `public_weights` say which way to go, those of a model of public data for instance. The counterfactual moves along
    them as far as the noised score asks for, as if a unit of the public score were a unit of the private one, which
    regularization shrinks: `public_fit` gives weights on its scale. A `target` above 0 makes room for the noise.

    Args:
        epsilon: of each answer.
        public_weights: (d,) logits a unit of each feature; None: `score` only. With a preprocessing, one number a
            column of its table, or by name of features and columns ("job=clerk"), 0 for those that are not named.
            Or a linear model that was trained on the same records with differential privacy, which carries its
            statement (a `DPLogisticRegression`, a fitted `DPModelRecourse`): `MeteredRecourse` charges that once too.
        score_bound: public bound on released logits.

    Raises:
        ConfigurationError: a value out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 2, 2000)
        >>> X = rng.normal(size=(2000, 2)) + 2 * y[:, None]
        >>> mechanism = LaplaceScore(epsilon=0.5, public_weights=[1, 1], norm_bound=5.0, random_state=0).fit(X, y)
        >>> answer = mechanism.explain([-1.0, 0.0])
        >>> bool(answer.valid[0]), bool(answer.favourable[0])
        (True, False)
    """

    name: ClassVar[str] = "logit with Laplace noise on a grid (LaplaceScore)"
    released: ClassVar[str] = (
        "the noised logit, within a public range; the rest follows from it and from public weights"
    )
    why: ClassVar[str] = (
        "a record changes the logit of a regression with regularised weights by at most a known amount (Chaudhuri,"
        " Monteleoni and Sarwate 2011), and the noise is scaled to it; the trained weights are never used otherwise"
    )
    vector: ClassVar[str] = "public_weights"

    public_weights: Any = None
    score_bound: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = check_number("score_bound", self.score_bound, above=0)
        if not -bound <= self.target <= bound:
            raise ConfigurationError(f"target {self.target:g} lies outside of the public range +-{bound:g}")

    def score(self, x: ArrayLike) -> NoisyScores:
        """Noised logits of (n, d) or (d,) queries, for the price of an answer each.

        Raises:
            InputError: not finite numbers, or another number of features.
            ConfigurationError: `fit` has not been called.
        """
        return self._release(self.rows(x))

    def public_fit(self, X: ArrayLike, y: ArrayLike, *, records: int) -> Floats:
        """Weights of PUBLIC data on the scale of this mechanism's score; they are not noised, and for publishing.

        Args:
            X: (m, d) public rows; never the training rows.
            y: (m,) their labels out of `classes`.
            records: number of rows that the mechanism itself is trained on, so that both are regularised as strongly.

        Returns:
            (d,) for `public_weights`, with a preprocessing one a column of the table; their norm is the slope of
            `PublicDirection` along them.

        Raises:
            ConfigurationError: as `fit`.
            InputError: as `fit`.
        """
        check_number("records", records, above=0)
        shape = np.shape(readable(y, "y"))
        if len(shape) != 1:
            raise InputError(f"y: expected (m,) labels, got shape {shape}")
        penalty = self._penalty() * shape[0] / records
        model = replace(self, public_weights=None, regularization=penalty).fit(X, y)._trained()
        per_unit = model.weights[:-1] * model.moved(np.ones(len(model.weights) - 1))[:-1]
        return per_unit if self.preprocessing is None else per_unit / self.preprocessing.scale

    def _release(self, rows: Floats) -> NoisyScores:
        model = self._trained()
        lifted, bound = model.lifted(self._scaled(rows)), float(self.score_bound)
        noised, censored = laplace_release(
            lifted @ model.weights, model.sensitivity(lifted), self.epsilon, -bound, bound, self._noise()
        )
        return NoisyScores(noised, noised >= self.target, censored)

    def _solver(self, rows: Floats) -> Callable[[Frozen], Recourse]:
        if self.public_weights is None:
            raise ConfigurationError(
                "explain() needs public_weights to know which way to go: the trained weights are private. Give those"
                " of a model of public data, or a fitted DPLogisticRegression, or call score(x) for the noised logit"
                " alone"
            )
        return self.solver_of(rows, self._release(rows))

    def solver_of(self, rows: Floats, released: NoisyScores) -> Callable[[Frozen], Recourse]:
        """What answers rows, given the columns that must not change, from released scores: no noise is drawn."""
        weights: Floats = self._get("vector")
        bias = released.score - rows @ weights

        def solve(frozen: Frozen) -> Recourse:
            found = linear_recourse(
                weights,
                bias,
                rows,
                target=self.target,
                cost=self.column_cost,
                constraints=self.column_constraints,
                frozen=frozen,
            )
            stays = released.favourable  # where rounding in w.x + bias disagrees, the released number decides
            return replace(
                found,
                counterfactual=np.where(stays[:, None], rows, found.counterfactual),
                valid=found.valid | stays,
                proven=found.proven | stays,
                distance=np.where(stays, 0.0, found.distance),
                score=released.score,
                favourable=stays,
                censored=released.censored,
            )

        return solve
