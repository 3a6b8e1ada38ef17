"""What an attack finds more than another: counting by hand, identities, and error rates by simulation both ways."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain._validate import from_table
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats import paired as module
from safexplain.verdict.stats.paired import (
    PairedCounts,
    count_pairs,
    difference_bounds,
    lower_limits,
    rank_at,
    window_ranks,
)
from safexplain.verdict.thresholds import by_score, lower_bound_rank, upper_bound_rank, weights_of


def shift_of(tpr, fpr):
    return distributions.norm.isf(fpr) - distributions.norm.isf(tpr)


def drawn(seed, members, others, fpr, tpr, base_tpr, alike, jump=None, share=0.05):
    """Scores of an attack and a baseline with these true rates: normal, or with a jump of one curve at `fpr`.

    "attack": a share of the members, not found, stands just outside of what the attack finds. "baseline": a share of
    those that the baseline finds stands just inside. "both": both, of different members.
    """
    rng = np.random.default_rng([8, seed])
    base = rng.normal(size=members + others)
    scores = alike * base + (1 - alike**2) ** 0.5 * rng.normal(size=members + others)
    member, edge = np.arange(members + others) < members, distributions.norm.isf(fpr)
    moved = (rng.random(members + others) < share) & member
    left = shift_of(tpr / (1 - share) if jump in ("attack", "both") else tpr, fpr)
    right = shift_of((base_tpr - share) / (1 - share) if jump in ("baseline", "both") else base_tpr, fpr)
    scores, base = scores + left * member, base + right * member
    if jump in ("attack", "both"):
        scores[moved] = edge - 1e-6
    if jump in ("baseline", "both"):
        moved = (rng.random(members + others) < share) & member
        base[moved] = edge + 1e-6
    return scores, base, member


def counted(seed, *setting, **more):
    scores, base, member = drawn(seed, *setting, **more)
    return count_pairs(by_score(scores, seed), by_score(base, seed), member, setting[2])


def stacked(all_counts):
    names = ("only", "missed", "non_member_only", "non_member_missed", "attack_window", "baseline_window")
    return [np.array([getattr(c, n) for c in all_counts]) for n in names]


def swapped(c):
    return PairedCounts(c.missed, c.only, c.non_member_missed, c.non_member_only, c.baseline_window, c.attack_window)


def slow_counts(scores, base, member, fpr, weights):
    """By sorted lists and sums."""
    others = round(sum(w for w, m in zip(weights, member, strict=True) if not m))
    k, accepted, windows = rank_at(others, fpr), [], []
    for s in (scores, base):
        order = sorted(range(len(s)), key=lambda i: -s[i])

        def above(rank, order=order):
            found, outside = [], 0.0
            for i in order:
                outside += 0.0 if member[i] else weights[i]
                if rank <= 0 or (not member[i] and outside >= rank - 1e-9):
                    return found, i
                found.append(i)
            return found, None

        windows.append([sum(weights[i] for i in above(r)[0] if member[i]) for r in window_ranks(others, fpr)])
        found, last = above(k)
        accepted.append({*found, last})
    only, missed = accepted[0] - accepted[1], accepted[1] - accepted[0]
    sums = [sum(weights[i] for i in s if member[i] == side) for side in (True, False) for s in (only, missed)]
    return sums, windows


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.2, 0.6]), st.booleans())
def test_pairs_are_counted_as_by_hand(seed, fpr, grouped):
    rng = np.random.default_rng(seed)
    member, of = rng.random(80) < 0.5, rng.integers(25, size=80)
    scores, base = rng.permutation(80).astype(float), rng.permutation(80).astype(float)
    weights = weights_of(member, of if grouped else None)
    found = count_pairs(by_score(scores), by_score(base), member, fpr, weights if grouped else None)
    sums, windows = slow_counts(scores, base, member, fpr, weights)
    assert [found.only, found.missed, found.non_member_only, found.non_member_missed] == pytest.approx(sums)
    assert found.attack_window == pytest.approx(windows[0])
    assert found.baseline_window == pytest.approx(windows[1])
    units = [round(weights[side].sum()) for side in (member, ~member)]
    found.check(*units, fpr)
    assert from_table(PairedCounts, asdict(found), "pair") == found


@pytest.mark.parametrize(
    ("n", "fpr"), [(1, 0.4), (3, 0.05), (40, 0.01), (1000, 0.001), (1000, 0.05), (30_000, 0.01), (30_000, 0.4)]
)
def test_the_ranks_that_are_kept_hold_the_true_one(n, fpr):
    ranks, k = window_ranks(n, fpr), rank_at(n, fpr)
    assert 1 <= k <= n
    assert abs(k - fpr * (n + 1)) <= 0.5 or k in (1, n)
    assert k in ranks
    assert list(ranks) == sorted(set(ranks))
    assert len(ranks) <= 2 * module.STEPS + 1
    assert ranks[0] <= max(lower_bound_rank(n, fpr, 1e-4)[0], 1)
    assert ranks[-1] >= min(upper_bound_rank(n, fpr, 1e-4) or n, n)


def test_the_threshold_has_the_rank_nearest_the_rate_of_all_that_there_are():
    assert [rank_at(n, 0.4) for n in (1, 2, 3, 5)] == [1, 1, 2, 2]  # 0.8, 1.2, 1.6 and 2.4
    assert (rank_at(3, 0.05), rank_at(1, 0.9)) == (1, 1)
    assert window_ranks(9, 0.2) == tuple(range(10))


def test_sums_of_shares_that_are_nearly_whole_numbers_are_whole_numbers():
    """Ten thousand groups of seven non-members each, in order: a rank is reached with the last of a group."""
    member = np.r_[np.zeros(70_000, dtype=bool), True]
    weights, order = np.r_[np.full(70_000, 1 / 7), 1.0], np.arange(70_001)
    counts = count_pairs(order, np.roll(order, 1), member, 0.1, weights)
    assert (counts.only, counts.missed, counts.non_member_only) == (0.0, 1.0, 0.0)
    ranks = window_ranks(10_000, 0.1)
    for rank in ranks:
        place = np.r_[order[: 7 * rank], 70_000, order[7 * rank : -1]]  # the member just after the last of the group
        assert count_pairs(place, place, member, 0.1, weights).attack_window == tuple(1.0 * (r > rank) for r in ranks)


def test_counts_may_be_as_large_as_their_units_and_no_larger():
    k, n = 2, len(window_ranks(10, 0.2))
    rising = tuple(np.r_[0.0, 5e-9, 2, np.full(n - 4, 4), 10])
    good = PairedCounts(2.0 + 5e-6, 2, k + 1, 0, rising, (0.0, 0.0, 2, *np.full(n - 3, 10.0)))
    for one in (good, replace(good, attack_window=(1e-8 - 5e-9, 0.0, *rising[2:]))):
        one.check(10, 10, 0.2)
    for bad in (
        {"only": 2.1}, {"only": 3.0, "missed": 3.0},
        {"non_member_only": k + 1.5}, {"non_member_missed": k + 1.5}, {"non_member_missed": -0.5},
        {"attack_window": (-1e-3, *rising[1:])}, {"attack_window": (*rising[:-1], 10 + 1e-3)},
        {"attack_window": (0.01, 0.0, *rising[2:])}, {"baseline_window": good.baseline_window[:-1]},
    ):  # fmt: skip
        with pytest.raises(InputError, match="impossible"):
            replace(good, **bad).check(10, 10, 0.2)


def test_what_cannot_be_is_refused():
    good = counted(0, 300, 300, 0.05, 0.2, 0.1, 0.5)
    good.check(300, 300, 0.05)
    with pytest.raises(InputError, match="impossible"):
        good.check(100, 300, 0.05)
    for value in ("1", None, True):
        with pytest.raises(ConfigurationError, match="only must be a number"):
            from_table(PairedCounts, {**asdict(good), "only": value}, "pair")
    for value in (float("nan"), -1):
        with pytest.raises(InputError, match="impossible"):
            replace(good, only=value).check(300, 300, 0.05)
    order = np.arange(4)
    with pytest.raises(InputError, match="expected"):
        count_pairs(order, order[:3], np.array([True, False, True, False]), 0.1)
    with pytest.raises(InputError, match="expected members and non-members"):
        count_pairs(order, order, np.ones(4, dtype=bool), 0.1)


@pytest.mark.parametrize("setting", [(1000, 1000, 0.05), (400, 3000, 0.01), (50, 40, 0.05), (3, 2, 0.3)])
def test_exchanging_both_attacks_exchanges_the_bounds(setting):
    c = counted(1, *setting, 0.3, 0.2, 0.7)
    low, high = difference_bounds(c, *setting, 0.01, 0.04)
    assert -1 <= low <= (c.only - c.missed) / setting[0] <= high <= 1
    assert difference_bounds(swapped(c), *setting, 0.04, 0.01) == pytest.approx((-high, -low))


MEASURED = [
    ((1000, 1000, 0.05, 0.2, 0.1, 0.8), None, (0.01, 0.04), (0.04516932368510857, 0.12680250493858208)),
    ((1000, 1000, 0.05, 0.12, 0.1, 0.9), "both", (0.05, 0.05), (-0.018820810087189232, 0.15592796239270873)),
    ((600, 600, 0.05, 0.1, 0.1, 0.0), None, (0.05, 0.01), (-0.05188655592793112, 0.07239173546568527)),
    ((5000, 50, 0.01, 0.3, 0.1, 0.5), None, (0.05, 0.05), (-0.2922188631078999, 0.6309688905900916)),
    ((300, 250, 0.01, 0.4, 0.1, 0.5), None, (0.01, 0.05), (-0.219646090248536, 0.6399965178377244)),
    ((700, 700, 0.01, 0.12, 0.1, 0.9), "attack", (0.05, 0.025), (-0.03746947117321323, 0.14241859851639216)),
    ((500, 14, 0.15, 0.7, 0.3, 0.9), None, (1e-8, 0.15), (-0.8318851987412642, 0.6152855211995066)),
    ((300, 150, 0.1, 0.4, 0.3, 0.5), None, (1e-8, 0.15), (-0.6822047584380726, 0.18208901190202806)),
    ((5, 1000, 0.05, 0.3, 0.2, 0.5), None, (1e-8, 0.15), (-0.8600394767739339, 0.4583493592618722)),
    ((3, 2, 0.2, 0.4, 0.3, 0.5), None, (0.2, 0.1), (-0.9625004115823504, 0.9959441205843121)),
]
"""Setting, jump and risks of audits, and means of their bounds: an even curve, jumps, few members or non-members."""


@pytest.mark.parametrize(("setting", "jump", "risks", "bounds"), MEASURED)
def test_bounds_are_those_whose_error_rates_were_measured(setting, jump, risks, bounds):
    """The simulations of this file are about this method; a number that changes is another one, to be measured anew."""
    audits = [counted(seed, *setting, jump=jump) for seed in range(7)]
    found = np.mean([difference_bounds(counts, *setting[:3], *risks) for counts in audits], axis=0)
    assert found == pytest.approx(bounds, rel=1e-9)


def test_the_worst_of_the_curves_is_sought_up_to_the_edge_of_the_cone():
    """At the radius there is no slack left: 9 - 7 there, and 9 - 5 - 0.5 at the threshold found."""
    given = np.full(3, 9.0), np.array([0.0, 5.0, 7.0]), np.arange(3.0)
    for reach, worst in ((1.0, 2.0), (np.nextafter(1.0, 0.0), 3.5)):
        assert module._worst_near(*given, (reach, reach), np.array(1e-9), np.array(0.5), 1.0) == worst


@pytest.mark.parametrize(("apart", "jumps"), [(7, False), (8, True)])
def test_curves_that_come_apart_by_more_than_7_members_in_one_step_have_a_jump(apart, jumps):
    ranks = np.arange(50.0, 70.0)
    apart_above = 30 * ranks + apart * (ranks > 59)
    assert module._uneven(apart_above, 30 * ranks, ranks) == jumps


def test_lower_limits_of_shares_are_exact_also_of_part_of_a_unit():
    found = module._limit(np.array([0.0, 0.4, 1.0, 7.0, 9.0]), 9, 0.05)
    assert found == pytest.approx([clopper_pearson(k, 9, 0.9)[0] for k in (0.0, 0.4, 1.0, 7.0, 9.0)])


def test_bounds_of_many_are_those_of_each():
    some = [counted(i, 700, 800, 0.05, 0.15, 0.1, 0.9, jump=jump) for i in range(6) for jump in (None, "attack")]
    many = lower_limits(*stacked(some), 700, 800, 0.05, 0.02)
    assert many == pytest.approx([difference_bounds(c, 700, 800, 0.05, 0.02, 0.02)[0] for c in some])


def test_an_attack_that_ranks_like_the_baseline_adds_next_to_nothing():
    c = counted(3, 1000, 1000, 0.01, 0.1, 0.1, 1.0)
    assert (c.only, c.missed, c.non_member_only) == (0, 0, 0)
    low, high = difference_bounds(c, 1000, 1000, 0.01, 0.05, 0.05)
    assert -0.02 < low < 0 < high < 0.02


RATES = {
    "equal": (1000, 1000, 0.05, 0.1, 0.1, 0.9),
    "at a limit of 5 points": (1000, 600, 0.05, 0.15, 0.1, 0.7),
    "independent": (600, 600, 0.05, 0.1, 0.1, 0.0),
    "few false positives": (700, 700, 0.01, 0.12, 0.1, 0.9),
    "nearly one attack": (1000, 1000, 0.05, 0.1, 0.1, 0.995),
    "few non-members": (300, 250, 0.01, 0.2, 0.1, 0.9),
}
JUMPS = dict.fromkeys(("attack", "baseline", "both"), (1000, 1000, 0.05, 0.12, 0.1, 0.9))


def misses(setting, risk=0.05, audits=400, **more):
    """How often the bounds exclude the true difference, from below and from above."""
    members, others, fpr, tpr, base_tpr, _ = setting
    parts = stacked([counted(i, *setting, **more) for i in range(audits)])
    low = lower_limits(*parts, members, others, fpr, risk)
    high = -lower_limits(*[parts[i] for i in (1, 0, 3, 2, 5, 4)], members, others, fpr, risk)
    true = tpr - base_tpr
    return np.array([(low > true).mean(), (high < true).mean()])


@pytest.mark.parametrize("setting", RATES)
def test_bounds_are_wrong_as_seldom_as_promised(setting):
    assert (misses(RATES[setting]) <= 0.05 + 2.5 * (0.05 * 0.95 / 400) ** 0.5).all()


def test_bounds_are_not_much_wider_than_they_must_be():
    assert misses(RATES["independent"]).min() > 0.01


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_at_the_threshold_makes_them_wrong_no_oftener(jump):
    assert (misses(JUMPS[jump], jump=jump) <= 0.05 + 2.5 * (0.05 * 0.95 / 400) ** 0.5).all()


def test_without_a_look_for_jumps_they_would_be_wrong(monkeypatch):
    monkeypatch.setattr(module, "_uneven", lambda attack, *_: np.zeros(attack.shape[:-1], dtype=bool))
    assert misses(JUMPS["both"], jump="both")[0] > 0.09


def test_a_threshold_taken_as_known_would_be_wrong(monkeypatch):
    """The members' part alone, which is what a test of discordant pairs at a fixed threshold is."""
    monkeypatch.setattr(module.special, "ndtri", lambda risk: 0.0)
    monkeypatch.setattr(module, "_uneven", lambda attack, *_: np.zeros(attack.shape[:-1], dtype=bool))
    assert misses(RATES["few false positives"]).max() > 0.09
