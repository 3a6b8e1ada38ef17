"""Do released reasons speak for the decision? Models of HELOC and Adult, 500 rows of each class, every path.

A row is right where the ordered set that is released names the k = 4 features whose native values, in favour of the
predicted class, are largest, in their order (fewer where fewer have a value above zero). Native values come from the
library itself (shap, Captum), and are turned here, apart from the product's code. Features whose native values differ
by less than a millionth of the largest are ties, and may come in any order. shap 0.50 or later, which reads XGBoost 3.

    drop-in    as the library's documentation asks, and no class is named
    service    `Release.explain`, which every platform calls
    audit      what an audit asks of the same row: the same bytes as the service's

    python -m audit.benchmarks.reasons [--data DIR] [--out FILE] [--rows 500]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import shap
import torch
from captum.attr import IntegratedGradients
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from xgboost import XGBClassifier

from safexplain import HardenedIG, Hardening, TopKSet
from safexplain.explain.served import TABLE_METHODS, load_release
from safexplain.explain.shap import HardenedLinearExplainer, HardenedTreeExplainer
from safexplain.outputs import EstimatorModule

from ..shared.run import finish, load
from .harness import Benchmark, at_least, at_most

K = 4
PATHS = ("drop-in", "service", "audit")
HARDENING = Hardening(clip=TopKSet(k=K, ordered=True))
Rows = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A model, and its explainer in every path.

    Args:
        native: (n, d) rows and (n,) classes -> values in favour of these classes, by the library itself.
        drop_in: (n, d) rows -> what is released, where the predicted class is read of several outputs.
    """

    native: Callable[[Rows, Rows], Rows]
    drop_in: Callable[[Rows, Rows], Rows]
    method: str  # in the catalog
    model: Any  # as a service gets it
    public: Rows | None = None  # rows, where the method needs them

    def predicted(self, x: Rows) -> Rows:
        """(n,) classes."""
        if isinstance(self.model, nn.Module):
            with torch.no_grad():
                return np.asarray(self.model(torch.from_numpy(x)).argmax(1))
        return np.asarray(self.model.predict(x), dtype=np.int64)


def of_classes(values: Any, classes: Rows) -> Rows:
    """Of shap's values: one output speaks for class 1."""
    values = np.stack(values, axis=-1) if isinstance(values, list) else np.asarray(values)
    return values * (2 * classes - 1)[:, None] if values.ndim == 2 else values[np.arange(len(values)), :, classes]


def of_trees(fitted: Any) -> Case:
    """TreeExplainer along the paths of the trees."""
    native, hardened = shap.TreeExplainer(fitted), HardenedTreeExplainer(fitted, hardening=HARDENING)

    def drop_in(x: Rows, classes: Rows) -> Rows:
        values = hardened.shap_values(x)
        return values if values.ndim == 2 else values[np.arange(len(x)), :, classes]

    return Case(lambda x, c: of_classes(native.shap_values(x, check_additivity=False), c), drop_in, "TreeExplainer",
                fitted)  # fmt: skip


def linear(x: Rows, y: Rows) -> Case:
    """LinearExplainer against the mean of public rows."""
    fitted = LogisticRegression(max_iter=2000).fit(x, y)
    native = shap.LinearExplainer(fitted, x[:200])
    hardened = HardenedLinearExplainer(fitted, x[:200], hardening=HARDENING)
    return Case(lambda rows, c: of_classes(native.shap_values(rows), c), lambda rows, c: hardened.shap_values(rows),
                "LinearExplainer", fitted, x[:200])  # fmt: skip


