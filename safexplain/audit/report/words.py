"""The report's wording: verdicts, attacks, measures and limits, for a reader who has not met them before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from safexplain.audit.names import ATTACK_NAMES, SIGNAL_NAMES
from safexplain.audit.report.model import NATIVE, Configuration

if TYPE_CHECKING:
    from safexplain.audit.protocol import AttackResult, AuditResult, Policy

VERDICTS = {"certified": "Certified", "leak": "Leak proven", "inconclusive": "Inconclusive"}
"""The word on the badge; upper case is set by the style sheet."""

RELEASES = {
    NATIVE: "Native explanation",
    "recommended": "Recommended hardening",
    "custom": "Custom hardening",
}

LIMITS = (
    (
        "The scored examples, at the realised rate.",
        "The intervals hold for the scored examples at the threshold that realised the false-positive rate among"
        " them. That this threshold is itself an estimate is not in the interval.",
    ),
    (
        "These attacks, not every attack.",
        "The result is empirical. “Certified” says that none of the attacks listed here found more than the policy"
        " allows; a stronger attack or one with more reference models may. A proven leak stands either way.",
    ),
    (
        "One question for each example.",
        "Adaptive or repeated queries, and questions about near-duplicates of a training example, were not tested.",
    ),
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
"""What the audit does not show: (headline, sentence)."""


@dataclass(frozen=True)
class Measure:
    """One measure of utility: its field in `Utility`, its name and what it says."""

    field: str
    name: str
    meaning: str


def measures(top_fraction: float) -> tuple[Measure, ...]:
    """The utility measures, with the share of features that counts as top put into words."""
    top = percent(top_fraction, 3)
    return (
        Measure(
            "top_overlap", "Top-feature overlap", f"share of the {top} strongest features that are still among them"
        ),
        Measure(
            "rank_correlation", "Rank correlation", "Spearman, of the magnitudes: is the order of the features kept?"
        ),
        Measure("cosine", "Cosine similarity", "of the whole map: 1 is the same direction, 0 is unrelated"),
        Measure("sign_agreement", "Sign agreement", "share of the strongest features that keep their sign"),
    )


def percent(share: float, digits: int | None = None) -> str:
    """A share as text: one decimal, or `digits` significant digits without trailing zeros."""
    return f"{share:.1%}" if digits is None else f"{100 * share:.{digits}g}%"


def interval(low: float, high: float) -> str:
    """Two shares as a range, one decimal."""
    return f"{100 * low:.1f}–{100 * high:.1f}%"


def attack_name(attack: AttackResult) -> str:
    """Readable name of an attack and what it reads."""
    return f"{ATTACK_NAMES.get(attack.attack, attack.attack)} · {SIGNAL_NAMES.get(attack.signal, attack.signal)}"


def release_name(configuration: Configuration) -> str:
    """Readable name of a configuration."""
    return RELEASES.get(configuration.name, configuration.name)


def policy_sentence(policy: Policy) -> str:
    """The policy, for a reader who has not met true- and false-positive rates."""
    return (
        f"an attacker who may wrongly accuse {percent(policy.fpr, 3)} of the non-members must not find more than"
        f" {percent(policy.max_tpr, 3)} of the members. Guessing finds {percent(policy.fpr, 3)}."
    )


def confidence_sentence(result: AuditResult) -> str:
    """What the intervals of the judged attacks promise."""
    n, joint = len(result.judged), percent(result.policy.confidence, 4)
    if n == 1:
        return f"The interval of the judged attack holds with {joint} confidence (Clopper-Pearson)."
    return (
        f"The intervals of the {n} judged attacks hold together with {joint} confidence"
        f" (Clopper-Pearson, each at {percent(result.judged_confidence, 4)})."
    )


def scored_sentence(result: AuditResult) -> str:
    """How much evidence there is."""
    references = "no reference models" if not result.references else f"{result.references:,} reference models"
    if result.references == 1:
        references = "1 reference model"
    return f"{result.members:,} members and {result.non_members:,} non-members were scored, with {references}."
