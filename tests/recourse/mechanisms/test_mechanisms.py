"""Recourse from private models: any number of answers, several to one query, all from what was released."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from privacy_oracle import two_gaussians
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.svm import SVC
from torch import nn

from safexplain.dp import DPLogisticRegression, PrivacyStatement, Steps
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.recourse import L1, L2, Constraints, DPModelRecourse, LaplaceScore
from safexplain.recourse.linear.solve import linear_recourse

ARRAYS = ("x", "counterfactual", "valid", "distance", "score", "favourable", "censored", "proven")


def made(**options):
    return DPModelRecourse(**{"norm_bound": 5.0, "random_state": 0, **options})


def trained(n=500, d=3, **options):
    return made(**options).fit(*two_gaussians(n, d))


def statement(**options):
    given = {"phases": (Steps(4.0, 1.0, 10, "full-batch"),), **options}
    return PrivacyStatement("m", 100, 1e-5, **given)


@pytest.mark.parametrize(
    "options", [{}, {"mechanism": "output"}, {"mechanism": "output", "delta": 0.0}, {"mechanism": "objective"}]
)
def test_any_private_regression_answers_by_geometry_under_its_own_statement(options):
    model, X = linear(n=300, **options), two_gaussians(300, 3)[0]
    found, mechanism = linear_recourse(model.coef_[0], model.intercept_[0], X), DPModelRecourse(model)
    answer = mechanism.explain(X)
    assert answer.guarantee.statement == model.privacy_
    assert answer.guarantee.delta == model.privacy_.delta
    for name in ARRAYS:
        assert (getattr(answer, name) == getattr(found, name)).all()


def test_answers_depend_on_the_data_through_the_private_model_alone():
    """The same released weights from other data: the same answers, bit by bit."""
    one = trained()
    other = DPModelRecourse(one.private, random_state=0)
    queries = two_gaussians(30, 3, 1)[0]
    for name in ARRAYS:
        assert (getattr(other.explain(queries), name) == getattr(one.explain(queries), name)).all()
    assert (one.release(queries) == 0).all()  # beyond the training they cost nothing


def test_the_favourable_class_is_the_second_of_the_pair():
    X, y = two_gaussians(500, 3)
    words = np.array(["no", "yes"])[y]
    up, down = (made(classes=c).fit(X, words) for c in (("no", "yes"), ("yes", "no")))
    clear = X[np.abs(X.sum(axis=1)) > 3]
    assert (up.explain(clear).favourable == (clear.sum(axis=1) > 0)).mean() > 0.9
    assert (down.explain(clear).favourable == (clear.sum(axis=1) < 0)).mean() > 0.9
    chosen = made(classes=("no", "yes"), favourable="no").fit(X, words)
    assert (chosen.explain(clear).favourable == (clear.sum(axis=1) < 0)).mean() > 0.9


def test_of_several_classes_the_wanted_one_wins():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1500)
    X = rng.normal(size=(1500, 4)) + 4 * np.eye(4)[y]
    mechanism = made(epsilon=8.0, classes=("a", "b", "c"), favourable="b", norm_bound=6.0).fit(
        X, np.array(list("abc"))[y]
    )
    answer = mechanism.explain(X[:20])
    assert answer.valid.all()
    assert (mechanism.private.predict(answer.counterfactual) == "b").all()
    assert (answer.favourable == (mechanism.private.predict(X[:20]) == "b")).all()


def test_a_private_regression_brings_its_statement():
    X, y = two_gaussians(300, 3)
    model = DPLogisticRegression(norm_bound=5.0, classes=["no", "yes"], random_state=0)
    model.fit(X, np.array(["no", "yes"])[y])
    mechanism = DPModelRecourse(model)
    assert mechanism.statement is model.privacy_
    assert mechanism.classes == ("no", "yes")
    assert mechanism.explain(X[:5]).valid.all()
    with pytest.raises(ConfigurationError, match="a trained model was given"):
        mechanism.fit(X, y)


@pytest.mark.parametrize("model", [LogisticRegression(), nn.Linear(3, 2)])
def test_a_model_without_a_statement_is_refused(model):
    if isinstance(model, LogisticRegression):
        model.fit(*two_gaussians(60, 3))
    with pytest.raises(RefusedError, match="expected a PrivacyStatement, but"):
        DPModelRecourse(model)
    bound = statement().bound_to(model)
    assert DPModelRecourse(model, privacy=bound).statement == bound


def test_a_statement_that_promises_nothing_is_refused():
    without_noise = statement(phases=(Steps(0.0, 1.0, 10, "full-batch"),))
    assert without_noise.epsilons.substitute == math.inf
    with pytest.raises(RefusedError, match="has no finite epsilon under substitute"):
        DPModelRecourse(network := nn.Linear(3, 2), privacy=without_noise.bound_to(network))


def test_whether_a_record_was_there_is_not_promised_where_the_number_of_records_is_told():
    X, y = two_gaussians(500, 3)
    given = DPLogisticRegression(2.0, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, y)
    with pytest.raises(RefusedError, match=r'exact number of records.*adjacency="zero_out"'):
        DPModelRecourse(given, adjacency="add_remove")
    assert DPModelRecourse(given, adjacency="zero_out").guarantee.epsilon == given.privacy_.epsilons.zero_out
    hidden = DPLogisticRegression(2.0, adjacency="add_remove", norm_bound=5.0, classes=[0, 1]).fit(X, y)
    assert DPModelRecourse(hidden, adjacency="add_remove").guarantee.epsilon == hidden.privacy_.epsilons.add_remove


def linear(seed=0, n=200, **options):
    options = {"norm_bound": 5.0, "classes": [0, 1], "random_state": seed, **options}
    return DPLogisticRegression(**options).fit(*two_gaussians(n, 3))


def copied(model, kind=LogisticRegression):
    other = kind()
    other.coef_, other.intercept_, other.classes_ = model.coef_.copy(), model.intercept_.copy(), model.classes_.copy()
    return other


def test_no_linear_model_passes_with_the_statement_of_another():
    private = linear()
    for other in (LogisticRegression().fit(*two_gaussians(200, 3)), linear(1), NETWORK):
        with pytest.raises(RefusedError, match=r"other weights|different statement"):
            DPModelRecourse(other, privacy=private.privacy_)


def test_a_copy_of_the_coefficients_in_another_estimator_is_the_same_model():
    private = linear()
    answers = DPModelRecourse(copied(private, RidgeClassifier), privacy=private.privacy_).explain(np.ones((1, 3)))
    assert answers.valid.all()
    turned = copied(private)
    turned.classes_ = private.classes_[::-1]
    with pytest.raises(RefusedError, match="other weights"):
        DPModelRecourse(turned, privacy=private.privacy_)


def test_linear_models_of_other_shapes_are_read_as_they_predict():
    private = linear()
    twice = copied(private)
    twice.coef_ = np.concatenate([private.coef_, 3 * private.coef_])
    twice.intercept_ = np.array([1.0, 0.5])
    found = DPModelRecourse(twice, privacy=replace(private.privacy_, weights="").bound_to(twice))
    X = np.ones((1, 3))
    assert found.explain(X).score == pytest.approx(X @ (2 * private.coef_[0]) - 0.5)
    sparse = copied(private)
    sparse.coef_ = scipy.sparse.csr_matrix(private.coef_)
    same = DPModelRecourse(sparse, privacy=private.privacy_).explain(X).counterfactual
    assert (same == DPModelRecourse(private).explain(X).counterfactual).all()


def test_what_has_no_score_for_each_class_is_refused():
    x, y = two_gaussians(60, 3)
    for model in (Ridge().fit(x, y), SVC(kernel="linear").fit(x, y + (x[:, 0] > 1))):
        with pytest.raises(ConfigurationError, match=r"one score per class, got (Ridge|SVC) with"):
            DPModelRecourse(model, privacy=statement().bound_to(model), favourable=1)


@pytest.mark.parametrize("part", ["coef_", "intercept_"])
def test_a_model_that_was_changed_after_its_training_is_refused(part):
    private = linear()
    mechanism = DPModelRecourse(private)
    getattr(private, part)[..., 0] += 1e-12
    with pytest.raises(RefusedError, match="the model was changed since"):
        DPModelRecourse(private)
    with pytest.raises(RefusedError, match="the model was changed since"):
        _ = mechanism.private  # answers go on from the weights as they were


def test_a_statement_without_weights_is_refused_until_its_owner_vouches_for_it():
    private = linear()
    planned = replace(private.privacy_, weights="")
    for model in (copied(private), NETWORK):
        with pytest.raises(RefusedError, match=r"names no weights.*bound_to\(model\)"):
            DPModelRecourse(model, privacy=planned)
    private.privacy_ = planned  # as one of an earlier version, from a file
    with pytest.raises(RefusedError, match="names no weights"):
        DPModelRecourse(private)
    private.privacy_ = planned.bound_to(private)
    assert DPModelRecourse(private).explain(np.ones((1, 3))).valid.all()
    with pytest.raises(RefusedError, match="other weights"):
        private.privacy_.bound_to(linear(1))


NETWORK = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (DPLogisticRegression(norm_bound=1.0), {}, "expected a fitted linear model"),
        (object(), {"privacy": statement()}, "expected a fitted linear model or a torch module"),
        (NETWORK, {"privacy": statement().bound_to(NETWORK), "favourable": "yes"}, "favourable"),
        (None, {"privacy": statement()}, "a statement needs a model"),
    ],
)
def test_what_is_no_private_model_is_named(model, options, message):
    with pytest.raises(ConfigurationError, match=message):
        DPModelRecourse(model, **options)


EVERY = {"dp": DPModelRecourse, "score": lambda **o: LaplaceScore(public_weights=np.ones(3), **o)}


@pytest.mark.parametrize("name", EVERY)
def test_an_answer_is_finite_and_keeps_what_recourse_promises(name):
    mechanism = EVERY[name](norm_bound=5.0, random_state=0).fit(*two_gaussians(300, 3))
    queries = np.concatenate([two_gaussians(60, 3, 1)[0], 1e6 * np.eye(3), np.zeros((1, 3))])
    answer = mechanism.explain(queries, infeasible="mark")
    assert (answer.x == queries).all()
    for values in (getattr(answer, name) for name in ARRAYS):
        assert len(values) == len(queries)
        assert np.isfinite(values).all()
    stays = answer.favourable | ~answer.valid
    assert (answer.change[stays] == 0).all()
    assert (answer.distance[stays] == 0).all()
    assert answer.valid[answer.favourable].all()
    assert mechanism.explain([0.0, 0.0, -1.0]).counterfactual.shape == (1, 3)


@pytest.mark.parametrize("name", EVERY)
def test_a_cost_given_by_name_is_that_of_the_columns_which_the_constraints_name(name):
    named, listed = (
        EVERY[name](norm_bound=5.0, random_state=0, cost=L1(scale=scale), constraints=Constraints(("a", "b", "c")))
        .fit(*two_gaussians(300, 3))
        .explain(two_gaussians(20, 3, 1)[0], infeasible="mark")
        for scale in ({"a": 2}, (2.0, 1.0, 1.0))
    )
    assert named.valid.any()
    for values in ARRAYS:
        assert np.array_equal(getattr(named, values), getattr(listed, values))
    with pytest.raises(ConfigurationError, match="unknown feature 'd'"):
        EVERY[name](norm_bound=5.0, cost=L1(scale={"d": 2}), constraints=Constraints(("a", "b", "c")))


@pytest.mark.parametrize("name", EVERY)
def test_questions_that_do_not_fit_are_refused(name):
    mechanism = EVERY[name](norm_bound=5.0, constraints=Constraints(3, upper=5.0)).fit(*two_gaussians(100, 3))
    for bad in ([1.0, 2.0], [np.nan, 0.0, 0.0], [9.0, 0.0, 0.0], ["a", "b", "c"]):
        with pytest.raises(InputError):
            mechanism.explain(bad)
    with pytest.raises(ConfigurationError, match="infeasible"):
        mechanism.explain(np.zeros(3), infeasible="no")
    with pytest.raises(ConfigurationError, match="answers"):
        mechanism.explain_diverse(np.zeros(3), 0)


@pytest.mark.parametrize("name", EVERY)
def test_what_training_needs_is_asked_for(name):
    X, y = two_gaussians(100, 3)
    with pytest.raises(ConfigurationError, match="norm_bound is missing"):
        EVERY[name]().fit(X, y)
    with pytest.raises(ConfigurationError, match="expected 3 columns, as in the data, got 2"):
        EVERY[name](norm_bound=5.0, constraints=Constraints(2)).fit(X, y)
    with pytest.raises(InputError, match="expected labels in classes="):
        EVERY[name](norm_bound=5.0).fit(X, y + 1)
    with pytest.raises(ConfigurationError, match="call fit"):
        EVERY[name](norm_bound=5.0).explain(X)


WRONG = (
    {"epsilon": 0.0},
    {"target": 10**400},
    {"cost": L1},
    {"adjacency": "row"},
    {"norm_bound": -1.0},
    {"intercept_scaling": -1.0},
    {"classes": {0, 1}},
    {"classes": (1, 1)},
    {"classes": (None, "a")},
    {"constraints": {}},
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_parameters_that_make_no_sense_are_refused_at_once(wrong):
    for make in EVERY.values():
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            make(**wrong)


@pytest.mark.parametrize("delta", [1.0, 1e-13, None])
def test_a_delta_that_is_no_delta_never_gets_into_a_guarantee(delta):
    with pytest.raises(ConfigurationError, match="delta"):
        made(delta=delta)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": (0, 1, 2)}, r"expected one of the labels \[0, 1, 2\], got None"),
        ({"constraints": Constraints(2)}, "expected 3 columns, as in the data, got 2"),
        ({"cost": L1((1.0, 2.0))}, "scale: expected 3 numbers"),
    ],
    ids=str,
)
def test_nothing_is_spent_where_the_configuration_does_not_fit(options, said, monkeypatch):
    monkeypatch.setattr(DPLogisticRegression, "fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(ConfigurationError, match=said):
        made(**options).fit(*two_gaussians(30, 3))
    with pytest.raises(pytest.fail.Exception, match="trained"):
        made().fit(*two_gaussians(30, 3))


@pytest.mark.parametrize("name", EVERY)
def test_training_takes_tensors(name):
    X, y = two_gaussians(60, 3)
    given = EVERY[name](norm_bound=5.0, random_state=0).fit(torch.tensor(X, requires_grad=True), torch.tensor(y))
    same = EVERY[name](norm_bound=5.0, random_state=0).fit(X, y)
    one, other = (m.explain(X[:2], infeasible="mark") for m in (given, same))
    assert (one.counterfactual == other.counterfactual).all()
    with pytest.raises(InputError, match="masked"):
        EVERY[name](norm_bound=5.0).fit(np.ma.masked_less(X, 0), y)


RULES = Constraints(7, lower=-6, upper=6, integer=(0, 1), one_hot=((2, 3, 4),))
W = np.array([1.0, -0.7, -1.0, 0.5, 1.5, 2.0, 0.4])
STATED = PrivacyStatement("a loop of our own", 400, 1e-5, phases=(Steps(4.0, 1.0, 10, "full-batch"),))


def line(weights, bias, **options):
    """Recourse from a linear model that refuses below 0."""
    model = LogisticRegression()
    model.coef_, model.intercept_, model.classes_ = np.array([weights]), np.array([bias]), np.array([0, 1])
    return DPModelRecourse(model, privacy=STATED.bound_to(model), **options)


def queries(n=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 7))
    x[:, :2] = np.rint(x[:, :2])
    x[:, 2:5] = np.eye(3)[rng.integers(0, 3, n)]
    return x


def main_feature(found, cost, rules):
    """The feature with the largest share of each answer's cost, written as a loop: a set of columns a query."""
    main = []
    for row in found.change:
        parts = cost.parts(row[None])[0]
        features = [{column} for column in range(len(row)) if not any(column in group for group in rules.groups)]
        features += [set(group.tolist()) for group in rules.groups]
        main.append(max(features, key=lambda columns: sum(parts[list(columns)])) if row.any() else set())
    return main


