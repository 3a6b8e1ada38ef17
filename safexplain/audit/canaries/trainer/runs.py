"""The trainings of a probe: each is seeded by its data set and number, scored, and stored."""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from joblib import parallel_config  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from safexplain._digest import Undigestable, digest
from safexplain._progress import Progress
from safexplain.audit.canaries.batched import FinishedRuns
from safexplain.audit.canaries.canary import Canary, RecordCanary, record_scores
from safexplain.audit.canaries.outlier import outlier_scores, probe_rows
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import NeighbouringData
from safexplain.audit.canaries.trainer.gradient_hook import GradientHook
from safexplain.audit.references.parallel import each
from safexplain.errors import InputError, RefusedError

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
        """Seconds and scores of a run, on D if its number is even.

        Raises:
            InputError: training or scoring raised an error, or the score is not a number; the message names the run.
        """
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
    """One seeded call of a training function outside the runs, which a hook may watch.

    Raises:
        InputError: it raised an error; the message begins with `what`.
        RefusedError: as the hook.
    """
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
    """A seed of 63 bits for a run of the kind `what`, independent of the number of runs."""
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
    """Seconds and scores (runs, 1 + s) of the runs on D and of those on D'; runs in the store are not repeated.

    Raises:
        InputError: a run failed (finished ones are in the store), or runs differ in their number of scores.
    """
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
