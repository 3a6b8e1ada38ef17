"""Nearest point with a sufficient score, over continuous features within a box.

The shortfall in m * max(0, target - score) + cost (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399, eq. 2) is
linearised at each iterate, and the minimiser within a trust region computed exactly (`linear_step`): the S-l1-QP method
(Fletcher 1987, Practical Methods of Optimization, ch. 14.4). The multiplier m grows until the shortfall is gone. The
first step from x is DeepFool's (arXiv 1511.04599); exact steps within a box are those of FAB (arXiv 1907.02044).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from safexplain.errors import InputError

_GROW, _SHRINK = 2.0, 0.35
"""Factors of the trust region after a step that matched its prediction or did not."""
_HALVINGS = 16
"""Bisections of the segment between x and the best point."""


@dataclass
class Price:
    """The cost of changes: (d,) costs of a change by 1 and by -1; the distance is their Euclidean norm (`squared`) or
    sum."""

    rise: Tensor
    fall: Tensor
    squared: bool

    def along(self, direction: Tensor) -> Tensor:
        """(..., d) costs of changes by 1 in directions (..., d)."""
        return torch.where(direction > 0, self.rise, self.fall)

    @property
    def unit(self) -> Tensor:
        """(d,) the lower of both costs, the unit of step lengths."""
        return torch.minimum(self.rise, self.fall)

    def distance(self, change: Tensor) -> Tensor:
        """(...) distances of (..., d) changes."""
        weighted = change * self.along(change)
        return weighted.norm(dim=-1) if self.squared else weighted.abs().sum(dim=-1)

    def energy(self, change: Tensor) -> Tensor:
        """(...) the objective: half the squared distance if Euclidean, otherwise the distance."""
        weighted = change * self.along(change)
        return weighted.square().sum(dim=-1) / 2 if self.squared else weighted.abs().sum(dim=-1)


@dataclass
class Boundary:
    """The problem: the cheapest rows whose score reaches the target, in at most `steps` gradients each."""

    score: NetworkScore
    target: float
    price: Price
    steps: int

    @property
    def goal(self) -> float:
        """Score that counts as reached: slightly more, as the last digits of a score depend on the batch size."""
        return self.target + 64 * self.score.precision * (1.0 + abs(self.target))

    def reach(self, x: Tensor) -> Tensor:
        """(n,) largest step of a feature, in units of its cost, which makes infinite boxes finite."""
        return 10.0 * (1.0 + (x * self.price.unit).abs().amax(dim=1))

    def aim(self, value: Tensor) -> Tensor:
        """(n,) scores to aim at from scores (n,): slightly beyond the target; `shorten` removes the excess."""
        return self.goal + 1e-3 * (self.target - value).abs() + 16 * self.score.precision * value.abs()


@dataclass
class _ActiveRows:
    index: Tensor
    x: Tensor
    aim: Tensor
    lower: Tensor
    upper: Tensor
    at: Tensor
    value: Tensor
    slope: Tensor
    radius: Tensor
    multiplier: Tensor
    idle: Tensor

    def select(self, mask: Tensor) -> _ActiveRows:
        return _ActiveRows(**{name: part[mask] for name, part in vars(self).items()})


def nearest(
    task: Boundary, x: Tensor, aim: Tensor, start: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """(n, d) points nearest to x in the box whose score reaches the target, found from `start` by aiming at scores
    `aim` (n,), and their (n,) distances; else the point of highest score, at infinite distance."""
    at = torch.minimum(torch.maximum(start, lower), upper)
    value, slope = task.score.gradients(at)
    best, best_distance = at.clone(), task.price.distance(at - x)
    best_distance[value < task.goal] = torch.inf
    best_value = value.clone()
    index = torch.arange(len(x), device=x.device)
    rows = _ActiveRows(
        index, x, aim, lower, upper, at, value, slope, task.reach(x), torch.zeros_like(value), torch.zeros_like(index)
    )
    for _ in range(task.steps):
        if not len(rows.index):
            break
        tried, tried_value, done = _advance(task, rows)
        distance = task.price.distance(tried - rows.x)
        valid = tried_value >= task.goal
        before = best_distance[rows.index]
        better = torch.where(valid, distance < before, before.isinf() & (tried_value > best_value[rows.index]))
        where = rows.index[better]
        best[where], best_value[where] = tried[better], tried_value[better]
        best_distance[where] = torch.where(valid, distance, torch.inf)[better]
        rows = rows.select(~done)
    return best, best_distance


def _advance(task: Boundary, rows: _ActiveRows) -> tuple[Tensor, Tensor, Tensor]:
    """One trust-region step of each row, in place; the tried points, their scores, and finished rows."""
    price, aim = task.price, rows.aim
    span = rows.radius[:, None] / price.unit
    low, high = torch.maximum(rows.lower, rows.at - span), torch.minimum(rows.upper, rows.at + span)
    tried, wanted = linear_step(price, rows.x, rows.slope, rows.at, aim - rows.value, low, high)
    value, slope = task.score.gradients(tried)
    step = tried - rows.at
    cost, new_cost = price.energy(rows.at - rows.x), price.energy(tried - rows.x)
    short, new_short = (aim - rows.value).clamp_min(0.0), (aim - value).clamp_min(0.0)
    foreseen = (aim - rows.value - (rows.slope * step).sum(dim=1)).clamp_min(0.0)
    closed = short - foreseen
    needed = torch.where(closed > 1e-12, 2.0 * (new_cost - cost) / closed.clamp_min(1e-12), 0.0)
    rows.multiplier = torch.maximum(rows.multiplier, torch.maximum(needed, 1.5 * wanted))
    promised = cost - new_cost + rows.multiplier * closed
    gained = cost - new_cost + rows.multiplier * (short - new_short)
    ratio = torch.where(promised > 0, gained / promised.clamp_min(1e-300), 0.0).nan_to_num(-1.0)
    accepted = ratio > 1e-3
    length = (step * price.unit).abs().amax(dim=1)
    rows.radius = torch.where(
        ratio < 0.25,
        _SHRINK * torch.minimum(length, rows.radius),
        torch.where(ratio > 0.75, _GROW * length, rows.radius).maximum(rows.radius),
    )
    size = (new_cost + rows.multiplier * new_short).clamp_min(1e-300)
    small = promised <= 1e-4 * size
    rows.idle = torch.where(
        small | (accepted & (gained < 1e-4 * size)), rows.idle + 1, torch.where(accepted, 0, rows.idle)
    )
    away = (tried - rows.x).mul(price.unit).abs().amax(dim=1)
    done = (length <= 0) | (rows.idle >= 3) | (rows.radius < 1e-4 * away)
    rows.at = torch.where(accepted[:, None], tried, rows.at)
    rows.slope = torch.where(accepted[:, None], slope, rows.slope)
    rows.value = torch.where(accepted, value, rows.value)
    return tried, value, done


def shorten(task: Boundary, x: Tensor, best: Tensor, distance: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The points (n, d), those at a finite `distance` moved towards x as far as they stay valid, by bisection."""
    origin = torch.minimum(torch.maximum(x, lower), upper)
    rows = (distance.isfinite() & (distance > 0)).nonzero()[:, 0]
    kept = torch.ones(len(rows), dtype=x.dtype, device=x.device)
    short = torch.zeros_like(kept)
    for _ in range(_HALVINGS if len(rows) else 0):
        middle = (kept + short) / 2
        valid = task.score.values(torch.lerp(origin[rows], best[rows], middle[:, None])) >= task.goal
        kept, short = torch.where(valid, middle, kept), torch.where(valid, short, middle)
    best = best.clone()
    best[rows] = torch.lerp(origin[rows], best[rows], kept[:, None])
    return best


