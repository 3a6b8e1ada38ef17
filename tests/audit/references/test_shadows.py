"""Reference models: trained on their own coin flips, resumed after an interruption, not reused after a change."""

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from safexplain.audit import ModelCache, Population, Recipe, Shadows, train_shadows
from safexplain.audit.references import recipe as batches
from safexplain.audit.references import shadows
from safexplain.audit.references.recipe import Batches, padding
from safexplain.audit.references.shadows import is_batchable, train_one, train_together
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.outputs import EstimatorModule

RECIPE = Recipe(lr=0.01, epochs=3, batch_size=16)


def population(seed=0, n=80):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    return Population(torch.randn(n, 5, generator=g) + y[:, None], y)


POOL = population()


def mlp(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def normed(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def equal(a, b):
    return all(torch.equal(weights(p), weights(q)) for p, q in zip(a.models, b.models, strict=True))


@pytest.fixture
def trained(monkeypatch):
    """How many models each call trained."""
    counts = []

    def count(name, size):
        original = getattr(shadows, name)

        def counting(recipe, models, *rest, **options):
            counts.append(size(models))
            return original(recipe, models, *rest, **options)

        monkeypatch.setattr(shadows, name, counting)

    count("train_one", lambda model: 1)
    count("train_together", len)
    return counts


@pytest.mark.parametrize("build", [mlp, normed])
def test_each_model_learns_its_own_members(build):
    found = train_shadows(POOL, Recipe(lr=0.03, epochs=100, batch_size=16), build=build, models=2, seed=1)
    assert np.array_equal(found.membership, POOL.flip(2, seed=1))
    for model, member in zip(found.models, found.membership, strict=True):
        assert not model.training
        right = (model(POOL.x).argmax(1) == POOL.y).numpy()
        assert right[member].mean() > 0.97
        assert right[member].mean() > right[~member].mean()


@pytest.mark.parametrize("build", [mlp, normed])
def test_a_seed_makes_the_same_models_and_another_makes_others(build):
    first = train_shadows(POOL, RECIPE, build=build, models=3, seed=4)
    torch.rand(7)
    assert equal(first, train_shadows(POOL, RECIPE, build=build, models=3, seed=4))
    membership = first.membership
    for other in (
        train_shadows(POOL, RECIPE, build=build, membership=membership, seed=5),
        train_shadows(
            POOL, Recipe(lr=0.01, epochs=3, batch_size=16, seed=1), build=build, membership=membership, seed=4
        ),
    ):
        assert all(not torch.equal(weights(a), weights(b)) for a, b in zip(first.models, other.models, strict=True))
    assert len({weights(m).sum().item() for m in first.models}) == 3


@pytest.mark.parametrize(
    ("train", "build"),
    [(RECIPE, mlp), (RECIPE, normed), (lambda x, y, g: mlp(torch.rand(1)), None)],
    ids=["together", "alone", "a function"],
)
def test_more_models_begin_with_the_same_ones_bit_for_bit(train, build):
    whole = train_shadows(POOL, train, build=build, models=7, seed=2)
    more = train_shadows(POOL, train, build=build, models=9, seed=2)
    assert np.array_equal(more.membership[:7], whole.membership)
    assert all(torch.equal(a(POOL.x), b(POOL.x)) for a, b in zip(whole.models, more.models[:7], strict=True))


def test_the_names_in_a_cache_do_not_depend_on_the_device(tmp_path, trained):
    train_shadows(POOL, RECIPE, build=normed, models=2, cache=tmp_path)
    trained.clear()
    train_shadows(POOL, RECIPE, build=normed, models=2, device="meta", cache=tmp_path)
    assert trained == []


def test_models_of_different_step_counts_train_in_groups_of_limited_size(trained, monkeypatch):
    monkeypatch.setattr(shadows, "TOGETHER", 3)
    membership = np.zeros((8, 80), dtype=bool)
    for i, count in enumerate([30, 31, 32, 40, 41, 29, 28, 60]):
        membership[i, :count] = True
    train_shadows(POOL, RECIPE, build=mlp, membership=membership)
    assert sorted(trained) == [1, 2, 2, 3]


def interrupted_at(model):
    def progress(stage, done, total, note=""):
        if done >= model:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path, trained):
    whole = train_shadows(POOL, RECIPE, build=normed, models=6)
    assert trained == [1] * 6
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        train_shadows(POOL, RECIPE, build=normed, models=6, cache=str(tmp_path), progress=interrupted_at(3.5))
    assert len(os.listdir(tmp_path)) == 3
    trained.clear()
    resumed = train_shadows(POOL, RECIPE, build=normed, models=6, cache=Path(tmp_path))
    assert trained == [1] * 3
    assert equal(resumed, whole)
    trained.clear()
    assert equal(train_shadows(POOL, RECIPE, build=normed, models=6, cache=ModelCache(tmp_path)), whole)
    assert trained == []


@pytest.mark.parametrize(
    "change",
    [
        {"train": Recipe(lr=0.02, epochs=3, batch_size=16)},
        {"population": Population(POOL.x + 1e-3, POOL.y)},
        {"population": Population(POOL.x, (POOL.y + 1) % 3)},
        {"seed": 1},
        {"membership": ~POOL.flip(2, seed=0)},
        {"build": lambda seed: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))},
    ],
    ids=lambda c: next(iter(c)),
)
def test_what_changed_is_trained_again(tmp_path, trained, change):
    options = {"population": POOL, "train": RECIPE, "build": mlp, "membership": POOL.flip(2, seed=0), "seed": 0}
    train_shadows(**options, cache=str(tmp_path))
    trained.clear()
    train_shadows(**{**options, **change}, cache=str(tmp_path))
    assert sum(trained) == 2
    trained.clear()
    train_shadows(**options, cache=str(tmp_path))
    assert trained == []


