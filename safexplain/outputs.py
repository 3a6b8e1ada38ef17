"""Outputs of classifiers: logits or probabilities, their log odds; and scikit-learn classifiers as modules
(`as_module`)."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import estimator_digest, is_estimator
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, InputError


class _Wrapper(nn.Module):
    _network = "model"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def training(self) -> bool:
        return bool(getattr(self.model, "training", False))

    @training.setter
    def training(self, mode: bool) -> None:
        pass


class Logits(_Wrapper):
    """A classifier of `transformers`, (batch, ...) -> an object with `logits` (batch, classes), as a module that
    returns these. Its digest is that of the classifier."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        answer = self.model(x)
        logits = getattr(answer, "logits", answer[0] if isinstance(answer, tuple) and answer else None)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"expected an answer with logits, as from a classifier of transformers; got {type(answer)}"
            )
        return logits


class Probability(_Wrapper):
    """A classifier with softmax on its logits: explanations of it are of the predicted probability. Their size reveals
    the confidence, which is higher on members; those of the logit leak far less (`docs/concepts.md`)."""

    _explains = b"probability"

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities (batch, classes)."""
        logits: Tensor = self.model(x)
        if logits.dim() != 2:
            raise InputError(f"expected logits of shape (batch, classes), got {tuple(logits.shape)}")
        return logits.softmax(1)


class EstimatorModule(nn.Module):
    """A scikit-learn classifier as a module in evaluation mode: (n, ...) inputs -> (n, classes) probabilities, without
    gradients, so that only perturbation explains it (`KernelShap`, `Occlusion`, ...). Its digest is that of the fitted
    estimator: the same in another process, and different for any other fit.

    Args:
        estimator: fitted, with `predict_proba`. It gets rows of float32, under the names of its columns, if any.
        classes: number of outputs; classes unknown to the estimator get probability 0. None: its own.
        columns: the coding of rows, if the estimator takes texts or missing numbers; it then gets the decoded frame.
        labels: (classes,) of the outputs, for an estimator that has not seen all of them. None: labels that are whole
            numbers from 0 are the indices of the outputs; others are in the order of `classes_`.

    Raises:
        ConfigurationError: the estimator has no `predict_proba`.
        InputError: it is not fitted.
    """

    def __init__(
        self, estimator: Any, classes: int | None = None, *, columns: Columns | None = None, labels: Any = None
    ) -> None:
        super().__init__()
        if not hasattr(estimator, "predict_proba"):
            raise ConfigurationError(f"expected a classifier with predict_proba, got {type(estimator).__name__}")
        if not isinstance(getattr(estimator, "classes_", None), np.ndarray):
            raise InputError(
                f"expected a fitted {type(estimator).__name__} of one label, got one without classes_; fit it"
            )
        self.estimator, self.columns = estimator, columns
        self.labels = labels
        self.classes = int(self.places().max()) + 1 if classes is None else classes
        if columns is not None:  # the coding is a part of the model
            coded = hashlib.sha256(columns.to_json().encode()).digest()
            self.register_buffer("coding", torch.frombuffer(bytearray(coded), dtype=torch.uint8))
        if not is_estimator(estimator) or estimator_digest(estimator) is None:
            self.register_buffer("identity", torch.frombuffer(bytearray(_pickled(estimator)), dtype=torch.uint8))
        self.train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of the classes 0 .. classes-1, float32."""
        out = np.zeros((len(x), self.classes), dtype=np.float32)
        if len(x):
            with _without_threads(len(x)):
                out[:, self.places()] = self.estimator.predict_proba(self.rows(x.detach().cpu().flatten(1).numpy()))
        return torch.from_numpy(out).to(x.device)

    def rows(self, x: NDArray[Any]) -> Any:
        """The estimator's input for (n, d) numbers: a pandas frame if it was fitted with names, else the numbers."""
        if self.columns is not None:
            return self.columns.decode(x)
        names = getattr(self.estimator, "feature_names_in_", None)
        return x if names is None else import_module("pandas").DataFrame(x.astype(np.float64), columns=names)

    def places(self) -> NDArray[np.int64]:
        """Output index of each of the estimator's classes."""
        seen = self.estimator.classes_
        return places_of(seen) if self.labels is None else np.searchsorted(np.asarray(self.labels), seen)


FEWEST_FOR_THREADS = 20_000
"""Rows below which starting joblib's threads takes longer than they save."""


