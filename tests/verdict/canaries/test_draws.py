"""Claims and verdicts of canaries, and the white box: right draws pass, wrong ones fail, numbers by formula."""

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.dp import PrivacyStatement, Steps, epsilons
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import (
    SCENARIOS,
    CanaryResult,
    Check,
    Claim,
    Errors,
    Scores,
    WhiteBoxResult,
    batches_drawn,
    decisive,
    finding_of,
    judge,
    load_finding,
    noise_distribution,
    noise_independence,
    noise_size,
    scenario_of,
)
from safexplain.verdict.stats import epsilon_lower_bound

STEPS, COORDINATES, NUMBERS = [f"step {i}" for i in range(20)], list("abcdef"), np.array([4, 2])


def noise(scale=1.0, runs=4, seed=0):
    """(runs, 20 steps, 6 coordinates), over the claimed standard deviation."""
    return scale * np.random.default_rng(seed).normal(size=(runs, 20, 6))


def size_of(z):
    """The check, with two tensors of four and two numbers."""
    squares = np.stack([(z[:, :, :4] ** 2).sum(2), (z[:, :, 4:] ** 2).sum(2)], axis=2)
    return noise_size(z, squares, NUMBERS, STEPS, COORDINATES)


def test_noise_that_is_smaller_than_claimed_in_one_coordinate_is_found_there():
    right, wrong = noise(runs=200), noise(runs=200)
    wrong[:, :, 4] *= 0.7
    assert (size_of(right).passed, size_of(wrong).passed) == (True, False)
    assert "in e at most 0.7" in size_of(wrong).says
    assert "0.996 of the claimed standard deviation" in size_of(right).says


def test_the_size_of_noise_is_the_largest_that_is_likely_enough_where_that_is_smallest():
    z = noise(0.97)
    largest = []
    for squares in (*(z**2).sum((0, 2)), *(z**2).sum((0, 1)), (z[:, :, :4] ** 2).sum(), (z[:, :, 4:] ** 2).sum()):
        largest.append(squares)
    of = np.r_[np.full(20, 4 * 6), np.full(6, 4 * 20), 4 * 20 * 4, 4 * 20 * 2]
    tests = np.r_[np.full(20, 20), np.full(6, 6), 2, 2]
    slow = np.sqrt(np.array(largest) / distributions.chi2.ppf(1e-6 / tests, of))
    assert size_of(z).found == pytest.approx(1 / slow.min()) == pytest.approx(0.81391, abs=1e-5)


def test_noise_of_another_distribution_is_found_and_little_noise_is_not_judged():
    draw = np.random.default_rng
    right = noise_distribution(noise(), draw(1))
    assert (right.passed, right.found) == (True, pytest.approx(0.82198, abs=1e-4))
    assert not noise_distribution(draw(0).laplace(size=(40, 20, 6)), draw(1)).passed
    few = np.where(np.arange(480).reshape(4, 20, 6) < 100, noise(), 0.0)
    assert noise_distribution(few, draw(1)).found is not None
    few.flat[0] = 0.0
    assert noise_distribution(few, draw(1)).found is None


@pytest.mark.parametrize(
    ("where", "tied"),
    [
        ("two trainings", lambda z: np.repeat(z, 2, axis=0)),
        ("steps 1 apart", lambda z: np.repeat(z[:, ::2], 2, axis=1)),
        ("two coordinates", lambda z: z[:, :, [0, 0, 2, 3, 4, 5]]),
    ],
)
def test_noise_that_is_used_again_is_found(where, tied):
    z = noise(runs=20, seed=2)
    right = noise_independence(noise(), np.random.default_rng(1))
    assert (right.passed, right.found, right.allowed) == (
        True,
        pytest.approx(2.0931, abs=1e-3),
        pytest.approx(8.951, abs=1e-3),
    )
    alone = noise_independence(noise(runs=4, seed=6)[:, :2, :1], np.random.default_rng(1))
    assert (alone.passed, alone.found) == (True, pytest.approx(0.7248, abs=1e-3))  # of one coordinate
    wrong = noise_independence(tied(z), np.random.default_rng(1))
    assert not wrong.passed
    assert where in wrong.says


def checks_of(drawn, mechanism):
    """Rate, and whether batches are drawn anew."""
    return tuple(batches_drawn(drawn, mechanism))


