"""How often examples have been used for a verdict. Whoever tries configurations until one is certified certifies luck.

A use is one configuration judged on one certification split. The same configuration again is the same use.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from safexplain.errors import InputError, RefusedError

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
        configuration: digest of what is judged: explainer, hardening, policy, seed.
        force: judge although the examples were used for other configurations; the count says so.
    """

    path: Path
    configuration: str
    force: bool = False

    def check(self, identity: str) -> None:
        """Refuse a second configuration on the same examples.

        Raises:
            RefusedError: they were used for another one, and `force` is False.
            InputError: the file cannot be read or written.
        """
        with self._table() as table:
            others = table.execute(
                "SELECT at FROM uses WHERE split = ? AND configuration != ? ORDER BY at", (identity, self.configuration)
            ).fetchall()
            known = table.execute(
                "SELECT 1 FROM uses WHERE split = ? AND configuration = ?", (identity, self.configuration)
            ).fetchone()
        if others and not known and not self.force:
            raise RefusedError(
                f"these certification examples were used for another configuration's verdict on {others[-1][0]}"
                f" ({len(others)} in all). Choosing by a verdict makes the next one worth less: choose configurations"
                " on a selection split (policy: selection, --split selection) and certify on fresh examples, or pass"
                " --force, and the certificate counts the uses"
            )

    def record(self, identity: str) -> int:
        """Note this use; how many configurations were judged on these examples so far, this one included.

        Raises:
            InputError: the file cannot be read or written.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        with self._table() as table:
            table.execute("INSERT OR IGNORE INTO uses VALUES (?, ?, ?)", (identity, self.configuration, now))
            count = table.execute("SELECT COUNT(*) FROM uses WHERE split = ?", (identity,)).fetchone()[0]
        return int(count)

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
