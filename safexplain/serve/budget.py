"""How much a client may ask a service that explains: distinct questions a period, and looks at one map.

What limits a patient attacker is the number of distinct questions, for labels as for explanations. A question is named
by a digest of model, certificate and canonical input; asked again it is free, as its answer tells nothing new.

An attacker who dithers an input asks distinct questions about one map. So a question that lies close to an earlier one
of the same client counts as another look at what that one was about, and looks are limited more strictly. Close is what
is closer than most public rows are to each other (`Likeness`). A question is compared with every earlier one, and
counts towards the first of the chain of questions that the nearest one belongs to; so dithers that drift apart, or lie
on different sides, are still looks at one map, and it is the chain that is limited, not the ball around its first.

It stops scripts that change an input a little, whichever features they change. It does not stop an attacker who knows
public rows and changes inputs by just more than the threshold: such questions lie as far apart as honest ones, and only
the number of distinct questions limits them. A client with two names has two budgets. `audit/suites/dithering` measures
what is stopped and how far an attacker has to go.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from safexplain._validate import check_whole, keep_number, real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.ledger.records import PERIODS
from safexplain.serve.questions import Looks, Most, Questions, Seen

MOST_DIMENSIONS = 128
"""Of a sketch."""

MOST_ROWS = 5000
"""Public rows looked at, at most; of more, so many drawn at random."""

FLOOR = 0.75
"""Quantile of the standard deviations of the features that vary: features that vary less are divided by it."""

MOST_DENSE = 4096
"""Features up to which directions of sketches are orthogonal; of more they are sparse."""

MOST_KEPT = 256 * 2**20
"""Bytes of histories of all clients kept in memory; those of clients who were away longest are read again."""

Sketches = NDArray[np.float32]


@dataclass(frozen=True)
class Limits:
    """What each client may ask.

    Args:
        questions: distinct questions a period.
        looks: distinct questions about one map a period, the first included: those so close to an earlier question
            that they count as another look at its map.
        period: "day", "week" (from Monday), "month", by the calendar in UTC, or "lifetime".
        quantile: share of public rows whose nearest other public row is taken for the same map; how close is close.

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
    """What is close: distances between sketches, and the one below which two questions are about one map.

    Inputs are brought into the range of the public rows, feature by feature, centred, and divided by the standard
    deviation of each feature, or by the upper quartile of all deviations where that is larger. Without this floor,
    pixels that hardly vary dominate, and tiny changes of them make new maps. It is a quartile because columns of tables
    differ in their units: a floor set by the root mean square, or no division at all, would leave only the column of
    the largest unit. A feature that is constant among public rows counts for nothing. A sketch is a projection on
    random directions, fewer than half as many as there are features and at most 128, in float32. Distances survive it
    (Johnson and Lindenstrauss 1984), and the threshold is taken among sketches too, so that it moves with them. Many
    inputs have the same sketch, but it is no secret: it tells roughly where an input lies.

    Args:
        low, high: (d,) range of the public rows.
        mean: (d,) of them.
        scale: (d,) one over their standard deviation or its floor; 0 where they are all the same.
        project: (n, d) -> (n, k).
        threshold: Euclidean distance.
        space: name of all this; sketches of different spaces are not compared.
        rows: distinct public rows from which the threshold comes.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    project: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    threshold: float
    space: str
    rows: int

    @classmethod
    def of(cls, public: NDArray[Any], quantile: float, *, seed: str = "", subject: str = "") -> Likeness | None:
        """Of (n, ...) public rows; None where there is nothing to project, of a single feature.

        Args:
            public: rows; of more than 5,000 so many are drawn.
            quantile: of the distances of distinct rows to the nearest other one.
            seed: of the directions; the same wherever sketches are to be compared.
            subject: what the questions are about; part of the space.

        Raises:
            InputError: not numbers, not finite, or fewer than two distinct rows.
        """
        rows = np.asarray(public)
        if rows.ndim < 2 or not len(rows):
            raise InputError(f"public: expected rows (n, ...) of inputs, got an array of shape {rows.shape}")
        content = hashlib.sha256(f"{seed} {subject} {rows.shape[1:]} floor {FLOOR}".encode())
        draw = np.random.default_rng(np.frombuffer(hashlib.sha256(b"directions " + seed.encode()).digest(), np.uint32))
        if len(rows) > MOST_ROWS:
            rows = rows[np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))]
        flat = np.ascontiguousarray(_flat("public", rows))
        content.update(flat.tobytes())
        d = flat.shape[1]
        if d < 2:
            return None
        deviation = flat.std(0)
        varies = deviation > 1e-12 * np.abs(flat).max(0)
        floor = np.quantile(deviation[varies], FLOOR, method="lower") if varies.any() else 1.0
        scale = varies / np.maximum(deviation, floor)
        one = cls(
            flat.min(0), flat.max(0), flat.mean(0), scale, _directions(d, min(MOST_DIMENSIONS, d // 2), draw), 0.0,
            content.hexdigest()[:32], 0,
        )  # fmt: skip
        distinct = np.unique(one.sketch(flat), axis=0)
        if len(distinct) < 2:
            raise InputError(f"public: expected at least two different rows, got {len(distinct)} among {len(rows)}")
        from sklearn.neighbors import NearestNeighbors

        nearest, _ = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(distinct).kneighbors()
        threshold = float(np.quantile(nearest, quantile))
        return cls(one.low, one.high, one.mean, one.scale, one.project, threshold, one.space, len(distinct))

    def sketch(self, x: NDArray[Any]) -> Sketches:
        """(n, k) of inputs (n, ...).

        Raises:
            InputError: not numbers, not finite, or not as many features as the public rows have.
        """
        flat = _flat("x", x)
        if flat.shape[1] != len(self.mean):
            raise InputError(f"x: expected {len(self.mean)} features as public rows have, got {flat.shape[1]}")
        return self.project((np.clip(flat, self.low, self.high) - self.mean) * self.scale).astype(np.float32)


def _flat(name: str, x: NDArray[Any]) -> NDArray[np.float64]:
    found = real_numbers(x, name)
    flat = found.reshape(len(found), -1)
    if not np.isfinite(flat).all():
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity")
    return flat


def _directions(d: int, k: int, draw: np.random.Generator) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """A projection on k random directions of d; orthogonal ones err less, sparse ones are quick where d is large."""
    if d > MOST_DENSE:
        from sklearn.random_projection import SparseRandomProjection

        sparse = SparseRandomProjection(k, random_state=int(draw.integers(2**31))).fit(np.zeros((1, d)))
        return lambda z: np.asarray(sparse.transform(z))
    q, r = np.linalg.qr(draw.standard_normal((d, k)))
    directions = q * np.sign(np.diag(r)) * np.sqrt(d / k)
    return lambda z: z @ directions


@dataclass(frozen=True, eq=False)
class _History:
    """A client's questions: their sketches, what each is a look at, and the number of the last."""

    sketches: Sketches
    first: NDArray[np.int64]
    after: int = 0

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 1024 + self.sketches.nbytes + self.first.nbytes

    def and_then(self, questions: Sequence[Seen]) -> _History:
        """With questions that were asked since."""
        if not questions:
            return self
        new = np.frombuffer(b"".join(question.sketch for question in questions), np.dtype("<f4"))
        sketches = np.concatenate([self.sketches, new.reshape(len(questions), -1)])
        first = np.concatenate([self.first, [question.first for question in questions]])
        return _History(sketches, first, questions[-1].number)


