"""Plausibility: outliers among public rows are found, in people's units."""

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import LocalOutlierFactor

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, DPModelRecourse, Plausibility, Preprocessing


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


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_scores_are_the_local_outlier_factor(size):
    public, rows = ridge(120) * size, (ridge(15, seed=1) + np.random.default_rng(2).normal(0, 8, (15, 3))) * size
    plausible = Plausibility(public, neighbours=7)
    found = plausible.scores(rows)
    slow, of_public = [], []
    for unit in (np.ptp(public, axis=0), public.std(axis=0), 1.0):
        known = LocalOutlierFactor(n_neighbors=7).fit(public / unit).negative_outlier_factor_
        beyond = max(1.5, np.quantile(-known, 0.98))
        slow.append(1 + (plain_lof(public / unit, rows / unit, 7) - 1) * 0.5 / (beyond - 1))
        of_public.append(1 + (-known - 1) * 0.5 / (beyond - 1))
    np.testing.assert_allclose(found, np.max(slow, axis=0), rtol=1e-7)
    assert plausible.limit == pytest.approx(np.quantile(np.max(of_public, axis=0), 0.98))
    assert plausible.limit > 1.5


def test_planted_outliers_are_found_and_other_people_are_not():
    plausible = Plausibility(ridge(1000))
    assert repr(plausible) == f"Plausibility(neighbours=20, limit={plausible.limit})"
    assert plausible.scores(np.empty((0, 3))).shape == (0,)
    planted = ridge(300, seed=1)
    planted[:, 1] = 100 - planted[:, 1]  # each number is common, together they are not
    planted = planted[np.abs(planted[:, 0] - planted[:, 1]) > 30]
    assert plausible.outliers(planted).mean() > 0.99
    assert plausible.outliers(ridge(1000, seed=2)).mean() < 0.05


def test_rows_that_occur_many_times_are_no_trap():
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 12, (150, 2)).astype(float)
    plausible = Plausibility(np.repeat(distinct, 40, axis=0))
    assert plausible.outliers(distinct + rng.uniform(-0.3, 0.3, distinct.shape)).mean() < 0.05
    assert plausible.outliers([[60.0, -40.0]]).all()


def test_people_are_compared_in_public_units():
    people = Preprocessing(numeric={"age": (18, 100), "income": (0, 500_000)}, categories={"job": ["clerk", "other"]})
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"income": rng.normal(40_000, 8_000, 400), "age": rng.integers(25, 60, 400), "job": "clerk"})
    plausible = Plausibility(frame, preprocessing=people)
    asked = pd.DataFrame({"job": ["clerk", "other", "clerk"], "age": [40, 40, 95], "income": [4e4, 4e4, 4.5e5]})
    assert plausible.outliers(asked).tolist() == [False, True, True]
    beyond = frame.assign(income=frame.income * 100)  # public rows beyond a public range count as its ends
    assert np.isfinite(Plausibility(beyond, preprocessing=people).scores(asked)).all()


@pytest.mark.parametrize(
    ("public", "options", "message"),
    [
        (ridge(20), {}, "more than 20 different rows"),
        (np.repeat(ridge(15), 9, axis=0), {}, "got 15"),
        (np.where(ridge(50) > 90, np.nan, ridge(50)), {}, "public: expected finite numbers, got NaN"),
        (ridge(50), {"neighbours": 0}, "neighbours"),
    ],
)
def test_what_cannot_be_used_is_refused(public, options, message):
    with pytest.raises((InputError, ConfigurationError), match=message):
        Plausibility(public, **options)


def test_a_frame_with_labels_needs_its_preprocessing():
    frame = pd.DataFrame({"age": np.arange(60), "job": ["clerk", "manager"] * 30})
    with pytest.raises(InputError, match=r"public: .*pass preprocessing="):
        Plausibility(frame)


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


def answers(asked, **options):
    """Of a model that likes `a` best, trained on people for whom `b` goes with it."""
    x = frame(3000)
    mechanism = DPModelRecourse(epsilon=4.0, preprocessing=RANGES, cost=L1(), random_state=0, **options)
    return mechanism.fit(x, (x.a + 0.2 * x.c > 70).astype(int)).explain(asked)


def test_cheapest_answers_are_reported_as_outliers_where_columns_go_together_and_the_people_who_ask_are_not():
    asked, judge = frame(600, seed=2), Plausibility(frame(1000, seed=3), preprocessing=RANGES)
    answer = answers(asked)
    down = ~answer.favourable
    assert judge.outliers(answer)[down].mean() > 0.3
    assert judge.outliers(asked).mean() < 0.05
    np.testing.assert_array_equal(judge.scores(answer), judge.scores(answer.frame))


def test_answers_with_another_preprocessing_or_none_are_refused():
    judge = Plausibility(frame(100), preprocessing=RANGES)
    assert judge.outliers(answers(frame(5))).shape == (5,)
    for other in (Plausibility(frame(100)), Plausibility(ridge(100)[:, :2])):
        with pytest.raises(ConfigurationError, match="preprocessing of the mechanism that answered, got another"):
            other.outliers(answers(frame(5)))
