"""Which class an explanation is for: the predicted one, in every library. Natively, a model with one output for two
classes is explained for class 1; for class 0, the sign must change before a hardening picks what counts most."""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.errors import ConfigurationError, PredictedClassWarning
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.selection import TopKSet

Direction = Literal["up", "down"]
"""Whether reasons explain why a number is as high as it is, or as low."""

LOG_ODDS, PROBABILITY = 0.0, 0.5
"""Thresholds above which a single output predicts class 1."""

Values = TypeVar("Values", NDArray[Any], Tensor)

_warned: set[str] = set()


def threshold_of_trees(native: Any, model: Any) -> float | None:
    """Of a `shap.TreeExplainer` made from a model with one output; None: the output is a number."""
    if "probability" in (native.model_output, native.model.tree_output):
        return PROBABILITY
    return LOG_ODDS if native.model.tree_output == "log_odds" or has_two_classes(model) else None


def threshold_of_function(native: Any) -> float | None:
    """Of a `shap.KernelExplainer`'s function with one output; None: the output is a number. It has two classes with the
    link "logit", as a method of a classifier, or if its outputs for the background are in [0, 1]."""
    if str(native.link) == "logit":
        return LOG_ODDS
    function = native.model.f
    owner = getattr(function, "__self__", None)
    if has_two_classes(owner):
        return PROBABILITY if function.__name__ == "predict" else LOG_ODDS
    if hasattr(owner, "predict") and not hasattr(owner, "classes_"):
        return None  # a regressor
    outputs = np.asarray(function(native.data.data), dtype=np.float64)
    return PROBABILITY if ((outputs >= 0) & (outputs <= 1)).all() else None


def has_two_classes(model: Any) -> bool:
    """Whether a fitted scikit-learn model is a classifier of two classes."""
    return len(getattr(model, "classes_", ())) == 2


def oriented(values: Values, classes: Any) -> Values:
    """Native values (n, ...) for class 1, turned towards the class of each row, (n,): negated for class 0."""
    signs = 2 * np.asarray(classes, dtype=np.int64) - 1
    if isinstance(values, Tensor):
        return values * torch.as_tensor(signs, device=values.device).view(-1, *[1] * (values.dim() - 1))
    return np.asarray(values * signs.reshape(-1, *[1] * (values.ndim - 1)))


def orients_first(hardening: Hardening) -> bool:
    """Whether values are turned towards the class before they are hardened. With noise they are turned afterwards, so
    that answers about both classes share one noise, which two answers cannot average."""
    return hardening.noise is None or isinstance(hardening.clip, TopKSet)


def explained_classes(
    scores: Any, threshold: float | None, *, target: Any = None, direction: Direction | None = None, by: str = ""
) -> NDArray[np.int64]:
    """The class (n,) that each row's single output, (n,), is explained for; for a number, 1 for "up" and 0 for "down".

    Class 1 is predicted above `threshold`; None: the output is a number. `target` is 0 or 1, or (n,) of them; None: the
    predicted ones, with a PredictedClassWarning once for each explainer (`by`). ConfigurationError: a direction for
    classes, a class for a number, or a target that is neither 0 nor 1.
    """
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
    if threshold is None:
        if target is not None or direction not in (None, "up", "down"):
            raise ConfigurationError(
                'expected direction="up" (why the number is as high as it is) or "down", and no target: this model'
                " returns a number and has no classes"
            )
        return np.full(len(scores), int(direction != "down"))
    if direction is not None:
        raise ConfigurationError("expected no direction: this model has two classes; name one by target=0 or target=1")
    if target is None:
        if by and by not in _warned:
            _warned.add(by)
            warnings.warn(
                f"{by}: the model has one output for two classes. Values explain each row's predicted class, natively"
                " class 1. Name a class by target=",
                PredictedClassWarning,
                stacklevel=4,
            )
        return np.where(scores > threshold, 1, 0)
    given = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(target)
    if given.size not in (1, len(scores)) or not np.isin(given, (0, 1)).all():
        raise ConfigurationError(f"target: expected 0 or 1, or one for each of {len(scores)} rows")
    return np.broadcast_to(given.reshape(-1), len(scores)).astype(np.int64)
