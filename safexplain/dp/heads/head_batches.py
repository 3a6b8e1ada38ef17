"""Poisson batches for many runs at once: each member of each run is in with the same probability, independently."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["common_batches", "own_batches"]

Batch = tuple[Tensor | None, Tensor | None]
"""(index, weight). index: rows of the batch, (b,) for all runs or (runs, b); None: all n rows, in order.
weight: (runs, b) or (1, b) bool, False where a row is padding or not in the run's batch; None: every row is in."""

_AT_ONCE = 2**18
"""Sampling decisions that are drawn together."""
_DENSE = 0.5
"""From this share of the rows on, multiplying all of them beats gathering some."""


def own_batches(sample_rate: float, members: Tensor, steps: int, generator: torch.Generator) -> Iterator[Batch]:
    """A sample of its own for each run.

    Args:
        sample_rate: in (0, 1]; 1 takes all members and draws nothing.
        members: (runs, n) bool.
        steps: how many batches.
        generator: on the device of `members`.
    """
    runs, n = members.shape
    if sample_rate >= 1:
        whole = None if bool(members.all()) else members
        yield from ((None, whole) for _ in range(steps))
        return
    dense = sample_rate * float(members.float().mean()) > _DENSE
    together = max(1, _AT_ONCE // (runs * n))
    for start in range(0, steps, together):
        count = min(together, steps - start)
        drawn = (
            torch.rand(count, runs, n, generator=generator, device=members.device, dtype=torch.float64) < sample_rate
        )
        drawn &= members
        yield from ((None, chosen) for chosen in drawn) if dense else _gathered(drawn)


def _gathered(drawn: Tensor) -> Iterator[Batch]:
    """The chosen rows of each step, (steps, runs, n) bool, padded to the longest run of the step."""
    steps, runs, n = drawn.shape
    sizes = drawn.sum(2)
    ends = sizes.flatten().cumsum(0)
    sample, row = drawn.view(steps * runs, n).nonzero(as_tuple=True)
    index = torch.zeros(steps * runs, n, dtype=torch.long, device=drawn.device)
    index[sample, torch.arange(len(row), device=row.device) - (ends - sizes.flatten())[sample]] = row
    widths = sizes.amax(1).tolist()  # the only wait for a GPU
    for chosen, size, width in zip(index.view(steps, runs, n), sizes, widths, strict=True):
        if runs == 1:
            yield chosen[0, :width], None
        else:
            yield chosen[:, :width], torch.arange(width, device=row.device) < size[:, None]


def common_batches(sample_rate: float, members: Tensor, steps: int, generator: torch.Generator) -> Iterator[Batch]:
    """One sample of the rows for all runs, each of which takes its members of it; arguments as in `own_batches`."""
    everyone = bool(members.all())
    for index, weight in own_batches(sample_rate, torch.ones_like(members[:1]), steps, generator):
        if everyone:
            yield index, weight
        elif index is None:
            yield None, members if weight is None else members & weight
        else:
            yield index, members[:, index]