class Budget:
    """Counts what each client of a service asked, and refuses what is too much; usable from threads.

    A number of questions granted with `safexplain ledger grant` takes the place of the limit. Whatever a client asked
    before, whenever, is free.

    Args:
        questions: where they are counted, by all services and workers that share it.
        limits: of each client.
        public: (n, ...) public rows; None: near-duplicates are not recognised, and only exact questions are counted.
        most_looks: looks at one map over all time, the highest patience that the certificate judged; None: no limit.
        subject: what the maps are of, as a digest of the model. Looks at maps of different subjects, or recognised by
            other public rows, count apart.

    Raises:
        ConfigurationError: most_looks is no positive number.
        InputError: public rows that cannot be used.
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
        self.limits, self.most_looks = limits, most_looks
        self.asked = questions
        self._most = Most(limits.questions, limits.period)
        self._looks: tuple[Most, ...] = (Most(limits.looks, limits.period),)
        if most_looks is not None:
            self._looks += (Most(check_whole("most_looks", most_looks, 1), "lifetime"),)
        self._without = "no public rows were given" if public is None else "inputs have a single feature"
        self.likeness = None
        if public is not None:
            self.likeness = Likeness.of(public, limits.quantile, seed=self.asked.identity, subject=subject)
        self._histories: Any = LRUCache(MOST_KEPT, getsizeof=lambda history: history.size)
        self._guard = threading.Lock()

    def charge(self, client: str, digests: Sequence[bytes], x: NDArray[Any]) -> None:
        """Count the questions, all or none; durable when it returns. What this client asked before is free.

        Args:
            client: who asks.
            digests: of the questions, each of model, certificate and canonical input.
            x: (n, ...) inputs of the questions.

        Raises:
            BudgetExhausted: they do not all fit; none was counted. `.renews` is None where they never will.
            LedgerError: the ledger cannot be written; if it failed during the commit they may have been counted, and
                asking again is then free.
        """
        self.asked.ask(client, digests, self._most, self._alike(client, digests, x))

    def describe(self) -> dict[str, Any]:
        """What is counted and how, in JSON types, for readiness."""
        near = "recognised" if self.likeness else f"not recognised, only exact questions are counted: {self._without}"
        return {
            "questions": self.limits.questions,
            "looks": self.limits.looks if self.likeness else None,
            "most_looks": self.most_looks if self.likeness else None,
            "period": self.limits.period,
            "near_duplicates": near,
            "counted": "in the ledger" if self.asked.lasting else "in this process alone, until it ends",
        }

    def _alike(self, client: str, digests: Sequence[bytes], x: NDArray[Any]) -> Callable[[], Looks] | None:
        like = self.likeness
        if like is None:
            return None
        if len(x) != len(digests):
            raise InputError(f"x: expected a row for each of {len(digests)} digests, got {len(x)}")

        def looks() -> Looks:
            """The search among what is known, outside of the ledger's transaction."""
            sketches = like.sketch(x)
            known = self._history(client, like)
            to_known, among = cdist(sketches, known.sketches), cdist(sketches, sketches)

            def place(positions: Sequence[int], number: int, later: Sequence[Seen]) -> list[int]:
                """Inside the transaction: only what came since, and the questions of this call, are left to compare."""
                every = known.and_then(later)
                since = cdist(sketches, every.sketches[len(known.first) :])
                first, start = every.first, len(every.first)
                for new, i in enumerate(positions):
                    to = np.concatenate([to_known[i], since[i], among[i, list(positions[:new])]])
                    near = len(to) > 0 and to.min() <= like.threshold
                    first = np.append(first, first[to.argmin()] if near else number + new)
                return [int(n) for n in first[start:]]

            return Looks(like.space, [row.astype("<f4").tobytes() for row in sketches], known.after, place, self._looks)

        return looks

    def _history(self, client: str, like: Likeness) -> _History:
        """What a client asked, read as it comes."""
        with self._guard:
            history: _History | None = self._histories.pop(client, None)
            if history is None:
                history = _History(like.sketch(like.mean[None])[:0], np.empty(0, np.int64))
            history = history.and_then(self.asked.seen(client, like.space, history.after))
            if history.size <= MOST_KEPT:
                self._histories[client] = history
            return history
