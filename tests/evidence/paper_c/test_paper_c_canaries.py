"""audit/suites/paper_c_canaries: what they compute beside the library is right, and they run."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from dp_accounting import get_epsilon_gaussian
from evidence import needs, twice
from scipy.special import ndtri

from audit.shared.run import RESULTS, Run, Unusable
from audit.suites.bound_errors.suite import best_of_all
from audit.suites.paper_c_canaries import images, runs, scratch, tasks
from safexplain.verdict.canaries.claim import SCENARIOS
from safexplain.verdict.canaries.result import counted
from safexplain.verdict.stats import clopper_pearson


def one_threshold(a, b, threshold, delta):
    fpr = clopper_pearson(int((b >= threshold).sum()), len(b))[1]
    fnr = clopper_pearson(int((a < threshold).sum()), len(a))[1]
    mu = ndtri(1 - fpr) - ndtri(fnr)
    return get_epsilon_gaussian(1 / mu, delta) if mu > 0 else 0.0


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_the_papers_estimator_is_the_best_of_all_thresholds_one_after_another(shift):
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(shift, 1, 70), 1), np.round(rng.normal(-shift, 1, 60), 1)  # with ties
    slow = max(one_threshold(a, b, t, 1e-5) for t in np.unique([*a, *b]))
    assert best_of_all(a, b) == pytest.approx(slow, rel=1e-9)
    assert slow >= one_threshold(a, b, 0.0, 1e-5)


def test_the_papers_estimator_has_no_orientation_to_gain_from():
    rng = np.random.default_rng(2)
    a, b = rng.normal(2, 1, 200), rng.normal(-2, 1, 200)
    assert best_of_all(a, b) > 5
    assert best_of_all(b, a) == 0.0


def results(curve, verdict="not refuted", scenario="gradient", rate="1"):
    estimator = {"mean": curve[-1], "curve": curve}
    cell = {"paper_estimator": estimator, "repeats": [{"verdict": verdict}]}
    return {"task": {"rates": {rate: {"add_remove": [1.0, 4.0], "cells": {scenario: cell}}}}}


def test_a_curve_that_never_leaves_add_remove_behind_is_weak():
    assert runs.weak(results([0.5, 6.0]), ["gradient"], ["1"]) == []
    assert runs.weak(results([1.5, 0.0]), ["gradient"], ["1"]) == []  # it did so at an earlier step
    assert len(runs.weak(results([0.5, 3.0]), ["gradient"], ["1"])) == 1
    assert runs.weak(results([0.5, 3.0]), ["crafted"], ["1"]) == []
    assert runs.weak(results([0.5, 3.0]), ["gradient"], ["0.25"]) == []


def test_a_bound_that_no_correct_training_gives_is_named():
    assert runs.impossible(results([0.5, 6.0])) == []
    assert len(runs.impossible(results([0.5, 12.0], verdict="refuted"))) == 1


def test_inputs_from_scratch_are_expected_to_stay_within_add_remove():
    assert scratch.missed(results([0.5, 3.0], scenario="crafted")) == []
    assert len(scratch.missed(results([0.5, 5.0], scenario="crafted"))) == 1
    assert scratch.missed(results([0.5, 5.0], rate="0.25")) == []
    assert len(scratch.missed(results([0.5, 3.0], rate="0.25"))) == 1


def test_means_over_repeats_come_with_two_standard_errors():
    repeats = [{"curve": [1.0, v], "paper_estimator": [1.0, v + 1]} for v in (4.0, 5.0, 6.0)]
    found = runs.summary(repeats)
    assert found["epsilon_lower"]["mean"] == 5.0
    assert found["epsilon_lower"]["two_se"] == pytest.approx(2 / np.sqrt(3))
    assert found["paper_estimator"]["curve"] == [1.0, 6.0]
    assert runs.summary(repeats[:1])["epsilon_lower"]["two_se"] is None


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


def test_the_images_trained_on_are_as_many_of_each_class():
    y = np.random.default_rng(0).integers(0, 10, 400)
    rows = images.chosen(y, range(10), 7)
    assert len(rows) == len(set(rows)) == 70
    assert (np.bincount(y[rows]) == 7).all()
    assert set(y[images.chosen(y, images.PAIR, 5)]) == set(images.PAIR)


def test_features_are_standardised_by_what_is_not_trained_on():
    seen, public = torch.randn(50, 4) * 3 + 1, torch.randn(500, 4) * 3 + 1
    changed = seen.clone()
    changed[0] = 100.0  # one record more or less extreme changes no other record
    assert torch.equal(images.standardised(seen, public)[1:], images.standardised(changed, public)[1:])
    assert images.standardised(public, public).std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_setting_spends_the_epsilon_of_the_paper(rate):
    given = tasks.Training(2, 20, lr=0.01, clip=2.0, bias=False, one_logit=True)
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    setting = given.setting("some", x, y, rate)
    assert setting.claim.substitute == pytest.approx(tasks.EPSILON, abs=0.01)
    assert setting.recipe.expected_batch_size == 40 * rate
    assert setting.network.parameters == 5


def test_scores_are_known_by_their_data_and_by_the_code_that_makes_them(monkeypatch):
    given = tasks.Training(2, 5, lr=0.01, clip=2.0)
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    key = tasks.key_of(given.setting("some", x, y, 1.0), 5, 40)
    assert key == tasks.key_of(given.setting("some", x.clone(), y, 1.0), 5, 40)
    assert key != tasks.key_of(given.setting("some", x + 1, y, 1.0), 5, 40)
    assert key != tasks.key_of(given.setting("some", x, y, 0.5), 5, 40)
    assert key != tasks.key_of(given.setting("some", x, y, 1.0), 5, 60)
    monkeypatch.setattr(tasks, "code_of", lambda *_: "other code")
    assert key != tasks.key_of(given.setting("some", x, y, 1.0), 5, 40)


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


@pytest.mark.parametrize("name", ["figure3", "scratch"])
def test_committed_verdicts_are_what_the_library_says_of_their_counts(name):
    found = json.loads((RESULTS / f"canary_{name}.json").read_text())["results"]
    for *_, cell in runs.cells_of(found)[::3]:
        one = cell["repeats"][0]
        again = counted(one).to_dict()
        assert again["verdict"] == one["verdict"]
        assert again["detectable"] == (one["detectable"] and pytest.approx(one["detectable"], rel=0.05))


def test_an_unknown_task_is_named(tmp_path):
    asked = Run("some", "", ["--quick", "--only", "none", "--cache", str(tmp_path)], **runs.FLAGS)
    with pytest.raises(Unusable, match=r"'a task'.*'none'"):
        runs.report(asked, lambda _: {"a task": None}, (), lambda _: [])
