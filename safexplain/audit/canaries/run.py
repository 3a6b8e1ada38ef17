"""From a setting and a scenario to a verdict: craft the canary, train the runs of both worlds, count."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from safexplain.audit.canaries.canary import Canary
from safexplain.audit.canaries.craft import craft
from safexplain.audit.canaries.reference import reference
from safexplain.audit.canaries.result import CanaryResult, check_method, judge
from safexplain.audit.canaries.scenario import ScenarioName, scenario_of
from safexplain.audit.canaries.scores import Scores
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.train import train_runs
from safexplain.audit.canaries.worst_case import worst_case_scores
from safexplain.audit.shadows import Progress, silent
from safexplain.audit.stats.bound_methods import BoundMethod

__all__ = ["Threshold", "crafted", "run_canaries"]

Threshold = float | Literal["auto", "split"]
"""A number fixed beforehand; "split": chosen on half of the runs; "auto": 0 where the scores of both worlds lie on
either side of it by construction (worst-case, gradient), otherwise "split"."""


def run_canaries(
    setting: Setting,
    scenario: str = "gradient",
    *,
    runs: int = 1000,
    every: int | None = None,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    canary: Canary | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    devices: Sequence[torch.device | str] | None = None,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> CanaryResult:
    """Audit a training under substitution (arXiv 2511.21804, algorithm 1).

    Args:
        setting: what is trained, on what, and what it claims.
        scenario: name or number of `safexplain.audit.canaries.scenario.SCENARIOS`.
        runs: models in both worlds together, half in each.
        every: audit after each so many steps, too; None: the released model only.
        method: of `safexplain.audit.stats.epsilon_lower_bound`.
        threshold: above which a run is said to be of world a.
        confidence: of each bound.
        canary: one of your own; None: crafted.
        seed: of everything random.
        device: where to train.
        devices: several, which share the runs; goes before `device`.
        cache: folder for finished pieces of runs, from which a run is taken up.
        progress: told how far it is.

    Raises:
        ConfigurationError: an unknown scenario or method, or too few runs.
        InputError: data that cannot be trained on, or no auxiliary records for the natural canary.
    """
    name = scenario_of(scenario)
    check_method(method, setting.claim)
    began = time.monotonic()
    scores = _scores(setting, name, runs, every, canary, seed, devices or [device], cache, progress)
    return judge(
        scores,
        setting.claim,
        scenario=name,
        method=method,
        threshold=_number(threshold, name),
        confidence=confidence,
        seconds=time.monotonic() - began,
        seed=seed,
        setting=setting.describe(),
    )


def crafted(setting: Setting, scenario: ScenarioName, *, seed: int = 0) -> Canary:
    """The canary of a scenario that needs one, on the setting's device."""
    generator = generator_of(seed, "craft", setting.x.device)
    found = reference(
        setting.network,
        setting.x,
        setting.y,
        setting.recipe,
        generator=generator,
        initial=setting.initial,
        movement=scenario == "gradient",
    )
    return craft(
        scenario,
        setting.network,
        setting.x,
        setting.y,
        found,
        auxiliary=setting.auxiliary,
        classes=setting.recipe.classes,
        generator=generator,
    )


def _scores(
    setting: Setting,
    scenario: ScenarioName,
    runs: int,
    every: int | None,
    canary: Canary | None,
    seed: int,
    devices: Sequence[torch.device | str],
    cache: str | Path | None,
    progress: Progress,
) -> Scores:
    if scenario == "worst-case":
        rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        return worst_case_scores(setting.mechanism, runs, every=every, rng=rng)
    placed = setting.to(devices[0])
    progress("crafting the canary", 0, 1)
    chosen = canary or crafted(placed, scenario, seed=seed)
    progress("crafting the canary", 1, 1)
    return train_runs(
        placed.network,
        placed.x,
        placed.y,
        chosen,
        setting.recipe,
        noise_multiplier=setting.mechanism.noise_multiplier,
        runs=runs,
        every=every or setting.recipe.steps,
        generator=generator_of(seed, "train", placed.x.device),
        initial=placed.initial,
        cache=None if cache is None else Path(cache),
        devices=[torch.device(d) for d in devices] if len(devices) > 1 else None,
        progress=progress,
    )


def _number(threshold: Threshold, scenario: ScenarioName) -> float | None:
    if threshold == "auto":
        return 0.0 if scenario in ("worst-case", "gradient") else None
    return None if threshold == "split" else float(threshold)


def generator_of(seed: int, purpose: str, device: torch.device | str) -> torch.Generator:
    """A generator of its own for each purpose, so that crafting and training share no draws."""
    digest = hashlib.sha256(f"canaries {purpose} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "little"))
