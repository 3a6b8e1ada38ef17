"""Captum's explainers, native and hardened: the calls of `explainer_overhead.py`, each side in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

BATCH = 32


def prepare(data: Path, quick: bool) -> Work:
    """The batch; models and inputs are drawn from the same seeds on both sides."""
    return {"batch": np.array(4 if quick else BATCH)}


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """Nothing: what a hardened map is worth is told by the suites, not by its time."""
    return {}


def methods(quick: bool) -> list[str]:
    """Of the catalog, those that wrap Captum and explain inputs, and Grad-CAM's relatives."""
    from audit.benchmarks.explainer_overhead import methods as names

    return names(every=not quick)


def explained(which: int, name: str) -> Callable[[Work], Call]:
    """The native call (0), or the hardened one (1)."""

    def ready(work: Work) -> Call:
        import torch

        from audit.benchmarks.explainer_overhead import calls

        torch.set_num_threads(1)
        call = calls(name, int(work["batch"]), torch.device("cpu"))[which]

        def run() -> dict[str, Any]:
            call()
            return {}

        return run

    return ready


class _Calls(Mapping[str, Callable[[Work], Call]]):
    """ "native METHOD" and "hardened METHOD" for every method; the catalog is read only when it is needed."""

    def __getitem__(self, key: str) -> Callable[[Work], Call]:
        side, _, name = key.partition(" ")
        return explained(("native", "hardened").index(side), name)

    def __iter__(self) -> Iterator[str]:
        return iter(f"{side} {name}" for name in methods(quick=False) for side in ("native", "hardened"))

    def __len__(self) -> int:
        return len(list(iter(self)))


CALLS = _Calls()
