"""A ledger against a slow one in memory, over random histories: charges, answers, grants, clocks, restarts."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from safexplain.ledger import Approximate, BudgetExhausted, Concentrated, Ledger, Pure
from tests.ledger.conftest import gaussian

START = datetime(2026, 3, 11, 12, tzinfo=UTC)
NAMES = st.sampled_from(["ann", "bob"])
RELEASES = st.sampled_from([Pure(0.125), Pure(0.01), Approximate(0.125, 1e-7), gaussian(0.05), Pure(0.01), Pure(0.02)])
ORDERS = (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0)


def epsilon_of(release):
    return math.inf if isinstance(release, Concentrated) else Fraction(str(release.epsilon))


def delta_of(release):
    return Fraction(0) if isinstance(release, Concentrated) else Fraction(str(getattr(release, "delta", 0)))


def divergence(releases, order):
    """By dp-accounting; of a pure release by its formula."""
    accountant, more = RdpAccountant([order]), 0.0
    for r in releases:
        if isinstance(r, Concentrated):
            accountant.compose(GaussianDpEvent(1 / math.sqrt(2 * r.rho)))
        else:
            p = math.exp(r.epsilon) / (1 + math.exp(r.epsilon))
            more += math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
    return float(accountant._rdp[0]) + more


@dataclass
class Slow:
    """An account as a list of releases, added up anew at every question; rule and order are taken from the ledger."""

    releases: list = field(default_factory=list)

    def spent(self, rule, order, changed_at, epsilon, delta):
        """The smallest epsilon at which they would be allowed."""
        before, after = self.releases[:changed_at], self.releases[changed_at:]
        used, left = sum(map(epsilon_of, before)), Fraction(str(delta)) - sum(map(delta_of, before))
        failures = sum(map(delta_of, after))
        if failures > (left if rule == "basic" else left / 4):
            return math.inf
        found = sum(map(epsilon_of, after))
        if rule == "renyi":
            for at, share in ((order, 1 / 2), *((o, 1 / 32) for o in ORDERS)):
                found = min(found, compute_epsilon([at], [divergence(after, at)], float(left) * share)[0])
        return float(used + found)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now, self.latest = START, datetime(1970, 1, 1, tzinfo=UTC)
        self.url = f"sqlite:///{self.folder.name}/ledger.db"
        self.ledger = Ledger(
            self.url, epsilon=0.5, delta=1e-6, period="day", total_epsilon=2.0, total_delta=2e-6, clock=self.clock
        )
        self.budgets = {}
        self.mine = {"ann": Slow(), "bob": Slow()}
        self.changed = {"ann": None, "bob": None, "": None}
        self.total, self.answers, self.owned, self.count = Slow(), {}, set(), 0

    def clock(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    def budget(self, name):
        return self.budgets.get(name, (2.0, 2e-6) if name == "" else (0.5, 1e-6))

    def charged(self, name, release, repeated=False):
        self.recorded()
        self.count += 1
        for key, account in ((name, self.mine[name]), *([] if repeated else [("", self.total)])):
            account.releases.append(release)
            rule_now = (self.ledger.account(key) if key else self.ledger.total()).rule
            if rule_now != "basic" and self.changed[key] is None:
                self.changed[key] = len(account.releases) - 1

    def refused(self, name, release, error):
        """The refused release would in truth have broken a limit."""
        key = "" if error.principal is None else name
        before = [] if key and self.is_new_day() else (self.mine[name] if key else self.total).releases
        slow = Slow([*before, release])
        epsilon, delta = self.budget(key)
        account = self.ledger._balances(self.ledger._storage.read, key).mine.sums
        after = account.add(release, type(self.ledger._settings.principal_budget)(epsilon, delta))
        at = self.changed[key]
        if at is None or not before:
            at = len(before) if after.rule != "basic" else len(slow.releases)
        assert slow.spent(after.rule, after.order, at, epsilon, delta) > epsilon * (1 - 1e-6)

    def is_new_day(self):
        """Whether the ledger's date is later than all that it recorded."""
        return self.now.date() > self.latest.date()

    def recorded(self):
        """Something was written at this time; on a new day sums begin anew."""
        if self.is_new_day():
            self.mine = {name: Slow() for name in self.mine}
            self.changed = {"ann": None, "bob": None, "": self.changed[""]}
        self.latest = max(self.latest, self.now)

    @rule(name=NAMES, release=RELEASES)
    def charge(self, name, release):
        try:
            self.ledger.charge(name, release)
        except BudgetExhausted as error:
            self.refused(name, release, error)
        else:
            self.charged(name, release)

    @rule(name=NAMES, question=st.sampled_from("abc"), release=RELEASES)
    def answer(self, name, question, release):
        stored = self.answers.get(question)
        real = stored[1] if stored else release
        try:
            answer = self.ledger.answer(name, question, lambda: self.count, release)
        except BudgetExhausted as error:
            assert (name, question) not in self.owned, "what was told once is told again"
            self.refused(name, real, error)
            return
        assert (answer.charge is None) == ((name, question) in self.owned)
        if stored:
            assert answer.value == stored[0]
        if answer.charge:
            self.answers.setdefault(question, (answer.value, release))
            self.owned.add((name, question))
            self.charged(name, real, repeated=stored is not None)

    @rule(hours=st.sampled_from([-30, -1, 1, 5, 30]))
    def set_clock(self, hours):
        self.now += timedelta(hours=hours)

    @rule(name=st.sampled_from(["ann", "bob", ""]), more=st.sampled_from([0.25, 1.0]))
    def grant(self, name, more):
        epsilon, delta = self.budget(name)
        self.ledger.grant(name or None, epsilon=epsilon + more)
        self.budgets[name] = (epsilon + more, delta)
        self.recorded()

    @rule()
    def restart(self):
        self.ledger.close()
        self.ledger = Ledger(self.url, clock=self.clock)

    @precondition(lambda self: self.count)
    @rule()
    def verify(self):
        assert self.ledger.verify() == self.count

    @invariant()
    def accounts_agree(self):
        for name in ("ann", "bob", ""):
            slow = self.total if not name else Slow() if self.is_new_day() else self.mine[name]
            account = self.ledger.account(name) if name else self.ledger.total()
            epsilon, delta = self.budget(name)
            assert account.charges == len(slow.releases)
            assert account.spent <= account.epsilon == epsilon
            if slow.releases:
                order = self.ledger._balances(self.ledger._storage.read, name).mine.sums.order
                at = self.changed[name] or 0
                oracle = slow.spent(account.rule, order, at if account.rule != "basic" else 0, epsilon, delta)
                assert account.spent == pytest.approx(min(oracle, epsilon), rel=2e-3, abs=1e-9)


def test_random_histories_agree_with_a_slow_ledger(monkeypatch):
    monkeypatch.setattr("safexplain.ledger.storage.os.fdatasync", lambda file: None)  # nothing crashes here
    checked = settings(max_examples=20, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(LedgerMachine, settings=checked)
