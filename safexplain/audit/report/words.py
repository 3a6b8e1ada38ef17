"""The report's wording, for a reader who has not met membership attacks before.

What verdicts, attacks, controls and measures are called; the policy and its bounds in sentences; the facts beside the
verdict and the cards of the controls; and what the audit does not show, from what was and was not asked and run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safexplain.audit.report.model import NATIVE, Configuration
from safexplain.verdict.evidence import ATTACK_NAMES, AVERAGED, Control, signal_name
from safexplain.verdict.judgement import AuditResult
from safexplain.verdict.policy import Policy

ASKED = {
    "near_": "near-duplicates of each example (moved by a pixel, slightly noisy), their answers averaged",
    "repeated_": "the same query again, its answers averaged",
}
"""Prefix of the signals of an adaptive query -> what was asked."""

FIRST = (
    (
        "These attacks, not every attack.",
        "The result is empirical. “Certified” says that none of the attacks listed here finds more than the policy"
        " allows; a stronger attack, or one with more reference models, may. A proven leak stands either way.",
    ),
    (
        "Examples drawn like the scored ones.",
        "The bounds hold for further members and non-members from the same source, for these models as they are."
        " They include the uncertainty of the threshold; they do not include how another training run would differ,"
        " and say nothing of other people or another population.",
    ),
)
LAST = (
    (
        "Not differential privacy.",
        "No guarantee for each person follows: the rates are averages over members, and a few unusual examples"
        " can be more exposed.",
    ),
    (
        "This model and this configuration.",
        "Another model, explainer, data set or hardening needs its own audit.",
    ),
)


def limits(result: AuditResult, other_key: bool | None) -> tuple[tuple[str, str], ...]:
    """(headline, sentence) for each limit of this audit.

    Args:
        result: of the audited configuration.
        other_key: whether the attacker's reference models answered with another noise key than the target; None: there
            is no key, or it is not known.
    """
    rows = [*FIRST, ("Adaptive queries only as far as they were asked.", _queries(result, other_key))]
    if result.references == 0:
        rows.insert(1, ("No reference models.", "Only thresholds could be tried, which are weak attacks."))
    return (*rows, *LAST)


def _queries(result: AuditResult, other_key: bool | None) -> str:
    signals = [part for a in result.judged for part in a.signal.split("+")]
    asked = [ASKED[prefix] for prefix in AVERAGED if any(s.startswith(prefix) for s in signals)]
    text = f"Attacked beside the plain query: {'; '.join(asked)}." if asked else "Each example was asked about once."
    if not any(s.startswith("repeated_") for s in signals):
        text += (
            " Repeating a query was not attacked: it was not tried, or the same query always got the same answer."
            if asked
            else " Near-duplicates and repeated queries were not attacked."
        )
    if other_key is not None:
        text += (
            " The attacker knew the hardening but not the key: the reference models answered with another one."
            if other_key
            else " The attacker's reference models answered with the key of the service, which favours the attacker."
        )
    return (
        f"{text} Not attacked: many more queries, queries optimised for one example, explanations of different outputs"
        " or methods combined, and attackers who work together."
    )


VERDICTS = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}
"""The word on the badge; upper case is set by the style sheet."""

RELEASES = {
    NATIVE: "Native explanation",
    "recommended": "Recommended hardening",
    "custom": "Custom hardening",
}

CONTROLS = {
    "blind baseline": "Can members be told by what was asked about, without any answer?",
    "null model": "Do the attacks find the members in a model that knows nothing of them?",
    "shuffled membership": "Does this audit raise false alarms when the members are drawn at random?",
    "references": "Are there reference models with and without the scored examples?",
    "recipe": "Do the reference models repeat how the target was trained?",
    "other source": "Can examples of another source be told by what was asked about?",
}
"""What each control asks."""

NUMBERS = {
    "auc": "AUC",
    "auc_low": "AUC at least",
    "tpr_low": "TPR at least",
    "expected_at_most": "expected at most",
    "of_tolerated": "of what is tolerated",
}
"""Numbers behind a control."""

STATES = {True: "failed", False: "passed", None: "not run"}
"""A control's outcome."""

STANDINGS = {"above": "above the limit", "below": "within the limit", "open": "undecided", "beside": "not judged"}
"""How an attack stands to the limit."""

KINDS = {
    "native": "The map as it is",
    "alone": "One property kept alone",
    "removed": "One property removed",
    "other": "Another output of the model explained",
}
"""Groups of the root-cause table."""


def measures(top_fraction: float) -> tuple[tuple[str, str, str], ...]:
    """Field in `Utility`, name and meaning of each measure, with the share of features that counts as top in words."""
    top = percent(top_fraction, 3)
    return (
        ("top_overlap", "Top-feature overlap", f"share of the {top} strongest features that are still among them"),
        ("rank_correlation", "Rank correlation", "Spearman, of the magnitudes: is the order of the features kept?"),
        ("cosine", "Cosine similarity", "of the whole map: 1 is the same direction, 0 is unrelated"),
        ("sign_agreement", "Sign agreement", "share of the strongest features that keep their sign"),
    )


def percent(share: float, digits: int | None = None) -> str:
    """A share as text: one decimal, or `digits` significant digits without trailing zeros."""
    return f"{share:.1%}" if digits is None else f"{100 * share:.{digits}g}%"


