"""Plausibility: outliers among public rows are found, and answers that are outliers are kept from leaving."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, MAD, Constraints, DPModelRecourse, Plausibility, Preprocessing, SearchOptions
from tests.helpers.evidence import DATA, needs


def ridge(n, seed=0):
    """People on a ridge: the second column is the first, but for little."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(0, 100, n)
    return np.c_[first, first + rng.normal(0, 3, n), rng.normal(50, 10, n)]


def plain_lof(public, rows, k):
    """The local outlier factor by its definition (Breunig et al. 2000), one row at a time."""

    def nearest(row, leave):
        distance = np.linalg.norm(public - row, axis=1)
        if leave is not None:
            distance[leave] = np.inf
        at = np.argsort(distance, kind="stable")[:k]
        return at, distance[at]

    reach = np.array([nearest(row, i)[1][-1] for i, row in enumerate(public)])

    def density(row, leave):
        at, distance = nearest(row, leave)
        return 1 / np.maximum(distance, reach[at]).mean()

    dense = np.array([density(row, i) for i, row in enumerate(public)])
    return np.array([(dense[nearest(row, None)[0]] / density(row, None)).mean() for row in rows])


def test_scores_are_the_local_outlier_factor():
    public, rows = ridge(120), ridge(15, seed=1) + np.random.default_rng(2).normal(0, 8, (15, 3))
    found = Plausibility(public, neighbours=7).scores(rows)
    slow = []
    for unit in (np.ptp(public, axis=0), public.std(axis=0), 1.0):
        known = LocalOutlierFactor(n_neighbors=7).fit(public / unit).negative_outlier_factor_
        beyond = max(1.5, np.quantile(-known, 0.98))
        slow.append(1 + (plain_lof(public / unit, rows / unit, 7) - 1) * 0.5 / (beyond - 1))
    np.testing.assert_allclose(found, np.max(slow, axis=0), rtol=1e-9)


@pytest.mark.parametrize("method", ["lof", "knn"])
def test_planted_outliers_are_found_and_other_people_are_not(method):
    plausible = Plausibility(ridge(1000), method)
    planted = ridge(300, seed=1)
    planted[:, 1] = 100 - planted[:, 1]  # each number is common, together they are not
    planted = planted[np.abs(planted[:, 0] - planted[:, 1]) > 30]
    assert plausible.outliers(planted).mean() > 0.99
    assert plausible.outliers(ridge(1000, seed=2)).mean() < 0.05


@pytest.mark.parametrize("method", ["lof", "knn"])
def test_rows_that_occur_many_times_are_no_trap(method):
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 12, (150, 2)).astype(float)
    plausible = Plausibility(np.repeat(distinct, 40, axis=0), method)
    assert plausible.outliers(distinct + rng.uniform(-0.3, 0.3, distinct.shape)).mean() < 0.05
    assert plausible.outliers([[60.0, -40.0]]).all()


def test_the_nearest_public_row_is_one_of_those_given():
    public = np.repeat(ridge(60), 2, axis=0)
    plausible = Plausibility(public, neighbours=5)
    np.testing.assert_array_equal(public[plausible.nearest(public)], public)


def test_people_are_compared_in_public_units():
    people = Preprocessing(numeric={"age": (18, 100), "income": (0, 500_000)}, categories={"job": ["clerk", "other"]})
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"income": rng.normal(40_000, 8_000, 400), "age": rng.integers(25, 60, 400), "job": "clerk"})
    plausible = Plausibility(frame, preprocessing=people)
    asked = pd.DataFrame({"job": ["clerk", "other", "clerk"], "age": [40, 40, 95], "income": [4e4, 4e4, 4.5e5]})
    assert plausible.outliers(asked).tolist() == [False, True, True]
    assert plausible.nearest(frame).shape == (400,)
    beyond = frame.assign(income=frame.income * 100)  # public rows beyond a public range count as its ends
    assert np.isfinite(Plausibility(beyond, preprocessing=people).scores(asked)).all()


def test_limits_are_quantiles_by_name():
    public = pd.DataFrame(ridge(1001), columns=["a", "b", "c"])
    lower, upper = Plausibility(public).limits((0.01, 0.99))
    assert lower == pytest.approx(public.quantile(0.01).to_dict())
    assert upper == pytest.approx(public.quantile(0.99).to_dict())


