"""The report's wording, for a reader who has not met membership attacks before.

Names of verdicts, attacks, controls and measures; sentences on the bounds; facts beside the verdict; and what the audit
does not show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from safexplain.audit.report.model import ENDPOINT, NATIVE, Configuration
from safexplain.audit.usefulness import FEWEST_TOP, Utility
from safexplain.verdict.evidence import ATTACK_NAMES, Control, signal_name
from safexplain.verdict.judgement import MAIN, AuditResult, main_of


def limits(result: AuditResult, other_key: bool | None, *, endpoint: bool = False) -> tuple[tuple[str, str], ...]:
    """(headline, sentence) for each limit of this audit.

    Args:
        result: of the audited configuration.
        other_key: whether the attacker's reference models answered with another noise key than the target; None: there
            is no key, or it is not known.
        endpoint: whether a service was asked, whose model was not seen.
    """
    finds = "finds" if result.claim == "whole" else "adds"
    empirical = (
        "These attacks, not every attack.",
        f"The result is empirical. “Certified” means that no judged attack {finds} more than the policy allows; a"
        " stronger attack, or one with more reference models, may. A proven leak stands either way.",
    )
    guaranteed = result.basis == "by guarantee"
    rows = [AVERAGE] if result.claim == "auc" else []
    rows += [BY_GUARANTEE if guaranteed else empirical, (_asked_headline(result), _asked(result, other_key))]
    rows += [_compared(result), SAMPLE]
    rows += [INDEPENDENT] if result.grouped is None else []
    rows += [] if guaranteed else [NO_GUARANTEE]
    return (*rows, OF_ENDPOINT if endpoint else OF_MODEL)


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
    "The model itself was not seen. Nothing binds the service to answer tomorrow as it did: with another model,"
    " explainer or hardening behind the same URL it needs another audit. The reference models explain as the service"
    " declares; the further they are from what it does, the weaker the attacks. Whatever else it gives away was not"
    " judged.",
)
BY_GUARANTEE = (
    "As good as the privacy statement.",
    "The certificate rests on what those who trained the model state, which no audit can check and canaries can refute."
    " It covers the records of that training, not those of any pre-training, nor what the model says about people in"
    " general.",
)
AVERAGE = (
    "An average, and not those found most surely.",
    "The verdict is about the area under the ROC curve, an average over all members and false-positive rates. A release"
    " can pass it and still give away a few members for certain: it cannot replace a verdict at a low false-positive"
    " rate.",
)
"""Headline and sentence of each limit that does not depend on numbers."""


def _asked_headline(result: AuditResult) -> str:
    most = max(e.level for e in result.judged) if result.judged else 1
    return "One query an example." if most == 1 else f"Queries of these kinds, up to {most:,} an example."


def _asked(result: AuditResult, other_key: bool | None) -> str:
    levels = sorted({e.level for e in result.judged}) or [1]
    if levels[-1] == 1:
        text = "Each example was queried once: no answers to several queries were averaged."
    else:
        text = (
            f"The attacks query each example {listed([asks(level) for level in levels])}, each time changed slightly at"
            " random, and average the answers."
        )
    if result.missing:
        text += f" The signals do not cover {listed([asks(level) for level in result.missing])}."
    if other_key is not None:
        text += (
            " The attacker knew the hardening but not the key: the reference models used another one."
            if other_key
            else " The attacker's reference models used the key of the service, which favours the attacker."
        )
    others = "" if result.policy.release == "prediction" else " explanations of other outputs or by other methods,"
    return f"{text} Not attacked: more queries, queries optimised for one example,{others} attackers who work together."


def _compared(result: AuditResult) -> tuple[str, str]:
    """What the claim leaves out."""
    anyway = result.anyway
    if result.policy.release == "prediction":
        return (
            "Predictions alone.",
            "No explanation is released, and none was judged; one released with the predictions may add to them.",
        )
    if result.policy.claim == "whole":
        return (
            "The whole release.",
            f"The bounds are on what explanations and {anyway} reveal together; where the {anyway} alone reveal as"
            " much, hardening the explanations changes nothing.",
        )
    if not result.compared:
        return (
            f"No {anyway} to compare with.",
            f"The signals hold no {anyway} of the same queries, or too few models, so what explanations add to them"
            f" could not be judged; an attacker who also sees the {anyway} may find more.",
        )
    found = [(e.found / result.members, e.level) for e in result.evidence if e.attack == result.baseline_name]
    text = f"The verdict is about what explanations add. What the {anyway} reveal by themselves is released anyway"
    if found:
        rate, level = max(found)
        at = f"{percent(result.policy.fpr, 3)} false positives"
        text += f": here {percent(rate)} of the members at {at}, asked {asks(level)}"
    return f"Beyond the {anyway}.", f"{text}. To lower that, train differently, or limit the number of queries."


def listed(items: Sequence[str]) -> str:
    """Items joined by commas and "or"."""
    return " or ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def count(n: int, what: str) -> str:
    """A number and what it counts."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def asks(level: int) -> str:
    """How often an attacker of a level of patience asks about each example."""
    return "once" if level == 1 else f"{level:,} times"


