"""Splits: by what an example is, never by where it stands; what belongs together stays together."""

from dataclasses import replace

import numpy as np
import pytest

from safexplain.audit import Policy, Signals
from safexplain.audit.controls.splits import Splits, copies_together, refuse_copies, spread
from safexplain.errors import InputError

THREE = Policy(selection=0.2, training=0.3)
N = 4000
RNG = np.random.default_rng(0)
HASHES = RNG.integers(2**64, size=N, dtype=np.uint64)
SETS = ("selection", "training", "certification")


def signals(n=N, examples=HASHES, models=3, seed=0, **fields):
    member = np.random.default_rng(seed).random((models, n)) < 0.5
    return Signals(member, {"l1": np.ones((models, n))}, examples=examples, **fields)


def taken(of, rows):
    """The signals of some rows, in that order."""
    columns = {name: None if (a := getattr(of, name)) is None else a[rows] for name in ("groups", "examples")}
    return Signals(of.membership[:, rows], {"l1": of.values["l1"][:, rows]}, meta=of.meta, **columns)


def which(splits):
    """(n,) 0 selection, 1 training, 2 certification, -1 none."""
    found = np.full(len(splits.selection), -1)
    for i, name in enumerate(SETS):
        assert (found[getattr(splits, name)] == -1).all()  # disjoint
        found[getattr(splits, name)] = i
    return found


def test_each_set_holds_about_its_share():
    sizes = Splits.of(signals(), THREE, trains=True).sizes
    expected = {"selection": 800, "training": 1200, "certification": 2000}
    assert sum(sizes.values()) == N
    assert all(abs(sizes[name] - size) < 4 * size**0.5 for name, size in expected.items())
    assert Splits.of(signals(), THREE, trains=False).sizes["training"] == 0
    assert Splits.of(signals(), Policy(training=0.0), trains=True).sizes["certification"] == N


def test_order_missing_rows_membership_and_models_move_no_example():
    base = which(Splits.of(signals(), THREE, trains=True))
    order = np.random.default_rng(1).permutation(N)
    assert np.array_equal(which(Splits.of(taken(signals(), order), THREE, trains=True)), base[order])
    kept = np.delete(np.arange(N), [0, 17, 3999])
    assert np.array_equal(which(Splits.of(taken(signals(), kept), THREE, trains=True)), base[kept])
    other = signals(models=9, seed=1, meta={"subject": "another", "population": "ab", "targets": [4]})
    assert np.array_equal(which(Splits.of(other, THREE, trains=True)), base)


def test_inputs_are_hashed_where_there_are_no_hashes():
    x = RNG.normal(size=(N, 3))
    base = which(Splits.of(signals(examples=None, inputs=x), THREE, trains=True))
    assert np.array_equal(which(Splits.of(signals(examples=None, inputs=x[::-1]), THREE, trains=True)), base[::-1])


