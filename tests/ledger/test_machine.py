"""A ledger against a slow one in memory, over random histories: charges, answers, grants, clocks, restarts."""

import random
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial

import pytest

from safexplain.ledger import BudgetExhausted, Pure


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_agree_with_a_slow_ledger(make, clock, monkeypatch, seed):
    """Lists of epsilons, added up anew each time; without a delta there is only the basic rule."""
    monkeypatch.setattr("safexplain.ledger.storage.os.fdatasync", lambda file: None)  # nothing crashes here
    rng, ledger = random.Random(seed), make(epsilon=0.5, period="day", total_epsilon=2.0)
    budgets = {"ann": Fraction("0.5"), "bob": Fraction("0.5"), "": Fraction(2)}
    charged, count, refused = {"ann": [], "bob": [], "": []}, 0, 0
    answers, owned, latest = {}, set(), datetime(1970, 1, 1, tzinfo=UTC)

    def sums(key):
        """Of all time for "", else of the latest day that the ledger knows of."""
        return [] if key and clock.at.date() > latest.date() else charged[key]

    def record():
        nonlocal latest
        if clock.at.date() > latest.date():
            charged["ann"], charged["bob"] = [], []
        latest = max(latest, clock.at)

    def try_to(ask, name, epsilon, repeated=False):
        """Ask, and expect a refusal where a limit would be broken; whether it was answered."""
        nonlocal count, refused
        keys = [name] if repeated else [name, ""]
        if any(sum(sums(key)) + epsilon > budgets[key] for key in keys):
            with pytest.raises(BudgetExhausted):
                ask()
            refused += 1
            return False
        assert ask().repeated == repeated
        record()
        count += 1
        for key in keys:
            charged[key].append(epsilon)
        return True

    for _ in range(150):
        name, epsilon = rng.choice(["ann", "bob"]), Fraction(rng.choice(["0.125", "0.01", "0.3"]))
        match rng.randrange(6):
            case 0:
                try_to(partial(ledger.charge, name, epsilon=float(epsilon)), name, epsilon)
            case 1 | 2:
                question, release = rng.choice("abcdef"), Pure(float(epsilon))
                if (name, question) in owned:
                    again = ledger.answer(name, question, lambda: pytest.fail("it was answered"), release)
                    assert (again.value, again.charge) == (answers[question][0], None), "what was told is told again"
                    continue
                value, cost = answers.get(question, (count, epsilon))
                ask = partial(ledger.answer, name, question, lambda value=value: value, release)
                if try_to(lambda ask=ask: ask().charge, name, cost, question in answers):
                    answers[question] = value, cost
                    owned.add((name, question))
            case 3:
                clock.at += timedelta(hours=rng.choice([-30, -1, 1, 5, 30]))
            case 4:
                key = rng.choice(["ann", "bob", ""])
                budgets[key] += Fraction(rng.choice(["0.25", "0.01"]))
                ledger.grant(key or None, epsilon=float(budgets[key]))
                record()
            case 5:
                ledger.close()
                ledger = make()
        for key, budget in budgets.items():
            account, slow = ledger.account(key) if key else ledger.total(), sums(key)
            assert (account.spent, account.epsilon, account.charges) == (float(sum(slow)), float(budget), len(slow))
    assert ledger.verify() == count
    assert min(count, refused) >= 5, "the history is long enough to be a test"
