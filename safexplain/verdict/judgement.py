"""From counts to a verdict. NumPy and SciPy only, so that whoever reads a certificate can compute it again.

    leak          the lower bound of some judged attack lies above the limit
    certified     the upper bounds of all judged attacks lie at or below the limit
    inconclusive  otherwise, and whenever a control failed

Of K judged attacks, each lower bound has a risk of (1 - confidence) / K (Bonferroni), because one of them is enough to
call a leak. Each upper bound has a risk of 1 - confidence: a certificate needs all of them, so it is wrong only if
that of the strongest attack is (an intersection-union test: Berger, Technometrics 24, 1982). Half of every risk is
spent on the threshold, half on the count, see `thresholds`.

A `Judgement` follows from counts alone and is what a certificate holds; an `AuditResult` adds each attack's curve and
rates, and what a larger sample would decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.verdict.evidence import (
    EXIT_CODES,
    KEYS,
    ROLES,
    UNREADABLE,
    Control,
    Evidence,
    Pair,
    Verdict,
    code,
    count_in,
    is_judged,
    title,
)
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import Needed, could_certify, needed
from safexplain.verdict.stats import RocCurve, auc_interval
from safexplain.verdict.stats.roc import RateAtFpr
from safexplain.verdict.thresholds import Ranks, lower_bound, ranks_of, upper_bound


@dataclass(frozen=True)
class Judgement:
    """Everything that the verdict rests on.

    Args:
        policy: what counts as a leak.
        evidence: of every attack, judged or not.
        pairs: of every judged attack against the baseline, under the claim "excess".
        baseline: name of the baseline attack of the pairs, or "".
        controls: that were run, or could not be.
        members, non_members: examples scored, each once.
        references: models that stood in for the target; 0 when only thresholds could be tried.
        split: "certification", or "selection": then nothing can be decided.
        uses: which configuration this is that was judged on these examples; None: not counted.
        forced: certify although it is not the first.
    """

    policy: Policy
    evidence: tuple[Evidence, ...]
    members: int
    non_members: int
    references: int
    controls: tuple[Control, ...] = ()
    pairs: tuple[Pair, ...] = ()
    baseline: str = ""
    split: str = "certification"
    uses: int | None = None
    forced: bool = False

    def __post_init__(self) -> None:
        if min(self.members, self.non_members) < 1:
            raise InputError(f"need members and non-members, got {self.members} and {self.non_members}")
        for e in self.evidence:
            few, many = e.lower_bound_count, e.upper_bound_count
            if e.role not in ROLES or not 0 <= few <= self.members or not 0 <= many <= self.members:
                raise InputError(f"evidence out of range: {e} with {self.members} members")
            if few > many:
                raise InputError(f"evidence is impossible: {few} members above the higher threshold, {many} below")
        if len({code(e) for e in self.evidence}) < len(self.evidence):
            raise InputError("two attacks of one name read one signal; give each row of the suite a name of its own")
        for p in self.pairs:
            upper, lower = (p.upper_bound_only, p.upper_bound_missed), (p.lower_bound_only, p.lower_bound_missed)
            if min(*upper, *lower) < 0 or self.members < max(sum(upper), sum(lower)):
                raise InputError(f"pairs out of range: {p} with {self.members} members")

    @property
    def judged(self) -> tuple[Evidence, ...]:
        """The attacks that the verdict rests on."""
        return tuple(e for e in self.evidence if is_judged(e.role, self.policy))

    @cached_property
    def ranks(self) -> Ranks:
        """Where the thresholds lie."""
        return ranks_of(self.policy, self.non_members, len(self.judged))

    @property
    def judged_confidence(self) -> float:
        """Confidence of each lower bound, so that all of them hold together (Bonferroni)."""
        return 1 - self.ranks.lower_risk

    @cached_property
    def could_certify(self) -> float:
        """Smallest `max_tpr` that one guessing attack stays below here, with a probability of 90 %."""
        return could_certify(self.policy, self.members, self.non_members)

    def bounds(self, e: Evidence) -> tuple[float, float]:
        """Lower and upper bound of the attack's true-positive rate at the policy's false-positive rate."""
        r = self.ranks
        low = lower_bound(e.lower_bound_count, self.members, r.lower_risk / 2) * r.lower_bound_share
        return low, upper_bound(e.upper_bound_count, self.members, r.upper_risk / 2)

    def excess(self, pair: Pair) -> tuple[float, float]:
        """Lower and upper bound of the attack's true-positive rate above the baseline's.

        Each of the two thresholds and each of the two counts has a quarter of the risk.
        """
        n, upper, lower = self.members, self.policy.risk / 4, self.policy.risk / len(self.pairs) / 4
        low = lower_bound(pair.lower_bound_only, n, lower) - upper_bound(pair.lower_bound_missed, n, lower)
        high = upper_bound(pair.upper_bound_only, n, upper) - lower_bound(pair.upper_bound_missed, n, upper)
        return low, high

    @cached_property
    def decisive(self) -> dict[str, tuple[float, float]]:
        """Bounds that the limit is compared with, by attack: of the rate, or of the excess."""
        if self.policy.claim == "excess":
            return {code(p): self.excess(p) for p in self.pairs}
        return {code(e): self.bounds(e) for e in self.judged}

    def proven(self, e: Evidence | Pair) -> bool:
        """Whether this attack alone proves a leak."""
        bounds = self.decisive.get(code(e))
        return bounds is not None and bounds[0] > self.policy.limit

    @property
    def reused(self) -> bool:
        """Whether the examples were used for another configuration's verdict before, and that was not overruled."""
        return self.uses is not None and self.uses > 1 and not self.forced

    @property
    def failed(self) -> tuple[Control, ...]:
        """Controls that found what must not be there."""
        return tuple(c for c in self.controls if c.failed)

    @property
    def verdict(self) -> Verdict:
        """See the module."""
        bounds = self.decisive.values()
        if any(not c.spares_leaks for c in self.failed) or self.split != "certification" or not bounds:
            return "inconclusive"
        if any(low > self.policy.limit for low, _ in bounds):
            return "leak"
        if self.failed:
            return "inconclusive"
        if all(high <= self.policy.limit for _, high in bounds) and self.references > 0 and not self.reused:
            return "certified"
        return "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 certified, 1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def bound(self) -> float:
        """No judged attack finds more, with the policy's confidence (of the excess: adds more)."""
        return max((high for _, high in self.decisive.values()), default=1.0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is inconclusive; empty for the others."""
        if self.verdict != "inconclusive":
            return ()
        found = [f"the control “{c.name}” failed: {c.says}" for c in self.failed]
        if self.split != "certification":
            found.append(f"these are the examples of the {self.split} split, on which nothing is certified")
        if not self.decisive:
            found.append(f"there is no {'baseline to compare with' if self.judged else 'attack to judge'}")
        elif any(low > self.policy.limit for low, _ in self.decisive.values()):
            pass  # a leak, were it not for the control
        elif self.bound > self.policy.limit:
            found.append("the interval is too wide to decide")
        elif self.reused and self.references:
            before = self.uses - 1 if self.uses else 0
            found.append(
                f"{before} other configuration{'s were' if before > 1 else ' was'} judged on these examples before,"
                " so that a certificate is refused: choosing by verdicts certifies luck. Choose on a selection split"
                " and certify on fresh examples, or force it, and the certificate counts the uses"
            )
        elif self.references == 0:
            found.append("without reference models only weak attacks could run, so nothing can be certified")
        return tuple(found)

    @cached_property
    def strongest(self) -> Evidence:
        """The attack that decides: of those that prove a leak the clearest, or else that with the highest bound."""
        among = [e for e in self.judged if code(e) in self.decisive] or list(self.judged)

        def key(e: Evidence) -> tuple[float, float]:
            low, high = self.decisive[code(e)] if code(e) in self.decisive else self.bounds(e)
            return max(low - self.policy.limit, 0.0), high

        return max(among, key=key)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        p = self.policy
        if not self.decisive:
            return f"Inconclusive: {'; '.join(self.reasons)}."
        best = self.strongest
        low, high = self.decisive[code(best)]
        if p.claim == "whole":
            found = (
                f"the strongest attack ({title(best.attack, best.signal)}) finds between {low:.1%} and {high:.1%} of"
                f" the members at a false-positive rate of at most {p.fpr:.1%}"
            )
            allowed, all_below = (
                f"the policy allows {p.limit:.1%}",
                f"no attack that was run finds more than {self.bound:.1%}",
            )
        else:
            found = (
                f"the strongest attack ({title(best.attack, best.signal)}) finds {low:+.1%} to {high:+.1%} more of the"
                f" members than the {self.baseline} alone, at a false-positive rate of at most {p.fpr:.1%}"
            )
            allowed, all_below = (
                f"the policy allows {p.limit:+.1%}",
                f"no attack that was run adds more than {self.bound:+.1%}",
            )
        match self.verdict:
            case "leak":
                return f"Leak proven: {found}; {allowed}."
            case "certified":
                return f"Certified: {found}; {all_below} ({p.confidence:.0%} confidence), and {allowed}."
            case "inconclusive":
                return f"Inconclusive: {found}; {allowed}, but {'; '.join(self.reasons)}."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads the counts and computes everything else again."""
        r = self.ranks
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "policy": self.policy.to_dict(),
            "split": self.split,
            "uses": self.uses,
            "forced": self.forced,
            "members": self.members,
            "non_members": self.non_members,
            "references": self.references,
            "bound": self.bound,
            "judged_confidence": self.judged_confidence,
            "ranks": {KEYS[k]: getattr(r, k) for k in ("upper_bound_rank", "lower_bound_rank", "lower_bound_share")},
            "evidence": [
                {
                    **e.to_dict(),
                    "judged": is_judged(e.role, self.policy),
                    **dict(zip(("low", "high"), self.bounds(e), strict=True)),
                    "proven": self.proven(e),
                }
                for e in self.evidence
            ],
            "baseline": self.baseline,
            "excess": [
                {**p.to_dict(), **dict(zip(("low", "high"), self.excess(p), strict=True)), "proven": self.proven(p)}
                for p in self.pairs
            ],
            "controls": [c.to_dict() for c in self.controls],
            "judged": [
                {"attack": e.attack, "signal": e.signal, "low": self.bounds(e)[0], "high": self.bounds(e)[1]}
                for e in self.judged
            ],
            "could_certify": self.could_certify,
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Judgement:
        """From what `to_dict` wrote; derived fields are not read.

        Raises:
            InputError: a field is missing, of the wrong type, or impossible.
        """
        try:
            if not isinstance(forced := content["forced"], bool):
                raise InputError(f"{UNREADABLE}: forced is true or false, got {forced!r:.60}")
            counts = [count_in(content, k) for k in ("members", "non_members", "references")]
            return Judgement(
                Policy.from_dict(content["policy"]),
                tuple(Evidence.from_dict(e) for e in content["evidence"]),
                counts[0],
                counts[1],
                counts[2],
                tuple(Control.from_dict(c) for c in content["controls"]),
                tuple(Pair.from_dict(p) for p in content["excess"]),
                str(content["baseline"]),
                str(content["split"]),
                None if content["uses"] is None else count_in(content, "uses"),
                forced,
            )
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"{UNREADABLE}: {type(error).__name__} {error!s:.80}") from None


