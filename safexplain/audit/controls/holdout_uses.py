"""Counts how often examples were used for a verdict: if you try hardenings until one passes, you have certified luck.

A use is one verdict on the release for a set of examples, the *holdout*, under a policy. Two holdouts are the same
people if they share more than one in twenty of the smaller set, by hashes that near-duplicates have in common
(`hash_examples`), or if their models' membership matrices and predicted labels are the same, up to the order of rows
and either to missing rows, or to models that are missing, repeated or reordered.

One SQLite file of the user holds each use, and at most 65,536 hashes of the examples and of the matrix. With an example
at hand, it reveals whether a verdict was taken on it, but not whether it was a member. A deleted file goes unnoticed.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain.audit.controls.splits import spread
from safexplain.audit.signals import Signals, near
from safexplain.audit.store import parts
from safexplain.errors import InputError, UsesWarning
from safexplain.verdict.policy import Policy

Hashes = NDArray[np.uint64]

VARIABLE = "SAFEXPLAIN_USES"  # environment variable that names the file in which uses are counted
MOST_HASHES = 2**16  # most stored hashes of a set: the smallest after `spread`, which are a random sample
SAME = 0.05  # two sets are the same examples if they share more than this of the smaller one

MATRIX, CHANCE = 0.975, 0.93
"""Two membership matrices are the same if they share more than `MATRIX` of their columns and those of another target
are expected to share at most `CHANCE`."""

PAIRS = 0.5  # or if they share more than this of their pairs of a target and another model
CLOSE = 1e-5  # relative difference up to which sums over the release are the same

CONFIGURES = frozenset(
    {"explainer", "output", "options", "hardening", "classes", "seed", "recipe", "references", "asked", "dither"}
)
"""Entries of the signals' meta data that define a configuration; the model (`subject`) does not."""

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
        """Note a use of the (n,) certified examples of released signals; `says` is the policy and the verdict.

        Returns:
            The number of this use of these examples, from 1; and the other uses, a line each.

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
    """Whether two holdouts are of the same people: by content, or by the matrix of their models."""
    content, columns, pairs = (shared(a, b) for a, b in zip(stored, new, strict=True))
    return content > SAME or columns > MATRIX or pairs > PAIRS


def _matrix(signals: Signals, certified: NDArray[np.bool_]) -> tuple[Hashes, Hashes]:
    """Hashes of the membership and predicted labels of examples in all models, in two ways.

    First (n,) hashes per example, with the models in order, which survive missing rows. There are none if other people
    could well have the same: of c examples with the same column in all but one model, two random targets divide X and
    X' ~ Bin(c, 1/2) alike but for |X - X'|, sqrt(c / pi) on average. Then hashes of the counts of examples of every
    kind, for the target with each other model, which survive models that are missing, repeated or reordered.
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
    """A few sums of each signal, weighted by the examples' hashes: independent of the order of models and examples."""
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
    return a.keys() == b.keys() and all(np.allclose(a[k], b[k], rtol=CLOSE, atol=CLOSE) for k in a)


def uses_of(signals: Signals, policy: Policy, suite: Sequence[str], seed: int, force: bool = False) -> Uses | None:
    """The counter for a verdict on these signals under a policy, a suite (names of its rows) and the audit's seed.

    Every entry of the policy except its reason defines a use; declared looks of one audit are one use. None means "not
    counted": the signals have neither hashes nor inputs, or (with a warning) the file cannot be written.
    """
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
