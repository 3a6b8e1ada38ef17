"""What patience buys: labels and explanations of many queries, read by models that all play the target in turn.

Everything is a likelihood ratio with all other models as references, joined by a logistic regression that is fitted on
three quarters of the models and scores the others (`Stacked`, which here never keeps to its first column): of labels,
how often one is kept and how often each comes; of maps, the map of the plain query and the averaged one, their signs
and ranks, and summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain import RankNorm
from safexplain.audit import Shadows
from safexplain.audit.asked import summarise
from safexplain.audit.attacks import JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.likelihood import OwnLabelRatio, likelihood_ratios
from safexplain.audit.attacks.stacked import Stacked
from safexplain.audit.attacks.suite import SUMMARY, VIEWS, log_odds
from safexplain.audit.queries import Dither, Queries
from safexplain.hardening.formats import TopKSet

from ...shared.resampling import interpolated_rates
from ..releases.formats import filled_ranks
from ..releases.tasks import NATIVE, Task

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Format = Callable[[Tensor, torch.Generator], Tensor]
"""(native rows (n, d), generator) -> what is released."""

LEVELS = (1, 32, 200)
BY_DEFAULT, FEW = 32, 4
"""Queries of a patient attacker by default, and those of them that are explained of a release without noise."""
FOLDS = 4
"""Parts of the models; of each, weights are fitted on the others."""

PLAIN, TINY = "x exp(.3 z)", "x + .003 s z"
DITHERS: dict[str, tuple[Dither, ...]] = {
    **{f"x exp({f'{a:g}'.lstrip('0')} z)": (Dither("multiplicative", a),) for a in (0.1, 0.3, 0.8, 1.5)},
    **{f"x + {f'{a:g}'.lstrip('0')} s z": (Dither("additive", a),) for a in (0.003, 0.1, 0.2, 0.3, 0.8)},
    "exp .3, .8, 1.5 in turns": tuple(Dither("multiplicative", a) for a in (0.3, 0.8, 1.5)),
    "exp .3, + .1, + .3 in turns": (Dither("multiplicative", 0.3), Dither("additive", 0.1), Dither("additive", 0.3)),
}
"""How queries differ; z is standard normal, s the standard deviation of a feature (of images: of all pixels)."""


def formats(d: int) -> dict[str, Format]:
    """What is released of native maps of d features."""
    balanced, step = RankNorm(shape=1.45, balanced_from=2), 0.89 / d**0.5

    def noisy(size: float) -> Format:
        def rows(native: Tensor, generator: torch.Generator) -> Tensor:
            ranks = filled_ranks(native, generator)
            return ranks + size / d**0.5 * torch.randn(ranks.shape, generator=generator)

        return rows

    return {
        "native": lambda native, generator: native,
        "random map": lambda native, generator: torch.randn(native.shape, generator=generator),
        "top-k set (recommended)": clipped(TopKSet(k=4, fraction=0.1)),
        "balanced ranks": clipped(balanced),
        "balanced ranks on a grid": lambda native, generator: (balanced(native.clone()) / step).round() * step,
        **{f"ranks, noise {f'{size:g}'.lstrip('0')}": noisy(size) for size in (0.3, 1.0, 3.0)},
    }


def clipped(clip: Callable[[Tensor], Tensor]) -> Format:
    """By a clip alone."""
    return lambda native, generator: clip(native.clone())


class Patient:
    """An attacker who asks all models about some examples of a task.

    Args:
        task: of `releases.tasks`.
        shadows: models over its pool, no two of which are partners.
        rows: examples that are asked about.
    """

    def __init__(self, task: Task, shadows: Shadows, rows: NDArray[np.int64]) -> None:
        self.task, self.models, self.rows = task, shadows.models, rows
        self.member = shadows.membership[:, rows]
        self.classes = int(task.pool.y.max()) + 1
        x = task.pool.x[rows].float()
        with torch.no_grad():
            self.label = np.stack([model(x).argmax(1).numpy() for model in self.models])
        n = len(rows)
        drawn = np.random.default_rng(0xB007).multinomial(n, np.full(n, 1 / n), size=200).T
        self.weights = np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.float32)

    def queries(self, dithers: tuple[Dither, ...], number: int) -> Iterator[tuple[int, Tensor]]:
        """The number of each query, from 1, and the query; each dither in its turn."""
        asked = [Queries.of(self.task.pool, dither) for dither in dithers]
        return ((q + 1, asked[q % len(asked)](self.rows, q)) for q in range(number))

    def ratios(self, attack: Any, values: Floats, view: Any = None) -> Floats:
        """(m, n) scores of every model, the others being its references."""
        everyone = np.arange(len(self.models))
        if isinstance(attack, LikelihoodRatio):
            return likelihood_ratios(attack, values, self.member, everyone, everyone.tolist(), view)
        others = [np.delete(everyone, i) for i in everyone]
        return np.stack([attack(values[i], values[o], self.member[o]) for i, o in zip(everyone, others, strict=True)])

    def of_labels(self, dithers: tuple[Dither, ...], levels: tuple[int, ...]) -> dict[int, list[Floats]]:
        """Ratios of the labels of the first queries of each level; at 1, of the plain query's alone."""
        identity, out = LikelihoodRatio("identity"), {}
        of_one = [
            self.ratios(LabelLikelihoodRatio(), self.label.astype(np.float64)),
            self.ratios(identity, (self.label[..., None] == np.arange(self.classes)).astype(np.float64)),
        ]
        counts = np.zeros((*self.label.shape, self.classes))
        for q, x in self.queries(dithers, max(levels)):
            with torch.no_grad():
                for i, model in enumerate(self.models):
                    counts[i, np.arange(len(self.rows)), model(x).argmax(1).numpy()] += 1
            if q in levels and q > 1:
                odds = log_odds(counts / q, q)
                kept = np.take_along_axis(odds, self.label[..., None], 2)
                own = np.concatenate([self.label[..., None], odds], axis=2)
                out[q] = [*of_one, self.ratios(identity, kept[..., 0]), self.ratios(OwnLabelRatio(), own),
                          self.ratios(identity, odds)]  # fmt: skip
        return {1: of_one, **out}

    def averaged(self, dithers: tuple[Dither, ...], chosen: dict[str, Format]) -> dict[str, dict[int, Floats]]:
        """(m, n, d) what is released of the plain query (level 1), and averaged over the first queries of a level."""
        shape = (*self.label.shape, self.task.features)
        draws = {name: [torch.Generator().manual_seed(i) for i in range(len(self.models))] for name in chosen}
        sums = {name: np.zeros(shape, np.float32) for name in chosen}
        out: dict[str, dict[int, Floats]] = {name: {1: np.zeros(shape, np.float32)} for name in chosen}
        plain = self.task.pool.x[self.rows].float()
        for q, x in chain([(0, plain)], self.queries(dithers, max(LEVELS))):
            for i, model in enumerate(self.models):
                native = NATIVE["InputXGradient"][1](model, x, torch.from_numpy(self.label[i]))
                for name, release in chosen.items():
                    (out[name][1] if q == 0 else sums[name])[i] += release(native, draws[name][i]).numpy()
            if q in (FEW, *LEVELS[1:]):
                for name in chosen:
                    out[name][q] = sums[name] / q
        return out

    def of_maps(self, maps: Floats) -> list[Floats]:
        """Ratios of maps."""
        found = [summarise(torch.from_numpy(one), SUMMARY) for one in maps]
        summaries = np.stack([np.stack([each[name].numpy() for name in SUMMARY], axis=-1) for each in found])
        views = [self.ratios(LikelihoodRatio(), maps, view) for view in (None, *VIEWS.values())]
        return [*views, self.ratios(JointLikelihoodRatio(), summaries)]

    def rates(self, columns: list[Floats]) -> Floats:
        """(2, 1 + resamples) AUC and TPR at 1 %, mean of all models, of what reads all columns."""
        features, fold = np.stack(columns, axis=-1), np.arange(len(self.models)) % FOLDS
        fitted = [Stacked().fit(features[fold != f], self.member[fold != f], always=True) for f in range(FOLDS)]
        found = [
            interpolated_rates(fitted[f].scores(x), member, self.weights, (0.01,))
            for f, x, member in zip(fold, features, self.member, strict=True)
        ]
        return np.mean(found, axis=0)  # type: ignore[no-any-return]

    def labels(self) -> dict[str, list[float]]:
        """AUC and TPR of labels alone, of one query and of 32 by each dither."""
        found = {"one query": summary(self.rates(self.of_labels(DITHERS[PLAIN], (1,))[1]))}
        for name, dithers in DITHERS.items():
            found[name] = summary(self.rates(self.of_labels(dithers, (BY_DEFAULT,))[BY_DEFAULT]))
        return found

    def adds(self, dither: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """What each format adds to the labels of the same queries, by level; and at 32, averaged over four only."""
        dithers, offered = DITHERS[dither], formats(self.task.features)
        labels = self.of_labels(dithers, LEVELS)
        alone = {level: self.rates(columns) for level, columns in labels.items()}
        found: dict[str, Any] = {"labels": {str(level): summary(rates) for level, rates in alone.items()}}
        for name, maps in self.averaged(dithers, {n: offered[n] for n in names or offered}).items():
            once = self.of_maps(maps[1])
            read = {level: once if level == 1 else [*once, *self.of_maps(maps[level])] for level in (FEW, *LEVELS)}
            found[name] = {
                str(level): summary(self.rates([*labels[level], *read[level]]) - alone[level]) for level in LEVELS
            }
            few = self.rates([*labels[BY_DEFAULT], *read[FEW]])
            found[name]["few"] = summary(few - alone[BY_DEFAULT])
        return found


def summary(rates: Floats) -> list[float]:
    """AUC, its standard error, TPR, its standard error."""
    return [float(x) for of in rates for x in (of[0], of[1:].std(ddof=1))]
