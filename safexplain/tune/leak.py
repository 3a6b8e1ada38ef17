"""How much an explanation adds to the label, at one query, fast enough for a hundred trials.

Stacks of the suite are fitted to some models that play the target, all others are targets, and each model is scored
with all others as references. Boosted trees and attacks that learn from maps are left to the confirmation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.pseudo_targets import Boosted, Stacked
from safexplain.audit.attacks.scoring import scores_of
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.verdict.evidence import is_judged
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc

FPRS = (0.005, 0.01, 0.02, 0.05)  # false-positive rates over which the excess is averaged
MIN_REFERENCES = 4  # fewest reference models for stacks
PLAYERS = 8  # most models that play the target to fit the stacks; at least as many are targets
FEW, MANY = 4, 16  # most targets attacked first, and for points that may be on the front
RESAMPLES = 100  # draws of examples and targets behind a standard error

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Leakage:
    """What the best attack adds to the label, among those that `Stacked` finds to add something on held-out models, and
    the stack of all scores, so that small leaks are measured."""

    excess: float  # mean over targets and `FPRS` of its TPR minus the label's, at least 0
    error: float  # standard error, by resampling examples and targets together; also where the excess is 0
    attack: str  # its name and signal; "" if none adds anything
    targets: int  # number of attacked models


class LeakMeter:
    """Attacks releases of the same models, the audited one first, for the same examples; (m, n) bool membership.

    `known` are signals without an explanation: "label" (m, n), and "loss" and "margin" if the policy releases
    predictions. Examples of one of the (n,) `groups` are resampled together.

    Raises:
        InputError: too few models, or examples on one side only.
    """

    def __init__(
        self,
        membership: Bools,
        known: Mapping[str, Array],
        policy: Policy,
        *,
        groups: NDArray[np.integer[Any]] | None = None,
        seed: int = 0,
    ) -> None:
        m, n = membership.shape
        if m - 1 < MIN_REFERENCES:
            raise InputError(
                f"references: expected at least {MIN_REFERENCES} reference models for a search, got {m - 1}"
            )
        sides = membership.any(1) & ~membership.all(1)
        if not sides.all():
            raise InputError(
                f"expected members and non-members among the {n} examples of the selection split, got one kind only for"
                f" models {np.flatnonzero(~sides).tolist()}; give more examples, or a larger share (Policy.selection)"
            )
        self.membership, self.policy = membership, replace(policy, patience=(1,), suite=())
        self._known = dict(known)
        order = 1 + np.random.default_rng([seed, 0x7E57]).permutation(m - 1)
        playing = min(PLAYERS, (m - 1) // 2)
        self.players: list[int] = np.sort(order[:playing]).tolist()
        self.targets: list[int] = [0, *np.sort(order[playing:]).tolist()]
        units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        rng = np.random.default_rng([seed, 0xB007])
        drawn = rng.multinomial(units.max() + 1, np.full(units.max() + 1, 1 / (units.max() + 1)), size=RESAMPLES)
        self._weights = drawn[:, units].astype(np.float64)
        self._drawn_targets = rng.random((RESAMPLES, len(self.targets)))
        self._of_known: dict[SuiteRow, dict[int, Array]] = {}

    def excess(self, values: Mapping[str, Array], maps: NDArray[np.floating[Any]], targets: Sequence[int]) -> Leakage:
        """The leak of released (m, n, d) maps and their (m, n) or (m, n, k) summaries by name."""
        signals = Signals(self.membership, {**self._known, **values}, maps, {})
        rows = [
            row
            for row in map(_fast, fitting(signals, self.policy))
            if row is not None and (row.baseline or is_judged(row.role, self.policy, "excess"))
        ]
        if not any(row.baseline for row in rows):
            raise InputError("known: expected the labels of the models, to which a leak is compared; got none")
        reads, columns = [*self.players, *targets], dict[SuiteRow, Array]()
        adding, baseline, members = {}, np.empty(0), self.membership[list(targets)]
        for row in rows:
            scores, adds = self._stack(row, signals, columns, reads, always=row is rows[-1])
            if row.baseline:
                baseline = scores[len(self.players) :]
            elif adds:
                adding[f"{row.name} on {row.signal}"] = scores[len(self.players) :]
        if not adding:
            return Leakage(0.0, 0.0, "", len(targets))
        tpr = {name: np.mean([rates(*one) for one in zip(s, members, strict=True)]) for name, s in adding.items()}
        best = max(tpr, key=tpr.__getitem__)
        mean = float(tpr[best] - np.mean([rates(*one) for one in zip(baseline, members, strict=True)]))
        error = self._error(adding[best], baseline, members)
        return Leakage(max(mean, 0.0), error, best if mean > 0 else "", len(targets))

    def _stack(
        self, row: SuiteRow, signals: Signals, columns: dict[SuiteRow, Array], reads: Sequence[int], *, always: bool
    ) -> tuple[Array, bool]:
        """(reads, n) scores of a stack that is fitted on the players, and whether it adds to its first column."""
        for column in row.columns:
            if column not in columns and column.columns:
                columns[column] = self._stack(column, signals, columns, reads, always=False)[0]
            elif column not in columns:
                columns[column] = self._column(column, signals, reads)
        features = np.stack([columns[column] for column in row.columns], axis=-1)
        assert isinstance(row.attack, Stacked)
        players = features[: len(self.players)]
        fitted = row.attack.fit(players, self.membership[self.players], always=always)
        return np.stack([fitted.scores(one) for one in features]), fitted.adds

    def _column(self, row: SuiteRow, signals: Signals, reads: Sequence[int]) -> Array:
        """(reads, n) scores by an attack that is no stack; those without an explanation are cached."""
        everyone = np.arange(len(self.membership))
        kept = {} if row.explains else self._of_known.setdefault(row, {})
        if missing := [read for read in reads if read not in kept]:
            kept |= dict(zip(missing, scores_of(row, signals, missing, everyone), strict=True))
        return np.stack([kept[read] for read in reads])

    def _error(self, scores: Array, baseline: Array, members: Bools) -> float:
        """Standard error of the mean excess of (targets, n) scores: examples and targets are drawn again."""
        drawn = [
            resampled_rates(attack, member, self._weights) - resampled_rates(base, member, self._weights)
            for attack, base, member in zip(scores, baseline, members, strict=True)
        ]
        at = (self._drawn_targets[:, : len(members)] * len(members)).astype(np.int64)
        return float(np.take_along_axis(np.stack(drawn, axis=1), at, axis=1).mean(1).std(ddof=1))


def _fast(row: SuiteRow) -> SuiteRow | None:
    """The row without what takes long; None where no stack of something is left."""
    if not isinstance(row.attack, Stacked):
        return None
    columns = [c if not c.columns else _fast(c) for c in row.columns]
    kept = tuple(c for c in columns if c is not None and not c.learns and not isinstance(c.attack, Boosted))
    if not kept or (not row.baseline and len(kept) < 2):
        return None
    return replace(row, columns=kept)


def rates(scores: Array, member: Bools) -> float:
    """Mean over `FPRS` of the true-positive rate, between thresholds by straight lines (ties broken at random)."""
    curve = roc(scores, member)
    return float(np.interp(FPRS, curve.fpr, curve.tpr).mean())


def resampled_rates(scores: Array, member: Bools, weights: Array) -> Array:
    """(b,) `rates` where example i stands weights[b, i] times; 0 where one side is not drawn."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(ordered[1:] != ordered[:-1], True)
    found = []
    for side in (member, ~member):
        counts = np.cumsum((weights * side)[:, order], axis=1)[:, ends]
        found.append(np.concatenate([np.zeros((len(counts), 1)), counts / np.maximum(counts[:, -1:], 1)], axis=1))
    tpr, fpr = found
    return np.array([np.interp(FPRS, f, t).mean() for f, t in zip(fpr, tpr, strict=True)])
