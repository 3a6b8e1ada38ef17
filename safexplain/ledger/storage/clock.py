"""Time that a jump of the wall clock does not move: read once, then counted by a clock that only goes forward.

Time of a ledger is the later of this and of the last time that it recorded, so a clock that is set back never opens a
period again. A wall clock that is set forward goes unnoticed by running processes, but one that starts then opens the
period of that date early; the ledger stays at that time until the date is reached, and renews nothing before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_STEADY = getattr(time, "CLOCK_BOOTTIME", None) or time.CLOCK_MONOTONIC  # the first also counts while suspended


def steady() -> int:
    """Nanoseconds since some point in the past."""
    return time.clock_gettime_ns(_STEADY)


@dataclass
class AnchoredClock:
    """Microseconds since 1970: the wall clock at the first call, a steady clock from there.

    Args:
        wall: nanoseconds since 1970.
        steady: nanoseconds that only go forward.
    """

    wall: Callable[[], int] = time.time_ns
    steady: Callable[[], int] = steady
    _anchor: int | None = field(default=None, init=False)

    def __call__(self) -> int:
        """Now."""
        if self._anchor is None:
            self._anchor = self.wall() - self.steady()
        return (self._anchor + self.steady()) // 1000


PROCESS_CLOCK = AnchoredClock()
"""One anchor for all ledgers of a process."""
