"""A user's training function: its data sets D and D', its optimizer, its runs; and the white box.

The white box watches each step and checks that it follows the claimed mechanism. The same seeds are run on neighbouring
data sets, and later runs receive the released sums of the first (they are *replayed*), so that all go through the same
models, and every difference comes from the record.
"""

from __future__ import annotations

import inspect
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from joblib import parallel_config  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import Dataset, TensorDataset

from safexplain._digest import Undigestable, digest
from safexplain._privacy_loss import Steps
from safexplain._progress import Progress, silent
from safexplain._secure_random import ENTROPY
from safexplain._validate import check_number
from safexplain.audit.canaries.canary import (
    FAR,
    Canary,
    RecordCanary,
    from_mean,
    outlier_scores,
    probe_rows,
    record_scores,
)
from safexplain.audit.canaries.run import FinishedRuns
from safexplain.audit.references.parallel import each
from safexplain.dp.sgd.sampling import InMemory, records_of
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.canaries.result import (
    SLACK,
    Check,
    Claim,
    WhiteBoxResult,
    batches_drawn,
    noise_distribution,
    noise_independence,
    noise_size,
)

Record = tuple[Tensor, Tensor]


class NeighbouringData(Dataset[Record]):
    """The records of D or of D', with replacements `instead` of some; `fetched` notes every record that is fetched."""

    def __init__(self, data: Any, instead: Mapping[int, Record] | None = None, fetched: Fetched | None = None) -> None:
        self.data, self.instead, self.fetched = data, dict(instead or {}), fetched

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Record:
        at = range(len(self))[number]
        if self.fetched:
            self.fetched.one(at)
        return self._record(at)

    def __getitems__(self, numbers: Sequence[int]) -> list[Record]:
        """A batch, as a DataLoader fetches it."""
        found = [range(len(self))[number] for number in numbers]
        if self.fetched:
            self.fetched.batch(found)
        return [self._record(number) for number in found]

    def _record(self, number: int) -> Record:
        x, y = self.instead[number] if number in self.instead else self.data[number]
        return x.clone(), y.clone()  # training may change its batch in place


def records(data: Any) -> Any:
    """A sequence of records (x, y) of tensors, from a pair of tensors or arrays, or a map-style data set of (x, y);
    InputError: something else, no records, or several inputs a record."""
    found = records_of(data)
    if isinstance(found, InMemory):
        if not isinstance(found.x, Tensor):
            raise InputError("data: expected one input tensor per record, got several; concatenate them")
        return TensorDataset(found.x, found.y)
    return _OnDemand(data)


def stacked(data: Any) -> tuple[Tensor, Tensor]:
    """All records as x (n, ...) and y (n,)."""
    if isinstance(data, TensorDataset):
        return data.tensors[0], data.tensors[1]
    x, y = zip(*(data[i] for i in range(len(data))), strict=True)
    return torch.stack(x), torch.stack(y)


def digest_of(data: Any) -> str:
    """Digest of all records in order; a map-style data set is read once."""
    return digest(*(data.tensors if isinstance(data, TensorDataset) else (digest(*data[i]) for i in range(len(data)))))


class _OnDemand:
    """Records of a map-style data set as tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Record:
        found = self.dataset[number]
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"data: expected records (x, y), got {type(found).__name__} from the data set")
        return torch.as_tensor(found[0]), torch.as_tensor(found[1])


class Fetched:
    """Numbers of the records fetched for the next step, in order: not those fetched without gradients, and single ones
    only if no batch of a `torch.utils.data.DataLoader` was fetched."""

    def __init__(self) -> None:
        self._batches: list[int] | None = None
        self._single: list[int] = []

    def batch(self, numbers: Sequence[int]) -> None:
        """A batch of a loader."""
        if torch.is_grad_enabled():
            self._batches = [*(self._batches or []), *numbers]

    def one(self, number: int) -> None:
        """A single record."""
        if torch.is_grad_enabled():
            self._single.append(number)

    def take(self) -> list[int]:
        """Those since the last call."""
        found = self._single if self._batches is None else self._batches
        self._batches, self._single = None, []
        return found


OVER = 10.0  # norm of the canary's gradient over the bound C; correct clipping reduces it to C

_LOCK = threading.RLock()

_INSTEAD = 'audit it with a record canary (scenario="mislabelled", "crafted" or "outlier"), which needs no hook'


@contextmanager
def watched_optimizers(attach: Callable[[Any], None]) -> Iterator[None]:
    """Call `attach` on private optimizers that this thread creates meanwhile; other threads wait. Methods that it
    replaces are restored afterwards."""
    from opacus.optimizers import DPOptimizer  # a second to import, which the command line would pay at each start

    owner, attached = threading.get_ident(), list[Any]()
    with _LOCK:
        original = DPOptimizer.__init__

        def init(made: Any, /, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            if threading.get_ident() == owner:
                attached.append(made)
                attach(made)

        DPOptimizer.__init__ = init
        try:
            yield
        finally:
            DPOptimizer.__init__ = original
            for made in attached:
                for name in ("clip_and_accumulate", "add_noise"):
                    made.__dict__.pop(name, None)


def rows_of(p: Any) -> int:
    """Rows of a parameter's per-example gradients."""
    found = getattr(p, "grad_sample", None)
    return 0 if found is None else sum(map(len, found)) if isinstance(found, list) else len(found)


