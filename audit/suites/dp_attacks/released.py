"""What the models of a task release, in the shape in which `attacks.py` reads it, and how faithful it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest
from safexplain.audit import Signals
from safexplain.audit.answers import SUMMARIES
from safexplain.faithfulness import faithfulness

from ...shared.run import Parts
from .plan import Budget, Pool, Size

EXPLAINERS = ("InputXGradient", "Saliency", "IG")
MAPPED = ("InputXGradient", "IG")
"""Whose maps are judged by how faithful they are."""
PREDICTED = ("label", "loss", "margin")
FAITHFUL = 100
FAITHFUL_MODELS = 2
"""Examples, and models of each budget, on which faithfulness is measured."""

Arrays = dict[str, NDArray[Any]]
Maps = Callable[[str, int], NDArray[np.float32]]
"""Explainer, and place of the budget -> (models, mapped, d)."""


@dataclass(frozen=True, eq=False)
class Released:
    """What all models of a task release.

    Args:
        faithfulness: name of the budget -> "confidence", and what the tenth of the features that is named carries.
    """

    budgets: tuple[Budget, ...]  # in order
    signals: dict[tuple[str, str], Signals]  # (explainer, name of the budget) -> signals of its models
    maps: Maps  # whole maps
    accuracy: dict[str, dict[str, list[float]]]  # name of the budget -> "members" and "non_members", one number a model
    about: dict[str, Any]  # what is recorded of the task
    faithfulness: dict[str, dict[str, float]]


def released(budgets: Sequence[Budget], scalars: Arrays, maps: Maps, pool: Pool, about: dict[str, Any]) -> Released:
    """Signals of each explainer and budget, and accuracy of each model on its members and on the others.

    Args:
        budgets: in order.
        scalars: "EXPLAINER SUMMARY", "label", "loss" and "margin" -> (budgets * models, n), those of a budget together;
            of an explainer that only some budgets or the first examples have, fewer.
        maps: whole maps.
        pool: of examples.
        about: what is recorded of the task.
    """
    right = scalars["label"] == pool.y.numpy()
    signals, accuracy, models = {}, {}, len(pool.membership)
    for i, budget in enumerate(budgets):
        own = slice(i * models, (i + 1) * models)
        each = list(zip(right[own], pool.membership, strict=True))
        accuracy[budget.name] = {
            "members": [float(r[m].mean()) for r, m in each],
            "non_members": [float(r[~m].mean()) for r, m in each],
        }
        for explainer in EXPLAINERS:
            values = {s: scalars[f"{explainer} {s}"][own] for s in SUMMARIES}
            n = values["l1"].shape[1]
            if len(values["l1"]):
                values |= {s: scalars[s][own, :n] for s in PREDICTED}
                meta = {"explainer": explainer, "population": pool.digest(), "subject": budget.name}
                signals[explainer, budget.name] = Signals(pool.membership[:, :n], values, meta=meta)
    return Released(tuple(budgets), signals, maps, accuracy, about, {})


def faithful_to(
    found: Released, network: Callable[[int, int], nn.Module], pool: Pool, size: Size, folder: Path, package: str
) -> Released:
    """With the faithfulness of the maps that are kept, of `FAITHFUL_MODELS` models on `FAITHFUL` examples."""
    stored, x = Parts(folder, package, "safexplain.faithfulness"), pool.x[:FAITHFUL]
    each = {}
    for i, budget in enumerate(found.budgets):
        if (MAPPED[0], budget.name) in found.signals:
            models = [network(i, number) for number in range(FAITHFUL_MODELS)]
            key = [[model_digest(m).hex() for m in models], pool.digest(), len(x), size.points]
            each[budget.name] = stored.get(key, lambda i=i, models=models: _faithful(found.maps, i, models, x))
    return replace(found, faithfulness=each)


def _faithful(maps: Maps, budget: int, models: Sequence[nn.Module], x: Tensor) -> dict[str, float]:
    """Means over models and examples: deletion and insertion of each explainer and of random maps."""
    kept = {explainer: maps(explainer, budget) for explainer in MAPPED}
    n = min(len(x), *(len(m[0]) for m in kept.values()))
    x, numbers = x[:n], dict[str, list[float]]()
    random = np.random.default_rng(0).normal(size=(n, x[0].numel())).astype(np.float32)
    for i, model in enumerate(models):
        device = next(model.parameters()).device
        with torch.no_grad():
            p = torch.cat([model(rows.to(device)).softmax(1).cpu() for rows in x.split(100)])
        numbers.setdefault("confidence", []).append(float(p.amax(1).mean()))
        for name, named in {**{e: m[i, :n] for e, m in kept.items()}, "random": random}.items():
            carried = faithfulness(model, x, p.argmax(1), named)
            for what, value in carried.to_dict().items():
                numbers.setdefault(f"{name} {what}", []).append(value)
    return {name: float(np.mean(values)) for name, values in numbers.items()}


def gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Points and weights on [0, 1]."""
    at, weights = np.polynomial.legendre.leggauss(points)
    return torch.from_numpy((1 + at) / 2), torch.from_numpy(weights / 2)
