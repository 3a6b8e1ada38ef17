"""Pipelines of many kinds, taken apart: their answers are those of the pipeline itself."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import SelectKBest
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, Constraints, Preprocessing, search_recourse

NUMBERS = ["age", "income", "debt"]
SCALE = {"age": 10.0, "income": 10_000.0, "debt": 2_000.0, "job": 1.0, "education": 1.0}
JOBS = ["clerk", "manager", "doctor", "pilot"]
LEVELS = ["school", "college", "phd"]


def people(n=300, seed=0, holes=True):
    """Applicants: numbers, categories, levels, names that nobody reads, missing values; and who was approved."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "income": rng.lognormal(10, 0.6, n).round(2),
            "job": rng.choice(JOBS, n, p=[0.5, 0.3, 0.18, 0.02]),
            "education": rng.choice(LEVELS, n),
            "debt": rng.gamma(2, 2000, n).round(),
            "name": [f"person {i}" for i in range(n)],
        }
    )
    score = 5e-5 * frame.income + 0.02 * frame.age - 2e-4 * frame.debt + 1.5 * (frame.job == "doctor")
    score += frame.education.map({"school": 0.0, "college": 0.5, "phd": 1.0}) + rng.normal(0, 0.5, n)
    if holes:
        frame.loc[::17, "debt"] = np.nan
        frame.loc[::23, "job"] = np.nan
    return frame, np.where(score > score.median(), "good", "bad")


def imputed(*steps):
    return make_pipeline(SimpleImputer(strategy="median"), *steps)


def labels(encoder):
    return make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)


def prepared(numbers, jobs=None, education=None, **options):
    jobs = labels(OneHotEncoder(drop="first", handle_unknown="ignore")) if jobs is None else jobs
    education = OrdinalEncoder(categories=[LEVELS]) if education is None else education
    parts = [("num", numbers, NUMBERS), ("job", jobs, ["job"]), ("edu", education, ["education"])]
    return ColumnTransformer(parts, **options)


KINDS = {
    "standard": prepared(imputed(StandardScaler())),
    "minmax": prepared(imputed(MinMaxScaler())),
    "robust": prepared(imputed(RobustScaler())),
    "maxabs, dense output": prepared(imputed(MaxAbsScaler()), sparse_threshold=0),
    "without mean": prepared(imputed(StandardScaler(with_mean=False))),
    "scaled before filled": prepared(make_pipeline(StandardScaler(), SimpleImputer(strategy="mean"))),
    "marks what is missing": prepared(
        make_pipeline(SimpleImputer(strategy="constant", fill_value=-1, add_indicator=True), StandardScaler())
    ),
    "two encoders of one column": ColumnTransformer(
        [
            ("num", imputed(StandardScaler()), NUMBERS),
            ("a", labels(OneHotEncoder(drop="if_binary")), ["job"]),
            ("b", labels(OrdinalEncoder()), ["job"]),
            ("edu", OneHotEncoder(), ["education"]),
        ]
    ),
    "rare categories together": prepared(
        imputed(StandardScaler()), labels(OneHotEncoder(min_frequency=20, handle_unknown="infrequent_if_exist"))
    ),
    "missing is a category": prepared(imputed(StandardScaler()), OneHotEncoder()),
    "missing has a code": prepared(imputed(StandardScaler()), OrdinalEncoder(encoded_missing_value=-1)),
    "by target": prepared(imputed(StandardScaler()), labels(TargetEncoder(random_state=0))),
    "weights": prepared(imputed(StandardScaler()), transformer_weights={"num": 2.0, "job": 0.5}),
    "slices and masks": ColumnTransformer(
        [
            ("num", imputed(StandardScaler()), slice("age", "income")),
            ("debt", imputed("passthrough"), [False, False, False, False, True, False]),
            ("cat", labels(OneHotEncoder()), [2, 3]),
        ]
    ),
    "selectors": ColumnTransformer(
        [
            ("num", imputed(StandardScaler()), make_column_selector(dtype_include=np.number)),
            ("cat", labels(OneHotEncoder()), make_column_selector(pattern="job|education")),
            ("name", "drop", ["name"]),
        ]
    ),
    "passthrough and remainder": ColumnTransformer(
        [
            ("name", "drop", ["name"]),
            ("cat", labels(OneHotEncoder()), ["job", "education"]),
            ("age", "passthrough", ["age"]),
        ],
        remainder=imputed(StandardScaler()),
    ),
    "identity": prepared(imputed(FunctionTransformer(), "passthrough", StandardScaler())),
    "nested": make_pipeline(prepared(imputed(FunctionTransformer())), StandardScaler(with_mean=False)),
    "projected": make_pipeline(prepared(imputed(StandardScaler()), sparse_threshold=0), PCA(4, whiten=True)),
    "svd": make_pipeline(prepared(imputed(StandardScaler())), TruncatedSVD(4)),
    "selected": make_pipeline(prepared(imputed(StandardScaler())), SelectKBest(k=5)),
    "united": prepared(FeatureUnion([("a", imputed(StandardScaler())), ("b", imputed(PCA(2)))])),
    "frames inside": prepared(imputed(StandardScaler()), labels(OneHotEncoder(sparse_output=False))).set_output(
        transform="pandas"
    ),
}


