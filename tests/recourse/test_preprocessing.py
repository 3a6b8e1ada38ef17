"""Frames in, frames out: what people have, in the columns that solvers and training use, by public knowledge only."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from safexplain.recourse import Preprocessing

pd = pytest.importorskip("pandas")
PEOPLE = Preprocessing(
    numeric={"age": (18, 100), "income": (0, 500_000)},
    categories={"job": ["clerk", "manager"], "owner": [0, 1]},
    ordinal={"degree": ["none", "school", "college"]},
    special={"income": [-9, -8]},
    missing=("age", "degree"),
    units={"income": "USD"},
)
FRAME = pd.DataFrame(
    {
        "job": pd.Categorical(["clerk", "manager", "clerk"]),
        "owner": [0, 1, 1],
        "age": [20, 30, np.nan],
        "income": [-9, 50_000, 0],
        "degree": ["school", None, "college"],
    },
    index=[5, 6, 7],
)


def test_a_table_has_units_levels_one_column_a_category_and_one_a_special_value() -> None:
    assert PEOPLE.columns == (
        "age",
        "age=missing",
        "income",
        "income=-9",
        "income=-8",
        "job=clerk",
        "job=manager",
        "owner=0",
        "owner=1",
        "degree",
        "degree=missing",
    )
    assert PEOPLE.table(FRAME).tolist() == [
        [20, 0, 250_000, 1, 0, 1, 0, 1, 0, 1, 0],
        [30, 0, 50_000, 0, 0, 0, 1, 0, 1, 1, 1],
        [59, 1, 0, 0, 0, 1, 0, 0, 1, 2, 0],
    ]


def test_a_table_gives_its_frame_back_with_index_types_and_labels() -> None:
    pd.testing.assert_frame_equal(PEOPLE.frame(PEOPLE.table(FRAME), FRAME), FRAME)


def test_it_is_the_same_after_json_pickle_copy_and_clone() -> None:
    again = Preprocessing.from_dict(json.loads(json.dumps(PEOPLE.to_dict())))
    for other in (again, pickle.loads(pickle.dumps(PEOPLE)), copy.deepcopy(PEOPLE), clone(PEOPLE)):
        assert other == PEOPLE
        assert other.digest == PEOPLE.digest


def test_it_is_a_step_of_a_pipeline_that_learns_nothing() -> None:
    pipeline = make_pipeline(PEOPLE, LogisticRegression()).fit(FRAME, [0, 1, 1])
    assert pipeline[:-1].get_feature_names_out().tolist() == list(PEOPLE.columns)
    assert np.abs(PEOPLE.fit(FRAME).transform(FRAME)).max() <= 1
