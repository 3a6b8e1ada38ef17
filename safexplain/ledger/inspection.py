"""Export, backup and verification of a whole ledger; files are written completely or not at all."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import IO, Any

from safexplain._digest import sha256
from safexplain._files import atomic_file
from safexplain.errors import ConfigurationError, InputError, LedgerError
from safexplain.ledger.accounts import ACCOUNT_COLUMNS, EMPTY, TOTAL, Balance, Settings
from safexplain.ledger.composition import Composition
from safexplain.ledger.records import Charge, period_start
from safexplain.ledger.releases import from_json, to_json
from safexplain.ledger.storage import Execute, Storage, paged

COLUMNS = (
    "id", "time", "principal", "mechanism", "kind", "epsilon", "delta", "mu", "steps", "parameters", "period",
    "question", "digest", "repeated", "rho", "orders", "divergences", "adjacency",
)  # fmt: skip


@contextmanager
def replacing(target: str | PathLike[str], protected: Sequence[Path]) -> Iterator[Path]:
    """A path to write to; its file, with mode 0600, replaces the target if the block ends without an error."""
    path = Path(target)
    if any(path.resolve() == file.resolve() for file in protected):
        raise ConfigurationError(f"{path} is a file of the ledger itself; choose another path")
    try:
        with atomic_file(path) as partial:
            partial.unlink(missing_ok=True)  # SQLite would write into the rest of a killed process
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            partial.chmod(0o600)  # whatever the umask
            yield partial
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def charge_as_json(charge: Charge) -> dict[str, Any]:
    """A charge as JSON types; fields that its release lacks are None, or omitted if only curves have them."""
    release = json.loads(to_json(charge.release))
    return {
        "id": charge.id,
        "time": charge.time.isoformat(),
        "principal": charge.principal,
        "mechanism": charge.mechanism,
        **{name: release.get(name) for name in ("kind", "epsilon", "delta", "mu", "steps")},
        "parameters": dict(charge.parameters),
        "period": charge.period.isoformat() if charge.period else None,
        "question": charge.question,
        "digest": charge.digest,
        "repeated": charge.repeated,
        **{name: release[name] for name in ("rho", "orders", "divergences", "adjacency") if name in release},
    }


def write_charges(
    charges: Iterable[Charge], target: str | PathLike[str] | IO[str], format: str, protected: Sequence[Path] = ()
) -> int:
    """As `Ledger.export`; `protected` files are never replaced."""
    if format not in ("jsonl", "csv"):
        raise ConfigurationError(f'format: expected "jsonl" or "csv", got {format!r}')
    if isinstance(target, str | PathLike):
        with replacing(target, protected) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
            return write_charges(charges, stream, format)
    table = csv.DictWriter(target, COLUMNS, lineterminator="\n")
    if format == "csv":
        table.writeheader()
    count = 0
    for charge in charges:
        content = charge_as_json(charge)
        if format == "csv":
            table.writerow({**content, "parameters": json.dumps(content["parameters"])})
        else:
            target.write(json.dumps(content) + "\n")
        count += 1
    return count


def copy(storage: Storage, path: str | PathLike[str]) -> None:
    """As `Ledger.backup`."""
    with replacing(path, storage.files) as partial:
        storage.backup(partial)


def verify(execute: Execute) -> int:
    """As `Ledger.verify`, in a transaction that holds the ledger."""
    rows = execute(f"SELECT {ACCOUNT_COLUMNS} FROM ledger_accounts ORDER BY principal", ())
    stored = {row[0]: Balance.of(row) for row in rows}
    tallies, count, wrong = tally(execute, stored)
    for name, balance in stored.items():
        if tallies[name].replayed() != balance.sums:
            wrong.append(f"the sums of {repr(name) if name else 'the total'} differ from its charges")
    wrong += _mismatched_answers(execute)
    if wrong:
        shown = "; ".join(wrong[:5])
        raise LedgerError(f"the ledger is damaged: {shown}. Restore it from a backup, and check who can write to it")
    return count


def tally(execute: Execute, stored: dict[str, Balance]) -> tuple[dict[str, Tally], int, list[str]]:
    """Releases of each account in its period, the number of charges, and messages about charges without account."""
    tallies = {name: Tally(balance.sums) for name, balance in stored.items()}
    strays: dict[str, None] = {}
    count = 0
    calendar = Settings.load(execute("SELECT name, value FROM ledger_settings", ())).period or ""
    query = "SELECT id, principal, period, release, repeated, time FROM ledger_charges WHERE id > ? ORDER BY id LIMIT ?"
    for _, principal, period, release, repeated, time in paged(execute, query):
        count += 1
        if principal == TOTAL:  # a training, which counts for everybody
            start = period_start(calendar, time)
            for name in (name for name, balance in stored.items() if name and balance.period == start):
                tallies[name].count(release)
        elif principal not in stored:
            strays[principal] = None
        elif stored[principal].period == period:
            tallies[principal].count(release)
        if not repeated:
            tallies[TOTAL].count(release)
    return tallies, count, [f"{name!r} has charges but no account" for name in strays]


class Tally:
    """Counts of the releases of an account before and after its change of rule, which the sums locate."""

    def __init__(self, sums: Composition) -> None:
        self.sums = sums
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.epsilon = self.delta = 0

    def count(self, text: str) -> None:
        """Count a release, as JSON, in the order of the charges."""
        sums = self.sums
        if sums.rule == "basic" or (self.epsilon, self.delta) == (sums.prefix_epsilon, sums.prefix_delta):
            self.after[text] += 1
            return
        self.before[text] += 1
        one = EMPTY.add_under_rule(from_json(text))
        self.epsilon, self.delta = self.epsilon + one.epsilon, self.delta + one.delta

    def replayed(self) -> Composition:
        """The sums of the counted releases under the account's rule."""
        found = replace(
            EMPTY, rule=self.sums.rule, order=self.sums.order, prefix_epsilon=self.epsilon,
            prefix_delta=self.delta, charges=self.before.total(),
        )  # fmt: skip
        for text, times in self.after.items():
            found = found.add_under_rule(from_json(text), times)
        return found


def _mismatched_answers(execute: Execute) -> list[str]:
    """Messages about charges without answer, answers without charge, and altered answers."""
    orphans = execute(
        "SELECT question FROM ledger_answers WHERE question NOT IN"
        " (SELECT question FROM ledger_charges WHERE question IS NOT NULL) LIMIT 5",
        (),
    )
    wrong = [f"the answer to {question[:12]}... was charged to nobody" for (question,) in orphans]
    query = (
        "SELECT c.id, c.digest, a.value FROM ledger_charges c LEFT JOIN ledger_answers a ON a.question = c.question"
        " WHERE c.question IS NOT NULL AND c.id > ? ORDER BY c.id LIMIT ?"
    )
    for number, digest, value in paged(execute, query):
        if value is None or sha256(value) != digest:
            wrong.append(f"the answer of charge {number} is {'missing' if value is None else 'altered'}")
    return wrong
