"""Splits of the examples for choosing, training and the verdict, copies, and how often examples were used. What chose
is not what certifies: if you try hardenings until one passes, you have certified luck."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from safexplain._digest import sha256
from safexplain.audit.signals import Signals, near, parts
from safexplain.errors import InputError, UsesWarning
from safexplain.verdict.judgement import Control
from safexplain.verdict.policy import Policy


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint sets of examples, (n,) bool; a group is in one set."""

    selection: NDArray[np.bool_]  # for choosing a configuration, any number of times
    training: NDArray[np.bool_]  # for attacks that learn and for the blind control
    certification: NDArray[np.bool_]  # for the verdict, once

    @classmethod
    def of(cls, signals: Signals, policy: Policy, *, trains: bool) -> Splits:
        """Split the examples pseudo-randomly, by the data alone.

        An example's own hash, or the smallest of its group, decides, so that no seed, order or omission draws another
        split. Without hashes shares are exact, and the split follows from the population's digest and the targets'
        members. Out-of-distribution examples are in no set; unless some attack `trains`, none is used for training.
        """
        outside = signals.out_of_distribution
        inside = np.ones(len(signals), dtype=bool) if outside is None else ~outside
        place = np.full(len(signals), np.inf)
        groups = np.arange(len(signals)) if signals.groups is None else signals.groups
        if signals.groups is not None and signals.examples is not None:
            groups = _joined(groups, signals.examples)  # copies join their groups
        _, first, unit = np.unique(groups[inside], return_index=True, return_inverse=True)
        unit = np.argsort(np.argsort(first))[unit]  # numbered as they come
        if signals.examples is not None:
            smallest = np.full(len(first), np.iinfo(np.uint64).max, dtype=np.uint64)
            np.minimum.at(smallest, unit, near(signals.examples[inside]))
            place[inside] = (spread(smallest)[unit] >> np.uint64(11)) * 2.0**-53
        elif inside.any():
            members = np.packbits(signals.membership[list(signals.targets)]).tobytes()
            data = sha256(f"{signals.meta.get('population', '')}{signals.membership.shape}".encode() + members)
            drawn = np.random.default_rng(int(data[:16], 16)).permutation(len(first))
            place[inside] = drawn[unit] / len(first)
        training = policy.training if trains else 0.0
        chosen = place < policy.selection
        trained = ~chosen & (place < policy.selection + training)
        return cls(chosen, trained, ~chosen & ~trained & np.isfinite(place))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples in each."""
        return {name: int(getattr(self, name).sum()) for name in ("selection", "training", "certification")}


def spread(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A one-to-one map of hashes to uniform numbers: SplitMix64's finaliser (Steele, Lea & Flood, OOPSLA 2014)."""
    z = hashes + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


CLOSE_COPIES = 1e-6  # largest relative difference of any number between exact copies, to allow for rounding


def copies_of(hashes: NDArray[np.uint64], x: NDArray[Any] | None) -> NDArray[np.int64]:
    """(n,) a number for each example, the same for copies: equal hashes or, with (n, ...) inputs, near-duplicates
    within `CLOSE_COPIES`."""
    which = np.unique(hashes if x is None else near(hashes), return_inverse=True)[1].astype(np.int64)
    if x is None:
        return which
    rows, fresh = x.reshape(len(x), -1), int(which.max(initial=-1)) + 1
    for several in np.flatnonzero(np.bincount(which) > 1):
        left = np.flatnonzero(which == several)
        while len(left):
            far = np.abs(rows[left] - rows[left[0]]) > CLOSE_COPIES * np.abs(rows[left[0]]) + 1e-12
            alike = ~far.any(1)
            which[left[alike]] = fresh
            left, fresh = left[~alike], fresh + 1
    return which


