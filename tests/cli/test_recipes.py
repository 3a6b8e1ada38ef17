"""recipe.toml on the command line: with differential privacy, filled from a statement, or the name of a function."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import export
from torch import nn

from safexplain.audit import Recipe
from safexplain.audit.references.recipe import DPTraining
from safexplain.cli.run.recipes import ParsedRecipe, RecipeFile, TrainingFunction, dp_builder, dp_notes
from safexplain.dp import FlatClipping, Steps
from safexplain.dp.sgd.steps import MECHANISM
from safexplain.errors import ConfigurationError, InputError
from safexplain.loading.models import load_model
from safexplain.verdict.privacy_statement import PrivacyStatement

DP = "[dp]\nepsilon = 8\ndelta = 1e-5\n"
HEAD = DPTraining(1e-5, 8, trainable="head")
STATED = PrivacyStatement(
    MECHANISM,
    records=60,
    delta=1e-5,
    phases=(Steps(2.4, 0.2, 100),),
    clipping=repr(FlatClipping(0.5)),
    expected_batch_size=12,
    trained="head: 650 of 4,810 parameters",
    pretrained=True,
)

TRAINING = """
import torch
from torch import nn

class Wrapped(nn.Linear):
    def to_standard_module(self):
        plain = nn.Linear(self.in_features, self.out_features)
        plain.load_state_dict(self.state_dict())
        return nn.Sequential(plain)

