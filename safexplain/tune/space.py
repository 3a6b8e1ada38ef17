"""The search space: kinds of steps for the slots of a `Hardening`, and options of the explainers from the catalog."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safexplain.audit.question import Method
from safexplain.explain.catalog import Row
from safexplain.hardening.clips import (
    Levels,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    TopKSet,
    UnitNorm,
)
from safexplain.hardening.hardening import SLOTS, Hardening
from safexplain.hardening.noise import GaussianNoise

GRID = 5  # number of values tried from a range of an explainer's option, as each needs its own native maps


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, drawn on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of step."""

    ranges: Mapping[str, Range | tuple[Any, ...]]  # name of the number -> its range, or its values
    make: Callable[[Mapping[str, Any], Space, Any], Any]  # (numbers by name, space, clip or None) -> the step
    finished: bool = False  # whether it releases a format, without mask and grid


def _amount(factor: float, space: Space, clip: Any) -> float | Relative:
    """An amount in units of the clip, or of the native maps without one."""
    return Relative(factor) if clip is not None else factor * space.rms


NONE = Kind({}, lambda v, space, clip: None)

_KINDS: Mapping[str, Mapping[str, Kind]] = {
    "clip": {
        "none": NONE,
        "TopKSet": Kind(
            {"fraction": Range(0.02, 0.5, log=True), "positive": (True, False)},
            lambda v, space, clip: TopKSet(fraction=v["fraction"], positive=v["positive"]),
            finished=True,
        ),
        "Levels": Kind(
            {"n": Range(1, 6, whole=True), "balanced": (True, False)},
            lambda v, space, clip: Levels(v["n"], balanced=v["balanced"]),
            finished=True,
        ),
        "RankNorm": Kind(
            {"shape": Range(0.4, 3.0), "balanced": (True, False)},
            lambda v, space, clip: RankNorm(shape=v["shape"], balanced_from=2 if v["balanced"] else None),
        ),
        "UnitNorm": Kind({}, lambda v, space, clip: UnitNorm()),
        "NormClip": Kind({"size": Range(0.05, 2.0, log=True)}, lambda v, space, clip: NormClip(v["size"] * space.norm)),
        "RangeClip": Kind(
            {"size": Range(0.05, 5.0, log=True)},
            lambda v, space, clip: RangeClip(-v["size"] * space.rms, v["size"] * space.rms),
        ),
    },
    "mask": {
        "none": NONE,
        "TopKMask": Kind({"fraction": Range(0.05, 1.0)}, lambda v, space, clip: TopKMask(v["fraction"])),
        "ThresholdMask": Kind(
            {"size": Range(0.01, 2.0, log=True)},
            lambda v, space, clip: ThresholdMask(_amount(v["size"], space, clip)),
        ),
    },
    "noise": {
        "none": NONE,
        "GaussianNoise": Kind(
            {"size": Range(0.01, 1.0, log=True)},
            lambda v, space, clip: GaussianNoise(_amount(v["size"], space, clip)),
        ),
    },
}
"""Slot of a hardening -> name of a kind -> the kind; masks and noise are in units of the clip."""


def _with_defaults(step: Callable[[], Any]) -> Kind:
    return Kind({}, lambda v, space, clip: step())


STEPS: Mapping[str, Mapping[str, Kind]] = {
    slot: {**kinds, **{k.__name__: _with_defaults(k) for k in SLOTS[slot] if k.__name__ not in kinds}}
    for slot, kinds in _KINDS.items()
}
"""The same, with every step that has no row; its numbers need defaults."""

_PLAIN = {"mask": "none", "noise": "none", "grid": False}

FIRST: Mapping[str, Hardening | Mapping[str, Any]] = {
    "native": {"clip": "none", "mask": "none", "noise": "none"},
    "recommended": Hardening.recommended(),
    "DeepLeak's default": Hardening.deepleak(),
    "unit norm": {"clip": "UnitNorm", **_PLAIN},
    "rank norm": {"clip": "RankNorm", "RankNorm.shape": 1.5, "RankNorm.balanced": False, **_PLAIN},
    "balanced rank norm": {"clip": "RankNorm", "RankNorm.shape": 1.45, "RankNorm.balanced": True, **_PLAIN},
    "top 10 % set": {"clip": "TopKSet", "TopKSet.fraction": 0.1, "TopKSet.positive": True, "noise": "none"},
    "top 10 % by magnitude": {"clip": "TopKSet", "TopKSet.fraction": 0.1, "TopKSet.positive": False, "noise": "none"},
    "balanced levels": {"clip": "Levels", "Levels.n": 3, "Levels.balanced": True, "noise": "none"},
}
"""The first trials: points for comparison, and known formats; a hardening, or the parameters of a trial."""

