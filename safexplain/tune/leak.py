"""How much an explanation adds to the label, at one query, fast enough for a hundred trials.

The attacks are those of `safexplain.audit.attacks.suite`, each stacked with what the label (or prediction) tells, and
read off many models instead of one: some models play the target so that the stacks can be fitted, all others are
targets, and each is scored with all models but itself as references. What learns from maps and boosted trees is left
out, of the baseline as of the stacks: it takes longer than a trial may, and the confirmation runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.boosted import Boosted
from safexplain.audit.attacks.scoring import scores_of
from safexplain.audit.attacks.stacked import Stacked
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.verdict.evidence import is_judged
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc

FPRS = (0.005, 0.01, 0.02, 0.05)
"""False-positive rates over which the excess is averaged."""

FEWEST_REFERENCES = 4
"""Reference models with fewer of which nothing can be stacked."""

PLAYERS = 8
"""Models that play the target to fit the stacks, at most; as many are left to be targets."""

FEW, MANY = 4, 16
"""Targets that are looked at first, and where a point may be on the front; at most."""

RESAMPLES = 100
"""Draws of examples and targets behind a standard error."""

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Leakage:
    """What the best attack adds to the label, of those that `Stacked` sees to add something on models in its place.

    That of all scores together counts in any case, so that a small leak is told from none.
    """

    excess: float  # mean over targets and `FPRS` of its TPR less the label's; nobody has to use it, so at least 0
    error: float  # standard error, by resampling examples and targets together; also where the excess is 0
    attack: str  # its name and signal; "" where none adds anything
    targets: int  # models that were attacked


class LeakMeter:
    """Attacks releases of the same models, the audited one first, about the same examples, (m, n) bool membership.

    `known` is what is known without an explanation: "label" (m, n), and "loss" and "margin" where the policy releases
    predictions. Of the policy, the release and the false-positive rate count: one query is asked, and every attack run.
    Examples of one of the (n,) `groups` are resampled together.

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
        if m - 1 < FEWEST_REFERENCES:
            raise InputError(f"a search needs at least {FEWEST_REFERENCES} reference models; got {m - 1}")
        sides = membership.any(1) & ~membership.all(1)
        if not sides.all():
            raise InputError(
                f"models {np.flatnonzero(~sides).tolist()} have members only, or none, among the {n} examples of the"
                " selection split; give more examples, or a larger share of them (Policy.selection)"
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
        """What the explanations add, from (m, n) or (m, n, k) summaries of the released (m, n, d) maps by name."""
        signals = Signals(self.membership, {**self._known, **values}, maps, {})
        rows = [
            row
            for row in map(_fast, fitting(signals, self.policy))
            if row is not None and (row.baseline or is_judged(row.role, self.policy, "excess"))
        ]
        if not any(row.baseline for row in rows):
            raise InputError("the labels of the models are not known, and a leak is what is added to them")
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
        """(reads, n) scores by an attack that is no stack; what no explanation changes is kept."""
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
