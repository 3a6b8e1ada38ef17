"""The fine-tuner keeps its promises: a plan within its budget, reproducibility, resumption, and the given model."""

import copy
import math
import re
import warnings
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional

from safexplain._digest import weights_digest
from safexplain._progress import silent
from safexplain.dp import DPFineTuner, FlatClipping, PerLayerClipping, PrivacyStatement, epsilons, prepare
from safexplain.dp.models.prepare import check_loss
from safexplain.dp.sgd.sampling import PoissonSampler, gaussian
from safexplain.dp.sgd.train_loop import TrainingBudget, _reseed, plan_training
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning


def data(n=60, d=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def net(d=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, 8), nn.Tanh(), nn.Linear(8, 2))


def tuner(model=None, records=None, **options):
    given = {"epsilon": 8.0, "delta": 1e-5, "steps": 12, "batch_size": 15, "lr": 0.05, "seed": 1, "progress": silent}
    return DPFineTuner(model or net(), records or data(), **{**given, **options})


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_the_statement_is_of_the_data_and_steps_trained(trainable):
    fitted = tuner(trainable=trainable)
    done = fitted.fit()
    assert done.statement == replace(fitted.statement, weights=weights_digest(done.model))
    phase = done.statement.phases[0]
    assert (phase.sample_rate, phase.steps, done.statement.records) == (15 / 60, 12, 60)
    assert 7.9 < done.statement.epsilons.substitute <= 8.0
    assert done.statement.epsilons == epsilons(phase.noise_multiplier, 0.25, 12, 1e-5)
    assert not done.model.training


def slow_dp_sgd(model, x, y, *, sigma, q, steps, clip, lr, seed):
    """DP-SGD as its definition says it: one example at a time, with the tuner's own batches and noise."""
    model = copy.deepcopy(model)
    generator, sampler = torch.Generator(), PoissonSampler(seed)
    for t in range(steps):
        _reseed(generator, seed, t)
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in sampler.batch(t, len(y), q):
            loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
            grads = torch.autograd.grad(loss, list(model.parameters()))
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
            for s, g in zip(total, grads, strict=True):
                s += g * min(1.0, clip / norm)
        with torch.no_grad():
            for p, s in zip(model.parameters(), total, strict=True):
                p -= lr * (s + gaussian(s, sigma * clip, generator)) / (q * len(y))
    return model


@pytest.mark.parametrize(("mode", "piece"), [("hooks", 4), ("ghost", 64), ("ghost", 4)])
def test_training_is_dp_sgd_as_defined(mode, piece):
    x, y = data()
    made = tuner(mode=mode, piece=piece, clipping=FlatClipping(0.5), optimizer="sgd", lr=0.2)
    slow = slow_dp_sgd(net(), x, y, sigma=made.plan.noise_multiplier, q=0.25, steps=12, clip=0.5, lr=0.2, seed=1)
    assert torch.allclose(weights(made.fit().model), weights(slow), atol=2e-6)
    wrong = slow_dp_sgd(net(), x, y, sigma=made.plan.noise_multiplier, q=0.25, steps=12, clip=0.6, lr=0.2, seed=1)
    assert not torch.allclose(weights(slow), weights(wrong), atol=2e-6)


