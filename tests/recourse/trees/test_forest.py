from __future__ import annotations

import numpy as np
import pytest
from recourse_models.forests import BINARY, LABELS, LIBRARIES, THREE, X, at_thresholds, fitted, own_score

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.trees.forest import Forest, Reading
from safexplain.recourse.trees.tree import below_float32, up_to_float32


@pytest.mark.parametrize("library", LIBRARIES)
def test_scores_and_decisions_are_the_librarys_own_at_every_threshold(library):
    rng = np.random.default_rng(1)
    for name, model, x, y in LIBRARIES[library]():
        model = fitted(model, x, y)
        for wanted, label in enumerate(model.classes_):
            forest = Forest.of(model, favourable=label)
            rows = np.vstack([x, at_thresholds(forest, x, rng), at_thresholds(forest, x, rng)])
            score, decided = forest.score(rows), forest.decide(rows)
            np.testing.assert_array_equal(score >= 0, decided, err_msg=name)
            np.testing.assert_allclose(score, own_score(model, rows, wanted), rtol=1e-6, atol=1e-6, err_msg=name)


def test_boosters_are_read_like_their_classifiers():
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    for model in (xgboost.XGBClassifier(n_estimators=5), lightgbm.LGBMClassifier(n_estimators=5, verbose=-1)):
        for y in (BINARY, THREE):
            model.fit(X, y)
            booster = model.get_booster() if hasattr(model, "get_booster") else model.booster_
            whole, inner = Forest.of(model, favourable=1), Forest.of(booster, favourable=1)
            np.testing.assert_array_equal(whole.score(X), inner.score(X))
            np.testing.assert_array_equal(whole.decide(X), inner.decide(X))


def test_early_stopping_counts():
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    noise = np.random.default_rng(0).integers(0, 2, len(X))
    model = xgboost.XGBClassifier(n_estimators=40, early_stopping_rounds=2).fit(
        X, noise, eval_set=[(X[::-1], noise)], verbose=False
    )
    assert len(Forest.of(model).ensemble.trees) < 40
    np.testing.assert_allclose(Forest.of(model).score(X), model.predict(X, output_margin=True), atol=1e-6)
    model = lightgbm.LGBMClassifier(n_estimators=40, verbose=-1)
    model.fit(X, noise, eval_X=X[::-1], eval_y=noise, callbacks=[lightgbm.early_stopping(2, verbose=False)])
    assert len(Forest.of(model).ensemble.trees) < 40
    np.testing.assert_allclose(Forest.of(model).score(X), model.predict(X, raw_score=True), atol=1e-6)


def test_ties_go_where_the_library_lets_them_go():
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(2, random_state=0, max_depth=1, max_features=1).fit(X, BINARY)
    for tree in model.estimators_:  # one says .75, the other .25, for some rows
        tree.tree_.value[:] = np.where(tree.tree_.value > 0.5, 0.75, 0.25)
    for label in (0, 1):
        forest = Forest.of(model, favourable=label)
        tied = model.predict_proba(X)[:, 0] == 0.5
        assert tied.any()
        np.testing.assert_array_equal(forest.score(X) >= 0, model.predict(X) == label)
        assert ((forest.score(X)[tied] >= 0) == (label == 0)).all()


def test_the_greatest_float64_below_a_float32_threshold_is_exact():
    rng = np.random.default_rng(0)
    limits = np.concatenate([rng.normal(size=500) * 10.0 ** rng.integers(-40, 38, 500), [0.0, -0.0, 1.0, 2.0**-149]])
    for greatest, below in (
        (up_to_float32(limits), lambda v: v.astype(np.float32) <= limits),
        (below_float32(limits), lambda v: v.astype(np.float32) < limits.astype(np.float32)),
    ):
        with np.errstate(under="ignore"):
            assert below(greatest).all()
            assert not below(np.nextafter(greatest, np.inf)).any()


@pytest.mark.parametrize("scale", [1.0, 3.7, 1e5, 1e-6])
def test_a_forest_of_scaled_columns_is_exact_on_the_table(scale):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    rng = np.random.default_rng(0)
    table = scale * X + 1000 * scale
    for scaler in (StandardScaler(), MinMaxScaler()):
        pipe = make_pipeline(scaler, RandomForestClassifier(5, random_state=0)).fit(table, BINARY)
        if isinstance(scaler, StandardScaler):
            readings = [Reading(at, pipe[0].scale_[at], pipe[0].mean_[at]) for at in range(6)]
        else:
            readings = [
                Reading(at, map=lambda v, at=at, by=pipe[0]: v * by.scale_[at] + by.min_[at]) for at in range(6)
            ]
        forest = Forest.of(pipe[-1]).in_units(readings, 6, lambda rows, pipe=pipe: pipe.predict(rows) == 1)
        rows = np.vstack([table, at_thresholds(forest, table, rng)])
        np.testing.assert_array_equal(forest.score(rows) >= 0, pipe.predict(rows) == 1)
        np.testing.assert_array_equal(forest.score(rows) >= 0, forest.decide(rows))


