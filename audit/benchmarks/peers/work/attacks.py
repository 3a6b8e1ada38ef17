"""Attacks with 32 reference models on features of CIFAR-10 images.

A frozen MobileNet computes the features; the models are networks 256-256-10 on them, each trained by `train_shadows` on
a half of the pool. Model 0 is the target. Further images, which no model saw, are the population that some attacks
compare with. Everybody gets the same losses and logits.
"""

from __future__ import annotations

import logging
import os
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

MODELS, POOL, FURTHER, HIDDEN, EPOCHS, BATCH = 33, 10_000, 2_000, 256, 10, 128
LR = 1e-3
NET, SIDE = "mobilenet_v1_0.25_128_imagenet", 64
RATES = {"TPR at 1 %": 0.01, "TPR at .1 %": 0.001}
ROWS = 10_000
"""References' outputs that ART's network learns from."""


def network(features: int) -> Any:
    """An untrained model."""
    from torch import nn

    return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def prepare(data: Path, quick: bool) -> Work:
    """Features, labels, membership (33, pool), losses and logits of all models on pool and further images."""
    import torch
    from torch.nn import functional as F

    from audit.shared.run import load
    from audit.suites.third_party.suite import third_party

    torch.set_num_threads(1)
    pool, further = (600, 200) if quick else (POOL, FURTHER)
    arrays, _ = load(data, "cifar10", ("x_train", "y_train"))
    images = (torch.from_numpy(arrays["x_train"][: pool + further]).permute(0, 3, 1, 2).float() - 128) / 128
    y = torch.from_numpy(arrays["y_train"][: pool + further].astype(np.int64))
    net = third_party(data, [NET])[0][NET]
    with torch.no_grad():
        pieces = [net.features(F.interpolate(part, size=(SIDE, SIDE), mode="bilinear")) for part in images.split(250)]
        x = torch.cat(pieces)
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    models, membership = trained(x[:pool].numpy(), y[:pool].numpy(), 5 if quick else MODELS, 2 * EPOCHS)
    with torch.no_grad():
        logits = torch.stack([model(x) for model in models])
    losses = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(models)), reduction="none").view(len(models), -1)
    return {
        "x": x.numpy(), "y": y.numpy(), "membership": membership, "losses": losses.numpy(), "logits": logits.numpy(),
        "pool": np.array(pool),
    }  # fmt: skip


def trained(x: np.ndarray, y: np.ndarray, models: int, epochs: int) -> tuple[Any, np.ndarray]:
    """Models and their membership (models, n), by `train_shadows`."""
    from safexplain.audit import Population, Recipe, train_shadows

    recipe = Recipe(lr=LR, epochs=epochs, batch_size=BATCH)
    shadows = train_shadows(Population.of(x, y), recipe, build=lambda seed: network(x.shape[1]), models=models)
    return shadows.models, shadows.membership


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """True-positive rates, ties broken at random, and the area under the curve; of models, their accuracy."""
    if "scores" not in run.arrays:
        return dict(run.values)
    from safexplain.verdict.stats import roc

    curve = roc(run.arrays["scores"], work["membership"][0])
    rates = {name: float(np.interp(at, curve.fpr, curve.tpr)) for name, at in RATES.items()}
    return {**rates, "AUC": float(curve.auc)}


