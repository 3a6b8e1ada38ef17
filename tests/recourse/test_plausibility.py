"""Plausibility: outliers among public rows are found, and answers that are outliers are kept from leaving."""

import numpy as np
import pandas as pd
import pytest

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import Plausibility, Preprocessing


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
    unit = np.diff(np.quantile(public, [0.05, 0.95], axis=0), axis=0)[0]
    found = Plausibility(public, neighbours=7).scores(rows)
    np.testing.assert_allclose(found, plain_lof(public / unit, rows / unit, 7), rtol=1e-9)


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
        (pd.DataFrame({"job": ["clerk"] * 30}), {}, "public: .*needs preprocessing="),
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


def test_rows_of_another_form_are_refused():
    plausible = Plausibility(pd.DataFrame(ridge(50), columns=["a", "b", "c"]))
    with pytest.raises(InputError, match="shape"):
        plausible.scores([[1.0, 2.0]])
    with pytest.raises(InputError, match="in this order"):
        plausible.outliers(pd.DataFrame([[1.0, 2.0, 3.0]], columns=["b", "a", "c"]))
