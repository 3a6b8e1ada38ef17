"""Canaries for what a `DPFineTuner` would train, through the very code that it trains with.

The training function that the white box watches, and that canaries train again and again, is the tuner's own `fit`. Of
a frozen backbone the features are computed once.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._digest import Undigestable, digest
from safexplain._progress import Progress, silent
from safexplain.audit.canaries.run import Threshold
from safexplain.audit.canaries.trainer.data import stacked
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.canaries.white_box import WhiteBox
from safexplain.dp.heads.features import features
from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, linear_that_trains
from safexplain.dp.sgd.finetune import DPFineTuner
from safexplain.dp.sgd.records import InMemory
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.claim import Claim, scenario_of
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.canaries.white_box import WhiteBoxResult
from safexplain.verdict.stats.bound_methods import BoundMethod

__all__ = ["audit_training"]


def audit_training(
    tuner: DPFineTuner,
    scenario: str | None = None,
    *,
    runs: int = 1000,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    seed: int = 0,
    workers: int = 1,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> CanaryResult | WhiteBoxResult:
    """Put a tuner's guarantee to the test: watch its steps, or train many times, half of the times with one record
    substituted.

    Args:
        tuner: whose model, data, plan and options are taken.
        scenario: "white-box" watches the tuner's steps (`WhiteBox`); of the other arguments, `seed` and `progress` are
            used. All others go through the tuner's own training, once for each run: "crafted", "mislabelled",
            "natural" and "outlier" replace a record (with `groups=`, one of a person), "gradient" a record's gradient,
            in mode "hooks" or "functorch". Of a head on a frozen backbone the records are its features. None: crafted
            for a head, otherwise mislabelled.
        runs: models, half for each data set; a thousand can show an epsilon of about 8 where 10 is true.
        auxiliary: (x, y) of records that are not trained on, for "natural".
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: see `run_canaries`.
        confidence: of the bound.
        seed: of everything random in the audit.
        workers: processes, where runs are trained one after another.
        cache: folder for features and finished runs, from which an interrupted audit goes on.
        progress: told stage, done and total.

    Raises:
        ConfigurationError, InputError: as `DPFineTuner.fit`; or a scenario that the model does not allow.
    """
    budget, model, version = tuner.plan.budget, tuner.prepared(), _version(tuner)
    adjacency = "add_remove" if budget.adjacency == "zero_out" else budget.adjacency
    claim = Claim(tuner.plan.phase(), budget.delta, adjacency=adjacency)
    name = None if scenario is None else scenario_of(scenario)
    if name == "worst-case":
        raise ConfigurationError("worst-case: nothing of this training is in it; see safexplain.audit.canaries.run")
    if tuner.persons is not None and name == "gradient":
        raise ConfigurationError(
            "gradient: it takes the place of one record's, and this training clips those of persons; with groups=,"
            ' "mislabelled" or "natural" replace a record of a person'
        )
    head = has_closed_form(model, tuner.records, tuner.config)
    if head and name == "gradient":
        raise ConfigurationError(
            'gradient: a head is trained in closed form, without gradients of single records; "white-box" sees steps'
        )
    if head:
        tuner, auxiliary = _on_features(tuner, model, auxiliary, cache)
        model = tuner.prepared()

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        given = stacked(dataset) if head else dataset  # heads are trained in closed form on tensors
        return tuner.again(given, seed=generator.initial_seed()).fit().model

    records = tuner.records
    given = (records.x, records.y) if isinstance(records, InMemory) else records.dataset
    if name == "white-box":
        return WhiteBox(train, given, claim, tuner.config.clipping.bound, seed=seed).run(progress)
    probe = CanaryProbe(
        train, given, claim=claim, scenario=name or ("crafted" if head else "mislabelled"), model=model,
        auxiliary=auxiliary, workers=workers, cache=cache, version=version, runs=runs, method=method,
        threshold=threshold, confidence=confidence, seed=seed,
    )  # fmt: skip
    return probe.run(progress=progress)


def _on_features(
    tuner: DPFineTuner, model: nn.Module, auxiliary: tuple[Tensor, Tensor] | None, cache: str | Path | None
) -> tuple[DPFineTuner, tuple[Tensor, Tensor] | None]:
    """The same training of the head alone, on the features of the records, and the features of the others."""
    assert isinstance(tuner.records, InMemory)
    folder = None if cache is None else Path(cache) / "features"
    problem = head_problem(model, tuner.records, tuner.plan, tuner.config, cache=folder)
    alone = copy(tuner)
    alone.records, alone._start = InMemory(problem.x.cpu(), tuner.records.y), nn.Sequential(problem.layer)
    if auxiliary is not None:
        x, y = (torch.as_tensor(part) for part in auxiliary)
        auxiliary = features(model, linear_that_trains(model) or "", x, cache=folder).cpu(), y
    return alone, auxiliary


def _version(tuner: DPFineTuner) -> str:
    """Names what is trained and how; optimizer and loss by their source where they are functions."""
    config = tuner.config
    try:
        functions = digest(config.optimizer, config.loss)
    except Undigestable as reason:
        raise ConfigurationError(
            f"optimizer or loss cannot be told from others ({reason}), so that finished runs could be mistaken; leave"
            " cache out"
        ) from None
    whose = [] if tuner.persons is None else [tuner.persons.digest()]
    return repr([tuner.plan, sorted(config.purpose().items()), config.mode, tuner.statement.trained, functions, *whose])