def refuse_copies(
    copies: NDArray[np.int64], member: NDArray[np.bool_], out_of_distribution: NDArray[np.bool_] | None = None
) -> None:
    """Raise InputError if a member is a copy of a non-member (`copies_of`), for one target or each of (targets, n)."""
    at = np.arange(len(copies)) if out_of_distribution is None else np.flatnonzero(~out_of_distribution)
    _, which = np.unique(copies[at], return_inverse=True)
    for one in np.atleast_2d(member)[:, at]:
        mixed = (np.bincount(which, one) > 0) & (np.bincount(which, ~one) > 0)
        if not mixed.any():
            continue
        both = np.flatnonzero(mixed[which])
        pairs = []
        for copy in np.unique(which[both])[:5]:
            same = both[which[both] == copy]
            pairs.append(f"{at[same[one[same]][0]]} and {at[same[~one[same]][0]]}")
        raise InputError(
            f"{int((mixed[which] & one).sum())} members are exact copies of {int((mixed[which] & ~one).sum())}"
            f" non-members (examples {', '.join(pairs)}{', ...' if mixed.sum() > len(pairs) else ''}): the membership"
            " of such an example is undefined. Keep one copy of each, or all its copies on one side, and train again;"
            " or drop all copies that are on both sides (--drop-copies)"
        )


def copies_together(signals: Signals) -> tuple[Signals, Control]:
    """Signals with copies in one group, and the control that reports them; raises as `refuse_copies`."""
    name, hashes = "exact copies", signals.examples
    if hashes is None:
        says = "the signals hold neither inputs nor hashes of the examples, so exact copies cannot be looked for"
        return signals, Control(name, None, says, {})
    which = copies_of(hashes, signals.inputs)
    refuse_copies(which, signals.membership[list(signals.targets)], signals.out_of_distribution)
    copies = len(which) - len(np.unique(which))
    if not copies:
        return signals, Control(name, False, "no two examples are equal", {"copies": 0.0})
    groups = _joined(np.arange(len(hashes)) if signals.groups is None else signals.groups, which)
    says = f"{copies} examples are exact copies of others on the same side: copies count as one example"
    return replace(signals, groups=groups), Control(name, False, says, {"copies": float(copies)})


def _joined(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) the finest grouping that is coarser than two given ones."""
    (first, a), (second, b) = (np.unique(g, return_inverse=True) for g in (one, other))
    size = len(first) + len(second)
    edges = coo_array((np.ones(len(a)), (a, b + len(first))), shape=(size, size))
    joined: NDArray[np.int64] = connected_components(edges, directed=False)[1][a].astype(np.int64)
    return joined


Hashes = NDArray[np.uint64]

VARIABLE = "SAFEXPLAIN_USES"  # environment variable that names the file in which uses are counted
MOST_HASHES = 2**16  # most stored hashes of a set: the smallest after `spread`, which are a random sample
SAME_PEOPLE = 0.05  # two sets are the same examples if they share more than this of the smaller one

MATRIX, CHANCE = 0.975, 0.93
"""Membership matrices are the same if they share more than `MATRIX` of their columns, and another target's would share
at most `CHANCE` on average."""

PAIRS = 0.5  # or if they share more than this of their pairs of a target and another model
CLOSE_SUMS = 1e-5  # relative difference up to which sums over the release are the same

CONFIGURES = frozenset(
    {"explainer", "output", "options", "hardening", "classes", "seed", "recipe", "references", "asked", "dither"}
)
"""Entries of the signals' meta data that define a configuration."""

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS holdouts (digest TEXT PRIMARY KEY, content BLOB NOT NULL, given BLOB NOT NULL,"
    " pairs BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS verdicts (id INTEGER PRIMARY KEY, holdout TEXT NOT NULL, configuration TEXT NOT NULL,"
    " released TEXT NOT NULL, says TEXT NOT NULL, at TEXT NOT NULL)",
)


