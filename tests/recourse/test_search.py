"""One call for every model: answers are what the model's own `predict` says, and what cannot be asked is told."""

import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.recourse import (
    L1,
    L2,
    Constraints,
    DPModelRecourse,
    Percentile,
    Plausibility,
    Preprocessing,
    linear_recourse,
    search_recourse,
)
from tests.helpers.evidence import DATA, needs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4))
Y = (X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(0, 0.3, 300) > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcd"))
THREE = np.array(["low", "mid", "high"])[np.digitize(X @ [1.0, -2.0, 0.5, 0.0], [-1, 1])]

LINEAR = [
    LogisticRegression(),
    LogisticRegressionCV(Cs=3, l1_ratios=(0.0,), use_legacy_attributes=False, scoring="neg_log_loss"),
    RidgeClassifier(),
    LinearSVC(),
    SGDClassifier(random_state=0),
    SVC(kernel="linear"),
    LinearDiscriminantAnalysis(),
]


@pytest.mark.parametrize("model", LINEAR, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("wanted", ["good", "bad"])
def test_linear_classifiers_are_solved_exactly_for_either_class(model, wanted):
    model = model.fit(X, np.where(Y, "good", "bad"))
    asked = X[model.predict(X) != wanted]
    answer = search_recourse(model, asked, favourable=wanted)
    assert (model.predict(answer.counterfactual) == wanted).all()
    assert answer.proven.all()
    sign = 1 if wanted == model.classes_[1] else -1
    coef = np.ravel(model.coef_)
    exact = np.abs(model.decision_function(asked)) / np.linalg.norm(coef)
    np.testing.assert_allclose(answer.distance, exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(answer.score, sign * model.decision_function(asked))


def test_what_is_favourable_already_stays_and_says_so():
    model = LogisticRegression().fit(X, Y)
    answer = search_recourse(model, X)
    good = model.predict(X) == 1
    assert (answer.favourable == good).all()
    assert (answer.counterfactual[good] == X[good]).all()
    assert (answer.distance[good] == 0).all()
    assert answer.valid.all()


def test_a_tie_is_decided_as_the_model_decides_it():
    model = LogisticRegression().fit(X, Y)
    model.coef_, model.intercept_ = np.array([[1.0, 0.0, 0.0, 0.0]]), np.zeros(1)
    tie = np.zeros((1, 4))  # a score of exactly 0 is the first class for scikit-learn
    answer = search_recourse(model, tie)
    assert not answer.favourable[0]
    assert answer.valid[0]
    assert model.predict(answer.counterfactual)[0] == 1
    assert answer.distance[0] < 1e-6
    assert search_recourse(model, tie, favourable=0).favourable[0]


def test_a_target_asks_for_a_margin_besides_the_decision():
    model = LogisticRegression().fit(X, Y)
    answer = search_recourse(model, X[:50], target=2.0)
    assert (model.decision_function(answer.counterfactual) >= 2.0).all()


@pytest.mark.parametrize("model", [LogisticRegression(), MLPClassifier((8,), max_iter=300, random_state=0, tol=1e-2)])
def test_of_several_classes_the_wanted_one_is_reached(model):
    model = make_pipeline(StandardScaler(), model).fit(FRAME, THREE)
    asked = FRAME[model.predict(FRAME) != "mid"].head(40)
    answer = search_recourse(model, asked, favourable="mid")
    assert answer.valid.all()
    assert (model.predict(answer.frame) == "mid").all()
    with pytest.raises(ConfigurationError, match="favourable: which of the labels"):
        search_recourse(model, asked)
    with pytest.raises(ConfigurationError, match=r"favourable: expected one of the labels .* got 'medium'"):
        search_recourse(model, asked, favourable="medium")


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(max_depth=4),
        RandomForestClassifier(6, max_depth=3, random_state=0),
        GradientBoostingClassifier(n_estimators=4, max_depth=2),
        HistGradientBoostingClassifier(max_iter=4, max_depth=3),
        make_pipeline(StandardScaler(), RandomForestClassifier(6, max_depth=3, random_state=0)),
    ],
)
def test_of_several_classes_of_trees_the_wanted_one_is_reached(model):
    model.fit(FRAME, THREE)
    asked = FRAME[model.predict(FRAME) != "mid"].head(20)
    answer = search_recourse(model, asked, favourable="mid")
    assert answer.valid.all()
    assert answer.proven.all()
    assert (model.predict(answer.frame) == "mid").all()
    with pytest.raises(ConfigurationError, match="favourable: the model knows 3 classes; pass the wanted one"):
        search_recourse(model, asked)
    with pytest.raises(ConfigurationError, match=r"favourable: .*no class 'medium'; expected one of 'high', 'low'"):
        search_recourse(model, asked, favourable="medium")


def test_of_trees_a_change_too_small_to_cost_anything_is_proven():
    """LightGBM splits zeros from what is above them at 1e-35."""
    lightgbm = pytest.importorskip("lightgbm")
    rows = np.random.default_rng(0).integers(0, 2, (200, 2)) * 1.0
    options = {"n_estimators": 2, "max_depth": 1, "learning_rate": 1.0, "n_jobs": 1, "verbose": -1}
    model = lightgbm.LGBMClassifier(**options).fit(rows, rows[:, 0].astype(int))
    public = np.array([[-30.0, -30.0], [5.0, 5.0], [30.0, 30.0]])
    answer = search_recourse(model, np.zeros((1, 2)), cost=Percentile(public))
    assert not answer.favourable[0]
    assert (answer.distance[0], answer.proven[0]) == (0.0, True)
    assert model.predict(answer.counterfactual)[0] == 1


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_a_perceptron_is_searched_as_the_network_that_it_is(activation):
    model = MLPClassifier((6, 5), activation, solver="lbfgs", max_iter=2000, random_state=0, alpha=0.1).fit(X, Y)
    for wanted in (0, 1):
        asked = X[model.predict(X) != wanted][:10]
        answer = search_recourse(model, asked, favourable=wanted)
        assert answer.valid.all()
        assert (model.predict(answer.counterfactual) == wanted).all()


def test_a_search_over_parameters_is_asked_by_what_it_chose():
    model = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1.0]}, cv=2
    )
    with pytest.raises(ConfigurationError, match="GridSearchCV is not fitted"):
        search_recourse(model, FRAME)
    model.fit(FRAME, Y)
    answer = search_recourse(model, FRAME.head(20))
    assert (model.predict(answer.frame) == 1).all()
    inside = make_pipeline(StandardScaler(), GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)).fit(FRAME, Y)
    assert (inside.predict(search_recourse(inside, FRAME.head(20)).frame) == 1).all()


