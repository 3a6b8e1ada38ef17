"""Logistic regression with differential privacy, as a scikit-learn classifier, and its three mechanisms.

docs/api/dp.md has the proofs, whose letters are used here: u_i is a label (+1 or -1) times features, |u_i| <= 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from safexplain._digest import trained_digest
from safexplain._privacy_loss import Adjacency, Steps, check_adjacency, check_delta, noise_multiplier
from safexplain._secure_random import GENERATOR, Randomness, SecureGenerator, discrete_laplace, float_safe_normal
from safexplain._validate import check_number, whole_number
from safexplain.dp.heads import Rows, clipped_sum
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement

COUNT_SHARE = 0.02
"""Share of a pure epsilon that hides the number of records, under add/remove."""

INSIDE = 1 - 1e-9
"""Rows are scaled to this norm instead of 1, so that rounding cannot put one outside the unit ball."""

CLIPPING = "features scaled to norm 1, the constant column included; the intercept is regularised"

Array = NDArray[np.float64]
Released = tuple[Array, PrivacyStatement]


class DPLogisticRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression whose coefficients, intercepts and `privacy_` together are differentially private.

    Everything but `X` and `y` is public and must not be chosen by looking at them; scale by public constants, not by
    the data's own. Each `fit` spends epsilon again, also in a cross-validation.

    In `fit` only, a row x is shortened to `norm_bound`, and becomes (x / norm_bound, intercept_scaling) / sqrt(1 +
    intercept_scaling^2), of norm at most 1. `coef_` and `intercept_` are for the original x.

    - `mechanism="noisy-gd"`: (epsilon, delta) by noisy full-batch gradient descent on the softmax loss. The best choice
      from about twenty features on.
    - `mechanism="objective"`: epsilon with delta = 0 by objective perturbation. Two classes, or k of them one-vs-rest,
      each with epsilon / k (basic composition). `delta`, `steps` and `max_grad_norm` are not used.
    - `mechanism="output"`: noise on the regularised minimiser: epsilon by radial noise with `delta=0`, else (epsilon,
      delta) by Gaussian noise. Classes as for "objective".

    Sample weights and class weights are not supported: they would multiply a record's influence.

    Args:
        epsilon: budget of one `fit`, above 0.
        delta: in [1e-12, 1), smaller than one over the number of records; for "output" also 0.
        adjacency: "substitute" protects the content of a record; "add_remove" only its presence; "zero_out" one record
            against an empty one.
        mechanism: "noisy-gd", "objective" or "output".
        norm_bound: public bound on the Euclidean norm of a row of X; required.
        classes: public list of at least two classes, whether or not they all occur; required.
        steps: of the gradient descent.
        max_grad_norm: clip bound of a record's gradient, whose norm is below sqrt(2) without clipping.
        logit_noise: standard deviation of the noise on the logit of a record of norm `norm_bound`, which sets the
            learning rate and the regularization. None for 1, or .1 with "output".
        intercept_scaling: the constant column; 0 for a model without intercept.
        centre: whether the gradient descent subtracts the mean of the rows, released with noise at the price of a step:
            better if features vary little within their public ranges. Needs an intercept.
        random_state: None for noise from a cryptographic generator. An int, RandomState or Generator makes it
            repeatable, for tests; anyone who knows it can remove the noise.

    Attributes:
        coef_: (1, n_features) for two classes, else (n_classes, n_features).
        intercept_: (1,) or (n_classes,).
        classes_: (n_classes,) the public list, sorted.
        n_features_in_: number of features.
        privacy_: `PrivacyStatement`; under add/remove its number of records is noised.
    """

    coef_: Array
    intercept_: Array
    classes_: NDArray[Any]
    n_features_in_: int
    privacy_: PrivacyStatement

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: Adjacency = "substitute",
        mechanism: Literal["noisy-gd", "objective", "output"] = "noisy-gd",
        *,
        norm_bound: float | None = None,
        classes: ArrayLike | None = None,
        steps: int = 100,
        max_grad_norm: float = 0.3,
        logit_noise: float | None = None,
        intercept_scaling: float = 0.3,
        centre: bool = False,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mechanism = mechanism
        self.norm_bound = norm_bound
        self.classes = classes
        self.steps = steps
        self.max_grad_norm = max_grad_norm
        self.logit_noise = logit_noise
        self.intercept_scaling = intercept_scaling
        self.centre = centre
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> DPLogisticRegression:
        """Train and spend the budget.

        Args:
            X: (n, n_features) finite numbers; dense.
            y: (n,) labels out of `classes`.

        Raises:
            ConfigurationError: a parameter is missing or out of range.
            InputError: a label that is not in `classes`.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.
            TypeError: X is sparse.

        Warns:
            WeakDeltaWarning: delta is at least one over the number of records.
        """
        bound, classes = check_bound(self.norm_bound), check_classes(self.classes)
        check_number("epsilon", self.epsilon, above=0.0)
        check_number("logit_noise", self._logit_noise(), above=0.0)
        constant = check_number("intercept_scaling", self.intercept_scaling, minimum=0.0)
        check_adjacency(self.adjacency)
        if self.centre and not (self.mechanism == "noisy-gd" and constant):
            raise ConfigurationError('centre: needs mechanism="noisy-gd" and an intercept_scaling above 0')
        if self.mechanism not in ("noisy-gd", "objective", "output"):
            raise ConfigurationError(f'mechanism: expected "noisy-gd", "objective" or "output", got {self.mechanism!r}')
        rows, targets = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(targets)
        labels, features = positions(targets, classes), in_unit_ball(rows, bound, constant)
        if self.mechanism == "noisy-gd" or (self.mechanism == "output" and self.delta != 0):
            check_delta(self.delta, len(features))
        release = {"noisy-gd": self._descend, "objective": self._perturb_objective, "output": self._perturb_output}
        weights, privacy = release[self.mechanism](features, labels, len(classes), noise_generator(self.random_state))
        weights = on_grid(weights, self._logit_noise())
        weights = np.diff(weights, axis=0) if len(weights) == 2 else weights
        scale = math.hypot(1.0, constant)  # back to the original rows
        self.coef_, self.intercept_ = weights[:, :-1] / (bound * scale), weights[:, -1] * (constant / scale)
        self.classes_ = classes
        seeded = self.random_state is not None
        self.privacy_ = replace(
            privacy, seeded=seeded, generator="" if seeded else GENERATOR, weights=trained_digest(self)
        )
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """(n,) logit of the second of two classes, or (n, n_classes) scores; X is not shortened."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Array = rows @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,) the class with the highest score."""
        scores = self.decision_function(X)
        out: NDArray[Any] = self.classes_[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]
        return out

    def predict_proba(self, X: ArrayLike) -> Array:
        """(n, n_classes) probabilities, by softmax; for one-vs-rest, logistic ones scaled to sum 1."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self.mechanism == "noisy-gd":
            return np.asarray(softmax(scores, axis=1))
        each = np.maximum(expit(scores), np.finfo(np.float64).tiny)
        return np.asarray(each / each.sum(axis=1, keepdims=True))

    def _logit_noise(self) -> float:
        if self.logit_noise is None:
            return 0.1 if self.mechanism == "output" else 1.0
        return self.logit_noise

    def _descend(self, features: Array, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
        noised = self.adjacency == "add_remove"
        options = (self.steps, self.max_grad_norm, self._logit_noise(), noised, bool(self.centre))
        releases = NoisyGradientDescent(1.0, *options).releases
        sigma = noise_multiplier(float(self.epsilon), 1.0, releases, self.delta, self.adjacency, sampling="full-batch")
        descent = NoisyGradientDescent(sigma, *options)
        weights, records = noisy_gradient_descent(features, labels, k, descent, rng)
        return weights[0], PrivacyStatement(
            mechanism="logistic regression by noisy full-batch gradient descent (Bassily, Smith and Thakurta 2014)",
            records=round(records[0]),
            delta=self.delta,
            phases=(Steps(sigma, 1.0, releases, "full-batch"),),
            clipping=f"features scaled to norm 1, gradients over all classes clipped to norm {self.max_grad_norm:g}"
            + (", and the sum of the features released as one more step" if self.centre else ""),
            count_noised=noised,
        )

    def _perturb_objective(self, features: Array, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
        dimension, noise = features.shape[1], self._logit_noise()
        mechanism = PerturbedObjective.calibrated(self._pure_share(k), dimension, self.adjacency, logit_noise=noise)
        weights = _each_class(features, labels, k, lambda signed: perturbed_minimiser(signed, mechanism, rng))
        name = "logistic regression by objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011)"
        return weights, self._pure_statement(name, mechanism, len(features), k, rng)

    def _perturb_output(self, features: Array, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
        name, noise = "logistic regression by output perturbation", self._logit_noise()
        if self.delta == 0:
            share, dimension = self._pure_share(k), features.shape[1]
            mechanism = PerturbedOutput.radial(share, dimension, self.adjacency, logit_noise=noise)
            name = f"{name}, radial noise (Chaudhuri, Monteleoni and Sarwate 2011)"
            statement = self._pure_statement(name, mechanism, len(features), k, rng)
        else:
            noised = self.adjacency == "add_remove"
            releases = _problems(k) + noised
            epsilon, delta = float(self.epsilon), self.delta
            sigma = noise_multiplier(epsilon, 1.0, releases, delta, self.adjacency, sampling="full-batch")
            count_noise = sigma * float(float_safe_normal(rng, (1,))[0]) if noised else 0.0
            mechanism = PerturbedOutput.gaussian(sigma, logit_noise=noise)
            statement = PrivacyStatement(
                mechanism=f"{name}, Gaussian noise (Wu et al. 2017){_one_vs_rest(k)}",
                records=max(1, round(len(features) + count_noise)),
                delta=delta,
                phases=(Steps(sigma, 1.0, releases, "full-batch"),),
                clipping=CLIPPING,
                count_noised=noised,
            )
        return _each_class(features, labels, k, lambda signed: perturbed_output(signed, mechanism, rng)), statement

    def _count_epsilon(self) -> float:
        return COUNT_SHARE * float(self.epsilon) if self.adjacency == "add_remove" else 0.0

    def _pure_share(self, k: int) -> float:
        return (float(self.epsilon) - self._count_epsilon()) / _problems(k)

    def _pure_statement(
        self, name: str, mechanism: PerturbedObjective | PerturbedOutput, records: int, k: int, rng: Randomness
    ) -> PrivacyStatement:
        problems, count = _problems(k), self._count_epsilon()
        present = problems * mechanism.epsilon("add_remove") + count
        return PrivacyStatement(
            mechanism=name + _one_vs_rest(k),
            records=_noised_count(records, count, rng),
            delta=0.0,
            pure_epsilon=max(problems * mechanism.epsilon("substitute"), present),
            pure_add_remove=present,
            clipping=CLIPPING,
            count_noised=count > 0,
        )


def _noised_count(records: int, epsilon: float, rng: Randomness) -> int:
    """The number of records plus noise z of probability proportional to exp(-|z| / ceil(1 / epsilon))."""
    if epsilon == 0:
        return records
    scale = math.ceil(1 / Fraction(epsilon))
    return max(1, records + int(discrete_laplace(np.array([scale]), rng)[0]))


def _problems(k: int) -> int:
    return 1 if k == 2 else k


def _one_vs_rest(k: int) -> str:
    return f", {k} classes one-vs-rest" if k > 2 else ""


def _each_class(features: Array, labels: NDArray[np.int64], k: int, release: Callable[[Array], Array]) -> Array:
    """(k, p) weights of every class; with two classes, those of the first are 0."""
    signs = np.where(labels == np.arange(k)[:, None], 1.0, -1.0)[-_problems(k) :]
    weights = np.concatenate([release(features * s[:, None]) for s in signs])
    return np.concatenate([np.zeros_like(weights), weights]) if k == 2 else weights


# --- inputs, for the classifier and for recourse ---------------------------------------------------------------------


def check_bound(norm_bound: Any) -> float:
    """The public bound on the norm of a row, which is never read off the data."""
    if norm_bound is None:
        raise ConfigurationError(
            "norm_bound is missing: a bound read off the data would reveal something about a record. Pass a public"
            " number, such as sqrt(n_features) times the largest value; longer rows are shortened to it"
        )
    return check_number("norm_bound", norm_bound, above=0.0)


def check_classes(classes: Any) -> NDArray[Any]:
    """(k,) the public list of classes, sorted, which is never read off the data."""
    if classes is None:
        raise ConfigurationError(
            "classes is missing: the labels that occur would reveal something about one record. Pass the public list of"
            " all classes, such as classes=[0, 1]"
        )
    given = np.asarray(classes)
    found: NDArray[Any] = np.unique(given)
    if given.ndim != 1 or len(found) < 2 or len(found) != len(given):
        raise ConfigurationError(f"classes: expected a list of at least two different labels, got {classes!r}")
    return found


def positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) positions of the labels among the classes; InputError: a label that is not."""
    place = {label: i for i, label in enumerate(classes.tolist())}
    found = [place.get(label, -1) for label in labels.tolist()]
    if -1 in found:
        raise InputError(
            f"y: expected labels in classes={classes.tolist()}, got {labels.tolist()[found.index(-1)]!r};"
            f" {found.count(-1)} of {len(found)} rows have such labels"
        )
    return np.asarray(found, dtype=np.int64)