def test_a_mechanism_s_preprocessing_becomes_that_of_numbers():
    people, other = (Preprocessing(numeric={"a": (0, top), "b": (0, 110), "c": (0, 100)}) for top in (100, 200))
    public = pd.DataFrame(ridge(100), columns=["a", "b", "c"]).clip(0)
    plain = Plausibility(public)
    assert plain.of(None, 3) is plain
    assert plain.of(people).preprocessing == people
    with pytest.raises(ConfigurationError, match="another preprocessing"):
        plain.of(people).of(other)
    with pytest.raises(ConfigurationError, match="3 columns, but the model 4"):
        plain.of(None, 4)


@pytest.mark.parametrize(
    ("public", "options", "message"),
    [
        (ridge(20), {}, "more than 20 different rows"),
        (np.repeat(ridge(15), 9, axis=0), {}, "got 15"),
        (np.where(ridge(50) > 90, np.nan, ridge(50)), {}, "public: NaN"),
        (ridge(50), {"method": "svm"}, 'expected "lof" or "knn"'),
        (ridge(50), {"neighbours": 0}, "neighbours"),
        (ridge(50), {"quantiles": (0.9, 0.1)}, "increasing"),
        (ridge(50), {"quantiles": 0.9}, "two shares"),
        (ridge(50), {"strictness": 0.5}, "strictness"),
    ],
)
def test_what_cannot_be_used_is_refused(public, options, message):
    with pytest.raises((InputError, ConfigurationError), match=message):
        Plausibility(public, **options)


def test_a_frame_with_labels_waits_for_its_preprocessing():
    people = Preprocessing(numeric={"age": (18, 100)}, categories={"job": ["clerk", "manager"]})
    rng = np.random.default_rng(0)
    asked = pd.DataFrame({"age": rng.integers(20, 60, 900), "job": rng.choice(["clerk", "manager"], 900)})
    plausible = Plausibility(asked[:300])
    for call in (plausible.limits, lambda: plausible.scores(asked), lambda: plausible.of(None)):
        with pytest.raises(InputError, match=r"public: .*needs preprocessing="):
            call()
    paid = DPModelRecourse(epsilon=4.0, preprocessing=people, plausibility=plausible, random_state=0)
    answer = paid.fit(asked[300:], (asked.age[300:] > 45).astype(int)).explain(asked[:50])
    assert not plausible.outliers(answer)[~answer.favourable].any()


def test_rows_of_another_form_are_refused():
    plausible = Plausibility(pd.DataFrame(ridge(50), columns=["a", "b", "c"]))
    with pytest.raises(InputError, match="shape"):
        plausible.scores([[1.0, 2.0]])
    with pytest.raises(InputError, match="in this order"):
        plausible.outliers(pd.DataFrame([[1.0, 2.0, 3.0]], columns=["b", "a", "c"]))


NAMES = ("a", "b", "c")
RANGES = Preprocessing(numeric={"a": (-20, 120), "b": (-20, 120), "c": (0, 100)})


def frame(n, seed=0):
    return pd.DataFrame(np.clip(ridge(n, seed), [-20, -20, 0], [120, 120, 100]), columns=NAMES)


def on_the_ridge(plausibility=None, **options):
    """A model that likes `a` best, trained on people for whom `b` goes with it."""
    x = frame(3000)
    options = {"preprocessing": RANGES, "cost": L1(), "epsilon": 4.0, "random_state": 0} | options
    return DPModelRecourse(plausibility=plausibility, **options).fit(x, (x.a + 0.2 * x.c > 70).astype(int))


def test_answers_are_no_outliers_by_public_rows_that_they_have_not_seen():
    asked, judge = frame(600, seed=2), Plausibility(frame(1000, seed=3), preprocessing=RANGES)
    plain = on_the_ridge().explain(asked)
    kept = on_the_ridge(Plausibility(frame(1000, seed=1))).explain(asked, infeasible="mark")
    down = ~plain.favourable
    assert judge.outliers(plain)[down].mean() > 0.3
    assert judge.outliers(kept)[down & kept.valid].mean() <= 0.02
    assert kept.valid[down].mean() > 0.97
    np.testing.assert_array_equal(kept.favourable, plain.favourable)
    assert (kept.distance[kept.valid] >= plain.distance[kept.valid] - 1e-9).all()


