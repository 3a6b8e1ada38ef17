"""The form of a certificate's fields: what each must be before anybody works with it. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from safexplain.errors import CertificateError, InputError
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.read import finding_of
from safexplain.verdict.certificate.write import MODEL_DIGEST
from safexplain.verdict.privacy_statement import PrivacyStatement

__all__ = [
    "canaries_of",
    "check_names",
    "explainer_of",
    "notes_of",
    "object_of",
    "privacy_of",
    "subject_of",
    "texts_of",
    "utility_of",
]

_HEX = re.compile(r"[0-9a-f]{32,128}")


def explainer_of(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Method, output and options, and perhaps softmax.

    Raises:
        CertificateError: something else; so do all functions here.
    """
    explainer = object_of(predicate, "explainer")
    check_names(explainer, "explainer", {"method", "output", "options"}, optional={"softmax"})
    if not isinstance(explainer["method"], str) or explainer["output"] not in ("probability", "logit"):
        raise CertificateError(f"explainer: expected a method, and output probability or logit; got {explainer!r:.100}")
    if not isinstance(explainer.get("softmax", False), bool):
        raise CertificateError(f"explainer.softmax: expected true or false, got {explainer['softmax']!r:.40}")
    object_of(explainer, "options")
    return explainer


def subject_of(subject: Any) -> dict[str, dict[str, str]]:
    """Name -> digests of at least one model."""
    found: dict[str, dict[str, str]] = {}
    for entry in subject if isinstance(subject, list) else [subject]:
        if not isinstance(entry, dict) or entry.keys() != {"name", "digest"} or not isinstance(entry["name"], str):
            raise CertificateError(f"subject: expected names, each with its digest; got {entry!r:.80}")
        digests = texts_of(entry, "digest")
        if entry["name"] in found or MODEL_DIGEST not in digests or not all(map(_HEX.fullmatch, digests.values())):
            raise CertificateError(f"subject: expected different names with a {MODEL_DIGEST} each; got {entry!r:.120}")
        found[entry["name"]] = digests
    if not found:
        raise CertificateError("subject: it names no model")
    return found


def utility_of(utility: Any) -> dict[str, float] | None:
    """Numbers by name, or None."""
    if utility is None:
        return None
    values = utility.values() if isinstance(utility, dict) else [None]
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise CertificateError(f"utility: expected numbers by name, or null; got {utility!r:.80}")
    return {name: float(value) for name, value in utility.items()}


def notes_of(predicate: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts."""
    notes = predicate["notes"]
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise CertificateError(f"notes: expected a list of texts, got {notes!r:.80}")
    return tuple(notes)


def privacy_of(predicate: Mapping[str, Any]) -> PrivacyStatement | None:
    """The guarantee of the model's training, its epsilons computed again; None where none is stated."""
    if "privacy" not in predicate:
        return None
    try:
        return PrivacyStatement.from_dict(predicate["privacy"])
    except InputError as error:
        raise CertificateError(f"privacy: {error}") from None


def canaries_of(predicate: Mapping[str, Any]) -> Finding | None:
    """What canaries found about the model's training, its bound computed again; None where none were trained."""
    if "canaries" not in predicate:
        return None
    try:
        return finding_of(predicate["canaries"])
    except InputError as error:
        raise CertificateError(f"canaries: {error}") from None


def object_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object."""
    value = content[name]
    if not isinstance(value, dict):
        raise CertificateError(f"{name}: expected an object, got {value!r:.60}")
    return value


def texts_of(content: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field that is an object of texts."""
    values = object_of(content, name)
    if not all(isinstance(value, str) for value in values.values()):
        raise CertificateError(f"{name}: expected texts by name, got {values!r:.80}")
    return values


def check_names(content: Mapping[str, Any], where: str, expected: Set[str], optional: Set[str] = frozenset()) -> None:
    """Refuse a missing name and an unknown one."""
    if missing := sorted(expected - content.keys()):
        raise CertificateError(f"{where}: {', '.join(missing)} is missing")
    if unknown := sorted(content.keys() - expected - optional):
        raise CertificateError(f"{where}: unknown {', '.join(unknown):.80}")
