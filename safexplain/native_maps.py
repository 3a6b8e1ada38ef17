"""Native maps that cannot be right, for the operator: the client is told nothing, and what it gets does not change.

A hardened map looks like any other, whatever it was made of: a clip to ranks makes a usual map of numbers of 1e11, and
NaN comes out as zero. So native maps are looked at before they are hardened, in a pass or two over their numbers:

    not finite   NaN or infinity
    zero         nothing but zeros, although the input is not zero
    constant     the same number everywhere
    huge         over a million times as large as the explained outputs and inputs make plausible

A service finds them in its log (`logging.getLogger("safexplain.native_maps")`, level WARNING): once for each model,
method and finding, and again when there are ten times as many. No number of a map or an input is logged. An audit
collects them instead (`collecting`) and reports them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.outputs import Logits, Probability

__all__ = ["FINDINGS", "Finding", "Watch", "collecting", "inside", "watch"]

FINDINGS = {
    "not finite": (
        "hold NaN or infinity",
        "something in the model or the explainer divides by zero or overflows; hardening releases zeros in their place",
    ),
    "zero": (
        "are zero everywhere",
        "the explained output does not react to the input: a saturated probability (explain the logit), rounding or a"
        " hard decision in the model, or units that are never active",
    ),
    "constant": ("hold the same number everywhere", "the explainer does not tell features apart on this model"),
    "huge": (
        "are over a million times as large as the model's outputs make plausible",
        "the method does not work on this model, as LRP does not on networks that call functions in place of modules;"
        " after hardening they look like any other map",
    ),
}
"""Finding -> what such maps do, and what may be the reason."""

SHARE = 0.1
"""Maps of zeros and constant ones are a finding above this share of the maps; one among several can be right."""

HUGE = 1e6
"""Times what outputs and inputs make plausible."""

COMPARISONS = 16
"""Batches of large numbers, of a model and a method, that are compared with the model's outputs, at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """What is wrong with some of a model's native maps.

    Args:
        kind: a key of `FINDINGS`.
        method: of the explainer.
        maps: how many of them.
        of: how many were looked at.
    """

    kind: str
    method: str
    maps: int
    of: int

    def __str__(self) -> str:
        does, reason = FINDINGS[self.kind]
        return f"{self.maps:,} of {self.of:,} native {self.method} maps {does}: {reason}."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(eq=False)
class _Record:
    """Of a model and a method."""

    seen: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)
    comparisons: int = 0


class Watch:
    """Counts of what was found, by model and method; threads may share it.

    Args:
        logs: write warnings, or only keep what was found.
    """

    def __init__(self, *, logs: bool = True) -> None:
        self.logs = logs
        self._by_model: WeakKeyDictionary[nn.Module, dict[str, _Record]] = WeakKeyDictionary()
        self._by_name: dict[str, dict[str, _Record]] = {}
        self._lock = threading.Lock()

    def add(
        self,
        model: object,
        method: str,
        maps: Sequence[Tensor],
        *,
        inputs: Sequence[Tensor] = (),
        baselines: object = None,
        outputs: Callable[[], Tensor] | None = None,
        grouped: bool = False,
        squared: bool = False,
    ) -> None:
        """Look at a batch of native maps, fast; never raises.

        Args:
            model: the explained module, or whatever holds one.
            method: name of the explainer.
            maps: one or several tensors (batch, ...) that make up the maps.
            inputs: (batch, ...) what was explained: a map of zeros is right where the input is zero or the baseline,
                and NaN where the input has some.
            baselines: the inputs that stand for nothing, where they were given.
            outputs: gives the explained outputs, asked only where numbers are large.
            grouped: features are explained in groups, of which there may be one.
            squared: numbers are squares of what outputs and inputs are made of (VarGrad).
        """
        try:
            self._add(model, method, maps, inputs, baselines, outputs, grouped, squared)
        except Exception as error:  # the answer to the client does not depend on this
            _logger.debug("native maps of %s could not be looked at: %s", method, type(error).__name__)

    def findings(self, model: object) -> tuple[Finding, ...]:
        """What was found of a model, by method."""
        with self._lock:
            return tuple(
                Finding(kind, method, record.counts[kind], record.of[kind])
                for method, record in self._records(model).items()
                for kind in FINDINGS
                if kind in record.counts and _matters(kind, record.counts[kind], record.of[kind])
            )

    def _add(
        self,
        model: object,
        method: str,
        maps: Sequence[Tensor],
        inputs: Sequence[Tensor],
        baselines: object,
        outputs: Callable[[], Tensor] | None,
        grouped: bool,
        squared: bool,
    ) -> None:
        rows = [m.detach().flatten(1) for m in maps if m.dim() > 1 and m.numel() and m.is_floating_point()]
        if len({r.shape[0] for r in rows}) != 1:
            return
        every = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        if every.is_cpu and every.dtype in (torch.float32, torch.float64):
            low, high = (ends.reduce(every.numpy(), 1) for ends in (np.minimum, np.maximum))
        else:  # of rows, torch.aminmax takes 20 times as long
            low, high = torch.stack((every.amin(1), every.amax(1))).cpu().double().numpy()  # the one wait for a device
        right = high > low  # False where one is NaN
        wide = max(np.maximum.reduce(high), -np.minimum.reduce(low))
        with self._lock:
            record = self._record(model, method)
            record.seen += len(low)
        if wide <= HUGE and np.logical_and.reduce(right):
            return
        finite = np.isfinite(low) & np.isfinite(high)
        nothing = baselines if isinstance(baselines, tuple) else (baselines,)
        apart = every.shape[1] > 1 and not grouped
        found = {
            "not finite": _where(~finite, inputs, lambda xs: all(bool(x.isfinite().all()) for x in xs)),
            "zero": _where(
                finite & (low == 0) & (high == 0), inputs, lambda xs: not all(_is_nothing(x, nothing) for x in xs)
            ),
            "constant": np.flatnonzero(finite & ~right & (low != 0)).tolist() if apart else [],
            "huge": [],
        }
        size = np.where(finite, np.maximum(high, -low), 0.0)
        with self._lock:
            known = "huge" in record.counts
            compares = float(size.max()) > HUGE and (known or record.comparisons < COMPARISONS)
            record.comparisons += compares
        if compares:
            limit = HUGE if known else HUGE * _plausible(inputs, outputs) ** (2 if squared else 1)
            found["huge"] = np.flatnonzero(size > limit).tolist()
        with self._lock:
            for kind, which in found.items():
                if which:
                    self._count(record, model, method, kind, len(which), record.seen)

    def _count(self, record: _Record, model: object, method: str, kind: str, maps: int, of: int) -> None:
        """Count and, where it is time, log."""
        record.counts[kind] = count = record.counts.get(kind, 0) + maps
        record.of[kind] = of
        if not self.logs or not _matters(kind, count, of) or count < 10 * record.logged.get(kind, 0):
            return
        record.logged[kind] = count
        _logger.warning("%s: %s", _name(model), Finding(kind, method, count, of))

    def _record(self, model: object, method: str) -> _Record:
        return self._records(model).setdefault(method, _Record())

    def _records(self, model: object) -> dict[str, _Record]:
        modules = modules_of(model)
        if not modules:
            return self._by_name.setdefault(_name(model), {})
        return self._by_model.setdefault(inside(modules[0]), {})


_SERVICE = Watch()
_watching: ContextVar[Watch] = ContextVar("safexplain.native_maps", default=_SERVICE)


def watch() -> Watch:
    """The one that explainers tell: the service's, which logs; or that of `collecting`."""
    return _watching.get()