def test_a_function_may_train_and_gets_the_members_only():
    seen = []

    def train(x, y, generator):
        seen.append((x, y))
        return mlp(0)

    found = train_shadows(POOL, train, models=3)
    for (x, y), member in zip(seen, found.membership, strict=True):
        assert torch.equal(x, POOL.x[torch.from_numpy(member)])
        assert torch.equal(y, POOL.y[torch.from_numpy(member)])


@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(5), make_pipeline(StandardScaler(), RandomForestClassifier(5))],
    ids=lambda e: type(e).__name__,
)
def test_an_estimator_is_fitted_on_the_members_and_explained_as_a_module(estimator):
    found = train_shadows(POOL, estimator, models=3, seed=2)
    x, y = POOL.x.numpy(), POOL.y.numpy()
    for model, member in zip(found.models, found.membership, strict=True):
        assert isinstance(model, EstimatorModule)
        assert np.array_equal(model(POOL.x).numpy(), model.estimator.predict_proba(x).astype(np.float32))
        assert model.estimator.n_features_in_ == 5
        assert (model(POOL.x).argmax(1).numpy() == y)[member].mean() > 0.7
    again = train_shadows(POOL, estimator, models=3, seed=2)
    for a, b in zip(found.models, again.models, strict=True):
        assert torch.equal(a(POOL.x), b(POOL.x))
    assert not hasattr(estimator, "classes_")
    assert found.models[0](POOL.x[:0]).shape == (0, 3)


def test_a_class_that_the_estimator_never_saw_gets_probability_0():
    membership = np.zeros((1, 80), dtype=bool)
    membership[0] = POOL.y.numpy() != 1
    out = train_shadows(POOL, GaussianNB(), membership=membership).models[0](POOL.x)
    assert out.shape == (80, 3)
    assert bool((out[:, 1] == 0).all())
    assert torch.allclose(out.sum(1), torch.ones(80))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: train_shadows(POOL, RECIPE), ConfigurationError, "needs build="),
        (lambda: train_shadows(POOL, lambda x, y, g: None), ConfigurationTypeError, "expected an nn.Module from"),
        (lambda: train_shadows(POOL, RECIPE, build=mlp, models=0), InputError, r"membership \(models, 80\)"),
        (lambda: train_shadows(POOL, RECIPE, build=mlp, membership=np.zeros((2, 80))), InputError, "model 0 .* 0 exam"),
        (lambda: train_shadows(POOL, RECIPE, build=mlp, membership=(POOL.y == 1)[None]), InputError, "use more data"),
        (lambda: Shadows((mlp(0),), np.ones((2, 80), dtype=bool)), InputError, "a row for each of 1 models"),
    ],
)
def test_what_cannot_be_trained_is_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


ROWS, WIDTH, CLASSES = 90, 12, 4


def data(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 1, 3, 4, generator=g), torch.randint(0, CLASSES, (ROWS,), generator=g)