def test_batches_of_the_claimed_rate_pass_and_larger_ones_and_shuffled_ones_fail():
    rng, mechanism = np.random.default_rng(3), Steps(1.0, 0.2, 30)
    poisson = rng.random((5, 30, 40)) < 0.2
    rate, anew = checks_of(poisson, mechanism)
    often = poisson.sum((0, 1))
    likely = min(
        distributions.binom.sf(often.sum() - 1, 5 * 30 * 40, 0.2),
        40 * distributions.binom.sf(often.max() - 1, 5 * 30, 0.2),
    )
    assert (rate.passed, anew.passed) == (True, True)
    assert rate.found == pytest.approx(-np.log10(likely))
    each = np.zeros((5, 30, 40), dtype=bool)
    each.reshape(150, 40)[:33] = True  # no record is in strikingly many batches, but all together are
    all_of_them = -distributions.binom.logsf(33 * 40 - 1, 150 * 40, 0.2) / np.log(10)
    rate = checks_of(each, mechanism)[0]
    assert rate.found == pytest.approx(all_of_them)
    assert rate.says == "a record was in 0.22 of the batches, the most frequent one in 0.22; claimed is 0.2"
    assert (rate.allowed, anew.allowed) == (pytest.approx(6.0), pytest.approx(1.5 * distributions.norm.isf(1e-6 / 16)))
    assert not checks_of(rng.random((5, 30, 40)) < 0.26, mechanism)[0].passed
    fixed = np.argsort(rng.random((40, 30, 40)), axis=2) < 8
    assert not checks_of(fixed, mechanism)[1].passed
    assert checks_of(fixed, Steps(1.0, 0.2, 30, "fixed-size"))[1].passed
    sizes = np.where(np.arange(40 * 30).reshape(40, 30) % 2, 7, 9)  # squared deviations are 1 / 6.4 of Poisson batches'
    alike = checks_of(np.argsort(rng.random((40, 30, 40)), axis=2) < sizes[..., None], mechanism)[1]
    assert alike.says == "batches are more alike in size than Poisson batches"
    assert alike.found == pytest.approx(np.sqrt(1200 / (2 + 0.04 / 6.4)) * (1 - 1 / 6.4))
    same = np.repeat(poisson[:, :1], 30, axis=1)
    assert "steps have like batches" in checks_of(same, mechanism)[1].says


FULL = Claim(Steps(22.3557, 1.0, 500, "full-batch"), 1e-5)
"""Epsilon 10 under substitution, 4.38 under add/remove; bounds of full batches need no composition."""


