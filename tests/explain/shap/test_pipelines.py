"""A Pipeline is explained in the columns that the user has: the values of all that is made of one are added up."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from safexplain import GaussianNoise, HardenedTreeExplainer, Hardening
from safexplain.columns import Columns
from safexplain.errors import InputError
from safexplain.explain.shap import HardenedLinearExplainer, MixedColumnsError
from safexplain.outputs import EstimatorModule

pytest.importorskip("shap")
from safexplain.explain.libraries import load

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, 120).astype(float),
        "job": RNG.choice(["clerk", "cook", "judge", "smith"], 120, p=[0.5, 0.3, 0.15, 0.05]),
        "debt": RNG.exponential(1000, 120).round(),
        "town": RNG.choice(["north", "south"], 120),
    }
)
Y = (FRAME["age"] + 30 * (FRAME["job"] == "cook") + RNG.normal(0, 8, 120) > 55).astype(int).to_numpy()
GAPS = FRAME.assign(debt=FRAME["debt"].where(np.arange(120) % 5 > 0))
TEXTS, NUMBERS = ["job", "town"], ["age", "debt"]
NONE = Hardening.none()

# What comes before the last step, and for each column that it makes, the user's column, by hand.
BEFORE: dict[str, tuple[Any, str]] = {
    "texts by their type, numbers scaled": (
        make_column_transformer(
            (OneHotEncoder(), make_column_selector(dtype_exclude=np.number)), remainder=StandardScaler()
        ),
        "jjjjtt" + "ad",
    ),
    "one category dropped, rare ones together": (
        make_column_transformer((OneHotEncoder(drop="first", min_frequency=28), TEXTS), remainder="passthrough"),
        "jj" + "t" + "ad",
    ),
    "places of categories, and a column left out": (
        make_column_transformer(("passthrough", ["debt"]), (OrdinalEncoder(), TEXTS)),
        "djt",
    ),
    "missing numbers filled in and marked, columns by slices and masks": (
        make_column_transformer(
            (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), slice(2, 3)),
            (OneHotEncoder(sparse_output=False), [False, True, False, True]),
            (FunctionTransformer(np.log1p), ["age"]),
        ),
        "dd" + "jjjjtt" + "a",
    ),
    "several steps one after the other": (
        make_pipeline(
            make_column_transformer(
                (OneHotEncoder(), ["town"]), (KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf"), NUMBERS)
            ),
            VarianceThreshold(),
        ),
        "tt" + "aaaa" + "dddd",
    ),
    "anything at all of a single column": (
        make_column_transformer(
            (CountVectorizer(analyzer="char", ngram_range=(1, 5)), "job"),
            (PolynomialFeatures(15), ["age"]),
            (StandardScaler(), ["debt"]),
        ),
        "j" * 51 + "a" * 16 + "d",
    ),
}


def audited(before: Any, last: Any, frame: pd.DataFrame = FRAME) -> tuple[Pipeline, EstimatorModule, torch.Tensor]:
    """A fitted Pipeline, as a module, and its rows as codes."""
    fitted = make_pipeline(before, last).fit(frame, Y)
    columns = Columns.of(frame)
    return fitted, EstimatorModule(fitted, columns=columns), torch.from_numpy(columns.encode(frame))


def by_hand(values: Any, origins: str) -> Any:
    """(n, p) values added up for the columns a, j, d, t."""
    return values @ np.array([[origin == column for column in "ajdt"] for origin in origins], dtype=float)


@pytest.mark.parametrize("name", BEFORE)
def test_the_values_of_a_column_are_the_sum_over_all_that_is_made_of_it(name):
    before, origins = BEFORE[name]
    frame = GAPS if "missing" in name else FRAME
    fitted, module, x = audited(before, RandomForestClassifier(5, random_state=0), frame)
    target = torch.arange(len(x)) % 2
    inside = fitted[:-1].transform(frame)
    inside = inside.toarray() if hasattr(inside, "toarray") else inside
    native = load("shap").TreeExplainer(fitted[-1]).shap_values(inside)
    expected = by_hand(native[np.arange(len(x)), :, target], origins)
    found = HardenedTreeExplainer.catalogued()(module, hardening=NONE).attribute(x, target=target)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_row_has_the_answer_that_it_has_alone_and_codes_between_two_categories_have_one():
    _, module, x = audited(BEFORE["texts by their type, numbers scaled"][0], RandomForestClassifier(5, random_state=0))
    noise = Hardening(noise=GaussianNoise(0.1, key=b"the key of the service, as bytes"))
    for hardening in (NONE, Hardening.recommended(), noise):
        asked = HardenedTreeExplainer.catalogued()(module, hardening=hardening)
        every = asked.attribute(x, target=module(x).argmax(1))
        alone = torch.cat([asked.attribute(one[None], target=module(one[None]).argmax(1)) for one in x[:5]])
        assert torch.equal(every[:5], alone)
    asked = HardenedTreeExplainer.catalogued()(module, hardening=NONE)
    near = x[:8] + torch.tensor([0.0, 0.4, 0.0, -0.4])
    target = torch.ones(8, dtype=torch.long)
    assert torch.equal(asked.attribute(near, target=target), asked.attribute(x[:8], target=target))
    assert asked.attribute(near * 100, target=target).isfinite().all()


@pytest.mark.parametrize("mixing", [PCA(2), FunctionTransformer(lambda x: x)])
def test_a_step_that_mixes_columns_is_named(mixing):
    fitted = make_pipeline(StandardScaler(), mixing, RandomForestClassifier(3, random_state=0))
    module = EstimatorModule(fitted.fit(FRAME[NUMBERS].to_numpy(), Y))
    with pytest.raises(MixedColumnsError, match=f"{type(mixing).__name__} combines several of your columns"):
        HardenedTreeExplainer.catalogued()(module, hardening=NONE)


def test_a_forest_sends_missing_numbers_where_it_learned_to():
    forest = RandomForestClassifier(5, random_state=0).fit(GAPS[NUMBERS], Y)
    module = EstimatorModule(forest, columns=Columns.of(GAPS[NUMBERS]))
    x = torch.from_numpy(Columns.of(GAPS[NUMBERS]).encode(GAPS[NUMBERS]))
    found = HardenedTreeExplainer.catalogued()(module, hardening=NONE).attribute(x, target=torch.ones(120).long())
    base = module(x)[:, 1] - found.sum(1)
    assert float(base.max() - base.min()) < 1e-6, "the values and one base value add up to the outputs"


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosters_are_asked_for_their_own_values(library):
    native: Any = pytest.importorskip(library)
    if library == "xgboost":
        last = native.XGBClassifier(n_estimators=4, n_jobs=1)
    else:
        last = native.LGBMClassifier(n_estimators=4, n_jobs=1, verbose=-1)
    before = BEFORE["texts by their type, numbers scaled"][0]
    _, module, x = audited(before, last)
    of = HardenedTreeExplainer.catalogued()
    found = of(module, hardening=NONE).attribute(x, target=torch.ones(120).long()).sum(1)
    base = module(x)[:, 1].logit() - found
    assert float(base.max() - base.min()) < 1e-4
    assert of.explains(module) == "log odds"


@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_model_is_explained_against_zeros_or_the_means_of_public_rows(classes):
    y = np.digitize(FRAME["age"], [40, 60][: classes - 1])
    before = BEFORE["texts by their type, numbers scaled"][0]
    fitted = make_pipeline(before, LogisticRegression()).fit(FRAME, y)
    columns = Columns.of(FRAME)
    module, x = EstimatorModule(fitted, columns=columns), torch.from_numpy(columns.encode(FRAME))
    inside = fitted[:-1].transform(FRAME)
    inside = inside.toarray() if hasattr(inside, "toarray") else inside
    coefficients = fitted[-1].coef_ if classes > 2 else np.concatenate([-fitted[-1].coef_, fitted[-1].coef_])
    target = torch.arange(120) % classes
    for public, mean in ((None, 0.0), (x[:30].numpy(), inside[:30].mean(0))):
        of = HardenedLinearExplainer.catalogued(public)
        found = of(module, hardening=NONE).attribute(x, target=target)
        expected = by_hand((inside - mean) * coefficients[target], "jjjjttad")
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert of.explains(module) == "log odds"


def test_what_cannot_be_read_is_refused_by_its_name():
    network = EstimatorModule(KNeighborsClassifier().fit(FRAME[NUMBERS].to_numpy(), Y))
    with pytest.raises(InputError, match="KNeighborsClassifier"):
        HardenedTreeExplainer.catalogued()(network, hardening=NONE)
    with pytest.raises(InputError, match="expected a linear model, got KNeighborsClassifier"):
        HardenedLinearExplainer.catalogued()(network, hardening=NONE)
    trees = EstimatorModule(HistGradientBoostingClassifier(max_iter=3).fit(FRAME[NUMBERS].to_numpy(), Y))
    with pytest.raises(InputError, match="expected a linear model, got HistGradientBoostingClassifier"):
        HardenedLinearExplainer.catalogued()(trees, hardening=NONE)
