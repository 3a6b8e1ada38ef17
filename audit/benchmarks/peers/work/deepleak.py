"""A search for the hardening of Saliency: DeepLeak's Algorithm 2 as its paper writes it (arXiv 2601.03429), and `tune`.

Digits, networks 64-128-10, 600 examples, half of them members. The paper's loop, from its text only: for each of 20
trials draw (sigma, c_min, c_max, tau), compute the attributions, clip, mask, add noise; take the sensitivity of the
hardened explanation as utility (the largest change under a small perturbation of the input, so explained once more);
train the attack on the shadow model's hardened attributions, members and others, and tell its true-positive rate at
.1 % false positives on the target's. Ranges, ten epochs of Adam at 1e-3 in batches of 128 and a network like the
target's with one output are choices where the paper is silent, all on the cheap side. `tune` tries as many points of
the space "deepleak" with 8 references, all given, and has the chosen one confirmed by an audit; it is timed with and
without.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

POOL, HIDDEN, REFERENCES, TRIALS = 600, 128, 8, 20
EPOCHS, BATCH = 10, 128
"""Of the attack's network."""


def network(outputs: int = 10) -> Any:
    """An untrained network."""
    from torch import nn

    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def prepare(data: Path, quick: bool) -> Work:
    """Digits, membership and weights of a target and its references, and the number of trials."""
    import torch
    from sklearn.datasets import load_digits

    from safexplain.audit import Population, Recipe, train_shadows

    torch.set_num_threads(1)
    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(y))[:POOL]
    x, y = (x[chosen] / 16).astype(np.float32), y[chosen].astype(np.int64)
    recipe = Recipe(lr=3e-3, epochs=40, batch_size=32)
    made = train_shadows(Population.of(x, y), recipe, build=lambda seed: network(), models=REFERENCES + 1)
    weights = [np.stack(ps) for ps in zip(*([p.detach().numpy() for p in m.parameters()] for m in made.models),
                                          strict=True)]  # fmt: skip
    names = {f"weight {i}": w for i, w in enumerate(weights)}
    return {"x": x, "y": y, "membership": made.membership, "trials": np.array(2 if quick else TRIALS), **names}


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """What the search says of the point that it chose, in its own measures, which differ."""
    return dict(run.values)


def _models(work: Work) -> list[Any]:
    import torch

    torch.set_num_threads(1)
    models = []
    for i in range(len(work["membership"])):
        model = network().eval()
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(torch.from_numpy(work[f"weight {k}"][i]))
        models.append(model)
    return models


def ours(work: Work, confirmed: bool = True) -> Call:
    """`tune`, with the audit that confirms what it chose or without; a unit is a trial."""
    import torch

    from safexplain import HardenedSaliency
    from safexplain.audit import Population, Shadows
    from safexplain.audit.run import audit_pools
    from safexplain.tune import study, tune

    logging.disable(logging.WARNING)
    models, trials = _models(work), int(work["trials"])
    population = Population.of(work["x"], work["y"])
    shadows = Shadows(tuple(models[1:]), work["membership"][1:])
    torch.manual_seed(0)

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SAFEXPLAIN_USES"] = f"{folder}/uses.sqlite"
            study.audit_pools = audit_pools if confirmed else lambda *pools, **given: None  # type: ignore[assignment]
            found = tune(
                models[0], population, member=work["membership"][0], explainer=HardenedSaliency, space="deepleak",
                trials=trials, shadows=shadows, device="cpu",
            )  # fmt: skip
        chosen = found.chosen
        told = {} if chosen is None else {"utility kept": float(chosen.utility), "excess TPR": float(chosen.leak)}
        return {"units": trials, **told}

    return run


def paper(work: Work) -> Call:
    """The paper's loop; a unit is a trial."""
    import torch
    from captum.attr import Saliency

    target, shadow = _models(work)[:2]
    x, y = torch.from_numpy(work["x"]), torch.from_numpy(work["y"])
    inside = [torch.from_numpy(work["membership"][i]) for i in (0, 1)]

    def hardened(model: Any, rows: torch.Tensor, sigma: float, low: float, high: float, tau: float) -> torch.Tensor:
        parts = [Saliency(model).attribute(r, target=t, abs=False) for r, t in
                 zip(rows.split(BATCH), y.split(BATCH), strict=True)]  # fmt: skip
        phi = torch.cat(parts).clamp(low, high)
        phi = torch.where(phi.abs() < tau, 0.0, phi)
        return phi + sigma * torch.randn_like(phi)

    def attacked(train: torch.Tensor, test: torch.Tensor) -> float:
        attack = torch.nn.Sequential(*network(1), torch.nn.Sigmoid())
        optimizer, label = torch.optim.Adam(attack.parameters(), 1e-3), inside[1].float()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(train)).split(BATCH):
                optimizer.zero_grad()
                said = attack(train[rows]).squeeze(1)
                torch.nn.functional.binary_cross_entropy(said, label[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            score = attack(test).squeeze(1)
        bar = torch.quantile(score[~inside[0]], 0.999)
        return float((score[inside[0]] > bar).float().mean())

    def trial(rng: np.random.Generator) -> tuple[float, float]:
        theta = (rng.uniform(0.001, 0.2), -rng.uniform(0, 5), rng.uniform(0, 5), rng.uniform(1e-4, 0.05))
        of_target, of_shadow = hardened(target, x, *theta), hardened(shadow, x, *theta)
        again = hardened(target, x + 0.1 * torch.randn_like(x), *theta)
        sensitivity = (again - of_target).norm(dim=1) / of_target.norm(dim=1).clamp_min(1e-12)
        return attacked(of_shadow, of_target), float(sensitivity.mean())

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        rng, trials = np.random.default_rng(0), int(work["trials"])
        best = min(trial(rng) for _ in range(trials))
        return {"units": trials, "TPR at .1 %": best[0], "sensitivity": best[1]}

    return run


CALLS: dict[str, Callable[[Work], Call]] = {
    "tune": ours,
    "tune, search alone": partial(ours, confirmed=False),
    "DeepLeak's loop": paper,
}
