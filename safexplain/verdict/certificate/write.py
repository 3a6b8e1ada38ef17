"""Certificates as JSON: in-toto Statements (v1) of an audit's result, or of a guarantee by construction. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safexplain._digest import sha256
from safexplain._files import write_atomically
from safexplain.verdict.guarantee import Guarantee, Measured
from safexplain.verdict.strict_json import canonical

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SCHEMA_VERSION = 3
PREDICATE_TYPE = f"urn:safexplain:explanation-audit:v{SCHEMA_VERSION}"

GUARANTEE_VERSION = 1
GUARANTEE_TYPE = f"urn:safexplain:explanation-guarantee:v{GUARANTEE_VERSION}"

VERSIONS = {
    PREDICATE_TYPE: (SCHEMA_VERSION, ("safexplain", "captum", "torch")),
    GUARANTEE_TYPE: (GUARANTEE_VERSION, ("safexplain", "torch")),
}
"""Kind of statement -> version of its schema (docs/schema), and whose versions its environment must state."""

MODEL_DIGEST = "safexplainModelDigest"
"""Name of a model's digest in a subject."""

ANSWERS_DIGEST = "safexplainAnswersDigest"
"""Name of the SHA-256 of an endpoint's answers."""

SUBJECT_DATA = {
    "pre-training": "The verdict is about who was in the pre-training data, and says nothing about the fine-tuning"
    " data.",
    "fine-tuning": "The verdict is about who was in the fine-tuning data, and says nothing about the pre-training"
    " data.",
}
"""Data of one of two stages that the verdict is about -> the sentence about it."""

CONFIGURATION = "configuration sha256"


def statement(
    *,
    subject: Mapping[str, Mapping[str, str]],
    explainer: Mapping[str, Any],
    hardening: Mapping[str, Any],
    audit: Mapping[str, Any],
    noise_stream: str | None = None,
    utility: Mapping[str, float] | None,
    materials: Mapping[str, str],
    environment: Mapping[str, str],
    notes: Sequence[str] = (),
    privacy: Mapping[str, Any] | None = None,
    canaries: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    native: Mapping[str, Any] | None = None,
    limits: Sequence[tuple[str, str]] = (),
    subject_data: str | None = None,
) -> dict[str, Any]:
    """The statement as plain JSON types.

    Arguments are the fields of `read.Certificate`, each as its `to_dict()`; `explainer` holds method, output, options
    and, if known, softmax and shape; `audit` is an `AuditResult`, and `native` the `summary()` of one.
    """
    predicate: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "verdict": audit["verdict"],
        "explainer": dict(explainer),
        "hardening": dict(hardening),
        "audit": dict(audit),
        "utility": None if utility is None else dict(utility),
        "materials": {**materials, CONFIGURATION: configuration_digest(explainer, hardening, audit["policy"])},
        "environment": dict(environment),
        "notes": list(notes),
        "native": None if native is None else dict(native),
        "limits": [{"headline": headline, "says": says} for headline, says in limits],
    }
    optional: dict[str, Any] = {"noise_stream": noise_stream, "subject_data": subject_data}
    optional |= {"privacy": privacy, "canaries": canaries, "search": search}
    predicate |= {name: value for name, value in optional.items() if value is not None}
    return _sealed(subject, PREDICATE_TYPE, predicate)


def guarantee_statement(
    *,
    subject: Mapping[str, Mapping[str, str]],
    guarantee: Guarantee,
    measured: Measured | None,
    environment: Mapping[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The statement of a guarantee, as plain JSON types; arguments as `read.GuaranteeCertificate`."""
    predicate = {
        "schema_version": GUARANTEE_VERSION,
        "kind": guarantee.kind,
        "guarantee": guarantee.to_dict(),
        "measured": None if measured is None else asdict(measured),
        "environment": dict(environment),
        "notes": list(notes),
    }
    return _sealed(subject, GUARANTEE_TYPE, predicate)


def _sealed(subject: Mapping[str, Mapping[str, str]], kind: str, predicate: dict[str, Any]) -> dict[str, Any]:
    content = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": dict(digest)} for name, digest in subject.items()],
        "predicateType": kind,
        "predicate": predicate,
    }
    predicate["checksum"] = checksum(content)
    return content


def configuration_digest(explainer: Any, hardening: Any, policy: Any) -> str:
    """Hexadecimal SHA-256 of explainer, hardening and policy."""
    return sha256(canonical([explainer, hardening, policy]))


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of a statement without its checksum."""
    predicate = {name: value for name, value in content["predicate"].items() if name != "checksum"}
    return "sha256:" + sha256(canonical({**content, "predicate": predicate}))


def write_json(path: str | Path, content: Mapping[str, Any]) -> Path:
    """Write JSON, all or nothing, or raise `InputError`."""
    return write_atomically(path, as_json(content))


def as_json(content: Mapping[str, Any]) -> bytes:
    """The bytes that are written and signed."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
