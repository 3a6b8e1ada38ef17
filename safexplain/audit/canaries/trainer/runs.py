"""The trainings of a probe: each seeded by its data set and number, scored, and stored at once, so that it can resume.

Finished runs are a line each on disk, added as soon as the run is there.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from safexplain._progress import Progress
from safexplain.audit.canaries.canary import Canary, Direction, GradientCanary, RecordCanary, record_scores
from safexplain.audit.canaries.outlier import outlier_scores, probe_rows
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import NeighbouringData
from safexplain.audit.canaries.trainer.gradient_hook import GradientHook
from safexplain.errors import InputError, RefusedError

__all__ = ["Finished", "Key", "Run", "RunStore", "Train", "call", "call_watched", "run_all", "seed_of_run", "seeded"]

Side = Literal["D", "D'"]

_STORED: dict[Side, str] = {"D": "a", "D'": "b"}
"""What seeds and stored lines call the data sets, as version 0.1 did: its runs are not trained again."""

Key = tuple[Side, int]
"""Data set and number of a run."""

Train = Callable[..., Any]
"""(dataset, generator) -> model, or (dataset, generator, device) -> model."""


class Run:
    """Trains and scores one model. It travels to other processes whole.

    Args:
        train: the user's function.
        data: records of D.
        canary: in D'.
        score: of what `train` returns, one number or several; None: from logits, or from the parameter of a gradient
            canary.
        seed: of all runs.
    """

    def __init__(self, train: Train, data: Any, canary: Canary, score: Callable[[Any], Any] | None, seed: int) -> None:
        self.train, self.data, self.score, self.canary, self.seed = train, data, score, canary, seed
        if isinstance(canary, RecordCanary):  # on the CPU, whatever it was made on
            self.canary = replace(canary, x=canary.x.cpu())

    def __call__(self, key: Key, device: str | None) -> Finished:
        """Train one model.

        Raises:
            InputError: training or scoring raised an error, or the score is no number; it says which run it was.
        """
        began, (side, number) = time.monotonic(), key
        seed = seed_of_run(self.seed, _STORED[side], number)
        try:
            with seeded(seed):
                score = self._score(key, seed, device)
            outlier = isinstance(self.canary, RecordCanary) and self.canary.scenario == "outlier"
            allowed = all(not math.isnan(number) for number in score) if outlier else all(map(math.isfinite, score))
            if not allowed or not score:
                raise InputError(
                    f"score: expected a finite number, got {score[0] if len(score) == 1 else score}: training diverged,"
                    " or score= has no number for it"
                )
        except Exception as error:
            far = isinstance(self.canary, RecordCanary) and self.canary.scenario == "outlier" and side == "D'"
            raise InputError(
                f"run {number} on {side} (seed {seed}) stopped with {type(error).__name__}: {error}"
                + ("; if it is the outlier that it refuses, give one that it takes: canary=(x', y')" if far else "")
            ) from error
        return Finished(score, time.monotonic() - began)

    def _score(self, key: Key, seed: int, device: str | None) -> tuple[float, ...]:
        canary, (side, number) = self.canary, key
        if not isinstance(canary, RecordCanary):
            at = (Direction((canary.coordinate,)),) if isinstance(canary, GradientCanary) else canary.directions
            hook = GradientHook(canary.target, at, 1.0 if side == "D" else -1.0, first=number)
            with hook.watching():
                call(self.train, NeighbouringData(self.data, fetched=hook.fetched), seed, device)
            if isinstance(canary, GradientCanary):
                return ((0.0 if canary.drift is None else float(canary.drift[-1])) - hook.moved[0],)
            return (-sum(hook.moved), *(-moved for moved in hook.moved))
        z = self.data[canary.target]
        instead = (canary.x.to(z[0]), torch.as_tensor(canary.y).to(z[1]).reshape(z[1].shape))
        rows = canary.rows if side == "D'" else canary.also
        dataset = NeighbouringData(self.data, dict.fromkeys(rows, instead if side == "D'" else z))
        model = call(self.train, dataset, seed, device)
        if self.score is not None:
            return tuple(np.atleast_1d(np.asarray(self.score(model), dtype=np.float64)).ravel().tolist())
        if not isinstance(model, nn.Module):
            raise InputError(f"train must return a torch.nn.Module, got {type(model).__name__}; or pass score=")
        pair = torch.stack([z[0], instead[0]])
        if canary.scenario != "outlier":
            logits = logits_of(model, pair)
            return (float(record_scores(logits[:1], logits[1:], int(z[1]), canary.y, canary.scenario)),)
        others = [self.data[row] for row in probe_rows(len(self.data), canary.rows)]
        logits = logits_of(model, torch.cat([pair, torch.stack([x for x, _ in others])]), finite=False)
        labels = torch.stack([y for _, y in others]).reshape(-1)
        return tuple(outlier_scores(logits[None, :2], logits[None, 2:], int(z[1]), canary.y, labels)[0].tolist())


def call(train: Train, dataset: NeighbouringData, seed: int, device: str | None) -> Any:
    """One call of a training function."""
    generator = torch.Generator().manual_seed(seed)
    return train(dataset, generator) if device is None else train(dataset, generator, device)


def call_watched(
    train: Train, dataset: NeighbouringData, seed: int, device: str | None, hook: GradientHook | None, what: str
) -> Any:
    """One seeded call of a training function outside of the runs, which a hook may watch.

    Raises:
        InputError: it raised an error; the message begins with `what` it was.
        RefusedError: as the hook.
    """
    try:
        with seeded(seed), hook.watching() if hook else nullcontext():
            return call(train, dataset, seed, device)
    except RefusedError:
        raise
    except Exception as error:
        raise InputError(f"{what} stopped with {type(error).__name__}: {error}") from error


def seed_of_run(seed: int, what: str, number: int) -> int:
    """A seed of 63 bits for a run of the kind `what`, whatever number of runs there are."""
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


@dataclass(frozen=True)
class Finished:
    """What is kept of a run.

    Args:
        scores: of its model, one or several; one is higher on D.
        seconds: that it took.
    """

    scores: tuple[float, ...]
    seconds: float


class RunStore:
    """Finished runs: a line of JSON each, added to the file as soon as it is there.

    Args:
        path: of the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.runs: dict[Key, Finished] = {}
        torn = False
        if path is not None and path.is_file():
            text = path.read_text()
            torn = not text.endswith("\n") and text != ""
            for line in text.splitlines():
                self._read(line)
        if torn and path is not None:
            with path.open("a") as file:
                file.write("\n")

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            score = row["score"]
            found = Finished(tuple(map(float, score)) if isinstance(score, list) else (float(score),), row["seconds"])
            if not any(map(math.isnan, found.scores)):
                side: Side = "D" if row["world"] == "a" else "D'"
                self.runs.setdefault((side, int(row["number"])), found)
        except (ValueError, KeyError, TypeError):  # a line that was cut off when its process died
            return

    def add(self, key: Key, finished: Finished) -> None:
        """Keep a run.

        Raises:
            InputError: the file cannot be written.
        """
        self.runs[key] = finished
        if self.path is None:
            return
        score = finished.scores[0] if len(finished.scores) == 1 else finished.scores
        row = {"world": _STORED[key[0]], "number": key[1], "score": score, "seconds": finished.seconds}
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from None


