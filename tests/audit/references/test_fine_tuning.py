"""Fine-tuned references: the members of the pre-training, another task, and nothing moves that is frozen."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from safexplain.audit import ModelCache, Population, Recipe, Shadows, train_shadows
from safexplain.audit.references import fine_tuning
from safexplain.audit.references.fine_tuning import FineTune, fine_tune
from safexplain.dp.models.replacements import BatchNormReplacedWarning
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.outputs import EstimatorModule

RECIPE = Recipe(lr=0.02, epochs=4, batch_size=16)
DP = {"epsilon": 8.0, "delta": 1e-3}
PRIVATE = replace(RECIPE, dp=DP)


def images(n, classes, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(classes), torch.randint(0, classes, (n - classes,), generator=g)])
    x = torch.randn(n, 2, 8, 8, generator=g)
    x[torch.arange(n), 0, y % 8] += 2.0
    return Population(x, y)


POOL, DOWNSTREAM = images(60, 4, 0), images(50, 3, 1)


def cnn(seed=0):
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(96, 8), nn.Dropout(0.5), nn.Linear(8, 4)),
    )


class Attention(nn.Module):
    """Two layers of torch's attention over the rows of the images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(16, 8)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2)]
        self.encoder = nn.ModuleList(layers)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        h = self.stem(x.transpose(1, 2).flatten(2))
        for layer in self.encoder:
            h = layer(h)
        return self.head(h.mean(1))


@pytest.fixture(scope="module")
def pretrained():
    return train_shadows(POOL, RECIPE, build=cnn, models=3)


@pytest.fixture(scope="module")
def two(pretrained):
    return Shadows(pretrained.models[:2], pretrained.membership[:2])


@pytest.fixture(scope="module")
def attentive():
    return train_shadows(POOL, Recipe(epochs=1), build=lambda seed: Attention(), models=2)


def moved(before, after):
    """Which entries of the state are another tensor, those of another shape among them."""
    a, b = before.state_dict(), after.state_dict()
    return {name for name in a.keys() | b.keys() if name not in a or name not in b or not torch.equal(a[name], b[name])}


def same(one, other):
    return not any(moved(a, b) for a, b in zip(one.models, other.models, strict=True))


def near(one, other, tolerance=1e-4):
    states = [(a.state_dict(), b.state_dict()) for a, b in zip(one.models, other.models, strict=True)]
    return all(torch.allclose(a[k].float(), b[k].float(), atol=tolerance) for a, b in states for k in a)


NORM_2 = {"5.weight", "5.bias", "5.running_mean", "5.running_var", "5.num_batches_tracked"}
HEAD = {"10.weight", "10.bias"}
LAST_1 = HEAD | {"8.weight", "8.bias"}
LAST_2 = LAST_1 | NORM_2 | {"4.weight", "4.bias"}


@pytest.mark.parametrize(
    ("trainable", "expected", "augmentation"),
    [
        ("head", HEAD, "none"),
        (1, LAST_1, "crop-flip"),
        (2, LAST_2, "none"),
        (3, None, "none"),
        ("all", None, "crop-flip"),
        ("lora", HEAD | {"8.weight"}, "crop-flip"),
    ],
)
def test_what_is_frozen_stays_bit_for_bit_and_what_trains_moves(pretrained, trainable, expected, augmentation):
    recipe = Recipe(lr=0.02, epochs=1, batch_size=16, augmentation=augmentation)
    tuned = fine_tune(pretrained, FineTune(DOWNSTREAM, recipe, trainable))
    for before, after in zip(pretrained.models, tuned.models, strict=True):
        assert moved(before, after) == (set(before.state_dict()) if expected is None else expected)
        assert {type(m) for m in after.modules()} == {type(m) for m in cnn().modules()}
        assert not after.training
        assert all(p.requires_grad for p in after.parameters())
        assert after(DOWNSTREAM.x).shape == (50, 3)
    assert np.array_equal(tuned.membership, pretrained.membership)


