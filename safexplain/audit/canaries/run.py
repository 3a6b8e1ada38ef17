"""Canaries for linear heads on fixed features, many trainings side by side (arXiv 2511.21804, algorithm 1): the
adversary's reference trainings without noise (algorithms 2 to 5), the runs on D and D', and presets."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor

from safexplain._digest import code_digest, digest
from safexplain._files import FileStore, read_arrays, write_npz
from safexplain._privacy_loss import Steps, noise_multiplier
from safexplain._progress import Progress, silent
from safexplain._validate import check_number
from safexplain.audit.canaries.canary import (
    FOR_FUNCTIONS,
    Canary,
    GradientCanary,
    Model,
    Reference,
    at_least_single,
    check_data,
    check_records,
    check_target,
    make_canary,
    record_scores,
    two_logits,
)
from safexplain.dp.heads import Batch, HeadRecipe, Rows, clipped_sum, common_batches, separate_batches
from safexplain.dp.sgd.clipping import Clipping, FlatClipping
from safexplain.dp.sgd.sampling import gaussian
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

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearHead:
    """Linear heads; each row of theta (runs, P) is a matrix (out, in + 1) whose last column is the bias."""

    features: int
    classes: int
    bias: bool = True
    one_logit: bool = False  # for two classes, one vector of weights (logistic regression) instead of two

    @property
    def outputs(self) -> int:
        """Rows of the weight matrix."""
        return 1 if self.one_logit else self.classes

    @property
    def parameters(self) -> int:
        """Number P of parameters."""
        return self.outputs * (self.features + self.bias)

    @property
    def numbers_per_row(self) -> int:
        """Numbers per row of a batch: logits, residuals, scaled residuals, norms and factors."""
        return 3 * self.outputs + 4

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) zeros; the generator is not used."""
        return torch.zeros(runs, self.parameters, device=device, dtype=dtype)

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """(runs, P) sums of the examples' clipped gradients; weights (runs, b), or (1, b), are factors on them."""
        return clipped_sum(self._matrices(theta), rows, weight, clipping).flatten(1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (runs, P) and x (n, d) -> (runs, n, outputs)."""
        return affine(self._matrices(theta), x, self.bias)

    def _matrices(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.outputs, self.features + self.bias)


def affine(matrices: Tensor, x: Tensor, bias: bool) -> Tensor:
    """(runs, out, columns) and (n, d) -> (runs, n, out)."""
    weight = matrices[..., : x.shape[1]]
    flat = (x @ weight.reshape(-1, x.shape[1]).T).view(len(x), *matrices.shape[:2]).transpose(0, 1)
    return flat + matrices[:, None, :, -1] if bias else flat


_BATCHES, _COINS, _NOISE, START = range(4)


class KeyedDraws:
    """Poisson sampling and Gaussian noise, as functions of a seed and, except for batches, of the block of runs."""

    def __init__(self, seed: int, block: int, sample_rate: float, steps: int, device: torch.device) -> None:
        self.sample_rate, self.steps = sample_rate, steps
        self._batches = stream(device, seed, _BATCHES, 0)
        self._coins = stream(device, seed, _COINS, block)
        self._noise = stream(device, seed, _NOISE, block)

    def batches(self, records: int) -> Iterator[Batch]:
        """The other records' part of each step's batch, the same for all runs."""
        if not records:
            return ((None, None) for _ in range(self.steps))
        members = torch.ones(1, records, dtype=torch.bool, device=self._batches.device)
        return separate_batches(self.sample_rate, members, self.steps, self._batches)

    def coins(self, runs: int) -> Tensor:
        """(runs,) bool, each True with probability q."""
        drawn = torch.rand(runs, generator=self._coins, device=self._coins.device, dtype=torch.float64)
        return drawn < self.sample_rate

    def noise(self, like: Tensor, std: float) -> Tensor:
        """Noise of the shape of `like` and standard deviation `std`."""
        return gaussian(like, std, self._noise, float_safe=False)


def stream(device: torch.device, *key: int) -> torch.Generator:
    """A generator that depends only on its key."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return torch.Generator(device=device).manual_seed(seed)


@dataclass(frozen=True, eq=False)
class Inserted:
    """What joins each run's batch by that run's coin: record z on D and z' on D', or a gradient at a parameter."""

    x: Tensor  # (2, d): z, z'; none for a gradient
    y: Tensor  # (2,)
    on_d: Tensor  # (runs,) bool
    coordinate: int = 0  # of the gradient, flat; it is +C on D and -C on D'


class FinishedRuns:
    """Arrays by the number of a run, or of a block of runs, in files in the folder (None: in memory) named by a key."""

    def __init__(self, folder: str | Path | None, key: str) -> None:
        self.folder, self._memory = folder, dict[int, Array]()
        self._files, self._key = None if folder is None else FileStore(folder, "finished runs"), key

    def load(self, number: int) -> Array | None:
        """The stored array, or None."""
        if self._files is None:
            return self._memory.get(number)
        return self._files.load(f"{self._key}-{number}.npz", lambda path: read_arrays(path, "values")["values"])

    def save(self, number: int, values: Array) -> None:
        """Store an array atomically."""
        if self._files is None:
            self._memory[number] = values
        else:
            self._files.save(f"{self._key}-{number}.npz", lambda path: write_npz(path, {"values": values}))


_PARAMETERS = {"cpu": 2**19, "cuda": 2**24}
"""Parameters of all runs of a block: they fit a processor's cache, or keep a GPU busy."""
_NUMBERS = {"cpu": 2**27, "cuda": 2**28}  # most numbers of the rows that are computed together, in all runs of a block


@dataclass(frozen=True)
class Block:
    """Runs [first, last), whose randomness is a function of seed and number."""

    number: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


def blocks_of(runs: int, parameters: int, device: torch.device) -> list[Block]:
    """Blocks, whose size depends only on the model and the kind of device."""
    size = max(2, _PARAMETERS.get(device.type, _PARAMETERS["cpu"]) // parameters)
    return [Block(i, first, min(first + size, runs)) for i, first in enumerate(range(0, runs, size))]


def rows_at_once(runs: int, numbers_per_row: int, device: torch.device) -> int:
    """Rows of a batch that are computed together, at least one."""
    return max(1, _NUMBERS.get(device.type, _NUMBERS["cpu"]) // (runs * numbers_per_row))


Tick = Callable[[float], None]  # receives the share of a block that is done
TrainBlock = Callable[[Block, torch.device, Tick], Array]


def train_blocks(
    blocks: Sequence[Block], train: TrainBlock, devices: Sequence[torch.device], store: FinishedRuns, progress: Progress
) -> list[Array]:
    """The arrays of all blocks; missing ones are trained on the devices, a thread each, and stored."""
    found = {block: values for block in blocks if (values := store.load(block.number)) is not None}
    missing = [block for block in blocks if block not in found]
    shares = {block: float(block in found) for block in blocks}
    total, lock = sum(map(len, blocks)), threading.Lock()

    def report(block: Block, share: float) -> None:
        with lock:
            shares[block] = share
            progress("training", sum(len(b) * s for b, s in shares.items()), total)

    def work(block: Block, device: torch.device) -> None:
        found[block] = train(block, device, partial(report, block))
        store.save(block.number, found[block])
        report(block, 1.0)

    tasks = [delayed(work)(block, devices[i % len(devices)]) for i, block in enumerate(missing)]
    Parallel(min(len(devices), len(missing) or 1), backend="threading")(tasks)
    return [found[block] for block in blocks]


TRAINERS = ("safexplain.audit.canaries.run",)
"""Modules whose code, with the code that they import, stored blocks depend on."""


def train_runs(
    network: LinearHead,
    x: Tensor,
    y: Tensor,
    canary: Canary,
    recipe: HeadRecipe,
    *,
    noise_multiplier: float,
    runs: int,
    every: int,
    generator: torch.Generator,
    initial: Tensor | None = None,
    cache: str | Path | None = None,
    devices: Sequence[torch.device | str] | None = None,
    progress: Progress = silent,
) -> Scores:
    """Train runs on D, with record z = row `canary.target`, and on D', with z' in its place, and score them.

    The canary joins each run's batch by that run's own coin, with probability `recipe.sample_rate` at each step. Runs
    differ in coins, in noise and, unless `initial` (P,) or (runs, P) is given, in their start. They share one Poisson
    sample of the other records at each step, given which runs are independent, and the claimed guarantee and its
    dominating pair hold. Scores do not depend on the number of `devices` (None: that of x). Finished blocks are stored
    in the folder `cache`. Even runs are on D.

    InputError: an unusable canary, or diverged weights. ConfigurationError: too few runs, or `every` out of range.
    """
    if runs < 2:
        raise ConfigurationError(f"runs: expected at least 2, one on D and one on D', got {runs}")
    if not 1 <= every <= recipe.steps:
        raise ConfigurationError(f"every: expected 1 to {recipe.steps}, the steps, got {every}")
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    initial = None if initial is None else initial.reshape(-1, network.parameters)
    job = Job(network, at_least_single(x), y, canary, recipe, noise_multiplier, runs, seed, initial)
    steps = [*range(every, recipe.steps, every), recipe.steps]

    def train(block: Block, device: torch.device, tick: Tick) -> Array:
        theta, found = job.start(block, device), list[Tensor]()
        start = theta.clone()
        for step in job.train(block, theta, tick):
            if step == steps[len(found)]:
                found.append(job.scores(theta, step, start))
        return np.asarray(torch.stack(found).double().cpu())

    places = [torch.device(d) for d in devices or [x.device]]
    kinds = {place.type for place in places}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"devices: expected devices of one kind, got {sorted(kinds)}, whose random numbers differ"
        )
    key = ""
    if cache is not None:
        everything = {**vars(job), "network": [type(network).__name__, vars(network)]}
        key = digest(everything, steps, kinds, torch.get_float32_matmul_precision(), code_digest(*TRAINERS))
    blocks = blocks_of(runs, network.parameters, places[0])
    values = train_blocks(blocks, train, places, FinishedRuns(cache, key), progress)
    together = np.concatenate(values, axis=1)
    return Scores(tuple(steps), together[:, ::2], together[:, 1::2])


@dataclass(frozen=True, eq=False)
class Job:
    """The part that all blocks of runs share; InputError, ConfigurationError: an unusable canary."""

    network: LinearHead
    x: Tensor  # (n, d) features of all records, whose precision the training has
    y: Tensor  # (n,)
    canary: Canary
    recipe: HeadRecipe
    noise_multiplier: float
    runs: int
    seed: int  # of all randomness
    initial: Tensor | None  # (1, P) or (runs, P)

    def __post_init__(self) -> None:
        canary = self.canary
        check_target(canary.target, len(self.x))
        if not isinstance(canary, GradientCanary):
            if canary.scenario == "outlier":
                raise ConfigurationError(FOR_FUNCTIONS)
            check_records("canary", self.network, canary.x[None], torch.tensor([canary.y]))
            return
        if not 0 <= canary.coordinate < self.network.parameters:
            raise InputError(f"coordinate: expected 0 to {self.network.parameters - 1}, got {canary.coordinate}")
        if canary.drift is not None and canary.drift.shape != (self.recipe.steps + 1,):
            raise InputError(f"drift: expected shape ({self.recipe.steps + 1},), got {tuple(canary.drift.shape)}")

    def start(self, block: Block, device: torch.device) -> Tensor:
        """(runs of the block, P) before the first step."""
        dtype = self.x.dtype
        if self.initial is None:
            return self.network.initial(len(block), stream(device, self.seed, START, block.number), device, dtype)
        own = self.initial if len(self.initial) == 1 else self.initial[block.first : block.last]
        return own.to(device, dtype).expand(len(block), -1).clone()

    def train(self, block: Block, theta: Tensor, tick: Tick) -> Iterator[int]:
        """Train a block, stopping after each step; theta changes in place. InputError: the weights diverged."""
        kept = torch.ones(len(self.x), dtype=torch.bool)
        kept[self.canary.target] = False
        others = (t[kept.to(t.device)].to(theta.device) for t in (self.x, self.y))
        rows = Rows.of(next(others), next(others).long(), bias=self.network.bias)
        at_once = rows_at_once(len(block), self.network.numbers_per_row, theta.device)
        draws = KeyedDraws(self.seed, block.number, self.recipe.sample_rate, self.recipe.steps, theta.device)
        every, inserted = max(1, self.recipe.steps // 100), self._inserted(block, theta)
        training = steps_of(self.network, rows, inserted, self.recipe, self.noise_multiplier, theta, draws, at_once)
        for step in training:
            yield step
            if step % every == 0:
                tick(step / self.recipe.steps)
        if not bool(theta.isfinite().all()):
            raise InputError("the weights of a run are NaN or infinite: training diverged; lower the learning rate")

    def scores(self, theta: Tensor, step: int, start: Tensor) -> Tensor:
        """(runs of the block,), higher on D, from the parameters after a step and before the first: a gradient moves
        its parameter down on D and up on D'. Without the drift, scores are centred on 0."""
        canary = self.canary
        if isinstance(canary, GradientCanary):
            drift = 0.0 if canary.drift is None else canary.drift[step].to(theta)
            return drift - (theta[:, canary.coordinate] - start[:, canary.coordinate])
        logits = self.network.logits(theta, self._pair(canary.x).to(theta))
        return record_scores(logits[:, 0], logits[:, 1], int(self.y[canary.target]), canary.y, canary.scenario)

    def _inserted(self, block: Block, theta: Tensor) -> Inserted:
        canary, on_d = self.canary, torch.arange(block.first, block.last, device=theta.device) % 2 == 0
        if isinstance(canary, GradientCanary):
            return Inserted(theta.new_zeros(0, self.x.shape[1]), on_d[:0].long(), on_d, canary.coordinate)
        labels = torch.tensor([int(self.y[canary.target]), canary.y], device=theta.device)
        return Inserted(self._pair(canary.x).to(theta), labels, on_d)

    def _pair(self, x: Tensor) -> Tensor:
        return torch.stack([self.x[self.canary.target], x.to(self.x)])


def steps_of(
    network: LinearHead,
    others: Rows,
    inserted: Inserted,
    recipe: HeadRecipe,
    noise_multiplier: float,
    theta: Tensor,
    draws: KeyedDraws,
    rows_at_once: int,
) -> Iterator[int]:
    """Train theta (runs, P) in place by DP-SGD or DP-Adam, stopping after each step with its number, from 1.

    All runs share `others`, the records except the target, which `inserted` replaces. `rows_at_once` bounds the memory.
    """
    runs, records, rows = len(theta), len(others.x), others
    if len(inserted.x):
        new = Rows.of(inserted.x, inserted.y, bias=network.bias)
        pairs = ((others.x, new.x), (others.labels, new.labels), (others.norms, new.norms))
        rows = Rows(*(torch.cat(pair) for pair in pairs))
    update = recipe.make_update(theta)
    std = noise_multiplier * recipe.clipping.bound if recipe.clipping is not None else 0.0
    for step, (index, weight) in enumerate(draws.batches(records), 1):
        coins = draws.coins(runs)
        if len(inserted.x):
            count = records if index is None else len(index)
            everyone = torch.ones(1, 1, dtype=torch.bool, device=theta.device) if weight is None else weight
            pair = torch.stack([coins & inserted.on_d, coins & ~inserted.on_d], 1)
            weight = torch.cat([everyone.expand(runs, count), pair], 1)
            if index is not None:
                index = torch.cat([index, torch.arange(records, len(rows.x), device=index.device)])
        total = _clipped_sum(network, theta, rows, index, weight, recipe, rows_at_once)
        if not len(inserted.x) and recipe.clipping is not None:
            gradients = recipe.clipping.bound * (2 * inserted.on_d.to(theta) - 1)
            total[:, inserted.coordinate] += gradients * coins
        if std:
            total.add_(draws.noise(theta, std))
        update(total.div_(recipe.expected_batch_size))
        yield step


def _clipped_sum(
    network: LinearHead,
    theta: Tensor,
    rows: Rows,
    index: Tensor | None,
    weight: Tensor | None,
    recipe: HeadRecipe,
    at_once: int,
) -> Tensor:
    count, total = len(rows.x) if index is None else len(index), None
    for first in range(0, max(1, count), at_once):
        part = slice(first, first + at_once)
        some = Rows(rows.x[part], rows.labels[part], rows.norms[part]) if index is None else rows.take(index[part])
        found = network.clipped_sum(theta, some, None if weight is None else weight[:, part], recipe.clipping)
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


_READS = 100  # approximate number of times that the confidence is computed in a training
_ROWS = 2**14  # records whose confidence is computed together


def reference(
    network: LinearHead,
    x: Tensor,
    y: Tensor,
    recipe: HeadRecipe,
    *,
    generator: torch.Generator,
    initial: Tensor | None = None,
    movement: bool = True,
) -> Reference:
    """Train without noise and clipping and, for a gradient canary (`movement`), with clipping and without the target;
    InputError: the parameters diverged."""
    x, y = at_least_single(x), y.long()
    start = network.initial(1, generator, x.device, x.dtype) if initial is None else initial.to(x).reshape(1, -1)
    rows = Rows.of(x, y, bias=network.bias)

    every, theta = max(1, recipe.steps // _READS), start
    confidence = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for step, theta in enumerate(_training(network, rows, replace(recipe, clipping=None), start, None, generator), 1):
        if step % every == 0:
            confidence += true_class_probability(network, theta, x, y)
    confidence /= recipe.steps // every
    bound = None if recipe.clipping is None else recipe.clipping.bound
    found = Reference(theta[0], int(confidence.argmin()), confidence, bound)
    if not bool(theta.isfinite().all()):
        raise InputError("the reference training diverged to NaN or infinity; lower the learning rate")
    if not movement:
        return found
    state, moved, before = generator.get_state(), torch.zeros_like(start[0]), start[0].clone()
    for theta in _training(network, rows, recipe, start, found.target, generator):
        moved += (theta[0] - before).abs()
        before.copy_(theta[0])
    found = replace(found, movement=moved)
    if recipe.optimizer == "adam":
        return found
    generator.set_state(state)  # again, as all parameters at all steps may not fit into memory
    at, drift = found.least_moving, [torch.zeros_like(start[0, 0])]
    for theta in _training(network, rows, recipe, start, found.target, generator):
        drift.append(theta[0, at] - start[0, at])
    return replace(found, drift=torch.stack(drift))


def true_class_probability(network: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(n,) float64 probability of each record's true class under one model, theta (1, P)."""
    found = []
    for inputs, labels in zip(torch.split(x, _ROWS), torch.split(y, _ROWS), strict=True):
        with torch.no_grad():
            logits = two_logits(network.logits(theta, inputs)[0].double())
        found.append(logits.softmax(1).gather(1, labels[:, None])[:, 0])
    return torch.cat(found)


def least_confident(confidence: Tensor, y: Tensor) -> dict[int, int]:
    """Class -> row of its record with the least confidence (n,), NaN being least; the rarest class first."""
    order = torch.where(confidence.isnan(), -torch.inf, confidence)
    classes, counts = torch.unique(y, return_counts=True)
    rarest = counts.argsort(stable=True)
    return {int(c): int(torch.where(y == c, order, torch.inf).argmin()) for c in classes[rarest]}


def _training(
    network: LinearHead, rows: Rows, recipe: HeadRecipe, start: Tensor, excluded: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """The parameters (1, P) after each step of a training without noise, one tensor that changes in place."""
    theta = start.clone()
    update = recipe.make_update(theta)
    members = torch.ones(1, len(rows.x), dtype=torch.bool, device=rows.x.device)
    if excluded is not None:
        members[0, excluded] = False
    for index, weight in common_batches(recipe.sample_rate, members, recipe.steps, generator):
        batch = rows if index is None else rows.take(index)
        total = network.clipped_sum(theta, batch, weight, recipe.clipping)
        update(total.div_(recipe.expected_batch_size))
        yield theta


@dataclass(frozen=True, eq=False)
class Setting:
    """Data, network, training and the claim of the training.

    Args:
        name: for readers.
        x: (n, d) floating-point features, as the training sees them.
        y: (n,) class indices.
        recipe: of the training.
        claim: its mechanism is that of the training.
        auxiliary: (x, y) records outside the training data, for the natural canary.
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
        """The mechanism of the claim and of the training; ConfigurationError: there is none."""
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
        """Training and data as plain values by name."""
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
    """Values besides those of arXiv 2511.21804, table A1."""

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
    """A training by name; ConfigurationError: unknown."""
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
"""A number fixed beforehand; "split": chosen on 30 % of the runs; "auto": 0 if scores are centred on 0 by construction
(worst-case; gradient with SGD, whose drift is known), otherwise "split"."""


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
        devices: several that share the runs, instead of `device`.
        cache: folder for finished runs, from which an interrupted audit resumes.
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
    """The canary of a scenario, on the setting's device."""
    if target is not None:
        check_target(target, len(setting.x))
    progress("crafting", 0, 1)
    generator, trained = generator_of(seed, "craft", setting.x.device), (setting.network, setting.x, setting.y)
    found = reference(
        *trained, setting.recipe, generator=generator, initial=setting.initial, movement=scenario == "gradient"
    )
    if target is not None:
        found = replace(found, target=target)
    made = make_canary(scenario, *trained, found, auxiliary=setting.auxiliary, generator=generator)
    progress("crafting", 1, 1)
    return made


def worst_case_scores(mechanism: Steps, runs: int, *, every: int | None = None, rng: np.random.Generator) -> Scores:
    """The sum of all noisy gradients at the end, in units of C; with `every`, also after every so many steps.

    For the worst pair of data sets, where the record's gradient is +C, its canary's -C, and all others are 0, no
    training is needed: after t steps the sum is +k or -k, k ~ Binomial(t, q), plus N(0, t sigma^2). The paper's score
    (arXiv 2511.21804, equation 3) rises with it. Half of the runs are on D.
    """
    if runs < 4 or runs % 2:
        raise ConfigurationError(f"runs: expected an even number of at least 4, half for D and half for D'; got {runs}")
    if mechanism.noise_multiplier == 0 or mechanism.steps == 0:
        raise ConfigurationError(
            "mechanism: expected noise and at least one step for the worst case; without them there is no claim"
        )
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
    """The threshold as "auto", "split" or a finite number, which may come as text; else ConfigurationError."""
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
    """A generator for each purpose."""
    digest = hashlib.sha256(f"canaries {purpose} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "little"))
