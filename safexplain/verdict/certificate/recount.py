"""The verdict of a certificate, computed again from its counts. NumPy and SciPy only.

Counts, policy and what controls found are what an audit measured; everything else follows, so a file in which it does
not follow has been changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from safexplain.errors import CertificateError, SafexplainError
from safexplain.verdict.evidence import code
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.power import could_certify

__all__ = ["recount"]

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""How far a recorded float may be from the one computed here: versions of SciPy round differently."""

MOST_EXAMPLES, MOST_ATTACKS = 5_000_000, 1_000
"""Larger audits are refused, lest a few digits in a file keep its reader busy for hours."""

_OPTIONAL = ("judged", "could_certify")


def recount(audit: Any) -> Judgement:
    """The judgement of an `audit` field, after comparing every derived number and word with what the field says.

    Args:
        audit: what `AuditResult.to_dict()` or `Judgement.to_dict()` wrote.

    Raises:
        CertificateError: a count is missing or impossible, or something does not follow from the counts; the message
            names it.
    """
    if not isinstance(audit, Mapping):
        raise CertificateError(f"audit: expected an object, got {type(audit).__name__}")
    try:
        judgement = Judgement.from_dict(audit)
        _check(judgement)
        computed = {**judgement.to_dict(), **_derived(judgement)}
    except (SafexplainError, ValueError, ArithmeticError) as error:
        raise CertificateError(f"audit: {error}") from None
    for name, value in computed.items():
        if name not in audit and name in _OPTIONAL:
            continue
        if name == "sentence" and _advised(audit.get(name), judgement):
            continue
        _compare(audit.get(name, _MISSING), value, f"audit.{name}")
    _check_rest(audit, judgement)
    return judgement


def _derived(judgement: Judgement) -> dict[str, Any]:
    """What `AuditResult.to_dict` adds that follows from the counts."""
    judged = []
    for e in judgement.judged:
        low, high = judgement.bounds(e)
        judged.append({"attack": e.attack, "signal": e.signal, "low": low, "high": high})
    most = could_certify(judgement.policy, judgement.members, judgement.non_members)
    return {"judged": judged, "could_certify": most}


def _check(judgement: Judgement) -> None:
    """What `Judgement` takes, but no audit writes."""
    if max(judgement.members, judgement.non_members, judgement.references) > MOST_EXAMPLES or judgement.references < 0:
        raise CertificateError(f"members, non_members and references are counts up to {MOST_EXAMPLES:,}")
    if judgement.split not in ("certification", "selection"):
        raise CertificateError(f"split: expected certification or selection, got {judgement.split!r:.40}")
    compared = [code(p) for p in judgement.pairs]
    if len(judgement.evidence) > MOST_ATTACKS or len(compared) > MOST_ATTACKS or len(set(compared)) < len(compared):
        raise CertificateError(f"excess: each attack is named once, and there are at most {MOST_ATTACKS}")
    judged = {code(e) for e in judgement.judged}
    if judgement.policy.claim == "excess" and compared and judged != set(compared):
        raise CertificateError(f"excess: not all judged attacks are compared, or others are: {judged ^ set(compared)}")


def _advised(sentence: Any, judgement: Judgement) -> bool:
    """Whether it is the sentence of an inconclusive verdict with advice after it, as `AuditResult.sentence` gives."""
    return (
        judgement.verdict == "inconclusive"
        and isinstance(sentence, str)
        and sentence.startswith(f"{judgement.sentence} ")
    )


def _check_rest(audit: Mapping[str, Any], judgement: Judgement) -> None:
    """Fields that do not follow, but must fit."""
    if "attacks" in audit:
        shown = [
            {k: a.get(k) for k in ("attack", "signal", "role")} if isinstance(a, Mapping) else a
            for a in (audit["attacks"] if isinstance(audit["attacks"], list) else [audit["attacks"]])
        ]
        evidence = [{"attack": e.attack, "signal": e.signal, "role": e.role} for e in judgement.evidence]
        _compare(shown, evidence, "audit.attacks")
    if "splits" in audit:
        sizes, scored = audit["splits"], judgement.members + judgement.non_members
        _compare(sizes.get(judgement.split) if isinstance(sizes, Mapping) else sizes, scored, "audit.splits")
    uses = audit.get("uses")
    if uses is not None and (isinstance(uses, bool) or not isinstance(uses, int) or uses < 1):
        raise CertificateError(f"audit.uses: expected a count from 1 on, or null; got {uses!r:.60}")


_MISSING = object()


def _compare(found: Any, computed: Any, where: str) -> None:
    """Raise at the first difference, deep inside or not."""
    if found is _MISSING:
        raise CertificateError(f"{where} is missing")
    if isinstance(computed, Mapping):
        names = found.keys() if isinstance(found, Mapping) else ()
        for name in (*computed, *(n for n in names if n not in computed)):
            if name not in computed:
                raise CertificateError(f"{where}.{name} is unknown")
            _compare(
                found.get(name, _MISSING) if isinstance(found, Mapping) else found, computed[name], f"{where}.{name}"
            )
        return
    if isinstance(computed, list | tuple):
        if not isinstance(found, list) or len(found) != len(computed):
            raise CertificateError(f"{where}: expected a list of {len(computed)}, got {_shown(found)}")
        for i, (one, other) in enumerate(zip(found, computed, strict=True)):
            _compare(one, other, f"{where}[{i}]")
        return
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if isinstance(computed, float) and number:
        same = math.isclose(found, computed, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        same = type(found) is type(computed) and found == computed
    if not same:
        raise CertificateError(f"{where} says {_shown(found)}, but {_shown(computed)} follows from the counts")


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r:.120}"
