"""`safexplain audit --quick`: a first look, with few reference models and examples. It certifies nothing.

Looking at a verdict is looking, and whoever chooses by it chooses on the examples that it was taken on. So a quick look
asks only about examples that the whole audit would not score (those set aside for choosing, and for training attacks):
it is no use of the examples of a certificate. Where there are too few of these it asks about all, and counts as a use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain._progress import named
from safexplain.audit import Policy, Population, Shadows, train_shadows
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.references.shadows import Repeated
from safexplain.audit.run import AuditOptions, Pool
from safexplain.audit.splits import Splits, copies_together

REFERENCES, EXAMPLES, PATIENCE = 4, 2_000, 5
"""Reference models, examples of the pool that they are trained on halves of, and queries about one example, at most."""

FEWEST = 50
"""Members, and non-members, that certify nothing; with fewer, all are asked about."""


@dataclass(frozen=True, eq=False)
class QuickLook:
    """What a quick look asks about.

    Args:
        pool: the examples of which reference models see one half each.
        member: (n,) bool, of the pool.
        asked: rows of the pool that are asked about.
        policy: the given one, with less patience.
        options: the given ones, with a note.
        references: how many.
    """

    pool: Population
    member: NDArray[np.bool_]
    asked: NDArray[np.int64]
    policy: Policy
    options: AuditOptions
    references: int

    @classmethod
    def of(
        cls,
        population: Population,
        member: NDArray[np.bool_],
        policy: Policy,
        options: AuditOptions,
        references: int,
        seed: int,
    ) -> QuickLook:
        """Of the arguments of the whole audit."""
        rng = np.random.default_rng([seed, 0x0C1C])
        signals, _ = copies_together(Pool(population, Shadows((torch.nn.Identity(),), member[None])).signals())
        spare = ~Splits.of(signals, policy, trains=True).certification
        free = min(int((spare & member).sum()), int((spare & ~member).sum())) >= FEWEST
        every = np.arange(len(population))
        asked = _drawn(every[spare] if free else every, population, member, EXAMPLES, rng)
        rest = np.setdiff1d(every, asked)
        others = _drawn(rest, population, member, EXAMPLES - len(asked), rng)
        rows = np.sort(np.concatenate([asked, others]))
        levels = tuple(sorted({min(level, PATIENCE) for level in policy.patience}))
        less = replace(policy, patience=levels)
        if free:
            less = replace(less, selection=0.0, training=0.0, uncounted=True)
        few = min(references, REFERENCES)
        often = f"at most {max(levels)} queries" if max(levels) > 1 else "one query"
        note = (
            f"A quick look: {few} reference models, {len(asked):,} of {len(population):,} examples, {often} about each."
            " A leak that it proves is one; it certifies nothing."
        )
        note += (
            " None of these examples would be scored by the whole audit, whose certificate it does not touch."
            if free
            else " The whole audit leaves too few examples aside, so all were asked about, and this counts as a use."
        )
        slices = {name: np.asarray(values)[rows] for name, values in options.slices.items()}
        at = torch.from_numpy(rows)
        groups = None if population.groups is None else population.groups[rows]
        return cls(
            Population(population.x[at], population.y[at], groups),
            member[rows],
            np.flatnonzero(np.isin(rows, asked)),
            less,
            replace(options, slices=slices, quick=True, notes=(*options.notes, note)),
            few,
        )

    def arguments(self, given: Mapping[str, Any], *, planned: bool) -> dict[str, Any]:
        """Those of `audit` (or `plan_audit`), reference models trained on the pool and asked about some of it.

        Args:
            given: of the whole audit, with the pool as population.
            planned: nothing is trained.
        """
        shadows, rows = given.get("shadows"), self.asked
        at = torch.from_numpy(rows)
        groups = None if self.pool.groups is None else self.pool.groups[rows]
        few = Population(self.pool.x[at], self.pool.y[at], groups)
        slices = {name: values[rows] for name, values in self.options.slices.items()}
        changed = {"population": few, "member": self.member[rows], "options": replace(self.options, slices=slices)}
        if planned:
            return {**given, **changed, "trained_on": self.pool}
        if shadows is None and given["recipe"] is not None and self.references:
            target = None if isinstance(given["model"], Endpoint) else given["model"]
            repeated = Repeated.of(given["recipe"], given["build"], target, given["member"])
            shadows = train_shadows(
                self.pool,
                given["recipe"],
                build=repeated.build,
                models=self.references,
                members=repeated.members,
                seed=given["seed"],
                device=given["device"],
                cache=given["cache"],
                progress=named(given["progress"], "training reference models"),
            )
        if shadows is not None:
            shadows = Shadows(shadows.models, shadows.membership[:, rows])
        return {**given, **changed, "shadows": shadows}


def _drawn(
    rows: NDArray[np.int64], population: Population, member: NDArray[np.bool_], most: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """At most so many of the rows, the same number of members and non-members if possible, of each class its share."""
    y = population.y.cpu().numpy()
    sides = [rows[member[rows]], rows[~member[rows]]]
    fewer = min(len(side) for side in sides)
    each = [min(len(side), max(most // 2, most - fewer)) for side in sides]
    found = []
    for side, number in zip(sides, each, strict=True):
        order = side[np.lexsort((rng.random(len(side)), y[side]))]
        if number > 0:
            found.append(order[np.linspace(0, len(order) - 1, number).round().astype(np.int64)])
    return np.sort(np.concatenate(found)) if found else rows[:0]
