"""Canaries for what a `DPFineTuner` would train, through the very code that it trains with.

Closed-form heads are trained side by side on the features of the backbone, other models one after another by a
`CanaryProbe` whose training function is the tuner's own `fit`. Only the gradient canary of a head goes by
`run_canaries`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._digest import Undigestable, digest
from safexplain._progress import Progress, silent
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.canary import RecordCanary, record_scores
from safexplain.audit.canaries.outlier import OUTLIER_SCORES, outlier_scores, probe_rows
from safexplain.audit.canaries.run import (
    Threshold,
    canary_for,
    checked_threshold,
    fixed_threshold,
    generator_of,
    run_canaries,
)
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.canaries.white_box import WhiteBox
from safexplain.dp.heads.closed_form import Heads, train_heads
from safexplain.dp.heads.features import features
from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, linear_that_trains
from safexplain.dp.sgd.finetune import DPFineTuner
from safexplain.dp.sgd.records import InMemory
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim, ScenarioName, scenario_of
from safexplain.verdict.canaries.result import CanaryResult, Scores, check_method, judge
from safexplain.verdict.canaries.white_box import WhiteBoxResult
from safexplain.verdict.stats.bound_methods import BoundMethod

__all__ = ["audit_training"]


HEAD_SCENARIOS = ("crafted", "mislabelled", "natural", "outlier")
"""Those in which one record of a head's data is replaced."""

AT_ONCE = 2**23
"""Parameters of the heads that are trained together."""


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
            used. "crafted", "mislabelled" or "natural" go through the tuner's own training, as does "gradient" in mode
            "hooks" or "functorch". For a head, "gradient" trains the described mechanism in code of its own: it tells
            what the mechanism gives away, not whether the tuner's code is right. With `groups=`, one record of a person
            is substituted, and "gradient" is none. None: crafted for a head, otherwise
            mislabelled.
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
    budget, model = tuner.plan.budget, tuner.prepared()
    adjacency = "add_remove" if budget.adjacency == "zero_out" else budget.adjacency
    claim = Claim(tuner.plan.phase(), budget.delta, adjacency=adjacency)
    how: dict[str, Any] = {
        "runs": runs, "method": method, "threshold": threshold, "confidence": confidence, "seed": seed,
    }  # fmt: skip

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        return tuner.again(dataset, seed=generator.initial_seed()).fit().model

    records = tuner.records
    given = (records.x, records.y) if isinstance(records, InMemory) else records.dataset
    name = None if scenario is None else scenario_of(scenario)
    if name == "white-box":
        return WhiteBox(train, given, claim, tuner.config.clipping.bound, seed=seed).run(progress)
    if name == "worst-case":
        raise ConfigurationError("worst-case: nothing of this training is in it; see safexplain.audit.canaries.run")
    if tuner.persons is not None and name in ("gradient", "layers"):
        raise ConfigurationError(
            f"{name}: its gradient takes the place of one record's, and this training clips those of persons; with"
            ' groups=, "mislabelled" or "natural" replace a record of a person'
        )
    of_records = tuner.persons is None and tuner.plan.largest_batch is None
    if of_records and has_closed_form(model, tuner.records, tuner.config):
        setting, start = _head_setting(tuner, model, claim, auxiliary, cache)
        if name == "gradient":
            return run_canaries(setting, "gradient", device=tuner.device, cache=cache, progress=progress, **how)
        return _audit_heads(setting, start, name or "crafted", progress=progress, **how)

    probe = CanaryProbe(
        train, given, claim=claim, scenario=name or "mislabelled", model=model, auxiliary=auxiliary, workers=workers,
        cache=cache, version=_version(tuner), **how,
    )  # fmt: skip
    return probe.run(progress=progress)


