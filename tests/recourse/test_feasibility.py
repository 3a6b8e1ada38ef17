"""Feasibility, flipsets and fairness of recourse: counts are right, and groups differ when they do, not otherwise."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.ledger import Ledger
from safexplain.recourse import (
    L1,
    Constraints,
    DPModelRecourse,
    LaplaceScore,
    MeteredRecourse,
    Recourse,
    fairness,
    feasibility,
    flipset,
    linear_recourse,
    search_recourse,
)
from safexplain.recourse.feasibility import FlipItem, Flipset


def answers(costs, valid=None, favourable=None, proven=None):
    """An answer of one column whose changes cost this much."""
    costs = np.asarray(costs, dtype=float)
    n = len(costs)
    valid = np.ones(n, dtype=bool) if valid is None else np.asarray(valid)
    favourable = np.zeros(n, dtype=bool) if favourable is None else np.asarray(favourable)
    costs = np.where(valid & ~favourable, costs, 0.0)
    x = np.zeros((n, 1))
    return Recourse(x, x + costs[:, None], valid | favourable, costs, -costs, favourable, np.zeros(n, bool), proven)


@pytest.fixture(scope="module")
def mechanism():
    data = load_breast_cancer(as_frame=True)
    x = 2 * (data.data - data.data.min()) / (data.data.max() - data.data.min()) - 1
    constraints = Constraints(tuple(x.columns), lower=-1, upper=1, immutable=tuple(x.columns[:8]))
    made = DPModelRecourse(epsilon=4.0, norm_bound=5.0, constraints=constraints, cost=L1(), random_state=0)
    return made.fit(x[:400], data.target[:400]), x[400:]


def test_counts_intervals_and_quantiles():
    costs = np.arange(1.0, 11.0)
    valid = np.array([True] * 8 + [False] * 2)
    favourable = np.array([True] * 2 + [False] * 8)
    proven = np.array([False] * 9 + [True])
    found = feasibility(answers(costs, valid, favourable, proven), groups=["a"] * 5 + ["b"] * 5)
    assert (found.people, found.turned_down, found.with_recourse, found.proven_without) == (10, 8, 6, 1)
    exact = stats.binomtest(6, 8).proportion_ci(0.95, method="exact")
    assert found.interval == pytest.approx((exact.low, exact.high))
    assert dict(found.costs)[0.5] == np.median(costs[2:8])
    assert found.mean == costs[2:8].mean()
    assert [(g.group, g.turned_down, g.with_recourse) for g in found.groups] == [("a", 3, 3), ("b", 5, 3)]
    assert found.small
    assert "fewer than 20" in str(found)
    json.dumps(found.to_dict())


def test_nobody_turned_down_is_no_error():
    found = feasibility(answers([1.0, 2.0], favourable=[True, True]))
    assert (found.share, found.interval, found.costs) == (None, (0.0, 1.0), ())
    assert "everybody" in str(found)


def test_a_mechanism_is_asked_for_everybody(mechanism):
    private, people = mechanism
    found = feasibility(private, people)
    answer = private.explain(people, infeasible="mark")
    down = ~answer.favourable
    assert (found.people, found.turned_down) == (len(people), down.sum())
    assert found.with_recourse == (answer.valid & down).sum()
    assert feasibility(answer) == found


def test_groups_may_be_a_column_that_the_model_does_not_see(mechanism):
    private, people = mechanism
    sex = np.where(np.arange(len(people)) % 3 == 0, "f", "m")
    by_array = feasibility(private, people, groups=sex)
    for frame in (people.assign(sex=sex), pl.from_pandas(people.assign(sex=sex))):
        assert feasibility(private, frame, groups="sex") == by_array
    assert sum(g.turned_down for g in by_array.groups) == by_array.turned_down
    with pytest.raises(InputError, match="no column 'race'"):
        feasibility(private, people, groups="race")


def test_unknown_groups_are_a_group():
    found = feasibility(answers(np.ones(4)), groups=["a", None, np.nan, "a"])
    assert [(g.group, g.people) for g in found.groups] == [("a", 2), ("(missing)", 2)]


def test_answers_that_would_be_paid_for_unseen_are_refused(mechanism, tmp_path):
    _, people = mechanism
    data = load_breast_cancer()
    paid = LaplaceScore(epsilon=0.5, norm_bound=5.0, public_weights=np.full(30, -0.1), random_state=0)
    paid.fit(people, data.target[400:])
    with pytest.raises(RefusedError, match=r"169 answers would cost an epsilon of 84\.5"):
        feasibility(paid, people)
    with pytest.raises(RefusedError, match=r"1 answers? would cost"):
        flipset(paid, people.iloc[0])
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", epsilon=2.0) as ledger:
        metered = MeteredRecourse(paid, ledger)
        found = feasibility(metered, people[:4], principal="audit")
        assert found.people == 4
        assert ledger.spent("audit") == pytest.approx(2.0)
    with Ledger(f"sqlite:///{tmp_path}/other.db", epsilon=2.0) as ledger:
        found = flipset(MeteredRecourse(paid, ledger), people.iloc[:1], items=3, principal="anna")
        assert len(found) == 3 or found.favourable
        assert ledger.spent("anna") == pytest.approx(0.5)


def test_a_flipset_lists_different_ways_the_cheapest_first(mechanism):
    private, people = mechanism
    answer = private.explain(people, infeasible="mark")
    row = people[(~answer.favourable & answer.valid)].iloc[:1]
    found = flipset(private, row, items=4)
    costs = [item.cost for item in found.items]
    assert len(found) == 4
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(private.explain(row).distance[0])
    dearest = [max(item.changes, key=lambda c: abs(c[2] - c[1]))[0] for item in found.items]
    assert len(set(dearest)) == 4  # each leaves alone what the earlier ones changed most
    for item in found.items:
        changed = row.copy()
        for name, now, needed in item.changes:
            assert changed[name].iloc[0] == now
            changed[name] = needed
        assert private.explain(changed).favourable[0]
    assert list(found.frame.columns) == ["item", "cost", "feature", "now", "needed"]
    assert isinstance(found.frame, pd.DataFrame)
    assert found.frame.item.max() == 4
    assert isinstance(flipset(private, pl.from_pandas(row)).frame, pl.DataFrame)
    json.dumps(found.to_dict())
    assert dearest[0] in str(found)


def test_a_flipset_of_a_pipeline_speaks_of_people():
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"income": rng.integers(10_000, 90_000, 800), "job": rng.choice(["clerk", "manager"], 800)})
    good = people.income + 30_000 * (people.job == "manager") > 65_000
    columns = ColumnTransformer([("n", StandardScaler(), ["income"]), ("c", OneHotEncoder(), ["job"])])
    model = make_pipeline(columns, LogisticRegression(C=100.0)).fit(people, good)
    person = pd.DataFrame({"income": [42_000], "job": ["clerk"]})
    rules = Constraints(("income", "job"), lower={"income": 0}, upper={"income": 200_000})
    cost = L1(scale=[10_000, 1])
    found = flipset(model, person, constraints=rules, cost=cost)
    assert found.items[0].changes == (("job", "clerk", "manager"),)
    ((name, now, needed),) = found.items[1].changes
    assert (name, now) == ("income", 42_000)
    assert model.predict(pd.DataFrame({"income": [needed], "job": ["clerk"]}))[0]
    assert "manager" in str(found)
    audit = feasibility(model, people, constraints=rules, cost=cost, groups="job")
    assert audit.with_recourse == audit.turned_down == (~model.predict(people)).sum()
    answer = search_recourse(model, people, constraints=rules, cost=cost)
    assert fairness(answer, "job").largest("mean cost").groups == ("clerk", "manager")
    immutable = Constraints(("income", "job"), immutable=("job",), upper={"income": 50_000})
    stuck = feasibility(model, people[people.income <= 50_000], constraints=immutable)
    assert stuck.with_recourse < stuck.turned_down
    assert stuck.proven_without == stuck.turned_down - stuck.with_recourse


def test_numbers_in_a_table_go_as_far_as_is_needed():
    item = FlipItem(1.0, (("a", 20.0, 24.32961), ("b", 55.0, 0.65239), ("c", 5, 7), ("d", 0.0, 123_456.7)), True)
    text = str(Flipset((item,), False, None))
    for shown in ("24.33", "0.6523", " 7", "123,500"):
        assert shown in text


def test_a_flipset_of_nothing_says_why(mechanism):
    private, people = mechanism
    answer = private.explain(people, infeasible="mark")
    happy = flipset(private, people[answer.favourable].iloc[0])
    assert happy.favourable
    assert len(happy) == 0
    assert "already" in str(happy)
    with pytest.raises(InputError, match="one person, got 2"):
        flipset(private, people[:2])
    with pytest.raises(ConfigurationError, match="items"):
        flipset(private, people[:1], items=0)
    with pytest.raises(ConfigurationTypeError, match="one way only"):
        flipset(answer, people[:1])


def people_of_two_groups(rng, n, dearer=0.0, fewer=0.0):
    """Costs of people who were turned down; group 1 pays more, and fewer of it have recourse."""
    group = rng.integers(0, 2, n)
    costs = rng.gamma(2.0, 1.0, n) + dearer * group
    return answers(costs, valid=rng.random(n) > 0.1 + fewer * group), group


@pytest.mark.parametrize("planted", [{"dearer": 1.0}, {"fewer": 0.3}])
def test_a_planted_difference_is_found(planted):
    rng = np.random.default_rng(0)
    found = [fairness(*people_of_two_groups(rng, 300, **planted), permutations=199) for _ in range(20)]
    assert sum(one.differs for one in found) >= 19
    measure = "mean cost" if "dearer" in planted else "share with recourse"
    largest = found[0].largest(measure)
    assert largest.groups == (("1", "0") if "dearer" in planted else ("0", "1"))
    assert largest.difference == pytest.approx(next(iter(planted.values())), abs=0.35)


def test_groups_that_are_alike_are_told_apart_at_most_as_often_as_stated():
    rng = np.random.default_rng(1)
    trials, found = 200, 0
    for _ in range(trials):
        group = rng.choice(5, 200, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        answer = answers(rng.lognormal(0, 1, 200), valid=rng.random(200) > 0.2)
        found += fairness(answer, group, permutations=99).differs
    assert stats.binomtest(found, trials, 0.05, alternative="greater").pvalue > 0.001
    assert found > 0  # and it is not a test that never finds anything


def test_one_comparison_is_the_plain_permutation_test():
    """With every cost there is and two groups, the p-value is the slow test's that permutes labels by hand."""
    rng = np.random.default_rng(2)
    costs, group = rng.gamma(2.0, 1.0, 60), np.repeat([0, 1], 30)
    costs[group == 1] += 0.7
    found = fairness(answers(costs), group, permutations=1999)

    def welch(labels):
        return abs(stats.ttest_ind(costs[labels == 0], costs[labels == 1], equal_var=False).statistic)

    own = welch(group)
    slow = np.mean([welch(rng.permutation(group)) >= own for _ in range(2000)])
    assert found.largest("mean cost").p_value == pytest.approx(slow, abs=0.02)
    assert found.largest("share with recourse").p_value == 1.0
    assert found.largest("mean cost").difference == pytest.approx(costs[30:].mean() - costs[:30].mean())