def leaves_alone(answers, cost, rules):
    """Whether every later answer keeps what dominated each earlier one."""
    for at, earlier in enumerate(answers):
        for query, columns in enumerate(main_feature(earlier, cost, rules)):
            if any(later.change[query, list(columns)].any() for later in answers[at + 1 :]):
                return False
    return True


@pytest.mark.parametrize("cost", [L1(), L2((1, 2, 1, 1, 1, 3, 0.5))])
def test_later_answers_leave_alone_what_dominated_the_earlier_ones(cost):
    x, mechanism = queries(), line(W, -4.0, cost=cost, constraints=RULES)
    answers = mechanism.explain_diverse(x, 4)
    assert len(answers) == 4
    assert leaves_alone(answers, cost, RULES)
    assert not leaves_alone((answers[0], answers[0]), cost, RULES)
    np.testing.assert_array_equal(answers[0].counterfactual, mechanism.explain(x, infeasible="mark").counterfactual)
    for earlier, later in pairwise(answers):
        assert earlier.valid[later.valid].all()
        assert (later.distance >= earlier.distance - 1e-9)[later.valid].all()
        assert RULES.satisfied(x, later.counterfactual).all()
    assert (answers[1].valid & ~answers[1].favourable).sum() > 10


def test_when_the_options_run_out_later_answers_are_not_valid():
    answers = line([1.0, 2.0], -1.0, cost=L1()).explain_diverse([[0.0, 0.0], [5.0, 0.0]], 5)
    assert [bool(found.valid[0]) for found in answers] == [True, True, False, False, False]
    assert not answers[2].change.any()
    assert [found.change[0].tolist() for found in answers[:2]] == [[0, pytest.approx(0.5)], [pytest.approx(1), 0]]
    for found in answers:
        assert found.favourable.tolist() == [False, True]
        assert found.valid[1]
