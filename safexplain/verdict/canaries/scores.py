"""What the adversary computes from each run, step by step, in both worlds."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.whole_file import whole_file

__all__ = ["Scores"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """A number a run and audited step; higher says that the run trained on the record itself (world a).

    Args:
        steps: (k,) increasing; the last is the released model.
        a: (k, runs in world a), finite.
        b: (k, runs in world b), in which the canary stood in the record's place.

    Raises:
        InputError: the shapes do not fit, a score is NaN, or steps do not increase.
    """

    steps: tuple[int, ...]
    a: Array
    b: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(int(t) for t in self.steps))
        for name in ("a", "b"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 2 or len(values) != len(self.steps) or not values.size:
                raise InputError(
                    f"scores of world {name}: expected shape ({len(self.steps)} steps, runs), got {values.shape}"
                )
            if np.isnan(values).any():
                raise InputError(f"scores of world {name}: {int(np.isnan(values).sum())} of {values.size} are NaN")
            object.__setattr__(self, name, values)
        if any(later <= earlier for earlier, later in zip((0, *self.steps), self.steps, strict=False)):
            raise InputError(f"steps: expected increasing numbers from 1 on, got {self.steps}")

    @property
    def runs(self) -> int:
        """In both worlds together."""
        return self.a.shape[1] + self.b.shape[1]

    def save(self, path: str | Path) -> Path:
        """Write an npz file, all or nothing."""
        path = Path(path)
        with whole_file(path) as partial, partial.open("wb") as file:
            np.savez(file, steps=np.array(self.steps), a=self.a, b=self.b)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read what `save`, or anyone, wrote: arrays `steps`, `a` and `b`.

        Raises:
            InputError: not such a file.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                found: dict[str, Any] = {name: file[name] for name in ("steps", "a", "b")}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: expected an npz file with steps, a and b; {error}") from None
        return cls(tuple(found["steps"].tolist()), found["a"], found["b"])
