"""The learning rate of a head where none is given: measured by one of the steps that are paid for."""

import math

import pytest
import torch
from torch import nn

from safexplain._progress import silent
from safexplain.audit.canaries import audit_training
from safexplain.dp import AutoSClipping, DPFineTuner
from safexplain.dp.heads import STEP_OBSERVER, HeadRecipe
from safexplain.dp.sgd.finetune import typical_norm

RECIPE = HeadRecipe(
    classes=3, steps=5, sample_rate=0.5, expected_batch_size=1000, clipping=AutoSClipping(0.5), lr=1.0, optimizer="adam"
)


def rows(norm: float, n: int = 2000, d: int = 20) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return norm * x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("norm", [0.02, 50.0])
def test_the_typical_norm_is_found_under_noise(norm):
    found = typical_norm(rows(norm), RECIPE, 10.0, torch.Generator().manual_seed(0))
    assert abs(math.log2(found / norm)) < 16 * (4 * 10 / 1000 + abs(math.log2(norm)) / 16 * 0.15)


def test_no_record_changes_what_is_measured_by_more_than_the_clip_bound():
    sums = []
    whole, absent = RECIPE.clipping, rows(1.0, n=50)
    recipe = HeadRecipe(**{**RECIPE.__dict__, "sample_rate": 1.0, "expected_batch_size": 50})
    token = STEP_OBSERVER.set(lambda total, noise, batch: sums.append(total.clone()) or total + noise)
    try:
        for value in (0.0, 1e-30, 1.0, 1e30):
            x = absent.clone()
            x[0] = value
            typical_norm(x, recipe, 1.0, torch.Generator().manual_seed(0))
    finally:
        STEP_OBSERVER.reset(token)
    rest = sums[2].clone()
    rest[0, 0, 0] -= whole.bound * math.log2(20**0.5) / 16
    assert all(float((total - rest).norm()) <= whole.bound * (1 + 1e-5) for total in sums)
    assert max(float((total - rest).norm()) for total in sums) == pytest.approx(whole.bound, rel=1e-4)


def test_a_head_learns_as_well_whatever_the_scale_of_its_inputs():
    x = rows(1.0)
    y = x[:, :3].argmax(1)
    right = []
    for scale in (0.3, 1.0, 50.0):
        torch.manual_seed(0)
        tuner = DPFineTuner(nn.Sequential(nn.Linear(20, 3)), (scale * x, y), epsilon=8, seed=0, progress=silent)
        right.append(float((tuner.fit().model(scale * x).argmax(1) == y).float().mean()))
    assert min(right) > 0.85
    assert max(right) - min(right) < 0.06


def test_the_step_that_measures_is_one_of_those_that_are_stated_and_watched():
    x = rows(1.0, n=60)
    tuner = DPFineTuner(nn.Sequential(nn.Linear(20, 3)), (x, x[:, :3].argmax(1)), epsilon=8, steps=10, delta=1e-3)
    result = audit_training(tuner, "white-box", seed=0)
    assert not result.failed
    assert result.verdict == "as claimed"
