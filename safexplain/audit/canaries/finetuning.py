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
from safexplain.audit.canaries.trainer.data import stacked
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.canaries.white_box import WhiteBox
from safexplain.dp.heads.features import features
from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, trainable_linear
from safexplain.dp.sgd.finetune import DPFineTuner
from safexplain.dp.sgd.records import InMemory
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.claim import Claim, scenario_of
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.canaries.white_box import WhiteBoxResult

__all__ = ["audit_training"]


def audit_training(
    tuner: DPFineTuner,
    scenario: str | None = None,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    runs: int = 1000,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: Progress = silent,
    **how: Any,
) -> CanaryResult | WhiteBoxResult:
    """Put a tuner's guarantee to the test: watch its steps, or train many times, half of the times with one record
    substituted.

    Args:
        tuner: whose model, data, plan and options are taken.
        scenario: "white-box" watches the tuner's steps (`WhiteBox`); of the other arguments, `seed` and `progress` are
            used. The others go through the tuner's own training, once for each run: "crafted", "mislabelled",
            "natural" and "outlier" replace a record (with `groups=`, one of a person), "gradient" a record's gradient,
            in mode "hooks" or "functorch". Of a head on a frozen backbone the records are its features. None: crafted
            for a head, otherwise mislabelled.
        auxiliary: (x, y) of records that are not trained on, for "natural".
        runs: models, half for each data set; a thousand can show an epsilon of about 8 where 10 is true.
        seed: of everything random in the audit.
        cache: folder for features and finished runs, from which an interrupted audit goes on.
        progress: told stage, done and total.
        how: `target`, `workers`, `method`, `threshold` and `confidence` of `CanaryProbe`.

    Raises:
        ConfigurationError, InputError: as `DPFineTuner.fit`; or a scenario that the model does not allow.
    """
    budget, model, version = tuner.plan.budget, tuner.prepared(), _version(tuner)
    adjacency = "add_remove" if budget.adjacency == "zero_out" else budget.adjacency
    claim = Claim(tuner.plan.phase(), budget.delta, adjacency=adjacency)
    name = None if scenario is None else scenario_of(scenario)
    if name == "worst-case":
        raise ConfigurationError("worst-case: nothing of this training is in it; see safexplain.audit.canaries.run")
    head = has_closed_form(model, tuner.records, tuner.config)
    if name == "gradient" and (head or tuner.persons is not None):
        why = "a head is trained in closed form" if head else "it clips gradients of persons"
        raise ConfigurationError(
            f'gradient: this training has none of single records, as {why}; "white-box" sees its steps, and'
            ' "mislabelled" replaces a record'
        )
    if head:
        tuner, auxiliary = _on_features(tuner, model, auxiliary, cache)
        model = tuner.prepared()

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        given = stacked(dataset) if head else dataset  # heads are trained in closed form on tensors
        return tuner.with_data(given, seed=generator.initial_seed()).fit().model

    records = tuner.records
    given = (records.x, records.y) if isinstance(records, InMemory) else records.dataset
    if name == "white-box":
        return WhiteBox(train, given, claim, tuner.config.clipping.bound, seed=seed).run(progress)
    probe = CanaryProbe(
        train, given, claim=claim, scenario=name or ("crafted" if head else "mislabelled"), model=model,
        auxiliary=auxiliary, cache=cache, version=version, runs=runs, seed=seed, **how,
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
        auxiliary = features(model, trainable_linear(model) or "", x, cache=folder).cpu(), y
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