def run_all(
    run: Run, keys: Sequence[Key], store: RunStore, *, workers: int, devices: Sequence[str] | None, progress: Progress
) -> None:
    """Take the runs that are not in the store, in the order of `keys`.

    Args:
        run: takes one.
        keys: of all runs.
        store: of finished ones.
        workers: processes; 1: this one.
        devices: handed out in turn.
        progress: told after each.

    Raises:
        InputError: a run failed; those that were finished are in the store.
    """
    missing = [key for key in keys if key not in store.runs]
    where = {key: devices[i % len(devices)] if devices else None for i, key in enumerate(missing)}
    done = len(keys) - len(missing)
    progress("training", done, len(keys))
    finished = _here(run, where) if workers == 1 or len(missing) < 2 else _elsewhere(run, where, workers)
    try:
        for key, result in finished:
            store.add(key, result)
            done += 1
            progress("training", done, len(keys))
    except InputError as error:
        kept = f"kept in {store.path.parent}" if store.path else "lost: give cache= a folder to keep them"
        raise InputError(f"{error}; {done} of {len(keys)} runs are finished and {kept}") from (error.__cause__ or error)


def _here(run: Run, where: Mapping[Key, str | None]) -> Iterator[tuple[Key, Finished]]:
    for key, device in where.items():
        yield key, run(key, device)


def _elsewhere(run: Run, where: Mapping[Key, str | None], workers: int) -> Iterator[tuple[Key, Finished]]:
    """In other processes; functions from notebooks travel by value, and what all runs share travels once."""
    from joblib import Parallel, delayed, wrap_non_picklable_objects  # type: ignore[import-untyped]

    workers = min(workers, len(where))
    threads = max(1, torch.get_num_threads() // workers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        path.write_bytes(pickle.dumps(wrap_non_picklable_objects(run)))
        pool = Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1)
        for key, result in pool(delayed(_one)(path, threads, key, device) for key, device in where.items()):
            if isinstance(result, InputError):
                raise result
            yield key, result


def _one(path: Path, threads: int, key: Key, device: str | None) -> tuple[Key, Finished | InputError]:
    """In a worker; an error that is returned does not keep what others have finished from being stored."""
    torch.set_num_threads(threads)
    try:
        return key, _read(path)(key, device)
    except InputError as error:
        error.add_note("".join(traceback.format_exception(error.__cause__)))
        return key, error


@lru_cache(maxsize=1)
def _read(path: Path) -> Run:
    run: Run = pickle.loads(path.read_bytes())
    return run
