"""Warnings about implausible native maps, for the operator: in a service's log ("safexplain.native_maps"), once for a
model, method and finding and again at ten times as many, or collected by an audit (`collecting`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.outputs import Logits, Probability

FINDINGS = {
    "not finite": (
        "hold NaN or infinity",
        "the model or the explainer divides by zero or overflows; hardening releases zeros in their place",
    ),
    "zero": (
        "are zero everywhere",
        "the explained output does not change with the input: a saturated probability (explain the logit), rounding, a"
        " hard decision, or units that are never active",
    ),
    "constant": ("hold the same number everywhere", "the explainer does not distinguish features on this model"),
    "huge": (
        "are over a million times as large as the model's outputs make plausible",
        "the method does not work on this model (for example LRP on a network that calls functions in place of"
        " modules)",
    ),
}

SHARE = 0.1
"""Zero and constant maps are reported above this share of all maps; a few of them can be right."""

HUGE = 1e6

COMPARISONS = 16
"""Most batches of large numbers that are compared with the outputs, for each model and method."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """A problem, `kind` in `FINDINGS`, with `maps` of a model's `of` checked native maps."""

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

    def _is_reported(self) -> bool:
        several = self.maps > SHARE * self.of and (self.maps > 1 or self.of == 1)
        return several or self.kind not in ("zero", "constant")


@dataclass(eq=False)
class _Record:
    """Of one model and method; `logged` has how many maps were found when a kind was last logged."""

    checked: int = 0
    comparisons: int = 0
    found: dict[str, Finding] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)


class Watch:
    """Counts of findings by model and method; threads may share it. `logs`: whether to write warnings."""

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
        """Check a batch of native maps, (batch, ...) each, quickly; never raises.

        A zero map is right if the input is zero or the baseline, and NaN if the input has some. `outputs` returns the
        explained outputs, for large numbers. `grouped`: features are explained in groups; `squared`: the map is a
        square.
        """
        try:
            rows = [m.detach().flatten(1) for m in maps if m.dim() > 1 and m.numel() and m.is_floating_point()]
            if len({len(r) for r in rows}) != 1:
                return
            values = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
            if values.is_cpu and values.dtype in (torch.float32, torch.float64):
                low, high = (ends.reduce(values.numpy(), 1) for ends in (np.minimum, np.maximum))
            else:  # torch.aminmax of rows takes 20 times as long
                low, high = torch.stack((values.amin(1), values.amax(1))).cpu().double().numpy()
            differ, size = high > low, np.maximum(high, -low)  # False and NaN where a number is NaN
            with self._lock:
                record = self._records(model).setdefault(method, _Record())
                record.checked += len(low)
            if size.max() <= HUGE and differ.all():
                return
            finite = np.isfinite(low) & np.isfinite(high)
            nothing = baselines if isinstance(baselines, tuple) else (baselines,)
            zero = finite & (low == 0) & (high == 0)
            found = {
                "not finite": _affected_rows(~finite, inputs, lambda xs: all(bool(x.isfinite().all()) for x in xs)),
                "zero": _affected_rows(zero, inputs, lambda xs: not all(_is_baseline(x, nothing) for x in xs)),
            }
            if values.shape[1] > 1 and not grouped:
                found["constant"] = int((finite & ~differ & ~zero).sum())
            known = "huge" in record.found
            if (finite & (size > HUGE)).any() and (known or record.comparisons < COMPARISONS):
                record.comparisons += 1
                limit = HUGE if known else HUGE * _plausible(inputs, outputs) ** (2 if squared else 1)
                found["huge"] = int((finite & (size > limit)).sum())
            with self._lock:
                for kind, count in found.items():
                    if count:
                        self._count(record, model, Finding(kind, method, count, record.checked))
        except Exception as error:  # the client's answer must not depend on this
            _logger.debug("native maps of %s could not be checked: %s", method, type(error).__name__)

    def findings(self, model: object) -> tuple[Finding, ...]:
        """The findings about a model, by method."""
        with self._lock:
            records = self._records(model).values()
            known = [record.found[kind] for record in records for kind in FINDINGS if kind in record.found]
        return tuple(finding for finding in known if finding._is_reported())

    def _count(self, record: _Record, model: object, new: Finding) -> None:
        before = record.found.get(new.kind)
        now = record.found[new.kind] = replace(new, maps=new.maps + (before.maps if before else 0))
        if self.logs and now._is_reported() and now.maps >= 10 * record.logged.get(now.kind, 0):
            record.logged[now.kind] = now.maps
            _logger.warning("%s: %s", _name(model), now)

    def _records(self, model: object) -> dict[str, _Record]:
        if modules := modules_of(model):
            return self._by_model.setdefault(unwrapped(modules[0]), {})
        return self._by_name.setdefault(_name(model), {})


_SERVICE = Watch()
_watching: ContextVar[Watch] = ContextVar("safexplain.native_maps", default=_SERVICE)


def watch() -> Watch:
    """The current watch: the service's, which logs, or that of `collecting`."""
    return _watching.get()


@contextmanager
def collecting() -> Iterator[Watch]:
    """Collect this thread's findings, and log nothing."""
    mine = Watch(logs=False)
    token = _watching.set(mine)
    try:
        yield mine
    finally:
        _watching.reset(token)


def _affected_rows(rows: NDArray[np.bool_], inputs: Sequence[Tensor], applies: Callable[[list[Tensor]], bool]) -> int:
    """How many of the flagged rows have inputs that meet a condition, or no one known input."""
    known = [x for x in inputs if x.dim() and len(x) == len(rows)]
    return sum(not known or applies([x[i] for x in known]) for i in np.flatnonzero(rows))


def _is_baseline(x: Tensor, baselines: Sequence[object]) -> bool:
    for nothing in (0.0, *baselines):
        if isinstance(nothing, Tensor) and nothing.shape[1:] == x.shape and nothing.dim():
            if bool((nothing == x).flatten(1).all(1).any()):
                return True
        elif isinstance(nothing, int | float) and bool((x == nothing).all()):
            return True
    return False


def _plausible(inputs: Sequence[Tensor], outputs: Callable[[], Tensor] | None) -> float:
    out = 1.0 if outputs is None else max(1.0, float(outputs().detach().abs().max()))
    largest = max((float(x.detach().abs().max()) for x in inputs if x.numel()), default=1.0)
    return out * max(1.0, 1 / max(largest, 1e-12))


def unwrapped(model: Any) -> Any:
    """The model inside `Probability` and `Logits`."""
    while isinstance(model, Probability | Logits):
        model = model.model
    return model


def _name(model: object) -> str:
    modules = modules_of(model)
    named = unwrapped(modules[0]) if modules else model
    return type(named).__name__ if modules else str(getattr(named, "__qualname__", type(named).__name__))
