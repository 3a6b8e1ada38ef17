"""audit/suites/broken_trainers: its trainers are what they say, each bug is found, and none is made up."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from evidence import twice
from torch import nn

from audit.suites.broken_trainers import suite as battery
from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.verdict.canaries.claim import Claim

RIGHT = battery.RIGHT


# ------------------------------------------------------------------------------------------- the trainers


def slowly(trainer, x, y, rng):
    """One run of a right trainer on x (n, d), y (n,), record by record, gradients by autograd."""
    n, d = x.shape
    size = n / trainer.batches
    theta, path = torch.zeros(d, dtype=torch.float64), [0.0]
    rng.standard_normal((1, d))
    for t in range(trainer.epochs * trainer.batches):
        if trainer.sampling == "poisson":
            chosen = np.flatnonzero(rng.random((1, n))[0] < 1 / trainer.batches)
        else:
            if t % trainer.batches == 0:
                order = rng.permuted((np.arange(n) * trainer.batches // n)[None], axis=1)[0]
            chosen = np.flatnonzero(order == t % trainer.batches)
        total = torch.zeros(d, dtype=torch.float64)
        for i in chosen:
            leaf = theta.clone().requires_grad_()
            loss = 0.5 * (leaf @ torch.tensor(x[i]) - y[i]) ** 2
            gradient = torch.autograd.grad(loss, leaf)[0]
            total += gradient * min(1.0, trainer.bound / float(gradient.norm()))
        total += trainer.sigma * trainer.bound * torch.tensor(rng.standard_normal((1, d))[0])
        theta = theta - battery.LR * total / size
        path.append(float(theta[0]))
    return np.array(path) * size / (battery.LR * trainer.bound)


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_the_right_trainer_is_dp_sgd_record_by_record(sampling):
    trainer = replace(RIGHT, sampling=sampling, bound=0.7, sigma=0.5, epochs=2)
    data = np.random.default_rng(0)
    x, y = data.standard_normal((12, 3)), data.standard_normal(12)
    found = trainer.train(x[None], y[None], np.random.default_rng(1))[0]
    np.testing.assert_allclose(found, slowly(trainer, x, y, np.random.default_rng(1)), atol=1e-12)


def steps_of(trainer, runs=400, canary="label", **differs):
    rng = np.random.default_rng(3)
    made = replace(trainer, **differs) if differs else trainer
    return np.diff(made.train(*battery.datasets(canary, runs // 2), rng), axis=1)


@pytest.mark.parametrize("bound", [1.0, 5.0])
def test_a_step_of_a_right_trainer_is_the_canary_and_noise_of_sigma(bound):
    steps = steps_of(RIGHT, 2000, bound=bound)
    assert steps.std() == pytest.approx(np.sqrt(RIGHT.sigma**2 + 0.25), rel=0.02)
    assert steps[:1000].mean() == pytest.approx(0.25, abs=0.06), "in a quarter of the batches, norm C"
    quiet = steps_of(RIGHT, bound=bound, sigma=0.0)
    assert set(np.unique(quiet[:200].round(9))) == {0.0, 1.0}
    assert set(np.unique(quiet[200:].round(9))) == {0.0, -1.0}


DIFFERS = {
    "unscaled": lambda s: s("noise", "unscaled", bound=5.0).std() == pytest.approx(4.0 / 5, rel=0.2),
    "divided twice": lambda s: s("noise", "divided twice").std() == pytest.approx(4.0 / 5, rel=0.2),
    "dropped": lambda s: set(np.unique(s("noise", "dropped")[:, 3::4].round(9))) == {-1.0, 0.0, 1.0},
    "repeated": lambda s: np.allclose(
        np.ptp(s("noise", "repeated", clip="batch", sampling="ordered")[:, ::4], axis=1), 0
    ),
    "constant": lambda s: len(np.unique(s("noise", "constant")[:200].round(9))) == 2,
    "batch": lambda s: np.abs(s("clip", "batch", sigma=0.0)).max() == pytest.approx(5.0),
    "centred": lambda s: np.abs(s("clip", "centred", sigma=0.0)).max() > 100,
    "shuffled": lambda s: (np.abs(s("sampling", "shuffled", sigma=0.0)).reshape(400, -1, 4).sum(2).round(9) == 1).all(),
    "ordered": lambda s: (np.abs(s("sampling", "ordered", sigma=0.0)).round(9) == [0, 0, 0, 1] * 10).all(),
}


@pytest.mark.parametrize("bug", DIFFERS)
def test_each_bug_is_what_it_says(bug):
    assert DIFFERS[bug](lambda name, value, **other: steps_of(RIGHT, **{name: value}, **other))


def test_batch_normalisation_lets_one_record_move_what_all_others_do():
    full = replace(RIGHT, sigma=0.0, batches=1, epochs=3)
    coupled = steps_of(full, 4, "features", batch_norm=True)
    assert np.abs(coupled[0] - coupled[2]).max() > 10, "a record may move the sum by 2"
    alone = steps_of(full, 4, "features")
    assert np.abs(alone[0] - alone[2])[0] <= 2


def test_no_score_is_higher_than_the_likelihood_ratio_of_a_right_trainer():
    """Balanced accuracy at the threshold 0, of the score that is meant to be the strongest."""
    trainer = replace(RIGHT, sigma=1.0)
    steps = steps_of(trainer, 4000)
    right = {}
    for name, score in battery.SCORES.items():
        values = score(steps, trainer.mechanism)
        right[name] = ((values[:2000] > 0).mean() + (values[2000:] < 0).mean()) / 2
    assert max(right, key=right.get) == "steps"
    assert right["steps"] > 0.9


# ------------------------------------------------------------------------------------------- the audits


@pytest.mark.parametrize("case", battery.BROKEN.values(), ids=battery.BROKEN)
def test_each_bug_is_found(case):
    assert case.audit(0).verdict == case.expected


@pytest.mark.parametrize("case", battery.SOUND.values(), ids=battery.SOUND)
def test_no_bug_is_reported_in_a_right_trainer(case):
    assert case.audit(0).verdict != battery.BUG


@pytest.mark.parametrize("case", [c for c in battery.BROKEN.values() if c.expected == battery.BUG], ids=lambda c: c.bug)
def test_the_same_audit_of_the_trainer_without_the_bug_finds_none(case):
    """The bug is what is found, and not the canary, the score or the number of runs."""
    right = replace(RIGHT, **{k: getattr(case.trainer, k) for k in ("sigma", "bound", "epochs", "batches")})
    if case.claimed:
        assert replace(case, claimed=None).audit(0).verdict != battery.BUG
    else:
        assert replace(case, trainer=right).audit(0).verdict != battery.BUG


# ------------------------------------------------------------------------------------------- a loop of one's own


def hand_written(norm):
    """A loop that clips each record's gradient and adds noise, of a network with this normalisation."""

    def train(dataset, generator):
        x, y = (torch.stack(part) for part in zip(*[dataset[i] for i in range(len(dataset))], strict=True))
        model = nn.Sequential(nn.Linear(4, 6), norm(6), nn.Tanh(), nn.Linear(6, 2))
        parameters = list(model.parameters())
        for _ in range(5):
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            rows = torch.autograd.grad(losses, parameters, torch.eye(len(y)), is_grads_batched=True)
            norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
            for p, g in zip(parameters, rows, strict=True):
                total = torch.einsum("i,i...", (1 / norms).clamp(max=1), g)
                noise = 8.0 * torch.randn(p.shape, generator=generator)
                p.data -= 0.2 * (total + noise) / len(y)
        return model

    return train


@pytest.mark.parametrize(("norm", "verdict"), [(nn.BatchNorm1d, True), (nn.LayerNorm, False)], ids=["batch", "layer"])
def test_batch_normalisation_left_in_a_hand_written_loop_is_found(norm, verdict):
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    probe = CanaryProbe(
        hand_written(norm), (x, y), claim=Claim(Steps(8.0, 1.0, 5, "full-batch"), 1e-5), runs=60, score=spread,
        canary=(torch.full((4,), 1e4), 1), target=3,
    )  # fmt: skip
    assert (probe.run(silent).verdict == battery.BUG) == verdict


def spread(model):
    """How different the outputs for ordinary records are: a huge record in the statistics flattens them."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    return float(model.eval()(x).detach().std(0).sum())


@pytest.mark.slow
def test_the_suite_runs_and_resumes(tmp_path):
    found = twice("audit.suites.broken_trainers", tmp_path)[1]
    assert {row["trainer"] for row in found["broken"]} == set(battery.BROKEN)
    assert all(row["power"] == 1 for row in found["broken"] if row["runs"] == 200)
    assert found["provenance"]["command"].startswith("python -m audit.suites.broken_trainers")