def points(difference: float, digits: int | None = None) -> str:
    """A difference of shares in percentage points, with its sign."""
    text = f"{100 * difference:+.1f}" if digits is None else f"{100 * difference:+.{digits}g}"
    return text.replace("-", "−")


def interval(low: float, high: float) -> str:
    """Two shares as a range, one decimal."""
    return f"{100 * low:.1f}–{100 * high:.1f}%"


def attack_name(attack: str, signal: str) -> str:
    """Readable name of an attack and what it reads."""
    parts, averaged = signal.split("+"), ""
    for prefix, what in AVERAGED.items():
        if len(parts) > 1 and all(part.startswith(prefix) for part in parts):
            parts, averaged = [part.removeprefix(prefix) for part in parts], f" ({what})"
    return f"{ATTACK_NAMES.get(attack, attack)} · {', '.join(signal_name(part) for part in parts)}{averaged}"


def release_name(configuration: Configuration) -> str:
    """Readable name of a configuration."""
    return RELEASES.get(configuration.name, configuration.name)


def released(policy: Policy) -> str:
    """What the service gives away."""
    if policy.release == "explanation+prediction":
        return "the explanation and the prediction with its probabilities"
    return "the explanation and the label that it explains"


def policy_sentence(policy: Policy) -> str:
    """The policy, for a reader who has not met true- and false-positive rates."""
    fpr = percent(policy.fpr, 3)
    if policy.claim == "excess":
        alone = "the prediction" if policy.release == "explanation+prediction" else "the label"
        return (
            f"an attacker with at most {fpr} false positives among the non-members must not find more than"
            f" {percent(policy.limit, 3)} of the members more with the explanation than with {alone} alone, which is"
            " released anyway."
        )
    return (
        f"an attacker who sees {released(policy)} must, at a false-positive rate of {fpr}, not find more"
        f" than {percent(policy.max_tpr, 3)} of the members. Guessing finds {fpr}."
    )


def confidence_sentence(result: AuditResult) -> str:
    """What the bounds of the judged attacks promise."""
    joint, each, n = percent(result.policy.confidence, 4), percent(result.judged_confidence, 4), len(result.judged)
    attacks = "the judged attack" if n == 1 else f"each of the {n} judged attacks"
    return (
        f"Of {attacks}, the lower bound holds with {each} confidence"
        + ("" if n == 1 else f", so that all of them hold together with {joint}")
        + f", and the upper bound with {joint}. Both include the uncertainty of the threshold."
    )


def scored_sentence(result: AuditResult) -> str:
    """How much evidence there is."""
    references = "no reference models" if not result.references else f"{result.references:,} reference models"
    if result.references == 1:
        references = "1 reference model"
    return f"{result.members:,} members and {result.non_members:,} non-members were scored, with {references}."


@dataclass(frozen=True)
class Fact:
    """A number beside the verdict."""

    name: str
    value: str
    says: str
    warns: bool = False


def facts(configuration: Configuration) -> tuple[Fact, ...]:
    """What the sample was, could decide, would need to be, and how often it was used."""
    result = configuration.result
    references = f"{result.references:,} reference model{'' if result.references == 1 else 's'}"
    rest = {k: n for k, n in result.sizes.items() if n and k != result.split}
    aside = "".join(f"; {n:,} examples for {name} set aside" for name, n in rest.items() if name != "certification")
    found = [
        Fact(
            "Scored once each",
            f"{result.members:,} + {result.non_members:,}",
            f"members and non-members, with {references if result.references else 'no reference models'}{aside}",
        )
    ]
    if result.policy.claim == "whole":
        found.append(
            Fact(
                "At best certifiable",
                percent(result.could_certify),
                "the lowest limit that this sample would likely certify if the attack only guessed",
            )
        )
    if result.verdict == "inconclusive":
        found += _needed(result)
    return (*found, _uses(result, configuration.name == NATIVE))


def with_controls(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Whose controls are shown: the audited configuration, and others if one of theirs failed."""
    audited = configurations[-1]
    shown = [audited, *(c for c in configurations[:-1] if c.result.failed)]
    return [c for c in shown if c.result.controls]


def _needed(result: AuditResult) -> list[Fact]:
    if result.failed:
        return [Fact("Would decide", "no sample", "as long as a control fails, no number of examples decides", True)]
    if result.policy.claim == "excess" or not result.references or result.split != "certification":
        return []
    n = result.needed
    if n is None:
        return [
            Fact("Would decide", "no sample", "of up to 1,000 times this size: the rate lies too close to the limit")
        ]
    outcome = {"certified": "to certify", "leak": "to prove a leak"}[n.verdict]
    return [
        Fact(
            "Would decide",
            f"{n.members:,} + {n.non_members:,}",
            f"members and non-members, about, {outcome}, if the rates found here are the true ones",
        )
    ]


def _uses(result: AuditResult, native: bool) -> Fact:
    if result.split != "certification":
        return Fact(
            "Uses of these examples", "selection split", "to be looked at as often as one likes; nothing is decided"
        )
    if native and result.uses is None:
        return Fact(
            "Uses of these examples", "not counted", "for the native explanation: there is no hardening to choose"
        )
    match result.uses:
        case None:
            return Fact(
                "Uses of these examples",
                "not counted",
                "so nobody can tell whether this configuration was chosen by a verdict on the same examples",
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
