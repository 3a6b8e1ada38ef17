"""CARLA (carla-recourse 0.0.5) on the same rows, in Python 3.7 with PyTorch 1.7 and TensorFlow 1.14, which it pins.

It is told which columns never change; ranges follow from the file it reads. It knows no whole numbers, no columns that
only rise, and categories of two values only: where one-hot groups come apart, the answer is counted as that.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .tasks import MODELS, NAMES, Task, Work, layers

if TYPE_CHECKING:
    from collections.abc import Callable

A_RUN = 0.5
METHODS = ("GrowingSpheres", "ActionableRecourse", "Wachter", "FACE")
OPTIONS = {
    "GrowingSpheres": None,
    "ActionableRecourse": {"fs_size": 20},
    "Wachter": {"loss_type": "MSE", "y_target": [0.05], "binary_cat_features": True, "t_max_min": 0.1},
    "FACE": {"mode": "knn", "fraction": 0.1},
}
"""Defaults, but for Wachter's loss (its default indexes a tensor by a float, which PyTorch 1.7 refuses) and its limit
of time, FACE's neighbourhoods, and 20 actions of ActionableRecourse (its 100 took 3 minutes a person)."""


def wrapped(task: Task) -> Any:
    """The data and the model as CARLA has them, and its names of the columns of the table."""
    import pandas as pd
    import torch
    from carla import MLModel
    from carla.data.catalog import CsvCatalog

    numbers = ["n%02d" % i for i in range(task.plain)]  # noqa: UP031
    categories = ["c%02d" % i for i in range(len(task.counts))]  # noqa: UP031
    frame = pd.DataFrame(task.numbers, columns=numbers)
    for i, name in enumerate(categories):
        frame[name] = ["k%02d" % code for code in task.codes[:, i]]  # noqa: UP031
    frame["y"] = (task.score(task.table) >= 0).astype(int)
    order = list(numbers)
    for i, name in enumerate(categories):
        order += ["%s_k%02d" % (name, code) for code in range(task.counts[i])]  # noqa: UP031
    features = [*numbers, *categories]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.csv")
        frame.to_csv(path, index=False)
        data = CsvCatalog(
            path, categories, numbers, [features[i] for i in task.fixed], "y",
            encoding_method="OneHot" if categories else "Identity",
        )  # fmt: skip
    if not categories:  # Wachter asks the encoder for its columns
        data.encoder.get_feature_names = lambda names: []
    weights = task.as_layers()
    net = layers([task.width] + [len(w) for w in weights[::2]])
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.from_numpy(np.ascontiguousarray(weights[i])))
    raw = torch.nn.Sequential(net, torch.nn.Softmax(dim=1)).float().eval()

    class Model(MLModel):
        """Reads rows of the table, scaled."""

        feature_input_order = order
        backend = "pytorch"
        raw_model = raw

        def predict(self, x: Any) -> Any:
            return self.predict_proba(x)[:, 1]

        def predict_proba(self, x: Any) -> Any:
            rows = self.get_ordered_features(x).values if isinstance(x, pd.DataFrame) else x
            if torch.is_tensor(rows):
                return raw(rows.float())
            yes = 1 / (1 + np.exp(-task.logits(np.asarray(rows, dtype=np.float64))))
            return np.stack([1 - yes, yes], axis=1)

    return Model(data), order


def carla(name: str, model: str, method: str) -> Callable[[Work], Any]:
    """One of CARLA's methods."""

    def ready(work: Work) -> Any:
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        import carla.recourse_methods as catalog
        import pandas as pd

        task = Task(work, name, model)
        read, order = wrapped(task)
        options = OPTIONS[method]
        if method == "ActionableRecourse":
            last = task.as_layers()
            linear = {"coeffs": last[0][1] - last[0][0], "intercepts": last[1][1:] - last[1][:1]}
            searcher = catalog.ActionableRecourse(read, options, **(linear if model == "logistic" else {}))
        else:
            searcher = getattr(catalog, "Face" if method == "FACE" else method)(read, options)
        scaled = task.scaled(task.table)
        answered = {}
        turns = [0]

        def one(row: int) -> np.ndarray:
            query = pd.DataFrame(scaled[[row]], columns=order)
            query["y"] = 0
            np.random.seed(0)  # noqa: NPY002 (what CARLA draws from)
            found = searcher.get_counterfactuals(query)
            values = np.asarray(found[order].values, dtype=np.float64)
            return task.unscaled(values)[0] if values.shape == (1, task.width) else np.full(task.width, np.nan)

        def run() -> dict[str, Any]:
            count, start = 0, time.perf_counter()
            while count < 1 or (time.perf_counter() - start < A_RUN and turns[0] < len(task.persons)):
                row = int(task.persons[turns[0] % len(task.persons)])
                answered[row] = one(row)
                count, turns[0] = count + 1, turns[0] + 1
            return {"rows": np.array(list(answered)), "found": np.stack(list(answered.values())), "units": count}

        return run

    return ready


CALLS = {"CARLA %s, %s, %s" % (how, n, m): carla(n, m, how) for n in NAMES for m in MODELS for how in METHODS}  # noqa: UP031
"""Title of a method, data set and model -> what makes it ready."""
