"""Trainings of paper C's sizes on given records, and their scores, kept on disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._privacy_loss import Steps, noise_multiplier
from safexplain.audit.canaries.canary import Canary, GradientCanary, Reference, make_canary
from safexplain.audit.canaries.run import Setting, reference, train_runs
from safexplain.dp.heads import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.verdict.canaries.result import Claim, ScenarioName, Scores

from ...shared.run import Progress, code_of, write_arrays
from .mlp import MLPSetting

EPSILON, DELTA = 10.0, 1e-5
"""Under substitution, as in the paper."""
SCORING = tuple(f"safexplain.audit.canaries.{name}" for name in ("canary", "run"))
"""What scores depend on, with all that these modules import."""


@dataclass(frozen=True)
class Training:
    """What the paper's table A1 says of a training, but the sample rates."""

    classes: int  # of the records
    steps: int  # T
    lr: float  # learning rate
    clip: float  # C
    optimizer: HeadOptimizer = "sgd"  # of which DP makes DP-SGD or DP-Adam
    hidden: tuple[int, ...] = ()  # widths of hidden layers
    bias: bool = True  # whether there is a constant
    one_logit: bool = False  # one vector of weights for two classes

    def setting(
        self, name: str, x: Tensor, y: Tensor, rate: float, auxiliary: tuple[Tensor, Tensor] | None = None
    ) -> Setting:
        """On these records, with the noise for `EPSILON`."""
        mechanism = Steps(noise_multiplier(EPSILON, rate, self.steps, DELTA), rate, self.steps)
        recipe = HeadRecipe(
            classes=self.classes, steps=self.steps, sample_rate=rate, expected_batch_size=rate * len(x),
            clipping=FlatClipping(self.clip), lr=self.lr, optimizer=self.optimizer, bias=self.bias,
            one_logit=self.one_logit,
        )  # fmt: skip
        if self.hidden:
            return MLPSetting(name, x, y, recipe, Claim(mechanism, DELTA), auxiliary, hidden=self.hidden)
        return Setting(name, x, y, recipe, Claim(mechanism, DELTA), auxiliary)


@dataclass(frozen=True, eq=False)
class Task:
    """Trainings at several sample rates, and how they are audited."""

    settings: Mapping[float, Setting]  # by sample rate
    scenarios: tuple[ScenarioName, ...]  # canaries
    every: int  # steps between audits
    runs: int  # R, on D and D' together, of each canary and rate
    repeats: int = 1  # of each, with other noise and batches
    about: Mapping[str, Any] = field(default_factory=dict)  # what else is recorded

    def to_dict(self) -> dict[str, Any]:
        """Without the data."""
        one = next(iter(self.settings.values()))
        described = {k: v for k, v in one.describe().items() if k not in CHANGES}
        return {**described, "every": self.every, "runs": self.runs, "repeats": self.repeats, **self.about}


CHANGES = ("name", "noise_multiplier", "sample_rate", "expected_batch_size")
"""What of a setting's description differs between sample rates."""


def key_of(setting: Setting, every: int, runs: int) -> str:
    """Of everything that decides scores but the canary and the repeat: training, data and code."""
    code = code_of(__package__, *SCORING)
    h = hashlib.sha256(json.dumps([dict(setting.describe()), every, runs, setting.x.device.type, code]).encode())
    for tensor in (setting.x, setting.y, *(setting.auxiliary or ())):
        h.update(tensor.cpu().contiguous().numpy().tobytes())
    return h.hexdigest()[:24]


class Adversary:
    """Canaries of one setting, all from one reference training, which is done when it is first needed."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @cached_property
    def known(self) -> Reference:
        """What the adversary's own training found."""
        s = self.setting
        return reference(s.network, s.x, s.y, s.recipe, generator=torch.Generator(s.x.device).manual_seed(1))

    def canary(self, scenario: ScenarioName) -> Canary:
        """Of a scenario."""
        s, generator = self.setting, torch.Generator(self.setting.x.device).manual_seed(2)
        return make_canary(scenario, s.network, s.x, s.y, self.known, auxiliary=s.auxiliary, generator=generator)


def scored(task: Task, adversary: Adversary, scenario: ScenarioName, folder: Path, prefix: str) -> list[Path]:
    """Files of scores, one a repeat, each with the seconds that it took and what the canary is."""
    setting = adversary.setting
    key = key_of(setting, task.every, task.runs)
    paths = [folder / f"{key}.{scenario}.{repeat}.npz" for repeat in range(task.repeats)]
    if all(path.is_file() for path in paths):
        return paths
    canary = adversary.canary(scenario)
    if isinstance(canary, GradientCanary):
        about: dict[str, Any] = {"target": canary.target, "coordinate": canary.coordinate}
    else:
        about = {"target": canary.target, "label": canary.y, "cosine": canary.cosine, "norms": canary.norms}
    for repeat, path in enumerate(paths):
        if path.is_file():
            continue
        start = time.perf_counter()
        seeded = torch.Generator(setting.x.device).manual_seed(seed(setting, scenario, repeat))
        pieces = folder / "pieces" if setting.x.is_cuda else None  # on a CPU, sizes are such that a cell takes minutes
        scores = train_runs(
            setting.network, setting.x, setting.y, canary, setting.recipe, runs=task.runs, every=task.every,
            noise_multiplier=setting.mechanism.noise_multiplier, generator=seeded, cache=pieces,
            progress=Progress(f"{prefix} {scenario}, repeat {repeat + 1}: "),
        )  # fmt: skip
        facts = json.dumps({"canary": about, "seconds": time.perf_counter() - start})
        write_arrays(
            path, {"steps": np.array(scores.steps), "d": scores.d, "d_prime": scores.d_prime, "facts": np.array(facts)}
        )
    return paths


def seed(setting: Setting, scenario: str, repeat: int) -> int:
    """Of the trainings of one cell and repeat."""
    named = f"{setting.name} {setting.mechanism.sample_rate} {scenario} {repeat}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:6], "little")


def scores_of(path: Path) -> Scores:
    """What is stored of the runs of one cell and repeat."""
    with np.load(path, allow_pickle=False) as file:
        return Scores(tuple(file["steps"].tolist()), file["d"], file["d_prime"])


def facts_of(path: Path) -> dict[str, Any]:
    """What is stored beside scores."""
    with np.load(path, allow_pickle=False) as file:
        return dict(json.loads(str(file["facts"])))
