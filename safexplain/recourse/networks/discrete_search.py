"""Nearest point that a network scores high enough, where some features are whole numbers or one-hot groups.

One-hot groups are first chosen by an additive model of the score: exact scores after every single switch, a gradient
for the rest, and the multiplier at which the cheapest choices add up to the target. Integer features are relaxed,
searched like continuous ones (`boundary_search`) and rounded. What rounding broke, and what the additive model missed,
a local search over single moves repairs: the moves that look cheapest by exact scores are carried out, the continuous
features follow, and the best is kept. A point counts as valid only by the network's score of the rounded row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safexplain.recourse.networks.boundary_search import Boundary, nearest
from safexplain.recourse.networks.discrete_moves import Moves, promising

_BISECTIONS = 50
_TRIED = 2
"""Moves of each row that are carried out in a round of the local search."""
_UNDONE = 2
"""Moves that save cost, each of which is made before another one once no single move helps."""
_CHAINED = 2
"""Neighbours of such a row from which moves start as well."""
_ROUNDS = 60
_STEPS = 12
"""Gradients for the continuous features to follow a move."""


def chosen_categories(task: Boundary, moves: Moves, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(n, d) rows x with the one-hot groups as the additive model of the score chooses them."""
    return torch.cat([_chosen_categories(task, moves, *part) for part in moves.parts(task, x, lower, upper)])


