"""Recourse of small networks on HELOC (23 numbers) and German credit (7 numbers, 13 categories).

Numbers are standardised; the cost of a change is L1 in these units, and 1 for another category. Nobody may leave the
range of the data; where a peer can be told so, three columns do not change at all: what has happened (HELOC), and age,
sex and origin (German). Persons are those whom the network refuses. An answer counts as valid when the network grants
it in all its digits and it keeps the constraints; distances are means over valid answers. A person is a unit of time.
Peers answer one person after the other, and take the next ones in every run; ours answers twenty at once.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

HIDDEN, PERSONS = (32, 16), 20
"""Layers; and persons asked for."""
A_RUN = {"random": 5, "genetic": 2, "gradient": 1}
"""Persons in a run of DiCE, by method."""
FIXED = {"heloc": (1, 5, 10), "german": (4, 12, 19)}
"""Columns, categories after numbers: age of the file, delinquencies; age, sex and status, foreign worker."""
CATEGORICAL = {"heloc": 0, "german": 13}
SLACK = 1e-3
"""How far a number may leave its range or its value: DiCE rounds to four digits."""


def prepare(data: Path, quick: bool) -> Work:
    """For each data set: raw numbers and codes, and the weights of a trained network."""
    from audit.shared.run import load

    heloc, german = load(data, "heloc", ("x", "y"))[0], load(data, "german", ("x_num", "x_cat", "y"))[0]
    out: Work = {"persons": np.array(2 if quick else PERSONS)}
    for name, numbers, codes, y in (
        ("heloc", heloc["x"], np.zeros((len(heloc["x"]), 0), dtype=np.int64), heloc["y"]),
        ("german", german["x_num"], german["x_cat"].astype(np.int64), german["y"]),
    ):
        numbers = (numbers - numbers.mean(0)) / numbers.std(0)
        numbers = numbers.astype(np.float64).round(4)
        x = encoded(numbers, codes, _counts(codes))
        out |= {f"{name} numbers": numbers, f"{name} codes": codes, f"{name} y": np.asarray(y, dtype=np.int64)}
        weights = _fitted(x, out[f"{name} y"], epochs=2 if quick else 30)
        out |= {f"{name} weight {i}": w for i, w in enumerate(weights)}
    return out


def _fitted(x: np.ndarray, y: np.ndarray, epochs: int) -> list[np.ndarray]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = layers(x.shape[1])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    rows, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    for _ in range(epochs):
        for batch in torch.randperm(len(rows)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(rows[batch]), labels[batch]).backward()
            optimizer.step()
    return [p.detach().numpy() for p in net.parameters()]


def layers(features: int) -> Any:
    """The network, untrained."""
    from torch import nn

    widths = (features, *HIDDEN)
    hidden = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 2))


def _counts(codes: np.ndarray) -> list[int]:
    return [int(c) + 1 for c in codes.max(0)] if codes.size else []


def encoded(numbers: np.ndarray, codes: np.ndarray, counts: list[int]) -> np.ndarray:
    """(n, numbers + categories) rows as the network reads them."""
    return np.concatenate([numbers, *(np.eye(c)[codes[:, i]] for i, c in enumerate(counts))], axis=1)


class Task:
    """A data set with its network.

    Args:
        work: of `prepare`.
        name: "heloc" or "german".
        fixed: whether three columns may not change.
    """

    def __init__(self, work: Work, name: str, fixed: bool = True) -> None:
        import torch

        torch.set_num_threads(1)
        self.name, self.fixed = name, fixed
        self.numbers, self.codes, self.y = (work[f"{name} {part}"] for part in ("numbers", "codes", "y"))
        self.counts = _counts(self.codes)
        self.low, self.high = self.numbers.min(0), self.numbers.max(0)
        self.x = encoded(self.numbers, self.codes, self.counts)
        self.weights = [work[f"{name} weight {i}"] for i in range(2 * len(HIDDEN) + 2)]
        self.net = layers(self.x.shape[1]).eval()
        with torch.no_grad():
            for p, w in zip(self.net.parameters(), self.weights, strict=True):
                p.copy_(torch.from_numpy(w))
        self.refused = np.flatnonzero(self.score(self.x) < -0.1)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Columns of each category."""
        starts = self.numbers.shape[1] + np.concatenate([[0], np.cumsum(self.counts)[:-1]]) if self.counts else []
        return [tuple(range(int(s), int(s) + c)) for s, c in zip(starts, self.counts, strict=True)]

    @property
    def unchangeable(self) -> list[int]:
        """Columns of the encoded rows."""
        plain, found = self.numbers.shape[1], []
        for column in FIXED[self.name] if self.fixed else ():
            found += [column] if column < plain else list(self.groups[column - plain])
        return found

    def score(self, x: np.ndarray) -> np.ndarray:
        """(n,) logit of "yes" less that of "no"."""
        import torch

        with torch.no_grad():
            logits = self.net(torch.from_numpy(np.asarray(x)).float()).double().numpy()
        found: np.ndarray = logits[:, 1] - logits[:, 0]
        return found

    def judged(self, origin: np.ndarray, found: np.ndarray) -> dict[str, float]:
        """Share of valid answers, and their mean distance."""
        plain = self.numbers.shape[1]
        change = np.abs(found - origin)
        kept = change[:, self.unchangeable].max(1, initial=0.0) <= SLACK
        inside = ((found[:, :plain] >= self.low - SLACK) & (found[:, :plain] <= self.high + SLACK)).all(1)
        whole = np.ones(len(found), dtype=bool)
        for group in self.groups:
            part = found[:, list(group)]
            whole &= (np.isclose(part, 0) | np.isclose(part, 1)).all(1) & np.isclose(part.sum(1), 1)
        valid = kept & inside & whole & (self.score(found) >= 0) & np.isfinite(found).all(1)
        distance = change[:, :plain].sum(1) + change[:, plain:].sum(1) / 2
        mean = float(distance[valid].mean()) if valid.any() else float("nan")
        return {"valid": float(valid.mean()), "distance": round(mean, 3), "persons": len(found)}


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """Valid answers and their distance."""
    name = "german" if "German" in call else "heloc"
    return Task(work, name, "range" not in call).judged(run.arrays["origin"], run.arrays["found"])


