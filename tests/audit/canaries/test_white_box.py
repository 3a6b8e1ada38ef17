"""The white box: what it finds in the steps of broken trainings, and that it passes right ones."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

from audit.suites.broken_trainers.suite import BROKEN, RIGHT, Case, records
from safexplain._privacy_loss import Steps
from safexplain._progress import silent
from safexplain.audit.canaries import Claim, WhiteBox, add_noise, audit_training
from safexplain.dp import DPFineTuner, FlatClipping
from safexplain.errors import ConfigurationError, InputError, RefusedError

SAMPLED = Claim(Steps(2.0, 0.25, 16), 1e-5)


def case_named(name: str) -> Case:
    """Of the suite, as broken before right."""
    return next(case for case in (*BROKEN, *RIGHT) if case.name == name)


def watched(case: Case, seed: int = 0) -> Any:
    """The white box's result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WhiteBox(case.trainer.train, records(), case.claim, clip=case.clip, seed=seed).run()


def failed(result: Any) -> set[str]:
    """Names of the checks that failed."""
    return {check.name for check in result.checks if check.passed is False}


QUICK = ("by_hand:Loop", "with_engines:Opacus")
RIGHT_ONES = [case.name if case.name in QUICK else pytest.param(case.name, marks=pytest.mark.slow) for case in RIGHT]


@pytest.mark.parametrize("name", RIGHT_ONES)
def test_a_right_training_is_as_claimed(name):
    result = watched(next(case for case in RIGHT if case.name == name))
    assert (result.verdict, result.exit_code) == ("as claimed", 0), result.sentence


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("by_hand:DecayingNoise", "size of the noise"),
        pytest.param("by_hand:UniformNoise", "distribution of the noise", marks=pytest.mark.slow),
        ("by_hand:SameNoiseEveryStep", "independence of the noise"),
        pytest.param("by_hand:QuantileBound", "noise apart from the records", marks=pytest.mark.slow),
        ("by_hand:MicroBatchesScaledBack", "sensitivity"),
        ("by_hand:SecondMomentFromCleanSums", "released by the sums alone"),
        ("by_hand:Shuffled", "batches drawn anew"),
        ("with_engines:Resumed", "steps"),
    ],
)
def test_a_broken_training_is_refuted_by_the_step_that_is_wrong(name, check):
    result = watched(case_named(name))
    assert (result.verdict, result.exit_code) == ("refuted", 1)
    assert check in failed(result)


def test_a_sample_rate_below_the_true_one_is_refuted():
    case = next(case for case in BROKEN if case.times > 1)
    assert failed(watched(case)) == {"sample rate"}


def test_an_epsilon_below_what_the_steps_spend_is_refuted():
    case = next(case for case in RIGHT if case.name == "by_hand:Loop")
    spent = case.claim.substitute
    assert spent is not None
    less = Claim(case.claim.mechanism, case.claim.delta, epsilon=0.9 * spent)
    result = WhiteBox(case.trainer.train, records(), less, clip=case.clip).run()
    assert failed(result) == {"accounting"}


def loop(dataset, generator, step=add_noise, *, steps=16, rate=0.25, sigma=2.0, told=True):
    """DP-SGD as people write it, Poisson batches."""
    x, y = (torch.stack(part) for part in zip(*dataset, strict=True))
    w = torch.zeros(2, x.shape[1])
    for _ in range(steps):
        batch = torch.rand(len(x), generator=generator) < rate
        residual = (x[batch] @ w.T).softmax(1) - nn.functional.one_hot(y[batch], 2)
        rows = residual[:, :, None] * x[batch][:, None]
        rows = rows * (1 / rows.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1)[:, None, None]
        noise = sigma * torch.randn(w.shape, generator=generator)
        w = w - 0.1 * step(rows.sum(0), noise, batch if told else None) / (rate * len(x))
    model = nn.Linear(x.shape[1], 2, bias=False)
    model.weight.data = w
    return model


def test_one_line_in_a_loop_of_ones_own_is_enough():
    assert WhiteBox(loop, records(), SAMPLED).run().verdict == "as claimed"


def test_noise_that_is_a_tenth_too_small_is_refuted():
    def train(dataset, generator, step=add_noise):
        return loop(dataset, generator, step, sigma=1.8)

    assert failed(WhiteBox(train, records(), SAMPLED).run()) == {"size of the noise"}


def test_without_the_batches_nothing_is_certified():
    def train(dataset, generator, step=add_noise):
        return loop(dataset, generator, step, told=False)

    result = WhiteBox(train, records(), SAMPLED).run()
    assert (result.verdict, result.exit_code) == ("not refuted", 3)
    assert [check.name for check in result.checks if check.passed is None] == ["batches"]