def _of_the_pool(work: Work) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(m, pool) losses of all models, the references' membership (m - 1, pool), and (pool,) the target's."""
    losses = work["losses"][:, : int(work["pool"])].astype(np.float64)
    return losses, work["membership"][1:], work["membership"][0]


def rmia(work: Work) -> Call:
    """Ours."""
    from safexplain.audit.attacks import RMIA

    losses, membership, _ = _of_the_pool(work)
    attack = RMIA(offline=True, a=0.3)
    return lambda: {"scores": attack(losses[0], losses[1:], membership)}


def lira(work: Work) -> Call:
    """Ours: the likelihood ratio on the logarithm of the loss."""
    from safexplain.audit.attacks import LikelihoodRatio

    losses, membership, _ = _of_the_pool(work)
    return lambda: {"scores": LikelihoodRatio()(losses[0], losses[1:], membership)}


def shadows(work: Work) -> Call:
    """Ours: 32 models trained, a unit each."""
    import torch

    torch.set_num_threads(1)
    pool, models = int(work["pool"]), len(work["losses"]) - 1
    x, y = work["x"][:pool], work["y"][:pool]

    def run() -> dict[str, Any]:
        made, membership = trained(x, y, models, EPOCHS)
        with torch.no_grad():
            right = [float((m(torch.from_numpy(x)).argmax(1).numpy() == y)[~k].mean()) for m, k in
                     zip(made, membership, strict=True)]  # fmt: skip
        return {"units": models, "accuracy on non-members": float(np.mean(right))}

    return run


def ml_privacy_meter(work: Work) -> Call:
    """RMIA of its repository, read through git from the clone that PEER_CHECKOUT names."""
    file = "HEAD:modules/mia/attacks/rmia.py"
    read = ["git", "-C", os.environ["PEER_CHECKOUT"], "show", file]
    source = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    module = types.ModuleType("rmia")
    exec(compile(source, "rmia.py", "exec"), module.__dict__)
    pool = int(work["pool"])
    probabilities = np.exp(-work["losses"].astype(np.float64)).T
    x, z = probabilities[:pool], probabilities[pool:]
    membership = np.ascontiguousarray(work["membership"][1:].T)
    return lambda: {"scores": module.run_rmia(x[:, 0], x[:, 1:], membership, z[:, 0], z[:, 1:], offline_a=0.3)}


def art_attack(work: Work) -> Call:
    """ART's learned attack, on logits and labels of the references."""
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox

    logging.disable(logging.WARNING)
    pool = int(work["pool"])
    y = np.eye(10, dtype=np.float32)[work["y"][:pool]]
    logits, membership = work["logits"][:, :pool], work["membership"]
    rng = np.random.default_rng(0)
    rows = [np.stack(np.nonzero(kind), 1) for kind in (membership[1:], ~membership[1:])]
    inside, outside = (each[rng.permutation(len(each))[: ROWS // 2]] for each in rows)
    estimator = _classifier(work)

    def run() -> dict[str, Any]:
        attack = MembershipInferenceBlackBox(estimator)
        attack.fit(
            pred=logits[1:][tuple(inside.T)], y=y[inside[:, 1]],
            test_pred=logits[1:][tuple(outside.T)], test_y=y[outside[:, 1]],
        )  # fmt: skip
        return {"scores": np.asarray(attack.infer(None, y, pred=logits[0], probabilities=True), np.float64).ravel()}

    return run


def _classifier(work: Work) -> Any:
    """ART's view of an untrained model."""
    import torch
    from art.estimators.classification import PyTorchClassifier

    torch.set_num_threads(1)
    model = network(work["x"].shape[1])
    return PyTorchClassifier(
        model, torch.nn.CrossEntropyLoss(), (work["x"].shape[1],), 10,
        optimizer=torch.optim.Adam(model.parameters(), lr=LR), device_type="cpu",
    )  # fmt: skip


def art_shadows(work: Work) -> Call:
    """ART's loop over shadow models: ten epochs of batches of 128 are its defaults."""
    from art.attacks.inference.membership_inference import ShadowModels

    pool, models = int(work["pool"]), len(work["losses"]) - 1
    x, y = work["x"][:pool], np.eye(10, dtype=np.float32)[work["y"][:pool]]

    def run() -> dict[str, Any]:
        made = ShadowModels(_classifier(work), num_shadow_models=models, random_state=0)
        _, (_, label, said) = made.generate_shadow_dataset(x, y, 0.5)
        return {"units": models, "accuracy on non-members": float((said.argmax(1) == label.argmax(1)).mean())}

    return run


CALLS: dict[str, Callable[[Work], Call]] = {
    "RMIA, offline": rmia,
    "LiRA": lira,
    "train_shadows": shadows,
    "ml-privacy-meter: RMIA": ml_privacy_meter,
    "art: MembershipInferenceBlackBox": art_attack,
    "art: ShadowModels": art_shadows,
}