def in_unit_ball(rows: Array, bound: float, constant: float) -> Array:
    """(n, n_features + 1) rows shortened to the bound, with a constant column, scaled to norm at most 1."""
    with np.errstate(over="ignore"):  # a norm beyond float64 is infinite, and its row becomes 0
        norms: Array = np.hypot.reduce(rows, axis=1)
    column = np.full((len(rows), 1), constant)
    joined = np.concatenate([rows / np.maximum(norms, bound)[:, None], column], axis=1)
    return np.asarray(joined * (INSIDE / math.hypot(1.0, constant)))


def noise_generator(random_state: Any) -> Randomness:
    """A cryptographic source of noise; with a random_state NumPy's, never its global one."""
    if random_state is None:
        return SecureGenerator()
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(0, 2**32, size=4, dtype=np.uint32))


def on_grid(weights: Array, noise: float) -> Array:
    """Noised weights on a public grid, about 1e-8 of the noise on a logit; in float64, 0 plus noise takes values that
    .1 plus noise never takes."""
    grid = 2.0 ** max(math.floor(math.log2(noise)) - 27, -1000)
    return np.asarray(np.round(weights / grid) * grid)


# --- the mechanisms ---------------------------------------------------------------------------------------------------


CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""

BLOCK = 1024
"""Rows summed at a time, so that rounding errors do not grow with n."""

