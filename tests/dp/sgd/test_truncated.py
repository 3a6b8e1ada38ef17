"""Truncated Poisson batches: never larger than said, otherwise those of Poisson sampling, and paid for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from safexplain._privacy_loss import truncation
from safexplain._progress import silent
from safexplain.dp import DPFineTuner, FlatClipping, PrivacyStatement, composed
from safexplain.dp.sgd.plan import TrainingBudget, plan_training
from safexplain.dp.sgd.sampling import PoissonSampler
from safexplain.dp.sgd.train_loop import memory_told
from safexplain.errors import ConfigurationError

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=G)
Y = torch.randint(0, 2, (60,), generator=G)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def tuner(**options):
    given = {
        "epsilon": None, "noise_multiplier": 0.0, "delta": 1e-5, "steps": 6, "batch_size": 12, "largest_batch": 14,
        "optimizer": "sgd", "lr": 0.5, "seed": 4, "progress": silent, "clipping": FlatClipping(0.2),
    }  # fmt: skip
    return DPFineTuner(network(), (X, Y), **(given | options))


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_batch_that_is_not_too_large_is_the_poisson_batch_and_of_others_a_part_is_kept():
    sampler = PoissonSampler()
    cut = 0
    for t in range(200):
        plain, truncated = sampler.batch(t, 100, 0.1), sampler.batch(t, 100, 0.1, 11)
        if len(plain) <= 11:
            assert np.array_equal(plain, truncated)
        else:
            cut += 1
            assert len(truncated) == 11
            assert set(truncated) < set(plain)
    assert 20 < cut < 100


def test_of_a_batch_that_is_cut_every_record_is_kept_as_often():
    sampler = PoissonSampler.from_seed(1)
    counts = np.zeros(20)
    for t in range(3000):
        counts[sampler.batch(t, 20, 0.999999, 5)] += 1
    assert abs(counts / 3000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 3000)


def test_the_noise_pays_for_what_is_cut():
    def planned(largest):
        budget = TrainingBudget(4.0, 1e-5, "add_remove")
        return plan_training(budget, 10_000, 100, steps=200, largest_batch=largest)

    plain, wide, narrow = planned(None), planned(200), planned(170)
    assert plain.phase().sampling == "poisson"
    assert wide.phase().largest_batch == 200
    assert plain.noise_multiplier <= wide.noise_multiplier < 1.001 * plain.noise_multiplier
    assert narrow.noise_multiplier > wide.noise_multiplier
    assert 3.9 < composed([narrow.phase()], 1e-5).add_remove <= 4.0
    with pytest.raises(ConfigurationError, match="largest_batch"):
        planned(110)  # some batch is cut almost surely


def test_a_limit_that_no_batch_reaches_changes_nothing_and_one_below_the_mean_is_refused():
    budget = TrainingBudget(4.0, 1e-5)
    assert plan_training(budget, 60, 12, steps=3, largest_batch=60) == plan_training(budget, 60, 12, steps=3)
    for wrong in (12, 5):
        with pytest.raises(ConfigurationError, match=r"more than batch_size.* 48, cost next to nothing"):
            plan_training(budget, 60, 12, steps=3, largest_batch=wrong)


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_training_takes_what_is_kept_and_divides_by_the_same_constant(trainable):
    fitted = tuner(trainable=trainable)
    model, sampler = fitted.prepared(), PoissonSampler.from_seed(4)
    trained, cut = [p for p in model.parameters() if p.requires_grad], 0
    for t in range(6):
        rows = sampler.batch(t, 60, 0.2, 14)
        cut += len(sampler.batch(t, 60, 0.2)) > 14
        total = [torch.zeros_like(p) for p in trained]
        for row in rows:
            one = torch.autograd.grad(functional.cross_entropy(model(X[row : row + 1]), Y[row : row + 1]), trained)
            factor = min(1.0, 0.2 / float(torch.cat([g.flatten() for g in one]).norm()))
            total = [a + factor * g for a, g in zip(total, one, strict=True)]
        with torch.no_grad():
            for p, g in zip(trained, total, strict=True):
                p -= 0.5 / 12 * g
    assert cut > 0
    torch.testing.assert_close(flat(fitted.fit().model), flat(model), rtol=1e-4, atol=1e-6)


def test_the_statement_says_that_batches_were_cut(tmp_path):
    stated = tuner(epsilon=8.0, noise_multiplier=None, largest_batch=45).fit().statement
    assert (stated.phases[0].sampling, stated.phases[0].largest_batch) == ("truncated-poisson", 45)
    assert 0 < truncation(stated.phases, "substitute") < 1e-6
    assert PrivacyStatement.load(stated.save(tmp_path / "privacy.json")) == stated
    assert "at most 45" in stated.to_markdown()


def test_persons_can_be_cut_too():
    stated = tuner(
        groups=np.arange(60) // 2, batch_size=8, largest_batch=28, epsilon=8.0, noise_multiplier=None
    ).statement
    assert (stated.unit, stated.phases[0].records, stated.phases[0].largest_batch) == ("person", 30, 28)


def test_who_runs_out_of_memory_is_told_what_helps():
    with pytest.raises(torch.OutOfMemoryError) as caught, memory_told("lower piece"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "lower piece" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError) as other, memory_told("lower piece"):
        raise RuntimeError("a shape is wrong")
    assert not hasattr(other.value, "__notes__")
