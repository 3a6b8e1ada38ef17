"""Which attacks are run: a table of rows, fixed before anything is measured.

At every level of the policy's patience there are the attacks on the explanation alone, the baseline (what is known
without an explanation: the labels of the same queries, with the probabilities where these are released), and one stack
of all of them, which is compared with the baseline. Why these rows and no others: docs/evidence/attack_table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks import (
    RMIA,
    Attack,
    JointLikelihoodRatio,
    LabelLikelihoodRatio,
    Learned,
    LikelihoodRatio,
    Threshold,
)
from safexplain.audit.attacks.boosted import Boosted
from safexplain.audit.attacks.likelihood.joint import MOST_COLUMNS
from safexplain.audit.attacks.likelihood.ratio import PooledDensityRatio
from safexplain.audit.attacks.patience import OwnLabelRatio, log_odds
from safexplain.audit.attacks.recourse import CounterfactualDistance, CounterfactualLRT
from safexplain.audit.attacks.stacked import Stacked
from safexplain.audit.maps import blocks
from safexplain.audit.signals import Signals
from safexplain.errors import ConfigurationError, InputError, near
from safexplain.verdict.evidence import WHOLE_MAP, Role, at_level, split_level
from safexplain.verdict.policy import Policy

Numbers = NDArray[np.floating[Any]]


VIEWS: dict[str, Callable[[Numbers], Numbers]] = {"sign": lambda a: np.sign(a).astype(np.float32)}
"""What clipping and normalisation leave of a map: the sign of each entry."""


@dataclass(frozen=True)
class SuiteRow:
    """One attack on one signal, or on several read together.

    Args:
        name: of the attack.
        attack: what scores; of a stack, what joins the scores of its columns.
        signal: name in the file; several joined by "+" are columns of one vector; "attributions:sign" is a view. A
            stack has no signal of its own: its name says what its columns read.
        role: what is read.
        level: how often the attacker asks about each example.
        columns: of a stack, the attacks whose scores it joins; the first is the one that it must beat.
        baseline: whether it is what is known without an explanation at this level, which the others are compared with.
    """

    name: str
    attack: Attack
    signal: str
    role: Role
    level: int = 1
    columns: tuple[SuiteRow, ...] = ()
    baseline: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the signals that must be there."""
        if self.columns:
            return tuple(dict.fromkeys(part for column in self.columns for part in column.parts))
        return tuple(part.partition(":")[0] for part in self.signal.split("+"))

    @property
    def title_signal(self) -> str:
        """Name of what is read, as results have it."""
        return self.signal

    @property
    def learns(self) -> bool:
        """Whether it is trained on examples, which then certify nothing."""
        return isinstance(self.attack, Learned) or any(column.learns for column in self.columns)

    @property
    def needs_references(self) -> bool:
        """Whether it compares with reference models."""
        return not isinstance(self.attack, Threshold)


WHOLE_PREDICTION = ("prediction", "predictions")
"""Signals of it that need no label: the log odds of every class, and those of several queries one by one."""

SUMMARY = ("l1", "mean", "positive")
"""Summary numbers of a map: its size, and the balance of its signs, which no clipping and no scaling takes away."""

OF_LABELS = ("label", "kept", "shares")
"""Signals of the labels of the same queries."""

PREDICTION = ("loss", "margin")
"""Signals of a service that releases probabilities, of the example's own label."""

FEWEST_TO_LEARN = 4
"""Reference models below which nothing is learned from them."""

MOST_BOOSTED = 12
"""Columns of the signal that boosted trees read, at most."""

IDENTITY = LikelihoodRatio("identity")

WITHOUT_REFERENCES: tuple[SuiteRow, ...] = (
    SuiteRow("Threshold", Threshold(), "l1", "explanation"),
    SuiteRow("Threshold", Threshold(), "variance", "explanation"),
    SuiteRow("Threshold", Threshold(), "loss", "loss"),
)
"""Run where there are fewer than two reference models, instead of all others; at one query."""

EXPLANATION: tuple[SuiteRow, ...] = (
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), s, "explanation") for s in SUMMARY),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), f"{WHOLE_MAP}:{view}", "explanation") for view in VIEWS),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "class_l1", "explanation"),
    SuiteRow("Learned", Learned(), WHOLE_MAP, "explanation"),
)
"""Of the explanation, at every level (`Learned` at one query). Any signal that no table names is read too, by
`LikelihoodRatio`, though others that the library computes were seen to add nothing: a file of somebody else's may leak
there alone."""

