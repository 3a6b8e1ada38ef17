"""Fitted tree ensembles of every library, and rows that lie where rounding decides."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
BINARY = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
THREE = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-0.7, 0.5])
LABELS = np.where(BINARY == 1, "good", "bad")
MISSING = np.where(RNG.random(X.shape) < 0.15, np.nan, X)
ZEROS = np.where(RNG.random(X.shape) < 0.3, 0.0, X)
CODES = X.copy()
CODES[:, 3], CODES[:, 4] = RNG.integers(0, 12, len(X)), RNG.integers(0, 40, len(X))
BY_CODE = (np.isin(CODES[:, 3], [0, 4, 5, 9]) ^ (CODES[:, 0] > 0)).astype(int)


def scikit():
    """Name -> model, table, labels."""
    from sklearn import ensemble, tree

    yield "stump", tree.DecisionTreeClassifier(max_depth=1), X, BINARY
    for name, labels in (("", BINARY), (", three classes", THREE), (", labels", LABELS)):
        yield f"tree{name}", tree.DecisionTreeClassifier(max_depth=5, random_state=0), X, labels
        yield f"extra tree{name}", tree.ExtraTreeClassifier(random_state=0), X, labels
        yield f"forest{name}", ensemble.RandomForestClassifier(10, random_state=0), X, labels
        yield f"extra trees{name}", ensemble.ExtraTreesClassifier(8, max_depth=7, random_state=0), X, labels
        yield f"gradient{name}", ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0), X, labels
        yield f"histogram{name}", ensemble.HistGradientBoostingClassifier(max_iter=8, random_state=0), X, labels
    yield "forest, missing", ensemble.RandomForestClassifier(8, random_state=0), MISSING, THREE
    yield "histogram, missing", ensemble.HistGradientBoostingClassifier(max_iter=8), MISSING, BINARY
    yield "gradient from zero", ensemble.GradientBoostingClassifier(n_estimators=8, init="zero"), X, BINARY
    yield "exponential loss", ensemble.GradientBoostingClassifier(n_estimators=8, loss="exponential"), X, BINARY
    by_code = ensemble.HistGradientBoostingClassifier(max_iter=8, categorical_features=[3, 4])
    yield "histogram, categories", by_code, CODES, BY_CODE


def xgboost():
    """Name -> model, table, labels."""
    library = pytest.importorskip("xgboost")

    def model(**options):
        return library.XGBClassifier(n_estimators=8, n_jobs=1, **options)

    for name, labels in (("", BINARY), (", three classes", THREE)):
        yield f"xgboost{name}", model(), X, labels
        yield f"dart{name}", model(booster="dart", rate_drop=0.3), X, labels
        yield f"exact{name}", model(tree_method="exact", max_depth=3), X, labels
        yield f"several trees a round{name}", model(num_parallel_tree=3, max_depth=3), X, labels
    yield "base score", model(base_score=0.3), X, BINARY
    yield "softmax", model(objective="multi:softmax"), X, THREE
    yield "xgboost, missing", model(), MISSING, BINARY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated from XGBoost 3.4 on
        forest = library.XGBRFClassifier(n_estimators=8)
    yield "random forest", forest, X, BINARY
    types = ["q", "q", "q", "c", "c", "q"]
    for most in (4, 100):
        options = {"enable_categorical": True, "feature_types": types, "max_cat_to_onehot": most}
        yield f"xgboost, categories {most}", model(**options), CODES, BY_CODE


def lightgbm():
    """Name -> model, table, labels."""
    library = pytest.importorskip("lightgbm")

    def model(**options):
        return library.LGBMClassifier(n_estimators=8, verbose=-1, n_jobs=1, **options)

    class WithCategories(library.LGBMClassifier):
        def fit(self, x, y):
            return super().fit(x, y, categorical_feature=[3, 4])

    for name, labels in (("", BINARY), (", three classes", THREE), (", labels", LABELS)):
        yield f"lightgbm{name}", model(), ZEROS, labels
        yield f"lightgbm dart{name}", model(boosting_type="dart"), X, labels
        yield f"zeros missing{name}", model(zero_as_missing=True), ZEROS, labels
        bagged = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
        yield f"averaged{name}", model(**bagged), X, labels
    yield "one against all", model(objective="multiclassova"), X, THREE
    yield "lightgbm, missing", model(), MISSING, BINARY
    few = {"min_data_per_group": 5, "cat_smooth": 1.0, "cat_l2": 1.0}
    yield "lightgbm, categories", WithCategories(n_estimators=8, verbose=-1, n_jobs=1, **few), CODES, BY_CODE


LIBRARIES = {"scikit-learn": scikit, "xgboost": xgboost, "lightgbm": lightgbm}


def fitted(model, x, y):
    """The model, trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y)


def own_score(model, rows, wanted):
    """What the library itself reports: the lead of the wanted class over the best other one."""
    name = type(model).__mro__[0].__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("XGB"):
            found = model.predict(rows, output_margin=True)
        elif hasattr(model, "booster_"):
            found = model.predict(rows, raw_score=True)
            found = found / (model.n_estimators if model.boosting_type == "rf" else 1)
        elif hasattr(model, "decision_function"):
            found = model.decision_function(rows)
        else:
            found = model.predict_proba(rows)
    found = np.asarray(found, dtype=float)
    if found.ndim == 1:
        return found if wanted == 1 else -found
    return found[:, wanted] - np.delete(found, wanted, axis=1).max(axis=1)


def at_thresholds(forest, rows, rng, count=300):
    """Rows (count, d) with values at thresholds and at the float64 and float32 numbers next to them."""
    rows = rows[rng.integers(len(rows), size=count)].copy()
    for tree in forest.ensemble.trees:
        for column, threshold in zip(tree.column, tree.threshold, strict=True):
            if column < 0 or not np.isfinite(threshold):
                continue
            single = np.float32(threshold)
            around = [threshold, np.nextafter(threshold, np.inf), np.nextafter(threshold, -np.inf), float(single)]
            around += [float(np.nextafter(single, np.float32(side))) for side in (-np.inf, np.inf)]
            rows[rng.integers(count), column] = rng.choice(around)
    return rows
