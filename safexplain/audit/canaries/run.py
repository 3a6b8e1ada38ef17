"""The audit of a training whose runs can be computed side by side, a linear head on fixed features, and presets."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from safexplain._privacy_loss import Steps
from safexplain._progress import Progress, silent
from safexplain._validate import check_number
from safexplain.audit.canaries.batched import LinearHead, reference, train_runs
from safexplain.audit.canaries.canary import (
    FOR_FUNCTIONS,
    Canary,
    GradientCanary,
    check_data,
    check_records,
    check_target,
    make_canary,
)
from safexplain.dp.accounting import noise_multiplier
from safexplain.dp.heads.closed_form import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.result import (
    CanaryResult,
    Claim,
    ScenarioName,
    Scores,
    check_method,
    judge,
    scenario_of,
)
from safexplain.verdict.stats.lower_bounds import BoundMethod


@dataclass(frozen=True, eq=False)
class Setting:
    """Data, network, training and the claim of the training.

    Args:
        name: for readers.
        x: (n, d) floating-point features, as the training sees them.
        y: (n,) class indices.
        recipe: of the training.
        claim: its mechanism has the sample rate and steps of `recipe`, and the noise multiplier of the training.
        auxiliary: (x, y) records outside the training data, from which the natural canary is chosen.
        initial: (P,) initial parameters of all runs, each row of weights followed by its bias; None: zeros.

    Raises:
        ConfigurationError: recipe and claim contradict each other.
        InputError: the data do not fit.
    """

    name: str
    x: Tensor
    y: Tensor
    recipe: HeadRecipe
    claim: Claim
    auxiliary: tuple[Tensor, Tensor] | None = None
    initial: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.dim() != 2 or not self.x.is_floating_point():
            raise InputError(
                f"x: expected floating-point features (n, d), got {self.x.dtype} of shape {tuple(self.x.shape)}"
            )
        check_data(self.network, self.x, self.y)
        if self.auxiliary is not None:
            check_records("auxiliary records", self.network, *self.auxiliary)
        if self.initial is not None and self.initial.shape != (self.network.parameters,):
            raise InputError(f"initial: expected {self.network.parameters} numbers, got shape {self.initial.shape}")
        m = self.mechanism
        if (m.sample_rate, m.steps) != (self.recipe.sample_rate, self.recipe.steps) or m.sampling == "fixed-size":
            raise ConfigurationError(
                f"claim: expected the mechanism of the recipe, {self.recipe.steps} steps with Poisson batches at"
                f" sample rate {self.recipe.sample_rate:g}; got {m}"
            )
        if self.recipe.clipping is None:
            raise ConfigurationError("recipe: expected a clipping, without which there is no claim; got None")

    @property
    def mechanism(self) -> Steps:
        """The mechanism of the claim and of the training.

        Raises:
            ConfigurationError: the claim has none.
        """
        if self.claim.mechanism is None:
            raise ConfigurationError("claim: expected one with a mechanism, got none; give Claim(Steps(...), delta)")
        return self.claim.mechanism

    @cached_property
    def network(self) -> LinearHead:
        """The trained network."""
        return LinearHead(self.x.shape[1], self.recipe.classes, self.recipe.bias, self.recipe.one_logit)

    def to(self, device: torch.device | str) -> Setting:
        """The setting with its data on a device."""
        auxiliary = None if self.auxiliary is None else (self.auxiliary[0].to(device), self.auxiliary[1].to(device))
        initial = None if self.initial is None else self.initial.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), auxiliary=auxiliary, initial=initial)

    def describe(self) -> Mapping[str, Any]:
        """Description of the training and data as plain values by name."""
        r, m = self.recipe, self.mechanism
        return {
            "name": self.name,
            "records": len(self.x),
            "network": f"linear head {self.x.shape[1]} - {r.outputs}, {self.network.parameters:,} parameters",
            "optimizer": f"DP-{r.optimizer.upper() if r.optimizer == 'sgd' else 'Adam'}, learning rate {r.lr:g}",
            "clipping": repr(r.clipping),
            "noise_multiplier": m.noise_multiplier,
            "sample_rate": m.sample_rate,
            "expected_batch_size": r.expected_batch_size,
            "steps": m.steps,
        }


DELTA = 1e-5

AUXILIARY = 500  # records outside the data, for the natural canary


class Preset(NamedTuple):
    """A row of the table; other values are those of arXiv 2511.21804, table A1."""

    summary: str
    records: int
    features: int
    classes: int
    one_logit: bool = False  # one vector of weights for two classes, without a constant
    lr: float = 0.001


PRESETS = {
    "logit-768": Preset("one logit on 768 features, 500 records (image features)", 500, 768, 2, one_logit=True),
    "softmax-768": Preset("10 classes on 768 features, 500 records", 500, 768, 10),
    "logit-384": Preset(
        "one logit on 384 features (sentence embeddings); 2,000 records for the paper's 55,000",
        2000, 384, 2, one_logit=True, lr=0.01,
    ),
}  # fmt: skip

EPSILON, RATE, STEPS, CLIP = 10.0, 0.25, 500, 2.0
"""Of all presets: epsilon under substitution, to which the noise is calibrated; sample rate, steps, clipping bound."""


def preset(name: str) -> Setting:
    """A training by name.

    Raises:
        ConfigurationError: unknown.
    """
    if name not in PRESETS:
        known = "; ".join(f"{key}: {row.summary}" for key, row in PRESETS.items())
        raise ConfigurationError(f"preset: expected one of {known}; got {name!r}")
    row = PRESETS[name]
    recipe = HeadRecipe(
        classes=row.classes,
        steps=STEPS,
        sample_rate=RATE,
        expected_batch_size=RATE * row.records,
        clipping=FlatClipping(CLIP),
        lr=row.lr,
        bias=not row.one_logit,
        one_logit=row.one_logit,
    )
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(row.classes, (row.records + AUXILIARY,), generator=generator)
    means = torch.randn(row.classes, row.features, generator=generator) / 4
    x = means[y] + torch.randn(len(y), row.features, generator=generator)
    claim = Claim(Steps(noise_multiplier(EPSILON, RATE, STEPS, DELTA), RATE, STEPS), DELTA)
    own, others = (x[: row.records], y[: row.records]), (x[row.records :], y[row.records :])
    return Setting(name, *own, recipe, claim, auxiliary=others)


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
        scenario: name or number of `safexplain.verdict.canaries.result.SCENARIOS`.
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
