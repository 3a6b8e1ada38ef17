"""The configuration of `safexplain canaries`, dp.toml: a training with DP, its data, its claim, and the canaries.

Each table is a dataclass; `load_canary_config` reads them with the data and makes of them what is audited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safexplain._files import ArrayFile
from safexplain._privacy_loss import Adjacency, Sampling, Steps
from safexplain._validate import from_table, read_toml
from safexplain.audit.canaries.batched.networks import Activation
from safexplain.audit.canaries.setting import Setting
from safexplain.dp.accounting.calibration import noise_multiplier as calibrated
from safexplain.dp.heads.recipe import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, FlatClipping
from safexplain.errors import ConfigurationError, InputError
from safexplain.loading.data.load import load_records
from safexplain.loading.models.architectures import imported
from safexplain.verdict.canaries.claim import Claim

__all__ = ["CanaryConfig", "Data", "Options", "Promise", "Training", "load_canary_config"]


@dataclass(frozen=True)
class Data:
    """Table [data]: the records that are trained on.

    Args:
        file: .npz with x (n, ...) and y (n,), CSV or Parquet; looked for beside the configuration.
        label: label column of a table.
        auxiliary: other records in the same form, from which the natural canary is chosen.
        classes: how many; 0: as many as the labels of `file` show.
    """

    file: str
    label: str = ""
    auxiliary: str = ""
    classes: int = 0


@dataclass(frozen=True)
class Training:
    """Table [training]: how it is trained.

    Args:
        steps: of the optimizer.
        batch_size: expected; over the records it is the sample rate, and what sums are divided by.
        clip: bound C on the norm of an example's gradient.
        clipping: "flat" or "auto-s".
        noise_multiplier: standard deviation of the noise over C; 0: calibrated to the claim's epsilon.
        optimizer: "sgd" or "adam".
        lr: learning rate.
        momentum: of SGD.
        l2: penalty on the parameters.
        hidden: widths of hidden layers; none: a linear head.
        activation: "tanh" or "relu".
        bias: of a linear head.
        one_logit: for two classes, one vector of weights.
        function: "package.module:function", a training of your own instead of all this but steps, batch size and noise.
    """

    steps: int
    batch_size: float
    clip: float = 1.0
    clipping: str = "flat"
    noise_multiplier: float = 0.0
    optimizer: HeadOptimizer = "sgd"
    lr: float = 0.001
    momentum: float = 0.0
    l2: float = 0.0
    hidden: tuple[int, ...] = ()
    activation: Activation = "tanh"
    bias: bool = True
    one_logit: bool = False
    function: str = ""


@dataclass(frozen=True)
class Promise:
    """Table [claim]: what the training is said to keep.

    Args:
        delta: of the claim.
        epsilon: as promised; 0: as accounted.
        adjacency: "substitute" or "add_remove".
        sampling: "poisson", or "full-batch" for batches of all records.
    """

    delta: float
    epsilon: float = 0.0
    adjacency: Adjacency = "substitute"
    sampling: Sampling = "poisson"


@dataclass(frozen=True)
class Options:
    """Table [canaries]: defaults of the command line's options.

    Args:
        scenario: names or numbers, separated by commas, or "all"; "": gradient, and mislabelled for a function.
        runs: on D and D' together.
        every: audit after each so many steps; 0: the released model only.
        method: of the bound.
        threshold: "auto", "split" or a number.
        confidence: of all bounds together.
        target: row of the data that is replaced, or "classes": one of every class; "": the one that the model is least
            sure of.
        canary: .npz with x and y of one record that stands in its place, looked for beside the configuration.
        score: "package.module:function" of what a training function returned -> a number, higher on D, or several.
        records: that the poison replaces.
    """

    scenario: str = ""
    runs: int = 1000
    every: int = 0
    method: str = "pld"
    threshold: str | float = "auto"
    confidence: float = 0.95
    target: str | int = ""
    canary: str = ""
    score: str = ""
    records: int = 2

    def given(self) -> tuple[Tensor, int] | None:
        """The canary of one's own, (x, y).

        Raises:
            InputError: no such record.
        """
        if not self.canary:
            return None
        with ArrayFile(self.canary) as file:
            if {"x", "y"} - {*file.names}:
                raise InputError(f"{self.canary}: expected arrays x and y of one record, got {', '.join(file.names)}")
            found = file.read("x", "y")
        x, y = found["x"], found["y"]
        if y.size != 1 or y.dtype.kind not in "iu":
            raise InputError(f"{self.canary}: expected y to be one class index, got {y.dtype} of shape {y.shape}")
        return torch.from_numpy(x[0] if y.ndim else x), int(y.reshape(()))

    def scoring(self) -> Callable[[Any], Any] | None:
        """The score of one's own.

        Raises:
            InputError: no such function.
        """
        return imported(self.score, "--score") if self.score else None


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
    options: Options

    def setting(self) -> Setting:
        """What can be trained side by side.

        Raises:
            ConfigurationError, InputError: options or data that do not fit.
        """
        t, m = self.training, self.claim.mechanism
        if m is None:
            raise ConfigurationError("the claim names no mechanism")
        recipe = HeadRecipe(
            classes=self.classes,
            steps=t.steps,
            sample_rate=m.sample_rate,
            expected_batch_size=t.batch_size,
            clipping=_clipping(t),
            lr=t.lr,
            optimizer=t.optimizer,
            momentum=t.momentum,
            l2=t.l2,
            bias=t.bias,
            one_logit=t.one_logit,
        )
        flat = None if self.auxiliary is None else (self.auxiliary[0].flatten(1), self.auxiliary[1])
        return Setting(self.name, self.x.flatten(1), self.y, recipe, self.claim, t.hidden, t.activation, flat)


def load_canary_config(path: Path) -> CanaryConfig:
    """Read a configuration and its data.

    Raises:
        InputError: a file cannot be read.
        ConfigurationError: a table or name is missing or unknown, or a value is out of range.
    """
    content = read_toml(path, "configuration")
    tables = ("canaries", "claim", "data", "training")
    if unknown := content.keys() - set(tables):
        raise ConfigurationError(f"{path}: unknown table {sorted(unknown)}; known are {list(tables)}")
    data = from_table(Data, content.get("data", {}), f"{path}: [data]")
    training = from_table(Training, content.get("training", {}), f"{path}: [training]")
    promise = from_table(Promise, content.get("claim", {}), f"{path}: [claim]")
    options = from_table(Options, content.get("canaries", {}), f"{path}: [canaries]")
    if options.canary:
        options = replace(options, canary=str(path.parent / options.canary))
    x, y, names = _records(path.parent / data.file, data.label)
    auxiliary = None
    if data.auxiliary:
        other, labels, theirs = _records(path.parent / data.auxiliary, data.label)
        auxiliary = other, _renumbered(labels, theirs, names, data.auxiliary)
    if data.classes and int(y.max()) >= data.classes:
        raise InputError(f"{path}: classes = {data.classes}, but {data.file} has labels up to {int(y.max())}")
    claim = Claim(
        _mechanism(training, promise, len(x)), promise.delta, promise.epsilon or None, adjacency=promise.adjacency
    )
    classes = data.classes or max(2, int(y.max()) + 1)
    return CanaryConfig(path.stem, x, y, auxiliary, classes, training, claim, options)


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


def _clipping(training: Training) -> Clipping:
    if training.clipping not in ("flat", "auto-s"):
        raise ConfigurationError(f"clipping: expected flat or auto-s, got {training.clipping!r}")
    return FlatClipping(training.clip) if training.clipping == "flat" else AutoSClipping(training.clip)


def _records(path: Path, label: str) -> tuple[Tensor, Tensor, tuple[str, ...] | None]:
    x, y, names = load_records(path, label=label or "label")
    return torch.from_numpy(x), torch.from_numpy(y), names


def _renumbered(y: Tensor, theirs: tuple[str, ...] | None, ours: tuple[str, ...] | None, file: str) -> Tensor:
    """Labels of the auxiliary records, numbered as those of the data."""
    if theirs == ours:
        return y
    if theirs is None or ours is None or set(theirs) - set(ours):
        raise InputError(
            f"labels of {file}: expected those of the data, {ours or 'numbers'}; got {theirs or 'numbers'}"
        )
    return torch.tensor([ours.index(name) for name in theirs])[y]
