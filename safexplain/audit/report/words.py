"""The report's wording, for a reader who has not met membership attacks before.

What verdicts, attacks, controls and measures are called; the policy and its bounds in sentences; the facts beside the
verdict and the cards of the controls; and what the audit does not show, from what was and was not asked and run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from safexplain.audit.report.model import ENDPOINT, NATIVE, Configuration
from safexplain.audit.utility import FEWEST_TOP, Utility
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
    rows = [AVERAGE] if result.claim == "auc" else []
    guaranteed = result.basis == "by guarantee"
    rows += [
        BY_GUARANTEE
        if guaranteed
        else (
            "These attacks, not every attack.",
            "The result is empirical. “Certified” says that none of the judged attacks"
            f" {'finds' if result.claim == 'whole' else 'adds'} more than the policy allows; a stronger attack, or one"
            " with more reference models, may. A proven leak stands either way.",
        )
    ]
    if result.references == 0:
        rows.append(("No reference models.", "Only thresholds could be tried, which are weak attacks."))
    elif result.references < result.policy.references:
        rows.append(
            (
                "Few reference models.",
                f"The attacks had {count(result.references, 'reference model')}; the policy asks for"
                f" {result.policy.references:,}. An attacker who trains more finds more.",
            )
        )
    rows.append((_asked_headline(result), _asked(result, other_key)))
    rows.append(_compared(result))
    if result.mixture > 1:
        rows.append(
            (
                "A mixture, and none of its models alone.",
                f"The examples belong to {result.mixture} models, each of which answered about its own. One of them may"
                " leak more than the mixture does; to certify a model, audit it alone.",
            )
        )
    rows.append(
        (
            "Examples drawn like the scored ones.",
            "The bounds hold for further members and non-members from the same source, for these models as they are."
            " They include the uncertainty of the threshold; they do not include how another training run would differ,"
            " and say nothing of other people or another population.",
        )
    )
    if result.grouped is None:
        rows.append(
            (
                "Every example counts as one on its own.",
                "Near-copies, or several examples of one person, would be in the training set together and make the"
                " bounds look tighter than they are. If there are any, name them in the signals (groups).",
            )
        )
    if result.uses is None and result.split == "certification":
        rows.append(
            (
                "Uses of the examples were not counted.",
                "Nobody can tell how many configurations were judged on them before this one was chosen.",
            )
        )
    return (
        *rows,
        *(
            ()
            if guaranteed
            else (
                (
                    "Not differential privacy.",
                    "No guarantee for each person follows: the rates are averages over members, and a few unusual"
                    " examples can be more exposed.",
                ),
            )
        ),
        (
            ("This service, as it answered.", _OF_ENDPOINT)
            if endpoint
            else (
                "This model and this configuration.",
                "Another model, explainer, data set or hardening needs its own audit.",
            )
        ),
    )


_OF_ENDPOINT = (
    "The model itself was not seen. Nothing binds the service to answer tomorrow as it did: with another model,"
    " explainer or hardening behind the same URL it needs another audit. The reference models explain as the service"
    " declares; the further they are from what it does, the weaker the attacks. Whatever else it gives away was not"
    " judged."
)
"""What an audit of an endpoint does not show."""


BY_GUARANTEE = (
    "As good as the privacy statement.",
    "The certificate rests on what those who trained the model state of its training, which no audit can check;"
    " canaries can refute it. It is about the records that were trained on so: the data of any pre-training, and what"
    " the model tells of people in general, are not covered.",
)
"""What a certificate by guarantee does not show."""


AVERAGE = (
    "An average, and not those found most surely.",
    "The verdict is about the area under the ROC curve, an average over all members and all false-positive rates. A"
    " release can pass that and still give away a few members for certain; it is no substitute for a verdict at a low"
    " false-positive rate.",
)
"""What the claim "auc" does not show, before anything else."""


def _asked_headline(result: AuditResult) -> str:
    most = max(e.level for e in result.judged) if result.judged else 1
    return "One query an example." if most == 1 else f"Queries of these kinds, up to {most:,} an example."


def _asked(result: AuditResult, other_key: bool | None) -> str:
    levels = sorted({e.level for e in result.judged}) or [1]
    if levels[-1] == 1:
        text = "Each example was asked about once: nobody averaged the answers to several queries."
    else:
        text = (
            f"The attacks ask {listed([asks(level) for level in levels])} about each example, each time changed a"
            " little at random, and average the answers."
        )
    if result.missing:
        text += f" The signals do not cover an attacker who asks {listed([asks(level) for level in result.missing])}."
    if other_key is not None:
        text += (
            " The attacker knew the hardening but not the key: the reference models answered with another one."
            if other_key
            else " The attacker's reference models answered with the key of the service, which favours the attacker."
        )
    others = " explanations of other outputs or by other methods than those released,"
    return (
        f"{text} Not attacked: more queries, queries optimised for one example,"
        f"{'' if result.policy.release == 'prediction' else others} and attackers who work together."
    )


def _compared(result: AuditResult) -> tuple[str, str]:
    """What the claim leaves out."""
    anyway = result.anyway
    if result.policy.release == "prediction":
        return (
            "Predictions alone.",
            "No explanation is released, and none was judged; one that is released beside the predictions may add to"
            " them.",
        )
    if result.policy.claim == "whole":
        return (
            "The whole release.",
            f"The bounds are on what explanations and {anyway} tell together; where the {anyway} alone find as much,"
            " hardening the explanations changes nothing.",
        )
    if not result.compared:
        return (
            f"No {anyway} to compare with.",
            f"The signals hold no {anyway} of the same queries, or too few models, so that what explanations add to"
            f" them could not be judged; an attacker who sees the {anyway}, too, may find more than is said here.",
        )
    found = [(e.found / result.members, e.level) for e in result.evidence if e.attack == result.baseline_name]
    text = (
        f"The verdict is about what explanations add. What the {anyway} tell by themselves is released anyway and not"
        " limited by it"
    )
    if found:
        rate, level = max(found)
        text += (
            f": here they give away {percent(rate)} of the members to whoever asks {asks(level)} about each example, at"
            f" {percent(result.policy.fpr, 3)} false positives"
        )
    return (f"Beyond the {anyway}.", f"{text}. To lower that, train differently, or limit the number of queries.")


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
    "null model": "Do the attacks find the members in a model that knows nothing of them?",
    "shuffled membership": "Does this audit raise false alarms when the members are drawn at random?",
    "references": "Are there reference models with and without the scored examples?",
    "recipe": "Do the reference models repeat how the target was trained?",
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
    "The members that the strongest attack finds most surely, by their place in the signals (from 0). This list names"
    " members of the training set: it is for the owner of the data alone."
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
    "other": "Another output of the model explained",
}
"""Groups of the root-cause table."""


def measures(utility: Utility) -> list[tuple[str, str, str]]:
    """Field in `Utility`, name and meaning of each measure that there is, the share of top features in words."""
    top = percent(utility.top_fraction, 3)
    rows = (
        ("top_overlap", "Top-feature overlap", f"share of the {top} strongest features that are still among them"),
        ("rank_correlation", "Rank correlation", "Spearman, of the magnitudes: is the order of the features kept?"),
        ("cosine", "Cosine similarity", "of the whole map: 1 is the same direction, 0 is unrelated"),
        ("sign_agreement", "Sign agreement", "share of the strongest features that keep their sign"),
        ("sign_errors", "Wrong signs", "share of the released signs that are not the native ones; zeros have none"),
        (
            "sign_errors_top",
            "Maps with a wrong sign at the top",
            f"share of the maps of which one of the {top} strongest released features, at least {FEWEST_TOP}, has one",
        ),
        (
            "deletion",
            "Deletion",
            f"fall of the class's probability when the {top} highest features that the map names are set to 0",
        ),
        ("insertion", "Insertion", "its rise when only these are kept, and all others are 0"),
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
    half = f", half of the risk being that of the {len(main)} called {called}" if 0 < len(main) < n else ""
    return (
        f"The lower bounds of {attacks}{among} hold together with {joint} confidence{half}; the upper bound of each"
        f" holds with {joint}.{'' if result.claim == 'auc' else ' Both include the uncertainty of the threshold.'}"
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
    if result.split != "certification":
        return Fact(
            "Uses of these examples", "selection split", "may be looked at as often as you like; nothing is decided"
        )
    if native and result.uses is None and result.policy.release != "prediction":
        return Fact(
            "Uses of these examples", "not counted", "for the native explanation: there is no hardening to choose"
        )
    match result.uses:
        case None:
            why = ", as the policy allows" if result.policy.uncounted else ", so that nothing can be certified"
            return Fact(
                "Uses of these examples",
                "not counted",
                f"nobody can tell whether this configuration was chosen by a verdict on the same examples{why}",
                True,
            )
        case 1:
            return Fact("Uses of these examples", "first use", "no other configuration was judged on them before")
        case uses:
            says = "configurations were judged on them, this one included: each choice by a verdict weakens the next"
            return Fact("Uses of these examples", f"{uses:,}", says, True)


def capital(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def control_numbers(control: Control) -> str:
    """The numbers behind a control, named."""
    return " · ".join(f"{NUMBERS.get(name, name)} {value:.3g}" for name, value in control.numbers.items())
