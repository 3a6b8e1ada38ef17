"""The best of a random number of trainings: against brute force and dp-accounting, and what a statement says of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from safexplain._privacy_loss.selection import ORDERS, selected_epsilon, selected_epsilons
from safexplain.dp import PrivacyStatement, RepeatAndSelect, Steps, composed
from safexplain.errors import ConfigurationError, InputError

CHOICES = [
    RepeatAndSelect(2),
    RepeatAndSelect(10),
    RepeatAndSelect(10, "logarithmic"),
    RepeatAndSelect(10, "poisson"),
    RepeatAndSelect(5, "truncated-negative-binomial", 0.5),
]
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
DP_SGD = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(1.5, 0.02, 500),), weights="a")
PURE = PrivacyStatement("objective perturbation", 500, 0.0, pure_epsilon=0.5, pure_add_remove=0.3)


def generating(choice):
    """E x^K, of a number of trainings; for Poisson numbers with nothing released at 0."""
    if choice.number == "poisson":
        return lambda x: np.exp(choice.mean * (x - 1))
    g = choice.stopping
    if choice.number == "logarithmic":
        return lambda x: np.log1p(-(1 - g) * x) / math.log(g)
    s = choice.shape or 1.0
    return lambda x: ((1 - (1 - g) * x) ** -s - 1) / (g**-s - 1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("adjacency", "distance"), [("add_remove", 1.0), ("substitute", 2.0)])
@pytest.mark.parametrize("noise", [2.0, 8.0])
def test_the_best_of_gaussian_outputs_never_tells_more_than_is_accounted(choice, adjacency, distance, noise):
    """A training that puts out one number, its score: the exact profile of the largest of K of them, both ways."""
    x = np.linspace(-12, 12 + distance / noise, 200_001)
    of = generating(choice)
    one, other = (np.diff(of(norm.cdf(x, mean))) for mean in (0.0, distance / noise))
    for delta in (1e-3, 1e-6):
        epsilon = selected_epsilon((Steps(noise, 1.0, 1, "full-batch"),), delta, choice, adjacency)
        for p, q in ((one, other), (other, one)):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta
    alone = composed([Steps(noise, 1.0, 1, "full-batch")], 1e-6).of(adjacency)
    assert alone < epsilon < 5 * alone + 0.5


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_adding_and_removing_is_what_dp_accounting_says_or_less(choice):
    """The same for all but Poisson numbers, where the exact profile of a training is used instead of Renyi's bound."""
    one = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.5))
    shape = SHAPES.get(choice.number, choice.shape)
    accountant = RdpAccountant(orders=ORDERS)
    repeated = dp_accounting.SelfComposedDpEvent(one, 500)
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(repeated, choice.mean, shape))
    found = selected_epsilons(DP_SGD.phases, 1e-5, choice)
    if choice.number == "poisson":
        assert 0.5 * accountant.get_epsilon(1e-5) < found.add_remove < accountant.get_epsilon(1e-5)
    else:
        assert found.add_remove == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-5)
    assert found.add_remove < found.substitute < 2.2 * found.add_remove
    assert found.zero_out == found.add_remove


@pytest.mark.parametrize("choice", [*CHOICES, RepeatAndSelect(1)], ids=str)
def test_numbers_are_drawn_from_the_distribution_that_is_accounted(choice):
    rng = np.random.default_rng(0)
    drawn = np.array([choice.draw(rng) for _ in range(2000)])
    assert drawn.mean() == pytest.approx(choice.mean, abs=4 * drawn.std() / math.sqrt(2000) + 1e-9)
    assert drawn.min() >= (0 if choice.number == "poisson" else 1)
    if choice.number != "poisson" and choice.mean > 1:
        alone = float(generating(choice)(np.array(1e-9)) / 1e-9)  # P(K = 1)
        assert (drawn == 1).mean() == pytest.approx(alone, abs=0.05)
    assert choice.draw() >= 0


def test_one_training_costs_what_one_training_costs():
    one = selected_epsilons(DP_SGD.phases, 1e-5, RepeatAndSelect(1))
    assert one == DP_SGD.epsilons


def test_more_trainings_cost_more():
    spent = [selected_epsilons(DP_SGD.phases, 1e-5, RepeatAndSelect(m)).substitute for m in (1, 2, 10, 100)]
    assert spent == sorted(spent)
    assert spent[-1] < 3.5 * spent[0]


