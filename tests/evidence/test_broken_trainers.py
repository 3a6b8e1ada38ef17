"""audit/suites/broken_trainers: its trainers are what they say, bugs are found, and none is made up."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from audit.suites.broken_trainers import by_hand
from audit.suites.broken_trainers import suite as battery

ROOT = Path(__file__).parents[2]
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
