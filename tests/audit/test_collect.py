"""Collecting: every model is asked about every example, as often as it was said, and nothing is lost or mixed up."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import Dither, Population, Shadows
from safexplain.audit import collect_signals as collect
from safexplain.audit.answers import DITHERS_WITHOUT_NOISE, SUMMARIES, predict, summarise
from safexplain.audit.queries import Queries
from safexplain.errors import ConfigurationError, InputError

MEMBER = np.random.default_rng(0).random((3, 40)) < 0.5


class Linear(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x):
        return x.flatten(1) @ self.weight


POOL = Population(torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(9)), torch.arange(40) % 3)
SHADOWS = Shadows(tuple(Linear(s) for s in range(3)), MEMBER)


def collect_signals(*args, patience=(1,), **kwargs):
    """By an attacker who asks once, unless it is said otherwise."""
    return collect(*args, patience=patience, **kwargs)


def explain(model, x, target):
    assert x.dtype == torch.float32
    return x * model.weight.T[target].reshape(x.shape)


@pytest.mark.parametrize("batch_size", [7, 256])
def test_the_signals_are_what_numpy_makes_of_the_explanations(batch_size):
    found = collect_signals(SHADOWS, POOL, explain, batch_size=batch_size)
    assert np.array_equal(found.membership, MEMBER)
    for i, model in enumerate(SHADOWS.models):
        w, x = model.weight.detach().double().numpy(), POOL.x.double().numpy().reshape(40, 6)
        logits = x @ w
        label = logits.argmax(1)
        maps = x * w.T[label]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        p_y = p[np.arange(40), POOL.y]
        rms = np.sqrt((maps**2).mean(1))
        expected = {
            "l1": np.abs(maps).sum(1),
            "l2": np.sqrt((maps**2).sum(1)),
            "variance": ((maps - maps.mean(1, keepdims=True)) ** 2).mean(1),
            "mean": maps.mean(1) / rms,
            "positive": (maps > 0).mean(1),
            "support": (maps != 0).mean(1),
            "sparsity": np.abs(maps).mean(1) / rms,
            "peak": np.abs(maps).max(1) / rms,
            "label": label,
            "loss": -np.log(p_y),
            "margin": np.log(p_y) - np.log(1 - p_y),
        }
        assert found.values.keys() == expected.keys()
        for name, values in expected.items():
            assert np.allclose(found.values[name][i], values, rtol=1e-4, atol=1e-6), name
        assert np.allclose(found.attributions[i], maps, rtol=1e-5, atol=1e-6)


def test_the_predicted_class_is_explained_and_not_the_label():
    asked = []
    collect_signals(SHADOWS, POOL, lambda model, x, target: (asked.append(target), x)[1])
    predicted = torch.stack([m(POOL.x).argmax(1) for m in SHADOWS.models])
    assert torch.equal(torch.cat(asked).reshape(3, 40), predicted)
    assert not torch.equal(predicted[0], POOL.y)


def test_maps_can_be_left_out_and_targets_and_meta_are_kept():
    seen = []
    found = collect_signals(
        SHADOWS,
        POOL,
        explain,
        batch_size=15,
        keep_attributions=False,
        targets=(0,),
        meta={"explainer": "x"},
        progress=lambda *call: seen.append(call),
    )
    assert found.attributions is None
    assert found.inputs is None
    assert found.meta == {"explainer": "x", "targets": [0], "population": POOL.digest(), "shape": [2, 3]}
    assert found.shape == (2, 3)
    assert found.targets == (0,)
    assert len({call[:3] for call in seen}) == 3 + 9  # labels of all models at once
    assert seen[-1] == ("explaining", 120, 120)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x, t: x[:3], "expected finite explanations of shape"),
        (lambda m, x, t: x / 0, "expected finite explanations of shape"),
        (lambda m, x, t: (x, None), "got NoneType from model 0"),
        (lambda m, x, t: (x, x) if m is SHADOWS.models[1] else x, "expected maps of one shape"),
        (lambda m, x, t: x[:, :0], r"maps of one shape, not empty, got \(\(0, 3\),\)"),
    ],
)
def test_explanations_that_cannot_be_attacked_are_refused(function, message):
    with pytest.raises(InputError, match=message):
        collect_signals(SHADOWS, POOL, function)


@pytest.mark.parametrize("spoil", [lambda out: out / 0, lambda out: out[:, :1]])
def test_models_whose_outputs_are_no_logits_are_refused(spoil):
    class Spoilt(Linear):
        def forward(self, x):
            return spoil(super().forward(x))

    with pytest.raises(InputError, match="finite outputs of shape"):
        collect_signals(Shadows((Spoilt(0),), MEMBER[:1]), POOL, lambda model, x, target: x)


def test_the_margin_of_a_sure_model_is_finite_and_exact():
    class Sure(nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 800.0, -800.0]]).expand(len(x), -1)

    class Certain(nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 1.0, 0.0]]).expand(len(x), -1)

    found = collect_signals(Shadows((Sure(), Certain()), MEMBER[:2]), POOL, lambda model, x, target: x)
    assert np.array_equal(found.values["margin"][0], np.array([-800.0, 800.0, -1600.0])[POOL.y])
    assert np.allclose(found.values["margin"][1], np.log([1e-30, 0.5e30, 1e-30])[POOL.y])


def test_each_model_is_explained_by_its_own_explainer():
    def times(factor):
        return lambda model, x, target: factor * x.abs()

    found = collect_signals(SHADOWS, POOL, [times(1), times(10), times(100)])
    l1 = POOL.x.double().abs().flatten(1).sum(1).numpy()
    assert np.allclose(found.values["l1"], np.outer([1, 10, 100], l1))


def test_several_classes_are_explained_for_every_example():
    found = collect_signals(SHADOWS, POOL, explain, classes=(2, 0), batch_size=7)
    for i, model in enumerate(SHADOWS.models):
        for k, c in enumerate((2, 0)):
            maps = (POOL.x.flatten(1) * model.weight.detach().T[c]).double().numpy()
            assert np.allclose(found.values["class_l1"][i, :, k], np.abs(maps).sum(1), rtol=1e-5)
            assert np.allclose(found.values["class_l2"][i, :, k], np.sqrt((maps**2).sum(1)), rtol=1e-5)
            rms = np.sqrt((maps**2).mean(1))
            assert np.allclose(found.values["class_mean"][i, :, k], maps.mean(1) / rms, rtol=1e-4, atol=1e-6)
    assert found.meta["classes"] == [2, 0]
    without = collect_signals(SHADOWS, POOL, explain)
    assert not any(name.startswith("class_") for name in without.values)
    assert np.array_equal(found.values["l1"], without.values["l1"])  # of the predicted class as ever


def test_classes_and_labels_that_the_model_does_not_have_are_refused():
    with pytest.raises(InputError, match=r"outputs 0 .. 2 of the model, got \[-1\]"):
        collect_signals(SHADOWS, POOL, explain, classes=(0, -1))
    with pytest.raises(InputError, match=r"expected labels 0 .. 2, the outputs of the model, got 3"):
        collect_signals(SHADOWS, Population(POOL.x, torch.arange(40) % 4), explain)


def test_null_models_and_examples_out_of_distribution_are_marked():
    outside = np.arange(40) >= 35
    member = MEMBER & ~outside & np.array([[True], [True], [False]])
    found = collect_signals(
        Shadows(SHADOWS.models, member), POOL, explain, null=(2,), out_of_distribution=outside, keep_inputs=True
    )
    assert found.null == (2,)
    assert found.meta["null"] == [2]
    assert found.models == found.targets == (0, 1)
    assert np.array_equal(found.out_of_distribution, outside)
    assert np.array_equal(found.inputs, POOL.x.numpy())
    assert (found.values["l1"] > 0).all()  # they are asked like all others


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"null": (1,)}, "expected null models without members"),
        ({"out_of_distribution": np.ones(40, bool)}, "expected no member out of distribution, got"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(wrong, message):
    def never(model, x, target):
        raise AssertionError("asked")

    with pytest.raises(InputError, match=message):
        collect_signals(SHADOWS, POOL, never, **wrong)
    with pytest.raises(InputError, match="membership over the 40 examples of the population, got 39"):
        collect_signals(Shadows(SHADOWS.models, MEMBER[:, :39]), POOL, never)
    with pytest.raises(ConfigurationError, match="patience: expected a whole number"):
        collect(SHADOWS, POOL, never, patience=(1, 2.5))
    with pytest.raises(InputError, match="one for each of 3 models; got 2"):
        collect(SHADOWS, POOL, [never] * 2, patience=(1,))


def test_maps_of_zeros_have_summaries_of_zero_and_sums_are_in_double():
    assert [v.tolist() for v in summarise(torch.zeros(2, 3)).values()] == [[0, 0]] * len(SUMMARIES)
    coarse = torch.full((1, 3000), 0.1, dtype=torch.float16)
    assert summarise(coarse)["l1"].item() == pytest.approx(3000 * coarse[0, 0].double().item(), rel=1e-12)


DITHER = Dither("additive", 0.2, seed=1)


def released(model, x, target):
    """Curved, so that averages over queries are no plain answers."""
    return explain(model, x, target) ** 3


def quiet(model, x, target):
    return released(model, x, target) * 10


@pytest.mark.parametrize("batch_size", [7, 40])
def test_averages_over_dithered_queries_are_those_of_a_slow_loop(batch_size):
    options = {"patience": (1, 3, 9), "dither": DITHER, "targets": (1,), "without_noise": quiet}
    found = collect(SHADOWS, POOL, released, batch_size=batch_size, **options)
    queries = Queries.of(POOL, DITHER)
    for i, model in enumerate(SHADOWS.models):
        labels = model(POOL.x).argmax(1)
        for level in (3, 9):
            few = level if i == 1 else min(level, DITHERS_WITHOUT_NOISE)
            answer = released if i == 1 else quiet
            maps = torch.stack([answer(model, queries(range(40), k), labels) for k in range(few)]).double().mean(0)
            assert np.allclose(found.values[f"attributions@{level}"][i], maps.flatten(1).detach(), rtol=1e-4, atol=1e-6)
            for name, values in summarise(maps).items():
                assert np.allclose(found.values[f"{name}@{level}"][i], values.detach(), rtol=1e-4, atol=1e-6), name
        plain = released(model, POOL.x, labels)
        assert np.allclose(found.attributions[i], plain.flatten(1).detach(), rtol=1e-5)
    expected = {*SUMMARIES, "label", "loss", "margin"}
    for level in (3, 9):
        expected |= {f"{s}@{level}" for s in (*SUMMARIES, "kept", "shares", "loss", "margin", "attributions")}
    assert set(found.values) == expected


@pytest.mark.parametrize("labels", ["own", "foreign"])
def test_without_an_explainer_what_is_predicted_is_all_that_is_kept(labels):
    options = {"patience": (1, 3), "dither": DITHER, "labels": labels}
    found, explained = collect(SHADOWS, POOL, None, **options), collect(SHADOWS, POOL, released, **options)
    predicted = predict(SHADOWS, POOL, **options).values
    assert set(found.values) == set(predicted)
    assert all(np.array_equal(found.values[name], explained.values[name]) for name in predicted)
    assert found.attributions is None
    assert np.array_equal(found.examples, explained.examples)
    with pytest.raises(InputError, match="expected explain= with without_noise or classes"):
        collect(SHADOWS, POOL, None, classes=(0,), **options)


def test_references_answer_without_noise_and_only_a_few_queries():
    asked = {"with": [], "without": []}

    def noisy(model, x, target):
        asked["with"].append((model, x))
        return x + torch.randn(x.shape, generator=GENERATOR)

    def noiseless(model, x, target):
        asked["without"].append((model, x))
        return x

    untrained = MEMBER & np.array([[True], [True], [False]])
    given = {"patience": (1, 2, 10), "dither": DITHER, "without_noise": noiseless, "targets": (0,), "null": (2,)}
    found = collect(Shadows(SHADOWS.models, untrained), POOL, noisy, **given)
    number = {name: [sum(m is model for m, _ in calls) for model in SHADOWS.models] for name, calls in asked.items()}
    assert number == {"with": [11, 1, 11], "without": [0, DITHERS_WITHOUT_NOISE, 0]}
    queries = Queries.of(POOL, DITHER)
    for k, (_, x) in enumerate(asked["without"]):
        assert torch.equal(x, queries(range(40), k))
    mean = sum(queries(range(40), k).double() for k in range(DITHERS_WITHOUT_NOISE)) / DITHERS_WITHOUT_NOISE
    assert np.allclose(found.values["attributions@10"][1], mean.flatten(1), atol=1e-6)
    assert not np.allclose(found.values["attributions@10"][0], mean.flatten(1), atol=1e-2)


GENERATOR = torch.Generator().manual_seed(3)


def test_several_explainers_are_one_release():
    def both(model, x, target):
        return released(model, x, target), explain(model, x, target).flatten(1)[:, :4]

    options = {"patience": (1, 5), "dither": DITHER, "classes": (1,)}
    found = collect(SHADOWS, POOL, both, **options)
    one = collect(SHADOWS, POOL, released, **options)
    other = collect(SHADOWS, POOL, lambda *a: both(*a)[1], **options)
    maps = np.concatenate([one.attributions, other.attributions], axis=2)
    assert np.array_equal(found.attributions, maps)
    assert found.values["attributions@5"].shape == (3, 40, 10)
    for name in (*SUMMARIES, "l1@5", "peak@5"):
        assert np.array_equal(found.values[name], np.stack([one.values[name], other.values[name]], axis=2)), name
    assert found.values["class_l1"].shape == (3, 40, 2)
    assert found.shape is None
    assert np.array_equal(found.values["label"], one.values["label"])