def test_answers_that_are_plausible_anyhow_stay_the_cheapest_and_proven():
    asked, plausible = frame(300, seed=2), Plausibility(frame(1000, seed=1), preprocessing=RANGES)
    plain, kept = on_the_ridge().explain(asked), on_the_ridge(plausible).explain(asked, infeasible="mark")
    same = plausible.scores(plain) <= plausible.aim
    assert same[~plain.favourable].any()
    np.testing.assert_array_equal(kept.counterfactual[same], plain.counterfactual[same])
    np.testing.assert_array_equal(kept.proven[same], plain.proven[same])
    moved = kept.valid & (kept.counterfactual != plain.counterfactual).any(axis=1)
    assert moved.any()
    assert not kept.proven[moved].any()


@pytest.mark.parametrize("method", ["lof", "knn"])
def test_constraints_hold_beside_plausibility(method):
    rules = Constraints(NAMES, immutable=("c",), increasing=("a",), step={"b": 5}, largest_change={"b": 60})
    asked = frame(300, seed=2)
    plausible = Plausibility(frame(1000, seed=1), method)
    mechanism = on_the_ridge(plausible, constraints=rules)
    answer = mechanism.explain(asked, infeasible="mark")
    assert mechanism.column_constraints.satisfied(answer.x, answer.counterfactual).all()
    assert not plausible.outliers(answer)[answer.valid & ~answer.favourable].any()
    model = mechanism.private.decision_function(RANGES.scaled(answer.counterfactual[answer.valid]))
    assert model.min() >= -1e-9


def test_an_answer_depends_on_its_own_query_only():
    mechanism, asked = on_the_ridge(Plausibility(frame(500, seed=1))), frame(6, seed=2)
    together = mechanism.explain(asked, infeasible="mark").counterfactual
    alone = [mechanism.explain(asked[i : i + 1], infeasible="mark").counterfactual[0] for i in range(len(asked))]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-9)


def test_diverse_answers_and_shifted_models_are_kept_plausible_too():
    plausible = Plausibility(frame(1000, seed=1))
    mechanism = on_the_ridge(plausible, shift=0.2)
    asked = frame(200, seed=2)
    for answer in mechanism.explain_diverse(asked, 2):
        changed = answer.valid & ~answer.favourable
        assert not plausible.outliers(answer)[changed].any()
        assert mechanism.shift_tolerated(answer)[changed].min() >= 0.2 * (1 - 1e-9)
    assert changed.any()


def test_changed_values_stay_between_public_quantiles():
    public, asked = frame(1000, seed=1), frame(300, seed=2)
    asked.loc[0, ["a", "b", "c"]] = [-18.0, -18.0, 3.0]  # beyond the quantiles, and no reason to refuse anybody
    answer = on_the_ridge(Plausibility(public, quantiles=(0.1, 0.9))).explain(asked, infeasible="mark")
    low, high = public.quantile(0.1).to_numpy(), public.quantile(0.9).to_numpy()
    inside = (answer.counterfactual >= low) & (answer.counterfactual <= high)
    assert (inside | (np.sign(answer.change) * (answer.counterfactual - (low + high) / 2) <= 0)).all()
    assert answer.valid.mean() > 0.9


def test_without_a_plausible_answer_there_is_none_and_no_error():
    poor = frame(1000, seed=1)
    mechanism = on_the_ridge(Plausibility(poor[poor.a < 40]))  # nobody among the public rows is accepted
    answer = mechanism.explain(frame(100, seed=2), infeasible="mark")
    far = (answer.x[:, 0] < 30) & ~answer.favourable
    assert not answer.valid[far].any()
    np.testing.assert_array_equal(answer.counterfactual[far], answer.x[far])
    assert not answer.proven[far].any()


def test_a_model_that_is_searched_is_kept_plausible_too():
    x, asked = frame(3000), frame(8, seed=2)
    several = DPLogisticRegression(4.0, norm_bound=RANGES.norm_bound, classes=[0, 1, 2], random_state=0)
    several.fit(RANGES.transform(x), np.digitize(x.a, [30, 70]))
    plausible = Plausibility(frame(1000, seed=1))
    options = {"preprocessing": RANGES, "favourable": 2, "cost": L1(), "search": SearchOptions(starts=1)}
    plain = DPModelRecourse(several, **options).explain(asked, infeasible="mark")
    kept = DPModelRecourse(several, plausibility=plausible, **options).explain(asked, infeasible="mark")
    down = ~plain.favourable
    assert plausible.outliers(plain)[down & plain.valid].mean() > 0.2
    assert not plausible.outliers(kept)[down & kept.valid].any()
    assert kept.valid[down].mean() > 0.9


