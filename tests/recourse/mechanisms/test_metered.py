"""Metered recourse: no charge without an answer, no answer without a charge, and the same question once."""

import json
import pickle

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from safexplain.dp import DPLogisticRegression
from safexplain.errors import (
    BudgetExhausted,
    ConfigurationError,
    ConfigurationTypeError,
    InfeasibleError,
    InputError,
    RefusedError,
)
from safexplain.ledger import Ledger
from safexplain.recourse import Constraints, DPModelRecourse, LaplaceScore, MeteredRecourse
from safexplain.recourse.result import PRIVATE_GEOMETRY

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 400)
X = RNG.normal(size=(400, 3)) + 2 * Y[:, None]
LOW = X[Y == 0][:5]


@pytest.fixture
def ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'budget.db'}", epsilon=1.0, total_epsilon=3.0) as opened:
        yield opened


def laplace(**options):
    return LaplaceScore(epsilon=0.25, public_weights=[1, 1, 1], norm_bound=5.0, **options).fit(X, Y)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in vars(one)
        if name not in ("like", "guarantee", "advice")
    )


def test_the_same_question_gets_the_same_answer_and_costs_nothing(ledger):
    mechanism = laplace()
    first = MeteredRecourse(mechanism, ledger).explain(LOW[:2], principal="ann", infeasible="mark")
    again = MeteredRecourse(pickle.loads(pickle.dumps(mechanism)), ledger)
    assert same(again.explain(LOW[:2], principal="ann", infeasible="mark"), first)
    turned = again.explain(LOW[1::-1], principal="ann", infeasible="mark")
    assert np.array_equal(turned.score, first.score[::-1])
    assert ledger.spent("ann") == pytest.approx(0.5)
    fresh = mechanism.explain(LOW[:2], infeasible="mark")
    assert not np.array_equal(fresh.score, first.score)  # without the ledger the noise is drawn again


def test_another_principal_gets_the_stored_answer_for_its_own_money_and_the_total_pays_once(ledger):
    metered = MeteredRecourse(laplace(), ledger)
    first = metered.explain(LOW[0], principal="ann", infeasible="mark")
    assert same(metered.explain(LOW[0], principal="bob", infeasible="mark"), first)
    assert (ledger.spent("ann"), ledger.spent("bob"), ledger.total().spent) == pytest.approx((0.25, 0.25, 0.25))


def test_a_model_that_was_trained_again_is_another_question(ledger):
    for _ in range(2):
        MeteredRecourse(laplace(), ledger).explain(LOW[0], principal="ann", infeasible="mark")
    assert ledger.spent("ann") == pytest.approx(0.5)


def test_rows_that_do_not_all_fit_are_neither_charged_nor_answered(ledger):
    metered = MeteredRecourse(laplace(), ledger)
    with pytest.raises(BudgetExhausted):
        metered.explain(LOW, principal="ann")
    assert ledger.spent("ann") == 0
    metered.explain(LOW[:4], principal="ann", infeasible="mark")
    with pytest.raises(BudgetExhausted, match="ann"):
        metered.explain(LOW[4], principal="ann")


def test_a_query_that_cannot_be_answered_costs_nothing(ledger):
    metered = MeteredRecourse(laplace(constraints=Constraints(3, lower=-9, upper=9)), ledger)
    for wrong in ([np.nan, 0, 0], [0, 0], [100, 0, 0]):
        with pytest.raises(InputError):
            metered.explain(wrong, principal="ann")
    assert ledger.spent("ann") == 0


def test_no_recourse_within_the_constraints_is_an_answer_too_and_is_charged(ledger):
    fixed = laplace(constraints=Constraints(3, lower=LOW[0] - 0.01, upper=LOW[0] + 0.01), target=9.0)
    metered = MeteredRecourse(fixed, ledger)
    with pytest.raises(InfeasibleError) as caught:
        metered.explain(LOW[0], principal="ann")
    assert ledger.spent("ann") == pytest.approx(0.25)
    assert same(metered.explain(LOW[0], principal="ann", infeasible="mark"), caught.value.result)


@pytest.fixture
def wide(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'wide.db'}", epsilon=3.0, delta=1e-4) as opened:
        yield opened


def private(**options):
    return DPModelRecourse(**{"epsilon": 2.0, "delta": 1e-4, "norm_bound": 5.0, "random_state": 0, **options})


