"""Which attacks earn a row: what each finds alone, and what the stack of all finds with it and without it.

Ten releases of six tasks, sizes chosen for fifteen minutes on one core: networks on scikit-learn's digits, on HELOC and
Adult, on CIFAR-10 and on words of AG News, and a forest on HELOC. Four models take turns as the target; eight others,
in complementary pairs, are the references of each. Attackers ask once, and 32 times.

Alone: the true-positive rate at 1 % false positives and the AUC, means over the targets. In the stack: each kind of row
is left out of the columns, and each candidate that is no row is put in, on the same targets; the error of a difference
is the standard error over targets. A row stays if leaving it out costs more than two errors somewhere, at 1 % or 5 %
or in AUC; a candidate would have become one if it gained that much.

    python -m audit.suites.attack_table [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

from safexplain import GaussianNoise, HardenedOcclusion, Hardening, Probability, RankNorm, Relative
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, collect_signals, train_shadows
from safexplain.audit.attacks import JointLikelihoodRatio, Learned, LikelihoodRatio, Threshold
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.explain.wrap import HARDENED
from safexplain.verdict.evidence import at_level
from safexplain.verdict.stats import roc

from ...shared.resampling import interval
from ...shared.run import Progress, Unusable, destination, load, parser, provenance, rounded, write_json

Array = NDArray[np.float64]

LEVELS = (1, 32)
FPRS = (0.01, 0.05)
MEASURES = ("tpr at 1 %", "tpr at 5 %", "auc")
OPTIONS: dict[str, dict[str, Any]] = {"IG": {"n_steps": 10}}
HUANG = "LRT (Huang et al.)"
Z = float(ndtri(0.975))
FIVE = ("l1", "mean", "positive", "sparsity", "peak")
OTHERS = ("variance", "l2", "support", "sparsity", "peak", "ranks")
"""Signals that are measured as candidates. The library reads those of them that a file has, as it reads any signal: a
file of somebody else's may leak there alone."""


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        targets: models that are attacked.
        references: even; in complementary pairs.
        examples: of a pool, at most; half as many of CIFAR-10.
        epochs: of each network; None: the task's.
        releases: how many of the releases are measured.
    """

    targets: int = 4
    references: int = 8
    examples: int = 1200
    epochs: int | None = None
    releases: int | None = None


QUICK = Size(targets=2, references=4, examples=200, epochs=2, releases=1)


class Block(nn.Module):
    """Basic block of a ResNet (He et al., 1512.03385)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = stride == 1 and channels == out
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) -> (b, out, h / stride, w / stride)."""
        out: Tensor = self.relu(self.second(self.first(x)) + self.shortcut(x))
        return out


def resnet8(seed: int) -> nn.Module:
    """16, 32 and 64 channels on 16 x 16, 8 x 8 and 4 x 4 positions."""
    stem = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def small_network(seed: int) -> nn.Module:
    """Three convolutions of stride 2 and a linear layer, for 32 x 32 images."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


@dataclass(frozen=True)
class Task:
    """A pool, what is trained on it, and how that is explained."""

    pool: Population
    train: Any
    build: Callable[[int], nn.Module] | None
    explainer: str = "InputXGradient"


def dense(features: int, hidden: int, classes: int) -> Callable[[int], nn.Module]:
    return lambda seed: nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def digits(size: Size, folder: Path) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.data))[: size.examples]
    pool = Population.of((data.data[rows] / 16).astype(np.float32), data.target[rows])
    return Task(pool, Recipe(epochs=size.epochs or 60, batch_size=100), dense(64, 1024, 10))