def test_columns_in_another_order_and_more_of_them_are_matched_by_name():
    model = LogisticRegression().fit(FRAME, Y)
    expected = search_recourse(model, FRAME.head(30)).frame
    given = FRAME.head(30)[["d", "b", "a", "c"]].assign(note="x", e=1.0)
    found = search_recourse(model, given).frame
    assert list(found.columns) == list(given.columns)
    pd.testing.assert_frame_equal(found[list("abcd")], expected, rtol=1e-9)
    assert (found.note == "x").all()
    assert (found.e == 1.0).all()


def test_constraints_by_number_are_in_the_order_of_the_frame_and_dummies_stay_one_hot():
    frame = FRAME.assign(job_a=(np.arange(300) % 2).astype(float), job_b=1.0 - np.arange(300) % 2)
    model = LogisticRegression().fit(frame, Y)
    asked = frame[model.predict(frame) == 0].head(20)
    rules = Constraints(6, immutable=(1,), one_hot=((4, 5),))
    answer = search_recourse(model, asked, cost=L1(), constraints=rules)
    assert answer.valid.all()
    assert (answer.frame.b == asked.b).all()
    assert (answer.frame.job_a + answer.frame.job_b == 1).all()


def test_what_is_frozen_stays():
    model = LogisticRegression().fit(FRAME, Y)
    asked = FRAME[model.predict(FRAME) == 0].head(20)
    answer = search_recourse(model, asked, frozen=np.array([False, True, False, False]))
    assert (answer.frame.b == asked.b).all()
    assert answer.valid.all()
    with pytest.raises(InputError, match="frozen: expected bool of shape"):
        search_recourse(model, asked, frozen=np.zeros(3, dtype=bool))


