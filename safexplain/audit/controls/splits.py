"""The splits of the examples for choosing, training and the verdict, and the copies that stay together.

What chose is not what certifies. An example's split depends only on its content, so nobody can draw another split by a
seed, by reordering rows, or by leaving rows out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from safexplain._digest import sha256
from safexplain.audit.signals import Signals, near
from safexplain.errors import InputError
from safexplain.verdict.evidence import Control
from safexplain.verdict.policy import Policy


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint sets of examples, (n,) bool; a group is in one set."""

    selection: NDArray[np.bool_]  # for choosing a configuration, any number of times
    training: NDArray[np.bool_]  # for attacks that learn and for the blind control
    certification: NDArray[np.bool_]  # for the verdict, once

    @classmethod
    def of(cls, signals: Signals, policy: Policy, *, trains: bool) -> Splits:
        """Split the examples pseudo-randomly, by the data alone.

        If examples have hashes (or inputs, which are hashed), an example's own hash, or the smallest of its group,
        decides, independently of other examples and their order. Without hashes shares are exact, and the split follows
        from the population's digest and the targets' members. Out-of-distribution examples are in no set; unless some
        attack or control `trains`, no example is used for training.
        """
        outside = signals.out_of_distribution
        inside = np.ones(len(signals), dtype=bool) if outside is None else ~outside
        place = np.full(len(signals), np.inf)
        groups = np.arange(len(signals)) if signals.groups is None else signals.groups
        if signals.groups is not None and signals.examples is not None:
            groups = _joined(groups, signals.examples)  # copies join their groups
        _, first, unit = np.unique(groups[inside], return_index=True, return_inverse=True)
        unit = np.argsort(np.argsort(first))[unit.reshape(-1)]  # numbered as they come
        if signals.examples is not None:
            smallest = np.full(len(first), np.iinfo(np.uint64).max, dtype=np.uint64)
            np.minimum.at(smallest, unit, near(signals.examples[inside]))
            place[inside] = (spread(smallest)[unit] >> np.uint64(11)) * 2.0**-53
        elif inside.any():
            members = np.packbits(signals.membership[list(signals.targets)]).tobytes()
            data = sha256(f"{signals.meta.get('population', '')}{signals.membership.shape}".encode() + members)
            drawn = np.random.default_rng(int(data[:16], 16)).permutation(len(first))
            place[inside] = drawn[unit] / len(first)
        training = policy.training if trains else 0.0
        chosen = place < policy.selection
        trained = ~chosen & (place < policy.selection + training)
        return cls(chosen, trained, ~chosen & ~trained & np.isfinite(place))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples in each."""
        return {name: int(getattr(self, name).sum()) for name in ("selection", "training", "certification")}


def spread(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A one-to-one map of hashes to uniform numbers: SplitMix64's finaliser (Steele, Lea & Flood, OOPSLA 2014)."""
    z = hashes + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


CLOSE = 1e-6  # largest relative difference of any number between exact copies, to allow for rounding


def copies_of(hashes: NDArray[np.uint64], x: NDArray[Any] | None) -> NDArray[np.int64]:
    """(n,) a number for each example, the same for copies: equal hashes or, with (n, ...) inputs, near-duplicates
    within `CLOSE`."""
    _, which = np.unique(hashes if x is None else near(hashes), return_inverse=True)
    which = which.reshape(-1).astype(np.int64)
    if x is None:
        return which
    rows, fresh = x.reshape(len(x), -1), int(which.max(initial=-1)) + 1
    for several in np.flatnonzero(np.bincount(which) > 1):
        left = np.flatnonzero(which == several)
        while len(left):
            far = np.abs(rows[left] - rows[left[0]]) > CLOSE * np.abs(rows[left[0]]) + 1e-12
            alike = ~far.any(1)
            which[left[alike]] = fresh
            left, fresh = left[~alike], fresh + 1
    return which


def refuse_copies(
    copies: NDArray[np.int64], member: NDArray[np.bool_], out_of_distribution: NDArray[np.bool_] | None = None
) -> None:
    """Raise InputError if a member is a copy of a non-member (`copies_of`), so that its membership is undefined.
    Several targets, (targets, n), are checked one by one."""
    at = np.arange(len(copies)) if out_of_distribution is None else np.flatnonzero(~out_of_distribution)
    _, which = np.unique(copies[at], return_inverse=True)
    for one in np.atleast_2d(member)[:, at]:
        mixed = (np.bincount(which, one) > 0) & (np.bincount(which, ~one) > 0)
        if not mixed.any():
            continue
        both = np.flatnonzero(mixed[which])
        pairs = []
        for copy in np.unique(which[both])[:5]:
            same = both[which[both] == copy]
            pairs.append(f"{at[same[one[same]][0]]} and {at[same[~one[same]][0]]}")
        raise InputError(
            f"{int((mixed[which] & one).sum())} members are exact copies of {int((mixed[which] & ~one).sum())}"
            f" non-members (examples {', '.join(pairs)}{', ...' if mixed.sum() > len(pairs) else ''}): the membership"
            " of such an example is undefined. Keep one copy of each, or all its copies on one side, and train again;"
            " or drop all copies that are on both sides (--drop-copies)"
        )


def copies_together(signals: Signals) -> tuple[Signals, Control]:
    """Signals with copies in one group, as copies are not independent, and the control that reports them.
    Signals without hashes or inputs are returned unchanged; raises as `refuse_copies`."""
    name, hashes = "exact copies", signals.examples
    if hashes is None:
        says = "the signals hold neither inputs nor hashes of the examples, so exact copies cannot be looked for"
        return signals, Control(name, None, says, {})
    which = copies_of(hashes, signals.inputs)
    refuse_copies(which, signals.membership[list(signals.targets)], signals.out_of_distribution)
    copies = len(which) - len(np.unique(which))
    if not copies:
        return signals, Control(name, False, "no two examples are equal", {"copies": 0.0})
    groups = _joined(np.arange(len(hashes)) if signals.groups is None else signals.groups, which)
    says = f"{copies} examples are exact copies of others on the same side: copies count as one example"
    return replace(signals, groups=groups), Control(name, False, says, {"copies": float(copies)})


def _joined(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) the finest grouping that is coarser than two given ones."""
    (first, a), (second, b) = (np.unique(g, return_inverse=True) for g in (one, other))
    size, a, b = len(first) + len(second), a.reshape(-1), b.reshape(-1) + len(first)
    _, component = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(size, size)), directed=False)
    joined: NDArray[np.int64] = component[a].astype(np.int64)
    return joined
