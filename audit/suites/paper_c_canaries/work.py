"""How long a suite's trainings will take: the work, times a rate that is measured on a few steps just before.

Without a GPU the rate is this processor's, and a GPU's time follows from it by how fast both move memory, which is what
steps of small models spend their time with. No GPU has confirmed that ratio.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import torch

from safexplain.audit.canaries.batched.blocks import blocks_of
from safexplain.audit.canaries.batched.train import train_runs
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.setting import Setting

from ...shared.run import processor
from .tasks import Task, key_of

WARM, TIMED = 2, 6
"""Steps before the clock starts, and under it."""
GPU_BYTES = 3e12
"""That a current data-centre GPU moves in a second."""
NUMBERS = 2**24
"""In each of the arrays that are added to see how much this processor moves."""


def seconds_of_a_step(setting: Setting, runs: int) -> float:
    """Of one block of runs, the largest that is trained at once, with a gradient canary; measured."""
    block = min(len(blocks_of(runs, setting.network.parameters, setting.x.device)[0]), runs)
    seconds = 0.0
    for steps in (WARM, TIMED):
        generator = torch.Generator(setting.x.device).manual_seed(0)
        start = time.perf_counter()
        train_runs(
            setting.network, setting.x, setting.y, GradientCanary(0, 0), replace(setting.recipe, steps=steps),
            noise_multiplier=setting.mechanism.noise_multiplier, runs=block, every=steps, generator=generator,
        )  # fmt: skip
        seconds = (time.perf_counter() - start) / steps
    return seconds


def estimated(tasks: Iterable[Task], device: str) -> tuple[float, str]:
    """Seconds that all trainings of some tasks will take on the device, and a sentence that says so.

    Trainings that two tasks share are counted once. What crafting canaries and computing bounds take comes on top.
    """
    seconds, runs_in_all, counted = 0.0, 0, set[tuple[str, str]]()
    for task in tasks:
        for given in task.settings.values():
            setting = given.to(device)
            key = key_of(setting, task.every, task.runs)
            cells = [scenario for scenario in task.scenarios if (key, scenario) not in counted]
            if not cells:
                continue
            counted.update((key, scenario) for scenario in cells)
            blocks = len(blocks_of(task.runs, setting.network.parameters, setting.x.device))
            steps = setting.recipe.steps * blocks * task.repeats * len(cells)
            seconds += steps * seconds_of_a_step(setting, task.runs)
            runs_in_all += task.runs * task.repeats * len(cells)
    if device.startswith("cuda"):
        where = f"{spoken(seconds)} of {torch.cuda.get_device_name()}"
    else:
        gpu = seconds * bytes_a_second() / GPU_BYTES
        where = (
            f"{spoken(gpu)} of a GPU that moves {GPU_BYTES / 1e12:g} TB a second (--device cuda), which is extrapolated"
            f" from {spoken(seconds)} of one core of this processor ({processor()})"
        )
    return seconds, (
        f"estimated time: {where}, for {runs_in_all:,} trainings. That is an estimate, from {TIMED} steps of each kind"
        " of training that were timed just now; crafting canaries and computing bounds come on top"
    )


def bytes_a_second() -> float:
    """That one core reads and writes where it adds long arrays."""
    one, two = torch.zeros(NUMBERS), torch.ones(NUMBERS)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        one.add_(two)
        best = min(best, time.perf_counter() - start)
    return 3 * one.element_size() * NUMBERS / best


def spoken(seconds: float) -> str:
    """In the unit that a reader would choose."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