def flat(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh()), nn.Linear(16, CLASSES))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def members(*counts):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(np.sort(rng.choice(ROWS, c, replace=False))) for c in counts]


def plain(recipe, index, seed):
    x, y = data()
    return weights(train_one(recipe, flat(seed), x[index], y[index], generator(seed)))


OPTIMIZERS = [
    Recipe(optimizer="adam", lr=3e-3, epochs=4, batch_size=16),
    Recipe(optimizer="adamw", lr=3e-3, epochs=4, batch_size=16, weight_decay=0.1, schedule="cosine"),
    Recipe(optimizer="sgd", lr=0.05, epochs=4, batch_size=16, momentum=0.9, weight_decay=0.01, schedule="cosine"),
    Recipe(optimizer="sgd", lr=0.05, epochs=4, batch_size=100, momentum=0.0),
]


@pytest.mark.parametrize("recipe", OPTIMIZERS, ids=lambda r: f"{r.optimizer}-{r.schedule}-{r.batch_size}")
def test_models_trained_together_are_those_trained_one_by_one(recipe):
    x, y = data()
    index = members(33, 36, 40, 48, 34)  # last batches of 17, 4, 8, 16 and 2
    if recipe.batch_size == 16:
        index = index[1:]
    together = train_together(
        recipe, [flat(s) for s in range(len(index))], x, y, index, list(map(generator, range(5)))[: len(index)]
    )
    for seed, model in enumerate(together):
        expected = plain(recipe, index[seed], seed)
        assert torch.allclose(weights(model), expected, atol=2e-5)
        assert not model.training
        moved = (expected - weights(flat(seed))).abs().max()
        assert moved > 1e-2


@pytest.mark.parametrize(
    ("activation", "width", "same"),
    [(nn.ReLU, 50, torch.equal), (nn.GELU, 8, torch.equal), (nn.GELU, 7, torch.allclose)],
)
def test_a_model_does_not_depend_on_who_trains_with_it(activation, width, same):
    x, y = data()
    recipe = Recipe(lr=3e-3, epochs=4, batch_size=16)
    index = members(33, 34, 40, 48, 49)  # last batches of 17, 2, 8, 16 and 17

    def trained(numbers):
        models = []
        for number in numbers:
            torch.manual_seed(number)
            models.append(nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, width), activation(), nn.Linear(width, CLASSES)))
        rows = [index[number] for number in numbers]
        return dict(
            zip(numbers, train_together(recipe, models, x, y, rows, list(map(generator, numbers))), strict=True)
        )

    whole = trained([1, 2, 3, 4])
    for part in ([2], [1, 4], [4, 3, 2]):
        for number, model in trained(part).items():
            assert same(weights(model), weights(whole[number]))


def test_divergence_is_said_in_one_line():
    x, y = data()
    recipe = Recipe(optimizer="sgd", lr=1e38, epochs=3, batch_size=16)
    with pytest.raises(InputError, match=r"diverged.*lower the recipe's learning rate"):
        train_one(recipe, flat(0), x, y, generator(0))
    with pytest.raises(InputError, match="diverged"):
        train_together(recipe, [flat(0)], x, y, members(90), [generator(0)])


def test_training_leaves_the_global_generator_and_the_gradients_alone():
    x, y = data()
    dropout = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 32), nn.Dropout(0.5), nn.Linear(32, CLASSES))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in first.parameters())
    torch.manual_seed(6)
    again = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(0))
    assert torch.equal(weights(first), weights(again))
    other = train_one(OPTIMIZERS[0], copy.deepcopy(dropout), x, y, generator(1))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize(
    ("model", "recipe", "expected"),
    [
        (flat(0), Recipe(), True),
        (flat(0), Recipe(augmentation="flip"), False),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2)), Recipe(), False),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Recipe(), False),
    ],
)
def test_only_what_has_no_state_and_no_chance_is_batched(model, recipe, expected):
    assert is_batchable(model, recipe) is expected


CPU = torch.device("cpu")
KINDS = ("none", "flip", "crop-flip")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n=50, c=2, h=8, w=6, seed=0):
    g = seeded(seed)
    return torch.randn(n, c, h, w, generator=g), torch.randint(0, 3, (n,), generator=g)


def network(seed=0, dropout=0.3):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Dropout(dropout), nn.Linear(24, 3)),
    )


def state(model):
    return torch.cat([t.detach().flatten().double() for t in model.state_dict().values()])