MAX_ITERATIONS = 500

TINY = float(np.finfo(np.float64).tiny)

SHORT_STEP = 0.1
"""Length up to which a step is hardly damped, so that the whole step is not tried."""

STEP_ERROR = 1e-3
"""Residual of a Newton step over the gradient: each iteration gains about three digits."""

GRADIENT_ERROR = 1e-4
"""L tau of output perturbation: the norm of the gradient at which the solver stops."""

SOLVER_SHARE, SOLVER_NOISE = 0.01, 0.01
"""Of epsilon, and of the noise on a logit from b: what hides the solver's error in objective perturbation."""


def stability(regularization: float, adjacency: Adjacency) -> float:
    """S_k: the largest distance of the solver's results on neighbouring data sets."""
    check_number("regularization", regularization, above=0.0)
    return (_changed_gradients(adjacency) + 2 * GRADIENT_ERROR) / regularization


def stable_minimiser(signed: Array, regularization: float, gradient_error: float = GRADIENT_ERROR) -> Array:
    """v: the minimiser (p,) of J for `signed` (n, p), certified to be within tau; must be hidden by noise.

    A refusal for lack of precision depends only on the shape of `signed` and on L. That of `minimise` must be hidden
    too: that 500 iterations suffice is not proven (some tens always did).
    """
    records, p = signed.shape
    longest = largest_weight(records, regularization) + gradient_error / regularization
    zero = np.zeros((1, p))
    at_worst = rounding_bound(records, np.eye(1, p) * longest, zero, regularization)[0]
    if at_worst > gradient_error / 2:
        raise RefusedError(
            f"nothing is released: with {records:,} records, rounding errors reach {at_worst:.2g}, but the proof needs"
            f' {gradient_error / 2:.2g}; use mechanism="noisy-gd"'
        )
    return np.asarray(minimise(signed, zero, regularization, gradient_error / regularization)[0])


