"""Cheaper attacks of the literature beside the likelihood ratio: RMIA, quantile regression, loss traces, one run.

All read the loss (or margin) of the plain query, on the same targets and examples:

- RMIA (Zarifzadeh et al., arXiv 2312.03262) with 8 references, with 2, and offline with 1, which scores the half of
  the examples that this reference was not trained on;
- quantile regression (Bertran et al., arXiv 2307.03694): the margin less the .9 quantile of non-members' margins given
  the input, by gradient boosting on two thirds of the examples for the last third; the attacker knows these
  non-members. Its paper takes the quantile of the false-positive rate; .99 of 400 non-members would rest on four;
- loss traces (Pollock et al., arXiv 2411.05743): examples are ranked by the interquartile range, over epochs, of their
  loss in the training that contains them, here of two references, and the first fifth alone is scored. Beside it,
  fifths by what eight references tell anyway;
- one run (Steinke et al., arXiv 2305.08846): the bound on epsilon from the guesses that are surest (a fifth of them,
  fixed before), of the target's own examples, and of mislabelled canaries in a training of our own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits
from torch.nn import functional as F

from safexplain.audit import Population, Recipe, Shadows, Signals, train_shadows
from safexplain.audit.asked import predict
from safexplain.audit.attacks import RMIA, Attack, LabelLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.verdict.stats import one_run_lower_bound, roc

from ...shared.run import Progress
from .tasks import DRAWS, Size, Task, accuracy, collected, trained

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

FPRS = (0.01, 0.05)
FOLDS = 3
SHARE = 0.2
"""Of the examples that a stratum has, and of the coins that are guessed."""

CANARY_RUNS = 4
TABLE = "as in the table"


@dataclass(frozen=True)
class Method:
    """An attack that is compared.

    Args:
        attack: what scores; None: quantile regression.
        signal: what it reads.
        references: how many; each choice of one, or of a complementary pair, is tried, and the figures averaged.
    """

    attack: Attack | None
    signal: str = "loss"
    references: int = 0


METHODS = {
    "loss threshold": Method(Threshold()),
    "quantile regression": Method(None, "margin"),
    "RMIA, 1 reference": Method(RMIA(offline=True), references=1),
    "RMIA offline, 2 references": Method(RMIA(offline=True), references=2),
    "RMIA, 2 references": Method(RMIA(), references=2),
    "likelihood ratio, 2 references": Method(LikelihoodRatio(), references=2),
    "RMIA, 8 references": Method(RMIA(), references=8),
    "likelihood ratio, 8 references": Method(LikelihoodRatio(), references=8),
    "explanation: L1 threshold": Method(Threshold(), "l1"),
    "explanation: likelihood ratio, 2 references": Method(LikelihoodRatio(), "l1", 2),
    "explanation: likelihood ratio, 8 references": Method(LikelihoodRatio(), "l1", 8),
    "label: likelihood ratio, 2 references": Method(LabelLikelihoodRatio(), "label", 2),
    "label: likelihood ratio, 8 references": Method(LabelLikelihoodRatio(), "label", 8),
}
LEAKS = {
    "loss": "likelihood ratio, 8 references",
    "explanation": "explanation: likelihood ratio, 8 references",
    "label": "label: likelihood ratio, 8 references",
}
"""What a screen should rank models by: the AUC of a whole audit's attack."""


def figures_of(scores: Array, member: Bools) -> list[float]:
    """TPR at 1 % and at 5 %, and AUC; the curve is interpolated, so that ties do not pass for a loss."""
    curve = roc(scores, member)
    return [*np.interp(FPRS, curve.fpr, curve.tpr), curve.auc]


def written(values: Array) -> list[float]:
    """Means over targets (the first axis), then their standard errors."""
    return [*values.mean(0).tolist(), *(values.std(0, ddof=1) / np.sqrt(len(values))).tolist()]


def inputs_of(pool: Population) -> Array:
    """(n, k): what quantiles are regressed on, the input (its 50 first components where it is wide) and the label."""
    x = pool.x.flatten(1).numpy().astype(np.float64)
    x = PCA(50, random_state=0).fit_transform(x) if x.shape[1] > 64 else x
    return np.concatenate([x, np.eye(pool.classes)[pool.y.numpy()]], axis=1)


def above_quantile(inputs: Array, values: Array, member: Bools, seed: int = 0, quantile: float = 0.9) -> Array:
    """(n,): how far each value lies above the quantile of non-members like it, which other examples' values tell."""
    fold = np.random.default_rng(seed).permutation(len(values)) % FOLDS
    scores = np.empty(len(values))
    for k in range(FOLDS):
        known = (fold != k) & ~member
        fitted = HistGradientBoostingRegressor(
            loss="quantile", quantile=quantile, max_iter=50, max_leaf_nodes=8, early_stopping=False
        ).fit(inputs[known], values[known])
        scores[fold == k] = values[fold == k] - fitted.predict(inputs[fold == k])
    return scores


