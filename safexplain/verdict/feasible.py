"""What an inconclusive audit could decide with the data that are there. NumPy and SciPy only.

The reference models that lack, a sample that is large enough, the smallest limit in reach. "Probably" is a probability
of at least 90 % for another sample of this size, if what was found is true: each judged attack's upper bound is taken
as normal around the one found, with the spread that the bound implies, and the probabilities of failing are added up.

No option may be used on the examples that suggested it: a policy chosen by its own result certifies luck. So every
option says that it is fixed before the next audit, and how `audit.holdout_uses` counts it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy import stats as distributions

from safexplain.verdict.policy import Claim, Policy
from safexplain.verdict.power import POWER, Needed

Kind = Literal["references", "examples", "limit"]

TIMES = 3.0
"""Samples up to this many times as large are called feasible."""

LOOSEST = 0.5
"""Limits above this are not worth a certificate."""

FRESH = "Fix the policy before the next audit, and use examples that it was not chosen on."
COUNTED = {
    "another use": f"{FRESH} On these examples it counts as another configuration, and a certificate is refused.",
    "the same use": f"{FRESH} On these examples another limit is the same use, since the bounds stay the same; if it"
    " was chosen on them, the policy's reason must say so.",
    "fresh examples": "Take fresh examples: adding some until a verdict comes certifies luck.",
}
"""How uses of the examples are counted, and what follows."""


@dataclass(frozen=True)
class Option:
    """One thing that would probably decide.

    Args:
        kind: what changes: the number of reference models, that of the examples, or the limit.
        says: what to do and what it is worth, in a sentence or two.
        changes: entries of the policy -> their new values; empty where the policy stays.
        counted: how `audit.holdout_uses` counts it on the same examples.
    """

    kind: Kind
    says: str
    changes: Mapping[str, float] = field(default_factory=dict)
    counted: Literal["another use", "the same use", "fresh examples"] = "another use"

    @property
    def rule(self) -> str:
        """Which examples it may be judged on, in words."""
        return COUNTED[self.counted]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "changes": dict(self.changes), "rule": self.rule}


@dataclass(frozen=True)
class Bound:
    """An attack's result in the unit of the limit, and its upper bound.

    Args:
        found: the estimate.
        high: the upper bound, at the policy's risk.
    """

    found: float
    high: float


@dataclass(frozen=True)
class Undecided:
    """What `feasible` needs to know about an inconclusive audit; of several targets, about all undecided ones.

    Args:
        policy: what was asked.
        claim: what was judged.
        members, non_members: units that were scored.
        references: reference models behind the judged attacks.
        wide: whether an interval was too wide, or something else is in the way alone.
        bounds: of the judged attacks.
        needed: a sample that would decide; None: none of up to 1,000 times this size, or not known.
    """

    policy: Policy
    claim: Claim
    members: int
    non_members: int
    references: int
    wide: bool
    bounds: tuple[Bound, ...]
    needed: Needed | None

    @property
    def limit(self) -> float:
        """What the bounds were compared with."""
        return self.policy.max_tpr if self.claim == "whole" else self.policy.limit

    @property
    def times(self) -> float:
        """How many times as many examples would decide."""
        return math.inf if self.needed is None else self.needed.members / self.members

    @property
    def suspected(self) -> bool:
        """Whether an estimate is above the limit."""
        return any(b.found > self.limit for b in self.bounds)


def feasible(of: Undecided) -> tuple[Option, ...]:
    """What would probably decide, the same policy first.

    Args:
        of: an inconclusive audit in which no control failed.
    """
    makers = (_more_references, *((_more_examples, _looser_limit) if of.wide else ()))
    return tuple(option for make in makers if (option := make(of)) is not None)


def certifiable(bounds: Sequence[Bound], risk: float) -> float:
    """Smallest limit that all attacks would stay below in another such sample, with a probability of 90 %.

    Attacks with the same numbers count once: where explanations add nothing, many rank everybody as labels do.

    Args:
        bounds: of the judged attacks.
        risk: of their upper bounds.
    """
    if not bounds:
        return math.inf
    distinct = dict.fromkeys(bounds)
    found, high = np.array([(b.found, b.high) for b in distinct]).T
    spread = np.maximum(high - found, 1e-12) / distributions.norm.isf(risk)
    low, top = float(high.max()), float((high + spread * distributions.norm.isf((1 - POWER) / len(distinct))).max())
    for _ in range(40):
        middle = (low + top) / 2
        fails = float(distributions.norm.sf((middle - high) / spread).sum())
        low, top = (middle, top) if fails > 1 - POWER else (low, middle)
    return top


def _more_references(of: Undecided) -> Option | None:
    lacking = of.policy.references - of.references
    if lacking <= 0:
        return None
    many = f"{lacking:,} more reference model{'s' if lacking > 1 else ''}"
    return Option(
        "references",
        f"Train {many}: the policy asks for {of.policy.references:,}, and {of.references:,} stood behind the attacks."
        " This makes attacks stronger, and no interval narrower.",
    )


def _more_examples(of: Undecided) -> Option | None:
    if of.needed is None or of.times > TIMES:
        return None
    return Option(
        "examples",
        f"About {of.needed.members:,} members and {of.needed.non_members:,} non-members, {of.times:.1f} times as many,"
        f" would probably {_outcome(of)}, if the rates found here are the true ones.",
        counted="fresh examples",
    )


def _looser_limit(of: Undecided) -> Option | None:
    limit = certifiable(of.bounds, of.policy.risk)
    limit = math.ceil(1000 * max(limit, 0.001) - 1e-9) / 1000 if math.isfinite(limit) else math.inf
    if limit >= LOOSEST:
        return None
    name = replace(of.policy, claim=of.claim).limit_name
    leak = ". But the estimate is above the present limit: this may be a leak" if of.suspected else ""
    return Option(
        "limit",
        f"{name} = {limit:g} instead of {of.limit:g} would probably be certified with as many examples{leak}.",
        {name: limit},
        "the same use" if of.claim == "whole" else "another use",
    )


def _outcome(of: Undecided) -> str:
    return "prove a leak" if of.needed is not None and of.needed.verdict == "leak" else "certify"


def advice(of: Undecided, options: Sequence[Option]) -> str:
    """What would decide, in one short sentence: more references, a few more examples, another limit, or what it takes.

    Args:
        of: the audit.
        options: `feasible` of it.
    """
    if (lacking := of.policy.references - of.references) > 0:
        return f"At least {lacking:,} more reference model{' is' if lacking == 1 else 's are'} needed to certify."
    limit = f"{of.limit:.3g} of AUC" if of.claim == "auc" else f"{of.limit:.1%}"
    leak = "This may be a leak: " if of.suspected else ""
    if (needed := of.needed) is not None and of.times <= TIMES:
        what = f"would probably {_outcome(of)} at {limit}"
        return f"{leak}{needed.members:,} members and {needed.non_members:,} non-members {what}."
    for name, value in (change for option in options for change in option.changes.items()):
        start = f"{leak}{'a' if leak else 'A'} policy fixed beforehand, with {name} = {value:g}"
        return f"{start}, would probably be certified."
    if needed is None:
        return f"{leak}no larger sample would decide, as what was found lies too close to {limit}."
    return f"{leak}{of.times:,.0f} times as many examples would be needed to {_outcome(of)} at {limit}."