def largest_weight(records: int, regularization: float) -> float:
    """A bound on the minimiser's norm for any records: L |w| is at most n, and L/2 |w|^2 at most J(0) = n log 2."""
    return min(records / regularization, math.sqrt(2 * records * math.log(2) / regularization))


@dataclass(frozen=True)
class PerturbedOutput:
    """Output perturbation (Chaudhuri, Monteleoni and Sarwate 2011, arXiv 0912.0071, algorithm 1; with Gaussian noise as
    in Wu et al. 2017, arXiv 1606.04722); parameters do not depend on n.

    Args:
        regularization: L, of the sum of losses.
        noise_rate: alpha, one over the scale of |h|; None for Gaussian noise.
        noise_multiplier: sigma, the standard deviation of h over S_1; None for radial noise.
    """

    regularization: float
    noise_rate: float | None = None
    noise_multiplier: float | None = None

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure epsilon under one adjacency; infinite for Gaussian noise."""
        return math.inf if self.noise_rate is None else self.noise_rate * stability(self.regularization, adjacency)

    @classmethod
    def radial(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> PerturbedOutput:
        """The mechanism with radial noise for an epsilon; L is such that h has the standard deviation `logit_noise`,
        sqrt(dimension + 1) / alpha, on each coordinate, and so on the logit of a record of norm 1."""
        rate = math.sqrt(dimension + 1) / logit_noise
        regularization = stability(1.0, adjacency) * rate / epsilon * (1 + 1e-12)  # rounding never spends more
        return cls(regularization, noise_rate=rate)

    @classmethod
    def gaussian(cls, noise_multiplier: float, *, logit_noise: float = 1.0) -> PerturbedOutput:
        """The mechanism with Gaussian noise for a sigma, where h has standard deviation `logit_noise`."""
        return cls(noise_multiplier * stability(1.0, "add_remove") / logit_noise, noise_multiplier=noise_multiplier)


def perturbed_output(signed: Array, mechanism: PerturbedOutput, rng: Randomness, runs: int = 1) -> Array:
    """(runs, p) weights released by output perturbation in independent runs, each of which spends the whole budget;
    `signed` (n, p) holds u_i. RefusedError: the solver cannot certify its result; nothing is released."""
    minimiser, shape = stable_minimiser(signed, mechanism.regularization), (runs, signed.shape[1])
    if mechanism.noise_rate is not None:
        return minimiser + radial_noise(mechanism.noise_rate, shape, rng)
    sigma = (mechanism.noise_multiplier or 0.0) * stability(mechanism.regularization, "add_remove")
    return minimiser + sigma * float_safe_normal(rng, shape)


@dataclass(frozen=True)
class PerturbedObjective:
    """Objective perturbation, for pure epsilon (Chaudhuri, Monteleoni and Sarwate 2011, algorithm 2; exact conditions:
    Kifer, Smith and Thakurta 2012); parameters do not depend on n.

    Args:
        noise_rate: beta, one over the scale of |b|.
        regularization: L, of the sum of losses.
        cover_rate: alpha, one over the scale of |h|.
        solver_error: tau, largest distance of the solver's result from the minimiser.
    """

    noise_rate: float
    regularization: float
    cover_rate: float
    solver_error: float

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure epsilon under one adjacency."""
        density = _changed_gradients(adjacency) * self.noise_rate
        return density + math.log1p(CURVATURE / self.regularization) + 2 * self.cover_rate * self.solver_error

    @classmethod
    def calibrated(
        cls, epsilon: float, dimension: int, adjacency: Adjacency = "substitute", *, logit_noise: float = 1.0
    ) -> PerturbedObjective:
        """The mechanism with the least noise for an epsilon; L is such that -b/L, the minimiser if the records carry no
        information, has the standard deviation `logit_noise`, about sqrt(dimension) / (beta L), on each coordinate."""
        scale = math.sqrt(dimension) / logit_noise
        budget, k = (1 - SOLVER_SHARE) * epsilon, _changed_gradients(adjacency)

        def excess(beta: float) -> float:
            return k * beta + math.log1p(CURVATURE * beta / scale) - budget

        beta = brentq(excess, 0.0, budget / k, xtol=1e-15 * budget) * (1 - 1e-9)  # brentq may end on either side
        cover_rate = scale / SOLVER_NOISE
        return cls(beta, scale / beta, cover_rate, SOLVER_SHARE * epsilon / (2 * cover_rate))