def test_a_seed_makes_training_repeatable_and_none_makes_it_secret_and_the_callers_model_stays_as_it_is():
    model = net()
    before, state = weights(model).clone(), torch.get_rng_state()
    one, again, other = (weights(tuner(model, seed=s).fit().model) for s in (1, np.int64(1), 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(weights(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    secret = [weights(tuner(seed=None).fit().model) for _ in range(2)]
    assert not torch.equal(*secret)


class Interrupted:
    """Progress that presses Ctrl-C at a step."""

    def __init__(self, at):
        self.at = at

    def __call__(self, stage, done, total, note=""):
        if done == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "mode": "hooks"}], ids=["adam", "sgd"])
def test_an_interrupted_training_goes_on_and_ends_as_if_it_had_not_been(options, tmp_path):
    path = tmp_path / "run.pt"
    whole = tuner(**options).fit()
    with pytest.raises(KeyboardInterrupt):
        tuner(**options, checkpoint=path, progress=Interrupted(5)).fit()
    seen = []
    resumed = tuner(**options, checkpoint=path, progress=lambda _, done, *rest: seen.append(done)).fit()
    assert seen[0] == 6
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.statement == whole.statement


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lr": 0.1}, "lr"),
        ({"epsilon": 4.0}, "statement"),
        ({"records": data(seed=1)}, "data"),
        ({"model": net(seed=1)}, "model"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(change, named, tmp_path):
    path = tmp_path / "run.pt"
    tuner(checkpoint=path).fit()
    with pytest.raises(InputError, match=rf"another training.*{named}"):
        tuner(**{"checkpoint": path, **change}).fit()


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "run.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        tuner(checkpoint=tmp_path / "run.pt").fit()


def test_a_checkpoint_holds_no_randomness(tmp_path):
    """Two trainings that go on from one checkpoint draw other batches and noise, as `seed=None` promises."""
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        tuner(seed=None, checkpoint=path, progress=Interrupted(5)).fit()
    saved = path.read_bytes()
    ends = []
    for _ in range(2):
        path.write_bytes(saved)
        ends.append(weights(tuner(seed=None, checkpoint=path).fit().model))
    assert not torch.equal(*ends)


def test_training_stops_before_the_budget_is_passed():
    made = tuner(epsilon=2.0, noise_multiplier=2.0, steps=400)
    with pytest.warns(PrivacyWarning, match=r"spent after \d+ of 400 steps"):
        done = made.fit()
    assert done.statement.phases[0].steps == made.plan.steps < 400
    assert done.statement.epsilons.substitute <= 2.0


@pytest.mark.parametrize(("trainable", "rest"), [("all", r", loss \d+\.\d\d"), ("head", "")])
def test_progress_tells_what_is_spent(trainable, rest):
    seen = []
    tuner(progress=lambda *told: seen.append(told), trainable=trainable).fit()
    assert [told[:3] for told in seen] == [("training with DP", step, 12) for step in range(1, 13)]
    spent = [float(re.match(rf"epsilon (\d+\.\d\d) \(substitute\){rest}$", told[3]).group(1)) for told in seen]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(8.0, abs=0.05)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_records_with_nan_are_skipped_counted_and_never_released(mode):
    x, y = data()
    x[3] = math.nan
    with pytest.warns(PrivacyWarning, match="not finite"):
        done = tuner(records=(x, y), mode=mode).fit()
    assert done.skipped == sum(3 in PoissonSampler(1).batch(t, 60, 0.25) for t in range(12)) > 0
    assert bool(weights(done.model).isfinite().all())


def test_weights_that_diverge_are_an_error_and_not_saved(tmp_path):
    path = tmp_path / "run.pt"
    with pytest.raises(InputError, match="lower the learning rate"):
        tuner(lr=3e38, batch_size=1, optimizer="sgd", checkpoint=path, checkpoint_seconds=1e9).fit()
    assert not path.exists()


def test_a_head_alone_is_trained_in_closed_form_with_the_same_guarantee():
    model = net()
    done = tuner(model, trainable="head", epsilon=100.0, steps=300, lr=0.02).fit()
    assert torch.equal(done.model[0].weight, model[0].weight)
    assert not torch.equal(done.model[2].weight, model[2].weight)
    x, y = data(n=2000, seed=5)
    known = LogisticRegression().fit(model[:2](x).detach(), y).score(model[:2](x).detach(), y)
    assert float((done.model(x).argmax(1) == y).float().mean()) > known - 0.2 > 0.65


def test_lora_gives_back_a_plain_model():
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(proj=nn.Linear(6, 8), act=nn.Tanh(), head=nn.Linear(8, 2)))
    done = tuner(model, trainable="lora", mode="hooks").fit()
    assert done.model.state_dict().keys() == model.state_dict().keys()
    assert not torch.equal(done.model.proj.weight, model.proj.weight)
    assert torch.equal(done.model.proj.bias, model.proj.bias)


def test_per_layer_clipping_takes_hooks():
    assert tuner(clipping=PerLayerClipping(1.0)).config.mode == "hooks"
    assert tuner().config.mode == "ghost"


@pytest.mark.parametrize(
    ("y", "trainable"), [(torch.arange(60), "head"), (torch.rand(60), "all"), (-torch.ones(60).long(), "all")]
)
def test_labels_that_the_model_has_no_output_for_are_refused(y, trainable):
    with pytest.raises(InputError, match=r"class indices \(rows,\) from 0 to 1"):
        tuner(records=(data()[0], y), trainable=trainable).fit()


def test_a_loss_that_mixes_examples_is_refused():
    with pytest.raises(ConfigurationError, match="depends on the other examples"):
        tuner(loss=lambda outputs, y: functional.cross_entropy(outputs, y, reduction="none") / len(y)).fit()
    with pytest.raises(ConfigurationError, match="one number for each"):
        tuner(loss=functional.cross_entropy).fit()


class Centred(nn.Module):
    """Subtracts the batch's mean: the influence of one example has no bound."""

    def forward(self, x):
        return x - x.mean(0)


def test_a_model_that_mixes_examples_is_refused():
    with pytest.raises(InputError, match="depends on other samples"):
        tuner(nn.Sequential(nn.Linear(6, 8), Centred(), nn.Linear(8, 2))).fit()


def test_a_penalty_in_the_loss_is_refused():
    model, trained = net(), {}

    def penalised(outputs, y):
        penalty = sum(p.square().sum() for p in trained["model"].parameters()) if trained else 0.0
        return functional.cross_entropy(outputs, y, reduction="none") + penalty

    ready = prepare(model)
    trained["model"] = ready
    with pytest.raises(ConfigurationError, match="weight_decay"):
        check_loss(penalised, ready(data()[0][:3]), data()[1][:3], list(ready.parameters()))


def test_the_checkpoints_folder_is_made_and_seen_to_be_writable_before_training(tmp_path):
    tuner(checkpoint=tmp_path / "new" / "run.pt").fit()
    assert (tmp_path / "new" / "run.pt").exists()
    (tmp_path / "file").write_text("")
    seen = []
    with pytest.raises(InputError, match="cannot write the checkpoint"):
        tuner(checkpoint=tmp_path / "file" / "run.pt", progress=lambda *told: seen.append(told)).fit()
    assert seen == []


def test_a_seed_and_pre_training_are_stated():
    for seed, pretrained in ((1, True), (None, False)):
        stated = tuner(seed=seed, pretrained=pretrained).statement
        assert (stated.seeded, stated.pretrained) == (seed is not None, pretrained)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": net().half(), "records": (data()[0].half(), data()[1])}, ConfigurationError, r"model\.float"),
        ({"records": (data(d=5)[0], data()[1])}, InputError, r"model cannot take rows of torch.float32 \(5,\)"),
        ({"records": (data()[0], ["a"] * 60)}, InputError, "expected y as a tensor or an array of numbers"),
        ({"model": nn.Sequential(nn.Linear(6, 2), nn.Softmax(0))}, InputError, "depends on other samples"),
        ({"model": "resnet"}, InputError, "expected a torch.nn.Module, got str"),
        ({"clipping": 1.0}, ConfigurationError, r"FlatClipping\(1.0\)"),
        ({"steps": None, "epochs": math.nan}, ConfigurationError, "epochs"),
        ({"piece": 2.5}, ConfigurationError, "piece"),
        ({"lr": -1}, ConfigurationError, "lr"),
        ({"device": "gpu"}, ConfigurationError, "device: expected cpu, .* got gpu"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(options, error, message):
    with pytest.raises(error, match=message):
        tuner(**options).fit()


def test_training_is_silent_off_a_terminal(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = DPFineTuner(net(), data(), epsilon=8.0, delta=1e-5, steps=3, batch_size=15).fit()
    assert isinstance(done.statement, PrivacyStatement)
    assert capsys.readouterr() == ("", "")


def test_epsilon_is_all_that_must_be_given():
    x, y = data(n=500)
    given = DPFineTuner(net(), (x, y), epsilon=8, progress=silent)
    assert (given.plan.steps, given.plan.sample_rate, given.plan.budget.delta) == (200, 0.1, 1e-5)
    assert given.statement.epsilons.substitute == pytest.approx(8, abs=2e-3)
    assert given.plan.budget.adjacency == "substitute"
    many = DPFineTuner(net(), (x.repeat(40, 1), y.repeat(40)), epsilon=8, progress=silent)
    assert many.plan.budget.delta == 0.1 / 20_000


def test_noise_is_calibrated_to_the_data_trained_on():
    made = plan_training(TrainingBudget(8.0, 1e-5), 10_000, 1000, epochs=30)
    assert (made.sample_rate, made.steps, made.requested_steps) == (0.1, 300, 300)
    assert 7.9 < made.spent(300) <= 8.0
    assert made.spent(150) < made.spent(300)


def test_a_fixed_noise_multiplier_ends_training_before_the_budget_would_be_passed():
    made = plan_training(TrainingBudget(2.0, 1e-5, "add_remove", noise_multiplier=1.0), 1000, 100, epochs=30)
    assert made.steps < made.requested_steps == 300
    assert made.spent(made.steps) <= 2.0 < made.spent(made.steps + 1)


def test_full_batches_are_accounted_as_such():
    made = plan_training(TrainingBudget(1.0, 1e-5), 100, 100, steps=10)
    assert made.phase().sampling == "full-batch"
    assert made.phase(3).steps == 3


def test_no_limit_needs_a_noise_multiplier():
    assert plan_training(TrainingBudget(None, 1e-5, noise_multiplier=0.0), 100, 10, epochs=1).spent(10) == math.inf
    with pytest.raises(ConfigurationError, match="expected epsilon"):
        TrainingBudget(None, 1e-5)


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (TrainingBudget(1.0, 1e-5), {"batch_size": 101, "epochs": 1}, "at most the 100 records"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10}, "either epochs or steps, got neither"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10, "epochs": 1, "steps": 2}, "either epochs or steps, got both"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10, "epochs": 0}, "at least one whole step"),
        (TrainingBudget(0.1, 1e-5, noise_multiplier=0.5), {"batch_size": 50, "steps": 10}, "spends more than 0.1"),
    ],
)
def test_impossible_plans_are_refused(budget, options, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_training(budget, 100, **options)


@pytest.mark.parametrize("epsilon", [0, math.inf])
def test_impossible_epsilons_are_refused(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon"):
        TrainingBudget(epsilon, 1e-5)
