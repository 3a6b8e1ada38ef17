"""The logit of a regularised regression, and what one training record may change it by.

This is the base of mechanisms that pay by answer. The weights v come from `safexplain.dp.linear.mechanisms`: on
neighbouring data sets |v - v'| <= S, the solver's error included. A query x counts as u = (x / norm_bound, c) / sqrt(1
+ c^2), c the constant column; it may be longer than 1, as queries are not shortened. The score is f(x) = <v, u>, so
that by Cauchy and Schwarz

    |f(x) - f'(x)| <= |u| S.

Computed in float64, f(x) is off by at most (p + 4) 2^-53 |u| |v| (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1). |v| has a bound that holds for any n records (`largest_weight`); `fit` refuses unless the
error is at most 1e-7 of |u| S, which is a matter of n, p and L only. `safexplain.recourse.mechanisms.laplace` adds 1e-6
for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_X_y

from safexplain._validate import check_number, real_numbers
from safexplain.dp.linear.inputs import check_bound, in_unit_ball, positions
from safexplain.dp.linear.mechanisms import GRADIENT_ERROR, stability, stable_minimiser
from safexplain.dp.linear.solver import largest_weight
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.recourse.mechanisms.dp_model import PrivateModelRecourse, on_table, private_model
from safexplain.recourse.mechanisms.mechanism import (
    PRIVATE_GEOMETRY,
    PUBLIC_GEOMETRY,
    Guarantee,
    Per,
    RecourseMechanism,
    assumptions,
)
from safexplain.recourse.result import Floats
from safexplain.verdict.privacy_statement import PrivacyStatement

EVALUATION_ERROR = 1e-7
"""Largest rounding error of a score, over what a record may change it by."""

LONGEST = 1e100
"""Longest query, in norm bounds: beyond, float64 would overflow, and the answer would tell where."""

LOGIT_NOISE = 0.1
"""Scale of the noise on the logit of a record of norm `norm_bound`, where the regularization is not given."""


@dataclass(frozen=True, eq=False)
class StableScore:
    """A trained logit. It holds the private weights: neither they nor what is computed here may leave without noise.

    Args:
        weights: (d + 1,) v, in the units of lifted rows.
        norm_bound: of training rows.
        constant: the constant column.
        stability: S, how far v may lie from that of a neighbouring data set.
    """

    weights: Floats
    norm_bound: float
    constant: float
    stability: float

    def __repr__(self) -> str:
        return f"StableScore(norm_bound={self.norm_bound!r}, stability={self.stability!r})"

    def check_length(self, x: Floats) -> None:
        """Raise InputError for (n, d) queries so long that their score could overflow."""
        with np.errstate(over="ignore"):
            length = np.linalg.norm(x / self.norm_bound, axis=1)
        if not (length < LONGEST).all():
            raise InputError(f"x: rows more than {LONGEST:g} times as long as norm_bound; check their units")

    def lifted(self, x: Floats) -> Floats:
        """(n, d + 1) rows u of (n, d) queries whose length was checked."""
        column = np.full((len(x), 1), self.constant)
        joined: Floats = np.concatenate([x / self.norm_bound, column], axis=1) / math.hypot(1.0, self.constant)
        return joined

    def moved(self, direction: Floats) -> Floats:
        """(d + 1,) by how much a lifted row changes when a query moves by (d,) a direction."""
        return np.append(direction / (self.norm_bound * math.hypot(1.0, self.constant)), 0.0)

    def sensitivity(self, lifted: Floats) -> Floats:
        """(n,) what one record may change the scores of lifted rows by; for a row of zeros a tiny number."""
        length: Floats = np.linalg.norm(lifted, axis=1)  # squares that underflow are far below the floor
        return np.maximum(length, 1e-12) * self.stability


@dataclass(eq=False, kw_only=True)
class StableScoreMechanism(RecourseMechanism):
    """A mechanism that trains a regularised regression without noise, keeps it, and pays epsilon by answer.

    Args:
        regularization: L, of the sum (not the mean) of losses, intercept included, for rows in units of `norm_bound`;
            public. None: 10 k / epsilon, k = 2 under substitution and else 1, with which the noise on the logit of a
            record of norm `norm_bound` has scale .1.
    """

    per: ClassVar[Per] = "answer"
    name: ClassVar[str]
    released: ClassVar[str]
    why: ClassVar[str]
    """Of the guarantee."""
    vector: ClassVar[str]
    """Which parameter is a public vector, one number a feature; None is none."""

    regularization: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regularization is not None:
            check_number("regularization", self.regularization, above=0)
        if len(self.classes) != 2:
            raise ConfigurationError(f"classes: expected (unfavourable, favourable), got {self.classes!r}")
        given = getattr(self, self.vector)
        if isinstance(given, PrivateModelRecourse) or hasattr(given, "coef_") or hasattr(given, "get_params"):
            vector, statement = self._of_model(given)
            self._set(vector=vector, statement=statement)
        elif given is not None and self.preprocessing is not None:
            self._set(vector=self.preprocessing.vector(given, self.vector))
        elif given is not None:
            object.__setattr__(self, self.vector, public_vector(self.vector, given))
            self._set(vector=getattr(self, self.vector))

    def _of_model(self, given: Any) -> tuple[Floats, PrivacyStatement]:
        """(D,) the logits a unit of each column of a model that was trained with differential privacy, and its
        statement.

        Raises:
            RefusedError: it carries no statement of its own, or one about other weights.
            ConfigurationError: not a linear model of this mechanism's two classes and columns.
        """
        if isinstance(given, PrivateModelRecourse):
            if given.preprocessing != self.preprocessing:
                raise ConfigurationError(f"{self.vector}: expected a mechanism with the same preprocessing")
            _ = given.features
            model, statement = given.private, given.statement
            people = self.preprocessing
        else:
            model, statement, people = given, getattr(given, "privacy_", None), self.preprocessing
        if not hasattr(model, "coef_"):
            raise ConfigurationError(
                f"{self.vector}: expected numbers, or a fitted linear model that was trained with differential privacy;"
                f" {type(given).__name__} is not fitted, or not linear"
            )
        if statement is None:
            raise RefusedError(
                f"{self.vector}: {type(given).__name__} carries no privacy statement. Of a model of public data give"
                f" the weights, {self.vector}=model.coef_[0]; one of the training data must be trained with"
                " differential privacy, as by DPLogisticRegression"
            )
        found = on_table(private_model(model, statement, self.classes[1], self.adjacency), people)
        if found.weights is None:
            raise ConfigurationError(f"{self.vector}: expected a linear model of two classes")
        return public_vector(self.vector, found.weights), statement

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train without noise; nothing is spent, and nothing of the model leaves but through answers.

        Raises:
            ConfigurationError: `norm_bound` is missing, or the constraints are for other data.
            InputError: a label that `classes` does not list, or columns in another order than the constraints'.
            RefusedError: more records or features than float64 can certify.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.
        """
        bound = check_bound(self._get("bound"))
        constant = float(self.intercept_scaling)
        rows, labels = check_X_y(*self._training(X, y), dtype=np.float64)
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
        why = f"{self.why}. Answers add up: n of them spend n epsilon"
        if (statement := self._get("statement")) is not None:
            why += f"; the model that {self.vector} come from spent, once, what its own statement says"
            assumed = tuple(PRIVATE_GEOMETRY if line == PUBLIC_GEOMETRY else line for line in assumed)
        return Guarantee(
            mechanism=self.name,
            is_private=True,
            per=self.per,
            epsilon=float(self.epsilon),
            delta=0.0,
            adjacency=self.adjacency,
            released=self.released,
            why=why,
            statement=statement,
            assumptions=assumed,
            preprocessing=None if self.preprocessing is None else self.preprocessing.digest,
        )

    def _check_width(self, width: int) -> None:
        super()._check_width(width)
        given = self._get("vector")
        if given is not None and len(given) != width:
            raise ConfigurationError(f"{self.vector}: expected one number a feature, {width}, got {len(given)}")

    def rows(self, x: ArrayLike) -> Floats:
        """See `RecourseMechanism.rows`."""
        rows = super().rows(x)
        self._trained().check_length(self._scaled(rows))
        return rows

    def _penalty(self) -> float:
        if self.regularization is not None:
            return float(self.regularization)
        return stability(1.0, self.adjacency) / (LOGIT_NOISE * self.epsilon)

    def _trained(self) -> StableScore:
        model: StableScore = self._get("model")
        return model


def _check_precision(records: int, p: int, penalty: float, spread: float) -> None:
    longest = largest_weight(records, penalty) + GRADIENT_ERROR / penalty
    error = (p + 4) * 2.0**-53 * longest
    if error > EVALUATION_ERROR * spread:
        raise RefusedError(
            f"with {records:,} records and {p:,} weights, scores in float64 may be off by {error / spread:.1g} of what"
            f" a record may change them by; the proof needs {EVALUATION_ERROR:g}. Use less regularization, or"
            " DPModelRecourse"
        )


def public_vector(name: str, given: ArrayLike) -> Floats:
    """(d,) finite numbers that are not all 0, which nobody can write to."""
    found = real_numbers(given, name, ConfigurationError)
    if found.ndim != 1 or not np.isfinite(found).all() or not found.any():
        raise ConfigurationError(f"{name}: expected d finite numbers that are not all 0, got shape {found.shape}")
    if (
        isinstance(given, np.ndarray)
        and given.dtype == found.dtype
        and given.base is None
        and not given.flags.writeable
    ):
        return given  # made here before: scikit-learn looks for the same one
    found = np.array(found)
    found.flags.writeable = False
    return found
