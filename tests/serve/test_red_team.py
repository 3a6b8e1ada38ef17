"""Attacks on real servers: each fails, as the red team's suite makes them, in a small size."""

from __future__ import annotations

import pytest

from audit.suites.red_team import fuzz, soak
from audit.suites.red_team.served import ATTACKS

pytestmark = pytest.mark.slow  # tests/serve/test_attacks.py and test_faults.py have the small versions


@pytest.mark.parametrize("attack", [pytest.param(f, id=f.__name__) for *_, f in ATTACKS])
def test_the_attack_fails(attack):
    if attack.__name__ == "by_mlflow":
        pytest.importorskip("mlflow.pyfunc")
    text, numbers, held = attack(True)
    assert held, (text, numbers)


@pytest.mark.parametrize("quick", [True, False])
def test_no_malformed_request_is_an_error_of_the_server_or_is_told_more_than_is_listed(quick):
    text, numbers, held = fuzz.fuzzed(quick)
    assert held, (text, numbers)


def test_what_is_answered_is_what_the_ledger_counts_over_kills_and_reloads():
    found = soak.soaked(minutes=0.2, names=500)
    assert found["answered"] == found["counted"]
    assert found["kills"] >= 1
    assert found["reloads"] >= 1
