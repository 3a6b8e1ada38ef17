"""Rates of this machine: the slope between little work and more of it, which leaves out what both have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

now = time.perf_counter
"""What is measured with; a benchmark on a busy machine may look at the time of the processor instead."""

GROWTH = 8.0
"""The next amount is at most this many times the last one."""


@dataclass(eq=False)
class Clock:
    """Seconds of calls on a device, its queue emptied before and after; `budget` is seconds for all measuring."""

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
    """Seconds a unit of `work(units)`, from two amounts of at most `most` units, on which about `seconds` are spent."""
    amount, before = max(1, min(start, most)), (0, 0.0)
    clock(partial(work, amount))  # prepares what later calls share, which may take far longer than they do
    taken = clock(partial(work, amount))
    while amount < most and taken < seconds / 3:
        more = min(most, max(amount + 1, int(amount * min(GROWTH, seconds / 1.5 / max(taken, 1e-6)))))
        before, amount = (amount, taken), more
        taken = clock(partial(work, amount))
    few, short = before
    plain = taken / amount
    return min(max((taken - short) / (amount - few), plain / 3), plain)
