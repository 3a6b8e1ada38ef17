"""From counts to a verdict. NumPy and SciPy only, so that whoever reads a certificate can compute it again.

    leak          the lower bound of some judged attack lies above the limit
    certified     at every level of patience, the upper bounds of all judged attacks lie at or below the limit
    inconclusive  otherwise, and whenever a control failed

Bounds are those of the rate of members found (the claim "whole"), or of how much more are found than by the labels of
the same queries alone ("excess"), or of how much larger the area under the curve is than theirs ("auc"), an average
that says nothing of the members found most surely. Where there are no labels, there is nothing to compare with: the
whole is judged, its area by how much it is above the 0.5 of guessing.

All lower bounds of one target share its risk of 1 - confidence (Bonferroni), because one of them is enough to call a
leak: half of it goes to the attacks called `MAIN`, which are expected to be the strongest, the rest to all others;
several targets share it equally. Each upper bound has a risk of 1 - confidence: a certificate needs all of them, so it
is wrong only if that of the strongest attack is (an intersection-union test: Berger, Technometrics 24, 1982).

Where the training's own differential privacy already satisfies the policy (`implied`), the verdict is "certified" by
guarantee, whatever the sample could decide, unless members were found to differ from non-members in other ways, or an
attack found more than the guarantee allows.

A `Judgement` follows from counts alone and is what a certificate holds; an `AuditResult` adds each attack's curve and
rates, and what a larger sample would decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.verdict.evidence import (
    EXIT_CODES,
    ROLES,
    UNREADABLE,
    Control,
    Evidence,
    Verdict,
    baseline_name,
    code,
    is_judged,
    title,
    whole_in,
)
from safexplain.verdict.feasible import Bound, Option, Undecided, advice, feasible
from safexplain.verdict.implied import Implied
from safexplain.verdict.policy import Claim, Policy
from safexplain.verdict.power import Needed, Seen, could_certify, needed, needed_area, needed_excess, seen_power
from safexplain.verdict.stats import RocCurve, auc_interval
from safexplain.verdict.stats.paired import difference_bounds
from safexplain.verdict.stats.paired_auc import area_bounds
from safexplain.verdict.stats.roc import RateAtFpr
from safexplain.verdict.thresholds import lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

MAIN = "Stacked"
"""Attacks that get half of the risk of a target's lower bounds, fixed before anything is measured; where predictions
alone are released, `MAIN_OF_PREDICTIONS`, which joins the attacks on these."""

MAIN_OF_PREDICTIONS = "PredictionPatience"

QUICK = "this was a quick look, with few reference models and examples, by which nothing is certified"
WIDE = "the interval is too wide to decide"
"""Reasons without a verdict. What precedes the colon of a reason, if it has one, stands alone in the sentence."""

WORDS: dict[Verdict, str] = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}
AVERAGE: dict[Verdict, str] = {"certified": " on average only", "leak": " (by AUC)", "inconclusive": " (by AUC)"}
"""How the sentence begins, and what follows that under the claim "auc"."""


def main_of(policy: Policy) -> str:
    """Which of the two."""
    return MAIN_OF_PREDICTIONS if policy.release == "prediction" else MAIN


def lower_risks(attacks: Sequence[str], policy: Policy, targets: int = 1) -> list[float]:
    """Risk of the lower bound of each judged attack; they add up to (1 - confidence) / targets.

    Args:
        attacks: names of the judged attacks.
        policy: whose confidence is shared.
        targets: models that are judged, each on its own.
    """
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
        policy: what counts as a leak.
        evidence: of every attack, judged or not.
        members, non_members: independent units that were scored: examples, or groups of them that belong together.
        references: models that stood in for the target; 0 when only thresholds could be tried.
        controls: that were run, or could not be.
        omitted: attacks that the signals allow and the whole suite has, but that were not run.
        split: "certification", or "selection": then nothing can be decided.
        uses: which configuration this is that was judged on these examples; None: not counted.
        forced: certify although it is not the first.
        grouped: examples that were scored, where groups of them are the units; None: each is a unit.
        mixture: models that the scored examples belong to, of which each answered about its own only: the verdict is
            about their mixture, and about none of them alone.
        target: which model this is about, where there are several.
        targets: how many are judged, each on its own.
        others: judgements of the other targets; this one is the most exposed.
        quick: whether it is of a quick look, with few references and examples, which certifies nothing.
        implied: what differential privacy of the one target's training implies for the records that were scored; None:
            nothing is stated, or it is not about them.
    """

    policy: Policy
    evidence: tuple[Evidence, ...]
    members: int
    non_members: int
    references: int
    controls: tuple[Control, ...] = ()
    omitted: tuple[str, ...] = ()
    split: str = "certification"
    uses: int | None = None
    forced: bool = False
    grouped: int | None = None
    mixture: int = 1
    target: int | None = None
    targets: int = 1
    others: tuple[Judgement, ...] = ()
    quick: bool = False
    implied: Implied | None = None

    def __post_init__(self) -> None:
        if self.implied is not None and (self.targets > 1 or self.mixture > 1):
            raise InputError("implied: a privacy statement is about one model, and several are judged")
        if min(self.members, self.non_members) < 1:
            raise InputError(f"need members and non-members, got {self.members} and {self.non_members}")
        room = self.members * (1 + 1e-9)
        for e in self.evidence:
            few, many = e.lower_bound_count, e.upper_bound_count
            if e.role not in ROLES or e.level < 1 or min(few, e.found) < 0 or max(many, e.found) > room:
                raise InputError(f"evidence out of range: {e} with {self.members} members")
            if few > many * (1 + 1e-9):
                raise InputError(f"evidence is impossible: {few} members above the higher threshold, {many} below")
            if e.pair is not None:
                e.pair.check(self.members, self.non_members, self.policy.fpr)
                if e.pair.only + e.pair.missed > room:
                    raise InputError(f"pairs out of range: {e.pair} with {self.members} members")
            if e.areas is not None:
                e.areas.check()
        if len({code(e) for e in self.evidence}) < len(self.evidence):
            raise InputError("two attacks of one name read one signal; give each row of the suite a name of its own")
        if self.mixture < 1 or (self.others and self.targets != len(self.others) + 1):
            raise InputError(f"expected judgements of {self.targets} targets, got {len(self.others) + 1}")

    # ------------------------------------------------------------------------------------ what is judged

    @property
    def baseline_name(self) -> str:
        """The attack on what is released anyway."""
        return baseline_name(self.policy)

    @property
    def anyway(self) -> str:
        """What is released whether or not there are explanations: labels or predictions."""
        return "labels" if self.policy.release == "explanation" else "predictions"

    def baseline(self, level: int) -> Evidence | None:
        """What the labels (or predictions) of the same queries tell."""
        return next((e for e in self.evidence if e.attack == self.baseline_name and e.level == level), None)

    @cached_property
    def claim(self) -> Claim:
        """What is claimed: that of the policy, or "whole" for "excess" where nothing can be compared with."""
        return "whole" if self.policy.claim == "excess" and not self.compared else self.policy.claim

    @cached_property
    def compared(self) -> bool:
        """Whether what is judged is compared with labels (or predictions) of the same queries."""
        return self.policy.claim != "whole" and any(e.attack == self.baseline_name for e in self.evidence)

    @property
    def limit(self) -> float:
        """What bounds are compared with."""
        return self.policy.max_tpr if self.claim == "whole" else self.policy.limit

    def is_judged(self, e: Evidence) -> bool:
        """Whether the verdict rests on this attack."""
        claim = self.policy.claim if self.compared else "whole"
        return is_judged(e.role, self.policy, claim) and e.level in self.policy.patience

    @cached_property
    def judged(self) -> tuple[Evidence, ...]:
        """The attacks that the verdict rests on."""
        return tuple(e for e in self.evidence if self.is_judged(e))

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Levels of the policy at which nothing could be judged."""
        there = {e.level for e in self.judged if code(e) in self.decisive}
        return tuple(level for level in self.policy.patience if level not in there)

    # ------------------------------------------------------------------------------------ bounds

    @cached_property
    def _risks(self) -> dict[str, float]:
        shares = lower_risks([e.attack for e in self.judged], self.policy, self.targets)
        return dict(zip(map(code, self.judged), shares, strict=True))

    def lower_risk(self, e: Evidence) -> float:
        """Probability with which the lower bound of this attack may fail; unjudged ones count as one more."""
        return self._risks.get(code(e), self.policy.risk / self.targets / (len(self.judged) + 1))

    @cached_property
    def could_certify(self) -> float:
        """Smallest `max_tpr` that one guessing attack stays below here, with a probability of 90 %."""
        return could_certify(self.policy, self.members, self.non_members)

    def bounds(self, e: Evidence) -> tuple[float, float]:
        """Lower and upper bound of the attack's true-positive rate at the policy's false-positive rate."""
        risk, fpr = self.lower_risk(e), self.policy.fpr
        share = lower_bound_rank(self.non_members, fpr, risk / 2)[1]
        low = lower_bound(e.lower_bound_count, self.members, risk / 2) * share
        if upper_bound_rank(self.non_members, fpr, self.policy.risk / 2) is None:
            return low, 1.0
        return low, upper_bound(e.upper_bound_count, self.members, self.policy.risk / 2)

    def added(self, e: Evidence) -> tuple[float, float] | None:
        """Lower and upper bound of the attack's true-positive rate above the baseline's; None without a baseline."""
        return self._added.get(code(e))

    @cached_property
    def _added(self) -> dict[str, tuple[float, float]]:
        n, fpr, high = (self.members, self.non_members), self.policy.fpr, self.policy.risk
        compared = [(e, e.pair) for e in self.evidence if e.pair is not None]
        return {code(e): difference_bounds(pair, *n, fpr, self.lower_risk(e), high) for e, pair in compared}

    def area(self, e: Evidence) -> tuple[float, float] | None:
        """Lower and upper bound of how much larger its area is than the baseline's; None under other claims."""
        if e.areas is None:
            return None
        return area_bounds(e.areas, self.members, self.non_members, self.lower_risk(e), self.policy.risk)

    def claimed(self, e: Evidence) -> tuple[float, float] | None:
        """Bounds of what the claim is about: of the rate, of the excess, or of the area's."""
        match self.claim:
            case "whole":
                return self.bounds(e)
            case "excess":
                return self.added(e)
            case "auc":
                return self.area(e)

    @cached_property
    def decisive(self) -> dict[str, tuple[float, float]]:
        """Bounds that the limit is compared with, by judged attack."""
        compared = {code(e): self.claimed(e) for e in self.judged}
        return {name: bounds for name, bounds in compared.items() if bounds is not None}

    def estimate(self, e: Evidence) -> float:
        """What was found of a judged attack, in the unit of the limit: the rate, the excess, or that of the area."""
        if self.claim == "auc":
            return 0.0 if e.areas is None else e.areas.difference
        if self.claim == "excess":
            return 0.0 if e.pair is None else (e.pair.only - e.pair.missed) / self.members
        return e.found / self.members

    def proven(self, e: Evidence) -> bool:
        """Whether this attack alone proves a leak."""
        bounds = self.decisive.get(code(e))
        return bounds is not None and bounds[0] > self.limit

    @cached_property
    def beyond(self) -> tuple[Evidence, ...]:
        """Attacks that were run and not judged, whose lower bound is above the limit; the clearest first."""
        found: list[tuple[float, int, Evidence]] = []
        for e in self.evidence:
            bounds = None if self.is_judged(e) else self.claimed(e)
            if bounds is not None and bounds[0] > self.limit:
                found.append((-bounds[0], len(found), e))
        return tuple(e for *_, e in sorted(found))

    def beside(self, e: Evidence) -> str:
        """Why an attack that was run is not judged: what it does."""
        unreleased = {"explanation": "loss", "prediction": "explanation"}.get(self.policy.release)
        if unreleased is not None and unreleased in e.role:
            return "reads what is not released"
        if e.level not in self.policy.patience:
            return "asks another number of times than the policy's attacker"
        return "reads less than all that is released" if "explanation" in e.role else "reads no explanation"

    # ------------------------------------------------------------------------------------ verdict

    @property
    def reused(self) -> bool:
        """Whether the examples were used for another configuration's verdict before, and that was not overruled."""
        return self.uses is not None and self.uses > 1 and not self.forced

    @property
    def failed(self) -> tuple[Control, ...]:
        """Controls that found what must not be there."""
        return tuple(c for c in self.controls if c.failed)

    @cached_property
    def contradiction(self) -> Evidence | None:
        """The attack that surely finds more than the stated differential privacy allows any to find, if one does."""
        most = None if self.implied is None or self._unlike else self.implied.tpr
        above = [e for e in self.evidence if most is not None and self.bounds(e)[0] > most]
        return max(above, key=lambda e: self.bounds(e)[0], default=None)

    @cached_property
    def by_guarantee(self) -> bool:
        """Whether the stated differential privacy alone satisfies the policy, and nothing contradicts it."""
        i = self.implied
        if i is None or self.quick or self._unlike or self.split != "certification" or self.contradiction:
            return False
        return i.satisfies(self.policy, self.claim, self.limit, compared=self.compared)

    @property
    def basis(self) -> str:
        """What the verdict rests on: "by guarantee", or "by measurement"."""
        return "by guarantee" if self.verdict == "certified" and self.by_guarantee else "by measurement"

    @property
    def _unlike(self) -> bool:
        """Whether a control found that members differ from non-members, not only that the attacks may be weak."""
        return any(not c.spares_leaks for c in self.failed)

    @cached_property
    def own_verdict(self) -> Verdict:
        """Of this target alone; see the module."""
        bounds = self.decisive.values()
        if self.by_guarantee and not any(low > self.limit for low, _ in bounds):
            return "certified"
        if self._unlike or self.split != "certification" or not bounds:
            return "inconclusive"
        if any(low > self.limit for low, _ in bounds):
            return "leak"
        return "inconclusive" if self.obstacles or any(high > self.limit for _, high in bounds) else "certified"

    @property
    def verdict(self) -> Verdict:
        """Of all targets: a leak where one leaks, certified where each is."""
        verdicts = {self.own_verdict, *(o.own_verdict for o in self.others)}
        return "leak" if "leak" in verdicts else "certified" if verdicts == {"certified"} else "inconclusive"

    @property
    def exit_code(self) -> int:
        """0 certified, 1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def bound(self) -> float:
        """No judged attack finds more, with the policy's confidence (of the excess: adds more)."""
        return max((high for one in (self, *self.others) for _, high in one.decisive.values()), default=1.0)

    @cached_property
    def obstacles(self) -> tuple[str, ...]:
        """Why nothing may be certified, whatever the bounds are."""
        found = [QUICK] if self.quick else []
        found += [f"the control “{c.name}” failed: {c.says}" for c in self.failed]
        if self.split != "certification":
            found.append(f"these are the examples of the {self.split} split, on which nothing is certified")
        if missing := self.missing:
            found.append(_missing_says(missing, self.policy))
        if alone := [e for e in self.judged if code(e) not in self.decisive and e.level not in missing]:
            what = title(alone[0].attack, alone[0].signal)
            found.append(f"a judged attack was not compared with the {self.anyway} of the same queries: {what}")
        if self.omitted:
            found.append(f"the suite is incomplete: {', '.join(self.omitted)} fit these signals and were not run")
        if self.references < self.policy.references:
            many = f"{self.references or 'no'} reference model{'' if self.references == 1 else 's'}"
            found.append(f"{many} stood behind the judged attacks, and the policy asks for {self.policy.references}")
        if self.uses is None and not self.policy.uncounted:
            found.append(
                "how many configurations were judged on these examples is not counted: the signals name neither inputs"
                " nor population, or the count could not be kept (uncounted = true in the policy allows it)"
            )
        if self.reused:
            before = self.uses - 1 if self.uses else 0
            found.append(
                f"{before} other configuration{'s were' if before > 1 else ' was'} judged on these examples before, so"
                " a certificate is refused: choosing by verdicts certifies luck. Choose on a selection split and"
                " certify on fresh examples, or force it, and the certificate counts the uses"
            )
        return tuple(found)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is inconclusive; empty for the others."""
        if self.verdict != "inconclusive":
            return ()
        one = self if self.own_verdict == "inconclusive" else next(o for o in self.others if o.reasons_alone)
        return one.reasons_alone

    @property
    def reasons_alone(self) -> tuple[str, ...]:
        """Why nothing is decided about this target."""
        if self.own_verdict != "inconclusive":
            return ()
        found = [] if self.judged else ["there is no attack to judge"]
        bounds = self.decisive.values()
        leak = any(low > self.limit for low, _ in bounds)  # were it not for a control
        if not leak and any(high > self.limit for _, high in bounds):
            found.append(WIDE)
        return (*self.obstacles, *found) if self.judged else (*found, *self.obstacles)

    @cached_property
    def strongest(self) -> Evidence:
        """The attack that decides: of those that prove a leak the clearest, or else that with the highest bound."""
        among = [e for e in self.judged if code(e) in self.decisive] or list(self.judged) or list(self.evidence)

        def key(e: Evidence) -> tuple[float, float]:
            low, high = self.decisive[code(e)] if code(e) in self.decisive else self.bounds(e)
            return max(low - self.limit, 0.0), high

        return max(among, key=key)

    # ------------------------------------------------------------------------------------ words

    @property
    def subject(self) -> str:
        """What the verdict is about, where that is not one model: words for the sentence."""
        if self.mixture > 1:
            return f" for the mixture of {self.mixture} models"
        if self.targets > 1:
            return f" for each of {self.targets} models" if self.verdict == "certified" else f" for model {self.target}"
        return ""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence of at most 30 words: how often is asked, and what that finds."""
        word = f"{WORDS[self.verdict]}{self.subject}"
        if self.basis == "by guarantee":
            assert self.implied is not None
            most = self._finds("more than", self.implied.most(self.claim, compared=self.compared))
            return f"Certified by guarantee: if trained as stated, no attacker {most}, however often they ask."
        if self.verdict == "inconclusive" and self.reasons[0] != WIDE:
            return f"{word}: {self.reasons[0].partition(':')[0]}."
        if self.claim == "auc":
            word = f"{WORDS[self.verdict]}{AVERAGE[self.verdict]}{self.subject}"
        on = "on predictions" if self.policy.release == "prediction" else "on explanations"
        low, high = self.decisive[code(self.strongest)]
        level = self.strongest.level
        often = "once" if level == 1 else f"{level:,} times"
        match self.verdict:
            case "certified":
                often, found = self._often, f"no judged attack {on} {self._finds('more than', self.bound)}"
            case "leak":
                found = f"an attack {on} {self._finds('at least', low)}"
            case "inconclusive":
                found = f"the strongest judged attack {on} {self._finds('', low, high)}"
        return f"{word}: asking {often}, {found}."

    @property
    def says(self) -> tuple[str, ...]:
        """What the sentence leaves open, in two short ones: what was asked, and by whom."""
        p = self.policy
        limit = f"{self.limit:.3g} of AUC" if self.claim == "auc" else f"{self.limit:.1%}"
        asked = (
            f"The policy allows {limit}; bounds hold with {p.confidence:.0%} confidence{self._looks}, from"
            f" {self.members:,} members, {self.non_members:,} non-members and {self.references:,} reference models."
        )
        sees = {
            "explanation": "the explanation and its label",
            "explanation+prediction": "the explanation and the prediction",
            "prediction": "the prediction alone",
        }[p.release]
        who = f"The attacker sees {sees}, and asks {self._often} about each example"
        if self.mixture > 1:
            who += f"; this is about the mixture of {self.mixture} models and none of them alone"
        if self.claim == "auc":
            who += "; an average (AUC) says nothing of the members found most surely"
        return asked, f"{who}."

    @property
    def details(self) -> tuple[str, ...]:
        """What else a reader must know: reasons in full, the strongest attack, what was run but not judged."""
        found = [f"{reason[:1].upper()}{reason[1:]}." for reason in self.reasons if reason not in self.sentence]
        if self.basis == "by guarantee" and self.implied is not None:
            found.append(f"The guarantee: {self.implied.sentence}.")
        if self.decisive:
            low, high = self.decisive[code(self.strongest)]
            form = {"whole": ".1%", "excess": "+.1%", "auc": "+.3f"}[self.claim]
            than = f"the {self.anyway} of the same queries alone" if self.compared else "guessing"
            unit = {"whole": "members", "excess": f"members, beyond {than}", "auc": f"AUC above {than}"}[self.claim]
            name = title(self.strongest.attack, self.strongest.signal)
            found.append(f"Strongest judged attack: {name}, {low:{form}} to {high:{form}} of {unit}.")
        if (contrary := self.contradiction) is not None and self.implied is not None:
            name, low = title(contrary.attack, contrary.signal), self.bounds(contrary)[0]
            found.append(
                f"The privacy statement allows no attack more than {self.implied.tpr:.1%} of the members, and {name}"
                f" finds at least {low:.1%}: the training was not as stated, or members and non-members differ in"
                " other ways."
            )
        if self.policy.claim != "whole" and not self.compared and self.policy.release != "prediction":
            why = f"There are no {self.anyway} to compare with"
            if self.baseline_name in self.omitted:
                why = f"The attack on the {self.anyway} alone was not run"
            found.append(
                f"{why}, so the release is judged as a whole, and an attacker who sees them too may find more."
            )
        for one in [one for one in (self, *self.others) if one.beyond][:1]:
            e, less, bounds = one.beyond[0], len(one.beyond) - 1, one.claimed(one.beyond[0])
            assert bounds is not None
            of = "" if one.target in (None, self.target) else f" of model {one.target}"
            rest = f"; so {'does 1 other' if less == 1 else f'do {less} others'}" if less else ""
            found.append(
                f"Not judged, because it {one.beside(e)}: {title(e.attack, e.signal)}{of}"
                f" {one._finds('at least', bounds[0])}{rest}."
            )
        if self.grouped is not None:
            found.append(f"Members and non-members are groups of related examples, {self.grouped:,} examples in all.")
        if self.verdict == "certified" and self.uses is None:
            found.append("How many configurations were judged on these examples was not counted.")
        return tuple(found)

    def __str__(self) -> str:
        """All of it: the sentence, what it leaves open, the details."""
        return " ".join((self.sentence, *self.says, *self.details))

    @property
    def _looks(self) -> str:
        p = self.policy
        return "" if p.looks == 1 else f" over all {p.looks} looks (this is number {p.look})"

    @property
    def too_wide(self) -> bool:
        """Whether nothing but the width of the intervals stands against a verdict: a larger audit may decide."""
        return self.reasons == (WIDE,)

    @property
    def _often(self) -> str:
        most = max(self.policy.patience)
        return "once" if most == 1 else f"up to {most:,} times"

    def _finds(self, how: str, *values: float) -> str:
        """What an attack finds in the unit of the claim, never less than 0, with a verb."""
        form = ".3f" if self.claim == "auc" else ".1%"
        found = f"{how} {' to '.join(f'{max(value, 0.0):{form}}' for value in values)}".strip()
        if self.claim == "auc":
            return f"has an AUC {found} above {f'that of {self.anyway}' if self.compared else 'guessing'}"
        beyond = f" beyond {self.anyway} alone," if self.claim == "excess" else ""
        return f"finds {found} of members{beyond} at {100 * self.policy.fpr:g}% false positives"

    @property
    def levels(self) -> list[dict[str, Any]]:
        """At each level of the policy: what labels find, what the explanation adds, what both find together.

        `labels` (or `predictions`, under that name too): the baseline's rate and its bounds; `added`: bounds of the
        judged attack that adds most; `whole`: bounds of the judged attack that finds most. None where there is nothing.
        Under the claim "auc" these rates are reported, and `auc` is what is judged: the area of the labels, and bounds
        of how much larger that of the judged attack that adds most is.
        """
        return [self._level(level) for level in self.policy.patience]

    def _level(self, level: int) -> dict[str, Any]:
        base = self.baseline(level)
        rows = [e for e in self.judged if e.level == level]
        added = [(b, code(e)) for e in rows if (b := self.added(e)) is not None]
        whole = [(self.bounds(e), code(e)) for e in rows]

        def worst(bounds: list[tuple[tuple[float, float], str]]) -> dict[str, Any] | None:
            if not bounds:
                return None
            low, high = max(b[0] for b, _ in bounds), max(b[1] for b, _ in bounds)
            return {"low": low, "high": high, "attack": max(bounds, key=lambda one: one[0][1])[1]}

        labels = None
        if base is not None:
            low, high = self.bounds(base)
            labels = {"tpr": base.found / self.members, "low": low, "high": high}
        found = {"patience": level, "labels": labels, "added": worst(added), "whole": worst(whole)}
        if self.claim == "auc":
            areas = [(b, code(e)) for e in rows if (b := self.area(e)) is not None]
            bases = [e.areas.base_auc for e in rows if e.areas is not None]
            found["auc"] = {"labels": bases[0], **(worst(areas) or {})} if areas else None
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads the counts and computes everything else again."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "says": list(self.says),
            "details": list(self.details),
            "reasons": list(self.reasons),
            "policy": self.policy.to_dict(),
            "claim": self.claim,
            "limit": self.limit,
            "bound": self.bound,
            "levels": self.levels,
            "split": self.split,
            "uses": self.uses,
            "forced": self.forced,
            "members": self.members,
            "non_members": self.non_members,
            "grouped": self.grouped,
            "references": self.references,
            "omitted": list(self.omitted),
            "mixture": self.mixture,
            "target": self.target,
            "targets": self.targets,
            "evidence": [self._evidence(e) for e in self.evidence],
            "controls": [c.to_dict() for c in self.controls],
            "could_certify": self.could_certify,
            "others": [o.to_dict() for o in self.others],
            **({"quick": True} if self.quick else {}),
            **({} if self.implied is None else {"implied": self.implied.to_dict(), "basis": self.basis}),
        }

    def summary(self) -> dict[str, Any]:
        """Verdict, sentence and levels alone, as plain JSON types."""
        return {"verdict": self.verdict, "sentence": self.sentence, "levels": self.levels}

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
        """From what `to_dict` wrote; derived fields are not read.

        Raises:
            InputError: a field is missing, of the wrong type, or impossible.
        """
        try:
            if not isinstance(forced := content["forced"], bool):
                raise InputError(f"{UNREADABLE}: forced is true or false, got {forced!r:.60}")
            if not isinstance(others := content["others"], list) or any(o["others"] for o in others):
                raise InputError(f"{UNREADABLE}: others is a list of judgements without others")

            def number(key: str) -> int | None:
                return None if content[key] is None else whole_in(content, key)

            return Judgement(
                policy=Policy.from_dict(content["policy"]),
                evidence=tuple(Evidence.from_dict(e) for e in content["evidence"]),
                members=whole_in(content, "members"),
                non_members=whole_in(content, "non_members"),
                references=whole_in(content, "references"),
                controls=tuple(Control.from_dict(c) for c in content["controls"]),
                omitted=tuple(str(name) for name in content["omitted"]),
                split=str(content["split"]),
                uses=number("uses"),
                forced=forced,
                grouped=number("grouped"),
                mixture=whole_in(content, "mixture"),
                target=number("target"),
                targets=whole_in(content, "targets"),
                others=tuple(Judgement.from_dict(o) for o in others),
                implied=Implied.from_dict(content["implied"]) if "implied" in content else None,
            )
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"{UNREADABLE}: {type(error).__name__} {error!s:.80}") from None


