"""A judgement in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safexplain.verdict.evidence import code
from safexplain.verdict.names import title

if TYPE_CHECKING:
    from safexplain.verdict.judgement import Judgement


def reasons(j: Judgement) -> tuple[str, ...]:
    """Why the verdict is inconclusive; empty for the others."""
    if j.verdict != "inconclusive":
        return ()
    found = [f"the control “{c.name}” fired: {c.says}" for c in j.fired]
    if j.split != "certification":
        found.append(f"these are the examples of the {j.split} split, on which nothing is certified")
    if not j.decisive:
        found.append(f"there is no {'baseline to compare with' if j.judged else 'attack to judge'}")
    elif any(low > j.policy.limit for low, _ in j.decisive.values()):
        pass  # a leak, were it not for the control
    elif j.bound > j.policy.limit:
        found.append("the interval is too wide to decide")
    elif j.reused and j.references:
        before = j.uses - 1 if j.uses else 0
        found.append(
            f"{before} other configuration{'s were' if before > 1 else ' was'} judged on these examples before,"
            " so that a certificate is refused: choosing by verdicts certifies luck. Choose on a selection split and"
            " certify on fresh examples, or force it, and the certificate counts the uses"
        )
    elif j.references == 0:
        found.append("without reference models only weak attacks could run, so nothing can be certified")
    return tuple(found)


def sentence(j: Judgement) -> str:
    """The verdict in one sentence."""
    p = j.policy
    if not j.decisive:
        return f"Inconclusive: {'; '.join(j.reasons)}."
    best = j.strongest
    low, high = j.decisive[code(best)]
    if p.claim == "whole":
        found = (
            f"the strongest attack ({title(best.attack, best.signal)}) finds between {low:.1%} and {high:.1%} of"
            f" the members while accusing at most {p.fpr:.1%} of the non-members"
        )
        allowed, all_below = f"the policy allows {p.limit:.1%}", f"no attack that was run finds more than {j.bound:.1%}"
    else:
        found = (
            f"the strongest attack ({title(best.attack, best.signal)}) finds {low:+.1%} to {high:+.1%} more of the"
            f" members than the {j.baseline} alone, while accusing at most {p.fpr:.1%} of the non-members"
        )
        allowed, all_below = (
            f"the policy allows {p.limit:+.1%}",
            f"no attack that was run adds more than {j.bound:+.1%}",
        )
    match j.verdict:
        case "leak":
            return f"Leak proven: {found}; {allowed}."
        case "certified":
            return f"Certified: {found}; {all_below} ({p.confidence:.0%} confidence), and {allowed}."
        case "inconclusive":
            return f"Inconclusive: {found}; {allowed}, but {'; '.join(j.reasons)}."
