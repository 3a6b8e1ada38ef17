"""Patient attackers: queries that differ by the same draws for every model, and what is counted over them."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain._digest import model_digest
from safexplain.audit import Dither, Population, Shadows
from safexplain.audit.answers import predict
from safexplain.audit.queries import Queries, with_channels_last
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.outputs import class_log_odds

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = Population(torch.rand(70, 2, 8, 9, generator=GENERATOR), torch.arange(70) % 3)
TABLE = Population(torch.randn(70, 6, generator=GENERATOR) * torch.logspace(-2, 2, 6) + 3, torch.arange(70) % 3)
MEMBER = np.random.default_rng(0).random((3, 70)) < 0.5
BOTH = pytest.mark.parametrize("pool", [IMAGES, TABLE], ids=["images", "table"])


class Linear(nn.Module):
    def __init__(self, seed, d=6, classes=3):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.02 * torch.randn(d, classes, generator=generator))

    def forward(self, x):
        return x.flatten(1) @ self.weight


SHADOWS = Shadows(tuple(Linear(seed) for seed in range(3)), MEMBER)


@pytest.mark.parametrize(("pool", "kind"), [(IMAGES, "multiplicative"), (TABLE, "additive")], ids=["images", "table"])
def test_a_query_is_a_function_of_seed_example_and_number_alone(pool, kind):
    queries = Queries.of(pool, Dither(kind, 0.2, seed=3))
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    whole = queries(range(70), 4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(torch.cat([queries(range(i, min(i + 7, 70)), 4) for i in range(0, 70, 7)]), whole)
    assert torch.equal(queries([69, 3, 65], 4), whole[[69, 3, 65]])
    for other in (queries(range(70), 5), Queries.of(pool, Dither(kind, 0.2, seed=4))(range(70), 4)):
        assert not torch.isclose(other, whole, rtol=0, atol=1e-9).flatten(1).all(1).any()


@BOTH
def test_multiplicative_dither_is_log_normal_and_keeps_zeros_and_signs(pool):
    x = pool.x.clone()
    x[:, 0] = 0
    queries = Queries.of(Population(x, pool.y), Dither("multiplicative", 0.3))
    ratios = torch.cat([(queries(range(70), k) / x).flatten() for k in range(40)]).double()
    logs = ratios[~ratios.isnan()].log()
    assert logs.mean().item() == pytest.approx(0, abs=0.01)
    assert logs.std().item() == pytest.approx(0.3, rel=0.02)
    assert bool((queries(range(70), 0)[:, 0] == 0).all())


def test_additive_dither_is_scaled_by_each_feature_of_a_table_and_by_all_pixels_of_images():
    for pool, scale in ((TABLE, TABLE.x.std(0, correction=0)), (IMAGES, IMAGES.x.std(correction=0))):
        queries = Queries.of(pool, Dither("additive", 0.1))
        moved = torch.stack([queries(range(70), k) - pool.x for k in range(60)]).double() / scale
        assert moved.mean().item() == pytest.approx(0, abs=0.002)
        assert moved.std((0, 1)).flatten().numpy() == pytest.approx(0.1, rel=0.1)
    constant = Population(torch.cat([TABLE.x, torch.full((70, 1), 3.0)], dim=1), TABLE.y)
    assert bool((Queries.of(constant, Dither("additive", 0.1))(range(70), 0)[:, -1] == 3).all())


def test_without_amplitude_the_plain_query_is_asked_again():
    for kind in ("multiplicative", "additive"):
        assert torch.equal(Queries.of(TABLE, Dither(kind, 0.0))(range(70), 1), TABLE.x)


def test_a_crop_or_flip_is_the_same_for_every_subset_of_examples_and_every_longer_pool():
    x = torch.rand(150, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    pool = Population(x, torch.arange(150) % 3)
    queries = Queries.of(pool, Dither("crop-flip", seed=3))
    whole = queries(range(150), 4)
    assert torch.equal(queries([149, 3, 70, 3], 4), whole[[149, 3, 70, 3]])
    fewer = Queries.of(Population(x[:70], pool.y[:70]), Dither("crop-flip", 7.0, seed=3))
    assert torch.equal(fewer(range(70), 4), whole[:70])
    assert not torch.equal(queries(range(150), 5), whole)


def test_crops_are_of_the_image_padded_by_an_eighth_and_half_of_them_are_mirrored():
    x = torch.arange(16 * 16.0).reshape(1, 1, 16, 16).expand(640, 1, 16, 16) + torch.arange(640)[:, None, None, None]
    queries = Queries.of(Population(x, torch.arange(640) % 3), Dither("crop-flip"))(range(640), 0).numpy()
    seen = []
    for image, crop in zip(x.numpy()[:, 0], queries[:, 0], strict=True):
        padded = np.pad(image, 2, mode="reflect")
        at = [
            (row, column, mirrored)
            for row in range(5)
            for column in range(5)
            for mirrored in (False, True)
            if np.array_equal(padded[row : row + 16, column : column + 16][:, :: -1 if mirrored else 1], crop)
        ]
        assert len(at) == 1
        seen += at
    counts = [np.bincount([place[k] for place in seen]) for k in range(3)]
    assert [len(c) for c in counts] == [5, 5, 2]
    for count in counts:
        assert (abs(count - 640 / len(count)) < 5 * np.sqrt(640 / len(count))).all()


@pytest.mark.parametrize("shape", [(6,), (1, 64, 8)])
def test_crops_and_flips_of_what_is_no_image_or_too_small_are_refused(shape):
    pool = Population(torch.rand(10, *shape), torch.arange(10) % 3)
    with pytest.raises(InputError, match="crop-flip: expected images"):
        Queries.of(pool, Dither("crop-flip"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kind": "shift"}, ConfigurationError),
        ({"amplitude": -0.1}, ConfigurationError),
        ({"amplitude": "0.1"}, ConfigurationTypeError),
    ],
)
def test_a_dither_that_makes_no_sense_is_refused(options, error):
    with pytest.raises(error, match=f"(?i)dither:? {next(iter(options))}"):
        Dither(**options)


@pytest.mark.parametrize("batch_size", [13, 1000])
def test_labels_losses_and_margins_are_those_of_a_slow_loop(batch_size):
    dither = Dither("additive", 0.4, seed=2)
    found = predict(SHADOWS, TABLE, patience=(1, 3, 8), dither=dither, batch_size=batch_size)
    queries = Queries.of(TABLE, dither)
    for i, model in enumerate(SHADOWS.models):

        def asked(x, model=model):
            p = model(x).detach().double().softmax(1)
            own = p.gather(1, TABLE.y[:, None])[:, 0].numpy()
            return p.argmax(1).numpy(), -np.log(own)

        label, loss = asked(TABLE.x)
        assert np.array_equal(found.values["label"][i], label)
        assert np.allclose(found.values["loss"][i], loss, rtol=1e-3, atol=1e-6)
        for level in (3, 8):
            answers = [asked(queries(range(70), k)) for k in range(level)]
            labels = np.array([a[0] for a in answers])
            assert np.allclose(found.values[f"kept@{level}"][i], (labels == label).mean(0))
            shares = np.stack([(labels == c).mean(0) for c in range(3)], axis=1)
            assert np.allclose(found.values[f"shares@{level}"][i], shares)
            sure = np.array([a[1] for a in answers]).mean(0)
            assert np.allclose(found.values[f"loss@{level}"][i], sure, rtol=1e-3, atol=1e-5)
    assert np.isfinite(found.values["margin@8"]).all()
    assert (list(found.by_level), found.classes) == ([1, 3, 8], 3)
    assert (found.values["kept@8"] < 1).any()


def test_shares_of_many_classes_are_not_kept():
    many = Shadows((Linear(0, classes=33),), MEMBER[:1])
    assert "shares@2" not in predict(many, TABLE, patience=(1, 2)).values
    fewer = Shadows((Linear(0, classes=32),), MEMBER[:1])
    assert predict(fewer, TABLE, patience=(2,)).values["shares@2"].shape == (1, 70, 32)


FOREIGN = Population(TABLE.x, torch.arange(70) % 100)


def log_odds_in_numpy(p):
    """log p_c - log(1 - p_c) of each class, 1 - p_c as the sum of the others."""
    others = np.stack([np.delete(p, c, axis=1).sum(1) for c in range(p.shape[1])], axis=1)
    return np.log(p) - np.log(others)


@pytest.mark.parametrize(("probabilities", "batch_size"), [(False, 13), (True, 1000)], ids=["logits", "probabilities"])
def test_foreign_predictions_are_those_of_a_slow_loop(batch_size, probabilities):
    class Answering(Linear):
        def forward(self, x):
            logits = super().forward(x).double()
            return logits.softmax(1) if probabilities else logits

    shadows, dither = Shadows(tuple(Answering(seed) for seed in range(3)), MEMBER), Dither("additive", 0.4, seed=2)
    options = {"patience": (1, 3, 8, 20), "dither": dither, "batch_size": batch_size}
    found = predict(shadows, FOREIGN, labels="foreign", **options)
    queries = Queries.of(FOREIGN, dither)
    for i, model in enumerate(shadows.models):

        def asked(x, model=model):
            logits = (x.double() @ model.weight.detach().double()).numpy()
            p = np.exp(logits - logits.max(1, keepdims=True))
            return log_odds_in_numpy(p / p.sum(1, keepdims=True))

        close = {"rtol": 1e-4, "atol": 1e-5}
        assert np.allclose(found.values["prediction"][i], asked(FOREIGN.x), **close)
        every = np.stack([asked(queries(range(70), k)) for k in range(20)])
        for level in (3, 8, 20):
            assert np.allclose(found.values[f"prediction@{level}"][i], every[:level].mean(0), **close)
        for level in (3, 8):
            one_by_one = np.concatenate(every[:level], axis=1)
            assert found.values[f"predictions@{level}"][i].shape == (70, 3 * level)
            assert np.allclose(found.values[f"predictions@{level}"][i], one_by_one, **close)
    assert "predictions@20" not in found.values
    assert not {name for name in found.values if name.startswith(("loss", "margin"))}
    assert found.labels == "foreign"
    own = predict(shadows, TABLE, **options)
    for name in ("label", "kept@8", "shares@8"):
        assert np.array_equal(found.values[name], own.values[name])


@pytest.mark.parametrize("level", [16, 17])
def test_up_to_sixteen_queries_are_kept_one_by_one(level):
    found = predict(SHADOWS, FOREIGN, patience=(1, level, 60), labels="foreign", batch_size=37).values
    assert (f"predictions@{level}" in found) == (level <= 16)
    assert "predictions@60" not in found
    if level == 16:
        mean = found["predictions@16"].reshape(3, 70, 16, 3).mean(2)
        assert np.allclose(mean, found["prediction@16"])


def test_labels_of_their_own_are_looked_at_unless_it_is_said_that_they_are_foreign():
    plain = predict(SHADOWS, TABLE, patience=(1, 3))
    assert set(plain.values) == {"label", "loss", "margin", *(f"{s}@3" for s in ("kept", "shares", "loss", "margin"))}
    assert plain.labels == "own"
    said = predict(SHADOWS, TABLE, patience=(1, 3), labels="own")
    assert all(np.array_equal(plain.values[name], said.values[name]) for name in plain.values)
    with pytest.raises(InputError, match=r'expected labels 0 .. 2, .* got 69; .* pass labels="foreign"'):
        predict(SHADOWS, FOREIGN, patience=(1,))
    with pytest.raises(ConfigurationError, match="labels: expected own or foreign, got 'others'"):
        predict(SHADOWS, TABLE, labels="others")


def test_log_odds_of_classes_are_exact_where_probabilities_round_to_0_and_1():
    scores = torch.tensor([[0.0, 60.0, 20.0], [0.0, -800.0, 800.0], [1.0, 1.0, 1.0], [-3e38, 3e38, 0.0]]).double()
    found = class_log_odds(scores).numpy()
    assert found[0] == pytest.approx([-60, 60 - np.logaddexp(0, 20), -40], rel=1e-12)
    assert found[1] == pytest.approx([-800, -1600, 800], rel=1e-12)
    assert found[2] == pytest.approx(-np.log(2), rel=1e-12)
    assert found[3] == pytest.approx([-6e38, 3e38, -3e38], rel=1e-6)
    assert np.isfinite(class_log_odds(torch.tensor([[1.7e308, -1.7e308]], dtype=torch.float64)).numpy()).all()


class Viewed(nn.Module):
    """A network whose view of its maps needs channels first."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        return self.last(self.conv(x).view(len(x), -1))


def test_networks_of_images_get_channels_last_where_their_answers_stay_and_are_left_alone_otherwise():
    x = torch.randn(4, 3, 8, 8)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    before, known = network(x), model_digest(network)
    assert with_channels_last(network, x) is network
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x), before)
    assert model_digest(network) == known
    viewed = with_channels_last(Viewed().eval(), x)
    assert viewed.conv.weight.is_contiguous()
    assert viewed(x).shape == (4, 3)
    assert with_channels_last(nn.Linear(8, 2), x[0, 0]).weight.is_contiguous()
