"""Which examples belong together, and what each is for: choosing, training, or the verdict.

What chose is not what certifies. An example's place depends on its content alone, so that nobody can draw another
split: neither by a seed, nor by another order of the rows, nor by leaving rows out.
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
    """Disjoint sets of examples, (n,) bool. Those of one group are in the same set."""

    selection: NDArray[np.bool_]  # for choosing a configuration, as often as one likes
    training: NDArray[np.bool_]  # for attacks that learn and for the blind control
    certification: NDArray[np.bool_]  # for the verdict, once

    @classmethod
    def of(cls, signals: Signals, policy: Policy, *, trains: bool) -> Splits:
        """Split the examples at random, by the data alone.

        Where examples have hashes (or inputs, which are hashed), each goes where its own hash says, or the smallest one
        of its group: other examples do not matter, nor does their order. Each set then holds about its share. Without
        hashes the shares are exact, and the split that of the population's digest and of who is a member of which
        target: another order or another row gives another split. Out-of-distribution examples belong to no set; unless
        some attack or control `trains`, no example is spent on training.
        """
        outside = signals.out_of_distribution
        inside = np.ones(len(signals), dtype=bool) if outside is None else ~outside
        place = np.full(len(signals), np.inf)
        groups = np.arange(len(signals)) if signals.groups is None else signals.groups
        if signals.groups is not None and signals.examples is not None:
            groups = _joined(groups, signals.examples)  # copies in several groups hold these together
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
        """Examples in each."""
        return {name: int(getattr(self, name).sum()) for name in ("selection", "training", "certification")}


def spread(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Other numbers in place of hashes, one for one, uniform where these (serial numbers, say) are not: the finaliser
    of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, figure 17)."""
    z = hashes + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


CLOSE = 1e-6
"""Relative difference of every number up to which two examples are called exact copies: others differ by rounding."""


def copies_of(hashes: NDArray[np.uint64], x: NDArray[Any] | None) -> NDArray[np.int64]:
    """(n,) a number for each example, the same for copies: those with one hash, or with (n, ...) inputs near-duplicates
    that are close."""
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
    """Raise InputError where a member is a copy of a non-member (`copies_of`): what is true of one copy would be false
    of the other. Of several targets, (targets, n), each is looked at on its own."""
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
            f" non-members (examples {', '.join(pairs)}{', ...' if mixed.sum() > len(pairs) else ''}): whether such an"
            " example is a member has no answer. Keep one copy of each, or all its copies on one side, and train"
            " again; or leave all copies that are on both sides out (--drop-copies)"
        )


def copies_together(signals: Signals) -> tuple[Signals, Control]:
    """Signals in which copies are in one group, and a line that says so: a copy is no independent example.
    Signals without hashes or inputs are returned as they are; raises as `refuse_copies`."""
    name, hashes = "exact copies", signals.examples
    if hashes is None:
        says = "neither inputs nor hashes of the examples are in the signals, so exact copies cannot be looked for"
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
    """(n,) the finest grouping in which all that are together in one of two groupings are together."""
    (first, a), (second, b) = (np.unique(g, return_inverse=True) for g in (one, other))
    size, a, b = len(first) + len(second), a.reshape(-1), b.reshape(-1) + len(first)
    _, component = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(size, size)), directed=False)
    joined: NDArray[np.int64] = component[a].astype(np.int64)
    return joined