def test_intervals_cover_the_mean_and_the_median():
    rng = np.random.default_rng(3)
    trials, mean, median = 200, 0, 0
    for seed in range(trials):
        group = np.repeat(["a", "b"], [80, 80])
        found = fairness(answers(rng.gamma(2.0, 1.0, 160)), group, permutations=99, seed=seed).groups[0]
        mean += found.mean_interval[0] <= 2.0 <= found.mean_interval[1]
        median += found.median_interval[0] <= stats.gamma(2.0).median() <= found.median_interval[1]
    assert mean >= 0.91 * trials
    assert median >= 0.92 * trials


def test_small_groups_are_described_and_not_compared():
    found = fairness(answers(np.arange(1.0, 31.0)), ["many"] * 25 + ["few"] * 5)
    assert (found.comparisons, found.p_value, found.differs) == ((), None, False)
    for said in ("few *", "no two groups", "little can be said"):
        assert said in str(found)
    assert found.groups[0].mean_interval is None  # of 5 people
    json.dumps(found.to_dict())


def test_costs_that_are_all_alike_are_no_difference():
    found = fairness(answers(np.ones(60)), np.repeat(["a", "b"], 30))
    assert (found.p_value, found.differs) == (1.0, False)


def test_an_unfair_model_is_found_by_its_answers_and_a_fair_one_is_not():
    """Two groups that a model scores alike; it lets one of them change only what costs more."""
    found = {"fair": 0, "unfair": 0}
    for seed in range(30):
        group, x = np.repeat(["free", "bound"], 100), np.random.default_rng(seed).normal(size=(200, 2)) - 2.0
        frozen = np.zeros(x.shape, dtype=bool)
        frozen[group == "bound", 0] = True
        for name, held in (("fair", None), ("unfair", frozen)):
            answer = linear_recourse([2.0, 1.0], 0.0, x, cost=L1(), frozen=held)
            result = fairness(answer, group, permutations=199)
            found[name] += result.differs
            if name == "unfair":
                assert result.largest("mean cost").groups == ("bound", "free")
    assert found["unfair"] == 30
    assert stats.binomtest(found["fair"], 30, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(3), ["a", "b", "a"]), "expected a Recourse"),
        ((answers(np.ones(3)), ["a", "b"]), "label for each of 3 people, got 2"),
        ((answers(np.ones(3)), ["a", "a", "a"]), "at least two groups"),
        ((answers(np.ones(3)), "sex"), "no feature 'sex'"),
        ((answers(np.ones(3)), [["a"], ["b"], ["a"]]), "one label for each person"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, message):
    with pytest.raises((InputError, ConfigurationTypeError), match=message):
        fairness(*arguments)


def test_options_that_nobody_would_read_are_refused(mechanism):
    private, people = mechanism
    with pytest.raises(ConfigurationError, match="the mechanism has its own"):
        feasibility(private, people, cost=L1())
    with pytest.raises(ConfigurationError, match="only a MeteredRecourse"):
        feasibility(private, people, principal="anna")
    with pytest.raises(ConfigurationError, match="pass the answer alone"):
        feasibility(answers(np.ones(3)), people)
    with pytest.raises(InputError, match="the people to ask about"):
        feasibility(private)