def perturbed_minimiser(signed: Array, mechanism: PerturbedObjective, rng: Randomness, runs: int = 1) -> Array:
    """Weights released by objective perturbation; arguments, shapes and errors as for `perturbed_output`."""
    shape = (runs, signed.shape[1])
    linear = radial_noise(mechanism.noise_rate, shape, rng)
    minimiser = minimise(signed, linear, mechanism.regularization, mechanism.solver_error)
    return minimiser + radial_noise(mechanism.cover_rate, shape, rng)


def radial_noise(rate: float, shape: tuple[int, int], rng: Randomness) -> Array:
    """Rows with density proportional to exp(-rate |row|): a uniform direction and a length from Gamma(p, 1/rate)."""
    direction = rng.standard_normal(shape)
    length = rng.gamma(shape[1], 1 / rate, (shape[0], 1))
    out: Array = direction * (length / np.linalg.norm(direction, axis=1, keepdims=True))
    return out


def _changed_gradients(adjacency: Adjacency) -> int:
    check_adjacency(adjacency)
    return 2 if adjacency == "substitute" else 1


# --- solver: certified minimisers ------------------------------------------------------------------------------------


def minimise(signed: Array, linear: Array, regularization: float, solver_error: float) -> Array:
    """(runs, p) minimisers of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2 + <b, w>, certified to `solver_error`,
    for rows u_i of `signed` (n, p) and b of `linear` (runs, p); RefusedError: no certificate after 500 iterations.

    The fraction log(1 + d) / d of a Newton step of length d converges from any start, as the third derivative of the
    logistic loss is at most its second (Sun and Tran-Dinh 2019, arXiv 1703.04599, nu = 2); the whole step is taken if
    it gains at least half of what the quadratic model predicts.
    """
    weights = np.zeros_like(linear)
    for _ in range(MAX_ITERATIONS):
        gradient, curvature = regularization * weights + linear, []
        for start in range(0, len(signed), BLOCK):
            rows = signed[start : start + BLOCK]
            miss = expit(-(weights @ rows.T))
            gradient -= miss @ rows
            curvature.append(miss * (1 - miss))
        residual = np.linalg.norm(gradient, axis=1) + rounding_bound(len(signed), weights, linear, regularization)
        if (residual <= regularization * solver_error).all():
            return weights
        step = _newton_steps(signed, np.concatenate(curvature, axis=1), regularization, gradient)
        length = np.maximum(np.linalg.norm(step, axis=1), TINY)
        fraction = np.log1p(length) / length
        if (length > SHORT_STEP).any():
            gain = _objective(signed, linear, regularization, weights)
            gain -= _objective(signed, linear, regularization, weights - step)
            whole = gain >= (gradient * step).sum(axis=1) / 4
            fraction = np.where((length > SHORT_STEP) & whole, 1.0, fraction)
        weights = weights - step * fraction[:, None]
    raise RefusedError(
        f"nothing is released: the solver's gradient norm is at most {residual.max():.2g}, but the proof needs"
        f' {regularization * solver_error:.2g}; use mechanism="noisy-gd"'
    )


