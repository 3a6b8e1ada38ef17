"""Rates of this machine, measured with the functions that an audit calls.

A rate is a slope: the same is done with little and with more, and what both have in common (imports, caches that fill,
arrays that are prepared) is left out. How much "more" is follows from how long the little took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit.population import Population
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.shadows import Build, train_shadows
from safexplain.audit.references.training import groups_by_steps, is_batchable

now = time.perf_counter
"""What is measured with; a benchmark on a busy machine may look at the time of the processor instead."""

GROWTH = 8.0
"""The next amount is at most this many times the last one."""

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
        return of * self.budget if self.spent < 1.25 * self.budget else 0.1 * of * self.budget

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
    if first > 2 * seconds:
        return first / amount
    taken = clock(partial(work, amount))
    while amount < most and taken < seconds / 3:
        more = min(most, max(amount + 1, int(amount * min(GROWTH, seconds / 1.5 / max(taken, 1e-6)))))
        before, amount = (amount, taken), more
        taken = clock(partial(work, amount))
    few, short = before
    plain = taken / amount
    return min(max((taken - short) / (amount - few), plain / 3), plain)


def training_seconds(
    clock: Clock,
    population: Population,
    how: Recipe | Train | Any,
    counts: NDArray[np.int64],
    *,
    build: Build | None,
    seed: int,
    seconds: float,
) -> tuple[float, str]:
    """Seconds of the training of reference models, by a few steps of it (of an estimator or a function: by small fits),
    and how that was measured.

    Args:
        clock: that measures.
        population: the pool.
        how: as `train_shadows` takes it.
        counts: (models,) members of each model that is to be trained.
        build: makes an untrained model.
        seed: of the audit.
        seconds: to be spent, about.
    """
    rows = mixed_rows(population, seed)
    full, models = int(counts.mean()), len(counts)

    def train(number: int, together: int, recipe: Any) -> None:
        few, everybody = population.part(rows[:number]), np.ones((together, number), dtype=bool)
        train_shadows(few, recipe, build=build, membership=everybody, seed=seed, device=clock.device)

    if not isinstance(how, Recipe):
        one, says = _fit_seconds(clock, lambda number: train(number, 1, how), full, seconds)
        return one * models, says
    if (dp := how.dp) is not None:
        size = how.batch_size / full if dp.sample_rate is None else dp.sample_rate
        steps, many = dp.steps or max(1, round(how.epochs / size)), models if dp.trainable == "head" else 1
        each = rate(clock, lambda n: train(full, many, replace(how, dp=replace(dp, steps=n))), steps, seconds)
        return each * steps * models / many, f"{steps} steps each, with differential privacy"
    recipe = replace(how, compile=False)

    def steps_of(amount: int, together: int) -> None:
        """So many steps on full batches, epoch after epoch of as many rows as they need."""
        number = min(full, amount * recipe.batch_size)
        train(number, together, replace(recipe, epochs=max(1, round(amount / recipe.steps_per_epoch(number)))))

    steps = recipe.steps_per_epoch(full) * recipe.epochs
    groups = [[i] for i in range(models)]
    if build is not None and is_batchable(build(seed), recipe):
        groups = groups_by_steps(recipe, dict(enumerate(map(int, counts))))
    together = round(models / len(groups))
    each = rate(clock, lambda amount: steps_of(amount, together), steps, seconds)
    return each * steps * len(groups), f"{steps} steps each{', as if not compiled' if how.compile else ''}"


def _fit_seconds(clock: Clock, fit: Callable[[int], None], full: int, seconds: float) -> tuple[float, str]:
    """Whole fits of growing samples, up to one of all members if that is short; the rest by their power."""
    rows, seen = min(full, FEWEST_TO_FIT), list[tuple[int, float]]()
    fit(rows)
    while not seen or (seen[-1][0] < full and seen[-1][1] < seconds / 3):
        seen.append((rows, clock(partial(fit, rows))))
        rows = full if seen[-1][1] * full / rows < seconds else min(full, 2 * rows)
    (few, short), (many, long) = seen[-2:] if len(seen) > 1 else [(0, 0.0), *seen]
    power = float(np.clip(np.log(long / short) / np.log(many / few), 0, STEEPEST)) if few and short > 0 else 1.0
    return long * (full / many) ** power, f"by a fit of {many:,} of {full:,} examples"


def mixed_rows(population: Population, seed: int) -> NDArray[np.int64]:
    """The examples in random order, the first of each class before all others: any two of them are a population."""
    order = np.random.default_rng([seed, 0x91A]).permutation(len(population))
    first = np.unique(population.y.cpu().numpy()[order], return_index=True)[1]
    return np.concatenate([order[first], np.delete(order, first)])