SHOWN_FPRS = (0.001, 0.01, 0.05, 0.1)
"""False-positive rates at which every attack is reported, beside the policy's."""


@dataclass(frozen=True, eq=False)
class AttackResult(Evidence):
    """What one attack found: its counts, which the verdict uses, and what is shown beside them.

    Args:
        attack, signal, role, upper_bound_count, lower_bound_count: see `Evidence`.
        curve: its ROC over the scored examples.
        rates: its TPR at each reported false-positive rate, with Clopper-Pearson intervals at the realised rate.
    """

    curve: RocCurve
    rates: tuple[RateAtFpr, ...]

    @property
    def auc(self) -> float:
        """Area under the ROC; 0.5 is chance."""
        return self.curve.auc

    @property
    def title(self) -> str:
        """Readable name."""
        return title(self.attack, self.signal)

    @property
    def code(self) -> str:
        """Name as the JSON has it."""
        return code(self)

    def at(self, fpr: float) -> RateAtFpr:
        """The rate at one of the reported false-positive rates."""
        return next(r for r in self.rates if r.fpr == fpr)

    def shown(self) -> dict[str, Any]:
        """Its curve and rates as plain JSON types."""
        low, high = auc_interval(self.curve)
        return {
            "attack": self.attack,
            "signal": self.signal,
            "role": self.role,
            "auc": self.auc,
            "auc_low": low,
            "auc_high": high,
            "balanced_accuracy": self.curve.balanced_accuracy,
            "tpr": [
                {k: getattr(r, k) for k in ("fpr", "realised_fpr", "tpr", "low", "high", "confidence")}
                for r in self.rates
            ],
        }


