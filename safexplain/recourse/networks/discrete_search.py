"""Nearest point with a sufficient score, where some features take steps or are one-hot groups.

Features with steps are relaxed, searched like continuous ones (`boundary_search`) and rounded; one-hot groups keep
their category. A local search over single moves (a step of a feature, or another category) then repairs the rounding:
the moves that seem cheapest by exact scores are made, the continuous features are fitted again, and the best is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safexplain.recourse.constraints import NEARLY, Constraints
from safexplain.recourse.networks.boundary_search import Boundary, linear_step, nearest

_LAST = 1e100
"""Ranks moves that miss the target behind those that reach it."""
_TRIED = 2
"""Number of moves of each row that are made in a round of the local search."""
_UNDONE = 2
"""Number of cost-saving moves that are each combined with another move once no single move helps."""
_CHAINED = 2
"""Number of neighbours of such a row from which moves also start."""
_ROUNDS = 60
_STEPS = 12
"""Gradients for fitting the continuous features after a move."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The m moves; move k turns a row z into z * keep[k] + add[k]."""

    keep: Tensor  # (m, d) 0 in the columns that the move sets, 1 elsewhere
    add: Tensor  # (m, d)
    grid: Tensor  # (d,) size of a step; 0: continuous or one-hot
    member: Tensor  # (d,) bool, columns of one-hot groups

    @property
    def discrete(self) -> Tensor:
        """(d,) bool, columns that are not continuous."""
        return (self.grid > 0) | self.member

    @classmethod
    def of(cls, constraints: Constraints, device: torch.device) -> Moves:
        """Moves within constraints, for any query."""
        eye, keep, add = torch.eye(constraints.width, dtype=torch.float64), [], []
        for column in constraints.grid.nonzero()[0].tolist():
            keep += [torch.ones_like(eye[0])] * 2
            add += [constraints.grid[column] * eye[column], -constraints.grid[column] * eye[column]]
        member = torch.zeros(constraints.width, dtype=torch.bool)
        for columns in constraints.groups:
            member[columns.tolist()] = True
            for column in columns.tolist():
                keep.append(1.0 - eye[columns.tolist()].sum(dim=0))
                add.append(eye[column])
        kept, added = (torch.stack(side).to(device) if side else eye[:0].to(device) for side in (keep, add))
        return cls(kept, added, torch.from_numpy(constraints.grid).to(device), member.to(device))

    def apply(self, rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(n, m, d) rows after each move, and (n, m) bool, whether it changes the row and stays in the box."""
        after = rows[:, None] * self.keep + self.add
        near = NEARLY * self.grid  # sums of steps are rounded
        inside = ((after >= lower[:, None] - near) & (after <= upper[:, None] + near)).all(dim=2)
        return after, inside & (after != rows[:, None]).any(dim=2)

    def parts(self, task: Boundary, *of: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Split (n, ...) tensors such that all moves of the rows in a part fit into a batch."""
        size = max(1, task.score.batch_size // max(1, len(self.keep)))
        return zip(*(torch.split(tensor, size) for tensor in of), strict=True)

    def saving(self, task: Boundary, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, count: int) -> Tensor:
        """(n, count) the moves that lower the cost most; -1: none left."""
        found = []
        for query, current, low, high in self.parts(task, x, at, lower, upper):
            after, allowed = self.apply(current, low, high)
            saved = task.price.energy(current - query)[:, None] - task.price.energy(after - query[:, None])
            most = torch.where(allowed, saved, 0.0).topk(min(count, len(self.keep)), dim=1)
            found.append(torch.where(most.values > 0, most.indices, -1))
        return torch.cat(found)

    def pinned(self, rows: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds that fix the discrete columns at their values in `rows`."""
        return torch.where(self.discrete, rows, lower), torch.where(self.discrete, rows, upper)


def promising_moves(
    task: Boundary, moves: Moves, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, limit: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Moves of queries x from `at`, after which the score can be reached at least cost, by exact scores and a linear
    model of continuous features, below the cost `limit` (n,): (n, count, d) rows, and (n, count) bool, whether there is
    such a move. If no move reaches the score, those with the largest rise per cost come first."""
    parts = [_promising_part(task, moves, count, *part) for part in moves.parts(task, x, at, lower, upper, limit)]
    return torch.cat([p for p, _ in parts]), torch.cat([p for _, p in parts])


def _promising_part(
    task: Boundary, moves: Moves, count: int, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor]:
    after, allowed = moves.apply(at, lower, upper)
    value, slope = task.score.gradients(at)
    n, m, d = after.shape
    row, move = allowed.nonzero(as_tuple=True)
    rows = after[row, move]
    new = task.score.values(rows)
    low, high = moves.pinned(rows, lower[row], upper[row])
    reach = task.reach(x)[row, None] / task.price.unit
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


def round_steps(
    task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """(n, d) rows rounded to whole steps; continuous features compensate where they can."""
    size = torch.where(moves.grid > 0, moves.grid, 1.0)
    steps = torch.minimum(torch.maximum(x + ((at - x) / size).round() * size, lower), upper)
    return refit(task, moves, x, aim, torch.where(moves.grid > 0, steps, at), lower, upper)


def improve(
    task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor, *, swaps: bool
) -> Tensor:
    """(n, d) rows after a local search over single moves, which ends when none makes a row valid or cheaper; with
    `swaps` it continues with two or three moves together, the first of which saves cost."""
    state = _State(task, moves, x, aim, lower, upper, at.clone(), task.score.values(at), task.price.energy(at - x))
    active = torch.arange(len(x), device=x.device)
    for _ in range(_ROUNDS if len(moves.keep) else 0):
        if not len(active):
            break
        better = state.try_moves(active, state.best[active])
        stuck = active[~better[active] & (state.value[active] >= task.goal)]
        active = active[better[active]]
        if swaps and len(stuck):
            active = torch.cat([active, stuck[state.try_swaps(stuck)[stuck]]])
    return state.best


@dataclass
class _State:
    task: Boundary
    moves: Moves
    x: Tensor
    aim: Tensor
    lower: Tensor
    upper: Tensor
    best: Tensor
    value: Tensor
    cost: Tensor

    def try_moves(self, queries: Tensor, origin: Tensor) -> Tensor:
        """Make the promising moves of some `queries` (r,), once for each `origin` (r, d); (n,) bool, which of all
        queries have improved."""
        task, changed = self.task, torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        limit = torch.where(self.value >= task.goal, self.cost, torch.inf)[queries]
        of = self.x[queries], origin, self.lower[queries], self.upper[queries], limit
        tried, real = promising_moves(task, self.moves, *of, _TRIED)
        row, move = real.nonzero(as_tuple=True)
        if not len(row):
            return changed
        query = queries[row]
        bounds = self.lower[query], self.upper[query]
        point = refit(task, self.moves, self.x[query], self.aim[query], tried[row, move], *bounds)
        value, cost = task.score.values(point), task.price.energy(point - self.x[query])
        slot = _earlier_occurrences(query)
        for k in range(int(slot.max()) + 1):  # each query once per round
            now = (slot == k).nonzero()[:, 0]
            to, was = query[now], self.value[query[now]] >= task.goal
            cheaper = ~was | (cost[now] < self.cost[to] * (1.0 - 1e-9))
            better = torch.where(value[now] >= task.goal, cheaper, ~was & (value[now] > self.value[to]))
            take, to = now[better], to[better]
            self.best[to], self.value[to], self.cost[to] = point[take], value[take], cost[take]
            changed[to] = True
        return changed

    def try_swaps(self, queries: Tensor) -> Tensor:
        """The same from x, from rows after each of the most cost-saving moves, and from their promising neighbours."""
        bounds, best = (self.lower[queries], self.upper[queries]), self.best[queries]
        saving = self.moves.saving(self.task, self.x[queries], best, *bounds, _UNDONE)
        row, k = (saving >= 0).nonzero(as_tuple=True)
        move = saving[row, k]
        undone = best[row] * self.moves.keep[move] + self.moves.add[move]
        of, origin = torch.cat([queries, queries[row]]), torch.cat([self.x[queries], undone])
        free = torch.full(of.shape, torch.inf, dtype=self.x.dtype, device=of.device)
        bounds = self.lower[of], self.upper[of]
        first, real = promising_moves(self.task, self.moves, self.x[of], origin, *bounds, free, _CHAINED)
        row, k = real.nonzero(as_tuple=True)
        return self.try_moves(torch.cat([of, of[row]]), torch.cat([origin, first[row, k]]))


def _earlier_occurrences(numbers: Tensor) -> Tensor:
    order = numbers.argsort(stable=True)
    ordered = numbers[order]
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device) - first)


def refit(task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(n, d) rows with the discrete columns of `at` and continuous columns fitted to them."""
    low, high = moves.pinned(at, lower, upper)
    if bool((low == high).all()):
        return at
    return nearest(replace(task, steps=min(task.steps, _STEPS)), x, aim, at, low, high)[0]
