"""What recourse is released under: no protection, the published protection, and the sound mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from safexplain.dp import DPLogisticRegression
from safexplain.recourse import DPModelRecourse, LaplaceScore
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.solution import Solution

from .as_published import AsPublishedLaplace
from .tasks import Floats, Task

EPSILONS = (0.5, 1.0)
NORM_BOUND = 1.0
"""Rows are scaled to it before anything is trained."""
INVERSE_PENALTY = 1000.0
"""C of the models without privacy, as in the released parent code."""
BASELINE = "without privacy"
PUBLISHED = "Laplace recourse, as published"
DP_MODEL = "DPModelRecourse"


@dataclass(frozen=True, eq=False)
class Native:
    """A regression without privacy and its exact recourse."""

    model: LogisticRegression  # fitted

    @classmethod
    def fitted(cls, x: Floats, y: NDArray[Any]) -> Native:
        """Trained until its gradient is small; rows of norm 1."""
        return cls(LogisticRegression(C=INVERSE_PENALTY, max_iter=5000, tol=1e-6).fit(x, y))

    @property
    def weights(self) -> Floats:
        """(d,) logits a unit of each feature."""
        weights: Floats = self.model.coef_[0]
        return weights

    def score(self, x: Floats) -> Floats:
        """(n,) logits."""
        return np.asarray(x @ self.weights + self.model.intercept_[0])

    def explain(self, x: Floats) -> Solution:
        """Exact recourse."""
        return linear_recourse(self.weights, float(self.model.intercept_[0]), x)


@dataclass(frozen=True)
class Condition:
    """How answers are made.

    Args:
        columns: most that it is run with. Beyond, with 5,000 rows, it only guesses: output perturbation has a test
            accuracy of .50 to .53 at 5,000 columns, objective perturbation .48 at 1,000.
    """

    name: str  # of the mechanism
    make: Callable[..., Any]  # (task, rows trained on, epsilon, native model, seed) -> mechanism, not fitted
    epsilon: float | None = None  # None for the baseline
    fits: bool = True  # whether it is trained (the others answer from the native model)
    columns: int = 10_000
    noisy: bool = False  # whether each answer has noise of its own

    @property
    def title(self) -> str:
        """Name with epsilon."""
        return self.name if self.epsilon is None else f"{self.name}, epsilon {self.epsilon:g}"

    def mechanism(self, task: Task, x: Floats, y: NDArray[Any], native: Native, seed: int) -> Any:
        """Trained on (x, y) and ready to answer."""
        made = self.make(task, len(x), self.epsilon, native, seed)
        return made.fit(x, y) if self.fits else made


def _dp_model(task: Task, rows: int, epsilon: float, native: Native, seed: int) -> Any:
    return DPModelRecourse(epsilon=epsilon, norm_bound=NORM_BOUND, random_state=seed)


@dataclass(frozen=True)
class Perturbed:
    """Recourse from a regression that is private by another mechanism of `DPLogisticRegression`."""

    model: DPLogisticRegression  # not fitted

    def fit(self, x: Floats, y: NDArray[Any]) -> DPModelRecourse:
        """What answers from the fitted model."""
        return DPModelRecourse(self.model.fit(x, y))


def _perturbed(mechanism: Literal["objective", "output"]) -> Callable[..., Any]:
    def make(task: Task, rows: int, epsilon: float, native: Native, seed: int) -> Any:
        return Perturbed(
            DPLogisticRegression(epsilon, mechanism=mechanism, norm_bound=NORM_BOUND, classes=[0, 1], random_state=seed)
        )

    return make


def _laplace_score(task: Task, rows: int, epsilon: float, native: Native, seed: int) -> Any:
    weights = task.public_weights(rows, 20 / epsilon)  # at the mechanism's default regularization
    return LaplaceScore(epsilon=epsilon, norm_bound=NORM_BOUND, public_weights=weights, random_state=seed)


def _as_published(task: Task, rows: int, epsilon: float, native: Native, seed: int) -> Any:
    return AsPublishedLaplace(native.model, epsilon=epsilon, random_state=seed)


CONDITIONS: tuple[Condition, ...] = (
    Condition(BASELINE, lambda task, rows, epsilon, native, seed: native, fits=False),
    *(
        Condition(name, make, epsilon, **more)
        for name, make, more in (
            (PUBLISHED, _as_published, {"fits": False, "noisy": True}),
            (DP_MODEL, _dp_model, {}),
            ("OutputPerturbation", _perturbed("output"), {"columns": 1000}),
            ("ObjectivePerturbation", _perturbed("objective"), {"columns": 512}),
            ("LaplaceScore", _laplace_score, {"noisy": True}),
        )
        for epsilon in EPSILONS
    ),
)


def conditions(columns: int) -> list[Condition]:
    """Those that are run on a task of so many columns."""
    return [c for c in CONDITIONS if columns <= c.columns]


def ceiling(epsilon: float, delta: float = 0.0) -> float:
    """Highest balanced accuracy of any attack on an (epsilon, delta)-private release.

    TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta (Kairouz, Oh & Viswanath, arXiv 1311.0776).
    """
    odds = float(np.exp(epsilon))
    return (odds + delta) / (1 + odds)