class GradientHook:
    """Watches the optimizer (of Opacus or `safexplain.dp`) of one training, and replaces the gradient of the record
    `target` by one along the parameter `coordinate`, up for `sign` +1 (D) and down for -1 (D').

    For the reference (coordinate None) it is 0, there is no noise, and movement is recorded. The target's row is found
    by counting the records fetched since the last step, so records may be augmented or equal.
    """

    def __init__(self, target: int, coordinate: int | None = None, sign: float = 1.0) -> None:
        self.target, self.coordinate, self.sign = target, coordinate, sign
        self.fetched = Fetched()  # filled by the data set
        self.optimizer: Any = None
        self.movement: Tensor | None = None  # (P,) sum over the steps of how far each parameter moved
        self._start: Tensor | None = None
        self._before: Tensor | None = None
        self._steps = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch optimizers that are created meanwhile; RefusedError: none took a step."""
        with watched_optimizers(self._attach):
            yield
        if not self._steps:
            raise RefusedError(
                "expected steps of an Opacus DPOptimizer, observed none: the training does not use one, created it"
                f" before it was called, or runs in another process; {_INSTEAD}"
            )
        if self.coordinate is None:
            self._add_movement()

    @property
    def moved(self) -> Tensor:
        """(P,) movement of every parameter since before the first step."""
        assert self._start is not None
        return self._flat().double() - self._start.double()

    def _attach(self, optimizer: Any) -> None:
        from opacus.optimizers import DPOptimizerFastGradientClipping

        if isinstance(optimizer, DPOptimizerFastGradientClipping):
            raise RefusedError(
                'ghost clipping has no gradients of single records to replace; train with mode="hooks"'
                f' (grad_sample_mode="hooks" in Opacus), or {_INSTEAD}'
            )
        if self.optimizer is not None:
            raise RefusedError(f"expected one DPOptimizer, got several; {_INSTEAD}")
        self.optimizer = optimizer
        self.fetched.take()  # looked at before training
        clip, add_noise = optimizer.clip_and_accumulate, optimizer.add_noise

        def replaced() -> None:
            if self._start is None:
                self._start = self._flat()
            numbers = self._rows()
            if rows := [row for row, number in enumerate(numbers) if number == self.target]:
                self._replace(rows, len(numbers))
            clip()

        def watched() -> None:
            self._steps += 1
            if self.coordinate is not None:
                add_noise()
                return
            self._add_movement()
            multiplier, optimizer.noise_multiplier = optimizer.noise_multiplier, 0.0
            try:
                add_noise()
            finally:
                optimizer.noise_multiplier = multiplier

        optimizer.clip_and_accumulate, optimizer.add_noise = replaced, watched

    def _rows(self) -> list[int]:
        rows = max(map(rows_of, self.optimizer.params))
        numbers = self.fetched.take()
        if len(numbers) == rows:
            return numbers
        if rows == 0 and any(p.summed_grad is not None for p in self.optimizer.params):
            raise RefusedError(
                "the optimizer received gradients that were already clipped and summed, as in mode ghost; train with"
                f' mode="hooks", or {_INSTEAD}'
            )
        raise RefusedError(
            f"expected gradients of the {len(numbers)} records fetched from the data set since the last step, got"
            f" {rows}, so the target's row is unknown. Fetch each batch from the data set right before its step:"
            f" DataLoader(dataset, num_workers=0), no prefetching, no copy of the data; or {_INSTEAD}"
        )

    def _replace(self, rows: list[int], batch: int) -> None:
        """Replace these rows of every parameter's gradients: by zeros, except for the canary's coordinate."""
        size = self.sign * OVER * float(self.optimizer.max_grad_norm)
        at, first = self.coordinate, 0
        for p in self.optimizer.params:
            inside = at is not None and first <= at < first + p.numel()
            if p.grad_sample is None and inside:
                p.grad_sample = p.new_zeros((batch, *p.shape))
            start = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                if g is None:
                    continue
                own = [row - start for row in rows if start <= row < start + len(g)]
                g[own] = 0.0
                if inside and at is not None:
                    g.view(len(g), -1)[own, at - first] = size
                start += len(g)
            first += p.numel()
        if at is not None and at >= first:
            raise InputError(f"coordinate {at}: expected less than {first}, as the optimizer holds {first} parameters")

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.optimizer.params])

    def _add_movement(self) -> None:
        now = self._flat()
        moved = torch.zeros_like(now) if self._before is None else (now - self._before).abs()
        self.movement = moved if self.movement is None else self.movement + moved
        self._before = now


Array = NDArray[np.float64]

READ = 8  # numbers of a bias, and of running statistics, that serve as scores besides those of outputs

SEEDED = (
    "your function seeds its noise: every run is the same. Use the given generator, as in"
    " torch.randn(shape, generator=generator), and remove torch.manual_seed. Or the function adds no noise at all"
)
"""Error if trainings with different seeds return the same bits."""

Train = Callable[[Any, torch.Generator], Any]  # (dataset, generator) -> model


class Run:
    """Trains one model with the user's function and scores it, by `score`, logits or a gradient canary's parameter."""

    def __init__(self, train: Train, data: Any, canary: Canary, score: Callable[[Any], Any] | None, seed: int) -> None:
        self.train, self.data, self.score, self.canary, self.seed = train, data, score, canary, seed
        if isinstance(canary, RecordCanary):  # to the CPU
            self.canary = replace(canary, x=canary.x.cpu())

    def __call__(self, number: int, tick: Any = None) -> Array:
        """Seconds and scores of a run, on D if its number is even; InputError: training or scoring failed."""
        began, on_d = time.monotonic(), number % 2 == 0
        side = "D" if on_d else "D'"
        seed = seed_of_run(self.seed, "a" if on_d else "b", number // 2)  # as in version 0.1
        outlier = isinstance(self.canary, RecordCanary) and self.canary.scenario == "outlier"
        try:
            with seeded(seed):
                score = self._score(on_d, seed)
            if not score or any(map(math.isnan, score)) or not (outlier or all(map(math.isfinite, score))):
                raise InputError(
                    f"score: expected a finite number, got {score[0] if len(score) == 1 else score}: training diverged,"
                    " or score= failed"
                )
        except Exception as error:
            far = "; if it refuses the outlier, give one that it accepts: canary=(x', y')"
            raise InputError(
                f"run {number // 2} on {side} (seed {seed}) stopped with {type(error).__name__}: {error}"
                f"{far if outlier and not on_d else ''}"
            ) from error
        return np.array([time.monotonic() - began, *score])

    def _score(self, on_d: bool, seed: int) -> tuple[float, ...]:
        canary = self.canary
        if not isinstance(canary, RecordCanary):
            hook = GradientHook(canary.target, canary.coordinate, 1.0 if on_d else -1.0)
            with hook.watching():
                self.train(NeighbouringData(self.data, fetched=hook.fetched), torch.Generator().manual_seed(seed))
            return ((0.0 if canary.drift is None else float(canary.drift[-1])) - float(hook.moved[canary.coordinate]),)
        z = self.data[canary.target]
        instead = (canary.x.to(z[0]), torch.as_tensor(canary.y).to(z[1]).reshape(z[1].shape))
        dataset = NeighbouringData(self.data, {} if on_d else {canary.target: instead})
        model = self.train(dataset, torch.Generator().manual_seed(seed))
        if self.score is not None:
            return tuple(np.atleast_1d(np.asarray(self.score(model), dtype=np.float64)).ravel().tolist())
        if not isinstance(model, nn.Module):
            raise InputError(f"train: expected to return a torch.nn.Module, got {type(model).__name__}; or pass score=")
        pair = torch.stack([z[0], instead[0]])
        if canary.scenario != "outlier":
            logits = logits_of(model, pair)
            score = float(record_scores(logits[:1], logits[1:], int(z[1]), canary.y, canary.scenario))
            return (score, *biases_and_statistics(model))
        others = [self.data[row] for row in probe_rows(len(self.data), canary.target)]
        logits = logits_of(model, torch.cat([pair, torch.stack([x for x, _ in others])]), finite=False)
        labels = torch.stack([y for _, y in others]).reshape(-1)
        scores = outlier_scores(logits[None, :2], logits[None, 2:], int(z[1]), canary.y, labels)[0].tolist()
        return (*scores, *biases_and_statistics(model))


def logits_of(model: nn.Module, x: Tensor, *, finite: bool = True) -> Tensor:
    """Logits (n, outputs) on the CPU, of a model in evaluation mode; InputError: another shape, or not finite."""
    parameter = next(model.parameters(), x)
    with torch.no_grad():
        found = model.eval()(in_precision(x.to(parameter.device), parameter))
    if not isinstance(found, Tensor) or found.dim() not in (1, 2) or len(found) != len(x):
        raise InputError(
            "train: expected a model that returns logits (n, classes), got"
            f" {getattr(found, 'shape', type(found).__name__)} for {len(x)} records; or pass score="
        )
    found = found.detach().double().cpu().reshape(len(x), -1)
    if finite and not bool(found.isfinite().all()):
        raise InputError(
            "train: expected finite logits, got NaN or infinity: training diverged; lower its learning rate"
        )
    return found


def in_precision(x: Tensor, parameter: Tensor) -> Tensor:
    """Real inputs in the precision of the model; others unchanged."""
    real = x.is_floating_point() and parameter.is_floating_point()
    return x.to(parameter.dtype) if real else x


def takes(train: Callable[..., Any], arguments: int) -> bool:
    """Whether a function accepts so many arguments; True if it has no signature, as some compiled ones."""
    try:
        inspect.signature(train).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def call_watched(train: Train, dataset: NeighbouringData, seed: int, hook: GradientHook | None, what: str) -> Any:
    """One seeded call of a training function outside the runs; InputError: it failed; RefusedError: as the hook."""
    try:
        with seeded(seed), hook.watching() if hook else nullcontext():
            return train(dataset, torch.Generator().manual_seed(seed))
    except RefusedError:
        raise
    except Exception as error:
        raise InputError(f"{what} stopped with {type(error).__name__}: {error}") from error


def biases_and_statistics(model: nn.Module) -> list[float]:
    """The first numbers of the last layer's bias and of running statistics, which show training without noise."""
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and p.dim() == 1]
    buffers = [b for b in model.buffers() if b.dim() == 1 and b.is_floating_point()]
    several = [part.detach().flatten()[:READ] for part in (*biases[-1:], *buffers[:1])]
    return [0.0 if math.isnan(value) else float(value) for part in several for value in part.tolist()]


