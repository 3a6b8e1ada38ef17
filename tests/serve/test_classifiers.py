"""A classifier of tables is served from its file as a network is."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from safexplain.columns import Columns
from safexplain.serve.service import Service

skops = pytest.importorskip("skops.io")


@pytest.mark.parametrize("texts", [False, True], ids=["numbers", "texts"])
def test_a_classifier_of_tables_is_served_from_its_file(texts, tmp_path):
    frame = pd.DataFrame({"a": [0.0, 1.0] * 8, "b": ["x", "x", "y", "z"] * 4 if texts else [1.0, 2.0, 3.0, 4.0] * 4})
    labels = np.array([0, 1, 1, 1] * 4)
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(frame, labels)
    skops.dump(model, tmp_path / "model.skops")
    columns = Columns.of(frame)
    columns.save(tmp_path / "columns.json")
    with Service.load(
        tmp_path / "model.skops",
        None,
        uncertified=True,
        explainer="FeatureAblation",
        columns=tmp_path / "columns.json" if texts else None,
        input_shape=(2,),
    ) as service:
        answer = service.explain(columns.encode(frame[:3]), client="somebody")
    assert answer.label.tolist() == model.predict(frame[:3]).tolist()
    assert answer.explanation.shape == (3, 2)
