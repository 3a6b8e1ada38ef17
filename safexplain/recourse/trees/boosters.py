"""Reading XGBoost's and LightGBM's classifiers, from the text that they save themselves as."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError
from safexplain.recourse.result import Floats
from safexplain.recourse.trees.tree import Ensemble, Growing, Ints, Tree, argmax, below_float32, same

ZERO = float(np.float32(1e-35))
"""Greatest number that LightGBM takes for zero."""


def read_xgboost(model: Any, kind: str) -> Ensemble:
    """A fitted `XGBClassifier`, `XGBRFClassifier` or `Booster` (from version 1.6 on).

    Raises:
        ConfigurationError: not fitted, not trees, or another objective than classification by logits.
    """
    booster = model
    if kind != "Booster":
        if not hasattr(model, "n_classes_"):
            raise ConfigurationError(f"model: this {kind} is not fitted; call fit(X, y) first")
        booster = model.get_booster()
        given = model.missing
        if given is not None and not np.isnan(given):
            raise ConfigurationError(
                f"model: this {kind} takes {given:g} for missing; train it with NaN there and missing=nan"
            )
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    objective = learner["objective"]["name"]
    if objective not in ("binary:logistic", "multi:softprob", "multi:softmax"):
        raise ConfigurationError(
            f"model: XGBoost's objective {objective} is no classification by logits; train with binary:logistic or"
            " multi:softprob"
        )
    boosted = learner["gradient_booster"]
    weights = boosted.get("weight_drop")
    boosted = boosted.get("gbtree", boosted)
    weights = weights or boosted.get("model", {}).get("weight_drop")  # where XGBoost 3.4 keeps them
    if "model" not in boosted or "trees" not in boosted["model"]:
        raise ConfigurationError(f"model: booster {boosted['name']!r} has no trees; a linear one is a linear model")
    classes = max(int(learner["learner_model_param"]["num_class"]), 2)
    outputs = classes if objective.startswith("multi") else 1
    parameters = learner["learner_model_param"]
    base = np.array(json.loads(_listed(parameters["base_score"])), dtype=np.float32)
    base = np.broadcast_to(base, (outputs,)).copy()
    if outputs == 1:
        base = -np.log(np.float32(1.0) / base - np.float32(1.0))
    if parameters.get("num_target", "1") not in ("0", "1"):
        raise ConfigurationError("model: XGBoost with several targets; train one classifier for each")
    entries, info = boosted["model"]["trees"], boosted["model"]["tree_info"]
    last = _last_tree(model, booster, kind, boosted["model"], len(entries), outputs)
    weights = [np.float32(weight) for weight in weights] if weights else [np.float32(1.0)] * len(entries)
    trees = tuple(
        _xgboost_tree(entry, output, outputs, weight)
        for entry, output, weight in zip(entries[:last], info, weights, strict=False)
    )
    categorical = {entry["split_indices"][node] for entry in entries for node in entry["categories_nodes"]}
    names = learner.get("feature_names") or None

    def predict(rows: Floats) -> NDArray[Any]:
        rounds = (0, last * _rounds_of(boosted["model"], len(entries)) // max(len(entries), 1))
        found = booster.inplace_predict(rows, iteration_range=rounds, validate_features=False)
        if objective == "multi:softmax":
            return np.asarray(found).astype(np.intp)
        return np.asarray(found.argmax(axis=1) if outputs > 1 else (found > 0.5).astype(np.intp))

    return Ensemble(
        trees,
        width=int(parameters["num_feature"]),
        base=base,
        decide=argmax if outputs > 1 else _above_half,
        scores=same,
        classes=tuple(range(classes)),
        predict=predict,
        names=None if names is None else tuple(names),
        categorical=tuple(sorted(categorical)),
    )


def _listed(text: str) -> str:
    return text if text.startswith("[") else f"[{text}]"


def _rounds_of(model: Any, trees: int) -> int:
    indptr = model.get("iteration_indptr")
    return len(indptr) - 1 if indptr else trees


def _last_tree(model: Any, booster: Any, kind: str, saved: Any, trees: int, outputs: int) -> int:
    """How many trees `predict` uses: those up to the best round, where training stopped early."""
    if kind == "Booster" or getattr(model, "booster", None) == "dart" or model.early_stopping_rounds is None:
        return trees
    best = booster.attr("best_iteration")
    if best is None:
        return trees
    indptr = saved.get("iteration_indptr") or range(0, trees + 1, max(outputs, 1))
    return int(indptr[int(best) + 1])


def _xgboost_tree(entry: Any, output: int, outputs: int, weight: np.float32) -> Tree:
    growing = Growing(outputs)
    conditions = np.array(entry["split_conditions"], dtype=np.float32)
    limits = below_float32(conditions)
    left, right = entry["left_children"], entry["right_children"]
    default = entry["default_left"]
    for node in range(len(left)):
        if left[node] == -1:
            value = np.zeros(outputs, dtype=np.float32)
            value[output] = conditions[node] * weight
            growing.leaf(value)
        else:
            growing.split(
                entry["split_indices"][node], float(limits[node]), left[node], right[node], bool(default[node])
            )
    for node, start, size in zip(
        entry["categories_nodes"], entry["categories_segments"], entry["categories_sizes"], strict=True
    ):
        inside = set(entry["categories"][start : start + size])
        runs = [
            (float(below_float32(code)), right[node] if code - 1 in inside else left[node]) for code in _edges(inside)
        ]
        missing = left[node] if default[node] else right[node]
        growing.replace(node, growing.choose(entry["split_indices"][node], runs, left[node], missing))
    return growing.tree(0, np.float32)


def _edges(codes: set[int]) -> list[int]:
    """Numbers between which all codes, cut to whole numbers, are in the set, or none is; each ends a run."""
    return sorted({code for own in codes for code in (own, own + 1)})


def _above_half(sums: NDArray[np.floating[Any]]) -> Ints:
    """Whether the probability, in float32, is above a half."""
    one = np.float32(1.0)
    odds = np.exp(np.minimum(-sums[:, 0].astype(np.float32), np.float32(88.7)))
    return np.asarray(one / (odds + one) > np.float32(0.5), dtype=np.intp)


def read_lightgbm(model: Any, kind: str) -> Ensemble:
    """A fitted `LGBMClassifier` or `Booster` (from version 3 on).

    Raises:
        ConfigurationError: not fitted, linear trees, or another objective than classification.
    """
    booster = model
    if kind != "Booster":
        if getattr(model, "_Booster", None) is None:
            raise ConfigurationError(f"model: this {kind} is not fitted; call fit(X, y) first")
        booster = model.booster_
    saved = booster.dump_model()
    objective, *options = str(saved.get("objective", "")).split()
    if objective not in ("binary", "cross_entropy", "multiclass", "softmax", "multiclassova", "multiclass_ova", "ova"):
        raise ConfigurationError(
            f"model: LightGBM's objective {objective or 'of your own'} is no classification; train with binary or"
            " multiclass"
        )
    outputs = int(saved["num_tree_per_iteration"])
    entries = saved["tree_info"]
    share = len(entries) // outputs if saved.get("average_output") else 1
    trees = tuple(_lightgbm_tree(entry["tree_structure"], at % outputs, outputs) for at, entry in enumerate(entries))
    sigmoid = float(next((option.split(":")[1] for option in options if option.startswith("sigmoid:")), 1.0))
    classes = tuple(range(max(outputs, 2))) if kind == "Booster" else tuple(model.classes_.tolist())
    if kind != "Booster" and len(classes) == 1:
        raise ConfigurationError(f"model: this {kind} knows one class only, so nothing can change")
    own = outputs == 1 or objective in ("multiclassova", "multiclass_ova", "ova")

    def decide(sums: NDArray[np.floating[Any]]) -> Ints:
        sums = sums / share
        if outputs == 1:
            likely = 1.0 / (1.0 + np.exp(-sigmoid * sums[:, 0]))
            if kind == "Booster":
                return np.asarray(likely > 0.5, dtype=np.intp)
            return np.asarray(likely > 1.0 - likely, dtype=np.intp)
        if own:
            return argmax(1.0 / (1.0 + np.exp(-sigmoid * sums)))
        odds = np.exp(sums - sums.max(axis=1, keepdims=True))
        total = np.zeros(len(odds))
        for column in odds.T:
            total += column
        return argmax(odds / total[:, None])

    def predict(rows: Floats) -> NDArray[Any]:
        if kind != "Booster":
            return np.asarray(model.predict(rows, validate_features=False))
        found = booster.predict(rows)
        return np.asarray(found.argmax(axis=1) if outputs > 1 else (found > 0.5).astype(np.intp))

    names = saved["feature_names"]
    unnamed = names == [f"Column_{at}" for at in range(len(names))]
    return Ensemble(
        trees,
        width=int(saved["max_feature_idx"]) + 1,
        base=np.zeros(outputs),
        decide=decide,
        scores=lambda sums: sums / share,
        classes=classes,
        predict=predict,
        names=None if unnamed else tuple(names),
        categorical=tuple(sorted(_categorical_columns(entries))),
    )


def _categorical_columns(entries: Any) -> set[int]:
    found, waiting = set(), [entry["tree_structure"] for entry in entries]
    while waiting:
        node = waiting.pop()
        if "split_feature" in node:
            if node["decision_type"] == "==":
                found.add(int(node["split_feature"]))
            waiting += [node["left_child"], node["right_child"]]
    return found


def _lightgbm_tree(structure: Any, output: int, outputs: int) -> Tree:
    growing = Growing(outputs)
    numbers: dict[int, int] = {}
    waiting = [(structure, False)]
    while waiting:
        node, ready = waiting.pop()
        if "split_feature" not in node:
            if "leaf_coeff" in node or "leaf_features" in node:
                raise ConfigurationError(
                    "model: LightGBM with linear_tree=True has a linear model in each leaf, which is not supported;"
                    " train with linear_tree=False"
                )
            value = np.zeros(outputs)
            value[output] = node["leaf_value"]
            numbers[id(node)] = growing.leaf(value)
        elif not ready:
            waiting += [(node, True), (node["left_child"], False), (node["right_child"], False)]
        else:
            left, right = numbers[id(node["left_child"])], numbers[id(node["right_child"])]
            numbers[id(node)] = _lightgbm_split(growing, node, left, right)
    return growing.tree(numbers[id(structure)])


def _lightgbm_split(growing: Growing, node: Any, left: int, right: int) -> int:
    column, missing = int(node["split_feature"]), node["missing_type"]
    if node["decision_type"] == "==":
        inside = set(map(int, str(node["threshold"]).split("||")))
        runs = []
        for code in _edges(inside):
            # codes are cut towards zero: the first run ends at 1, and what is above -1 is 0
            end = float(np.nextafter(code, -np.inf)) if code else -1.0
            runs.append((end, left if code - 1 in inside else right))
        return growing.choose(column, runs, right, right)
    threshold, below = float(node["threshold"]), float(np.nextafter(-ZERO, -np.inf))
    if -ZERO <= threshold <= ZERO:  # numbers as small as that are read as 0
        threshold = ZERO if threshold >= 0 else below
    default = left if node["default_left"] else right
    if missing == "NaN":
        return growing.split(column, threshold, left, right, bool(node["default_left"]))
    if missing == "None":
        return growing.split(column, threshold, left, right, threshold >= 0.0)
    low = [(threshold, left), (below, right)] if threshold < below else [(below, left)]
    high = [(threshold, left)] if threshold > ZERO else []
    return growing.choose(column, [*low, (ZERO, default), *high], right, default)