def leaves_of(result: Any) -> list[Any]:
    """The leaves of nested containers, and the tensors of modules."""
    own = [leaf.state_dict() if isinstance(leaf, nn.Module) else leaf for leaf in tree_flatten(result)[0]]
    return tree_flatten(own)[0]


def numbers_of(result: Any) -> list[NDArray[Any]]:
    """All arrays and numbers among the leaves, as arrays."""
    kept = [leaf for leaf in leaves_of(result) if isinstance(leaf, Tensor | np.ndarray | float | int)]
    return [leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf) for leaf in kept]


def same_bits(one: Any, other: Any) -> bool:
    """Whether two trainings returned the same; False if they diverged or objects cannot be digested."""
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in numbers_of(one)):
        return False
    try:
        return digest(*leaves_of(one)) == digest(*leaves_of(other))
    except Undigestable:
        return False


def seed_of_run(seed: int, what: str, number: int) -> int:
    """A seed of 63 bits for a run of the kind `what`."""
    return int(np.random.SeedSequence([seed % 2**64, *what.encode(), number]).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore them afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)


def run_all(run: Run, runs: int, store: FinishedRuns, *, workers: int, progress: Progress) -> tuple[Array, Array]:
    """Seconds and scores (runs, 1 + s) of the runs on D and of those on D', from the store if finished; InputError: a
    run failed, or runs differ in their number of scores."""
    found = {number: values for number in range(runs) if (values := store.load(number)) is not None}
    missing = [number for number in range(runs) if number not in found]
    before = len(found)
    progress("training", before, runs)
    try:
        with parallel_config("loky", n_jobs=workers) if workers > 1 else nullcontext():
            tasks = [(number,) for number in missing]
            for i, values in each(run, tasks, stage="training", progress=progress, before=before, total=runs):
                found[missing[i]] = values
                store.save(missing[i], values)
    except InputError as error:
        kept = f"kept in {store.folder}" if store.folder else "lost; give cache= a folder to keep them"
        raise InputError(f"{error}; {len(found)} of {runs} runs are finished and {kept}") from error.__cause__
    if len(several := {len(values) - 1 for values in found.values()}) > 1:
        raise InputError(f"score: expected the same number of scores for every run, got {sorted(several)}")
    together = np.stack([found[number] for number in range(runs)])
    return together[::2], together[1::2]


