"""Tables of numbers for the evidence on recourse, prepared by public constants only.

Some rows are set aside as public: nobody is protected in them and no model whose privacy is measured trains on them.
Means, deviations, which columns repeat others (correlation above .95) and public models come from these rows. Each row
is then scaled to norm 1, as in the released code of Pawelczyk et al. (arXiv 2211.05427), which is a public bound on the
norm. The paper's code standardises by all rows, members included, outside of its privacy budget.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from ...shared.run import Unusable, load

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Task:
    """One pool of examples, and what is public.

    Args:
        public_x, public_y: rows that nobody protects.
    """

    x: Floats  # (n, d) rows of norm 1
    y: NDArray[np.int64]  # (n,) 0 and 1; 1 is favourable
    public_x: Floats
    public_y: NDArray[np.int64]
    source: dict[str, Any]  # what to record about the data

    def public_weights(self, trained_on: int, regularization: float) -> Floats:
        """(d,) weights of a regression of the public rows, regularised as much a row as a private one is."""
        strength = trained_on / (regularization * len(self.public_y))
        model = LogisticRegression(C=strength, max_iter=5000, tol=1e-6).fit(self.public_x, self.public_y)
        weights: Floats = model.coef_[0]
        return weights

    def questions(self, tries: int, *, same: bool) -> Floats:
        """(tries or fewer, d) public rows to ask about: the first unfavourable one again and again, or each once."""
        if same:
            return np.repeat(self.public_x[self.public_y == 0][:1], tries, axis=0)
        return self.public_x[:tries]


def prepared(
    x: Floats, y: NDArray[Any], public: int, source: dict[str, Any], *, rows: int | None = None, least: float = 0.0
) -> Task:
    """Shuffle once, set the first rows aside as public, standardise by them and scale every row to norm 1.

    Args:
        x: (n, d) as it is in the file.
        y: (n,) 0 and 1.
        public: how many rows.
        source: see `Task`.
        rows: size of the pool; None: all others.
        least: a column's deviation counts as at least this.
    """
    order = np.random.default_rng(0xDA7A).permutation(len(x))[: None if rows is None else public + rows]
    x, labels = np.asarray(x, dtype=np.float64)[order], np.asarray(y)[order].astype(np.int64)
    known = x[:public]
    deviation = known.std(0)
    kept = np.flatnonzero(deviation > 0)
    kept = kept[distinct(known[:, kept])]
    x = (x[:, kept] - known[:, kept].mean(0)) / np.maximum(deviation[kept], least)
    return split(x, labels, public, source | {"public_rows": public, "columns": len(kept)})


def split(x: Floats, y: NDArray[np.int64], public: int, source: dict[str, Any]) -> Task:
    """The first rows as public ones, all rows at norm 1."""
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return Task(x[public:], y[public:], x[:public], y[:public], source | {"rows": len(x) - public})


def distinct(x: Floats, limit: float = 0.95) -> NDArray[np.int64]:
    """Columns whose correlation with every earlier one that is kept is at most the limit."""
    close = np.abs(np.corrcoef(x, rowvar=False)) > limit
    kept: list[int] = []
    for column in range(x.shape[1]):
        if not close[column, kept].any():
            kept.append(column)
    return np.array(kept)


def heloc(data: Path) -> Task:
    """Whether an applicant repaid (RiskPerformance), 23 columns."""
    arrays, source = load(data, "heloc", ("x", "y"))
    return prepared(arrays["x"], arrays["y"], 400, source)


def heloc_external(data: Path) -> Task:
    """The paper's label, by its released parent code: ExternalRiskEstimate at least its median; that column dropped."""
    arrays, source = load(data, "heloc", ("x", "y"))
    estimate = arrays["x"][:, 0]
    return prepared(arrays["x"][:, 1:], estimate >= np.median(estimate[:400]), 400, source)


def adult(data: Path) -> Task:
    """Income above 50,000 dollars; categories one column each."""
    arrays, source = load(data, "adult", ("x_num", "x_cat", "y"))
    coded = [column[:, None] == np.arange(column.max() + 1) for column in arrays["x_cat"].T.astype(int)]
    return prepared(np.hstack([arrays["x_num"], *coded]), arrays["y"], 2000, source, rows=10_000)


def mnist38(data: Path) -> Task:
    """The digits 3 and 8; 8 is favourable."""
    arrays, source = load(data, "mnist", ("x_train", "y_train", "x_test", "y_test"))
    x = np.concatenate([arrays["x_train"], arrays["x_test"]]).reshape(-1, 784) / 255
    y = np.concatenate([arrays["y_train"], arrays["y_test"]])
    chosen = np.isin(y, (3, 8))
    return prepared(x[chosen], y[chosen] == 8, 400, source, least=0.1)


def synthetic(d: int, rows: int = 10_000, public: int = 400) -> Task:
    """A Gaussian cloud cut through its centre by a hyperplane of a tenth of the columns; 1 % of the labels are wrong.

    The paper draws rows around a vertex of a hypercube and does not say how they are labelled; 10 % important columns
    and 1 % wrong labels are those of the released parent code. Its law is public, so nothing is standardised by data.
    """
    rng = np.random.default_rng([0x5A17, d])
    x = rng.standard_normal((public + rows, d))
    teacher = np.where(rng.random(d) < 0.5, -1.0, 1.0) * (np.arange(d) < d // 10)
    y = (x @ teacher > 0) ^ (rng.random(len(x)) < 0.01)
    return split(x, y.astype(np.int64), public, {"file": "none, drawn", "public_rows": public, "columns": d})


def breast_cancer(data: Path) -> Task:
    """569 tumours that come with scikit-learn: for quick runs."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return prepared(x, y, 100, {"file": "scikit-learn"})


@dataclass(frozen=True)
class Plan:
    """How a task is run."""

    make: Callable[[Path], Task]  # reads or draws it
    models: int = 20  # trained a condition, targets in turn and each other's references
    size: int | None = 5000  # rows that each is trained on; None: half of the pool, by coin flips
    repeats: int = 4  # answers to each question for the averaging attack, where answers are noised


TASKS: dict[str, Plan] = {
    "heloc": Plan(heloc),
    "heloc, label of the paper": Plan(heloc_external),
    "adult": Plan(adult),
    "mnist 3/8": Plan(mnist38, models=12, size=None, repeats=3),
    "synthetic 100": Plan(lambda _: synthetic(100)),
    "synthetic 1000": Plan(lambda _: synthetic(1000), models=8, repeats=2),
    "synthetic 5000": Plan(lambda _: synthetic(5000), models=10, repeats=1),
    "synthetic 7000": Plan(lambda _: synthetic(7000), models=10, repeats=1),
}
QUICK: dict[str, Plan] = {
    "breast cancer": Plan(breast_cancer, models=4, size=None, repeats=2),
    "synthetic 100": Plan(lambda _: synthetic(100, rows=300, public=100), models=4, size=100, repeats=2),
}
FLAGS: dict[str, dict[str, Any]] = {
    "task": {"action": "append", "help": "only these tasks (repeat); default: all"},
    "models": {"type": int, "help": "models a condition (default: by task)"},
}
"""Options of both suites."""


def chosen(options: Namespace, plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """The tasks that were asked for.

    Raises:
        Unusable: a task that there is not.
    """
    names = options.task or list(plans)
    if unknown := [name for name in names if name not in plans]:
        raise Unusable(f"unknown tasks {unknown}; known are {list(plans)}")
    return {n: replace(plans[n], models=options.models or plans[n].models) for n in names}
