"""What an audit does not show, from what was and was not asked and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safexplain.verdict.names import AVERAGED

if TYPE_CHECKING:
    from safexplain.verdict.result import AuditResult

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
