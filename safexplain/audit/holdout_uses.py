"""How often examples have been used for a verdict. Whoever tries configurations until one is certified certifies luck.

A use is one configuration judged on one certification split. The same configuration again is the same use, and so is a
verdict under another policy. Native explanations, which every audit attacks, are none (`uses_of`).
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safexplain._digest import sha256
from safexplain.errors import InputError, UsesWarning

VARIABLE = "SAFEXPLAIN_USES"
"""Environment variable that names the file in which uses are counted."""


def default_path() -> Path:
    """The file of this user: $SAFEXPLAIN_USES, or safexplain/uses.sqlite in the folder for state ($XDG_STATE_HOME)."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "safexplain" / "uses.sqlite"


@dataclass(frozen=True)
class Uses:
    """Counts verdicts on certification splits.

    Args:
        path: of an SQLite file; it and its folder are made.
        configuration: digest of what is judged: explainer, hardening, seed, effort.
        force: certify although the examples were used for other configurations; the certificate says so.
    """

    path: Path
    configuration: str
    force: bool = False

    def record(self, identity: str) -> int:
        """Note this use; which configuration this is on these examples, the first being 1.

        Args:
            identity: of the split, see `Splits.identity`.

        Raises:
            InputError: the file cannot be read or written.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        this = (identity, self.configuration)
        with self._table() as table:
            table.execute("INSERT OR IGNORE INTO uses VALUES (?, ?, ?)", (*this, now))
            count = table.execute(
                "SELECT COUNT(*) FROM uses WHERE split = ? AND rowid <="
                " (SELECT rowid FROM uses WHERE split = ? AND configuration = ?)",
                (identity, *this),
            ).fetchone()[0]
        return int(count)

    def check(self) -> None:
        """See that uses can be counted, before anything long is begun.

        Raises:
            InputError: the file cannot be read or written.
        """
        with self._table():
            pass

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS uses (split TEXT, configuration TEXT, at TEXT,"
                    " PRIMARY KEY (split, configuration))"
                )
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"cannot count uses of certification examples in {self.path}: {error}; name another"
                f" file with {VARIABLE}"
            ) from None


CONFIGURES = ("explainer", "output", "options", "hardening", "seed", "recipe", "references", "asked")
"""Entries of the signals' meta data that make another configuration. The policy does not: a bound may be compared with
any limit."""


def uses_of(meta: Mapping[str, Any], force: bool) -> Uses | None:
    """Where a verdict on signals with this meta data is counted.

    None for signals that do not name their population, so that examples cannot be recognised, and for native
    explanations: every audit shows what attacks find in those, so looking at them chooses nothing.
    """
    if "population" not in meta or "hardening" not in meta:
        return None
    text = json.dumps({name: meta.get(name) for name in CONFIGURES}, sort_keys=True)
    uses = Uses(default_path(), sha256(text), force)
    try:
        uses.check()
    except InputError as error:
        warnings.warn(f"{error}; this verdict is not counted", UsesWarning, stacklevel=2)
        return None
    return uses