@dataclass(frozen=True, eq=False)
class AuditResult(Judgement):
    """All attacks under one policy, and what follows.

    Args:
        evidence: the attacks, in the order of the suite.
        orders: for each judged attack, who is a member from the highest score to the lowest.
        sizes: examples in each split.
    """

    evidence: tuple[AttackResult, ...]
    orders: tuple[NDArray[np.bool_], ...] = field(kw_only=True)
    sizes: dict[str, int] = field(kw_only=True)

    @property
    def attacks(self) -> tuple[AttackResult, ...]:
        """All attacks, judged or not."""
        return self.evidence

    @property
    def judged(self) -> tuple[AttackResult, ...]:
        """The attacks that the verdict rests on."""
        return tuple(a for a in self.attacks if is_judged(a.role, self.policy))

    @property
    def strongest(self) -> AttackResult:
        """The judged attack that decides."""
        best = super().strongest
        return next(a for a in self.attacks if a is best)

    @cached_property
    def needed(self) -> Needed | None:
        """A sample that would probably decide; None if the verdict is there or none would."""
        if self.verdict != "inconclusive" or self.failed or self.policy.claim == "excess" or not self.orders:
            return None
        return needed(self.policy, list(self.orders))

    @property
    def sentence(self) -> str:
        """The verdict in plain words, and what a larger sample would decide."""
        text = super().sentence
        if self.verdict != "inconclusive" or self.failed or self.split != "certification":
            return text
        if self.needed is not None and self.references:
            n = self.needed
            what = "certify" if n.verdict == "certified" else "prove a leak"
            text += f" About {n.members:,} members and {n.non_members:,} non-members would probably {what}."
        if self.policy.claim == "whole":
            text += f" This sample could at best have certified {self.could_certify:.1%}."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        n = self.needed
        found = super().to_dict()
        certifiable = found.pop("could_certify")  # files have it after the attacks
        return {
            **found,
            "attacks": [a.shown() for a in self.attacks],
            "could_certify": certifiable,
            "needed": None if n is None else {"members": n.members, "non_members": n.non_members, "verdict": n.verdict},
            "splits": dict(self.sizes),
        }
