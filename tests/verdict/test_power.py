"""The probability of each verdict is the share of simulated audits that reach it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions
from scipy.integrate import quad

from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict import power as module
from safexplain.verdict.evidence import Evidence
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import critical_counts, excess_power, expected_pairs, power, seen_power
from safexplain.verdict.stats.paired import count_pairs, difference_bounds
from safexplain.verdict.thresholds import by_score, found_above, ranked, ranks_of

LOOSE = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), references=1, uncounted=True)
STRICT = replace(LOOSE, fpr=0.01, max_tpr=0.03)


def shares(policy, members, others, attacks, tpr, audits=300):
    """Share of audits on real scores with a leak proven, and certified; all attacks but the first guess."""
    member = np.arange(members + others) < members
    shift = distributions.norm.isf(policy.fpr) - distributions.norm.isf(tpr)
    r, found = ranks_of(policy, others, attacks), []
    for number in range(audits):
        rng = np.random.default_rng([11, number])
        evidence = []
        for i in range(attacks):
            scores = rng.normal(size=len(member)) + (shift * member if i == 0 else 0.0)
            order = ranked(scores, member, number)
            evidence.append(
                Evidence(
                    "a",
                    str(i),
                    "explanation",
                    1,
                    0,
                    found_above(order, r.upper_bound_rank),
                    found_above(order, r.lower_bound_rank),
                )
            )
        found.append(Judgement(policy, tuple(evidence), members, others, 1).verdict)
    return found.count("leak") / audits, found.count("certified") / audits


SETTINGS = {
    "one attack": (LOOSE, 400, 400, 1, (0.08, 0.25, 0.3)),
    "four attacks": (LOOSE, 500, 500, 4, (0.05, 0.25, 0.3)),
    "few non-members": (LOOSE, 1500, 150, 2, (0.05, 0.2, 0.3, 0.4)),
    "accepted by share": (STRICT, 300, 200, 2, (0.1, 0.2, 0.3)),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_power_is_the_share_of_simulated_audits(setting):
    *where, tprs = SETTINGS[setting]
    found = power(*where, tprs)
    undecided = 0
    for i, tpr in enumerate(tprs):
        for computed, simulated in zip((found.leak[i], found.certified[i]), shares(*where, tpr), strict=True):
            assert simulated == pytest.approx(computed, abs=4 * (0.25 / 300) ** 0.5)
            undecided += 0.1 < computed < 0.9
    assert undecided >= 2, "shares near 0 and 1 would be no test"


def test_a_threshold_without_spread_would_be_a_wrong_power(monkeypatch):
    """With few non-members most of the spread is the threshold's."""
    *where, tprs = SETTINGS["few non-members"]
    right = power(*where, tprs)
    monkeypatch.setattr(module, "NODES", np.linspace(-1e-6, 1e-6, 3))
    monkeypatch.setattr(module.distributions.norm, "pdf", lambda x: np.full(np.shape(x), 1 / 3e-6))
    wrong = power(*where, tprs)
    assert np.abs(wrong.leak - right.leak).max() > 0.2


def test_the_integral_is_that_of_slow_quadrature():
    policy, members, others = LOOSE, 30, 20
    rank = ranks_of(policy, others, 1).upper_bound_rank
    for tpr in (0.05, 0.3, 0.9):
        shift = distributions.norm.isf(policy.fpr) - distributions.norm.isf(tpr)

        def density(p, shift=shift):
            rate = distributions.norm.sf(distributions.norm.isf(p) - shift)
            return distributions.binom.cdf(9, members, rate) * distributions.beta.pdf(p, rank, others - rank + 1)

        slow = quad(density, 0, 1, epsabs=1e-10, limit=400)[0]
        fast = module.found_above_threshold(policy, members, others, rank, np.array(tpr), 9)
        assert float(fast) == pytest.approx(slow, abs=1e-7)


