"""What (epsilon, delta) alone implies: no attack does better, the best one comes as near, and verdicts rest on it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from certificates import SCHEMA, compared, made, read_back, sealed
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from safexplain._privacy_loss import Steps
from safexplain.errors import CertificateError
from safexplain.verdict import words
from safexplain.verdict.guarantee import Implied, RocBound, tpr_bound
from safexplain.verdict.judgement import Control, Evidence, Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.privacy_statement import PrivacyStatement

jsonschema = pytest.importorskip("jsonschema")

RATES = np.array([0.0, 1e-4, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0])


def stated(noise: float, q: float = 1.0, steps: int = 1, **more: object) -> PrivacyStatement:
    """One phase of the sampled Gaussian mechanism."""
    phase = Steps(noise, q, steps, "full-batch" if q == 1 else "poisson")
    return PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(phase,), **more)  # type: ignore[arg-type]


PURE = PrivacyStatement("Laplace", 500, 0.0, pure_epsilon=1.0, pure_add_remove=0.5)


@given(st.floats(0, 20), st.floats(0, 1), st.floats(0, 1))
def test_one_pair_bounds_the_rate_in_both_directions(epsilon, delta, fpr):
    most = float(tpr_bound(fpr, epsilon, delta))
    assert most <= math.exp(epsilon) * fpr + delta + 1e-12
    assert (1 - fpr) <= math.exp(epsilon) * (1 - most) + delta + 1e-9 or most == pytest.approx(1)
    assert min(1.0, fpr) <= most + 1e-12  # guessing is always possible


def test_randomised_response_reaches_the_bound_of_a_pure_guarantee():
    """The answer is the true bit with probability e^eps / (1 + e^eps): its two tests are vertices of the curve."""
    epsilon = PURE.epsilons.add_remove
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    bound = RocBound.of(PURE)
    assert float(bound(1 - right)) == pytest.approx(right)
    assert bound.auc == pytest.approx(0.5 + (right - 0.5), abs=1e-4)


@pytest.mark.parametrize(("steps", "noise"), [(1, 2.0), (1, 0.7), (100, 20.0), (3, 50.0)])
def test_the_best_attack_on_a_gaussian_mechanism_comes_near_it(steps, noise):
    bound, mu = RocBound.of(stated(noise, steps=steps)), math.sqrt(steps) / noise
    with np.errstate(invalid="ignore"):
        best = norm.cdf(norm.ppf(RATES) + mu)
    found = bound(RATES)
    assert (found >= best - 1e-9).all()
    assert (found <= best + 3e-3).all()
    assert norm.cdf(mu / math.sqrt(2)) <= bound.auc <= norm.cdf(mu / math.sqrt(2)) + 2e-3


@pytest.mark.parametrize(("noise", "q"), [(0.8, 0.3), (2.0, 0.05)])
def test_no_threshold_of_a_sampled_step_is_above_it_and_the_best_comes_near(noise, q):
    threshold = np.linspace(-3 * noise, 1 + 4 * noise, 200)
    fpr = norm.sf(threshold / noise)
    tpr = (1 - q) * fpr + q * norm.sf((threshold - 1) / noise)
    bound = RocBound.of(stated(noise, q))
    assert (bound(fpr) >= tpr - 1e-9).all()  # a record was added
    assert (bound(1 - tpr) >= 1 - fpr - 1e-9).all()  # or removed
    usual = (fpr > 0.01) & (fpr < 0.5)
    assert (tpr[usual] >= 0.9 * bound(fpr[usual])).all(), "the bound would say nothing if it were far above"


def test_one_pair_bounds_the_rate_by_the_printed_formula():
    assert float(tpr_bound(0.01, 1.0, 1e-3)) == pytest.approx(math.e * 0.01 + 1e-3)
    assert float(tpr_bound(0.6, 1.0, 1e-3)) == pytest.approx(1 - (1 - 1e-3 - 0.6) / math.e)
    found = Implied.of(stated(1.738, 0.1, 300), 0.01)
    assert found is not None
    assert (found.epsilon, found.tpr, found.auc) == pytest.approx((5.0762, 0.10792, 0.77447), rel=1e-3)
    assert Implied.of(PURE, 0.01) == replace(Implied.of(PURE, 0.01), tpr=float(tpr_bound(0.01, 0.5, 0)))  # type: ignore[type-var]
    assert found.by_epsilon == pytest.approx(1 - math.exp(-found.epsilon) * (1 - 1e-5 - 0.01))


def test_without_noise_nothing_is_implied():
    assert Implied.of(stated(0.0, steps=3), 0.01) is None
    assert (RocBound.of(stated(0.0))(RATES) == 1).all()


POLICY = Policy(claim="whole", fpr=0.01, max_tpr=0.03, patience=(1,))
STRONG, WEAK = Implied.of(stated(100.0), 0.01), Implied.of(stated(0.5), 0.01)


def undecided(**more: object) -> Judgement:
    """An audit of 40 members and 40 others, which could not decide anything."""
    return Judgement(POLICY, (Evidence("LikelihoodRatio", "l1", "explanation", 1, 1, 6, 0),), 40, 40, 0, **more)  # type: ignore[arg-type]


def test_a_guarantee_that_satisfies_the_policy_certifies_what_the_sample_could_not_decide():
    assert undecided().verdict == "inconclusive"
    found = undecided(implied=STRONG)
    assert (found.verdict, found.exit_code, found.basis) == ("certified", 0, "by guarantee")
    assert "by guarantee" in words.text(found)
    assert words.sentence(found).startswith(
        "Certified by guarantee: if trained as stated, no attacker finds more than 1."
    )
    assert found.to_dict()["basis"] == "by guarantee"
    assert words.reasons(found) == ()


def test_a_guarantee_of_just_the_limit_satisfies_the_policy():
    for rate, basis in ((0.03, "by guarantee"), (np.nextafter(0.03, 1), "by measurement")):
        assert undecided(implied=replace(STRONG, tpr=rate)).basis == basis


def test_a_guarantee_that_does_not_satisfy_it_changes_no_verdict():
    found = undecided(implied=WEAK)
    assert (found.verdict, found.basis) == ("inconclusive", "by measurement")
    assert "guarantee" not in words.text(found)


def test_so_it_does_for_what_is_added():
    few = compared(Policy(fpr=0.05, max_tpr=0.2, patience=(1,)), n=40)
    assert few.verdict == "inconclusive"
    assert replace(few, implied=Implied.of(stated(100.0), 0.05)).verdict == "certified"
    assert replace(few, implied=Implied.of(stated(0.5), 0.05)).verdict == "inconclusive"


def test_a_proven_leak_stays_one_and_contradicts_the_statement():
    found = Evidence("LikelihoodRatio", "l1", "explanation", 1, 600, 700, 500)
    leak = Judgement(POLICY, (found,), 1000, 1000, 16, uses=1, implied=STRONG)
    assert (leak.verdict, leak.basis) == ("leak", "by measurement")
    assert leak.contradiction is not None
    assert "Under the privacy statement, no attack finds more than" in words.text(leak)


def test_an_unreleased_signal_contradicts_it_too():
    """The guarantee is about everything that is computed from the model, so also about its losses."""
    quiet = Evidence("LikelihoodRatio", "l1", "explanation", 1, 10, 20, 5)
    loss = Evidence("LikelihoodRatio", "loss", "loss", 1, 600, 700, 500)
    found = Judgement(POLICY, (quiet, loss), 1000, 1000, 0, uses=1, implied=STRONG)
    assert not found.by_guarantee
    assert found.verdict == "inconclusive"


def test_where_members_differ_from_others_nothing_is_certified_by_guarantee():
    unlike = Control("blind baseline", True, "inputs differ", {"auc": 0.7})
    assert undecided(implied=STRONG, controls=(unlike,)).verdict == "inconclusive"


def test_nor_in_a_quick_look_nor_on_the_selection_split():
    assert undecided(implied=STRONG, quick=True).verdict == "inconclusive"
    assert undecided(implied=STRONG, split="selection").verdict == "inconclusive"


STATED = stated(100.0, pretrained=True, weights="ab" * 32)
IMPLYING = replace(undecided(), implied=Implied.of(STATED, POLICY.fpr))


def test_it_is_read_back_and_its_numbers_follow_from_the_statement(tmp_path):
    content = made(IMPLYING, privacy=STATED.to_dict())
    found = read_back(content, tmp_path)
    assert found.judgement == IMPLYING
    assert found.judgement.basis == "by guarantee"
    assert "starting weights" in words.text(found.judgement)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content, allow_nan=False)))
    assert {"basis", "implied"} <= content["predicate"]["audit"].keys() <= SCHEMA["$defs"]["audit"]["properties"].keys()


def test_forged_numbers_and_a_missing_statement_are_found(tmp_path):
    weak = stated(0.5, weights="ab" * 32)
    with pytest.raises(CertificateError, match="follows from the privacy statement"):
        read_back(sealed(made(IMPLYING, privacy=weak.to_dict())), tmp_path)
    with pytest.raises(CertificateError, match="privacy statement with a finite epsilon"):
        read_back(sealed(made(IMPLYING)), tmp_path)
    content = made(IMPLYING, privacy=STATED.to_dict())
    content["predicate"]["audit"]["implied"]["tpr"] = 0.009
    with pytest.raises(CertificateError, match="follows"):
        read_back(sealed(content), tmp_path)