def linear_step(
    price: Price, x: Tensor, slope: Tensor, at: Tensor, rise: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise the cost of z - x subject to slope . (z - at) >= rise (n,) and finite bounds (n, d): (n, d) points and
    (n,) multipliers; if the box holds no such point, its point of largest rise.

    The Lagrangian at multiplier m separates into features: each stays at the end of its interval nearest to x until m
    reaches the price of moving it, w / |slope| (sums) or w^2 |z - x| / |slope| (Euclidean). The rise is piecewise
    linear in m (or in the share of the last feature); its segments are sorted here.
    """
    start = torch.minimum(torch.maximum(x, lower), upper)
    end = torch.where(slope > 0, upper, lower)
    missing = rise - (slope * (start - at)).sum(dim=1)
    solve = _euclidean if price.squared else _sum
    point, multiplier = solve(price.along(slope), x, slope, missing.clamp_min(0.0)[:, None], start, end)
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


# --- scores of a network, and their gradients -----------------------------------------------------------------------

NO_DERIVATIVE = (
    "model: expected an output that torch can differentiate with respect to x; compute it from x with torch, without"
    " detach(), numpy() or no_grad()"
)


class NetworkScore:
    """Scores of rows by a network, in batches; arguments as for `network_recourse`. Rows in float64 are rounded to the
    network's type before scoring, as in production."""

    def __init__(self, network: nn.Module, *, favourable: int = 1, batch_size: int = 8192) -> None:
        parameters = [p for p in network.parameters() if p.is_floating_point()]
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self.dtype = parameters[0].dtype if parameters else torch.get_default_dtype()
        self.home = torch.device("cpu") if self.device.type == "mps" else self.device  # mps lacks float64
        self.batch_size = batch_size
        self.precision = max((torch.finfo(p.dtype).eps for p in parameters), default=torch.finfo(self.dtype).eps)
        self._network, self._favourable = network, favourable

    def values(self, rows: Tensor) -> Tensor:
        """(n,) float64 scores of (n, d) float64 rows; -inf where the model returns none."""
        with torch.no_grad():
            return self._joined([self._outcome(part.to(self.device, self.dtype)) for part in self._parts(rows)])

    def gradients(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) scores and their (n, d) gradients; 0 where a gradient is not finite."""
        values, slopes = [], []
        for part in self._parts(rows):
            with torch.enable_grad():
                leaf = part.detach().to(self.device, self.dtype, copy=True).requires_grad_()
                outcome = self._outcome(leaf)
                slopes.append(_slope(outcome, leaf))
            values.append(outcome.detach())
        slope = torch.cat(slopes).to(self.home, torch.float64)
        return self._joined(values), slope.nan_to_num(0.0, 0.0, 0.0)

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self.batch_size) if len(rows) else (rows,)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).to(self.home, torch.float64).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def _outcome(self, rows: Tensor) -> Tensor:
        try:
            out = self._network(rows)
        except RuntimeError as error:
            if "requires grad" in str(error):
                raise InputError(f"{NO_DERIVATIVE} ({error})") from error
            if "shape" not in str(error) and "size" not in str(error):
                raise
            raise InputError(f"x: the model fails on rows of {rows.shape[1]} features ({error})") from error
        n, wanted = len(rows), self._favourable
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        if shape in ((n,), (n, 1)) and wanted in (0, 1):
            logit: Tensor = out.reshape(n)
            return logit if wanted else -logit
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != n or wanted >= out.shape[1]:
            raise InputError(
                f"model: expected logits of shape ({n},), ({n}, 1) or ({n}, k) for {n} rows, with a column for class"
                f" {wanted}, got {shape}"
            )
        lead: Tensor = out[:, wanted] - out[:, torch.arange(out.shape[1]) != wanted].amax(dim=1)
        return lead


def _slope(outcome: Tensor, leaf: Tensor) -> Tensor:
    if not outcome.requires_grad:
        raise InputError(NO_DERIVATIVE)
    try:
        return torch.autograd.grad(outcome.sum(), leaf)[0]
    except RuntimeError as error:  # NotImplementedError is one
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"{NO_DERIVATIVE} ({error})") from error