LABELS: tuple[SuiteRow, ...] = (
    SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label"),
    SuiteRow("LikelihoodRatio", IDENTITY, "kept", "label"),
    SuiteRow("OwnLabelRatio", OwnLabelRatio(), "label+shares", "label"),
    SuiteRow("LikelihoodRatio", IDENTITY, "shares", "label"),
)
"""Of the labels, stacked as "LabelPatience"; the label of the plain query is known at every level."""

PREDICTIONS: tuple[SuiteRow, ...] = (
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "margin", "loss"),
    SuiteRow("RMIA", RMIA(), "loss", "loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio("identity"), "prediction", "loss"),
)
"""Of predictions, at every level; stacked with those of the labels as "PredictionPatience"."""

RECOURSE: tuple[SuiteRow, ...] = (
    SuiteRow("CounterfactualDistance", CounterfactualDistance(), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-global", CounterfactualLRT("global"), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-local", CounterfactualLRT("local"), "distance", "explanation"),
    SuiteRow("SignedDistance", CounterfactualDistance(), "signed_distance", "explanation"),
    SuiteRow("SignedDistanceLRT", IDENTITY, "signed_distance", "explanation"),
    SuiteRow("SignedDistanceDensity", PooledDensityRatio(), "signed_distance", "explanation"),
    SuiteRow("LikelihoodRatio", IDENTITY, "score", "explanation"),
    SuiteRow("DirectionAttack", Threshold(member_when_low=False), "recovered_margin", "explanation"),
    SuiteRow("DirectionLRT", IDENTITY, "recovered_margin", "explanation"),
    SuiteRow("DirectionDensity", PooledDensityRatio(), "recovered_margin", "explanation"),
    SuiteRow("DirectionLRT", IDENTITY, "regressed_margin", "explanation"),
    SuiteRow("DirectionDensity", PooledDensityRatio(), "regressed_margin", "explanation"),
    SuiteRow("AveragingAttack", CounterfactualLRT(), "averaged_distance", "explanation"),
)
"""Attacks on recourse: by its distance, by margins from the boundary that its directions (or the scores) tell, and by
the distance averaged over many answers, in which noise cancels out; run where `meta` says, under "recourse", how it was
asked for (`audit.collect_recourse`)."""

SUITE = (*WITHOUT_REFERENCES, *EXPLANATION, *LABELS, *PREDICTIONS, *RECOURSE)
"""All single attacks; `fitting` adds the levels and the stacks."""

STACKS = ("LabelPatience", "PredictionPatience", "Stacked")

NAMES = frozenset({*STACKS, *(r.name for r in SUITE if r.name != "OwnLabelRatio")})
"""Names that `Policy.suite` may list."""


def check_suite(policy: Policy) -> None:
    """A policy's suite names attacks that there are.

    Raises:
        ConfigurationError: an attack that is not known.
    """
    if wrong := sorted(set(policy.suite) - NAMES):
        known = ", ".join(sorted(NAMES))
        raise ConfigurationError(
            f"policy: unknown attacks {wrong} in the suite; expected some of {known}{near(wrong[0], NAMES)}"
        )


def fitting(signals: Signals, policy: Policy | None = None) -> list[SuiteRow]:
    """The rows whose signals are there and whose reference models are enough, level by level; other signals too.

    Args:
        signals: of any pipeline.
        policy: whose patience, release and suite are looked at; default `Policy()`.

    Raises:
        ConfigurationError: the policy's suite names an attack that is not known.
    """
    policy = policy or Policy()
    check_suite(policy)
    rows = [row for level in policy.patience for row in _rows(signals, policy, level)]
    if not policy.suite:
        return rows
    kept = {*policy.suite, "Stacked"}  # which joins the attacks that are named
    levels = {r.level for r in rows if r.name in kept}
    return [r for r in rows if r.name in kept or (r.baseline and r.level in levels)]


def families_allowed(signals: Signals, policy: Policy | None = None) -> tuple[str, ...]:
    """Names of the attacks that the complete suite would run on these signals, whatever the policy's suite says."""
    return tuple(dict.fromkeys(r.name for r in fitting(signals, replace(policy or Policy(), suite=()))))


