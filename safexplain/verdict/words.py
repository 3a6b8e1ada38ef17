"""Judgements, hardenings and utilities in words and rows of figures, from plain values. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

from safexplain.verdict.judgement import (
    MAIN,
    WHOLE_MAP,
    Evidence,
    Judgement,
    Reason,
    Verdict,
    baseline_name,
    code,
    main_of,
    split_level,
)
from safexplain.verdict.policy import PATIENCE, Policy
from safexplain.verdict.power import leak_power

ATTACK_NAMES = {
    "Threshold": "Threshold",
    "LikelihoodRatio": "Likelihood ratio",
    "LabelLikelihoodRatio": "Likelihood ratio",
    "JointLikelihoodRatio": "Joint likelihood ratio",
    "RMIA": "RMIA",
    "Learned": "Learned classifier",
    "CounterfactualDistance": "CFD",
    "CounterfactualLRT-global": "CFD-LRT",
    "CounterfactualLRT-local": "Local CFD-LRT",
    "SignedDistance": "Signed CFD",
    "SignedDistanceLRT": "Signed CFD-LRT",
    "SignedDistanceDensity": "Signed CFD density ratio",
    "DirectionAttack": "Direction attack",
    "DirectionLRT": "Direction likelihood ratio",
    "DirectionDensity": "Direction density ratio",
    "AveragingAttack": "Averaging attack",
    "LabelPatience": "Best label attack",
    "PredictionPatience": "Best prediction attack",
    "Stacked": "Stacked attacks",
}
SIGNAL_NAMES = {
    "l1": "L1 norm",
    "l2": "L2 norm",
    "variance": "variance",
    "mean": "signed mean",
    "positive": "share of positive entries",
    "support": "share of non-zero entries",
    "sparsity": "sparsity",
    "peak": "peak",
    WHOLE_MAP: "whole map",
    f"{WHOLE_MAP}:sign": "signs of the map",
    "label": "predicted label",
    "loss": "loss",
    "margin": "margin",
    "class_l1": "L1 norms of several classes",
    "class_l2": "L2 norms of several classes",
    "class_mean": "signed means of several classes",
    "prediction": "prediction",
    "predictions": "predictions, one by one",
    "kept": "share of queries that kept the label",
    "shares": "shares of queries with each label",
    "explanation": "whole explanation",
    "distance": "recourse distance",
    "signed_distance": "recourse distance, signed by the true label",
    "score": "released score",
    "recovered_margin": "margin read from the answers",
    "regressed_margin": "margin regressed from the scores",
    "averaged_distance": "recourse distance of averaged answers",
}
"""Attacks and signals as people read them."""


def signal_name(signal: str) -> str:
    """Readable name of a signal, or of several joined by "+"."""
    names = []
    for part in signal.split("+"):
        stored, colon, view = part.partition(":")
        name, level = split_level(stored)
        known = SIGNAL_NAMES.get(name + colon + view, name + colon + view)
        names.append(known + (f", {level} queries" if level > 1 else ""))
    return " and ".join(names)


def title(attack: str, signal: str) -> str:
    """Readable name of an attack on a signal."""
    name = ATTACK_NAMES.get(attack, attack)
    if name.isupper():
        return f"{name} on the {signal_name(signal)}"
    if attack in ATTACK_NAMES:
        name = name[:1].lower() + name[1:]
    of = "on" if attack in ("Stacked", "LabelPatience", "PredictionPatience") else "of"
    return f"{name} {of} the {signal_name(signal)}"


def attack_name(attack: str, signal: str, level: int | None = None) -> str:
    """The same for a table; a number of queries equal to `level` is left out."""
    plain = signal if level is None else re.sub(rf"@{level}(?!\d)", "", signal)
    return f"{ATTACK_NAMES.get(attack, attack)} · {signal_name(plain)}"


# ------------------------------------------------------------------------------------ figures


class Figure(NamedTuple):
    """A share of the members, or (signed) a difference in points."""

    value: float
    low: float
    high: float
    signed: bool = False

    @property
    def text(self) -> str:
        """The value."""
        return points(self.value) if self.signed else percent(self.value)

    @property
    def interval(self) -> str:
        """The bounds."""
        if self.signed:
            return f"{points(self.low)} to {points(self.high)}"
        return f"{percent(self.low)}-{percent(self.high)}"


def percent(share: float, digits: int | None = None) -> str:
    """A share as text, with one decimal or `digits` significant digits."""
    return f"{share:.1%}" if digits is None else f"{100 * share:.{digits}g}%"


def points(difference: float, digits: int | None = None) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * difference:+.1f}" if digits is None else f"{100 * difference:+.{digits}g}"


def times(level: int) -> str:
    """A number of queries in words."""
    return "once" if level == 1 else f"{level:,} times"


def count(n: int, what: str) -> str:
    """A number and what it counts."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def capital(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def _listed(items: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(items[:-1]), items[-1])))


