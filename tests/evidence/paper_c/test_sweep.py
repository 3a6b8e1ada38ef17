"""audit/suites/paper_c_canaries: the sweep, its accuracies, estimates of time, and verdicts anew."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from evidence import needs, run, twice
from torch.nn import functional as F

from audit.shared.run import RESULTS
from audit.suites.paper_c_canaries import (
    images,
    rejudge,
    sweep,
    tasks,
    utility,
)
from safexplain._privacy_loss import Steps
from safexplain.audit.canaries.canary import GradientCanary, RecordCanary


def setting(classes=3, steps=6, rate=1.0, lr=0.5, records=30, **changed):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(records) % classes
    x = torch.randn(records, 4, generator=generator) + y[:, None]
    training = tasks.Training(classes, steps, lr=lr, clip=1.0, bias=classes > 2, one_logit=classes == 2)
    return training.setting("some", x, y, rate, (x[:10] + 1, y[:10]))


def clipped(gradients, bound):
    return gradients * (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1)


def ones(x):
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def slow_training(s, target, other, label, steps):
    """Weights after each step of a noiseless linear head in which a record, or a gradient, stands in for the target."""
    theta, found = torch.zeros(s.recipe.classes, 5), []
    kept = torch.arange(len(s.x)) != target
    x, y = s.x[kept], s.y[kept]
    if label is not None:
        x, y = torch.cat([x, other[None]]), torch.cat([y, torch.tensor([label])])
    for _ in range(steps):
        wrong = (ones(x) @ theta.T).softmax(1) - F.one_hot(y, s.recipe.classes)
        total = clipped((wrong[:, :, None] * ones(x)[:, None]).flatten(1), s.recipe.clipping.bound).sum(0)
        total = total + other if label is None else total
        theta = theta - s.recipe.lr * total.reshape(theta.shape) / s.recipe.expected_batch_size
        found.append(theta)
    return found


def right(trained, outside):
    return [((ones(outside[0]) @ theta.T).argmax(1) == outside[1]).double().mean().item() for theta in trained]


@pytest.mark.parametrize("kind", ["gradient", "record"])
def test_accuracies_are_those_of_a_plain_loop(kind):
    given = setting()
    noiseless = replace(given, claim=replace(given.claim, mechanism=Steps(1e-6, 1.0, 6)))
    generator = torch.Generator().manual_seed(5)
    outside = (torch.randn(200, 4, generator=generator) * 2, torch.randint(3, (200,), generator=generator))
    if kind == "gradient":
        canary, gradient = GradientCanary(4, 13), torch.zeros(15)
        gradient[13] = 1.0
        pair = [(gradient, None), (-gradient, None)]
    else:
        other = torch.tensor([3.0, -4.0, 2.0, 1.0])
        canary = RecordCanary("natural", 4, other, 2)
        pair = [(given.x[4], int(given.y[4])), (other, 2)]
    found = utility.accuracies(noiseless, canary, outside, models=2, steps=[2, 4, 6], seed=0)
    for arm, (other, label) in zip(found, pair, strict=True):
        expected = right(slow_training(given, 4, other, label, 6), outside)
        assert arm.shape == (2, 3)
        assert arm == pytest.approx(np.tile([expected[i] for i in (1, 3, 5)], (2, 1)), abs=0.006)


def cell(*curve):
    return {"paper_estimator": {"mean": curve[-1], "curve": list(curve)}}


def values(**ends):
    """Three values of what a figure varies, and where each canary ends with it."""
    return {
        "values": {
            str(i): {"rates": {"1": {"cells": {name: cell(end[i]) for name, end in ends.items()}}}} for i in range(3)
        }
    }


def test_committed_verdicts_are_what_the_library_says_of_their_counts():
    for name in ("figure3", "scratch", "sweep"):
        found = json.loads((RESULTS / f"canary_{name}.json").read_text())["results"]
        for one, *_ in list(rejudge.repeats_in(found))[::20]:
            again = rejudge.judged(one)
            assert again["verdict"] == one["verdict"], "run the suite with --rejudge"
            assert again["detectable"] == (one["detectable"] and pytest.approx(one["detectable"], rel=0.05))


@pytest.mark.slow
@needs("cifar10.npz", f"weights/{images.NETS['quick']}.npz")
def test_the_sweep_runs_quickly_and_resumes(tmp_path):
    first, again = twice("audit.suites.paper_c_canaries.sweep", tmp_path)
    assert first["results"].keys() == set(sweep.PUBLISHED)
    for figure in ("A2", "A3", "A4"):
        assert first["results"][figure]["values"] == again["results"][figure]["values"]
    assert first["results"]["5"]["rates"] == again["results"]["5"]["rates"]
    assert first["results"]["A1"]["accuracy"] == again["results"]["A1"]["accuracy"]
    done, one = run(
        "audit.suites.paper_c_canaries.sweep", "--quick", "--figure", "A5", "--cache", tmp_path / "cache",
        out=tmp_path / "out.json",
    )  # fmt: skip
    assert done.returncode == 0
    assert one["results"]["A2"] == again["results"]["A2"]  # what was not asked for is kept
