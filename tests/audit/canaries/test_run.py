"""From a setting and a scenario to a verdict: many runs, or one with many canaries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from safexplain.audit.canaries.run import PRESETS, Setting, preset, run_canaries, worst_case_scores
from safexplain.dp import FlatClipping, Steps
from safexplain.dp.heads import HeadRecipe
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import Claim, judge

STEPS = Steps(3.6, 1.0, 20, "full-batch")
"""Epsilon 13.1 under substitution, 5.6 under add/remove; full batches need no composition."""


def setting(records: int = 60, features: int = 12, **changes: object) -> Setting:
    """Two clouds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (2 * records,), generator=generator)
    x = torch.randn(2 * records, features, generator=generator) + y[:, None]
    recipe = HeadRecipe(
        classes=2, steps=STEPS.steps, sample_rate=1.0, expected_batch_size=records, clipping=FlatClipping(1.0), lr=0.5
    )  # fmt: skip
    made = Setting(
        "clouds", x[:records], y[:records], recipe, Claim(STEPS, 1e-5),
        auxiliary=(x[records:], y[records:]),
    )  # fmt: skip
    return replace(made, **changes)


SCENARIOS = ("worst-case", "gradient", "crafted", "mislabelled", "natural")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_gives_a_bound_that_a_right_training_keeps(scenario):
    found = run_canaries(setting(), scenario, runs=400, every=10)
    assert found.scenario == scenario
    assert [e.step for e in found.errors] == [10, 20]
    assert 0 <= found.epsilon_lower <= found.claim.substitute
    assert found.runs == 400
    assert found.errors[-1].positives == (200 if scenario in ("worst-case", "gradient") else 140)
    assert found.setting["records"] == 60


def test_less_noise_than_claimed_is_a_bug_that_shows():
    made = setting()
    claim = Claim(replace(STEPS, noise_multiplier=7.2), 1e-5)
    quiet = run_canaries(replace(made, claim=claim), "gradient", runs=1000)
    assert quiet.verdict != "refuted"
    loud = replace(run_canaries(made, "gradient", runs=1000), claim=claim)
    assert loud.verdict == "refuted"
    assert loud.exit_code == 1


def test_the_same_seed_gives_the_same_result_and_another_one_does_not():
    first, again, other = (run_canaries(setting(), "mislabelled", runs=60, seed=s).errors for s in (1, 1, 2))
    assert first == again != other


def test_finished_runs_are_taken_from_the_cache(tmp_path):
    fresh = run_canaries(setting(), "crafted", runs=60, cache=tmp_path)
    stored = sorted(tmp_path.rglob("*.npz"))
    assert stored
    times = [path.stat().st_mtime_ns for path in stored]
    assert run_canaries(setting(), "crafted", runs=60, cache=tmp_path).errors == fresh.errors
    assert [path.stat().st_mtime_ns for path in stored] == times


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_training_that_claims_what_its_row_says(name):
    made = preset(name)
    row = PRESETS[name]
    assert made.x.shape == (row.records, row.features)
    assert made.claim.substitute == pytest.approx(10.0, rel=1e-3)
    assert torch.equal(made.x, preset(name).x)
    assert made.network.parameters == {"logit-768": 768, "logit-384": 384}.get(name, made.network.parameters)


def test_an_unknown_preset_is_refused_with_a_list():
    with pytest.raises(ConfigurationError, match="logit-768"):
        preset("vit")


def nan(x: Tensor) -> Tensor:
    y = x.clone()
    y[0, 0] = np.nan
    return y


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda s: {"x": nan(s.x)}, InputError, "NaN"),
        (lambda s: {"y": s.y + 5}, InputError, "labels 0 to 1"),
        (lambda s: {"initial": torch.zeros(3)}, InputError, "initial: expected 26 numbers"),
        (lambda s: {"claim": Claim(replace(STEPS, steps=7), 1e-5)}, ConfigurationError, "20 steps"),
        (lambda s: {"recipe": replace(s.recipe, clipping=None)}, ConfigurationError, "clipping"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, error, says):
    made = setting()
    with pytest.raises(error, match=says):
        replace(made, **change(made))


def test_wrong_options_are_refused_before_anything_is_trained():
    made = setting()
    for options, says in (
        ({"scenario": "S7"}, "scenario"),
        ({"method": "guess"}, "method"),
        ({"runs": 1}, "runs"),
        ({"runs": 60, "every": 21}, "every"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            run_canaries(made, **options)
    with pytest.raises(InputError, match="auxiliary"):
        run_canaries(replace(made, auxiliary=None), "natural", runs=20)


MECHANISM = Steps(5.5728, 0.25, 500)


def slowly(mechanism: Steps, runs: int, sign: int, rng: np.random.Generator) -> np.ndarray:
    """Step by step."""
    total = np.zeros(runs)
    for _ in range(mechanism.steps):
        total += sign * (rng.random(runs) < mechanism.sample_rate)
        total += rng.normal(0, mechanism.noise_multiplier, runs)
    return total


def test_sums_have_the_distribution_of_the_steps_taken_one_by_one():
    rng = np.random.default_rng(0)
    fast = worst_case_scores(MECHANISM, 20_000, every=250, rng=rng)
    assert stats.ks_2samp(fast.d[-1], slowly(MECHANISM, 5000, 1, rng)).pvalue > 0.01
    assert stats.ks_2samp(fast.d_prime[-1], slowly(MECHANISM, 5000, -1, rng)).pvalue > 0.01
    assert stats.ks_2samp(fast.d[-1], slowly(Steps(5.5728, 0.2, 500), 5000, 1, rng)).pvalue < 1e-6
    half = Steps(5.5728, 0.25, 250)
    assert stats.ks_2samp(fast.d[0], slowly(half, 5000, 1, rng)).pvalue > 0.01


def test_the_worst_case_proves_more_than_the_smaller_epsilon_and_no_more_than_the_larger():
    scores = worst_case_scores(MECHANISM, 5000, rng=np.random.default_rng(1))
    found = judge(scores, Claim(MECHANISM, 1e-5), scenario="worst-case", threshold=0.0)
    assert found.claim.add_remove < 7.5 < found.epsilon_lower < found.claim.substitute
    louder = worst_case_scores(Steps(2.5, 0.25, 500), 5000, rng=np.random.default_rng(1))
    assert judge(louder, Claim(MECHANISM, 1e-5), scenario="worst-case", threshold=0.0).verdict == "refuted"


def test_audited_steps_end_with_the_last():
    for steps, every, audited in ((500, None, (500,)), (10, 4, (4, 8, 10)), (8, 4, (4, 8))):
        found = worst_case_scores(Steps(1.0, 0.25, steps), 4, every=every, rng=np.random.default_rng(0))
        assert found.steps == audited


@pytest.mark.parametrize(
    ("mechanism", "runs", "every", "says"),
    [(MECHANISM, 3, None, "even number"), (Steps(0.0, 0.25, 5), 10, None, "noise")],
)
def test_what_cannot_be_drawn_is_refused(mechanism, runs, every, says):
    with pytest.raises(ConfigurationError, match=says):
        worst_case_scores(mechanism, runs, every=every, rng=np.random.default_rng(0))
