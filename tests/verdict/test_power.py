"""The probability of each verdict is the share of simulated audits that reach it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions

from audit.suites.verdict_errors.power import critical_counts, power, ranks_of
from safexplain.verdict.judgement import Evidence, Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.thresholds import found_above, ranked

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
            upper, lower = found_above(order, r.upper_bound_rank), found_above(order, r.lower_bound_rank)
            evidence.append(Evidence("a", str(i), "explanation", 1, 0, upper, lower))
        found.append(Judgement(policy, tuple(evidence), members, others, 1).verdict)
    return found.count("leak") / audits, found.count("certified") / audits


SETTINGS = {
    "one attack": (LOOSE, 400, 400, 1, (0.08, 0.25, 0.3)),
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


@pytest.mark.parametrize(("members", "others", "attacks"), [(1, 1, 1), (300, 200, 7)])
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
