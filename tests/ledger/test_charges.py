import csv
import io
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from safexplain.errors import ConfigurationError, InputError, LedgerError
from safexplain.ledger import BudgetExhausted, Ledger, Pure, storage
from tests.ledger.conftest import gaussian, in_each_database


@in_each_database
def test_a_charge_is_recorded_with_all_that_was_said(make):
    ledger = make(epsilon=1.0, delta=1e-6)
    charge = ledger.charge("ann", Pure(0.2), mechanism="LaplaceScore", parameters={"bound": [1, 2.5]})
    assert list(ledger.charges()) == [charge]
    assert (charge.principal, charge.release, charge.mechanism) == ("ann", Pure(0.2), "LaplaceScore")
    assert charge.parameters == {"bound": [1, 2.5]}
    assert (charge.period, charge.question, charge.repeated) == (None, None, False)
    assert charge.time == datetime(2026, 3, 11, 12, tzinfo=UTC)


@in_each_database
def test_the_eleventh_tenth_is_refused_and_leaves_no_trace(make):
    ledger = make(epsilon=1.0, delta=1e-6)
    for i in range(10):
        ledger.charge("ann", epsilon=0.1)
        assert ledger.spent("ann") == pytest.approx((i + 1) / 10, abs=1e-12)
    with pytest.raises(BudgetExhausted, match="nothing was charged") as refused:
        ledger.charge("ann", epsilon=0.1)
    error = refused.value
    assert (error.principal, error.requested, error.spent, error.budget, error.renews) == ("ann", 0.1, 1.0, 1.0, None)
    assert len(list(ledger.charges())) == ledger.account("ann").charges == 10
    assert ledger.spent("ann") == 1.0
    assert ledger.charge("bob", epsilon=0.1).principal == "bob"
    assert (ledger.spent("nobody"), ledger.account("nobody").remaining) == (0.0, 1.0)
    assert [account.principal for account in ledger.accounts()] == ["ann", "bob"]
    assert (ledger.total().spent, ledger.total().remaining) == (1.1, float("inf")), "counted without a limit too"


def test_without_a_limit_the_total_is_reported_at_a_delta_that_covers_all_charges(make):
    ledger = make(epsilon=1.0, delta=0.75)
    for name, delta in (("ann", 0.25), ("bob", 0.375), ("cid", 0.25)):
        ledger.charge(name, epsilon=0.25, delta=delta)
        total = ledger.total()
        assert (total.spent, total.delta) == (0.25 * total.charges, (0.75, 0.75, 0.875)[total.charges - 1])
    ledger.charge("dan", epsilon=0.25, delta=0.25)
    assert (ledger.total().spent, ledger.total().delta) == (math.inf, 1.0)


def test_a_gaussian_release_without_delta_says_what_is_missing(make):
    ledger = make(epsilon=1.0)
    with pytest.raises(ConfigurationError, match="delta above 0"):
        ledger.charge("ann", mu=0.1)
    with pytest.raises(BudgetExhausted):
        ledger.charge("ann", epsilon=0.1, delta=1e-9)


def test_all_together_may_have_a_budget(make):
    ledger = make(epsilon=1.0, total_epsilon=1.5)
    for name, epsilon in (("ann", 0.5), ("bob", 0.5), ("cid", 0.5)):
        ledger.charge(name, epsilon=epsilon)
    with pytest.raises(BudgetExhausted, match="all principals together") as refused:
        ledger.charge("dee", epsilon=0.1)
    assert refused.value.principal is None
    assert ledger.total().spent == ledger.total().epsilon == 1.5
    assert ledger.spent("dee") == 0.0
    assert ledger.verify() == 3


