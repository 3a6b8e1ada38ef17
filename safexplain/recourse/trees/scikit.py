"""Reading scikit-learn's tree ensembles (1.4 and later; their arrays are the same since)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError
from safexplain.recourse.result import Floats
from safexplain.recourse.trees.tree import LEAF, Ensemble, Growing, Ints, Tree, argmax, same, up_to_float32

FORESTS = ("RandomForestClassifier", "ExtraTreesClassifier")
TREES = ("DecisionTreeClassifier", "ExtraTreeClassifier")
GRADIENT = "GradientBoostingClassifier"
HISTOGRAM = "HistGradientBoostingClassifier"


def read(model: Any, kind: str) -> Ensemble:
    """A fitted classifier of one of these kinds.

    Raises:
        ConfigurationError: not fitted, several outputs, or an initial estimator that depends on the row.
    """
    if not hasattr(model, "classes_"):
        raise ConfigurationError(f"model: this {kind} is not fitted; call fit(X, y) first")
    if isinstance(model.classes_, list):
        raise ConfigurationError(
            f"model: this {kind} predicts {len(model.classes_)} outputs; train one classifier for each"
        )
    names = getattr(model, "feature_names_in_", None)
    common: dict[str, Any] = {
        "width": int(model.n_features_in_),
        "classes": tuple(model.classes_.tolist()),
        "predict": lambda rows: _unnamed(model, rows),
        "names": None if names is None else tuple(map(str, names)),
    }
    if kind == HISTOGRAM:
        return _histogram(model, common)
    if kind == GRADIENT:
        return _gradient(model, common)
    members = model.estimators_ if kind in FORESTS else [model]
    trees = tuple(_tree(member.tree_, member.tree_.value[:, 0, :]) for member in members)
    share = float(len(trees))
    base = np.zeros(len(common["classes"]))
    return Ensemble(trees, base=base, decide=lambda sums: argmax(sums / share), scores=lambda s: s / share, **common)


def _unnamed(model: Any, rows: Floats) -> NDArray[Any]:
    """Predictions of rows without names, of a model that may have some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.predict(rows))


def _tree(nodes: Any, value: Floats) -> Tree:
    leaf = nodes.children_left == LEAF
    missing = getattr(nodes, "missing_go_to_left", np.zeros(len(leaf)))
    return Tree(
        np.where(leaf, LEAF, nodes.feature).astype(np.intp),
        up_to_float32(nodes.threshold),
        nodes.children_left.astype(np.intp),
        nodes.children_right.astype(np.intp),
        missing.astype(bool),
        np.ascontiguousarray(value, dtype=np.float64),
    )


def _gradient(model: Any, common: dict[str, Any]) -> Ensemble:
    if model.init_ != "zero" and type(model.init_).__name__ != "DummyClassifier":
        raise ConfigurationError(
            f"model: this {GRADIENT} starts from {type(model.init_).__name__}, whose scores depend on the row; train it"
            " with init=None or 'zero'"
        )
    outputs = model.estimators_.shape[1]
    trees = []
    for stage in model.estimators_:
        for output, member in enumerate(stage):
            value = np.zeros((member.tree_.node_count, outputs))
            value[:, output] = model.learning_rate * member.tree_.value[:, 0, 0]
            trees.append(_tree(member.tree_, value))
    base = model._raw_predict_init(np.zeros((1, common["width"]), dtype=np.float32))[0].astype(np.float64)
    decide = argmax if outputs > 1 else lambda sums: (sums[:, 0] >= 0).astype(np.intp)
    return Ensemble(tuple(trees), base=base, decide=decide, scores=same, **common)


def _positive(sums: NDArray[np.floating[Any]]) -> Ints:
    return (sums[:, 0] > 0).astype(np.intp)


def _histogram(model: Any, common: dict[str, Any]) -> Ensemble:
    codes = _Categories(model)
    outputs = model.n_trees_per_iteration_
    trees = []
    for stage in model._predictors:
        for output, predictor in enumerate(stage):
            growing = Growing(outputs)
            nodes = predictor.nodes
            for node in nodes:  # leaves and splits in their order; children are numbered alike
                value = np.zeros(outputs)
                if node["is_leaf"]:
                    value[output] = node["value"]
                    growing.leaf(value)
                else:
                    at = codes.order[int(node["feature_idx"])]
                    missing = bool(node["missing_go_to_left"])
                    growing.split(at, float(node["num_threshold"]), int(node["left"]), int(node["right"]), missing)
            for number, node in enumerate(nodes):
                if not node["is_leaf"] and node["is_categorical"]:
                    at = codes.order[int(node["feature_idx"])]
                    bits = predictor.raw_left_cat_bitsets[int(node["bitset_idx"])]
                    left = {code for code in range(256) if bits[code // 32] >> (code % 32) & 1}
                    children = int(node["left"]), int(node["right"])
                    missing_to = children[0] if node["missing_go_to_left"] else children[1]
                    growing.replace(number, codes.chosen(growing, at, left, children, missing_to))
            trees.append(growing.tree(0))
    decide = argmax if outputs > 1 else _positive
    base = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    return Ensemble(tuple(trees), base=base, decide=decide, scores=same, categorical=tuple(codes.values), **common)


class _Categories:
    """Which columns of a histogram model hold categories, and which values these are.

    Attributes:
        order: of the model's inner columns, which of the table's each is.
        values: column of the table -> numbers that its categories are written as, by code.
    """

    def __init__(self, model: Any) -> None:
        mask = model.is_categorical_
        width = int(model.n_features_in_)
        self.order = list(range(width))
        self.values: dict[int, list[float]] = {}
        if mask is None:
            return
        self.order = [*np.flatnonzero(mask).tolist(), *np.flatnonzero(~mask).tolist()]
        encoder = model._preprocessor.named_transformers_["encoder"]
        for column, values in zip(self.order, encoder.categories_, strict=False):
            try:
                known = np.asarray(values, dtype=np.float64)
            except (TypeError, ValueError):  # text: its codes stand for it
                known = np.arange(len(values), dtype=np.float64)
            self.values[column] = known[~np.isnan(known)].tolist()

    def chosen(self, growing: Growing, column: int, left: set[int], to: tuple[int, int], missing: int) -> int:
        """Splits by exact values; every other one counts as missing."""
        runs = []
        for code, value in sorted(enumerate(self.values[column]), key=lambda item: item[1]):
            runs += [(float(np.nextafter(value, -np.inf)), missing), (value, to[0] if code in left else to[1])]
        return growing.choose(column, runs, missing, missing)
