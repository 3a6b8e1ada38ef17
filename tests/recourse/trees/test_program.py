from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from recourse_models.forests import fitted

from safexplain.errors import ConfigurationError
from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2, Percentile
from safexplain.recourse.program.solve import solve_program
from safexplain.recourse.trees.forest import OTHERWISE, Forest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0.3).astype(int)
THREE = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-0.7, 0.5])
COSTS = [L1(), L2((1.0, 2.0, 0.5)), L1(rise=2.0, fall=0.5), Percentile(RNG.normal(size=(50, 3)))]
LIMITS = [
    None,
    Constraints(3, lower=-8, upper=8, increasing=(0,), most_changes=1),
    Constraints(3, lower=-8, upper=8, immutable=(2,), step={0: 0.5}, largest_change={1: 1.0}),
]


def models():
    from sklearn import ensemble, tree

    yield tree.DecisionTreeClassifier(max_depth=4, random_state=0), X, Y
    yield ensemble.RandomForestClassifier(5, max_depth=3, random_state=0), X, THREE
    yield ensemble.RandomForestClassifier(6, max_depth=2, random_state=0), np.rint(3 * X), Y
    yield ensemble.GradientBoostingClassifier(n_estimators=6, max_depth=2, random_state=0), X, Y
    yield ensemble.HistGradientBoostingClassifier(max_iter=5, max_leaf_nodes=4, random_state=0), X, Y


def boosters():
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    yield xgboost.XGBClassifier(n_estimators=6, max_depth=2), X, Y
    yield xgboost.XGBClassifier(n_estimators=3, max_depth=2), np.rint(3 * X), THREE
    yield lightgbm.LGBMClassifier(n_estimators=5, num_leaves=4, verbose=-1), X, Y


def by_every_cell(forest, x, cost, rules):
    """Least cost of one query (d,): every combination of the values next to splits, its own and its limits."""
    rules = Constraints(len(x)) if rules is None else rules
    low, high = (side[0] for side in rules.bounds(x[None]))
    options = []
    for column in range(len(x)):
        cuts = np.concatenate([tree.threshold[tree.column == column] for tree in forest.ensemble.trees])
        cuts = np.unique(cuts[np.isfinite(cuts)])
        ends = [end for end in (low[column], high[column]) if np.isfinite(end)]
        values = np.concatenate([[x[column]], cuts, np.nextafter(cuts, np.inf), ends])
        if step := rules.grid[column]:
            steps = (values - x[column]) / step
            values = x[column] + step * np.concatenate([np.floor(steps), np.ceil(steps)])
        options.append(np.unique(np.clip(values, low[column], high[column])))
    rows = np.array(list(product(*options)))
    rows = rows[rules.satisfied(np.broadcast_to(x, rows.shape), rows)]
    good = forest.score(rows) >= 0
    return cost.distance(rows - x, np.broadcast_to(x, rows.shape))[good].min(initial=np.inf)


def check(found, forest, rules):
    """What every answer promises."""
    away = ~found.favourable
    assert forest.decide(found.counterfactual)[found.valid].all()
    if rules is not None:
        assert rules.satisfied(found.x, found.counterfactual).all()
    np.testing.assert_array_equal(found.counterfactual[away & ~found.valid], found.x[away & ~found.valid])


@pytest.mark.parametrize("which", [models, boosters])
def test_answers_are_those_of_every_combination_of_cells(which):
    for number, (model, x, y) in enumerate(which()):
        model = fitted(model, x, y)
        forest = Forest.of(model, favourable=number % 2)
        queries = x[forest.score(x) < 0][:1]
        for at, (cost, rules) in enumerate(product(COSTS, LIMITS)):
            if (at + number) % 3 == 0:
                found = solve_program(forest, queries, cost=cost, constraints=rules, time_limit=60)
                check(found, forest, rules)
                assert found.proven.all()
                for row, valid, distance in zip(queries, found.valid, found.distance, strict=True):
                    best = by_every_cell(forest, row, cost, rules)
                    assert valid == np.isfinite(best)
                    if valid:
                        assert distance == pytest.approx(best, rel=1e-6, abs=1e-12)


EXTRA = [
    {},
    {"most_changes": 2},
    {"rules": (Rule(0, 1), Rule(1, 0))},
    {"rules": (Rule(0, 2, per_unit=0.5, at_least=1), Rule(5, 1, per_unit=2)), "most_changes": 3},
    {"largest_change": {0: 2}, "step": {2: 2}, "decreasing": (4,)},
]