Step = Callable[[Any, Any, Any], Any]

MIN_STEPS = 400  # fewest steps, over all trainings, by which noise and batches are judged
MIN_TRAININGS, MAX_TRAININGS = 3, 60  # number of trainings with different seeds
BYTES = 2**24  # most bytes of stored sums, and of stored noise, per training; longer ones store only some steps
COORDINATES = 4096  # most coordinates of the noise that are tested one by one

ALIKE = 1e-4
"""Relative difference up to which two numbers count as equal, as rounding depends on the order of summation."""

NEAR = 3.0  # distance of a made ordinary record; that of far ones is `FAR`


def add_noise(clipped: Any, noise: Any, batch: Any = None) -> Any:
    """The default `step` of a training that is not watched: the clipped sum plus the noise.

    Args:
        clipped: a tensor or array, or lists or dictionaries of these: the sum of clipped gradients, before any noise.
        noise: the same shapes.
        batch: (b,) numbers of the records in the batch, or (n,) bool; used by `WhiteBox` only.
    """
    (sums, spec), (noises, _) = tree_flatten(clipped), tree_flatten(noise)
    return tree_unflatten([s + n for s, n in zip(sums, noises, strict=True)], spec)


@dataclass(eq=False)
class Watched:
    """The recorded steps of one training; with `replay`, they return the released sums of that training."""

    records: int
    steps: int  # of the claim
    replay: Watched | None = None
    keep: bool = False  # whether released sums are stored for replay
    taken: int = 0
    sums: dict[int, Array] = field(default_factory=dict)  # step -> (P,), of the stored steps
    noises: dict[int, Array] = field(default_factory=dict)
    released: list[Array] = field(default_factory=list)
    batches: list[NDArray[np.bool_] | None] = field(default_factory=list)  # (n,) of each step; None: unknown
    parts: list[int] = field(default_factory=list)  # numbers in each tensor
    result: list[Array] = field(default_factory=list)  # the returned model and an optimizer's state
    fetched: Fetched = field(default_factory=Fetched)
    optimizer: Any = None

    def __call__(self, clipped: Any, noise: Any, batch: Any = None) -> Any:
        """Record a step, and return its released sum."""
        (sums, spec), (noises, _) = tree_flatten(clipped), tree_flatten(noise)
        if [np.shape(s) for s in sums] != [np.shape(n) for n in noises]:
            raise InputError(
                "step(clipped, noise, batch): expected noise of the shapes of the sums,"
                f" {[tuple(np.shape(s)) for s in sums]}, got {[tuple(np.shape(n)) for n in noises]}"
            )
        t, self.taken = self.taken, self.taken + 1
        self.parts = [math.prod(np.shape(s)) for s in sums]
        total, drawn = _flat(sums), _flat(noises)
        if t % max(1, total.nbytes * self.steps // BYTES) == 0:
            self.sums[t], self.noises[t] = total, drawn
        self.batches.append(self._members(batch))
        if self.keep:
            self.released.append(total + drawn)
        first = self.replay
        if first is None or t >= len(first.released) or first.parts != self.parts:
            return add_noise(clipped, noise)
        pieces = np.split(first.released[t], np.cumsum(self.parts)[:-1])
        return tree_unflatten([_like(s, piece) for s, piece in zip(sums, pieces, strict=True)], spec)

    def _members(self, batch: Any) -> NDArray[np.bool_] | None:
        if batch is None:
            return None
        found = np.asarray(batch.detach().cpu() if isinstance(batch, Tensor) else batch)
        if found.dtype == np.bool_:
            return found if found.shape == (self.records,) else None
        if found.ndim != 1 or (found.size and not 0 <= found.min() <= found.max() < self.records):
            return None
        return np.isin(np.arange(self.records), found)

    @contextmanager
    def watching(self, seed: int) -> Iterator[None]:
        """Record the steps of optimizers and of heads trained in closed form; secure random numbers are seeded."""
        from safexplain.dp.heads import STEP_OBSERVER

        watched, entropy = STEP_OBSERVER.set(self), ENTROPY.set(np.random.default_rng(seed).bytes)
        try:
            with watched_optimizers(self._attach):
                yield
        finally:
            STEP_OBSERVER.reset(watched)
            ENTROPY.reset(entropy)

    def _attach(self, optimizer: Any) -> None:
        if "AdaClip" in type(optimizer).__name__:
            raise RefusedError("expected the sampled Gaussian mechanism; the white box cannot check adaptive clipping")
        self.optimizer = optimizer
        add, clip = optimizer.add_noise, optimizer.clip_and_accumulate
        rows: list[int] = []
        self.fetched.take()  # discard records read before training

        def clipped() -> None:
            rows.append(max(map(rows_of, optimizer.params)))
            clip()

        def noisy() -> None:
            sums = [torch.zeros_like(p) if p.summed_grad is None else p.summed_grad.clone() for p in optimizer.params]
            add()
            noises = [p.grad - s for p, s in zip(optimizer.params, sums, strict=True)]
            drawn, count = self.fetched.take(), sum(rows)
            rows.clear()
            known = count < len(drawn) or count % max(1, len(drawn)) == 0  # persons of several records; views of one
            for p, released in zip(optimizer.params, self(sums, noises, drawn if known else None), strict=True):
                p.grad.copy_(released)

        optimizer.clip_and_accumulate, optimizer.add_noise = clipped, noisy


@dataclass(frozen=True, eq=False)
class WhiteBox:
    """Watches the steps of a training, and checks whether they follow the claimed mechanism.

    Args:
        train: `train(dataset, generator)` trains with an optimizer of Opacus or `safexplain.dp` and fetches each batch
            from the data set right before its step; `train(dataset, generator, step)` is a hand-written loop that adds
            noise by `noisy = step(clipped, noise, batch)`, see `add_noise`. `dataset` has (x, y) tensors; `generator`
            is seeded for the run, as are the global ones of torch, NumPy and Python. It returns a module, or arrays in
            lists and dictionaries.
        data: a pair (x, y) of tensors or arrays, or a map-style data set of (x, y).
        claim: it must have a mechanism.
        clip: the clipping bound C, in the units of the sums passed to `step`. None: that of the optimizer
            (`max_grad_norm`), or 1 in a hand-written loop.
        targets: number of records that are substituted in turn, of different classes.
        seed: of everything random.

    Raises:
        ConfigurationError: the claim names no mechanism with noise, or C is not above 0.
        InputError: no records.
    """

    train: Callable[..., Any]
    data: Any
    claim: Claim
    clip: float | None = None
    targets: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        mechanism = self.claim.mechanism
        if mechanism is None or not mechanism.noise_multiplier or not mechanism.steps:
            raise ConfigurationError(
                "claim: expected one with a mechanism with noise, got none; give Claim(Steps(...), delta)"
            )
        if self.clip is not None:
            check_number("clip", self.clip, above=0.0)
        object.__setattr__(self, "data", records(self.data))

    @property
    def mechanism(self) -> Steps:
        """That of the claim."""
        assert self.claim.mechanism is not None
        return self.claim.mechanism

    def run(self, progress: Progress = silent) -> WhiteBoxResult:
        """Train some dozens of times, watch every step, and judge.

        InputError: the function seeds its noise, two runs with the same seeds differ, or it failed. RefusedError: no
        step was observed.
        """
        began = time.monotonic()
        plain = self._watched(0)
        if not plain.taken and plain.optimizer is not None:
            target = self._targets([])[0]
            runs = [plain, *(self._watched(0, {target: new}) for new in self._new_records(target))]
            seconds = time.monotonic() - began
            return WhiteBoxResult(self.claim, (_released([runs]),), len(runs), seconds, {"steps seen": 0})
        if not plain.taken:
            raise RefusedError(
                "expected training steps, observed none: train uses no Opacus optimizer, created it before it was"
                " called, or runs in another process. Let train(dataset, generator, step) add its noise by"
                " noisy = step(clipped, noise, batch)"
            )
        clip = self.clip or float(getattr(plain.optimizer, "max_grad_norm", 1.0))
        seeds = min(max(MIN_TRAININGS, math.ceil(MIN_STEPS / plain.taken)), MAX_TRAININGS)
        targets = self._targets(plain.batches)
        new = {target: self._new_records(target) for target in targets}
        total = 2 + seeds + len(targets) + sum(len(v) for v in new.values()) + len(new[targets[0]])
        done = iter(range(2, total + 1))

        def watched(number: int, instead: Mapping[int, Record], replay: Watched | None = None) -> Watched:
            found = self._watched(number, instead, replay)
            progress("watching steps", next(done, total), total)
            return found

        if not _repeats(plain, watched(0, {})):
            raise InputError(
                "two trainings on the same data with the same seeds differ: draw batches and noise from the generator"
                " that is given, or from the global ones of torch, NumPy and Python"
            )
        others = [watched(number, {}) for number in range(1, seeds + 1)]
        if _difference(plain, others[0]) == 0 and _repeats(plain, others[0]):
            raise InputError(SEEDED)
        changed: list[list[Watched]] = [[] for _ in targets]  # with one new record in its place, then with others
        refused: list[InputError] = []
        for runs, (target, instead) in zip(changed, new.items(), strict=True):
            for one in instead:
                with _collected(refused):
                    runs.append(watched(0, {target: one}, runs[0] if runs else None))
        copies = list[Watched]()
        for one in new[targets[0]]:
            with _collected(refused):
                copies.append(watched(0, dict.fromkeys(range(len(self.data)), one), plain))
        changed = [runs for runs in changed if len(runs) > 1]
        if not changed:
            raise refused[0]
        checks = (
            *self._accounted([plain, *others]),
            self._sensitivity(changed, copies, clip),
            *self._noise([plain, *others], changed, clip),
            *self._batches([plain, *others], changed),
            _released(changed),
        )
        name = getattr(self.train, "__qualname__", type(self.train).__qualname__)
        setting = {"trained": name, "records": len(self.data), "clip": clip, "steps seen": plain.taken}
        return WhiteBoxResult(self.claim, checks, total, time.monotonic() - began, setting)

    def _watched(
        self, number: int, instead: Mapping[int, Record] | None = None, replay: Watched | None = None
    ) -> Watched:
        found = Watched(len(self.data), self.mechanism.steps, replay, keep=replay is None and number == 0)
        seed = seed_of_run(self.seed, "white box", number)
        dataset = NeighbouringData(self.data, instead, found.fetched)
        given = [dataset, torch.Generator().manual_seed(seed)]
        try:
            with seeded(seed), found.watching(seed):
                model = self.train(*given, found) if takes(self.train, 3) else self.train(*given)
            with seeded(seed):
                found.result = self._result(model, found.optimizer)
        except (RefusedError, ConfigurationError):
            raise
        except Exception as error:
            what = "on the data" if not instead else f"with {len(instead)} records replaced by made ones"
            raise InputError(f"a training {what} stopped with {type(error).__name__}: {error}") from error
        return found

    def _result(self, model: Any, optimizer: Any) -> list[Array]:
        found = numbers_of(model) + (self._outputs(model) if isinstance(model, nn.Module) else [])
        if optimizer is not None:
            found += numbers_of([[*state.values()] for state in optimizer.original_optimizer.state.values()])
        return [_flat([values]) for values in found]

    def _outputs(self, model: nn.Module) -> list[Array]:
        x = torch.stack([self.data[i][0] for i in range(min(8, len(self.data)))])
        parameter = next(model.parameters(), x)
        try:
            with torch.no_grad():
                output = model.eval()(x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype))
        except Exception:  # a model that takes something else
            return []
        return numbers_of(output)

    def _targets(self, batches: Sequence[NDArray[np.bool_] | None]) -> list[int]:
        _, y = stacked(self.data)
        often = np.zeros(len(y))
        for batch in batches:
            often += 0 if batch is None else batch
        labels = y.flatten(1).sum(1) if y.dim() > 1 else y
        classes, sizes = np.unique(labels.numpy(), return_counts=True)
        chosen = [int(np.where(labels.numpy() == classes[c], often, -1).argmax()) for c in sizes.argsort(kind="stable")]
        return chosen[: max(1, self.targets)]

    def _new_records(self, target: int) -> list[Record]:
        """Records to replace it: far ones on both sides, a near one, under two labels; and z under another label."""
        x, y = stacked(self.data)
        z, own = self.data[target]
        values, counts = np.unique(y.numpy(), return_counts=True) if y.dim() == 1 else (np.zeros(0), np.zeros(0))
        if y.is_floating_point() or len(values) < 2:
            spread = y.double().std().clamp(min=1.0)
            labels = [(y.double().mean(0) + sign * FAR * spread).to(y).reshape(own.shape) for sign in (1, -1)]
        else:
            rare, often = (torch.as_tensor(values[i]).to(own) for i in (counts.argmin(), counts.argmax()))
            labels = [rare, often if counts.argmin() != counts.argmax() else torch.as_tensor(values[-1]).to(own)]
        other = labels[0] if not torch.equal(labels[0], own) else labels[1]
        if x.is_floating_point():
            generator = torch.Generator().manual_seed(self.seed)
            away, aside = z.double() - x.double().mean(0), torch.randn(z.shape, generator=generator)
            inputs = [from_mean(x, d, r) for d, r in ((away, FAR), (away, -FAR), (aside.double(), NEAR))]
        else:
            inputs = [x[i] for i in np.linspace(0, len(x) - 1, 3).astype(int)]
        return [*((one, label) for one in inputs for label in labels), (z, other)]

    def _accounted(self, runs: Sequence[Watched]) -> Iterator[Check]:
        claim = self.claim
        most = max(run.taken for run in runs)
        yield Check("steps", most, self.mechanism.steps, f"{most:,} noisy sums were released")
        if claim.epsilon is not None and claim.accounted is not None:
            spent = claim.accounted.of(claim.adjacency)
            says = f"these steps spend epsilon {spent:.3g} under {claim.adjacency}"
            yield Check("accounting", spent, claim.epsilon * SLACK, says)

    def _sensitivity(self, changed: Sequence[Sequence[Watched]], copies: Sequence[Watched], clip: float) -> Check:
        """One record's part of a sum, in C: half of the change by a substitution, or its share among equal records."""
        most = 0.0
        for runs in changed:
            for one, other in combinations(runs, 2):
                for t in one.sums.keys() & other.sums.keys():
                    most = max(most, _norm(one.sums[t] - other.sums[t]) / 2)
        for run in copies:
            for t, total in run.sums.items():
                batch = run.batches[t]
                size = len(self.data) if self.mechanism.sample_rate == 1 else 0 if batch is None else batch.sum()
                most = max(most, _norm(total) / size if size else 0.0)
        found = most / clip
        if found < 0.5:
            says = f"no made record added more than {found:.2g} C to a sum, so clipping could not be tested"
            return Check("sensitivity", None, SLACK, says)
        return Check("sensitivity", found, SLACK, f"one record adds up to {found:.3g} C to the sum of a step")

    def _noise(self, runs: Sequence[Watched], changed: Sequence[Sequence[Watched]], clip: float) -> Iterator[Check]:
        std = self.mechanism.noise_multiplier * clip
        steps = sorted(runs[0].noises)
        runs = [run for run in runs if sorted(run.noises) == steps and run.parts == runs[0].parts]
        tensor = np.repeat(np.arange(len(runs[0].parts)), runs[0].parts)
        rng = np.random.default_rng(self.seed)
        at = np.sort(rng.permutation(len(tensor))[:COORDINATES])
        z = np.stack([[run.noises[t][at] for t in steps] for run in runs]).astype(np.float64) / std  # (runs, steps, k)
        of_tensors = [[np.bincount(tensor, run.noises[t].astype(np.float64) ** 2) for t in steps] for run in runs]
        squares = np.array(of_tensors) / std**2  # (runs, steps, tensors)
        numbers = np.array(runs[0].parts, dtype=np.float64)
        yield noise_size(z, squares, numbers, [f"step {t + 1}" for t in steps], [f"coordinate {i}" for i in at])
        yield noise_distribution(z, rng)
        yield noise_independence(z, rng)
        apart = [_noise_change(one, runs[0]) for runs in changed for one in runs[1:]]
        if any(change is None for change in apart):
            says = "with another record the noise is drawn differently, so it could not be compared"
            yield Check("noise apart from the records", None, ALIKE, says)
            return
        worst = max((change for change in apart if change is not None), default=0.0)
        says = f"another record changes the noise by {worst:.2g} of its size"
        yield Check("noise apart from the records", worst, ALIKE, says)

    def _batches(self, runs: Sequence[Watched], changed: Sequence[Sequence[Watched]]) -> Iterator[Check]:
        mechanism = self.mechanism
        if mechanism.sample_rate == 1:
            return
        steps = min(run.taken for run in runs)
        batches = [[b for b in run.batches[:steps] if b is not None] for run in runs]
        if any(len(one) < steps for one in batches):
            says = (
                "the records in the batches are unknown: pass them to step(clipped, noise, batch), or fetch each batch"
                " from the data set right before its step"
            )
            yield Check("batches", None, 0.0, says)
            return
        drawn = np.array(batches)  # (runs, steps, n)
        yield from batches_drawn(drawn, mechanism)
        same = all(
            np.array_equal(a, b)
            for first, *others in changed
            for one in others
            for a, b in zip(first.batches, one.batches, strict=False)
            if a is not None and b is not None
        )
        says = "another record " + ("does not change the batches" if same else "changes who is in the batches")
        yield Check("batches apart from the records", float(not same), 0.0, says)


