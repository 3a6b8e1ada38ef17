"""Output and objective perturbation for two classes, or for more of them one against the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from safexplain.dp.accounting import Steps
from safexplain.dp.adjacency import Adjacency
from safexplain.dp.calibration import noise_multiplier
from safexplain.dp.objective import ObjectivePerturbation, perturbed_minimiser
from safexplain.dp.output import OutputPerturbation, perturbed_output
from safexplain.dp.statement import PrivacyStatement

Released = tuple[NDArray[np.float64], PrivacyStatement]
CLIPPING = "features scaled to norm 1, the constant column included; the intercept is regularised"


def by_objective(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    k: int,
    epsilon: float,
    adjacency: Adjacency,
    logit_noise: float,
    rng: np.random.Generator,
) -> Released:
    """Objective perturbation, each problem with epsilon / (number of problems); see `safexplain.dp.objective`."""
    problems = _problems(k)
    mechanism = ObjectivePerturbation.calibrated(
        epsilon / problems, features.shape[1], adjacency, logit_noise=logit_noise
    )
    weights = _each(features, labels, k, lambda signed: perturbed_minimiser(signed, mechanism, rng))
    return weights, PrivacyStatement(
        mechanism="logistic regression by objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011)" + _rest(k),
        records=len(features),
        delta=0.0,
        pure_epsilon=problems * mechanism.epsilon("substitute"),
        pure_add_remove=problems * mechanism.epsilon("add_remove"),
        clipping=CLIPPING,
    )


def by_output(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    k: int,
    epsilon: float,
    adjacency: Adjacency,
    logit_noise: float,
    delta: float,
    rng: np.random.Generator,
) -> Released:
    """Output perturbation: radial noise where delta is 0, Gaussian noise elsewhere; see `safexplain.dp.output`."""
    problems, name = _problems(k), "logistic regression by output perturbation"
    if delta == 0:
        mechanism = OutputPerturbation.radial(epsilon / problems, features.shape[1], adjacency, logit_noise=logit_noise)
        statement = PrivacyStatement(
            mechanism=f"{name}, radial noise (Chaudhuri, Monteleoni and Sarwate 2011){_rest(k)}",
            records=len(features),
            delta=0.0,
            pure_epsilon=problems * mechanism.epsilon("substitute"),
            pure_add_remove=problems * mechanism.epsilon("add_remove"),
            clipping=CLIPPING,
        )
    else:
        sigma = noise_multiplier(epsilon, 1.0, problems, delta, adjacency, sampling="full-batch")
        mechanism = OutputPerturbation.gaussian(sigma, logit_noise=logit_noise)
        statement = PrivacyStatement(
            mechanism=f"{name}, Gaussian noise (Wu et al. 2017){_rest(k)}",
            records=len(features),
            delta=delta,
            phases=(Steps(sigma, 1.0, problems, "full-batch"),),
            clipping=CLIPPING,
        )
    return _each(features, labels, k, lambda signed: perturbed_output(signed, mechanism, rng)), statement


def _problems(k: int) -> int:
    return 1 if k == 2 else k


def _rest(k: int) -> str:
    return f", {k} classes one against the rest" if k > 2 else ""


def _each(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    k: int,
    release: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """(k, p) weights of every class, those of the first of two being 0."""
    signs = np.where(labels == np.arange(k)[:, None], 1.0, -1.0)[-_problems(k) :]
    weights = np.concatenate([release(features * s[:, None]) for s in signs])
    return np.concatenate([np.zeros_like(weights), weights]) if k == 2 else weights
