"""Adaptive queries: averaging takes away the noise that is fresh or hangs on the exact query, and only that."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import Population, Queries, Shadows, collect_signals
from safexplain.audit.collect import SUMMARIES
from safexplain.audit.queries import NearDuplicates, averaged, shifted
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.hardening.noise import query_seeds, standard_normal

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = Population(torch.rand(30, 2, 8, 9, generator=GENERATOR), torch.arange(30) % 2)
TABLE = Population(torch.randn(30, 6, generator=GENERATOR) * torch.logspace(-2, 2, 6), torch.arange(30) % 2)
MEMBER = np.random.default_rng(0).random((2, 30)) < 0.5


class Constant(nn.Module):
    """Predicts class 1, whatever is asked."""

    def forward(self, x):
        return torch.tensor([[0.0, 1.0]]).expand(len(x), -1)


SHADOWS = Shadows((Constant(), Constant()), MEMBER)


def plain(model, x, target):
    return torch.ones_like(x)


def fresh(model, x, target):
    return 1 + torch.randn(x.shape, generator=GENERATOR)


def keyed(model, x, target):
    """Noise that is a function of the exact query."""
    noise = [standard_normal(s, x[0].numel()) for s in query_seeds(b"k" * 32, inputs=x, target=target)]
    return 1 + torch.from_numpy(np.stack(noise)).reshape(x.shape).float()


def collected(explain, pool=IMAGES, **options):
    return collect_signals(SHADOWS, pool, explain, queries=Queries(**options), batch_size=8)


def names(signals, prefix):
    return {n.removeprefix(prefix) for n in signals.values if n.startswith(prefix)}


# ----------------------------------------------------------------------------------------------- the same once more


def test_asking_again_adds_nothing_where_the_noise_is_keyed_and_does_where_it_is_fresh():
    assert names(collected(keyed, near=0), "repeated_") == set()
    assert names(collected(plain, near=0), "repeated_") == set()
    assert names(collected(fresh, near=0), "repeated_") == set(SUMMARIES)


@pytest.mark.parametrize("repeats", [3, 15])
def test_fresh_noise_falls_as_one_over_the_root_of_the_answers(repeats):
    found = collected(fresh, near=0, repeats=repeats)
    alone, together = found.values["variance"].mean(), found.values["repeated_variance"].mean()
    assert alone == pytest.approx(1, rel=0.1)
    assert together == pytest.approx(1 / (repeats + 1), rel=0.1)


def test_answers_that_differ_by_rounding_are_the_same():
    def rounding(model, x, target):
        return torch.ones_like(x) * (1 + 1e-7 * torch.randn(x.shape, generator=GENERATOR))

    def small(model, x, target):
        return torch.ones_like(x) * (1 + 1e-3 * torch.randn(x.shape, generator=GENERATOR))

    assert names(collected(rounding, near=0), "repeated_") == set()
    assert names(collected(small, near=0), "repeated_") == set(SUMMARIES)


def test_a_model_that_always_answers_alike_beside_one_that_does_not_keeps_its_numbers():
    found = collect_signals(SHADOWS, IMAGES, [keyed, fresh], queries=Queries(near=0), batch_size=8)
    for name in SUMMARIES:
        assert np.array_equal(found.values[f"repeated_{name}"][0], found.values[name][0]), name
    assert not np.array_equal(found.values["repeated_l1"][1], found.values["l1"][1])


def test_the_first_batch_decides_whether_a_model_is_asked_again():
    asked = {True: 0, False: 0}

    def counting(explain):
        def call(model, x, target):
            asked[explain is fresh] += len(x)
            return explain(model, x, target)

        return call

    collect_signals(SHADOWS, IMAGES, [counting(keyed), counting(fresh)], queries=Queries(near=0), batch_size=8)
    assert asked == {True: 3 * 30, False: 30 + 2 * 8}


def test_a_model_once_found_fresh_is_asked_again_in_every_batch():
    def sometimes(model, x, target):
        calls.append(len(x))
        return fresh(model, x, target) if len(calls) <= 3 or len(calls) > 9 else plain(model, x, target)

    calls = []
    found = collect_signals(
        Shadows(SHADOWS.models[:1], MEMBER[:1]), IMAGES, sometimes, queries=Queries(near=0), batch_size=8
    )
    assert len(calls) == 4 * 3
    differ = found.values["repeated_l1"][0] != found.values["l1"][0]
    assert differ[:8].all()
    assert not differ[8:24].any()
    assert differ[24:].all()


# -------------------------------------------------------------------------------------------------- near-duplicates


@pytest.mark.parametrize("pool", [IMAGES, TABLE], ids=["images", "table"])
@pytest.mark.parametrize("near", [3, 15])
@pytest.mark.parametrize("noise", [keyed, fresh])
def test_near_duplicates_take_independent_noise_away_as_one_over_the_root_of_the_answers(pool, near, noise):
    found = collected(noise, pool, near=near, keep_maps=True)
    std = (found.values["near_map"] - 1).std() / (found.attributions - 1).std()
    assert std == pytest.approx((near + 1) ** -0.5, rel=0.1)
    assert names(found, "near_") == {*SUMMARIES, "map"}
    expected = found.values["near_map"].astype(np.float64).var(2)
    assert found.values["near_variance"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("pool", [IMAGES, TABLE], ids=["images", "table"])
def test_near_duplicates_take_nothing_away_from_what_does_not_depend_on_the_exact_query(pool):
    sticky = torch.randn(1, *pool.x.shape[1:], generator=GENERATOR)
    found = collected(lambda model, x, target: sticky.expand(x.shape), pool, shift=0, near=9, keep_maps=True)
    assert np.allclose(found.values["near_map"], found.attributions, atol=1e-6)
    for name in SUMMARIES:
        assert np.allclose(found.values[f"near_{name}"], found.values[name], rtol=1e-4, atol=1e-6), name


def test_maps_come_back_exactly_away_from_the_border_where_the_explainer_moves_along():
    def along(model, x, target):
        return x**2

    found = collected(along, noise=0.0, near=6, shift=2, keep_maps=True)
    maps = found.attributions.reshape(2, *IMAGES.x.shape)
    near = found.values["near_map"].reshape(maps.shape)
    assert np.allclose(near[..., 2:-2, 2:-2], maps[..., 2:-2, 2:-2], rtol=1e-6)
    assert not np.allclose(near, maps, rtol=1e-3)  # the border was reflected: the queries did move


def test_maps_that_do_not_move_along_are_blurred():
    fixed = torch.rand(1, 2, 8, 9, generator=GENERATOR)
    found = collected(lambda model, x, target: fixed.expand(x.shape), noise=0.0, near=6, shift=2, keep_maps=True)
    assert not np.allclose(found.values["near_map"], found.attributions, rtol=1e-2)


def test_one_map_for_all_channels_comes_back_too_and_maps_of_another_size_stay():
    found = collected(lambda model, x, target: x.sum(1), noise=0.0, near=6, keep_maps=True)
    maps, near = found.attributions.reshape(2, 30, 8, 9), found.values["near_map"].reshape(2, 30, 8, 9)
    assert np.allclose(near[..., 1:-1, 1:-1], maps[..., 1:-1, 1:-1], rtol=1e-5)
    cells = torch.rand(1, 2, 4, 3, generator=GENERATOR)
    coarse = collected(lambda model, x, target: cells.expand(len(x), -1, -1, -1), near=2, keep_maps=True)
    assert np.allclose(coarse.values["near_map"], coarse.attributions)
    one = collected(lambda model, x, target: x.flatten(1).sum(1), near=2, keep_maps=True)
    assert one.values["near_map"].shape == (2, 30, 1)


def test_every_query_is_about_the_class_predicted_for_the_plain_example():
    class Fickle(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], -x[:, 0]], dim=1)

    pool = Population(torch.linspace(-1e-3, 1e-3, 30)[:, None].repeat(1, 3), TABLE.y)
    asked = []

    def explain(model, x, target):
        asked.append((x, target))
        return x

    shadows = Shadows((Fickle(),), MEMBER[:1])
    collect_signals(shadows, pool, explain, queries=Queries(near=5, noise=0.5))
    predicted = Fickle()(pool.x).argmax(1)
    assert len(asked) == 1 + 2 + 5
    assert all(torch.equal(target, predicted) for _, target in asked)
    assert any(not torch.equal(Fickle()(x).argmax(1), predicted) for x, _ in asked)


def queried(pool, queries, batch_size=8, seed=0):
    asked = []

    def explain(model, x, target):
        asked.append((model, x))
        return x

    collect_signals(SHADOWS, pool, explain, queries=dataclasses.replace(queries, seed=seed), batch_size=batch_size)
    copies = 1 + queries.near
    return [
        torch.stack([torch.cat([x for m, x in asked if m is model][k::copies]) for k in range(copies)])
        for model in SHADOWS.models
    ]


@pytest.mark.parametrize("pool", [IMAGES, TABLE], ids=["images", "table"])
def test_near_duplicates_are_a_function_of_seed_and_example_alone(pool):
    queries = Queries(repeats=0, near=3)
    torch.manual_seed(1)
    state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, other = queried(pool, queries)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(one, other)
    assert torch.equal(queried(pool, queries, batch_size=30)[0], one)
    assert torch.equal(queried(pool, queries, batch_size=1)[0], one)
    assert torch.equal(one[0], pool.x)
    again = queried(pool, queries, seed=1)[0]
    for k in (1, 2, 3):
        assert not torch.isclose(again[k], one[k], rtol=0, atol=1e-9).all(1).any()
        assert not torch.equal(one[k], one[k % 3 + 1])


def test_images_move_by_the_shift_and_by_noise_of_the_range_of_the_population():
    pool = Population(IMAGES.x * 50 - 7, IMAGES.y)
    near = queried(pool, Queries(repeats=0, near=40, shift=0, noise=0.1))[0][1:] - pool.x
    reach = 0.1 * (pool.x.max() - pool.x.min())
    assert 0.99 * reach < near.abs().max() <= reach * (1 + 1e-5)
    assert near.std().item() == pytest.approx(reach.item() / 3**0.5, rel=0.01)  # uniform
    moved = queried(pool, Queries(repeats=0, near=40, shift=1, noise=0.0))[0][1:]
    for i in range(30):
        found = {
            (dy, dx)
            for copy in moved[:, i]
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if torch.equal(copy[:, 1:-1, 1:-1], pool.x[i, :, 1 + dy : 7 + dy, 1 + dx : 8 + dx])
        }
        assert len(found) > 5
    assert torch.equal(queried(pool, Queries(repeats=0, near=2, shift=0, noise=0.0))[0][2], pool.x)


def test_features_meet_noise_of_their_own_range():
    pool = Population(torch.cat([TABLE.x, torch.full((30, 1), 3.0)], dim=1), TABLE.y)
    near = queried(pool, Queries(repeats=0, near=40, noise=0.1))[0][1:] - pool.x
    reach = 0.1 * (pool.x.amax(0) - pool.x.amin(0))
    found = near.abs().amax((0, 1))
    assert bool((found <= reach * (1 + 1e-3)).all())
    assert bool((found[:-1] >= 0.98 * reach[:-1]).all())
    assert found[-1] == 0  # a feature that never changes
    assert reach[0] < 1e-3 * reach[-2]


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 1)])
def test_what_is_no_image_is_not_moved(shape):
    x = torch.rand(30, 2, *shape, generator=GENERATOR)
    near = NearDuplicates.of(Population(x, IMAGES.y), Queries(noise=0.0))
    assert near.image is None
    assert all(torch.equal(to, x) and back(x) is x for to, back in near(x, range(30)))


def test_small_images_are_moved_no_further_than_they_reach():
    x = torch.rand(30, 1, 2, 3, generator=GENERATOR)
    found = [to for to, _ in NearDuplicates.of(Population(x, IMAGES.y), Queries(shift=9, noise=0.0))(x, range(30))]
    assert any(not torch.equal(to, x) for to in found)
    assert all(bool(torch.isin(to, x).all()) for to in found)


# ------------------------------------------------------------------------------------------------------- the pieces


def test_a_shift_is_what_a_slow_loop_makes_of_a_reflected_image():
    x = torch.rand(5, 2, 4, 6, generator=GENERATOR)
    by = torch.tensor([[0, 0], [1, -1], [-3, 5], [3, -5], [2, 0]])

    def mirror(i, size):
        return -i if i < 0 else 2 * (size - 1) - i if i >= size else i

    expected = torch.empty_like(x)
    for b in range(5):
        for i in range(4):
            for j in range(6):
                expected[b, :, i, j] = x[b, :, mirror(i + int(by[b, 0]), 4), mirror(j + int(by[b, 1]), 6)]
    assert torch.equal(shifted(x, by), expected)
    assert torch.equal(shifted(x[:, 0], by), expected[:, 0])
    assert not torch.equal(shifted(x, -by), expected)


def test_averaging_holds_one_answer_at_a_time_and_changes_none():
    first = torch.ones(4, 3, dtype=torch.float64)
    held: list[weakref.ref[torch.Tensor]] = []

    def answers():
        for k in range(6):
            assert not any(one() is not None for one in held)
            answer = torch.full((4, 3), float(k))
            held.append(weakref.ref(answer))
            yield answer
            del answer

    mean, differs = averaged(first, answers())
    assert differs
    assert torch.allclose(mean, torch.full((4, 3), (1 + 15) / 7, dtype=torch.float64))
    assert torch.equal(first, torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(AssertionError):
        averaged(first, list(answers()))
    mean, differs = averaged(first, [])
    assert torch.equal(mean, first)
    assert not differs


@pytest.mark.parametrize("queries", [None, Queries.none()])
def test_whoever_asks_once_gets_the_plain_signals(queries):
    asked = []

    def explain(model, x, target):
        asked.append(len(x))
        return x + torch.randn(x.shape, generator=GENERATOR)

    found = collect_signals(SHADOWS, IMAGES, explain, queries=queries, batch_size=30)
    assert asked == [30, 30]
    assert found.values.keys() == {*SUMMARIES, "label", "loss", "margin"}
    assert "queries" not in found.meta


def test_the_queries_are_in_the_file(tmp_path):
    found = collected(fresh, keep_maps=True)
    found.save(tmp_path / "signals.npz")
    again = type(found).load(tmp_path / "signals.npz")
    assert Queries(**again.meta["queries"]) == Queries(keep_maps=True)
    assert again.values["near_map"].dtype == np.float32
    assert "near_map" not in collected(fresh).values


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"repeats": -1}, ConfigurationError),
        ({"near": -1}, ConfigurationError),
        ({"shift": -1}, ConfigurationError),
        ({"noise": -0.1}, ConfigurationError),
        ({"noise": float("nan")}, ConfigurationError),
        ({"noise": float("inf")}, ConfigurationError),
        ({"seed": -1}, ConfigurationError),
        ({"repeats": 1.5}, ConfigurationTypeError),
        ({"near": True}, ConfigurationTypeError),
        ({"shift": "1"}, ConfigurationTypeError),
        ({"noise": "0.1"}, ConfigurationTypeError),
    ],
)
def test_queries_that_make_no_sense_are_refused(options, error):
    with pytest.raises(error, match=f"queries: {next(iter(options))} is"):
        Queries(**options)