# ------------------------------------------------------------------------------------ the verdict

VERDICTS: dict[Verdict, str] = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}

SEES = {
    "explanation": "the explanation and its label",
    "explanation+prediction": "the explanation and the prediction",
    "prediction": "the prediction alone",
}
"""What the attacker sees, by the policy's `release`."""


def sentence(j: Judgement) -> str:
    """The verdict in one sentence."""
    word = f"{VERDICTS[j.verdict]}{_subject(j)}"
    if j.basis == "by guarantee":
        assert j.implied is not None
        finds = _finds(j, "more than", j.implied.tpr)
        return f"Certified by guarantee{_weaker(j)}: if trained as stated, no attacker {finds}, however often they ask."
    if j.undecided_target is not None and j.undecided_target.own_reasons[0] != "too wide":
        return f"{word}: {reasons(j)[0].partition(':')[0]}."
    on = "on predictions" if j.policy.release == "prediction" else "on explanations"
    low, high = j.decisive[code(j.strongest)]
    queries = times(j.strongest.level)
    match j.verdict:
        case "certified":
            word += _weaker(j)
            queries, found = _most_queries(j), f"no judged attack {on} {_finds(j, 'more than', j.bound)}"
        case "leak":
            found = f"an attack {on} {_finds(j, 'at least', low)}"
        case "inconclusive":
            found = f"the strongest judged attack {on} {_finds(j, '', low, high)}"
    return f"{word}: asking {queries}, {found}."


def says(j: Judgement) -> tuple[str, ...]:
    """Short sentences after the first."""
    p = j.policy
    looks = "" if p.looks == 1 else f" over all {p.looks} looks (this is number {p.look})"
    judged = (
        f"The policy allows {percent(j.limit)}; bounds hold with {p.confidence:.0%} confidence{looks}, from"
        f" {j.members:,} members, {j.non_members:,} non-members and {j.references:,} reference models."
    )
    attacker = f"The attacker sees {SEES[p.release]}, and asks {_most_queries(j)} about each example."
    return (*_next_step(j), judged, attacker, *_power(j))


def _next_step(j: Judgement) -> tuple[str, ...]:
    reasons = list(dict.fromkeys(reason for one in (j, *j.others) for reason in one.own_reasons))
    if j.verdict != "inconclusive" or not reasons:
        return ()
    failed = next((c.name for one in (j, *j.others) for c in one.failed), "")
    wanted = {
        "nothing judged": "signals that an attack can read",
        "quick": "a full audit instead of a quick look",
        "control failed": f"an audit in which the control “{failed}” passes",
        "selection split": "the examples of the certification split",
        "level missing": f"answers at each number of queries ({', '.join(map(str, j.policy.patience))})",
        "missed part": "reference models that all differ from each other",
        "release incomplete": "the arrays listed among the reasons",
        "not compared": f"the {j.anyway} of the same queries",
        "suite incomplete": "the full suite of attacks",
        "few references": f"{j.policy.references} reference models",
        "uses not counted": "the inputs of the examples, or hashes of them",
        "used before": "fresh examples",
        "too wide": _sample_needed(j) if "too wide" in reasons else "",
    }
    first = next(reason for reason in wanted if reason in reasons)
    several = "" if len(reasons) == 1 else f", first of {len(reasons)} things"
    return (f"To decide{several}: {wanted[first]}.",)


