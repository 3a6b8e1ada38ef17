"""Bounds on what one answer reveals: how far apart its distributions on neighbouring data sets can be, either way."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, get_args

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from safexplain._privacy_loss import Adjacency, Steps, check_adjacency, renyi
from safexplain._validate import check_number, keep_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, LedgerError

Array = NDArray[np.float64]

NEGLIGIBLE = 1e-12  # least epsilon or mu of a release; no budget would notice less
NEGLIGIBLE_DIVERGENCE = 1e-24
CONVERSION_DELTA = 1e-9  # default delta at which a curve becomes an (epsilon, delta)

TRAINING_ORDERS: tuple[float, ...] = (
    1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.5, 12.0, 14.0, 17.0, 20.0,
    24.0, 28.0, 33.0, 40.0, 48.0, 56.0, 65.0, 80.0, 100.0, 128.0, 170.0, 256.0, 400.0, 640.0, 1024.0,
)  # fmt: skip
"""Orders of the curve of a training, including all that every account adds up."""

_MARGIN, _ROUNDING = 1e-7, 1e-12  # relative, and for each step, by which computed divergences are raised


@dataclass(frozen=True)
class Pure:
    """An epsilon-differentially private answer, as with Laplace noise.

    Args:
        epsilon: at least 1e-12.
    """

    epsilon: float
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        keep_number(self, "epsilon", minimum=NEGLIGIBLE)


@dataclass(frozen=True)
class Approximate:
    """An (epsilon, delta)-differentially private answer.

    Args:
        epsilon: at least 0.
        delta: in (0, 1).
    """

    epsilon: float
    delta: float
    kind: ClassVar[str] = "approximate"

    def __post_init__(self) -> None:
        keep_number(self, "epsilon", minimum=0)
        keep_number(self, "delta", above=0, below=1)


@dataclass(frozen=True)
class Concentrated:
    """A rho-zero-concentrated differentially private answer: its divergence of every order alpha is at most alpha rho.

    A Gaussian mechanism has rho = (sensitivity / standard deviation)^2 / 2 (Bun and Steinke 2016, arXiv 1605.02065,
    Proposition 1.6), a mu-GDP one rho = mu^2 / 2 (Mironov 2017, arXiv 1702.07476, Corollary 3).

    Args:
        rho: at least 1e-24.
        delta: in (0, 1); used where an account adds up epsilons and deltas.
        adjacency: "" for the ledger's.
    """

    rho: float
    delta: float = CONVERSION_DELTA
    adjacency: str = ""
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        keep_number(self, "rho", minimum=NEGLIGIBLE_DIVERGENCE)
        _check_delta_and_adjacency(self)

    def divergence(self, order: Any) -> Any:
        """Divergence of one or several orders above 1."""
        return order * self.rho

    def epsilon_at(self, delta: float) -> float:
        """Implied epsilon at a delta, rounded up."""
        orders = 1 + np.logspace(-3, 7, 2000)
        return _epsilon(orders, orders * self.rho, delta)

    def __str__(self) -> str:
        return f"Concentrated(rho={self.rho:.6g})"


@dataclass(frozen=True)
class Renyi:
    """An answer with at most these Renyi divergences, in both directions.

    Between orders, (alpha - 1) times the divergence is convex, and 0 at order 1, so straight lines bound it; the
    divergence itself grows with the order (van Erven and Harremoes 2014, arXiv 1206.2459, Theorem 3 and Corollary 2).

    Args:
        orders: above 1, ascending; best those in `TRAINING_ORDERS`.
        divergences: one for each order, at least 1e-24, never decreasing.
        delta: as for `Concentrated`.
        adjacency: as for `Concentrated`.
    """

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    delta: float = CONVERSION_DELTA
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
        if low < NEGLIGIBLE_DIVERGENCE or any(b < a for a, b in zip(self.divergences, high, strict=False)):
            raise ConfigurationError(
                f"divergences: expected numbers of at least {NEGLIGIBLE_DIVERGENCE:g} that grow with the order, got"
                f" {self.divergences!r:.80}"
            )
        _check_delta_and_adjacency(self)

    @classmethod
    def of_steps(
        cls, phases: Steps | Sequence[Steps], adjacency: Adjacency = "substitute", *, delta: float = CONVERSION_DELTA
    ) -> Renyi:
        """Curve of steps of the Gaussian mechanism; raises ConfigurationError without steps, or noise."""
        check_adjacency(adjacency)
        given = (phases,) if isinstance(phases, Steps) else tuple(phases)
        run = [p for p in given if p.steps]
        if any(phase.noise_multiplier == 0 for phase in run):
            raise ConfigurationError("phases: expected steps with noise, got steps with a noise multiplier of 0")
        if not run:
            raise ConfigurationError("phases: expected at least one step")
        total = np.zeros(len(TRAINING_ORDERS))
        for phase in run:
            total += renyi(phase, adjacency, TRAINING_ORDERS) * (1 + _MARGIN) + phase.steps * _ROUNDING
        known = np.isfinite(total)
        curve = np.maximum.accumulate(np.maximum(total[known], NEGLIGIBLE_DIVERGENCE))
        return cls(tuple(np.array(TRAINING_ORDERS)[known].tolist()), tuple(curve.tolist()), delta, adjacency)

    def divergence(self, order: Any) -> Any:
        """Upper bound for one or several orders above 1; infinite beyond the largest known."""
        at = np.asarray(order, dtype=np.float64)
        known = np.array(self.orders)
        values = (known - 1) * np.array(self.divergences)
        bound = np.interp(at, [1.0, *known], [0.0, *values]) / (at - 1)
        next_known = np.array([*self.divergences, np.inf])[np.searchsorted(known, at)]
        return np.where(at > known[-1], np.inf, np.minimum(bound, next_known))

    def epsilon_at(self, delta: float) -> float:
        """Implied epsilon at a delta, rounded up."""
        return _epsilon(np.array(self.orders), np.array(self.divergences), delta)

    def __str__(self) -> str:
        return f"Renyi({len(self.orders)} orders, epsilon {self.epsilon_at(self.delta):.4g} at delta {self.delta:g})"


def _check_delta_and_adjacency(curve: Any) -> None:
    keep_number(curve, "delta", above=0.0, below=1.0)
    if curve.adjacency:
        check_adjacency(curve.adjacency)


def _epsilon(orders: Array, divergences: Array, delta: float) -> float:
    """Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition 12, rounded up."""
    return float(compute_epsilon(orders, divergences, delta)[0]) * (1 + 1e-9)


@dataclass(frozen=True)
class Training:
    """A training with differential privacy, with up to three bounds; each account uses the cheapest.

    Args:
        epsilon: at least 0, at `delta`.
        delta: in [0, 1).
        mu: of a mu-GDP training; None: unknown.
        orders: as in `Renyi`; empty: unknown.
        divergences: one for each order.
        adjacency: "" for the ledger's.
    """

    epsilon: float
    delta: float = 0.0
    mu: float | None = None
    orders: tuple[float, ...] = ()
    divergences: tuple[float, ...] = ()
    adjacency: str = ""
    kind: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        keep_number(self, "epsilon", minimum=0)
        keep_number(self, "delta", minimum=0, below=1)
        if self.mu is not None:
            keep_number(self, "mu", minimum=NEGLIGIBLE)
        if self.adjacency:
            check_adjacency(self.adjacency)
        for name in ("orders", "divergences"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.orders or self.divergences:
            _ = self.curve

    @property
    def curve(self) -> Concentrated | Renyi | None:
        """Its Renyi divergences; None: unknown."""
        if self.mu is not None:
            return Concentrated(self.mu * self.mu / 2)
        return _curve(self.orders, self.divergences) if self.orders or self.divergences else None

    def __str__(self) -> str:
        return f"Training(epsilon={self.epsilon:.6g}, delta={self.delta:g})"


@lru_cache(maxsize=256)
def _curve(orders: tuple[float, ...], divergences: tuple[float, ...]) -> Renyi:
    return Renyi(orders, divergences)


Release = Pure | Approximate | Concentrated | Renyi | Training
KINDS: dict[str, type[Release]] = {release.kind: release for release in get_args(Release)}


def as_release(
    release: Release | None = None, epsilon: float | None = None, delta: float = 0.0, mu: float | None = None
) -> Release:
    """The release that the arguments of `Ledger.charge` describe."""
    if (release is not None) + (epsilon is not None) + (mu is not None) != 1:
        raise ConfigurationError("a charge needs exactly one of a release, epsilon= (with or without delta=) and mu=")
    if delta and epsilon is None:
        raise ConfigurationError("delta= goes with epsilon=; a release has its own, and mu= has none")
    if release is not None:
        if not isinstance(release, Release):
            raise ConfigurationTypeError(
                "release: expected Pure, Approximate, Concentrated or Renyi, got"
                f" {type(release).__name__}; charge a PrivacyStatement with `charge_training`"
            )
        return release
    if mu is not None:
        return Concentrated(check_number("mu", mu, minimum=NEGLIGIBLE) ** 2 / 2)
    assert epsilon is not None
    return Approximate(epsilon, delta) if delta else Pure(epsilon)


@lru_cache(maxsize=4096)
def to_json(release: Release) -> str:
    """A release as it is recorded."""
    values = {name: value for name, value in asdict(release).items() if value not in (None, "", ())}
    return json.dumps({"kind": release.kind, **values})


@lru_cache(maxsize=4096)
def from_json(text: str) -> Release:
    """The release that `to_json` wrote, or LedgerError."""
    try:
        values: dict[str, Any] = dict(json.loads(text))
        if values["kind"] == "gaussian":  # written by 0.2, as is laplace
            return Concentrated(values["mu"] ** 2 / 2)
        if values["kind"] == "laplace":
            return Pure(values["epsilon"])
        return KINDS[values.pop("kind")](**values)
    except (TypeError, ValueError, KeyError) as error:
        raise LedgerError(
            f"the ledger is damaged: {str(text)[:80]!r} is not a release ({error}); restore it from a backup"
        ) from None
