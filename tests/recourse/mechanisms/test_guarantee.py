"""Guarantees: frozen, complete, in plain types, and never more than the parameters give."""

from dataclasses import replace

import pytest
from privacy_oracle import two_gaussians

from safexplain._secure_random import GENERATOR
from safexplain.errors import ConfigurationError
from safexplain.recourse import DPModelRecourse, Guarantee, LaplaceScore

SOUND = {"DPModelRecourse": DPModelRecourse, "LaplaceScore": LaplaceScore}


def made(name, **options):
    return SOUND[name](**{"norm_bound": 5.0, "epsilon": 0.7, "random_state": 0, **options})


@pytest.mark.parametrize("name", SOUND)
def test_the_guarantee_stands_before_training_and_holds_after_it(name):
    mechanism = made(name)
    before = mechanism.guarantee
    after = mechanism.fit(*two_gaussians(60, 3)).guarantee
    assert before.epsilon == 0.7
    assert 0.699 < after.epsilon <= before.epsilon
    assert after.delta == before.delta == (1e-5 if name == "DPModelRecourse" else 0.0)
    assert before.statement is None
    assert (after.statement is not None) == (name == "DPModelRecourse")
    assert before.per == after.per == ("model" if name == "DPModelRecourse" else "answer")
    assert "substitute" in str(after)


def test_epsilon_is_that_of_the_statement_under_the_adjacency():
    for adjacency in ("substitute", "add_remove", "zero_out"):
        given = made("DPModelRecourse", adjacency=adjacency).fit(*two_gaussians(60, 3)).guarantee
        assert given.epsilon == given.statement.epsilons.of(adjacency)
        assert given.adjacency == adjacency


@pytest.mark.parametrize("name", SOUND)
def test_a_seed_is_an_assumption_that_is_said(name):
    for trained in (False, True):
        seeded, secret = (made(name, random_state=r) for r in (0, None))
        if trained:
            seeded.fit(*two_gaussians(60, 3)), secret.fit(*two_gaussians(60, 3))
        assert any("seed set by the user" in line for line in seeded.guarantee.assumptions)
        assert not any("seed set by the user" in line for line in secret.guarantee.assumptions)
        assert any(GENERATOR in line for line in secret.guarantee.assumptions)
        assert not any(GENERATOR in line for line in seeded.guarantee.assumptions)


@pytest.mark.parametrize("numbers", [{"epsilon": 0.0}, {"delta": 1.0}, {"charges": (1,)}, {"adjacency": "row"}])
def test_numbers_that_guarantee_nothing_are_refused(numbers):
    sound = Guarantee("m", "model", 1.0, 0.0, "substitute", "r", "w")
    with pytest.raises(ConfigurationError):
        replace(sound, **numbers)
