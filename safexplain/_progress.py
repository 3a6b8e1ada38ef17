"""Progress of long work, for everybody: one protocol, and one way to show it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self, TextIO

LINE_SECONDS = 60.0
"""Without a terminal, a line is written this often, and when a stage ends that had taken longer."""


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
def shown(
    quiet: bool = False, stages: Iterable[tuple[str, float]] = (), stream: TextIO | None = None
) -> Iterator[Shown]:
    """Progress for a person, on standard error by default: a bar for each stage on a terminal, else a line a minute;
    nothing if `quiet`. `stages` are as `Shown.expect` takes them."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield Shown()
    else:
        with _bars(stream) if stream.isatty() else _Lines(stream).beating() as found:
            found.expect(stages)
            yield found


class Shown:
    """Progress that knows the stages; this one shows nothing."""

    def __init__(self, show: Callable[[_Stage], None] = lambda stage: None) -> None:
        self._plan: dict[str, float] = {}
        self._stages: dict[str, _Stage] = {}
        self._show, self._lock = show, threading.RLock()

    def expect(self, stages: Iterable[tuple[str, float]]) -> None:
        """What will be told: which stage of how many this is, and the time left in all, are shown from then on.

        Args:
            stages: name and expected seconds of each, in order. A stage is the planned one of its name, or else of the
                longest planned name that its name begins with; others are shown without a number.
        """
        self._plan = dict(stages)

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        with self._lock:
            here = self._stages.setdefault(stage, _Stage(stage, now, done, now))
            here.done, here.total, here.note, here.told = done, total, note, now
            self._show(here)

    def text(self, stage: _Stage, now: float) -> str:
        """A stage in a line: "3 of 6, asking for labels, 41%, 4 min left; 11 min in all"."""
        name, again, own = self._planned(stage.name), "", stage.name
        if not name and (name := self._planned(own.rpartition(": ")[2])):  # "look 2: asking for labels"
            again, _, own = own.rpartition(": ")
        left = stage.left(now, self._plan.get(name))
        text = f"{again}, " if again else ""
        text += f"{list(self._plan).index(name) + 1} of {len(self._plan)}, " if name in self._plan else ""
        text += f"{own}, {f'{stage.share:.0%}' if stage.total else 'done'}"
        unfinished = stage.share < 1
        text += f" after {spoken(now - stage.began)}" if left is None or not unfinished else f", {spoken(left)} left"
        if name in self._plan and left is not None and not again:
            shares = {self._planned(s.name): s.share for s in self._stages.values()}
            later = sum(seconds * (1 - shares.get(p, 0.0)) for p, seconds in self._plan.items() if p != name)
            text += f"; {spoken(left + later)} in all" if left + later else ""
        return f"{text} ({stage.note})" if stage.note else text

    def _planned(self, name: str) -> str:
        return max((p for p in self._plan if name.startswith(p)), key=len, default="")


@dataclass(eq=False)
class _Stage:
    """What is known of a stage: told about first at `began` (seconds), when `first` units were finished, as of a
    resumed run; `written` is when a line was last written about it, `over` whether its end was."""

    name: str
    began: float
    first: float
    written: float
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    told: float = 0.0
    over: bool = False

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0

    def left(self, now: float, planned: float | None) -> float | None:
        """Seconds, as measured, or else as planned; None: not known."""
        if self.share >= 1:
            return 0.0
        if self.done > self.first:
            each = (self.told - self.began) / (self.done - self.first)
            return max(each * (self.total - self.done) - (now - self.told), 0.0)
        return None if planned is None else max(planned * (1 - self.share) - (now - self.began), 0.0)


class _Lines(Shown):
    """A line a minute, also where nothing is told for so long, and one when a stage ends that had taken longer."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(self._tell)
        self._stream = stream
        self._latest: _Stage | None = None
        self._began = self._written = time.monotonic()

    def _tell(self, stage: _Stage) -> None:
        self._latest = stage
        ended = stage.share >= 1 and stage.written > stage.began and not stage.over
        if ended or stage.told - stage.written >= LINE_SECONDS:
            stage.over = ended
            self._write(stage, stage.told)

    def beat(self) -> None:
        """Say what was told last, if there has been no line for a minute."""
        now = time.monotonic()
        with self._lock:
            if now - self._written >= LINE_SECONDS:
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

    def _write(self, stage: _Stage | None, now: float) -> None:
        self._written = now
        if stage is not None:
            stage.written = now
        text = f"at work for {spoken(now - self._began)}" if stage is None else self.text(stage, now)
        self._stream.write(f"{text}\n")
        self._stream.flush()


def spoken(seconds: float) -> str:
    """In the unit that suits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def _bars(stream: TextIO) -> Iterator[Shown]:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TaskID
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Said(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(found.text(task.fields["stage"], time.monotonic()))

    said = Said(table_column=Column(no_wrap=True, overflow="ellipsis"))
    bars = Bars(BarColumn(bar_width=12, table_column=Column(min_width=12)), said, console=Console(file=stream))
    tasks: dict[str, TaskID] = {}

    def show(stage: _Stage) -> None:
        if not tasks:
            bars.start()
        if stage.name not in tasks:
            tasks[stage.name] = bars.add_task("", total=stage.total, stage=stage)
        bars.update(tasks[stage.name], completed=stage.done, total=stage.total)

    found = Shown(show)
    try:
        yield found
    finally:
        if tasks:
            bars.stop()