def test_the_spread_is_one_to_one_and_the_published_function():
    assert len(np.unique(spread(np.arange(100_000, dtype=np.uint64)))) == 100_000
    # first outputs of SplitMix64 seeded with 0 and with 1234567, as reference implementations give them
    assert int(spread(np.array([0], np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert int(spread(np.array([1234567], np.uint64))[0]) == 6457827717110365317


@pytest.mark.parametrize("examples", [HASHES, None])
def test_groups_stay_together(examples):
    groups = np.random.default_rng(2).integers(0, 600, N)
    found = which(Splits.of(signals(examples=examples, groups=groups), THREE, trains=True))
    assert all(len(set(found[groups == g])) == 1 for g in np.unique(groups))
    assert set(found) == {0, 1, 2}
    sizes = np.bincount(found) / N
    assert np.abs(sizes - (0.2, 0.3, 0.5)).max() < 0.07


def test_groups_with_copies_of_each_other_are_one():
    groups, copied = np.arange(N) // 4, HASHES.copy()
    copied[4::8] = copied[:N:8]  # the first of every second group is a copy of the first of the group before
    found = which(Splits.of(signals(examples=copied, groups=groups), THREE, trains=True))
    assert all(len(set(found[i : i + 8])) == 1 for i in range(0, N, 8))
    everyone = Signals(np.ones((1, N), bool), {"l1": np.ones((1, N))}, examples=copied, groups=groups)
    together = copies_together(everyone)[0]
    assert np.array_equal(which(Splits.of(together, THREE, trains=True)), found)


def test_other_groups_do_not_move_when_one_loses_an_example():
    groups = np.arange(N) // 5
    base = which(Splits.of(signals(groups=groups), THREE, trains=True))
    kept = np.delete(np.arange(N), np.arange(0, N, 50))
    found = which(Splits.of(taken(signals(groups=groups), kept), THREE, trains=True))
    whole = np.isin(groups[kept], np.flatnonzero(np.bincount(groups[kept]) == 5))
    assert np.array_equal(found[whole], base[kept][whole])
    relabelled = signals(groups=1000 - groups)
    assert np.array_equal(which(Splits.of(relabelled, THREE, trains=True)), base)


def test_examples_of_another_source_are_in_no_set():
    outside = np.arange(N) >= 3000
    calm = signals()
    member = calm.membership & ~outside
    for examples in (HASHES, None):
        found = Splits.of(
            replace(calm, membership=member, out_of_distribution=outside, examples=examples), THREE, trains=True
        )
        assert np.array_equal(which(found) == -1, outside)


def test_without_hashes_the_shares_are_exact_and_no_seed_draws_another_split():
    plain = signals(examples=None)
    splits = Splits.of(plain, THREE, trains=True)
    assert splits.sizes == {"selection": 800, "training": 1200, "certification": 2000}
    leaking = replace(plain, values={"l1": plain.membership * 1.0})
    assert np.array_equal(which(Splits.of(leaking, THREE, trains=True)), which(splits))
    assert not np.array_equal(which(Splits.of(signals(examples=None, seed=1), THREE, trains=True)), which(splits))


def with_copies(member, pairs, **fields):
    """Two targets, one example twice for each pair."""
    hashes = np.arange(member.shape[1], dtype=np.uint64)
    for a, b in pairs:
        hashes[b] = hashes[a]
    return Signals(member, {"l1": np.ones(member.shape)}, examples=hashes, **fields)


SIDES = np.array([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1]], dtype=bool)


def test_a_member_that_is_a_copy_of_a_non_member_is_refused():
    with pytest.raises(InputError, match=r"1 members are exact copies of 1 non-members \(examples 0 and 5\).*Keep one"):
        copies_together(with_copies(SIDES, [(0, 5)], meta={"targets": [0]}))
    both = with_copies(SIDES, [(0, 1)])
    with pytest.raises(InputError, match="examples 1 and 0"):
        copies_together(both)  # they are on one side of the first target only
    assert copies_together(replace(both, meta={"targets": [0]}))[1].numbers == {"copies": 1.0}
    many = np.repeat([[True, False]], 100, axis=0).reshape(1, 200)
    with pytest.raises(InputError, match=r"100 members .* 100 non-members \(examples 0 and 1, .*, 8 and 9, \.\.\.\)"):
        copies_together(with_copies(many, [(i, i + 1) for i in range(0, 200, 2)]))


def test_equal_inputs_are_found_without_hashes():
    x = np.arange(6.0)[:, None]
    x[5] = x[0]
    with pytest.raises(InputError, match="examples 0 and 5"):
        copies_together(Signals(SIDES, {"l1": np.ones((2, 6))}, inputs=x))


def test_copies_of_examples_from_another_source_do_not_matter():
    outside = np.arange(6) == 5
    found, _ = copies_together(
        with_copies(SIDES & ~outside, [(0, 5)], meta={"targets": [0]}, out_of_distribution=outside)
    )
    assert found.groups is not None
    refuse_copies(np.zeros(6, np.uint64), np.zeros(6, bool))  # all on one side


def test_copies_on_one_side_count_as_one_example():
    found, says = copies_together(with_copies(SIDES, [(0, 1), (3, 4)], meta={"targets": [0]}))
    assert len(np.unique(found.groups)) == 4
    assert found.groups[0] == found.groups[1]
    assert found.groups[3] == found.groups[4]
    assert says.failed is False
    assert "2 examples are exact copies" in says.says
    # 0 and 1 are copies, 1 and 2 of one person, 2 and 3 too: all are together
    groups = np.array([9, 5, 5, 7, 7, 1])
    found, _ = copies_together(with_copies(SIDES, [(0, 1), (2, 2)], meta={"targets": [0]}, groups=groups))
    assert found.groups[0] == found.groups[1] == found.groups[2]
    assert len(np.unique(found.groups)) == 3


def test_signals_without_copies_are_left_as_they_are():
    plain = signals()
    assert copies_together(plain)[0] is plain
    assert (copies_together(plain)[1].failed, copies_together(plain)[1].numbers) == (False, {"copies": 0.0})
    blind = signals(examples=None)
    found, says = copies_together(blind)
    assert found is blind
    assert says.failed is None
    assert "cannot be looked for" in says.says
