"""One call for every model: answers are what the model's own `predict` says, and what cannot be asked is told."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier, RandomForestRegressor, VotingClassifier
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
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch import nn

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse import L1, L2, Constraints, Preprocessing, linear_recourse, search_recourse

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


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_a_perceptron_is_searched_as_the_network_that_it_is(activation):
    model = MLPClassifier((6, 5), activation, solver="lbfgs", max_iter=2000, random_state=0, alpha=0.1).fit(X, Y)
    for wanted in (0, 1):
        asked = X[model.predict(X) != wanted][:40]
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
