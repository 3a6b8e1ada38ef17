"""The releases that are compared: what becomes of a native map before it leaves.

Each is a function of native rows (n, d), of one model's answer to one query. What `Hardening` can say is said by it.
Where there is noise, the release of several queries is that without its noise, which is what averaging leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from safexplain import RangeClip, RankNorm, ThresholdMask, UnitNorm
from safexplain.hardening.clips import Clip, Levels, TopKSet

from .tasks import Task

Rows = Callable[[Tensor], Tensor]

SET, ORDERED = "TopKSet(k=4, fraction=.1)", "TopKSet(k=4, fraction=.1, ordered=True)"
"""The default, and the same with its order."""


@dataclass(frozen=True)
class Release:
    """One row of the table.

    Args:
        randomises: what draws random numbers for every answer, in the place of `rows`.
        tier: of small runs: 0 is measured for every explainer, 1 for the first of each task, 2 for the first of all.
    """

    name: str  # in the table
    rows: Rows  # (n, d) native maps -> what is released, without noise
    noise: Callable[[int], float] | None = None  # (d) -> standard deviation of the noise of a single answer
    randomises: Callable[[Tensor, torch.Generator], Tensor] | None = None
    tier: int = 0

    def __call__(self, native: Tensor, model: int, query: int) -> Tensor:
        """What this model releases as the answer to this query; 0 is the plain one."""
        generator = torch.Generator().manual_seed(10_000 * model + query)
        rows = native.clone()
        out = self.rows(rows) if self.randomises is None else self.randomises(rows, generator)
        if self.noise is not None and query == 0:
            out = out + self.noise(out.shape[1]) * torch.randn(out.shape, generator=generator)
        return out


def clipped(clip: Clip) -> Rows:
    """By a clip alone."""
    return lambda rows: clip(rows)


def on_grid(clip: Clip, step: float) -> Rows:
    """By a clip, rounded to multiples of `step`."""
    return lambda rows: (clip(rows) / step).round() * step


def random_maps(native: Tensor, generator: torch.Generator) -> Tensor:
    """Another one for every answer, which tells nothing: what attacks find in it is their own error."""
    return torch.randn(native.shape, generator=generator)


def filled_ranks(native: Tensor, generator: torch.Generator) -> Tensor:
    """The first release's default without its noise: exact zeros got random signs and the lowest ranks."""
    zero = native == 0
    smallest = native.abs().masked_fill(zero, torch.inf).amin(1, keepdim=True)
    smallest = torch.where(smallest.isfinite(), smallest, 1.0).clamp_min(1e-30) / 16
    drawn = torch.randn(native.shape, generator=generator)
    both = ((native < 0).any(1) == (native > 0).any(1))[:, None]
    drawn = torch.where(both, drawn, torch.where((native < 0).any(1, keepdim=True), -drawn.abs(), drawn.abs()))
    return RankNorm(balanced_from=1024)(torch.where(zero, drawn * smallest, native))


def top_with_sign(count: Callable[[int], int]) -> Rows:
    """1 or -1 on the largest magnitudes, 0 elsewhere."""
    return lambda rows: TopKSet(k=count(rows.shape[1]), positive=False)(rows.clone()) * rows.sign()


def nested(*shares: float) -> Rows:
    """How many of several nested sets of the largest positive values a feature is in."""

    def rows(native: Tensor) -> Tensor:
        return sum((TopKSet(fraction=share)(native.clone()) for share in shares), torch.zeros_like(native)) / len(
            shares
        )

    return rows


def deepleak(rows: Tensor) -> Tensor:
    """DeepLeak's published default without its noise."""
    return ThresholdMask(1e-3)(RangeClip(-1, 1)(rows), None)


def pooled(shape: tuple[int, ...]) -> Rows:
    """Means over squares of 4 x 4 pixels and all channels (2 x 2 of digits), written back, with unit norm."""

    def rows(native: Tensor) -> Tensor:
        side = shape[-1] if len(shape) == 3 else 8
        square = 4 if side > 8 else 2
        image = native.view(len(native), -1, side, side).mean(1, keepdim=True)
        small = F.avg_pool2d(image, square).repeat_interleave(square, 2).repeat_interleave(square, 3)
        return UnitNorm()(small.expand(-1, native.shape[1] // side**2, -1, -1).flatten(1).clone())

    return rows


def releases(task: Task, explainer: str, d: int) -> dict[str, Release]:
    """The rows of a table, native first and the null of the method second."""
    signed = explainer != "Saliency"
    tenth = task.top
    weibull = RankNorm(shape=1.45, balanced_from=2)
    table = [
        Release("native", lambda rows: rows),
        Release("random map", lambda rows: rows, randomises=random_maps),
        Release(SET, clipped(TopKSet(k=4, fraction=0.1))),
        Release("Levels(3)", clipped(Levels(3))),
        Release("nested sets of 5, 10, 20, 40 %", nested(0.05, 0.1, 0.2, 0.4)),
        Release("rank norm 1.45, balanced", clipped(weibull)),
        Release("the same, grid .89 RMS", on_grid(weibull, 0.89 / float(np.sqrt(d))), tier=1),
        Release("Levels(5)", clipped(Levels(5)), tier=1),
        Release(ORDERED, clipped(TopKSet(k=4, fraction=0.1, ordered=True)), tier=1),
        Release("top 10 % by magnitude, signed", top_with_sign(tenth)),
        Release("0.1's default", lambda rows: rows, lambda k: 0.3 / float(np.sqrt(k)), filled_ranks),
        Release("unit norm", clipped(UnitNorm()), tier=2),
        Release("DeepLeak's default", deepleak, lambda k: 0.01, tier=2),
        Release("Levels(1)", clipped(Levels(1)), tier=2),
        Release("Levels(2)", clipped(Levels(2)), tier=2),
        Release("Levels(3, balanced=False)", clipped(Levels(3, balanced=False)), tier=2),
        Release("TopKSet(k=4)", clipped(TopKSet(k=4)), tier=2),
        Release("TopKSet(fraction=.25)", clipped(TopKSet(fraction=0.25)), tier=2),
        Release("nested sets of 2.5, 5, 10 %", nested(0.025, 0.05, 0.1), tier=2),
        Release("top 10 % by magnitude", clipped(TopKSet(k=4, fraction=0.1, positive=False)), tier=2),
        Release("signs", lambda rows: rows.sign(), tier=2),
    ]
    if not signed:
        same = {"top 10 % by magnitude", "top 10 % by magnitude, signed", "signs", "Levels(3, balanced=False)"}
        table = [r for r in table if r.name not in same]
    if d <= 40:  # a tenth is four, and a fortieth none
        few = {"TopKSet(k=4)", "nested sets of 2.5, 5, 10 %"}
        table = [r for r in table if r.name not in few]
    if d == task.features and d > 40:
        table.append(Release("pooled squares, unit norm", pooled(task.shape), tier=2))
    return {r.name: r for r in table}
