"""What may be tried: kinds of steps for the slots of a `Hardening`, and options of the explainers.

A space is a table. Each row is a kind of step, the ranges of its numbers and how it is made of them. The space
"deepleak" has DeepLeak's ranges (its Algorithm 2) in our order of clip, mask and noise; explainer options, its
Algorithm 1, come from the catalog's rows and are part of every space.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from safexplain.audit.question import Method
from safexplain.errors import ConfigurationError
from safexplain.explain.row import Row
from safexplain.hardening.amounts import Relative
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, UnitNorm
from safexplain.hardening.formats import Levels, TopKSet
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise

GRID = 5
"""Values at which a range of an explainer's option is tried, so that native maps are computed for few sets of them."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, drawn on a logarithmic scale where `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


Values = Range | tuple[Any, ...]
"""A range, or the values one by one."""


@dataclass(frozen=True)
class Sizes:
    """How large native maps are; bounds of the default space are multiples of this."""

    features: int  # numbers that are hardened together
    norm: float  # median L2 norm

    @property
    def rms(self) -> float:
        """Root mean square coordinate of such a map."""
        return self.norm / math.sqrt(self.features)


@dataclass(frozen=True)
class Kind:
    """One kind of step."""

    ranges: Mapping[str, Values]  # by the name of the number
    make: Callable[[Mapping[str, Any], Sizes, Any], Any]  # (numbers by name, sizes, clip or None) -> the step
    finished: bool = False  # it releases a format, which no mask and no grid can improve


def _amount(factor: float, sizes: Sizes, clip: Any) -> float | Relative:
    """In units of the clip, or without one of the native maps."""
    return Relative(factor) if clip is not None else factor * sizes.rms


NONE = Kind({}, lambda v, sizes, clip: None)

CLIPS: Mapping[str, Kind] = {
    "none": NONE,
    "TopKSet": Kind(
        {"fraction": Range(0.02, 0.5, log=True), "positive": (True, False)},
        lambda v, sizes, clip: TopKSet(fraction=v["fraction"], positive=v["positive"]),
        finished=True,
    ),
    "Levels": Kind(
        {"n": Range(1, 6, whole=True), "balanced": (True, False)},
        lambda v, sizes, clip: Levels(v["n"], balanced=v["balanced"]),
        finished=True,
    ),
    "RankNorm": Kind(
        {"shape": Range(0.4, 3.0), "balanced": (True, False)},
        lambda v, sizes, clip: RankNorm(shape=v["shape"], balanced_from=2 if v["balanced"] else None),
    ),
    "UnitNorm": Kind({}, lambda v, sizes, clip: UnitNorm()),
    "NormClip": Kind({"size": Range(0.05, 2.0, log=True)}, lambda v, sizes, clip: NormClip(v["size"] * sizes.norm)),
    "RangeClip": Kind(
        {"size": Range(0.05, 5.0, log=True)},
        lambda v, sizes, clip: RangeClip(-v["size"] * sizes.rms, v["size"] * sizes.rms),
    ),
}
"""Clips of the default space, in units of the native maps' median norm."""

MASKS: Mapping[str, Kind] = {
    "none": NONE,
    "TopKMask": Kind({"fraction": Range(0.05, 1.0)}, lambda v, sizes, clip: TopKMask(v["fraction"])),
    "ThresholdMask": Kind(
        {"size": Range(0.01, 2.0, log=True)},
        lambda v, sizes, clip: ThresholdMask(_amount(v["size"], sizes, clip)),
    ),
}
"""Masks of the default space."""

NOISES: Mapping[str, Kind] = {
    "none": NONE,
    "GaussianNoise": Kind(
        {"size": Range(0.01, 1.0, log=True)},
        lambda v, sizes, clip: GaussianNoise(_amount(v["size"], sizes, clip)),
    ),
}
"""Noise of the default space, in units of the clip."""

GRIDS = Range(0.25, 2.0, log=True)
"""Steps to which releases without noise may be rounded, in units of the clip's scale."""

DEEPLEAK: Mapping[str, Mapping[str, Kind]] = {
    "clip": {
        "RangeClip": Kind(
            {"low": Range(-5.0, 0.0), "high": Range(0.0, 5.0)},
            lambda v, sizes, clip: RangeClip(v["low"], max(v["high"], v["low"] + 1e-6)),
        )
    },
    "mask": {
        "ThresholdMask": Kind({"threshold": Range(1e-4, 0.05)}, lambda v, sizes, clip: ThresholdMask(v["threshold"]))
    },
    "noise": {"GaussianNoise": Kind({"std": Range(0.001, 0.2)}, lambda v, sizes, clip: GaussianNoise(v["std"]))},
}
"""DeepLeak's Algorithm 2 (arXiv 2601.03429; the ranges of its released code), all three steps in every trial."""

SPACES: Mapping[str, Mapping[str, Mapping[str, Kind]]] = {
    "default": {"clip": CLIPS, "mask": MASKS, "noise": NOISES},
    "deepleak": DEEPLEAK,
}
"""Name of a space -> slot -> name of a kind -> the kind."""

Parameters = Mapping[str, Any]
_PLAIN = {"mask": "none", "noise": "none", "grid": False}

