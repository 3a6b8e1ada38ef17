"""Recourse from a regression that is published once, with noise on its weights or in its objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.recourse.mechanisms.dp_model import PrivateModelRecourse


@dataclass(frozen=True, eq=False, kw_only=True)
class _PerturbedRecourse(PrivateModelRecourse):
    """A row over `DPLogisticRegression`.

    Args:
        logit_noise: standard deviation of the noise on the logit of a record of norm `norm_bound`, which sets the
            regularization. Smaller is safer for few records, larger follows the data closer. None: the default of
            `DPLogisticRegression`.
    """

    mechanism: ClassVar[Literal["output", "objective"]]

    logit_noise: float | None = None

    def _trainer(self) -> DPLogisticRegression:
        return DPLogisticRegression(
            float(self.epsilon),
            self.delta,
            self.adjacency,
            self.mechanism,
            norm_bound=self.norm_bound,
            classes=list(self.classes),
            logit_noise=self.logit_noise,
            intercept_scaling=self.intercept_scaling,
            random_state=self.random_state,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputPerturbation(_PerturbedRecourse):
    """Weights and intercept with noise for their stability, released once; any number of answers from them.

    Statement and proof: `safexplain.dp.linear.mechanisms` for the weights (Chaudhuri, Monteleoni and Sarwate 2011,
    algorithm 1),
    then post-processing, see `PrivateModelRecourse`.

    Args:
        delta: 0 for radial noise and pure epsilon; above 0 for Gaussian noise, which is smaller in many dimensions.
    """

    mechanism: ClassVar[Literal["output", "objective"]] = "output"
    training: ClassVar[str] = "logistic regression by output perturbation"


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectivePerturbation(_PerturbedRecourse):
    """Weights and intercept that minimise a noised objective, released once; any number of answers from them.

    Statement and proof: `safexplain.dp.linear.mechanisms` for the weights (Chaudhuri, Monteleoni and Sarwate 2011,
    algorithm
    2), then post-processing, see `PrivateModelRecourse`. Pure epsilon: `delta` is not used.
    """

    mechanism: ClassVar[Literal["output", "objective"]] = "objective"
    training: ClassVar[str] = "logistic regression by objective perturbation"

    def _planned_delta(self) -> float:
        return 0.0
