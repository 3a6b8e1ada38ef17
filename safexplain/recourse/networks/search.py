"""Recourse for networks: the nearest allowed change that one accepts, all queries at once.

What is returned is verified: every constraint holds exactly, and the model's own score of the returned row, rounded to
the model's type, reaches the target. The network is not convex, so the distance is that of the best point found, not a
proven minimum; `SearchOptions.starts` buys better ones. Where nothing was found there may still be something.

An answer depends on its own query, the model and the options only, not on the other queries of the call (up to the
rounding of matrix products, which may differ with the size of a batch). Where the model is differentially private, so
are the answers, as post-processing; the search adds no protection of its own.

Each query is searched several times, because the nearest point that one search finds need not be the nearest there is.
The first search starts from the query. Queries for which it finds nothing (a flat score, or a hill that is too low)
start again from the best of many points around them, which only need to be scored. Further searches start around the
query and around the best point so far. Directions are random, but the same for every query, so that no answer depends
on another.

Limits, largest changes and steps hold in every search. Rules and the largest number of changes are sought within boxes:
where an answer breaks a rule, the search goes on in a box in which the rule cannot be broken (`then` has risen already
as far as it must, `when` rises no further); where it changes too many features, those that the score needs least are
held where they were, half of them at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints, Mask, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost, for_columns
from safexplain.recourse.features import check_columns
from safexplain.recourse.networks.boundary_search import Boundary, Price, nearest, shortened
from safexplain.recourse.networks.discrete_search import Moves, improved, rounded
from safexplain.recourse.networks.score import NetworkScore, evaluation_mode
from safexplain.recourse.solution import Floats, Solution, as_rows

_STEPS = 60
"""Gradients of one search at most."""
_SCATTERED = 256
"""Points around a query that are scored where its first search finds nothing."""
_SEED = 0
"""Of the directions in which further searches start, the same for every query."""


@dataclass(frozen=True)
class SearchOptions:
    """How hard, and how much at once.

    Args:
        starts: searches of each query, the first from the query itself; the others find nearer points, or points where
            the first finds none (a flat score).
        batch_size: rows that the model sees at once, and queries that are searched together; memory grows with it.

    Raises:
        ConfigurationError: a number that is not positive.
    """

    starts: int = 8
    batch_size: int = 8192

    def __post_init__(self) -> None:
        for name in ("starts", "batch_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))


DEFAULT = SearchOptions()
"""Of a search."""


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
    """Nearest rows that a network accepts (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399).

    Args:
        network: on its own device and in its own type; its output is (n,) or (n, 1), the logit of class 1, or (n, k)
            logits, of which the favourable one less the largest other one is the score. It is searched in evaluation
            mode; its parameters, gradients and training flags stay as they are.
        x: (n, d) queries, or one (d,).
        target: score that a counterfactual has to reach; queries that reach it already are favourable.
        favourable: the wanted class.
        cost: what a change costs; public.
        constraints: what may change; public. None: everything.
        frozen: (n, d) or (d,) bool, what must not change besides.
        options: effort and memory.

    Returns:
        One answer a query; `valid` is False where none was found within the constraints. Only favourable queries are
        `proven`.

    Raises:
        InputError: rows or a mask that cannot be used, columns in another order than the constraints', scores of
            another shape, not finite, or not differentiable.
        ConfigurationError: an argument of another type, or a target that is not finite.
    """
    check_number("target", target)
    check_cost(cost)
    check_constraints(constraints)
    if not isinstance(options, SearchOptions):
        raise ConfigurationTypeError(f"options: expected SearchOptions(...), got {options!r}")
    rows = as_rows(x, None if constraints is None else constraints.width)
    constraints = Constraints(features=rows.shape[1]) if constraints is None else constraints
    check_columns(constraints.features, x)
    mask = _mask(frozen, rows.shape)
    constraints.check(rows, mask)
    model = NetworkScore(network, favourable=favourable, batch_size=options.batch_size)
    cost = for_columns(cost, constraints.features, rows.shape[1])
    rise, fall = (torch.from_numpy(side).to(model.home) for side in cost.units(rows.shape[1]))
    price = Price(rise, fall, cost.power == 2)
    search = _Search(Boundary(model, float(target), price, _STEPS), cost, constraints, options)
    counterfactual, valid = rows.copy(), np.ones(len(rows), dtype=bool)
    with evaluation_mode(network):
        values = model.values(torch.from_numpy(rows).to(model.home))
        if not bool(torch.isfinite(values).all()):
            bad = (~torch.isfinite(values)).nonzero()[:, 0].tolist()
            raise InputError(
                f"model: no finite score for {len(bad)} queries (first: row {bad[0]}); look for NaN in the"
                " parameters, or for units that the model was not trained on"
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
    """Counterfactuals of unfavourable queries.

    Args:
        task: the score, its target, and what changes cost.
        cost: the same cost.
        rules: the constraints.
        options: effort.
    """

    task: Boundary
    cost: Cost
    rules: Constraints
    options: SearchOptions

    def answers(self, x: Floats, frozen: Mask) -> tuple[Floats, Mask]:
        """Rows (n, d), and (n,) bool, whether they are answers; the query itself where none was found."""
        best, distance, every = x.copy(), np.full(len(x), np.inf), np.arange(len(x))
        most = x.shape[1] if self.rules.most_changes is None else self.rules.most_changes

        def take(at: NDArray[np.intp], held: Mask) -> tuple[Floats, Mask]:
            """Keep what is better for the queries `at` (k,); rows (k, d), and whether they change too many features."""
            for row in self._searched(x[at], held):
                reached, far = self._values(row) >= self.task.target, self.cost.distance(row - x[at])
                better = reached & self.rules.satisfied(x[at], row, frozen[at]) & (far < distance[at])
                best[at[better]], distance[at[better]] = row[better], far[better]
            return row, self.rules.changes(x[at], row) > most

        row, many = take(every, frozen)
        left, row, held = every[many], row[many], frozen[many]
        if len(left):
            take(left, held | self._all_but(self._alone(x[left], held), np.full(len(left), most)))
        while len(left):
            half = np.maximum(self.rules.changes(x[left], row) // 2, most)
            held = held | self._all_but(self._needed(x[left], row), half)
            row, many = take(left, held)
            left, row, held = left[many], row[many], held[many]
        return best, np.isfinite(distance)

    def _searched(self, x: Floats, frozen: Mask) -> list[Floats]:
        """Rows (n, d) within the limits of queries, and where these break a rule, rows within limits that cannot."""
        rules, (lower, upper) = self.rules, self.rules.bounds(x, frozen)
        row = self._within(x, frozen, lower, upper)
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
            again[broken] = self._within(x[broken], frozen[broken], np.minimum(low, high), high)
            found.append(again)
        return found

    def _within(self, x: Floats, frozen: Mask, lower: Floats, upper: Floats) -> Floats:
        """(n, d) what the search finds within limits, on its steps and with its categories; rules are repaired."""
        home = self.task.score.home
        query, low, high = (torch.from_numpy(array).to(home) for array in (x, lower, upper))
        found = nearest_allowed(self.task, Moves.of(self.rules, home), query, low, high, self.options)
        return self.rules.project(x, found.cpu().numpy(), frozen)

    def _needed(self, x: Floats, row: Floats) -> Floats:
        """(n, d) by how much the score falls when a feature of the rows (n, d) goes back; unchanged ones come last."""
        need, value = np.full(x.shape, -np.inf), self._values(row)
        for feature in np.unique(self.rules.feature):
            back = np.where(self.rules.feature == feature, x, row)
            need[:, feature] = np.where((back != row).any(axis=1), value - self._values(back), -np.inf)
        return need

    def _alone(self, x: Floats, frozen: Mask) -> Floats:
        """(n, d) the highest score at the ends of each feature's limits, or of its categories, the others as in x."""
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

    def _all_but(self, need: Floats, kept: NDArray[np.intp]) -> Mask:
        """(n, d) bool, all columns but those of as many features (n,) as are needed most; `need` (n, d) of a one-hot
        group stands at its first column, and is -inf at the others."""
        place = np.argsort(np.argsort(-need, axis=1, kind="stable"), axis=1)
        held: Mask = (place >= kept[:, None])[:, self.rules.feature]
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
        best = improved(
            task, moves, x, aim, rounded(task, moves, x, aim, best, lower, upper), lower, upper, swaps=False
        )
        from_query = improved(task, moves, x, aim, at, lower, upper, swaps=False)
        best = improved(task, moves, x, aim, _better(task, x, from_query, best), lower, upper, swaps=True)
    low, high = moves.pinned(best, lower, upper)
    if mixed and not bool(moves.discrete.all()):
        best = _better(task, x, best, nearest(task, x, aim, best, low, high)[0])
    distance = task.price.distance(best - x)
    distance[task.score.values(best) < task.goal] = torch.inf
    return shortened(task, x, best, distance, low, high)[0]


def _nearest_of_starts(
    task: Boundary, x: Tensor, aim: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, starts: int
) -> Tensor:
    """(n, d) the nearest valid point of all searches; where none is valid, one of high score.

    The first search starts from `origin` (n, d); `starts` of them, besides the one from scattered points.
    """
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


def _better(task: Boundary, x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Row by row: what is valid, then what is nearer, then what scores higher."""
    values = [task.score.values(rows) for rows in (one, other)]
    costs = [task.price.energy(rows - x) for rows in (one, other)]
    valid = [v >= task.goal for v in values]
    nearer = torch.where(valid[0] & valid[1], costs[1] < costs[0], values[1] > values[0])
    return torch.where((torch.where(valid[0] == valid[1], nearer, valid[1]))[:, None], other, one)


def _mask(frozen: ArrayLike | None, shape: tuple[int, ...]) -> Mask:
    """(n, d) bool, a copy."""
    given = np.zeros(shape, dtype=bool) if frozen is None else np.asarray(frozen)
    if given.dtype != np.bool_ or given.shape not in (shape, shape[1:]):
        raise InputError(f"frozen: expected bool of shape {shape} or {shape[1:]}, got {given.dtype} {given.shape}")
    return np.array(np.broadcast_to(given, shape))