def slowly_cropped(x, rows, columns, mirrored):
    pad, (_, _, h, w) = padding(x), x.shape
    found = []
    for image, row, column, mirror in zip(F.pad(x, (pad,) * 4, mode="reflect"), rows, columns, mirrored, strict=True):
        crop = image[:, row : row + h, column : column + w]
        found.append(crop.flip(2) if mirror else crop)
    return torch.stack(found).contiguous(memory_format=torch.channels_last)


def slowly_augmented(x, kind, generator):
    if kind == "crop-flip":
        most = 2 * padding(x) + 1
        rows, columns = (torch.randint(0, most, (len(x),), generator=generator) for _ in range(2))
        return slowly_cropped(x, rows, columns, torch.rand(len(x), generator=generator) < 0.5)
    if kind == "flip":
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        return torch.stack([image.flip(2) if m else image for image, m in zip(x, mirrored, strict=True)])
    return x


def slowly_trained(recipe, model, x, y, generator):
    """A batch at a time: its order and its augmentation are drawn when it is its turn."""
    with torch.random.fork_rng([]):
        torch.manual_seed(generator.initial_seed())
        model.train()
        parameters = list(model.parameters())
        optimizer = recipe.make_optimizer(parameters)
        schedule = recipe.make_schedule(optimizer, recipe.steps_per_epoch(len(y)) * recipe.epochs)
        for _ in range(recipe.epochs):
            for index in torch.randperm(len(y), generator=generator).split(recipe.batch_sizes(len(y))):
                loss = F.cross_entropy(model(slowly_augmented(x[index], recipe.augmentation, generator)), y[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
    return model.eval()


@pytest.mark.parametrize(("kind", "optimizer"), [*zip(KINDS, ("adam", "adamw", "sgd"), strict=True)])
def test_training_is_bit_for_bit_that_of_the_slow_loop(kind, optimizer):
    x, y = pictures(49)
    recipe = Recipe(optimizer=optimizer, lr=0.01, epochs=3, batch_size=16, schedule="cosine", augmentation=kind)
    ours, theirs = seeded(3), seeded(3)
    fast = train_one(recipe, network(), x, y, ours)
    slow = slowly_trained(recipe, network(), x, y, theirs)
    assert torch.equal(state(fast), state(slow))
    assert torch.equal(ours.get_state(), theirs.get_state())
    assert not torch.equal(state(fast), state(slowly_trained(recipe, network(), x, y, seeded(4))))


@pytest.mark.parametrize("kind", ["none", "crop-flip"])
def test_what_does_not_fit_on_the_device_is_copied_batch_by_batch_and_trains_the_same(kind, monkeypatch):
    x, y = pictures(40)
    recipe = Recipe(epochs=2, batch_size=16, augmentation=kind)
    near = train_one(recipe, network(), x, y, seeded())
    copied = []
    monkeypatch.setattr(batches, "fits", lambda *_: False)
    monkeypatch.setattr(batches, "moved", lambda t, device: copied.append(t.shape) or t.to(device))
    far = train_one(recipe, network(), x, y, seeded())
    assert torch.equal(state(near), state(far))
    images = [shape for shape in copied if len(shape) == 4]
    assert [shape[0] for shape in images] == [16, 16, 8] * 2
    assert len(copied) == len(images) + recipe.epochs  # one copy of all random numbers an epoch


def test_data_goes_to_a_gpu_where_it_takes_at_most_a_third_of_what_is_free_there(monkeypatch):
    x, _ = pictures(48)
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * x.nbytes)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * x.nbytes)  # what is reserved is free, too
    for free, expected in ((2 * x.nbytes, True), (2 * x.nbytes - 4, False), (0, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**12))
        assert batches.fits(x, gpu) is expected
    assert batches.fits(x, CPU)


def test_augmentation_is_for_images_and_crops_for_images_that_can_be_padded():
    def made(shape, kind, **options):
        return Batches(torch.zeros(shape), torch.zeros(3), [3], kind, CPU, seeded(), **options)

    for kind in ("flip", "crop-flip"):
        with pytest.raises(InputError, match=rf"augmentation '{kind}': expected images .* got \(3, 5\)"):
            made((3, 5), kind)
    with pytest.raises(InputError, match=r"channels_last: expected images .* got \(3, 5\)"):
        made((3, 5), "none", channels_last=True)
    with pytest.raises(InputError, match="images of 40 x 4 pixels are too small"):
        made((3, 1, 40, 4), "crop-flip")