def chosen(size: Size, number: int) -> Iterator[NDArray[np.int64]]:
    """Indices of the references of each choice of so many: one, a pair, or all."""
    every = np.arange(size.targets, size.targets + size.references)
    yield from every.reshape(-1, number) if 0 < number <= 2 else [every[:number]]


def figures_by(size: Size, method: Method, signals: Signals, inputs: Array) -> Array:
    """(targets, 3) figures of one method, means over the choices of references."""
    values, member = signals.values[method.signal].astype(np.float64), signals.membership
    found = np.empty((size.targets, 3))
    for target in range(size.targets):
        if method.attack is None:
            found[target] = figures_of(above_quantile(inputs, values[target], member[target]), member[target])
            continue
        each = []
        for among in chosen(size, method.references):
            out = ~member[among[0]] if len(among) == 1 else np.ones(len(signals), dtype=bool)
            told = method.attack(values[target, out], values[among][:, out], member[among][:, out])
            each.append(figures_of(told, member[target, out]))
        found[target] = np.mean(each, axis=0)
    return found


def recipe_figures(size: Size, signals: Signals, inputs: Array) -> dict[str, Any]:
    """Method -> figures, AUC of each target, and seconds for one target."""
    out = {}
    for name, method in METHODS.items():
        if np.ptp(signals.values[method.signal]) > 0:
            start = time.process_time()
            found = figures_by(size, method, signals, inputs)
            choices = size.targets * len(list(chosen(size, method.references)))
            seconds = (time.process_time() - start) / choices
            out[name] = {"figures": written(found), "auc_by_target": found[:, 2].tolist(), "seconds": seconds}
    return out