@contextmanager
def _collected(errors: list[InputError]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        errors.append(error)


def _flat(tensors: Sequence[Any]) -> Array:
    arrays = [t.detach().cpu().numpy() if isinstance(t, Tensor) else np.asarray(t) for t in tensors]
    found = np.concatenate([a.ravel() for a in arrays]) if arrays else np.zeros(0)
    return found.astype(np.float64 if found.dtype == np.float64 else np.float32)


def _like(given: Any, values: Array) -> Any:
    shaped = values.reshape(np.shape(given))
    return torch.tensor(shaped).to(given) if isinstance(given, Tensor) else shaped.astype(np.asarray(given).dtype)


def _norm(values: Array) -> float:
    """2-norm; 0 if it is not finite, which says nothing about clipping."""
    found = float(np.linalg.norm(values.astype(np.float64)))
    return found if math.isfinite(found) else 0.0


def _repeats(one: Watched, other: Watched) -> bool:
    """Whether two trainings took the same steps, up to rounding."""
    pairs = [(a[t], b[t]) for a, b in ((one.sums, other.sums), (one.noises, other.noises)) for t in a if t in b]
    return one.taken == other.taken and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0.0, atol=ALIKE * float(np.abs(a).max(initial=0.0)))
        for a, b in pairs
    )


