"""Pools side by side: audits of disjoint pools become one."""

from __future__ import annotations

import numpy as np
import pytest

from safexplain.audit import Signals
from safexplain.audit.signals import side_by_side
from safexplain.errors import InputError

RNG = np.random.default_rng(0)
MEMBER = RNG.random((3, 40)) < 0.5
L1 = RNG.random((3, 40))
MAPS = RNG.normal(size=(3, 40, 5)).astype(np.float32)
INPUTS = RNG.normal(size=(40, 2, 3)).astype(np.float32)
OUTSIDE = np.arange(40) >= 30


def signals(**changes):
    return Signals(**{"membership": MEMBER, "values": {"l1": L1, "loss": L1 * 2}, "attributions": MAPS, **changes})


def test_audits_of_disjoint_pools_stand_side_by_side():
    other = signals(
        membership=~MEMBER[:, :10], values={"l1": L1[:, :10] + 1, "loss": L1[:, :10]}, attributions=MAPS[:, 5:15]
    )
    together = side_by_side([signals(meta={"targets": [0]}), Signals(**{**vars(other), "meta": {"targets": [0]}})])
    assert len(together) == 50
    assert together.targets == (0,)
    assert np.array_equal(together.membership, np.hstack([MEMBER, ~MEMBER[:, :10]]))
    assert np.array_equal(together.values["l1"], np.hstack([L1, L1[:, :10] + 1]))
    assert np.array_equal(together.attributions[:, 40:], MAPS[:, 5:15])
    assert side_by_side([signals(attributions=None)] * 2).attributions is None


def test_all_that_belongs_to_examples_follows_them():
    inside, trained = MEMBER & ~OUTSIDE, np.array([[True], [True], [False]])
    several = {"l1": L1, "class_l1": np.stack([L1, -L1], axis=2)}
    meta = {"null": [2], "shape": [1, 5], "data": "a"}
    one = signals(membership=inside & trained, values=several, inputs=INPUTS, out_of_distribution=OUTSIDE, meta=meta)
    other = signals(membership=MEMBER & trained, values=several, inputs=INPUTS + 1, meta={**meta, "data": "b"})
    together = side_by_side([one, other])
    assert np.array_equal(together.inputs, np.concatenate([INPUTS, INPUTS + 1]))
    assert np.array_equal(together.out_of_distribution, np.concatenate([OUTSIDE, np.zeros(40, bool)]))
    assert together.values["class_l1"].shape == (3, 80, 2)
    assert np.array_equal(together.values["class_l1"][:, 40:], several["class_l1"])
    assert together.null == (2,)
    assert together.shape == (1, 5)
    assert together.meta == {**meta, "mixture": 2}
    assert side_by_side([signals(), signals()]).out_of_distribution is None
    assert side_by_side([signals(), signals()]).inputs is None


def test_groups_of_different_pools_are_different_groups_and_the_mixture_is_named():
    groups, region, hashes = np.repeat([7, 3], 20), np.array(["a", "b"] * 20), np.arange(40, dtype=np.uint64)
    grouped = signals(groups=groups, slices={"region": region}, examples=hashes)
    together = side_by_side([grouped, signals(slices={"region": region}, examples=hashes + 40), grouped])
    assert len(np.unique(together.groups)) == 2 + 40 + 2
    for part in (slice(0, 40), slice(80, 120)):
        own = together.groups[part]
        assert np.array_equal(own[:, None] == own[None], groups[:, None] == groups[None])
    assert np.array_equal(together.slices["region"], np.tile(region, 3))
    assert np.array_equal(together.examples, np.concatenate([hashes, hashes + 40, hashes]))
    assert together.meta["mixture"] == 3
    assert side_by_side([together, grouped]).meta["mixture"] == 4
    assert "mixture" not in side_by_side([grouped]).meta
    assert side_by_side([grouped, signals(slices={"region": region})]).examples is None
    assert side_by_side([signals(), signals()]).groups is None


@pytest.mark.parametrize(
    ("digests", "joined"), [(["aa", "bb", "cc"], "aa+bb+cc"), (["aa"], "aa"), (["aa", None], None)]
)
def test_the_digests_of_the_populations_are_joined(digests, joined):
    parts = [signals(meta={} if d is None else {"population": d}) for d in digests]
    assert side_by_side(parts).meta.get("population") == joined


@pytest.mark.parametrize(
    "other",
    [
        signals(membership=MEMBER[:2], values={"l1": L1[:2], "loss": L1[:2]}, attributions=MAPS[:2]),
        signals(values={"l1": L1}),
        signals(values={"l1": L1, "l2": L1}),
        signals(attributions=None),
        signals(attributions=MAPS[..., :4]),
        signals(values={"l1": L1, "loss": L1[..., None]}),
        signals(inputs=INPUTS),
        signals(membership=MEMBER & False, meta={"null": [0], "targets": [0, 1, 2]}),
        signals(meta={"shape": [5]}),
        signals(meta={"targets": [0]}),
        signals(slices={"region": np.arange(40)}),
    ],
)
def test_audits_that_differ_do_not_stand_side_by_side(other):
    with pytest.raises(InputError, match="side by side"):
        side_by_side([signals(), other])
