"""Cheapest point at which a linear score has risen enough, within a box: exact, and all rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Price:
    """What a change costs each feature, as a search on tensors needs it.

    Args:
        weight: (d,) 1/scale of the features.
        squared: whether the distance is the Euclidean norm of the weighted change, or the sum of its sizes.
    """

    weight: Tensor
    squared: bool

    def distance(self, change: Tensor) -> Tensor:
        """(...) distances of (..., d) changes."""
        weighted = change * self.weight
        return weighted.norm(dim=-1) if self.squared else weighted.abs().sum(dim=-1)

    def energy(self, change: Tensor) -> Tensor:
        """(...) what is minimised: half the squared distance where that is Euclidean, the distance otherwise."""
        weighted = change * self.weight
        return weighted.square().sum(dim=-1) / 2 if self.squared else weighted.abs().sum(dim=-1)


def linear_step(
    price: Price, x: Tensor, slope: Tensor, at: Tensor, rise: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise the cost of z - x subject to slope . (z - at) >= rise and lower <= z <= upper.

    The Lagrangian at multiplier m separates into features: each stays at the end of its interval that is nearest to x
    until m reaches the price of moving it, w / |slope| (costs that are sums) or w^2 |z - x| / |slope| (Euclidean), and
    then moves in the direction of its slope. The rise is a piecewise linear function of m (or of the share of the last
    feature), whose pieces are sorted here.

    Args:
        price: the cost.
        x: (n, d) what the cost is measured from.
        slope: (n, d) gradients.
        at: (n, d) where they were taken.
        rise: (n,) what the score is to gain.
        lower: (n, d) finite.
        upper: (n, d) finite.

    Returns:
        (n, d) points, and the (n,) multipliers. Where the box does not hold such a point: its point of largest rise.
    """
    start = torch.minimum(torch.maximum(x, lower), upper)
    end = torch.where(slope > 0, upper, torch.where(slope < 0, lower, start))
    missing = rise - (slope * (start - at)).sum(dim=1)
    solve = _euclidean if price.squared else _sum
    point, multiplier = solve(price.weight, x, slope, missing.clamp_min(0.0)[:, None], start, end)
    still = missing <= 0
    return torch.where(still[:, None], start, point), torch.where(still, 0.0, multiplier)


def _sum(w: Tensor, x: Tensor, slope: Tensor, missing: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    gain = slope.abs() * (end - start).abs()
    each = torch.where(gain > 0, w / slope.abs(), torch.inf)
    order = each.argsort(dim=1, stable=True)
    gains = gain.gather(1, order)
    before = gains.cumsum(dim=1) - gains
    share = ((missing - before) / gains.clamp_min(torch.finfo(gains.dtype).tiny)).clamp(0.0, 1.0)
    share = torch.zeros_like(share).scatter(1, order, torch.where(gains > 0, share, 0.0))
    return torch.lerp(start, end, share), torch.where(share > 0, each, 0.0).amax(dim=1)


def _euclidean(
    w: Tensor, x: Tensor, slope: Tensor, missing: Tensor, start: Tensor, end: Tensor
) -> tuple[Tensor, Tensor]:
    moves = (end != start) & (slope != 0)
    size = torch.where(moves, slope.abs(), 1.0)
    opens = torch.where(moves, (start - x).abs() * w.square() / size, 0.0)
    closes = torch.where(moves, (end - x).abs() * w.square() / size, 0.0)
    speed = torch.where(moves, slope.square() / w.square(), 0.0)
    events, order = torch.cat([opens, closes], dim=1).sort(dim=1, stable=True)
    speeds = torch.cat([speed, -speed], dim=1).gather(1, order).cumsum(dim=1)  # right of each event
    widths = torch.diff(events, dim=1)
    risen = torch.cat([torch.zeros_like(missing), (speeds[:, :-1] * widths).cumsum(dim=1)], dim=1)  # at each event
    piece = (risen < missing).sum(dim=1, keepdim=True).sub(1).clamp_min(0)
    following = events.gather(1, (piece + 1).clamp_max(events.shape[1] - 1))
    left = missing - risen.gather(1, piece)
    here = speeds.gather(1, piece).clamp_min(torch.finfo(left.dtype).tiny)
    multiplier = torch.minimum(events.gather(1, piece) + left / here, following)
    point = x + multiplier * slope / w.square()
    low, high = torch.minimum(start, end), torch.maximum(start, end)
    return torch.where(moves, torch.minimum(torch.maximum(point, low), high), start), multiplier[:, 0]