def default_path() -> Path:
    """The user's file: $SAFEXPLAIN_USES, or safexplain/uses.sqlite in the state folder ($XDG_STATE_HOME)."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "safexplain" / "uses.sqlite"


@contextmanager
def counted_in(path: Path) -> Iterator[None]:
    """Count in this file, in the whole process, unless $SAFEXPLAIN_USES names another."""
    if os.environ.get(VARIABLE):
        yield
        return
    os.environ[VARIABLE] = str(path)
    try:
        yield
    finally:
        del os.environ[VARIABLE]


@dataclass(frozen=True)
class Uses:
    """Counts verdicts on the same examples."""

    path: Path  # of an SQLite file, which is created with its folder
    configuration: str  # digest of the judged configuration, see `uses_of`
    force: bool = False  # certify although the examples were used before; the certificate states it
    look: int = 0  # number of the look, if the audit declared several, which are one use; else 0

    def record(self, signals: Signals, certified: NDArray[np.bool_], says: str = "") -> tuple[int, tuple[str, ...]]:
        """Note a use of the (n,) certified examples of released signals; `says` is the policy and the verdict. Returns
        the number of this use of these examples, from 1, and the other uses, a line each.

        Raises:
            InputError: the signals have no hashes of examples, or the file cannot be read or written.
        """
        if signals.examples is None:
            raise InputError("uses: expected signals with inputs or with hashes of examples, got neither")
        hashes = [sample_of(near(signals.examples[certified])), *map(sample_of, _matrix(signals, certified))]
        blobs = [sample.astype("<u8").tobytes() for sample in hashes]
        found = {"look": [float(self.look)], **released_sums(signals, certified)}
        this = (self.configuration, json.dumps(found), says, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
        with self._table() as table:
            table.execute("BEGIN IMMEDIATE")  # no other writer in between
            digest = sha256(b"".join(blobs))
            names = "INSERT OR IGNORE INTO holdouts (digest, content, given, pairs) VALUES (?, ?, ?, ?)"
            table.execute(names, (digest, *blobs))
            every = table.execute("SELECT digest, content, given, pairs FROM holdouts")
            same = {one for one, *stored in every if _are_same([np.frombuffer(b, "<u8") for b in stored], hashes)}
            rows = table.execute("SELECT holdout, configuration, released, says, at FROM verdicts ORDER BY id")
            before = [tuple(row) for holdout, *row in rows if holdout in same | {digest}]
            table.execute(
                "INSERT INTO verdicts (holdout, configuration, released, says, at) VALUES (?, ?, ?, ?, ?)",
                (digest, *this),
            )
        uses = list[tuple[str, ...]]()
        for use in (*before, this):
            if not any(_are_one_use(use, other) for other in uses):
                uses.append(use)
        number = next(i for i, use in enumerate(uses) if _are_one_use(use, this))
        return number + 1, tuple(f"{use[3]}: {use[2]}" for i, use in enumerate(uses) if i != number)

    def check(self) -> None:
        """Raise `InputError` if uses cannot be counted, before any long computation."""
        with self._table():
            pass

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                for statement in SCHEMA:
                    connection.execute(statement)
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"cannot count uses of certification examples in {self.path}: {error}; name a file with {VARIABLE}"
            ) from None


def sample_of(hashes: Hashes) -> Hashes:
    """The hashes after `spread`, sorted; at most the `MOST_HASHES` smallest."""
    return np.sort(spread(hashes))[:MOST_HASHES]


def shared(one: Hashes, other: Hashes) -> float:
    """Share of the smaller of two sorted samples that is also in the other, with multiplicity, up to both cut-offs."""
    for sample in (one, other):
        if len(sample) == MOST_HASHES:
            one, other = one[one <= sample[-1]], other[other <= sample[-1]]
    if not min(len(one), len(other)):
        return 0.0
    (a, n), (b, m) = (np.unique(sample, return_counts=True) for sample in (one, other))
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float(np.minimum(n[i], m[j]).sum()) / min(len(one), len(other))


def _are_same(stored: Sequence[Hashes], new: Sequence[Hashes]) -> bool:
    """Whether two holdouts are of the same people, by content or by the matrix of their models."""
    content, columns, pairs = (shared(a, b) for a, b in zip(stored, new, strict=True))
    return content > SAME_PEOPLE or columns > MATRIX or pairs > PAIRS


def _matrix(signals: Signals, certified: NDArray[np.bool_]) -> tuple[Hashes, Hashes]:
    """Hashes of the membership and predicted labels of examples in all models, in two ways.

    First (n,) hashes per example, which survive missing rows; none if other people could well have the same: of c
    examples with the same column in all but one model, two random targets divide X and X' ~ Bin(c, 1/2) alike but for
    |X - X'|, sqrt(c / pi) on average. Then hashes of the counts of examples of every kind, for the target with each
    other model, which survive models that are missing, repeated or reordered.
    """
    models = list(signals.models)
    member = signals.membership[models][:, certified].astype(np.int64)
    labels = signals.values.get("label")
    kinds = member if labels is None or labels.ndim != 2 else member + 2 * labels[models][:, certified].astype(np.int64)
    _, counts = np.unique(hash_rows(member[1:].T), return_counts=True)
    by_chance = 1 - float(np.sqrt(counts / math.pi).sum()) / max(member.shape[1], 1)
    columns = hash_rows(kinds.T)[: None if by_chance <= CHANCE else 0]
    of_target = np.isin(models, signals.targets)
    both = [kinds[[i, j]] for i, j in combinations(range(len(models)), 2) if of_target[i] or of_target[j]]
    pairs = [np.unique(pair.min(0) * 2**32 + pair.max(0), return_counts=True) for pair in both if len(models) > 2]
    return columns, np.unique(hash_rows([np.stack(pair) for pair in pairs]))


def hash_rows(rows: Iterable[NDArray[Any]]) -> Hashes:
    """(n,) hashes of the bytes of rows."""
    return np.array([int(sha256(np.ascontiguousarray(row).tobytes())[:16], 16) for row in rows], dtype=np.uint64)


def released_sums(signals: Signals, certified: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Sums of each signal, weighted by the examples' hashes: independent of the order of models and examples."""
    assert signals.examples is not None
    rows = np.flatnonzero(certified)
    weight = (spread(near(signals.examples[rows])) >> np.uint64(11)) * 2.0**-52 - 1.0
    arrays = {**signals.values, **({} if signals.attributions is None else {"attributions": signals.attributions})}
    target = np.isin(np.arange(len(signals.membership)), signals.targets)
    found = {}
    for name, values in arrays.items():
        features = math.prod(values.shape[2:])
        of_feature = np.random.RandomState(features).standard_normal(features)
        sums = np.zeros(len(values))
        for model in range(len(values)):
            for part in parts(len(rows), features):
                block = np.arcsinh(np.asarray(values[model, rows[part]], dtype=np.float64).reshape(-1, features))
                sums[model] += float(weight[part] @ (block @ of_feature))
        member = (signals.membership[:, rows] * weight).sum(1)
        scale = math.sqrt(len(rows) * features)
        found[name] = [
            float(v) / scale for v in (sums.sum(), (sums**2).sum() / scale, sums[target].sum(), sums @ member / scale)
        ]
    return found


