"""Pieces: a model that was explained is not explained again, and what is taken up is what would have been found."""

import tempfile
import threading

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import Dither, Population, Shadows, Signals, collect_signals
from safexplain.audit.answers import ExplainModel
from safexplain.audit.signals import are_stored, blocks, on_disk, parts, windows
from safexplain.errors import InputError

MEMBER = np.random.default_rng(0).random((4, 30)) < 0.5
POOL = Population(torch.randn(30, 2, 3, generator=torch.Generator().manual_seed(9)), torch.arange(30) % 3)


class Linear(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x):
        return x.flatten(1) @ self.weight


SHADOWS = Shadows(tuple(Linear(s) for s in range(4)), MEMBER)
ASKED = []


def explain(model, x, target):
    log = globals()["ASKED"]  # read so, it is no part of what the function depends on
    log.append(model)
    return x * model.weight.T[target].reshape(x.shape)


def collect(store, function=explain, shadows=SHADOWS, pool=POOL, **options):
    """Signals, and which models were explained for them."""
    ASKED.clear()
    given = {"patience": (1, 3), "dither": Dither(), "largest_maps": 0, "store": store, **options}
    found = collect_signals(shadows, pool, function, **given)
    return found, {shadows.models.index(model) for model in ASKED}


def interrupted(store, models, monkeypatch, **options):
    """Collecting that ends after so many models."""
    whole, calls = ExplainModel.__call__, []

    def dying(self, *args, **kwargs):
        if len(calls) == models:
            raise KeyboardInterrupt
        calls.append(self.name)
        return whole(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(ExplainModel, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            collect(store, **options)


def assert_equal(one, other):
    assert one.values.keys() == other.values.keys()
    assert dict(one.meta) == dict(other.meta)
    assert all(np.array_equal(one.values[name], other.values[name]) for name in one.values)
    assert np.array_equal(one.attributions, other.attributions)
    assert type(one.attributions) is type(other.attributions)


@pytest.mark.parametrize("largest", [0, 2**30])
def test_an_interrupted_run_explains_only_what_is_missing_and_finds_the_same(largest, tmp_path, monkeypatch):
    expected, asked = collect(None, largest_maps=largest)
    assert asked == {0, 1, 2, 3}
    interrupted(tmp_path, 2, monkeypatch, largest_maps=largest)
    told = []
    found, asked = collect(tmp_path, largest_maps=largest, progress=lambda *call: told.append(call))
    assert asked == {2, 3}
    assert_equal(found, expected)
    told = [done for stage, done, total, *_ in told if stage == "explaining"]
    assert told == sorted(told)
    assert collect(tmp_path, largest_maps=largest)[1] == set()


def test_maps_that_are_too_large_go_to_disk_and_say_the_same():
    here, _ = collect(None, largest_maps=2**30)
    there, _ = collect(None, largest_maps=4 * 4 * 30 * 6 * 2 - 1)
    least, _ = collect(None, largest_maps=4 * 4 * 30 * 6 * 2)
    assert not are_stored(here.attributions)
    assert not are_stored(least.attributions)
    for name, maps in there.on_disk.items():
        own = here.attributions if name == "attributions" else here.values[name]
        assert np.array_equal(maps, own)
    assert sorted(there.on_disk) == ["attributions", "attributions@3"]
    summaries = [name for name in here.values if name not in there.on_disk]
    assert all(np.array_equal(here.values[name], there.values[name]) for name in summaries)
    assert here.meta == there.meta


@pytest.mark.parametrize(
    "other",
    [
        {"shadows": Shadows((*SHADOWS.models[:3], Linear(99)), MEMBER)},
        {"dither": Dither(seed=1)},
        {"patience": (1, 4)},
        {"function": lambda model, x, target: 2 * explain(model, x, target)},
        {"without_noise": lambda model, x, target: explain(model, x, target) / 2, "targets": (0,)},
    ],
    ids=lambda other: "+".join(other),
)
def test_what_was_made_otherwise_is_not_taken_up(other, tmp_path):
    collect(tmp_path)
    expected, _ = collect(None, **other)
    found, asked = collect(tmp_path, **other)
    changed = {3} if "shadows" in other else {1, 2, 3} if "targets" in other else {0, 1, 2, 3}
    assert asked == changed
    assert_equal(found, expected)


def test_a_damaged_piece_is_made_again(tmp_path):
    expected, _ = collect(tmp_path)
    path = sorted(p for p in tmp_path.iterdir() if p.suffix == ".npz")[1]
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    found, asked = collect(tmp_path)
    assert len(asked) == 1
    assert_equal(found, expected)


def test_what_cannot_be_told_is_explained_each_time_and_leaves_nothing(tmp_path):
    lock = threading.Lock()

    def unknown(model, x, target):
        with lock:
            return explain(model, x, target)

    for _ in range(2):
        found, asked = collect(tmp_path, unknown)
        assert asked == {0, 1, 2, 3}
        assert are_stored(found.attributions)
    assert not any(tmp_path.iterdir())


def test_maps_that_do_not_fit_on_the_disk_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("safexplain.audit.signals.free_space", lambda folder: 100)
    with pytest.raises(InputError, match="set TMPDIR to a larger disk"):
        collect(None)


def test_parts_of_maps_on_disk_are_those_of_maps_in_memory(tmp_path):
    here = np.random.default_rng(0).random((3, 11, 4)).astype(np.float32)
    there = on_disk(here.shape, tmp_path)
    there[:] = here
    assert [(i, part) for i, part, _ in blocks(there, 12)] == [(i, part) for i in range(3) for part in parts(11, 4, 12)]
    assert all(np.array_equal(found, here[i, part]) for i, part, found in blocks(there, 12))
    models = np.array([2, 0])
    for first, found in windows(there, models, 5):
        assert np.array_equal(found, here[models, first : first + 5])
        assert not are_stored(found)


def test_maps_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match=r"NaN or infinite"):
        collect(None, lambda model, x, target: x.double() * 1e300)


def test_saved_signals_leave_large_maps_out_and_say_so(tmp_path):
    found, _ = collect(None)
    found.save(tmp_path / "signals.npz")
    again = Signals.load(tmp_path / "signals.npz")
    assert again.attributions is None
    assert again.meta["left_out"] == {"attributions": [4, 30, 6], "attributions@3": [4, 30, 6]}
    assert again.values.keys() == found.values.keys() - {"attributions@3"}


def test_signals_with_large_maps_are_read_model_by_model_from_a_file(tmp_path, monkeypatch):
    here, _ = collect(None, largest_maps=2**30)
    here.save(tmp_path / "signals.npz")
    monkeypatch.setattr("safexplain.audit.signals.LARGEST_MAPS", 4 * 4 * 30 * 6 * 2 - 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    there = Signals.load(tmp_path / "signals.npz")
    assert sorted(there.on_disk) == ["attributions", "attributions@3"]
    for name, maps in there.on_disk.items():
        assert np.array_equal(maps, here.attributions if name == "attributions" else here.values[name])
    assert np.array_equal(there.values["l1@3"], here.values["l1@3"])
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("harm", ["not finite", "order"])
def test_large_maps_of_a_stranger_that_cannot_be_read_are_refused(harm, tmp_path, monkeypatch):
    monkeypatch.setattr("safexplain.audit.signals.LARGEST_MAPS", 0)
    maps = np.random.default_rng(0).random((4, 30, 6))
    maps[2, 3, 1] = 1e300 if harm == "not finite" else 1.0
    maps = np.asfortranarray(maps) if harm == "order" else maps
    np.savez(tmp_path / "signals.npz", membership=MEMBER, attributions=maps)
    said = {"not finite": "NaN or infinite", "order": "Fortran"}[harm]
    with pytest.raises(InputError, match=said):
        Signals.load(tmp_path / "signals.npz")
