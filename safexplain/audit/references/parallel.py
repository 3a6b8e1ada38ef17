"""Long work in several processes or on several machines, by the active joblib backend: loky, Dask or Ray.

Otherwise everything runs in this process: torch has one random generator for all threads.
"""

from __future__ import annotations

import io
import logging
import pickle
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs, parallel_config  # type: ignore[import-untyped]
from joblib.parallel import get_active_backend  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress
from safexplain._versions import VERSION
from safexplain.errors import ConfigurationError

TRIES = 3  # losses of workers in a row, with no task finished, that are not made good
LARGE = 1 << 20  # bytes from which an array is sent outside the pickle, once for all tasks

VERSIONS = {"safexplain": VERSION, "torch": torch.__version__}

_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()  # a worker of Dask may have several threads


def workers() -> int:
    """Workers of the active backend; 1: this process."""
    backend = get_active_backend()[0]
    if getattr(backend, "supports_sharedmem", False):  # threads
        return 1
    return max(int(effective_n_jobs(None)), 2 if _is_dask(backend) else 1)


def parallel() -> bool:
    """Whether work is done by workers."""
    return workers() > 1


def present(device: str | torch.device) -> torch.device:
    """The device, or the CPU if only workers have it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return torch.device("cpu")
    return torch.device(device)


def each(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    sizes: Sequence[float] | None = None,
    stage: str,
    progress: Progress,
    before: float = 0,
    total: float | None = None,
) -> Iterator[tuple[int, Any]]:
    """(i, `work(*tasks[i], tick=tick)`) for every task, as they finish; in order if this process does them.

    `tick(share, note="")` moves progress in this process. Each task counts as `sizes` units (or one) of `total`, which
    includes the `before` finished earlier. Tasks that cannot be pickled run in this process; a task whose worker died
    is repeated; exceptions of `work` are raised unchanged. Results must be on the CPU.
    """
    units = [1.0] * len(tasks) if sizes is None else list(sizes)
    total, done = before + sum(units) if total is None else total, before
    waiting = _packed(work, tasks) if parallel() else {}
    for i, task in enumerate(tasks):
        if i not in waiting:

            def tick(share: float, note: str = "", before: float = done, size: float = units[i]) -> None:
                progress(stage, before + share * size, total, note)

            yield i, work(*task, tick=tick)
            done += units[i]
            progress(stage, done, total)
    if waiting:
        _prepare(get_active_backend()[0])
    tries = TRIES
    while waiting:
        with closing(_answers(waiting)) as answers:
            while True:
                try:
                    answer = next(answers, None)
                except Exception as error:  # from the backend: a worker died, or none is left
                    tries -= 1
                    if not tries:
                        error.add_note(f"workers were lost {TRIES} times in a row, with nothing finished ({stage})")
                        raise
                    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                    _log.warning("a worker was lost; its tasks are repeated (%s)", reason)
                    break
                if answer is None:
                    break
                i, raised, raw = answer
                if raised:
                    raise pickle.loads(raw)
                del waiting[i]
                yield i, pickle.loads(raw)
                tries, done = TRIES, done + units[i]
                progress(stage, done, total)


def _answers(waiting: Mapping[int, tuple[bytes, list[NDArray[Any]]]]) -> Generator[tuple[int, bool, bytes]]:
    pool = Parallel(return_as="generator_unordered", batch_size=1, mmap_mode="c")
    results = pool(delayed(_do)(i, VERSIONS, raw, *arrays) for i, (raw, arrays) in list(waiting.items()))
    try:
        for answer in results:  # noqa: UP028  # `yield from` would close it outside the block below
            yield answer
    finally:
        with warnings.catch_warnings(action="ignore"):  # about results that were not taken
            results.close()


def _prepare(backend: Any) -> None:
    """Make the backend return results as they finish, and report lost workers."""
    if type(backend).__name__ == "RayBackend":
        backend.supports_return_generator = True  # inherited as False from multiprocessing's pool, but Ray's can
    if not backend.supports_return_generator:
        raise ConfigurationError(f'expected joblib\'s backend "loky", "dask" or "ray", got {type(backend).__name__}')
    if _is_dask(backend):
        submit, count = type(backend).submit, type(backend).effective_n_jobs

        def submitted(func: Any, callback: Callable[[Any], None]) -> Any:  # joblib 1.6 waits forever for a lost task
            future = submit(backend, func, callback)
            future.add_done_callback(lambda ended: callback(ended.exception()) if ended.exception() else None)
            return future

        backend.submit = submitted
        backend.effective_n_jobs = lambda n_jobs: max(count(backend, n_jobs), 2)  # joblib sends nothing to a single one


def _is_dask(backend: Any) -> bool:
    return type(backend).__name__ == "DaskDistributedBackend"


def _do(i: int, versions: Mapping[str, str], raw: bytes, *arrays: NDArray[Any]) -> tuple[int, bool, bytes]:
    """A task's number, whether it raised, and the pickled result or exception."""
    try:
        if versions != VERSIONS:
            raise ConfigurationError(f"expected {versions} in every worker, got {VERSIONS}: install the same versions")
        with _one_at_a_time, parallel_config("sequential"):
            try:
                work, task = _unpacked(raw, arrays)
            except Exception as error:
                raise ConfigurationError(
                    f"a worker cannot read its task: {type(error).__name__}: {error}. Modules that define models and"
                    " training must be importable there"
                ) from error
            return i, False, cloudpickle.dumps(work(*task, tick=lambda share, note="": None))
    except Exception as error:
        error.add_note(f"In a worker:\n{traceback.format_exc()}")
        try:
            pickle.loads(raw := cloudpickle.dumps(error))
        except Exception:
            raw = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return i, True, raw


