"""DiCE, Alibi and an exact program by HiGHS on the same rows, told as much of the constraints as each can be told."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .ours import BOTH, calls
from .tasks import NAMES, Task, Work

One = Callable[[int], "np.ndarray | None"]
"""Number of a row -> its answer in the table; None: there is none."""
Call = Callable[[], dict[str, Any]]

A_RUN = 0.5
"""Seconds after which a run of a tool is over, once it has answered somebody."""


def in_turn(task: Task, one: One, least: int = 1, seconds: float = A_RUN) -> Call:
    """Each run answers the next persons for a while; it tells all answers so far."""
    answered: dict[int, np.ndarray] = {}
    turns = [0]

    def run() -> dict[str, Any]:
        count, start = 0, time.perf_counter()
        while count < least or (time.perf_counter() - start < seconds and turns[0] < len(task.persons)):
            row = int(task.persons[turns[0] % len(task.persons)])
            answer = one(row)
            answered[row] = np.full(task.width, np.nan) if answer is None else answer
            count, turns[0] = count + 1, turns[0] + 1
        return {"rows": np.array(list(answered)), "found": np.stack(list(answered.values())), "units": count}

    return run


# ----------------------------------------------------------------------------------------------------------- HiGHS


def highs(name: str, model: str) -> Callable[[Work], Call]:
    """The cheapest answer by one mixed-integer program a person, written apart from safexplain's own.

    Layers with ReLU by a binary variable each and bounds from the box of the table (Tjeng, Xiao and Tedrake 2019, arXiv
    1711.07356); 10 s a program, and where that is not enough the best found counts as no answer.
    """

    def ready(work: Work) -> Call:
        task = Task(work, name, model)
        return in_turn(task, program(task))

    return ready


def program(task: Task, seconds: float = 10.0) -> One:
    """A person's program; numbers are measured in the units of their ranges."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    weights, width, plain = task.as_layers(), task.width, task.plain
    wide = np.concatenate([task.range, np.ones(width - plain)])
    shift = np.concatenate([task.low, np.zeros(width - plain)])
    rising = np.zeros(width, dtype=bool)
    rising[task.columns(task.rising)] = True
    fixed = np.zeros(width, dtype=bool)
    fixed[task.columns(task.fixed)] = True
    whole = np.concatenate([task.whole, np.ones(width - plain, dtype=bool)])
    hidden = [len(w) for w in weights[::2][:-1]]
    # variables: x (in units of the table), up and down (in ranges), then z and a binary for each hidden unit
    total = 3 * width + 2 * sum(hidden)
    integral = np.zeros(total)
    integral[:width] = whole
    rows: list[np.ndarray] = []
    lower: list[float] = []
    upper: list[float] = []

    def add(terms: dict[int, float], low: float, high: float) -> None:
        row = np.zeros(total)
        for at, value in terms.items():
            row[at] += value
        rows.append(row)
        lower.append(low)
        upper.append(high)

    for group in task.groups:
        add(dict.fromkeys(group, 1.0), 1.0, 1.0)
    least, most = np.zeros(width), np.ones(width)
    before: list[dict[int, float]] = [{i: 1 / wide[i]} for i in range(width)]
    constant = -shift / wide
    at = 3 * width
    for layer, units in enumerate(hidden):
        w, b = weights[2 * layer], weights[2 * layer + 1]
        low = np.maximum(w, 0) @ least + np.minimum(w, 0) @ most + b
        high = np.maximum(w, 0) @ most + np.minimum(w, 0) @ least + b
        after: list[dict[int, float]] = []
        for unit in range(units):
            z, on = at + unit, at + units + unit
            integral[on] = 1
            terms: dict[int, float] = {}
            for weight, part in zip(w[unit], before, strict=True):
                for k, value in part.items():
                    terms[k] = terms.get(k, 0.0) + weight * value
            known = float(b[unit] + w[unit] @ constant)
            above, below = max(high[unit], 0.0), min(low[unit], 0.0)
            add({**{k: -v for k, v in terms.items()}, z: 1.0}, known, np.inf)  # z >= a
            add(
                {**{k: -v for k, v in terms.items()}, z: 1.0, on: -below}, -np.inf, known - below
            )  # z <= a - l (1 - on)
            add({z: 1.0, on: -above}, -np.inf, 0.0)  # z <= u on
            after.append({z: 1.0})
        least, most = np.maximum(low, 0), np.maximum(high, 0)
        before, constant, at = after, np.zeros(units), at + 2 * units
    difference = weights[-2][1] - weights[-2][0]
    offset = float(weights[-1][1] - weights[-1][0] + difference @ constant)
    terms = {}
    for weight, part in zip(difference, before, strict=True):
        for k, value in part.items():
            terms[k] = terms.get(k, 0.0) + weight * value
    add(terms, -offset, np.inf)
    shared, low_shared, high_shared = np.array(rows), np.array(lower), np.array(upper)
    price = np.zeros(total)
    price[width : 3 * width] = np.tile(wide / task.units(), 2)

    def one(row: int) -> np.ndarray | None:
        origin = task.table[row]
        low = np.concatenate([np.concatenate([task.low, np.zeros(width - plain)]), np.zeros(total - width)])
        high = np.concatenate([np.concatenate([task.high, np.ones(width - plain)]), np.full(total - width, np.inf)])
        low[:width][fixed | rising] = origin[fixed | rising]
        high[:width][fixed] = origin[fixed]
        high[integral.astype(bool) & (np.arange(total) >= 3 * width)] = 1.0
        moved = np.zeros((width, total))
        index = np.arange(width)
        moved[index, index], moved[index, width + index], moved[index, 2 * width + index] = 1.0, -wide, wide
        answer = milp(
            price, integrality=integral, bounds=Bounds(low, high),
            constraints=LinearConstraint(np.vstack([shared, moved]), np.concatenate([low_shared, origin]),
                                         np.concatenate([high_shared, origin])),
            options={"time_limit": seconds, "mip_rel_gap": 1e-9},
        )  # fmt: skip
        if answer.status != 0 or answer.x is None:
            return None
        found: np.ndarray = answer.x[:width].copy()
        found[whole] = np.rint(found[whole])
        found[fixed] = origin[fixed]
        return found

    return one