def test_clipping_that_no_gradient_reaches_was_not_tested():
    def train(dataset, generator, step=add_noise):
        return loop(dataset, generator, lambda c, n, b: step(c, 1000 * n, b))

    result = WhiteBox(train, records(), SAMPLED, clip=1000.0).run()
    assert [check.name for check in result.checks if check.passed is not True] == ["sensitivity"]
    assert result.verdict == "not refuted"


def test_a_function_that_seeds_its_noise_is_told_so():
    def train(dataset, generator, step=add_noise):
        torch.manual_seed(0)
        return loop(dataset, torch.default_generator, step)

    with pytest.raises(InputError, match="your function seeds its noise: every run is the same"):
        WhiteBox(train, records(), SAMPLED).run()


def test_the_same_noise_in_every_training_is_refuted_where_batches_differ():
    def train(dataset, generator, step=add_noise):
        own = torch.Generator().manual_seed(0)

        def drawn(clipped, noise, batch):
            return step(clipped, 2.0 * torch.randn(noise.shape, generator=own), batch)

        return loop(dataset, generator, drawn)

    assert "independence of the noise" in failed(WhiteBox(train, records(), SAMPLED).run())


def test_a_training_that_cannot_be_repeated_is_refused():
    def train(dataset, generator, step=add_noise):
        return loop(dataset, torch.Generator().manual_seed(torch.seed()), step)

    with pytest.raises(InputError, match="with the same seeds differ"):
        WhiteBox(train, records(), SAMPLED).run()


def test_a_loop_that_hands_over_no_steps_is_refused_with_what_to_write():
    def train(dataset, generator):
        return loop(dataset, generator)

    with pytest.raises(RefusedError, match=r"noisy = step\(clipped, noise, batch\)"):
        WhiteBox(train, records(), SAMPLED).run()


@pytest.mark.parametrize("claim", [Claim(None, 1e-5, epsilon=3.0), Claim(Steps(0.0, 0.5, 4), 1e-5)])
def test_a_claim_without_a_mechanism_is_refused(claim):
    with pytest.raises(ConfigurationError, match="expected one with a mechanism with noise"):
        WhiteBox(loop, records(), claim)


def test_records_that_a_training_refuses_are_left_out():
    def train(dataset, generator, step=add_noise):
        if max(float(x.norm()) for x, _ in dataset) > 50:
            raise ValueError("out of range")
        return loop(dataset, generator, step)

    assert WhiteBox(train, records(), SAMPLED).run().verdict == "as claimed"


def test_sums_may_be_arrays_in_dictionaries():
    case = Case("by_hand:Functional")
    assert watched(case).verdict == "as claimed"
    both = add_noise({"w": np.ones(2), "b": [torch.ones(1)]}, {"w": np.ones(2), "b": [torch.ones(1)]})
    assert np.array_equal(both["w"], [2.0, 2.0])
    assert torch.equal(both["b"][0], torch.tensor([2.0]))


@pytest.mark.parametrize(
    ("bound", "name"), [(0.3, "NoNoiseOnBias"), pytest.param(4.0, "Opacus", marks=pytest.mark.slow)]
)
def test_the_bound_of_an_optimizer_is_known_to_it(bound, name, monkeypatch):
    case = case_named(f"with_engines:{name}")
    init = DPOptimizer.__init__
    monkeypatch.setattr(DPOptimizer, "__init__", lambda *a, **k: init(*a, **{**k, "max_grad_norm": bound}))
    result = WhiteBox(case.trainer.train, records(), case.claim).run()
    assert result.setting["clip"] == bound
    assert failed(result) == ({"size of the noise"} if name == "NoNoiseOnBias" else set()), result.sentence


def tuner(**options) -> DPFineTuner:
    """Of a small network on 60 records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    how: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "steps": 16, "batch_size": 15, "progress": silent, **options}
    return DPFineTuner(model, (x, (x[:, 0] > 0).long()), **how)


SLOW = [{"mode": "ghost"}, {"mode": "hooks", "clipping": FlatClipping(0.5)}, {"groups": np.arange(60) // 3}]


@pytest.mark.parametrize("options", [{"trainable": "head"}, *(pytest.param(o, marks=pytest.mark.slow) for o in SLOW)])
def test_a_tuner_trains_as_it_claims(options):
    result = audit_training(tuner(**options), "white-box")
    assert result.verdict == "as claimed", result.sentence


@pytest.mark.parametrize("options", [{"trainable": "head"}, pytest.param({"mode": "ghost"}, marks=pytest.mark.slow)])
def test_a_tuner_with_less_noise_than_planned_is_refuted(options, monkeypatch):
    from safexplain.dp import heads as closed_form
    from safexplain.dp.sgd import sampling, steps

    for module in (closed_form, steps):
        monkeypatch.setattr(module, "gaussian", lambda *a, **k: 0.9 * sampling.gaussian(*a, **k))
    assert failed(audit_training(tuner(**options), "white-box")) == {"size of the noise"}
