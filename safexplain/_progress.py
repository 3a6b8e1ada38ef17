"""Reference ("shadow") models: trained like the target on coin-flip subsets of one pool, so with known membership."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told about long work."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """`done` of `total` units of `stage` are finished."""


def silent(stage: str, done: float, total: float) -> None:
    """Progress that goes nowhere."""


def named(progress: Progress, stage: str) -> Progress:
    """The same progress under another stage's name."""
    return lambda _, done, total: progress(stage, done, total)
