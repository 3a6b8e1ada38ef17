"""The mechanisms of `safexplain.dp.linear.mechanisms` for two classes, or for more of them one-vs-rest.

Statements tell the number of records. Where one record more or less is the neighbour, it is one more release: with
two-sided geometric noise for a share of a pure epsilon, or as one more step of the Gaussian mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import Adjacency, Steps
from safexplain._secure_random.discrete_laplace import discrete_laplace
from safexplain._secure_random.generators import Randomness, float_safe_normal
from safexplain.dp.accounting import noise_multiplier
from safexplain.dp.linear.mechanisms import (
    PerturbedObjective,
    PerturbedOutput,
    perturbed_minimiser,
    perturbed_output,
)
from safexplain.verdict.privacy_statement import PrivacyStatement

Released = tuple[NDArray[np.float64], PrivacyStatement]
COUNT_SHARE = 0.02
"""Share of a pure epsilon that hides the number of records, under add/remove."""

CLIPPING = "features scaled to norm 1, the constant column included; the intercept is regularised"


def by_objective(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    k: int,
    epsilon: float,
    adjacency: Adjacency,
    logit_noise: float,
    rng: Randomness,
) -> Released:
    """Objective perturbation, each problem with epsilon / (number of problems)."""
    each = (epsilon - _count_epsilon(epsilon, adjacency)) / _problems(k)
    mechanism = PerturbedObjective.calibrated(each, features.shape[1], adjacency, logit_noise=logit_noise)
    weights = _each(features, labels, k, lambda signed: perturbed_minimiser(signed, mechanism, rng))
    name = "logistic regression by objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011)"
    return weights, _pure_statement(name, mechanism, len(features), k, epsilon, adjacency, rng)


def by_output(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    k: int,
    epsilon: float,
    adjacency: Adjacency,
    logit_noise: float,
    delta: float,
    rng: Randomness,
) -> Released:
    """Output perturbation: radial noise where delta is 0, Gaussian noise elsewhere."""
    problems, name = _problems(k), "logistic regression by output perturbation"
    if delta == 0:
        each = (epsilon - _count_epsilon(epsilon, adjacency)) / problems
        mechanism = PerturbedOutput.radial(each, features.shape[1], adjacency, logit_noise=logit_noise)
        name = f"{name}, radial noise (Chaudhuri, Monteleoni and Sarwate 2011)"
        statement = _pure_statement(name, mechanism, len(features), k, epsilon, adjacency, rng)
    else:
        hidden = adjacency == "add_remove"
        releases = problems + hidden
        sigma = noise_multiplier(epsilon, 1.0, releases, delta, adjacency, sampling="full-batch")
        noise = sigma * float(float_safe_normal(rng, (1,))[0]) if hidden else 0.0
        mechanism = PerturbedOutput.gaussian(sigma, logit_noise=logit_noise)
        statement = PrivacyStatement(
            mechanism=f"{name}, Gaussian noise (Wu et al. 2017){_rest(k)}",
            records=max(1, round(len(features) + noise)),
            delta=delta,
            phases=(Steps(sigma, 1.0, releases, "full-batch"),),
            clipping=CLIPPING,
            count_noised=hidden,
        )
    return _each(features, labels, k, lambda signed: perturbed_output(signed, mechanism, rng)), statement


def _pure_statement(
    name: str,
    mechanism: PerturbedObjective | PerturbedOutput,
    records: int,
    k: int,
    epsilon: float,
    adjacency: Adjacency,
    rng: Randomness,
) -> PrivacyStatement:
    """Every problem and the count, by basic composition; what holds for substitution need not be the smaller one."""
    problems, count = _problems(k), _count_epsilon(epsilon, adjacency)
    present = problems * mechanism.epsilon("add_remove") + count
    return PrivacyStatement(
        mechanism=name + _rest(k),
        records=_noised_count(records, count, rng),
        delta=0.0,
        pure_epsilon=max(problems * mechanism.epsilon("substitute"), present),
        pure_add_remove=present,
        clipping=CLIPPING,
        count_noised=count > 0,
    )


def _count_epsilon(epsilon: float, adjacency: Adjacency) -> float:
    return COUNT_SHARE * epsilon if adjacency == "add_remove" else 0.0


def _noised_count(records: int, epsilon: float, rng: Randomness) -> int:
    """The number itself where epsilon is 0: it is public then. Else with P(noise = z) proportional to exp(-|z| / N),
    N the least whole number of at least 1 / epsilon."""
    if epsilon == 0:
        return records
    scale = math.ceil(1 / Fraction(epsilon))
    return max(1, records + int(discrete_laplace(np.array([scale]), rng)[0]))


def _problems(k: int) -> int:
    return 1 if k == 2 else k


def _rest(k: int) -> str:
    return f", {k} classes one-vs-rest" if k > 2 else ""


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