def _sample_needed(j: Judgement) -> str:
    at = f"{'max_tpr' if j.claim == 'whole' else 'max_excess'} = {j.limit:.3g}"
    sizes = [one.needed for one in (j, *j.others) if "too wide" in one.own_reasons]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return f"another limit, because the estimate is too close to {at}"
    most = max(known, key=lambda size: size.members)
    would = "certify" if all(size.verdict == "certified" for size in known) else "prove a leak at"
    examples, members = (float(f"{n:.2g}") for n in (most.members + most.non_members, most.members))
    size = f"about {examples:,.0f} examples, {members:,.0f} of them members"
    return f"{size}, which would {would} {at} if the present estimates are right"


def _power(j: Judgement) -> tuple[str, ...]:
    narrow = not any("too wide" in one.own_reasons for one in (j, *j.others))
    if j.verdict != "inconclusive" or j.claim == "whole" or narrow or not 3 * j.limit < 0.9:
        return ()
    normal, heavy = (100 * leak_power(j.policy, j.members, j.non_members, heavy_tails=tails) for tails in (False, True))
    return (
        f"About {normal:.0f} of 100 audits of this size would prove a leak of {300 * j.limit:.3g} points"
        f" ({heavy:.0f} of 100 if scores have heavy tails).",
    )


def details(j: Judgement) -> tuple[str, ...]:
    """Everything else that a reader must know."""
    first = sentence(j)
    found = [f"{capital(reason)}." for reason in reasons(j) if reason not in first]
    if j.basis == "by guarantee" and j.implied is not None:
        found.append(f"The guarantee: {j.implied.sentence}.")
    if j.decisive:
        low, high = j.decisive[code(j.strongest)]
        form, beyond = ".1%", ""
        if j.claim == "excess":
            form, beyond = "+.1%", f", beyond the {j.anyway} of the same queries alone"
        name = title(j.strongest.attack, j.strongest.signal)
        found.append(f"Strongest judged attack: {name}, {low:{form}} to {high:{form}} of members{beyond}.")
    if (contrary := j.contradiction) is not None and j.implied is not None:
        name, low = title(contrary.attack, contrary.signal), j.bounds(contrary)[0]
        found.append(
            f"Under the privacy statement, no attack finds more than {j.implied.tpr:.1%} of the members, but {name}"
            f" finds at least {low:.1%}: the training was not as stated, or members and non-members differ in"
            " another way."
        )
    if j.policy.claim == "excess" and not j.compared:
        why = f"There are no {j.anyway} to compare with"
        if baseline_name(j.policy) in j.omitted:
            why = f"The attack on the {j.anyway} alone was not run"
        found.append(f"{why}, so the release is judged as a whole. An attacker who also sees them may find more.")
    for one in [one for one in (j, *j.others) if one.beyond][:1]:
        e, less, bounds = one.beyond[0], len(one.beyond) - 1, one.claimed(one.beyond[0])
        assert bounds is not None
        of = "" if one.target in (None, j.target) else f" of model {one.target}"
        rest = f"; so {'does 1 other' if less == 1 else f'do {less} others'}" if less else ""
        what = f"{title(e.attack, e.signal)}{of} {_finds(one, 'at least', bounds[0])}{rest}"
        found.append(f"Not judged, because it {_why_not_judged(one, e)}: {what}.")
    if j.grouped is not None:
        found.append(f"Members and non-members are groups of related examples, {j.grouped:,} examples in all.")
    if j.tried:
        found.append(f"Also judged on these examples: {'; '.join(j.tried)}.")
    return tuple(found)


