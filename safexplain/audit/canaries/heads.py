"""Record canaries in the closed-form heads of `safexplain.dp`: the very code that `DPFineTuner` trains heads with."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from safexplain.audit.canaries.canary import RecordCanary
from safexplain.audit.canaries.run import Threshold, crafted, generator_of
from safexplain.audit.canaries.score import record_scores
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.references.shadows import Progress, silent
from safexplain.dp.heads.closed_form import Heads, train_heads
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.result import CanaryResult, check_method, judge
from safexplain.verdict.canaries.scenario import scenario_of
from safexplain.verdict.canaries.scores import Scores
from safexplain.verdict.stats.bound_methods import BoundMethod

__all__ = ["audit_heads"]

AT_ONCE = 2**23
"""Parameters of the heads that are trained together."""


def audit_heads(
    setting: Setting,
    scenario: str,
    *,
    runs: int,
    method: BoundMethod = "pld",
    threshold: Threshold | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> CanaryResult:
    """Train heads by `safexplain.dp.heads.closed_form.train_heads` on both worlds, and judge the claim.

    Both z and its canary z' are rows of the data; the heads of world a train on all but z', those of world b on all but
    z. The clipping, the sampling of all records, the noise and the updates are those of `train_heads`. Each head draws
    batches of its own: in shared ones the canary's coins would be the same for all.

    Args:
        setting: of a linear head.
        scenario: "crafted", "mislabelled" or "natural".
        runs: in both worlds together.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: fixed beforehand; None, "auto" or "split": chosen on 30 % of the runs.
        confidence: of the bound.
        seed: of everything random.
        progress: told in runs.

    Raises:
        ConfigurationError: another scenario, or fewer than 4 runs.
        InputError: as `train_heads`, or no auxiliary records for "natural".
    """
    name = scenario_of(scenario)
    check_method(method, setting.claim)
    if runs < 4 or runs % 2:
        raise ConfigurationError(f"runs: expected an even number from 4 on, half for each world; got {runs}")
    began = time.monotonic()
    canary = crafted(setting, name, seed=seed)
    if not isinstance(canary, RecordCanary):
        raise ConfigurationError(f'scenario: expected "crafted", "mislabelled" or "natural", got {scenario!r}')
    generator = generator_of(seed, "train", setting.x.device)
    size = max(2, AT_ONCE // setting.network.parameters // 2 * 2)
    scores = []
    for done in range(0, runs, size):
        progress("training", done, runs)
        scores.append(_scores(setting, canary, min(size, runs - done), generator))
    progress("training", runs, runs)
    a, b = (torch.cat([part[world] for part in scores])[None].double().cpu().numpy() for world in (0, 1))
    return judge(
        Scores((setting.recipe.steps,), a, b),
        setting.claim,
        scenario=name,
        method=method,
        threshold=None if threshold is None or isinstance(threshold, str) else float(threshold),
        confidence=confidence,
        seconds=time.monotonic() - began,
        seed=seed,
        setting={**setting.describe(), "trained": "safexplain.dp.heads.closed_form.train_heads"},
    )


def _scores(setting: Setting, canary: RecordCanary, runs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(runs / 2,) of each world."""
    n, z = len(setting.x), setting.x[canary.target]
    other = canary.x.to(setting.x)
    members = torch.ones(runs, n + 1, dtype=torch.bool)
    members[: runs // 2, n] = False
    members[runs // 2 :, canary.target] = False
    heads = train_heads(
        torch.cat([setting.x, other[None]]),
        torch.cat([setting.y, setting.y.new_tensor([canary.y])]),
        setting.recipe,
        noise_multiplier=setting.mechanism.noise_multiplier,
        runs=runs,
        membership=members,
        shared_batches=False,
        initial=_initial(setting),
        generator=generator,
    )
    logits = heads.logits(torch.stack([z, other]))
    label = int(setting.y[canary.target])
    found = record_scores(logits[:, 0], logits[:, 1], label, canary.y, canary.scenario)
    return found[: runs // 2], found[runs // 2 :]


def _initial(setting: Setting) -> Heads | None:
    """Where the setting starts, as heads."""
    if setting.initial is None:
        return None
    r, d = setting.recipe, setting.x.shape[1]
    theta = setting.initial.view(1, r.outputs, d + r.bias)
    bias = theta[..., d] if r.bias else theta.new_zeros(1, r.outputs)
    return Heads(theta[..., :d], bias)
