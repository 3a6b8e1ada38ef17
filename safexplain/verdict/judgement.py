"""The evidence and the verdict, with NumPy and SciPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from safexplain._validate import from_table
from safexplain.errors import InputError, SafexplainError
from safexplain.verdict.guarantee import Implied
from safexplain.verdict.policy import Claim, Policy
from safexplain.verdict.power import AttackBounds, SampleSize, best_certifiable, sample_needed
from safexplain.verdict.stats.paired import PairedCounts, difference_bounds
from safexplain.verdict.thresholds import lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

Verdict = Literal["certified", "leak", "inconclusive"]
Role = Literal["explanation", "label", "loss", "explanation+label", "explanation+loss"]
ROLES: tuple[Role, ...] = get_args(Role)

EXIT_CODES: dict[Verdict, int] = {"certified": 0, "leak": 1, "inconclusive": 3}  # 2 is unusable input


@dataclass(frozen=True)
class Evidence:
    """How many members one attack found, in independent units (`thresholds.weights_of`)."""

    attack: str
    signal: str
    role: Role  # what it reads
    level: int  # number of queries about each example
    found: float  # at the policy's false-positive rate: the estimate
    upper_bound_count: float  # above the upper bound's threshold
    lower_bound_count: float  # above the lower bound's, higher threshold
    pair: PairedCounts | None = None  # comparison with the baseline

    @property
    def is_baseline(self) -> bool:
        """Whether it reads only what is released anyway."""
        return self.attack in BASELINES

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        pair = None if self.pair is None else asdict(self.pair)
        return {f.name: getattr(self, f.name) for f in fields(Evidence)} | {"pair": pair}


BASELINES = {"LabelPatience": "labels", "PredictionPatience": "predictions"}
"""Attacks on what is released anyway -> what they read."""


def baseline_name(policy: Policy) -> str:
    """The attack on what is released anyway, or ""."""
    return {"explanation": "LabelPatience", "explanation+prediction": "PredictionPatience"}.get(policy.release, "")


STRENGTH = ("references", "recipe", "accuracy")
"""Controls whose failure rules out a certificate, but not a leak."""


@dataclass(frozen=True)
class Control:
    """A check that members differ only by training, or that attacks are strong enough."""

    name: str
    failed: bool | None  # None: it could not be run
    says: str  # the finding, or why it was not run
    numbers: dict[str, float]


def is_judged(role: Role, policy: Policy, claim: Claim | None = None) -> bool:
    """Whether the verdict rests on attacks of this role; `claim` replaces the policy's."""
    if policy.release == "prediction":
        return role in ("label", "loss")
    predictions = policy.release == "explanation+prediction"
    if (claim or policy.claim) != "whole":
        return role == ("explanation+loss" if predictions else "explanation+label")
    return predictions or role in ("explanation", "label", "explanation+label")


def code(of: Evidence) -> str:
    """Name of an attack in JSON."""
    return f"{of.attack} on {of.signal}"


def at_level(signal: str, level: int) -> str:
    """Name of a signal after `level` queries: l1, l1@200."""
    return signal if level == 1 else f"{signal}@{level}"


def split_level(signal: str) -> tuple[str, int]:
    """Signal and number of queries of such a name."""
    name, at, level = signal.rpartition("@")
    return (name, int(level)) if at and name and level.isdecimal() and int(level) > 1 else (signal, 1)


WHOLE_MAP = "attributions"  # the signal of whole attribution vectors

UNREADABLE = "not the outcome of an audit"

MAIN = "Stacked"

Reason = Literal[
    "nothing judged",
    "quick",
    "control failed",
    "selection split",
    "level missing",
    "missed part",
    "release incomplete",
    "not compared",
    "suite incomplete",
    "few references",
    "uses not counted",
    "used before",
    "too wide",
]
"""Why a verdict is inconclusive; all but the first and the last only rule out a certificate."""

WRITTEN = (
    "verdict", "policy", "claim", "limit", "bound", "levels", "split", "uses", "forced", "tried", "members",
    "non_members", "grouped", "references", "omitted", "gaps", "target", "targets", "evidence", "controls",
    "could_certify", "needed", "others",
)  # fmt: skip