def text(j: Judgement) -> str:
    """The verdict, the short sentences after it, and the details."""
    return " ".join((sentence(j), *says(j), *details(j)))


def written(j: Judgement) -> dict[str, Any]:
    """The sentences of a judgement as plain JSON types."""
    return {"sentence": sentence(j), "says": list(says(j)), "details": list(details(j)), "reasons": list(reasons(j))}


def reasons(j: Judgement) -> tuple[str, ...]:
    """Why the verdict is inconclusive; `sentence` quotes the first up to its colon."""
    one = j.undecided_target
    return () if one is None else tuple(text for reason in one.own_reasons for text in _reason(one, reason))


def _reason(j: Judgement, reason: Reason) -> list[str]:
    match reason:
        case "nothing judged":
            return ["there is no attack to judge"]
        case "quick":
            return ["this was a quick look with few reference models and examples, which certifies nothing"]
        case "control failed":
            return [f"the control “{c.name}” failed: {c.says}" for c in j.failed]
        case "selection split":
            return [f"these are the examples of the {j.split} split, on which nothing is certified"]
        case "level missing":
            return [_missing(j)]
        case "missed part":
            assert j.missed_part is not None
            part = title(j.missed_part.attack, j.missed_part.signal)
            return [f"the judged attacks missed what one of their parts finds: {part}"]
        case "release incomplete":
            more = f" and {len(j.gaps) - 6} more" if len(j.gaps) > 6 else ""
            missing = "some arrays of the signals were not judged at every number of queries of the policy"
            return [f"{missing}: {', '.join(j.gaps[:6])}{more}"]
        case "not compared":
            attack = title(j.uncompared[0].attack, j.uncompared[0].signal)
            return [f"a judged attack was not compared with the {j.anyway} of the same queries: {attack}"]
        case "suite incomplete":
            return [f"the suite is incomplete: {', '.join(j.omitted)} fit these signals but were not run"]
        case "few references":
            references = count(j.references, "reference model") if j.references else "no reference models"
            return [f"the judged attacks had {references}, but the policy requires {j.policy.references}"]
        case "uses not counted":
            return [
                "earlier verdicts on these examples cannot be counted: the signals have neither inputs nor hashes of"
                " them (array examples), or the count could not be stored. With uncounted = true the policy allows"
                " this, and the certificate states it first"
            ]
        case "used before":
            before = (j.uses or 1) - 1
            return [
                f"these examples already have {count(before, 'other verdict')}, so a certificate is refused: if you try"
                " until one passes, you have certified luck. Choose on a selection split and certify on fresh examples,"
                " or force it; the certificate then states the number of verdicts"
            ]
        case "too wide":
            return ["the interval is too wide to decide"]


def _missing(j: Judgement) -> str:
    if j.missing == (1,):
        return "nothing could be judged for an attacker who asks once about each example"
    levels = ", ".join(map(str, j.missing))
    reason = f"nothing could be judged for an attacker who asks {levels} times about each example"
    if j.policy.patience == j.missing:
        return reason
    signal, most = "prediction" if j.policy.release == "prediction" else "l1", max(j.missing)
    reason += f": the signals lack arrays such as {signal}@{most} and kept@{most}"
    return f"{reason}. Add them, or let the policy assume a weaker attacker (patience = [1])"


def _subject(j: Judgement) -> str:
    if j.targets > 1:
        return f" for each of {j.targets} models" if j.verdict == "certified" else f" for model {j.target}"
    return ""


def _most_queries(j: Judgement) -> str:
    most = max(j.policy.patience)
    return "once" if most == 1 else f"up to {most:,} times"


