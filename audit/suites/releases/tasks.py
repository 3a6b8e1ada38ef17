"""The tasks: data, models that overfit, and explainers of each kind, asked once for all releases.

Explained is the probability of the class that the model predicts for the plain query. Explainers of one pass are
products of one gradient, which is kept; perturbation and weights are computed for whole batches at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain import Probability
from safexplain._digest import model_digest
from safexplain.audit import Population, Recipe, Shadows
from safexplain.audit.answers import Predictions, predict
from safexplain.audit.queries import Dither, Queries
from safexplain.outputs import are_probabilities

from ...shared.run import Progress, load

Floats = NDArray[np.floating[Any]]
Explain = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, x (b, ...), class (b,)) -> (b, d) native maps."""
Models = Sequence[tuple[nn.Module, ...]]
"""For every audited model, the models that are explained in its place."""

BATCH = 200


@dataclass(frozen=True)
class Task:
    """Data, models and the number of everything.

    Args:
        models, targets: how many are trained, and how many of them take turns as the target.
    """

    name: str  # of the task
    pool: Population  # examples of which members and non-members are drawn
    public: Population  # other examples, of which no audited model has seen any
    train: Any  # a recipe, or a scikit-learn classifier
    build: Callable[[int], nn.Module] | None  # makes an untrained network
    explainers: tuple[str, ...]  # names in `NATIVE`
    models: int
    targets: int
    levels: tuple[int, ...]  # how often is asked
    dither: Dither  # how queries differ
    source: dict[str, Any] = field(compare=False)  # of the data
    students: bool = True  # whether a student of every model is trained

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.pool.x.shape[1:])

    @property
    def image(self) -> bool:
        """Whether inputs are images."""
        return len(self.shape) == 3

    @property
    def features(self) -> int:
        """Numbers of one input."""
        return int(np.prod(self.shape))

    def top(self, d: int) -> int:
        """Features that count as the top of d: a tenth, and at least four."""
        return min(d, max(4, round(0.1 * d)))


# ---------------------------------------------------------------------------------------------------------- the data


