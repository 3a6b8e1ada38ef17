"""Data that a model was not trained on are told, and right data are not: rates are measured both ways."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain import HardenedInputXGradient, Hardening
from safexplain.audit import AuditOptions, Policy, Population, Question, Recipe, audit
from safexplain.audit.controls.accuracy import (
    META,
    Hits,
    Statistics,
    accuracy,
    below_references,
    below_stated,
)
from safexplain.audit.references.training import train_one
from safexplain.audit.run import trained
from safexplain.errors import ConfigurationError, DataWarning

SIMULATIONS = 2000
RISK = 0.01
HIGHEST = RISK + 4 * (RISK * (1 - RISK) / SIMULATIONS) ** 0.5
"""Rate that a test of this risk stays below, but for four standard deviations."""


def drawn(rng, models, *, mean, spread, n, shortfall=0.0, groups=1):
    """Hits of models trained alike: the accuracy of each is a draw, and its examples are; the first falls short."""
    shares = np.clip(rng.normal(mean, spread, models) - shortfall * (np.arange(models) == 0), 0.01, 0.99)
    return [Hits(int(groups * rng.binomial(n // groups, p)), n, n // groups) for p in shares]


@pytest.mark.parametrize(
    ("references", "spread", "groups"), [(4, 0.0, 5), (4, 0.05, 1), (8, 0.01, 1), (16, 0.05, 5), (64, 0.0, 1)]
)
def test_a_model_like_its_references_is_accused_as_rarely_as_promised(references, spread, groups):
    rng = np.random.default_rng(references)
    alarms = 0
    for _ in range(SIMULATIONS):
        target, *others = drawn(rng, references + 1, mean=0.7, spread=spread, n=500, groups=groups)
        alarms += bool(below_references(target, others, RISK))
    assert alarms / SIMULATIONS <= HIGHEST


@pytest.mark.parametrize(("references", "shortfall"), [(4, 0.4), (16, 0.15)])
def test_a_model_that_falls_short_of_its_references_is_told(references, shortfall):
    rng = np.random.default_rng(references)
    found = 0
    for _ in range(500):
        target, *others = drawn(rng, references + 1, mean=0.8, spread=0.02, n=500, shortfall=shortfall)
        found += bool(below_references(target, others, RISK))
    assert found / 500 > 0.95


def test_small_shortfalls_and_few_references_say_nothing():
    exact = [Hits(70_000, 100_000, 100_000)] * 16
    assert below_references(Hits(66_000, 100_000, 100_000), exact) == ""
    assert below_references(Hits(64_000, 100_000, 100_000), exact) != ""
    assert below_references(Hits(10, 1000, 1000), exact[:3]) == ""


@pytest.mark.parametrize("n", [50, 5000])
def test_a_model_as_good_as_stated_is_accused_as_rarely_as_promised_and_a_worse_one_is_told(n):
    rng = np.random.default_rng(n)
    right = [below_stated(Hits(int(rng.binomial(n, 0.8)), n, n), 0.8, RISK) for _ in range(SIMULATIONS)]
    assert np.mean([bool(said) for said in right]) <= HIGHEST
    wrong = [below_stated(Hits(int(rng.binomial(n, 0.286)), n, n), 0.858, RISK) for _ in range(100)]
    assert all("28" in said or "85.8%" in said for said in wrong)


def test_of_examples_that_belong_together_the_groups_count():
    hits = Hits.of(np.array([True, True, False, False]), np.array([False] * 4), np.array([1, 1, 2, 2]))
    assert hits == Hits(2, 4, 2)
    assert below_stated(Hits(700, 1000, 1000), 0.8) != ""
    assert below_stated(Hits(700, 1000, 10), 0.8) == ""


def convolutional(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def digits():
    found = load_digits()
    x = torch.from_numpy((found.images[:, None] / 16).astype(np.float32))
    return (x - x.mean()) / x.std(), x, torch.from_numpy(found.target)


def test_batch_statistics_tell_data_that_were_not_normalised_and_only_these():
    seed = 0
    normalised, x, y = digits()
    recipe = Recipe(epochs=8, batch_size=32, lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    model = train_one(recipe, convolutional(seed), normalised[:600], y[:600], generator)
    right = Statistics.of(model, normalised[:600])
    assert right.divergence < 0.05
    assert not right.impossible
    assert Statistics.of(model, normalised[600:1200]).divergence < 0.1
    assert Statistics.of(model, x[:600]).divergence > 0.25
    assert Statistics.of(model, 255 * x[:600]).impossible


def test_untrained_statistics_say_nothing():
    normalised, _, _ = digits()
    assert Statistics.of(convolutional().eval(), 255 * normalised[:100]) is None
    assert Statistics.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), normalised[:100]) is None
    settling = convolutional()
    settling(normalised[:100])
    assert Statistics.of(settling.eval(), 255 * normalised[:100]) is None


def test_without_anything_to_compare_with_the_control_is_not_run_and_without_labels_there_is_none():
    hits = [[5, 10, 10], [5, 10, 10]]
    (control,) = accuracy({META: {"hits": hits, "stated": None, "statistics": None}})
    assert control.failed is None
    assert accuracy({}) == ()


@pytest.fixture(scope="module")
def case():
    """A network trained on digits in [0, 1], its pool, and the same pool as it is in the file, 0 to 16, permuted."""
    found = load_digits()
    x, y = (found.images[:400, None] / 16).astype(np.float32), found.target[:400]
    member = np.random.default_rng(0).random(400) < 0.5
    torch.manual_seed(0)
    recipe = Recipe(epochs=20, batch_size=32, lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    net = train_one(recipe, build(0), torch.from_numpy(x[member]), torch.from_numpy(y[member]), generator)
    return net, x, y, member, recipe


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def run(case, x, **options):
    net, _, y, member, recipe = case
    return audit(
        net,
        Population.of(x, y),
        recipe,
        member=member,
        explainer=HardenedInputXGradient,
        hardening=Hardening.recommended(),
        build=build,
        references=4,
        policy=Policy(fpr=0.2, max_tpr=0.5, patience=(1,), references=4, uncounted=True),
        options=AuditOptions(**options),
    )


def control(result):
    return next(c for c in result.configurations[-1].result.controls if c.name == "accuracy")


def test_an_audit_of_data_that_were_prepared_otherwise_warns_before_it_trains_and_certifies_nothing(case):
    net, x, y, member, recipe = case
    wrong = 1 - x  # black on white, where the model was trained on white on black
    how = {"explainer": HardenedInputXGradient, "hardening": Hardening.none(), "references": 0}
    options = AuditOptions(accuracy=0.9)
    with pytest.warns(DataWarning, match=r"is stated: the data do not look like what the model was trained on"):
        trained(Question(net, Population.of(wrong, y), recipe, member=member, options=options, **how))
    with pytest.warns(DataWarning, match="is stated"):
        stated = run(case, wrong, accuracy=0.9)
    assert control(stated).failed
    assert stated.verdict != "certified"
    unstated = run(case, wrong)
    assert control(unstated).failed
    assert "reference models, which trained on these data" in control(unstated).says
    assert unstated.verdict != "certified"


def test_an_audit_of_right_data_passes_the_control_with_and_without_a_stated_accuracy(case):
    for options in ({}, {"accuracy": 0.9}):
        found = control(run(case, case[1], **options))
        assert found.failed is False
        assert "is right on" in found.says


@pytest.mark.parametrize("value", [0, 1.5])
def test_an_accuracy_that_is_no_share_is_refused(value):
    with pytest.raises(ConfigurationError, match="accuracy is a share"):
        AuditOptions(accuracy=value)
