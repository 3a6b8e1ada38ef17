"""A million recorded releases: what is spent is read from sums, and the sums are those of the records."""

from __future__ import annotations

import pytest
from dp_accounting import get_epsilon_gaussian

from safexplain.ledger import Gaussian, Laplace, Ledger
from safexplain.ledger.accounts import Balance, save_balances
from safexplain.ledger.composition import Composition
from safexplain.ledger.releases import to_json


def fill(ledger, release, count, records):
    """As if so many had been charged to ann, one after another; the last of them are recorded."""
    sums = Composition().add(release, ledger._settings.each)
    sums = sums.add_under_rule(release, count - 1)
    with ledger._storage.transaction() as execute:
        execute(
            "INSERT INTO ledger_charges (principal, period, time, mechanism, parameters, release)"
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " SELECT 'ann', 0, 5, 'm', '{}', ? FROM n",
            (records, to_json(release)),
        )
        save_balances(execute, Balance("ann", 0, 5, sums), Balance("", 0, 5, sums))


@pytest.mark.parametrize("release", [Gaussian(2e-4), Laplace(1e-4)], ids=["gaussian", "laplace"])
def test_after_a_million_releases_a_cold_ledger_reads_a_few_rows(sqlite_url, release):
    with Ledger(sqlite_url, epsilon=2.0, delta=1e-6) as ledger:
        fill(ledger, release, 10**6, records=20_000)
    steps = []  # of SQLite's machine, a thousand at a time: reading the records would take more than 100,000
    with Ledger(sqlite_url) as cold:
        cold._storage._open().set_progress_handler(lambda: steps.append(1000), 1000)
        spent = cold.spent("ann")
        cold.charge("ann", release)
    assert sum(steps) < 10_000
    exact = get_epsilon_gaussian(1 / (0.2 if isinstance(release, Gaussian) else 0.1), 1e-6)  # central limit
    assert exact < spent < (1.02 if isinstance(release, Gaussian) else 1.35) * exact


@pytest.mark.slow
def test_a_million_releases_are_added_up_again(sqlite_url):
    with Ledger(sqlite_url, epsilon=2.0, delta=1e-6) as ledger:
        fill(ledger, Laplace(1e-4), 10**6, records=10**6)
        ledger.charge("ann", Laplace(1e-4))
        assert ledger.verify() == 10**6 + 1