@in_each_database
def test_a_grant_replaces_a_budget_and_is_recorded(make):
    ledger = make(epsilon=1.0, delta=1e-6)
    ledger.charge("ann", epsilon=0.75)
    account = ledger.grant("ann", epsilon=2.0, note="contract 7")
    assert (account.epsilon, account.delta, account.spent, account.remaining) == (2.0, 1e-6, 0.75, 1.25)
    ledger.charge("ann", epsilon=1.25)
    with pytest.raises(BudgetExhausted):
        ledger.charge("ann", epsilon=1e-6)
    ledger.grant("ann", epsilon=0.5)
    assert ledger.account("ann").remaining == 0.0
    assert [(g.principal, g.epsilon, g.note) for g in ledger.grants()] == [("ann", 2.0, "contract 7"), ("ann", 0.5, "")]
    assert ledger.account("bob").epsilon == 1.0
    assert ledger.grant(None, epsilon=2.5).principal == ""
    ledger.charge("bob", epsilon=0.5)
    with pytest.raises(BudgetExhausted, match="all principals"):
        ledger.charge("bob", epsilon=0.1)
    assert ledger.verify() == 3
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "1", None):
        with pytest.raises(ConfigurationError, match="epsilon"):
            ledger.grant("ann", epsilon=wrong)
    for wrong in (-1e-9, 1.0, 1.5):
        with pytest.raises(ConfigurationError, match="delta"):
            ledger.grant("ann", epsilon=1.0, delta=wrong)
    assert ledger.grant("ann", epsilon=1.0, delta=0.0).delta == 0


@in_each_database
def test_charges_can_be_looked_through(make, clock):
    ledger = make(epsilon=5.0)
    for i in range(4):
        ledger.charge("ann" if i % 2 else "bob", epsilon=0.1, parameters={"i": i})
        clock.at += timedelta(hours=1)
    assert [c.parameters["i"] for c in ledger.charges()] == [0, 1, 2, 3]
    assert [c.parameters["i"] for c in ledger.charges("ann")] == [1, 3]
    since = datetime(2026, 3, 11, 14, tzinfo=UTC)
    assert [c.parameters["i"] for c in ledger.charges(since=since)] == [2, 3]
    assert [c.parameters["i"] for c in ledger.charges("ann", since=since.replace(tzinfo=None))] == [3]


def test_more_charges_than_one_page_are_looked_through(sqlite_url, monkeypatch):
    assert (storage.PAGE, storage.CHUNK) == (2000, 500)
    monkeypatch.setattr("safexplain.ledger.storage.PAGE", 3)
    with Ledger(sqlite_url, epsilon=5.0) as ledger:
        for _ in range(10):
            ledger.charge("ann", epsilon=0.1)
        assert [c.id for c in ledger.charges()] == list(range(1, 11))
        assert ledger.verify() == 10


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_an_export_has_every_charge(make, tmp_path, format):
    ledger = make(epsilon=5.0, delta=1e-6, period="month")
    ledger.charge('ann, of "A"', Pure(0.2), mechanism="LaplaceScore", parameters={"x": 1})
    ledger.charge("bob", epsilon=0.1, delta=1e-9)
    ledger.answer("cid", "q", lambda: 1, gaussian(0.1))
    assert ledger.export(tmp_path / "out", format=format) == 3
    stream = io.StringIO()
    ledger.export(stream, format=format)
    text = (tmp_path / "out").read_text()
    assert text == stream.getvalue()
    with pytest.raises(ConfigurationError, match="jsonl"):
        ledger.export(stream, format="xml")
    rows = [json.loads(x) for x in text.splitlines()] if format == "jsonl" else list(csv.DictReader(io.StringIO(text)))
    first = rows[0]
    assert (first["principal"], first["kind"], float(first["epsilon"])) == ('ann, of "A"', "pure", 0.2)
    assert rows[1]["kind"] == "approximate"
    assert float(rows[1]["delta"]) == 1e-9
    assert len(rows[2]["digest"]) == len(rows[2]["question"]) == 64
    assert first["period"] == "2026-03-01T00:00:00+00:00"


def test_names_that_look_like_others_or_break_a_line_are_refused(make):
    ledger = make(epsilon=1.0)
    unprintable = ("a\0b", "\ud800", "an\u200bn", "\u202eann", "a\ue000n", "a\u2028n")
    for name in ("", "x" * 501, "ann ", "\u3000ann", *unprintable):
        with pytest.raises(InputError, match="principal"):
            ledger.charge(name, epsilon=0.1)
    assert ledger.accounts() == []


