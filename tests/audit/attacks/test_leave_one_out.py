"""Every reference model scored in the target's place: the same as calling the attack without it."""

import numpy as np
import pytest

from safexplain.audit.attacks import LikelihoodRatio, likelihood
from safexplain.audit.attacks.likelihood import likelihood_ratios
from safexplain.audit.attacks.suite import VIEWS

REFERENCES = np.array([0, 2, 3, 4, 5, 6, 8])
READ = [1, 3, 8, 7, 0]


def released(shape, seed=0):
    """Signals of nine models, larger on members, and who is a member."""
    rng = np.random.default_rng(seed)
    member = rng.random(shape[:2]) < 0.5
    size = np.abs(rng.normal(size=shape)) * np.exp(rng.normal(size=shape[1:]))
    return size * (1 + 0.3 * member.reshape(*member.shape, *[1] * (len(shape) - 2))), member


def ratios(attack, values, member, reads=READ, view=None):
    return likelihood_ratios(attack, values, member, REFERENCES, reads, view)


def oracle(attack, values, member, read):
    others = [i for i in REFERENCES if i != read and not np.array_equal(member[i], ~member[read])]
    return attack(values[read], values[others], member[others])


@pytest.mark.parametrize(
    ("shape", "attack"),
    [((9, 200), LikelihoodRatio()), ((9, 200), LikelihoodRatio("identity")), ((9, 200, 5), LikelihoodRatio())],
    ids=["numbers", "as they are", "vectors"],
)
def test_each_model_is_scored_as_by_the_attack_itself_with_the_others_as_references(shape, attack):
    values, member = released(shape)
    values[3, 5] = 0.0
    for found, read in zip(ratios(attack, values, member), READ, strict=True):
        np.testing.assert_allclose(found, oracle(attack, values, member, read), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(9, 200), (9, 200, 5)], ids=["numbers", "vectors"])
def test_the_complement_of_the_model_that_is_read_is_nobodys_reference_for_it(shape):
    values, member = released(shape)
    member[4], member[7] = ~member[3], ~member[6]
    found = ratios(LikelihoodRatio(), values, member)
    for scores, read in zip(found, READ, strict=True):
        np.testing.assert_allclose(scores, oracle(LikelihoodRatio(), values, member, read), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_made_of_a_few_examples_at_a_time_is_the_view_of_all(view, monkeypatch):
    values, member = released((9, 60, 7))
    values = (values - 1).astype(np.float32)
    monkeypatch.setattr(likelihood, "CHUNK", 200)
    found = ratios(LikelihoodRatio(), values, member, view=VIEWS[view])
    for scores, read in zip(found, READ, strict=True):
        np.testing.assert_allclose(scores, oracle(LikelihoodRatio(), VIEWS[view](values), member, read), atol=1e-8)


def test_an_example_without_references_on_both_sides_says_nothing():
    values, member = released((9, 50))
    member[:, 7] = False
    member[3, 7] = True
    found = ratios(LikelihoodRatio(), values, member, [1, 3])
    assert found[0, 7] != 0  # model 3 alone was trained with it
    assert found[1, 7] == 0  # and is nobody's reference when it is read
