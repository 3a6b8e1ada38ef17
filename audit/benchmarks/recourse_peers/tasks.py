"""Data, models and constraints that every tool is given alike, and what an answer is judged by.

Runs in every peer's environment, one of which has Python 3.7 and NumPy 1.19: nothing newer is used.

A row is a list of numbers in the units of the file and a list of codes of categories. The table that models and solvers
read has one column a number and one 0/1 column a category. Least and greatest values of the file count as public.
Changing a number costs the change over its range, another category 1; "MAD" has median absolute deviations of the
public rows in place of ranges (the range where that is 0).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Work = dict
"""Arrays by name."""

NAMES = ("HELOC", "Adult", "German", "COMPAS")
MODELS = ("logistic", "network")
PRIVATE = "private"
"""A logistic regression trained with differential privacy on the same rows: what `DPModelRecourse` answers from."""
EPSILON = 1.0
HIDDEN = (16, 8)
PERSONS = {"logistic": 200, "private": 200, "network": 50}
"""Who is asked about: fewer where our own search takes its time."""
PUBLIC = 2000
SLACK = 1e-3
"""How far a number may be off, in units of its range: DiCE rounds to four digits. Whole numbers may be off by 1e-6."""
REACHED = -1e-6
"""Score from which an answer counts as granted, as solvers leave the boundary to rounding."""

FIXED = {
    "HELOC": (
        "ExternalRiskEstimate", "MSinceOldestTradeOpen", "NumTrades60Ever2DerogPubRec", "NumTrades90Ever2DerogPubRec",
        "MaxDelq2PublicRecLast12M", "MaxDelqEver",
    ),
    "Adult": ("fnlwgt", "marital-status", "relationship", "race", "sex", "native-country"),
    "German": (
        "PRESENT_RESIDENCE_SINCE", "LIABLE_PEOPLE", "CREDIT_HISTORY", "PERSONAL_STATUS_AND_SEX", "FOREIGN", "PURPOSE"
    ),
    "COMPAS": ("two_year_recid", "race", "sex"),
}  # fmt: skip
"""What never changes."""
RISING = {
    "HELOC": ("AverageMInFile", "NumTotalTrades"), "Adult": ("age", "education-num"), "German": ("AGE",),
    "COMPAS": ("age",),
}  # fmt: skip
"""What does not fall."""
LEFT_OUT = {"Adult": ("education",)}
"""Columns that say again what another one says."""


def prepare(data: Path, quick: bool) -> Work:
    """All data sets, and two models of each: a logistic regression and a network of two hidden layers."""
    from audit.shared.run import load

    out: Work = {}
    for name in NAMES:
        if name == "HELOC":
            arrays = load(data, "heloc", ("x", "y", "names"))[0]
            numbers, codes = arrays["x"], np.zeros((len(arrays["x"]), 0))
            labels: tuple[Sequence[str], Sequence[str]] = (arrays["names"], [])
        else:
            arrays = load(data, name.lower(), ("x_num", "x_cat", "y"))[0]
            numbers, codes, labels = arrays["x_num"], arrays["x_cat"], (arrays["num_names"], arrays["cat_names"])
        kept = [i for i, c in enumerate(labels[1]) if c not in LEFT_OUT.get(name, ())]
        rng = np.random.default_rng(0)
        order = rng.permutation(len(numbers))[: 2000 if quick else 12_000]
        numbers, codes = np.asarray(numbers, dtype=np.float64).round(4)[order], np.asarray(codes)[order][:, kept]
        y = np.asarray(arrays["y"]).astype(np.int64)[order]
        out[f"{name} numbers"], out[f"{name} codes"], out[f"{name} y"] = numbers, codes.astype(np.int64), y
        out[f"{name} names"] = np.array([*labels[0], *(labels[1][i] for i in kept)])
        task = Task(out, name)
        scaled = task.scaled(task.table)
        half = len(y) // 2  # the others ask
        out[f"{name} logistic 0"], out[f"{name} logistic 1"] = _logistic(scaled[:half], y[:half])
        for i, w in enumerate(_network(scaled[:half], y[:half], epochs=3 if quick else 30)):
            out[f"{name} network {i}"] = w
        out[f"{name} {PRIVATE} 0"], out[f"{name} {PRIVATE} 1"] = _private(task, half)
        public = min(PUBLIC, half // 2)
        out[f"{name} public"] = np.arange(half, half + public)
        for model in (*MODELS, PRIVATE):
            score = Task(out, name, model).score(task.table)
            refused = np.flatnonzero(score < -0.05)
            rest = refused[refused >= (half + public if len(y) > 3000 else half)]
            out[f"{name} {model} persons"] = rest[: 6 if quick else PERSONS[model]]
    return out


def _logistic(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=5000).fit(x, y)
    return model.coef_[0], model.intercept_


def _private(task: Task, half: int) -> tuple[np.ndarray, np.ndarray]:
    """On the table's first half, scaled by public ranges to rows of bounded norm."""
    from safexplain.dp import DPLogisticRegression
    from safexplain.recourse import Preprocessing

    people = Preprocessing(
        numeric={f"n{i}": (float(task.low[i]), float(task.high[i])) for i in range(task.plain)},
        categories={f"c{i}": list(range(count)) for i, count in enumerate(task.counts)},
    )
    rows = people.scaled(task.table[:half])
    model = DPLogisticRegression(
        epsilon=EPSILON, delta=1e-5, norm_bound=people.norm_bound, classes=(0, 1), random_state=0
    ).fit(rows, task.y[:half])
    weights = model.coef_[0] / people.scale
    bias = float(model.intercept_[0] - people.offset @ weights)
    scaled = weights.copy()
    scaled[: task.plain] *= task.range
    return scaled, np.array([bias + task.low @ weights[: task.plain]])