@pytest.mark.parametrize(
    ("name", "alike"), [("José", "Jose\u0301"), ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"), ("ann", "\uff41nn")]
)
def test_two_spellings_of_one_name_are_one_account_and_capitals_another(make, name, alike):
    """An é of one character and an e with an accent after it look alike, and must not have two budgets."""
    ledger = make(epsilon=1.0)
    ledger.charge(name, epsilon=0.5)
    ledger.answer(alike, "why?", lambda: 1, Pure(0.25))
    ledger.charge(name.upper() + "!", epsilon=0.125)
    assert ledger.spent(name) == ledger.spent(alike) == 0.75
    assert [account.spent for account in ledger.accounts()] in ([0.75, 0.125], [0.125, 0.75])
    assert ledger.answer(name, "why?", lambda: 2, Pure(0.25)).charge is None
    with pytest.raises(BudgetExhausted):
        ledger.charge(alike, epsilon=0.5)
    assert ledger.grant(alike, epsilon=2.0).principal == name
    assert ledger.account(name).epsilon == 2.0
    assert ledger.verify() == 3


@in_each_database
def test_names_and_notes_are_only_text(make):
    ledger = make(epsilon=1.0)
    for name in ("'; DROP TABLE ledger_charges; --", "ünïcödé 🙂", "%s ? {}", "a b", "x" * 500):
        ledger.charge(name, epsilon=0.25, mechanism=name, parameters={name: name})
        assert ledger.spent(name) == 0.25
    assert len(ledger.accounts()) == 5
    with pytest.raises(ConfigurationError, match="expected a name"):
        ledger.charge(7, epsilon=0.1)
    with pytest.raises(InputError, match="JSON"):
        ledger.charge("ann", epsilon=0.1, parameters={"x": float("nan")})
    assert ledger.verify() == 5


@in_each_database
def test_a_ledger_keeps_its_budgets(make):
    make(epsilon=1.0, delta=1e-6, period="day", total_epsilon=10.0)
    again = make()
    assert (again.account("ann").epsilon, again.account("ann").delta, again.account("ann").period) == (1.0, 1e-6, "day")
    assert (again.total().epsilon, again.total().delta) == (10.0, 1e-6)
    make(epsilon=1.0, delta=1e-6, period="day", total_epsilon=10.0, total_delta=1e-6)
    assert again._storage.timeout == 10.0, "seconds, unless others are named"
    for other in ({"epsilon": 2.0}, {"delta": 0.0}, {"period": "week"}, {"total_epsilon": 11.0}):
        with pytest.raises(ConfigurationError, match="safexplain ledger grant"):
            make(**other)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "needs a budget"),
        ({"epsilon": 0.0}, "epsilon must be greater than 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must be less than 1"),
        ({"epsilon": 1.0, "delta": -1e-9}, "delta must be at least 0"),
        ({"epsilon": 1.0, "period": "year"}, "period: expected one of lifetime"),
        ({"epsilon": 1.0, "total_delta": 0.1}, "needs total_epsilon"),
        ({"epsilon": 1.0, "adjacency": "both"}, "adjacency: expected one of"),
        ({"epsilon": 1.0, "timeout": 0}, "timeout must be"),
    ],
)
def test_a_ledger_is_not_made_with_settings_that_make_no_sense(make, sqlite_url, wrong, says):
    with pytest.raises(ConfigurationError, match=says):
        make(**wrong)
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE ledger_accounts SET epsilon = '5' WHERE principal = 'ann'", "the sums of 'ann' differ"),
        ("DELETE FROM ledger_charges WHERE id = 2", "sums of the total.*; the sums of 'ann'"),
        ("UPDATE ledger_charges SET principal = 'eve' WHERE id = 2", "'eve' has charges but no account"),
        ("UPDATE ledger_charges SET period = 7 WHERE id = 2", "sums of 'ann'"),
        ("DELETE FROM ledger_answers", "answer of charge 1 is missing"),
        ("UPDATE ledger_answers SET value = '2'", "answer of charge 1 is altered"),
        ("INSERT INTO ledger_answers VALUES ('abc', '1', '{}')", "answer to abc... was charged to nobody"),
    ],
)
def test_what_was_tampered_with_is_found(make, damage, says):
    ledger = make(epsilon=1.0, delta=1e-6)
    ledger.answer("ann", "why?", lambda: 1, Pure(0.5))
    ledger.charge("ann", mu=0.1)
    assert ledger.verify() == 2
    with ledger._storage.transaction() as execute:
        execute(damage, ())
    with pytest.raises(LedgerError, match=says):
        ledger.verify()