def _without_threads(rows: int) -> AbstractContextManager[Any]:
    """Predict few rows in this thread, whatever the estimator's `n_jobs`."""
    if rows >= FEWEST_FOR_THREADS:
        return nullcontext()
    quiet: AbstractContextManager[Any] = import_module("joblib").parallel_config("sequential")
    return quiet


def _pickled(value: Any) -> bytes:
    try:
        return hashlib.sha256(pickle.dumps(value)).digest()
    except Exception:  # local classes and the like: unique, but different after a restart
        return os.urandom(32)


def places_of(seen: Any) -> NDArray[np.int64]:
    """Output index of each of an estimator's labels in its `EstimatorModule`."""
    return np.asarray(seen.astype(np.int64) if are_places(seen) else np.arange(len(seen)))


def are_places(labels: Any) -> bool:
    """Whether the labels of an estimator are output indices: whole numbers from 0."""
    if labels.dtype.kind not in "biuf":
        return False
    return bool((labels == np.floor(labels)).all()) and bool((labels >= 0).all())


def as_module(model: Any, classes: int | None = None) -> Any:
    """A fitted scikit-learn classifier, or `Booster` of XGBoost or LightGBM, as an `EstimatorModule` of at least so
    many classes, and anything else as it is; InputError: a classifier that is not fitted."""
    if isinstance(model, nn.Module):
        return model
    model = classifier_of(model)
    if not hasattr(model, "predict_proba"):
        return model
    made = EstimatorModule(model)
    return made if classes is None or classes <= made.classes else EstimatorModule(model, classes)


OBJECTIVES = {
    "xgboost": ("binary:logistic", "multi:softprob", "multi:softmax"),
    "lightgbm": ("binary", "multiclass", "multiclassova", "cross_entropy"),
}


def classifier_of(model: Any) -> Any:
    """The scikit-learn classifier of a `Booster` of XGBoost or LightGBM, as in an audit of the booster's file; anything
    else as it is. InputError: a booster that is no classifier."""
    library = type(model).__module__.partition(".")[0]
    if library not in OBJECTIVES or type(model).__name__ != "Booster":
        return model
    native: Any = import_module(library)
    if library == "xgboost":
        objective = json.loads(model.save_config())["learner"]["objective"]["name"]
    else:
        text = model.model_to_string()
        objective = next((line[10:] for line in text.splitlines() if line.startswith("objective=")), "none").split()[0]
    if objective not in OBJECTIVES[library]:
        raise InputError(
            f"expected the booster of a classifier (objective {', '.join(OBJECTIVES[library])}), got {objective}"
        )
    if library == "xgboost":
        made = native.XGBClassifier()
        made.load_model(model.save_raw("ubj"))
        return made
    model = native.Booster(model_str=text)  # as in its file, without marks of its training
    outputs = max(int(model.num_model_per_iteration()), 1)
    classes, names = np.arange(max(outputs, 2)), model.feature_name()
    made = native.LGBMClassifier()
    made._Booster = model
    made._n_features = made._n_features_in = model.num_feature()
    made._n_classes, made._classes = len(classes), classes
    made._le = import_module("sklearn.preprocessing").LabelEncoder().fit(classes)
    made._objective = "binary" if outputs == 1 else "multiclass"
    made._best_iteration = None
    made._fitted_with_feature_names = names != [f"Column_{i}" for i in range(len(names))]
    made.fitted_ = True
    return made


def are_probabilities(out: Tensor) -> bool:
    """Whether every row of (batch, classes) outputs is non-negative and sums to 1."""
    return bool((out >= 0).all()) and bool(((out.sum(1) - 1).abs() < 1e-4).all())


def log_probabilities(p: Tensor) -> Tensor:
    """Logarithms of probabilities, clamped to at least 1e-30."""
    return p.clamp_min(1e-30).log()


def class_log_odds(scores: Tensor) -> Tensor:
    """log p_c - log(1 - p_c) of every class c, where p = softmax(scores), for (batch, classes) float64 scores; finite
    if they are, as for the largest p, 1 - p is added up from the others."""
    log_p = scores.log_softmax(1)
    top = scores.argmax(1, keepdim=True)
    odds = log_p - torch.log1p(-log_p.exp().scatter(1, top, 0.0))
    others = scores.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return odds.scatter(1, top, scores.gather(1, top) - others).clamp(-1e300, 1e300)
