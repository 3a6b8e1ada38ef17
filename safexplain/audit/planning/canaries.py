"""What an audit by canaries will cost, by a few steps of a few of its runs, and what it could refute at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from safexplain._progress import Progress, silent
from safexplain.audit.canaries.canary import Canary, GradientCanary
from safexplain.audit.canaries.run import (
    Threshold,
    canary_for,
    checked_threshold,
    fixed_threshold,
    poison_size,
    run_canaries,
    run_once,
)
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.trainer.data import NeighbouringData
from safexplain.audit.canaries.trainer.data import records as records_of
from safexplain.audit.canaries.trainer.probe import check_train
from safexplain.audit.canaries.trainer.runs import Train, call, seed_of_run, seeded
from safexplain.audit.planning.measure import Clock, rate
from safexplain.audit.planning.plan import BUDGET, Plan, Stage, resident
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.result import GUESSED, OneRunResult, Scores, judge
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

SHARED_BLOCK = 128
"""Runs that are timed, at most: blocks of as many and more cost the same a run."""

DRAWN = 64
"""Runs of the worst case that are drawn to time it."""


def plan_canaries(
    setting: Setting,
    scenarios: Sequence[ScenarioName],
    *,
    runs: int = 1000,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    records: int | None = None,
    targets: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    budget: float = BUDGET,
    progress: Progress = silent,
) -> Plan:
    """What `run_canaries` will cost for each scenario, and the largest lower bound on epsilon that it could show.

    `best_certifiable` is that bound where runs on D and D' are told apart without any error: a training whose epsilon
    is larger is refuted at best by so much, and a claim above it cannot be refuted by so few runs.

    Args:
        setting: what is trained.
        scenarios: that are audited.
        runs: of each.
        method: of the bound.
        threshold: as for `run_canaries`.
        confidence: of the bounds of each scenario.
        records: that the poison replaces.
        targets: records whose canaries are trained one after another, of each scenario.
        seed: of everything random.
        device: where it trains.
        budget: seconds to be spent, about.
        progress: told what is measured.

    Raises:
        ConfigurationError, InputError: as `run_canaries`.
    """
    clock, threshold = Clock(torch.device(device), budget), checked_threshold(threshold)
    steps, part = setting.recipe.steps, 1 / max(len(scenarios), 1)
    stages: list[Stage] = []
    ceilings: dict[ScenarioName, Best] = {}

    def short(number: int) -> Setting:
        return replace(setting, recipe=replace(setting.recipe, steps=number), claim=setting.claim.after(number))

    for i, name in enumerate(scenarios):
        progress("planning", i, len(scenarios), name)
        canary: Canary | None = None
        if name == "worst-case":
            few = min(runs, DRAWN)
            drawn = clock(partial(run_canaries, setting, "worst-case", runs=few, confidence=confidence))
            stages.append(Stage("worst-case: drawing", drawn * runs / few, runs, "runs"))
        else:
            made: list[Canary] = []

            def craft(number: int, name: ScenarioName = name, made: list[Canary] = made) -> None:
                copies = poison_size(name, records if name == "poison" else None)
                made[:] = [canary_for(short(max(number, 2)).to(clock.device), name, records=copies, seed=seed)]

            each = rate(clock, craft, steps, clock.share(0.2 * part), start=2)
            canary = made[0]
            stages.append(Stage(f"{name}: crafting", each * steps * targets, targets, "canary"))
            some = min(runs, SHARED_BLOCK * max(1, torch.get_num_threads()))

            def train(number: int, name: ScenarioName = name, canary: Canary = canary, some: int = some) -> None:
                own = replace(canary, drift=None) if isinstance(canary, GradientCanary) else canary
                run_canaries(
                    short(number), name, runs=some, method=method, threshold=0.0, confidence=confidence, canary=own,
                    seed=seed, device=device,
                )  # fmt: skip

            each = rate(clock, train, steps, clock.share(0.6 * part))
            taken = each * steps * targets * runs / some
            stages.append(Stage(f"{name}: training", taken, targets * runs, "runs", f"{steps:,} steps each"))
        share = 1 - (1 - confidence) / targets
        fixed = fixed_threshold(threshold, canary)
        ceilings[name] = _told_apart(_claim(setting.claim, name, records), name, runs, method, fixed, share, seed)
    claim = _claim(setting.claim, scenarios[0] if scenarios else "gradient", records)
    return _plan(stages, ceilings, claim, setting.network.parameters * 4 * min(runs, 1024), clock)


def plan_once(
    setting: Setting,
    canaries: int,
    *,
    method: OneRunMethod = "f-dp",
    confidence: float = 0.95,
    seed: int = 0,
    device: torch.device | str = "cpu",
    budget: float = BUDGET,
) -> Plan:
    """The same for `run_once`: a single training with many canaries.

    Args:
        setting: what is trained.
        canaries: how many.
        method: of the bound.
        confidence: of the bound.
        seed: of everything random.
        device: where it trains.
        budget: seconds to be spent, about.

    Raises:
        ConfigurationError, InputError: as `run_once`.
    """
    clock, steps = Clock(torch.device(device), budget), setting.recipe.steps

    def work(number: int) -> None:
        short = replace(setting, recipe=replace(setting.recipe, steps=number), claim=setting.claim.after(number))
        run_once(short, canaries, method=method, confidence=confidence, seed=seed, device=device)

    each = rate(clock, work, steps, clock.share(0.6))
    stages = [Stage("crafting and training", each * steps, 1, "run", f"{steps:,} steps, three times")]
    guesses = max(1, round(GUESSED * canaries))
    best = OneRunResult(
        claim=setting.claim, method=method, confidence=confidence, canaries=canaries, guesses=guesses,
        correct=guesses, seconds=0.0, setting={},
    )  # fmt: skip
    counted = canaries // 2, canaries - canaries // 2
    return _plan(stages, {"gradient": (best.ceiling, counted)}, setting.claim, 0, clock, option="one-run")


def plan_probe(
    train: Train,
    data: Any,
    *,
    claim: Claim,
    scenarios: Sequence[ScenarioName],
    runs: int = 200,
    workers: int = 1,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    records: int | None = None,
    targets: int = 1,
    seed: int = 0,
) -> Plan:
    """The same for a training function of one's own, which is called once: it cannot be stopped after a step.

    Args:
        train: see `CanaryProbe`, as the rest.
        data: likewise.
        claim: likewise.
        scenarios: that are audited.
        runs: likewise.
        workers: likewise.
        method: likewise.
        threshold: likewise.
        confidence: of the bounds of each scenario.
        records: likewise.
        targets: records whose canaries are trained one after another, of each scenario.
        seed: likewise.

    Raises:
        ConfigurationError: `train` cannot be called.
    """
    check_train(train, None)
    clock, number = Clock(torch.device("cpu"), BUDGET), seed_of_run(seed, "reference", 0)
    dataset = NeighbouringData(records_of(data))
    with seeded(number):
        one = clock(lambda: call(train, dataset, number, None))
    stages: list[Stage] = []
    ceilings: dict[ScenarioName, Best] = {}
    for name in scenarios:
        if name != "outlier":
            crafting = {"gradient": 2 * targets, "layers": targets}.get(name, 1)
            stages.append(Stage(f"{name}: crafting", one * crafting, targets, "canary", "by one whole training"))
        taken = one * targets * runs / workers
        stages.append(Stage(f"{name}: training", taken, targets * runs, "runs", "by one whole training"))
        fixed = None if isinstance(threshold, str) else threshold
        share = 1 - (1 - confidence) / targets
        ceilings[name] = _told_apart(_claim(claim, name, records), name, runs, method, fixed, share, seed)
    return _plan(stages, ceilings, _claim(claim, scenarios[0] if scenarios else "gradient", records), 0, clock)


def _claim(claim: Claim, name: ScenarioName, records: int | None) -> Claim:
    """What a scenario is judged beside."""
    return claim.of_group(poison_size(name, records)) if name == "poison" else claim


Best = tuple[float, tuple[int, int]]
"""Largest bound, and the runs on D and on D' that count for it."""


