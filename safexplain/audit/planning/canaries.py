"""The plan of an audit by canaries: its cost, by a few steps or one call, and the largest epsilon it could refute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from safexplain.audit.canaries.batched import blocks_of
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.probe import CanaryProbe, runs_within, stages_of
from safexplain.audit.canaries.run import Setting, Threshold, scores_of
from safexplain.audit.planning.plan import Plan, Stage, resident
from safexplain.verdict.canaries.result import CanaryResult, Claim, Errors, ScenarioName
from safexplain.verdict.stats.lower_bounds import CHOOSING, BoundMethod

WARM, TIMED = 1, 6  # steps of the two timed runs, whose difference leaves out fixed costs
GRADIENT_TRAININGS = 3  # trainings that craft a gradient canary; the others need one


def plan_canaries(
    setting: Setting,
    scenarios: Sequence[ScenarioName],
    *,
    runs: int = 1000,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
) -> Plan:
    """What `run_canaries` will cost for each scenario, and as `best_certifiable` the largest lower bound on epsilon
    that it proves if runs on D and D' are told apart."""
    began, placed = time.perf_counter(), setting.to(device)
    block = len(blocks_of(runs, setting.network.parameters, placed.x.device)[0])
    each, alone = _seconds(placed, min(runs, block * torch.get_num_threads())), 2 * _seconds(placed, 2)
    stages = []
    for name in (name for name in scenarios if name != "worst-case"):
        crafting = (GRADIENT_TRAININGS if name == "gradient" else 1) * alone
        stages.append(Stage(f"{name}: crafting", crafting, 1, "canary"))
        stages.append(Stage(f"{name}: training", runs * each, runs, "runs", f"{setting.recipe.steps:,} steps each"))
    centred = set(scenarios) == {"worst-case"} or ("gradient" in scenarios and setting.recipe.optimizer == "sgd")
    fixed = centred if threshold == "auto" else threshold != "split"
    return _plan(stages, _best(setting.claim, scenarios[0], runs, method, fixed, confidence), began)


def plan_probes(probes: Sequence[CanaryProbe], minutes: float | None = None) -> Plan:
    """The same for one training function, which is called twice, and several scenarios: in so many minutes, or with the
    runs that each sets."""
    began, first = time.perf_counter(), probes[0]
    one = first.seconds_each
    if minutes is not None:
        runs = runs_within(first, minutes)
        last = stages_of(len(probes), runs)[-1][1]
        what = f"{len(probes)} scenarios, up to {last:,} of one"
        return _plan(
            [Stage("canaries", runs * one / first.workers, runs, "runs", what)],
            _best_of(first, last, len(probes)),
            began,
        )
    stages = []
    for probe in probes:
        name, targets = probe.scenario, probe.targets
        if name != "outlier":
            crafting = one * targets if name == "gradient" else one
            stages.append(Stage(f"{name}: crafting", crafting, targets, "canary", "by one whole training"))
        runs = targets * probe.runs
        stages.append(Stage(f"{name}: training", one * runs / probe.workers, runs, "runs", "by one whole training"))
    return _plan(stages, _best_of(first, first.runs, first.targets), began)


def _best_of(probe: CanaryProbe, runs: int, shares: int) -> CanaryResult:
    fixed, confidence = not isinstance(probe.threshold, str), 1 - (1 - probe.confidence) / shares
    return _best(probe.claim, probe.scenario, runs, probe.method, fixed, confidence)


def _seconds(setting: Setting, runs: int) -> float:
    """Seconds per run, if so many are trained together."""
    taken = {}
    for steps in (WARM, TIMED):
        short = replace(setting, recipe=replace(setting.recipe, steps=steps), claim=setting.claim.after(steps))
        start = time.perf_counter()
        scores_of(short, GradientCanary(0, 0), runs, seed=0, places=[setting.x.device])
        taken[steps] = time.perf_counter() - start
    plain, slope = taken[TIMED] / TIMED, (taken[TIMED] - taken[WARM]) / (TIMED - WARM)
    return min(max(slope, plain / 3), plain) * setting.recipe.steps / runs


def _best(
    claim: Claim, name: ScenarioName, runs: int, method: BoundMethod, fixed: bool, confidence: float
) -> CanaryResult:
    """The result if runs are told apart without error, at a threshold that is fixed or chosen on some of them."""
    d, d_prime = (n if fixed else n - max(1, round(CHOOSING * n)) for n in (runs - runs // 2, runs // 2))
    steps = 1 if claim.mechanism is None else claim.mechanism.steps
    return CanaryResult(name, claim, method, confidence, (Errors(steps, 0.0, 0, d_prime, 0, d),), runs, 0.0)


def _plan(stages: Sequence[Stage], best: CanaryResult, began: float) -> Plan:
    limit, at = best.claim.substitute or 0.0, best.errors[-1]
    shortfall = (
        f"even without errors, so many runs prove at most epsilon {best.ceiling:.2f}, less than the claim of"
        f" {limit:.2f}: only a claim that is broken by far can be refuted; give more --runs"
    )
    return Plan(
        tuple(stages),
        memory_bytes=resident(),
        disk_bytes=1 << 20,
        best_certifiable=best.ceiling,
        limit=limit,
        claim="epsilon",
        members=at.positives,
        non_members=at.negatives,
        notes=(*((shortfall,) if best.ceiling < limit else ()), "With --resume, finished runs are counted again."),
        took=time.perf_counter() - began,
    )
