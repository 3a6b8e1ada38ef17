"""What a search will cost: its first trials on few examples, with the clock running, and the audit that confirms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from safexplain.audit.planning.measure import Clock
from safexplain.audit.planning.plan import BUDGET, Plan, Stage, planned
from safexplain.audit.question import Question
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.run import Models
from safexplain.hardening.hardening import Hardening
from safexplain.tune.space import check_space
from safexplain.tune.study import _optuna, _Search, to_search

TRIED = 6
"""Trials that are timed."""

FEW = 180
"""Examples on which they are timed."""


def plan_tune(question: Question, *, space: str = "default", trials: int = 100, budget: float = BUDGET) -> Plan:
    """What `tune.study.searched` of the same question will cost, and what the audit of the chosen release can decide.

    The first trials are timed on copies of the model in place of reference models. How many of the others are pruned,
    and what the chosen release costs to make, is not known before: the recommended hardening stands for it.

    Args:
        question: see `tune`.
        space: likewise.
        trials: likewise.
        budget: seconds to be spent, about.

    Raises:
        InputError, ConfigurationError, MissingExtraError: as `tune`.
    """
    check_space(space)
    optuna, question = _optuna(), to_search(question)
    found = planned(replace(question, hardening=Hardening.recommended()), budget=0.6 * budget)
    policy, population, number = question.judges[0], question.population, found.references
    rng = np.random.default_rng([question.seed, 0x7E57])
    at = np.sort(rng.permutation(len(population))[: round(FEW / policy.selection)])
    membership = np.concatenate([question.member[at][None], rng.random((number, len(at))) < 0.5])
    models = Models(population.part(at), Shadows((question.target,) * (1 + number), membership))
    clock = Clock(question.place, 0.4 * budget)
    seconds = clock(lambda: _Search(question, models, space, optuna, None).run(min(TRIED, trials)))
    rows = min(len(population), found.scored) * policy.selection
    seconds *= max(1.0, rows / FEW) * trials / min(TRIED, trials)
    search = Stage("searching", seconds, trials, "trials", "by the first of them")
    first = [stage for stage in found.stages if stage.name.endswith("reference models")]
    rest = [replace(s, name=f"confirming: {s.name}") for s in found.stages if s not in first]
    return replace(
        found,
        stages=(*first, search, *rest),
        notes=(*found.notes, "The release that the search chooses is planned as the recommended one."),
        took=found.took + clock.spent,
    )
