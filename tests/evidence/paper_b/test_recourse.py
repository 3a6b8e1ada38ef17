"""audit/suites/paper_b_recourse: data prepared by public rows only, figures that mean what they say, quick runs."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from evidence import DATA, ROOT, twice

from audit.shared.run import Unusable
from audit.suites.paper_b_recourse import (
    cells,
    conditions,
    evidence,
    networks,
    published,
    tables,
    tasks,
)

SMALL = tasks.synthetic(20, rows=400, public=50)


# ---------------------------------------------------------------------------------------------------------------- data


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


def test_rows_have_norm_one_and_pools_are_disjoint_from_public_rows():
    x, y = raw()
    task = tasks.prepared(x, y, 40, {"file": "none"})
    assert np.linalg.norm(task.x, axis=1) == pytest.approx(1)
    assert (len(task.public_x), len(task.x)) == (40, 260)
    assert task.source == {"file": "none", "public_rows": 40, "columns": 6, "rows": 260}
    assert len(tasks.prepared(x, y, 40, {}, rows=100).x) == 100


def test_repeated_and_constant_columns_are_dropped_once():
    x, y = raw()
    wide = np.column_stack([x, 2 * x[:, 0] + 1, -x[:, 1], np.ones(len(x))])
    assert tasks.prepared(wide, y, 40, {}).x.shape[1] == x.shape[1]
    assert tasks.distinct(wide[:, :8]).tolist() == [0, 1, 2, 3, 4, 5]


def test_synthetic_labels_can_be_learned_and_one_in_a_hundred_is_wrong():
    task = tasks.synthetic(50, rows=5000, public=100)
    native = conditions.Native.fitted(task.x[:4000], task.y[:4000])
    assert 0.9 < ((native.score(task.x[4000:]) > 0) == task.y[4000:]).mean() < 0.995
    assert abs(task.y.mean() - 0.5) < 0.03


@pytest.mark.skipif(not (DATA / "heloc.npz").is_file(), reason="heloc.npz is not there (SAFEXPLAIN_DATA)")
def test_heloc_is_read_under_both_labels():
    repaid, external = tasks.heloc(DATA), tasks.heloc_external(DATA)
    assert repaid.x.shape[1] > external.x.shape[1]
    assert abs(repaid.y.mean() - 0.48) < 0.01
    assert len(repaid.x) == len(external.x) == 9471


# ---------------------------------------------------------------------------------------------------------- conditions


def test_native_recourse_reaches_the_boundary_and_no_further():
    native = conditions.Native.fitted(SMALL.x, SMALL.y)
    answer = native.explain(SMALL.x)
    refused = ~answer.favourable
    assert native.score(answer.counterfactual[refused]) == pytest.approx(0, abs=1e-9)
    use = cells.use_of(native, native, SMALL.x)
    assert use == {"told": 1.0, "valid": 1.0, "distance": 1.0, "error": 0.0}


def test_a_mechanism_that_says_nothing_is_worth_nothing():
    native = conditions.Native.fitted(SMALL.x, SMALL.y)

    class Silent:
        def explain(self, x):
            return replace(native.explain(x), counterfactual=x.copy())

    use = cells.use_of(Silent(), native, SMALL.x)
    assert (use["told"], use["valid"]) == (0.0, 0.0)
    assert np.isnan(use["distance"])
    assert cells.mean_of([use, use])["distance"] is None


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_meets_the_ceiling_of_balanced_accuracy(epsilon):
    truthful = np.exp(epsilon) / (1 + np.exp(epsilon))
    assert conditions.ceiling(epsilon) == pytest.approx(truthful)
    assert conditions.ceiling(epsilon, 0.01) > truthful


def test_every_condition_is_fitted_on_members_only_and_seeded():
    native = conditions.Native.fitted(SMALL.x[:200], SMALL.y[:200])
    for condition in conditions.CONDITIONS:
        answers = [
            condition.mechanism(SMALL, SMALL.x[:200], SMALL.y[:200], native, 3).explain(SMALL.x[200:205]).score
            for _ in range(2)
        ]
        assert np.array_equal(*answers), condition.title
    titles = [c.title for c in conditions.CONDITIONS]
    assert len(set(titles)) == len(titles) == 11
    assert conditions.conditions(100) == list(conditions.CONDITIONS)
    few = {c.name for c in conditions.conditions(5000)}
    assert few == {evidence.BASELINE, evidence.PUBLISHED, evidence.DP_MODEL, "LaplaceScore"}


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


def test_where_answers_are_noised_one_question_is_asked_again_and_again():
    again = SMALL.questions(5, same=True)
    assert (again == again[0]).all()
    assert SMALL.public_y[(SMALL.public_x == again[0]).all(axis=1)] == [0]
    assert np.array_equal(SMALL.questions(5, same=False), SMALL.public_x[:5])


def test_a_direction_is_taken_from_the_first_answer_that_tells_one():
    native = conditions.Native.fitted(SMALL.x, SMALL.y)
    direction = cells.first_direction(native, SMALL.public_x)
    assert direction @ native.weights / np.linalg.norm(native.weights) == pytest.approx(1)

    class Contented:
        def explain(self, x):
            return replace(native.explain(x), counterfactual=x.copy())

    assert not cells.first_direction(Contented(), SMALL.public_x).any()


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


def cell_like(value, ceiling, per="model", one_answer=True, private=True):
    attack = {
        "attack": "A", "signal": "s", "one_answer": one_answer, "auc": value, "null_auc": 0.5,
        "balanced_accuracy": {
            "value": value, "low": value - 0.02, "high": value + 0.02, "low_by_model": value - 0.05
        },
    }  # fmt: skip
    return {
        "ceiling": ceiling, "guarantee": {"is_private": private, "per": per}, "attacks": [attack], "test_accuracy": 0.9,
    }  # fmt: skip


def test_attacks_beyond_an_epsilon_are_named_and_many_answers_are_not_held_to_the_epsilon_of_one():
    assert evidence.above_ceiling(cell_like(0.7, 0.62))
    assert not evidence.above_ceiling(cell_like(0.63, 0.62))  # within its interval
    assert not evidence.above_ceiling(cell_like(0.7, 0.62, per="answer", one_answer=False))
    assert evidence.above_ceiling(cell_like(0.7, 0.62, per="answer"))
    assert evidence.above_ceiling(cell_like(0.65, 0.62))
    assert not evidence.above_ceiling(cell_like(0.65, 0.62, per="answer"))  # each model is one observation there
    assert not evidence.above_ceiling(cell_like(0.9, None))


def test_missed_targets_are_named():
    def results(found, title="DPModelRecourse, epsilon 1", task="heloc"):
        return {task: {"cells": {evidence.BASELINE: cell_like(0.5, None), title: found}}}

    assert evidence.missed(results(cell_like(0.5, 0.7))) == []
    assert len(evidence.missed(results(cell_like(0.8, 0.7)))) == 1
    assert "loses 10.0 points" in evidence.missed(results(cell_like(0.5, 0.7) | {"test_accuracy": 0.8}))[0]
    biased = cell_like(0.5, 0.7)
    biased["attacks"][0]["null_auc"] = 0.6
    assert "null" in evidence.missed(results(biased))[0]
    claim = f"{evidence.PUBLISHED}, epsilon 0.5"
    broken = cell_like(0.8, 0.62, per="answer", private=False)
    assert evidence.missed(results(broken, claim, "synthetic 5000")) == []
    assert len(evidence.missed(results(cell_like(0.5, 0.62, private=False), claim, "synthetic 5000"))) == 1


def test_references_on_scored_non_members_find_members_where_there_are_none():
    task = tasks.synthetic(200, rows=1300, public=50)
    found = published.references_on_non_members(task, 300, trials=6)
    assert found["published"]["auc"] > found["disjoint"]["auc"] + 0.03
    assert abs(found["disjoint"]["auc"] - 0.5) < 0.03


def test_small_training_sets_have_the_accuracies_that_are_reported_for_5000_rows():
    found = published.sizes(tasks.synthetic(100, rows=10_000, public=50))
    reported = published.PUBLISHED["accuracy"]["synthetic 100"]["baseline"]
    assert found["80"] == pytest.approx(reported, abs=0.04)
    assert found["5000"][1] > reported[1] + 0.2


# ----------------------------------------------------------------------------------------------------------- the suite


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


@pytest.mark.slow
def test_one_answer_as_published_tells_the_weights_and_breaks_the_claim(quick):
    result = quick[0]["results"]["synthetic 100"]["cells"][f"{evidence.PUBLISHED}, epsilon 0.5"]
    assert result["use"]["cosine_of_one_answer"] == pytest.approx(1, abs=1e-6)
    assert not result["guarantee"]["is_private"]
    found = tables.named(result, "DirectionDensity", "one_answer_margin")
    assert found["balanced_accuracy"]["value"] > result["ceiling"]
    private = quick[0]["results"]["synthetic 100"]["cells"]["DPModelRecourse, epsilon 0.5"]
    assert private["use"]["cosine_of_one_answer"] < 0.5
    assert not evidence.above_ceiling(private)


@pytest.mark.slow
def test_every_table_is_written_from_the_result(quick):
    for name, make in tables.TABLES.items():
        lines = make(quick[0]).splitlines()
        assert len(lines) > 2 or name == "recourse: adult", name
        assert len({line.count("|") for line in lines}) == 1, name


def test_unknown_tasks_are_refused():
    with pytest.raises(Unusable, match="known are"):
        evidence.main(["--quick", "--task", "nothing"])


@pytest.mark.slow
def test_figures_are_drawn(quick, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    figures = importlib.import_module("make_recourse_figures")
    drawn = quick[0]["results"] | {"synthetic 1000": quick[0]["results"]["synthetic 100"]}
    (tmp_path / "found.json").write_text(json.dumps(quick[0] | {"results": drawn}))
    figures.main(["--out", str(tmp_path), "--result", str(tmp_path / "found.json")])
    far = ("recourse-distances", "recourse-distances-lrt", "recourse-distances-epsilons")
    assert {p.name for p in tmp_path.glob("*.svg")} == {
        f"{name}-{s}.svg" for name in ("recourse-synthetic", *far) for s in ("light", "dark")
    }


# ------------------------------------------------------------------------------------------------------------ networks

TEN = tasks.synthetic(10, rows=240, public=20)
PLAN = tasks.Plan(lambda _: TEN, models=4, size=None)


def quiet(*_):
    pass


def test_networks_that_know_their_members_are_found_and_private_ones_are_held_to_what_is_proven():
    by_heart = networks.measured(TEN, PLAN, networks.Condition("by heart", 60), quiet)
    private = networks.measured(TEN, PLAN, networks.Condition("private", 3, 1.0), quiet)
    assert by_heart["train_accuracy"] > by_heart["test_accuracy"] + 0.05
    assert (by_heart["stated"], by_heart["ceiling"]) == (None, None)
    assert private["stated"]["epsilon"] == pytest.approx(1.0, abs=1e-3)
    assert private["stated"]["epsilon"] <= 1.0
    assert private["ceiling"] == pytest.approx(np.e / (1 + np.e), abs=1e-3)
    names = {(a["attack"], a["signal"]) for a in by_heart["attacks"]}
    assert set(tables.OF_NETWORKS.values()) <= names
    assert by_heart["valid"] > 0.95


def test_a_condition_gives_the_same_network_again_and_another_one_for_another_seed():
    x, y = TEN.x[:80], TEN.y[:80]
    for condition in (networks.Condition("native", 2), networks.Condition("private", 2, 4.0)):
        first, again, other = (condition.trained(x, y, s).explain(x).score for s in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def network_like(auc, balanced=0.5, ceiling=None, null=0.5):
    attack = {"attack": "A", "signal": "s", "auc": auc, "auc_low": auc - 0.01, "null_auc": null,
              "balanced_accuracy": {"value": balanced, "low": balanced - 0.01}}  # fmt: skip
    return {"ceiling": ceiling, "attacks": [attack]}


def test_missed_targets_of_networks_are_named():
    def missed(found, private):
        return networks.missed({"heloc": {"cells": {networks.TO_THE_END: found, "private": private}}})

    fine = network_like(0.5, 0.5, 0.73)
    assert missed(network_like(0.7), fine) == []
    assert "by heart" in missed(network_like(0.6), fine)[0]
    assert "what is proven" in missed(network_like(0.7), network_like(0.5, 0.76, 0.73))[0]
    assert missed(network_like(0.7), network_like(0.5, 0.735, 0.73)) == []  # within its interval
    assert "null" in missed(network_like(0.7), network_like(0.5, 0.5, 0.73, null=0.6))[0]


def test_only_known_tasks_of_networks_are_run(tmp_path):
    with pytest.raises(Unusable, match="unknown tasks"):
        networks.main(["--task", "iris", "--out", str(tmp_path / "out.json")])
    assert all(networks.NETWORKS[t] == replace(tasks.TASKS[t], models=p.models) for t, p in networks.NETWORKS.items())


@pytest.mark.slow
def test_the_suite_of_networks_runs_and_resumes(tmp_path):
    found = twice("audit.suites.paper_b_recourse.networks", tmp_path)
    cells = found[0]["results"]["breast cancer"]["cells"]
    assert set(cells) == {c.title for c in networks.CONDITIONS}
    assert found[1]["results"]["breast cancer"]["cells"] == cells
    assert tables.networks(found[0]).count("\n") == len(cells) + 1
