"""Exposure: which part of the data is found most, with intervals that hold, and who is found first."""

import json

import numpy as np
import pytest

from safexplain.audit import Policy
from safexplain.audit.report.root_cause import FEWEST_MEMBERS, by_slice, most_exposed
from safexplain.verdict.stats import clopper_pearson

POLICY = Policy(fpr=0.05, max_tpr=0.1)


def world(n=6000, seed=0, exposed=2.0):
    """Members of class 2 score higher by `exposed`; the other classes tell nothing."""
    rng = np.random.default_rng(seed)
    member, kind = rng.random(n) < 0.5, rng.integers(0, 4, n)
    return rng.normal(size=n) + exposed * (member & (kind == 2)), member, kind


def test_the_part_that_leaks_comes_first_and_the_others_are_at_chance():
    scores, member, kind = world()
    (table,) = by_slice(scores, member, {"class": kind}, POLICY)
    assert table.name == "class"
    assert table.rows[0].value == "2"
    assert table.rows[0].low > 0.3
    assert sorted(row.value for row in table.rows) == ["0", "1", "2", "3"]
    assert all(row.low < 0.05 < row.high for row in table.rows[1:])
    assert [row.rate for row in table.rows] == sorted((row.rate for row in table.rows), reverse=True)
    assert table.left_out == 0
    assert json.loads(json.dumps([table.to_dict()]))[0]["rows"][0]["rate"] == table.rows[0].rate


def test_the_counts_are_those_above_one_threshold_for_all():
    scores, member, kind = world(n=500)
    (table,) = by_slice(scores, member, {"class": kind}, POLICY)
    allowed = int(0.05 * (~member).sum())
    threshold = sorted(scores[~member], reverse=True)[allowed]  # strictly above it are as many as are allowed
    assert table.fpr == pytest.approx(allowed / (~member).sum())
    for row in table.rows:
        mine = kind == int(row.value)
        assert row.members == (mine & member).sum()
        assert row.found == sum(scores[mine & member] > threshold)
        assert row.non_members == (mine & ~member).sum()
        assert row.false_positives == sum(scores[mine & ~member] > threshold)
        assert (row.low, row.high) == clopper_pearson(row.found, row.members, 1 - 0.05 / 4)


def test_all_intervals_of_a_table_hold_together():
    """Coverage of the true rates at the realised threshold, at no leak and at a known one."""
    from scipy.stats import norm

    missed = 0
    for seed in range(100):
        scores, member, kind = world(n=800, seed=seed)
        (table,) = by_slice(scores, member, {"class": kind}, POLICY)
        allowed = int(0.05 * (~member).sum())
        threshold = np.sort(scores[~member])[::-1][allowed]
        truth = {str(c): norm.sf(threshold - 2.0 * (c == 2)) for c in range(4)}
        missed += not all(row.low <= truth[row.value] <= row.high for row in table.rows)
    assert missed <= 11  # 5 % of 100 and nearly three standard deviations


def test_parts_with_few_members_have_no_line():
    scores, member, _ = world(n=400)
    rare = np.where(np.arange(400) < 10, "rare", "common")
    (table,) = by_slice(scores, member, {"kind": rare}, POLICY)
    assert [row.value for row in table.rows] == ["common"]
    assert table.left_out == 1
    assert all(row.members >= FEWEST_MEMBERS for row in table.rows)
    (serial,) = by_slice(scores, member, {"id": np.arange(400)}, POLICY)
    assert (serial.rows, serial.left_out) == ((), 400)


def test_groups_count_once():
    """Fifty copies of everyone change nothing: neither rates nor intervals."""
    scores, member, kind = world(n=600)
    (alone,) = by_slice(scores, member, {"class": kind}, POLICY)
    copies = [np.repeat(a, 50) for a in (scores, member, kind, np.arange(600))]
    (table,) = by_slice(copies[0], copies[1], {"class": copies[2]}, POLICY, groups=copies[3])
    assert [r.members for r in table.rows] == [r.members for r in alone.rows]
    for row, one in zip(table.rows, alone.rows, strict=True):
        assert row.found == pytest.approx(one.found, abs=1.0)  # the threshold may lie among copies
        assert row.high - row.low == pytest.approx(one.high - one.low, abs=0.01)
    (wrong,) = by_slice(copies[0], copies[1], {"class": copies[2]}, POLICY)
    assert wrong.rows[0].high - wrong.rows[0].low < 0.3 * (alone.rows[0].high - alone.rows[0].low)


def test_the_most_exposed_are_the_members_that_score_highest():
    scores, member, _ = world(n=300)
    found = most_exposed(scores, member, 5)
    by_hand = sorted(np.flatnonzero(member), key=lambda i: -scores[i])[:5]
    assert [e.example for e in found] == by_hand
    assert [e.score for e in found] == [scores[i] for i in by_hand]
    assert [e.fpr for e in found] == [pytest.approx((scores[~member] >= scores[i]).mean()) for i in by_hand]
    assert len(most_exposed(scores, member, 1000)) == member.sum()
    at = np.arange(300) + 1000
    assert [e.example for e in most_exposed(scores, member, 5, at=at)] == [i + 1000 for i in by_hand]
    assert json.loads(json.dumps(found[0].to_dict())) == found[0].to_dict()
    tied = most_exposed(np.zeros(4), np.array([True, False, True, False]), 1)
    assert tied[0].fpr == 1.0


def test_the_share_of_non_members_counts_groups_once():
    scores, member = np.array([5.0, 4.0, 3.0, 3.0, 0.0]), np.array([False, True, False, False, False])
    assert most_exposed(scores, member, 1)[0].fpr == 0.25
    assert most_exposed(scores, member, 1, groups=np.array([0, 1, 2, 2, 3]))[0].fpr == pytest.approx(1 / 3)
    assert most_exposed(scores, member, 1, groups=np.array([0, 1, 0, 0, 0]))[0].fpr == pytest.approx(0.25)