def _weaker(j: Judgement) -> str:
    policy = replace(j.policy, claim=j.claim)
    if j.basis == "by guarantee":  # holds against all attacks, however often the examples were used
        policy = replace(policy, patience=PATIENCE, suite=(), references=Policy.references)
    found = f" under a weaker policy ({', '.join(policy.weaker)})" if policy.weaker else ""
    if j.basis == "by guarantee":
        return found
    if j.uses is None:
        return f"{found}, uses not counted"
    if j.uses > 1 or j.tried:
        return f"{found}, after {count(max(j.uses - 1, len(j.tried)), 'other verdict')}"
    return found


def _finds(j: Judgement, comparison: str, *values: float) -> str:
    found = f"{comparison} {' to '.join(percent(max(value, 0.0)) for value in values)}".strip()
    beyond = f" beyond {j.anyway} alone," if j.claim == "excess" else ""
    return f"finds {found} of members{beyond} at {100 * j.policy.fpr:g}% false positives"


def _why_not_judged(j: Judgement, e: Evidence) -> str:
    unreleased = {"explanation": "loss", "prediction": "explanation"}.get(j.policy.release)
    if unreleased is not None and unreleased in e.role:
        return "reads what is not released"
    if e.level not in j.policy.patience:
        return "asks more or fewer times than the policy's attacker"
    return "reads less than all that is released" if "explanation" in e.role else "reads no explanation"


# ------------------------------------------------------------------------------------ rows of figures

Standing = Literal["above", "below", "open", "beyond", "baseline", "unjudged"]

STANDINGS: dict[Standing, str] = {
    "above": "above the limit",
    "below": "within the limit",
    "open": "undecided",
    "beyond": "not judged, and above the limit",
    "baseline": "released anyway",
    "unjudged": "not judged",
}


def standing(j: Judgement, e: Evidence) -> Standing:
    """How an attack compares with the policy's limit."""
    bounds = j.decisive.get(code(e))
    if bounds is not None:
        return "above" if bounds[0] > j.limit else "below" if bounds[1] <= j.limit else "open"
    if any(e is one for one in j.beyond):
        return "beyond"
    return "baseline" if e.is_baseline else "unjudged"


def rate(j: Judgement, e: Evidence) -> Figure:
    """The share of members that an attack finds."""
    return Figure(e.found / j.members, *j.bounds(e))


def adds(j: Judgement, e: Evidence) -> Figure | None:
    """What an attack finds beyond the baseline; None without one."""
    bounds = j.added(e)
    return None if bounds is None else Figure(j.excess(e), *bounds, signed=True)


def headline(j: Judgement) -> Figure:
    """What the strongest attack finds, in the unit of the claim."""
    best = j.strongest
    return (adds(j, best) if j.claim == "excess" else None) or rate(j, best)


class LevelRow(NamedTuple):
    """What an attacker finds at one number of queries; None: nothing was judged."""

    level: int
    labels: Figure | None
    added: Figure | None
    whole: Figure | None


def level_rows(j: Judgement) -> list[LevelRow]:
    """One row for each of the policy's numbers of queries."""
    rows = []
    for line in j.levels:
        judged = [e for e in j.judged if e.level == line["patience"]]
        values = {
            "labels": [line["labels"]["tpr"]] if line["labels"] else [],
            "added": [j.excess(e) for e in judged if e.pair is not None],
            "whole": [e.found / j.members for e in judged],
        }
        figures = {
            name: Figure(max(found), line[name]["low"], line[name]["high"], signed=name == "added") if found else None
            for name, found in values.items()
        }
        rows.append(LevelRow(line["patience"], **figures))
    return rows


class TargetRow(NamedTuple):
    """One of several targets, with its strongest attack."""

    name: str
    judgement: Judgement
    best: Evidence
    figure: Figure


def target_rows(j: Judgement) -> list[TargetRow]:
    """One row for each of several targets; none for a single one."""
    targets = sorted((j, *j.others), key=lambda one: -1 if one.target is None else one.target)
    return [TargetRow(f"model {one.target}", one, one.strongest, headline(one)) for one in targets if j.others]


AnyEvidence = TypeVar("AnyEvidence", bound=Evidence)


