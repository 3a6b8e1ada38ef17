import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from safexplain.errors import ConfigurationError, InputError
from safexplain.ledger import BudgetExhausted, Pure
from tests.ledger.conftest import gaussian, in_each_database


def never():
    raise AssertionError("computed in vain")


@in_each_database
def test_the_same_question_costs_nothing_the_second_time(make):
    ledger = make(epsilon=1.0)
    first = ledger.answer("ann", "why?", lambda: {"score": 0.25}, Pure(0.5), mechanism="LaplaceScore")
    assert first.charge.digest == hashlib.sha256(json.dumps({"score": 0.25}).encode()).hexdigest()
    again = ledger.answer("ann", "why?", never, Pure(0.5))
    assert (again.value, again.charge) == ({"score": 0.25}, None)
    assert first.paid == again.paid == first.charge.id == 1
    assert ledger.spent("ann") == 0.5
    assert ledger.answer("ann", b"why?", lambda: 2, Pure(0.5)).value == 2, "bytes are another question"
    assert ledger.answer("ann", "why?", never, Pure(0.5)).value == {"score": 0.25}, "also with nothing left"


@in_each_database
def test_another_principal_gets_the_same_answer_and_the_total_is_not_charged_again(make):
    ledger = make(epsilon=1.0, total_epsilon=1.0)
    mine = ledger.answer("ann", "why?", lambda: [1, 2], Pure(0.75))
    theirs = ledger.answer("bob", "why?", never, Pure(0.1))
    assert theirs.value == mine.value
    assert theirs.charge.repeated
    assert theirs.charge.release == Pure(0.75), "it is charged as it was made"
    assert (ledger.spent("ann"), ledger.spent("bob"), ledger.total().spent) == (0.75, 0.75, 0.75)
    assert ledger.total().charges == 1
    with pytest.raises(BudgetExhausted):
        ledger.answer("bob", "what?", never, Pure(0.5))
    assert ledger.verify() == 2


def test_a_failing_computation_charges_nothing(make):
    ledger = make(epsilon=1.0)
    with pytest.raises(ZeroDivisionError):
        ledger.answer("ann", "why?", lambda: 1 / 0, Pure(0.5))
    for unfit in (object(), float("nan"), {1j}):
        with pytest.raises(InputError, match="JSON"):
            ledger.answer("ann", "why?", lambda unfit=unfit: unfit, Pure(0.5))
    assert ledger.spent("ann") == 0
    assert list(ledger.charges()) == []
    assert ledger.answer("ann", "why?", lambda: 1, Pure(0.5)).value == 1


def test_an_answer_that_no_longer_fits_is_neither_charged_nor_stored(make):
    ledger, other = make(epsilon=1.0), make()

    def slow():
        other.charge("ann", epsilon=0.75)
        return 1

    with pytest.raises(BudgetExhausted):
        ledger.answer("ann", "why?", slow, Pure(0.5))
    assert ledger.spent("ann") == 0.75
    assert ledger._storage.read("SELECT COUNT(*) FROM ledger_answers")[0][0] == 0


@in_each_database
def test_who_was_faster_is_believed(make):
    ledger, other = make(epsilon=1.0, total_epsilon=5.0), make()

    def slow():
        other.answer("bob", "why?", lambda: "theirs", Pure(0.25))
        return "mine"

    answer = ledger.answer("ann", "why?", slow, Pure(0.5))
    assert (answer.value, answer.charge.release, answer.charge.repeated) == ("theirs", Pure(0.25), True)
    assert (ledger.spent("ann"), ledger.total().spent) == (0.25, 0.25)
    again = ledger.answer(
        "bob", "what?", lambda: other.answer("bob", "what?", lambda: 1, Pure(0.5)).value + 1, Pure(0.5)
    )
    assert (again.value, again.charge, ledger.spent("bob")) == (1, None, 0.75), "nobody pays twice for racing oneself"


@in_each_database
def test_threads_that_ask_the_same_pay_once(make):
    ledger = make(epsilon=1.0)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: ledger.answer("ann", "why?", lambda: i, Pure(0.5)), range(8)))
    assert len({a.value for a in answers}) == 1
    assert sum(a.charge is not None for a in answers) == 1
    assert ledger.spent("ann") == 0.5


def test_many_questions_are_answered_together(make):
    ledger, asked = make(epsilon=1.0, delta=1e-6), []

    def compute(positions):
        asked.append(positions)
        return [f"answer {i}" for i in positions]

    first = ledger.answer_many("ann", ["a", "b", "a"], compute, Pure(0.125))
    assert [a.value for a in first] == ["answer 0", "answer 1", "answer 0"]
    assert [a.charge is None for a in first] == [False, False, True]
    second = ledger.answer_many("ann", ["c", "b", "d"], compute, [Pure(0.25), Pure(9.0), Pure(0.125)])
    assert [a.value for a in second] == ["answer 0", "answer 1", "answer 2"]
    assert asked == [[0, 1], [0, 2]]
    assert ledger.spent("ann") == 0.625
    assert ledger.answer_many("ann", [], compute, Pure(1.0)) == ()


def test_many_questions_are_all_answered_or_none(make):
    ledger = make(epsilon=1.0)
    with pytest.raises(BudgetExhausted):
        ledger.answer_many("ann", ["a", "b", "c"], lambda positions: never(), Pure(0.4))
    with pytest.raises(InputError, match="expected 3 answers, got "):
        ledger.answer_many("ann", ["a", "b", "c"], lambda positions: [1, 2], Pure(0.1))
    with pytest.raises(ConfigurationError, match="expected one, or one for each of 2 questions, got 3"):
        ledger.answer_many("ann", ["a", "b"], lambda positions: [1, 2], [Pure(0.1)] * 3)
    with pytest.raises(ConfigurationError, match="sequence"):
        ledger.answer_many("ann", "ab", lambda positions: [1, 2], Pure(0.1))
    with pytest.raises(ConfigurationError, match="text or bytes"):
        ledger.answer("ann", 7, never, Pure(0.1))
    assert (ledger.spent("ann"), list(ledger.charges())) == (0.0, [])


@in_each_database
def test_more_questions_than_one_statement_takes(make, monkeypatch):
    monkeypatch.setattr("safexplain.ledger.storage.CHUNK", 7)
    ledger = make(epsilon=5.0, delta=1e-6)
    questions = [f"q{i}" for i in range(40)]
    first = ledger.answer_many("ann", questions, lambda positions: positions, gaussian(0.01))
    again = ledger.answer_many("ann", questions, lambda positions: never(), gaussian(0.01))
    assert [a.value for a in first] == [a.value for a in again] == list(range(40))
    assert ledger.verify() == 40