def test_dropout_acts_where_a_block_trains_and_nowhere_else(pretrained, monkeypatch):
    modes = []
    original = nn.Dropout.forward

    def seen(self, x):
        modes.append(self.training)
        return original(self, x)

    monkeypatch.setattr(nn.Dropout, "forward", seen)
    one = Shadows(pretrained.models[:1], pretrained.membership[:1])
    expected = {"head": [False, False], 1: [False, True], "lora": [False, False], "all": [True, True]}
    for trainable, both in expected.items():
        modes.clear()
        fine_tune(one, FineTune(DOWNSTREAM, Recipe(epochs=1, augmentation="flip"), trainable))
        assert modes[:2] == [False, False]  # the look at whether the data fit
        assert modes[2:4] == both


def test_heads_trained_on_features_are_those_of_the_plain_loop_through_the_network(pretrained, monkeypatch):
    how = FineTune(DOWNSTREAM, Recipe("sgd", lr=0.02, epochs=5, batch_size=7, weight_decay=0.01), "head")
    fast = fine_tune(pretrained, how)
    monkeypatch.setattr(fine_tuning._Job, "on_features", lambda *_: False)
    slow = fine_tune(pretrained, how)
    assert near(fast, slow)
    assert not near(fast, fine_tune(pretrained, how, seed=1), 1e-2)


def test_each_model_draws_its_own_share_without_replacement(pretrained, monkeypatch):
    seen = {}
    original = fine_tuning._Job.data

    def data(self, i):
        seen[i] = original(self, i)
        return seen[i]

    monkeypatch.setattr(fine_tuning._Job, "data", data)
    for sample, count in ((0.85, 42), (0.3, 15), (1.0, 50)):
        fine_tune(pretrained, FineTune(DOWNSTREAM, RECIPE, sample=sample))
        sums = [{float(row.sum()) for row in x} for x, _ in seen.values()]
        assert [len(s) for s in sums] == [len(y) for _, y in seen.values()] == [count] * 3
        assert len({frozenset(s) for s in sums}) == (1 if sample == 1 else 3)


def test_adapters_go_beside_attention_only_and_torchs_attention_comes_back(attentive):
    tuned = fine_tune(attentive, FineTune(DOWNSTREAM, RECIPE, "lora"))
    for before, after in zip(attentive.models, tuned.models, strict=True):
        assert isinstance(after.encoder[0].self_attn, nn.MultiheadAttention)
        parts = ("in_proj_weight", "out_proj.weight")
        expected = {f"encoder.{i}.self_attn.{part}" for i in (0, 1) for part in parts}
        assert moved(before, after) == expected | {"head.weight", "head.bias"}


@pytest.mark.parametrize(("trainable", "expected"), [("head", HEAD), ("lora", HEAD | {"8.weight"})])
def test_with_dp_only_what_trains_moves_and_noise_is_in_it(two, trainable, expected):
    how = FineTune(DOWNSTREAM, PRIVATE, trainable)
    tuned = fine_tune(two, how)
    for before, after in zip(two.models, tuned.models, strict=True):
        assert moved(before, after) == expected
        assert {type(m) for m in after.modules()} == {type(m) for m in cnn().modules()}
    assert same(tuned, fine_tune(two, how))
    assert not same(tuned, fine_tune(two, how, seed=1))
    silent = {"noise_multiplier": 0.0, "delta": 1e-3}
    noiseless = fine_tune(two, FineTune(DOWNSTREAM, replace(RECIPE, dp=silent), trainable))
    private = fine_tune(two, FineTune(DOWNSTREAM, replace(RECIPE, dp={**DP, "epsilon": 0.1}), trainable))

    def away(models):
        pairs = zip(models, noiseless.models, strict=True)
        return np.mean([(a[10].weight - b[10].weight).norm().item() for a, b in pairs])

    assert 0 < away(tuned.models) < away(private.models)


def test_batch_norm_that_would_train_with_dp_becomes_group_norm_and_is_stored(two, tmp_path):
    how = FineTune(DOWNSTREAM, PRIVATE, 2)
    with pytest.warns(BatchNormReplacedWarning):
        first = fine_tune(two, how, cache=tmp_path)
    assert isinstance(first.models[0][1], nn.BatchNorm2d)
    assert isinstance(first.models[0][5], nn.GroupNorm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchNormReplacedWarning)
        assert same(first, fine_tune(two, how, cache=tmp_path, progress=only_loads))


