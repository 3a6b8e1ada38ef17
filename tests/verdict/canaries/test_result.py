"""A claim, the errors of an adversary, and the verdict that follows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from safexplain.dp import PrivacyStatement, Steps, epsilons
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import SCENARIOS, Claim, scenario_of
from safexplain.verdict.canaries.result import (
    CanaryResult,
    Errors,
    Scores,
    decisive,
    finding_of,
    judge,
    judge_once,
    load_finding,
)
from safexplain.verdict.stats import epsilon_lower_bound

FULL = Claim(Steps(22.3557, 1.0, 500, "full-batch"), 1e-5)
"""Epsilon 10 under substitution, 4.38 under add/remove; bounds of full batches need no composition."""


def result(errors: int, runs: int = 2000, claim: Claim = FULL, **changes: Any) -> CanaryResult:
    """As many errors on D as on D'."""
    counts = Errors(500, 0.0, errors, runs // 2, errors, runs // 2)
    fields = {"scenario": "gradient", "method": "pld", "confidence": 0.95, "runs": runs, "seconds": 10.0, **changes}
    return CanaryResult(claim=claim, errors=(counts,), **fields)


@pytest.mark.parametrize(
    ("errors", "runs", "verdict", "code"),
    [
        (0, 2000, "violates the claim: a bug", 1),
        (185, 2000, "violates add/remove as a claim about records or attributes", 0),
        (330, 2000, "inconclusive: weak canary", 3),
        (495, 2000, "inconclusive: weak canary", 3),
        (0, 16, "inconclusive: weak canary", 3),
        (20, 200, "violates add/remove as a claim about records or attributes", 3),
    ],
)
def test_the_verdict_follows_from_the_bound_and_both_epsilons(errors, runs, verdict, code):
    found = result(errors, runs)
    assert found.verdict == verdict
    assert found.exit_code == code
    assert f"at least {found.epsilon_lower:.2f}" in found.sentence


def test_a_claim_is_kept_only_where_twice_of_it_would_have_been_found():
    """Most canaries that could show twice a claim show more than add/remove promises, so this one is under that."""
    claim = Claim(Steps(130.0, 1.0, 500, "full-batch"), 1e-5, adjacency="add_remove")
    kept, few = result(440, claim=claim), result(44, 200, claim=claim)
    assert (kept.verdict, kept.exit_code, kept.keeps_claim) == ("consistent with substitute", 0, True)
    assert kept.power > 0.95
    assert "would have found twice the claim with a probability of 98%" in kept.sentence
    assert (few.verdict, few.exit_code, few.keeps_claim) == ("inconclusive: weak canary", 3, None)
    assert few.power < 0.5
    assert "runs with this canary would do" in few.sentence


def test_who_promised_the_smaller_epsilon_for_records_has_not_kept_it():
    assert result(185).exit_code == 0
    promised = result(185, claim=replace(FULL, adjacency="add_remove"))
    assert promised.verdict == result(185).verdict
    assert promised.keeps_claim is False
    assert promised.exit_code == 1


def test_a_promised_epsilon_goes_before_the_accounted_one():
    claim = replace(FULL, epsilon=5.0)
    assert (claim.substitute, claim.add_remove) == (5.0, pytest.approx(4.378, abs=2e-3))
    assert result(185, claim=claim).verdict == "violates the claim: a bug"
    assert replace(claim, adjacency="add_remove").add_remove == 5.0


def test_without_a_mechanism_an_epsilon_is_audited_alone():
    claim = Claim(None, 1e-5, epsilon=2.0)
    found = result(0, claim=claim, method="clopper-pearson")
    assert (found.claim.substitute, found.claim.add_remove) == (2.0, None)
    assert found.verdict == "violates the claim: a bug"
    with pytest.raises(ConfigurationError, match=r"pld.*needs the mechanism"):
        result(0, claim=claim)


def test_the_claim_after_fewer_steps_is_smaller():
    half = FULL.after(250)
    assert half.substitute < FULL.substitute
    assert half.substitute == pytest.approx(epsilons(22.3557, 1.0, 250, 1e-5, sampling="full-batch").substitute)
    assert FULL.after(500) is FULL


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mechanism": None}, "needs the mechanism"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"adjacency": "zero_out"}, "substitute records"),
        ({"adjacency": "nothing"}, "adjacency"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(values, says):
    with pytest.raises(ConfigurationError, match=says):
        Claim(**{"mechanism": FULL.mechanism, "delta": 1e-5, **values})


def test_the_claim_of_a_statement_is_its_one_phase():
    stated = PrivacyStatement("DP-SGD", 500, 1e-5, phases=(Steps(5.5728, 0.25, 500),), expected_batch_size=125)
    assert Claim.of(stated).substitute == pytest.approx(stated.epsilons.substitute)
    with pytest.raises(ConfigurationError, match="one phase"):
        Claim.of(replace(stated, phases=(Steps(5.5728, 0.25, 500), Steps(6.0, 0.25, 10))))


def test_scores_are_judged_at_every_audited_step():
    rng = np.random.default_rng(0)
    shift = np.array([[0.1], [1.0]])
    scores = Scores((250, 500), rng.normal(size=(2, 300)) + shift, rng.normal(size=(2, 300)) - shift)
    found = judge(scores, FULL, scenario="S2", threshold=0.0, seconds=3.0)
    assert [e.step for e in found.errors] == [250, 500]
    assert found.lower(found.errors[0]) < found.lower(found.errors[1]) == found.epsilon_lower
    assert found.epsilon_lower == epsilon_lower_bound(scores.d[1], scores.d_prime[1], 1e-5, threshold=0.0, steps=500)
    assert (found.scenario, found.runs, found.seconds_per_run) == ("gradient", 600, 0.005)
    split = judge(scores, FULL, scenario="gradient")
    assert split.errors[-1].positives == 210
    assert split.ceiling < found.ceiling


def test_a_result_survives_json_and_is_computed_again():
    found = result(185, setting={"name": "test"})
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert finding_of(content) == found
    for name in ("epsilon_lower", "confidence", "ceiling", "verdict"):
        assert content[name] == getattr(found, name)
    assert {"runs", "seconds_per_run"} <= content.keys()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon_lower": 1.0}, "epsilon_lower says 1.0"),
        ({"ceiling": 9.0}, "ceiling"),
        ({"epsilon_substitute": 20.0}, "epsilon_substitute"),
        ({"verdict": "consistent with substitute"}, "verdict"),
        ({"power": 0.8}, "power says 0.8"),
        ({"power": None}, "canar"),
        ({"errors": []}, "errors"),
        ({"runs": 10}, "at most the 10 runs"),
        ({"method": "guess"}, "method"),
        ({"scenario": "S9"}, "scenario"),
        ({"claim": {}}, "claim"),
        ({"errors": [{"step": 1}]}, "canar"),
    ],
)
def test_what_does_not_follow_from_the_counts_is_refused(change, says, tmp_path):
    content = {**result(185).to_dict(), **change}
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=says):
        load_finding(path)


