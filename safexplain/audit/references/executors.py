"""Long work in groups, by an executor of anybody's: processes, loky, Dask, Ray, SLURM by submitit.

`run_groups` sends `work(group, tick)` for each group and takes the results as they come. Work and groups are pickled
here, by cloudpickle where it is installed, so that every engine only moves bytes. Beside them stands a folder of this
run: large arrays are written there once and memory-mapped by the workers; workers leave there how far they are; and
once it is gone they stop. A worker that does not see the folder is sent everything by value.

What a group raises is raised here, when all others are finished. Whatever else comes out of an engine means that a
worker was lost: its group is sent again.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._digest import code_digest
from safexplain._progress import Progress
from safexplain.audit.recipe import Tick
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.training import TOGETHER
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

LARGE = 1 << 20
"""Bytes from which an array goes through the folder of the run, and not with every group."""

BEAT_SECONDS = 1.0
"""A worker says how far it is this often, at most."""

ALONE = 8
"""Most models in a group of those that train one after the other."""

NEW_POOLS = 2
"""How often a pool of processes that broke is replaced, before the rest is done in this process."""

UNKNOWN_WORKERS = 8
"""Workers that an executor is taken to have where it does not say."""

Loaded = TypeVar("Loaded")

_log = logging.getLogger(__name__)
_here: dict[str, int] = {}
"""Folder of a run that is under way -> the process that waits for it."""
_one_at_a_time = threading.Lock()
_imported_by = os.getpid()


class Executor(Protocol):
    """What sends work elsewhere: `concurrent.futures`, loky, `dask.distributed.Client.get_executor()`, submitit's
    executors, `ray_executor()`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Start `fn(*args)` somewhere; what comes back has `.result()`, and may have `.done()` and `.cancel()`."""


class Work(Protocol):
    """What is done to each group; it is pickled, with all that it needs."""

    def __call__(self, group: Any, tick: Tick, seen: bool) -> Any:
        """The result of a group, which is pickled too; `seen`: whether the folder of the run is seen where it is done,
        and so its parent too."""


def check_executor(executor: object) -> None:
    """Raise ConfigurationTypeError for what cannot be sent anything."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigurationTypeError(
            "executor: expected something with submit(fn, *args) whose result has .result(), such as"
            " concurrent.futures.ProcessPoolExecutor(), loky.get_reusable_executor(), a Dask client's get_executor(),"
            f" submitit.AutoExecutor(folder) or ray_executor(); got {type(executor).__name__}"
        )


def workers_of(executor: object) -> int:
    """How many groups an executor works on at once, where it or its engine says so; else 8."""
    told = getattr(executor, "_max_workers", None)  # concurrent.futures, loky and ray_executor
    with suppress(Exception):  # a client that is not connected
        told = told or sum(executor._client.nthreads().values())  # type: ignore[attr-defined]  # Dask
    return told if isinstance(told, int) and told > 0 else UNKNOWN_WORKERS


def run_groups(
    executor: Executor,
    work: Work,
    groups: Sequence[Any],
    took: Callable[[int, Any], None],
    *,
    sizes: Sequence[int],
    stage: str,
    progress: Progress,
    before: int = 0,
    models: Sequence[int] | None = None,
    models_before: int = 0,
    folder: str | Path | None = None,
) -> None:
    """Do all groups, each by one call of `executor.submit`, and take their results in this process.

    A group whose worker died is sent again, once. A pool of processes that broke with it (`BrokenProcessPool`) is
    replaced, twice; then the rest is done in this process. In threads of this process one group runs at a time, for
    torch's global random generator is one for all threads.

    Args:
        executor: see `Executor`.
        work: see `Work`; large tensors and arrays in it are not pickled but written to the folder of the run.
        groups: what `work` is called with.
        took: called with the number of each group and its result, in the order in which they come.
        sizes: how much each group is, in any unit.
        stage: what progress is told.
        progress: told about all groups together, with a note such as "4 groups running, 37 of 256 models finished".
        before: how much was finished before.
        models: in each group. None: as `sizes`.
        models_before: that were finished before. With `models` alone.
        folder: where the folder of the run is made: one that workers see. None: among the temporary files, which
            workers on this machine see.

    Raises:
        ConfigurationError: the work cannot be pickled, or a worker runs another version of this package or torch.
        InputError: the folder cannot be written.
        Exception: what a group raised; or the engine, of a group that was lost twice. Others are finished first.
        KeyboardInterrupt: groups that wait are cancelled, those that run stop at their next sign of life.
    """
    try:
        session = Path(tempfile.mkdtemp(prefix=".run-", dir=folder))
    except OSError as error:
        raise InputError(f"cannot write to {folder or 'the temporary files'}: {error.strerror or error}") from None
    counts, counted = (list(sizes), before) if models is None else (list(models), models_before)
    run = _Run(executor, work, list(groups), took, list(sizes), stage, progress, before, counts, counted, session)
    _here[str(session)] = os.getpid()
    try:
        run.all()
    finally:
        run.leave()
        shutil.rmtree(session, ignore_errors=True)
        _here.pop(str(session), None)


