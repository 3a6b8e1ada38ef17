"""The configuration of `safexplain canaries`, dp.toml: a training with DP, its data and its claim, a table each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from safexplain._privacy_loss import Adjacency, Sampling, Steps
from safexplain._validate import from_table, read_toml
from safexplain.audit.canaries.setting import Setting
from safexplain.dp.accounting import noise_multiplier as calibrated
from safexplain.dp.heads.closed_form import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping
from safexplain.errors import ConfigurationError, InputError
from safexplain.loading.data.load import load_records
from safexplain.verdict.canaries.claim import Claim


@dataclass(frozen=True)
class Data:
    """Table [data]: the records that are trained on."""

    file: str  # .npz with x (n, ...) and y (n,), CSV or Parquet; looked for beside the configuration
    label: str = ""  # label column of a table
    auxiliary: str = ""  # other records in the same form, from which the natural canary is chosen
    classes: int = 0  # 0: as many as the labels of `file` show


@dataclass(frozen=True)
class Training:
    """Table [training]: how it is trained."""

    steps: int
    batch_size: float  # expected; over the records it is the sample rate, and what sums are divided by
    clip: float = 0.0  # bound C on the norm of an example's gradient; 0: 1, or that of a function's optimizer
    clipping: str = "flat"  # or "auto-s"
    noise_multiplier: float = 0.0  # standard deviation of the noise over C; 0: calibrated to the claim's epsilon
    optimizer: HeadOptimizer = "sgd"
    lr: float = 0.001
    momentum: float = 0.0
    l2: float = 0.0
    bias: bool = True
    one_logit: bool = False  # for two classes, one vector of weights
    function: str = ""  # "package.module:function", instead of all this but steps, batch size and noise


@dataclass(frozen=True)
class Promise:
    """Table [claim]: what the training is said to keep."""

    delta: float
    epsilon: float = 0.0  # 0: as accounted
    adjacency: Adjacency = "substitute"
    sampling: Sampling = "poisson"  # or "full-batch"


@dataclass(frozen=True, eq=False)
class CanaryConfig:
    """A configuration with its data loaded."""

    name: str
    x: Tensor
    y: Tensor
    auxiliary: tuple[Tensor, Tensor] | None
    classes: int
    training: Training
    claim: Claim

    def setting(self) -> Setting:
        """What can be trained side by side."""
        t, m = self.training, self.claim.mechanism
        assert m is not None
        if t.clipping not in ("flat", "auto-s"):
            raise ConfigurationError(f"clipping: expected flat or auto-s, got {t.clipping!r}")
        clipping = (FlatClipping if t.clipping == "flat" else AutoSClipping)(t.clip or 1.0)
        recipe = HeadRecipe(
            self.classes, t.steps, m.sample_rate, t.batch_size, clipping, lr=t.lr, optimizer=t.optimizer,
            momentum=t.momentum, l2=t.l2, bias=t.bias, one_logit=t.one_logit,
        )  # fmt: skip
        flat = None if self.auxiliary is None else (self.auxiliary[0].flatten(1), self.auxiliary[1])
        return Setting(self.name, self.x.flatten(1), self.y, recipe, self.claim, flat)


def load_canary_config(path: Path) -> CanaryConfig:
    """Read a configuration and its data."""
    content = read_toml(path, "configuration")
    if unknown := content.keys() - {"claim", "data", "training"}:
        raise ConfigurationError(f"{path}: unknown table {sorted(unknown)}; known are claim, data and training")
    data = from_table(Data, content.get("data", {}), f"{path}: [data]")
    training = from_table(Training, content.get("training", {}), f"{path}: [training]")
    promise = from_table(Promise, content.get("claim", {}), f"{path}: [claim]")
    x, y, names = load_records(path.parent / data.file, label=data.label or "label")
    auxiliary = _auxiliary(path.parent / data.auxiliary, data.label, names) if data.auxiliary else None
    if data.classes and int(y.max()) >= data.classes:
        raise InputError(f"{path}: classes = {data.classes}, but {data.file} has labels up to {int(y.max())}")
    claim = Claim(
        _mechanism(training, promise, len(x)), promise.delta, promise.epsilon or None, adjacency=promise.adjacency
    )
    classes = data.classes or max(2, int(y.max()) + 1)
    own = torch.from_numpy(x), torch.from_numpy(y)
    return CanaryConfig(path.stem, *own, auxiliary, classes, training, claim)


def _mechanism(training: Training, promise: Promise, records: int) -> Steps:
    """What is trained, its noise calibrated where it is not given; the sample rate is of the data trained on."""
    if not 0 < training.batch_size <= records:
        raise ConfigurationError(
            f"batch_size: expected more than 0 and at most the {records:,} records, got {training.batch_size:g}"
        )
    q = training.batch_size / records
    sampling: Sampling = "full-batch" if q == 1 else promise.sampling
    sigma = training.noise_multiplier
    if not sigma:
        if not promise.epsilon:
            raise ConfigurationError("give [training] noise_multiplier, or [claim] epsilon to have it calibrated")
        sigma = calibrated(promise.epsilon, q, training.steps, promise.delta, promise.adjacency, sampling=sampling)
    return Steps(sigma, q, training.steps, sampling)


def _auxiliary(path: Path, label: str, names: tuple[str, ...] | None) -> tuple[Tensor, Tensor]:
    """Other records, their labels numbered as those of the data."""
    x, y, theirs = load_records(path, label=label or "label")
    if theirs != names:
        if theirs is None or names is None or set(theirs) - set(names):
            got = f"{names or 'numbers'}; got {theirs or 'numbers'}"
            raise InputError(f"labels of {path.name}: expected those of the data, {got}")
        y = np.array([names.index(name) for name in theirs])[y]
    return torch.from_numpy(x), torch.from_numpy(y)
