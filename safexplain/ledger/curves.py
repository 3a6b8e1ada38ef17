"""Releases that are known by their Renyi divergences: concentrated ones, and trainings by subsampled Gaussian steps.

An account adds up such curves order by order (`safexplain.ledger.composition`, rule renyi), which is far tighter than
adding up an epsilon and a delta for each release. Where it cannot, as approximate releases came first, a curve counts
as the (epsilon, delta) that it implies at a delta of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from safexplain._privacy_loss import Adjacency, Steps, check_adjacency, renyi
from safexplain._validate import check_number, keep_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError

Array = NDArray[np.float64]

NEGLIGIBLE = 1e-24
"""Smaller divergences are refused: no budget would notice them."""

CONVERTED = 1e-9
"""The delta at which a curve becomes an (epsilon, delta), unless it says another."""

ORDERS: tuple[float, ...] = (
    1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.5, 12.0, 14.0, 17.0, 20.0,
    24.0, 28.0, 33.0, 40.0, 48.0, 56.0, 65.0, 80.0, 100.0, 128.0, 170.0, 256.0, 400.0, 640.0, 1024.0,
)  # fmt: skip
"""Those at which the curve of a training is computed; they include all that every account adds up."""

_MARGIN, _ROUNDING = 1e-7, 1e-12
"""By how much divergences that were computed are raised, relatively and for each step."""


@dataclass(frozen=True)
class Concentrated:
    """An answer that is rho-zero-concentrated differentially private: of every order alpha, at most alpha rho.

    A Gaussian mechanism has rho = (sensitivity / standard deviation)^2 / 2 (Bun and Steinke 2016, arXiv 1605.02065,
    Proposition 1.6). What is mu-GDP has rho = mu^2 / 2 (Mironov 2017, arXiv 1702.07476, Corollary 3; post-processing
    does not raise it).

    Args:
        rho: at least 1e-24.
        delta: at which it counts as (epsilon, delta) where an account does not add up Renyi divergences; in (0, 1).
        adjacency: what its neighbours are; "" for the ledger's.
    """

    rho: float
    delta: float = CONVERTED
    adjacency: str = ""
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        keep_number(self, "rho", minimum=NEGLIGIBLE)
        _keep_words(self)

    def divergence(self, order: Any) -> Any:
        """Of an order above 1, or an array of them."""
        return order * self.rho

    def epsilon_at(self, delta: float) -> float:
        """What it implies at a delta, rounded up; the best of many orders."""
        orders = 1 + np.logspace(-3, 7, 2000)
        return _epsilon(orders, orders * self.rho, delta)

    def __str__(self) -> str:
        return f"Concentrated(rho={self.rho:.6g})"


@dataclass(frozen=True)
class Renyi:
    """An answer whose Renyi divergences, in both directions, are at most these.

    Between two orders (alpha - 1) times the divergence is convex, and 0 at order 1, so that a straight line is above
    it; the divergence itself grows with the order (van Erven and Harremoes 2014, arXiv 1206.2459, Theorem 3 and
    Corollary 2). Beyond the largest order nothing is known.

    Args:
        orders: above 1, ascending; those in `ORDERS` serve every account best.
        divergences: one for each, at least 1e-24, none smaller than the one before.
        delta: as for `Concentrated`.
        adjacency: as for `Concentrated`.
    """

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    delta: float = CONVERTED
    adjacency: str = ""
    kind: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        for name in ("orders", "divergences"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
                raise ConfigurationTypeError(f"{name}: expected a sequence of numbers, got {values!r:.60}")
            object.__setattr__(self, name, tuple(check_number(name, v) for v in values))
        if len(self.orders) != len(self.divergences):
            raise ConfigurationError(
                f"divergences: expected one for each of {len(self.orders)} orders, got {len(self.divergences)}"
            )
        if not all(1 < a < b for a, b in zip(self.orders, (*self.orders[1:], math.inf), strict=True)):
            raise ConfigurationError(f"orders: expected numbers above 1, ascending, got {self.orders!r:.80}")
        low, high = self.divergences[0], self.divergences[1:]
        if low < NEGLIGIBLE or any(b < a for a, b in zip(self.divergences, high, strict=False)):
            raise ConfigurationError(
                f"divergences: expected numbers of at least {NEGLIGIBLE:g} that grow with the order, got"
                f" {self.divergences!r:.80}"
            )
        _keep_words(self)

    @classmethod
    def of_steps(
        cls, phases: Steps | Sequence[Steps], adjacency: Adjacency = "substitute", *, delta: float = CONVERTED
    ) -> Renyi:
        """Of a training: `Steps`, or the `phases` of its PrivacyStatement.

        Args:
            phases: steps of the Gaussian mechanism.
            adjacency: the ledger's.
            delta: as for `Concentrated`.

        Raises:
            ConfigurationError: steps without noise, or none at all.
        """
        check_adjacency(adjacency)
        given = (phases,) if isinstance(phases, Steps) else tuple(phases)
        taken = [p for p in given if p.steps]
        for phase in taken:
            if phase.noise_multiplier == 0:
                raise ConfigurationError("steps without noise have no bound: there is nothing that a budget could hold")
        if not taken:
            raise ConfigurationError("phases: expected at least one step")
        total = np.zeros(len(ORDERS))
        for phase in taken:
            total += renyi(phase, adjacency, ORDERS) * (1 + _MARGIN) + phase.steps * _ROUNDING
        known = np.isfinite(total)
        curve = np.maximum.accumulate(np.maximum(total[known], NEGLIGIBLE))
        return cls(tuple(np.array(ORDERS)[known].tolist()), tuple(curve.tolist()), delta, adjacency)

    def divergence(self, order: Any) -> Any:
        """An upper bound for an order above 1, or an array of them; infinite above the largest that is known."""
        at = np.asarray(order, dtype=np.float64)
        known = np.array(self.orders)
        values = (known - 1) * np.array(self.divergences)
        bound = np.interp(at, [1.0, *known], [0.0, *values]) / (at - 1)
        larger = np.array([*self.divergences, np.inf])[np.searchsorted(known, at)]  # of the next order that is known
        return np.where(at > known[-1], np.inf, np.minimum(bound, larger))

    def epsilon_at(self, delta: float) -> float:
        """What it implies at a delta, rounded up; the best of its orders."""
        return _epsilon(np.array(self.orders), np.array(self.divergences), delta)

    def __str__(self) -> str:
        return f"Renyi({len(self.orders)} orders, epsilon {self.epsilon_at(self.delta):.4g} at delta {self.delta:g})"


def _keep_words(curve: Any) -> None:
    keep_number(curve, "delta", above=0.0, below=1.0)
    if curve.adjacency:
        check_adjacency(curve.adjacency)


def _epsilon(orders: Array, divergences: Array, delta: float) -> float:
    """Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition 12, rounded up."""
    return float(compute_epsilon(orders, divergences, delta)[0]) * (1 + 1e-9)
