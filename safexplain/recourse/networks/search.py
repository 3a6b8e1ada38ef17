"""Recourse of networks: the nearest allowed change that reaches the target, for all queries at once.

Answers are verified: all constraints hold exactly, and the model's own score of the row, rounded to the model's type,
reaches the target. If an answer breaks a rule, the search continues in a box in which the rule holds; if it changes too
many features, those least needed for the score are fixed, half of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._validate import whole_number
from safexplain.dp.heads import evaluation_mode
from safexplain.errors import InputError
from safexplain.recourse.constraints import NEARLY, Constraints, Mask
from safexplain.recourse.cost import EUCLIDEAN, Cost, for_columns
from safexplain.recourse.networks.boundary_search import Boundary, NetworkScore, Price, linear_step, nearest, shorten
from safexplain.recourse.solution import Floats, Solution, as_rows, rows_where

_STEPS = 60
"""Largest number of gradients of one search."""
_SCATTERED = 256
"""Number of points around a query that are scored if its first search fails."""
_SEED = 0
"""Seed of the directions of further searches, the same for every query."""


@dataclass(frozen=True)
class SearchOptions:
    """Effort and memory of a search.

    Args:
        starts: number of searches of each query, the first from the query itself.
        batch_size: number of rows per batch of the model, and of queries searched together.

    Raises:
        ConfigurationError: a number that is not positive.
    """

    starts: int = 8
    batch_size: int = 8192

    def __post_init__(self) -> None:
        for name in ("starts", "batch_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))


DEFAULT = SearchOptions()


def network_recourse(
    network: nn.Module,
    x: ArrayLike | Tensor,
    *,
    target: float = 0.0,
    favourable: int = 1,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: ArrayLike | None = None,
    options: SearchOptions = DEFAULT,
) -> Solution:
    """Nearest rows to queries x, (n, d) or (d,), that a network accepts (Wachter and others 2017, arXiv 1711.00399).

    The output is (n,) or (n, 1), the logit of class 1, or (n, k) logits; the score is the `favourable` one minus the
    largest other one. The network runs in evaluation mode, on its own device and in its own type, and is not changed.
    `frozen`, (n, d) or (d,): further values that must not change. Queries must satisfy the constraints.

    Returns:
        One answer for each query; `valid` is False where none was found. Only favourable queries are `proven`.

    Raises:
        InputError: invalid rows, or scores of another shape, not finite, or not differentiable.
    """
    rows = as_rows(x, None if constraints is None else constraints.width)
    constraints = Constraints(features=rows.shape[1]) if constraints is None else constraints
    mask = np.array(np.broadcast_to(False if frozen is None else frozen, rows.shape))
    model = NetworkScore(network, favourable=favourable, batch_size=options.batch_size)
    cost = for_columns(cost, constraints.features, rows.shape[1])
    rise, fall = (torch.from_numpy(side).to(model.home) for side in cost.units(rows.shape[1]))
    price = Price(rise, fall, cost.power == 2)
    search = _Search(Boundary(model, float(target), price, _STEPS), cost, constraints, options)
    counterfactual, valid = rows.copy(), np.ones(len(rows), dtype=bool)
    with evaluation_mode(network):
        values = model.values(torch.from_numpy(rows).to(model.home))
        if not bool(torch.isfinite(values).all()):
            raise InputError(
                f"model: expected finite scores, got others for {rows_where(~torch.isfinite(values).cpu().numpy())};"
                " check for NaN in the parameters, and for units that differ from training"
            )
        favoured = (values >= float(target)).cpu().numpy()
        for part in np.split(np.flatnonzero(~favoured), range(options.batch_size, len(rows), options.batch_size)):
            if len(part):
                counterfactual[part], valid[part] = search.answers(rows[part], mask[part])
    return Solution(
        x=rows,
        counterfactual=counterfactual,
        valid=valid,
        distance=cost.distance(counterfactual - rows),
        score=values.cpu().numpy(),
        favourable=favoured,
        censored=np.zeros(len(rows), dtype=bool),
        proven=favoured,
    )


@dataclass
class _Search:
    task: Boundary
    cost: Cost
    rules: Constraints
    options: SearchOptions

    def answers(self, x: Floats, frozen: Mask) -> tuple[Floats, Mask]:
        best, distance, every = x.copy(), np.full(len(x), np.inf), np.arange(len(x))
        most = x.shape[1] if self.rules.most_changes is None else self.rules.most_changes

        def take(at: NDArray[np.intp], held: Mask) -> tuple[Floats, Mask]:
            for row in self._candidates(x[at], held):
                reached, far = self._values(row) >= self.task.target, self.cost.distance(row - x[at])
                better = reached & self.rules.satisfied(x[at], row, frozen[at]) & (far < distance[at])
                best[at[better]], distance[at[better]] = row[better], far[better]
            return row, self.rules.changes(x[at], row) > most

        row, many = take(every, frozen)
        left, row, held = every[many], row[many], frozen[many]
        if len(left):
            take(left, held | self._all_except(self._single_feature_scores(x[left], held), np.full(len(left), most)))
        while len(left):
            half = np.maximum(self.rules.changes(x[left], row) // 2, most)
            held = held | self._all_except(self._score_falls(x[left], row), half)
            row, many = take(left, held)
            left, row, held = left[many], row[many], held[many]
        return best, np.isfinite(distance)

    def _candidates(self, x: Floats, frozen: Mask) -> list[Floats]:
        """Rows (n, d) within limits, and where they break a rule, rows within limits that enforce it."""
        rules, (lower, upper) = self.rules, self.rules.bounds(x, frozen)
        row = self._search_box(x, frozen, lower, upper)
        found, broken = [row], np.empty(0, dtype=np.intp)
        if rules.rules:  # a repair may have taken the score below the target
            broken = np.flatnonzero(~(rules.keeps_rules(x, row) & (self._values(row) >= self.task.target)))
        for follow in (True, False) if len(broken) else ():
            low, high, again = lower[broken], upper[broken], row.copy()
            for when, then in rules.linked:
                rises = follow & (row[broken, when] > x[broken, when])
                most = np.where(rises, row[broken, when], x[broken, when])
                high[:, when] = np.maximum(np.minimum(high[:, when], most), low[:, when])
                low[:, then] = np.where(rises, np.maximum(low[:, then], row[broken, then]), low[:, then])
            again[broken] = self._search_box(x[broken], frozen[broken], np.minimum(low, high), high)
            found.append(again)
        return found

    def _search_box(self, x: Floats, frozen: Mask, lower: Floats, upper: Floats) -> Floats:
        home = self.task.score.home
        query, low, high = (torch.from_numpy(array).to(home) for array in (x, lower, upper))
        found = nearest_allowed(self.task, Moves.of(self.rules, home), query, low, high, self.options)
        return self.rules.project(x, found.cpu().numpy(), frozen)

    def _score_falls(self, x: Floats, row: Floats) -> Floats:
        """(n, d) fall of the score when a feature is reset; -inf for unchanged ones."""
        need, value = np.full(x.shape, -np.inf), self._values(row)
        for feature in np.unique(self.rules.feature):
            back = np.where(self.rules.feature == feature, x, row)
            need[:, feature] = np.where((back != row).any(axis=1), value - self._values(back), -np.inf)
        return need

    def _single_feature_scores(self, x: Floats, frozen: Mask) -> Floats:
        """(n, d) highest score at the limits of each feature, with the others as in x."""
        reach = (self.task.reach(torch.from_numpy(x).to(self.task.score.home))[:, None] / self.task.price.unit).cpu()
        lower, upper = self.rules.bounds(x, frozen)
        highest = np.full(x.shape, -np.inf)
        for column, feature in enumerate(self.rules.feature):
            for end in (np.maximum(lower, x - reach.numpy()), np.minimum(upper, x + reach.numpy())):
                moved = x.copy()
                moved[:, column] = (1 + self.rules.grouped[column]) * end[:, column]  # above the own category's 1
                moved = self.rules.project(x, moved, frozen)
                highest[:, feature] = np.maximum(highest[:, feature], self._values(moved))
        return highest

    def _all_except(self, need: Floats, kept: NDArray[np.intp]) -> Mask:
        rank = np.argsort(np.argsort(-need, axis=1, kind="stable"), axis=1)
        held: Mask = (rank >= kept[:, None])[:, self.rules.feature]
        return held

    def _values(self, rows: Floats) -> Floats:
        values: Floats = self.task.score.values(torch.from_numpy(rows).to(self.task.score.home)).cpu().numpy()
        return values


def nearest_allowed(
    task: Boundary, moves: Moves, x: Tensor, lower: Tensor, upper: Tensor, options: SearchOptions
) -> Tensor:
    """(n, d) the best row found for each query x within limits (n, d), from all starts."""
    at = torch.minimum(torch.maximum(x, lower), upper)
    aim = task.aim(task.score.values(at))
    mixed = bool(moves.discrete.any())
    held = torch.where(moves.member, at, lower), torch.where(moves.member, at, upper)
    best = _nearest_of_starts(task, x, aim, at, *held, options.starts)
    if mixed:
        best = improve(
            task, moves, x, aim, round_steps(task, moves, x, aim, best, lower, upper), lower, upper, swaps=False
        )
        from_query = improve(task, moves, x, aim, at, lower, upper, swaps=False)
        best = improve(task, moves, x, aim, _better_of(task, x, from_query, best), lower, upper, swaps=True)
    low, high = moves.pinned(best, lower, upper)
    if mixed and not bool(moves.discrete.all()):
        best = _better_of(task, x, best, nearest(task, x, aim, best, low, high)[0])
    distance = task.price.distance(best - x)
    distance[task.score.values(best) < task.goal] = torch.inf
    return shorten(task, x, best, distance, low, high)


def _nearest_of_starts(
    task: Boundary, x: Tensor, aim: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, starts: int
) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    best, distance = nearest(task, x, aim, origin, lower, upper)
    lost = distance.isinf().nonzero()[:, 0] if starts > 1 else distance.new_empty(0, dtype=torch.long)
    if len(lost):
        start = _best_scattered(task, x[lost], origin[lost], lower[lost], upper[lost], generator)
        point, new = nearest(task, x[lost], aim[lost], start, lower[lost], upper[lost])
        found = new.isfinite()
        best[lost[found]], distance[lost[found]] = point[found], new[found]
    for k in range(1, starts):
        direction = _directions(task, 1, generator)
        away = ((best - x) * task.price.unit).norm(dim=1)
        radius = torch.where(distance.isfinite(), away, away.clamp_min(1.0) * k)[:, None]
        start = origin + 1.5 * radius * direction if k % 2 else best + 0.7 * radius * direction
        point, new = nearest(task, x, aim, start, lower, upper)
        better = new < distance
        best, distance = torch.where(better[:, None], point, best), torch.where(better, new, distance)
    return best


def _directions(task: Boundary, count: int, generator: torch.Generator) -> Tensor:
    """(count, d) steps whose weighted length is 1."""
    weight = task.price.unit
    drawn = torch.randn(count, len(weight), generator=generator, dtype=weight.dtype).to(weight.device)
    length: Tensor = drawn.norm(dim=1, keepdim=True)
    return drawn / length / weight


def _best_scattered(
    task: Boundary, x: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, generator: torch.Generator
) -> Tensor:
    """(n, d) the nearest valid of points around each origin, else the one of highest score."""
    steps = _directions(task, _SCATTERED, generator)
    lengths = torch.logspace(-3, 0, _SCATTERED, dtype=x.dtype, device=x.device)[:, None]
    size, found = max(1, task.score.batch_size // _SCATTERED), []
    for query, start, low, high in zip(*(torch.split(part, size) for part in (x, origin, lower, upper)), strict=True):
        points = start[:, None] + task.reach(query)[:, None, None] * lengths * steps
        points = torch.minimum(torch.maximum(points, low[:, None]), high[:, None])
        values = task.score.values(points.flatten(0, 1)).reshape(len(query), -1)
        valid = values >= task.goal
        distance = torch.where(valid, task.price.distance(points - query[:, None]), torch.inf)
        chosen = torch.where(valid.any(dim=1), distance.argmin(dim=1), values.argmax(dim=1))
        found.append(points[torch.arange(len(query), device=x.device), chosen])
    return torch.cat(found)


def _better_of(task: Boundary, x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    values = [task.score.values(rows) for rows in (one, other)]
    costs = [task.price.energy(rows - x) for rows in (one, other)]
    valid = [v >= task.goal for v in values]
    nearer = torch.where(valid[0] & valid[1], costs[1] < costs[0], values[1] > values[0])
    return torch.where((torch.where(valid[0] == valid[1], nearer, valid[1]))[:, None], other, one)


# --- features that take steps, and one-hot groups ---------------------------------------------------------------------
#
# Steps are relaxed, searched like continuous features and rounded; one-hot groups keep their category. A local search
# over single moves (a step of a feature, or another category) then repairs the rounding: the moves that seem cheapest
# by exact scores are made, the continuous features are fitted again, and the best is kept.

_LAST = 1e100
"""Ranks moves that miss the target behind those that reach it."""
_TRIED = 2
"""Number of moves of each row that are made in a round of the local search."""
_UNDONE = 2
"""Number of cost-saving moves that are each combined with another move once no single move helps."""
_CHAINED = 2
"""Number of neighbours of such a row from which moves also start."""
_ROUNDS = 60
_REFITS = 12
"""Gradients for fitting the continuous features after a move."""


@dataclass
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
        """All moves within constraints."""
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
        """(n, m, d) rows after each move, and (n, m) bool, whether it changes the row within the box."""
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
    """(n, count, d) rows after the moves from `at` with which the score seems cheapest to reach, below the cost `limit`
    (n,), by exact scores and a linear model of continuous features; and (n, count) bool, whether there is such a move.
    If none reaches the score, those with the largest rise per cost come first."""
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
    """(n, d) rows after a local search over single moves; with `swaps` also over two or three moves together, the first
    of which saves cost."""
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
        """Make the promising moves of `queries` (r,) from each `origin` (r, d); (n,) bool, which queries improved."""
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
        """The same from x, after each of the most cost-saving moves, and from their promising neighbours."""
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
    return nearest(replace(task, steps=min(task.steps, _REFITS)), x, aim, at, low, high)[0]
