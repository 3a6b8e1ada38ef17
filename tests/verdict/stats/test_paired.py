"""What an attack finds more than another: counting by hand, identities, and error rates by simulation both ways."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain._validate import from_table
from safexplain.errors import ConfigurationError, InputError
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


# ------------------------------------------------------------------------------------------------- counting


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


def test_what_cannot_be_is_refused():
    good = counted(0, 300, 300, 0.05, 0.2, 0.1, 0.5)
    good.check(300, 300, 0.05)
    for bad in (
        replace(good, only=good.only + 1),
        replace(good, missed=-1.0),
        replace(good, non_member_only=40.0),
        replace(good, attack_window=good.attack_window[:-1]),
        replace(good, baseline_window=good.baseline_window[::-1]),
    ):
        with pytest.raises(InputError, match="impossible"):
            bad.check(300, 300, 0.05)
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


# ------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("setting", [(1000, 1000, 0.05), (400, 3000, 0.01), (50, 40, 0.05), (3, 2, 0.3)])
def test_exchanging_both_attacks_exchanges_the_bounds(setting):
    c = counted(1, *setting, 0.3, 0.2, 0.7)
    low, high = difference_bounds(c, *setting, 0.01, 0.04)
    assert -1 <= low <= (c.only - c.missed) / setting[0] <= high <= 1
    assert difference_bounds(swapped(c), *setting, 0.04, 0.01) == pytest.approx((-high, -low))


MEASURED = [
    ((1000, 1000, 0.05, 0.2, 0.1, 0.8), None, (0.01, 0.04), (0.05711248717886371, 0.13034875715567185)),
    ((1000, 1000, 0.05, 0.12, 0.1, 0.9), "both", (0.05, 0.05), (-0.0163137056240531, 0.16198498840780462)),
    ((600, 600, 0.05, 0.1, 0.1, 0.0), None, (0.05, 0.01), (-0.04943688671781712, 0.05204772744771606)),
    ((5000, 50, 0.01, 0.3, 0.1, 0.5), None, (0.05, 0.05), (-0.21479969621111694, 0.4840758497187594)),
    ((300, 250, 0.01, 0.4, 0.1, 0.5), None, (0.01, 0.05), (-0.19793564008416842, 0.6068014787845002)),
    ((700, 700, 0.01, 0.12, 0.1, 0.9), "attack", (0.05, 0.025), (-0.028803355222502693, 0.06886862792658598)),
]
"""Setting, jump and risks of audits, and their bounds: an even curve, jumps, and too few non-members."""


@pytest.mark.parametrize(("setting", "jump", "risks", "bounds"), MEASURED)
def test_bounds_are_those_whose_error_rates_were_measured(setting, jump, risks, bounds):
    """The simulations of this file are about this method; a number that changes is another one, to be measured anew."""
    counts = counted(7, *setting, jump=jump)
    assert difference_bounds(counts, *setting[:3], *risks) == pytest.approx(bounds, rel=1e-9)


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
