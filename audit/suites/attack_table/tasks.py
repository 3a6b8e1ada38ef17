"""Six tasks and what is released of them; models of two draws that share nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain import GaussianNoise, HardenedOcclusion, Hardening, Probability, RankNorm, Relative
from safexplain.audit import Population, Recipe, Shadows, Signals, collect_signals, train_shadows
from safexplain.explain.hardened import HARDENED

from ...shared.run import Progress, load

LEVELS = (1, 32)
OPTIONS: dict[str, dict[str, Any]] = {"IG": {"n_steps": 10}}
DRAWS = ("choose", "confirm")
"""Of examples, coin flips and models: what the first one shows is confirmed on the second."""


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    targets: int = 8  # models that are attacked
    fits: int = 4  # how often what learns from references is fitted; each fit scores its part of the targets
    references: int = 8  # even; in complementary pairs
    examples: int = 1200  # of a pool, at most; half as many of CIFAR-10
    epochs: int | None = None  # of each network; None: the task's
    tasks: int | None = None  # how many of the tasks are measured; None: all


QUICK = Size(targets=2, fits=2, references=4, examples=200, epochs=4, tasks=1)


@dataclass(frozen=True)
class Task:
    """A pool, how models are trained on it, and how they are explained."""

    pool: Population  # examples
    train: Any  # recipe or estimator whose models the table is about
    build: Callable[[int], nn.Module] | None  # of networks
    explainer: str = "InputXGradient"  # of the public hardened classes


def _network(size: Size, pool: Population, build: Callable[[int], nn.Module], recipe: Recipe) -> Task:
    return Task(pool, replace(recipe, epochs=size.epochs or recipe.epochs), build)


def _dense(features: int, hidden: int, classes: int) -> Callable[[int], nn.Module]:
    return lambda seed: nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _drawn(rows: NDArray[np.int64], examples: int, draw: int) -> NDArray[np.int64]:
    """Rows of this draw; no row is in two."""
    number = min(examples, len(rows) // len(DRAWS))
    return np.random.default_rng(0).permutation(rows)[draw * number : (draw + 1) * number]


def _table(x: NDArray[Any], y: NDArray[Any], size: Size, draw: int) -> Population:
    """Standardised columns of rows that differ."""
    x = ((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32)
    rows = _drawn(np.unique(x, axis=0, return_index=True)[1], size.examples, draw)
    return Population.of(x[rows], y[rows])


def digits(size: Size, folder: Path, draw: int) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = _drawn(np.arange(len(data.data)), size.examples, draw)
    pool = Population.of((data.data[rows] / 16).astype(np.float32), data.target[rows])
    return _network(size, pool, _dense(64, 1024, 10), Recipe(epochs=60, batch_size=100))


def heloc(size: Size, folder: Path, draw: int) -> Task:
    arrays = load(folder, "heloc", ("x", "y"))[0]
    pool = _table(arrays["x"], arrays["y"], size, draw)
    return _network(size, pool, _dense(23, 256, 2), Recipe(lr=3e-3, epochs=60, batch_size=100))


def forest(size: Size, folder: Path, draw: int) -> Task:
    from sklearn.ensemble import ExtraTreesClassifier

    return Task(heloc(size, folder, draw).pool, ExtraTreesClassifier(n_estimators=20), None, "Occlusion")


def adult(size: Size, folder: Path, draw: int) -> Task:
    arrays = load(folder, "adult", ("x_num", "x_cat", "y"))[0]
    of_categories = [np.eye(column.max() + 1)[column] for column in arrays["x_cat"].T]
    pool = _table(np.concatenate([arrays["x_num"], *of_categories], axis=1), arrays["y"], size, draw)
    return _network(size, pool, _dense(pool.x.shape[1], 128, 2), Recipe(lr=3e-3, epochs=20, batch_size=100))


def words(size: Size, folder: Path, draw: int) -> Task:
    from sklearn.feature_extraction.text import TfidfVectorizer

    arrays = load(folder, "agnews_test", ("x", "y"))[0]
    rows = _drawn(np.arange(len(arrays["x"])), size.examples, draw)
    x = TfidfVectorizer(max_features=1000).fit_transform([arrays["x"][i] for i in rows]).toarray()
    pool = Population.of((10 * x).astype(np.float32), np.asarray(arrays["y"])[rows])
    return _network(size, pool, _dense(1000, 64, 4), Recipe(lr=3e-3, epochs=15, batch_size=50))


def cifar10(size: Size, folder: Path, draw: int) -> Task:
    """Three convolutions of stride 2 and a linear layer."""
    arrays = load(folder, "cifar10", ("x_train", "y_train"))[0]
    rows = _drawn(np.arange(len(arrays["x_train"])), size.examples // 2, draw)
    x = arrays["x_train"][rows].transpose(0, 3, 1, 2) / 255.0
    pool = Population.of(((x - 0.47) / 0.25).astype(np.float32), arrays["y_train"][rows])

    def build(seed: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))

    return _network(size, pool, build, Recipe(lr=2e-3, epochs=30, batch_size=50))


TASKS: dict[str, tuple[Callable[[Size, Path, int], Task], tuple[str, ...]]] = {
    "digits": (digits, ("native", "top features", "ranks with noise")),
    "HELOC": (heloc, ("native", "top features")),
    "Adult": (adult, ("native",)),
    "forest": (forest, ("native", "top features")),
    "AG News": (words, ("native", "top features")),
    "CIFAR-10": (cifar10, ("native", "top features")),
}
"""Tasks, and the releases of each."""


def noise_key(model: int) -> bytes:
    """Fixed, so that results can be repeated; another for every model."""
    # The name is the file's old one: another name would be other noise than that of the committed results.
    return hashlib.sha256(f"safexplain audit/suites/attack_table.py model {model}".encode()).digest()


def release(explainer: str, hardening: Hardening) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """What a service gives away: the public hardened class, which without hardening is the native one."""
    kind, options = HARDENED[explainer], OPTIONS.get(explainer, {})
    if explainer == "Occlusion":
        options = {"sliding_window_shapes": (1,), "perturbations_per_eval": 32}

    def call(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        asked = model if kind is HardenedOcclusion else Probability(model)
        maps: Tensor = kind(asked, hardening=hardening).attribute(x, target=target, **options)
        return maps

    return call


RANKS = Hardening(clip=RankNorm(balanced_from=1024), noise=GaussianNoise(Relative(0.3)))
"""What was recommended before sets were measured to tell less: ranks with noise, balanced in maps of pixels."""


def hardening_of(name: str, model: int) -> Hardening:
    """The release of this name, of one model."""
    if name == "top features":
        return Hardening.recommended()
    return Hardening.none() if name == "native" else RANKS.with_key(noise_key(model))


def accuracy(shadows: Shadows, population: Population) -> dict[str, float]:
    """On members and on non-members, mean over models."""
    with torch.no_grad():
        right = [(torch.cat([model(x).argmax(1) for x in population.x.split(500)]) == population.y).numpy()
                 for model in shadows.models]  # fmt: skip
    correct, member = np.array(right), shadows.membership
    return {"members": float(correct[member].mean()), "non_members": float(correct[~member].mean())}


def trained(size: Size, task: Task, draw: int) -> Shadows:
    """The targets, then the references, each second one trained on what the one before was not."""
    n, rng = len(task.pool), np.random.default_rng(1 + draw)
    half = rng.random((size.references // 2, n)) < 0.5
    both = np.stack([half, ~half], axis=1).reshape(size.references, n)
    member = np.concatenate([rng.random((size.targets, n)) < 0.5, both])
    return train_shadows(task.pool, task.train, build=task.build, models=len(member), membership=member, seed=draw)


def collected(size: Size, task: Task, models: Shadows, name: str, progress: Progress) -> Signals:
    """Signals of one release; references answer dithered queries without noise."""
    quiet = replace(RANKS, noise=None) if name == "ranks with noise" else None
    return collect_signals(
        models, task.pool, [release(task.explainer, hardening_of(name, i)) for i in range(len(models.models))],
        without_noise=None if quiet is None else release(task.explainer, quiet), patience=LEVELS,
        targets=tuple(range(size.targets)), progress=progress,
    )  # fmt: skip
