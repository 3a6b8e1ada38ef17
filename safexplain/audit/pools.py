"""Several pools of examples, audited apart and judged together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from safexplain.audit.signals import Signals
from safexplain.errors import InputError


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