@pytest.mark.parametrize("public", [None, X], ids=["cheapest", "plausible"])
@pytest.mark.parametrize(
    "model",
    [LogisticRegression(), DecisionTreeClassifier(max_depth=3), MLPClassifier((4,))],
    ids=lambda model: type(model).__name__,
)
def test_a_cost_given_by_name_is_that_of_the_columns_which_the_constraints_name(model, public):
    rows, rules = X[Y == 0][:5], Constraints(("a", "b", "c", "d"), lower=-9, upper=9)
    plausible = None if public is None else Plausibility(public)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = clone(model).set_params(random_state=0).fit(X, Y)
    named, listed, plain = (
        search_recourse(model, rows, cost=cost, constraints=rules, plausibility=plausible)
        for cost in (L1(scale={"b": 2}), L1(scale=(1.0, 2.0, 1.0, 1.0)), L1())
    )
    assert np.array_equal(named.counterfactual, listed.counterfactual)
    assert (named.distance < plain.distance).any()
    with pytest.raises(ConfigurationError, match="unknown feature 'e'"):
        search_recourse(model, rows, cost=L1(scale={"e": 2}), constraints=rules, plausibility=plausible)


def test_an_array_gives_what_linear_recourse_gives():
    model = LogisticRegression().fit(X, Y)
    rules = Constraints(4, lower=-3, upper=3, integer=())
    mine = search_recourse(model, X[:50], constraints=rules, cost=L1())
    plain = linear_recourse(model.coef_[0], model.intercept_[0], X[:50], constraints=rules, cost=L1())
    np.testing.assert_allclose(mine.counterfactual, plain.counterfactual, rtol=1e-9, atol=1e-9)
    assert mine.table is None


def test_one_person_may_come_as_a_dict_or_a_series():
    model = LogisticRegression().fit(FRAME, Y)
    person = FRAME[model.predict(FRAME) == 0].iloc[0]
    for given in (person, person.to_dict()):
        answer = search_recourse(model, given)
        assert type(answer.frame) is type(given)
        assert model.predict(pd.DataFrame([dict(answer.frame)]))[0] == 1


def test_no_query_gives_no_answer():
    model = LogisticRegression().fit(FRAME, Y)
    assert len(search_recourse(model, FRAME.head(0))) == 0
    assert len(search_recourse(LogisticRegression().fit(X, Y), X[:0])) == 0


def test_no_recourse_within_the_constraints_is_proven():
    model = LogisticRegression().fit(FRAME, Y)
    asked = FRAME[model.predict(FRAME) == 0].head(10)
    rules = Constraints(("a", "b", "c", "d"), immutable=("a", "b", "c"), lower={"d": -5}, upper={"d": 5})
    answer = search_recourse(model, asked, constraints=rules)
    lost = ~answer.valid
    assert lost.sum() > 3
    assert answer.proven[lost].all()
    assert (answer.counterfactual[lost] == answer.x[lost]).all()


NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
PUBLIC = Preprocessing(numeric={"a": (-10, 10), "b": (-10, 10)}, categories={"job": ["x", "y"]}, units={"a": "USD"})


def test_networks_are_searched_as_before_and_behind_a_preprocessing():
    with torch.no_grad():
        values = NET(torch.from_numpy(X).float())[:, 0]
    middle = values.median().item()
    answer = search_recourse(NET, X[:20], target=middle, cost=L2(), constraints=Constraints(4, immutable=(0,)))
    assert answer.valid.all()
    assert (answer.counterfactual[:, 0] == X[:20, 0]).all()
    frame = pd.DataFrame({"a": X[:20, 0], "job": ["x", "y"] * 10, "b": X[:20, 1]})
    answer = search_recourse(NET, frame, target=0.1, preprocessing=PUBLIC)
    scores = NET(torch.from_numpy(PUBLIC.transform(answer.frame)).float())[:, 0]
    assert (scores[torch.from_numpy(answer.valid)] >= 0.1 - 1e-5).all()
    by_function = search_recourse(lambda rows: NET(rows.float())[:, 0], X[:5], target=middle)
    assert by_function.valid.all()


