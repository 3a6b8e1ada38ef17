"""Recourse of networks: the nearest allowed change that reaches the target, for all queries at once.

Answers are verified: all constraints hold exactly, and the model's own score of the row, rounded to the model's type,
reaches the target. If an answer breaks a rule, the search continues in a box in which the rule holds; if it changes too
many features, those least needed for the score are fixed, half of them at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._validate import whole_number
from safexplain.errors import InputError
from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import EUCLIDEAN, Cost, for_columns
from safexplain.recourse.networks.boundary_search import (
    Boundary,
    NetworkScore,
    Price,
    evaluation_mode,
    nearest,
    shorten,
)
from safexplain.recourse.networks.discrete_search import Moves, improve, round_steps
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
        starts: number of searches of each query, the first from the query itself; others may find nearer points, or a
            point where the first finds none (a flat score).
        batch_size: number of rows per batch of the model, and of queries searched together; memory grows with it.

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

    The output is (n,) or (n, 1), the logit of class 1, or (n, k) logits, of which the score is the `favourable` one
    minus the largest other one. The network is used in evaluation mode, on its own device and in its own type;
    parameters, gradients and training flags do not change. `frozen`, (n, d) or (d,): further values that must not
    change. Queries must satisfy the constraints (`Constraints.check`).

    Returns:
        One answer for each query; `valid` is False where none was found within the constraints. Only favourable queries
        are `proven`.

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


@dataclass(frozen=True, eq=False)
class _Search:
    task: Boundary
    cost: Cost
    rules: Constraints
    options: SearchOptions

    def answers(self, x: Floats, frozen: Mask) -> tuple[Floats, Mask]:
        """Rows (n, d), and (n,) bool, whether they are answers; else the query itself."""
        best, distance, every = x.copy(), np.full(len(x), np.inf), np.arange(len(x))
        most = x.shape[1] if self.rules.most_changes is None else self.rules.most_changes

        def take(at: NDArray[np.intp], held: Mask) -> tuple[Floats, Mask]:
            """Store improvements for queries (k,); rows (k, d), and whether they change too many features."""
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
        """Rows (n, d) within the limits of queries, and where they break a rule, rows within limits that enforce it."""
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
        """(n, d) fall of the score when a feature of the rows (n, d) is reset; -inf for unchanged features."""
        need, value = np.full(x.shape, -np.inf), self._values(row)
        for feature in np.unique(self.rules.feature):
            back = np.where(self.rules.feature == feature, x, row)
            need[:, feature] = np.where((back != row).any(axis=1), value - self._values(back), -np.inf)
        return need

    def _single_feature_scores(self, x: Floats, frozen: Mask) -> Floats:
        """(n, d) highest score at the limits of each feature, or of its categories, with the others as in x."""
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
        """(n, d) bool, all columns except those of the `kept` (n,) most needed features."""
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
    """(n, d) the nearest valid point of all searches; where none is valid, one of high score."""
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
    """(n, d) the nearest valid of points at various distances around each origin, else the one of highest score."""
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
    """The better of two rows: the valid one, then the nearer one, then the one of higher score."""
    values = [task.score.values(rows) for rows in (one, other)]
    costs = [task.price.energy(rows - x) for rows in (one, other)]
    valid = [v >= task.goal for v in values]
    nearer = torch.where(valid[0] & valid[1], costs[1] < costs[0], values[1] > values[0])
    return torch.where((torch.where(valid[0] == valid[1], nearer, valid[1]))[:, None], other, one)