def _chosen_categories(task: Boundary, moves: Moves, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    value, slope = task.score.gradients(x)
    switches = (moves.group >= 0).nonzero()[:, 0]
    only = Moves(moves.keep[switches], moves.add[switches], moves.group[switches], moves.whole, moves.member)
    after, allowed = only.made(x, lower, upper)
    m, d = after.shape[1:]
    gain = torch.where(allowed, task.score.values(after.reshape(-1, d)).reshape(-1, m) - value[:, None], 0.0)
    cost = torch.where(allowed, task.price.energy(after - x[:, None]), 0.0)
    free = ~moves.member
    reach = task.reach(x)[:, None] / task.price.weight
    low, high = torch.maximum(lower, x - reach), torch.minimum(upper, x + reach)
    w, groups = task.price.weight, int(moves.group.max()) + 1

    def choices(multiplier: Tensor) -> tuple[Tensor, Tensor]:
        """(n, groups) which move of each group, m: none; and the (n,) rise of the score."""
        worth = torch.where(allowed, multiplier[:, None] * gain - cost, -torch.inf)
        best, rise = [], torch.zeros_like(multiplier)
        for number in range(groups):
            columns = (only.group == number).nonzero()[:, 0]
            top, where = worth[:, columns].max(dim=1)
            best.append(torch.where(top > 0, columns[where], m))
            rise = rise + torch.where(top > 0, gain[:, columns].gather(1, where[:, None])[:, 0], 0.0)
        push = multiplier[:, None] * slope
        far = torch.where(slope > 0, high, low)
        moved = x + push / w.square() if task.price.squared else torch.where(push.abs() > w, far, x)
        moved = torch.minimum(torch.maximum(moved, low), high)
        return torch.stack(best, dim=1), rise + (slope * (moved - x))[:, free].sum(dim=1)

    small, large = torch.full_like(value, -30.0), torch.full_like(value, 30.0)
    for _ in range(_BISECTIONS):
        middle = (small + large) / 2
        enough = choices(middle.exp())[1] >= task.goal - value
        small, large = torch.where(enough, small, middle), torch.where(enough, middle, large)
    best, _ = choices(large.exp())
    rows = x.clone()
    for number in range(groups):
        taken = (best[:, number] < m).nonzero()[:, 0]
        move = best[taken, number]
        rows[taken] = rows[taken] * only.keep[move] + only.add[move]
    return rows


def rounded(task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(n, d) rows with whole integer features; the continuous ones make up for it where they can."""
    whole = torch.where(moves.whole, torch.minimum(torch.maximum(at.round(), lower), upper), at)
    return followed(task, moves, x, aim, whole, lower, upper)


def improved(
    task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor, *, swaps: bool
) -> Tensor:
    """(n, d) rows after a local search over single moves; it ends where none makes a row valid, or cheaper.

    With `swaps` it goes on with two or three moves together, of which the first saves cost.
    """
    state = _State(task, moves, x, aim, lower, upper, at.clone(), task.score.values(at), task.price.energy(at - x))
    active = torch.arange(len(x), device=x.device)
    for _ in range(_ROUNDS if len(moves.keep) else 0):
        if not len(active):
            break
        better = state.moved(active, state.best[active])
        stuck = active[~better[active] & (state.value[active] >= task.goal)]
        active = active[better[active]]
        if swaps and len(stuck):
            active = torch.cat([active, stuck[state.swapped(stuck)[stuck]]])
    return state.best


@dataclass
class _State:
    """The best row of each query so far, with its score and cost."""

    task: Boundary
    moves: Moves
    x: Tensor
    aim: Tensor
    lower: Tensor
    upper: Tensor
    best: Tensor
    value: Tensor
    cost: Tensor

    def moved(self, queries: Tensor, origin: Tensor) -> Tensor:
        """Carry out the promising moves of some queries.

        Args:
            queries: (r,) their numbers; one that starts from several origins stands there once for each.
            origin: (r, d) where the moves start.

        Returns:
            (n,) bool, of all queries, which are better for it.
        """
        task, changed = self.task, torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        limit = torch.where(self.value >= task.goal, self.cost, torch.inf)[queries]
        of = self.x[queries], origin, self.lower[queries], self.upper[queries], limit
        tried, real = promising(task, self.moves, *of, _TRIED)
        row, move = real.nonzero(as_tuple=True)
        if not len(row):
            return changed
        own = queries[row]
        bounds = self.lower[own], self.upper[own]
        point = followed(task, self.moves, self.x[own], self.aim[own], tried[row, move], *bounds)
        value, cost = task.score.values(point), task.price.energy(point - self.x[own])
        slot = _occurrence(own)
        for k in range(int(slot.max()) + 1):  # each query once
            now = (slot == k).nonzero()[:, 0]
            to, was = own[now], self.value[own[now]] >= task.goal
            cheaper = ~was | (cost[now] < self.cost[to] * (1.0 - 1e-9))
            better = torch.where(value[now] >= task.goal, cheaper, ~was & (value[now] > self.value[to]))
            take, to = now[better], to[better]
            self.best[to], self.value[to], self.cost[to] = point[take], value[take], cost[take]
            changed[to] = True
        return changed

    def swapped(self, queries: Tensor) -> Tensor:
        """The same from x and after each of the moves that save most, and from their promising neighbours."""
        bounds, best = (self.lower[queries], self.upper[queries]), self.best[queries]
        saving = self.moves.saving(self.task, self.x[queries], best, *bounds, _UNDONE)
        row, k = (saving >= 0).nonzero(as_tuple=True)
        move = saving[row, k]
        undone = best[row] * self.moves.keep[move] + self.moves.add[move]
        of, origin = torch.cat([queries, queries[row]]), torch.cat([self.x[queries], undone])
        free = torch.full(of.shape, torch.inf, dtype=self.x.dtype, device=of.device)
        bounds = self.lower[of], self.upper[of]
        first, real = promising(self.task, self.moves, self.x[of], origin, *bounds, free, _CHAINED)
        row, k = real.nonzero(as_tuple=True)
        return self.moved(torch.cat([of, of[row]]), torch.cat([origin, first[row, k]]))


def _occurrence(numbers: Tensor) -> Tensor:
    """How often each number has stood before."""
    order = numbers.argsort(stable=True)
    ordered = numbers[order]
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device) - first)


def followed(task: Boundary, moves: Moves, x: Tensor, aim: Tensor, at: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(n, d) rows with the discrete columns of `at` and the best continuous ones."""
    low, high = moves.pinned(at, lower, upper)
    if bool((low == high).all()):
        return at
    return nearest(replace(task, steps=min(task.steps, _STEPS)), x, aim, at, low, high)[0]