FORMATS: Mapping[str, Parameters] = {
    "native": {"clip": "none", "mask": "none", "noise": "none"},
    "unit norm": {"clip": "UnitNorm", **_PLAIN},
    "rank norm": {"clip": "RankNorm", "RankNorm.shape": 1.5, "RankNorm.balanced": False, **_PLAIN},
    "balanced rank norm": {"clip": "RankNorm", "RankNorm.shape": 1.45, "RankNorm.balanced": True, **_PLAIN},
    "top 10 % set": {"clip": "TopKSet", "TopKSet.fraction": 0.1, "TopKSet.positive": True, "noise": "none"},
    "top 10 % by magnitude": {"clip": "TopKSet", "TopKSet.fraction": 0.1, "TopKSet.positive": False, "noise": "none"},
    "balanced levels": {"clip": "Levels", "Levels.n": 3, "Levels.balanced": True, "noise": "none"},
}
"""The first trials of the default space: the formats of the evidence table, by the answers that give them."""

OPTIONS_LEFT_OUT = {
    "interpolate_mode": "enlarging comes after hardening and tells nothing more",
    "attribute_to_layer_input": "maps of another size cannot be compared with the native ones",
}
"""Options in the catalog's rows that are not searched -> why. Those of constructors are not either: a certificate is
about the arguments of `attribute`."""


@dataclass(frozen=True)
class Space:
    """What may be tried for some explainers."""

    name: str  # a key of `SPACES`
    sizes: Sizes  # of the native maps
    options: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)  # explainer -> option -> values

    def __post_init__(self) -> None:
        check_space(self.name)

    def suggest(self, trial: Any) -> tuple[Hardening, dict[str, dict[str, Any]]]:
        """The hardening and the options of a trial of Optuna, every number asked of it by name."""
        slots = SPACES[self.name]
        clip_kind, clip = self._step(trial, "clip", slots["clip"], None)
        mask = None if clip_kind.finished else self._step(trial, "mask", slots["mask"], clip)[1]
        noise = self._step(trial, "noise", slots["noise"], clip)[1]
        grid = None
        coarse = self.name == "default" and isinstance(clip, RankNorm | UnitNorm) and noise is None
        if coarse and trial.suggest_categorical("grid", (False, True)):
            grid = _draw(trial, "grid.size", GRIDS) * clip.scale(self.sizes.features)
        options = {
            method: {
                name: values[trial.suggest_int(f"{method}.{name}", 0, len(values) - 1)] for name, values in of.items()
            }
            for method, of in self.options.items()
            if of
        }
        return Hardening(clip, mask, noise, grid), options

    def known(self, answers: Parameters) -> tuple[Hardening, dict[str, Any], dict[str, Any]]:
        """The hardening of these answers, and the questions that were asked, for a sampler to learn from: Optuna's
        parameters and distributions, by name."""
        from optuna.trial import FixedTrial

        trial = FixedTrial(dict(answers))
        hardening, _ = replace(self, options={}).suggest(trial)
        return hardening, trial.params, trial.distributions

    def _step(self, trial: Any, slot: str, kinds: Mapping[str, Kind], clip: Any) -> tuple[Kind, Any]:
        names = tuple(kinds)
        name = names[0] if len(names) == 1 else trial.suggest_categorical(slot, names)
        kind = kinds[name]
        values = {one: _draw(trial, f"{name}.{one}", of) for one, of in kind.ranges.items()}
        return kind, kind.make(values, self.sizes, clip)


def check_space(name: str) -> None:
    """Raise ConfigurationError unless there is such a space."""
    if name not in SPACES:
        raise ConfigurationError(f"space: expected one of {', '.join(SPACES)}, got {name!r}")


def _draw(trial: Any, name: str, values: Values) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high))
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def options_of(methods: Sequence[Method], x: Tensor) -> dict[str, dict[str, tuple[Any, ...]]]:
    """What may be tried of the explainers' options: those of the catalog's rows that fit these inputs (n, ...) and are
    not given as arguments."""
    rows = {method.name: (getattr(method.make, "row", None), method.arguments) for method in methods}
    return {name: _of_row(row, given, x) for name, (row, given) in rows.items() if isinstance(row, Row)}


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
    """The values of a row's option one by one: of a range a few of them."""
    if isinstance(values, tuple):
        return values
    low, high = values
    whole = isinstance(low, int) and isinstance(high, int)
    ratio = high / low if low > 0 else math.inf
    steps = [i / (GRID - 1) for i in range(GRID)]
    drawn = [low * ratio**s if 10 <= ratio < math.inf else low + (high - low) * s for s in steps]
    return tuple(dict.fromkeys(round(v) if whole else float(f"{v:.4g}") for v in drawn))


def _fits(window: tuple[Any, ...], x: Tensor) -> bool:
    """Whether a window is one of inputs of this shape."""
    return len(window) == x.dim() - 1 and all(0 < w <= size for w, size in zip(window, x.shape[1:], strict=True))


def sizes_of(maps: Sequence[Tensor]) -> Sizes:
    """Of native maps (m, n, ...), of several explainers those of the first: each explainer is hardened by itself."""
    rows = maps[0].flatten(0, 1).flatten(1).double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    some = norms[norms > 0]
    return Sizes(rows.shape[1], float(some.median()) if len(some) else 1.0)