def _objective(signed: Array, linear: Array, regularization: float, weights: Array) -> Array:
    total = regularization / 2 * (weights**2).sum(axis=1) + (linear * weights).sum(axis=1)
    for start in range(0, len(signed), BLOCK):
        total += np.logaddexp(0.0, -(weights @ signed[start : start + BLOCK].T)).sum(axis=1)
    return np.asarray(total)


def rounding_bound(records: int, weights: Array, linear: Array, regularization: float) -> Array:
    """(runs,) bound on the norm of the rounding error of J's gradient in float64.

    By |fl(sum) - sum| <= m u sum |terms| for m additions (Higham, Accuracy and Stability of Numerical Algorithms,
    section 4.2), doubled for higher orders. Margins are sums of p terms below |w|, and change the logistic function by
    a quarter of their error.
    """
    unit = np.finfo(np.float64).eps / 2
    length = np.linalg.norm(weights, axis=1)
    additions = min(records, BLOCK) + records / BLOCK + 8
    by_records = records * (additions + CURVATURE * (weights.shape[1] + 1) * length)
    return np.asarray(2 * unit * (by_records + 4 * (regularization * length + np.linalg.norm(linear, axis=1))))


def _newton_steps(signed: Array, curvature: Array, regularization: float, gradient: Array) -> Array:
    """(runs, p) about H^-1 gradient for the Hessian H = sum_i curvature_i u_i u_i' + L I of each run, by conjugate
    gradients (Hestenes and Stiefel 1952)."""
    out, residual, direction = np.zeros_like(gradient), gradient, gradient
    size = (gradient**2).sum(axis=1, keepdims=True)
    enough = STEP_ERROR**2 * size
    for _ in range(gradient.shape[1]):
        if (size <= enough).all():
            break
        product = (curvature * (direction @ signed.T)) @ signed + regularization * direction
        length = size / np.maximum((direction * product).sum(axis=1, keepdims=True), TINY)
        out, residual = out + length * direction, residual - length * product
        before, size = np.maximum(size, TINY), (residual**2).sum(axis=1, keepdims=True)
        direction = residual + size / before * direction
    return out


