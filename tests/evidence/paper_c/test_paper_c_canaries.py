"""audit/suites/paper_c_canaries: what they compute beside the library is right, and they run."""

import numpy as np
import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from dp_accounting import get_epsilon_gaussian
from evidence import needs, run, twice
from scipy.special import ndtri

from audit.suites.paper_c_canaries import figure2, images, runs
from safexplain._privacy_loss import epsilons
from safexplain.verdict.canaries.claim import SCENARIOS
from safexplain.verdict.stats import clopper_pearson


def one_threshold(a, b, threshold, delta):
    fpr = clopper_pearson(int((b >= threshold).sum()), len(b))[1]
    fnr = clopper_pearson(int((a < threshold).sum()), len(a))[1]
    mu = ndtri(1 - fpr) - ndtri(fnr)
    return get_epsilon_gaussian(1 / mu, delta) if mu > 0 else 0.0


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_papers_estimator_is_the_best_of_all_thresholds_one_after_another(shift):
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(shift, 1, 70), 1), np.round(rng.normal(-shift, 1, 60), 1)  # with ties
    slow = max(one_threshold(a, b, t, 1e-5) for t in np.unique([*a, *b]))
    assert figure2.highest_over_thresholds(a, b, 1e-5) == pytest.approx(slow, rel=1e-9)
    assert slow >= one_threshold(a, b, 0.0, 1e-5)


def test_the_noise_of_the_papers_code_is_for_the_epsilons_of_its_figure():
    for rate, noise in figure2.NOISE.items():
        for target, sigma in zip(figure2.TARGETS, noise, strict=True):
            assert epsilons(sigma, rate, figure2.STEPS, figure2.DELTA).substitute == pytest.approx(target, abs=0.03)


def results(curve, verdict="not refuted", scenario="gradient", rate="1"):
    estimator = {"mean": curve[-1], "curve": curve}
    cell = {"paper_estimator": estimator, "repeats": [{"verdict": verdict}]}
    return {"task": {"rates": {rate: {"add_remove": [1.0, 4.0], "cells": {scenario: cell}}}}}


def test_the_threshold_of_records_is_fixed_by_runs_that_do_not_count():
    rng = np.random.default_rng(0)
    a, b = rng.normal(6, 1, (2, 100)), rng.normal(4, 1, (2, 80))
    a[1] += 10
    b[1] += 10
    found = runs.centred(runs.Scores((1, 2), a, b), share=0.25)
    assert found.d.shape == (2, 80)
    assert found.d_prime.shape == (2, 60)
    assert np.ptp(a[:, 20:] - found.d, axis=1) == pytest.approx(0)  # one threshold a step, the same for D and D'
    assert (a[:, 20:] - found.d)[:, 0] == pytest.approx((b[:, 20:] - found.d_prime)[:, 0])
    assert (a[:, 20] - found.d[:, 0]) == pytest.approx([5, 15], abs=0.5)
    a[:, 20:] += 100
    again = runs.centred(runs.Scores((1, 2), a, b), share=0.25)
    assert np.array_equal(again.d_prime, found.d_prime)  # what is counted has no say in where


@pytest.mark.slow
def test_figure_2_runs_quickly(tmp_path):
    quick = ("--quick", "--runs", 400, "--repeats", 1, "--cache", tmp_path)
    done, found = run("audit.suites.paper_c_canaries.figure2", *quick, out=tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert len(found["cells"]) == 15
    for cell in found["cells"].values():
        assert cell["add_remove"] < cell["substitute"] < cell["group_privacy"]
        assert len(cell["bounds"]) == 1 + len(figure2.BOUNDS)


def resumes(name, folder, *more):
    first, again = twice(f"audit.suites.paper_c_canaries.{name}", folder, *more)
    for task, found in first["results"].items():
        assert found["rates"] == again["results"][task]["rates"]
    assert len(first["published"]) >= 3
    for _, _, scenario, at, cell in runs.cells_of(first["results"]):
        assert scenario in SCENARIOS
        for one in cell["repeats"]:
            assert len(one["curve"]) == len(one["ceilings"]) == len(at["steps"]) == len(at["substitute"])
            assert one["curve"][-1] == pytest.approx(one["epsilon_lower"], abs=1e-5)
            assert all(low <= most for low, most in zip(one["curve"], one["ceilings"], strict=True))
    return first["results"]


@pytest.mark.slow
@needs("cifar10.npz", f"weights/{images.NETS['quick']}.npz")
def test_figure_3_runs_quickly_and_resumes(tmp_path):
    found = resumes("figure3", tmp_path)
    assert found.keys() == {"10 classes", "one logit"}
    assert found["10 classes"]["rates"].keys() == {"1", "0.25"}
    assert len(found["one logit"]["rates"]["1"]["cells"]) == 4


@pytest.mark.slow
@needs("location30.npz")
def test_training_from_scratch_runs_quickly_and_resumes(tmp_path):
    found = resumes("scratch", tmp_path)
    assert found["location30"]["rates"]["0.25"]["cells"].keys() == {"gradient", "crafted", "mislabelled"}
