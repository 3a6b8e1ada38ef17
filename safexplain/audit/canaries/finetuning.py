"""Canaries for the training of a `DPFineTuner`, through its own `fit`."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._digest import Undigestable, digest
from safexplain._progress import Progress, silent
from safexplain.audit.canaries.probe import CanaryProbe
from safexplain.audit.canaries.trainer import stacked
from safexplain.audit.canaries.white_box import WhiteBox
from safexplain.dp.heads.features import features
from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, trainable_linear
from safexplain.dp.sgd.finetune import DPFineTuner
from safexplain.dp.sgd.records import InMemory
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.claim import Claim, scenario_of
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.canaries.white_box import WhiteBoxResult


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
    """Test a tuner's guarantee: watch its steps, or train many times, half of them with one record substituted.

    Args:
        tuner: its model, data, plan and options are used.
        scenario: "white-box" watches the tuner's steps and uses only `seed` and `progress`. "crafted", "mislabelled",
            "natural" and "outlier" replace a record (with `groups=`, one of a person), "gradient" a record's gradient,
            in mode "hooks" or "functorch". For a head on a frozen backbone, records are its features. None: crafted for
            a head, otherwise mislabelled.
        auxiliary: (x, y) records outside the training data, for "natural".
        runs: models, half for each data set; a thousand can show an epsilon of about 8 if 10 is true.
        seed: of everything random in the audit.
        cache: folder for features and finished runs, from which an interrupted audit resumes.
        progress: called with stage, done and total.
        how: `target`, `workers`, `method`, `threshold` and `confidence` of `CanaryProbe`.

    Raises:
        ConfigurationError, InputError: as `DPFineTuner.fit`, or the model does not allow the scenario.
    """
    budget, model, version = tuner.plan.budget, tuner.prepared(), _version(tuner)
    adjacency = "add_remove" if budget.adjacency == "zero_out" else budget.adjacency
    claim = Claim(tuner.plan.phase(), budget.delta, adjacency=adjacency)
    name = None if scenario is None else scenario_of(scenario)
    if name == "worst-case":
        raise ConfigurationError("scenario: expected one that uses this training, got worst-case; see run_canaries")
    head = has_closed_form(model, tuner.records, tuner.config)
    if name == "gradient" and (head or tuner.persons is not None):
        why = "it trains a head in closed form" if head else "it clips gradients of persons"
        raise ConfigurationError(
            f'gradient: this training has no gradients of single records, as {why}; take "white-box", which watches its'
            ' steps, or "mislabelled", which replaces a record'
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
    """The training of the head alone, on features, and the auxiliary records as features."""
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
    """The training in the cache; functions count by their source."""
    config = tuner.config
    try:
        functions = digest(config.optimizer, config.loss)
    except Undigestable as reason:
        raise ConfigurationError(f"cache: optimizer or loss cannot be digested ({reason}); leave cache out") from None
    whose = [] if tuner.persons is None else [tuner.persons.digest()]
    return repr([tuner.plan, sorted(config.purpose().items()), config.mode, tuner.statement.trained, functions, *whose])
