"""Recourse along a public direction, with a private length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError
from safexplain.recourse.mechanisms.laplace import laplace_release
from safexplain.recourse.mechanisms.mechanism import Frozen
from safexplain.recourse.mechanisms.stable_score import StableScoreMechanism
from safexplain.recourse.result import Floats, Recourse

ENDS = 1e-9
"""By what part of a step a counterfactual may be short of it."""

ROUNDING = 4 * np.finfo(np.float64).eps
"""By what part of a feature besides."""


@dataclass(eq=False, kw_only=True)
class PublicDirection(StableScoreMechanism):
    """Releases how far to go along a public direction, with Laplace noise: each answer is epsilon-private.

    The step is t(x) = clip(a / c, R, T) with the gap a = target - f(x), the slope c = max(w.u, m) of the logit along
    the direction u, and public ends R <= 0 < T. What is released is t with Laplace noise, clamped to [R, T]. The
    decision is made from it (favourable if it is at most 0), and the counterfactual is x + step u, projected on the
    constraints.

    Statement. For neighbouring training sets D and D', any query x and any set A of answers,
    Pr[answer on D in A] <= exp(epsilon) Pr[answer on D' in A].

    Proof. t lies in [R, T], so it changes by at most T - R; without a floor m that is all that is used. With a floor
    m > 0 let t, a, c belong to D and t', a', c' to D', and t > t' (else exchange them). t > R, so c t <= a, with
    equality unless it is clipped at T. t' < T, so c' t' >= a', likewise. Hence

        c' (t - t') <= c' t - a' <= a - a' + (c' - c) t.

    Write v for the weights, x~ for the query and u~ for the direction in units of the norm bound
    (`safexplain.recourse.mechanisms.stable_score`). a - a' = <v' - v, x~>; and as max(., m) is monotone and
    1-Lipschitz, c' - c = h <v' - v, u~> for some h in [0, 1]. So the right side is <v' - v, x~ + h t u~>, h t in [R,
    T], and

        t - t' <= S max(|x~ + R u~|, |x~ + T u~|) / m,

    as a norm is convex in the step and c' >= m. Rounding: the two products are off by 1e-7 of S |x~| and S |u~|, and T
    |u~| is at most twice the maximum, which makes 6e-7 of it; `safexplain.recourse.mechanisms.laplace` allows for 1e-6.
    The rest is post-processing (Dwork and Roth 2014, proposition 2.1). n answers compose to at most n epsilon.

    A direction that points the wrong way (w.u below the floor, or negative) costs validity, never privacy: the floor
    then stands for the slope and steps come out too short or lead nowhere. The answer does not tell: the slope is
    private. With a floor above the true slope likewise. Its `score` is target - step * floor (floor 1 without one), the
    logit if the slope is the floor.

    `valid` says that the constraints left the step whole: each feature moved at least as far as the step asks, whole
    numbers up to the next one.

    Args:
        direction: (d,) u, public: what is to change, and in which proportion. With a preprocessing, one number a column
            of its table, or by name of features, 0 for those that are not named. Or a linear model that was trained
            with differential privacy, as for `LaplaceScore`: its weights are the direction.
        epsilon: of each answer.
        largest_step: T, public; None: 2 norm_bound / |u|.
        smallest_step: R, public, at most 0; None: -T with a floor, so that rows far on the favourable side are told
            from those near the boundary, and 0 without one.
        slope_floor: m, public, in logits a unit step; .8 of the norm of `LaplaceScore.public_fit`, for instance, where
            the direction is that. None: the noise is that of the whole range.

    Raises:
        ConfigurationError: a value out of range.
    """

    name: ClassVar[str] = "step along a public direction with Laplace noise on a grid (PublicDirection)"
    released: ClassVar[str] = (
        "the noised number of steps, within a public range; the rest follows from it and the direction"
    )
    why: ClassVar[str] = (
        "a record changes the step by at most a known amount, which the public range, and with a slope floor the"
        " stability of the regularised regression, bound; the noise is scaled to it"
    )
    vector: ClassVar[str] = "direction"

    direction: Any = field(kw_only=False)
    largest_step: float | None = None
    smallest_step: float | None = None
    slope_floor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("largest_step", "slope_floor"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        if self.smallest_step is not None and self.smallest_step != 0:
            check_number("-smallest_step", -self.smallest_step, above=0)

    @property
    def scores_are_logits(self) -> bool:
        """False: scores are steps times the slope floor."""
        return False

    def _check_width(self, width: int) -> None:
        super()._check_width(width)
        groups = () if self.column_constraints is None else self.column_constraints.groups
        if any(self._direction()[group].any() for group in groups):
            raise ConfigurationError(
                "direction: expected 0 in the columns of one-hot groups; a step cannot switch them"
            )

    def sensitivity(self, x: ArrayLike) -> Floats:
        """(n,) what one record may change the step of each query by; public.

        Args:
            x: (n, d) or (d,) queries.
        """
        return self._sensitivity(self._trained().lifted(self._scaled(self.rows(x))))

    def _sensitivity(self, lifted: Floats) -> Floats:
        low, high = self._ends()
        if self.slope_floor is None:
            return np.full(len(lifted), high - low)
        model = self._trained()
        move = model.moved(self._scaled_direction())
        longest = np.maximum(model.sensitivity(lifted + low * move), model.sensitivity(lifted + high * move))
        rounding = 4 * np.finfo(np.float64).eps * abs(self.target)
        return (longest + rounding) / self.slope_floor

    def _solver(self, rows: Floats) -> Callable[[Frozen], Recourse]:
        model, direction, (low, high) = self._trained(), self._direction(), self._ends()
        lifted, move = model.lifted(self._scaled(rows)), model.moved(self._scaled_direction())
        gap, slope = self.target - lifted @ model.weights, float(move @ model.weights)
        if self.slope_floor is not None:
            slope = max(slope, self.slope_floor)
        with np.errstate(over="ignore"):
            wanted = gap / slope if slope > 1e-300 else np.where(gap > 0, high, low)
        step, censored = laplace_release(wanted, self._sensitivity(lifted), self.epsilon, low, high, self._noise())
        favourable = step <= 0
        change = np.where(favourable, 0.0, step)[:, None] * direction
        allowed = self.column_constraints
        if allowed is not None and allowed.grid.any():
            stepped = allowed.grid > 0  # whole steps at least as far as the step along u asks for
            size, asked = allowed.grid[stepped], change[:, stepped]
            change[:, stepped] = np.copysign(np.ceil(np.abs(asked) / size) * size, asked)

        def solve(frozen: Frozen) -> Recourse:
            reached = rows + change
            if allowed is not None:
                reached = replace(allowed, rules=()).project(rows, reached, frozen)
            reached[favourable] = rows[favourable]
            short = np.abs(change) - (reached - rows) * np.sign(direction)
            whole = (short <= ENDS * np.abs(change) + ROUNDING * np.abs(rows)).all(axis=1)
            if allowed is not None:  # what rules ask for besides would not be along u
                whole &= allowed.satisfied(rows, reached, frozen)
            valid = favourable | whole
            reached[~valid] = rows[~valid]
            return Recourse(
                x=rows,
                counterfactual=reached,
                valid=valid,
                distance=self.column_cost.distance(reached - rows, rows),
                score=self.target - step * (self.slope_floor or 1.0),
                favourable=favourable,
                censored=censored,
            )

        return solve

    def _ends(self) -> tuple[float, float]:
        """R and T."""
        bound = self._trained().norm_bound
        high = self.largest_step or 2 * bound / float(np.linalg.norm(self._scaled_direction()))
        if self.smallest_step is not None:
            return float(self.smallest_step), float(high)
        return (0.0 if self.slope_floor is None else -float(high)), float(high)

    def _direction(self) -> Floats:
        found: Floats = self._get("vector")
        return found

    def _scaled_direction(self) -> Floats:
        """(D,) u as training sees it."""
        return self._direction() if self.preprocessing is None else self._direction() / self.preprocessing.scale
