"""audit/suites/paper_b_recourse: figures that mean what they say, and a published mechanism that is not private."""

import numpy as np
import pytest
from privacy_oracle import two_gaussians
from sklearn.linear_model import LogisticRegression

from audit.suites.paper_b_recourse import cells, conditions, evidence, tables, tasks
from audit.suites.paper_b_recourse.as_published import AsPublishedLaplace


def test_no_private_row_changes_another_ones_numbers():
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 5, (300, 6)), rng.integers(0, 2, 300)
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


def plain(n=400, d=6, seed=0, **options):
    X, y = two_gaussians(n, d, seed)
    return LogisticRegression(**options).fit(X, y), X


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize(("epsilon", "published_formula"), [(0.01, True), (1.0, False)])
def test_one_answer_tells_the_direction_of_the_weights_exactly(epsilon, published_formula):
    model, X = plain()
    answer = AsPublishedLaplace(model, epsilon=epsilon, published_formula=published_formula).explain(X)
    asked = ~answer.favourable
    assert asked.sum() > 50
    for change in answer.change[asked]:
        assert abs(cosine(change, model.coef_[0])) > 1 - 1e-12


def test_the_length_follows_the_published_steps():
    model, X = plain()
    mechanism = AsPublishedLaplace(model, epsilon=2.0, random_state=5, score_bound=30.0)
    answer = mechanism.explain(X)
    noise = np.random.RandomState(5).randint(0, 2**32, size=4, dtype=np.uint32)
    noisy = model.predict_proba(X)[:, 1] + np.random.default_rng(noise).laplace(scale=0.5, size=len(X))
    clamped = np.clip(noisy, 0, 1)
    with np.errstate(divide="ignore"):
        score = np.log(clamped / (1 - clamped))
    finite = np.isfinite(score)
    np.testing.assert_allclose(answer.score[finite], score[finite], rtol=1e-9, atol=1e-9)
    assert (answer.score[~finite] == np.sign(score[~finite]) * 30).all()
    unit = model.coef_[0] / np.linalg.norm(model.coef_)
    asked = score < 0
    np.testing.assert_allclose(answer.change[asked], -answer.score[asked][:, None] * unit, rtol=1e-9, atol=1e-12)
    assert (answer.change[~asked] == 0).all()
    np.testing.assert_allclose(answer.distance[asked], np.abs(answer.score[asked]), rtol=1e-9)