def ours(name: str, fixed: bool, together: bool) -> Callable[[Work], Call]:
    """`search_recourse`, all persons at once or one after the other."""

    def ready(work: Work) -> Call:

        from safexplain.recourse.constraints import Constraints
        from safexplain.recourse.cost import L1

        task = Task(work, name, fixed)
        plain, d = task.numbers.shape[1], task.x.shape[1]
        origin = task.x[task.refused[: int(work["persons"])]]
        constraints = Constraints(
            d, lower=[*task.low, *[0.0] * (d - plain)], upper=[*task.high, *[1.0] * (d - plain)],
            immutable=tuple(task.unchangeable), one_hot=tuple(task.groups),
        )  # fmt: skip
        cost = L1([1.0] * plain + [2.0] * (d - plain))

        def run() -> dict[str, Any]:
            pieces = [origin] if together else [row[None] for row in origin]
            found = [search_recourse(task.net, p, cost=cost, constraints=constraints).counterfactual for p in pieces]
            return {"origin": origin, "found": np.concatenate(found), "units": len(origin)}

        return run

    return ready


def _in_turn(task: Task, work: Work, one: Callable[[int], np.ndarray], size: int) -> Call:
    """Each run answers the next `size` persons and tells all answers so far."""
    rows = task.refused[: int(work["persons"])]
    answered: list[tuple[int, np.ndarray]] = []

    def run() -> dict[str, Any]:
        for _ in range(size):
            row = int(rows[len(answered) % len(rows)])
            answered.append((row, one(row)))
        distinct = dict(answered)
        return {"origin": task.x[list(distinct)], "found": np.stack(list(distinct.values())), "units": size}

    return run


def dice(name: str, method: str) -> Callable[[Work], Call]:
    """DiCE's search with one counterfactual a person; "gradient" knows the network, the others call it."""

    def ready(work: Work) -> Call:
        import dice_ml
        import pandas as pd

        logging.disable(logging.WARNING)
        task = Task(work, name)
        numbers = [f"n{i}" for i in range(task.numbers.shape[1])]
        categories = [f"c{i}" for i in range(task.codes.shape[1])]
        frame = pd.DataFrame(task.numbers, columns=numbers)
        for i, column in enumerate(categories):
            frame[column] = task.codes[:, i].astype(str)
        data = dice_ml.Data(
            dataframe=frame.assign(y=task.y), continuous_features=numbers, outcome_name="y",
            continuous_features_precision=dict.fromkeys(numbers, 4),
        )  # fmt: skip
        explainer = dice_ml.Dice(data, _as_dice_asks(task, method, numbers, categories), method=method)
        columns = [*numbers, *categories]
        may = [c for i, c in enumerate(columns) if i not in FIXED[name]]

        def one(row: int) -> np.ndarray:
            options: dict[str, Any] = {"total_CFs": 1, "desired_class": "opposite", "features_to_vary": may}
            try:
                answer = explainer.generate_counterfactuals(frame.iloc[[row]], verbose=False, **options)
                found = answer.cf_examples_list[0].final_cfs_df
            except Exception as error:  # DiCE raises where it finds none
                if "counterfactual" not in str(error).lower():
                    raise
                found = None
            if found is None or not len(found):
                return task.x[row]
            codes = found[categories].astype(int).to_numpy()
            return encoded(found[numbers].astype(float).to_numpy(), codes, task.counts)[0]

        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (what DiCE draws from)
        return _in_turn(task, work, one, A_RUN[method])

    return ready


