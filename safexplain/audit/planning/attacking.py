"""Seconds of attacks, controls and root cause, on made-up signals of the widths and names that the audit will have.

Made up are all models and examples from what one model released about a few: an example keeps its values from model to
model but for noise, as real ones do. How long attacks take hardly depends on what they find.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._progress import Progress
from safexplain.audit.attacks.suite import fitting
from safexplain.audit.certify import certify
from safexplain.audit.planning.measure import Clock
from safexplain.audit.root_cause import FEWEST as FEWEST_OF_CAUSE
from safexplain.audit.root_cause import MOST_NUMBERS, root_cause
from safexplain.audit.signals import Signals
from safexplain.verdict.evidence import WHOLE_MAP, at_level, split_level
from safexplain.verdict.policy import Policy

NOISE = 0.3
"""Standard deviation of a number between models, in units of its own between examples."""

FEWEST = 128
"""Examples on which attacks are timed first."""

SAVED = 160
"""Examples on which the root cause is timed, and files are written."""

REPORT = 0.5
"""Seconds of the report, for each configuration."""

FIXED = 0.8
"""Share of the time for the fewest examples that does not depend on them, where nothing else is known: that of
trees."""

SPREAD = 4
"""Attacks are timed on so many times as many examples, next, and once more where that is quick: what they cost an
example is a small difference of long times."""

MOST_BYTES = 1 << 29
"""Bytes of made-up maps, at most."""


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Signals of any number of examples.

    Args:
        like: what one model released about a few examples, plainly and averaged over a level of queries.
        models: of the audit, the target and the untrained one included.
        null: rows of untrained models.
        policy: of the audit.
        inputs: (k, ...) examples to take the inputs from.
        grouped: examples in a group, on average; 1: none are grouped.
        slices: names of slices, beside the classes.
        seed: of all that is made up.
    """

    like: Signals
    models: int
    null: tuple[int, ...]
    policy: Policy
    inputs: NDArray[Any]
    grouped: float = 1.0
    slices: tuple[str, ...] = ()
    seed: int = 0

    @property
    def most(self) -> int:
        """Examples that fit into `MOST_BYTES`."""
        width = 0 if self.like.attributions is None else self.like.attributions.shape[2]
        return max(FEWEST, MOST_BYTES // max(1, 4 * width * self.models * (len(self.policy.patience) + 1)))

    def __call__(self, examples: int) -> Signals:
        """Of so many examples."""
        rng = np.random.default_rng([self.seed, examples])
        known = len(self.like)
        at = rng.integers(known, size=examples)
        member = rng.random((self.models, examples)) < 0.5
        member[0, :2] = True, False
        member[list(self.null)] = False
        names = [*self.like.values, *([] if self.like.attributions is None else [WHOLE_MAP])]
        values: dict[str, NDArray[Any]] = {}
        for name in names:
            what, level = split_level(name)
            wanted = [name] if level == 1 else [at_level(what, each) for each in self.policy.patience if each > 1]
            for each in wanted:
                found = self._values(what, self._stored(name)[0], split_level(each)[1], at, rng)
                if found is not None:
                    values[each] = found
        maps = values.pop(WHOLE_MAP, None)
        meta = {**self.like.meta, "targets": [0], "null": list(self.null)}
        meta.pop("population", None)
        inputs = np.asarray(self.inputs[rng.integers(len(self.inputs), size=examples)])
        inputs = inputs + rng.normal(scale=1e-3, size=inputs.shape).astype(inputs.dtype)
        groups = None if self.grouped <= 1 else np.arange(examples, dtype=np.int64) // max(2, round(self.grouped))
        if groups is not None:
            member = member[:, (np.unique(groups, return_index=True)[1])[groups - groups[0]]]
        slices = {name: rng.integers(3, size=examples) for name in ("class", *self.slices)}
        return Signals(member, values, maps, meta, inputs=inputs, groups=groups, slices=slices)

    def _stored(self, name: str) -> NDArray[Any]:
        return np.asarray(self.like.attributions if name == WHOLE_MAP else self.like.values[name])

    def _values(
        self, what: str, seen: NDArray[Any], level: int, at: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[Any] | None:
        """(models, examples, ...) like what was seen, (known, ...)."""
        shape = (self.models, len(at), *seen.shape[1:])
        if what == "predictions":
            if level > 16:
                return None
            one = seen[:, : max(1, seen.shape[1] // self._asked)]
            seen, shape = np.tile(one, level), (*shape[:2], one.shape[1] * level)
        if what == "label":
            labels = np.broadcast_to(seen[at], shape).copy()
            other = rng.random(shape) < NOISE / 2
            labels[other] = rng.choice(seen, int(other.sum()))
            return labels
        if what == "kept":
            return rng.binomial(level, 0.9, shape) / level
        if what == "shares":
            shares = rng.dirichlet(np.full(shape[2], 0.2), shape[:2])
            return np.asarray(np.round(shares * level) / level)
        spread = float(np.std(seen)) or 1.0
        noise = rng.standard_normal(shape, dtype=np.float32)
        kept = np.broadcast_to(seen[at], shape)
        if seen.ndim > 1:
            made = kept * (1 + NOISE * noise)
        elif (seen >= 0).all():
            made = kept * np.exp(NOISE * noise)
        else:
            made = kept + NOISE * spread * noise
        return np.asarray(made, dtype=seen.dtype)

    @property
    def _asked(self) -> int:
        """Dithered queries of what was seen."""
        return max((split_level(name)[1] for name in self.like.values), default=1)


@dataclass(frozen=True)
class Attacking:
    """What it takes to attack one configuration.

    Args:
        rows: attacks that fit.
        learns: whether some of them are trained on examples.
        fixed: seconds whatever the number of examples.
        each: seconds an example.
    """

    rows: int
    learns: bool
    fixed: float
    each: float

    def seconds(self, examples: int) -> float:
        """Of so many examples."""
        return self.fixed + self.each * examples


def attacking(clock: Clock, made: MadeUp, examples: int, seconds: float, progress: Progress) -> Attacking:
    """Time all attacks and controls of one configuration on a few examples, and on some more.

    Args:
        clock: that measures.
        made: makes signals.
        examples: of the audit.
        seconds: to be spent, about.
        progress: told of each attack.
    """
    policy = replace(made.policy, uncounted=True)
    most = min(examples, made.most)
    few = min(FEWEST, most)
    signals = made(few)
    rows = fitting(signals, policy)
    learns = any(row.learns for row in rows)

    def run(number: int) -> float:
        signals = made(number)
        return clock(lambda: certify(signals, policy, seed=made.seed, progress=progress))

    seen = [(few, run(few))]
    if few < most and seen[0][1] < 1.5 * seconds:
        seen.append((min(most, SPREAD * few), run(min(most, SPREAD * few))))
        left = seconds - sum(taken for _, taken in seen)
        affordable = seen[-1][0] + (left - seen[-1][1]) / max(_slope(seen), 1e-9)
        if affordable > 2 * seen[-1][0] and seen[-1][0] < most:
            many = int(min(most, affordable, SPREAD * seen[-1][0]))
            seen.append((many, run(many)))
    each = _slope(seen)
    return Attacking(len(rows), learns, max(seen[-1][1] - each * seen[-1][0], 0.0), each)


def _slope(seen: list[tuple[int, float]]) -> float:
    """Seconds an example, from the first and the last (examples, seconds); of a single one, of a part of it."""
    (few, short), (many, long) = seen[0], seen[-1]
    if many == few:
        return (1 - FIXED) * short / few
    return max((long - short) / (many - few), 0.0)


def root_causes(clock: Clock, made: MadeUp, examples: int) -> tuple[float, int]:
    """Seconds of the root cause, and how many versions of the maps it attacks.

    Args:
        clock: that measures.
        made: makes signals.
        examples: of the audit.
    """
    signals = made(min(SAVED, made.most, examples))
    told: list[float] = []
    taken = clock(
        lambda: root_cause(
            signals,
            seed=made.seed,
            progress=lambda stage, done, total, note="": told.append(total),
        )
    )
    looked = max(_looked_at(made, examples), len(signals))
    return taken * looked / len(signals), int(told[-1]) if told else 0


def _looked_at(made: MadeUp, examples: int) -> int:
    """Examples of the root cause: those outside of the certification split, and not too many."""
    width = 1 if made.like.attributions is None else made.like.attributions.shape[2]
    share = made.policy.selection + made.policy.training
    fits = max(2 * FEWEST_OF_CAUSE, MOST_NUMBERS // max(made.models * width, 1))
    return min(examples if share * examples < 2 * FEWEST_OF_CAUSE else round(share * examples), fits)


@dataclass(frozen=True)
class Sized:
    """Files and arrays of an audit.

    Args:
        seconds: to write the files.
        bytes: of the files of signals.
        bytes_of_numbers: of these, where there are no whole maps in them.
        held: bytes of arrays in memory, of all configurations.
        numbers: of these, without whole maps.
    """

    seconds: float
    bytes: int
    bytes_of_numbers: int
    held: int
    numbers: int


def saving(clock: Clock, made: MadeUp, examples: int, configurations: int) -> Sized:
    """Time the writing of a few signals in a folder that is removed again, and of a report about them.

    Args:
        clock: that measures.
        made: makes signals.
        examples: of the audit.
        configurations: that are written.
    """
    signals = made(min(SAVED, made.most, examples))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signals.npz"
        taken = clock(lambda: signals.save(path))
        written = path.stat().st_size
    arrays = {name: a.nbytes for name, a in signals.values.items()}
    maps = sum(size for name, size in arrays.items() if split_level(name)[0] == WHOLE_MAP)
    maps += 0 if signals.attributions is None else signals.attributions.nbytes
    numbers = sum(size for name, size in arrays.items() if split_level(name)[0] != WHOLE_MAP)
    scale = configurations * examples / len(signals)
    share = numbers / max(numbers + maps, 1)
    return Sized(
        taken * scale + REPORT * configurations,
        round(written * scale),
        round(written * scale * share),
        round((numbers + maps) * scale),
        round(numbers * scale),
    )
