"""What a search will cost: its first trials on few examples, with the clock running, and the audit that confirms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._progress import Progress, silent
from safexplain.audit.planning.measure import Clock
from safexplain.audit.planning.plan import BUDGET, Plan, Stage, plan_audit
from safexplain.audit.population import Population
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.run import FEWEST_REFERENCES, Output, Pool, methods_of
from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import as_module
from safexplain.tune.space import check_space
from safexplain.tune.study import SELECTION, _optuna, _Search, _Setting
from safexplain.verdict.policy import Policy

TRIED = 6
"""Trials that are timed."""

FEW, MANY, QUICK = 60, 180, 2.0
"""Examples on which they are timed: few, and more if that took less than so many seconds."""


def plan_tune(
    model: nn.Module | Any,
    population: Population,
    recipe: Any = None,
    *,
    member: NDArray[np.bool_],
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]],
    space: str = "default",
    trials: int = 100,
    output: Output = "probability",
    arguments: Mapping[str, Any] | None = None,
    references: int = 16,
    policy: Policy | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    budget: float = BUDGET,
    progress: Progress = silent,
    **others: Any,
) -> Plan:
    """What `tune` with the same arguments will cost, and what the audit of the chosen release can decide at best.

    The first trials are timed on copies of the model in place of reference models. How many of the others are pruned,
    and what the chosen release costs to make, is not known in advance: the recommended hardening stands for it.
    `budget` is about how many seconds the plan may take; `others` are those of `plan_audit`.

    Raises:
        InputError, ConfigurationError, MissingExtraError: as `tune`.
    """
    check_space(space)
    if references < FEWEST_REFERENCES:
        raise InputError(f"a search needs at least {FEWEST_REFERENCES} reference models, got {references}")
    policy = policy or Policy()
    if not policy.selection:
        policy = replace(policy, selection=SELECTION)
    found = plan_audit(
        model, population, recipe, member=member, explainer=explainer, hardening=Hardening.recommended(), output=output,
        arguments=arguments, references=references, policy=policy, seed=seed, device=device, budget=0.6 * budget,
        progress=progress, **others,
    )  # fmt: skip
    target = as_module(model, population.classes)
    place = next((p.device for p in target.parameters()), torch.device(device or "cpu"))
    clock, optuna = Clock(place, 0.4 * budget), _optuna()
    rng, rows = np.random.default_rng([seed, 0x7E57]), round(policy.selection * len(population))

    def timed(number: int) -> float:
        """Seconds of some trials on so many examples, and of what comes before them."""
        at = np.sort(rng.permutation(len(population))[: round(number / policy.selection)])
        few = Population(population.x[torch.from_numpy(at)], population.y[torch.from_numpy(at)])
        membership = np.concatenate([member[at][None], rng.random((references, len(at))) < 0.5])
        pool = Pool(few, Shadows((target,) * (1 + references), membership))
        setting = _Setting(pool, methods_of(explainer, arguments), output, space, policy, 256, seed)
        return clock(lambda: _Search.of(setting, optuna, None, silent).run(min(TRIED, trials)))

    number = min(FEW, rows)
    seconds = timed(number)
    if seconds < QUICK and number < rows:
        number = min(MANY, rows)
        seconds = timed(number)
    seconds *= rows / number * trials / min(TRIED, trials)
    search = Stage("searching", seconds, trials, "trials", "by the first of them")
    training = [stage for stage in found.stages if stage.name.endswith("reference models")]
    rest = [replace(stage, name=f"confirming: {stage.name}") for stage in found.stages if stage not in training]
    return replace(
        found,
        stages=(*training, search, *rest),
        notes=(*found.notes, "The release that the search chooses is planned as the recommended one."),
        took=found.took + clock.spent,
    )
