"""What a user asks: who was in the training set, by labels and losses? From the model and its data to a number.

A small CNN on CIFAR-10 images (means of 2 x 2 pixels) and XGBoost with 100 trees on loans, each trained on 1,000 of
2,000 examples; 1,000 further ones, which no model saw, are the population that RMIA wants. Reference models are part of
the work, trained as the target was: by each library's own code where it has some, otherwise by a plain loop.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

POOL, FURTHER = 2_000, 1_000
EPOCHS, LR, BATCH = 20, 2e-3, 64
SHADOWS, MOST_SHADOWS = 16, 100
"""Of PrivacyGuard's LiRA, and of SACRO-ML's, which is its default."""


def cnn() -> Any:
    """For 3 x 16 x 16 images."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


def booster() -> Any:
    """Not fitted yet."""
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=100, max_depth=5, n_jobs=1)


def fitted(kind: str, x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """A model of either kind, by a plain loop."""
    if kind == "booster":
        return booster().set_params(random_state=seed).fit(x, y)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net, images, labels = cnn(), torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    return net.eval()


def probabilities(model: Any, x: np.ndarray) -> np.ndarray:
    """(n, classes)."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(x), dtype=np.float64)
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(x)).double().softmax(1).numpy()  # type: ignore[no-any-return]


def prepare(data: Path, quick: bool) -> Work:
    """Of each kind, examples (the pool first), labels and who of the pool is a member."""
    from audit.shared.run import load

    pool, further = (200, 100) if quick else (POOL, FURTHER)
    images, _ = load(data, "cifar10", ("x_train", "y_train"))
    loans, _ = load(data, "heloc", ("x", "y"))
    x = (images["x_train"][: pool + further].transpose(0, 3, 1, 2) / 255 - 0.47) / 0.25
    rows = np.random.default_rng(0).permutation(len(loans["y"]))[: pool + further]
    return {
        "cnn x": x.reshape(len(x), 3, 16, 2, 16, 2).mean((3, 5)).astype(np.float32),
        "cnn y": images["y_train"][: pool + further].astype(np.int64),
        "booster x": loans["x"][rows].astype(np.float32), "booster y": loans["y"][rows].astype(np.int64),
        "member": np.random.default_rng(1).random(pool) < 0.5,
    }  # fmt: skip


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """True-positive rate at 1 %, ties broken at random, the area under the curve, and what carries an interval."""
    if "scores" not in run.arrays:
        return dict(run.values)
    from safexplain.verdict.stats import roc

    curve = roc(run.arrays["scores"], work["member"])
    return {"TPR at 1 %": float(np.interp(0.01, curve.fpr, curve.tpr)), "AUC": float(curve.auc), **run.values}


class Asked:
    """A target, its pool, and reference models by a plain loop."""

    def __init__(self, kind: str, work: Work) -> None:
        self.kind, self.member, self.n = kind, work["member"], len(work["member"])
        self.every, self.labels = work[f"{kind} x"], work[f"{kind} y"]
        self.x, self.y = self.every[: self.n], self.labels[: self.n]
        self.target = fitted(kind, self.x[self.member], self.y[self.member], 0)

    def right(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Probability of the label."""
        return np.clip(probabilities(model, x)[np.arange(len(y)), y], 1e-12, 1 - 1e-12)

    def references(self, number: int) -> tuple[list[Any], np.ndarray]:
        """Models trained on random halves of the pool, and their membership (models, n)."""
        inside = np.random.default_rng(2).random((number, self.n)) < 0.5
        return [fitted(self.kind, self.x[k], self.y[k], 1 + i) for i, k in enumerate(inside)], inside


def ours(kind: str) -> Callable[[Work], Call]:
    """An audit of what is predicted, with the defaults."""

    def ready(work: Work) -> Call:
        from safexplain import HardenedKernelShap, Hardening
        from safexplain.audit import Policy, Population, Recipe, audit

        asked = Asked(kind, work)
        recipe = Recipe(lr=LR, epochs=EPOCHS, batch_size=BATCH) if kind == "cnn" else booster()

        def run() -> dict[str, Any]:
            result = audit(
                asked.target, Population.of(asked.x, asked.y), recipe, member=asked.member,
                build=(lambda seed: cnn()) if kind == "cnn" else None, explainer=HardenedKernelShap,
                hardening=Hardening(),
                policy=Policy(release="prediction", patience=(1,), uncounted=True),
            )  # fmt: skip
            best = max(result.result.attacks, key=lambda row: row.found)
            rate = best.at(0.01)
            interval = f"TPR {100 * rate.low:.1f} to {100 * rate.high:.1f} %; verdict {result.verdict}"
            return {"TPR at 1 %": rate.tpr, "AUC": best.auc, "interval": interval}

        return run

    return ready


def privacy_guard(kind: str) -> Callable[[Work], Call]:
    """`LiraAttack`, online, from 16 shadow models, and its analysis."""

    def ready(work: Work) -> Call:
        import pandas as pd
        from privacy_guard.analysis.mia.aggregate_analysis_input import AggregationType
        from privacy_guard.analysis.mia.analysis_node import AnalysisNode
        from privacy_guard.attacks.lira_attack import LiraAttack

        logging.disable(logging.WARNING)
        asked = Asked(kind, work)

        def run() -> dict[str, Any]:
            models, inside = asked.references(SHADOWS)
            p = np.stack([asked.right(model, asked.x, asked.y) for model in [asked.target, *models]])
            logits = np.log(p) - np.log1p(-p)
            table = pd.DataFrame({"user_id": np.arange(asked.n), "score_orig": logits[0]})
            for name, side in (("in", inside), ("out", ~inside)):
                of = np.ma.array(logits[1:], mask=~side)
                table[f"score_mean_{name}"], table[f"score_std_{name}"] = of.mean(0).data, of.std(0).data
            attack = LiraAttack(
                table[asked.member].copy(), table[~asked.member].copy(), AggregationType.MAX, online_attack=True
            )
            answer = attack.run_attack()
            scores = pd.concat([answer.df_train_user, answer.df_test_user])["score"]  # by user_id
            told = AnalysisNode(answer, delta=1e-5, n_users_for_eval=asked.n).run_analysis()
            low, high = told.auc_ci
            return {"scores": scores.reindex(np.arange(asked.n)).fillna(-np.inf).to_numpy(np.float64),
                    "interval": f"AUC {low:.3f} to {high:.3f}; epsilon"}  # fmt: skip

        return run

    return ready


def rmia(kind: str) -> Callable[[Work], Call]:
    """ML Privacy Meter's RMIA with one reference, read through git from the clone that PEER_CHECKOUT names."""

    def ready(work: Work) -> Call:
        read = ["git", "-C", os.environ["PEER_CHECKOUT"], "show", "HEAD:modules/mia/attacks/rmia.py"]
        module = types.ModuleType("rmia")
        source = subprocess.run(read, capture_output=True, text=True, check=True).stdout
        exec(compile(source, "rmia.py", "exec"), module.__dict__)
        asked = Asked(kind, work)

        def run() -> dict[str, Any]:
            models, inside = asked.references(1)
            p = np.stack([asked.right(m, asked.every, asked.labels) for m in (asked.target, *models)], axis=1)
            x, z, member = p[: asked.n], p[asked.n :], inside.T
            scores = module.run_rmia(x[:, 0], x[:, 1:], member, z[:, 0], z[:, 1:], 0.3, 1)
            return {"scores": scores, "interval": "none"}

        return run

    return ready


def sacro(attack: str) -> Callable[[Work], Call]:
    """`LIRAAttack` with its 100 shadow models, or `QMIAAttack`, which needs none."""

    def ready(work: Work) -> Call:
        from sacroml.attacks.likelihood_attack import LIRAAttack
        from sacroml.attacks.qmia_attack import QMIAAttack
        from sacroml.attacks.target import Target

        logging.disable(logging.WARNING)
        asked = Asked("booster", work)
        order = np.r_[np.flatnonzero(asked.member), np.flatnonzero(~asked.member)]

        def run() -> dict[str, Any]:
            inside, outside = asked.member, ~asked.member
            target = Target(
                model=asked.target, dataset_name="loans", X_train=asked.x[inside], y_train=asked.y[inside],
                X_test=asked.x[outside], y_test=asked.y[outside],
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                options = {"output_dir": folder, "write_report": False, "report_individual": True}
                made = (
                    LIRAAttack(n_shadow_models=MOST_SHADOWS, **options) if attack == "LiRA" else QMIAAttack(**options)
                )
                made.attack(target)
            told = made.result if attack == "LiRA" else made.attack_metrics[0]["individual"]
            scores = np.empty(asked.n)
            scores[order] = told["member_prob"]
            return {"scores": scores, "interval": "p-value of the AUC"}

        return run

    return ready


CALLS: dict[str, Callable[[Work], Call]] = {
    **{f"audit, {kind}": ours(kind) for kind in ("cnn", "booster")},
    **{f"PrivacyGuard, {kind}": privacy_guard(kind) for kind in ("cnn", "booster")},
    **{f"RMIA, {kind}": rmia(kind) for kind in ("cnn", "booster")},
    **{f"SACRO-ML {attack}, booster": sacro(attack) for attack in ("LiRA", "QMIA")},
}
