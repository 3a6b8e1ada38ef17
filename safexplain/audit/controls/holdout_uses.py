"""How often examples have been used for a verdict. Whoever tries configurations until one is certified certifies luck.

A use is one configuration judged on a set of examples. Two uses are of the same examples where they share more than one
in a hundred of the smaller set: another order, seed or model, or some examples more or less, do not make new ones. The
same configuration again is the same use, and so is a verdict against another limit.

What is kept, in one SQLite file of the user: for each use a digest of the configuration, the digest of the population,
the time, and hashes of the examples, at most 65,536 of them (half a megabyte); a set that is used again is kept once.
Whoever has the file and an example can tell whether a verdict was taken on it, not whether it was a member.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain.audit.controls.splits import spread
from safexplain.audit.signals import Signals
from safexplain.audit.store import parts
from safexplain.errors import InputError, UsesWarning
from safexplain.verdict.policy import Policy

VARIABLE = "SAFEXPLAIN_USES"
"""Environment variable that names the file in which uses are counted."""

MOST_HASHES = 2**16
"""Hashes kept of one set: of a larger one the smallest, after `spread`, which are a random sample of it."""

SAME = 0.01
"""Two sets are the same examples where they share more than this of the smaller one."""

CONFIGURES = frozenset(
    {"explainer", "output", "options", "hardening", "classes", "seed", "recipe", "references", "asked", "dither"}
)
"""Entries of the signals' meta data that make another configuration. The model (`subject`) does not."""

LIMITS = ("max_tpr", "reason", "uncounted", "look")
"""Entries of the policy that do not: any limit may be compared with a bound that was taken once, and all looks of one
audit, which ask ever more models, share its risk."""

GROWS = ("references", "models", "suite")
"""What may differ between the looks of one audit: some attacks need more reference models."""

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS example_sets (digest TEXT PRIMARY KEY, hashes BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS judged (id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, population TEXT NOT NULL,"
    " examples TEXT NOT NULL, at TEXT NOT NULL, UNIQUE (configuration, population, examples))",
)


def default_path() -> Path:
    """The file of this user: $SAFEXPLAIN_USES, or safexplain/uses.sqlite in the folder for state ($XDG_STATE_HOME)."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "safexplain" / "uses.sqlite"


@contextmanager
def counted_in(path: Path) -> Iterator[None]:
    """Count in this file meanwhile, in the whole process, unless $SAFEXPLAIN_USES names another."""
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

    path: Path  # of an SQLite file; it and its folder are made
    configuration: str  # digest of what is judged, see `uses_of`
    force: bool = False  # certify although the examples were used for others; the certificate says so

    def record(self, signals: Signals, certified: NDArray[np.bool_]) -> int:
        """Note a use of the (n,) certified examples; which configuration this is on these examples, the first being 1.

        Raises:
            InputError: the signals have neither hashes of examples nor the digest of their population, which stands for
                them all, or the file cannot be read or written.
        """
        pool = _population(signals)
        if signals.examples is None and not pool:
            raise InputError(
                "uses are counted by hashes of the examples (array examples, or inputs) or the digest of their"
                " population (meta['population']); the signals have neither"
            )
        sample = np.zeros(0, np.uint64) if signals.examples is None else sample_of(signals.examples[certified])
        blob = sample.astype("<u8").tobytes()
        name = sha256(blob) if len(sample) else ""
        with self._table() as table:
            table.execute("BEGIN IMMEDIATE")  # nobody writes between the look and the note
            before = table.execute("SELECT configuration, population, examples FROM judged ORDER BY id").fetchall()
            sets = dict(table.execute("SELECT digest, hashes FROM example_sets")) if len(sample) else {}
            same = {digest for digest, kept in sets.items() if are_same(np.frombuffer(kept, "<u8"), sample)}
            configurations = []
            for configuration, population, examples in before:
                if examples in same if examples and name else pool and pool == population:
                    configurations.append(configuration)
            if name:
                table.execute("INSERT OR IGNORE INTO example_sets VALUES (?, ?)", (name, blob))
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            table.execute(
                "INSERT OR IGNORE INTO judged (configuration, population, examples, at) VALUES (?, ?, ?, ?)",
                (self.configuration, pool, name, now),
            )
        return list(dict.fromkeys([*configurations, self.configuration])).index(self.configuration) + 1

    def check(self) -> None:
        """Raise `InputError` if uses cannot be counted, before anything long is begun."""
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
                f"cannot count uses of certification examples in {self.path}: {error}; name another"
                f" file with {VARIABLE}"
            ) from None


def sample_of(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The set of the hashes, sorted, as `spread` makes it uniform; of a large one the `MOST_HASHES` smallest."""
    return np.unique(spread(hashes))[:MOST_HASHES]


def are_same(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> bool:
    """Whether two samples are of sets that share more than `SAME` of the smaller one.

    A full sample says nothing above its largest number, so both are compared up to the smaller of these.
    """
    for sample in (one, other):
        if len(sample) == MOST_HASHES:
            one, other = one[one <= sample[-1]], other[other <= sample[-1]]
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared > SAME * min(len(one), len(other))


def _population(signals: Signals) -> str:
    """Digest of the population; "" where it is not known."""
    return str(signals.meta.get("population") or "")


def uses_of(signals: Signals, policy: Policy, suite: Sequence[str], seed: int, force: bool = False) -> Uses | None:
    """Where a verdict on these signals is counted, of a policy, a suite (names of its rows) and the audit's seed.

    All of the policy but its limit makes another configuration. Where the signals' meta data name neither explainer nor
    hardening, the signals themselves, in the order of the examples' hashes, are the configuration. None means "not
    counted": the policy asks for that, examples cannot be recognised because the signals have neither hashes nor inputs
    nor a population, or (with a warning) the file cannot be written.
    """
    if policy.uncounted or (signals.examples is None and not _population(signals)):
        return None
    known: dict[str, Any] = {name: signals.meta[name] for name in CONFIGURES & signals.meta.keys()}
    known["policy"] = {name: value for name, value in policy.to_dict().items() if name not in LIMITS}
    known["policy"]["suite"] = sorted(policy.suite)
    known |= {"suite": sorted(suite), "audit seed": seed, "models": len(signals.models)}
    if policy.looks > 1:
        known = {name: value for name, value in known.items() if name not in GROWS}
    if "explainer" not in known and "hardening" not in known:
        known["signals"] = _values_digest(signals)
    text = json.dumps(known, sort_keys=True, default=repr)
    uses = Uses(default_path(), sha256(text), force)
    try:
        uses.check()
    except InputError as error:
        warnings.warn(f"{error}; this verdict is not counted", UsesWarning, stacklevel=2)
        return None
    return uses


def _values_digest(signals: Signals) -> str:
    """Of all that was released, whatever the order of the examples, where they have hashes."""
    order = np.arange(len(signals)) if signals.examples is None else np.argsort(signals.examples, kind="stable")
    found = hashlib.sha256()
    maps = {} if signals.attributions is None else {"attributions": signals.attributions}
    for name, values in sorted({**signals.values, **maps}.items()):
        found.update(f"{name} {values.dtype} {values.shape} ".encode())
        for model in range(len(values)):
            for part in parts(len(order), math.prod(values.shape[2:])):
                found.update(values[model, order[part]].tobytes())
    return found.hexdigest()