def fitted(preparation, frame, approved):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, about training
        return Pipeline([("prep", preparation), ("model", LogisticRegression(max_iter=5000))]).fit(frame, approved)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_approved_by_the_pipeline_itself(kind):
    frame, approved = people()
    model = fitted(KINDS[kind], frame, approved)
    refused = frame[model.predict(frame) == "bad"].head(40)
    answer = search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE))
    assert answer.valid.all()
    assert not answer.favourable.any()
    assert (model.predict(answer.frame) == "good").all()
    assert list(answer.frame.columns) == list(frame.columns)
    assert (answer.frame.index == refused.index).all()
    assert (answer.frame["name"] == refused["name"]).all()
    kept = refused.isna()
    assert (answer.frame.isna() == kept).all().all()


def cheapest(model, person, groups):
    """Cost of the cheapest approval of one person by trying everything, with the pipeline's own scores: all categories,
    and then the one number that closes the rest of the gap at the least cost, which is best where costs add up."""
    free = [name for name in NUMBERS if not np.isnan(person[name].iloc[0])]
    slope = {}
    for name in free:  # the score is affine in numbers
        moved = person.assign(**{name: person[name].astype(float) + SCALE[name]})
        slope[name] = abs((model.decision_function(moved) - model.decision_function(person))[0])
    best = np.inf
    for labels_ in itertools.product(*groups.values()):
        tried = person.assign(**dict(zip(groups, labels_, strict=True)))
        cost = 0.0
        for name, label in zip(groups, labels_, strict=True):
            steps = abs(LEVELS.index(label) - LEVELS.index(person[name].iloc[0])) if name == "education" else 1.0
            cost += steps * (label != person[name].iloc[0])
        gap = max(0.0, -model.decision_function(tried)[0])
        best = min(best, cost + (gap / max(slope.values()) if gap else 0.0))
    return best


@pytest.mark.parametrize("kind", ["standard", "rare categories together", "nested", "projected", "weights"])
def test_no_answer_is_dearer_than_the_cheapest_of_all_changes(kind):
    frame, approved = people(holes=False)
    model = fitted(KINDS[kind], frame, approved)
    refused = frame[model.predict(frame) == "bad"].head(5)
    answer = search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE))
    groups = {"job": JOBS, "education": LEVELS}
    oracle = [cheapest(model, refused.iloc[[i]], groups) for i in range(len(refused))]
    np.testing.assert_allclose(answer.distance, oracle, rtol=1e-6)