def _network(x: np.ndarray, y: np.ndarray, epochs: int) -> list[np.ndarray]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = layers([x.shape[1], *HIDDEN, 2])
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    rows, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    for _ in range(epochs):
        for batch in torch.randperm(len(rows)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(rows[batch]), labels[batch]).backward()
            optimizer.step()
    return [p.detach().double().numpy() for p in net.parameters()]


def layers(widths: Sequence[int]) -> Any:
    """A network of linear layers with ReLU between them, untrained."""
    from torch import nn

    found: list[Any] = []
    for i in range(len(widths) - 1):
        found += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
    return nn.Sequential(*found[:-1])


class Task:
    """A data set and one of its models.

    Args:
        work: of `prepare`.
        name: of the data set.
        model: of `MODELS`.
    """

    def __init__(self, work: Work, name: str, model: str = "") -> None:
        self.name, self.model = name, model
        self.numbers, self.codes, self.y = (work[f"{name} {part}"] for part in ("numbers", "codes", "y"))
        self.names = [str(n) for n in work[f"{name} names"]]
        self.low, self.high = self.numbers.min(0), self.numbers.max(0)
        self.range = np.where(self.high > self.low, self.high - self.low, 1.0)
        self.whole = (self.numbers == np.rint(self.numbers)).all(0)
        self.plain = self.numbers.shape[1]
        self.counts = [int(c) + 1 for c in self.codes.max(0)] if self.codes.size else []
        self.table = self.encoded(self.numbers, self.codes)
        self.width = self.table.shape[1]
        self.fixed = [i for i, n in enumerate(self.names) if n in FIXED[name]]
        self.rising = [i for i, n in enumerate(self.names) if n in RISING[name]]
        self.parts = [work[k] for k in sorted(k for k in work if model and k.startswith(f"{name} {model} ")
                                              and k[-1].isdigit())]  # fmt: skip
        self.public = work.get(f"{name} public", np.arange(0))
        self.persons = work.get(f"{name} {model} persons", np.arange(0))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Columns of the table, for each category."""
        found, start = [], self.plain
        for count in self.counts:
            found.append(tuple(range(start, start + count)))
            start += count
        return found

    def columns(self, features: Sequence[int]) -> list[int]:
        """Columns of the table that belong to features."""
        found: list[int] = []
        for f in features:
            found += [f] if f < self.plain else list(self.groups[f - self.plain])
        return found

    def encoded(self, numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """(n, width) the table of rows."""
        return np.concatenate([numbers, *(np.eye(c)[codes[:, i]] for i, c in enumerate(self.counts))], axis=1)

    def scaled(self, table: np.ndarray) -> np.ndarray:
        """What models read: numbers from 0 to 1."""
        return np.concatenate([(table[:, : self.plain] - self.low) / self.range, table[:, self.plain :]], axis=1)

    def unscaled(self, scaled: np.ndarray) -> np.ndarray:
        """The table, of what models read."""
        numbers = scaled[:, : self.plain] * self.range + self.low
        return np.concatenate([numbers, scaled[:, self.plain :]], axis=1)

    def logits(self, scaled: np.ndarray) -> np.ndarray:
        """(n,) logit of the favourable class, of scaled rows."""
        if self.model != "network":
            return np.asarray(scaled @ self.parts[0] + self.parts[1][0])
        hidden = scaled
        for i in range(0, len(self.parts), 2):
            hidden = hidden @ self.parts[i].T + self.parts[i + 1]
            hidden = np.maximum(hidden, 0) if i + 2 < len(self.parts) else hidden
        return np.asarray(hidden[:, 1] - hidden[:, 0])

    def score(self, table: np.ndarray) -> np.ndarray:
        """(n,) logit of the favourable class."""
        return self.logits(self.scaled(table))

    def linear(self) -> tuple[np.ndarray, float]:
        """Weights and intercept of the regression on the table."""
        weights = self.parts[0].copy()
        weights[: self.plain] /= self.range
        return weights, float(self.parts[1][0] - self.low @ weights[: self.plain])

    def as_layers(self) -> list[np.ndarray]:
        """Weights of a network of two outputs on scaled rows; the regression is one of a single layer."""
        if self.model == "network":
            return self.parts
        weights, bias = self.parts
        return [np.stack([np.zeros_like(weights), weights]), np.array([0.0, bias[0]])]

    def units(self, mad: bool = False) -> np.ndarray:
        """(width,) what a change of each column is divided by; a category changes in two columns."""
        unit = self.range
        if mad:
            public = self.numbers[self.public]
            deviation = np.median(np.abs(public - np.median(public, 0)), 0)
            unit = np.where(deviation > 0, deviation, self.range)
        return np.concatenate([unit, np.full(self.width - self.plain, 2.0)])

    def kept(self, origin: np.ndarray, found: np.ndarray) -> dict[str, np.ndarray]:
        """(m,) bool for each kind of constraint: whether the answers keep it."""
        off = SLACK * self.range
        numbers, change = found[:, : self.plain], found - origin
        fixed, rising = self.columns(self.fixed), self.columns(self.rising)
        unit = self.units()
        whole = np.abs(numbers - np.rint(numbers)) <= 1e-6
        one = np.ones(len(found), dtype=bool)
        for group in self.groups:
            part = found[:, list(group)]
            one &= (np.isclose(part, 0) | np.isclose(part, 1)).all(1) & np.isclose(part.sum(1), 1)
        return {
            "fixed": (np.abs(change[:, fixed]) <= SLACK * unit[fixed]).all(1),
            "rising": (change[:, rising] >= -SLACK * unit[rising]).all(1),
            "range": ((numbers >= self.low - off) & (numbers <= self.high + off)).all(1),
            "whole": (whole | ~self.whole).all(1),
            "one category": one,
        }

    def changed(self, origin: np.ndarray, found: np.ndarray) -> np.ndarray:
        """(m,) features that change, a category one."""
        change = np.abs(found - origin)
        count = (change[:, : self.plain] > 1e-6 * self.range).sum(1)
        for group in self.groups:
            count = count + (change[:, list(group)].max(1) > 0.5)
        return count

    def cost(self, origin: np.ndarray, found: np.ndarray, mad: bool = False) -> np.ndarray:
        """(m,) L1 distance."""
        distance: np.ndarray = (np.abs(found - origin) / self.units(mad)).sum(1)
        return distance

    def outliers(self) -> Any:
        """table -> (m,) bool, whether rows are outliers by LOF (20 neighbours) among public rows, each counted once.

        Numbers are divided by their public standard deviations.
        """
        from sklearn.neighbors import LocalOutlierFactor

        unit = self.units()
        unit[: self.plain] = np.maximum(self.numbers[self.public].std(0), 1e-3 * self.range)
        known = np.unique(self.table[self.public] / unit, axis=0)
        model = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(known)
        return lambda table: model.predict(table / unit) == -1


def usable_costs(task: Task, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(rows of the table,) cost of usable answers about `rows`, NaN elsewhere."""
    costs, origin = np.full(len(task.table), np.nan), task.table[rows]
    good = np.isfinite(found).all(1)
    good[good] &= task.score(found[good]) >= REACHED
    for each in task.kept(origin[good], found[good]).values():
        good[good] &= each
    costs[rows[good]] = task.cost(origin[good], found[good])
    return costs


