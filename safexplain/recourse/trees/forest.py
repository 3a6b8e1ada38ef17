"""A fitted tree ensemble as a score: at least 0 exactly where the library's own `predict` gives the wanted class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.result import Floats
from safexplain.recourse.trees import boosters, scikit
from safexplain.recourse.trees.tree import LEAF, Ensemble, Growing, Tree

OTHERWISE = 1e-12
"""Size of the score where the library decides otherwise than its sign says, by rounding or at a tie."""
_NEARBY = 64
"""Float64 numbers looked at on each side of a threshold's image, before bisection."""


@dataclass(frozen=True, eq=False)
class Forest:
    """An additive tree ensemble and the class that is wanted.

    The score of a row is the lead of the wanted class over the best other one: of boosted trees in logits (of two
    classes the margin, with its sign), of averaged trees in probability. Where it is zero, or misses zero by rounding,
    it follows the library's decision: 0 or `-OTHERWISE`.

    Args:
        ensemble: what was read from the fitted model.
        wanted: number of the favourable class.
        decide: (n, D) rows -> (n,) bool, by the model itself, that they are favourable; answers are held to it.
    """

    ensemble: Ensemble
    wanted: int
    decide: Callable[[Floats], NDArray[np.bool_]]

    @classmethod
    def of(cls, model: Any, *, favourable: Any = None) -> Forest:
        """A fitted model, recognised by its class's name and module; its library is not imported.

        Args:
            model: scikit-learn's DecisionTree, ExtraTree, RandomForest, ExtraTrees, GradientBoosting or
                HistGradientBoosting classifier, XGBoost's or LightGBM's classifier or Booster.
            favourable: the wanted class as `predict` gives it; None: of two classes the second.

        Raises:
            ConfigurationTypeError: no tree ensemble.
            ConfigurationError: not fitted, a class that it does not know, or a kind of tree that cannot be represented.
        """
        ensemble = _read(model)
        wanted = _wanted(ensemble.classes, favourable)
        label = ensemble.classes[wanted]

        def decide(rows: Floats) -> NDArray[np.bool_]:
            return np.asarray(ensemble.predict(rows) == label)

        return cls(ensemble, wanted, decide)

    @staticmethod
    def reads(model: Any) -> bool:
        """Whether `of` knows models of this kind, fitted or not."""
        return _kind(model) is not None

    @property
    def width(self) -> int:
        """Number of columns d."""
        return self.ensemble.width

    @property
    def names(self) -> tuple[str, ...] | None:
        """Of the columns that the model was trained on; None: it does not say."""
        return self.ensemble.names

    @property
    def weights(self) -> Floats:
        """(r, k) rows that turn what trees add up to into what each other class is beaten by."""
        return leads(len(self.ensemble.base), len(self.ensemble.classes), self.wanted)

    def sums(self, rows: Floats) -> NDArray[np.floating[Any]]:
        """(n, k) what the trees add up to for rows (n, d), in the library's order and precision."""
        total = np.tile(self.ensemble.base, (len(rows), 1))
        for tree in self.ensemble.trees:
            total += tree.value[tree.leaf(rows)]
        return total

    def score(self, rows: Floats) -> Floats:
        """(n,) scores of rows (n, d); NaN stands for missing values."""
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InputError(f"x: expected shape (n, {self.width}), got {rows.shape}")
        sums = self.sums(rows)
        lead = (self.ensemble.scores(sums).astype(np.float64) @ self.weights.T).min(axis=1)
        favourable = self.ensemble.decide(sums) == self.wanted
        score = np.where(favourable, np.maximum(lead, 0.0), np.where(lead >= 0, -OTHERWISE, lead))
        return np.asarray(score, dtype=np.float64)

    def in_units(
        self, readings: Sequence[Reading], width: int, decide: Callable[[Floats], NDArray[np.bool_]]
    ) -> Forest:
        """The same forest as a function of a table whose columns the model's columns are computed from.

        Args:
            readings: one for each of the model's columns, how it is read from the table.
            width: number of columns of the table.
            decide: (n, width) rows of the table -> (n,) bool, whether the whole pipeline decides favourably.

        Raises:
            ConfigurationError: not one reading a column.
        """
        if len(readings) != self.width:
            raise ConfigurationError(f"readings: expected {self.width}, one a column of the model, got {len(readings)}")
        trees = tuple(_translated(tree, readings) for tree in self.ensemble.trees)
        codes = tuple(
            sorted({readings[column].column for column in self.ensemble.categorical if readings[column].column >= 0})
        )
        ensemble = replace(self.ensemble, trees=trees, width=width, names=None, categorical=codes)
        return replace(self, ensemble=ensemble, decide=decide)


