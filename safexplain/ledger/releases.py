"""What one answer reveals, as a bound that the ledger can add up: pure and approximate releases,
Renyi curves (`curves`; Gaussian answers are `Concentrated`), and trainings.

A release bounds, for every pair of neighbouring data sets and in both directions, how far apart the distributions of
the answer can be. All releases of a ledger must speak of the same neighbours (`substitute`, say, throughout).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, get_args

from safexplain._privacy_loss import check_adjacency
from safexplain._validate import check_number, keep_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, LedgerError
from safexplain.ledger.curves import Concentrated, Renyi

NEGLIGIBLE = 1e-12
"""Smaller epsilons (mus) of a release are refused: no budget would notice them."""


@dataclass(frozen=True)
class Pure:
    """An answer that is epsilon-differentially private, delta being 0, as by Laplace noise, on a grid or not.

    Args:
        epsilon: at least 1e-12.
    """

    epsilon: float
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        keep_number(self, "epsilon", minimum=NEGLIGIBLE)


@dataclass(frozen=True)
class Approximate:
    """An answer that is (epsilon, delta)-differentially private.

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
class Training:
    """A model that was trained with differential privacy: what is known of it in up to three ways, of which each
    account takes what costs it least (`safexplain.ledger.composition`).

    Args:
        epsilon: at least 0; at `delta`, as the statement of the training says.
        delta: in [0, 1).
        mu: of a training that is mu-GDP, such as steps of full batches with Gaussian noise; None: not known to be.
        orders: of Renyi divergences, as in `Renyi`; empty where none are known.
        divergences: one for each order.
        adjacency: what its neighbours are; "" for the ledger's.
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
        """Its Renyi divergences; None where only epsilon and delta are known."""
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
    """The release that the arguments of `Ledger.charge` name.

    Raises:
        ConfigurationError: not exactly one of release, epsilon and mu, or a value out of range.
    """
    if (release is not None) + (epsilon is not None) + (mu is not None) != 1:
        raise ConfigurationError("a charge needs exactly one of a release, epsilon= (with or without delta=) and mu=")
    if delta and epsilon is None:
        raise ConfigurationError("delta= goes with epsilon=; a release has its own, and mu= has none")
    if release is not None:
        if not isinstance(release, Release):
            raise ConfigurationTypeError(
                "release: expected Pure, Approximate, Concentrated or Renyi, got"
                f" {type(release).__name__}; a PrivacyStatement is charged by `charge_training`"
            )
        return release
    if mu is not None:
        return Concentrated(check_number("mu", mu, minimum=NEGLIGIBLE) ** 2 / 2)
    assert epsilon is not None
    return Approximate(epsilon, delta) if delta else Pure(epsilon)


@lru_cache(maxsize=4096)
def to_json(release: Release) -> str:
    """As it is recorded."""
    values = {name: value for name, value in asdict(release).items() if value not in (None, "", ())}
    return json.dumps({"kind": release.kind, **values})


@lru_cache(maxsize=4096)
def from_json(text: str) -> Release:
    """The release that `to_json` wrote.

    Raises:
        LedgerError: it is none.
    """
    try:
        values: dict[str, Any] = dict(json.loads(text))
        if values["kind"] == "gaussian":  # of 0.2, as the next
            return Concentrated(values["mu"] ** 2 / 2)
        if values["kind"] == "laplace":
            return Pure(values["epsilon"])
        return KINDS[values.pop("kind")](**values)
    except (TypeError, ValueError, KeyError) as error:
        raise LedgerError(
            f"the ledger is damaged: {str(text)[:80]!r} is no release ({error}); restore it from a backup"
        ) from None