def in_order(j: Judgement, attacks: Iterable[AnyEvidence]) -> list[AnyEvidence]:
    """Judged attacks, the strongest first; then the baseline and the others."""
    kinds = {"baseline": 1, "beyond": 2, "unjudged": 3}

    def place(e: AnyEvidence) -> tuple[object, ...]:
        bounds = j.claimed(e) or j.bounds(e)
        return kinds.get(standing(j, e), 0), e is not j.strongest, -bounds[1], -e.found, code(e)

    return sorted(attacks, key=place)


# ------------------------------------------------------------------------------------ what an audit does not show

SAMPLE = (
    "Examples drawn like the scored ones.",
    "The bounds hold for other members and non-members from the same source, and for these models as they are. They"
    " include the uncertainty of the threshold, but not how another training run would differ, and say nothing about"
    " another population.",
)
INDEPENDENT = (
    "Every example counts as one on its own.",
    "Near-copies, or several examples of one person, make the bounds look tighter than they are. If there are any, name"
    " them in the signals (groups).",
)
NO_GUARANTEE = (
    "Not differential privacy.",
    "This guarantees nothing for any one person: the rates are averages over members, and a few unusual examples can be"
    " more exposed.",
)
OF_MODEL = (
    "This model and this configuration.",
    "Another model, explainer, data set or hardening needs its own audit.",
)
OF_ENDPOINT = (
    "This service, as it answered.",
    "The model itself was not seen, and the service may answer differently tomorrow: another model, explainer or"
    " hardening behind the same URL needs another audit. The reference models explain as the service declares; the more"
    " it deviates from that, the weaker the attacks. Anything else that it returns was not judged.",
)
BY_GUARANTEE = (
    "As good as the privacy statement.",
    "The certificate relies on the statement of those who trained the model. No audit can confirm it; canaries can"
    " refute it. It covers the records of that training, but not those of any pre-training, nor what the model reveals"
    " about people in general.",
)


def limits(j: Judgement, *, keyed: bool = False, endpoint: bool = False) -> tuple[tuple[str, str], ...]:
    """(headline, text) for each limit of an audit, with keyed noise or of an endpoint."""
    finds = "finds" if j.claim == "whole" else "adds"
    empirical = (
        "These attacks, not every attack.",
        f"The result is empirical. “Certified” means that no judged attack {finds} more than the policy allows; a"
        " stronger attack, or one with more reference models, may. A proven leak stands either way.",
    )
    guaranteed = j.basis == "by guarantee"
    rows = [BY_GUARANTEE if guaranteed else empirical, _patience(j, keyed), _compared(j), SAMPLE]
    rows += [INDEPENDENT] if j.grouped is None else []
    rows += [] if guaranteed else [NO_GUARANTEE]
    return (*rows, OF_ENDPOINT if endpoint else OF_MODEL)


def _patience(j: Judgement, keyed: bool) -> tuple[str, str]:
    levels = sorted({e.level for e in j.judged}) or [1]
    if levels[-1] == 1:
        headline = "One query an example."
        text = "Each example was queried once: no answers to several queries were averaged."
    else:
        headline = f"Queries of these kinds, up to {levels[-1]:,} an example."
        text = (
            f"The attacks query each example {_listed([times(level) for level in levels])}, each time changed slightly"
            " at random, and average the answers."
        )
    if j.missing:
        text += f" The signals do not cover {_listed([times(level) for level in j.missing])}."
    if keyed:
        text += " The attacker knew the hardening but not the key: the reference models used another one."
    others = "" if j.policy.release == "prediction" else " explanations of other outputs or by other methods,"
    missing = f"more queries, queries optimised for one example,{others} attackers who work together"
    return headline, f"{text} Not attacked: {missing}."


