"""Maps on disk: they keep what they are, are read like arrays, and no attack can tell them from arrays."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from safexplain.audit import Policy, Signals, certify
from safexplain.audit.attacks import likelihood
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import fitting
from safexplain.audit.holdout_uses import _values_digest
from safexplain.audit.root_cause import root_cause
from safexplain.audit.signals import side_by_side
from safexplain.audit.splits import Splits
from safexplain.audit.storage import maps as storage
from safexplain.audit.storage.maps import MapFiles, StoredMaps, blocks, joined, packed, unpacked, write_maps
from safexplain.errors import InputError

RNG = np.random.default_rng(3)


def stored(maps, folder, name="maps"):
    """(m, n, d) maps on disk."""
    paths = tuple(folder / f"{name}-{i}.npy" for i in range(len(maps)))
    for path, each in zip(paths, maps, strict=True):
        write_maps(path, packed(np.asarray(each, np.float32)))
    return StoredMaps((MapFiles(paths, *maps.shape[1:]),))


@pytest.mark.parametrize("size", [1.0, 1e-12, 3e-36, 1e30])
def test_a_map_of_any_size_keeps_eleven_bits_of_every_entry(size):
    maps = (RNG.standard_normal((50, 300)) * 10.0 ** RNG.uniform(-8, 0, (50, 300)) * size).astype(np.float32)
    maps[::7, 5] = 0
    found, largest = unpacked(packed(maps)), np.abs(maps).max(1, keepdims=True)
    kept = np.abs(maps) > 2.0**-29 * largest
    assert kept.mean() > 0.9
    bound = np.maximum(2.0**-11 * np.abs(maps), 2.0**-39 * largest) * (1 + 1e-5) + 2e-45
    assert (np.abs(found - maps) <= bound).all()
    assert np.array_equal(np.sign(found[kept]), np.sign(maps[kept]))
    assert found.dtype == np.float32


def test_plain_float16_would_lose_such_maps_and_this_does_not():
    maps = (RNG.standard_normal((4, 100)) * 1e-12).astype(np.float32)
    assert not maps.astype(np.float16).any()
    assert np.allclose(unpacked(packed(maps)), maps, rtol=6e-4, atol=0)


def test_zeros_stay_zeros_and_the_smallest_numbers_stay_finite():
    maps = np.zeros((3, 4), np.float32)
    maps[1], maps[2, 0] = 1e-45, np.finfo(np.float32).max
    found = unpacked(packed(maps))
    assert np.array_equal(found[0], maps[0])
    assert (found[1] > 0).all()
    assert found[2, 0] == maps[2, 0]


KEYS = (
    0,
    -1,
    (2, 3),
    (1, slice(2, 9)),
    (slice(None), slice(0, 40, 7)),
    (np.array([3, 0]), slice(4, 6)),
    (slice(1, 3), np.array([5, 5, -1])),
    (1, np.arange(11) % 4 == 0),
    np.ix_([0, 3, 1], [9, 2]),
    (np.array([3, 0, 3, 1]), np.array([1, 1, 8, 10])),
    (0, np.array([], int)),
    (slice(None), slice(None), 2),
    np.array([True, False, True, False]),
    slice(None),
)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("sides", [1, 2])
def test_they_are_indexed_like_an_array(key, sides, tmp_path):
    whole = RNG.standard_normal((4, 11, 5)).astype(np.float32)
    cut = [whole] if sides == 1 else [whole[:, :4], whole[:, 4:]]
    lying = joined([stored(part, tmp_path, str(i)) for i, part in enumerate(cut)])
    expected = np.stack([unpacked(packed(each)) for each in whole])
    assert (lying.shape, lying.ndim, lying.dtype, len(lying), lying.size) == ((4, 11, 5), 3, np.float32, 4, 220)
    assert lying.nbytes == sum(path.stat().st_size - 128 for side in lying.sides for path in side.paths)
    found = lying[key]
    assert found.dtype == np.float32
    assert np.array_equal(found, expected[key])
    put = np.zeros_like(expected)
    for model, part, each in blocks(lying, 15):
        assert len(each) <= 3
        put[model, part] = each
    assert np.array_equal(put, expected)


def test_wrong_indices_are_refused(tmp_path):
    lying = stored(np.ones((2, 3, 4)), tmp_path)
    for key in (2, (0, 3), (0, -4), (0, 1.5), (0, np.ones(4, bool)), (0, 0, 0, 0)):
        with pytest.raises(IndexError):
            lying[key]
    with pytest.raises(InputError, match="as many models"):
        joined([lying, stored(np.ones((2, 3, 5)), tmp_path, "other")])
    with pytest.raises(InputError, match="beside others on disk"):
        joined([lying, np.ones((2, 3, 4))])


def test_nothing_reads_all_of_them_by_mistake(tmp_path, monkeypatch):
    lying = stored(np.ones((3, 10, 4)), tmp_path)
    monkeypatch.setattr(storage, "LARGEST_READ", 100)
    for read in (np.asarray, np.isfinite, lambda maps: maps[:], lambda maps: maps[[0, 1, 2]], lambda maps: maps * 1.0):
        with pytest.raises((InputError, TypeError), match=r"at a time|unsupported operand"):
            read(lying)
    assert lying[0].shape == (10, 4)


def test_a_file_that_is_gone_or_another_one_is_said(tmp_path):
    lying = stored(np.ones((2, 3, 4)), tmp_path)
    write_maps(lying.sides[0].paths[0], packed(np.ones((3, 5), np.float32)))
    with pytest.raises(InputError, match="not hold the maps that were written"):
        lying[0]
    lying.sides[0].paths[1].unlink()
    with pytest.raises(InputError, match="explain the models again"):
        lying[1]


def test_files_go_with_the_last_that_refers_to_them_where_that_was_asked_for(tmp_path):
    for temporary in (False, True):
        lying = stored(np.ones((2, 3, 4)), tmp_path)
        if temporary:
            lying.sides[0].delete_in_the_end()
        other = joined([lying, stored(np.ones((2, 1, 4)), tmp_path, "other")])
        paths = lying.sides[0].paths
        del lying
        gc.collect()
        assert all(path.exists() for path in paths)
        del other
        gc.collect()
        assert all(path.exists() != temporary for path in paths)


def pair(folder, seed=0, d=12):
    """The same signals twice: their maps in memory, and on disk."""
    rng, m, n = np.random.default_rng(seed), 10, 240
    member = rng.random((m, n)) < 0.5
    outside = np.zeros(n, bool)
    outside[-40:] = True
    member[:, outside] = False
    maps = {}
    for name in ("attributions", "attributions@5"):
        a = rng.standard_normal((1, n, d)) + 0.7 * rng.standard_normal((m, n, d)) + 0.8 * member[..., None]
        maps[name] = np.stack([unpacked(packed(each.astype(np.float32))) for each in a])
    values = {"label": rng.integers(0, 3, (m, n)).astype(float), "kept@5": rng.integers(0, 6, (m, n)) / 5}
    values |= {"l1": np.abs(maps["attributions"]).sum(2), "l1@5": np.abs(maps["attributions@5"]).sum(2)}
    about = {"targets": [0, 4], "shape": [3, 2, 2] if d == 12 else [d]}
    beside = {"out_of_distribution": outside, "examples": rng.integers(0, 2**60, n, dtype=np.uint64)}
    lying = {name: stored(a, folder, name) for name, a in maps.items()}
    here, there = (
        Signals(member, {**values, "attributions@5": a["attributions@5"]}, a["attributions"], about, **beside)
        for a in (maps, lying)
    )
    return here, there


POLICY = Policy(patience=(1, 5), uncounted=True)


@pytest.fixture
def tiny(monkeypatch):
    """Blocks of a few maps, and no more maps at once than these."""
    monkeypatch.setattr(storage.windows, "__defaults__", (4000,))
    monkeypatch.setattr(storage.blocks, "__defaults__", (600,))
    monkeypatch.setattr(likelihood, "CHUNK", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def test_every_attack_on_maps_scores_those_on_disk_as_those_in_memory(tmp_path, tiny):
    here, there = pair(tmp_path)
    assert fitting(there, POLICY) == fitting(here, POLICY)
    rows = [row for row in fitting(here, POLICY) if "attributions" in row.signal and not row.columns]
    assert len(rows) == 5
    training = Splits.of(here, POLICY, trains=True).training
    one, other = (Scorer(s, rows, target=4, training=training, seed=1) for s in (here, there))
    for model in (4, 5):
        for row, a, b in zip(rows, one.scores(model), other.scores(model), strict=True):
            assert np.array_equal(a, b), row


def test_what_takes_hours_says_how_far_it_is(tmp_path, tiny, monkeypatch):
    here, there = pair(tmp_path)
    monkeypatch.setattr(likelihood, "SILENT", 10 * 12 * 60)
    rows = [row for row in fitting(here, POLICY) if row.signal.startswith("attributions:") and not row.columns]
    told = []
    nobody = np.zeros(len(here), bool)
    Scorer(there, rows, target=4, training=nobody, progress=lambda *call: told.append(call))
    done = [call[1] for call in told]
    assert done == sorted(done)
    assert len(done) == len(rows) * (1 + 2 * 3)
    assert told[0] == ("fitting attacks", pytest.approx(60 / 240 / 2, abs=0.01), len(rows), "attributions:sign")
    assert told[-1] == ("fitting attacks", len(rows), len(rows))


@pytest.mark.parametrize("suite", [("LikelihoodRatio",), pytest.param((), marks=pytest.mark.slow)], ids=str)
def test_a_verdict_and_its_controls_are_those_of_maps_in_memory(suite, tmp_path, tiny):
    here, there = (certify(s, replace(POLICY, suite=suite), seed=2) for s in pair(tmp_path))
    assert here.to_dict() == there.to_dict()
    assert suite or {"Learned", "LearnedElsewhere", "Stacked"} <= {a.name for a in here.attacks}


def test_the_root_cause_is_that_of_maps_in_memory(tmp_path):
    here, there = pair(tmp_path)
    assert root_cause(here) == root_cause(there)


def test_the_digest_of_what_was_released_is_that_of_maps_in_memory(tmp_path):
    here, there = pair(tmp_path)
    assert _values_digest(here) == _values_digest(there)


def test_pools_stand_side_by_side_on_disk_as_in_memory(tmp_path):
    pairs = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        pairs.append(pair(tmp_path / str(i), i))
    here, there = (side_by_side(parts) for parts in zip(*pairs, strict=True))
    assert isinstance(there.attributions, StoredMaps)
    assert np.array_equal(there.attributions, here.attributions)
    assert np.array_equal(there.values["attributions@5"], here.values["attributions@5"])
