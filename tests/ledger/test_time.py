from datetime import UTC, datetime, timedelta

import pytest

from safexplain.ledger import BudgetExhausted, Pure
from safexplain.ledger.records import instant, microseconds, next_period, period_start
from safexplain.ledger.storage import anchored_clock
from tests.ledger.conftest import gaussian, in_each_database


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
