"""The audit of a setting: make the canary, train runs on D and on D', and judge their scores."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from safexplain._privacy_loss import Steps
from safexplain._progress import Progress, silent
from safexplain._validate import check_number
from safexplain.audit.canaries.batched import train_runs
from safexplain.audit.canaries.canary import FOR_FUNCTIONS, Canary, GradientCanary, check_target
from safexplain.audit.canaries.make_canary import make_canary
from safexplain.audit.canaries.reference import reference
from safexplain.audit.canaries.setting import Setting
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.claim import ScenarioName, scenario_of
from safexplain.verdict.canaries.result import CanaryResult, Scores, check_method, judge
from safexplain.verdict.stats.lower_bounds import BoundMethod

Threshold = float | Literal["auto", "split"]
"""A number fixed beforehand; "split": chosen on 30 % of the runs; "auto": 0 if the scores on D and D' are centred on 0
by construction (worst-case; gradient with SGD, whose drift is known), otherwise "split"."""


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
    target: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    devices: Sequence[torch.device | str] | None = None,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> CanaryResult:
    """Audit a training under substitution (arXiv 2511.21804, algorithm 1).

    Args:
        setting: the data, the training and its claim.
        scenario: name or number of `safexplain.verdict.canaries.claim.SCENARIOS`.
        runs: models on D and D' together, half on each.
        every: also audit after every so many steps; None: the released model only.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: scores above it predict D.
        confidence: of each bound.
        canary: your own; None: it is made.
        target: row that it replaces; None: the record with the least confident label.
        seed: of everything random.
        device: to train on.
        devices: several that share the runs, instead of `device`. One processor shares them among its threads.
        cache: folder for finished blocks of runs, from which an interrupted audit resumes.
        progress: called after each step.

    Raises:
        ConfigurationError: an unknown scenario or method, or too few runs.
        InputError: unusable data, or no auxiliary records for the natural canary.
    """
    name, threshold = scenario_of(scenario), checked_threshold(threshold)
    check_method(method, confidence, setting.claim)
    if name in ("white-box", "outlier"):
        raise ConfigurationError(FOR_FUNCTIONS)
    began, known = time.monotonic(), None
    if name == "worst-case":
        rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        scores = worst_case_scores(setting.mechanism, runs, every=every, rng=rng)
    else:
        places = [torch.device(d) for d in devices or [device]]
        placed = setting.to(places[0])
        known = canary or canary_for(placed, name, target, seed, progress)
        scores = scores_of(placed, known, runs, every, seed=seed, places=places, cache=cache, progress=progress)
    return judge(
        scores, setting.claim, scenario=name, method=method, threshold=fixed_threshold(threshold, known),
        confidence=confidence, seconds=time.monotonic() - began, seed=seed,
        setting={**setting.describe(), **({} if known is None else {"target": known.target})},
    )  # fmt: skip


def scores_of(
    setting: Setting,
    canary: Canary,
    runs: int,
    every: int | None = None,
    *,
    seed: int,
    places: Sequence[torch.device],
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> Scores:
    """Train runs on these devices. On a processor, blocks run in parallel, with one thread each."""
    if len(places) == 1 and places[0].type == "cpu":
        places = [*places] * torch.get_num_threads()
    threads = torch.get_num_threads()
    if len(places) > 1:
        torch.set_num_threads(1)
    try:
        return train_runs(
            setting.network, setting.x, setting.y, canary, setting.recipe,
            noise_multiplier=setting.mechanism.noise_multiplier, runs=runs, every=every or setting.recipe.steps,
            generator=generator_of(seed, "train", setting.x.device), initial=setting.initial, cache=cache,
            devices=places, progress=progress,
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def canary_for(setting: Setting, scenario: ScenarioName, target: int | None, seed: int, progress: Progress) -> Canary:
    """The canary of a scenario, on the setting's device; other arguments as for `run_canaries`."""
    if target is not None:
        check_target(target, len(setting.x))
    progress("crafting", 0, 1)
    generator = generator_of(seed, "craft", setting.x.device)
    found = reference(
        setting.network, setting.x, setting.y, setting.recipe, generator=generator, initial=setting.initial,
        movement=scenario == "gradient",
    )  # fmt: skip
    if target is not None:
        found = replace(found, target=target)
    made = make_canary(
        scenario, setting.network, setting.x, setting.y, found, auxiliary=setting.auxiliary, generator=generator,
    )  # fmt: skip
    progress("crafting", 1, 1)
    return made


def worst_case_scores(mechanism: Steps, runs: int, *, every: int | None = None, rng: np.random.Generator) -> Scores:
    """The sum of all noisy gradients after so many steps, in units of C; with `every`, also after every so many steps.

    For the worst pair of data sets, where the record's gradient is +C, its canary's -C, and all others are 0, no
    training is needed: after t steps the sum is +k or -k, k ~ Binomial(t, q), plus N(0, t sigma^2). The paper's score,
    the log-likelihood ratio of the two mixtures (arXiv 2511.21804, equation 3), rises with the sum and so orders runs
    alike. As the adversary does not see single gradients, the sum's exact epsilon is a little below the accountant's
    for q < 1. Half of the runs are on D.
    """
    if runs < 4 or runs % 2:
        raise ConfigurationError(f"runs: expected an even number of at least 4, half for D and half for D'; got {runs}")
    if mechanism.noise_multiplier == 0 or mechanism.steps == 0:
        raise ConfigurationError(
            "mechanism: expected noise and at least one step for the worst case; without them there is no claim"
        )
    if mechanism.sampling == "fixed-size":
        raise ConfigurationError('mechanism: expected sampling="poisson" for the worst case, got "fixed-size"')
    if every is not None and every < 1:
        raise ConfigurationError(f"every: expected at least 1 step, got {every}")
    steps = (*(() if every is None else range(every, mechanism.steps, every)), mechanism.steps)
    sums = np.zeros((2, runs // 2))
    found = np.empty((len(steps), 2, runs // 2))
    for i, (since, step) in enumerate(zip((0, *steps), steps, strict=False)):
        taken = rng.binomial(step - since, mechanism.sample_rate, sums.shape)
        taken[1] *= -1
        sums += taken + rng.normal(0.0, mechanism.noise_multiplier * np.sqrt(step - since), sums.shape)
        found[i] = sums
    return Scores(steps, found[:, 0], found[:, 1])


def checked_threshold(threshold: Any) -> Threshold:
    """The threshold as "auto", "split" or a finite number, which may come as text; otherwise ConfigurationError."""
    if isinstance(threshold, str):
        if threshold in ("auto", "split"):
            return "split" if threshold == "split" else "auto"
        with suppress(ValueError):
            threshold = float(threshold)
    return check_number('threshold (neither "auto" nor "split")', threshold)


def fixed_threshold(threshold: Threshold, canary: Canary | None) -> float | None:
    """The threshold fixed beforehand; None: it is chosen on some of the runs."""
    if threshold == "auto":
        centred = canary is None or (isinstance(canary, GradientCanary) and canary.drift is not None)
        return 0.0 if centred else None
    return None if threshold == "split" else threshold


def generator_of(seed: int, purpose: str, device: torch.device | str) -> torch.Generator:
    """A separate generator per purpose, so that crafting and training share no draws."""
    digest = hashlib.sha256(f"canaries {purpose} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "little"))