def test_states_of_the_table_stand_for_codes_special_values_and_missing_ones():
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 4, len(X))  # 0, 1: a number; 2: -7; 3: missing
    jobs = rng.integers(0, 3, len(X))
    numbers = X[:, 0] * 2 + 40
    inner = np.column_stack([np.where(kinds < 2, (numbers - 40) / 2, np.where(kinds == 2, -7.0, np.nan)), jobs])
    y = ((kinds == 2) | (inner[:, 0] > 0.5)) ^ (jobs == 1)
    model = HistGradientBoostingClassifier(max_iter=10).fit(inner, y)
    table = np.column_stack([np.where(kinds < 2, numbers, 40.0), kinds == 2, kinds == 3, np.eye(3)[jobs]])
    readings = [
        Reading(0, scale=2.0, offset=40.0, states=((1, -7.0), (2, np.nan))),
        Reading(states=((3, 0.0), (4, 1.0), (5, 2.0))),
    ]
    forest = Forest.of(model).in_units(readings, 6, lambda rows: np.ones(len(rows), dtype=bool))
    np.testing.assert_array_equal(forest.score(table.astype(float)), Forest.of(model).score(inner))
    with pytest.raises(ConfigurationError, match="expected 2, one a column of the model, got 1"):
        Forest.of(model).in_units(readings[:1], 6, forest.decide)


def test_names_of_the_training_table_are_known():
    import pandas
    from sklearn.ensemble import RandomForestClassifier

    names = list("abcdef")
    model = RandomForestClassifier(3, random_state=0).fit(pandas.DataFrame(X, columns=names), LABELS)
    forest = Forest.of(model, favourable="good")
    assert forest.names == tuple(names)
    np.testing.assert_array_equal(forest.decide(X), forest.score(X) >= 0)


def test_what_cannot_be_read_is_named():
    from sklearn.ensemble import (
        AdaBoostClassifier,
        BaggingClassifier,
        GradientBoostingClassifier,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(ConfigurationError, match=r"RandomForestClassifier is not fitted; call fit"):
        Forest.of(RandomForestClassifier())
    with pytest.raises(ConfigurationError, match=r"RandomForestRegressor cannot be read: it predicts numbers"):
        Forest.of(RandomForestRegressor().fit(X, BINARY))
    for model in (AdaBoostClassifier(), BaggingClassifier()):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Forest.of(model)
    with pytest.raises(ConfigurationTypeError, match=r"expected a tree ensemble .* got LogisticRegression"):
        Forest.of(LogisticRegression())
    with pytest.raises(ConfigurationError, match="predicts 2 outputs"):
        Forest.of(RandomForestClassifier(2).fit(X, np.column_stack([BINARY, THREE])))
    with pytest.raises(ConfigurationError, match="starts from LogisticRegression"):
        Forest.of(GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()).fit(X, BINARY))
    three = RandomForestClassifier(2, random_state=0).fit(X, THREE)
    with pytest.raises(ConfigurationError, match=r"knows 3 classes; pass the wanted one of 0, 1, 2"):
        Forest.of(three)
    with pytest.raises(ConfigurationError, match=r"no class 'yes'; expected one of 0, 1, 2"):
        Forest.of(three, favourable="yes")
    with pytest.raises(ConfigurationError, match="one class only"):
        Forest.of(RandomForestClassifier(2).fit(X, np.zeros(len(X))))
    with pytest.raises(InputError, match=r"expected shape \(n, 6\)"):
        Forest.of(three, favourable=0).score(X[:, :4])


def test_what_cannot_be_read_of_the_boosters_is_named():
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    with pytest.raises(ConfigurationError, match="XGBRegressor cannot be read"):
        Forest.of(xgboost.XGBRegressor(n_estimators=2).fit(X, X[:, 0]))
    with pytest.raises(ConfigurationError, match="LGBMRegressor cannot be read"):
        Forest.of(lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, X[:, 0]))
    for model in (xgboost.XGBClassifier(), lightgbm.LGBMClassifier()):
        with pytest.raises(ConfigurationError, match="is not fitted"):
            Forest.of(model)
    with pytest.raises(ConfigurationError, match="takes -999 for missing"):
        Forest.of(xgboost.XGBClassifier(n_estimators=2, missing=-999).fit(X, BINARY))
    with pytest.raises(ConfigurationError, match="no trees"):
        Forest.of(xgboost.XGBClassifier(n_estimators=2, booster="gblinear").fit(X, BINARY))
    with pytest.raises(ConfigurationError, match="objective rank:pairwise"):
        Forest.of(xgboost.train({"objective": "rank:pairwise"}, xgboost.DMatrix(X, BINARY), 2))
    with pytest.raises(ConfigurationError, match="linear_tree=True"):
        Forest.of(lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, linear_tree=True).fit(X, BINARY))
    with pytest.raises(ConfigurationError, match="objective regression"):
        Forest.of(lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, X[:, 0]).booster_)
