"""Single moves of features that are not continuous: an integer one up or down, a one-hot group to another category."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.networks.boundary_search import Boundary
from safexplain.recourse.networks.linear_step import linear_step

_LAST = 1e100
"""Ranks moves that do not reach the score behind those that do."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The m moves; move k turns a row z into z * keep[k] + add[k].

    Args:
        keep: (m, d) 0 in the columns that the move sets, 1 elsewhere.
        add: (m, d) what it adds.
        group: (m,) which one-hot group it switches; -1: an integer feature.
        whole: (d,) bool, integer features.
        member: (d,) bool, columns of one-hot groups.
    """

    keep: Tensor
    add: Tensor
    group: Tensor
    whole: Tensor
    member: Tensor

    @property
    def discrete(self) -> Tensor:
        """(d,) bool, the columns that are not continuous."""
        return self.whole | self.member

    @classmethod
    def of(cls, constraints: Constraints, device: torch.device) -> Moves:
        """The moves that constraints leave, whatever the query."""
        eye, keep, add, group = torch.eye(constraints.width, dtype=torch.float64), [], [], []
        for column in constraints.whole.nonzero()[0].tolist():
            keep += [torch.ones_like(eye[0])] * 2
            add += [eye[column], -eye[column]]
            group += [-1, -1]
        member = torch.zeros(constraints.width, dtype=torch.bool)
        for number, columns in enumerate(constraints.groups):
            member[columns.tolist()] = True
            for column in columns.tolist():
                keep.append(1.0 - eye[columns.tolist()].sum(dim=0))
                add.append(eye[column])
                group.append(number)
        none = eye[:0]
        return cls(
            torch.stack(keep).to(device) if keep else none.to(device),
            torch.stack(add).to(device) if add else none.to(device),
            torch.tensor(group, dtype=torch.long, device=device),
            torch.from_numpy(constraints.whole).to(device),
            member.to(device),
        )

    def made(self, rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(n, m, d) rows after each move, and (n, m) bool, whether the move changes them and stays in the box."""
        after = rows[:, None] * self.keep + self.add
        inside = ((after >= lower[:, None]) & (after <= upper[:, None])).all(dim=2)
        return after, inside & (after != rows[:, None]).any(dim=2)

    def parts(self, task: Boundary, *of: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Parts of (n, ...) tensors so small that all moves of their rows make one batch."""
        size = max(1, task.score.batch_size // max(1, len(self.keep)))
        return zip(*(torch.split(whole, size) for whole in of), strict=True)

    def saving(self, task: Boundary, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, count: int) -> Tensor:
        """(n, count) the moves that lower the cost most; -1: no more."""
        found = []
        for own, here, low, high in self.parts(task, x, at, lower, upper):
            after, allowed = self.made(here, low, high)
            saved = task.price.energy(here - own)[:, None] - task.price.energy(after - own[:, None])
            most = torch.where(allowed, saved, 0.0).topk(min(count, len(self.keep)), dim=1)
            found.append(torch.where(most.values > 0, most.indices, -1))
        return torch.cat(found)

    def pinned(self, rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds that hold the discrete columns where they are in `rows`."""
        return torch.where(self.discrete, rows, lower), torch.where(self.discrete, rows, upper)


def promising(
    task: Boundary, moves: Moves, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, limit: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The moves after which the score can be reached at least cost: scores are exact, continuous features linearised.

    Args:
        task: model, target and cost.
        moves: all moves.
        x: (n, d) queries.
        at: (n, d) where the moves start.
        lower: (n, d) bounds.
        upper: (n, d) bounds.
        limit: (n,) cost of the best valid row so far; infinite: none. Where besides nothing is continuous, a chain of
            moves has to reach the score, and those that raise it most for their cost come first.
        count: how many moves of each row.

    Returns:
        (n, count, d) rows after the move, continuous features as the linear model has them, and (n, count) bool,
        whether there is such a move below the limit. Where none reaches the score: those that raise it most for
        their cost.
    """
    parts = [_promising(task, moves, count, *part) for part in moves.parts(task, x, at, lower, upper, limit)]
    return torch.cat([p for p, _ in parts]), torch.cat([p for _, p in parts])


def _promising(
    task: Boundary, moves: Moves, count: int, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor]:
    after, allowed = moves.made(at, lower, upper)
    value, slope = task.score.gradients(at)
    n, m, d = after.shape
    row, move = allowed.nonzero(as_tuple=True)
    rows = after[row, move]
    new = task.score.values(rows)
    low, high = moves.pinned(rows, lower[row], upper[row])
    reach = task.reach(x)[row, None] / task.price.weight
    low, high = torch.maximum(low, rows - reach), torch.minimum(high, rows + reach)
    rise = task.goal - new
    if bool((low == high).all()):
        point = rows
    else:
        point, _ = linear_step(task.price, x[row], slope[row], rows, rise, low, high)
    reached = (slope[row] * (point - rows)).sum(dim=1) >= rise - 1e-9 * (1.0 + rise.abs())
    cost = task.price.energy(point - x[row])
    extra = (task.price.energy(rows - x[row]) - task.price.energy(at - x)[row]).clamp_min(1e-12)
    gain = torch.minimum(new, rise.new_tensor(task.goal)) - value[row]
    rate = torch.where(gain > 0, extra / gain.clamp_min(1e-300), torch.inf)
    first = limit[row].isinf()
    greedy = (low == high).all(dim=1) & first
    rank = torch.where(greedy, rate, torch.where(reached, cost, _LAST + rate))
    rank = torch.where(first | (cost < limit[row]), rank, torch.inf)
    ranks = torch.full((n, m), torch.inf, dtype=cost.dtype, device=cost.device)
    ranks[row, move] = rank
    points = after.clone()
    points[row, move] = point
    chosen = ranks.topk(min(count, m), dim=1, largest=False)
    return points.gather(1, chosen.indices[..., None].expand(-1, -1, d)), chosen.values.isfinite()
