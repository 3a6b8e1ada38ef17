"""Metered recourse: no charge without an answer, no answer without a charge, and the same question once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from recourse_privacy_oracle import NotPrivate

from safexplain.errors import (
    BudgetExhausted,
    ConfigurationError,
    ConfigurationTypeError,
    InfeasibleError,
    InputError,
    RefusedError,
)
from safexplain.ledger import Ledger
from safexplain.recourse import (
    Constraints,
    DPModelRecourse,
    LaplaceScore,
    MeteredRecourse,
    PublicDirection,
)

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
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def test_each_row_is_charged_what_the_mechanism_says(ledger):
    metered = MeteredRecourse(laplace(), ledger)
    answer = metered.explain(LOW[:3], principal="ann", infeasible="mark")
    assert len(answer) == 3
    assert ledger.spent("ann") == pytest.approx(0.75)
    assert [c.mechanism for c in ledger.charges()] == ["LaplaceScore"] * 3


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


def test_a_table_with_its_columns_in_another_order_is_refused_and_costs_nothing(ledger):
    pandas = pytest.importorskip("pandas")
    metered = MeteredRecourse(laplace(constraints=Constraints(("age", "debt", "pay"))), ledger)
    table = pandas.DataFrame(LOW[:1], columns=["debt", "age", "pay"])
    with pytest.raises(InputError, match="expected the columns age, debt, pay"):
        metered.explain(table, principal="ann")
    assert ledger.spent("ann") == 0
    metered.explain(table[["age", "debt", "pay"]], principal="ann", infeasible="mark")
    assert ledger.spent("ann") == pytest.approx(0.25)


def test_no_recourse_within_the_constraints_is_an_answer_too_and_is_charged(ledger):
    fixed = laplace(constraints=Constraints(3, lower=LOW[0] - 0.01, upper=LOW[0] + 0.01), target=9.0)
    metered = MeteredRecourse(fixed, ledger)
    with pytest.raises(InfeasibleError) as caught:
        metered.explain(LOW[0], principal="ann")
    assert ledger.spent("ann") == pytest.approx(0.25)
    assert same(metered.explain(LOW[0], principal="ann", infeasible="mark"), caught.value.result)


@pytest.mark.parametrize("infeasible", ["Raise", "", None])
def test_a_word_that_says_nothing_about_infeasible_queries_is_refused_and_costs_nothing(ledger, infeasible):
    by_model = DPModelRecourse(epsilon=2.0, delta=1e-4, norm_bound=5.0, random_state=0).fit(X, Y)
    for mechanism in (laplace(), by_model):
        with pytest.raises(ConfigurationError, match='infeasible: expected "raise" or "mark"'):
            MeteredRecourse(mechanism, ledger).explain(LOW[0], principal="ann", infeasible=infeasible)
    assert list(ledger.charges()) == []


@pytest.mark.parametrize("wrong", ["sqlite:///budget.db", None, Ledger])
def test_what_is_no_ledger_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationTypeError, match="ledger: expected an open Ledger"):
        MeteredRecourse(laplace(), wrong)


def test_a_model_trained_with_dp_answers_without_limit_and_without_a_charge(ledger):
    model = DPModelRecourse(epsilon=2.0, delta=1e-4, norm_bound=5.0, random_state=0).fit(X, Y)
    answer = MeteredRecourse(model, ledger).explain(X, principal="ann")
    assert answer.valid.all()
    assert list(ledger.charges()) == []


def test_public_directions_are_metered_too(ledger):
    mechanism = PublicDirection([1.0, 1.0, 1.0], epsilon=0.5, norm_bound=5.0).fit(X, Y)
    MeteredRecourse(mechanism, ledger).explain(LOW[0], principal="ann", infeasible="mark")
    assert ledger.spent("ann") == pytest.approx(0.5)


def test_what_is_not_private_is_not_charged(ledger):
    with pytest.raises(RefusedError, match="cannot be charged"):
        MeteredRecourse(NotPrivate(), ledger)
    with pytest.raises(ConfigurationTypeError, match="expected a mechanism"):
        MeteredRecourse(object(), ledger)
    with pytest.raises(ConfigurationTypeError, match="principal"):
        MeteredRecourse(laplace(), ledger).explain(LOW[0], principal=None)


def test_the_ledger_holds_no_trace_of_the_private_weights(ledger, tmp_path):
    mechanism = laplace()
    MeteredRecourse(mechanism, ledger).explain(LOW[0], principal="ann", infeasible="mark")
    ledger.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    weights = mechanism._trained().weights
    assert all(repr(float(w)).encode() not in stored and w.tobytes() not in stored for w in weights)
    assert mechanism.identity.encode() in stored