OPTIONS_LEFT_OUT = {
    "interpolate_mode": "enlarging comes after hardening and reveals nothing more",
    "attribute_to_layer_input": "maps of another size cannot be compared with the native ones",
}
"""Options in the catalog that are not searched -> reason; those of constructors are not searched either."""


@dataclass(frozen=True)
class Space:
    """The search space for some explainers."""

    features: int  # numbers of a native map that are hardened together
    norm: float  # median L2 norm of native maps that are not zero; bounds of steps are multiples of this
    options: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)  # of each explainer, by name

    @classmethod
    def of(cls, maps: Tensor, options: Mapping[str, Mapping[str, tuple[Any, ...]]]) -> Space:
        """The space for native maps (m, n, ...) of the first explainer; each map is hardened by itself."""
        rows = maps.flatten(0, 1).flatten(1).double()
        norms = torch.linalg.vector_norm(rows, dim=1)
        some = norms[norms > 0]
        return cls(rows.shape[1], float(some.median()) if len(some) else 1.0, options)

    @property
    def rms(self) -> float:
        """Root mean square coordinate of a map of norm `norm`."""
        return self.norm / math.sqrt(self.features)

    def hardening(self, trial: Any) -> Hardening:
        """The hardening of an Optuna trial, which suggests every number by name."""
        clip_kind, clip = self._step(trial, "clip", None)
        mask = None if clip_kind.finished else self._step(trial, "mask", clip)[1]
        noise = self._step(trial, "noise", clip)[1]
        grid = None
        coarse = isinstance(clip, RankNorm | UnitNorm) and noise is None
        if coarse and trial.suggest_categorical("grid", (False, True)):
            grid = _draw(trial, "grid.size", Range(0.25, 2.0, log=True)) * clip.scale(self.features)
        return Hardening(clip, mask, noise, grid)

    def drawn_options(self, trial: Any) -> dict[str, Any]:
        """The explainer's options, likewise; for several, by the name of each that has options."""
        drawn = {
            method: {
                name: values[trial.suggest_int(f"{method}.{name}", 0, len(values) - 1)] for name, values in of.items()
            }
            for method, of in self.options.items()
            if of
        }
        return drawn if len(self.options) > 1 else next(iter(drawn.values()), {})

    def _step(self, trial: Any, slot: str, clip: Any) -> tuple[Kind, Any]:
        name = trial.suggest_categorical(slot, tuple(STEPS[slot]))
        kind = STEPS[slot][name]
        values = {one: _draw(trial, f"{name}.{one}", of) for one, of in kind.ranges.items()}
        return kind, kind.make(values, self, clip)


def _draw(trial: Any, name: str, values: Range | tuple[Any, ...]) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high))
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def options_of(methods: Sequence[Method], x: Tensor) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Options to search for each explainer: those in the catalog that fit inputs (n, ...) and are not given."""
    rows = {method.name: (getattr(method.make, "row", None), method.arguments) for method in methods}
    return {name: _of_row(row, given, x) if isinstance(row, Row) else {} for name, (row, given) in rows.items()}


def _of_row(row: Row, given: Mapping[str, Any], x: Tensor) -> dict[str, tuple[Any, ...]]:
    taken = inspect.signature(getattr(row.native, row.entry)).parameters
    found = {}
    for name, values in row.search_space.items():
        if name in given or name in OPTIONS_LEFT_OUT:
            continue
        if name in ("n_segments", "compactness"):
            if x.dim() != 4 or "feature_mask" in given:
                continue
        elif name not in taken:
            continue
        listed = tuple(v for v in _listed(values) if not isinstance(v, tuple) or _fits(v, x))
        if len(listed) > 1:
            found[name] = listed
    return found


def _listed(values: tuple[Any, ...] | list[Any]) -> tuple[Any, ...]:
    """The values of an option; for a range, `GRID` of them."""
    if isinstance(values, tuple):
        return values
    low, high = values
    whole = isinstance(low, int) and isinstance(high, int)
    ratio = high / low if low > 0 else math.inf
    steps = [i / (GRID - 1) for i in range(GRID)]
    drawn = [low * ratio**s if 10 <= ratio < math.inf else low + (high - low) * s for s in steps]
    return tuple(dict.fromkeys(round(v) if whole else float(f"{v:.4g}") for v in drawn))


def _fits(window: tuple[Any, ...], x: Tensor) -> bool:
    return len(window) == x.dim() - 1 and all(0 < w <= size for w, size in zip(window, x.shape[1:], strict=True))
