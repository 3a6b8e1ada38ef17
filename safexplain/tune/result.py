"""What a search measured: points, their front, the choice, and examples for pictures; none has a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening

NORMAL = 1.6448536269514722  # the 95 % quantile of the standard normal distribution


@dataclass(frozen=True)
class Point:
    """A release and its figures, measured on the selection split at one query per example.

    Args:
        number: of the trial, from 0; -1 for public models.
        hardening: of the release, without a key.
        options: searched arguments of `attribute`; for several explainers, name -> arguments.
        leak: largest mean excess TPR over the label at 0.5, 1, 2 and 5 % FPR among the attacks; a share, at least 0.
        leak_error: its standard error, by resampling examples and targets.
        utility: mean of `overlap`, `rank_correlation` and `cosine`.
        overlap: of the top 10 % of features with the native ones.
        rank_correlation: Spearman correlation of magnitudes with the native map.
        cosine: with the native map.
        deletion: mean drop of the explained probability when the released top 10 % is removed; None if maps and
            inputs differ in resolution.
        insertion: mean of that probability when only these are kept, less that with nothing kept; or None.
        sign_errors: share of the released non-zero numbers with another sign than the native ones.
        attack: the attack that found the leak; "" if none found more than the label.
        targets: number of attacked models.
        name: of a given point, such as "native"; "" for sampled ones.
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
        """Read the output of `to_dict`. InputError, ConfigurationError: it is something else."""
        try:
            hardening = Hardening.from_json(content["hardening"])
            return cls(**{**content, "hardening": hardening, "options": _tuples(content["options"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"expected a point of a search in the format of Point.to_dict: {error}") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tuples(v) for name, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def front_of(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other point dominates, the least leaking first; the first of equal ones."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.leak, -p.utility, p.number)):
        if not best or point.utility > best[-1].utility:
            best.append(point)
    return tuple(best)


def choose(front: Iterable[Point], allowance: float) -> tuple[Point, bool]:
    """The most useful point whose `upper` is within the allowance (largest tolerated excess), and True; if there is
    none, the least leaking point, and False. InputError: there are no points."""
    points = list(front)
    if not points:
        raise InputError("front: expected at least one point, got none")
    within = [p for p in points if p.upper <= allowance]
    if within:
        return max(within, key=lambda p: (p.utility, -p.leak, -p.number)), True
    return min(points, key=lambda p: (p.leak, -p.utility, p.number)), False


@dataclass(frozen=True)
class Study:
    """The record of a search.

    Args:
        trials: number of trials, including pruned and failed ones.
        pruned: trials that were dominated by utility alone, so that their leak was not measured.
        failed: trials whose options the explainer refused.
        seed: of the search.
        allowance: largest leak that the policy tolerates.
        digest: SHA-256 of setting and trials, which certificates carry.
        path: folder of the study; None: in memory.
        reference: points for comparison: native, recommended, DeepLeak's best, public models.
        points: all measured points, in the order of their numbers.
        sizes: numbers of examples in the selection split and of models.
        notes: caveats for the reader.
        interrupted: whether it ended before its last trial.
        title: of the model, as in its audit.
        explainer: method and explained output, in words.
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
    """Examples for pictures, with their released maps under each point."""

    inputs: NDArray[np.float32]  # (k, ...)
    labels: NDArray[np.int64]  # (k,), the explained classes
    member: NDArray[np.bool_]  # (k,)
    maps: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)  # number of a point -> (k, ...), with noise