def _are_one_use(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two rows of the table have one configuration, and the same release or two looks at it."""
    if one[0] != other[0]:
        return False
    a, b = json.loads(one[1]), json.loads(other[1])
    if a["look"] != b["look"]:
        return True
    return a.keys() == b.keys() and all(np.allclose(a[k], b[k], rtol=CLOSE_SUMS, atol=CLOSE_SUMS) for k in a)


def uses_of(signals: Signals, policy: Policy, suite: Sequence[str], seed: int, force: bool = False) -> Uses | None:
    """The counter for a verdict on these signals under a policy, a suite (names of its rows) and the audit's seed; None
    (not counted): the signals have neither hashes nor inputs, or, with a warning, the file cannot be written. All of
    the policy except its reason defines a use; declared looks of one audit are one use."""
    if signals.examples is None:
        return None
    known: dict[str, Any] = {name: signals.meta[name] for name in CONFIGURES & signals.meta.keys()}
    known["policy"] = {k: v for k, v in policy.to_dict().items() if k not in ("reason", "look")}
    known |= {"suite": sorted(suite), "audit seed": seed}
    if policy.looks > 1:
        known = {name: value for name, value in known.items() if name not in ("suite", "references")}
    digest = sha256(json.dumps(known, sort_keys=True, default=repr))
    uses = Uses(default_path(), digest, force, policy.look if policy.looks > 1 else 0)
    try:
        uses.check()
    except InputError as error:
        if not policy.uncounted:
            warnings.warn(f"{error}; this verdict is not counted", UsesWarning, stacklevel=2)
        return None
    return uses
