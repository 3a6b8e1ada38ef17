"""Signals: what each model released about each example, and who was a member. Also a file format (.npz).

Signals of several pools of examples are put side by side, so that their targets are judged together.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._files import UNWRITABLE, read_arrays, write_arrays
from safexplain.errors import InputError

Numbers = NDArray[np.floating[Any]]

RESERVED = ("membership", "attributions", "inputs", "out_of_distribution", "meta")
"""Names that the format takes, so that no signal can have them."""


@dataclass(frozen=True, eq=False)
class Signals:
    """Released numbers of m models about n examples.

    File format, an .npz of plain arrays:

        membership           bool (m, n): which model was trained on which example
        l1, loss, ...        numbers (m, n), or (m, n, k) for k numbers about one example; any other name is a signal
        attributions         optional float (m, n, d): whole maps, flattened
        inputs               optional float (n, ...): what was asked about
        out_of_distribution  optional bool (n,): examples from another source that no model was trained on
        meta                 optional JSON object as a string

    Of `meta`, `targets` lists the models that may be attacked (default: all trained ones; each example is then scored
    once, against one of them), `null` the untrained models, `shape` is the shape of one map, and `population` the
    digest of what was asked about. Everything else is kept as it is.

    Args:
        membership: (m, n) bool.
        values: name -> (m, n) or (m, n, k) numbers.
        attributions: (m, n, d) float or None.
        meta: JSON-able.
        inputs: (n, ...) float or None.
        out_of_distribution: (n,) bool or None; only used to train attacks.

    Raises:
        InputError: shapes disagree, values are not finite, a null model or an example out of distribution has
            membership, or there is nothing to attack.
    """

    membership: NDArray[np.bool_]
    values: Mapping[str, Numbers]
    attributions: Numbers | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    inputs: Numbers | None = None
    out_of_distribution: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        m, outside = self.membership, self.out_of_distribution
        if m.ndim != 2 or m.dtype != np.bool_:
            raise InputError(f"membership must be bool of shape (models, examples), got {m.dtype} {m.shape}")
        if not self.values and self.attributions is None:
            raise InputError("there is no signal to attack: expected arrays such as l1, l2, loss or attributions")
        if taken := sorted(self.values.keys() & {*RESERVED, *UNWRITABLE}):
            raise InputError(f"no signal can be called {', '.join(taken)}: the file format uses that name; rename it")
        for name, a in self.values.items():
            if a.ndim not in (2, 3) or a.shape[:2] != m.shape or a.shape[2:] == (0,) or a.dtype.kind not in "fiub":
                raise InputError(
                    f"signal {name!r} must be numbers of shape {m.shape} or {m.shape} + (k,), got {a.dtype} {a.shape}"
                )
            if not np.isfinite(a).all():
                raise InputError(f"signal {name!r} has {int((~np.isfinite(a)).sum())} NaN or infinite values")
        a3, x = self.attributions, self.inputs
        if a3 is not None and (a3.ndim != 3 or a3.shape[:2] != m.shape or a3.dtype.kind != "f"):
            raise InputError(f"attributions must be floats of shape {m.shape} + (features,), got {a3.dtype} {a3.shape}")
        if x is not None and (x.shape[:1] != m.shape[1:] or x.dtype.kind != "f"):
            raise InputError(f"inputs must be floats of shape ({self.examples}, ...), got {x.dtype} {x.shape}")
        for name, floats in (("attributions", a3), ("inputs", x)):
            if floats is not None and not np.isfinite(floats).all():
                raise InputError(f"{name} have NaN or infinite values")
        if outside is not None and (outside.dtype != np.bool_ or outside.shape != m.shape[1:]):
            raise InputError(
                f"out_of_distribution must be bool of shape ({self.examples},), got {outside.dtype} {outside.shape}"
            )
        if outside is not None and m[:, outside].any():
            raise InputError(
                f"{int(m[:, outside].any(0).sum())} examples out of distribution are members of some model;"
                " mark only examples that no model was trained on"
            )
        if trained := [i for i in self.null if m[i].any()]:
            raise InputError(f"models {trained} are null models, but have members; a null model was trained on nothing")
        if not self.models:
            raise InputError("all models are null models; at least one must be trained")
        if not self.targets:
            raise InputError(f"meta['targets'] must name models 0 .. {len(m) - 1}, got []")
        if self.shape is not None and a3 is not None and math.prod(self.shape) != a3.shape[2]:
            raise InputError(f"meta['shape'] {list(self.shape)} does not fit attributions of {a3.shape[2]} numbers")

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.membership.shape[1])

    @property
    def null(self) -> tuple[int, ...]:
        """The null models: untrained, asked the same, so that what is found in them is not membership."""
        return self._models("null", ())

    @property
    def models(self) -> tuple[int, ...]:
        """The trained models."""
        null = set(self.null)
        return tuple(i for i in range(len(self.membership)) if i not in null)

    @property
    def targets(self) -> tuple[int, ...]:
        """The models that are attacked."""
        return self._models("targets", self.models)

    def references(self, target: int) -> tuple[int, ...]:
        """The trained models that are not the target."""
        return tuple(i for i in self.models if i != target)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one map, where it is known."""
        sides = self.meta.get("shape")
        try:
            shape = None if sides is None else tuple(operator.index(s) for s in sides)
        except TypeError:
            shape = (0,)
        if shape is not None and min(shape, default=1) < 1:
            raise InputError(f"meta['shape'] must be a list of positive sizes, got {sides!r:.60}")
        return shape

    def _models(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        listed = self.meta.get(key, default)
        try:
            models = tuple(operator.index(i) for i in listed)
        except TypeError:
            raise InputError(f"meta[{key!r}] must be a list of models, got {listed!r:.60}") from None
        if any(not 0 <= i < len(self.membership) for i in models):
            raise InputError(f"meta[{key!r}] must name models 0 .. {len(self.membership) - 1}, got {list(models)}")
        return models

    def save(self, path: str | Path) -> None:
        """Write the .npz, all or nothing.

        Raises:
            InputError: it cannot be written.
        """
        optional = {name: getattr(self, name) for name in ("attributions", "inputs", "out_of_distribution")}
        meta = np.array(json.dumps(dict(self.meta)))
        present = {name: a for name, a in optional.items() if a is not None}
        write_arrays(path, {**self.values, **present, "membership": self.membership, "meta": meta})

    @classmethod
    def load(cls, path: str | Path) -> Signals:
        """Read an .npz in the format above; pickled arrays are refused.

        Raises:
            InputError: missing, not an .npz, without membership, or as the constructor.
        """
        arrays = read_arrays(path)
        if "membership" not in arrays:
            raise InputError(f"{path} has no array 'membership' (bool, models x examples); found {sorted(arrays)}")
        for name in ("membership", "out_of_distribution"):
            if name in arrays and arrays[name].dtype != np.bool_ and np.isin(arrays[name], (0, 1)).all():
                arrays[name] = arrays[name].astype(bool)
        member, maps, meta = arrays.pop("membership"), arrays.pop("attributions", None), arrays.pop("meta", None)
        optional = {name: arrays.pop(name, None) for name in ("inputs", "out_of_distribution")}
        return cls(member, arrays, maps, _meta(path, meta), **optional)


def _meta(path: str | Path, raw: NDArray[Any] | None) -> dict[str, Any]:
    if raw is None:
        return {}
    try:
        meta = json.loads(str(raw))
    except ValueError:
        return {"note": str(raw)}
    if not isinstance(meta, dict):
        raise InputError(f"{path}: meta must be a JSON object, got {meta!r:.60}")
    return meta


def side_by_side(parts: Sequence[Signals]) -> Signals:
    """One set of signals from audits of disjoint pools: row i holds model i of each, the examples follow each other.

    Reference models of one pool know nothing of another pool's examples, and need not: every attack looks at one
    example at a time.

    Args:
        parts: with equal numbers of models, the same signals and sizes, targets and null models. Of the meta data the
            first part's are kept; the digests of the populations are joined by "+".

    Raises:
        InputError: they differ in one of these.
    """
    first = parts[0]
    if any(_layout(p) != _layout(first) for p in parts):
        raise InputError(
            "only signals with the same models, names, features, targets and null models can be put side by side"
        )
    meta = dict(first.meta)
    digests = [p.meta.get("population") for p in parts]
    meta.pop("population", None)
    if all(digests):
        meta["population"] = "+".join(str(d) for d in digests)
    outside = None
    if any(p.out_of_distribution is not None for p in parts):
        flags = [np.zeros(p.examples, bool) if (o := p.out_of_distribution) is None else o for p in parts]
        outside = np.concatenate(flags)
    return Signals(
        np.concatenate([p.membership for p in parts], axis=1),
        {name: np.concatenate([p.values[name] for p in parts], axis=1) for name in first.values},
        None if first.attributions is None else np.concatenate([np.asarray(p.attributions) for p in parts], axis=1),
        meta,
        None if first.inputs is None else np.concatenate([np.asarray(p.inputs) for p in parts]),
        outside,
    )


def _layout(s: Signals) -> tuple[Any, ...]:
    """All that signals must have in common to stand side by side."""
    sizes = {name: a.shape[2:] for name, a in s.values.items()}
    maps = None if s.attributions is None else s.attributions.shape[2:]
    inputs = None if s.inputs is None else s.inputs.shape[1:]
    return len(s.membership), sizes, maps, inputs, s.targets, s.null, s.shape
