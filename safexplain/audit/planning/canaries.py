"""What an audit by canaries will cost, by a few steps of some runs or one call, and what it could refute at best."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from safexplain.audit.canaries.batched.blocks import blocks_of
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.run import Threshold, poison_size, scores_of
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.planning.plan import Plan, Stage, resident
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.result import GUESSED, CanaryResult, Errors, OneRunResult
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.lower_bounds import CHOOSING
from safexplain.verdict.stats.one_run import OneRunMethod

WARM, TIMED = 1, 6
"""Steps before the clock starts, and up to which it runs."""

REFERENCES = {"gradient": 3}
"""Trainings of one model that craft a canary of a setting; 1 of the others."""

NOTE = "Runs that are finished already, of a run that is taken up, are counted again."


def plan_canaries(
    setting: Setting,
    scenarios: Sequence[ScenarioName],
    *,
    runs: int = 1000,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    records: int | None = None,
    device: torch.device | str = "cpu",
) -> Plan:
    """What `run_canaries` will cost for each scenario, and the largest lower bound on epsilon that it could show.

    `best_certifiable` is that bound where runs on D and D' are told apart without any error: a training whose epsilon
    is larger is refuted at best by so much, and a claim above it cannot be refuted by so few runs.
    """
    began, placed = time.perf_counter(), setting.to(device)
    block = len(blocks_of(runs, setting.network.parameters, placed.x.device)[0])
    each, alone = _seconds(placed, min(runs, block * torch.get_num_threads())), 2 * _seconds(placed, 2)
    stages = []
    for name in (name for name in scenarios if name != "worst-case"):
        trainings = REFERENCES.get(name, 1)
        stages.append(Stage(f"{name}: crafting", trainings * alone, 1, "canary"))
        stages.append(Stage(f"{name}: training", runs * each, runs, "runs", f"{setting.recipe.steps:,} steps each"))
    centred = set(scenarios) == {"worst-case"} or ("gradient" in scenarios and setting.recipe.optimizer == "sgd")
    fixed = centred if threshold == "auto" else threshold != "split"
    claim = setting.claim.of_group(poison_size("poison", records)) if "poison" in scenarios else setting.claim
    return _plan(stages, _best(claim, scenarios[0], runs, method, fixed, confidence), began)


def plan_once(
    setting: Setting,
    canaries: int,
    *,
    method: OneRunMethod = "f-dp",
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
) -> Plan:
    """The same for `run_once`: a single training with many canaries."""
    began, guesses = time.perf_counter(), max(1, round(GUESSED * canaries))
    best = OneRunResult(
        claim=setting.claim, method=method, confidence=confidence, canaries=canaries, guesses=guesses,
        correct=guesses, seconds=0.0,
    )  # fmt: skip
    seconds = 8 * _seconds(setting.to(device), 2)  # four trainings, three of them to find the parameters
    stage = Stage("crafting and training", seconds, 1, "run", f"{setting.recipe.steps:,} steps, four times")
    return _plan([stage], best, began)


def plan_probes(probes: Sequence[CanaryProbe]) -> Plan:
    """The same for one training function and several scenarios; it is called once, as it cannot be stopped."""
    began, first = time.perf_counter(), probes[0]
    first.train_once()
    one = time.perf_counter() - began
    stages = []
    for probe in probes:
        name, targets = probe.scenario, probe.targets
        if name != "outlier":
            crafting = {"gradient": targets, "layers": 2 * targets}.get(name, 1)
            stages.append(Stage(f"{name}: crafting", one * crafting, targets, "canary", "by one whole training"))
        runs = targets * probe.runs
        stages.append(Stage(f"{name}: training", one * runs / probe.workers, runs, "runs", "by one whole training"))
    share, fixed = 1 - (1 - first.confidence) / first.targets, not isinstance(first.threshold, str)
    return _plan(stages, _best(first.claim, first.scenario, first.runs, first.method, fixed, share), began)


def _seconds(setting: Setting, runs: int) -> float:
    """Of one whole run, if so many are trained together."""
    taken = {}
    for steps in (WARM, TIMED):
        short = replace(setting, recipe=replace(setting.recipe, steps=steps), claim=setting.claim.after(steps))
        start = time.perf_counter()
        scores_of(short, GradientCanary(0, 0), runs, seed=0, places=[setting.x.device])
        taken[steps] = time.perf_counter() - start
    return max(taken[TIMED] - taken[WARM], 0.0) / (TIMED - WARM) * setting.recipe.steps / runs


def _best(
    claim: Claim, name: ScenarioName, runs: int, method: BoundMethod, fixed: bool, confidence: float
) -> CanaryResult:
    """Of runs that are told apart without an error, at a threshold that was fixed or chosen on some of them."""
    d, d_prime = (n if fixed else n - max(1, round(CHOOSING * n)) for n in (runs - runs // 2, runs // 2))
    steps = 1 if claim.mechanism is None else claim.mechanism.steps
    return CanaryResult(name, claim, method, confidence, (Errors(steps, 0.0, 0, d_prime, 0, d),), runs, 0.0)


def _plan(stages: Sequence[Stage], best: CanaryResult | OneRunResult, began: float) -> Plan:
    limit = best.claim.substitute or 0.0
    if isinstance(best, OneRunResult):
        what, option, d, d_prime = "canaries", "one-run", best.canaries // 2, best.canaries - best.canaries // 2
    else:
        what, option, d, d_prime = "runs", "runs", best.errors[-1].positives, best.errors[-1].negatives
    more = (
        f"{what} that are all told apart show at most {best.ceiling:.2f}: the claim of {limit:.2f} cannot be reached"
        f" from below, though one that is broken by far can be refuted; give more --{option}"
    )
    return Plan(
        tuple(stages),
        memory_bytes=resident(),
        disk_bytes=1 << 20,
        best_certifiable=best.ceiling,
        limit=limit,
        claim="epsilon",
        members=d,
        non_members=d_prime,
        feasible=(more,) if best.ceiling < limit else (),
        notes=(NOTE,),
        took=time.perf_counter() - began,
    )