@pytest.mark.parametrize("extra", range(len(EXTRA)))
def test_rules_categories_and_steps_hold_beside_trees(extra):
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(extra)
    numbers = np.array(list(product(range(-3, 4), repeat=3)), dtype=float)
    every = np.vstack([np.hstack([numbers, np.tile(kind, (len(numbers), 1))]) for kind in np.eye(3)])
    y = every[:, 0] + every[:, 1] * every[:, 4] - every[:, 2] + 2 * every[:, 5] > 2
    forest = Forest.of(RandomForestClassifier(7, max_depth=4, random_state=0).fit(every, y))
    rules = Constraints(6, lower=-3, upper=3, integer=(0, 1, 2), one_hot=((3, 4, 5),), **EXTRA[extra])
    score = forest.score(every)
    queries = every[rng.choice(np.flatnonzero(score < 0), 4, replace=False)]
    for cost in (L1(rng.uniform(0.5, 2, 6)), L2(rng.uniform(0.5, 2, 6))):
        found = solve_program(forest, queries, cost=cost, constraints=rules, time_limit=60)
        check(found, forest, rules)
        assert found.proven.all()
        for row, valid, distance in zip(queries, found.valid, found.distance, strict=True):
            start = np.broadcast_to(row, every.shape)
            good = rules.satisfied(start, every) & (score >= 0)
            best = cost.distance(every - row, start)[good].min(initial=np.inf)
            assert valid == np.isfinite(best)
            if valid:
                assert distance == pytest.approx(best, rel=1e-6)


def test_codes_of_categories_stay_whole():
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(0)
    table = np.column_stack([rng.integers(0, 6, 400), rng.normal(size=400)])
    y = np.isin(table[:, 0], [1, 4]) | (table[:, 1] > 2)
    model = HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]).fit(table, y)
    forest = Forest.of(model)
    found = solve_program(forest, [[0.0, -1.0], [5.0, 0.0]], cost=L1())
    assert found.counterfactual[:, 0].tolist() == [1.0, 4.0]
    assert found.proven.all()


def test_a_tie_counts_for_the_class_that_the_library_gives_it():
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(2, random_state=0, max_depth=1, max_features=1).fit(X, Y)
    for tree in model.estimators_:  # two votes of .75 against .25: one each is a tie, which goes to class 0
        own = tree.tree_.value[:, 0, 1] > tree.tree_.value[0, 0, 1]
        tree.tree_.value[:, 0, :] = np.where(own[:, None], [0.25, 0.75], [0.75, 0.25])
    forest = Forest.of(model, favourable=1)
    tied = X[forest.score(X) == -OTHERWISE]
    assert len(tied)
    found = solve_program(forest, tied[:3], cost=L1())
    assert (found.distance > 0).all()
    assert (model.predict(found.counterfactual) == 1).all()
    for row, distance in zip(tied[:3], found.distance, strict=True):
        assert distance == pytest.approx(by_every_cell(forest, row, L1(), None))
    assert found.proven.all()


def test_what_no_leaf_allows_is_proven_to_be_out_of_reach():
    from sklearn.ensemble import GradientBoostingClassifier

    forest = Forest.of(GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X, Y))
    row = X[forest.score(X).argmin()]
    rules = Constraints(3, immutable=(0, 1))
    found = solve_program(forest, row, constraints=rules)
    assert found.valid[0] == np.isfinite(by_every_cell(forest, row, L2(), rules))
    assert found.proven[0]
    beyond = solve_program(forest, row, target=50.0)
    assert not beyond.valid[0]
    assert beyond.proven[0]


def test_a_time_limit_leaves_a_valid_answer_unproven():
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    y = (x[:, :4].sum(axis=1) + x[:, 4] * x[:, 5] > 1.5).astype(int)
    forest = Forest.of(RandomForestClassifier(30, random_state=0).fit(x, y))
    row = x[forest.score(x).argmin()]
    found = solve_program(forest, row, time_limit=0.5)
    assert not found.proven[0]
    check(found, forest, None)


def test_several_queries_and_targets():
    from sklearn.ensemble import GradientBoostingClassifier

    forest = Forest.of(GradientBoostingClassifier(n_estimators=10, random_state=0).fit(X, Y))
    few = X[:12]
    easy, hard = (solve_program(forest, few, target=target) for target in (0.0, 0.5))
    assert easy.favourable.any()
    assert (hard.distance >= easy.distance - 1e-12).all()
    assert (forest.score(hard.counterfactual)[hard.valid] >= 0.5).all()
    with pytest.raises(ConfigurationError, match="for 4 columns, but the model has 3"):
        solve_program(forest, few, constraints=Constraints(4))


def test_boxes_that_do_not_hold_the_query_are_answered_or_refused():
    from sklearn.ensemble import GradientBoostingClassifier

    forest = Forest.of(GradientBoostingClassifier(n_estimators=6, max_depth=2, random_state=0).fit(X, Y))
    rng = np.random.default_rng(1)
    lower = X[:60] + rng.uniform(-0.5, 2, (60, 3))
    upper = lower + rng.uniform(0, 1, lower.shape)
    answer = solve_program(forest, X[:60], cost=L1(), within=(lower, upper))
    found = answer.valid & ~answer.favourable
    assert found.any()
    assert not answer.valid.all()
    assert answer.proven.all()
    inside = (answer.counterfactual >= lower) & (answer.counterfactual <= upper)
    assert inside[found].all()