def _compared(j: Judgement) -> tuple[str, str]:
    anyway = j.anyway
    if j.policy.release == "prediction":
        return (
            "Predictions alone.",
            "No explanation is released, and none was judged; explanations released with the predictions may add to"
            " them.",
        )
    if j.policy.claim == "whole":
        return (
            "The whole release.",
            f"The bounds are on what explanations and {anyway} reveal together; where the {anyway} alone reveal as"
            " much, hardening the explanations changes nothing.",
        )
    if not j.compared:
        return (
            f"No {anyway} to compare with.",
            f"The signals hold no {anyway} of the same queries, or too few models, so what explanations add to them"
            f" could not be judged; an attacker who also sees the {anyway} may find more.",
        )
    found = [(e.found / j.members, e.level) for e in j.evidence if e.attack == baseline_name(j.policy)]
    text = f"The verdict is about what explanations add. What the {anyway} reveal by themselves is released anyway"
    if found:
        rate, level = max(found)
        at = f"{percent(j.policy.fpr, 3)} false positives"
        text += f": here {percent(rate)} of the members at {at}, asked {times(level)}"
    return f"Beyond the {anyway}.", f"{text}. To lower that, train differently, or limit the number of queries."


def confidence_sentence(j: Judgement) -> str:
    """The confidence of the bounds."""
    joint, n = percent(j.policy.confidence, 4), len(j.judged)
    if not n:
        return "No attack was judged."
    attacks = "the judged attack" if n == 1 else f"the {n} judged attacks"
    among = f" on each of the {j.targets} models" if j.targets > 1 else ""
    best = main_of(j.policy)
    main = [e for e in j.judged if e.attack == best]
    called = "stacked" if best == MAIN else ATTACK_NAMES[best].lower()
    looks = f" over all {j.policy.looks} looks at the model" if j.policy.looks > 1 else ""
    half = f" (half of the risk goes to the {len(main)} called “{called}”)" if 0 < len(main) < n else ""
    return (
        f"The lower bounds of {attacks}{among} hold jointly with {joint} confidence{looks}{half}; each upper bound"
        f" holds with {joint}. Both include the uncertainty of the threshold."
    )


def precision_sentence(j: Judgement) -> str:
    """The precision of the strongest judged attack."""
    fpr, tpr = j.policy.fpr, j.strongest.found / j.members

    def right(p: float) -> str:
        return percent(p * tpr / (p * tpr + (1 - p) * fpr))

    return (
        f"How often an attacker is right depends on the candidates: the strongest judged attack finds {percent(tpr)} of"
        f" the members at {percent(fpr, 3)} false positives. If 1% of the candidates are members, {right(0.01)} of"
        f" those that it flags are members; if 10% are, {right(0.1)}."
    )


# ------------------------------------------------------------------------------------ what is released

_SLOTS = ("clip", "mask", "noise")


def as_written(hardening: Mapping[str, Any]) -> str:
    """A hardening as Python code, without empty slots.

    >>> as_written({"clip": {"kind": "TopKSet", "k": 4, "fraction": None}, "mask": None, "noise": None, "grid": None})
    'Hardening(clip=TopKSet(k=4))'
    """
    names = [*_SLOTS, *(name for name in hardening if name not in _SLOTS)]
    parts = [f"{name}={_code(hardening[name])}" for name in names if hardening.get(name) is not None]
    return f"Hardening({', '.join(parts)})" if parts else "Hardening.none()"


def in_words(hardening: Mapping[str, Any]) -> str:
    """What is released, without a full stop; "" if the hardening has unknown slots.

    >>> in_words({"clip": {"kind": "TopKSet", "k": 4, "fraction": None, "positive": True}})
    'the 4 features that count most for the class, unranked'
    >>> in_words({})
    'the explanation as it is'
    """
    if hardening.keys() - {*_SLOTS, "grid", "features"}:
        return ""
    steps = [_step(hardening[slot]) for slot in _SLOTS if hardening.get(slot) is not None]
    if hardening.get("grid") is not None:
        steps.append(f"rounded to multiples of {hardening['grid']:g}")
    if not steps:
        return "the explanation as it is"
    if hardening.get("clip") is None:
        steps.insert(0, "the explanation")
    features = hardening.get("features") or {}
    if groups := features.get("groups"):
        steps.append(f"by column of the form ({', '.join(groups)} summed over several)")
    if prohibited := features.get("prohibited"):
        steps.append(f"and no answer if {' or '.join(prohibited)} is among them")
    return ", ".join(steps)