def test_one_that_guesses_is_beta_binomial():
    rank = ranks_of(LOOSE, 500, 1).upper_bound_rank
    for most in (10, 25, 40):
        fast = module.found_above_threshold(LOOSE, 700, 500, rank, np.array(0.05), most)
        assert float(fast) == pytest.approx(distributions.betabinom.cdf(most, 700, rank, 501 - rank), abs=1e-9)


@pytest.mark.parametrize(("members", "others", "attacks"), [(1, 1, 1), (40, 60, 1), (300, 200, 7), (90, 2000, 3)])
def test_critical_counts_are_those_of_every_count_judged(members, others, attacks):
    proves, allowed = critical_counts(LOOSE, members, others, attacks)

    def verdict(upper, lower):
        evidence = [Evidence("a", str(i), "explanation", 1, 0, 0, 0) for i in range(attacks - 1)]
        evidence.append(Evidence("a", "last", "explanation", 1, 0, upper, lower))
        return Judgement(LOOSE, tuple(evidence), members, others, 1).verdict

    counts = range(members + 1)
    assert [c for c in counts if verdict(members, c) == "leak"] == list(range(proves, members + 1))
    certified = [c for c in counts if verdict(c, 0) == "certified"]
    assert certified == list(range(allowed + 1)) or (certified == [] and allowed >= 0 and attacks > 1)


def test_a_larger_leak_is_found_more_often_and_certified_less_often():
    tpr = np.linspace(0.01, 0.9, 60)
    found = power(LOOSE, 400, 400, 4, tpr)
    assert (np.diff(found.leak) >= -1e-12).all()
    assert (np.diff(found.certified) <= 1e-12).all()
    assert (found.leak + found.certified <= 1 + 1e-12).all()
    assert found.leak[-1] > 0.999


def test_wrong_verdicts_are_rarer_than_the_confidence_says():
    for n in (100, 1000, 10_000):
        for policy in (LOOSE, STRICT, replace(LOOSE, max_tpr=0.05)):
            found = power(policy, n, n, 7, policy.max_tpr)
            assert max(found.leak, found.certified) <= 0.05


def test_the_shape_is_that_of_the_rates():
    assert power(LOOSE, 50, 50, 1, 0.2).leak.shape == ()
    assert power(LOOSE, 50, 50, 1, [[0.1, 0.2, 0.3]]).certified.shape == (1, 3)
    assert power(LOOSE, 50, 50, 1, [0.1, 0.2]).leak[1] == pytest.approx(float(power(LOOSE, 50, 50, 1, 0.2).leak))


def test_samples_that_can_decide_nothing_have_no_power():
    found = power(STRICT, 1, 1, 1, [0.01, 0.5])
    assert found.leak.tolist() == [0.0, 0.0]
    assert found.certified.tolist() == [0.0, 0.0]
    assert power(replace(LOOSE, fpr=0.2, max_tpr=0.3), 500, 2, 1, 0.2).certified == 0.0


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigurationError, match='claim "whole"'):
        power(replace(LOOSE, claim="excess"), 100, 100, 1, 0.1)
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(InputError, match="power needs members"):
            power(LOOSE, *sizes, 0.1)
    for tpr in (0.0, 1.0, [0.1, np.nan]):
        with pytest.raises(InputError, match="lies in"):
            power(LOOSE, 100, 100, 1, tpr)


# ------------------------------------------------------------------------------------------- the claim "excess"

ADDED = replace(LOOSE, claim="excess", max_excess=0.03)


def compared(seed, n, tpr, base_tpr, alike):
    """Counts of an attack and a baseline on n members and n non-members, bivariate normal."""
    rng = np.random.default_rng([12, seed])
    base, member = rng.normal(size=2 * n), np.arange(2 * n) < n
    scores = alike * base + (1 - alike**2) ** 0.5 * rng.normal(size=2 * n)
    at = distributions.norm.isf(LOOSE.fpr)
    moved = [s + (at - distributions.norm.isf(t)) * member for s, t in ((scores, tpr), (base, base_tpr))]
    return count_pairs(by_score(moved[0], seed), by_score(moved[1], seed), member, LOOSE.fpr)