def only_loads(stage, done, total, note=""):
    assert done == total, "a model was trained again"


def test_finished_models_are_loaded_and_an_interrupted_run_resumes(pretrained, tmp_path):
    for trainable in ("head", 1, "lora"):
        how = FineTune(DOWNSTREAM, RECIPE, trainable)
        whole = fine_tune(pretrained, how)

        def stop(stage, done, total, note="", trainable=trainable):
            if done >= (3 if trainable == "head" else 1.5):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fine_tune(pretrained, how, cache=str(tmp_path / str(trainable)), progress=stop)
        again = fine_tune(pretrained, how, cache=str(tmp_path / str(trainable)))
        assert same(whole, again)
        assert same(whole, fine_tune(pretrained, how, cache=str(tmp_path / str(trainable)), progress=only_loads))


def test_nothing_else_is_reused(pretrained, tmp_path):
    how = FineTune(DOWNSTREAM, RECIPE)
    fine_tune(pretrained, how, cache=tmp_path)
    stored = len(list(tmp_path.iterdir()))
    other_labels = Population(DOWNSTREAM.x, DOWNSTREAM.y.flip(0))
    others = [
        (pretrained, FineTune(other_labels, RECIPE), 0),
        (pretrained, FineTune(DOWNSTREAM, Recipe(lr=0.03, epochs=4, batch_size=16)), 0),
        (pretrained, FineTune(DOWNSTREAM, RECIPE, sample=0.5), 0),
        (pretrained, FineTune(DOWNSTREAM, PRIVATE), 0),
        (pretrained, how, 1),
        (train_shadows(POOL, RECIPE, build=cnn, models=3, seed=1), how, 0),
    ]
    for number, (models, other, seed) in enumerate(others, 2):
        found = fine_tune(models, other, seed=seed, cache=ModelCache(tmp_path))
        assert len(list(tmp_path.iterdir())) == number * stored
        assert same(found, fine_tune(models, other, seed=seed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainable": "heads"}, "trainable"),
        ({"sample": 1.2}, "sample"),
        ({"recipe": None}, "recipe"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=message):
        FineTune(**{"downstream": DOWNSTREAM, "recipe": RECIPE, **arguments})


def test_models_that_cannot_be_fine_tuned_are_refused_with_what_to_do(pretrained):
    member = np.ones((1, 5), dtype=bool)

    def tuned(model, how):
        return fine_tune(Shadows((model.eval(),), member), how)

    how = FineTune(DOWNSTREAM, RECIPE)
    fitted = LogisticRegression(max_iter=500).fit(POOL.x.flatten(1).numpy(), POOL.y.numpy())
    with pytest.raises(InputError, match="scikit-learn"):
        tuned(EstimatorModule(fitted, 4), how)
    with pytest.raises(InputError, match=r"expected one nn\.Linear as the head of Sequential, got none"):
        tuned(nn.Sequential(nn.Conv2d(2, 4, 8), nn.Flatten()), how)
    with pytest.raises(InputError, match=r"does not take downstream examples of shape \(2, 8, 8\)"):
        tuned(nn.Sequential(nn.Flatten(), nn.Linear(50, 6), nn.ReLU(), nn.Linear(6, 4)), how)
    with pytest.raises(InputError, match=r"expected \(2, 3\) outputs .* got \(2, 3, 1\)"):
        tuned(nn.Sequential(nn.Flatten(), nn.Linear(128, 4), nn.Unflatten(1, (-1, 1))), how)
    with pytest.raises(InputError, match="has 3 blocks below its head"):
        fine_tune(pretrained, FineTune(DOWNSTREAM, RECIPE, 4))
    with pytest.raises(InputError, match="no linear layer except its head"):
        tuned(nn.Sequential(nn.Conv2d(2, 4, 8), nn.Flatten(), nn.Linear(4, 4)), FineTune(DOWNSTREAM, RECIPE, "lora"))
    with pytest.raises(InputError, match="fewer than two classes"):
        fine_tune(pretrained, FineTune(DOWNSTREAM, RECIPE, sample=0.01))
    with pytest.raises(ConfigurationTypeError, match="Shadows"):
        fine_tune(list(pretrained.models), how)