def utility_in_words(utility: Mapping[str, float]) -> list[str]:
    """The measured figures of a utility, one sentence each."""
    found = []
    if "top_overlap" in utility:
        top = f"{100 * utility.get('top_fraction', 0.1):.3g}%"
        found.append(f"{utility['top_overlap']:.0%} of the {top} strongest features are kept")
    if "sign_errors" in utility:
        errors, of_top = utility["sign_errors"], utility.get("sign_errors_top", 0.0)
        found.append(
            f"{errors:.1%} of the released signs are wrong, and in {of_top:.1%} of the maps one of the strongest"
            if errors
            else "no released sign is wrong"
        )
    if "deletion" in utility:
        native = f" (native: {utility['native_deletion']:.2f})" if "native_deletion" in utility else ""
        falls = f"{utility['deletion']:.2f}{native}"
        found.append(f"deleting the named features lowers the probability of the class by {falls}")
    if "prohibited" in utility:
        found.append(f"{utility['prohibited']:.1%} of the explanations name a prohibited column, and are refused")
    return found


def _top_k_set(step: Mapping[str, Any]) -> str:
    k, fraction = step.get("k"), step.get("fraction")
    share = "" if fraction is None else f"{100 * fraction:.3g}%"
    if k is None:
        features = f"the {share} of features that count"
    elif k == 1 and not share:
        features = "the feature that counts"
    else:
        features = f"the {k} feature{'s' if k > 1 else ''}{f' (or top {share}, if more)' if share else ''} that count"
    order = "strongest first" if step.get("ordered") else "unranked"
    return f"{features} most {'for' if step.get('positive', True) else 'for or against'} the class, {order}"


def _levels(step: Mapping[str, Any]) -> str:
    n, balanced = step["n"], ", as many for the class as against it" if step.get("balanced", True) else ""
    return f"the importance of the features in {n} step{'s' if n > 1 else ''}{balanced}"


def _rank_norm(step: Mapping[str, Any]) -> str:
    least = step.get("balanced_from")
    balanced = "" if least is None else f" (from {least} features on, as many for the class as against it)"
    return f"the order of the features by magnitude, with their signs{balanced}"


_CLIPS_AND_MORE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "TopKSet": _top_k_set,
    "Levels": _levels,
    "RankNorm": _rank_norm,
    "RangeClip": lambda s: f"the explanation with each number clipped to [{s['low']:g}, {s['high']:g}]",
    "NormClip": lambda s: f"the explanation scaled down to a length of at most {s['max_norm']:g}",
    "UnitNorm": lambda s: f"the explanation scaled to a length of {s.get('norm', 1.0):g}",
    "ThresholdMask": lambda s: f"without numbers below {_amount(s['threshold'])}",
    "TopKMask": lambda s: f"reduced to the {100 * s['fraction']:.3g}% largest numbers",
    "GaussianNoise": lambda s: f"with keyed Gaussian noise of standard deviation {_amount(s['std'])} on every number",
}


def _step(step: Mapping[str, Any]) -> str:
    try:
        return _CLIPS_AND_MORE[step["kind"]](step)
    except (KeyError, TypeError, ValueError):
        return _code(step)


def _amount(amount: Any) -> str:
    if isinstance(amount, Mapping):
        return f"{amount['relative']:g} times their usual size"
    return f"{amount:g}"


def _code(value: Any) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    if value.keys() == {"relative"}:
        return f"Relative({value['relative']!r})"
    inner = ", ".join(f"{name}={_code(v)}" for name, v in value.items() if name != "kind" and v is not None)
    return f"{value.get('kind', '')}({inner})"