def test_other_files_are_refused(tmp_path):
    for text in ("", "[]", "{}", '{"errors": 3}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(InputError, match="canar"):
            load_finding(tmp_path / "x.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_finding(tmp_path / "none.json")


def test_scores_survive_a_file(tmp_path):
    scores = Scores((1, 5), np.zeros((2, 3)), np.ones((2, 4)))
    again = Scores.load(scores.save(tmp_path / "scores.npz"))
    assert again.steps == (1, 5)
    assert again.runs == 7
    np.testing.assert_array_equal(again.d_prime, scores.d_prime)
    with pytest.raises(InputError, match="no such file"):
        Scores.load(tmp_path / "none.npz")
    np.savez(tmp_path / "short.npz", steps=[1], d=np.zeros((1, 2)))
    with pytest.raises(InputError, match="steps, d and d_prime; d_prime missing"):
        Scores.load(tmp_path / "short.npz")


@pytest.mark.parametrize(
    ("steps", "a", "says"),
    [
        ((1,), np.zeros(3), "expected shape"),
        ((1, 2), np.zeros((1, 3)), "expected shape"),
        ((1,), np.array([[0.0, np.nan]]), "NaN"),
        ((0,), np.zeros((1, 3)), "increasing"),
        ((2, 2), np.zeros((2, 3)), "increasing"),
    ],
)
def test_scores_that_do_not_fit_are_refused(steps, a, says):
    with pytest.raises(InputError, match=says):
        Scores(steps, a, np.zeros((len(steps), 2)))


def test_scenarios_go_by_name_and_by_number():
    assert all(scenario_of(name) == name == scenario_of(number or name) for name, number in SCENARIOS.items())
    assert scenario_of("s4") == "mislabelled"
    assert [number for number in SCENARIOS.values() if number] == ["S1", "S2", "S3", "S4", "S5"]
    with pytest.raises(ConfigurationError, match="gradient"):
        scenario_of("S6")


def test_a_claim_about_one_record_says_what_follows_for_several():
    alone = Claim(None, 1e-6, epsilon=1.0)
    three = alone.of_group(3)
    assert (three.group, three.epsilon, three.substitute) == (3, 3.0, 3.0)
    assert three.delta == pytest.approx(1e-6 * (1 + np.exp(1) + np.exp(2)))
    assert alone.of_group(1) is alone
    with pytest.raises(ConfigurationError, match="promises nothing for 10 records"):
        Claim(None, 1e-3, epsilon=100.0).of_group(10)
    with pytest.raises(ConfigurationError, match="is about 3 records"):
        three.of_group(2)
    promised = Claim(Steps(4.0, 0.5, 10), 1e-6, epsilon=5.0).of_group(2)
    assert (promised.group, promised.epsilon, promised.delta) == (2, None, 1e-6)  # the accountant knows better


def test_the_group_of_a_claim_is_written_only_where_it_is_one():
    claim = Claim(Steps(4.0, 0.5, 10), 1e-6)
    assert "group" not in claim.to_dict()
    assert "group" not in claim.sampled()
    several = claim.of_group(2)
    assert Claim.from_dict(several.to_dict()) == several
    assert several.sampled()["group"] == several.after(3).group == 2
    with pytest.raises(InputError, match="group"):
        Claim.from_dict({**claim.to_dict(), "group": 0})


ONCE = Claim(Steps(130.0, 1.0, 500, "full-batch"), 1e-5)
"""Epsilon 1.32 under substitution: one run of a thousand canaries can refute it."""


def coins_and_scores(noise: float, canaries: int = 1000, seed: int = 0, centre: float = 0.0):
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    return np.where(coins, 1.0, -1.0) * 500 + rng.normal(0, noise * 500**0.5, canaries) + centre, coins


def test_any_scores_of_one_run_are_judged():
    scores, coins = coins_and_scores(130.0)
    found = judge_once(scores, coins, ONCE, centre=0.0, scenario="mislabelled", seconds=2.0)
    surest = np.abs(scores) >= np.sort(np.abs(scores))[-200]
    assert (found.canaries, found.guesses, found.runs) == (1000, 200, 1)
    assert found.correct == int(((scores > 0) == coins)[surest].sum())
    assert found.epsilon_lower < found.claim.substitute
    assert finding_of(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert finding_of(found.to_dict()).scenario == "mislabelled"


def test_scores_that_are_all_shifted_are_judged_alike_unless_a_centre_is_given():
    scores, coins = coins_and_scores(60.0)
    found = judge_once(scores, coins, ONCE)
    assert found.verdict == "violates the claim: a bug"
    shifted = np.exp((scores + 300) / 300)
    assert judge_once(shifted, coins.astype(int), ONCE).correct == found.correct
    assert judge_once(shifted, coins, ONCE, centre=0.0).epsilon_lower < found.epsilon_lower


@pytest.mark.parametrize("method", ["f-dp", "steinke"])
def test_right_trainings_are_not_refuted_in_one_run_and_those_with_too_little_noise_are(method):
    right = [judge_once(*coins_and_scores(130.0, seed=i), ONCE, method=method) for i in range(40)]
    assert sum(found.keeps_claim is False for found in right) <= 2
    broken = [judge_once(*coins_and_scores(20.0, seed=i), ONCE, method=method) for i in range(10)]
    assert all(found.verdict == "violates the claim: a bug" for found in broken)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": np.full(50, np.nan)}, "50 of 50 are NaN"),
        ({"scores": np.zeros(49)}, r"shapes \(49,\) and \(50,\)"),
        ({"scores": np.zeros((5, 10))}, "shapes"),
        ({"coins": np.arange(50)}, "True and False, or 1 and 0"),
        ({"coins": np.ones(50, bool)}, "all 50 are True"),
        ({"guesses": 51}, "at most the 50 canaries"),
        ({"guesses": 4}, "4 guesses can all be right by chance: expected at least 5"),
        ({"guesses": 0}, "guesses"),
        ({"scores": np.zeros(20), "coins": np.arange(20) % 2}, "4 guesses.*25 canaries"),
    ],
)
def test_scores_of_one_run_that_prove_nothing_are_refused(change, says):
    given = {"scores": np.arange(50.0), "coins": np.arange(50) % 2, **change}
    with pytest.raises((InputError, ConfigurationError), match=says):
        judge_once(given.pop("scores"), given.pop("coins"), ONCE, **given)


def test_the_decisive_finding_is_a_violation_then_one_with_power():
    bug, above, kept, weak, weaker = result(0), result(185), result(440, claim=CLOSE), result(330), result(400)
    assert decisive([weak, above, bug]) is bug
    assert decisive([weak, above]) is above
    assert decisive([weaker, kept, weak]) is kept
    assert decisive([weaker, weak]) is (weak if weak.power >= weaker.power else weaker)
    unsure = result(20, 200)
    assert unsure.verdict.startswith("violates add/remove")
    assert decisive([unsure, kept]) is kept, "more than add/remove, but no power against twice the claim"
    with pytest.raises(InputError, match="one finding or more"):
        decisive([])


CLOSE = Claim(Steps(130.0, 1.0, 500, "full-batch"), 1e-5, adjacency="add_remove")


def test_a_claim_of_nothing_is_judged_in_words_too():
    """So few records are in any batch that epsilon is 0 at this delta."""
    found = result(400, claim=Claim(Steps(4.0, 1e-12, 40), 1e-5))
    assert (found.verdict, found.power) == ("inconclusive: weak canary", 0.0)
    assert "claimed epsilon is 0" in found.sentence
