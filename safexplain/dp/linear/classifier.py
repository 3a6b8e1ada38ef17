"""Logistic regression with differential privacy, as a scikit-learn classifier.

Statements contain the number of records. Under add/remove that number is one more release: with two-sided geometric
noise for a share of a pure epsilon, or as one more step of the Gaussian mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from safexplain._digest import trained_digest
from safexplain._privacy_loss import Adjacency, Steps, check_adjacency, check_delta
from safexplain._secure_random import GENERATOR, Randomness, SecureGenerator, discrete_laplace, float_safe_normal
from safexplain._validate import check_number
from safexplain.dp.accounting import noise_multiplier
from safexplain.dp.linear.mechanisms import PerturbedObjective, PerturbedOutput, perturbed_minimiser, perturbed_output
from safexplain.dp.linear.noisy_gd import NoisyGradientDescent, noisy_gradient_descent
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.privacy_statement import PrivacyStatement

COUNT_SHARE = 0.02
"""Share of a pure epsilon that hides the number of records, under add/remove."""

INSIDE = 1 - 1e-9
"""Rows are scaled to this norm instead of 1, so that rounding cannot put one outside the unit ball."""

CLIPPING = "features scaled to norm 1, the constant column included; the intercept is regularised"

Weights = NDArray[np.float64]
Released = tuple[Weights, PrivacyStatement]


class DPLogisticRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression whose coefficients, intercepts and `privacy_` together are differentially private.

    Everything but `X` and `y` is public and must not be chosen by looking at them. The defaults depend on epsilon,
    delta, the numbers of features and classes and, if public, the number of records. Each `fit` spends epsilon again,
    also in each round of a cross-validation. Standardising the data by their own mean and standard deviation is not
    covered: scale by public constants.

    In `fit` only, a row x is shortened to `norm_bound` if it is longer, and becomes (x / norm_bound, intercept_scaling)
    / sqrt(1 + intercept_scaling^2), of norm at most 1. `coef_` and `intercept_` are for the original x.

    - `mechanism="noisy-gd"`: (epsilon, delta) by noisy full-batch gradient descent on the softmax loss. The best choice
      from about twenty features on.
    - `mechanism="objective"`: epsilon with delta = 0 by objective perturbation. Two classes, or k of them one-vs-rest,
      each with epsilon / k (basic composition). `delta`, `steps` and `max_grad_norm` are not used.
    - `mechanism="output"`: noise on the regularised minimiser: epsilon by radial noise with `delta=0`, else (epsilon,
      delta) by Gaussian noise. Classes as for "objective".

    Sample weights and class weights are not supported, because they would multiply a record's influence.

    Args:
        epsilon: budget of one `fit`, above 0.
        delta: in [1e-12, 1), smaller than one over the number of records; for "output" also 0.
        adjacency: "substitute" protects the content of a record; "add_remove" only its presence (and hides the number
            of records); "zero_out" one record against an empty one.
        mechanism: "noisy-gd", "objective" or "output".
        norm_bound: public bound on the Euclidean norm of a row of X; required.
        classes: public list of at least two classes, whether or not they all occur; required.
        steps: of the gradient descent.
        max_grad_norm: clip bound of a record's gradient, whose norm is below sqrt(2) without clipping.
        logit_noise: standard deviation of the noise on the logit of a record of norm `norm_bound`, which sets the
            learning rate and the regularization. Smaller is safer for few records, larger follows the data closer.
            None for 1, or .1 with "output".
        intercept_scaling: the constant column; 0 for a model without intercept.
        centre: whether the gradient descent subtracts the mean of the rows, released with noise at the price of a step.
            Better if features vary little within their public ranges. Needs an intercept.
        random_state: None for noise from a cryptographic generator (`safexplain._secure_random`). An int, RandomState
            or Generator makes the noise repeatable, for tests; anyone who knows it can remove the noise.

    Attributes:
        coef_: (1, n_features) for two classes, else (n_classes, n_features).
        intercept_: (1,) or (n_classes,).
        classes_: (n_classes,) the public list, sorted.
        n_features_in_: number of features.
        privacy_: `PrivacyStatement` about these coefficients, intercepts and classes only. Its number of records is
            exact, except under add/remove, where it is noised; its pure epsilon is the larger one, under substitution.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 2, 2000)
        >>> X = rng.normal(size=(2000, 3)) + 2 * y[:, None]
        >>> model = DPLogisticRegression(epsilon=1.0, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]
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
            ConfigurationError: `norm_bound` or `classes` is missing, or a parameter is out of range.
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

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n,) logit of the second of two classes, or (n, n_classes) scores; X is not shortened."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scores: NDArray[np.float64] = rows @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,) the class with the highest score."""
        scores = self.decision_function(X)
        out: NDArray[Any] = self.classes_[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]
        return out

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
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

    def _descend(self, features: Weights, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
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

    def _perturb_objective(self, features: Weights, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
        """One problem for each class, or one for two classes, each with an equal share of epsilon."""
        dimension, noise = features.shape[1], self._logit_noise()
        mechanism = PerturbedObjective.calibrated(self._pure_share(k), dimension, self.adjacency, logit_noise=noise)
        weights = _each_class(features, labels, k, lambda signed: perturbed_minimiser(signed, mechanism, rng))
        name = "logistic regression by objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011)"
        return weights, self._pure_statement(name, mechanism, len(features), k, rng)

    def _perturb_output(self, features: Weights, labels: NDArray[np.int64], k: int, rng: Randomness) -> Released:
        """Radial noise if delta is 0, otherwise Gaussian noise."""
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
        """Pure epsilon of each of the problems, after the count's."""
        return (float(self.epsilon) - self._count_epsilon()) / _problems(k)

    def _pure_statement(
        self, name: str, mechanism: PerturbedObjective | PerturbedOutput, records: int, k: int, rng: Randomness
    ) -> PrivacyStatement:
        """All problems and the count, by basic composition; the larger epsilon need not be that of substitution."""
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
    """The number of records plus noise z of probability proportional to exp(-|z| / ceil(1 / epsilon)); exact for 0."""
    if epsilon == 0:
        return records
    scale = math.ceil(1 / Fraction(epsilon))
    return max(1, records + int(discrete_laplace(np.array([scale]), rng)[0]))


def _problems(k: int) -> int:
    """Number of binary problems."""
    return 1 if k == 2 else k


def _one_vs_rest(k: int) -> str:
    return f", {k} classes one-vs-rest" if k > 2 else ""


def _each_class(features: Weights, labels: NDArray[np.int64], k: int, release: Callable[[Weights], Weights]) -> Weights:
    """(k, p) weights of every class; with two classes, those of the first are 0."""
    signs = np.where(labels == np.arange(k)[:, None], 1.0, -1.0)[-_problems(k) :]
    weights = np.concatenate([release(features * s[:, None]) for s in signs])
    return np.concatenate([np.zeros_like(weights), weights]) if k == 2 else weights


# --- inputs, for the classifier and for recourse ---------------------------------------------------------------------


def check_bound(norm_bound: Any) -> float:
    """The public bound on the norm of a row, which is never read off the data."""
    if norm_bound is None:
        raise ConfigurationError(
            "norm_bound is missing: a bound read off the data would reveal something about one record. Pass a public"
            " number, such as sqrt(n_features) times the largest possible value; longer rows are shortened to it"
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
    """(n,) positions of the labels in the list of classes; InputError if a label is not in it."""
    place = {label: i for i, label in enumerate(classes.tolist())}
    found = [place.get(label, -1) for label in labels.tolist()]
    if -1 in found:
        raise InputError(
            f"y: expected labels in classes={classes.tolist()}, got {labels.tolist()[found.index(-1)]!r};"
            f" {found.count(-1)} of {len(found)} rows have such labels"
        )
    return np.asarray(found, dtype=np.int64)


def in_unit_ball(rows: NDArray[np.float64], bound: float, constant: float) -> NDArray[np.float64]:
    """(n, n_features + 1) rows shortened to the bound, with a constant column, scaled to norm at most 1."""
    with np.errstate(over="ignore"):  # a norm beyond float64 is infinite, and its row becomes 0
        norms: NDArray[np.float64] = np.hypot.reduce(rows, axis=1)
    column = np.full((len(rows), 1), constant)
    joined = np.concatenate([rows / np.maximum(norms, bound)[:, None], column], axis=1)
    return np.asarray(joined * (INSIDE / math.hypot(1.0, constant)))


def noise_generator(random_state: Any) -> Randomness:
    """A cryptographic source of noise; with a random_state NumPy's, but never its global one."""
    if random_state is None:
        return SecureGenerator()
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(0, 2**32, size=4, dtype=np.uint32))


def on_grid(weights: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Noised weights rounded to multiples of a public power of two, about 1e-8 of the noise on a logit.

    Sums of floating-point numbers lie on a lattice that depends on the terms: 0 plus noise can take values that .1 plus
    noise never takes. A grid that is coarse compared to the lattice and fine compared to the noise hides this.
    """
    grid = 2.0 ** max(math.floor(math.log2(noise)) - 27, -1000)
    return np.asarray(np.round(weights / grid) * grid)