REFUSED = {
    "power": (imputed(PowerTransformer()), "PowerTransformer.*is not affine.*age, income, debt"),
    "quantiles": (imputed(QuantileTransformer(n_quantiles=10)), "QuantileTransformer"),
    "products": (imputed(PolynomialFeatures(2)), "multiplies features"),
    "bins": (imputed(KBinsDiscretizer(quantile_method="averaged_inverted_cdf")), "cuts numbers into bins"),
    "rows": (imputed(Normalizer()), "divides by the length of the row"),
    "neighbours": (KNNImputer(), "fills a value from the other features"),
    "log": (imputed(FunctionTransformer(np.log1p)), "'functiontransformer' .FunctionTransformer. applies log1p"),
    "clipped": (imputed(MinMaxScaler(clip=True)), "clips .clip=True."),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_step_that_cannot_be_taken_apart_is_named_with_its_columns_and_what_to_do(kind):
    step, message = REFUSED[kind]
    frame, approved = people()
    model = fitted(prepared(step), frame, approved)
    with pytest.raises(ConfigurationError, match=message) as caught:
        search_recourse(model, frame.head(3), favourable="good")
    assert "'prep' > 'num'" in str(caught.value)
    assert "age" in str(caught.value)
    assert "train on the table that has them" in str(caught.value)


def test_a_pipeline_that_is_not_fitted_says_so():
    frame, _ = people(20)
    model = Pipeline([("prep", prepared(imputed(StandardScaler()))), ("model", LogisticRegression())])
    with pytest.raises(ConfigurationError, match=r"is not fitted; call fit"):
        search_recourse(model, frame)


def test_a_pipeline_without_an_estimator_has_no_decision():
    frame, _ = people(20, holes=False)
    with pytest.raises(ConfigurationError, match="without an estimator"):
        search_recourse(make_pipeline(StandardScaler()).fit(frame[NUMBERS]), frame[NUMBERS])


def test_an_unknown_category_and_a_missing_column_are_named():
    frame, approved = people()
    model = fitted(KINDS["standard"], frame, approved)
    odd = frame.head(3).assign(job=["clerk", "astronaut", "doctor"])
    with pytest.raises(InputError, match=r"job: unknown category 'astronaut' in row 1.*known: 'clerk', 'doctor'"):
        search_recourse(model, odd, favourable="good")
    with pytest.raises(InputError, match="no column income, which the model reads"):
        search_recourse(model, frame.drop(columns="income"), favourable="good")


def test_a_missing_value_that_nothing_fills_in_is_named():
    frame, approved = people(holes=False)
    model = fitted(prepared(StandardScaler()), frame, approved)
    holes = frame.head(3).assign(debt=[1.0, np.nan, 2.0])
    with pytest.raises(InputError, match="debt: missing in row 1"):
        search_recourse(model, holes, favourable="good")


def test_none_is_not_nan_for_scikit_learn_and_that_is_said():
    frame, approved = people()
    model = fitted(prepared(imputed(StandardScaler()), labels(OneHotEncoder(handle_unknown="ignore"))), frame, approved)
    odd = frame.head(3).assign(job=["clerk", None, "doctor"])
    with pytest.raises(ConfigurationError, match=r"job: None in rows 1, which .*; write NaN"):
        search_recourse(model, odd, favourable="good")


def test_a_value_that_stands_for_none_stays_as_it_is():
    frame, approved = people(holes=False)
    frame.loc[::7, "debt"] = -7
    frame.loc[::9, "job"] = "?"
    numbers = make_pipeline(SimpleImputer(missing_values=-7), StandardScaler())
    jobs = make_pipeline(SimpleImputer(missing_values="?", strategy="most_frequent"), OneHotEncoder())
    model = fitted(prepared(numbers, jobs), frame, approved)
    refused = frame[model.predict(frame) == "bad"]
    answer = search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE))
    assert answer.valid.all()
    assert (model.predict(answer.frame) == "good").all()
    assert ((answer.frame.debt == -7) == (refused.debt == -7)).all()
    assert ((answer.frame.job == "?") == (refused.job == "?")).all()


def test_constraints_name_the_columns_of_the_frame_those_that_nobody_reads_too():
    frame, approved = people()
    model = fitted(KINDS["standard"], frame, approved)
    refused = frame[model.predict(frame) == "bad"].head(40)
    rules = Constraints(
        tuple(frame.columns),
        immutable=("age", "name", "job"),
        increasing=("education",),
        integer=("debt",),
        lower={"debt": 0},
        upper={"income": 150_000},
    )
    answer = search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE), constraints=rules)
    found = answer.frame[answer.valid]
    came = refused[answer.valid]
    assert answer.valid.sum() > 30
    assert (found.age == came.age).all()
    assert (found.job.fillna("-") == came.job.fillna("-")).all()
    assert (found.education.map(LEVELS.index) >= came.education.map(LEVELS.index)).all()
    assert (found.debt.dropna() % 1 == 0).all()
    assert (found.debt.dropna() >= 0).all()
    assert (found.income <= 150_000).all()


