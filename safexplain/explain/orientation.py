"""Which decision an explanation speaks for: the predicted class, in every library, decided here.

Natively, a model with one output for two classes is explained in favour of class 1, whatever it predicts: the values of
shap's boosters and linear models add up to the log odds of class 1. The largest of them are then reasons *for* approval
of somebody who was turned down. What speaks for class 0 are the negatives, and they must be taken before a hardening
picks the features that count most.
"""

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
"""Of reasons for a number: why it is as high as it is, or as low."""

LOG_ODDS, PROBABILITY = 0.0, 0.5
"""Above which one output for two classes predicts class 1."""

Values = TypeVar("Values", NDArray[Any], Tensor)

_warned: set[str] = set()


def threshold_of_trees(native: Any, model: Any) -> float | None:
    """What the one output of a `shap.TreeExplainer` made from a model predicts class 1 above; None: it is a number."""
    if "probability" in (native.model_output, native.model.tree_output):
        return PROBABILITY
    return LOG_ODDS if native.model.tree_output == "log_odds" or has_two_classes(model) else None


def threshold_of_linear(model: Any) -> float | None:
    """What the one output of a linear model predicts class 1 above; None: it is a number."""
    return LOG_ODDS if has_two_classes(model) else None


def threshold_of_function(native: Any) -> float | None:
    """What the one output of the function in a `shap.KernelExplainer` predicts class 1 above; None: it is a number.

    It is about classes with the link "logit", where it is a method of a classifier, or where it gives numbers from 0 to
    1 for all of the background.
    """
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
    """Whether a fitted model of scikit-learn's kind tells two classes apart."""
    return len(getattr(model, "classes_", ())) == 2


def speaking_for(values: Values, classes: Any) -> Values:
    """Native values (n, ...) in favour of class 1, in favour of the class of each row, (n,): of 0 their negatives."""
    signs = 2 * np.asarray(classes, dtype=np.int64) - 1
    if isinstance(values, Tensor):
        return values * torch.as_tensor(signs, device=values.device).view(-1, *[1] * (values.dim() - 1))
    return np.asarray(values * signs.reshape(-1, *[1] * (values.ndim - 1)))


def turns_first(hardening: Hardening) -> bool:
    """Whether values are turned towards the class before they are hardened, as a set of reasons must be.

    Where there is noise, what is hardened is turned instead: answers about both classes then share one noise, which
    two of them would average.
    """
    return hardening.noise is None or isinstance(hardening.clip, TopKSet)


def decided(
    scores: Any, threshold: float | None, *, target: Any = None, direction: Direction | None = None, by: str = ""
) -> NDArray[np.int64]:
    """Of each row, the class that one output is explained in favour of; of a number, 1 for "up" and 0 for "down".

    Args:
        scores: (n,) outputs.
        threshold: above it, class 1 is predicted; None: the output is a number, and there are no classes.
        target: the class, 0 or 1, or (n,) of them; None: the predicted ones.
        direction: of a number; None: "up".
        by: name of the explainer, for a warning where it decides.

    Raises:
        ConfigurationError: a direction of classes, a class of a number, or a target that is neither 0 nor 1.

    Warns:
        PredictedClassWarning: once for each explainer, where nobody has named a class.
    """
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
    if threshold is None:
        if target is not None or direction not in (None, "up", "down"):
            raise ConfigurationError(
                'this model gives a number, and no classes: direction="up" (why it is as high) or "down", no target'
            )
        return np.full(len(scores), int(direction != "down"))
    if direction is not None:
        raise ConfigurationError("direction is for models that give a number; name a class by target=0 or target=1")
    if target is None:
        if by and by not in _warned:
            _warned.add(by)
            warnings.warn(
                f"{by}: the model has one output for two classes. Each row's values speak for the class that is"
                " predicted for it; natively all speak for class 1. Name a class by target=",
                PredictedClassWarning,
                stacklevel=4,
            )
        return np.where(scores > threshold, 1, 0)
    given = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(target)
    if given.size not in (1, len(scores)) or not np.isin(given, (0, 1)).all():
        raise ConfigurationError(f"target: expected 0 or 1, or one of them for each of {len(scores)} rows")
    return np.broadcast_to(given.reshape(-1), len(scores)).astype(np.int64)
