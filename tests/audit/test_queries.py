"""Patient attackers: queries that differ by the same draws for every model, and what is counted over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import Dither, Population, Shadows
from safexplain.audit.queries import (
    CANDIDATES,
    PATIENCE,
    Queries,
    References,
    choose_dither,
    predict,
)
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.verdict.policy import Policy

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


# ----------------------------------------------------------------------------------------------------- the queries


@BOTH
@pytest.mark.parametrize("kind", ["multiplicative", "additive"])
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


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kind": "shift"}, ConfigurationError),
        ({"amplitude": -0.1}, ConfigurationError),
        ({"amplitude": float("nan")}, ConfigurationError),
        ({"amplitude": float("inf")}, ConfigurationError),
        ({"amplitude": "0.1"}, ConfigurationTypeError),
        ({"seed": -1}, ConfigurationError),
        ({"seed": 1.5}, ConfigurationError),
    ],
)
def test_a_dither_that_makes_no_sense_is_refused(options, error):
    with pytest.raises(error, match=f"(?i)dither:? {next(iter(options))}"):
        Dither(**options)


# ------------------------------------------------------------------------------------------ predictions, asked once


@pytest.mark.parametrize("batch_size", [1, 13, 70, 1000])
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
    assert found.levels == (3, 8)
    assert found.classes == 3
    assert (found.values["kept@8"] < 1).any()


def test_margins_are_those_of_the_probabilities():
    found = predict(SHADOWS, TABLE, patience=(2,), dither=Dither(amplitude=0.0))
    small = np.abs(found.values["margin"]) < 20
    p = np.exp(-found.values["loss"][small])
    assert np.allclose(found.values["margin"][small], np.log(p) - np.log1p(-p), rtol=1e-5, atol=1e-5)
    assert np.allclose(found.values["margin@2"], found.values["margin"])
    assert np.allclose(found.values["loss@2"], found.values["loss"])
    assert (found.values["kept@2"] == 1).all()


def test_every_model_is_asked_the_same_queries():
    seen = {}

    class Watched(Linear):
        def forward(self, x):
            seen.setdefault(self, []).append(x.clone())
            return super().forward(x)

    models = (Watched(0), Watched(1))
    predict(Shadows(models, MEMBER[:2]), TABLE, patience=(1, 5), batch_size=32)
    one, other = (seen[model] for model in models)
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_shares_of_many_classes_are_not_kept():
    many = Shadows((Linear(0, classes=33),), MEMBER[:1])
    assert "shares@2" not in predict(many, TABLE, patience=(1, 2)).values
    fewer = Shadows((Linear(0, classes=32),), MEMBER[:1])
    assert predict(fewer, TABLE, patience=(2,)).values["shares@2"].shape == (1, 70, 32)


def test_progress_counts_every_query_and_ends_at_the_total():
    seen = []
    predict(SHADOWS, TABLE, patience=(1, 4, 9), batch_size=20, progress=lambda *call: seen.append(call))
    assert [d for _, d, _ in seen] == sorted(d for _, d, _ in seen)
    assert seen[-1] == ("labels", 3 * 70 * 10, 3 * 70 * 10)


def test_whoever_asks_once_is_not_asked_for_more():
    assert set(predict(SHADOWS, TABLE, patience=(1,)).values) == {"label", "loss", "margin"}


@pytest.mark.parametrize("patience", [(0,), (1, 2.5), (-3, 1), (True,)])
def test_levels_are_whole_numbers(patience):
    with pytest.raises(ConfigurationError, match="patience: expected a whole number of at least 1"):
        predict(SHADOWS, TABLE, patience=patience)


def test_the_levels_are_those_of_the_default_policy():
    assert Policy().patience == PATIENCE


# -------------------------------------------------------------------------------------------- choosing how to ask


class Remembering(nn.Module):
    """Right on its members however loud the queries are, and on others only when they are hardly changed."""

    def __init__(self, pool, member, hold):
        super().__init__()
        self.register_buffer("x", pool.x)
        self.register_buffer("y", pool.y)
        self.register_buffer("hold", torch.where(torch.from_numpy(member), hold, 0.05))

    def forward(self, x):
        distance = torch.cdist(x, self.x)
        near, at = distance.min(1)
        right = near / self.x.norm(dim=1)[at] < self.hold[at]
        label = torch.where(right, self.y[at], (self.y[at] + 1) % 3)
        return torch.nn.functional.one_hot(label, 3).float() * 8


def remembering(models, seed=0, pool=None):
    pool = pool or Population(torch.randn(60, 8, generator=torch.Generator().manual_seed(5)) + 4, torch.arange(60) % 3)
    member = pool.flip(models, seed=seed)
    return Shadows(tuple(Remembering(pool, row, 0.9) for row in member), member), pool


def constant(model, x, target):
    return torch.ones_like(x)


def test_the_queries_that_tell_reference_models_best_are_chosen():
    shadows, pool = remembering(8)
    pools = [References(shadows, pool, np.arange(60))]
    loud, soft = Dither("multiplicative", 0.3), Dither("multiplicative", 0.001)
    best, tried = choose_dither(pools, constant, candidates=(soft, loud), seed=7)
    assert best == Dither("multiplicative", 0.3, seed=7)
    assert tried["multiplicative 0.3"] > 0.8
    assert tried["multiplicative 0.001"] < 0.7
    assert choose_dither(pools, constant, candidates=(loud, soft), seed=7)[0] == best


def test_several_pools_are_looked_at_together_and_the_choice_is_a_function_of_the_seed():
    pools = [References(*remembering(5, seed=s), np.arange(60)) for s in (0, 1)]
    best, tried = choose_dither(pools, constant, seed=1)
    assert list(tried) == [f"{c.kind} {c.amplitude:g}" for c in CANDIDATES]
    assert choose_dither(pools, constant, seed=1) == (best, tried)


def test_only_the_rows_that_are_given_are_asked_about():
    shadows, pool = remembering(4)
    seen = []

    def watched(model, x, target):
        seen.append(x)
        return x

    choose_dither([References(shadows, pool, np.arange(10, 20))], watched, candidates=(Dither(amplitude=0.0),))
    assert torch.equal(torch.cat(seen).unique(dim=0), pool.x[10:20].unique(dim=0))


def test_with_few_reference_models_nothing_is_chosen():
    shadows, pool = remembering(3)
    assert choose_dither([References(shadows, pool, np.arange(60))], constant, seed=4) == (Dither(seed=4), {})
    assert choose_dither([], constant) == (Dither(), {})


def test_explanations_that_cannot_be_used_are_refused_while_choosing():
    shadows, pool = remembering(4)
    with pytest.raises(InputError):
        choose_dither([References(shadows, pool, np.arange(60))], lambda m, x, t: x / 0)