def train(x, y, generator):
    net = Wrapped(x.shape[1], 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net

def two(x, y):
    return nn.Linear(2, 2)

def fails(x, y, generator):
    raise ValueError("no luck")

def nothing(x, y, generator):
    return None
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe_training.py").write_text(TRAINING)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


def read_recipe(
    path: Path | None, pool: Path | None, seed: int, statement: PrivacyStatement | None = None
) -> ParsedRecipe:
    return RecipeFile.read(path).training(pool, seed, statement)


def exported(model: nn.Module, path: Path, *shape: int) -> Path:
    export(model, np.ones((4, *shape), np.float32), path)
    return path


def test_a_recipe_with_privacy_is_read_and_one_of_before_as_before(here):
    found = read_recipe(written(here, f"epochs = 3\n{DP}"), None, 0)
    assert found.recipe == Recipe(lr=5e-4, epochs=3, batch_size=256, momentum=0.0, dp={"epsilon": 8, "delta": 1e-5})
    assert read_recipe(written(here, "epochs = 3"), None, 0) == (Recipe(epochs=3), None, ())
    assert read_recipe(None, None, 7) == (Recipe(seed=7), None, ())


def test_a_statement_fills_it_with_and_without_a_file(here):
    found = read_recipe(None, None, 7, STATED)
    assert isinstance(found.recipe, Recipe)
    assert found.recipe.dp == DPTraining(
        1e-5, noise_multiplier=2.4, steps=100, sample_rate=0.2, clip=0.5, clipping="flat", trainable="head"
    )
    assert (found.recipe.seed, found.recipe.lr, found.notes) == (7, 5e-4, ())
    other = read_recipe(written(here, "epochs = 3\nlr = 0.1"), None, 0, STATED)
    assert isinstance(other.recipe, Recipe)
    assert (other.recipe.lr, other.recipe.epochs) == (0.1, 20)
    assert "Reference models were trained by the privacy statement" in " ".join(other.notes)


def test_what_trained_is_said_once(here):
    found = read_recipe(written(here, f'trainable = "head"\nepochs = 3\n{DP}'), None, 0)
    assert isinstance(found.recipe, Recipe)
    assert found.recipe.dp is not None
    assert found.stages is not None
    assert (found.recipe.dp.trainable, found.stages.trainable) == ("head", "head")
    found = read_recipe(written(here, f'epochs = 3\n{DP}trainable = "lora"'), here / "pool.npz", 0)
    assert found.stages is not None
    assert (found.stages.subject, found.stages.trainable) == ("pre-training", "lora")
    for text in (f'trainable = "all"\n{DP}trainable = "head"', f"trainable = 2\n{DP}"):
        with pytest.raises(ConfigurationError, match=r"trainable = .* contradicts \[dp\]"):
            read_recipe(written(here, text), None, 0)
    with pytest.raises(ConfigurationError, match=r"or a number of blocks of at least 1 .* got 'bias'"):
        read_recipe(written(here, f'{DP}trainable = "bias"'), here / "pool.npz", 0)


def test_a_statement_is_compared_with_the_members_and_a_public_start_is_said():
    assert dp_notes(HEAD, STATED, 60) == ()
    assert "is about 60 records, but the data marks 59 members" in dp_notes(HEAD, STATED, 59)[0]
    assert "started from weights that had seen other data" in dp_notes(DPTraining(1e-5, 8), STATED, 60)[0]
    with pytest.raises(InputError, match="60 records, but the data marks 30 members"):
        dp_notes(HEAD, STATED, 30)


def test_a_function_trains_and_what_wrapped_its_model_is_taken_off(here):
    found = read_recipe(written(here, 'function = "recipe_training:train"'), None, 0, STATED)
    assert isinstance(found.recipe, TrainingFunction)
    assert str(found.recipe) == 'function = "recipe_training:train"\n'
    model = found.recipe(torch.randn(8, 2), torch.arange(8) % 3, torch.Generator())
    assert isinstance(model, nn.Sequential)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('function = "nowhere:train"', "No module named 'nowhere'"),
        ('function = "train"', 'expected "package.module:function"'),
        ('function = "recipe_training:two"', r"three arguments, train\(x, y, generator\)"),
        ("function = 3", "function: expected text"),
        ('function = "recipe_training:train"\nepochs = 3', "leave out epochs"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(here, text, message):
    with pytest.raises((InputError, ConfigurationError), match=message):
        read_recipe(written(here, text), None, 0)


def test_a_function_is_for_one_stage(here):
    with pytest.raises(ConfigurationError, match="cannot name a function"):
        read_recipe(written(here, 'function = "recipe_training:train"'), here / "pool.npz", 0)


@pytest.mark.parametrize(
    ("name", "message"), [("fails", "failed on 4 examples .* ValueError: no luck"), ("nothing", "must return a torch")]
)
def test_what_goes_wrong_in_a_function_is_said(here, name, message):
    train = RecipeFile(None, {"function": f"recipe_training:{name}"}).function()
    assert train is not None
    with pytest.raises(InputError, match=message):
        train(torch.randn(4, 2), torch.arange(4) % 2, torch.Generator())


def test_graphs_are_given_layers_and_a_frozen_backbone_a_fresh_head(tmp_path):
    plain = load_model(exported(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), tmp_path / "a.pt2", 4))
    build, _ = dp_builder(plain, DPTraining(1e-5, 8))
    assert build is not None
    assert [type(m) for m in build(0).children()] == [nn.Linear, nn.Linear]
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    frozen = load_model(exported(normed, tmp_path / "b.pt2", 4))
    build, why = dp_builder(frozen, DPTraining(1e-5, 8))
    assert (build, "contains batch_norm, which differential privacy" in why) == (None, True)
    build, _ = dp_builder(frozen, HEAD)
    assert build is not None
    fresh = build(0).state_dict()
    assert torch.equal(fresh["0.weight"], normed[0].weight)
    assert fresh["3.weight"].shape == (3, 5)
    assert not torch.equal(fresh["3.weight"], normed[3].weight)


def test_weights_that_no_layer_holds_ask_for_the_architecture(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.into(x) @ self.into.weight)

    loaded = load_model(exported(Tied(), tmp_path / "tied.pt2", 4))
    build, why = dp_builder(loaded, DPTraining(1e-5, 8))
    assert build is None
    assert "2 of the exported graph's parameters belong to no layer (into.weight, into.bias)" in why
    assert "--arch" in why
    assert dp_builder(loaded, HEAD)[0] is not None


def test_a_recipe_states_the_models_accuracy_beside_how_it_was_trained(here):
    text = "accuracy = 0.92\nepochs = 3\n"
    assert read_recipe(written(here, text), None, 0) == (Recipe(epochs=3), None, ())
    assert RecipeFile.read(written(here, text)).accuracy == 0.92
    assert RecipeFile.read(written(here, "epochs = 3\nexamples = 3000")).examples == 3000
