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

FEW, MANY = 60, 180
"""Examples on which they are timed: fixed cost and cost of an example are told apart by these two."""


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
    and what the chosen release costs to make, is not known before: the recommended hardening stands for it.

    Args:
        model: see `tune`, as the rest.
        population: likewise.
        recipe: likewise.
        member: likewise.
        explainer: likewise.
        space: likewise.
        trials: likewise.
        output: likewise.
        arguments: likewise.
        references: likewise.
        policy: likewise.
        seed: likewise.
        device: likewise.
        budget: seconds to be spent, about.
        progress: told what is measured.
        **others: see `plan_audit`.

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
    clock = Clock(place, 0.4 * budget)
    rng = np.random.default_rng([seed, 0x7E57])
    rows = round(policy.selection * len(population))
    methods, optuna = methods_of(explainer, arguments), _optuna()

    def timed(number: int) -> float:
        """Seconds to prepare a search on so many examples, and of some trials."""
        at = np.sort(rng.permutation(len(population))[: round(number / policy.selection)])
        few = Population(population.x[torch.from_numpy(at)], population.y[torch.from_numpy(at)])
        membership = np.concatenate([member[at][None], rng.random((references, len(at))) < 0.5])
        pool = Pool(few, Shadows((target,) * (1 + references), membership))

        def work() -> None:
            setting = _Setting(pool, methods, output, space, policy, 256, seed)
            _Search.of(setting, optuna, None, silent).run(min(TRIED, trials))

        return clock(work)

    short, long = timed(FEW), 0.0
    more = min(MANY, rows)
    if more > FEW and short < clock.share(0.3):
        long = timed(more)
        each = max(long - short, 0.0) / (more - FEW)
        fixed = max(short - each * FEW, 0.0)
    else:
        fixed, each = 0.0, short / min(FEW, rows)
    seconds = (fixed + each * rows) * trials / min(TRIED, trials)
    search = Stage("searching", seconds, trials, "trials", "by the first of them")
    confirming = tuple(
        stage if stage.name.endswith("reference models") else replace(stage, name=f"confirming: {stage.name}")
        for stage in found.stages
    )
    first = [stage for stage in confirming if stage.name.endswith("reference models")]
    rest = [stage for stage in confirming if stage not in first]
    return replace(
        found,
        stages=(*first, search, *rest),
        notes=(*found.notes, "The release that the search chooses is planned as the recommended one."),
        took=found.took + clock.spent,
    )