def _told_apart(
    claim: Claim,
    name: ScenarioName,
    runs: int,
    method: BoundMethod,
    threshold: float | None,
    confidence: float,
    seed: int,
) -> Best:
    """The bound of runs that are told apart without an error."""
    d, d_prime = np.ones((1, runs - runs // 2)), -np.ones((1, runs // 2))
    if threshold is not None:
        d, d_prime = d + threshold, d_prime + threshold
    steps = 1 if claim.mechanism is None else claim.mechanism.steps
    found = judge(
        Scores((steps,), d, d_prime), claim, scenario=name, method=method, threshold=threshold, confidence=confidence,
        seed=seed,
    )  # fmt: skip
    return found.ceiling, (found.errors[-1].positives, found.errors[-1].negatives)


def _plan(
    stages: list[Stage],
    ceilings: dict[ScenarioName, Best],
    claim: Claim,
    extra: int,
    clock: Clock,
    option: str = "runs",
) -> Plan:
    judged = {name: best for name, best in ceilings.items() if name != "worst-case"} or ceilings
    best, (d, d_prime) = max(judged.values())
    limit = claim.substitute or 0.0
    feasible: tuple[str, ...] = ()
    what = "runs" if option == "runs" else "canaries"
    if best < limit:
        feasible = (
            f"{what} that are all told apart show at most {best:.2f}: the claim of {limit:.2f} cannot be reached from"
            f" below, though one that is broken by far can be refuted; give more --{option}",
        )
    return Plan(
        tuple(stages),
        memory_bytes=resident() + extra,
        disk_bytes=1 << 20,
        best_certifiable=best,
        limit=limit,
        claim="epsilon",
        members=d,
        non_members=d_prime,
        notes=(*feasible, "With --resume, finished runs are counted again."),
        took=clock.spent,
    )
