"""Recipes: training as data, checked when it is written down."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safexplain.audit import Recipe
from safexplain.audit.references.recipe import check_examples
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

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