def traced(task: Task, member: Bools, seed: int) -> Array:
    """(models, epochs, n) loss of every example after every epoch of trainings like the task's, by Adam.

    Args:
        task: of a network.
        member: (models, n) of these trainings.
        seed: of their weights and batches.
    """
    recipe, build = task.train, task.build
    assert isinstance(recipe, Recipe)
    assert build is not None
    losses = np.empty((len(member), recipe.epochs, len(task.pool)))
    for i, rows in enumerate(member):
        torch.manual_seed(seed + i)
        model, own = build(seed + i), torch.from_numpy(np.flatnonzero(rows))
        optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
        for epoch in range(recipe.epochs):
            for batch in own[torch.randperm(len(own))].split(recipe.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(task.pool.x[batch]), task.pool.y[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                losses[i, epoch] = F.cross_entropy(model(task.pool.x), task.pool.y, reduction="none").numpy()
    return losses


def strata(size: Size, task: Task, signals: Signals, seed: int) -> dict[str, list[float]]:
    """The likelihood ratio of the loss on all examples, and on the fifth that a ranking calls most vulnerable.

    Each ranking's list ends with the share of all members found at 1 % of whom the fifth holds none.
    """
    references = np.arange(size.targets, size.targets + size.references)
    member, loss = signals.membership[references], signals.values["loss"][references].astype(np.float64)
    log = np.log(np.maximum(loss, 1e-12))
    inside, outside = ((log * s).sum(0) / s.sum(0) for s in (member, ~member))
    spread = np.sqrt(np.where(member, log - inside, log - outside).var(0))
    vulnerable = {
        "gap over spread, 8 references": (outside - inside) / (spread + np.median(spread)),
        "loss without the example, 8 references": (loss * ~member).sum(0) / (~member).sum(0),
    }
    if isinstance(task.train, Recipe):
        pair = member[:2]
        low, high = np.quantile(traced(task, pair, 100 * (seed + 1)), (0.25, 0.75), axis=1)
        vulnerable["loss traces of 2 references"] = np.where(pair, high - low, 0.0).sum(0)
    found: dict[str, list[Any]] = {"all examples": [], **{name: [] for name in vulnerable}}
    for target in range(size.targets):
        own, values = signals.membership[target], signals.values["loss"].astype(np.float64)
        scores = LikelihoodRatio()(values[target], values[references], member)
        found["all examples"].append([*figures_of(scores, own), 0.0])
        caught = own & (scores > np.quantile(scores[~own], 0.99))
        for name, rank in vulnerable.items():
            fifth = rank >= np.quantile(rank, 1 - SHARE)
            missed = float((caught & ~fifth).sum() / max(caught.sum(), 1))
            found[name].append([*figures_of(scores[fifth], own[fifth]), missed])
    return {name: written(np.array(each)) for name, each in found.items()}


def epsilon_of(scores: Array, member: Bools) -> float:
    """Lower bound on epsilon (add or remove one, 95 %) from the coins that are guessed surest, as many each way."""
    each = int(SHARE * len(scores) / 2)
    order = np.argsort(scores, kind="stable")
    correct = int(member[order[-each:]].sum() + (~member[order[:each]]).sum())
    return one_run_lower_bound(correct, 2 * each, len(scores), 1e-5, "steinke")


def one_run(size: Size, task: Task, signals: Signals, seed: int) -> dict[str, list[float]]:
    """What one run shows: figures and the bound on epsilon, of the targets' own examples, and of canaries.

    A canary is an example of the pool with a wrong label; half of the pool are canaries, of which coin flips put half
    into training, and the other half of the pool is always trained on.
    """
    references = np.arange(size.targets, size.targets + size.references)
    values, member = signals.values["loss"].astype(np.float64), signals.membership
    found: dict[str, list[Any]] = {"own examples, loss threshold": [], "own examples, 8 references": [], "canaries": []}
    for target in range(size.targets):
        by_ratio = LikelihoodRatio()(values[target], values[references], member[references])
        for name, scores in zip(found, (-values[target], by_ratio), strict=False):
            found[name].append([*figures_of(scores, member[target]), epsilon_of(scores, member[target])])
    rng, n, classes = np.random.default_rng(seed), len(task.pool), task.pool.classes
    canary = rng.permutation(n) < n // 2
    labels = task.pool.y.numpy().copy()
    labels[canary] = (labels[canary] + rng.integers(1, classes, canary.sum())) % classes
    pool = Population(task.pool.x, torch.from_numpy(labels))
    flips = (rng.random((CANARY_RUNS, n)) < 0.5) | ~canary
    models = train_shadows(pool, task.train, build=task.build, models=CANARY_RUNS, membership=flips, seed=seed)
    told = predict(models, pool, patience=(1,)).values["loss"].astype(np.float64)
    for scores, flip in zip(-told[:, canary], flips[:, canary], strict=True):
        found["canaries"].append([*figures_of(scores, flip), epsilon_of(scores, flip)])
    return {name: written(np.array(each)) for name, each in found.items()}


def measure(
    size: Size, task: Task, models: Shadows, native: Signals, seconds: float, draw: int, progress: Progress
) -> dict[str, Any]:
    """All of this page for one task and draw.

    Args:
        size: of the run.
        task: of this draw.
        models: of the table.
        native: their signals, the explanation as it is.
        seconds: to train one of them.
        draw: number of the draw.
        progress: told of what is asked.
    """
    with threadpool_limits(1):
        inputs = inputs_of(task.pool)
        recipes = {TABLE: _recipe(size, task, models, native, inputs) | {"seconds": seconds}}
        for name, train in task.weaker.items():
            weak, took = trained(size, task, train, draw)
            signals = collected(size, task, weak, "native", progress, patience=(1,))
            recipes[name] = _recipe(size, task, weak, signals, inputs) | {"seconds": took}
        return {
            "recipes": recipes,
            "strata": strata(size, task, native, draw),
            "one_run": one_run(size, task, native, draw),
        }


def _recipe(size: Size, task: Task, models: Shadows, signals: Signals, inputs: Array) -> dict[str, Any]:
    right = accuracy(models, task.pool)
    return {
        "members": right["members"],
        "non_members": right["non_members"],
        "methods": recipe_figures(size, signals, inputs),
    }


def ranking(cheap: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Method -> leak -> how well it ranks models by the leak of the same recipes in the other draw.

    A screen sees one model of each recipe: both figures are worked out for each number of a target, and averaged.
    First Spearman's correlation over all models, screens of either draw; then, likewise, the share of pairs of models
    of one task that it has in the right order.
    """
    both = [(task, recipe) for task in cheap[DRAWS[0]] if task in cheap[DRAWS[1]]
            for recipe in cheap[DRAWS[0]][task]["recipes"]]  # fmt: skip

    def of(draw: str, place: tuple[str, str], method: str) -> list[float]:
        found = cheap[draw][place[0]]["recipes"][place[1]]["methods"]
        areas: list[float] = found[method]["auc_by_target"] if method in found else []
        return areas

    out: dict[str, Any] = {"models": len(both), "methods": {}}
    for method in METHODS:
        row: dict[str, list[float]] = {}
        for leak, whole in LEAKS.items():
            correlations, ordered = [], []
            for seen, other in (DRAWS, DRAWS[::-1]):
                kept = [p for p in both if of(seen, p, method) and of(other, p, whole)]
                screens = np.array([of(seen, p, method) for p in kept])
                truth = np.array([np.mean(of(other, p, whole)) for p in kept])
                pairs = [(i, j) for i, p in enumerate(kept) for j, q in enumerate(kept)
                         if p[0] == q[0] and truth[i] < truth[j]]  # fmt: skip
                correlations.append(float(np.mean([spearmanr(s, truth).statistic for s in screens.T])))
                ordered.append(float(np.mean([screens[i] < screens[j] for i, j in pairs])))
            row[leak] = [*correlations, *ordered]
        out["methods"][method] = row
    return out