def table_of(x: NDArray[Any], y: NDArray[Any], size: Size) -> Population:
    """Standardised columns of rows that differ."""
    x = ((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32)
    rows = np.random.default_rng(0).permutation(np.unique(x, axis=0, return_index=True)[1])[: size.examples]
    return Population.of(x[rows], y[rows])


def heloc(size: Size, folder: Path) -> Task:
    arrays = load(folder, "heloc", ("x", "y"))[0]
    recipe = Recipe(lr=3e-3, epochs=size.epochs or 60, batch_size=100)
    return Task(table_of(arrays["x"], arrays["y"], size), recipe, dense(23, 256, 2))


def forest(size: Size, folder: Path) -> Task:
    from sklearn.ensemble import ExtraTreesClassifier

    return Task(heloc(size, folder).pool, ExtraTreesClassifier(n_estimators=20), None, "Occlusion")


def adult(size: Size, folder: Path) -> Task:
    arrays = load(folder, "adult", ("x_num", "x_cat", "y"))[0]
    of_categories = [np.eye(column.max() + 1)[column] for column in arrays["x_cat"].T]
    pool = table_of(np.concatenate([arrays["x_num"], *of_categories], axis=1), arrays["y"], size)
    recipe = Recipe(lr=3e-3, epochs=size.epochs or 20, batch_size=100)
    return Task(pool, recipe, dense(pool.x.shape[1], 128, 2))


def cifar10(size: Size, folder: Path) -> Task:
    arrays = load(folder, "cifar10", ("x_train", "y_train"))[0]
    x = arrays["x_train"][: size.examples // 2].transpose(0, 3, 1, 2) / 255.0
    pool = Population.of(((x - 0.47) / 0.25).astype(np.float32), arrays["y_train"][: size.examples // 2])
    return Task(pool, Recipe(lr=2e-3, epochs=size.epochs or 30, batch_size=50), small_network)


def words(size: Size, folder: Path) -> Task:
    from sklearn.feature_extraction.text import TfidfVectorizer

    arrays = load(folder, "agnews_test", ("x", "y"))[0]
    rows = np.random.default_rng(0).permutation(len(arrays["x"]))[: size.examples]
    x = TfidfVectorizer(max_features=1000).fit_transform([arrays["x"][i] for i in rows]).toarray()
    pool = Population.of((10 * x).astype(np.float32), np.asarray(arrays["y"])[rows])
    return Task(pool, Recipe(lr=3e-3, epochs=size.epochs or 15, batch_size=50), dense(1000, 64, 4))


TASKS = {"digits": digits, "HELOC": heloc, "Adult": adult, "forest": forest, "AG News": words, "CIFAR-10": cifar10}
RELEASES = (
    ("digits", "native"), ("digits", "top features"), ("digits", "ranks with noise"), ("HELOC", "native"),
    ("HELOC", "top features"), ("Adult", "native"), ("forest", "native"), ("forest", "top features"),
    ("AG News", "native"), ("CIFAR-10", "native"),
)  # fmt: skip


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


def estimate(replicates: Array) -> dict[str, float]:
    """The value (the first one) and its interval from the others."""
    value, se = float(replicates[0]), float(replicates[1:].std(ddof=1))
    low, high = interval({"value": value, "se": se}, Z)
    return {"value": value, "low": low, "high": high}


def accuracy(shadows: Shadows, population: Population) -> dict[str, Any]:
    """On members and on non-members, mean over models; and of each model on its members."""
    right = []
    with torch.no_grad():
        for model in shadows.models:
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            found = [model(x.to(device)).argmax(1).cpu() for x in population.x.split(500)]
            right.append((torch.cat(found) == population.y).numpy())
    correct, member = np.array(right), shadows.membership
    return {
        "members": float(correct[member].mean()),
        "non_members": float(correct[~member].mean()),
        "members_by_model": [float(c[m].mean()) for c, m in zip(correct, member, strict=True)],
    }


def pairs(size: Size, examples: int) -> NDArray[np.bool_]:
    """Membership of the targets, by coin flips, and of references, each second one the complement of the one before."""
    rng = np.random.default_rng(1)
    half = rng.random((size.references // 2, examples)) < 0.5
    both = np.stack([half, ~half], axis=1).reshape(size.references, examples)
    return np.concatenate([rng.random((size.targets, examples)) < 0.5, both])


def collected(size: Size, task: Task, models: Shadows, name: str, progress: Progress) -> Signals:
    """Signals of one release; references answer dithered queries without noise."""
    number = size.targets + size.references
    quiet = replace(RANKS, noise=None) if name == "ranks with noise" else None
    signals = collect_signals(
        models, task.pool, [release(task.explainer, hardening_of(name, i)) for i in range(number)], patience=LEVELS,
        without_noise=None if quiet is None else release(task.explainer, quiet),
        targets=tuple(range(size.targets)), progress=progress,
    )  # fmt: skip
    for level in LEVELS:  # ranks are no view of the library any more
        name = at_level("attributions", level)
        maps = signals.attributions if level == 1 else signals.values[name]
        assert maps is not None
        signals.values[at_level("ranks", level)] = maps.argsort(-1, kind="stable").argsort(-1).astype(np.float32)
    return signals


def against(signals: Signals, target: int, size: Size) -> Signals:
    """The target, first, with the references alone."""
    models = [target, *range(size.targets, size.targets + size.references)]
    values = {name: found[models] for name, found in signals.values.items()}
    assert signals.attributions is not None
    return Signals(signals.membership[models], values, signals.attributions[models], {"targets": [0]})


def candidates(signals: Signals, level: int) -> dict[str, SuiteRow]:
    """Attacks that are no rows of the library, by the names that the tables have."""
    plain, own = LikelihoodRatio(), lambda signal: at_level(signal, level)
    listed = {
        f"LikelihoodRatio on {s}": (plain, own(s)) for s in ("variance", "l2", "support", "sparsity", "peak", "ranks")
    }
    listed["JointLikelihoodRatio on l1"] = (JointLikelihoodRatio(), own("l1"))
    five = [own(s) for s in FIVE if np.ptp(signals.values[own(s)]) > 0]
    if five:
        listed["JointLikelihoodRatio on five summaries"] = (JointLikelihoodRatio(), "+".join(five))
    if level == 1:
        listed["Learned on attributions"] = (Learned(), "attributions")
        listed |= {f"Threshold on {s}": (Threshold(), s) for s in ("l1", "variance", "loss")}
    listed["JointLikelihoodRatio on loss"] = (JointLikelihoodRatio(), own("loss"))
    loss = ("JointLikelihoodRatio on loss", "Threshold on loss")
    return {
        name: SuiteRow(name, attack, signal, "loss" if name in loss else "explanation", level)
        for name, (attack, signal) in listed.items()
        if all(part in signals.values and np.ptp(signals.values[part]) > 0 for part in signal.split("+"))
        or signal == "attributions"
    }


def kind_of(row: SuiteRow) -> str:
    """What a row is called in the tables, at any level."""
    return row.name if row.name == "Boosted" else f"{row.name} on {row.signal.replace('@32', '')}"


def stacks(stack: SuiteRow, others: dict[str, SuiteRow]) -> dict[str, SuiteRow]:
    """The stack, without each kind of its rows, and with each candidate."""
    out = {"all": stack}
    for kind in dict.fromkeys(kind_of(c) for c in stack.columns[1:]):
        left = tuple(c for c in stack.columns if kind_of(c) != kind)
        out[f"without {kind}"] = replace(stack, name=f"without {kind}", columns=left)
    for name, row in others.items():
        if row.role == stack.columns[1].role and not isinstance(row.attack, Threshold):
            out[f"with {name}"] = replace(stack, name=f"with {name}", columns=(*stack.columns, row))
    return out


def measure(size: Size, signals: Signals) -> dict[str, Any]:
    """Level -> "alone", "with labels" and "predictions" -> attack or change of the stack -> figures of each target."""
    found: dict[str, Any] = {}
    for target in range(size.targets):
        own = against(signals, target, size)
        for level in LEVELS:
            others = candidates(own, level)
            by_labels, by_predictions = (
                [r for r in fitting(own, Policy(patience=LEVELS, release=given)) if r.level == level and _is_row(r)]
                for given in ("explanation", "explanation+prediction")  # type: ignore[arg-type]
            )
            alone = {kind_of(r): r for r in by_labels if not r.columns} | others
            wide = next(r for r in by_labels if r.name == "Stacked")
            wide = replace(wide, columns=tuple(filter(_is_row, wide.columns)))
            known = next(r for r in by_predictions if r.name == "PredictionPatience")
            groups = {"alone": alone, "with labels": {"labels": wide.columns[0], **stacks(wide, others)},
                      "predictions": stacks(known, others)}  # fmt: skip
            every = [row for rows in groups.values() for row in rows.values()]
            scorer = Scorer(own, every, target=0, training=np.zeros(len(own), dtype=bool), seed=target)
            scores = iter(scorer.scores(0))
            for group, rows in groups.items():
                for name in rows:
                    curve = roc(next(scores), own.membership[0])
                    figures = [*np.interp(FPRS, curve.fpr, curve.tpr), curve.auc]
                    at = found.setdefault(str(level), {}).setdefault(group, {})
                    at.setdefault(name, []).append([float(f) for f in figures])
    return found


def conclude(results: dict[str, Any]) -> dict[str, Any]:
    """What each kind of row adds to the stack and each candidate would: the mean, and where most, in errors."""
    changes: dict[str, list[tuple[Array, Array, str]]] = {}
    for cell, found in results.items():
        for level, groups in found["figures"].items():
            for group in ("with labels", "predictions"):
                whole = np.array(groups[group]["all"])
                for name, each in groups[group].items():
                    if name in ("all", "labels"):
                        continue
                    sign = -1.0 if name.startswith("without") else 1.0
                    gain = sign * (np.array(each) - whole)
                    error = gain.std(0, ddof=1) / np.sqrt(len(gain))
                    changes.setdefault(f"{group}: {name}", []).append((gain.mean(0), error, f"{cell}, {level}"))
    out = {}
    for name, gains in changes.items():
        means, errors = np.array([g[0] for g in gains]), np.array([g[1] for g in gains])
        sure = means - 2 * errors
        at = [int(i) for i in means.argmax(0)]
        out[name] = {
            "mean": means.mean(0).tolist(),
            "most": {m: {"gain": float(means[i, k]), "error": float(errors[i, k]), "where": gains[i][2]}
                     for k, (m, i) in enumerate(zip(MEASURES, at, strict=True))},
            "wins": int((sure > 0).any(1).sum()),
            "loses": int((means + 2 * errors < 0).any(1).sum()),
            "of": len(gains),
        }  # fmt: skip
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it is done."""
    options = parser("attack_table", __doc__).parse_args(argv)
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(1)
    start, size, progress = time.perf_counter(), QUICK if options.quick else Size(), Progress()
    results: dict[str, Any] = {}
    left_out: list[str] = []
    trained: dict[str, tuple[Task, Shadows]] = {}
    for name, kind in RELEASES[: size.releases]:
        if name not in trained:
            try:
                task = TASKS[name](size, options.data)
            except Unusable as missing:
                print(f"{name} is left out: {missing}", flush=True)
                left_out.append(name)
                continue
            member = pairs(size, len(task.pool.y))
            models = train_shadows(task.pool, task.train, build=task.build, models=len(member), membership=member)
            trained[name] = task, models
        task, models = trained[name]
        signals = collected(size, task, models, kind, progress)
        right = {k: v for k, v in accuracy(models, task.pool).items() if k != "members_by_model"}
        results[f"{name}, {kind}"] = {"examples": len(signals), "accuracy": right, "figures": measure(size, signals)}
        print(f"{name}, {kind}: done after {time.perf_counter() - start:.0f} s", flush=True)
        head = {"suite": "attack_table", "quick": options.quick, "size": asdict(size), "measures": list(MEASURES)}
        found = {"left_out": left_out, "summary": conclude(results), "results": results}
        run = provenance(time.perf_counter() - start)
        write_json(destination(options), rounded(head | found) | run)
    print(f"written to {destination(options)}", flush=True)
    return 0


def _is_row(row: SuiteRow) -> bool:
    """Whether it reads none of `OTHERS`."""
    return row.signal.partition("@")[0] not in OTHERS