@pytest.mark.parametrize(("excess", "n"), [(0.0, 1500), (0.06, 1500), (0.08, 1000)])
def test_the_power_of_the_excess_is_about_the_share_of_simulated_audits(excess, n):
    some = [compared(i, n, 0.1 + excess, 0.1, 0.95) for i in range(150)]
    bounds = np.array([difference_bounds(c, n, n, LOOSE.fpr, 0.05, 0.05) for c in some])
    discordant = float(np.mean([c.only + c.missed for c in some])) / n
    found = excess_power(ADDED, n, n, excess, 0.1, discordant)
    assert float(found.leak) == pytest.approx((bounds[:, 0] > 0.03).mean(), abs=0.13)
    assert float(found.certified) == pytest.approx((bounds[:, 1] <= 0.03).mean(), abs=0.13)
    assert 0.1 < max(found.leak, found.certified) < 0.99, "certainty would be no test"


def test_expected_counts_are_the_mean_of_drawn_ones():
    some = [compared(i, 2000, 0.15, 0.1, 0.9) for i in range(60)]
    means = {k: float(np.mean([getattr(c, k) for c in some])) for k in ("only", "missed", "non_member_only")}
    expected = expected_pairs(2000, 2000, LOOSE.fpr, 0.15, 0.1, (means["only"] + means["missed"]) / 2000)
    expected.check(2000, 2000, LOOSE.fpr)
    assert expected.only == pytest.approx(means["only"], rel=0.06)
    assert expected.missed == pytest.approx(means["missed"], rel=0.2)
    assert expected.non_member_only == pytest.approx(means["non_member_only"], rel=0.06)
    for kind in ("attack_window", "baseline_window"):
        mean = np.mean([getattr(c, kind) for c in some], axis=0)
        assert np.abs(np.array(getattr(expected, kind)) - mean).max() < 25


def test_rates_that_no_two_attacks_have_are_refused():
    for tpr, base_tpr, discordant in ((0.0, 0.1, 0.1), (0.2, 0.1, 0.05), (0.2, 0.1, 0.5)):
        with pytest.raises(InputError, match="expected"):
            expected_pairs(1000, 1000, 0.05, tpr, base_tpr, discordant)
    with pytest.raises(ConfigurationError, match='claim "excess"'):
        excess_power(LOOSE, 1000, 1000, 0.0, 0.1, 0.05)


def test_more_examples_decide_more():
    found = [excess_power(ADDED, n, n, 0.0, 0.1, 0.05).certified for n in (500, 1000, 3000, 10_000)]
    assert found == sorted(found)
    assert found[-1] > 0.95
    assert (
        excess_power(ADDED, 1000, 1000, 0.08, 0.1, 0.1, attacks=30).leak
        < excess_power(ADDED, 1000, 1000, 0.08, 0.1, 0.1).leak
    )


def test_what_an_audit_would_have_decided_follows_from_its_counts():
    seen = {n: seen_power(compared(0, n, 0.1, 0.1, 0.95), n, n, 0.05, 0.03, 0.05, 0.05) for n in (500, 5000)}
    assert seen[500].certifies < 0 < seen[5000].certifies < 0.03 < seen[5000].proves < seen[500].proves < 0.2
    proven = excess_power(ADDED, 5000, 5000, seen[5000].proves, 0.1, seen[5000].proves + 0.03).leak
    assert proven == pytest.approx(0.9, abs=0.15)


def test_a_sample_that_can_show_nothing_says_so():
    seen = seen_power(compared(0, 20, 0.3, 0.1, 0.5), 20, 20, 0.05, 0.03, 0.05, 0.05)
    assert seen.proves == 1.0
    assert seen.certifies < 0