def mlp(inputs: int, hidden: int, classes: int) -> Callable[[int], nn.Module]:
    """An MLP with one hidden layer."""
    return lambda seed: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(classes: int) -> Callable[[int], nn.Module]:
    """A small CNN for 3 x 32 x 32 or 3 x 16 x 16."""

    def block(i: int, o: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    def build(seed: int) -> nn.Module:
        body = block(3, 16, 2) + block(16, 32, 1) + block(32, 64, 2) + block(64, 64, 1)
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    return build


def digits(size: str, folder: Path) -> Task:
    """Handwritten digits (scikit-learn): pixels of few features."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16.0, y[order]
    n, models, targets, levels = SIZES["digits"][size]
    recipe = Recipe(lr=3e-3, epochs=10 if size == "quick" else 60, batch_size=32)
    explainers = ("InputXGradient", "Saliency", "IG", "FeatureAblation", "KernelShap")
    if size == "quick":
        explainers = ("InputXGradient", "KernelShap")
    return Task(
        "digits", Population.of(x[600 : 600 + n], y[600 : 600 + n]), Population.of(x[1200:], y[1200:]), recipe,
        mlp(64, 256, 10), explainers, models, targets, levels, Dither("multiplicative", 0.3),
        {"file": "bundled with scikit-learn"},
    )  # fmt: skip


def _images(arrays: dict[str, Any], rows: Any, mean: float, deviation: float, size: str) -> Floats:
    """(n, 3, 32, 32), or, but for full runs, (n, 3, 16, 16): means of 2 x 2 pixels."""
    x: Floats = (arrays["x_train"][rows].transpose(0, 3, 1, 2) / 255.0 - mean) / deviation
    return x if size == "full" else x.reshape(len(x), 3, 16, 2, 16, 2).mean((3, 5))


def cifar10(size: str, folder: Path) -> Task:
    """Photographs of ten kinds."""
    arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
    n, models, targets, levels = SIZES["cifar10"][size]
    rows, public = slice(4000, 4000 + n), slice(0, n)
    recipe = Recipe(lr=2e-3, epochs=1 if size == "quick" else 30, batch_size=64, schedule="cosine")
    return Task(
        "cifar10", Population.of(_images(arrays, rows, 0.47, 0.25, size), arrays["y_train"][rows]),
        Population.of(_images(arrays, public, 0.47, 0.25, size), arrays["y_train"][public]), recipe, cnn(10),
        ("InputXGradient", "Saliency"), models, targets, levels, Dither("additive", 0.1), source, students=False,
    )  # fmt: skip


def gtsrb(size: str, folder: Path) -> Task:
    """Traffic signs: the frames of a track are near-copies, in or out together."""
    arrays, source = load(folder, "gtsrb", ("x_train", "y_train", "track_train", "frame_train"))
    n, models, targets, levels = SIZES["gtsrb"][size]
    draw = np.random.default_rng(0)
    tracks = draw.permutation(np.unique(arrays["track_train"]))
    parts = []
    for chosen in (tracks[: n // 2], tracks[n // 2 : n]):
        rows = [draw.permutation(np.flatnonzero(arrays["track_train"] == track))[:2] for track in chosen]
        parts.append(np.concatenate(rows))
    pool, public = (
        Population.of(_images(arrays, r, 0.33, 0.27, size), arrays["y_train"][r], arrays["track_train"][r])
        for r in parts
    )
    recipe = Recipe(lr=2e-3, epochs=1 if size == "quick" else 30, batch_size=64, schedule="cosine")
    return Task(
        "gtsrb", pool, public, recipe, cnn(43), ("InputXGradient",), models, targets, levels, Dither("additive", 0.1),
        source, students=False,
    )  # fmt: skip


def _heloc(name: str, size: str, folder: Path) -> tuple[Population, Population, dict[str, Any]]:
    arrays, source = load(folder, "heloc", ("x", "y"))
    n = SIZES[name][size][0]
    order = np.random.default_rng(0).permutation(len(arrays["y"]))
    x, y = arrays["x"][order], arrays["y"][order]
    x = (x - x[-2000:].mean(0)) / np.maximum(x[-2000:].std(0), 1e-6)  # by rows that are in neither part
    return Population.of(x[:n], y[:n]), Population.of(x[n : 2 * n], y[n : 2 * n]), source


def heloc(size: str, folder: Path) -> Task:
    """Loans, by an MLP."""
    pool, public, source = _heloc("heloc", size, folder)
    _, models, targets, levels = SIZES["heloc"][size]
    recipe = Recipe(lr=3e-3, epochs=5 if size == "quick" else 80, batch_size=32)
    return Task(
        "heloc", pool, public, recipe, mlp(23, 256, 2), ("InputXGradient", "IG"), models, targets, levels,
        Dither("additive", 0.1), source,
    )  # fmt: skip


def heloc_trees(size: str, folder: Path) -> Task:
    """Loans, by gradient boosting with LIME."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    pool, public, source = _heloc("heloc_trees", size, folder)
    _, models, targets, levels = SIZES["heloc_trees"][size]
    trees = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, min_samples_leaf=5, learning_rate=0.15)
    return Task(
        "heloc_trees", pool, public, trees, None, ("LIME",), models, targets, levels, Dither("additive", 0.1), source
    )


SIZES: dict[str, dict[str, tuple[int, int, int, tuple[int, ...]]]] = {
    "digits": {"quick": (100, 8, 2, (1, 3)), "small": (600, 33, 4, (1, 40)), "full": (600, 65, 17, (1, 5, 40, 200))},
    "cifar10": {"quick": (60, 6, 1, (1, 2)), "small": (1600, 17, 4, (1, 12)), "full": (1600, 33, 9, (1, 5, 40))},
    "gtsrb": {"quick": (60, 6, 1, (1, 2)), "small": (1200, 17, 4, (1, 12)), "full": (1300, 33, 9, (1, 5, 40))},
    "heloc": {"quick": (80, 6, 1, (1, 3)), "small": (1000, 25, 4, (1, 40)), "full": (2000, 65, 17, (1, 5, 40, 200))},
    "heloc_trees": {"quick": (80, 6, 1, (1, 2)), "small": (600, 17, 4, (1, 8)), "full": (2000, 33, 9, (1, 5, 40))},
}
"""Examples (of GTSRB: tracks in both parts, of two images each), models, targets and levels of each size."""