def test_the_public_ranges_of_a_preprocessing_are_the_box_and_its_units_hold():
    frame, approved = people()
    model = fitted(KINDS["standard"], frame, approved)
    refused = frame[model.predict(frame) == "bad"].head(40)
    public = Preprocessing(
        numeric={"income": (0, 150_000), "debt": (0, 50_000)}, missing=("debt",), units={"debt": "USD"}
    )
    answer = search_recourse(model, refused, favourable="good", preprocessing=public)
    assert answer.valid.all()
    assert (model.predict(answer.frame) == "good").all()
    assert answer.frame.income.between(0, 150_000).all()
    assert answer.table.units["debt"] == "USD"
    with pytest.raises(InputError, match="income: 200000 in row 1 lies outside of the public range"):
        search_recourse(model, frame.head(2).assign(income=[1.0, 2e5]), favourable="good", preprocessing=public)
    with pytest.raises(ConfigurationError, match="job: the model's encoder does not know 'baker'"):
        search_recourse(
            model, refused, favourable="good",
            preprocessing=Preprocessing(categories={"job": [*JOBS, "baker"]}, missing="job"),
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match="wages is no column of x"):
        search_recourse(model, refused, favourable="good", preprocessing=Preprocessing(numeric={"wages": (0, 1)}))


def test_a_pipeline_may_begin_with_a_preprocessing():
    frame, approved = people(holes=False)
    public = Preprocessing(
        numeric={"age": (18, 100), "income": (0, 1e6), "debt": (0, 1e5)},
        categories={"job": JOBS},
        ordinal={"education": LEVELS},
    )
    rows = frame.drop(columns="name")
    model = make_pipeline(public, StandardScaler(with_mean=False), LogisticRegression(max_iter=5000)).fit(
        rows, approved
    )
    refused = rows[model.predict(rows) == "bad"].head(30)
    answer = search_recourse(model, refused, favourable="good", cost=L1())
    assert answer.valid.all()
    assert (model.predict(answer.frame) == "good").all()
    assert answer.table == public
    alone = LogisticRegression(max_iter=5000).fit(public.transform(rows), approved)
    answer = search_recourse(alone, refused, favourable="good", preprocessing=public)
    assert (alone.predict(public.transform(answer.frame)) == "good").all()
    with pytest.raises(ConfigurationError, match="is another one; leave preprocessing= out"):
        search_recourse(model, refused, favourable="good", preprocessing=Preprocessing(numeric={"age": (0, 1)}))


def frames():
    frame, approved = people()
    model = fitted(KINDS["standard"], frame, approved)
    refused = frame[model.predict(frame) == "bad"].head(12)
    return model, refused, search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE))


def test_a_dict_of_lists_and_a_list_of_dicts_come_back_as_they_came():
    model, refused, expected = frames()
    for given in (refused.to_dict("list"), refused.to_dict("records")):
        answer = search_recourse(model, given, favourable="good", cost=L1(scale=SCALE))
        assert type(answer.frame) is type(given)
        pd.testing.assert_frame_equal(pd.DataFrame(answer.frame), expected.frame.reset_index(drop=True))


def test_polars_frames_come_back_as_polars():
    polars = pytest.importorskip("polars")
    frame, approved = people(holes=False)
    given = polars.from_pandas(frame)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    model = fitted(prepared(numbers, OneHotEncoder()), given, approved)
    refused = given.filter(polars.Series(model.predict(given) == "bad")).head(20)
    answer = search_recourse(model, refused, favourable="good", cost=L1(scale=SCALE))
    assert isinstance(answer.frame, polars.DataFrame)
    assert answer.frame.columns == given.columns
    assert (model.predict(answer.frame) == "good").all()


def test_arrays_of_numbers_and_labels_are_read_by_position():
    frame, approved = people(holes=False)
    table = frame[[*NUMBERS, "job"]].to_numpy(dtype=object)
    preparation = ColumnTransformer([("num", StandardScaler(), [0, 1, 2]), ("job", OneHotEncoder(), [3])])
    model = fitted(preparation, table, approved)
    refused = table[model.predict(table) == "bad"][:20]
    answer = search_recourse(model, refused, favourable="good")
    assert answer.valid.all()
    found = np.column_stack([np.array(column, dtype=object) for column in answer.frame.values()])
    assert (model.predict(found) == "good").all()
