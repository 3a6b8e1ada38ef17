"""Limits of each client: distinct questions per period, and near-duplicate questions about one map ("looks").

A question joins the group of its nearest earlier neighbour, so dithers that drift apart still share a group.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from safexplain._validate import check_whole, keep_number, real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.ledger.records import PERIODS
from safexplain.serve.questions import Limit, NearDuplicates, Question, Questions

MAX_DIMENSIONS = 128  # of a sketch
MAX_PUBLIC_ROWS = 5000  # of more public rows, this many are drawn at random
FLOOR_QUANTILE = 0.75  # quantile of the features' standard deviations by which features that vary less are divided
MAX_DENSE_FEATURES = 4096  # directions of sketches are orthogonal up to this many features, and sparse beyond
HISTORY_BYTES = 256 * 2**20  # of all clients' histories in memory; the least recently used are read again

Floats = NDArray[np.float64]
Sketches = NDArray[np.float32]


@dataclass(frozen=True)
class Limits:
    """Limits of each client.

    Args:
        questions: distinct questions per period.
        looks: near-duplicates of one question per period, itself included.
        period: "day", "week" (from Monday), "month", by the calendar in UTC, or "lifetime".
        quantile: share of public rows that count as near-duplicates of their nearest neighbour, which sets how close is
            close.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value out of range, or of the wrong type.
    """

    questions: int = 1000
    looks: int = 5
    period: str = "day"
    quantile: float = 0.01

    def __post_init__(self) -> None:
        check_whole("Limits questions", self.questions, 1)
        check_whole("Limits looks", self.looks, 1)
        keep_number(self, "quantile", above=0.0, below=1.0)
        if self.period not in PERIODS:
            raise ConfigurationError(f"Limits period: expected one of {', '.join(PERIODS)}, got {self.period!r}")


@dataclass(frozen=True, eq=False)
class Likeness:
    """Distances between sketches of inputs, and the threshold below which two questions are near-duplicates.

    Inputs are clipped to the range of the public rows, centred, and divided by the larger of each feature's standard
    deviation and the upper quartile of all deviations. A sketch is a projection on random directions, at most 128 and
    at most half as many as features, in float32, which preserves distances (Johnson and Lindenstrauss 1984). It is not
    secret: it shows roughly where an input lies. All arrays are (d,), of the public rows.
    """

    low: Floats
    high: Floats
    mean: Floats
    scale: Floats  # one over the standard deviation or its floor; 0 if constant
    project: Callable[[Floats], Floats]  # (n, d) -> (n, k)
    threshold: float  # Euclidean distance
    space: str  # digest of all this; only sketches of one space are compared

    @classmethod
    def of(cls, public: NDArray[Any], quantile: float, *, seed: str = "", subject: str = "") -> Likeness | None:
        """The likeness of (n, ...) public rows; None for a single feature, which leaves nothing to project.

        The threshold is the quantile of the distances of distinct rows to their nearest neighbours. The seed draws the
        directions; only sketches under one seed can be compared. Raises InputError for unusable rows.
        """
        rows = np.asarray(public)
        if rows.ndim < 2 or not len(rows):
            raise InputError(f"public: expected rows (n, ...) of inputs, got an array of shape {rows.shape}")
        content = hashlib.sha256(f"{seed} {subject} {rows.shape[1:]} floor {FLOOR_QUANTILE}".encode())
        draw = np.random.default_rng(np.frombuffer(hashlib.sha256(b"directions " + seed.encode()).digest(), np.uint32))
        if len(rows) > MAX_PUBLIC_ROWS:
            rows = rows[np.sort(np.random.default_rng(0).choice(len(rows), MAX_PUBLIC_ROWS, replace=False))]
        flat = np.ascontiguousarray(_flat("public", rows))
        content.update(flat.tobytes())
        d = flat.shape[1]
        if d < 2:
            return None
        deviation = flat.std(0)
        varies = deviation > 1e-12 * np.abs(flat).max(0)
        floor = np.quantile(deviation[varies], FLOOR_QUANTILE, method="lower") if varies.any() else 1.0
        scale = varies / np.maximum(deviation, floor)
        project, space = _directions(d, min(MAX_DIMENSIONS, d // 2), draw), content.hexdigest()[:32]
        one = cls(flat.min(0), flat.max(0), flat.mean(0), scale, project, 0.0, space)
        distinct = np.unique(one.sketch(flat), axis=0)
        if len(distinct) < 2:
            raise InputError(f"public: expected at least two different rows, got {len(distinct)} among {len(rows)}")
        from sklearn.neighbors import NearestNeighbors

        nearest, _ = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(distinct).kneighbors()
        return replace(one, threshold=float(np.quantile(nearest, quantile)))

    def sketch(self, x: NDArray[Any]) -> Sketches:
        """(n, k) of inputs (n, ...); InputError unless they are finite numbers with the right number of features."""
        flat = _flat("x", x)
        if flat.shape[1] != len(self.mean):
            raise InputError(f"x: expected {len(self.mean)} features, as in the public rows, got {flat.shape[1]}")
        return self.project((np.clip(flat, self.low, self.high) - self.mean) * self.scale).astype(np.float32)


def _flat(name: str, x: NDArray[Any]) -> Floats:
    found = real_numbers(x, name)
    flat = found.reshape(len(found), -1)
    if not np.isfinite(flat).all():
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity")
    return flat


def _directions(d: int, k: int, draw: np.random.Generator) -> Callable[[Floats], Floats]:
    if d > MAX_DENSE_FEATURES:
        from sklearn.random_projection import SparseRandomProjection

        sparse = SparseRandomProjection(k, random_state=int(draw.integers(2**31))).fit(np.zeros((1, d)))
        return lambda z: np.asarray(sparse.transform(z))
    q, r = np.linalg.qr(draw.standard_normal((d, k)))
    directions = q * np.sign(np.diag(r)) * np.sqrt(d / k)
    return lambda z: z @ directions


@dataclass(frozen=True, eq=False)
class _History:
    sketches: Sketches
    first: NDArray[np.int64]
    last: int = 0

    @property
    def size(self) -> int:
        return 1024 + self.sketches.nbytes + self.first.nbytes

    def extended(self, questions: Sequence[Question]) -> _History:
        if not questions:
            return self
        new = np.frombuffer(b"".join(question.sketch for question in questions), np.dtype("<f4"))
        sketches = np.concatenate([self.sketches, new.reshape(len(questions), -1)])
        first = np.concatenate([self.first, [question.first for question in questions]])
        return _History(sketches, first, questions[-1].number)


class Budget:
    """Counts the questions of each client of a service, and enforces its limits; usable from threads.

    Args:
        public: (n, ...) public rows; None: near-duplicates are not recognised.
        most_looks: near-duplicates of one question over all time; None: no limit.
        subject: of the maps, such as a digest of the model; looks at maps of different subjects count apart.

    Raises:
        InputError: unusable public rows.
    """

    def __init__(
        self,
        questions: Questions,
        limits: Limits,
        *,
        public: NDArray[Any] | None = None,
        most_looks: int | None = None,
        subject: str = "",
    ) -> None:
        self.questions, self.limits, self.most_looks = questions, limits, most_looks
        self._look_limits: tuple[Limit, ...] = (Limit(limits.looks, limits.period),)
        if most_looks is not None:
            self._look_limits += (Limit(check_whole("most_looks", most_looks, 1), "lifetime"),)
        self._no_likeness = "no public rows were given" if public is None else "inputs have a single feature"
        self.likeness = None
        if public is not None:
            self.likeness = Likeness.of(public, limits.quantile, seed=questions.identity, subject=subject)
        self._histories: Any = LRUCache(HISTORY_BYTES, getsizeof=lambda history: history.size)
        self._guard = threading.Lock()

    def charge(self, client: str, digests: Sequence[bytes], x: NDArray[Any]) -> None:
        """Count questions with these digests and inputs (n, ...), durably, all or none; errors as `Questions.ask`."""
        limit = Limit(self.limits.questions, self.limits.period)
        self.questions.ask(client, digests, limit, self._near_duplicates(client, digests, x))

    def describe(self) -> dict[str, Any]:
        """The limits and how they are counted, in JSON types, for readiness."""
        limits, known = self.limits, self.likeness is not None
        missing = f"not recognised, only exact questions are counted: {self._no_likeness}"
        return {
            "questions": limits.questions,
            "looks": limits.looks if known else None,
            "most_looks": self.most_looks if known else None,
            "period": limits.period,
            "near_duplicates": "recognised" if known else missing,
            "counted": "in the ledger" if self.questions.is_durable else "in this process alone, until it ends",
        }

    def _near_duplicates(
        self, client: str, digests: Sequence[bytes], x: NDArray[Any]
    ) -> Callable[[], NearDuplicates] | None:
        likeness = self.likeness
        if likeness is None:
            return None
        if len(x) != len(digests):
            raise InputError(f"x: expected {len(digests)} rows, one for each digest, got {len(x)}")

        def search() -> NearDuplicates:  # outside the ledger's transaction
            sketches = likeness.sketch(x)
            known = self._history(client, likeness)
            to_known, among = cdist(sketches, known.sketches), cdist(sketches, sketches)

            def assign(positions: Sequence[int], number: int, later: Sequence[Question]) -> list[int]:
                current = known.extended(later)
                to_later = cdist(sketches, current.sketches[len(known.first) :])
                first, start = current.first, len(current.first)
                for new, i in enumerate(positions):
                    distances = np.concatenate([to_known[i], to_later[i], among[i, list(positions[:new])]])
                    is_near = len(distances) > 0 and distances.min() <= likeness.threshold
                    first = np.append(first, first[distances.argmin()] if is_near else number + new)
                return [int(n) for n in first[start:]]

            stored = [row.astype("<f4").tobytes() for row in sketches]
            return NearDuplicates(likeness.space, stored, known.last, assign, self._look_limits)

        return search

    def _history(self, client: str, likeness: Likeness) -> _History:
        with self._guard:
            history: _History | None = self._histories.pop(client, None)
            if history is None:
                history = _History(likeness.sketch(likeness.mean[None])[:0], np.empty(0, np.int64))
            history = history.extended(self.questions.history(client, likeness.space, history.last))
            if history.size <= HISTORY_BYTES:
                self._histories[client] = history
            return history