def _missing_says(missing: tuple[int, ...], policy: Policy) -> str:
    levels = ", ".join(map(str, missing))
    if missing == (1,):
        return "nothing could be judged for an attacker who asks once about each example"
    text = f"nothing could be judged for an attacker who asks {levels} times about each example"
    if policy.patience != missing:
        such = "prediction" if policy.release == "prediction" else "l1"
        text += f": the signals lack arrays such as {such}@{max(missing)} and kept@{max(missing)}"
        text += "; the policy can name a weaker attacker, patience = [1]"
    return text


SHOWN_FPRS = (0.001, 0.01, 0.05, 0.1)
"""False-positive rates at which every attack is reported, beside the policy's."""


@dataclass(frozen=True, eq=False)
class AttackResult(Evidence):
    """What one attack found: its counts, which the verdict uses, and what is shown beside them.

    Args:
        attack, signal, role, level, found, upper_bound_count, lower_bound_count, pair, areas: see `Evidence`.
        curve: its ROC over the scored examples.
        rates: its TPR at each reported false-positive rate, with Clopper-Pearson intervals at the realised rate.
    """

    curve: RocCurve = field(kw_only=True)
    rates: tuple[RateAtFpr, ...] = field(kw_only=True)

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
            "level": self.level,
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
        slices: what the strongest attack finds in parts of the members, such as the classes.
        exposed: the members that it finds most surely; empty unless asked for.
    """

    evidence: tuple[AttackResult, ...]
    orders: tuple[NDArray[np.bool_], ...] = field(kw_only=True)
    sizes: dict[str, int] = field(kw_only=True)
    slices: tuple[Any, ...] = field(default=(), kw_only=True)
    exposed: tuple[Any, ...] = field(default=(), kw_only=True)

    @property
    def attacks(self) -> tuple[AttackResult, ...]:
        """All attacks, judged or not."""
        return self.evidence

    @cached_property
    def judged(self) -> tuple[AttackResult, ...]:
        """The attacks that the verdict rests on."""
        return tuple(a for a in self.attacks if self.is_judged(a))

    @cached_property
    def strongest(self) -> AttackResult:
        """The judged attack that decides."""
        best = super().strongest
        return next(a for a in self.attacks if a is best)

    @cached_property
    def seen(self) -> tuple[tuple[int, AttackResult, Seen], ...]:
        """At each level of what is added, the judged attack that adds most, and what it could have shown."""
        found, policy = [], self.policy
        for level in policy.patience if self.claim == "excess" else ():
            compared = [(b[1], a) for a in self.judged if a.level == level and (b := self.added(a)) is not None]
            if compared:
                best = max(compared, key=lambda one: one[0])[1]
                assert best.pair is not None
                sizes, risks = (self.members, self.non_members), (self.lower_risk(best), policy.risk)
                found.append((level, best, seen_power(best.pair, *sizes, policy.fpr, self.limit, *risks)))
        return tuple(found)

    @cached_property
    def needed(self) -> Needed | None:
        """A sample that would probably decide; None if the verdict is there, or none would, or it is not known."""
        if self.own_verdict != "inconclusive" or self.failed or not self.decisive:
            return None
        sizes = self.members, self.non_members
        if self.claim == "whole":
            return needed(self.policy, list(self.orders)) if self.orders else None
        if self.claim == "excess":
            pairs = [(a.pair, self.lower_risk(a)) for a in self.judged if a.pair is not None]
            return needed_excess(self.policy, pairs, *sizes)
        areas = [(e.areas, self.lower_risk(e)) for e in self.judged if e.areas is not None]
        return needed_area(self.policy, areas, *sizes)

    @cached_property
    def undecided(self) -> Undecided | None:
        """What `feasible` looks at: this target and all others about which nothing is decided; None where that is moot.

        It is moot where there is a verdict, a control failed, nothing could be judged, or the split decides nothing.
        """
        if self.verdict != "inconclusive" or self.split != "certification":
            return None
        among = [r for r in (self, *self.others) if isinstance(r, AuditResult) and r.own_verdict == "inconclusive"]
        if not among or any(r.failed or not r.decisive for r in among):
            return None
        wide = [r for r in among if any(high > r.limit for _, high in r.decisive.values())]
        sizes = [r.needed for r in wide]
        found = [n for n in sizes if n is not None]
        return Undecided(
            self.policy,
            self.claim,
            self.members,
            self.non_members,
            min(r.references for r in among),
            bool(wide),
            tuple(
                Bound(r.estimate(e), r.decisive[code(e)][1]) for r in wide for e in r.judged if code(e) in r.decisive
            ),
            max(found, key=lambda n: n.members) if len(found) == len(sizes) and found else None,
        )

    @cached_property
    def feasible(self) -> tuple[Option, ...]:
        """What would probably decide with these data, or about as many; empty where there is a verdict."""
        return () if self.undecided is None else feasible(self.undecided)

    @property
    def says(self) -> tuple[str, ...]:
        """What was asked, by whom, and what would decide where nothing is decided; each in a short sentence."""
        return super().says if self.undecided is None else (*super().says, advice(self.undecided, self.feasible))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        n = self.needed
        return {
            **super().to_dict(),
            "attacks": [a.shown() for a in self.attacks],
            "needed": None if n is None else {"members": n.members, "non_members": n.non_members, "verdict": n.verdict},
            "feasible": [option.to_dict() for option in self.feasible],
            "seen_power": [
                {"patience": level, "attack": code(a), "proves": seen.proves, "certifies": seen.certifies}
                for level, a, seen in self.seen
            ],
            "splits": dict(self.sizes),
            "slices": [one.to_dict() for one in self.slices],
            "exposed": [one.to_dict() for one in self.exposed],
        }
