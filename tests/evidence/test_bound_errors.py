"""Suites about lower bounds and broken trainers: they simulate what they say, find every bug, and make none up."""

import json

import numpy as np
import pytest
import torch
from evidence import ROOT
from torch.utils.data import TensorDataset

from audit.suites.bound_errors import power, suite
from audit.suites.bound_errors.credible import credible_bound
from audit.suites.broken_trainers import by_hand
from audit.suites.broken_trainers import suite as battery
from safexplain.verdict.stats.lower_bounds import ErrorCounts


def test_the_sum_alone_is_as_private_as_all_steps_only_for_full_batches():
    full, few = suite.Mechanism(1.0, 500, 22.3557), suite.Mechanism(0.0625, 10, 0.5)
    assert full.epsilon_of_sum == pytest.approx(full.epsilon, abs=1e-3) == pytest.approx(10, abs=1e-2)
    assert few.epsilon_of_sum == pytest.approx(5.76, abs=0.01)
    assert few.epsilon > 9


def test_the_credible_bound_is_the_quantile_of_simulated_posteriors():
    rng = np.random.default_rng(0)
    for fp, n, fn, p, delta in ((0, 500, 0, 500, 0.0), (100, 500, 80, 400, 1e-5)):
        x, y = (rng.beta(k + 0.5, m - k + 0.5, 300_000) for k, m in ((fp, n), (fn, p)))
        drawn = np.log(np.maximum((1 - delta - y) / x, (1 - delta - x) / y))
        for confidence in (0.9, 0.95):
            found = credible_bound(ErrorCounts(fp, n, fn, p, confidence), delta)
            assert found == pytest.approx(np.quantile(drawn, 1 - confidence), abs=0.02)


def test_the_committed_results_are_complete_and_keep_what_is_promised():
    report = json.loads((ROOT / "audit" / "results" / "bound_errors.json").read_text())
    assert not report["quick"]
    assert report["targets_missed"] == suite.failures([*report["two_worlds"], *report["one_run"]]) == []
    mechanisms = len(suite.MANY_STEPS) + len(suite.FEW_STEPS)
    assert len(report["two_worlds"]) == mechanisms * len(suite.RUNS)
    assert len(report["one_run"]) == len(suite.ONE_RUN)
    assert min(b["of"] for cell in report["two_worlds"] for b in cell["bounds"].values()) >= 1000
    few = [c["bounds"] for c in report["two_worlds"] if c["mechanism"]["steps"] < 500 and c["runs"] == 25_000]
    assert max(b["gdp fixed"]["low"] for b in few) > 0.5


def test_what_canaries_say_that_they_would_find_is_found():
    report = json.loads((ROOT / "audit" / "results" / "canary_power.json").read_text())
    assert not report["quick"]
    assert report["targets_missed"] == power.failures(report["audits"]) == []
    assert len(report["audits"]) == sum(map(len, (power.MAIN, power.METHODS, power.ADD_REMOVE)))
    telling = [cell for cell in report["audits"] if cell["detectable"] is not None]
    assert len(telling) > 20
    assert sum(cell["found"] for cell in telling) >= 0.95 * sum(cell["of"] for cell in telling)


BY_HAND = {case.name: case for case in (*battery.BROKEN, *battery.RIGHT) if case.name.startswith("by_hand")}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def trained(kind, x, y, **options):
    """Flat parameters of a model of this class, with other options than its own."""
    model = type(kind.__name__, (kind,), options).train(TensorDataset(x, y), seeded())
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved_by_a_substitution(kind):
    """How far one substituted record moves the sum of one step without noise, in units of C."""
    x, y = battery.records()
    other, label = x.clone(), y.clone()
    other[0], label[0] = 200 * x[0], 1 - y[0]
    quiet = {"steps": 1, "noise": lambda self: torch.zeros(())}
    both = trained(kind, x, y, **quiet) - trained(kind, other, label, **quiet)
    return float(both.norm()) * kind.rate * len(y) / (kind.lr * kind.bound)


def test_one_record_moves_a_sum_by_twice_the_bound_at_most_where_clipping_is_right_and_further_where_it_is_wrong():
    right = ("Loop", "AutoS", "PublicStandardisation", "AveragedViews", "FrozenBatchNorm", "LowRank")
    wrong = (
        "ClipAfterAveraging", "MicroBatchesClipped", "UpsideDown", "ValueClipping", "LayerLeftOut", "BoundOfLabel",
        "ClassWeightsAfterClipping", "LargestNormBound", "AugmentationsClippedEach", "CleanGradientsAddedAgain",
        "PullTowardsPrivateMeans", "BatchNormalised", "CentredLogits", "StandardisedByPrivateData",
        "StartsAtClassMeans", "Oversampled",
    )  # fmt: skip
    moved = {name: moved_by_a_substitution(getattr(by_hand, name)) for name in (*right, *wrong)}
    assert all(0.1 < moved[name] <= 2.0001 for name in right), moved
    assert all(moved[name] > 2.2 for name in wrong), moved


def noise_of(kind, step=0):
    """Standard deviation of the noise on a sum, over sigma C."""
    loop = kind(seeded())
    loop.expected, loop.sizes, loop.t = 24.0, [10_000], step
    return float(loop.noise().std()) / (kind.sigma * kind.bound)


def test_noise_has_the_scale_that_the_bug_gives_it():
    scales = {
        ("Loop", 0): 1.0, ("NoiseDividedTwice", 0): 1 / 24, ("NoiseTimesLearningRate", 0): 0.1,
        ("NoiseWithoutBound", 0): 1 / 4, ("UniformNoise", 0): 12**-0.5, ("DecayingNoise", 3): 0.8**3,
        ("NoiseInEveryMicroBatch", 0): 2.0, ("NoiseInEveryFourthStep", 0): 1.0, ("NoiseInEveryFourthStep", 1): 0.0,
        ("NoNoiseInLastStep", 6): 1.0, ("NoNoiseInLastStep", 7): 0.0,
    }  # fmt: skip
    found = {(name, step): noise_of(getattr(by_hand, name), step) for name, step in scales}
    assert found == pytest.approx(scales, rel=0.05)


def test_the_committed_battery_is_complete_every_bug_found_and_no_right_trainer_refuted():
    report = json.loads((ROOT / "audit" / "results" / "broken_trainers.json").read_text())
    assert not report["quick"]
    assert [row["trainer"] for row in report["broken"]] == [case.name for case in battery.BROKEN]
    assert battery.problems(report["broken"], report["right"]) == []
    assert sum(len(row["white_box"]) for row in report["right"]) >= 50