def _rows(signals: Signals, policy: Policy, level: int) -> list[SuiteRow]:
    """Those of one level."""
    explained = [] if policy.release == "prediction" else _explanation(signals, policy, level)
    predicted = _there(signals, level, _table(PREDICTIONS, signals, policy), "loss")
    labels = _labels(signals, level)
    rows = [*explained, *(r for r in labels if r.signal == "label" and level == 1), *predicted]
    if len(signals.models) - 1 < FEWEST_TO_LEARN:
        return rows

    def stack(name: str, signal: str, role: Role, columns: Iterable[SuiteRow], baseline: bool = False) -> SuiteRow:
        return SuiteRow(name, Stacked(policy.fpr), signal, role, level, tuple(columns), baseline)

    beside = predicted if policy.release != "explanation" else []
    if labels:
        rows.append(stack("LabelPatience", at_level("label", level), "label", labels, not beside))
    if beside:
        signal, compared = at_level("prediction", level), policy.release != "prediction"
        rows.append(stack("PredictionPatience", signal, "loss", [*beside, *labels], compared))
    baseline = [r for r in rows if r.baseline]
    plain = _explanation(signals, policy, 1) if level > 1 and policy.release != "prediction" else []  # is asked too
    trees = _trees(signals, level, [*explained, *beside], bool(labels)) if baseline and not _chosen(policy) else []
    explained = [*explained, *trees, *plain]
    if not explained or len(columns := [*baseline, *explained]) < 2:
        return rows
    role, what = ROLES[baseline[0].name if baseline else ""]
    if what == "loss" and not any(_has(signals, at_level(s, level)) for s in PREDICTION):
        what = "prediction"  # there is no loss of foreign labels
    signal = "+".join((at_level("explanation", level), *([what] if what else [])))
    return [*rows, stack("Stacked", signal, role, columns)]


ROLES: dict[str, tuple[Role, str]] = {
    "LabelPatience": ("explanation+label", "label"),
    "PredictionPatience": ("explanation+loss", "loss"),
    "": ("explanation", ""),
}
"""Baseline -> what is read by all attacks on the explanation stacked with it, and what this adds to the name."""


def _chosen(policy: Policy) -> frozenset[str]:
    """The single attacks that a policy names, where it does not name the stack of all."""
    return frozenset() if "Stacked" in policy.suite else frozenset(policy.suite) - {*STACKS}


def _table(table: tuple[SuiteRow, ...], signals: Signals, policy: Policy) -> list[SuiteRow]:
    """The rows of a table that the policy wants, and thresholds where there is nothing to compare with."""
    chosen = _chosen(policy)
    if chosen:
        return [r for r in (*table, *WITHOUT_REFERENCES) if r.name in chosen]
    return [*table, *(() if _compared(signals) else WITHOUT_REFERENCES)]


def _explanation(signals: Signals, policy: Policy, level: int) -> list[SuiteRow]:
    """Attacks on the explanation alone; one of them stays even if nothing in it ever differs."""
    recourse = "recourse" in signals.meta
    alone = () if _compared(signals) else WITHOUT_REFERENCES
    read = [*EXPLANATION, *alone, *LABELS, *PREDICTIONS, *(RECOURSE if recourse else ())]
    named = {part for row in read for part in row.parts} | {*WHOLE_PREDICTION}
    own = [name for name, at in map(split_level, signals.values) if at == level]
    others = [s for s in own if s not in named and not s.startswith("label")]
    first = (EXPLANATION if _compared(signals) else WITHOUT_REFERENCES)[0]
    also = [replace(first, signal=s) for s in others]  # by a likelihood ratio, or a threshold
    table = (*EXPLANATION, *also, *(RECOURSE if recourse and level == 1 else ()))
    return _there(signals, level, _table(table, signals, policy), "explanation", one=True)


def _labels(signals: Signals, level: int) -> list[SuiteRow]:
    """Attacks on the labels of the same queries; none where these were not kept."""
    if "label" not in signals.values or (level > 1 and at_level("kept", level) not in signals.values):
        return []
    return _there(signals, level, LABELS, "label", one=True) if _compared(signals) else []


def _trees(signals: Signals, level: int, rows: list[SuiteRow], labelled: bool) -> list[SuiteRow]:
    """Boosted trees over the summary numbers (without these, all numbers) beside the labels of the same queries."""
    known = ["label", *([at_level("kept", level)] if level > 1 else [])] if labelled else []
    read = dict.fromkeys([*known, *(r.signal for r in rows)])
    numbers = [s for s in read if _width(signals, s) == 1 and (s == "label" or _varies(signals, s))]
    summary = {*known, *(at_level(s, level) for s in (*SUMMARY, *PREDICTION))} & {*numbers}
    chosen = [s for s in numbers if len(summary) == len(known) or s in summary][:MOST_BOOSTED]
    if len(chosen) <= len(known):
        return []
    role: Role = "explanation+label" if labelled else "explanation"
    return [SuiteRow("Boosted", Boosted(labels=int(labelled)), "+".join(chosen), role, level)]