def main_of(policy: Policy) -> str:
    """The attacks that get half of the risk of the lower bounds."""
    return "PredictionPatience" if policy.release == "prediction" else MAIN


def lower_risks(attacks: Sequence[str], policy: Policy, targets: int = 1) -> list[float]:
    """Risk of each judged attack's lower bound; they add up to the policy's risk / targets (Bonferroni), because one
    proves a leak. Each upper bound has all of the risk, because a certificate needs all of them (an intersection-union
    test: Berger, Technometrics 24, 1982)."""
    if not attacks:
        return []
    best = main_of(policy)
    main = sum(name == best for name in attacks)
    others, risk = len(attacks) - main, policy.risk / targets
    if not main or not others:
        return [risk / len(attacks)] * len(attacks)
    return [risk / 2 / (main if name == best else others) for name in attacks]


@dataclass(frozen=True)
class Judgement:
    """Everything that the verdict rests on.

    Args:
        evidence: of every attack, judged or not.
        members, non_members: scored independent units: examples, or groups of related ones.
        references: number of reference models.
        controls: also those that could not be run.
        omitted: attacks that fit the signals but were not run.
        gaps: released arrays that no attack read, or that are missing at a number of queries.
        split: "certification", or "selection", on which nothing can be decided.
        uses: number of this verdict on these examples, from 1; None: not counted.
        forced: certify although it is not the first.
        tried: the other verdicts on these examples.
        grouped: examples scored, if groups of them are the units.
        target, targets: index of the model, and how many are judged.
        others: judgements of the other targets; this one is the most exposed.
        quick: a quick look, which certifies nothing.
        implied: what differential privacy of the single target's training implies.
    """

    policy: Policy
    evidence: tuple[Evidence, ...]
    members: int
    non_members: int
    references: int
    controls: tuple[Control, ...] = ()
    omitted: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    split: str = "certification"
    uses: int | None = None
    forced: bool = False
    tried: tuple[str, ...] = ()
    grouped: int | None = None
    target: int | None = None
    targets: int = 1
    others: tuple[Judgement, ...] = ()
    quick: bool = False
    implied: Implied | None = None

    def __post_init__(self) -> None:
        if self.implied is not None and self.targets > 1:
            raise InputError(f"implied: a privacy statement is about one model, but {self.targets} are judged")
        if min(self.members, self.non_members) < 1:
            raise InputError(f"expected members and non-members, got {self.members} and {self.non_members}")
        room = self.members * (1 + 1e-9)
        for e in self.evidence:
            few, many = e.lower_bound_count, e.upper_bound_count
            counted = min(few, e.found) >= 0 and max(many, e.found) <= room
            if e.role not in ROLES or e.level < 1 or not counted:
                raise InputError(f"evidence out of range: {e} with {self.members} members")
            if few > many * (1 + 1e-9):
                raise InputError(f"evidence is impossible: {few} members above the higher threshold, {many} below")
            if e.pair is not None:
                e.pair.check(self.members, self.non_members, self.policy.fpr)
                if e.pair.only + e.pair.missed > room:
                    raise InputError(f"pairs out of range: {e.pair} with {self.members} members")
        if len({code(e) for e in self.evidence}) < len(self.evidence):
            raise InputError("two attacks of one name read one signal; give each row of the suite another name")
        if self.others and self.targets != len(self.others) + 1:
            raise InputError(f"expected judgements of {self.targets} targets, got {len(self.others) + 1}")

    # ------------------------------------------------------------------------------------ what is judged

    @property
    def anyway(self) -> str:
        """What is released even without explanations."""
        return "labels" if self.policy.release == "explanation" else "predictions"

    def baseline(self, level: int) -> Evidence | None:
        """The attack on the labels (or predictions) alone."""
        return next((e for e in self.evidence if e.attack == baseline_name(self.policy) and e.level == level), None)

    @cached_property
    def claim(self) -> Claim:
        """The policy's claim, or "whole" without a baseline."""
        return self.policy.claim if self.compared else "whole"

    @cached_property
    def compared(self) -> bool:
        """Whether the judged attacks are compared with the baseline."""
        return self.policy.claim != "whole" and any(e.attack == baseline_name(self.policy) for e in self.evidence)

    @property
    def limit(self) -> float:
        """The limit of the bounds."""
        return self.policy.max_tpr if self.claim == "whole" else self.policy.limit

    def is_judged(self, e: Evidence) -> bool:
        """Whether the verdict rests on this attack."""
        return is_judged(e.role, self.policy, self.claim) and e.level in self.policy.patience

    @cached_property
    def judged(self) -> tuple[Evidence, ...]:
        """The attacks that the verdict rests on."""
        return tuple(e for e in self.evidence if self.is_judged(e))

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """The policy's numbers of queries at which nothing could be judged."""
        there = {e.level for e in self.judged if code(e) in self.decisive}
        return tuple(level for level in self.policy.patience if level not in there)

    # ------------------------------------------------------------------------------------ bounds

    @cached_property
    def _risks(self) -> dict[str, float]:
        shares = lower_risks([e.attack for e in self.judged], self.policy, self.targets)
        return dict(zip(map(code, self.judged), shares, strict=True))

    def lower_risk(self, e: Evidence) -> float:
        """Risk of the attack's lower bound; an unjudged attack counts as one more."""
        return self._risks.get(code(e), self.policy.risk / self.targets / (len(self.judged) + 1))

    @cached_property
    def could_certify(self) -> float:
        """`best_certifiable` of this sample, as a `max_tpr`."""
        whole = replace(self.policy, claim="whole")
        return best_certifiable(whole, self.members, self.non_members)

    def bounds(self, e: Evidence) -> tuple[float, float]:
        """Bounds of the attack's true-positive rate."""
        risk, fpr = self.lower_risk(e), self.policy.fpr
        share = lower_bound_rank(self.non_members, fpr, risk / 2)[1]
        low = lower_bound(e.lower_bound_count, self.members, risk / 2) * share
        if upper_bound_rank(self.non_members, fpr, self.policy.risk / 2) is None:
            return low, 1.0
        return low, upper_bound(e.upper_bound_count, self.members, self.policy.risk / 2)

    def added(self, e: Evidence) -> tuple[float, float] | None:
        """Bounds of the attack's true-positive rate above the baseline's; None without one."""
        return self._added.get(code(e))

    @cached_property
    def _added(self) -> dict[str, tuple[float, float]]:
        n, fpr, high = (self.members, self.non_members), self.policy.fpr, self.policy.risk
        compared = [(e, e.pair) for e in self.evidence if e.pair is not None]
        return {code(e): difference_bounds(pair, *n, fpr, self.lower_risk(e), high) for e, pair in compared}

    def claimed(self, e: Evidence) -> tuple[float, float] | None:
        """Bounds in the unit of the claim."""
        return self.bounds(e) if self.claim == "whole" else self.added(e)

    @cached_property
    def decisive(self) -> dict[str, tuple[float, float]]:
        """Judged attack -> bounds in the unit of the claim."""
        compared = {code(e): self.claimed(e) for e in self.judged}
        return {name: bounds for name, bounds in compared.items() if bounds is not None}

    def estimate(self, e: Evidence) -> float:
        """The attack's estimate in the unit of the claim."""
        return e.found / self.members if self.claim == "whole" else self.excess(e)

    def excess(self, e: Evidence) -> float:
        """Estimated true-positive rate above the baseline's; 0 without one."""
        return 0.0 if e.pair is None else (e.pair.only - e.pair.missed) / self.members

    def proven(self, e: Evidence) -> bool:
        """Whether this attack alone proves a leak."""
        bounds = self.decisive.get(code(e))
        return bounds is not None and bounds[0] > self.limit

    @cached_property
    def beyond(self) -> tuple[Evidence, ...]:
        """Unjudged attacks above the limit, the highest first."""
        others = [(bounds[0], e) for e in self.evidence if not self.is_judged(e) and (bounds := self.claimed(e))]
        return tuple(e for low, e in sorted(others, key=lambda one: -one[0]) if low > self.limit)

    @cached_property
    def missed_part(self) -> Evidence | None:
        """An unjudged attack on a part of the release above the limit."""
        parts = {"explanation": ("explanation", "label"), "prediction": ("label", "loss")}
        roles = parts.get(self.policy.release, ROLES)
        return next((e for e in self.beyond if e.role in roles and e.level in self.policy.patience), None)

    # ------------------------------------------------------------------------------------ verdict

    @property
    def failed(self) -> tuple[Control, ...]:
        """Controls that failed."""
        return tuple(c for c in self.controls if c.failed)

    @cached_property
    def contradiction(self) -> Evidence | None:
        """The attack furthest above what the stated differential privacy allows."""
        most = None if self.implied is None or self._members_differ else self.implied.tpr
        above = [e for e in self.evidence if most is not None and self.bounds(e)[0] > most]
        return max(above, key=lambda e: self.bounds(e)[0], default=None)

    @cached_property
    def by_guarantee(self) -> bool:
        """Whether the stated privacy alone satisfies the policy."""
        i = self.implied
        if i is None or self.quick or self._members_differ or self.split != "certification" or self.contradiction:
            return False
        # labels alone may find no member at all, so explanations add at most the whole rate
        return math.isclose(i.fpr, self.policy.fpr) and i.tpr <= self.limit

    @property
    def basis(self) -> str:
        """Basis of the verdict, "by guarantee" or "by measurement"."""
        return "by guarantee" if self.verdict == "certified" and self.by_guarantee else "by measurement"

    @property
    def _members_differ(self) -> bool:
        return any(c.name not in STRENGTH for c in self.failed)

    @cached_property
    def _leaks(self) -> bool:
        return any(low > self.limit for low, _ in self.decisive.values())

    @cached_property
    def _wide(self) -> bool:
        return any(high > self.limit for _, high in self.decisive.values())

    @cached_property
    def own_verdict(self) -> Verdict:
        """The verdict about this target alone.

        A leak if the lower bound of some judged attack lies above the limit; certified if the upper bounds of all lie
        at or below it, and nothing is in the way (`obstacles`); otherwise inconclusive.
        """
        if self.by_guarantee and not self._leaks:
            return "certified"
        if self._members_differ or self.split != "certification" or not self.decisive:
            return "inconclusive"
        if self._leaks:
            return "leak"
        return "inconclusive" if self.obstacles or self._wide else "certified"

    @property
    def verdict(self) -> Verdict:
        """The verdict about all targets: a leak if one leaks, certified if each is."""
        verdicts = {self.own_verdict, *(o.own_verdict for o in self.others)}
        return "leak" if "leak" in verdicts else "certified" if verdicts == {"certified"} else "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 certified, 1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def bound(self) -> float:
        """Highest upper bound of the judged attacks of all targets."""
        return max((high for one in (self, *self.others) for _, high in one.decisive.values()), default=1.0)

    @cached_property
    def obstacles(self) -> tuple[Reason, ...]:
        """Why nothing may be certified, for any bounds."""
        found: dict[Reason, bool] = {
            "quick": self.quick,
            "control failed": bool(self.failed),
            "selection split": self.split != "certification",
            "level missing": bool(self.missing),
            "missed part": self.missed_part is not None,
            "release incomplete": bool(self.gaps),
            "not compared": bool(self.uncompared),
            "suite incomplete": bool(self.omitted),
            "few references": self.references < self.policy.references,
            "uses not counted": self.uses is None and not self.policy.uncounted,
            "used before": self.uses is not None and self.uses > 1 and not self.forced,
        }
        return tuple(reason for reason, holds in found.items() if holds)

    @cached_property
    def uncompared(self) -> tuple[Evidence, ...]:
        """Judged attacks that lack a comparison with the baseline."""
        return tuple(e for e in self.judged if code(e) not in self.decisive and e.level not in self.missing)

    @cached_property
    def own_reasons(self) -> tuple[Reason, ...]:
        """Why the verdict about this target is inconclusive."""
        if self.own_verdict != "inconclusive":
            return ()
        if not self.judged:
            return "nothing judged", *self.obstacles
        return (*self.obstacles, "too wide") if self._wide and not self._leaks else self.obstacles

    @property
    def undecided_target(self) -> Judgement | None:
        """The most exposed undecided target."""
        if self.verdict != "inconclusive":
            return None
        return next(one for one in (self, *self.others) if one.own_reasons)

    @property
    def too_wide(self) -> bool:
        """Whether only wide intervals prevent a verdict, so that a larger audit may decide."""
        one = self.undecided_target
        return one is not None and one.own_reasons == ("too wide",)

    @cached_property
    def needed(self) -> SampleSize | None:
        """A sample that would probably decide about this target, if any."""
        if self.own_verdict != "inconclusive" or self.failed or not self.decisive:
            return None
        judged = [e for e in self.judged if code(e) in self.decisive]
        found = [AttackBounds(self.estimate(e), *self.decisive[code(e)], self.lower_risk(e)) for e in judged]
        return sample_needed(found, self.limit, self.policy.risk, self.members, self.non_members)

    @cached_property
    def strongest(self) -> Evidence:
        """The attack that proves a leak most clearly, or has the highest upper bound."""
        among = [e for e in self.judged if code(e) in self.decisive] or list(self.judged) or list(self.evidence)

        def key(e: Evidence) -> tuple[float, float]:
            low, high = self.decisive.get(code(e)) or self.bounds(e)
            return max(low - self.limit, 0.0), high

        return max(among, key=key)

    # ------------------------------------------------------------------------------------ plain JSON

    @property
    def levels(self) -> list[dict[str, Any]]:
        """The baseline's rate and the highest bounds, by number of queries."""
        return [self._level(level) for level in self.policy.patience]

    def _level(self, level: int) -> dict[str, Any]:
        rows, labels = [e for e in self.judged if e.level == level], None

        def worst(bounds: dict[str, tuple[float, float]]) -> dict[str, Any] | None:
            if not bounds:
                return None
            lows, highs = zip(*bounds.values(), strict=True)
            return {"low": max(lows), "high": max(highs), "attack": max(bounds, key=lambda name: bounds[name][1])}

        if (base := self.baseline(level)) is not None:
            low, high = self.bounds(base)
            labels = {"tpr": base.found / self.members, "low": low, "high": high}
        added = worst({code(e): bounds for e in rows if (bounds := self.added(e)) is not None})
        whole = worst({code(e): self.bounds(e) for e in rows})
        return {"patience": level, "labels": labels, "added": added, "whole": whole}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types without sentences."""
        plain = {
            "policy": self.policy.to_dict(),
            "omitted": list(self.omitted),
            "tried": list(self.tried),
            "gaps": list(self.gaps),
            "evidence": [self._evidence(e) for e in self.evidence],
            "controls": [asdict(c) for c in self.controls],
            "needed": None if self.needed is None else asdict(self.needed),
            "others": [o.to_dict() for o in self.others],
        }
        return {
            **{name: plain[name] if name in plain else getattr(self, name) for name in WRITTEN},
            **({"quick": True} if self.quick else {}),
            **({} if self.implied is None else {"implied": asdict(self.implied), "basis": self.basis}),
        }

    def _evidence(self, e: Evidence) -> dict[str, Any]:
        low, high = self.bounds(e)
        added = self.added(e)
        return {
            **Evidence.to_dict(e),
            "judged": self.is_judged(e),
            "confidence": 1 - self.lower_risk(e),
            "low": low,
            "high": high,
            "added": None if added is None else {"low": added[0], "high": added[1]},
            "proven": self.proven(e),
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Judgement:
        """Recompute what `to_dict` wrote, or raise `InputError`."""
        later = ("quick", "implied")
        try:
            given = {f.name: content[f.name] for f in fields(Judgement) if f.name in content or f.name not in later}
            if not isinstance(given["evidence"], list) or not isinstance(given["others"], list):
                raise InputError("evidence and others are lists")
            if any(one["others"] for one in given["others"]):
                raise InputError("others is a list of judgements without others")
            counted = [f.name for f in fields(Evidence)]
            given["evidence"] = [{name: one[name] for name in counted} for one in given["evidence"]]
            given["others"] = [Judgement.from_dict(one) for one in given["others"]]
            return from_table(Judgement, given, "judgement")
        except SafexplainError as error:
            raise InputError(f"{UNREADABLE}: {error}") from None
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"{UNREADABLE}: {type(error).__name__} {error!s:.80}") from None
