"""Which attacks are run, as rows of a table: fixed before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    SeparateVariance,
    Threshold,
)
from safexplain.audit.attacks.likelihood.ratio import PooledDensityRatio
from safexplain.audit.attacks.recourse import CounterfactualDistance, CounterfactualLRT
from safexplain.audit.signals import Signals
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.evidence import AVERAGED, WHOLE_MAP, Role

Numbers = NDArray[np.floating[Any]]

VIEWS: dict[str, Callable[[Numbers], Numbers]] = {
    "sign": lambda a: np.sign(a).astype(np.float32),
    "rank": lambda a: (np.argsort(np.argsort(a, axis=-1), axis=-1) / max(a.shape[-1] - 1, 1)).astype(np.float32),
}
"""What clipping and normalisation leave of a map: the sign and the rank of each entry."""


@dataclass(frozen=True)
class SuiteRow:
    """One attack on one signal, or on several read together.

    Args:
        name: of the attack.
        attack: what scores.
        signal: name in the file; several joined by "+" are columns of one vector; "attributions:sign" is a view.
        role: what is read.
        plus_label: add the likelihood ratio of the label, which is released anyway.
    """

    name: str
    attack: Attack
    signal: str
    role: Role
    plus_label: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the signals that must be there."""
        return tuple(part.partition(":")[0] for part in self.signal.split("+"))

    @property
    def title_signal(self) -> str:
        """Name of what is read, as results have it."""
        return f"{self.signal}+label" if self.plus_label else self.signal

    @property
    def learns(self) -> bool:
        """Whether it is trained on examples, which then certify nothing."""
        return isinstance(self.attack, Learned)

    @property
    def needs_references(self) -> bool:
        """Whether it compares with reference models."""
        return not isinstance(self.attack, Threshold)


EXPLANATION_SCALARS = ("variance", "l1", "l2")
"""Signals of the size of an explanation, low on members."""

SHAPE_SCALARS = ("mean", "positive", "support", "sparsity", "peak")
"""Signals that no clipping and no scaling takes away."""

RECOURSE: tuple[SuiteRow, ...] = (
    SuiteRow("CounterfactualDistance", CounterfactualDistance(), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-global", CounterfactualLRT("global"), "distance", "explanation"),
    SuiteRow("CounterfactualLRT-local", CounterfactualLRT("local"), "distance", "explanation"),
    SuiteRow("SignedDistance", CounterfactualDistance(), "signed_distance", "explanation"),
    SuiteRow("SignedDistanceLRT", LikelihoodRatio("identity", SeparateVariance()), "signed_distance", "explanation"),
    SuiteRow("SignedDistanceDensity", PooledDensityRatio(), "signed_distance", "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio("identity"), "score", "explanation"),
    SuiteRow("DirectionAttack", Threshold(member_when_low=False), "recovered_margin", "explanation"),
    *(
        SuiteRow(name, attack, signal, "explanation")
        for signal in ("recovered_margin", "regressed_margin")
        for name, attack in (
            ("DirectionLRT", LikelihoodRatio("identity", SeparateVariance())),
            ("DirectionDensity", PooledDensityRatio()),
        )
    ),
    SuiteRow("AveragingAttack", CounterfactualLRT(), "averaged_distance", "explanation"),
)
"""Attacks on recourse: by its distance, by margins from the boundary that its directions (or the scores) tell, and by
the distance averaged over many answers, in which noise cancels out; run where `meta` says, under "recourse", how it was
asked for (`audit.collect_recourse`)."""

SUITE: tuple[SuiteRow, ...] = (
    *(SuiteRow("Threshold", Threshold(), s, "explanation") for s in EXPLANATION_SCALARS),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), s, "explanation") for s in (*EXPLANATION_SCALARS, *SHAPE_SCALARS)),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1+mean+positive+sparsity+peak", "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), f"{WHOLE_MAP}:{view}", "explanation") for view in VIEWS),
    SuiteRow("Learned", Learned(), WHOLE_MAP, "explanation"),
    SuiteRow("LearnedElsewhere", Learned(non_members="out-of-distribution"), WHOLE_MAP, "explanation"),
    *(
        SuiteRow(type(attack).__name__, attack, signal.format(prefix), "explanation")
        for prefix in AVERAGED
        for attack, signal in (
            (LikelihoodRatio(), "{0}l1"),
            (LikelihoodRatio(), "{0}mean"),
            (JointLikelihoodRatio(), "{0}l1+{0}mean+{0}positive"),
        )
    ),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "near_map", "explanation"),
    *(SuiteRow("LikelihoodRatio", LikelihoodRatio(), f"class_{s}", "explanation") for s in ("l1", "l2", "mean")),
    SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label"),
    SuiteRow("Threshold", Threshold(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "margin", "loss"),
    SuiteRow("RMIA", RMIA(), "loss", "loss"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "l1", "explanation+label", plus_label=True),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), WHOLE_MAP, "explanation+label", plus_label=True),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1+loss", "explanation+loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "variance+loss", "explanation+loss"),
    *RECOURSE,
)
"""The attacks that are run as far as the signals are there; other signals get Threshold and LikelihoodRatio."""

FEWEST_TO_LEARN = 4
"""Reference models below which nothing is learned from them."""


def fitting(signals: Signals, names: Sequence[str] = ()) -> list[SuiteRow]:
    """The rows whose signals are there and whose reference models are enough; signals of other names too.

    Args:
        signals: of any pipeline.
        names: of attacks to keep; empty: all.

    Raises:
        ConfigurationError: a name is not one of the suite's.
    """
    known = {r.name for r in SUITE}
    if wrong := set(names) - known:
        raise ConfigurationError(f"policy: unknown attacks {sorted(wrong)} in the suite; known are {sorted(known)}")
    rows = [r for r in SUITE if r not in RECOURSE or "recourse" in signals.meta]
    named = {part for r in rows for part in r.parts}
    extra = [
        SuiteRow(name, attack, signal, "explanation")
        for signal, values in signals.values.items()
        if signal not in named and not signal.startswith(tuple(AVERAGED))
        for name, attack in (("Threshold", Threshold()), ("LikelihoodRatio", LikelihoodRatio()))
        if values.ndim == 2 or name != "Threshold"
    ]
    references = len(signals.models) - 1
    return [
        r
        for r in (*rows, *extra)
        if (not names or r.name in names)
        and all(_has(signals, part) for part in r.parts)
        and any(_varies(signals, part) for part in r.parts)
        and (not r.plus_label or "label" in signals.values)
        and (not r.needs_references or references >= 2)
        and (not r.learns or references >= FEWEST_TO_LEARN)
        and (r.name != "LearnedElsewhere" or signals.out_of_distribution is not None)
    ]


def values_of(signals: Signals, signal: str) -> Numbers:
    """(m, n) or (m, n, k): what a row reads.

    Raises:
        InputError: it is not there.
    """
    name, _, view = signal.partition(":")
    if "+" in signal:
        columns = [values_of(signals, part) for part in signal.split("+")]
        return np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=-1)
    values = signals.attributions if name == WHOLE_MAP else signals.values.get(name)
    if values is None:
        raise InputError(f"signal {name!r} is not there; found {sorted(signals.values)}")
    return VIEWS[view](values) if view else values


def _has(signals: Signals, name: str) -> bool:
    return signals.attributions is not None if name == WHOLE_MAP else name in signals.values


def _varies(signals: Signals, name: str) -> bool:
    """Whether the signal is not one number throughout, which would decide nothing."""
    values = values_of(signals, name)
    return values.size > 0 and bool((values != values.flat[0]).any())
