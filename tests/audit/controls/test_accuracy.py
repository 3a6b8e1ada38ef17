"""Data that a model was not trained on are told, and right data are not: rates are measured both ways."""

import numpy as np
import pytest
import torch
from scipy import stats as distributions
from sklearn.datasets import load_digits
from torch import nn

from safexplain import HardenedInputXGradient, Hardening
from safexplain.audit import AuditOptions, Policy, Population, Question, Recipe, audit
from safexplain.audit.controls import checks
from safexplain.audit.controls.checks import META, Hits, Statistics, accuracy, below_references, below_stated, measured
from safexplain.audit.references.shadows import train_one
from safexplain.audit.run import trained
from safexplain.errors import ConfigurationError, DataWarning

SIMULATIONS = 1000
RISK = 0.01
HIGHEST = RISK + 4 * (RISK * (1 - RISK) / SIMULATIONS) ** 0.5
"""Rate that a test of this risk stays below, but for four standard deviations."""


def drawn(rng, models, *, mean, spread, n, groups):
    """Hits of models trained alike: the accuracy of each is a draw, and its examples are."""
    shares = np.clip(rng.normal(mean, spread, models), 0.01, 0.99)
    return [Hits(int(groups * rng.binomial(n // groups, p)), n, n // groups) for p in shares]


@pytest.mark.parametrize(("references", "spread", "groups"), [(4, 0.05, 1), (16, 0.05, 5), (64, 0.0, 1)])
def test_a_model_like_its_references_is_accused_as_rarely_as_promised(references, spread, groups):
    rng = np.random.default_rng(references)
    alarms = 0
    for _ in range(SIMULATIONS):
        target, *others = drawn(rng, references + 1, mean=0.7, spread=spread, n=500, groups=groups)
        alarms += bool(below_references(target, others, RISK))
    assert alarms / SIMULATIONS <= HIGHEST


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


def test_the_shortfall_that_counts_is_that_of_a_t_test_by_hand():
    """Standard error .0289 of one more draw: 5.84 times that at 3 degrees of freedom; of equal ones the binomial's."""
    unequal = [Hits(right, 1000, 1000) for right in (700, 720, 740, 760)]
    assert below_references(Hits(562, 1000, 1000), unequal) == ""  # .168 below .730, of .1686
    assert "on 56.1% of its non-members" in below_references(Hits(561, 1000, 1000), unequal)
    assert "on 73.0% of theirs" in below_references(Hits(561, 1000, 1000), unequal)
    equal = [Hits(700, 1000, 1000)] * 8
    assert below_references(Hits(247, 400, 400), equal) == ""  # .0825 below .7, of .0830
    assert below_references(Hits(246, 400, 400), equal) != ""
    assert below_references(Hits(246, 400, 200), equal) == ""  # half as many independent ones
    assert below_references(Hits(0, 0, 0), equal) == ""


def test_an_accuracy_is_below_what_is_stated_where_its_upper_bound_is_by_two_points():
    hits = Hits(70, 100, 100)
    highest = distributions.beta.ppf(1 - 0.005, 71, 30)  # Clopper and Pearson, .811
    assert hits.highest(0.005) == pytest.approx(highest)
    assert Hits(70, 100, 10).highest(0.005) == pytest.approx(distributions.beta.ppf(1 - 0.005, 8, 3))
    assert Hits(1, 3, 3).share == 1 / 3
    assert below_stated(hits, highest + 0.0199) == below_stated(hits, None) == ""
    assert below_stated(hits, highest + 0.0201).startswith("the model is right on 70.0%")


def test_batch_statistics_are_the_divergence_of_normal_distributions_by_hand():
    """Means .5 and -1, variances 1 and 4, against 0, 1 and 1, 1; 300 rows are two batches."""
    assert (checks.UNUSUAL, checks.IMPOSSIBLE, checks.SETTLED) == (0.25, 16.0, 50)
    norm = nn.BatchNorm1d(2, eps=0.0)
    norm.running_mean[:] = torch.tensor([0.0, 1.0])
    norm.num_batches_tracked += 50
    sign = torch.where(torch.arange(300) < 150, 1.0, -1.0)
    found = Statistics.of(norm.eval(), torch.stack([0.5 + sign, 2 * sign - 1.0], 1))
    each = 0.5 * (1 + 0.25 - 1), 0.5 * (np.log(1 / 4) + (4 + 4) - 1)
    assert found.divergence == pytest.approx(np.mean(each), rel=1e-6)
    assert found.ratio == pytest.approx(2.0, rel=1e-6)  # the geometric mean of 1 and 4
    norm.num_batches_tracked -= 1
    assert Statistics.of(norm, torch.randn(300, 2)) is None
    norm.num_batches_tracked[()] = 0  # a file of an old version
    assert Statistics.of(norm, torch.randn(300, 2)) is not None
    assert [Statistics(0.0, ratio).impossible for ratio in (15.9, 16.1, 1 / 15.9, 1 / 16.1, 0.0)] == [
        False, True, False, True, True,
    ]  # fmt: skip


def test_the_control_says_what_it_compared_in_numbers():
    few = {"hits": [[90, 100, 100], [80, 100, 100]], "stated": 0.5, "statistics": [0.3, 2.0]}
    (passed,) = accuracy({META: few})
    assert passed.failed is False
    assert passed.numbers == {"accuracy": 0.9, "references": 0.8, "stated": 0.5, "divergence": 0.3}
    assert passed.says.endswith("90.0% of its non-members, compared with what is stated and reference models")
    (failed,) = accuracy({META: {**few, "stated": 1.0}})
    assert failed.failed
    assert "where 100.0% is stated: the data do not look like" in failed.says
    assert "trained better" not in failed.says
    (behind,) = accuracy({META: {"hits": [[40, 100, 100], *[[90, 100, 100]] * 4]}})
    assert behind.says.endswith(", or the references were trained better than the model")
    (impossible,) = accuracy({META: {"hits": [[90, 100, 100]], "statistics": [9.0, 17.0]}})
    assert impossible.failed
    assert "17 times the variance" in impossible.says
    labels, member = np.array([[0, 1, 1, 0], [1, 1, 0, 0]]), np.array([[1, 0, 0, 1], [0, 0, 1, 0]]) == 1
    said = measured(labels, np.array([0, 1, 0, 0]), member, np.array([0, 1, 1, 2]), 0.7, Statistics(0.1, 2.0))
    assert said == {"hits": [[1, 2, 1], [2, 3, 3]], "stated": 0.7, "statistics": [0.1, 2.0]}


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


def test_untrained_statistics_say_nothing():
    normalised, _, _ = digits()
    assert Statistics.of(convolutional().eval(), 255 * normalised[:100]) is None
    assert Statistics.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), normalised[:100]) is None
    settling = convolutional()
    settling(normalised[:100])
    assert Statistics.of(settling.eval(), 255 * normalised[:100]) is None


def test_without_anything_to_compare_with_the_control_is_not_run_and_without_labels_there_is_none():
    for references, failed in ((3, None), (4, False)):
        (control,) = accuracy({META: {"hits": [[5, 10, 10]] * (1 + references), "stated": None, "statistics": None}})
        assert control.failed is failed
    assert accuracy({}) == ()


@pytest.fixture(scope="module")
def case():
    """A network trained on digits in [0, 1], its pool, and the same pool as it is in the file, 0 to 16, permuted."""
    found = load_digits()
    x, y = (found.images[:400, None] / 16).astype(np.float32), found.target[:400]
    member = np.random.default_rng(0).random(400) < 0.5
    torch.manual_seed(0)
    recipe = Recipe(epochs=12, batch_size=32, lr=3e-3)
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


@pytest.mark.usefixtures("few_trees")
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
    assert "reference models trained on these data" in control(stated).says


@pytest.mark.usefixtures("few_trees")
def test_an_audit_of_right_data_passes_the_control(case):
    found = control(run(case, case[1], accuracy=0.9))
    assert found.failed is False
    assert "is right on" in found.says


@pytest.mark.parametrize("value", [0, 1.5])
def test_an_accuracy_that_is_no_share_is_refused(value):
    with pytest.raises(ConfigurationError, match="accuracy: expected a share"):
        AuditOptions(accuracy=value)
