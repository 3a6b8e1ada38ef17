"""Progress of long runs: one protocol, and one way to show it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self, TextIO

LINE_SECONDS = 60.0
"""Seconds between lines where there is no terminal."""


class Progress(Protocol):
    """A function that receives the progress of a run."""

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` units of `stage` are finished; `note` adds a few words."""


def silent(stage: str, done: float, total: float, note: str = "") -> None:
    """Ignore progress."""


def as_stage(progress: Progress, stage: str) -> Progress:
    """Progress that is reported under the name of this stage."""
    return lambda _, done, total, note="": progress(stage, done, total, note)


@contextmanager
def show_progress(
    quiet: bool = False, stages: Iterable[tuple[str, float]] = (), stream: TextIO | None = None
) -> Iterator[ProgressDisplay]:
    """Show progress on a stream, by default standard error: a bar for each stage on a terminal, else a line a minute,
    nothing if `quiet`. `stages`: see `ProgressDisplay.expect`."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield ProgressDisplay()
    else:
        with _bars(stream) if stream.isatty() else _Lines(stream).running() as display:
            display.expect(stages)
            yield display


class ProgressDisplay:
    """Progress by stage, passed to `show` at each update; by default nothing is shown."""

    def __init__(self, show: Callable[[_Stage], None] = lambda stage: None) -> None:
        self._plan: dict[str, float] = {}
        self._stages: dict[str, _Stage] = {}
        self._show, self._lock = show, threading.RLock()

    def expect(self, stages: Iterable[tuple[str, float]]) -> None:
        """Announce the stages, name and expected seconds of each in order, so that their numbers and the total time
        left are shown. A stage is matched to the longest planned name that its name begins with."""
        self._plan = dict(stages)

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        with self._lock:
            current = self._stages.setdefault(stage, _Stage(stage, now, done, now))
            current.done, current.total, current.note, current.updated = done, total, note, now
            self._show(current)

    def text(self, stage: _Stage, now: float) -> str:
        """A stage in one line: "3 of 6, asking for labels, 41%, 4 min left; 11 min in all"."""
        name, prefix, shown_name = self._planned(stage.name), "", stage.name
        if not name and (name := self._planned(shown_name.rpartition(": ")[2])):  # "look 2: asking for labels"
            prefix, _, shown_name = shown_name.rpartition(": ")
        left = stage.left(now, self._plan.get(name))
        text = f"{prefix}, " if prefix else ""
        text += f"{list(self._plan).index(name) + 1} of {len(self._plan)}, " if name in self._plan else ""
        text += f"{shown_name}, {f'{stage.share:.0%}' if stage.total else 'done'}"
        if left is None or stage.share >= 1:
            text += f" after {duration_text(now - stage.began)}"
        else:
            text += f", {duration_text(left)} left"
        if name in self._plan and left is not None and not prefix:
            shares = {self._planned(s.name): s.share for s in self._stages.values()}
            later = sum(seconds * (1 - shares.get(p, 0.0)) for p, seconds in self._plan.items() if p != name)
            text += f"; {duration_text(left + later)} in all" if left + later else ""
        return f"{text} ({stage.note})" if stage.note else text

    def _planned(self, name: str) -> str:
        return max((p for p in self._plan if name.startswith(p)), key=len, default="")


@dataclass(eq=False)
class _Stage:
    """A stage: first reported at `began` (seconds) with `first` units finished; `written` is the time of its last line,
    `over` whether that line reported its end."""

    name: str
    began: float
    first: float
    written: float
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    updated: float = 0.0
    over: bool = False

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0

    def left(self, now: float, planned: float | None) -> float | None:
        if self.share >= 1:
            return 0.0
        if self.done > self.first:
            each = (self.updated - self.began) / (self.done - self.first)
            return max(each * (self.total - self.done) - (now - self.updated), 0.0)
        return None if planned is None else max(planned * (1 - self.share) - (now - self.began), 0.0)


class _Lines(ProgressDisplay):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(self._update)
        self._stream = stream
        self._latest: _Stage | None = None
        self._began = self._written = time.monotonic()

    def _update(self, stage: _Stage) -> None:
        self._latest = stage
        ended = stage.share >= 1 and stage.written > stage.began and not stage.over
        if ended or stage.updated - stage.written >= LINE_SECONDS:
            stage.over = ended
            self._write(stage, stage.updated)

    def repeat(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._written >= LINE_SECONDS:
                self._write(self._latest, now)

    @contextmanager
    def running(self) -> Iterator[Self]:
        over = threading.Event()

        def run() -> None:
            while not over.wait(LINE_SECONDS / 4):
                self.repeat()

        thread = threading.Thread(target=run, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _write(self, stage: _Stage | None, now: float) -> None:
        self._written = now
        if stage is not None:
            stage.written = now
        text = f"working for {duration_text(now - self._began)}" if stage is None else self.text(stage, now)
        self._stream.write(f"{text}\n")
        self._stream.flush()


def duration_text(seconds: float) -> str:
    """Seconds as text, in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def _bars(stream: TextIO) -> Iterator[ProgressDisplay]:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TaskID
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Description(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(display.text(task.fields["stage"], time.monotonic()))

    description = Description(table_column=Column(no_wrap=True, overflow="ellipsis"))
    bar = BarColumn(bar_width=12, table_column=Column(min_width=12))
    bars = Bars(bar, description, console=Console(file=stream))
    tasks: dict[str, TaskID] = {}

    def show(stage: _Stage) -> None:
        if not tasks:
            bars.start()
        if stage.name not in tasks:
            tasks[stage.name] = bars.add_task("", total=stage.total, stage=stage)
        bars.update(tasks[stage.name], completed=stage.done, total=stage.total)

    display = ProgressDisplay(show)
    try:
        yield display
    finally:
        if tasks:
            bars.stop()