def train_elsewhere(
    executor: Executor,
    work: Work,
    starts: Sequence[nn.Module | None],
    keys: Sequence[str],
    store: ModelCache | None,
    groups: Callable[[list[int]], list[list[int]]],
    *,
    stage: str,
    progress: Progress,
    sent: Callable[[list[int]], Any] | None = None,
) -> list[nn.Module]:
    """`load_or_train` where others train: what is not in the store yet is sent to an executor, group by group.

    Args:
        executor: see `Executor`.
        work: called with (places, their keys), or with what `sent` makes of the places; gives for each its weights as
            bytes, or None where it stored them under its key, or the whole model.
        starts: models that take the weights; None where whole models come back.
        keys: "" where a model is not stored.
        store: None: nothing is stored.
        groups: places of missing models -> groups of them.
        stage: what progress is told.
        progress: told about all of them together.
        sent: places of a group -> what is sent of it.

    Returns:
        The models on the CPU, in eval mode.

    Raises:
        InputError: a worker stored a model, and it is not found here; otherwise as `run_groups`.
    """
    models = list(starts)
    missing = [i for i, start in enumerate(starts) if not (start and store and keys[i] and store.load(keys[i], start))]
    parts = [part for part in groups(missing) if part]

    def took(g: int, found: list[Any]) -> None:
        for i, one in zip(parts[g], found, strict=True):
            start = models[i]
            if isinstance(one, nn.Module):
                models[i] = one
            elif isinstance(one, bytes) and start is not None:
                start.load_state_dict(torch.load(io.BytesIO(one), map_location="cpu", weights_only=True))
            elif not (store and start is not None and arrived(partial(store.load, keys[i], start))):
                raise InputError(f"a worker stored model {keys[i][:16]} in the cache, and it cannot be read here")
            if one is not None and store and keys[i]:
                store.save(keys[i], models[i])  # type: ignore[arg-type]

    if parts:
        run_groups(
            executor,
            work,
            [sent(part) if sent else (part, [keys[i] for i in part]) for part in parts],
            took,
            sizes=[len(part) for part in parts],
            stage=stage,
            progress=progress,
            before=len(models) - len(missing),
            folder=store.folder if store else None,
        )
    progress(stage, len(models), len(models))
    return [model.eval() for model in models if model is not None]


