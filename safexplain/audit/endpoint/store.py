"""Answers of a service, stored as they come, so that no question is ever asked twice. SQLite; no HTTP here."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

__all__ = ["AnswerStore", "Known", "digests_of"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, question BLOB NOT NULL, again INTEGER NOT NULL,"
    " map BLOB, label INTEGER, scores BLOB, UNIQUE (question, again))",
)


class Known(NamedTuple):
    """What is known of one question: its explanation, label and scores; None: it was not answered yet."""

    map: NDArray[np.float32] | None
    label: int | None
    scores: NDArray[np.float64] | None


def digests_of(x: NDArray[np.float32]) -> list[bytes]:
    """BLAKE2b of each row of (n, ...), equal for what a model sees as equal: -0 is 0, whatever the shape."""
    rows = np.ascontiguousarray(x.reshape(len(x), -1), dtype="<f4") + np.float32(0)
    return [hashlib.blake2b(row, digest_size=16, person=b"endpoint").digest() for row in rows]


class AnswerStore:
    """Answers of one endpoint by the digest of the question; no question itself is kept.

    Args:
        path: of the SQLite file, made when missing; None: in memory, lost with this process.
        about: names what the answers are answers of. A file that says otherwise is refused.

    Raises:
        InputError: the file cannot be used, another process uses it, or its answers are of something else.
    """

    def __init__(self, path: str | Path | None, about: Mapping[str, str]) -> None:
        self.path = path
        with self._reasons():
            self._db = sqlite3.connect(":memory:" if path is None else path, timeout=1, isolation_level=None)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")  # one write to the disk a commit
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            for statement in SCHEMA:
                self._db.execute(statement)
            kept = dict(self._db.execute("SELECT name, value FROM about"))
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", about.items())
            self._db.execute("COMMIT")
        if wrong := [name for name, value in about.items() if kept.get(name, value) != value]:
            self.close()
            raise InputError(
                f"{path} holds answers of another {wrong[0]} ({kept[wrong[0]]:.100}, and this is"
                f" {about[wrong[0]]:.100}): take another run directory"
            )

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @property
    def asked(self) -> int:
        """Questions that were sent, in all runs together, less those that were certainly not answered."""
        return int(self._about("asked") or 0)

    @property
    def answered(self) -> int:
        """Questions with an answer, those asked again among them."""
        with self._reasons():
            found = self._db.execute("SELECT COUNT(*) FROM answers WHERE map IS NOT NULL AND label IS NOT NULL")
            return int(found.fetchone()[0])

    def charge(self, questions: int) -> None:
        """Count questions that are about to be sent; a negative number takes some back."""
        self._set("asked", str(self.asked + questions))

    def get(self, questions: Sequence[bytes], again: bool = False) -> dict[bytes, Known]:
        """What is known of each question, where anything is."""
        found, shape = {}, self._shape()
        query = "SELECT map, label, scores FROM answers WHERE again = ? AND question = ?"
        with self._reasons():
            for question in questions:
                if (row := self._db.execute(query, (int(again), question)).fetchone()) is not None:
                    found[question] = Known(
                        None if row[0] is None else np.frombuffer(row[0], "<f4").reshape(shape),
                        row[1],
                        None if row[2] is None else np.frombuffer(row[2], "<f8"),
                    )
        return found

    def put(
        self,
        questions: Sequence[bytes],
        *,
        maps: NDArray[np.float32] | None = None,
        labels: NDArray[np.int64] | None = None,
        scores: NDArray[np.float64] | None = None,
        again: bool = False,
    ) -> None:
        """Store what was answered about n questions, durably and all of it or nothing; None: what did not come.

        Raises:
            InputError: (n, ...) explanations have another shape than those before, or nothing can be written.
        """
        columns: dict[str, list[Any]] = {}
        if maps is not None:
            shape = list(maps.shape[1:])
            if self._about("shape") is None:
                self._set("shape", json.dumps(shape))
            elif tuple(shape) != self._shape():
                raise InputError(f"its explanations have the shape {shape}, and those before {list(self._shape())}")
            columns["map"] = [np.ascontiguousarray(a, "<f4").tobytes() for a in maps]
        if labels is not None:
            columns["label"] = labels.tolist()
        if scores is not None:
            columns["scores"] = [np.ascontiguousarray(s, "<f8").tobytes() for s in scores]
        names = ", ".join(columns)
        marks, sets = ", ".join("?" * len(columns)), ", ".join(f"{name} = excluded.{name}" for name in columns)
        statement = (
            f"INSERT INTO answers (question, again, {names}) VALUES (?, ?, {marks})"
            f" ON CONFLICT (question, again) DO UPDATE SET {sets}"
        )
        rows = [(q, int(again), *row) for q, *row in zip(questions, *columns.values(), strict=True)]
        with self._reasons(), self._db:
            self._db.execute("BEGIN")
            self._db.executemany(statement, rows)

    def _about(self, name: str) -> str | None:
        with self._reasons():
            found = self._db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def _set(self, name: str, value: str) -> None:
        with self._reasons():
            self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    def _shape(self) -> tuple[int, ...]:
        return tuple(json.loads(self._about("shape") or "[]"))

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise InputError(f"another audit is using {self.path}; wait for it, or end it") from None
            raise InputError(f"answers cannot be stored in {self.path}: {error}") from None
        except sqlite3.Error as error:
            raise InputError(
                f"{self.path} cannot be used as a store of answers ({error}): take another run directory"
            ) from None