def network(x: Rows, y: Rows) -> Case:
    """Integrated gradients of a network of two layers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer, rows, labels = torch.optim.Adam(net.parameters(), 3e-3), torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(rows), labels).backward()
        optimizer.step()
    net.eval()

    def native(given: Rows, classes: Rows) -> Rows:
        explained = IntegratedGradients(lambda z: net(z).softmax(1))
        return np.asarray(explained.attribute(torch.from_numpy(given), target=torch.from_numpy(classes)).detach())

    def drop_in(given: Rows, classes: Rows) -> Rows:
        explained = HardenedIG(nn.Sequential(net, nn.Softmax(1)).eval(), hardening=HARDENING)
        return explained.attribute(torch.from_numpy(given), target=torch.from_numpy(classes)).numpy()

    return Case(native, drop_in, "IG", net)


def is_right(released: Rows, native: Rows) -> bool:
    """Whether an ordered set names the strongest of the native values, ties aside."""
    tie = 1e-6 * np.abs(native).max()
    named = np.argsort(-released, kind="stable")[: int((released > 0).sum())]
    order = np.argsort(-native, kind="stable")[:K]
    expected = native[order][native[order] > tie]
    return len(named) == len(expected) and bool((np.abs(native[named] - expected) <= tie).all())


def tables(folder: Path) -> dict[str, tuple[Rows, Rows]]:
    """HELOC as it is, and Adult with its categories one-hot; standardised."""
    heloc, _ = load(folder, "heloc", ("x", "y"))
    adult, _ = load(folder, "adult", ("x_num", "x_cat", "y"))
    category = adult["x_cat"].astype(int)
    columns = [np.eye(category[:, j].max() + 2)[category[:, j]] for j in range(category.shape[1])]
    found = {"HELOC": (heloc["x"], heloc["y"]), "Adult": (np.hstack([adult["x_num"], *columns]), adult["y"])}
    return {name: (StandardScaler().fit_transform(x).astype(np.float32), y.astype(np.int64))
            for name, (x, y) in found.items()}  # fmt: skip


def measure(case: Case, x: Rows, rows: int) -> dict[str, Any]:
    """Shares of right reasons by path and predicted class, of so many rows each."""
    classes = case.predicted(x)
    chosen = np.concatenate([np.flatnonzero(classes == c)[:rows] for c in (0, 1)])
    given, classes = x[chosen], classes[chosen]
    native = case.native(given, classes)
    asked = torch.from_numpy(given), torch.from_numpy(classes)
    release = load_release(case.model, None, uncertified=True, method=case.method, hardening=HARDENING,
                           public=case.public, shape=given.shape[1:])  # fmt: skip
    served = np.asarray(release.explain(*asked))
    forward = case.model if isinstance(case.model, nn.Module) else EstimatorModule(case.model)
    if case.method in TABLE_METHODS:
        audited = TABLE_METHODS[case.method].catalogued(case.public)(forward, hardening=HARDENING)
    else:
        audited = HardenedIG.catalogued()(nn.Sequential(forward, nn.Softmax(1)).eval(), hardening=HARDENING)
    same = audited.attribute(asked[0], target=asked[1]).detach().numpy().astype(np.float32)
    found: dict[str, Any] = {"same_bytes": served.tobytes() == same.tobytes()}
    for path, released in zip(PATHS, (case.drop_in(given, classes), served, same), strict=True):
        right = np.array([is_right(*pair) for pair in zip(released, native, strict=True)])
        found[path] = {str(c): round(float(right[classes == c].mean()), 4) for c in (0, 1)}
    found["rows"] = {str(c): int((classes == c).sum()) for c in (0, 1)}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 where at least 99 % of the reasons are right in every cell."""
    run = Benchmark(
        "reasons", __doc__, argv, rounds=1, rows={"type": int, "default": 500, "help": "of each predicted class"}
    )
    options = run.options
    warnings.filterwarnings("ignore")
    rows, trained_on = (20, 1000) if options.quick else (options.rows, 6000)
    results = {}
    for name, (x, y) in tables(options.data).items():
        fit, rest = slice(0, trained_on), slice(6000, None)
        trees = {"XGBoost": XGBClassifier(n_estimators=100, n_jobs=1), "LightGBM": LGBMClassifier(verbose=-1, n_jobs=1),
                 "forest": RandomForestClassifier(50, max_depth=8, random_state=0)}  # fmt: skip
        cases = {kind: of_trees(model.fit(x[fit], y[fit])) for kind, model in trees.items()}
        cases |= {"linear": linear(x[fit], y[fit]), "MLP": network(x[fit], y[fit])}
        results |= {f"{name}, {kind}": measure(case, x[rest], rows) for kind, case in cases.items()}
    shares = [cell[path][c] for cell in results.values() for path in PATHS for c in ("0", "1")]
    targets = {
        "least share of right reasons": at_least(0.99, min(shares)),
        "models for which audit and service differ": at_most(0, sum(not r["same_bytes"] for r in results.values())),
    }
    return run.conclude({"k": K, "results": results}, targets)


if __name__ == "__main__":
    finish(main)
