"""Recourse from a noised logit and public weights, in which each answer spends budget.

The proof of its epsilon stands in docs/api/recourse.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_X_y

from safexplain._secure_random import Randomness, discrete_laplace
from safexplain._validate import check_number, readable, real_numbers
from safexplain.dp.linear.classifier import (
    GRADIENT_ERROR,
    check_bound,
    in_unit_ball,
    largest_weight,
    positions,
    stability,
    stable_minimiser,
)
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.dp_model import DPModelRecourse, on_table, private_model
from safexplain.recourse.mechanisms.mechanism import Accepts, Frozen, RecourseMechanism
from safexplain.recourse.result import (
    NOT_CHARGED,
    PRIVATE_GEOMETRY,
    PUBLIC_GEOMETRY,
    VOUCHED,
    Guarantee,
    Per,
    assumptions,
)
from safexplain.recourse.solution import Floats, Solution
from safexplain.verdict.privacy_statement import PrivacyStatement

EVALUATION_ERROR = 1e-7
"""Largest rounding error of a score, relative to its sensitivity."""

LONGEST = 1e100
"""Longest query, in norm bounds; an overflow would reveal something about the weights."""

LOGIT_NOISE = 0.1
"""Scale of the noise on the logit of a record of norm `norm_bound`, if no regularization is given."""


@dataclass
class StableScore:
    """A trained logit with private weights (d + 1,) v, and their `stability` S."""

    weights: Floats
    norm_bound: float
    constant: float
    stability: float

    def __repr__(self) -> str:
        return f"StableScore(norm_bound={self.norm_bound!r}, stability={self.stability!r})"

    def check_length(self, x: Floats) -> None:
        """Raise InputError for queries (n, d) whose score could overflow."""
        with np.errstate(over="ignore"):
            length = np.linalg.norm(x / self.norm_bound, axis=1)
        if not (length < LONGEST).all():
            raise InputError(f"x: expected rows of at most {LONGEST:g} times norm_bound; check their units")

    def lifted(self, x: Floats) -> Floats:
        """(n, d + 1) rows u of (n, d) queries after `check_length`."""
        column = np.full((len(x), 1), self.constant)
        joined: Floats = np.concatenate([x / self.norm_bound, column], axis=1) / math.hypot(1.0, self.constant)
        return joined

    def sensitivity(self, lifted: Floats) -> Floats:
        """(n,) sensitivity of the scores of lifted rows to one record, above 0."""
        length: Floats = np.linalg.norm(lifted, axis=1)  # squares that underflow are far below the floor
        return np.maximum(length, 1e-12) * self.stability


@dataclass(frozen=True, eq=False)
class NoisyScores:
    """Released scores of n queries, (n,) each: noised logits within the public bound; the rest as in `Recourse`."""

    score: Floats
    favourable: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    guarantee: Guarantee


@dataclass(eq=False, kw_only=True)
class LaplaceScore(RecourseMechanism):
    """Releases only the logit of a query with Laplace noise: each answer is epsilon-private.

    Statement. For neighbouring training sets D and D', any query and any set A of answers,
    Pr[answer on D in A] <= exp(epsilon) Pr[answer on D' in A].

    Proof. Between neighbouring sets the logit changes by at most a known amount, to which the noise is scaled (see the
    module). Clipping to the public [-score_bound, score_bound] does not increase the change. Decision, flag and
    counterfactual are functions of the released number, of x and of public weights, constraints and costs:
    post-processing (Dwork and Roth 2014, proposition 2.1). The trained weights are not used otherwise. n answers
    compose to at most n epsilon, also for repeated queries.

    The counterfactual moves along `public_weights` as far as the noised score requires, as if both scores had one unit;
    `public_fit` gives such weights. A `target` above 0 leaves room for the noise.

    Args:
        epsilon: of each answer.
        public_weights: (d,) logits per unit of each feature, such as those of a model of public data; None: `score`
            only. With a preprocessing, one for each column of its table, or a mapping of features and columns
            ("job=clerk"). Or a linear model trained on the same records with differential privacy (a
            `DPLogisticRegression`, a fitted `DPModelRecourse`), which `MeteredRecourse` charges once as well.
        score_bound: public bound on released logits.
        regularization: public L, for the sum (not the mean) of losses, intercept included, for rows in units of
            `norm_bound`. None: 10 k / epsilon, k = 2 under substitution and else 1, so that the noise on the logit of a
            record of norm `norm_bound` has scale .1.

    Raises:
        ConfigurationError: a value out of range.
    """

    per: ClassVar[Per] = "answer"

    public_weights: Any = None
    score_bound: float = 10.0
    regularization: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regularization is not None:
            check_number("regularization", self.regularization, above=0)
        if len(self.classes) != 2:
            raise ConfigurationError(f"classes: expected (unfavourable, favourable), got {self.classes!r}")
        bound = check_number("score_bound", self.score_bound, above=0)
        if not -bound <= self.target <= bound:
            raise ConfigurationError(f"target: expected the public range -{bound:g} to {bound:g}, got {self.target:g}")
        given = self.public_weights
        if isinstance(given, DPModelRecourse) or hasattr(given, "coef_") or hasattr(given, "get_params"):
            weights, statement, vouched = self._of_model(given)
            self._set(weights=weights, statement=statement, vouched=vouched)
        elif given is not None:
            people = self.preprocessing
            self._set(weights=_public_vector(given) if people is None else people.vector(given, "public_weights"))

    def _of_model(self, given: Any) -> tuple[Floats, PrivacyStatement, bool]:
        """(D,) weights of a model trained with differential privacy, its statement, and whether it is vouched for."""
        if isinstance(given, DPModelRecourse):
            if given.preprocessing != self.preprocessing:
                raise ConfigurationError("public_weights: expected a mechanism with the same preprocessing")
            model, statement = given.private, given.statement
        else:
            model, statement = given, getattr(given, "privacy_", None)
        if not hasattr(model, "coef_"):
            raise ConfigurationError(
                "public_weights: expected numbers, or a fitted linear model trained with differential privacy, got an"
                f" unfitted or non-linear {type(given).__name__}"
            )
        if statement is None:
            raise RefusedError(
                f"public_weights: {type(given).__name__} carries no privacy statement. Pass a model trained with"
                " differential privacy, such as DPLogisticRegression, or the weights of a model of public data,"
                " public_weights=model.coef_[0]"
            )
        found = on_table(private_model(model, statement, self.classes[1], self.adjacency), self.preprocessing)
        if found.weights is None:
            raise ConfigurationError("public_weights: expected a linear model of two classes")
        return _public_vector(found.weights), statement, found.vouched

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train without noise; nothing is spent, and only answers release anything about the model.

        Raises:
            ConfigurationError: no `norm_bound`, or constraints for other data.
            InputError: a label outside `classes`, or columns in another order than the constraints'.
            RefusedError: more records or features than float64 can certify.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.
        """
        bound = check_bound(self._get("bound"))
        constant = float(self.intercept_scaling)
        rows, labels = check_X_y(*self._training_data(X, y), dtype=np.float64)
        penalty = self._penalty()
        spread = stability(penalty, self.adjacency)
        _check_precision(len(rows), rows.shape[1] + 1, penalty, spread)
        signs = 2.0 * positions(labels, np.asarray(self.classes)) - 1.0
        weights = stable_minimiser(in_unit_ball(rows, bound, constant) * signs[:, None], penalty)
        model = StableScore(weights, bound, constant, spread)
        self._set(width=rows.shape[1], columns=self._columns_of(X), model=model, generator=None)
        return self

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon of each answer; see the class for the proof."""
        assumed = assumptions(
            seeded=self.random_state is not None, noised=True, preprocessed=self.preprocessing is not None
        )
        why = (
            "a record changes the logit of a regression with regularised weights by at most a known amount (Chaudhuri,"
            " Monteleoni and Sarwate 2011), and the noise is scaled to it; the trained weights are never used"
            " otherwise. Epsilon adds up: n answers spend n epsilon"
        )
        if (statement := self._get("statement")) is not None:
            why += "; the model that public_weights come from spent, once, what its own statement says"
            assumed = tuple(PRIVATE_GEOMETRY if line == PUBLIC_GEOMETRY else line for line in assumed)
            assumed += (*((VOUCHED,) if self._get("vouched") else ()), *statement.assumptions)
        return self._guarantee(
            (*assumed, NOT_CHARGED),
            mechanism="logit with Laplace noise on a grid (LaplaceScore)",
            epsilon=float(self.epsilon),
            delta=0.0,
            released="the noised logit, within a public range; the rest follows from it and from public weights",
            why=why,
            statement=statement,
            vouched=bool(self._get("vouched")),
        )

    def score(self, x: ArrayLike) -> NoisyScores:
        """Noised logits of (n, d) or (d,) queries; each costs as much as an answer.

        Raises:
            InputError: not finite numbers, or another number of features.
            ConfigurationError: `fit` has not been called.
        """
        return self._release(self.rows(x))

    def public_fit(self, X: ArrayLike, y: ArrayLike, *, records: int) -> Floats:
        """Weights of PUBLIC data on the scale of this mechanism's score, without noise.

        Args:
            X: (m, d) public rows; never the training rows.
            y: (m,) their labels, among `classes`.
            records: number of training rows of the mechanism, for equally strong regularisation.

        Returns:
            (d,) for `public_weights`; with a preprocessing, one for each column of the table.

        Raises:
            ConfigurationError, InputError: as `fit`.
        """
        check_number("records", records, above=0)
        shape = np.shape(readable(y, "y"))
        if len(shape) != 1:
            raise InputError(f"y: expected (m,) labels, got shape {shape}")
        penalty = self._penalty() * shape[0] / records
        model: StableScore = replace(self, public_weights=None, regularization=penalty).fit(X, y)._get("model")
        per_unit = model.weights[:-1] / (model.norm_bound * math.hypot(1.0, model.constant))
        return per_unit if self.preprocessing is None else per_unit / self.preprocessing.scale

    def _check_width(self, width: int) -> None:
        super()._check_width(width)
        given = self._get("weights")
        if given is not None and len(given) != width:
            raise ConfigurationError(
                f"public_weights: expected {width} numbers, one for each feature, got {len(given)}"
            )

    def rows(self, x: ArrayLike) -> Floats:
        """See `RecourseMechanism.rows`."""
        rows = super().rows(x)
        self._get("model").check_length(self._scaled(rows))
        return rows

    def _penalty(self) -> float:
        if self.regularization is not None:
            return float(self.regularization)
        return stability(1.0, self.adjacency) / (LOGIT_NOISE * self.epsilon)

    def _release(self, rows: Floats) -> NoisyScores:
        model: StableScore = self._get("model")
        lifted, bound = model.lifted(self._scaled(rows)), float(self.score_bound)
        noised, censored = laplace_release(
            lifted @ model.weights, model.sensitivity(lifted), self.epsilon, -bound, bound, self._noise()
        )
        return NoisyScores(noised, noised >= self.target, censored, self.guarantee)

    def _solver(self, rows: Floats) -> Callable[[Frozen], Solution]:
        if self.public_weights is None:
            raise ConfigurationError(
                "explain() needs public_weights for the direction of changes: of a model of public data, or a fitted"
                " DPLogisticRegression; for the noised logit alone, call score(x)"
            )
        return self._solver_of(rows, self._release(rows))

    def _released(self, found: Solution) -> tuple[Floats | None, float | Floats, Accepts]:
        weights: Floats = self._get("weights")
        bias = found.score - found.x @ weights
        return weights, bias, lambda rows, at: rows @ weights + bias[at] >= self.target

    def _solver_of(self, rows: Floats, released: NoisyScores) -> Callable[[Frozen], Solution]:
        weights: Floats = self._get("weights")
        bias = released.score - rows @ weights

        def solve(frozen: Frozen) -> Solution:
            found = linear_recourse(
                weights,
                bias,
                rows,
                target=self.target,
                cost=self.column_cost,
                constraints=self.column_constraints,
                frozen=frozen,
            )
            stays = released.favourable  # if rounding in w.x + bias disagrees, the released number decides
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


def _check_precision(records: int, p: int, penalty: float, spread: float) -> None:
    longest = largest_weight(records, penalty) + GRADIENT_ERROR / penalty
    error = (p + 4) * 2.0**-53 * longest
    if error > EVALUATION_ERROR * spread:
        raise RefusedError(
            f"with {records:,} records and {p:,} weights, rounding errors of scores in float64 may reach"
            f" {error / spread:.1g} of their sensitivity, but the proof allows {EVALUATION_ERROR:g}; use less"
            " regularization, or DPModelRecourse"
        )


def _public_vector(given: ArrayLike) -> Floats:
    found = real_numbers(given, "public_weights", ConfigurationError)
    if found.ndim != 1 or not np.isfinite(found).all() or not found.any():
        raise ConfigurationError(
            f"public_weights: expected d finite numbers that are not all 0, got shape {found.shape}"
        )
    return found


# --- the Laplace mechanism on a grid --------------------------------------------------------------------------------

FINENESS = 1024
"""Grid points in the sensitivity, or in the scale of the noise where that is smaller."""

RELATIVE_SLACK = 1e-6
"""Share of the sensitivity allowed for the caller's rounding, on both data sets together."""

SLACK = 2.0**-40
"""Share of the interval allowed for it in addition; also the finest grid."""

LARGEST_SCALE = 2**40
"""Largest scale of the noise in grid points, so that products stay within 64-bit integers."""


def laplace_grid(sensitivity: float, epsilon: float, low: float, high: float) -> tuple[float, int, int]:
    """The grid g, the sensitivity K and the scale N of the noise, both in grid points, for one release of a value in
    the public [low, high]. ConfigurationError: an empty interval, or a number out of range."""
    epsilon = check_number("epsilon", epsilon, above=0)
    check_number("sensitivity", sensitivity, above=0)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigurationError(f"expected a public interval with low < high, got {low!r} to {high!r}")
    width = high - low
    needed = min(sensitivity, width) * (1 + RELATIVE_SLACK) + width * SLACK
    wanted = max(needed * min(1.0, 1.0 / epsilon) / FINENESS, max(abs(low), abs(high)) * SLACK)
    grid = 2.0 ** math.floor(math.log2(wanted))
    steps = math.floor(needed / grid) + 1
    scale = math.ceil(steps / Fraction(epsilon))  # never below the exact quotient
    if scale > LARGEST_SCALE:
        raise ConfigurationError(f"epsilon: expected at least {steps / LARGEST_SCALE:.1g}, got {epsilon!r}")
    return grid, steps, scale


def laplace_release(
    values: NDArray[np.float64],
    sensitivity: NDArray[np.float64],
    epsilon: float,
    low: float,
    high: float,
    rng: Randomness,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values (n,) with Laplace noise of scale about sensitivity (n,) / epsilon, within the public [low, high], and (n,)
    bool, whether at an end of it. Each is epsilon-private at its public sensitivity."""
    grids = [laplace_grid(float(s), epsilon, low, high) for s in sensitivity]
    grid = np.array([g for g, _, _ in grids], dtype=np.float64)
    scale = np.array([n for _, _, n in grids], dtype=np.int64)
    whole = np.rint(np.clip(values, low, high) / grid).astype(np.int64)
    noised = np.clip((whole + discrete_laplace(scale, rng)) * grid, low, high)
    return noised, (noised <= low) | (noised >= high)
