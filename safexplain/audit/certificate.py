"""The machine-readable outcome of an audit: an in-toto Statement (v1) about one model and one configuration.

No torch here, so that a gatekeeper can read certificates without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safexplain.errors import InputError

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:safexplain:explanation-audit:v1"


def statement(
    *,
    subject: Mapping[str, Mapping[str, str]],
    explainer: Mapping[str, Any],
    hardening: Mapping[str, Any],
    audit: Mapping[str, Any],
    utility: Mapping[str, float] | None,
    materials: Mapping[str, str],
    environment: Mapping[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The statement as plain JSON types.

    Args:
        subject: name -> {algorithm: hex digest} of each model that was audited.
        explainer: method, output and options.
        hardening: `Hardening.to_dict()`; it carries no key.
        audit: `AuditResult.to_dict()`.
        utility: `Utility.to_dict()` or None.
        materials: name -> digest of data, signals and recipe.
        environment: versions, seed, device.
        notes: caveats a reader must know.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": dict(digest)} for name, digest in subject.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "verdict": audit["verdict"],
            "explainer": dict(explainer),
            "hardening": dict(hardening),
            "audit": dict(audit),
            "utility": None if utility is None else dict(utility),
            "materials": dict(materials),
            "environment": dict(environment),
            "notes": list(notes),
        },
    }


def write_json(path: str | Path, content: Mapping[str, Any]) -> Path:
    """Write JSON, all or nothing.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