# ------------------------------------------------------------------------------------------------------------ DiCE


def dice(name: str, model: str, method: str) -> Callable[[Work], Call]:
    """DiCE, one counterfactual a person; told ranges, what is fixed, and by a person's own range what rises."""

    def ready(work: Work) -> Call:
        import dice_ml
        import pandas as pd

        logging.disable(logging.WARNING)
        task = Task(work, name, model)
        numbers, categories = task.names[: task.plain], task.names[task.plain :]
        rows = np.concatenate([task.public, task.persons])
        frame = pd.DataFrame({
            **{n: task.numbers[rows, i].astype(np.int64 if task.whole[i] else np.float64)
               for i, n in enumerate(numbers)},
            **{n: np.char.add("k", task.codes[rows, i].astype(str)) for i, n in enumerate(categories)},
        })  # fmt: skip
        place = {int(row): i for i, row in enumerate(rows)}
        known = frame.assign(granted=(task.score(task.table[rows]) >= 0).astype(int))
        fractions = {n: 4 for i, n in enumerate(numbers) if not task.whole[i]}
        data = dice_ml.Data(
            dataframe=known, continuous_features=numbers, outcome_name="granted",
            **({"continuous_features_precision": fractions} if fractions else {}),
        )  # fmt: skip

        def encoded(given: Any) -> np.ndarray:
            codes = np.zeros((len(given), len(categories)), dtype=np.int64)
            for i, c in enumerate(categories):
                codes[:, i] = [int(str(value)[1:]) for value in given[c]]
            return task.encoded(given[numbers].astype(float).to_numpy(), codes)

        explainer = dice_ml.Dice(data, _reads_frames(task, encoded), method=method)
        may = [n for i, n in enumerate(task.names) if i not in task.fixed]

        def one(row: int) -> np.ndarray | None:
            query = frame.iloc[[place[row]]]
            ranges: dict[str, list[Any]] = {}
            for i, n in enumerate(numbers):
                low = task.numbers[row, i] if i in task.rising else task.low[i]
                if n in may:
                    ranges[n] = [int(low), int(task.high[i])] if task.whole[i] else [float(low), float(task.high[i])]
            try:
                answer = explainer.generate_counterfactuals(
                    query, total_CFs=1, desired_class="opposite", features_to_vary=may, permitted_range=ranges,
                    verbose=False,
                )  # fmt: skip
                found = answer.cf_examples_list[0].final_cfs_df
            except Exception as error:  # DiCE raises where it finds none
                if "counterfactual" not in str(error).lower():
                    raise
                return None
            return encoded(found)[0] if found is not None and len(found) else None

        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (what DiCE draws from)
        return in_turn(task, one)

    return ready