def _audit_heads(
    setting: Setting,
    start: Heads,
    name: ScenarioName,
    *,
    runs: int,
    method: BoundMethod,
    threshold: Threshold,
    confidence: float,
    seed: int,
    progress: Progress,
) -> CanaryResult:
    """Train heads by `safexplain.dp.heads.closed_form.train_heads` on D and on D', and judge the claim.

    Both z and its canary z' are rows of the data; the heads of D train on all but z', those of D' on all but z. The
    clipping, the sampling of all records, the noise and the updates are those of `train_heads`. Each head draws batches
    of its own: in shared ones the canary's coins would be the same for all.
    """
    check_method(method, setting.claim)
    if runs < 4 or runs % 2:
        raise ConfigurationError(f"runs: expected an even number from 4 on, half for D and half for D'; got {runs}")
    if name not in HEAD_SCENARIOS:
        raise ConfigurationError(f"scenario: for a head expected gradient, {', '.join(HEAD_SCENARIOS)}; got {name!r}")
    began, canary = time.monotonic(), canary_for(setting, name, seed=seed)
    assert isinstance(canary, RecordCanary)
    generator = generator_of(seed, "train", setting.x.device)
    size = max(2, AT_ONCE // setting.network.parameters // 2 * 2)
    scores = []
    for done in range(0, runs, size):
        progress("training", done, runs)
        scores.append(_scores(setting, start, canary, min(size, runs - done), generator))
    progress("training", runs, runs)
    d, d_prime = (torch.cat(part)[None].double().cpu().numpy() for part in zip(*scores, strict=True))
    return judge(
        Scores((setting.recipe.steps,), d, d_prime, OUTLIER_SCORES if name == "outlier" else ()), setting.claim,
        scenario=name, method=method, threshold=fixed_threshold(checked_threshold(threshold), canary),
        confidence=confidence, seconds=time.monotonic() - began, seed=seed,
        setting={**setting.describe(), "trained": "safexplain.dp.heads.closed_form.train_heads"},
    )  # fmt: skip


def _scores(
    setting: Setting, start: Heads, canary: RecordCanary, runs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(runs / 2,) on D and on D'; of an outlier (runs / 2, s)."""
    n, z = len(setting.x), setting.x[canary.target]
    other = canary.x.to(setting.x)
    members = torch.ones(runs, n + 1, dtype=torch.bool)
    members[: runs // 2, n] = False
    members[runs // 2 :, canary.target] = False
    heads = train_heads(
        torch.cat([setting.x, other[None]]), torch.cat([setting.y, setting.y.new_tensor([canary.y])]), setting.recipe,
        noise_multiplier=setting.mechanism.noise_multiplier, runs=runs, membership=members, shared_batches=False,
        initial=start, generator=generator,
    )  # fmt: skip
    logits = heads.logits(torch.stack([z, other]))
    label = int(setting.y[canary.target])
    if canary.scenario == "outlier":
        probes = probe_rows(n, canary.rows)
        found = outlier_scores(logits, heads.logits(setting.x[probes]), label, canary.y, setting.y[probes])
    else:
        found = record_scores(logits[:, 0], logits[:, 1], label, canary.y, canary.scenario)
    return found[: runs // 2], found[runs // 2 :]


def _head_setting(
    tuner: DPFineTuner,
    model: nn.Module,
    claim: Claim,
    auxiliary: tuple[Tensor, Tensor] | None,
    cache: str | Path | None,
) -> tuple[Setting, Heads]:
    """The head on its features, and where it starts."""
    records = tuner.records
    if not isinstance(records, InMemory):
        raise InputError("expected data in memory, a pair (x, y) of tensors")
    folder = None if cache is None else Path(cache) / "features"
    problem = head_problem(model, records, tuner.plan, tuner.config, cache=folder)
    others = None
    if auxiliary is not None:
        x, y = (torch.as_tensor(part) for part in auxiliary)
        seen = features(model, linear_that_trains(model) or "", x, cache=folder)
        others = (seen.to(problem.x), y.to(problem.x.device).long())
    theta = problem.initial.weight[0]
    if problem.recipe.bias:
        theta = torch.cat([theta, problem.initial.bias[0][:, None]], 1)
    network = LinearHead(problem.x.shape[1], problem.recipe.classes, problem.recipe.bias)
    y = records.y.to(problem.x.device).long()
    name = f"head of {type(model).__name__}, {network.parameters:,} parameters"
    setting = Setting(name, problem.x, y, problem.recipe, claim, auxiliary=others, initial=theta.flatten())
    return setting, problem.initial


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