def _there(signals: Signals, level: int, table: Iterable[SuiteRow], role: Role, one: bool = False) -> list[SuiteRow]:
    """The rows of a table that can be run at this level.

    Args:
        signals: of any pipeline.
        level: how often the attacker asks.
        table: of the plain query.
        role: of the rows wanted.
        one: one row stays even if nothing in it ever differs.
    """
    fit = [at for r in table if r.role == role and _fits(signals, at := _at(r, level))]
    return [r for r in fit if any(_varies(signals, part) for part in r.parts)] or (fit[:1] if one else [])


def _at(row: SuiteRow, level: int) -> SuiteRow:
    """The row at this level; the label of the plain query stays what it is."""
    parts = [part.partition(":") for part in row.signal.split("+")]
    names = [f"{name if name == 'label' else at_level(name, level)}{colon}{view}" for name, colon, view in parts]
    return replace(row, signal="+".join(names), level=level)


def _fits(signals: Signals, row: SuiteRow) -> bool:
    """Whether its signals are there, of a shape that it reads, and its references are enough."""
    widths = [_width(signals, part) for part in row.parts]
    if 0 in widths:
        return False
    width, references = sum(widths), len(signals.models) - 1
    if isinstance(row.attack, OwnLabelRatio):
        label = signals.values["label"]
        return bool(label.min() >= 0 and not (label % 1).any() and label.max() < widths[-1])
    if isinstance(row.attack, Learned):
        return row.level == 1 and references >= FEWEST_TO_LEARN
    alone = isinstance(row.attack, Threshold | RMIA | CounterfactualLRT | PooledDensityRatio | LabelLikelihoodRatio)
    most = 1 if alone else MOST_COLUMNS if isinstance(row.attack, JointLikelihoodRatio) else width
    once = isinstance(row.attack, Threshold | RMIA) and row.level > 1
    return width <= most and not once and (references >= 2 or not row.needs_references)


def _compared(signals: Signals) -> bool:
    """Whether there are references to compare with."""
    return len(signals.models) > 2


def _has(signals: Signals, name: str) -> bool:
    return _width(signals, name) > 0


def _width(signals: Signals, name: str) -> int:
    """Numbers an example; 0: it is not there."""
    values = signals.attributions if name == WHOLE_MAP else signals.values.get(name)
    return 0 if values is None else 1 if values.ndim == 2 else int(values.shape[2])


def _varies(signals: Signals, name: str) -> bool:
    """Whether a signal is not one number throughout, which would decide nothing."""
    values = values_of(signals, name)
    first = values[(0, 0, *[0] * (values.ndim - 2))] if values.size else 0
    return any(bool((part != first).any()) for _, _, part in blocks(values)) if values.size else False


def _as_log_odds(values: Numbers, queries: int) -> Numbers:
    """Predictions (m, n, queries * classes) as log odds, where they are probabilities that add up to 1."""
    import torch

    from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities

    p = torch.from_numpy(np.asarray(values, dtype=np.float64)).reshape(-1, values.shape[2] // queries)
    if p.shape[1] < 2 or not are_probabilities(p):
        return values
    return np.asarray(class_log_odds(log_probabilities(p)).numpy()).reshape(values.shape)


def values_of(signals: Signals, signal: str) -> Numbers:
    """(m, n) or (m, n, k): what a row reads; shares of labels and probabilities as log odds.

    Raises:
        InputError: it is not there.
    """
    name, _, view = signal.partition(":")
    if "+" in signal:
        columns = [np.asarray(values_of(signals, part), dtype=np.float64) for part in signal.split("+")]
        return np.concatenate([c[..., None] if c.ndim == 2 else c for c in columns], axis=-1)
    values = signals.attributions if name == WHOLE_MAP else signals.values.get(name)
    if values is None:
        raise InputError(f"signal {name!r} is not there; found {sorted(signals.values)}")
    what, level = split_level(name)
    if what in ("kept", "shares") and level > 1:
        return log_odds(values, level)
    if what in WHOLE_PREDICTION and values.ndim == 3:
        return _as_log_odds(values, level if what == "predictions" else 1)
    return VIEWS[view](values) if view else values
