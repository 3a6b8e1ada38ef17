"""Several searches of each query, because the nearest point that one search finds need not be the nearest there is.

The first starts from the query. Queries for which it finds nothing (a flat score, or a hill that is too low) start
again from the best of many points around them, which only need to be scored. Further searches start around the query
and around the best point so far. Directions are random, but the same for every query, so that no answer depends on
another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from safexplain.recourse.networks.boundary_search import Boundary, nearest

_SCATTERED = 256


def nearest_of_starts(
    task: Boundary, x: Tensor, aim: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, starts: int, seed: int
) -> Tensor:
    """(n, d) the nearest valid point of all searches; where none is valid, one of high score.

    Args:
        task: model, target and cost.
        x: (n, d) queries, from which cost is measured.
        aim: (n,) scores to aim at.
        origin: (n, d) where the first search starts.
        lower: (n, d) bounds; may be infinite.
        upper: (n, d) bounds; may be infinite.
        starts: how many searches, besides the one from scattered points.
        seed: of the directions.
    """
    generator = torch.Generator().manual_seed(seed)
    best, distance = nearest(task, x, aim, origin, lower, upper)
    lost = distance.isinf().nonzero()[:, 0] if starts > 1 else distance.new_empty(0, dtype=torch.long)
    if len(lost):
        start = _best_scattered(task, x[lost], origin[lost], lower[lost], upper[lost], generator)
        point, new = nearest(task, x[lost], aim[lost], start, lower[lost], upper[lost])
        found = new.isfinite()
        best[lost[found]], distance[lost[found]] = point[found], new[found]
    for k in range(1, starts):
        direction = _directions(task, 1, generator)
        away = ((best - x) * task.price.weight).norm(dim=1)
        radius = torch.where(distance.isfinite(), away, away.clamp_min(1.0) * k)[:, None]
        start = origin + 1.5 * radius * direction if k % 2 else best + 0.7 * radius * direction
        point, new = nearest(task, x, aim, start, lower, upper)
        better = new < distance
        best, distance = torch.where(better[:, None], point, best), torch.where(better, new, distance)
    return best


def _directions(task: Boundary, count: int, generator: torch.Generator) -> Tensor:
    """(count, d) steps whose weighted length is 1."""
    weight = task.price.weight
    drawn = torch.randn(count, len(weight), generator=generator, dtype=weight.dtype).to(weight.device)
    length: Tensor = drawn.norm(dim=1, keepdim=True)
    return drawn / length / weight


def _best_scattered(
    task: Boundary, x: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, generator: torch.Generator
) -> Tensor:
    """(n, d) of points at all distances around each origin, the nearest valid one, or else the one of highest score."""
    steps = _directions(task, _SCATTERED, generator)
    lengths = torch.logspace(-3, 0, _SCATTERED, dtype=x.dtype, device=x.device)[:, None]
    size, found = max(1, task.score.batch_size // _SCATTERED), []
    for own, here, low, high in zip(*(torch.split(part, size) for part in (x, origin, lower, upper)), strict=True):
        points = here[:, None] + task.reach(own)[:, None, None] * lengths * steps
        points = torch.minimum(torch.maximum(points, low[:, None]), high[:, None])
        values = task.score.values(points.flatten(0, 1)).reshape(len(own), -1)
        valid = values >= task.goal
        distance = torch.where(valid, task.price.distance(points - own[:, None]), torch.inf)
        chosen = torch.where(valid.any(dim=1), distance.argmin(dim=1), values.argmax(dim=1))
        found.append(points[torch.arange(len(own), device=x.device), chosen])
    return torch.cat(found)