VERDICTS = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}
"""The word on the badge; upper case is set by the style sheet."""

RELEASES = {
    NATIVE: "Native explanation",
    "recommended": "Recommended hardening",
    "custom": "Custom hardening",
    ENDPOINT: "What the endpoint answers",
}

CONTROLS = {
    "blind baseline": "Can members be recognised from the inputs alone, without any answer?",
    "null model": "Do the attacks find members in a model that was not trained on them?",
    "shuffled membership": "Does this audit raise false alarms when the members are drawn at random?",
    "references": "Are there reference models with and without the scored examples?",
    "recipe": "Were the reference models trained like the target?",
    "exact copies": "Is a copy of a member among the non-members?",
    "other source": "Can examples of the other source be recognised from the inputs alone?",
}
"""What each control asks."""

NUMBERS = {
    "auc": "AUC",
    "auc_low": "AUC at least",
    "tpr_low": "TPR at least",
    "expected_at_most": "expected at most",
    "of_tolerated": "of what is tolerated",
    "effect": "effect of membership, over theirs",
}
"""Numbers behind a control."""

EXPOSED = (
    "Members that the strongest attack finds most surely, by their position in the signals (from 0). This list names"
    " members of the training set and is for the owner of the data alone."
)
"""Over the list of the most exposed members."""

STATES = {True: "failed", False: "passed", None: "not run"}
"""A control's outcome."""

STANDINGS = {
    "above": "above the limit",
    "below": "within the limit",
    "open": "undecided",
    "beyond": "not judged, and above the limit",
    "baseline": "released anyway",
    "beside": "not judged",
}
"""How an attack compares with the limit."""

KINDS = {
    "native": "The map as it is",
    "alone": "One property kept alone",
    "removed": "One property removed",
}
"""Groups of the root-cause table."""


def measures(utility: Utility) -> list[tuple[str, str, str]]:
    """Field in `Utility`, name and meaning of each measure that there is, the share of top features in words."""
    top = percent(utility.top_fraction, 3)
    rows = (
        ("top_overlap", "Top-feature overlap", f"share of the {top} strongest features that remain among them"),
        ("rank_correlation", "Rank correlation", "Spearman, of the magnitudes: is the order of the features kept?"),
        ("cosine", "Cosine similarity", "of the whole map: 1 is the same direction, 0 is unrelated"),
        ("sign_agreement", "Sign agreement", "share of the strongest features that keep their sign"),
        ("sign_errors", "Wrong signs", "share of released signs that differ from the native ones, zeros aside"),
        ("sign_errors_top", "Maps with a wrong sign", f"among the {top} strongest features, at least {FEWEST_TOP}"),
        ("deletion", "Deletion", f"fall of the class's probability when the {top} highest named features are set to 0"),
        ("insertion", "Insertion", "its rise when all others are set to 0"),
    )
    return [row for row in rows if getattr(utility, row[0]) is not None]


def measured(field: str, value: float) -> str:
    """A figure of a measure, errors as percentages."""
    return percent(value) if field.startswith("sign_errors") else f"{value:.2f}"


def percent(share: float, digits: int | None = None) -> str:
    """A share as text: one decimal, or `digits` significant digits without trailing zeros."""
    return f"{share:.1%}" if digits is None else f"{100 * share:.{digits}g}%"


def points(difference: float, digits: int | None = None) -> str:
    """A difference of shares in percentage points, with its sign."""
    text = f"{100 * difference:+.1f}" if digits is None else f"{100 * difference:+.{digits}g}"
    return text.replace("-", "−")


def between(low: float, high: float) -> str:
    """Two differences of shares as a range of percentage points."""
    return f"{points(low)} to {points(high)}"


