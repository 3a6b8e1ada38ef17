"""Ray as an executor: `ray_executor`, for `train_shadows`, `fine_tune`, `collect_signals` and `audit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safexplain.errors import MissingExtraError


def ray_executor(**options: Any) -> RayExecutor:
    """An executor by the Ray cluster that this process is connected to (`ray.init()`), or by one on this machine.

        train_shadows(population, recipe, build=build, executor=ray_executor(num_gpus=1))

    Args:
        options: of `ray.remote`, for each group: num_cpus, num_gpus, memory, max_retries, runtime_env and others.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError('ray_executor needs Ray: pip install "safexplain[ray]"') from error
    if not ray.is_initialized():
        ray.init()
    return RayExecutor(ray, options)


class RayExecutor:
    """Calls as tasks of Ray; a first argument that is the same in all of them is put in its object store once.

    Args:
        ray: the library.
        options: of `ray.remote`.
    """

    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        self._ray = ray
        self._task = ray.remote(**options)(_call) if options else ray.remote(_call)
        cpus = ray.cluster_resources().get("CPU", 1) / max(options.get("num_cpus", 1), 0.01)
        gpus = options.get("num_gpus") and ray.cluster_resources().get("GPU", 0) / options["num_gpus"]
        self._max_workers = max(1, int(cpus if not gpus else min(cpus, gpus)))
        self._put: tuple[Any, Any] = None, None

    def submit(self, fn: Callable[..., Any], /, first: Any = None, *args: Any) -> _RayFuture:
        """Start `fn(first, *args)` on the cluster."""
        if self._put[0] is not first:
            self._put = first, self._ray.put(first)
        return _RayFuture(self._ray, self._task.remote(fn, self._put[1], *args))


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


@dataclass(frozen=True, eq=False)
class _RayFuture:
    """A task of Ray as `concurrent.futures` would have it."""

    ray: Any
    reference: Any

    def result(self, timeout: float | None = None) -> Any:
        """What it returned, or raise what it raised."""
        return self.ray.get(self.reference, timeout=timeout)

    def done(self) -> bool:
        """Whether it has finished."""
        ready, _ = self.ray.wait([self.reference], timeout=0)
        return bool(ready)

    def cancel(self) -> None:
        """Stop it, begun or not."""
        self.ray.cancel(self.reference)
