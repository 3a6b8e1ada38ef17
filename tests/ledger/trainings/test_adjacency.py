"""One adjacency a ledger, stated when it is made: what names another is refused."""

from __future__ import annotations

import pytest

from safexplain._privacy_loss import Steps
from safexplain.errors import ConfigurationError
from safexplain.ledger import Concentrated, Renyi

CURVE = Renyi.of_steps(Steps(2.0, 0.02, 100), "add_remove")


def test_the_adjacency_is_stated_when_the_ledger_is_made(make):
    assert make(epsilon=5.0, adjacency="zero_out").adjacency == make().adjacency == "zero_out"
    with pytest.raises(ConfigurationError, match="created with 'zero_out', got 'substitute'"):
        make(adjacency="substitute")


@pytest.mark.parametrize("release", [CURVE, Concentrated(0.1, adjacency="add_remove")])
def test_a_release_that_names_other_neighbours_is_refused(make, release):
    ledger = make(epsilon=5.0, delta=1e-6)
    for ask in (
        lambda: ledger.charge("ann", release),
        lambda: ledger.answer("ann", "why?", lambda: 1, release),
        lambda: ledger.answer_many("ann", ["a", "b"], lambda at: [1] * len(at), release),
    ):
        with pytest.raises(ConfigurationError, match=r"expected substitute, .* got a release under add_remove"):
            ask()
    assert ledger.total().charges == 0
