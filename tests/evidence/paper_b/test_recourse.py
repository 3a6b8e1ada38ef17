"""audit/suites/paper_b_recourse: data prepared by public rows only, figures that mean what they say, quick runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from evidence import twice
from sklearn.linear_model import LogisticRegression

from audit.shared.run import RESULTS
from audit.suites.paper_b_recourse import (
    cells,
    conditions,
    dpm,
    evidence,
    networks,
    tables,
    tasks,
)

SMALL = tasks.synthetic(20, rows=400, public=50)


def raw(n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(3, 5, (n, d)), rng.integers(0, 2, n)


def test_no_private_row_changes_another_ones_numbers():
    x, y = raw()
    order = np.random.default_rng(0xDA7A).permutation(len(x))
    private, other = order[50], order[60]
    changed = x.copy()
    changed[private] = 1e6
    plain, moved = (tasks.prepared(given, y, 40, {}) for given in (x, changed))
    same = np.arange(len(plain.x)) != 10
    assert np.array_equal(plain.x[same], moved.x[same])
    assert not np.array_equal(plain.x[10], moved.x[10])
    assert other != private
    changed[order[0]] = 1e6  # a public row does
    assert not np.allclose(tasks.prepared(changed, y, 40, {}).x[same], plain.x[same])


# --------------------------------------------------------------------------------------------------------------- cells


def test_balanced_accuracy_is_reported_where_the_threshold_was_not_chosen():
    rng = np.random.default_rng(0)
    covered, highest = [], []
    for seed in range(60):
        member = rng.random(200) < 0.5
        found = cells.balanced_accuracy(rng.normal(size=200), member, np.arange(200) % 5, seed)
        covered.append(found["low"] <= 0.5 <= found["high"])
        highest.append(found["value"])
    assert np.mean(covered) > 0.9
    assert abs(np.mean(highest) - 0.5) < 0.02  # the best over all thresholds would be about .56
    member = np.arange(200) % 2 == 0
    assert cells.balanced_accuracy(member * 1.0, member, np.arange(200) // 50)["value"] == 1.0


def test_guesses_that_stand_and_fall_with_their_model_are_not_counted_one_by_one():
    """Randomised response with one coin a model: honestly 1-DP, and often above its ceiling if examples were coins."""
    rng, ceiling = np.random.default_rng(0), conditions.ceiling(1.0)
    models, above = 20, {"low": 0, "low_by_model": 0}
    for seed in range(60):
        model, member = rng.integers(models, size=4000), rng.random(4000) < 0.5
        truthful = rng.random(models) < ceiling
        found = cells.balanced_accuracy(1.0 * (member == truthful[model]), member, model, seed)
        for name in above:
            above[name] += found[name] > ceiling
    assert above["low"] > 15
    assert above["low_by_model"] <= 5
    assert cells.lowest_mean([0.7]) == 0.0


def test_a_cell_says_what_was_promised_found_and_worth():
    plan, stages = tasks.Plan(tasks.heloc, models=4, size=30, repeats=3), []
    task = tasks.synthetic(60, rows=300, public=50)
    by_title = {c.title: c for c in conditions.CONDITIONS}
    found = {
        title: cells.cell(task, plan, by_title[title], 0, lambda *stage: stages.append(stage))
        for title in (evidence.BASELINE, "Laplace recourse, as published, epsilon 0.5", "DPModelRecourse, epsilon 0.5")
    }
    plain, as_published, private = found.values()
    assert (plain["ceiling"], plain["guarantee"]) == (None, None)
    assert plain["members_a_model"] == 30
    assert plain["train_accuracy"] == 1.0 > plain["test_accuracy"]
    assert not as_published["guarantee"]["is_private"]
    assert as_published["ceiling"] == pytest.approx(0.6225, abs=1e-3)
    assert as_published["use"]["cosine_of_one_answer"] == pytest.approx(1)
    assert private["use"]["cosine_of_one_answer"] < 0.6
    assert private["guarantee"]["per"] == "model"
    one = [tables.named(c, "DirectionDensity", "one_answer_margin")["auc"] for c in found.values()]
    assert min(one[:2]) > 0.7 > one[2]
    averaged = [tables.named(c, "AveragingAttack", "averaged_distance") is not None for c in found.values()]
    assert averaged == [False, True, False]  # only answers with noise of their own are asked for again
    assert stages[-1] == ("asking", 4, 4)


def test_the_noise_of_each_release_is_that_of_its_formula():
    """Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2, with numbers put in by hand."""
    norm, n = 2**0.5, 1000
    half = 0.25 * norm / np.expm1(0.25)
    # 0.6.3 at epsilon 1: 1 - 2 log(1 + .3536 / .5) < 0, so half of epsilon pays for a further penalty
    assert dpm.RELEASES["0.6.3"].noise(1.0, n, norm) == pytest.approx((2 * norm / 0.5, half - 0.5))
    # 0.6.5: the same beside an average of losses
    assert dpm.RELEASES["0.6.5"].noise(1.0, n, norm) == pytest.approx((2 * norm / 0.5, half - 0.5 / n))
    # 0.6.6: 1 - 2 log(1.35355) = .39453 is left, and everything is divided by n
    scale, further = dpm.RELEASES["0.6.6"].noise(1.0, n, norm)
    assert (scale, further) == (pytest.approx(2 * norm / 0.394533 / n, rel=1e-4), 0.0)


def test_without_noise_every_release_is_scikit_learns_regression():
    x, y = SMALL.x[:200], SMALL.y[:200]
    plain = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(x, y)
    for release in dpm.RELEASES.values():
        w, bias = release.fit(x, y, np.inf, np.random.default_rng(0))
        assert w == pytest.approx(plain.coef_[0], abs=0.01)
        assert bias == pytest.approx(plain.intercept_[0], abs=0.01)


def test_the_24_numbers_fit_80_rows_and_no_release_on_5000():
    found = json.loads((RESULTS / "recourse_dpm.json").read_text())["explained"]
    assert {count["of"] for count in found.values()} == {24}
    together = {name: count["train"] + count["test"] for name, count in found.items()}
    assert together["0.6.3, 80 rows"] == max(together.values())
    assert max(together[f"{name}, 5000 rows"] for name in dpm.RELEASES) < together["0.6.3, 80 rows"] - 2


def test_more_epsilon_brings_laplace_recourse_nearer_and_not_near():
    """Figure 5: "approaches the baseline"; at epsilon 20 a quarter of the answers is still at the clamp."""
    found = json.loads((RESULTS / "recourse_distances.json").read_text())["results"]
    for rows in ("5,000 rows", "80 rows"):
        cells_of = found[f"figure 5: d = 100, {rows}"]["cells"]
        each = [cells_of[f"Laplace recourse, as published, epsilon {e}"] for e in (5, 10, 20)]
        away = [c["from_baseline"] for c in each]
        assert away == sorted(away, reverse=True)
        assert each[-1]["clamped"] > 0.2
        assert away[-1] > 0.15 > 10 * cells_of["DPModelRecourse, epsilon 20"]["from_baseline"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recourse")
    return twice("audit.suites.paper_b_recourse.evidence", folder)


@pytest.mark.slow
def test_the_suite_runs_resumes_and_reports_every_condition(quick):
    first, again = quick
    assert set(first["results"]) == set(tasks.QUICK)
    for name, result in first["results"].items():
        assert set(result["cells"]) == {c.title for c in conditions.CONDITIONS}
        assert again["results"][name]["cells"] == result["cells"]
        for title, cell in result["cells"].items():
            assert (cell["guarantee"] is None) == (title == evidence.BASELINE)
            for attack in cell["attacks"]:
                assert attack["auc_low"] <= attack["auc"] <= attack["auc_high"]
                assert attack["curve"] == sorted(attack["curve"])
    assert first["published"] == again["published"]
    for name, make in tables.TABLES.items():
        lines = make(first).splitlines()
        assert len(lines) > 2, name
        assert len({line.count("|") for line in lines}) == 1, name


@pytest.mark.slow
def test_the_suite_of_networks_runs_and_resumes(tmp_path):
    found = twice("audit.suites.paper_b_recourse.networks", tmp_path)
    cells = found[0]["results"]["breast cancer"]["cells"]
    assert set(cells) == {c.title for c in networks.CONDITIONS}
    assert found[1]["results"]["breast cancer"]["cells"] == cells
    assert tables.networks(found[0]).count("\n") == len(cells) + 1
