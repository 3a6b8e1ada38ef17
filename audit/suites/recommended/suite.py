"""What attacks find under `Hardening.recommended()` and under its alternatives, and what is left to read.

Two tasks on real data, on which models overfit: an MLP on 600 handwritten digits and a small CNN on 1,000 CIFAR-10
images; explained is the predicted probability. A configuration may be recommended when

  (a) every scalar attack (Threshold and LikelihoodRatio on variance, L1, L2) is at chance within its interval: that of
      the AUC contains .5, and that of the TPR at 1 % FPR meets 1 %,
  (b) neither LikelihoodRatio on the whole map, nor LikelihoodRatio on its signed mean, nor JointLikelihoodRatio on five
      of its summaries finds more than 1 point more of the members at 1 % FPR than LabelLikelihoodRatio, which needs no
      explanation, and
  (c) the top 10 % of features overlap those of the native explanation by at least .85 on average.

Figures are means over the models that take turns as the target. One example has a score against each, and they depend
on each other, so intervals come from resampling EXAMPLES, with all their scores (normal intervals, 1,000 resamples). Of
the six scalar attacks, all intervals hold together with 95 % for each of the two statistics (Bonferroni). The TPR is
the library's: it runs up to the non-member that would break the 1 %, so that guessing gives (k + 1) / (n0 + 1) with n0
non-members and k = floor(n0 / 100), a little above 1 %; an interval that meets [1 %, that] meets 1 %.

Alternatives are compared on one pool of examples with one seed and one noise key. The recommended configuration, and
others that met all criteria of a task, are then judged on another pool, disjoint from the first, with other models, as
the mean over several noise keys, since one key is one draw of the noise.

The signed mean and the joint attack joined (b) after `RankNorm` with its signs kept had been recommended, and had left
them to read; configurations that balance the signs came then. Released maps come from the public classes
(HardenedInputXGradient, ...); only for the alternatives on CIFAR-10 is the hardening applied to stored native maps,
which is what these classes do. A run of one task leaves the other's results in the file.

    python -m audit.suites.recommended [--task digits|cifar10|all] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.datasets import load_digits
from torch import Tensor, nn

from safexplain import GaussianNoise, Hardening, Probability, RangeClip, RankNorm, Relative, ThresholdMask, UnitNorm
from safexplain._digest import model_digest
from safexplain.audit import Population, Recipe, Shadows, Signals, collect_signals, train_shadows, utility
from safexplain.audit.attacks import (
    JointLikelihoodRatio,
    LabelLikelihoodRatio,
    LikelihoodRatio,
    SharedVariance,
    Threshold,
)
from safexplain.audit.collect import summarise
from safexplain.explain import CATALOG
from safexplain.explain.wrap import HARDENED

from ...shared.run import Parts, Progress, destination, load, parser, provenance, table, write_json

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

FPR = 0.01
CONFIDENCE = 0.95
MOST_EXCESS = 0.01
LEAST_OVERLAP = 0.85
SELECTION, CONFIRMATION = 0, 1
BEYOND = ("whole map", "signed mean", "joint")
JOINT = ("l1", "mean", "positive", "sparsity", "peak")
SCALARS = tuple((a, s) for a in ("Threshold", "LikelihoodRatio") for s in ("variance", "l1", "l2"))
ATTACKS: dict[str, Any] = {"Threshold": Threshold(), "LikelihoodRatio": LikelihoodRatio()}
OPTIONS: dict[str, dict[str, Any]] = {"IG": {"n_steps": 25}}
RECOMMENDED = "recommended"
MOST_ROWS = 1000
"""Explanations that utility is measured on."""


def noise_key(i: int) -> bytes:
    """A fixed key: results can be repeated; secrecy is of no use here."""
    # The name is the file's old one: another name would be other noise than that of the committed results.
    return hashlib.sha256(f"safexplain audit/suites/recommended.py key {i}".encode()).digest()


def configurations(native: Floats) -> dict[str, Hardening]:
    """The alternatives by name. DeepLeak's form needs a bound: the median magnitude of the native maps, zeros aside."""
    noise = {f: GaussianNoise(Relative(f), key=noise_key(0)) for f in (0.1, 0.2, 0.3, 0.5)}
    some = np.abs(native[:: max(1, len(native) // 8)])
    bound = float(np.median(some[some > 0]))
    deepleak = Hardening(clip=RangeClip(-bound, bound), mask=ThresholdMask(Relative(0.1)), noise=noise[0.3])
    recommended = Hardening.recommended(key=noise_key(0))
    balanced = RankNorm(balanced_from=2)
    alternatives = {
        "native": Hardening.none(),
        "UnitNorm": Hardening(clip=UnitNorm()),
        **{f"UnitNorm + {f:.1f}".replace("0.", "."): Hardening(UnitNorm(), noise=noise[f]) for f in (0.2, 0.3, 0.5)},
        "RankNorm": Hardening(clip=RankNorm()),
        **{f"RankNorm + {f:.1f}".replace("0.", "."): Hardening(RankNorm(), noise=noise[f]) for f in (0.1, 0.2, 0.3)},
        **{f"balanced + {f:.1f}".replace("0.", "."): Hardening(balanced, noise=noise[f]) for f in (0.2, 0.3)},
        "DeepLeak's form": deepleak,
    }
    return {name: h for name, h in alternatives.items() if h != recommended} | {RECOMMENDED: recommended}


@dataclass(frozen=True)
class Task:
    """Data, models and the number of everything."""

    name: str
    explainers: tuple[str, ...]
    build: Callable[[int], nn.Module]
    recipe: Recipe
    pool: int
    models: int
    targets: int
    keys: int
    resamples: int
    through_class: bool
    data: Mapping[str, Any]
    compared: tuple[str, ...] = ()  # configurations of the selection; none named: all

    def population(self, seed: int) -> Population:
        """The pool of a seed; pools of different seeds share no example."""
        part = slice(self.pool * seed, self.pool * (seed + 1))
        return Population.of(self.data["x"][part], self.data["y"][part])


def mlp(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn(seed: int) -> nn.Module:
    def block(i: int, o: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    body = block(3, 16, 1) + block(16, 32, 2) + block(32, 32, 1) + block(32, 64, 2) + block(64, 64, 1)
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def digits(quick: bool) -> Task:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    size = {"pool": 100, "models": 8, "targets": 3, "keys": 2, "resamples": 50} if quick else {}
    size = size or {"pool": 600, "models": 65, "targets": 17, "keys": 5, "resamples": 1000}
    recipe = Recipe(lr=3e-3, epochs=10 if quick else 60, batch_size=32)
    explainers = ("InputXGradient",) if quick else ("InputXGradient", "Saliency", "IG")
    data = {"x": x[order] / 16.0, "y": y[order]}
    return Task("digits", explainers, mlp, recipe, through_class=True, data=data, **size)


def cifar10(quick: bool, folder: Path) -> tuple[Task, dict[str, str]]:
    arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
    size = {"pool": 40, "models": 5, "targets": 2, "keys": 2, "resamples": 50} if quick else {}
    size = size or {"pool": 1000, "models": 17, "targets": 9, "keys": 2, "resamples": 1000}
    first = slice(0, 2 * size["pool"])
    x = (arrays["x_train"][first].transpose(0, 3, 1, 2) / 255.0 - 0.47) / 0.25
    recipe = Recipe(lr=2e-3, epochs=1 if quick else 25, batch_size=64, schedule="cosine")
    data = {"x": x, "y": arrays["y_train"][first]}
    explainers = ("InputXGradient",) if quick else ("InputXGradient", "Saliency")
    compared = ("native", "UnitNorm", "UnitNorm + .3", "RankNorm + .3", "balanced + .2", RECOMMENDED)  # maps take time
    return Task("cifar10", explainers, cnn, recipe, through_class=False, data=data, compared=compared, **size), source


@dataclass
class Cell:
    """One task, seed and explainer: the native maps and everything that is measured against them."""

    task: Task
    seed: int
    explainer: str
    shadows: Shadows
    population: Population
    progress: Progress

    @cached_property
    def native(self) -> Signals:
        """Native maps, labels and losses."""
        row, options = CATALOG[self.explainer], OPTIONS.get(self.explainer, {})

        def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
            x = x.clone().requires_grad_(row.leaf_inputs)
            found: Tensor = row.explainer(Probability(model)).attribute(x, target=target, **options)
            return found

        return collect_signals(self.shadows, self.population, explain, patience=(1,), progress=self.progress)

    @cached_property
    def weights(self) -> Floats:
        """(n, 1 + resamples) how often each example counts: once each in column 0, then as resampled."""
        n, rng = len(self.population), np.random.default_rng([self.seed, 0xB007])
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=self.task.resamples).T
        return np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.float32)

    @cached_property
    def label_tpr(self) -> Floats:
        """(1 + resamples,) mean TPR of the attack on the label, the same for every hardening."""
        return self.resampled(self.scores(LabelLikelihoodRatio(), self.native.values["label"]))[1]

    def released(self, hardening: Hardening, *, through_class: bool) -> Floats:
        """(m, n, d) maps under a hardening."""
        if hardening.is_none:
            assert self.native.attributions is not None
            return self.native.attributions
        if through_class:
            kind = HARDENED[self.explainer]
            options = OPTIONS.get(self.explainer, {})

            def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
                found: Tensor = kind(Probability(model), hardening=hardening).attribute(x, target=target, **options)
                return found

            hardened = collect_signals(self.shadows, self.population, explain, patience=(1,), progress=self.progress)
            assert hardened.attributions is not None
            return hardened.attributions
        return self._applied(hardening)

    def _applied(self, hardening: Hardening) -> Floats:
        assert self.native.attributions is not None
        out = np.empty_like(self.native.attributions)
        for i, model in enumerate(self.shadows.models):
            maps = torch.from_numpy(self.native.attributions[i])
            label = torch.from_numpy(self.native.values["label"][i].astype(np.int64))
            query: dict[str, Any] = {"inputs": self.population.x, "target": label, "method": self.explainer}
            out[i] = hardening(maps, **query, model_digest=model_digest(model)).numpy()
            self.progress("hardening", i + 1, len(out))
        return out

    def scores(self, attack: Any, signal: Floats) -> NDArray[np.float64]:
        """(targets, n) scores, each target against all other models."""
        m, found = len(signal), []
        for t in range(self.task.targets):
            others = np.arange(m) != t
            found.append(attack(signal[t], signal[others], self.shadows.membership[others]))
        return np.stack(found)

    def resampled(self, scores: Floats) -> tuple[Floats, Floats]:
        """AUC and TPR at 1 % FPR, means over targets, in each resample: two arrays (1 + resamples,)."""
        member = self.shadows.membership[: len(scores)]
        each = [resampled_rates(s, m, self.weights, FPR) for s, m in zip(scores, member, strict=True)]
        return np.mean([e[0] for e in each], axis=0), np.mean([e[1] for e in each], axis=0)

    def replicates(self, maps: Floats) -> dict[str, Floats]:
        """What is measured of released maps, in each resample."""
        signals, found = summaries(maps), {}
        for attack, signal in SCALARS:
            auc, tpr = self.resampled(self.scores(ATTACKS[attack], signals[signal]))
            found[f"{attack} {signal} auc"], found[f"{attack} {signal} tpr"] = auc, tpr
        beyond = {
            "whole map": whole_map_scores(maps, self.shadows.membership, self.task.targets),
            "signed mean": self.scores(LikelihoodRatio(), signals["mean"]),
            "joint": self.scores(JointLikelihoodRatio(), np.stack([signals[name] for name in JOINT], axis=2)),
        }
        found["label tpr"] = self.label_tpr
        for name, scores in beyond.items():
            found[f"{name} auc"], found[f"{name} tpr"] = self.resampled(scores)
            found[f"{name} excess"] = found[f"{name} tpr"] - self.label_tpr
        return found

    def utility(self, maps: Floats) -> dict[str, float]:
        """Overlap, correlations and cosine with the native maps, over a fixed choice of explanations."""
        assert self.native.attributions is not None
        m, n, d = maps.shape
        chosen = np.random.default_rng([self.seed, 0x07]).permutation(m * n)[:MOST_ROWS]
        pair = [a.reshape(m * n, d)[chosen] for a in (self.native.attributions, maps)]
        return utility(*pair).to_dict()

    @property
    def chance_tpr(self) -> float:
        """Expected TPR at 1 % FPR of guessing, mean over targets."""
        others = (~self.shadows.membership[: self.task.targets]).sum(1)
        return float(((np.floor(FPR * others) + 1) / (others + 1)).mean())

    def measure(self, hardenings: list[Hardening], *, through_class: bool) -> dict[str, Any]:
        """All figures of a configuration, averaged over the keys of `hardenings`."""
        each, uses = [], []
        for hardening in hardenings:
            maps = self.released(hardening, through_class=through_class)
            each.append(self.replicates(maps))
            uses.append(self.utility(maps))
        mean = {k: np.mean([e[k] for e in each], axis=0) for k in each[0]}
        by_key = [{k: float(v[0]) for k, v in e.items()} for e in each]
        return {
            "hardening": hardenings[0].to_dict(),
            "keys": len(hardenings),
            "estimates": {k: {"value": float(v[0]), "se": float(v[1:].std(ddof=1))} for k, v in mean.items()},
            "by_key": by_key if len(by_key) > 1 else None,
            "utility": {k: float(np.mean([u[k] for u in uses])) for k in uses[0]},
            "chance_tpr": self.chance_tpr,
        }


def summaries(maps: Floats) -> dict[str, NDArray[np.float64]]:
    """The scalar signals of `safexplain.audit.collect_signals`, from maps (m, n, d)."""
    each = [summarise(torch.from_numpy(rows)) for rows in maps]
    return {name: np.stack([found[name].numpy() for found in each]) for name in each[0]}


def whole_map_scores(maps: Floats, membership: Bools, targets: int, chunk: int = 1 << 20) -> NDArray[np.float64]:
    """`LikelihoodRatio()` on whole maps with models 0 .. targets-1 as targets and all others as references, faster.

    Moments over all models are made once and the target is taken out of its own side, on which n models lie around a
    mean: without v, the squared deviations shrink by (v - mean)^2 n / (n - 1), and v is (v - mean) n / (n - 1) away
    from the mean of the others. Shapes (m, n, d), (m, n) -> (targets, n).
    """
    m, n, d = maps.shape
    shrink = SharedVariance().shrink
    step = max(1, chunk // (m * d))
    squares, freedom = np.zeros((targets, d)), np.zeros(targets)
    scores = np.zeros((targets, n))
    for second in (False, True):
        pooled = squares / np.maximum(freedom, 1)[:, None]
        mean = pooled.mean(1, keepdims=True)
        pooled = np.maximum(pooled, np.where(mean > 0, 1e-9 * mean, 1.0))
        for part in (slice(start, start + step) for start in range(0, n, step)):
            values, inside = maps[:, part].astype(np.float64), membership[:, part]
            number = np.stack([(~inside).sum(0), inside.sum(0)]).astype(np.float64)
            sums = [np.einsum("mn,mnd->nd", side.astype(np.float64), values) for side in (~inside, inside)]
            means = np.stack(sums) / np.maximum(number, 1)[:, :, None]
            around = values - np.where(inside[:, :, None], means[1], means[0])
            total = np.einsum("mnd,mnd->nd", around, around)
            each = np.arange(values.shape[1])
            for t in range(targets):
                own = inside[t].astype(np.int64)
                left, others = number[own, each] - 1, number[1 - own, each]
                usable = ((left > 0) & (others > 0)).astype(np.float64)
                grow = ((left + 1) / np.maximum(left, 1))[:, None]
                dof = np.maximum(left - 1, 0) + np.maximum(others - 1, 0)
                near = around[t] ** 2
                squared = np.maximum(total - grow * near, 0.0)
                if not second:
                    squares[t] += usable @ squared
                    freedom[t] += usable @ dof
                    continue
                far = (values[t] - means[1 - own, each]) ** 2 - grow**2 * near
                ratio = (far / (squared + shrink * pooled[t])).sum(1) * (dof + shrink) / 2
                scores[t, part] = usable * np.where(inside[t], ratio, -ratio)
    return scores


def resampled_rates(
    scores: Floats, member: Bools, weights: Floats, fpr: float, columns: int = 64
) -> tuple[Floats, Floats]:
    """AUC and conservative TPR at `fpr` when example i counts weights[i, b] times: (n,), (n,), (n, b) -> two (b,).

    `columns` resamples are worked on at a time, which is fastest while they stay in the processor's cache.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    inside = member[order, None]
    auc, tpr = np.empty(weights.shape[1]), np.empty(weights.shape[1])
    for part in (slice(start, start + columns) for start in range(0, weights.shape[1], columns)):
        count = weights[order, part]
        found, false_positives = np.cumsum(count * inside, axis=0)[ends], np.cumsum(count * ~inside, axis=0)[ends]
        members, others = found[-1], false_positives[-1]
        steps = np.diff(false_positives, axis=0, prepend=0)
        twice = np.einsum("gb,gb->b", steps, 2 * found, dtype=np.float64)
        gained = np.diff(found, axis=0, prepend=0)
        auc[part] = (twice - np.einsum("gb,gb->b", steps, gained, dtype=np.float64)) / (2.0 * members * others)
        kept = (false_positives <= np.floor(fpr * others * (1 + 1e-6))).sum(0)
        best = np.take_along_axis(found, np.maximum(kept - 1, 0)[None], 0)[0]
        tpr[part] = np.where(kept > 0, best, 0) / members
    return auc, tpr


def worst_scalars(estimates: dict[str, dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Of the scalar attacks, the AUC farthest from chance and the highest TPR."""
    auc = max((estimates[f"{a} {s} auc"] for a, s in SCALARS), key=lambda v: abs(v["value"] - 0.5))
    return auc, max((estimates[f"{a} {s} tpr"] for a, s in SCALARS), key=lambda v: v["value"])


def judge(figures: dict[str, Any]) -> dict[str, Any]:
    """The three criteria, and the scalar attacks whose intervals miss chance."""
    estimates, chance = figures["estimates"], figures["chance_tpr"]
    z = float(ndtri(1 - (1 - CONFIDENCE) / (2 * len(SCALARS))))
    missed = []
    for attack, signal in SCALARS:
        for kind, lowest, highest in (("auc", 0.5, 0.5), ("tpr", FPR, chance)):
            low, high = interval(estimates[f"{attack} {signal} {kind}"], z)
            if low > highest or high < lowest:
                missed.append(f"{attack} {signal} {kind} {estimates[f'{attack} {signal} {kind}']['value']:.4f}"
                              f" [{low:.4f}, {high:.4f}]")  # fmt: skip
    strongest = max(BEYOND, key=lambda name: estimates[f"{name} excess"]["value"])
    excess = estimates[f"{strongest} excess"]
    overlap = figures["utility"]["top_overlap"]
    return {
        "a": not missed,
        "b": excess["value"] <= MOST_EXCESS,
        "c": overlap >= LEAST_OVERLAP,
        "scalars_off_chance": missed,
        "strongest": strongest,
        "excess": excess["value"],
        "excess_interval": interval(excess, float(ndtri(0.5 + CONFIDENCE / 2))),
        "z_of_scalars": z,
    }


def interval(estimate: dict[str, float], z: float) -> tuple[float, float]:
    """Normal interval."""
    return estimate["value"] - z * estimate["se"], estimate["value"] + z * estimate["se"]


def run_task(task: Task, parts: Parts, cache: Path, quick: bool) -> dict[str, Any]:
    """Both seeds of a task, all explainers: {"selection" | "confirmation": {explainer: {configuration: figures}}}."""
    found: dict[str, Any] = {}
    for seed, phase in ((SELECTION, "selection"), (CONFIRMATION, "confirmation")):
        progress, population = Progress(f"{task.name} {phase}: "), task.population(seed)
        shadows = train_shadows(population, task.recipe, build=task.build, models=task.models, seed=seed,
                                cache=str(cache / "models"), progress=progress)  # fmt: skip
        found[phase] = {}
        for explainer in task.explainers:
            progress.prefix = f"{task.name} {phase} {explainer}: "
            cell = Cell(task, seed, explainer, shadows, population, progress)
            if seed == SELECTION:
                found[phase][explainer] = select(cell, parts, quick)
            else:
                found[phase][explainer] = confirm(cell, parts, others_that_hold(found["selection"]))
            show_cell(task.name, phase, explainer, found[phase][explainer])
    return found


def select(cell: Cell, parts: Parts, quick: bool) -> dict[str, Any]:
    """Every alternative once, with one key."""
    task, rows = cell.task, {}
    for name in configurations(np.ones((1, 1, 1))):
        if name not in (("native", "UnitNorm + .2", RECOMMENDED) if quick else task.compared or (name,)):
            continue

        def make(name: str = name) -> dict[str, Any]:
            assert cell.native.attributions is not None
            hardening = configurations(cell.native.attributions)[name]
            return cell.measure([hardening], through_class=task.through_class or name == RECOMMENDED)

        rows[name] = parts.get([task.name, task.pool, cell.seed, cell.explainer, name], make)
    return {name: figures | {"criteria": judge(figures)} for name, figures in rows.items()}


def others_that_hold(selection: dict[str, Any]) -> list[str]:
    """Alternatives that met all three criteria for every explainer of the selection."""
    names = next(iter(selection.values()))
    return [
        name
        for name in names
        if name != RECOMMENDED and all(rows[name]["criteria"][k] for rows in selection.values() for k in "abc")
    ]


def confirm(cell: Cell, parts: Parts, others: list[str]) -> dict[str, Any]:
    """Under several keys: the recommended configuration, and others that held; the native explanation beside them."""
    task, rows = cell.task, {}
    for name in ["native", *others, RECOMMENDED]:

        def make(name: str = name) -> dict[str, Any]:
            assert cell.native.attributions is not None
            hardening = configurations(cell.native.attributions)[name]
            keyed = [hardening.with_key(noise_key(i + 1)) for i in range(1 if hardening.noise is None else task.keys)]
            return cell.measure(keyed, through_class=task.through_class or name == RECOMMENDED)

        rows[name] = parts.get([task.name, task.pool, cell.seed, cell.explainer, name, task.keys], make)
    return {name: figures | {"criteria": judge(figures)} for name, figures in rows.items()}


def show_cell(task: str, phase: str, explainer: str, rows: dict[str, Any]) -> None:
    lines = []
    for name, figures in rows.items():
        e, u, c = figures["estimates"], figures["utility"], figures["criteria"]
        auc, tpr = worst_scalars(e)
        half = c["z_of_scalars"]
        lines.append((
            name,
            f"{auc['value']:.3f} ±{half * auc['se']:.3f}",
            f"{tpr['value']:.1%} ±{half * tpr['se']:.1%}",
            *(f"{e[f'{k} auc']['value']:.3f}, {e[f'{k} tpr']['value']:.1%}" for k in BEYOND),
            f"{e['label tpr']['value']:.1%}",
            f"{c['strongest']} {c['excess']:+.1%} [{c['excess_interval'][0]:+.1%}, {c['excess_interval'][1]:+.1%}]",
            f"{u['top_overlap']:.3f}",
            f"{u['cosine']:.3f}",
            f"{u['rank_correlation']:.3f}",
            " ".join(k if c[k] else "-" for k in "abc"),
        ))  # fmt: skip
    header = ("configuration", "worst scalar AUC", "worst scalar TPR", *BEYOND, "label", "largest excess", "overlap",
              "cosine", "ranks", "holds")  # fmt: skip
    chance = next(iter(rows.values()))["chance_tpr"]
    print(f"\n{task}, {explainer}, {phase} (TPR at 1 % FPR; guessing gives {chance:.2%})\n{table(header, lines)}")
    for name, figures in rows.items():
        if name == RECOMMENDED and figures["criteria"]["scalars_off_chance"]:
            print(f"off chance under {name}: {'; '.join(figures['criteria']['scalars_off_chance'])}")
    sys.stdout.flush()


def conclude(results: dict[str, Any]) -> dict[str, Any]:
    """Which configurations meet all criteria in every cell of the selection; what the confirmation says."""
    cells = [(t, x, rows) for t, r in results.items() for x, rows in r["selection"].items()]
    holds = {
        name: {
            k: f"{sum(rows[name]['criteria'][k] for *_, rows in cells if name in rows)}"
            f"/{sum(name in rows for *_, rows in cells)}"
            for k in "abc"
        }
        for name in cells[0][2]
    }
    confirmed = {
        f"{t} {x}": {k: rows[RECOMMENDED]["criteria"][k] for k in ("a", "b", "c", "scalars_off_chance")}
        for t, r in results.items()
        for x, rows in r["confirmation"].items()
    }
    return {
        "criteria_met_in_selection": holds,
        "confirmation": confirmed,
        "confirmed": all(c[k] for c in confirmed.values() for k in "abc"),
        "note": "of 95 % intervals, about one cell and statistic in twenty misses chance where nothing leaks",
    }


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when the recommended configuration is confirmed, 1 otherwise."""
    p = parser("recommended", __doc__)
    p.add_argument("--task", choices=("digits", "cifar10", "all"), default="all")
    options = p.parse_args(argv)
    os.environ["SAFEXPLAIN_NOISE_KEY"] = noise_key(0).hex()  # for clips without noise, which draw for zeros only
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(1)
    chosen: list[tuple[Task, dict[str, str]]] = []
    if options.task != "digits":
        chosen.append(cifar10(options.quick, options.data))
    if options.task != "cifar10":
        chosen.insert(0, (digits(options.quick), {"file": "bundled with scikit-learn"}))
    parts = Parts(options.cache / "recommended", __package__)
    out = destination(options)
    head = {"suite": "recommended", "quick": options.quick, "hardening": Hardening.recommended().to_dict()}
    results: dict[str, Any] = {}
    for task, source in chosen:
        start = time.perf_counter()
        found = run_task(task, parts, options.cache, options.quick)
        done = {**found, "data": source, "run": provenance(time.perf_counter() - start)}
        results = earlier(out, head) | {task.name: done}
        write_json(out, head | {"summary": conclude(results), "results": results})
    summary = conclude(results)
    rows = [(name, *met.values()) for name, met in summary["criteria_met_in_selection"].items()]
    print("\n" + table((f"criteria met in the selection ({', '.join(results)})", "a", "b", "c"), rows))
    print(f"recommended configuration confirmed: {summary['confirmed']}; written to {out}")
    return 0 if summary["confirmed"] or options.quick else 1


def earlier(out: Path, head: dict[str, Any]) -> dict[str, Any]:
    """Results of tasks in an earlier file about the same recommendation, which this run adds to."""
    try:
        found = json.loads(out.read_text())
    except (OSError, ValueError):
        return {}
    same = all(found.get(k) == v for k, v in head.items())
    return dict(found["results"]) if same else {}