def leads(outputs: int, classes: int, wanted: int) -> Floats:
    """(r, k) what turns k outputs into the leads of the wanted class over each other one."""
    if outputs == 1:
        return np.array([[1.0 if wanted == 1 else -1.0]])
    lead = np.delete(-np.eye(classes), wanted, axis=0)
    lead[:, wanted] = 1.0
    return lead


@dataclass(frozen=True)
class Reading:
    """How a column of the model is computed from a row t of the table.

    By default (t[column] - offset) / scale, rounded after each step, as scikit-learn's StandardScaler does; or `map`,
    any rising function of t[column], applied to arrays. In the states that 0/1 columns of the table mark, it is that
    state's value instead: a category's code, a special value, NaN for a missing one.

    Args:
        column: of the table; -1: none, one of the states holds always.
        scale: positive.
        offset: what is subtracted before.
        map: (n,) values of the column -> (n,) values for the model, rising; instead of scale and offset.
        states: pairs of a 0/1 column of the table and the value where it is 1.
    """

    column: int = -1
    scale: float = 1.0
    offset: float = 0.0
    map: Callable[[Floats], Floats] | None = None
    states: tuple[tuple[int, float], ...] = ()

    def value(self, values: Floats) -> Floats:
        """(n,) for the model, of values (n,) of the column."""
        if self.map is not None:
            return np.asarray(self.map(values), dtype=np.float64)
        if self.scale == 1.0 and self.offset == 0.0:
            return values
        return (values - self.offset) / self.scale

    def limits(self, thresholds: Floats) -> Floats:
        """(m,) greatest float64 values of the column whose image is at most each threshold (m,), by bisection."""
        if self.map is None and self.scale == 1.0 and self.offset == 0.0:
            return thresholds
        # float64 numbers in their order are the same as their bits, read as whole numbers, but for the sign
        low = np.full(len(thresholds), _ordered(np.array(-np.finfo(np.float64).max)))
        high = np.full(len(thresholds), _ordered(np.array(np.finfo(np.float64).max)))
        with np.errstate(over="ignore", invalid="ignore"):
            below = self.value(_number(low)) <= thresholds
            all_ = self.value(_number(high)) <= thresholds
            for _ in range(64):
                middle = (low >> 1) + (high >> 1) + (low & high & 1)
                inside = self.value(_number(middle)) <= thresholds
                low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return np.where(all_, np.inf, np.where(below, _number(low), -np.inf))


def _ordered(values: Floats) -> NDArray[np.int64]:
    bits = values.view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits - 0, bits)


def _number(ordered: NDArray[np.int64]) -> Floats:
    bits = np.where(ordered < 0, np.int64(-(2**63)) - ordered, ordered)
    return np.ascontiguousarray(bits).view(np.float64)