def credit(n=300):
    """Numbers, whole numbers, a category and gaps, and who was approved."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "income": rng.integers(10, 90, n) * 1000.0,
            "cards": rng.integers(0, 6, n),
            "job": rng.choice(["clerk", "manager", "doctor"], n),
        }
    )
    score = frame.income / 40_000 - 0.4 * frame.cards + 0.8 * (frame.job == "doctor") + rng.normal(0, 0.1, n)
    return frame, np.where(score > score.median(), "good", "bad")


def encoded():
    steps = [("num", StandardScaler(), ["income", "cards"]), ("job", OneHotEncoder(sparse_output=False), ["job"])]
    return ColumnTransformer(steps, sparse_threshold=0)


TREES = [
    DecisionTreeClassifier(max_depth=4, random_state=0),
    RandomForestClassifier(5, max_depth=4, random_state=0),
    GradientBoostingClassifier(n_estimators=5, random_state=0),
    HistGradientBoostingClassifier(max_iter=5),
]
WHOLE = Constraints(
    ("income", "cards", "job"), lower={"cards": 0, "income": 10_000}, upper={"cards": 6, "income": 90_000},
    integer=("cards",), step={"income": 2000},
)  # fmt: skip
CREDIT_COST = L1(scale={"income": 20_000.0, "cards": 1.0, "job": 0.5})


def cheapest(model, person):
    """Cost of the cheapest approved row among all that the constraints allow."""
    steps = np.arange(-80_000, 80_001, 2000) + person.income
    every = itertools.product(steps[(steps >= 10_000) & (steps <= 90_000)], range(7), ["clerk", "manager", "doctor"])
    rows = pd.DataFrame(every, columns=["income", "cards", "job"])
    cost = np.abs(rows.income - person.income) / 20_000 + np.abs(rows.cards - person.cards)
    cost += 2 * (rows.job != person.job)
    return cost[model.predict(rows) == "good"].min()


@pytest.mark.parametrize("estimator", TREES, ids=lambda estimator: type(estimator).__name__)
def test_tree_ensembles_in_pipelines_are_as_cheap_as_the_best_of_all_rows(estimator):
    frame, approved = credit()
    model = make_pipeline(encoded(), estimator).fit(frame, approved)
    asked = frame[model.predict(frame) == "bad"].head(5)
    answer = search_recourse(model, asked, constraints=WHOLE, cost=CREDIT_COST, favourable="good")
    assert answer.valid.all()
    assert answer.proven.all()
    assert (model.predict(answer.frame) == "good").all()
    assert answer.frame.cards.dtype == frame.cards.dtype
    np.testing.assert_allclose(answer.distance, [cheapest(model, row) for row in asked.itertuples()], rtol=1e-6)
    for told, (_, row) in zip(answer.reasons(), asked.iterrows(), strict=True):
        assert 1 <= len(told) <= 3
        assert not any("or more" in text or "or less" in text for text in told), (told, row)


def test_missing_values_go_where_the_trees_send_them_and_stay():
    frame, approved = credit()
    frame.loc[::5, "income"] = np.nan
    numbers = frame[["income", "cards"]]
    model = HistGradientBoostingClassifier(max_iter=10).fit(numbers, approved)
    asked = numbers[model.predict(numbers) == "bad"].head(15)
    answer = search_recourse(model, asked, favourable="good", cost=L1())
    assert (answer.frame.income.isna() == asked.income.isna()).all()
    assert (model.predict(answer.frame)[answer.valid] == "good").all()
    assert answer.proven.all()
    again = search_recourse(HistGradientBoostingClassifier(max_iter=10).fit(numbers.to_numpy(), approved),
                            asked.to_numpy(), favourable="good", cost=L1())  # fmt: skip
    np.testing.assert_allclose(again.distance, answer.distance)


def test_categories_that_trees_read_by_themselves_stay_categories():
    frame, approved = credit()
    frame = frame.assign(job=frame.job.astype("category"))
    model = HistGradientBoostingClassifier(max_iter=10, categorical_features="from_dtype").fit(frame, approved)
    asked = frame[model.predict(frame) == "bad"].head(10)
    answer = search_recourse(model, asked, favourable="good", cost=L1(scale={"income": 20_000.0}))
    assert answer.valid.all()
    assert (model.predict(answer.frame) == "good").all()
    assert answer.frame.job.dtype == frame.job.dtype


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosters_of_other_libraries_in_pipelines_and_alone(library):
    module = pytest.importorskip(library)
    frame, approved = credit()
    y = (approved == "good").astype(int)
    estimator = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}[library]
    options = {"n_estimators": 5, "n_jobs": 1} | ({"verbose": -1} if library == "lightgbm" else {})
    model = make_pipeline(encoded().set_output(transform="pandas"), getattr(module, estimator)(**options)).fit(frame, y)
    asked = frame[model.predict(frame) == 0].head(5)
    answer = search_recourse(model, asked, constraints=WHOLE, cost=CREDIT_COST)
    assert answer.valid.all()
    assert answer.proven.all()
    assert (model.predict(answer.frame) == 1).all()
    numbers = frame[["income", "cards"]]
    alone = getattr(module, estimator)(**options).fit(numbers, y)
    asked = numbers[alone.predict(numbers) == 0].head(5)
    answer = search_recourse(alone, asked, cost=L1())
    assert (alone.predict(answer.frame) == 1).all()
    booster = alone.get_booster() if library == "xgboost" else alone.booster_
    np.testing.assert_allclose(search_recourse(booster, asked, cost=L1()).distance, answer.distance)


@pytest.mark.parametrize("model", [LogisticRegression(max_iter=1000), DecisionTreeClassifier(max_depth=3)])
def test_true_and_false_stay_true_and_false(model):
    frame = FRAME.assign(owner=X[:, 1] > 0)
    model.fit(frame, Y)
    asked = frame[model.predict(frame) == 0].head(10)
    answer = search_recourse(model, asked, cost=L1())
    assert answer.frame.owner.dtype == bool
    assert (model.predict(answer.frame) == 1).all()


def adult(rows):
    """The first rows of the Adult data as a frame in its own units, and who earns more."""
    data = np.load(DATA / "adult.npz")
    text = {key: bytes(data[f"{key}__txt"]).decode().splitlines() for key in ("num_names", "cat_names", "cat_values")}
    frame = pd.DataFrame(data["x_num"][:rows].astype(float), columns=text["num_names"])
    for name, codes, values in zip(text["cat_names"], data["x_cat"][:rows].T, text["cat_values"], strict=True):
        known = json.loads(values)
        frame[name] = [known[code] if code >= 0 else np.nan for code in codes]
    return frame, data["y"][:rows].astype(int)


@needs("adult.npz")
@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(max_iter=2000), HistGradientBoostingClassifier(max_iter=5)],
    ids=["linear", "trees"],
)
def test_adult_in_its_own_units_by_a_pipeline(estimator):
    frame, y = adult(2000)
    numbers = frame.select_dtypes("number").columns.tolist()
    others = [name for name in frame.columns if name not in numbers]
    encoder = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    model = make_pipeline(ColumnTransformer([("n", StandardScaler(), numbers), ("c", encoder, others)]), estimator)
    model.fit(frame, y)
    asked = frame[model.predict(frame) == 0].head(3)
    rules = Constraints(
        tuple(frame.columns), immutable=("sex", "race", "native-country"), increasing=("age",), integer=tuple(numbers),
        lower=dict.fromkeys(numbers, 0), upper={"age": 120},
    )  # fmt: skip
    cost = L1(scale={name: float(frame[name].std()) for name in numbers})
    answer = search_recourse(model, asked, constraints=rules, cost=cost)
    assert answer.valid.all()
    assert answer.proven.all()
    assert (model.predict(answer.frame) == 1).all()
    assert (answer.frame[["sex", "race", "native-country"]] == asked[["sex", "race", "native-country"]]).all().all()
    assert (answer.frame[numbers] % 1 == 0).all().all()


def test_trees_behind_a_projection_are_refused():
    numbers, approved = X, Y
    model = make_pipeline(PCA(2), DecisionTreeClassifier(max_depth=2)).fit(numbers, approved)
    with pytest.raises(ConfigurationError, match=r"adds up several features .*leave the projection"):
        search_recourse(model, numbers[:3])


STATEMENT = DPLogisticRegression(5.0, 1e-5, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, Y).privacy_
FREE = replace(STATEMENT, weights="")
"""The same about no weights: what somebody would have who trained privately in a way of their own."""


@pytest.mark.parametrize("model", [*TREES, MLPClassifier((3,), max_iter=100, tol=1.0), make_pipeline(LinearSVC())])
def test_what_has_no_private_release_says_so_and_what_to_do(model):
    model = model.fit(X, Y)
    with pytest.raises(RefusedError, match=r"no private release here: .*DPModelRecourse\(epsilon=.*bound_to") as caught:
        DPModelRecourse(model)
    assert ("thresholds" in str(caught.value)) == (model in TREES)
    with pytest.raises(RefusedError, match="names no weights"):
        DPModelRecourse(model, privacy=FREE)
    with pytest.raises(RefusedError, match="about other weights"):
        DPModelRecourse(model, privacy=STATEMENT)


def test_a_statement_about_the_whole_model_lets_it_answer():
    frame, approved = credit()
    model = make_pipeline(encoded(), TREES[0]).fit(frame, approved)
    asked = frame[model.predict(frame) == "bad"].head(4)
    mechanism = DPModelRecourse(
        model, privacy=FREE.bound_to(model), favourable="good", constraints=WHOLE, cost=CREDIT_COST
    )
    assert mechanism.guarantee.is_private
    assert mechanism.guarantee.epsilon == STATEMENT.epsilons.substitute
    assert (mechanism.release(asked) == 0).all()
    answer = mechanism.explain(asked)
    assert (model.predict(answer.frame) == "good").all()
    first, second = mechanism.explain_diverse(asked, 2)
    assert (first.counterfactual == answer.counterfactual).all()
    assert (second.distance[second.valid] >= first.distance[second.valid] - 1e-9).all()


def test_a_scaler_that_saw_the_records_is_refused_beside_a_private_classifier():
    classifier = DPLogisticRegression(5.0, 1e-5, norm_bound=5.0, classes=[0, 1], random_state=0)
    model = make_pipeline(StandardScaler(), classifier).fit(X, Y)
    message = r"is about the DPLogisticRegression alone, .* 'standardscaler' \(StandardScaler\); every answer would"
    with pytest.raises(RefusedError, match=message):
        DPModelRecourse(model)
    with pytest.raises(RefusedError, match=message):
        DPModelRecourse(model, privacy=model[-1].privacy_)


def test_a_public_preprocessing_before_a_private_classifier_is_part_of_the_guarantee():
    public = Preprocessing(numeric=dict.fromkeys("abcd", (-5, 5)))
    classifier = DPLogisticRegression(20.0, 1e-5, norm_bound=2.0, classes=[0, 1], random_state=0)
    inside = FRAME.clip(-5, 5)
    model = make_pipeline(public, classifier).fit(inside, Y)
    mechanism = DPModelRecourse(model)
    assert mechanism.guarantee.preprocessing == public.digest
    answer = mechanism.explain(inside.head(20))
    assert (model.predict(answer.frame) == 1).all()


REFUSED = {
    "calibrated": (CalibratedClassifierCV(LogisticRegression(), cv=2), "CalibratedClassifierCV averages calibrated"),
    "bayes": (GaussianNB(), "GaussianNB cannot be asked for recourse; what can be: torch networks"),
    "votes": (VotingClassifier([("a", LogisticRegression())]), "VotingClassifier cannot be asked for recourse"),
    "kernel": (SVC(), "SVC cannot be asked for recourse"),
    "numbers": (LinearRegression(), "LinearRegression"),
    "trees of numbers": (RandomForestRegressor(2), "it predicts numbers, not classes"),
    "weighted votes": (AdaBoostClassifier(n_estimators=2), "AdaBoostClassifier"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_asked_are_told_with_those_that_can(kind):
    model, message = REFUSED[kind]
    with pytest.raises(ConfigurationError, match=message):
        search_recourse(model.fit(X, Y), X[:3])


def test_pairs_of_votes_are_no_score():
    with pytest.raises(ConfigurationError, match="votes of pairs"):
        search_recourse(SVC(kernel="linear").fit(X, THREE), X[:3], favourable="mid")


@pytest.mark.parametrize(
    "model", [LogisticRegression(), MLPClassifier(), GradientBoostingClassifier(), Pipeline([("m", LinearSVC())])]
)
def test_a_model_that_is_not_fitted_says_so(model):
    with pytest.raises(ConfigurationError, match=r"is not fitted"):
        search_recourse(model, FRAME.head(3))


def test_wrong_arguments_say_what_was_expected():
    model = LogisticRegression().fit(FRAME, Y)
    with pytest.raises(ConfigurationTypeError, match="preprocessing: expected Preprocessing"):
        search_recourse(model, FRAME, preprocessing={"a": (0, 1)})
    with pytest.raises(ConfigurationError, match="time_limit must be greater than 0"):
        search_recourse(model, FRAME, time_limit=0)
    with pytest.raises(ConfigurationError, match="got the class LogisticRegression"):
        search_recourse(LogisticRegression, FRAME)
    with pytest.raises(InputError, match=r"trained on an array of 4 columns, and there are 5"):
        search_recourse(LogisticRegression().fit(X, Y), FRAME.assign(e=1.0))
    with pytest.raises(ConfigurationError, match="wages"):
        search_recourse(model, FRAME, constraints=Constraints(("a", "b", "c", "d", "wages")))
    with pytest.raises(InputError, match="no column a, which the model reads"):
        search_recourse(model, FRAME[["b", "c", "d"]])