def _reads_frames(task: Task, encoded: Callable[[Any], np.ndarray]) -> Any:
    """The model as scikit-learn's classifiers are."""
    import dice_ml

    class Frames:
        """Reads frames."""

        classes_ = np.array([0, 1])

        def predict_proba(self, frame: Any) -> np.ndarray:
            yes = 1 / (1 + np.exp(-task.score(encoded(frame))))
            return np.stack([1 - yes, yes], axis=1)

        def predict(self, frame: Any) -> np.ndarray:
            return (task.score(encoded(frame)) >= 0).astype(int)

    return dice_ml.Model(model=Frames(), backend="sklearn")


# ----------------------------------------------------------------------------------------------------------- Alibi


def alibi(name: str, model: str, prototypes: bool) -> Callable[[Work], Call]:
    """Alibi's Counterfactual or CounterfactualProto by gradients of a model in Keras; it can be told ranges only."""

    def ready(work: Work) -> Call:
        import tensorflow as tf
        from alibi.explainers import Counterfactual, CounterfactualProto

        tf.compat.v1.disable_v2_behavior()
        tf.keras.backend.clear_session()  # its variables of the contest before have the same names
        tf.compat.v1.reset_default_graph()
        logging.disable(logging.ERROR)
        task = Task(work, name, model)
        d, weights = task.width, task.as_layers()
        dense = [tf.keras.layers.Dense(len(w), activation="relu") for w in weights[::2][:-1]]
        network = tf.keras.Sequential([tf.keras.Input((d,)), *dense, tf.keras.layers.Dense(2, activation="softmax")])
        network.set_weights([w.T for w in weights])
        scaled = task.scaled(task.table)
        if prototypes:
            groups = {group[0]: len(group) for group in task.groups}
            ends = [(-1.0 if groups else 0.0) * np.ones((1, len(groups))), np.ones((1, len(groups)))]
            numbers = np.zeros((1, task.plain)), np.ones((1, task.plain))
            wide = tuple(np.concatenate([n, e], 1).astype(np.float32) for n, e in zip(numbers, ends, strict=True))
            explainer: Any = CounterfactualProto(
                network, (1, d), feature_range=wide, use_kdtree=True, theta=10.0, cat_vars=groups or None,
                ohe=bool(groups),
            )  # fmt: skip
            options = {"d_type": "abdm", "disc_perc": [25, 50, 75]} if groups else {}
            explainer.fit(scaled[task.public].astype(np.float32), **options)
        else:
            explainer = Counterfactual(
                network, shape=(1, d), distance_fn="l1", target_class=1, target_proba=0.55, feature_range=(0.0, 1.0)
            )

        def one(row: int) -> np.ndarray | None:
            asked = {"target_class": [1]} if prototypes else {}
            answer = explainer.explain(scaled[[row]].astype(np.float32), **asked).cf
            if answer is None:
                return None
            return task.unscaled(np.asarray(answer["X"], dtype=np.float64).reshape(1, d))[0]

        return in_turn(task, one)

    return ready


DICE = ("random", "genetic", "kdtree")
ALIBI = {"Counterfactual": False, "CounterfactualProto": True}
CALLS: dict[str, Callable[[Work], Call]] = {
    **calls(NAMES),
    **{f"HiGHS, {n}, {m}": highs(n, m) for n in NAMES for m in BOTH},
    **{f"DiCE {how}, {n}, {m}": dice(n, m, how) for n in NAMES for m in BOTH for how in DICE},
    **{f"Alibi {how}, {n}, {m}": alibi(n, m, proto) for n in NAMES for m in BOTH for how, proto in ALIBI.items()},
}
"""Title of a tool, data set and model -> what makes it ready."""