# --- noisy gradient descent -------------------------------------------------------------------------------------------


LARGEST_STEP = 64.0
"""Largest learning rate on the mean gradient, up to which clipping and averaging absorb the oscillation of weights."""

GAIN = 3.0
"""Factor on centred rows, which are shorter than norm 1; their gradients are clipped in any case."""


@dataclass(frozen=True)
class NoisyGradientDescent:
    """Noisy full-batch gradient descent (Song, Chaudhuri and Sarwate 2013; Bassily, Smith and Thakurta 2014, arXiv
    1405.7085), with public parameters as for `DPLogisticRegression`.

    Each step releases the sum of the records' gradients, each clipped to norm C, with Gaussian noise of standard
    deviation `noise_multiplier` * C. One more release of the same noise is, with `private_count`, a sum of ones, and
    with `centred` the sum of the features, each of norm at most 1; rows minus that mean are functions of one record and
    of the release. All else is post-processing.

    The learning rate follows from the noise: ignoring gradients, all steps together add noise of standard deviation
    `logit_noise` to each weight, and thus to the logit of a record whose features have norm 1.
    """

    noise_multiplier: float
    steps: int = 100
    max_grad_norm: float = 0.3
    logit_noise: float = 1.0
    private_count: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)
        for name in ("noise_multiplier", "max_grad_norm", "logit_noise"):
            check_number(name, getattr(self, name), above=0.0)

    @property
    def releases(self) -> int:
        """Number of releases of the Gaussian mechanism with this noise multiplier."""
        return self.steps + self.private_count + self.centred

    def step_size(self, records: Array) -> Array:
        """Learning rate on the sum of gradients; it depends on n only at `LARGEST_STEP`."""
        by_noise = self.logit_noise / (math.sqrt(self.steps) * self.noise_multiplier * self.max_grad_norm)
        return np.minimum(by_noise, LARGEST_STEP / records)


