"""Plans of audits by canaries and of searches: their best verdict is the one that the real run could give."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import HardenedSaliency, Hardening
from safexplain._privacy_loss import Steps
from safexplain.audit import Policy, Population, Question, Recipe, train_shadows
from safexplain.audit.canaries import CanaryProbe, Claim, Setting, run_canaries
from safexplain.audit.planning import plan_audit, plan_canaries, plan_probes
from safexplain.dp.heads import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import InputError
from safexplain.tune import tune
from safexplain.tune.study import plan_tune

STEPS = 20


@pytest.fixture(scope="module")
def setting():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=generator), torch.arange(60) % 2
    recipe = HeadRecipe(
        classes=2, steps=STEPS, sample_rate=0.25, expected_batch_size=15, clipping=FlatClipping(1.0), lr=0.1
    )
    return Setting("small", x, y, recipe, Claim(Steps(1.0, 0.25, STEPS), 1e-5))


@pytest.mark.parametrize("scenario", ["gradient", "worst-case"])
def test_the_best_epsilon_is_the_ceiling_of_the_real_runs(setting, scenario):
    plan = plan_canaries(setting, [scenario], runs=60)
    real = run_canaries(setting, scenario, runs=60)
    assert plan.best_certifiable == real.ceiling
    assert plan.limit == real.claim.substitute
    assert plan.members + plan.non_members == real.errors[-1].positives + real.errors[-1].negatives
    assert plan.claim == "epsilon"
    if scenario != "worst-case":
        assert plan.seconds > 0
        assert [stage.count for stage in plan.stages] == [1, 60]


def test_the_best_epsilon_of_several_scenarios_is_that_of_what_is_trained(setting):
    plan = plan_canaries(setting, ["worst-case", "mislabelled"], runs=60)
    assert plan.best_certifiable == plan_canaries(setting, ["mislabelled"], runs=60).best_certifiable
    assert plan.best_certifiable < plan.limit
    assert not plan.reachable
    assert "more --runs" in plan.notes[0]


def test_a_function_of_ones_own_has_the_ceiling_of_the_real_runs(setting):
    calls = []

    def train(dataset, seed):
        calls.append(len(dataset))
        return nn.Linear(5, 2)

    data = (setting.x, setting.y)
    probe = CanaryProbe(train, data, claim=setting.claim, runs=20)
    plan = plan_probes([probe])
    assert calls == [60, 60]  # with two seeds
    assert plan.best_certifiable == probe.run(lambda *_: None).ceiling


def test_a_search_is_planned_with_its_confirmation():
    pytest.importorskip("optuna")
    rng = np.random.default_rng(0)
    population = Population.of(rng.normal(size=(120, 6)), rng.integers(0, 3, 120))
    recipe = Recipe(epochs=2)

    def build(seed):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    trained = train_shadows(population, recipe, build=build, models=1, seed=5)
    arguments = {
        "model": trained.models[0], "population": population, "recipe": recipe, "member": trained.membership[0],
        "build": build, "explainer": HardenedSaliency, "references": 4, "trials": 3,
        "policy": Policy(fpr=0.1, max_tpr=0.5, patience=(1,), suite=("LikelihoodRatio",), uncounted=True),
    }  # fmt: skip
    asked = {name: value for name, value in arguments.items() if name != "trials"}
    question = Question(**asked, hardening=Hardening.none())
    plan = plan_tune(question, trials=3, budget=0.5)
    told = {}
    found = tune(**arguments, progress=lambda stage, done, total, note="": told.update({stage: int(total)}))
    counts = {stage.name: stage.count for stage in plan.stages}
    for name in ("training reference models", "searching", "confirming: asking for labels"):
        assert counts[name] == told[name]
    if found.confirmed is not None:
        assert (plan.members, plan.non_members) == (found.confirmed.result.members, found.confirmed.result.non_members)
    with pytest.raises(InputError, match="at least 4"):
        plan_tune(replace(question, references=3))


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_trainings_with_privacy_are_measured_by_a_few_steps(trainable):
    generator = torch.Generator().manual_seed(0)
    pool = Population(torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator))
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    recipe = Recipe(epochs=40, batch_size=10, dp={"epsilon": 8, "delta": 1e-3, "trainable": trainable})
    plan = plan_audit(
        network.eval(), pool, recipe, member=np.arange(60) < 30, build=lambda _: network, explainer=HardenedSaliency,
        hardening=Hardening.none(), references=4, policy=Policy(patience=(1,), uncounted=True), budget=0.5,
    )  # fmt: skip
    stage = plan.stages[0]
    assert stage.says == "120 steps each, with differential privacy"
    assert stage.seconds > 0
