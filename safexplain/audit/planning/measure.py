"""Rates of this machine, measured with the functions that an audit calls: training, asking, explaining.

A rate is a slope: the same is done with little and with more, and what both have in common (imports, caches that fill,
arrays that are prepared) is left out. How much "more" is follows from how long the little took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain.audit.collect import collect_signals
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither, Explain, Labels, predict
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.compiled import forget
from safexplain.audit.references.shadows import Build, Shadows, train_shadows
from safexplain.audit.references.training import groups_by_steps, is_batchable
from safexplain.audit.signals import Signals

now = time.perf_counter
"""What is measured with; a benchmark on a busy machine may look at the time of the processor instead."""

GROWTH = 8.0
"""The next amount is at most this many times the last one."""

WARMING = 8
"""Examples of the training that comes before all that are timed: the first one imports much."""

LONG = 1000
"""Epochs of a compiled training that is watched, and ended long before that."""

FEWEST_TO_FIT = 64
"""Examples on which an estimator is fitted first."""

STEEPEST = 3.0
"""Fits that see more examples take at most this power of them longer."""


@dataclass(eq=False)
class Clock:
    """Seconds of calls, the device's queue emptied before and after.

    Args:
        device: of the models.
        budget: seconds for everything that is measured.
    """

    device: torch.device
    budget: float
    began: float = field(default_factory=time.perf_counter)

    def __call__(self, call: Callable[[], Any]) -> float:
        """Seconds of one call."""
        self._wait()
        start = now()
        call()
        self._wait()
        return now() - start

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began

    def share(self, of: float) -> float:
        """Seconds of a share of the budget, and few of them once it is used up."""
        return of * self.budget if self.spent < self.budget else 0.1 * of * self.budget

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def rate(clock: Clock, work: Callable[[int], Any], most: int, seconds: float, *, start: int = 1) -> float:
    """Seconds a unit of work: the slope between two amounts, on which about `seconds` are spent.

    Args:
        clock: that measures.
        work: does so many units, from 1 to `most`.
        most: units that can be done.
        seconds: to be spent, about; a single unit may take longer.
        start: units to begin with.
    """
    amount, before = max(1, min(start, most)), (0, 0.0)
    first = clock(partial(work, amount))  # and what the first call prepares
    if first > seconds and clock.spent + first > clock.budget / 2:
        return first / amount
    taken = clock(partial(work, amount))
    while amount < most and taken < seconds / 3:
        more = min(most, max(amount + 1, int(amount * min(GROWTH, seconds / 1.5 / max(taken, 1e-6)))))
        before, amount = (amount, taken), more
        taken = clock(partial(work, amount))
    few, short = before
    plain = taken / amount
    return min(max((taken - short) / (amount - few), plain / 3), plain)


@dataclass(frozen=True, eq=False)
class Training:
    """What it takes to train reference models.

    Args:
        seconds: for all that are missing.
        models: that are missing.
        steps: of the optimizer, of all of them together; 0: there are none (an estimator, a function).
        sample: a model that was trained a little; None: nothing had to be trained.
        says: how it was measured.
    """

    seconds: float
    models: int
    steps: int
    sample: nn.Module | None
    says: str


def training(
    clock: Clock,
    population: Population,
    how: Recipe | Train | Any,
    members: NDArray[np.bool_],
    *,
    build: Build | None,
    seed: int,
    seconds: float,
) -> Training:
    """Time the training of reference models by training a few steps; of an estimator or a function, by small fits.

    Args:
        clock: that measures.
        population: the pool.
        how: as `train_shadows` takes it.
        members: (models, n) bool, of the models that are to be trained.
        build: makes an untrained model.
        seed: of the audit.
        seconds: to be spent, about.
    """
    if not len(members):
        return Training(0.0, 0, 0, None, "all are finished")
    order = _both_classes_first(population, np.random.default_rng([seed, 0x91A]))

    def trained(rows: int, models: int, recipe: Any) -> Shadows:
        at = torch.from_numpy(order[:rows])
        few = Population(population.x[at], population.y[at])
        everybody = np.ones((models, rows), dtype=bool)
        return train_shadows(few, recipe, build=build, membership=everybody, seed=seed, device=clock.device)

    counts = members.sum(1)
    if not isinstance(how, Recipe):
        return _fits(clock, lambda rows: trained(rows, 1, how).models[0], counts, seconds)
    recipe, sample = how, list[nn.Module]()
    if recipe.dp is not None:
        return _private(clock, lambda recipe, models: trained(int(counts[0]), models, recipe).models[0], recipe, counts,
                        seconds)  # fmt: skip
    trained(max(2, min(recipe.batch_size, WARMING)), 1, replace(recipe, epochs=1, compile=False))

    def steps(amount: int, models: int) -> None:
        """So many steps on full batches, epoch after epoch of as many of the members as they need."""
        rows = min(int(counts[0]), amount * recipe.batch_size)
        epochs = max(1, round(amount / recipe.steps_per_epoch(rows)))
        sample[:] = trained(rows, models, replace(recipe, epochs=epochs)).models[:1]

    by_model = np.array([recipe.steps_per_epoch(int(c)) * recipe.epochs for c in counts])
    most = int(by_model.max())
    if build is not None and is_batchable(build(seed), recipe):
        groups = groups_by_steps(recipe, dict(enumerate(map(int, counts))))
        sizes = np.array([len(group) for group in groups])
        big = int(sizes.max())
        of_one = rate(clock, lambda s: steps(s, 1), most, seconds / 2 if big > 1 else seconds)
        of_big = rate(clock, lambda s: steps(s, big), most, seconds / 2) if big > 1 else of_one
        each = of_one + (max(of_big, of_one) - of_one) * (sizes - 1) / max(big - 1, 1)
        total = float(sum(e * by_model[g[0]] for e, g in zip(each, groups, strict=True)))
        says = f"in {len(groups)} groups"
    elif build is not None and recipe.compile:
        at = torch.from_numpy(order[: 8 * recipe.batch_size])
        few = Population(population.x[at], population.y[at])
        before, of_one = _compiled(few, recipe, build, seed, clock, seconds)
        sample.append(build(seed).to(clock.device).eval())
        total, says = before + of_one * float(by_model.sum()), "one after the other, compiled once"
    else:
        of_one = rate(clock, lambda s: steps(s, 1), most, seconds)
        total, says = of_one * float(by_model.sum()), "one after the other"
    return Training(total, len(members), int(by_model.sum()), sample[0], f"{says}, {int(by_model.mean())} steps each")


def _private(
    clock: Clock,
    train: Callable[[Recipe, int], nn.Module],
    recipe: Recipe,
    counts: NDArray[np.int64],
    seconds: float,
) -> Training:
    """Trainings with differential privacy, by a few steps of one, and of as many heads as train together."""
    assert recipe.dp is not None
    dp, sample = recipe.dp, list[nn.Module]()
    size = recipe.batch_size / float(counts.mean()) if dp.sample_rate is None else dp.sample_rate
    each = dp.steps or max(1, round(recipe.epochs / size))

    def steps(amount: int, models: int) -> None:
        sample[:] = [train(replace(recipe, dp=replace(dp, steps=amount)), models)]

    steps(1, 1)  # what is imported and calibrated once is no part of each training
    first = clock(partial(steps, 1, 1))
    many = len(counts) if dp.trainable == "head" else 1
    of_one = rate(clock, lambda s: steps(s, 1), each, seconds / 2 if many > 1 else seconds)
    if many > 1:
        of_many = rate(clock, lambda s: steps(s, many), each, seconds / 2)
        total, says = first + of_many * each, "together, with differential privacy"
    else:
        total, says = (first + of_one * each) * len(counts), "one after the other, with differential privacy"
    return Training(total, len(counts), each * len(counts), sample[0], f"{says}, {each} steps each")


class _Enough(Exception):
    """A training has been watched for long enough."""


def _compiled(
    few: Population, recipe: Recipe, build: Build, seed: int, clock: Clock, seconds: float
) -> tuple[float, float]:
    """Seconds until the first steps are compiled and done, and of each step after that.

    Every training compiles anew. So one is watched by its progress, until it has gone on for `seconds` after the first
    steps.
    """
    steps = recipe.steps_per_epoch(len(few)) * LONG
    began, seen = now(), list[tuple[float, float]]()

    def tick(stage: str, done: float, total: float, note: str = "") -> None:
        clock._wait()
        seen.append((now(), done / total * steps))
        if seen[-1][0] - seen[0][0] > seconds:
            raise _Enough

    everybody = np.ones((1, len(few)), dtype=bool)
    with suppress(_Enough):
        train_shadows(few, replace(recipe, epochs=LONG), build=build, membership=everybody, seed=seed,
                      device=clock.device, progress=tick)  # fmt: skip
    forget()
    (first, some), (last, all_) = seen[0], seen[-1]
    return first - began, (last - first) / max(all_ - some, 1.0)


def _fits(clock: Clock, fit: Callable[[int], nn.Module], counts: NDArray[np.int64], seconds: float) -> Training:
    """Whole fits of growing samples, up to one of all members if that is short; the rest by their power."""
    full = int(counts.mean())
    sample: list[nn.Module] = []
    seen: list[tuple[int, float]] = []
    rows = min(full, FEWEST_TO_FIT)

    def fitted(rows: int) -> None:
        sample.append(fit(rows))

    fit(rows)
    while True:
        seen.append((rows, clock(partial(fitted, rows))))
        expected = seen[-1][1] * (full / rows)
        if rows == full or seen[-1][1] > seconds / 3:
            break
        rows = full if expected < seconds else min(full, 2 * rows)
    (r1, t1) = seen[-1]
    power = 1.0
    if r1 < full and len(seen) > 1:
        (r0, t0) = seen[-2]
        power = min(max(np.log(t1 / max(t0, 1e-9)) / np.log(r1 / r0), 0.0), STEEPEST)
    one = t1 * (full / r1) ** power
    says = "one whole fit" if r1 == full else f"fits of up to {r1:,} of {full:,} examples"
    return Training(one * len(counts), len(counts), 0, sample[-1], says)


def _both_classes_first(population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
    """The examples in random order, the first of each class before all others."""
    order = rng.permutation(len(population))
    _, first = np.unique(population.y.cpu().numpy()[order], return_index=True)
    rest = np.ones(len(order), dtype=bool)
    rest[first] = False
    return np.concatenate([order[first], order[rest]])


@dataclass(frozen=True, eq=False)
class Asker:
    """Asks and explains a few examples with the clock running.

    Args:
        clock: that measures.
        population: the pool.
        batch_size: examples in one call.
        labels: what the population's labels are.
        dither: how queries differ.
    """

    clock: Clock
    population: Population
    batch_size: int
    labels: Labels
    dither: Dither = field(default_factory=Dither)

    def some(self, number: int) -> Population:
        """So many examples, spread over the population."""
        at = torch.linspace(0, len(self.population) - 1, min(number, len(self.population))).long()
        y = self.population.y[at].clone()
        if len(torch.unique(y)) < 2:  # which no population has, and which is of no account for the time
            y[0] = int(self.population.y[self.population.y != y[0]][0])
        return Population(self.population.x[at], y)

    def forward(self, models: Sequence[nn.Module], seconds: float) -> tuple[float, float]:
        """Seconds of a query that is drawn, and of one prediction for it.

        Args:
            models: the target, and one like the reference models.
            seconds: to be spent, about.
        """
        n = min(self.batch_size, len(self.population))

        def of(number: int) -> Callable[[int], Any]:
            asked = Shadows(tuple(models[min(i, len(models) - 1)] for i in range(number)), np.ones((number, 1), bool))

            def work(queries: int) -> None:
                few = self.some(min(n, queries))
                level = max(2, queries // len(few))
                shadows = Shadows(asked.models, np.ones((number, len(few)), bool))
                patience = (1, level)
                predict(shadows, few, patience=patience, dither=self.dither, labels=self.labels,
                        batch_size=self.batch_size)  # fmt: skip

            return work

        most = n * 200
        one, three = (rate(self.clock, of(k), most, seconds / 2, start=min(n, 8)) for k in (1, 3))
        each = max((three - one) / 2, 0.05 * one)
        return max(one - each, 0.0), each

    def explanation(self, model: nn.Module, explain: Explain, seconds: float, classes: int = 0) -> float:
        """Seconds of one explanation, summaries and average included.

        Args:
            model: that is explained.
            explain: natively, or as released.
            seconds: to be spent, about.
            classes: explained beside the predicted one.
        """
        n = min(self.batch_size, len(self.population))

        def work(amount: int) -> None:
            few = self.some(min(n, max(2, amount)))
            self.signals(model, explain, few, max(2, amount // len(few)), classes=classes, dithered=amount > n)

        return rate(self.clock, work, 32 * n, seconds, start=2)

    def signals(
        self,
        model: nn.Module,
        explain: Explain | None,
        few: Population,
        level: int,
        *,
        classes: int = 0,
        dithered: bool = True,
    ) -> Signals:
        """Of one model, about a few examples."""
        patience = (1, level - 1) if dithered and level > 2 else (1,)
        asked = Shadows((model,), np.ones((1, len(few)), bool))
        return collect_signals(
            asked, few, explain, patience=patience, dither=self.dither, labels=self.labels, batch_size=self.batch_size,
            targets=(0,), classes=tuple(range(classes)) or None,
        )  # fmt: skip