def _as_dice_asks(task: Task, method: str, numbers: list[str], categories: list[str]) -> Any:
    """The network as DiCE takes it."""
    import dice_ml
    import torch

    if method == "gradient":
        low, size = torch.from_numpy(task.low).float(), torch.from_numpy(task.high - task.low).float()

        class Scaled(torch.nn.Module):
            """Reads numbers scaled to [0, 1], answers the probability of "yes"."""

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                logits = task.net(x.float() * size + low)
                return torch.sigmoid(logits[..., 1:] - logits[..., :1])

        return dice_ml.Model(model=Scaled().eval(), backend="PYT", func="ohe-min-max")

    class Frames:
        """Reads frames as scikit-learn's classifiers do."""

        classes_ = np.array([0, 1])

        def predict_proba(self, frame: Any) -> np.ndarray:
            codes = frame[categories].astype(int).to_numpy()
            score = task.score(encoded(frame[numbers].astype(float).to_numpy(), codes, task.counts))
            yes = 1 / (1 + np.exp(-score))
            return np.stack([1 - yes, yes], axis=1)

        def predict(self, frame: Any) -> np.ndarray:
            return (self.predict_proba(frame)[:, 1] >= 0.5).astype(int)

    return dice_ml.Model(model=Frames(), backend="sklearn")


def alibi(name: str, prototypes: bool) -> Callable[[Work], Call]:
    """Alibi's Counterfactual or CounterfactualProto, with the same network in Keras; it knows ranges only."""

    def ready(work: Work) -> Call:
        import tensorflow as tf
        from alibi.explainers import Counterfactual, CounterfactualProto

        tf.compat.v1.disable_v2_behavior()
        logging.disable(logging.ERROR)
        task = Task(work, name, fixed=False)
        plain, d = task.numbers.shape[1], task.x.shape[1]
        dense = [tf.keras.layers.Dense(width, activation="relu") for width in HIDDEN]
        model = tf.keras.Sequential([tf.keras.Input((d,)), *dense, tf.keras.layers.Dense(2, activation="softmax")])
        model.set_weights([w.T for w in task.weights])
        low, high = task.low[None].astype(np.float32), task.high[None].astype(np.float32)
        if prototypes:
            groups = {group[0]: len(group) for group in task.groups}
            wide = (np.concatenate([low, np.zeros((1, d - plain), np.float32)], 1),
                    np.concatenate([high, np.ones((1, d - plain), np.float32)], 1))  # fmt: skip
            if groups:  # distances between categories take the place of 0 and 1 inside
                wide = (np.concatenate([low, -np.ones((1, len(groups)), np.float32)], 1),
                        np.concatenate([high, np.ones((1, len(groups)), np.float32)], 1))  # fmt: skip
            explainer: Any = CounterfactualProto(
                model, (1, d), feature_range=wide, use_kdtree=True, theta=10.0, cat_vars=groups or None,
                ohe=bool(groups),
            )  # fmt: skip
            explainer.fit(
                task.x.astype(np.float32), **({"d_type": "abdm", "disc_perc": [25, 50, 75]} if groups else {})
            )
        else:
            explainer = Counterfactual(
                model, shape=(1, d), distance_fn="l1", target_class=1, target_proba=0.55, feature_range=(low, high)
            )

        def one(row: int) -> np.ndarray:
            options = {"target_class": [1]} if prototypes else {}
            answer = explainer.explain(task.x[[row]].astype(np.float32), **options).cf
            return task.x[row] if answer is None else np.asarray(answer["X"][0], dtype=np.float64)

        return _in_turn(task, work, one, 1)

    return ready


CALLS: dict[str, Callable[[Work], Call]] = {
    "search_recourse, HELOC": ours("heloc", True, True),
    "search_recourse, HELOC, one by one": ours("heloc", True, False),
    "search_recourse, HELOC, range": ours("heloc", False, True),
    "search_recourse, German": ours("german", True, True),
    "search_recourse, German, range": ours("german", False, True),
    **{f"DiCE {m}, HELOC": dice("heloc", m) for m in ("random", "genetic", "gradient")},
    **{f"DiCE {m}, German": dice("german", m) for m in ("random", "genetic")},
    "Alibi Counterfactual, HELOC, range": alibi("heloc", False),
    "Alibi CounterfactualProto, HELOC, range": alibi("heloc", True),
    "Alibi CounterfactualProto, German, range": alibi("german", True),
}
