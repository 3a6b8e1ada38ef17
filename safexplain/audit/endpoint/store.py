"""Answers of a service in SQLite, stored as they arrive, so that no question is sent twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, question BLOB NOT NULL, again INTEGER NOT NULL,"
    " map BLOB, label INTEGER, scores BLOB, UNIQUE (question, again))",
)

WHOLE = "map IS NOT NULL AND label IS NOT NULL"  # earlier versions also stored explanations without their label


class StoredAnswer(NamedTuple):
    """The answer to a question: (...) explanation, label and (classes,) scores, or (0,) without scores."""

    map: NDArray[np.float32]
    label: int
    scores: NDArray[np.float64]


def digests_of(x: NDArray[np.float32]) -> list[bytes]:
    """BLAKE2b of each row of (n, ...), flattened, with -0 as 0."""
    rows = np.ascontiguousarray(x.reshape(len(x), -1), dtype="<f4") + np.float32(0)
    return [hashlib.blake2b(row, digest_size=16, person=b"endpoint").digest() for row in rows]


class AnswerStore:
    """Answers of one endpoint by the digest of the question, in an SQLite file or (None) in memory; InputError if it
    cannot be used, another process uses it, or its answers are not about `about`."""

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
                f"{path}: expected answers of the {wrong[0]} {about[wrong[0]]:.100}, got {kept[wrong[0]]:.100}: use"
                " another run directory"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def asked(self) -> int:
        """Questions sent in all runs together, less those certainly not answered."""
        return int(self._about("asked") or 0)

    @property
    def answered(self) -> int:
        """Questions with an answer, including those asked again."""
        with self._reasons():
            found = self._db.execute(f"SELECT COUNT(*) FROM answers WHERE {WHOLE}")
            return int(found.fetchone()[0])

    def charge(self, questions: int) -> None:
        """Count questions that are about to be sent; a negative number uncounts some."""
        self._set("asked", str(self.asked + questions))

    def get(self, questions: Sequence[bytes], again: bool = False) -> dict[bytes, StoredAnswer]:
        """The answer to each question that has one."""
        found = dict[bytes, StoredAnswer]()
        shape = tuple(json.loads(self._about("shape") or "[]"))
        query = f"SELECT map, label, scores FROM answers WHERE again = ? AND question = ? AND {WHOLE}"
        with self._reasons():
            for question in questions:
                if (row := self._db.execute(query, (int(again), question)).fetchone()) is not None:
                    maps, label, scores = row
                    found[question] = StoredAnswer(
                        np.frombuffer(maps, "<f4").reshape(shape), label, np.frombuffer(scores or b"", "<f8")
                    )
        return found

    def put(
        self,
        questions: Sequence[bytes],
        maps: NDArray[np.float32],
        labels: NDArray[np.int64],
        scores: NDArray[np.float64] | None,
        again: bool = False,
    ) -> None:
        """Store the answers to n questions durably, all or nothing; InputError if the (n, ...) explanations differ in
        shape from earlier ones, or the file cannot be written."""
        shape = json.dumps(list(maps.shape[1:]))
        if (before := self._about("shape")) is None:
            self._set("shape", shape)
        elif before != shape:
            raise InputError(f"its explanations have the shape {shape}, but earlier ones {before}")
        given = np.zeros((len(maps), 0)) if scores is None else scores
        rows = [
            (question, int(again), np.asarray(row, "<f4").tobytes(), label, np.asarray(score, "<f8").tobytes())
            for question, row, label, score in zip(questions, maps, labels.tolist(), given, strict=True)
        ]
        with self._reasons(), self._db:
            self._db.execute("BEGIN")
            columns = "question, again, map, label, scores"
            self._db.executemany(f"INSERT OR REPLACE INTO answers ({columns}) VALUES (?, ?, ?, ?, ?)", rows)

    def _about(self, name: str) -> str | None:
        with self._reasons():
            found = self._db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def _set(self, name: str, value: str) -> None:
        with self._reasons():
            self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise InputError(f"another audit is using {self.path}; wait for it, or stop it") from None
            raise InputError(f"answers cannot be stored in {self.path}: {error}") from None
        except sqlite3.Error as error:
            raise InputError(f"{self.path} is not a store of answers ({error}): use another run directory") from None