def area(difference: float) -> str:
    """A difference of areas under the curve, with its sign."""
    return f"{difference:+.3f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """Two shares as a range, one decimal."""
    return f"{100 * low:.1f}–{100 * high:.1f}%"


def attack_name(attack: str, signal: str, level: int | None = None) -> str:
    """Readable name of an attack and what it reads.

    Args:
        attack: as the JSON has it.
        signal: likewise.
        level: of patience, where it is said elsewhere: the signals' names then leave it out.
    """
    plain = signal if level is None else re.sub(rf"@{level}(?!\d)", "", signal)
    return f"{ATTACK_NAMES.get(attack, attack)} · {signal_name(plain)}"


def release_name(configuration: Configuration) -> str:
    """Readable name of a configuration."""
    if configuration.result.policy.release == "prediction":
        return "Predictions"
    return RELEASES.get(configuration.name, configuration.name)


def confidence_sentence(result: AuditResult) -> str:
    """What the bounds of the judged attacks promise."""
    joint, n = percent(result.policy.confidence, 4), len(result.judged)
    if not n:
        return "No attack was judged."
    attacks = "the judged attack" if n == 1 else f"the {n} judged attacks"
    among = f" on each of the {result.targets} models" if result.targets > 1 else ""
    best = main_of(result.policy)
    main = [e for e in result.judged if e.attack == best]
    called = "stacked" if best == MAIN else ATTACK_NAMES[best].lower()
    looks = f" over all {result.policy.looks} looks at the model" if result.policy.looks > 1 else ""
    half = f", half of the risk being that of the {len(main)} called {called}" if 0 < len(main) < n else ""
    return (
        f"The lower bounds of {attacks}{among} hold together with {joint} confidence{looks}{half}; the upper bound of"
        f" each holds with {joint}.{'' if result.claim == 'auc' else ' Both include the uncertainty of the threshold.'}"
    )


def precision_sentence(result: AuditResult) -> str:
    """How often the strongest judged attack is right, where 1 % and where 10 % of its candidates are members.

    Of the candidates that it flags, p TPR / (p TPR + (1 - p) FPR) are members, where a share p of all candidates is.
    """
    fpr, tpr = result.policy.fpr, result.strongest.found / result.members

    def right(p: float) -> str:
        return percent(p * tpr / (p * tpr + (1 - p) * fpr))

    return (
        f"How often an attacker is right depends on the candidates: the strongest judged attack finds {percent(tpr)} of"
        f" the members at {percent(fpr, 3)} false positives. Where 1% of the candidates are members, {right(0.01)} of"
        f" those that it flags are; where 10% are, {right(0.1)}."
    )


@dataclass(frozen=True)
class Fact:
    """A number beside the verdict."""

    name: str
    value: str
    says: str
    warns: bool = False


def facts(configuration: Configuration) -> tuple[Fact, ...]:
    """What was set aside, what the sample could decide, and how often it was used."""
    result = configuration.result
    found = [
        Fact(f"Set aside for {name}", f"{n:,}", "examples that were not scored")
        for name, n in result.sizes.items()
        if n and name not in (result.split, "certification")
    ]
    if result.claim == "whole":
        says = "the lowest limit that this sample would likely certify if the attack only guessed"
        found.append(Fact("At best certifiable", percent(result.could_certify), says))
    return (*found, _uses(result, configuration.name == NATIVE))


def with_controls(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Whose controls are shown: the audited configuration, and others if one of theirs failed."""
    audited = configurations[-1]
    shown = [audited, *(c for c in configurations[:-1] if c.result.failed)]
    return [c for c in shown if c.result.controls]


def _uses(result: AuditResult, native: bool) -> Fact:
    uses, warns = result.uses, False
    if result.split != "certification":
        value, says = "selection split", "may be looked at as often as you like; nothing is decided"
    elif native and uses is None and result.policy.release != "prediction":
        value, says = "not counted", "for the native explanation: there is no hardening to choose"
    elif uses is None:
        why = ", as the policy allows" if result.policy.uncounted else ", so nothing can be certified"
        value, warns = "not counted", True
        says = f"this configuration may have been chosen by a verdict on the same examples{why}"
    elif uses == 1:
        value, says = "first use", "no other configuration was judged on them before"
    else:
        value, warns = f"{uses:,}", True
        says = "configurations were judged on them, including this one: each choice by a verdict weakens the next"
    return Fact("Uses of these examples", value, says, warns)


def capital(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def control_numbers(control: Control) -> str:
    """The numbers behind a control, named."""
    return " · ".join(f"{NUMBERS.get(name, name)} {value:.3g}" for name, value in control.numbers.items())
