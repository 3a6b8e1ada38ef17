"""The learned attack: finds what no norm shows, is blind where there is no leak, repeats itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from safexplain.audit.attacks import Learned, LikelihoodRatio, Threshold, learned, map_classifier
from safexplain.audit.attacks.learned import TrainingPairs
from safexplain.audit.attacks.map_classifier import Standardisation, unit_maps
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import auc_interval, roc

QUICK = Learned(epochs=8, device="cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(n=500, m=8, d=24, leak=2.0, seed=0):
    """Maps of unit L1 norm; those of members lean along a fixed direction, those of others against it."""
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    maps = rng.normal(size=(n, d)) + 0.7 * rng.normal(size=(m + 1, n, d))
    maps += leak / 2 * np.where(member, 1, -1)[..., None] * direction
    maps /= abs(maps).sum(-1, keepdims=True)
    maps = maps.astype(np.float32)
    return maps[0], maps[1:], member[1:], member[0]


def auc_and_interval(scores, member):
    curve = roc(scores, member)
    return curve.auc, auc_interval(curve, 0.999)


def test_a_pattern_that_no_norm_shows_is_found():
    target, shadows, membership, member = world()
    auc, _ = auc_and_interval(QUICK(target, shadows, membership), member)
    assert auc > 0.8
    norm, norms = abs(target).sum(-1), abs(shadows).sum(-1)
    for scores in (Threshold()(norm), LikelihoodRatio()(norm, norms, membership)):
        _, (low, high) = auc_and_interval(scores, member)
        assert low < 0.5 < high


def test_without_a_leak_nothing_is_found():
    target, shadows, membership, member = world(leak=0.0)
    _, (low, high) = auc_and_interval(QUICK(target, shadows, membership), member)
    assert low < 0.5 < high


def test_only_the_models_and_examples_allowed_are_trained_on():
    target, shadows, membership, _ = world()
    allowed = [0, 2, 3, 4, 5, 6, 7], np.arange(250)
    expected = QUICK.fit(shadows, membership, *allowed).scores(target)
    part = QUICK(target[:250], shadows[allowed[0], :250], membership[allowed[0], :250])
    assert np.allclose(part, expected[:250], atol=1e-5)
    other, flipped = shadows.copy(), membership.copy()
    other[:, 250:] = other[1] = 1e3
    flipped[:, 250:] ^= True
    assert np.array_equal(QUICK.fit(other, flipped, *allowed).scores(target), expected)
    assert not np.array_equal(QUICK(target, other, membership), expected)


def test_the_global_random_state_and_precision_of_torch_do_not_matter_and_stay():
    target, shadows, membership, _ = world(100, 4)
    expected = QUICK(target, shadows, membership)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            found = QUICK(target, shadows, membership)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.allclose(found, expected, atol=1e-3)


def test_the_epoch_kept_is_the_best_on_references_that_were_not_trained_on(monkeypatch):
    target, shadows, membership, _ = world(200, 5)
    looks, logits_of = [], map_classifier.logits_of
    with monkeypatch.context() as patched:
        patched.setattr(map_classifier, "logits_of", lambda *given: looks.append(1) or logits_of(*given))
        hopeless = replace(QUICK, epochs=500).fit(*world(200, 5, leak=0.0)[1:3])
    assert len(looks) == hopeless.epoch + 5 < 55  # five epochs without a better one
    monkeypatch.setattr(learned, "PATIENCE", 12)
    long = replace(QUICK, epochs=12).fit(shadows, membership)
    short = replace(QUICK, epochs=long.epoch).fit(shadows, membership)
    assert np.array_equal(long.scores(target), short.scores(target))


def test_a_fifth_of_the_references_chooses_the_epoch_by_a_quarter_of_the_maps(monkeypatch):
    drawn, draw = [], TrainingPairs.draw

    def seen(membership, models, most, rng):
        drawn.append((len(models), most))
        return draw(membership, models, most, rng)

    monkeypatch.setattr(TrainingPairs, "draw", seen)
    for models, watching in ((10, 2), (3, 1), (2, 1)):
        drawn.clear()
        replace(QUICK, epochs=1, most_examples=100).fit(*world(60, models)[1:3])
        assert drawn == [(models - watching, 100), (watching, 25)]


@pytest.mark.parametrize(
    ("shape", "recorded"),
    [(None, [0.291959, -0.028396, 0.29582, 0.129909]), ((2, 4, 3), [0.606169, 0.169902, 1.191866, 0.335442])],
)
def test_three_epochs_give_the_recorded_logits(shape, recorded):
    target, shadows, membership, _ = world(200, 4)
    found = Learned(shape, epochs=3, device="cpu")(target, shadows, membership)
    assert found[:4] == pytest.approx(recorded, rel=1e-3)
    assert Learned() == Learned(None, 20, 2e-3, 0, 32_768, "auto")


def test_members_and_others_weigh_the_same_and_so_do_an_examples_maps_on_both_sides():
    """Example 0: once with, twice without; 1: twice with, once without; 2: with alone."""
    example, member = np.array([0, 0, 0, 1, 1, 1, 2]), np.array([1, 0, 0, 1, 1, 0, 1]) == 1
    found = TrainingPairs(np.arange(7), example, member).weights()
    raw = np.array([1.5, 0.75, 0.75, 0.75, 0.75, 1.5, 1.0])
    assert found == pytest.approx(raw * np.where(member, 3.5 / raw[member].sum(), 3.5 / raw[~member].sum()))


def test_unit_maps_and_their_scalars_give_the_map_back():
    maps = torch.tensor([[3.0, -4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1e-200, 2e-200, 0.0, 1e-200]]).double()
    maps[2] = torch.tensor([1e-200, 2e-200, 0.0, 1e-200], dtype=torch.float64)
    unit, scalars = unit_maps(maps)
    assert torch.allclose(unit.double() * scalars[:, :1].exp(), maps, rtol=1e-6, atol=0)
    first = [math.log(2.5), math.log(7), math.log(6.25 - 1 / 16), -0.1, 0.25, math.log(4)]
    assert scalars[0].tolist() == pytest.approx(first)
    assert scalars[1].tolist() == [-math.inf, -math.inf, -math.inf, 0, 0, -math.inf]
    assert scalars[2, 1].item() == pytest.approx(math.log(4) - 200 * math.log(10))


def test_scalars_are_standardised_and_the_logarithm_of_zero_is_that_of_half_of_the_smallest():
    scalars = torch.tensor([[0.0, 5.0], [2.0, 5.0], [-math.inf, 5.0]]).double()
    standardise = Standardisation.of(scalars)
    found = standardise(scalars)
    assert found.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert found[:, 0].std(correction=0).item() == pytest.approx(1)
    assert found[:, 1].tolist() == [0, 0, 0]
    assert torch.allclose(found[2, 0], standardise(torch.tensor([[-math.log(2), 5.0]]).double())[0, 0])
    assert standardise(torch.tensor([[1e9, 5.5]]).double())[0].tolist() == [10, 0.5]  # an unchanged one keeps its unit


T, S, M = world(20, 3)[:3]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ((T, S[:1], M[:1]), "m >= 2 reference models"),
        ((T, S, np.ones_like(M)), "and 0; allow more examples"),
        ((T, S, np.zeros_like(M)), "got 0 and"),
        ((T, np.where(np.arange(24) == 3, np.nan, S), M), "NaN or infinite"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(case, message):
    with pytest.raises(InputError, match=message):
        QUICK(*case)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"shape: expected that of a map of \d+ numbers"):
        replace(QUICK, shape=(1, 5, 5))(T, S, M)
    with pytest.raises(InputError, match=r"finite maps \(n, 24\)"):
        QUICK.fit(S, M).scores(T[:, :5])


def test_training_that_diverges_says_so(monkeypatch):
    monkeypatch.setattr(learned, "BATCH", 4)
    with pytest.raises(InputError, match="diverged in epoch"):
        replace(QUICK, lr=1e30)(T, S, M)


@pytest.mark.parametrize(
    "options", [{"shape": (3, 8)}, {"shape": (0, 8, 8)}, {"lr": 0.0}, {"epochs": 0}, {"most_examples": 7}], ids=str
)
def test_options_that_make_no_sense_are_refused(options):
    assert Learned(shape=(1, 1, 1), epochs=1, most_examples=8)
    with pytest.raises(ConfigurationError):
        Learned(**options)


@pytest.mark.gpu
def test_the_device_does_not_matter_for_what_is_found():
    target, shadows, membership, member = world()
    assert roc(replace(QUICK, device="cuda")(target, shadows, membership), member).auc > 0.8
