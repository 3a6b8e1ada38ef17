"""Recourse for networks: the nearest allowed change that a differentiable score accepts, all queries at once.

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
held where they were, half of them at a time, and those that reach least alone, all at once. Percentile costs are
ranked, not minimised: the search minimises sums of changes in the width of their public distributions, and what it
finds is compared by percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Box, Constraints, Mask, check_constraints, check_within
from safexplain.recourse.cost import EUCLIDEAN, Cost, Percentile, check_cost, for_columns
from safexplain.recourse.feature_names import check_columns
from safexplain.recourse.found import Floats, Found, as_rows
from safexplain.recourse.networks.boundary_search import Boundary, Price, nearest, shortened
from safexplain.recourse.networks.discrete_search import Moves, chosen_categories, improved, rounded
from safexplain.recourse.networks.score import NetworkScore, Score, evaluation_mode

_SCATTERED = 256
"""Points around a query that are scored where its first search finds nothing."""


@dataclass(frozen=True)
class SearchOptions:
    """How hard, and how much at once.

    Args:
        starts: searches of each query, the first from the query itself; the others find nearer points, or points where
            the first finds none (a flat score).
        steps: gradients of one search at most.
        batch_size: rows that the model sees at once, and queries that are searched together; memory grows with it.
        seed: of the directions in which further searches start, the same for every query.

    Raises:
        ConfigurationError: a number that is not positive, or a seed below 0.
    """

    starts: int = 8
    steps: int = 60
    batch_size: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("starts", 1), ("steps", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))


DEFAULT = SearchOptions()
"""Of a search."""


def network_recourse(
    score: Score | nn.Module,
    x: ArrayLike | Tensor,
    *,
    target: float = 0.0,
    favourable: int = 1,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: ArrayLike | None = None,
    within: Box | None = None,
    options: SearchOptions = DEFAULT,
) -> Found:
    """Nearest rows that a differentiable score accepts (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399).

    Args:
        score: (n, d) tensor -> (n,) scores, each of its own row, higher is better, of torch's default type and on the
            CPU; or a network, on its own device and in its own type, whose score is the
            logit of the favourable class minus the largest other one, or the only logit. A network is searched in
            evaluation mode; its parameters, gradients and training flags stay as they are.
        x: (n, d) queries, or one (d,).
        target: score that a counterfactual has to reach; queries that reach it already are favourable.
        favourable: the wanted class of a network.
        cost: what a change costs; public.
        constraints: what may change; public. None: everything.
        frozen: (n, d) or (d,) bool, what must not change besides.
        within: least and greatest values, (n, d) each or what broadcasts to it, of each query's own answer; the query
            itself may lie outside. Favourable queries stay nevertheless.
        options: effort and memory.

    Returns:
        One answer a query; `valid` is False where none was found within the constraints. Only favourable queries are
        `proven`, and those whose constraints, `frozen` and `within` leave no row at all.

    Raises:
        InputError: rows or a mask that cannot be used, columns in another order than the constraints', scores of
            another shape, not finite, or not differentiable.
        ConfigurationError: an argument of another type, a target that is not finite, or `favourable` beside a callable.
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
    box = check_within(within, rows.shape)
    model = NetworkScore(score, favourable=favourable, batch_size=options.batch_size)
    cost = for_columns(cost, constraints.features, rows.shape[1])
    tasks = tuple(
        Boundary(model, float(target), price, options.steps) for price in _prices(cost, constraints, model.home)
    )
    search = _Search(tasks, cost, constraints, options)
    counterfactual, valid, proven = rows.copy(), np.ones(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
    with evaluation_mode(score):
        values = model.values(torch.from_numpy(rows).to(model.home))
        if not bool(torch.isfinite(values).all()):
            bad = (~torch.isfinite(values)).nonzero()[:, 0].tolist()
            raise InputError(
                f"score: not a finite number for {len(bad)} queries (first: row {bad[0]}); look for NaN in the"
                " parameters, or for units that the model was not trained on"
            )
        favoured = (values >= float(target)).cpu().numpy()
        for part in np.split(np.flatnonzero(~favoured), range(options.batch_size, len(rows), options.batch_size)):
            if len(part):
                own = None if mask is None else mask[part]
                limits = constraints.bounds(rows[part], own, None if box is None else (box[0][part], box[1][part]))
                counterfactual[part], valid[part] = search.answers(rows[part], *limits)
                proven[part] = ~search.possible(*limits)
    return Found(
        x=rows,
        counterfactual=counterfactual,
        valid=valid,
        distance=cost.distance(counterfactual - rows, rows),
        score=values.cpu().numpy(),
        favourable=favoured,
        censored=np.zeros(len(rows), dtype=bool),
        proven=proven,
    )


def _prices(cost: Cost, constraints: Constraints, home: torch.device) -> Iterator[Price]:
    """What searches minimise; for percentiles the slopes of the public distributions, all along and in the middle."""
    if not isinstance(cost, Percentile):
        rise, fall = (torch.from_numpy(side).to(home) for side in cost.units(constraints.width))
        yield Price(rise, cost.power == 2, None if cost.symmetric else fall)
        return
    for middle in (0.98, 0.5):
        slopes = [cost.steepness(column, middle) for column in range(constraints.width)]
        yield Price(torch.tensor(slopes, dtype=torch.float64, device=home), False)


@dataclass(frozen=True, eq=False)
class _Search:
    """Counterfactuals of unfavourable queries within boxes of their own.

    Args:
        tasks: what to search, once for each.
        cost: by which what they find is compared.
        constraints: what holds besides the boxes.
        options: effort.
    """

    tasks: tuple[Boundary, ...]
    cost: Cost
    constraints: Constraints
    options: SearchOptions

    def possible(self, lower: Floats, upper: Floats) -> Mask:
        """(n,) bool, whether limits (n, d) leave a row at all."""
        open_: Mask = (lower <= upper).all(axis=1)
        for group in self.constraints.groups:
            open_ &= self.constraints.admissible(group, lower, upper).any(axis=1)
        return open_

    def answers(self, x: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Mask]:
        """Rows (n, d) within limits (n, d), and (n,) bool, whether they hold; the query itself where one does not."""
        best, distance = x.copy(), np.full(len(x), np.inf)
        rows = np.flatnonzero(self.possible(lower, upper))
        for task in self.tasks:
            for found in self._candidates(task, x[rows], lower[rows], upper[rows]) if len(rows) else ():
                reached = self._values(task, found) >= task.target
                valid = reached & self.constraints.satisfied(
                    x[rows], found, *self._limits(x[rows], lower[rows], upper[rows])
                )
                far = self.cost.distance(found - x[rows], x[rows])
                better = valid & (far < distance[rows])
                best[rows[better]], distance[rows[better]] = found[better], far[better]
        return best, np.isfinite(distance)

    def _candidates(self, task: Boundary, x: Floats, lower: Floats, upper: Floats) -> Iterator[Floats]:
        """Rows (n, d) that may hold."""
        found = self._ruled(task, x, lower, upper)
        yield from found
        most = self.constraints.most_changes
        if most is None:
            return
        many = np.flatnonzero(self.constraints.changes(x, found[-1]) > most)
        if not len(many):
            return
        row, need = found[-1].copy(), self._alone(task, x[many], lower[many], upper[many])
        for part in self._only(task, x[many], lower[many], upper[many], need, np.full(len(many), most)):
            yield _with(row, many, part)
        while len(many):
            keep = np.maximum(self.constraints.changes(x[many], row[many]) // 2, most)
            need = np.where(self._features(row[many] != x[many]), self._needed(task, x[many], row[many]), -np.inf)
            for part in self._only(task, x[many], lower[many], upper[many], need, keep):
                row = _with(row, many, part)
                yield row
            fewer = self.constraints.changes(x[many], row[many])
            many = many[(fewer > most) & (keep > most)]

    def _only(
        self, task: Boundary, x: Floats, lower: Floats, upper: Floats, need: Floats, keep: NDArray[np.intp]
    ) -> list[Floats]:
        """What the search finds when only those `keep` (n,) features change that are needed most (n, d)."""
        forced = self._features((x < lower) | (x > upper))
        first = self.constraints.feature == np.arange(self.constraints.width)
        need = np.where(first, np.where(forced, np.inf, need), -np.inf)
        place = np.argsort(np.argsort(-need, axis=1, kind="stable"), axis=1)
        held = ~self._features(place < keep[:, None]) & ~forced
        return self._ruled(task, x, np.where(held, x, lower), np.where(held, x, upper))

    def _ruled(self, task: Boundary, x: Floats, lower: Floats, upper: Floats) -> list[Floats]:
        """What the search finds within limits (n, d), and what it finds within limits that keep the rules."""
        rules, found = self.constraints, [self._within(task, x, lower, upper)]
        if not rules.rules:
            return found
        row = found[0]
        kept = rules.obeyed(x, row) & (self._values(task, row) >= task.target)
        broken = np.flatnonzero(~kept)
        for follow in (True, False) if len(broken) else ():
            low, high = lower[broken].copy(), upper[broken].copy()
            for when, then in rules.linked:
                rises = follow & (row[broken, when] > x[broken, when])
                most = np.where(rises, row[broken, when], x[broken, when])
                high[:, when] = np.maximum(np.minimum(high[:, when], most), low[:, when])
                low[:, then] = np.where(rises, np.maximum(low[:, then], row[broken, then]), low[:, then])
            low = np.minimum(low, high)
            found.append(_with(row, broken, self._within(task, x[broken], low, high)))
        return found

    def _within(self, task: Boundary, x: Floats, lower: Floats, upper: Floats) -> Floats:
        """(n, d) what the search finds within limits, on its steps and with its categories; rules are repaired."""
        limits = self._limits(x, lower, upper)
        start = self.constraints.project(x, x, *limits)
        home = task.score.home
        query, at, low, high = (torch.from_numpy(array.copy()).to(home) for array in (x, start, lower, upper))
        found = _searched(task, Moves.of(self.constraints, home), query, at, low, high, self.options)
        return self.constraints.project(x, found.cpu().numpy(), *limits)

    def _limits(self, x: Floats, lower: Floats, upper: Floats) -> tuple[Mask, tuple[Floats, Floats]]:
        """Limits (n, d) as constraints take them: what is frozen, where a query may lie outside its box, and a box."""
        frozen = (lower == x) & (upper == x)
        for group in self.constraints.groups:
            frozen[:, group] = False
        return frozen, (lower, upper)

    def _needed(self, task: Boundary, x: Floats, row: Floats) -> Floats:
        """(n, d) by how much the score falls when a feature of the row goes back; the same for a whole group."""
        falls, value = np.empty(x.shape), self._values(task, row)
        for feature in np.unique(self.constraints.feature):
            columns = np.flatnonzero(self.constraints.feature == feature)
            back = row.copy()
            back[:, columns] = x[:, columns]
            falls[:, columns] = (value - self._values(task, back))[:, None]
        return falls

    def _alone(self, task: Boundary, x: Floats, lower: Floats, upper: Floats) -> Floats:
        """(n, d) the highest score at the ends of each feature's limits, or of its categories, the others as in x."""
        reach = (task.reach(torch.from_numpy(x).to(task.score.home))[:, None] / task.price.unit).cpu().numpy()
        lower, upper = np.maximum(lower, x - reach), np.minimum(upper, x + reach)
        highest = np.full(x.shape, -np.inf)
        for feature in np.unique(self.constraints.feature):
            columns = np.flatnonzero(self.constraints.feature == feature)
            ends, open_ = [lower[:, columns], upper[:, columns]], np.ones((len(x), len(columns)), dtype=bool)
            if len(columns) > 1:
                ends, open_ = list(np.eye(len(columns))), self.constraints.admissible(columns, lower, upper)
            for at, end in enumerate(ends):
                moved = x.copy()
                moved[:, columns] = end
                value = np.where(open_[:, at % open_.shape[1]], self._values(task, moved), -np.inf)
                highest[:, columns] = np.maximum(highest[:, columns], value[:, None])
        return highest

    def _features(self, columns: Mask) -> Mask:
        """(n, d) bool, the columns and those of the same one-hot group."""
        marked = columns.copy()
        for group in self.constraints.groups:
            marked[:, group] = columns[:, group].any(axis=1, keepdims=True)
        return marked

    @staticmethod
    def _values(task: Boundary, rows: Floats) -> Floats:
        values: Floats = task.score.values(torch.from_numpy(rows).to(task.score.home)).cpu().numpy()
        return values


def _with(rows: Floats, at: NDArray[np.intp], part: Floats) -> Floats:
    """A copy of rows (n, d) with some of them replaced."""
    changed = rows.copy()
    changed[at] = part
    return changed


def _searched(
    task: Boundary, moves: Moves, x: Tensor, at: Tensor, lower: Tensor, upper: Tensor, options: SearchOptions
) -> Tensor:
    """(n, d) the best row found for each query x, from all starts around `at`, which is x or the row nearest to it."""
    aim = task.aim(task.score.values(at))
    mixed = bool(moves.discrete.any())
    found = [improved(task, moves, x, aim, at, lower, upper, swaps=False)] if mixed else []
    for origin in [at, chosen_categories(task, moves, x, at, lower, upper)] if bool(moves.member.any()) else [at]:
        held = torch.where(moves.member, origin, lower), torch.where(moves.member, origin, upper)
        point = _nearest_of_starts(task, x, aim, origin, *held, options.starts, options.seed)
        if mixed:
            point = rounded(task, moves, x, aim, point, lower, upper)
            point = improved(task, moves, x, aim, point, lower, upper, swaps=False)
        found.append(point)
    best = reduce(lambda one, other: _better(task, x, one, other), found)
    if mixed:
        best = improved(task, moves, x, aim, best, lower, upper, swaps=True)
    low, high = moves.pinned(best, lower, upper)
    if mixed and not bool(moves.discrete.all()):
        best = _better(task, x, best, nearest(task, x, aim, best, low, high)[0])
    distance = task.price.distance(best - x)
    distance[task.score.values(best) < task.goal] = torch.inf
    return shortened(task, x, best, distance, low, high)[0]


def _nearest_of_starts(
    task: Boundary, x: Tensor, aim: Tensor, origin: Tensor, lower: Tensor, upper: Tensor, starts: int, seed: int
) -> Tensor:
    """(n, d) the nearest valid point of all searches; where none is valid, one of high score.

    The first search starts from `origin` (n, d); `starts` of them, besides the one from scattered points.
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


def _mask(frozen: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    if frozen is None:
        return None
    given = np.asarray(frozen)
    if given.dtype != np.bool_ or given.shape not in (shape, shape[1:]):
        raise InputError(f"frozen: expected bool of shape {shape} or {shape[1:]}, got {given.dtype} {given.shape}")
    return np.array(np.broadcast_to(given, shape))