def test_the_guarantee_says_that_the_rows_are_public():
    assert any(
        "none of them is a training row" in said for said in on_the_ridge(Plausibility(frame(99))).guarantee.assumptions
    )
    assert not any("none of them is a training row" in said for said in on_the_ridge().guarantee.assumptions)


def test_a_mechanism_refuses_what_it_cannot_use():
    with pytest.raises(ConfigurationError, match="expected Plausibility"):
        DPModelRecourse(plausibility=frame(50))
    with pytest.raises(ConfigurationError, match="3 columns, but the model 2"):
        DPModelRecourse(plausibility=Plausibility(ridge(50)), norm_bound=9.0).fit(np.ones((9, 2)), [0, 1, 1] * 3)
    labels = Plausibility(pd.DataFrame({"job": ["clerk", "manager"] * 30}))
    with pytest.raises(InputError, match="needs preprocessing="):
        DPModelRecourse(plausibility=labels, norm_bound=9.0).fit(np.ones((9, 1)), [0, 1, 1] * 3)


def test_a_number_that_nobody_has_is_an_outlier_where_most_have_none_and_categories_tell_people_apart():
    """As capital gains in Adult: 0 for nine in ten, so that gains have no middle spread, and some people are alone."""
    rng = np.random.default_rng(0)

    def people(n):
        gain = np.where(rng.random(n) < 0.92, 0.0, rng.choice([2000.0, 3000, 5000, 7500, 15_000], n))
        gain[:2] = 99_999.0
        jobs = np.eye(12)[np.minimum(rng.geometric(0.25, n) - 1, 11)]
        return np.column_stack([rng.integers(20, 65, n), gain, jobs])

    public, others = people(1500), people(400)
    asked = others[others[:, 1] == 0]
    asked[:, 1] = 27_000.0
    plausible = Plausibility(public)
    assert plausible.outliers(asked).mean() > 0.9
    assert plausible.outliers(others).mean() < 0.1


def judges(table, rows):
    """Local outlier factors of scikit-learn as somebody else would ask them: of rows, standardised, or as they are."""
    deviation, ranges = table.std(axis=0), np.ptp(table, axis=0)
    for unit in (np.where(deviation > 0, deviation, 1.0), np.where(ranges > 0, ranges, 1.0), np.ones(table.shape[1])):
        judge = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(rows / unit)
        yield lambda found, judge=judge, unit=unit: float((judge.predict(found / unit) == -1).mean())


@needs("heloc.npz")
def test_on_heloc_at_most_two_percent_are_outliers_whoever_judges():
    file = np.load(DATA / "heloc.npz")
    x, y = file["x"].astype(float), file["y"]
    names = file["names__txt"].tobytes().decode().split("\n")
    ranges = Preprocessing(numeric={n: (0, end) for n, end in zip(names, x.max(axis=0).tolist(), strict=True)})
    people = pd.DataFrame(x, columns=names)
    train, asked, public = np.split(np.random.default_rng(1).permutation(len(x)), [5000, 5600])
    fixed = Constraints(tuple(names), immutable=("ExternalRiskEstimate", "AverageMInFile"))
    cost = L1(scale=np.maximum(x[public].std(axis=0), 0.1))
    options = {"epsilon": 1.0, "preprocessing": ranges, "cost": cost, "constraints": fixed, "random_state": 0}
    plain = DPModelRecourse(**options).fit(people.iloc[train], y[train])
    near = Plausibility(people.iloc[public[:2000]])
    kept = DPModelRecourse(plain.private, plausibility=near, **options).explain(people.iloc[asked], infeasible="mark")
    cheapest = plain.explain(people.iloc[asked], infeasible="mark")
    down = ~kept.favourable
    for rows in (x[public[:2000]], x[train]):
        for judge in judges(x, rows):
            assert judge(kept.counterfactual[down & kept.valid]) <= 0.02
    assert max(judge(cheapest.counterfactual[down]) for judge in judges(x, x[train])) > 0.1
    assert kept.valid[down].mean() > 0.97


