"""Guarantees: frozen, complete, in plain types, and never more than the parameters give."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from recourse_privacy_oracle import NotPrivate, two_gaussians

from safexplain.errors import ConfigurationError
from safexplain.recourse import DPModelRecourse, LaplaceScore
from safexplain.recourse.mechanisms.mechanism import Guarantee

BY_MODEL = {
    "DPModelRecourse": DPModelRecourse,
    "OutputPerturbation": OutputPerturbation,
    "OutputPerturbation, pure": lambda **o: OutputPerturbation(**{**o, "delta": 0.0}),
    "ObjectivePerturbation": ObjectivePerturbation,
}
BY_ANSWER = {
    "LaplaceScore": lambda **o: LaplaceScore(**o),
    "PublicDirection": lambda **o: PublicDirection(np.ones(3), **o),
}
SOUND = BY_MODEL | BY_ANSWER


def made(name, **options):
    return SOUND[name](**{"norm_bound": 5.0, "epsilon": 0.7, "random_state": 0, **options})


@pytest.mark.parametrize("name", SOUND)
def test_the_guarantee_stands_before_training_and_holds_after_it(name):
    mechanism = made(name)
    before = mechanism.guarantee
    after = mechanism.fit(*two_gaussians(60, 3)).guarantee
    assert before.is_private
    assert after.is_private
    assert before.epsilon == 0.7
    assert 0.699 < after.epsilon <= before.epsilon
    assert after.delta == before.delta == (1e-5 if name in ("DPModelRecourse", "OutputPerturbation") else 0.0)
    assert before.statement is None
    assert (after.statement is not None) == (name in BY_MODEL)
    assert before.per == after.per == ("model" if name in BY_MODEL else "answer")
    assert "substitute" in str(after)


@pytest.mark.parametrize("name", BY_MODEL)
def test_epsilon_is_that_of_the_statement_under_the_adjacency(name):
    for adjacency in ("substitute", "add_remove", "zero_out"):
        given = made(name, adjacency=adjacency).fit(*two_gaussians(60, 3)).guarantee
        assert given.epsilon == given.statement.epsilons.of(adjacency)
        assert given.adjacency == adjacency


@pytest.mark.parametrize("name", SOUND)
def test_it_is_frozen_as_the_parameters_are_and_goes_into_json(name):
    mechanism = made(name).fit(*two_gaussians(60, 3))
    with pytest.raises(FrozenInstanceError):
        mechanism.epsilon = 100.0
    given = mechanism.guarantee
    with pytest.raises(FrozenInstanceError):
        given.epsilon = 0.1
    with pytest.raises(FrozenInstanceError):
        given.is_private = False
    content = json.loads(json.dumps(given.to_dict(), allow_nan=False))
    assert content["is_private"] is True
    assert content["protects"] == given.protects != ""
    assert content["assumptions"] == list(given.assumptions)
    assert set(content) == set(Guarantee.__dataclass_fields__) | {"protects"}


def test_what_is_not_private_goes_into_json_too():
    content = json.loads(json.dumps(NotPrivate().guarantee.to_dict(), allow_nan=False))
    assert content["is_private"] is False
    assert content["epsilon"] is None
    assert content["protects"] == ""


@pytest.mark.parametrize("name", SOUND)
def test_a_seed_is_an_assumption_that_is_said(name):
    for trained in (False, True):
        seeded, secret = (made(name, random_state=r) for r in (0, None))
        if trained:
            seeded.fit(*two_gaussians(60, 3)), secret.fit(*two_gaussians(60, 3))
        assert any("seed that the user gave" in line for line in seeded.guarantee.assumptions)
        assert not any("seed that the user gave" in line for line in secret.guarantee.assumptions)
        assert any("AES-256 in counter mode" in line for line in secret.guarantee.assumptions)
        assert not any("AES-256" in line for line in seeded.guarantee.assumptions)


@pytest.mark.parametrize("numbers", [{"epsilon": None}, {"delta": None}, {"is_private": False}, {"adjacency": "row"}])
def test_numbers_without_a_guarantee_and_the_reverse_are_refused(numbers):
    fields = {
        "mechanism": "m",
        "is_private": True,
        "per": "model",
        "epsilon": 1.0,
        "delta": 0.0,
        "adjacency": "substitute",
        "released": "r",
        "why": "w",
    }
    Guarantee(**fields)
    with pytest.raises(ConfigurationError):
        Guarantee(**{**fields, **numbers})
