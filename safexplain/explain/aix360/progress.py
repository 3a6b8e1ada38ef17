"""Progress of AIX360's ProtoDash, which has none: its candidate rows tell how often they are read.

The native loop reads every candidate once for the Gaussian kernel means and once to select the first prototype, and two
of them for every one that remains at each further prototype. Counting these reads reports progress without a second
version of the algorithm; a native version that reads otherwise would be reported wrongly, and answered the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

__all__ = ["Progress", "watched"]

Progress = Callable[[float], object] | bool | None

_PATIENCE = 2.0
"""Seconds before a bar is shown."""


class _Watched:
    """An array that says when it is read."""

    def __init__(self, array: NDArray[Any], on_read: Callable[[], None]) -> None:
        self._array, self._on_read = array, on_read
        self.shape = array.shape

    @property
    def T(self) -> _Watched:
        return _Watched(self._array.T, self._on_read)

    def __getitem__(self, key: Any) -> Any:
        self._on_read()
        return self._array[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._array, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


@contextmanager
def watched(
    candidates: NDArray[Any], X: NDArray[Any], m: int, gaussian: bool, progress: Progress
) -> Iterator[_Watched | None]:
    """Lend the candidates such that reading them moves the progress, or None where nobody looks.

    Args:
        candidates: (n, d).
        X: rows to explain (q, d); they decide what the kernel mean of one candidate costs.
        m: prototypes to select.
        gaussian: whether there are kernel means.
        progress: as in `HardenedProtoDash`.
    """
    console = Console(stderr=True)
    if not callable(progress) and not console.is_terminal:
        yield None
        return
    n, d = candidates.shape
    mean_cost = 20_000 + X.shape[0] * (0.6 * d + 10) if gaussian else 0.0  # nanoseconds of one core, roughly
    pick_cost = 4_000.0 + d
    total = n * mean_cost + (2 * m - 1) * n * pick_cost
    reads, done, told, started = 0, 0.0, 0.0, time.monotonic()
    last = started
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Bar(TextColumn("ProtoDash"), *columns, console=console, transient=True)
    task = bar.add_task("ProtoDash", total=1.0)

    def tell(fraction: float) -> None:
        if callable(progress):
            progress(fraction)
        elif time.monotonic() - started > _PATIENCE:
            bar.start()
            bar.update(task, completed=fraction)

    def on_read() -> None:
        nonlocal reads, done, told, last
        reads += 1
        done += mean_cost if gaussian and reads <= n else pick_cost
        now = time.monotonic()
        if done >= told + 0.01 * total or now > last + 1.0:
            told, last = done, now
            tell(min(done / total, 1.0))

    try:
        yield _Watched(candidates, on_read)
        tell(1.0)
    finally:
        bar.stop()
