"""Recipes: training as data, checked when it is written down, also with differential privacy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from safexplain._progress import silent
from safexplain.audit import Population, Recipe, train_shadows
from safexplain.audit.references import recipe as recipes
from safexplain.audit.references.recipe import DPTraining, FrozenAs, check_examples, check_records, overruled
from safexplain.audit.references.shadows import Repeated, mixed_seed
from safexplain.dp import AutoSClipping, DPFineTuner, FlatClipping, PerLayerClipping, Steps
from safexplain.dp.sgd.steps import MECHANISM
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.verdict.privacy_statement import PrivacyStatement

RECIPES = st.builds(
    Recipe,
    optimizer=st.sampled_from(["adam", "adamw", "sgd"]),
    lr=st.floats(0, 1e300),
    momentum=st.one_of(st.floats(0, 1), st.just(0)),
    weight_decay=st.floats(0, 1),
    epochs=st.integers(1, 10**9),
    batch_size=st.integers(1, 10**9),
    schedule=st.sampled_from(["constant", "cosine"]),
    augmentation=st.sampled_from(["none", "flip", "crop-flip"]),
    seed=st.integers(0, 2**70),
    precision=st.sampled_from(["float32", "bf16"]),
    channels_last=st.booleans(),
    compile=st.booleans(),
    examples=st.none() | st.integers(1, 10**9),
)


@given(recipe=RECIPES)
def test_a_recipe_survives_toml(tmp_path_factory, recipe):
    path = tmp_path_factory.mktemp("recipes") / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert Recipe.from_toml(path) == recipe


def test_the_text_of_a_recipe_at_the_newer_defaults_is_what_it_was():
    assert Recipe().to_toml() == (
        'optimizer = "adam"\nlr = 0.001\nmomentum = 0.9\nweight_decay = 0.0\nepochs = 50\nbatch_size = 64\n'
        'schedule = "constant"\naugmentation = "none"\nseed = 0\n'
    )
    fast = Recipe(precision="bf16", channels_last=True, compile=True).to_toml()
    assert fast == Recipe().to_toml() + 'precision = "bf16"\nchannels_last = true\ncompile = true\n'


def test_references_train_on_as_many_rows_as_the_target_did_or_nothing_is_trained():
    check_examples(None, 2)
    check_examples(3000, 2900)
    with pytest.raises(InputError, match=r"trained on 3,000 rows.*on only 600.*Pass all members"):
        check_examples(3000, 600)
    with pytest.raises(ConfigurationError, match="recipe: examples"):
        Recipe(examples=0)


def test_only_what_changes_the_arithmetic_needs_a_caveat_and_only_for_targets_that_may_differ():
    target = torch.nn.Linear(3, 2)
    assert Recipe(channels_last=True, compile=True).caveat(target) == ""
    caveat = Recipe(precision="bf16").caveat(target)
    assert "trained in bfloat16" in caveat
    assert "may do better than this audit" in caveat
    assert Recipe(precision="bf16").caveat() == caveat
    for half in (torch.bfloat16, torch.float16):
        assert Recipe(precision="bf16").caveat(target.to(half)) == ""


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("learning_rate = 1", ConfigurationError, r"unknown \['learning_rate'\]; known are .*'lr'"),
        ("lr = ", InputError, "cannot read the recipe"),
        ("lr = 'fast'", ConfigurationTypeError, "lr must be a number"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, kind, message):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(kind, match=message):
        Recipe.from_toml(path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"optimizer": "lion"}, ConfigurationError),
        ({"lr": math.nan}, ConfigurationError),
        ({"lr": True}, ConfigurationTypeError),
        ({"seed": -1}, ConfigurationError),
    ],
    ids=repr,
)
def test_a_recipe_that_makes_no_sense_is_refused(values, kind):
    with pytest.raises(kind, match=f"recipe: {next(iter(values))}"):
        Recipe(**values)


@given(st.integers(1, 300), st.integers(1, 40))
def test_an_epoch_sees_every_member_once_and_no_batch_of_one_is_left_over(members, batch_size):
    recipe = Recipe(batch_size=batch_size)
    sizes = recipe.batch_sizes(members)
    assert sum(sizes) == members
    assert recipe.steps_per_epoch(members) == len(sizes)
    assert set(sizes[:-2]) <= {batch_size}
    if batch_size > 1 and members > 1:
        assert min(sizes) > 1
        assert max(sizes) <= batch_size + 1


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("adam", torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
        ("adamw", torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.01}),
        ("sgd", torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01, "momentum": 0.8}),
    ],
)
def test_the_optimizer_is_the_one_that_is_named(name, kind, options):
    recipe = Recipe(optimizer=name, lr=0.1, weight_decay=0.01, momentum=0.8)
    optimizer = recipe.make_optimizer([torch.zeros(1, requires_grad=True)])
    assert type(optimizer) is kind
    assert {k: optimizer.defaults[k] for k in options} == options


def test_the_cosine_schedule_ends_at_zero_and_the_constant_one_stays():
    for name, expected in (
        ("constant", [0.1] * 5),
        ("cosine", [0.05 * (1 + math.cos(math.pi * i / 4)) for i in range(5)]),
    ):
        recipe = Recipe(lr=0.1, schedule=name)
        optimizer = recipe.make_optimizer([torch.zeros(1, requires_grad=True)])
        schedule = recipe.make_schedule(optimizer, 4)
        seen = [schedule.get_last_lr()[0]]
        for _ in range(4):
            optimizer.step()
            schedule.step()
            seen.append(schedule.get_last_lr()[0])
        assert seen == pytest.approx(expected, abs=1e-9)


STATED = PrivacyStatement(
    MECHANISM,
    records=900,
    delta=1e-5,
    phases=(Steps(2.4, 0.2, 100),),
    clipping=repr(FlatClipping(0.5)),
    expected_batch_size=180,
    trained="head: 650 of 4,810 parameters",
)

TABLES = [
    {"epsilon": 3.0, "delta": 1e-6, "adjacency": "add_remove", "clip": 0.5, "clipping": "flat"},
    {"noise_multiplier": 1.5, "delta": 1e-5, "steps": 70, "sample_rate": 0.1, "trainable": ("blocks.11", "*.norm.*")},
]


def of(text: str, statement: PrivacyStatement | None = None) -> Recipe:
    import tomllib

    return Recipe.of(tomllib.loads(text), "recipe r.toml", statement)


@pytest.mark.parametrize("table", TABLES)
def test_a_recipe_with_privacy_survives_toml(tmp_path, table):
    recipe = Recipe(lr=0.01, epochs=20, batch_size=180, dp=table)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert Recipe.from_toml(tmp_path / "recipe.toml") == recipe
    assert recipe.dp == DPTraining(**table)


def test_without_the_table_the_text_is_what_it_was():
    assert "dp" not in Recipe().to_toml()
    assert (
        Recipe(dp={"epsilon": 8, "delta": 1e-5}).to_toml()
        == Recipe().to_toml() + "\n[dp]\ndelta = 1e-05\nepsilon = 8\n"
    )


def test_what_a_file_leaves_out_is_as_dpfinetuner_has_it():
    recipe = of('optimizer = "adamw"\nepochs = 3\n[dp]\nepsilon = 8\ndelta = 1e-5')
    assert (recipe.lr, recipe.batch_size, recipe.momentum, recipe.weight_decay) == (5e-4, 256, 0.0, 0.01)
    assert of("epochs = 3") == Recipe(epochs=3)


@pytest.mark.parametrize(("name", "rule"), [("auto-s", AutoSClipping(2.0)), ("per-layer", PerLayerClipping(2.0))])
def test_clipping_goes_by_name(name, rule):
    assert DPTraining(1e-5, 8, clip=2.0, clipping=name).rule == rule


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[dp]\nepsilon = 0\ndelta = 1e-5", ConfigurationError, r"\[dp\] epsilon: expected a finite number above 0"),
        ("[dp]\nepsilon = 8", ConfigurationError, r"r.toml: \[dp\] lacks delta"),
        ("[dp]\ndelta = 1e-5", ConfigurationError, r"\[dp\] expected epsilon .*, got neither"),
        ("[dp]\nepsilon = 8\ndelta = 1e-5\nadjacency = 'replace'", ConfigurationError, r"\[dp\] adjacency"),
        ("[dp]\nepsilon = 8\ndelta = 1e-5\nclipping = 'norm'", ConfigurationError, r"\[dp\] clipping is one of auto-s"),
        ("[dp]\nepsilon=8\ndelta=1e-5\nclipping='flat'\ngamma=1", ConfigurationError, r"\[dp\] gamma belongs to"),
        ("dp = 8", ConfigurationTypeError, r"r.toml: \[dp\] must be a table"),
        ("augmentation = 'flip'\n[dp]\nepsilon = 8\ndelta = 1e-5", ConfigurationError, "augmentation = \"none\" only"),
    ],
)  # fmt: skip
def test_a_table_that_makes_no_sense_is_refused_by_its_name(text, kind, message):
    with pytest.raises(kind, match=message):
        of(text)


def test_a_statement_fills_the_table_exactly():
    recipe = of("lr = 0.01", STATED)
    assert recipe.dp == DPTraining(
        1e-5, noise_multiplier=2.4, steps=100, sample_rate=0.2, clip=0.5, clipping="flat", trainable="head"
    )
    assert (recipe.lr, recipe.epochs, recipe.batch_size) == (0.01, 20, 180)
    spent = STATED.epsilons.substitute
    same = f'[dp]\nepsilon = {spent:.2f}\ndelta = 1e-5\nadjacency = "substitute"\nclip = 0.5\ntrainable = "head"'
    assert of(f"lr = 0.01\n{same}", STATED) == recipe


@pytest.mark.parametrize(
    ("trained", "means"),
    [
        ("all: 10 of 10 parameters", "all"),
        ("low-rank adapters and the head", "lora"),
        ("blocks.11, *.norm.*: 3 of 10 parameters", ("blocks.11", "*.norm.*")),
    ],
)
def test_what_trained_is_read_off_the_statement(trained, means):
    assert of("", replace(STATED, trained=trained)).dp.trainable == means


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epsilon = 3", r"\[dp\] epsilon = 3, but the privacy statement has"),
        ("delta = 1e-6", r"\[dp\] delta = 1e-06, but the privacy statement has 1e-05; remove"),
        ('clipping = "auto-s"', r'\[dp\] clipping = "auto-s", but'),
        ('trainable = "all"', r'\[dp\] trainable = "all", but'),
    ],
)
def test_a_table_that_contradicts_the_statement_is_refused(line, message):
    with pytest.raises(ConfigurationError, match=message):
        of(f"[dp]\n{line}", STATED)


def test_epochs_and_batches_of_another_training_give_way_to_the_statement_and_that_is_said():
    assert overruled({"epochs": 20, "batch_size": 180}, STATED, "recipe") == ""
    assert overruled({}, STATED, "recipe") == ""
    assert overruled({"epochs": 3, "batch_size": 64}, STATED, "recipe") == (
        "Reference models were trained by the privacy statement (100 steps of batches of 180 of 900 records, 20"
        " epochs), not by the recipe (epochs = 3 and batch_size = 64)."
    )
    recipe = of("epochs = 3\nbatch_size = 64", STATED)
    assert (recipe.epochs, recipe.batch_size, recipe.dp.steps) == (20, 180, 100)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"phases": (Steps(2.4, 0.2, 50), Steps(3.0, 0.2, 50))}, "2 phases"),
        ({"mechanism": "objective perturbation"}, '"objective perturbation"'),
        ({"phases": (Steps(2.4, 0.2, 100, "fixed-size"),)}, "fixed-size batches"),
        ({"unit": "person", "rows_per_person": 5}, "persons of several rows"),
        ({"clipping": "by hand"}, "clipping by hand"),
        ({"clipping": ""}, "unknown clipping"),
    ],
)
def test_trainings_that_cannot_be_repeated_ask_for_a_function(changes, says):
    with pytest.raises(InputError, match=f'with {says}: name .* function = "module:train"'):
        of("", replace(STATED, **changes))


def test_a_clipping_that_the_statement_does_not_tell_can_be_given():
    dp = of('[dp]\nclip = 2.0\nclipping = "flat"', replace(STATED, clipping="by hand")).dp
    assert dp.rule == FlatClipping(2.0)


def test_members_that_are_not_the_records_are_refused():
    check_records(STATED, 900)
    check_records(STATED, 880)
    check_records(replace(STATED, count_noised=True), 100)
    with pytest.raises(InputError, match="900 records, but the data marks 400 members"):
        check_records(STATED, 400)


def test_what_trains_with_privacy_is_named_in_its_table():
    data = Population(torch.randn(8, 3), torch.arange(8) % 2)
    with pytest.raises(ConfigurationError, match="leave out parts"):
        Recipe(dp={"epsilon": 8, "delta": 1e-5}).train(
            net := nn.Linear(3, 2), data.x, data.y, torch.Generator(), parts=[net]
        )


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
