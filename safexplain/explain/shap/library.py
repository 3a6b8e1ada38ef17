"""Importing shap when it is needed."""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module
from typing import Any

from safexplain.errors import MissingExtraError
from safexplain.explain.alibi.library import give_own_generators

__all__ = ["load_shap"]

_importing = threading.RLock()


def load_shap() -> Any:
    """The module shap, whose kernel method draws from the running call's generator.

    Raises:
        MissingExtraError: it is not installed, or cannot be imported; the message says which.
    """
    with _importing:
        return _loaded()


@cache
def _loaded() -> Any:
    try:
        shap = import_module("shap")
        trees = import_module("shap.explainers._tree")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "shap":
            raise MissingExtraError(
                'The explainers of shap need shap, which is not installed: pip install "safexplain[shap]"', name="shap"
            ) from None
        raise MissingExtraError(
            f"shap is installed, but importing it fails: {type(error).__name__}: {error}",
            name=getattr(error, "name", None),
        ) from error
    give_own_generators()
    if (decode := getattr(trees, "decode_ubjson_buffer", None)) is not None:
        vars(trees)["decode_ubjson_buffer"] = lambda file: _with_one_base_score(decode(file))
    return shap


def _with_one_base_score(model: Any) -> Any:
    """XGBoost's own format with a base score that shap 0.49 can read.

    XGBoost 3.1 and later write a list of them, "[5E-1]", of which shap 0.50 and later take the first. It moves the base
    value, which does not leave, and no Shapley value.
    """
    parameters = model.get("learner", {}).get("learner_model_param", {})
    if isinstance(score := parameters.get("base_score"), str) and score.startswith("["):
        parameters["base_score"] = score.strip("[]").partition(",")[0]
    return model
