"""A plan counts what the audit really does, and writes, asks and decides nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from safexplain import HardenedOcclusion, HardenedSaliency, Hardening, NormClip
from safexplain.audit import AuditOptions, FineTune, Policy, Population, Recipe, audit, planning, train_shadows
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.planning import plan_audit
from safexplain.verdict.power import best_certifiable

RECIPE = Recipe(optimizer="sgd", lr=0.1, epochs=3, batch_size=20)
WHOLE = Policy(fpr=0.1, max_tpr=0.8, patience=(1, 3), uncounted=True)
POLICY = replace(WHOLE, suite=("Threshold", "LikelihoodRatio"))
TRAINING = "training reference models"
N, REFERENCES = 90, 4

pytestmark = pytest.mark.usefixtures("few_trees")


def build(seed):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def convolutional(seed):
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    population = Population.of(rng.normal(size=(N, 6)), rng.integers(0, 3, N))
    shadows = train_shadows(population, RECIPE, build=build, models=1, seed=5)
    return population, shadows.models[0], shadows.membership[0]


@pytest.fixture
def arguments(case):
    population, model, member = case
    return {
        "model": model,
        "population": population,
        "recipe": RECIPE,
        "member": member,
        "build": build,
        "explainer": HardenedSaliency,
        "hardening": Hardening(clip=NormClip(0.8)),
        "references": REFERENCES,
        "policy": POLICY,
    }


def stage_of(plan, name):
    return next(stage for stage in plan.stages if stage.name == name)


def planned(given, **changes):
    return plan_audit(**{**given, "budget": 0.5, **changes})


def done(given, **changes):
    """Units of each stage that a real audit tells of, and its result."""
    told = {}
    result = audit(**{**given, **changes}, progress=lambda stage, done, total, note="": told.update({stage: total}))
    return {stage.partition(" (pool")[0]: int(total) for stage, total in told.items()}, result


@pytest.mark.parametrize("changes", [
    {"policy": WHOLE, "output": "logit", "references": 5},
    {"references": 0},
    {"options": AuditOptions(classes=(0, 1)), "hardening": Hardening.none(), "policy": replace(POLICY, patience=(1,))},
    {"policy": replace(POLICY, release="prediction")},
], ids=["hardened", "no references", "native classes, once", "predictions"])  # fmt: skip
def test_a_plan_counts_what_the_audit_does(arguments, changes):
    plan = planned(arguments, **changes)
    real, result = done(arguments, **changes)
    counted = {stage.name: stage.count for stage in plan.stages}
    assert [stage.name for stage in plan.stages] == [name for name in real if name != "planning"]
    uncounted = ("attacking", "root cause")
    assert {name: total for name, total in real.items() if not name.startswith(uncounted)}.items() <= counted.items()
    assert (plan.members, plan.non_members) == (result.result.members, result.result.non_members)
    assert (plan.claim, plan.limit) == (result.result.claim, result.result.limit) or plan.claim == "excess"


@pytest.mark.parametrize(("make", "compiled"), [(convolutional, True), (build, False)])
def test_steps_of_batched_groups_and_of_single_models_are_planned(arguments, make, compiled):
    stage = stage_of(planned(arguments, build=make, recipe=replace(RECIPE, compile=compiled)), TRAINING)
    assert stage.seconds > 0
    assert stage.says.startswith(f"{RECIPE.steps_per_epoch(N // 2) * RECIPE.epochs} steps each")
    assert ("not compiled" in stage.says) == compiled


def test_finished_models_are_not_counted_and_nothing_is_written(arguments, tmp_path):
    cache = tmp_path / "models"
    assert stage_of(planned(arguments, cache=cache), TRAINING).seconds > 0
    assert not cache.exists()
    train_shadows(arguments["population"], RECIPE, build=build, models=REFERENCES, seed=0, cache=cache)
    kept = sorted(cache.iterdir())
    before = {path: path.read_bytes() for path in kept}
    kept[0].unlink()
    half = stage_of(planned(arguments, cache=cache), TRAINING)
    assert f"{REFERENCES - 1} are finished" in half.says
    assert half.seconds > 0
    assert sorted(cache.iterdir()) == kept[1:]
    kept[0].write_bytes(before[kept[0]])
    assert stage_of(planned(arguments, cache=cache), TRAINING).seconds == 0


def test_estimators_are_planned_by_whole_fits(arguments):
    population, member = arguments["population"], arguments["member"]
    tree = DecisionTreeClassifier(max_depth=3)
    fitted = tree.fit(population.x.numpy()[member], population.y.numpy()[member])
    plan = planned(arguments, model=fitted, recipe=tree, build=None, explainer=HardenedOcclusion,
                   hardening=Hardening.none(), arguments={"sliding_window_shapes": (2,)})  # fmt: skip
    assert "by a fit of 45 of 45 examples" in stage_of(plan, TRAINING).says
    assert plan.seconds > 0


def test_both_stages_of_a_fine_tuned_model_are_planned(arguments):
    population = arguments["population"]
    downstream = Population.of(population.x.numpy(), (population.y.numpy() + 1) % 3)
    how = FineTune(downstream, RECIPE, "all")
    plan = planned(arguments, then=how, options=AuditOptions(subject_data="pre-training"))
    names = [stage.name for stage in plan.stages]
    assert names[:2] == ["pre-training reference models", "fine-tuning reference models"]
    assert "asking for labels" in names


def test_an_endpoint_is_asked_nothing(arguments):
    endpoint = Endpoint("http://127.0.0.1:9/nobody", "json", classes=3)
    plan = planned(arguments, model=endpoint)
    asks = stage_of(plan, "asking the endpoint")
    assert asks.count == endpoint.plan(N, POLICY.patience).questions
    assert asks.seconds == endpoint.plan(N, POLICY.patience).seconds
    alone = planned(arguments, model=endpoint, references=0, recipe=None, build=None)
    assert "asking the endpoint" in [stage.name for stage in alone.stages]
    assert any("Without reference models" in note for note in alone.notes)


def test_the_best_verdict_is_that_of_the_examples_that_are_scored(arguments):
    plan = planned(arguments)
    assert plan.best_certifiable == best_certifiable(POLICY, plan.members, plan.non_members)
    assert not plan.reachable  # four reference models stand behind the attacks
    assert any("4 reference models" in obstacle for obstacle in plan.obstacles)
    strict = planned(arguments, policy=replace(POLICY, max_tpr=0.11))
    assert strict.best_certifiable > strict.limit
    assert strict.needed > strict.members + strict.non_members
    assert plan.needed == 0
    groups = np.arange(N) // 3
    grouped = planned(
        arguments,
        population=Population.of(arguments["population"].x.numpy(), arguments["population"].y.numpy(), groups),
    )
    assert grouped.members < plan.members


def test_a_quick_look_is_planned_as_no_certificate(arguments):
    lax = replace(WHOLE, max_tpr=0.9, references=REFERENCES)
    assert planned(arguments, policy=lax).reachable
    quick = planned(arguments, policy=lax, options=AuditOptions(quick=True))
    assert not quick.reachable
    assert any("quick" in obstacle for obstacle in quick.obstacles)


def test_a_plan_is_json(arguments):
    found = json.loads(json.dumps(planned(arguments).to_dict(), allow_nan=False))
    assert {"seconds", "memory_bytes", "disk_bytes", "best_certifiable", "stages"} <= found.keys()
    assert found["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]), abs=0.05)


def test_a_rate_is_the_slope_without_what_is_prepared(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(planning, "now", lambda: now[0])

    def work(amount):
        now[0] += 5.0 + 0.25 * amount

    clock = planning.Clock(torch.device("cpu"), 60.0)
    assert planning.rate(clock, work, 1000, 100.0) == pytest.approx(0.25)
    assert planning.rate(clock, work, 1, 100.0) == pytest.approx(5.25)  # nothing to compare with
    assert planning.rate(clock, work, 1000, 1.0) == pytest.approx(5.25)  # a single one takes too long