TASKS = {"digits": digits, "heloc": heloc, "heloc_trees": heloc_trees, "cifar10": cifar10, "gtsrb": gtsrb}

# ------------------------------------------------------------------------------------------------- native explanations


def _gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Of the probability of the target: (b, ...)."""
    x = x.detach().requires_grad_()
    chosen = Probability(model)(x).gather(1, target[:, None]).sum()
    return torch.autograd.grad(chosen, x)[0]


def input_x_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """As Captum's InputXGradient."""
    return (x * _gradient(model, x, target)).flatten(1)


def saliency(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """As Captum's Saliency: magnitudes."""
    return _gradient(model, x, target).abs().flatten(1)


def integrated_gradients(model: nn.Module, x: Tensor, target: Tensor, steps: int = 16) -> Tensor:
    """As Captum's IntegratedGradients from zero with the midpoint rule."""
    total = torch.zeros_like(x)
    for k in range(steps):
        total += _gradient(model, x * ((k + 0.5) / steps), target)
    return (x * total / steps).flatten(1)


def _probability(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """(b, k) probability of each row's target for (b, k, ...) queries."""
    with torch.no_grad():
        p = model(x.flatten(0, 1))
        p = p if are_probabilities(p) else p.softmax(1)
    return p.gather(1, target.repeat_interleave(x.shape[1])[:, None]).view(x.shape[:2])


def feature_ablation(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """As Captum's FeatureAblation: what the probability loses when one feature is zero."""
    d = x[0].numel()
    keep = (1 - torch.eye(d, device=x.device)).view(1, d, *x.shape[1:])
    return _probability(model, x[:, None], target) - _probability(model, x[:, None] * keep, target)


def _coalitions(groups: int, count: int) -> tuple[Tensor, Tensor]:
    """(count, groups) which groups are there, and (groups, count + 2) the regression on them that KernelSHAP solves.

    Drawn once by the Shapley kernel, with each its complement (Covert & Lee, arXiv 2012.01536).
    """
    draw = np.random.default_rng(0x5AB)
    sizes = np.arange(1, groups)
    chance = 1 / (sizes * (groups - sizes))
    there = np.zeros((count, groups))
    for i in range(0, count, 2):
        chosen = draw.permutation(groups)[: draw.choice(sizes, p=chance / chance.sum())]
        there[i, chosen] = 1
        there[i + 1] = 1 - there[i]
    design = there[:, :-1] - there[:, -1:]  # the weights add up to f(all) - f(none)
    solve = np.linalg.pinv(design)
    first = np.concatenate([solve, -solve.sum(1, keepdims=True), np.zeros((groups - 1, 1))], axis=1)
    last = there[:, -1]
    first[:, -2] += solve @ last  # f(S) - f(none) - last (f(all) - f(none)), columns: coalitions, none, all
    first[:, -1] -= solve @ last
    whole = np.concatenate([first, -first.sum(0, keepdims=True)])
    whole[-1, -2:] += (-1, 1)
    return torch.from_numpy(there).float(), torch.from_numpy(whole).float()


def kernel_shap(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Shapley values of the 16 squares of 2 x 2 pixels of a digit, by KernelSHAP with 128 coalitions."""
    there, solve = (a.to(x.device) for a in _coalitions(16, 128))
    square = (torch.arange(8)[:, None] // 2 * 4 + torch.arange(8)[None] // 2).flatten().to(x.device)
    masks = torch.cat([there, torch.zeros_like(there[:1]), torch.ones_like(there[:1])])[:, square]
    return _probability(model, x[:, None] * masks, target) @ solve.T


def lime(model: nn.Module, x: Tensor, target: Tensor, samples: int = 128, penalty: float = 1.0) -> Tensor:
    """Weights of LIME's ridge regression on which features are there and which at their mean, 0.

    Every feature is there with a probability of one half; the kernel is exp(-D^2 / .75^2), D one less the cosine with
    all features (Ribeiro et al., arXiv 1602.04938, as their package has it for text and images).
    """
    d = x.shape[1]
    there = torch.from_numpy(np.random.default_rng(0x11E).integers(0, 2, (samples, d))).float()
    weight = torch.exp(-(1 - (there.mean(1)).sqrt()).square() / 0.75**2)
    centred = there - (weight[:, None] * there).sum(0) / weight.sum()
    solve = torch.linalg.solve((centred.T * weight) @ centred + penalty * torch.eye(d), centred.T * weight)
    return _probability(model, x[:, None] * there.to(x.device), target) @ solve.T.to(x.device)


NATIVE: dict[str, tuple[str, Explain]] = {
    "InputXGradient": ("gradient", input_x_gradient),
    "Saliency": ("gradient", saliency),
    "IG": ("path", integrated_gradients),
    "FeatureAblation": ("perturbation", feature_ablation),
    "KernelShap": ("weights", kernel_shap),
    "LIME": ("weights", lime),
}
"""Kind of explainer (as `Hardening.recommended` calls it) and the explainer."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What models said and how they explained it."""

    maps: Floats  # (m, 1 + queries, n, d) float32 native maps of the plain query and of the dithered ones
    labels: NDArray[np.int64]  # (m, n) classes predicted for the plain query, which are explained

    def average(self, release: Callable[[Tensor, int, int], Tensor], level: int) -> Floats:
        """(m, n, k) released maps: of the plain query at level 1, else averaged over the first `level` dithered ones.

        Args:
            release: (native rows (n, d), model, query) -> what is released.
            level: how often is asked.
        """
        out: list[Floats] = []
        for i in range(len(self.maps)):
            numbers = (0,) if level == 1 else range(1, level + 1)
            total = 0.0
            for number in numbers:
                total = total + release(torch.from_numpy(np.array(self.maps[i, number])), i, number)
            out.append((total / len(numbers)).numpy())  # type: ignore[attr-defined]
        return np.stack(out)


def predictions(task: Task, shadows: Shadows, progress: Progress) -> Predictions:
    """What all models predict for all queries."""
    return predict(shadows, task.pool, patience=task.levels, dither=task.dither, progress=progress)


def ask(
    task: Task,
    models: Sequence[tuple[nn.Module, ...]],
    labels: NDArray[np.int64],
    explainer: str,
    cache: Path,
    progress: Progress,
) -> Asked:
    """Native maps of all queries, kept in a file; `models` may be others than those whose labels are explained.

    Args:
        task: of the models.
        models: for each row of `labels` those that explain it; maps of several are averaged.
        labels: (m, n) what is explained.
        explainer: a name in `NATIVE`.
        cache: folder of the files.
        progress: told after each row.
    """
    explain = NATIVE[explainer][1]
    h = hashlib.sha256(Path(__file__).read_bytes())
    h.update(f"{task.name} {explainer} {task.levels} {task.dither} {task.pool.digest()}".encode() + labels.tobytes())
    for several in models:
        for model in several:
            h.update(model_digest(model))
    path = cache / "releases" / f"{h.hexdigest()}.npy"
    if path.is_file():
        return Asked(np.load(path, mmap_mode="r"), labels)
    queries, most, n = Queries.of(task.pool, task.dither), max(task.levels), len(task.pool)
    most = 0 if most == 1 else most
    d = explain(models[0][0], task.pool.x[:2], torch.from_numpy(labels[0, :2])).shape[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npy")
    maps = np.lib.format.open_memmap(partial, "w+", np.float32, (len(models), 1 + most, n, d))
    asked = [task.pool.x, *(queries(range(n), number) for number in range(most))]
    for i, several in enumerate(models):
        device = next((p.device for p in several[0].parameters()), torch.device("cpu"))
        target = torch.from_numpy(labels[i]).to(device)
        for number, x in enumerate(asked):
            for part in (slice(start, start + BATCH) for start in range(0, n, BATCH)):
                found = sum(explain(model, x[part].to(device), target[part]) for model in several) / len(several)
                maps[i, number, part] = found.detach().cpu().numpy()
        progress(f"{explainer}", i + 1, len(models))
    maps.flush()
    partial.rename(path)
    return Asked(np.load(path, mmap_mode="r"), labels)