@needs("heloc.npz")
def test_on_heloc_at_most_two_percent_are_outliers_by_other_rows_and_none_leaves_the_ranges():
    file = np.load(DATA / "heloc.npz")
    top = [100, 900, 400, 400, 110, 20, 20, 100, 90, 10, 10, 110, 20, 100, 30, 70, 70, 250, 500, 50, 25, 20, 100]
    names = file["names__txt"].tobytes().decode().split("\n")
    people, y = pd.DataFrame(np.clip(file["x"].astype(float), 0, top), columns=names), file["y"]
    train, asked, public, others = np.split(np.random.default_rng(0).permutation(len(y)), [4500, 5500, 7700])
    ranges = Preprocessing(numeric={name: (0, end) for name, end in zip(names, top, strict=True)})
    deviation = (people.iloc[public] - people.iloc[public].median()).abs().median().to_numpy()
    cost = MAD(np.where(deviation > 0, deviation, 1.0))
    options = {"epsilon": 1.0, "preprocessing": ranges, "cost": cost, "random_state": 0}
    plain = DPModelRecourse(**options).fit(people.iloc[train], y[train])
    kept = DPModelRecourse(plain.private, plausibility=Plausibility(people.iloc[public]), **options)
    before, after = (m.explain(people.iloc[asked], infeasible="mark") for m in (plain, kept))
    judge = Plausibility(people.iloc[others], preprocessing=ranges)
    down = ~before.favourable
    assert judge.outliers(before)[down].mean() > 0.05
    assert judge.outliers(after)[down & after.valid].mean() <= 0.02
    assert after.valid[down].mean() > 0.98
    assert ((after.counterfactual >= 0) & (after.counterfactual <= top)).all()
    assert after.distance[down].mean() < 2 * before.distance[down].mean()


def models():
    """Models of people on the ridge, that like `a`; each with what is asked besides."""
    x = frame(1500)
    good = x.a + 0.2 * x.c > 70
    linear = make_pipeline(StandardScaler(), LogisticRegression(C=100.0)).fit(x, good)
    trees = GradientBoostingClassifier(n_estimators=6, max_depth=2, random_state=0).fit(x, good)
    network = nn.Sequential(nn.Linear(3, 1, dtype=torch.float64))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0.02, 0.2]]))
        network[0].bias.fill_(-70.0)
    return {"linear": linear, "trees": trees, "network": network}


@pytest.mark.parametrize("kind", ["linear", "trees", "network"])
def test_searches_keep_their_answers_plausible(kind):
    model, judge = models()[kind], Plausibility(frame(2000, seed=3))
    asked = frame({"linear": 200, "trees": 4, "network": 8}[kind], seed=2)
    options = {"cost": L1(), "constraints": Constraints(NAMES, lower=-20, upper=120)}
    options |= {"options": SearchOptions(starts=1)} if kind == "network" else {"time_limit": 5.0}
    plain = search_recourse(model, asked, **options)
    kept = search_recourse(model, asked, plausibility=Plausibility(frame(2000, seed=1)), **options)
    down = ~plain.favourable
    assert judge.outliers(plain)[down & plain.valid].mean() > 0.2
    assert judge.outliers(kept)[down & kept.valid].mean() <= 0.02
    assert kept.valid[down].mean() > 0.9
    assert (kept.distance[kept.valid] >= plain.distance[kept.valid] - 1e-6).all()
    assert not kept.proven[(kept.counterfactual != plain.counterfactual).any(axis=1)].any()
    if kind != "network":
        assert model.predict(kept.frame)[kept.valid].all()


def test_a_search_reads_public_frames_as_it_reads_people():
    rng = np.random.default_rng(0)
    jobs = np.array(["clerk", "manager"])
    people = pd.DataFrame({"income": rng.normal(40_000, 8_000, 900), "job": jobs[(rng.random(900) > 0.7).astype(int)]})
    people.loc[people.job == "manager", "income"] += 60_000
    columns = ColumnTransformer([("n", StandardScaler(), ["income"]), ("c", OneHotEncoder(), ["job"])])
    model = make_pipeline(columns, LogisticRegression()).fit(people, people.job == "manager")
    rules = Constraints(("income", "job"), lower={"income": 0}, upper={"income": 300_000})
    asked = people[people.job == "clerk"][:8]
    answer = search_recourse(
        model, asked, constraints=rules, cost=L1(scale=[1e4, 1]), plausibility=Plausibility(people[300:])
    )
    plain = search_recourse(model, asked, constraints=rules, cost=L1(scale=[1e4, 1]))
    assert (plain.frame.income[plain.frame.job == "manager"] < 80_000).any()  # managers whom nobody pays
    frames = answer.frame[answer.valid & ~answer.favourable]
    assert len(frames) > 4
    assert ((frames.job == "clerk") == (frames.income < 80_000)).all()
