"""One adjacency a ledger: what names another than the ledger's is refused, whoever names it first."""

from __future__ import annotations

import pytest

from safexplain._privacy_loss import Steps
from safexplain.errors import ConfigurationError
from safexplain.ledger import Pure, Renyi

CURVE = Renyi.of_steps(Steps(2.0, 0.02, 100), "add_remove")
WAYS = {
    "charge": lambda ledger, adjacency: ledger.charge("ann", epsilon=0.1, adjacency=adjacency),
    "answer": lambda ledger, adjacency: ledger.answer(
        "ann", f"why {adjacency}?", lambda: 1, Pure(0.1), adjacency=adjacency
    ),
    "answers": lambda ledger, adjacency: ledger.answer_many(
        "ann", [f"{adjacency}", "b"], lambda at: [1] * len(at), Pure(0.1), adjacency=adjacency
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_first_that_is_named_is_the_ledgers_and_another_is_refused(make, way):
    ledger = make(epsilon=5.0)
    assert ledger.adjacency is None
    WAYS[way](ledger, "zero_out")
    assert ledger.adjacency == make().adjacency == "zero_out"
    spent = ledger.spent("ann")
    for other in ("substitute", "add_remove"):
        with pytest.raises(ConfigurationError, match=f"under {other}, this ledger about zero_out"):
            WAYS[way](ledger, other)
    assert ledger.spent("ann") == spent
    WAYS[way](make(), "zero_out")


@pytest.mark.parametrize("way", WAYS)
def test_what_the_ledger_was_made_with_holds_from_the_start(make, way):
    ledger = make(epsilon=5.0, adjacency="add_remove")
    with pytest.raises(ConfigurationError, match="under substitute, this ledger about add_remove"):
        WAYS[way](ledger, "substitute")
    assert ledger.total().charges == 0


def test_releases_that_name_none_are_the_ledgers(make):
    ledger = make(epsilon=5.0, delta=1e-6, adjacency="add_remove")
    ledger.charge("ann", epsilon=0.1)
    ledger.charge("ann", CURVE)
    assert ledger.verify() == 2


def test_before_anything_is_named_releases_count_as_about_substitute(make):
    ledger = make(epsilon=5.0, delta=1e-6)
    ledger.charge("ann", epsilon=0.1)
    with pytest.raises(ConfigurationError, match=r'named none, which counts as substitute.*adjacency="add_remove"'):
        ledger.charge("ann", CURVE)
    assert ledger.adjacency is None, "a refused release settles nothing"
    ledger.charge("ann", epsilon=0.1, adjacency="substitute")
    assert ledger.adjacency == "substitute"


def test_whoever_opens_a_ledger_may_say_what_its_releases_were_about(make):
    make(epsilon=5.0, delta=1e-6).charge("ann", epsilon=0.1)
    ledger = make(adjacency="add_remove")
    ledger.charge("ann", CURVE)
    assert ledger.adjacency == "add_remove"
    with pytest.raises(ConfigurationError, match="made with 'add_remove', not 'substitute'"):
        make(adjacency="substitute")


def test_records_of_an_older_safexplain_say_what_they_were_about(make):
    """`MeteredRecourse` always recorded it, among the parameters."""
    ledger = make(epsilon=5.0)
    ledger.charge("ann", epsilon=0.1, parameters={"adjacency": "zero_out", "model": "m"})
    with pytest.raises(ConfigurationError, match="under substitute, this ledger about zero_out"):
        ledger.charge("ann", epsilon=0.1, adjacency="substitute")
    with pytest.raises(ConfigurationError, match="under add_remove, this ledger about zero_out"):
        make(adjacency="add_remove")
    ledger.charge("ann", epsilon=0.1, adjacency="zero_out")
    assert ledger.adjacency == "zero_out"


def test_a_curve_that_says_something_else_than_the_call_is_refused(make):
    with pytest.raises(ConfigurationError, match="the release is about add_remove, not substitute"):
        make(epsilon=5.0, delta=1e-6).charge("ann", CURVE, adjacency="substitute")


@pytest.mark.parametrize("word", ["both", "", 1])
def test_a_word_that_is_no_adjacency_is_refused(make, word):
    ledger = make(epsilon=5.0)
    for way in WAYS.values():
        with pytest.raises(ConfigurationError, match="adjacency: expected one of"):
            way(ledger, word)
    assert ledger.total().charges == 0


def test_old_scripts_that_name_none_work_as_ever(make):
    ledger = make(epsilon=1.0)
    for _ in range(10):
        ledger.charge("clinic-7", epsilon=0.1)
    assert ledger.spent("clinic-7") == 1.0