def test_a_model_trained_with_dp_answers_without_limit_for_one_charge_to_everybody(wide):
    model = private().fit(X, Y)
    metered = MeteredRecourse(model, wide)
    assert wide.total().charges == 0
    for who in ("ann", "bob"):
        assert metered.explain(X, principal=who).valid.all()
        assert len(metered.explain_diverse(X, 2, principal=who)) == 2
    [(charge, statement)] = wide.trainings()
    assert statement == model.statement
    assert {wide.spent(who) for who in ("ann", "bob", "new")} == {wide.total().spent}
    assert wide.total().spent == pytest.approx(charge.release.epsilon) == pytest.approx(2.0, abs=1e-3)
    MeteredRecourse(pickle.loads(pickle.dumps(model)), wide).explain(X[:1], principal="cid")
    assert wide.total().charges == wide.verify() == 1


def test_a_model_whose_training_does_not_fit_answers_nobody(ledger):
    metered = MeteredRecourse(private().fit(X, Y), ledger)
    for _ in range(2):
        with pytest.raises(BudgetExhausted, match=r"the training .* exceeds the budget"):
            metered.explain(LOW, principal="ann")
        with pytest.raises(BudgetExhausted, match="the training"):
            metered.explain_diverse(LOW, 2, principal="ann")
    assert ledger.total().charges == 0


def test_queries_that_no_model_answers_charge_no_training(wide):
    metered = MeteredRecourse(private().fit(X, Y), wide)
    for ask in (metered.explain, lambda x, principal: metered.explain_diverse(x, 2, principal=principal)):
        with pytest.raises(InputError):
            ask([np.nan, 0, 0], principal="ann")
    with pytest.raises(ConfigurationError, match=r"call fit\(X, y\) first"):
        MeteredRecourse(private(), wide).explain(LOW, principal="ann")
    assert wide.total().charges == 0


def test_public_weights_from_a_private_model_of_the_same_records_cost_its_training_too(wide):
    model = DPLogisticRegression(1.0, 1e-5, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, Y)
    by_hand = laplace(random_state=3)
    score = LaplaceScore(epsilon=0.25, public_weights=model, norm_bound=5.0, random_state=3).fit(X, Y)
    same_way = LaplaceScore(epsilon=0.25, public_weights=model.coef_[0], norm_bound=5.0, random_state=3).fit(X, Y)
    assert same(score.explain(LOW, infeasible="mark"), same_way.explain(LOW, infeasible="mark"))
    assert score.guarantee.statement == model.privacy_
    assert by_hand.guarantee.statement is None
    assert PRIVATE_GEOMETRY in score.guarantee.assumptions
    metered = MeteredRecourse(score, wide)
    metered.explain(LOW[:2], principal="ann", infeasible="mark")
    metered.explain(LOW[2:4], principal="bob", infeasible="mark")
    assert wide.total().spent == pytest.approx(1.0 + 4 * 0.25, abs=1e-4)
    assert wide.spent("ann") == pytest.approx(1.5, abs=1e-4)
    assert wide.spent("new") == pytest.approx(1.0, abs=1e-4)


def test_a_model_of_the_other_labels_points_the_other_way():
    model = DPLogisticRegression(1.0, 1e-5, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, Y)
    turned = LaplaceScore(epsilon=0.25, public_weights=model, classes=(1, 0), norm_bound=5.0)
    assert np.array_equal(turned._get("weights"), -model.coef_[0])


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (lambda: LogisticRegression().fit(X, Y), RefusedError, r"public_weights=model.coef_\[0\]"),
        (
            lambda: DPLogisticRegression(1.0, norm_bound=5.0, classes=[0, 1]),
            ConfigurationError,
            "got an unfitted or non-linear DPLogisticRegression",
        ),
        (private, ConfigurationError, r"call fit\(X, y\) first"),
        (lambda: altered(), RefusedError, "other weights"),
    ],
)
def test_what_is_no_private_model_gives_no_public_weights(given, error, says):
    with pytest.raises(error, match=says):
        LaplaceScore(epsilon=0.25, public_weights=given(), norm_bound=5.0)


def altered():
    model = DPLogisticRegression(1.0, 1e-5, norm_bound=5.0, classes=[0, 1], random_state=0).fit(X, Y)
    model.coef_ = model.coef_ * 2
    return model


