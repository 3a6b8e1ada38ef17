"""A random forest's members found by a likelihood ratio, shadow models included: 32 of them, trained by each side.

The forest has 30 trees and knows half of scikit-learn's digits. Each side trains 32 forests of the same kind on random
parts of the same rows, in its own way, and compares the target's confidence in the right class with theirs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

MODELS, TREES = 32, 30
RATES = {"TPR at 5 %": 0.05, "TPR at 1 %": 0.01}


def forest() -> Any:
    """The target, not fitted yet; its references have the same options and seeds of their own."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(TREES, random_state=0)


def prepare(data: Path, quick: bool) -> Work:
    """Digits, their labels, who of them is a member, and how many references are trained."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = 300 if quick else len(digits.target)
    member = np.random.default_rng(0).random(rows) < 0.5
    order = np.r_[np.flatnonzero(member), np.flatnonzero(~member)]  # members first, as SACRO-ML puts them
    models = np.array(4 if quick else MODELS)
    return {"x": digits.data[order], "y": digits.target[order], "member": member[order], "models": models}


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """True-positive rates, ties broken at random, and the area under the curve."""
    from safexplain.verdict.stats import roc

    curve = roc(run.arrays["scores"], work["member"])
    return {**{name: float(np.interp(at, curve.fpr, curve.tpr)) for name, at in RATES.items()}, "AUC": float(curve.auc)}


def ours(work: Work) -> Call:
    """`train_shadows` and a likelihood ratio on the loss."""
    from safexplain.audit import Population, train_shadows
    from safexplain.audit.attacks import LikelihoodRatio

    x, y, member = work["x"], work["y"], work["member"]
    target, pool = forest().fit(x[member], y[member]), Population.of(x, y)

    def loss(model: Any) -> np.ndarray:
        right = model.predict_proba(x)[np.arange(len(y)), y]
        return -np.log(np.maximum(right, 1e-30))  # as an audit computes it

    def run() -> dict[str, Any]:
        references = train_shadows(pool, forest(), models=int(work["models"]))
        losses = np.stack([loss(as_estimator(model)) for model in references.models])
        return {"scores": LikelihoodRatio()(loss(target), losses, references.membership)}

    return run


def as_estimator(model: Any) -> Any:
    """The estimator behind the module that `train_shadows` makes of it."""
    return getattr(model, "estimator", model)


def sacro(mode: str) -> Callable[[Work], Call]:
    """`LIRAAttack`, which writes its shadow models to disk and reads them again."""

    def ready(work: Work) -> Call:
        from sacroml.attacks.likelihood_attack import LIRAAttack
        from sacroml.attacks.target import Target

        logging.disable(logging.INFO)
        x, y, member = work["x"], work["y"], work["member"]
        fitted = forest().fit(x[member], y[member])

        def run() -> dict[str, Any]:
            target = Target(
                model=fitted,
                dataset_name="digits",
                X_train=x[member],
                y_train=y[member],
                X_test=x[~member],
                y_test=y[~member],
            )
            with tempfile.TemporaryDirectory() as folder:
                attack = LIRAAttack(
                    output_dir=folder,
                    write_report=False,
                    n_shadow_models=int(work["models"]),
                    mode=mode,
                    report_individual=True,
                )
                attack.attack(target)
            return {"scores": np.array(attack.result["member_prob"], dtype=np.float64)}

        return run

    return ready


CALLS: dict[str, Callable[[Work], Call]] = {
    "LiRA of a forest": ours,
    "sacroml, offline": sacro("offline"),
    "sacroml, online": sacro("online-carlini"),
}