@contextmanager
def collecting() -> Iterator[Watch]:
    """Keep what is found in this thread for whoever asked for it, and log nothing."""
    mine = Watch(logs=False)
    token = _watching.set(mine)
    try:
        yield mine
    finally:
        _watching.reset(token)


def _matters(kind: str, maps: int, of: int) -> bool:
    return kind not in ("zero", "constant") or (maps > SHARE * of and (maps > 1 or of == 1))


def _where(rows: NDArray[np.bool_], inputs: Sequence[Tensor], applies: Callable[[list[Tensor]], bool]) -> list[int]:
    """Those rows whose inputs a condition holds for; all of them where inputs are not known, or not one for each."""
    which: list[int] = np.flatnonzero(rows).tolist()
    known = [x for x in inputs if x.dim() and len(x) == len(rows)]
    return [i for i in which if not known or applies([x[i] for x in known])]


def _is_nothing(x: Tensor, baselines: Sequence[object]) -> bool:
    """Whether an example is zero or one of the baselines: a number, or numbers for one example or each of several."""
    for nothing in (0.0, *baselines):
        if isinstance(nothing, Tensor) and nothing.shape[1:] == x.shape and nothing.dim():
            if bool((nothing == x).flatten(1).all(1).any()):
                return True
        elif isinstance(nothing, int | float) and bool((x == nothing).all()):
            return True
    return False


def _plausible(inputs: Sequence[Tensor], outputs: Callable[[], Tensor] | None) -> float:
    """How large numbers of a map may be: as outputs, or outputs per unit of the inputs; at least 1."""
    out = 1.0 if outputs is None else max(1.0, float(outputs().detach().abs().max()))
    largest = max((float(x.detach().abs().max()) for x in inputs if x.numel()), default=1.0)
    return out * max(1.0, 1 / max(largest, 1e-12))


def inside(model: Any) -> Any:
    """The model behind wrappers that make its outputs probabilities or logits."""
    while isinstance(model, Probability | Logits):
        model = model.model
    return model


def _name(model: object) -> str:
    modules = modules_of(model)
    named = inside(modules[0]) if modules else model
    return type(named).__name__ if modules else str(getattr(named, "__qualname__", type(named).__name__))