def _packed(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> dict[int, tuple[bytes, list[NDArray[Any]]]]:
    """Number -> pickled task and its large arrays, where it can be pickled."""
    found, known = {}, dict[Any, Any]()
    for i, task in enumerate(tasks):
        pickler = _Pickler(file := io.BytesIO(), known)
        try:
            pickler.dump((work, task))
        except Exception as error:  # any, as `__reduce__` is foreign code
            _log.warning("task %d runs in this process, as it cannot be sent: %s", i, error)
        else:
            found[i] = file.getvalue(), pickler.arrays
    return found


def _unpacked(raw: bytes, arrays: Sequence[NDArray[Any]]) -> Any:
    """The inverse of `_packed`; read-only arrays are copied for torch."""
    usable = [a if a.flags.writeable and a.ctypes.data % 16 == 0 else a.copy() for a in arrays]
    return pickle.loads(raw, buffers=usable)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps large arrays and tensors out of the pickle, in `arrays`; `known` has those of all tasks."""

    def __init__(self, file: io.BytesIO, known: dict[Any, Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._is_small)
        self.arrays = list[NDArray[Any]]()
        self._known = known

    def _is_small(self, buffer: pickle.PickleBuffer) -> bool:
        array = np.frombuffer(buffer.raw(), np.uint8)
        if array.nbytes >= LARGE:
            self.arrays.append(self._known.setdefault((array.ctypes.data, array.nbytes), array))
        return array.nbytes < LARGE

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.memmap:
            return value.view(np.ndarray).__reduce_ex__(5)
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided or not value.is_leaf:
            return super().reducer_override(value)
        if value.device.type == "cpu" and value.nbytes < LARGE:
            return super().reducer_override(value)
        if type(value) is nn.Parameter:
            return nn.Parameter, (value.detach(), value.requires_grad)
        order = sorted(range(value.dim()), key=value.stride, reverse=True)  # dimensions as in memory
        dense = value.detach().permute(order)
        if id(value) not in self._known:
            self._known[id(value)] = value, dense.cpu().contiguous().flatten().view(torch.uint8).numpy()
        array = self._known[id(value)][1]
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return _tensor, (array, value.dtype, dense.shape, inverse, value.device, value.requires_grad)


def _tensor(
    array: NDArray[Any], dtype: torch.dtype, shape: torch.Size, order: list[int], device: torch.device, grad: bool
) -> Tensor:
    return torch.from_numpy(array).view(dtype).view(shape).permute(order).to(device).requires_grad_(grad)
