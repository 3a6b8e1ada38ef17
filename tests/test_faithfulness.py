"""Faithfulness: what the features that a map names carry, against a version that deletes one example's one by one."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit.usefulness import Utility, utility
from safexplain.errors import ConfigurationError, InputError
from safexplain.faithfulness import Faithfulness, faithfulness
from safexplain.outputs import Probability

GENERATOR = torch.Generator().manual_seed(0)
NET = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 16), nn.Tanh(), nn.Linear(16, 6)).eval()
X = torch.randn(20, 3, 4, 5, generator=GENERATOR)
MAPS = torch.randn(20, 3, 4, 5, generator=GENERATOR)
LABELS = torch.randint(0, 6, (20,), generator=GENERATOR)


def slow_faithfulness(model, x, labels, maps, fraction):
    """One example after the other, in the order of the values; right where there are no ties."""
    deletion, insertion = [], []

    def probability(rows, label):
        with torch.no_grad():
            return float(model(rows[None]).double().softmax(1)[0, label])

    for row, label, one in zip(x, labels, maps, strict=True):
        values = one.flatten().tolist()
        ranked = sorted(range(len(values)), key=lambda j: -values[j])[: max(1, round(fraction * len(values)))]
        without, only = row.clone().flatten(), torch.zeros_like(row).flatten()
        for j in ranked:
            if values[j] > 0:
                without[j], only[j] = 0, row.flatten()[j]
        nothing = torch.zeros_like(row)
        deletion.append(probability(row, label) - probability(without.reshape(row.shape), label))
        insertion.append(probability(only.reshape(row.shape), label) - probability(nothing, label))
    return np.array(deletion), np.array(insertion)


@pytest.mark.parametrize(("fraction", "batch_size"), [(0.001, 7), (0.1, 256), (1.0, 1)])
def test_deletion_and_insertion_equal_the_slow_ones(fraction, batch_size):
    found = faithfulness(NET, X, LABELS, MAPS, fraction=fraction, batch_size=batch_size)
    deletion, insertion = slow_faithfulness(NET, X, LABELS, MAPS, fraction)
    assert found.deletion == pytest.approx(deletion, abs=1e-6)
    assert found.insertion == pytest.approx(insertion, abs=1e-6)
    assert found.deletion.shape == found.insertion.shape == (20,)
    assert found.to_dict() == pytest.approx({"deletion": deletion.mean(), "insertion": insertion.mean()}, abs=1e-6)


def test_logits_and_their_probabilities_say_the_same_and_arrays_are_taken():
    one, other = (
        faithfulness(NET, X, LABELS, MAPS),
        faithfulness(Probability(NET), *(a.numpy() for a in (X, LABELS, MAPS))),
    )
    assert one.deletion == pytest.approx(other.deletion, abs=1e-6)
    assert one.insertion == pytest.approx(other.insertion, abs=1e-6)


def test_features_that_do_not_speak_for_the_class_are_never_deleted():
    for nothing in (-MAPS.abs(), torch.zeros_like(MAPS), torch.full_like(MAPS, torch.nan)):
        found = faithfulness(NET, X, LABELS, nothing, fraction=1.0)
        assert not found.deletion.any()
        assert not found.insertion.any()
    only_one = -MAPS.abs()
    only_one[:, 0, 0, 0] = 1e-30
    deleted = X.clone()
    deleted[:, 0, 0, 0] = 0
    with torch.no_grad():
        drop = (NET(X).softmax(1) - NET(deleted).softmax(1)).gather(1, LABELS[:, None])[:, 0]
    assert faithfulness(NET, X, LABELS, only_one, fraction=0.5).deletion == pytest.approx(drop.numpy(), abs=1e-6)


def test_which_of_equal_numbers_are_named_is_random_by_the_seed_and_the_same_in_any_batches():
    equal = torch.ones_like(MAPS)
    one, again, other = (faithfulness(NET, X, LABELS, equal, seed=s).deletion for s in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)
    assert faithfulness(NET, X, LABELS, equal, batch_size=3).deletion == pytest.approx(one, abs=1e-6)
    sums = nn.Linear(8, 2)
    with torch.no_grad():  # which feature was kept shows in the probability
        sums.weight.copy_(torch.stack([torch.zeros(8), torch.arange(8.0)]))
    many = 4000
    kept = faithfulness(sums, torch.ones(many, 8), torch.ones(many).long(), torch.ones(many, 8), fraction=0.1)
    counts = np.unique(kept.insertion.round(6), return_counts=True)[1]
    assert len(counts) == 8
    assert abs(counts - many / 8).max() < 5 * np.sqrt(many / 8)


def test_a_map_of_one_channel_names_pixels_and_a_flat_one_the_same_numbers():
    pixels = MAPS[:, :1]
    found = faithfulness(NET, X, LABELS, pixels, fraction=0.2)
    named = torch.zeros(20, 20, dtype=torch.bool).scatter(1, pixels.flatten(1).topk(4).indices, True)
    named &= pixels.flatten(1) > 0
    deletion, _ = slow_faithfulness(NET, X, LABELS, named.reshape(20, 1, 4, 5).expand(X.shape).float(), 1.0)
    assert found.deletion == pytest.approx(deletion, abs=1e-6)
    flat, whole = (faithfulness(NET, X, LABELS, m).deletion for m in (MAPS.flatten(1), MAPS))
    assert np.array_equal(flat, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"maps": MAPS[:5]}, "shape of x"),
        ({"maps": MAPS[:, :, :2]}, "enlarge"),
        ({"labels": LABELS + 6}, "outputs 0 .. 5"),
        ({"x": X * torch.nan}, "finite outputs"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(60, 1))}, "classes >= 2"),
        ({"fraction": 0.0}, "fraction"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, message):
    arguments = {"model": NET, "x": X, "labels": LABELS, "maps": MAPS, **change}
    with pytest.raises((InputError, ConfigurationError), match=message):
        faithfulness(**arguments)


def test_utility_holds_both_maps_faithfulness_and_leaves_out_what_was_not_measured():
    plain = utility(MAPS.numpy(), MAPS.numpy())
    assert "deletion" not in plain.to_dict()
    both = plain.with_faithfulness(
        Faithfulness(np.array([0.2, 0.4]), np.array([0.1, 0.3])), Faithfulness(np.array([0.6]), np.array([0.5]))
    )
    assert isinstance(both, Utility)
    expected = {"deletion": 0.3, "insertion": 0.2, "native_deletion": 0.6, "native_insertion": 0.5}
    assert {name: both.to_dict()[name] for name in expected} == pytest.approx(expected)