def result(errors: int, runs: int = 2000, claim: Claim = FULL, **changes: Any) -> CanaryResult:
    """As many errors on D as on D'."""
    counts = Errors(500, 0.0, errors, runs // 2, errors, runs // 2)
    fields = {"scenario": "gradient", "method": "pld", "confidence": 0.95, "runs": runs, "seconds": 10.0, **changes}
    return CanaryResult(claim=claim, errors=(counts,), **fields)


@pytest.mark.parametrize(
    ("errors", "runs", "verdict", "code"),
    [(0, 2000, "refuted", 1), (185, 2000, "not refuted", 3), (0, 16, "not refuted", 3)],
)
def test_the_verdict_follows_from_the_bound_and_the_claim(errors, runs, verdict, code):
    found = result(errors, runs)
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert f"at least {found.epsilon_lower:.2f}" in found.sentence
    assert found.sentence.startswith(f"{verdict.capitalize()}: epsilon")


def test_what_is_not_refuted_says_from_which_epsilon_on_it_would_have_been_found():
    strong, weak, blind = result(185), result(330), result(495)
    assert FULL.substitute < strong.detectable < weak.detectable
    assert f"leaks {strong.detectable:.2g} or more would have been detected in 95 of 100" in strong.sentence
    assert blind.detectable is None
    assert "would not have detected even a training without noise" in blind.sentence


def test_who_promised_the_smaller_epsilon_for_records_has_not_kept_it():
    """185 errors show more than an added or removed record's epsilon, and less than a substituted one's."""
    found = result(185)
    assert found.claim.add_remove < found.epsilon_lower < found.claim.substitute
    assert "4.38, does not protect its contents" in found.sentence
    promised = result(185, claim=replace(FULL, adjacency="add_remove"))
    assert (promised.verdict, promised.exit_code) == ("refuted", 1)
    assert "which does not protect what a record contains" in promised.sentence


def test_a_promised_epsilon_goes_before_the_accounted_one():
    claim = replace(FULL, epsilon=5.0)
    assert (claim.substitute, claim.add_remove) == (5.0, pytest.approx(4.378, abs=2e-3))
    assert result(185, claim=claim).verdict == "refuted"
    assert replace(claim, adjacency="add_remove").add_remove == 5.0


def test_without_a_mechanism_an_epsilon_is_audited_alone():
    claim = Claim(None, 1e-5, epsilon=2.0)
    found = result(0, claim=claim, method="clopper-pearson")
    assert (found.claim.substitute, found.claim.add_remove) == (2.0, None)
    assert found.verdict == "refuted"
    with pytest.raises(ConfigurationError, match=r"pld.*needs a claim with a mechanism"):
        result(0, claim=claim)


def test_the_claim_after_fewer_steps_is_smaller():
    half = FULL.after(250)
    assert half.substitute < FULL.substitute
    assert half.substitute == pytest.approx(epsilons(22.3557, 1.0, 250, 1e-5, sampling="full-batch").substitute)
    assert FULL.after(500) is FULL


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mechanism": None}, "needs a mechanism"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"adjacency": "zero_out"}, "substitute records"),
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
    assert (split.ceiling < found.ceiling, split.seconds) == (True, 0.0)


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
        ({"verdict": "as claimed"}, "verdict"),
        ({"detectable": 8.0}, "detectable says 8.0"),
        ({"runs": 10}, "at most the 10 runs"),
        ({"claim": {}}, "claim"),
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


def test_the_finding_that_decides_refutes_or_else_is_the_white_box_or_else_the_strongest_canary():
    bug, strong, weak, blind = result(0), result(185), result(330), result(495)
    seen = WhiteBoxResult(FULL, (Check("steps", 500, 500, "500 noisy sums were released"),), 5, 1.0)
    assert decisive([weak, strong, bug, seen]) is bug
    assert decisive([weak, seen, strong]) is seen
    with pytest.raises(FrozenInstanceError):
        seen.checks = ()
    assert decisive([blind, weak, strong]) is strong
    assert decisive([blind, weak]) is weak
    with pytest.raises(InputError, match="at least one finding"):
        decisive([])


def seen(**changes: Any) -> WhiteBoxResult:
    """All checks passed, but for the `changes`, by name."""
    checks = {"steps": (500, 500), "sensitivity": (1.0, 1.01), "size of the noise": (0.98, 1.01)}
    found = {**checks, **changes}
    return WhiteBoxResult(FULL, tuple(Check(n, f, a, f"{n} is {f}") for n, (f, a) in found.items()), 40, 2.0)


def test_only_a_white_box_of_which_every_check_passed_says_as_claimed():
    assert (seen().verdict, seen().exit_code) == ("as claimed", 0)
    assert seen().epsilon_seen == pytest.approx(FULL.substitute, rel=1e-6)
    part = seen(batches=(None, 0.0))
    assert (part.verdict, part.exit_code) == ("not refuted", 3)
    assert "batches is None" in part.sentence
    wrong = seen(sensitivity=(2.0, 1.01), batches=(None, 0.0))
    assert (wrong.verdict, wrong.exit_code) == ("refuted", 1)
    assert wrong.epsilon_seen == pytest.approx(epsilons(22.3557 / 2, 1.0, 500, 1e-5, sampling="full-batch").substitute)
    assert "sensitivity is 2.0" in wrong.sentence
    assert seen(released=(1.0, 0.0)).epsilon_seen is None


@pytest.mark.parametrize("found", [seen(), seen(batches=(None, 0.0)), seen(sensitivity=(2.0, 1.01))], ids=str)
def test_a_white_box_survives_json_and_is_judged_again(found):
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert finding_of(content) == found
    with pytest.raises(InputError, match="verdict"):
        finding_of({**content, "verdict": "refuted" if found.exit_code != 1 else "as claimed"})
    content["checks"][0]["passed"] = False
    with pytest.raises(InputError, match="steps"):
        finding_of(content)
