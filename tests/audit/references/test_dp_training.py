"""References with differential privacy: each as `DPFineTuner` trains it, heads together, from a public start."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from safexplain._progress import silent
from safexplain.audit import Population, Recipe, train_shadows
from safexplain.audit.references import recipe as recipes
from safexplain.audit.references.recipe import DPTraining, FrozenAs
from safexplain.audit.references.shadows import Repeated, mixed_seed
from safexplain.dp import DPFineTuner, FlatClipping
from safexplain.errors import InputError

N = 80
DP = {"epsilon": 8.0, "delta": 1e-3, "clipping": "flat", "clip": 0.7}
RECIPE = Recipe(lr=0.02, epochs=2, batch_size=10, dp=DP)
HEAD = replace(RECIPE, dp={**DP, "trainable": "head"})


def pool(n: int = N) -> Population:
    g = torch.Generator().manual_seed(0)
    return Population(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g))


def build(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def shared(seed: int) -> nn.Sequential:
    """One backbone, and a head of its own for each seed."""
    return nn.Sequential(*build(0)[:2], build(seed)[2])


def state(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_reference_is_what_dpfinetuner_makes_of_its_members_with_its_own_seed():
    population = pool()
    shadows = train_shadows(population, RECIPE, build=build, models=2, members=40, seed=3)
    assert (shadows.membership.sum(1) == 40).all()
    for i, (model, row) in enumerate(zip(shadows.models, shadows.membership, strict=True)):
        inside, seed = torch.from_numpy(row), mixed_seed(3, RECIPE.seed, i)
        torch.manual_seed(seed)
        own = DPFineTuner(
            build(seed % 2**31),
            (population.x[inside], population.y[inside]),
            epsilon=8,
            delta=1e-3,
            epochs=2,
            batch_size=10,
            lr=0.02,
            clipping=FlatClipping(0.7),
            pretrained=False,
            device="cpu",
            seed=mixed_seed(3, RECIPE.seed + 1, i) % 2**31,
            progress=silent,
        ).fit()
        assert torch.equal(state(model), state(own.model))


def test_heads_train_together_and_without_noise_they_are_those_of_dpfinetuner(monkeypatch):
    seen = []
    together = recipes._train_heads
    monkeypatch.setattr(recipes, "_train_heads", lambda *a: seen.append(len(a[4])) or together(*a))
    plain = {"delta": 1e-3, "noise_multiplier": 0.0, "sample_rate": 1.0, "steps": 7, "trainable": "head", "clip": 0.5}
    population, recipe = pool(), Recipe(lr=0.02, dp=plain)
    shadows = train_shadows(population, recipe, build=shared, models=4, members=30)
    assert seen == [4]
    for i, (model, row) in enumerate(zip(shadows.models, shadows.membership, strict=True)):
        inside, seed = torch.from_numpy(row), mixed_seed(0, 0, i)
        data = population.x[inside], population.y[inside]
        start = shared(seed % 2**31)
        own = DPTraining(**plain).tuner(recipe, start, *data, seed=0).fit().model
        assert torch.allclose(state(model), state(own), atol=1e-5)
        assert torch.equal(model[0].weight, start[0].weight)


def test_each_head_has_noise_of_its_own_and_of_the_right_scale():
    population = pool(40)
    dp = {"delta": 1e-3, "noise_multiplier": 2.0, "sample_rate": 0.25, "steps": 1, "trainable": "head",
          "clipping": "flat", "clip": 1e-3}  # fmt: skip
    recipe = Recipe(optimizer="sgd", lr=1.0, momentum=0.0, dp=dp)
    shadows = train_shadows(population, recipe, build=lambda _: shared(1), models=60, members=20)
    moved = torch.stack([m[2].weight.detach() - shared(1)[2].weight.detach() for m in shadows.models])
    scale = float(moved.std()) * 5 / 1e-3  # lr C / expected batch of 5; what is clipped is small beside it
    assert scale == pytest.approx(2.0, rel=0.06)  # of 900 numbers: two and a half standard deviations
    correlation = np.corrcoef(moved.flatten(1).numpy())[np.triu_indices(60, 1)]
    assert abs(correlation.mean()) < 0.1


def test_what_did_not_train_is_the_targets_also_behind_a_wrapper():
    target = build(9)
    member = np.arange(N) < 30
    repeated = Repeated.of(HEAD, build, target, member)
    assert repeated.members == 30
    for seed in (1, 2):
        model = repeated.build(seed)
        assert torch.equal(model[0].weight, target[0].weight)
        assert torch.equal(model[2].weight, build(seed)[2].weight)

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.program = target

    assert torch.equal(Repeated.of(HEAD, build, Wrapper(), member).build(1)[0].weight, target[0].weight)
    whole = Repeated.of(RECIPE, build, target, member)
    assert torch.equal(state(whole.build(1)), state(build(1)))
    assert Repeated.of(Recipe(), build, target, member) == (build, None)


def test_a_target_of_another_architecture_is_refused():
    with pytest.raises(InputError, match=r"has no 0\.weight of shape"):
        FrozenAs(build, nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), HEAD.dp)(0)


def test_as_many_members_as_the_target_and_whole_groups():
    population = pool()
    drawn = population.draw(200, 25, seed=1)
    assert (drawn.sum(1) == 25).all()
    assert abs(drawn.mean(0) - 25 / N).max() < 0.15
    groups = np.repeat(np.arange(N // 4), 4)
    grouped = Population(population.x, population.y, groups).draw(20, 25, seed=1)
    assert set(grouped.sum(1)) <= {24, 28}
    assert all(len(set(row[groups == g])) == 1 for row in grouped for g in range(N // 4))
    with pytest.raises(InputError, match="1 to 80 members"):
        population.draw(1, 81, seed=0)
