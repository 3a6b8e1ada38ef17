"""Which example is there for what: choosing a configuration, training attacks, or the verdict. What chose is not what
certifies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.signals import Signals
from safexplain.verdict.policy import Policy

SplitName = Literal["certification", "selection"]


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint sets of examples.

    Args:
        selection: (n,) bool, for choosing a configuration, as often as one likes.
        training: (n,) bool, for attacks that learn and for the blind control.
        certification: (n,) bool, for the verdict, once.
        identity: hex digest of what is certified: which population, and who is a member of which target
            (`meta["subject"]`). The same for every hardening and for other shares, so that a second look is noticed.
    """

    selection: NDArray[np.bool_]
    training: NDArray[np.bool_]
    certification: NDArray[np.bool_]
    identity: str

    @classmethod
    def of(cls, signals: Signals, policy: Policy, *, trains: bool) -> Splits:
        """Split the examples by a lot that depends on the data only: it cannot be drawn again by another seed.

        Args:
            signals: whose examples are split; out-of-distribution ones belong to no set.
            policy: says which shares.
            trains: whether some attack or control is trained; without, no example is spent on it.
        """
        data = _data_digest(signals)
        outside = signals.out_of_distribution
        inside = np.ones(signals.examples, dtype=bool) if outside is None else ~outside
        lot = np.full(signals.examples, np.inf)
        lot[inside] = np.random.default_rng(int(data[:16], 16)).permutation(int(inside.sum())) / inside.sum()
        training = policy.training if trains else 0.0
        chosen = lot < policy.selection
        trained = ~chosen & (lot < policy.selection + training)
        certified = ~chosen & ~trained & np.isfinite(lot)
        subject = f"{data}{sorted(signals.targets)}{signals.meta.get('subject', '')}"
        return cls(chosen, trained, certified, hashlib.sha256(subject.encode()).hexdigest())

    @property
    def sizes(self) -> dict[str, int]:
        """Examples in each."""
        return {name: int(getattr(self, name).sum()) for name in ("selection", "training", "certification")}


def _data_digest(signals: Signals) -> str:
    """Of the population where the signals name it, and of who is a member of what."""
    digest = hashlib.sha256(str(signals.meta.get("population", "")).encode())
    digest.update(f"{signals.membership.shape}".encode())
    digest.update(np.packbits(signals.membership[list(signals.targets)]).tobytes())
    return digest.hexdigest()