def judged(
    task: Task, origin: np.ndarray, found: np.ndarray, outlier: Any, others: dict[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """What is told of the answers of one tool.

    Args:
        task: data set and model.
        origin: (m, width) rows that were asked about.
        found: (m, width) answers, NaN where there is none.
        outlier: of `Task.outliers`.
        others: name -> (m,) cost of somebody else's usable answers, NaN where there is none.

    Returns:
        Shares of the persons: answered; granted; each constraint kept; usable, granted with all constraints kept. Means
        over usable answers: cost, cost in MAD, changed features, outliers, and cost over that of others.
    """
    there = np.isfinite(found).all(1) & (np.abs(found - origin).max(1) > 0)
    rows, answers = origin[there], found[there]
    granted = task.score(answers) >= REACHED
    kept = task.kept(rows, answers)
    usable = granted.copy()
    for each in kept.values():
        usable &= each
    about: dict[str, Any] = {"persons": len(origin), "answered": float(there.mean())}
    about["granted"] = float(granted.sum() / len(origin))
    about["kept"] = {name: float(each.mean()) if len(each) else None for name, each in kept.items()}
    about["usable"] = float(usable.sum() / len(origin))
    about["outliers"] = float(outlier(answers[granted]).mean()) if granted.any() else None
    if granted.any():
        paid = task.cost(rows[granted], answers[granted])
        about["cost_granted"], about["over_granted"] = float(paid.mean()), {}
        for name, theirs in (others or {}).items():
            ratio = paid / theirs[there][granted]
            if np.isfinite(ratio).any():
                about["over_granted"][name] = float(np.nanmean(ratio))
    if usable.any():
        rows, answers = rows[usable], answers[usable]
        cost = task.cost(rows, answers)
        about |= {
            "cost": float(cost.mean()),
            "cost_mad": float(task.cost(rows, answers, mad=True).mean()),
            "changed": float(task.changed(rows, answers).mean()),
            "usable_outliers": float(outlier(answers).mean()),
        }
        about["over"] = {}
        for name, theirs in (others or {}).items():
            known = np.isfinite(theirs[there][usable])
            ratio = cost[known] / theirs[there][usable][known]
            if known.any():
                about["over"][name] = {
                    "persons": int(known.sum()), "mean": float(ratio.mean()), "least": float(ratio.min()),
                    "most": float(ratio.max()),
                }  # fmt: skip
    return about
