"""What a search measures: points, their front, which of them is chosen, and examples for pictures; none has a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening

NORMAL = 1.6448536269514722
"""The 95 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Point:
    """One release and its figures, measured on the selection split at one query an example.

    Args:
        number: of the trial, from 0; -1 for public models.
        hardening: what is released, without a key.
        options: arguments of `attribute` besides those of the search; for several explainers, name -> arguments.
        leak: largest mean excess TPR over the label at 0.5, 1, 2 and 5 % FPR among the attacks; a share, at least 0.
        leak_error: its standard error, by resampling examples and targets.
        utility: mean of `overlap`, `rank_correlation` and `cosine`.
        overlap: of the top 10 % of features with the native ones.
        rank_correlation: Spearman correlation of magnitudes with the native map.
        cosine: with the native map.
        deletion: mean drop of the explained probability when the released top 10 % is removed; None: maps of another
            resolution than the inputs.
        insertion: mean of that probability when only these are kept, less that with nothing kept; or None.
        sign_errors: share of the released numbers other than zero whose sign is not the native one.
        attack: which attack found the leak; "" where none found more than the label.
        targets: models that played the target.
        name: of a point that was given and not sampled, as "native"; "" for the others.
    """

    number: int
    hardening: Hardening
    options: dict[str, Any]
    leak: float
    leak_error: float
    utility: float
    overlap: float
    rank_correlation: float
    cosine: float
    deletion: float | None
    insertion: float | None
    sign_errors: float = 0.0
    attack: str = ""
    targets: int = 0
    name: str = ""

    @property
    def lower(self) -> float:
        """Lower 95 % bound of the leak (normal, one-sided), at least 0."""
        return max(0.0, self.leak - NORMAL * self.leak_error)

    @property
    def upper(self) -> float:
        """Upper 95 % bound of the leak (normal, one-sided)."""
        return self.leak + NORMAL * self.leak_error

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "hardening": self.hardening.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; lists among the options become tuples again.

        Raises:
            InputError, ConfigurationError: a field is missing or unknown, or the hardening cannot be read.
        """
        try:
            hardening = Hardening.from_json(content["hardening"])
            return cls(**{**content, "hardening": hardening, "options": _tuples(content["options"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"expected a point of a search, as Point.to_dict writes it; {error}") from None


def _tuples(value: Any) -> Any:
    """Lists as tuples, as arguments of explainers have them."""
    if isinstance(value, Mapping):
        return {name: _tuples(v) for name, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def front_of(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other one dominates, the one that leaks least first; of equal ones the first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.leak, -p.utility, p.number)):
        if not best or point.utility > best[-1].utility:
            best.append(point)
    return tuple(best)


def choose(front: Iterable[Point], allowance: float) -> tuple[Point, bool]:
    """The point that keeps most among those whose `upper` is within the allowance (largest tolerated excess), and True;
    if there is none, the least leaking point, and False.

    Raises:
        InputError: there are no points.
    """
    points = list(front)
    if not points:
        raise InputError("expected the points of a front, got none")
    within = [p for p in points if p.upper <= allowance]
    if within:
        return max(within, key=lambda p: (p.utility, -p.leak, -p.number)), True
    return min(points, key=lambda p: (p.leak, -p.utility, p.number)), False


@dataclass(frozen=True)
class Study:
    """What was searched, and how.

    Args:
        trials: that were run, the pruned and failed ones too.
        pruned: of these, dominated already by their utility, so that their leak was not measured.
        failed: of these, options that the explainer refused.
        seed: of the search.
        allowance: largest tolerated leak, of the policy.
        digest: SHA-256 of setting and points; certificates carry it.
        path: folder of the study; None: it was kept in memory.
        reference: points that the search is compared with: native, recommended, DeepLeak's best, public models.
        points: all that were measured, in the order of their numbers.
        sizes: examples of the selection split, and models.
        notes: what the reader must know.
        interrupted: whether it was ended before its last trial.
        title: of the model, as in its audit.
        explainer: what is explained by which method, in words.
    """

    trials: int
    pruned: int
    failed: int
    seed: int
    allowance: float
    digest: str
    path: str | None
    reference: dict[str, Point]
    points: tuple[Point, ...]
    sizes: dict[str, int]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    title: str = ""
    explainer: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("reference", "points")}
        return {
            **plain,
            "notes": list(self.notes),
            "reference": {name: point.to_dict() for name, point in self.reference.items()},
            "points": [point.to_dict() for point in self.points],
        }


@dataclass(frozen=True, eq=False)
class Examples:
    """A few examples of the selection split, and what is released about them under each point, for pictures."""

    inputs: NDArray[np.float32]  # (k, ...)
    labels: NDArray[np.int64]  # (k,), the explained classes
    member: NDArray[np.bool_]  # (k,)
    maps: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)  # number of a point -> (k, ...), with noise
