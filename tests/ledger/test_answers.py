import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from safexplain.errors import ConfigurationError, InputError
from safexplain.ledger import BudgetExhausted, Pure
from safexplain.ledger.records import instant, microseconds, next_period, period_start
from safexplain.ledger.storage import anchored_clock
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


@pytest.mark.parametrize(
    ("period", "at", "begun", "next_one"),
    [
        ("day", "2026-03-11T00:00", "2026-03-11", "2026-03-12"),
        ("day", "2024-02-28T23:59:59.999999", "2024-02-28", "2024-02-29"),
        ("week", "2026-03-09T00:00", "2026-03-09", "2026-03-16"),
        ("week", "2026-01-01T00:00", "2025-12-29", "2026-01-05"),
        ("month", "2026-03-31T23:59", "2026-03-01", "2026-04-01"),
        ("month", "2026-12-31T23:59", "2026-12-01", "2027-01-01"),
    ],
)
def test_periods_are_those_of_the_calendar(period, at, begun, next_one):
    def utc(text):
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    micros = microseconds(utc(at))
    assert instant(period_start(period, micros)) == utc(begun)
    assert next_period(period, micros) == utc(next_one)


@in_each_database
def test_a_budget_renews_with_the_period(make, clock):
    ledger = make(epsilon=1.0, period="day", total_epsilon=1.75)
    ledger.charge("ann", epsilon=1.0)
    clock.at = datetime(2026, 3, 11, 23, 59, 59, 999_999, tzinfo=UTC)
    with pytest.raises(BudgetExhausted, match="renews at 2026-03-12 00:00 UTC") as refused:
        ledger.charge("ann", epsilon=0.5)
    assert refused.value.renews == datetime(2026, 3, 12, tzinfo=UTC)
    clock.at = datetime(2026, 3, 12, tzinfo=UTC)
    assert (ledger.spent("ann"), ledger.account("ann").renews) == (0.0, datetime(2026, 3, 13, tzinfo=UTC))
    ledger.charge("ann", epsilon=0.5)
    assert (ledger.spent("ann"), ledger.account("ann").charges) == (0.5, 1)
    with pytest.raises(BudgetExhausted, match="all principals together") as refused:
        ledger.charge("ann", epsilon=0.5)
    assert refused.value.renews is None
    assert ledger.verify() == 2


@in_each_database
def test_a_clock_set_back_opens_no_period_again(make, clock):
    ledger = make(epsilon=1.0, period="day")
    ledger.charge("ann", epsilon=1.0)
    for back in (timedelta(hours=1), timedelta(days=1), timedelta(days=400)):
        clock.at -= back
        with pytest.raises(BudgetExhausted):
            ledger.charge("ann", epsilon=0.25)
        with pytest.raises(BudgetExhausted):
            make().charge("ann", epsilon=0.25)  # another process: what counts is what the ledger recorded
        assert ledger.spent("ann") == 1.0
        ledger.charge(f"somebody {back}", epsilon=0.5)
    times = [c.time for c in ledger.charges()]
    assert times == sorted(times)


def test_the_rule_of_an_account_is_chosen_anew_in_each_period(make, clock):
    ledger = make(epsilon=1.0, delta=1e-6, period="day")
    ledger.charge("ann", gaussian(0.1))
    assert ledger.account("ann").rule == "renyi"
    clock.at += timedelta(days=1)
    ledger.charge("ann", Pure(0.5))
    assert ledger.account("ann").rule == "basic"
    assert ledger.verify() == 2


def test_a_process_does_not_notice_that_its_wall_clock_is_set():
    wall, steady = [10**18], [5 * 10**9]
    clock = anchored_clock(lambda: wall[0], lambda: steady[0])
    assert clock() == 10**15
    wall[0] += 86400 * 10**9
    assert clock() == 10**15
    steady[0] += 2_000_000
    assert clock() == 10**15 + 2000
    wall[0] = 0
    assert clock() == 10**15 + 2000


def test_the_usual_clock_tells_the_time():
    first = anchored_clock()()
    assert abs(first - datetime.now(UTC).timestamp() * 1e6) < 5e6