def test_truncated_batches_are_paid_for_in_every_training():
    generous, often = (Steps(1.5, 0.02, 500, "truncated-poisson", limit, 10_000) for limit in (400, 290))
    poisson = selected_epsilons([Steps(1.5, 0.02, 500)], 1e-5, RepeatAndSelect(10))
    found = selected_epsilons([generous], 1e-5, RepeatAndSelect(10))
    assert poisson.substitute < found.substitute < 1.1 * poisson.substitute
    assert math.isinf(selected_epsilons([often], 1e-5, RepeatAndSelect(10)).substitute)


# --------------------------------------------------------------------------------------------------- the statement


def test_a_statement_of_the_best_costs_more_and_says_what_it_rests_on(tmp_path):
    others = [replace(DP_SGD, weights=name, clipping=name) for name in "bcd"]
    best = DP_SGD.selected(RepeatAndSelect(10), [DP_SGD, *others])
    assert best.epsilons == selected_epsilons(DP_SGD.phases, 1e-5, RepeatAndSelect(10))
    assert best.epsilons.add_remove > DP_SGD.epsilons.add_remove
    assert best.weights == "a"
    card = best.to_markdown()
    assert "the best of a random number of trainings, 10 in the mean (geometric)" in card
    assert "score on the records themselves" in card
    assert "stays secret" in card
    assert "picked by their results" not in card
    assert "picked by their results" in DP_SGD.to_markdown()
    assert PrivacyStatement.load(best.save(tmp_path / "privacy.json")) == best
    assert "selection" not in DP_SGD.to_dict()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_choice_survives_a_file_and_its_epsilons_are_checked(choice, tmp_path):
    best = DP_SGD.selected(choice, [DP_SGD])
    path = best.save(tmp_path / "privacy.json")
    assert PrivacyStatement.load(path) == best
    path.write_text(json.dumps({**json.loads(path.read_text()), "selection": None}))
    with pytest.raises(InputError, match="follows from its parameters"):
        PrivacyStatement.load(path)


def test_a_pure_guarantee_stays_pure():
    best = PURE.selected(RepeatAndSelect(10), [PURE, PURE])
    assert best.epsilons.substitute == pytest.approx(1.5)
    assert best.epsilons.add_remove == pytest.approx(0.9)
    assert best.epsilons.delta == 0
    assert PURE.selected(RepeatAndSelect(10, "logarithmic"), [PURE]).epsilons.substitute == pytest.approx(1.0)
    assert math.isinf(PURE.selected(RepeatAndSelect(10, "poisson"), [PURE]).epsilons.substitute)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "the released one among them"),
        ([DP_SGD, replace(DP_SGD, phases=(Steps(1.4, 0.02, 500),))], "the same phases"),
        ([DP_SGD, replace(DP_SGD, records=1999)], "the same records"),
        ([DP_SGD, replace(DP_SGD, delta=1e-6)], "the same delta"),
    ],
)
def test_trainings_that_spend_differently_are_not_one_choice(others, message):
    with pytest.raises(ConfigurationError, match=message):
        DP_SGD.selected(RepeatAndSelect(10), others)


def test_the_best_of_the_best_is_not_stated():
    best = DP_SGD.selected(RepeatAndSelect(2), [DP_SGD])
    with pytest.raises(ConfigurationError, match="one choice among all"):
        best.selected(RepeatAndSelect(2), [best])


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": 0.5},
        {"mean": math.inf},
        {"mean": "10"},
        {"mean": 1e9},
        {"number": "fixed"},
        {"shape": 1.0},
        {"number": "truncated-negative-binomial"},
        {"number": "truncated-negative-binomial", "shape": 0.0},
        {"number": "truncated-negative-binomial", "shape": 1e9},
    ],
)
def test_impossible_choices_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"mean|number|shape"):
        RepeatAndSelect(**{"mean": 10, **wrong})


@pytest.mark.parametrize("hostile", [7, [], {"mean": 1e300}, {"mean": 10, "number": ["x"]}, {"mean": 10, "more": 1}])
def test_a_hostile_choice_in_a_file_is_refused(hostile):
    with pytest.raises(InputError, match="privacy statement"):
        PrivacyStatement.from_dict(DP_SGD.to_dict() | {"selection": hostile})
