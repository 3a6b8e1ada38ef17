"""Finished runs of a probe on disk: a line each, added as soon as the run is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from safexplain.errors import InputError

__all__ = ["Finished", "Key", "Store"]

WorldName = Literal["a", "b"]

Key = tuple[WorldName, int]
"""World and number of a run."""


@dataclass(frozen=True)
class Finished:
    """What is kept of a run.

    Args:
        score: of its model; higher in world a.
        seconds: that it took.
    """

    score: float
    seconds: float


class Store:
    """Finished runs: a line of JSON each, added to the file as soon as it is there.

    Args:
        path: of the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.runs: dict[Key, Finished] = {}
        torn = False
        if path is not None and path.is_file():
            text = path.read_text()
            torn = not text.endswith("\n") and text != ""
            for line in text.splitlines():
                self._read(line)
        if torn and path is not None:
            with path.open("a") as file:
                file.write("\n")

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            found = Finished(float(row["score"]), row["seconds"])
            if isfinite(found.score):
                self.runs.setdefault((row["world"], int(row["number"])), found)
        except (ValueError, KeyError, TypeError):  # a line that was cut off when its process died
            return

    def add(self, key: Key, finished: Finished) -> None:
        """Keep a run.

        Raises:
            InputError: the file cannot be written.
        """
        self.runs[key] = finished
        if self.path is None:
            return
        row = {"world": key[0], "number": key[1], "score": finished.score, "seconds": finished.seconds}
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from None