def _difference(one: Watched, other: Watched) -> float:
    if [a.shape for a in one.result] != [b.shape for b in other.result]:
        return math.inf
    worst = 0.0
    for a, b in zip(one.result, other.result, strict=True):
        if a.size and not np.array_equal(a, b, equal_nan=True):
            gap = np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-12)
            worst = max(worst, float(gap) if np.isfinite(gap) else math.inf)
    return worst


def _released(changed: Sequence[Sequence[Watched]]) -> Check:
    name = "released by the sums alone"
    if not changed[0][0].result:
        says = "train returned no module and no arrays, so models could not be compared"
        return Check(name, None, ALIKE, says)
    worst = max(_difference(first, one) for first, *others in changed for one in others)
    says = "given the same noisy sums, " + (
        "the model and the optimizer's state do not depend on a record"
        if worst <= ALIKE
        else "the model or the optimizer's state still depends on a record, which no noise hides"
    )
    return Check(name, min(worst, 1e6), ALIKE, says)


def _noise_change(one: Watched, first: Watched) -> float | None:
    """Relative change of the noise's length with another record; None: it is different noise."""
    worst = 0.0
    for t in first.noises.keys() & one.noises.keys():
        a, b = first.noises[t].astype(np.float64), one.noises[t].astype(np.float64)
        size = max(float(np.linalg.norm(a)), 1e-12)
        if a.shape != b.shape or not np.isfinite(b).all():
            return None
        if np.linalg.norm(a - b) > ALIKE * size:
            if a @ b < (1 - ALIKE) * size * np.linalg.norm(b):
                return None
            worst = max(worst, abs(float(np.linalg.norm(b) / size - 1)))
    return worst
