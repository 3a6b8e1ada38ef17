"""A user's training function: its data sets D and D', its optimizer, and its runs."""

from __future__ import annotations

import inspect
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from joblib import parallel_config  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset, TensorDataset

from safexplain._digest import Undigestable, digest
from safexplain._progress import Progress
from safexplain.audit.canaries.canary import Canary, RecordCanary, outlier_scores, probe_rows, record_scores
from safexplain.audit.canaries.run import FinishedRuns
from safexplain.audit.references.parallel import each
from safexplain.dp.sgd.sampling import InMemory, records_of
from safexplain.errors import InputError, RefusedError

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
        """Note a batch of a loader."""
        if torch.is_grad_enabled():
            self._batches = [*(self._batches or []), *numbers]

    def one(self, number: int) -> None:
        """Note a single record."""
        if torch.is_grad_enabled():
            self._single.append(number)

    def take(self) -> list[int]:
        """The records since the last call."""
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
    """The leaves of nested lists and dictionaries, and the parameters and buffers of modules."""
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