def test_mechanisms_about_other_neighbours_do_not_share_a_ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/budget.db", epsilon=1.0, adjacency="zero_out") as ledger:
        with pytest.raises(ConfigurationError, match="expected zero_out, as in the ledger, got substitute"):
            MeteredRecourse(laplace(), ledger)
        MeteredRecourse(laplace(adjacency="zero_out"), ledger).explain(LOW[1], principal="ann", infeasible="mark")
        assert ledger.spent("ann") == pytest.approx(0.25)


def test_more_answers_later_are_made_from_the_stored_score(ledger):
    """Whatever is asked for first, in another process too: no noise is drawn again."""
    mechanism = laplace()
    first = MeteredRecourse(mechanism, ledger).explain(LOW[:2], principal="ann", infeasible="mark")
    again = MeteredRecourse(pickle.loads(pickle.dumps(mechanism)), ledger)
    one, two, five = (again.explain_diverse(LOW[:2], n, principal="ann") for n in (1, 2, 5))
    assert same(two[0], first)
    assert [len(found) for found in (one, two, five)] == [1, 2, 5]
    assert all(same(a, b) for a, b in zip(two, five, strict=False))
    assert ledger.spent("ann") == pytest.approx(0.5)
    turned = again.explain_diverse(LOW[1::-1], 5, principal="ann")
    assert all(np.array_equal(a.counterfactual, b.counterfactual[::-1]) for a, b in zip(turned, five, strict=True))
    assert all(same(a, b) for a, b in zip(again.explain_diverse(LOW[:2], 5, principal="bob"), five, strict=True))
    assert (ledger.spent("bob"), ledger.total().spent) == pytest.approx((0.5, 0.5))


def test_the_answers_are_those_that_the_mechanism_gives_to_the_same_noise(ledger):
    metered = MeteredRecourse(laplace(random_state=7), ledger).explain_diverse(LOW[:3], 3, principal="ann")
    alone = laplace(random_state=7).explain_diverse(LOW[:3], 3)
    assert all(same(a, b) for a, b in zip(metered, alone, strict=True))


def test_an_answer_that_an_older_safexplain_stored_is_not_called_proven(ledger):
    metered = MeteredRecourse(laplace(), ledger)
    before = metered.explain(LOW[0], principal="ann", infeasible="mark")
    with ledger._storage.transaction() as execute:
        [(text,)] = execute("SELECT value FROM ledger_answers", ())
        old = {name: value for name, value in json.loads(text).items() if name != "proven"}
        execute("UPDATE ledger_answers SET value = ?", (json.dumps(old),))
    after = metered.explain(LOW[0], principal="ann", infeasible="mark")
    assert np.array_equal(after.counterfactual, before.counterfactual)
    assert after.proven.tolist() == [False]


def test_a_wrong_number_of_answers_is_refused_before_anything_is_charged(ledger):
    metered = MeteredRecourse(laplace(), ledger)
    for wrong in (0, 1.5, "2"):
        with pytest.raises(ConfigurationError, match="answers"):
            metered.explain_diverse(LOW, wrong, principal="ann")
    with pytest.raises(ConfigurationError, match='infeasible: expected "raise" or "mark"'):
        metered.explain(LOW[0], principal="ann", infeasible="Raise")
    with pytest.raises(ConfigurationTypeError, match="principal"):
        metered.explain_diverse(LOW, 2, principal=None)
    with pytest.raises(BudgetExhausted):
        metered.explain_diverse(LOW, 2, principal="ann")
    assert ledger.total().charges == 0


def test_what_cannot_be_charged_is_told(ledger):
    with pytest.raises(ConfigurationTypeError, match="expected a mechanism"):
        MeteredRecourse(object(), ledger)
    with pytest.raises(ConfigurationTypeError, match="ledger: expected an open Ledger"):
        MeteredRecourse(laplace(), Ledger)
    with pytest.raises(ConfigurationTypeError, match="principal"):
        MeteredRecourse(laplace(), ledger).explain(LOW[0], principal=None)


def test_the_ledger_holds_no_trace_of_the_private_weights(ledger, tmp_path):
    mechanism = laplace()
    MeteredRecourse(mechanism, ledger).explain(LOW[0], principal="ann", infeasible="mark")
    ledger.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    weights = mechanism._get("model").weights
    assert all(repr(float(w)).encode() not in stored and w.tobytes() not in stored for w in weights)
    assert mechanism.identity.encode() in stored