def noisy_gradient_descent(
    features: Array,
    labels: NDArray[np.int64],
    classes: int,
    descent: NoisyGradientDescent,
    rng: Randomness,
    runs: int = 1,
) -> tuple[Array, Array]:
    """(runs, classes, p) weights of a softmax regression in independent runs, each of which spends the whole budget:
    the mean of the second half of the iterates; and (runs,) the number of records to publish. Rows of `features` (n, p)
    have norm at most 1, including a constant column; `labels` (n,) are positions among the classes."""
    sigma, bound = descent.noise_multiplier, descent.max_grad_norm
    records = np.full(runs, float(len(features)))
    if descent.private_count:
        records = np.maximum(records + sigma * float_safe_normal(rng, (runs,)), 1.0)
    step = descent.step_size(records)[:, None, None]
    centre = np.zeros((runs, features.shape[1]))
    if descent.centred:
        constant = features[:1, -1]
        centre[:, :-1] = _noised_mean(features[:, :-1], records, sigma, rng)
        features = (features - centre[:, None]) * np.append(np.full(features.shape[1] - 1, GAIN), 1.0)
    weights = np.zeros((runs, classes, features.shape[-1]))
    total = np.zeros_like(weights)
    first = descent.steps // 2
    for t in range(descent.steps):
        gradient = clipped_gradient_sum(features, labels, weights, bound)
        weights = weights - step * (gradient + sigma * bound * float_safe_normal(rng, weights.shape))
        if t >= first:
            total += weights
    found = total / (descent.steps - first)
    if descent.centred:  # back to the original rows: the constant column absorbs the mean
        found[:, :, :-1] *= GAIN
        found[:, :, -1] -= np.einsum("rkp,rp->rk", found, centre) / constant
    return found, records


def _noised_mean(rows: Array, records: Array, sigma: float, rng: Randomness) -> Array:
    noised = rows.sum(axis=0) + sigma * float_safe_normal(rng, (len(records), rows.shape[1]))
    counts = records[:, None]
    mean: Array = noised * counts / (counts**2 + rows.shape[1] * sigma**2)
    return mean


def clipped_gradient_sum(features: Array, labels: NDArray[np.int64], weights: Array, bound: float) -> Array:
    """Sum of the records' cross-entropy gradients, each clipped to 2-norm `bound`, like the weights (runs, classes, p);
    features (n, p) or (runs, n, p)."""
    rows = Rows.of(torch.from_numpy(features), torch.from_numpy(labels), bias=False)
    return clipped_sum(torch.from_numpy(weights), rows, None, FlatClipping(bound)).numpy()