def _translated(tree: Tree, readings: Sequence[Reading]) -> Tree:
    """The tree on a table."""
    threshold = tree.threshold.copy()
    for column in np.unique(tree.column[tree.column != LEAF]).tolist():
        own = tree.column == column
        threshold[own] = readings[column].limits(tree.threshold[own])
    if not any(reading.states for reading in readings):
        columns = np.array([reading.column for reading in readings], dtype=np.intp)
        return replace(tree, threshold=threshold, column=np.where(tree.column == LEAF, LEAF, columns[tree.column]))
    growing = Growing(tree.value.shape[1])
    for node in range(len(tree.column)):  # numbered alike; splits over states come after them
        if tree.column[node] == LEAF:
            growing.leaf(tree.value[node])
        else:
            at = readings[tree.column[node]].column
            missing = bool(tree.missing_left[node])
            growing.split(max(at, 0), threshold[node], int(tree.left[node]), int(tree.right[node]), missing)
    for node in np.flatnonzero(tree.column != LEAF).tolist():
        reading = readings[tree.column[node]]
        left, right = int(tree.left[node]), int(tree.right[node])

        def side(value: float, node: int = node, left: int = left, right: int = right) -> int:
            goes = tree.missing_left[node] if np.isnan(value) else value <= tree.threshold[node]
            return left if goes else right

        if reading.column >= 0:
            missing = bool(tree.missing_left[node])
            usual = growing.split(reading.column, threshold[node], left, right, missing)
        else:  # the side of most states is told by the others not holding: as few splits as there can be
            usual = max((left, right), key=[side(value) for _, value in reading.states].count)
        last = usual
        for state, value in reading.states:
            target = side(value)
            last = last if target == usual else growing.split(state, 0.5, last, target, False)
        growing.replace(node, last)
    return growing.tree(0, tree.value.dtype)


def _kind(model: Any) -> tuple[str, str] | None:
    """Library and class of a model that can be read; subclasses count."""
    for parent in type(model).__mro__:
        library, name = parent.__module__.split(".")[0], parent.__name__
        if library == "sklearn" and name in (*scikit.FORESTS, *scikit.TREES, scikit.GRADIENT, scikit.HISTOGRAM):
            return library, name
        if library == "xgboost" and name in ("XGBClassifier", "Booster"):
            return library, name
        if library == "lightgbm" and name in ("LGBMClassifier", "Booster"):
            return library, name
    return None


_OTHERS = {
    "Regressor": "it predicts numbers, not classes; train a classifier",
    "LGBMRanker": "it ranks; train a classifier",
    "XGBRanker": "it ranks; train a classifier",
    "AdaBoostClassifier": "its trees vote with weights; train a gradient boosting or a random forest",
    "BaggingClassifier": "each of its trees sees columns of its own; train a RandomForestClassifier",
    "IsolationForest": "it finds outliers; train a classifier",
    "CatBoostClassifier": "CatBoost is not read; train XGBoost, LightGBM or scikit-learn's histogram boosting",
}


def _read(model: Any) -> Ensemble:
    kind = _kind(model)
    if kind is None:
        name = type(model).__name__
        why = next((said for part, said in _OTHERS.items() if name.endswith(part)), None)
        if why is not None:
            raise ConfigurationError(f"model: {name} cannot be read: {why}")
        raise ConfigurationTypeError(
            f"model: expected a tree ensemble of scikit-learn, XGBoost or LightGBM for classification, got {name}"
        )
    library, name = kind
    if library == "sklearn":
        return scikit.read(model, name)
    return boosters.read_xgboost(model, name) if library == "xgboost" else boosters.read_lightgbm(model, name)


def _wanted(classes: tuple[Any, ...], favourable: Any) -> int:
    if len(classes) < 2:
        raise ConfigurationError(f"model: it knows one class only ({classes[0]!r}), so nothing can change")
    if favourable is None:
        if len(classes) > 2:
            raise ConfigurationError(
                f"favourable: the model knows {len(classes)} classes; pass the wanted one of"
                f" {', '.join(map(repr, classes))}"
            )
        return 1
    found = [number for number, label in enumerate(classes) if label == favourable]
    if not found:
        raise ConfigurationError(
            f"favourable: the model knows no class {favourable!r}; expected one of {', '.join(map(repr, classes))}"
        )
    return found[0]
