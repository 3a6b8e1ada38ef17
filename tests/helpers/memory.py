"""Memory of a piece of work, by the kernel: `tracemalloc.stop` may crash beside other threads (CPython 128679)."""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

STATUS, HIGH_WATER = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def counted(name: str) -> int:
    """Bytes of one of the kernel's counters of this process: VmRSS, VmHWM, RssAnon ..."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_of(work: Callable[[], Any]) -> int:
    """Bytes that this process held at most during a piece of work, beyond those before; pages count once written to."""
    try:
        give_back()
        HIGH_WATER.write_text("5")
    except OSError:
        work()
        pytest.skip("the peak of memory is read from Linux' /proc/self/clear_refs, which cannot be written here")
    before = counted("VmRSS")
    work()
    return counted("VmHWM") - before


def give_back() -> None:
    """Free memory that the C library holds goes back to the system, so that taking it anew is seen; glibc only."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class Watched:
    """The most memory beyond that before, without that of mapped files, looked at every few ms."""

    def __enter__(self) -> Self:
        if not STATUS.exists():
            pytest.skip("memory is read from Linux' /proc")
        give_back()
        self.before = self.most = counted("RssAnon")
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, counted("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self.before
