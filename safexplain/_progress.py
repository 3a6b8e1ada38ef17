"""Progress of long work, for everybody: one protocol, and one way to show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

LINE_SECONDS = 60.0
"""Without a terminal, a line is written this often, and when a stage is finished."""


class Progress(Protocol):
    """Told about long work."""

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total` units of `stage` are finished; `note` is what else is known, in a few words."""


def silent(stage: str, done: float, total: float, note: str = "") -> None:
    """Progress that goes nowhere."""


def named(progress: Progress, stage: str) -> Progress:
    """The same progress under another stage's name."""
    return lambda _, done, total, note="": progress(stage, done, total, note)


@contextmanager
def shown(quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress for a person: bars with the time left on a terminal, else a line a minute; nothing when quiet.

    Args:
        quiet: show nothing.
        stream: default standard error.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield silent
    elif not stream.isatty():
        yield _Lines(stream)
    else:
        with _bars(stream) as bars:
            yield bars


class _Lines:
    """A line a minute, and one when a stage is finished that had taken longer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        began = self._began.setdefault(stage, now)
        if now - self._last.setdefault(stage, began) < LINE_SECONDS and not (
            done >= total and self._last[stage] > began
        ):
            return
        self._last[stage] = now
        left = f", about {_spoken((now - began) * (total - done) / done)} left" if 0 < done < total else ""
        share = f"{done / total:.0%}" if total else "done"
        self._stream.write(f"{stage}: {share} after {_spoken(now - began)}{left}{f' ({note})' if note else ''}\n")
        self._stream.flush()


def _spoken(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


@contextmanager
def _bars(stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.percentage:>4.0f}%"))
    notes = TextColumn("{task.fields[note]}")
    bars = Bars(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), notes, console=Console(file=stream)
    )
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: float, total: float, note: str = "") -> None:
        if not tasks:
            bars.start()
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, note=note)
        bars.update(tasks[stage], completed=done, total=total, note=note)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()