def parted(places: Sequence[int], executor: object, *, together: bool = False) -> list[list[int]]:
    """Groups of models: a few for each worker, so that all are busy to the end and one that dies loses little.

    Args:
        places: of models, in the order in which they are put together.
        executor: that trains them.
        together: whether a group trains as one computation, which hardly takes longer for 4 of them than for one.
    """
    each, least, most = (2, 4, TOGETHER) if together else (4, 1, ALONE)
    size = min(max(-(-len(places) // (each * workers_of(executor))), least), most)
    return [list(places[first : first + size]) for first in range(0, len(places), size)]


def weights_as_bytes(model: nn.Module) -> bytes:
    """All that a model of this architecture needs to become this one."""
    file = io.BytesIO()
    torch.save({name: t.detach().cpu() for name, t in model.state_dict().items()}, file)
    return file.getvalue()


def check_code(expected: str, *modules: str) -> None:
    """In a worker: raise ConfigurationError where its package or its torch is another than that of who sent the work.

    Args:
        expected: `code_digest(*modules)` there.
        modules: by name.
    """
    if expected != code_digest(*modules):
        raise ConfigurationError(
            f"a worker has another version of safexplain or of torch ({torch.__version__} in the worker): its models"
            " would be others under the same names; install the same versions everywhere"
        )


def present(device: str | torch.device) -> torch.device:
    """The device where this process has it, else the CPU: whoever sends work to workers with GPUs may have none."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return torch.device("cpu")
    return torch.device(device)


def arrived(load: Callable[[], Loaded]) -> Loaded:
    """What another machine stored, as `load` gives it: shared file systems show a new file some seconds later."""
    found = load()
    for wait in (0.1, 1.0, 3.0, 10.0):
        if found:
            break
        time.sleep(wait)
        found = load()
    return found


@dataclass(frozen=True)
class Sent:
    """A trained model as workers get it.

    Args:
        model: on the CPU.
        device: where it is asked.
    """

    model: nn.Module
    device: str


def sendable(models: Sequence[nn.Module], places: Sequence[int]) -> dict[int, Sent]:
    """Place -> the model to send; without those that cannot be pickled, which are asked where they are."""
    found = {}
    for i in places:
        device = next((p.device for p in models[i].parameters()), torch.device("cpu"))
        model = models[i] if device.type == "cpu" else copy.deepcopy(models[i]).cpu()
        try:
            packed(model, None, dry=True)
            found[i] = Sent(model, str(device))
        except ConfigurationError as error:
            _log.info("model %d is asked in this process, because it cannot be sent: %s", i, error)
    return found


def received(sent: Sent) -> nn.Module:
    """The model, where it is asked."""
    return sent.model.to(sent.device)


def grouped(sizes: Mapping[int, int], executor: object) -> list[list[int]]:
    """Groups of models of different sizes, the largest first, a few for each worker.

    Args:
        sizes: place -> how much is to be done.
        executor: that does it.
    """
    share, groups, room = sum(sizes.values()) / (4 * workers_of(executor)), list[list[int]](), 0.0
    for place in sorted(sizes, key=lambda place: -sizes[place]):
        if not groups or room < sizes[place] or len(groups[-1]) == ALONE:
            groups.append([])
            room = share
        groups[-1].append(place)
        room -= sizes[place]
    return groups


@dataclass(eq=False)
class _Run:
    executor: Executor
    work: Work
    groups: list[Any]
    took: Callable[[int, Any], None]
    sizes: list[int]
    stage: str
    progress: Progress
    finished: int
    models: list[int]
    models_finished: int
    session: Path
    pending: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    rest: list[int] = field(default_factory=list)
    payload: bytes = b""
    by_value: bool = False
    pools: list[Any] = field(default_factory=list)
    broken: bool = False
    told: float = 0.0

    def __post_init__(self) -> None:
        self.total = self.finished + sum(self.sizes)
        self.all_models = self.models_finished + sum(self.models)

    def all(self) -> None:
        """Send, wait, take; then what is left for this process; then what went wrong."""
        self.payload = packed(self.work, self.session)
        for i in range(len(self.groups)):
            self.send(i, None)
        idle = 0
        while self.pending:
            ready = [i for i, future in self.pending.items() if _is_done(future)]
            for i in sorted(ready, key=self.has_begun):  # where a pool broke, those that may have broken it go last
                self.take(i, self.pending.pop(i))
            self.tell()
            idle = 0 if ready else idle + 1
            if self.pending:
                time.sleep(min(0.5, 0.01 * 1.3 ** min(idle, 20)))
        if self.rest:
            _log.warning(
                "%d of %d groups are done in this process, because the executor takes nothing more",
                len(self.rest),
                len(self.groups),
            )
        for i in self.rest:
            self.do(i)
        for i in sorted(self.failed):
            raise self.failed[i]

    def send(self, i: int, error: BaseException | None) -> None:
        """Group i, for the first time, or again after this error."""
        if not self.broken:
            attempt = self.lost.get(i, 0)
            group = packed(self.groups[i], None if self.by_value else self.session, f"group-{i}-{attempt}-")
            args = (self.payload, group, str(self.session), i, attempt)
            try:
                self.pending[i] = self.executor.submit(remotely, *args)
                return
            except Exception as refused:  # whatever an engine that is broken or closed raises
                if self.renew(error or refused):
                    self.send(i, error)
                    return
        self.rest.append(i)

    def renew(self, error: BaseException) -> bool:
        """Another pool in place of one that broke, where that can be made."""
        made = _another(self.executor) if len(self.pools) < NEW_POOLS else None
        if made is None:
            self.broken = True
            return False
        _log.warning("a worker process died (%s): its groups are sent to a new pool", error)
        self.executor = made
        self.pools.append(made)
        return True

    def has_begun(self, i: int) -> bool:
        """Whether a worker told that it works on group i."""
        return (self.session / _beat(i)).exists()

    def take(self, i: int, future: Any) -> None:
        """What came of group i."""
        try:
            kind, value = future.result()
        except Exception as error:  # of the engine: a worker died, was cancelled, or has no such package
            self.lose(i, error)
            return
        if kind == "unseen":
            if not self.by_value:
                self.by_value, self.payload = True, packed(self.work, None)
            self.send(i, None)
        elif kind == "done":
            self.finish(i, unpacked(value))
        else:
            self.fail(i, unpacked(value))
        if kind != "unseen":
            for path in (self.session / _beat(i), *self.session.glob(f"group-{i}-*.npy")):
                path.unlink(missing_ok=True)

    def finish(self, i: int, result: Any) -> None:
        """Hand over the result of group i, and count it."""
        self.took(i, result)
        self.finished += self.sizes[i]
        self.models_finished += self.models[i]

    def lose(self, i: int, error: Exception) -> None:
        """Send group i again, or give it up."""
        self.lost[i] = self.lost.get(i, 0) + 1
        (self.session / _beat(i)).unlink(missing_ok=True)
        if self.lost[i] <= 1 + len(self.pools):
            if not self.pools and not self.broken:
                _log.warning("group %d of %d was lost (%s: %s) and is sent again", i + 1, len(self.groups),
                             type(error).__name__, error)  # fmt: skip
            self.send(i, error)
        else:
            error.add_note(
                f"Group {i + 1} of {len(self.groups)} was lost {self.lost[i]} times: {self.groups[i]!r:.200}"
            )
            self.fail(i, error)

    def fail(self, i: int, error: BaseException) -> None:
        """Keep what went wrong until all others are finished."""
        self.failed[i] = error
        if self.pending or self.rest:
            _log.warning("group %d of %d failed (%s); the others are finished first, interrupt to stop them", i + 1,
                         len(self.groups), error)  # fmt: skip

    def do(self, i: int) -> None:
        """Group i, in this process."""

        def tick(share: float, note: str = "") -> None:
            self.progress(self.stage, self.finished + share * self.sizes[i], self.total, note)

        try:
            self.finish(i, self.work(self.groups[i], tick, True))
        except Exception as error:
            self.fail(i, error)

    def tell(self) -> None:
        """How far all are."""
        running, done = 0, float(self.finished)
        for i in self.pending:
            with suppress(OSError, ValueError, KeyError):
                done += json.loads((self.session / _beat(i)).read_text())["share"] * self.sizes[i]
                running += 1
        self.told = max(self.told, done)  # a group that was lost begins again
        note = f"{self.models_finished} of {self.all_models} models finished"
        if running:
            note = f"{running} group{'s' * (running > 1)} running, {note}"
        self.progress(self.stage, self.told, self.total, note)

    def leave(self) -> None:
        """Nothing that waits begins."""
        for future in self.pending.values():
            with suppress(Exception):
                future.cancel()
        for pool in self.pools:
            if isinstance(pool, ProcessPoolExecutor):
                pool.shutdown(wait=False)


def _is_done(future: Any) -> bool:
    """Whether its result is there; of one that cannot tell, yes: it is waited for."""
    if type(future).__name__ == "DebugJob":  # of submitit: it runs when it is asked for its result
        return True
    done = getattr(future, "done", None)
    return bool(done()) if callable(done) else True


def _another(executor: Any) -> Any:
    """A pool like one that broke; None where that cannot be made."""
    module = type(executor).__module__.partition(".")[0]
    with suppress(Exception):  # these attributes are no interface
        workers = executor._max_workers
        if isinstance(executor, ProcessPoolExecutor):
            context, start, args = executor._mp_context, executor._initializer, executor._initargs
            return ProcessPoolExecutor(workers, mp_context=context, initializer=start, initargs=args)
        if module == "loky":
            from loky import get_reusable_executor

            return get_reusable_executor(max_workers=workers)
    return None


# ------------------------------------------------------------------------------------------------------ in a worker


def remotely(payload: bytes, group: bytes, session: str, i: int, attempt: int) -> tuple[str, bytes]:
    """What an executor calls: ("done", result), ("failed", exception), or ("unseen", nothing) without the folder."""
    mine = _here.get(session) == os.getpid()
    if not mine and os.getpid() != _imported_by:
        torch.set_num_threads(1)  # forked: the threads of the process that began it are not here, and are waited for
    try:
        work, asked = unpacked(payload, session), unpacked(group, session)
    except _Unseen:
        return "unseen", b""
    except Exception as error:
        return "failed", _packed_error(
            ConfigurationError(
                f"a worker cannot take the work: {type(error).__name__}: {error}. Modules that define what is trained"
                " must be importable there"
            )
        )
    tick = _Beats(Path(session), i)
    try:
        with _one_at_a_time if mine else nullcontext():
            tick(0.0)
            return "done", packed(work(asked, tick, tick.seen), None)
    except Exception as error:
        error.add_note(f"In a worker:\n{traceback.format_exc()}")
        return "failed", _packed_error(error)


class _Beats:
    """Writes how far a group is, where the folder of the run is seen; stops the work once that is gone."""

    def __init__(self, session: Path, i: int) -> None:
        self.path, self.seen, self.last = session / _beat(i), session.is_dir(), -BEAT_SECONDS

    def __call__(self, share: float, note: str = "") -> None:
        now = time.monotonic()
        if not self.seen or now - self.last < BEAT_SECONDS:
            return
        self.last = now
        if not self.path.parent.is_dir():
            raise InterruptedError("the process that asked for this is gone, or was interrupted")
        with suppress(OSError):
            part = self.path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"share": share, "note": note}))
            part.replace(self.path)


def _beat(i: int) -> str:
    return f"group-{i}.json"


def _packed_error(error: Exception) -> bytes:
    """An exception that can be read again in another process, as itself where it can."""
    try:
        raw = packed(error, None)
        unpacked(raw)
    except Exception:
        raw = packed(RuntimeError(f"{type(error).__name__}: {error}"), None)
    return raw


# ------------------------------------------------------------------------------------------------------- as bytes


class _Unseen(Exception):
    """The folder of the run is not seen from here."""


def packed(value: Any, session: Path | None, prefix: str = "", *, dry: bool = False) -> bytes:
    """A pickle, by cloudpickle where that is installed: then functions and classes of scripts travel too.

    Args:
        value: anything.
        session: where large tensors and parameters (on the CPU) and arrays are written, each once; None: they are in
            the pickle.
        prefix: of the names of these files.
        dry: leave large ones out, to see whether all else can be pickled.

    Raises:
        ConfigurationError: something in it cannot be pickled.
        InputError: an array cannot be written.
    """
    try:
        from cloudpickle import Pickler
    except ImportError:
        from pickle import Pickler

    written: dict[int, tuple[Any, tuple[str, str]]] = {}

    class Shared(Pickler):  # type: ignore[misc]
        def persistent_id(self, found: Any) -> tuple[str, str] | None:
            if session is None and not dry:
                return None
            if id(found) not in written:
                array = _as_array(found)
                if array is None:
                    return None
                name = f"{prefix}{len(written)}.npy"
                if session is not None:
                    _write(session / name, array)
                frozen = "frozen " * (isinstance(found, nn.Parameter) and not found.requires_grad)
                written[id(found)] = found, (frozen + type(found).__name__, name)
            return written[id(found)][1]

    file = io.BytesIO()
    try:
        Shared(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"cannot send this to other processes: {_culprit(value)}{error}. Define functions and classes at the top"
            " of a module, or install cloudpickle (as loky, Dask and Ray do), which sends lambdas and local functions"
        ) from error
    return file.getvalue()


def unpacked(raw: bytes, session: str | Path = "") -> Any:
    """What `packed` packed.

    Raises:
        _Unseen: its arrays are in a folder that is not seen from here.
    """

    known: dict[str, Any] = {}

    class Shared(pickle.Unpickler):
        def persistent_load(self, pid: tuple[str, str]) -> Any:
            kind, name = pid
            if name not in known:
                try:
                    array = np.load(Path(session) / name, mmap_mode="c", allow_pickle=False)
                except FileNotFoundError:
                    raise _Unseen from None
                known[name] = array if kind in ("ndarray", "memmap") else torch.from_numpy(array)
                if kind.endswith("Parameter"):
                    known[name] = nn.Parameter(known[name], requires_grad=kind == "Parameter")
            return known[name]

    return Shared(io.BytesIO(raw)).load()


def _write(path: Path, array: NDArray[Any]) -> None:
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise InputError(
            f"cannot write the data for the workers to {path.parent} ({error}); free some space there"
        ) from None


def _as_array(value: Any) -> NDArray[Any] | None:
    """The numbers of a large tensor, parameter or array; None for anything else."""
    if type(value) is nn.Parameter or (type(value) is torch.Tensor and not value.requires_grad):
        plain = value.device.type == "cpu" and value.layout is torch.strided and value.dtype is not torch.bfloat16
        return value.detach().numpy() if plain and value.nbytes >= LARGE else None
    if type(value) in (np.ndarray, np.memmap) and value.nbytes >= LARGE and value.dtype.kind in "biufc":
        return cast("NDArray[Any]", value)
    return None


def _culprit(value: Any) -> str:
    """Names of the fields that cannot be pickled."""
    names = []
    for name, part in getattr(value, "__dict__", {}).items():
        try:
            pickle.dumps(part)
        except Exception:
            names.append(f"{name} ({part!r:.80})")
    return f"{', '.join(names)}: " if names else ""
