"""Progress of long work, for everybody: one protocol, and one way to show it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self, TextIO

LINE_SECONDS = 60.0
"""Without a terminal, a line is written this often, whatever is told meanwhile, and when a stage is finished."""


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
        with _Lines(stream).beating() as lines:
            yield lines
    else:
        with _bars(stream) as bars:
            yield bars


class _Lines:
    """A line a minute, and one when a stage is finished that had taken longer.

    A thread sees to it that there is a line a minute where nothing is told for so long, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.RLock()
        self._stages: dict[str, _Stage] = {}
        self._latest: _Stage | None = None
        self._began = self._written = time.monotonic()

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        with self._lock:
            here = self._stages.setdefault(stage, _Stage(stage, now, done, now))
            here.done, here.total, here.note, here.told = done, total, note, now
            self._latest = here
            if now - here.written >= LINE_SECONDS or (done >= total and here.written > here.began):
                self._write(here, now)

    def beat(self) -> None:
        """Say what was told last, if there has been no line for a minute."""
        now = time.monotonic()
        with self._lock:
            if now - self._written < LINE_SECONDS:
                return
            if self._latest is None:
                self._line(f"at work for {_spoken(now - self._began)}", now)
            else:
                self._write(self._latest, now)

    @contextmanager
    def beating(self) -> Iterator[Self]:
        """With a thread that beats."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(LINE_SECONDS / 4):
                self.beat()

        thread = threading.Thread(target=beat, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _write(self, stage: _Stage, now: float) -> None:
        stage.written = now
        self._line(stage.said(now), now)

    def _line(self, text: str, now: float) -> None:
        self._written = now
        self._stream.write(f"{text}\n")
        self._stream.flush()


@dataclass(eq=False)
class _Stage:
    """What is known of a stage.

    Args:
        name: of it.
        began: seconds, when it was first told about.
        first: units that were finished then, as those of an interrupted run that is taken up.
        written: when a line was last written about it.
    """

    name: str
    began: float
    first: float
    written: float
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    told: float = 0.0

    def said(self, now: float) -> str:
        """In a line."""
        share = f"{self.done / self.total:.0%}" if self.total else "done"
        left = ""
        if self.first < self.done < self.total:
            each = (self.told - self.began) / (self.done - self.first)
            left = f", about {_spoken(max(each * (self.total - self.done) - (now - self.told), 0.0))} left"
        return f"{self.name}: {share} after {_spoken(now - self.began)}{left}{f' ({self.note})' if self.note else ''}"


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
    from rich.table import Column

    def whole(width: int) -> Column:
        return Column(min_width=width, no_wrap=True)  # notes give way where the terminal is narrow, numbers do not

    bars = Bars(
        TextColumn("{task.description:<28}", table_column=whole(28)),
        BarColumn(bar_width=12, table_column=whole(12)),
        TextColumn("{task.percentage:>4.0f}%", table_column=whole(5)),
        TimeElapsedColumn(table_column=whole(7)),
        TextColumn("left", table_column=whole(4)),
        TimeRemainingColumn(table_column=whole(7)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(file=stream),
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
