"""Certificates that tests write, change and read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safexplain.verdict.certificate.read import Certificate, load_certificate
from safexplain.verdict.certificate.write import (
    CONFIGURATION,
    as_json,
    checksum,
    configuration_digest,
    statement,
)
from safexplain.verdict.evidence import Control, Evidence, Pair
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy

CONTROLS = (
    Control("blind baseline", None, "the inputs are not in the signals", {}),
    Control("null model", False, "the null model tells nothing", {"auc": 0.5}),
)


CERTIFIED = Judgement(
    Policy(),
    (
        Evidence("Threshold", "l1", "explanation", 55, 20),
        Evidence("LikelihoodRatio", "l1", "explanation", 60, 30),
        Evidence("LikelihoodRatio", "loss", "loss", 400, 300),
    ),
    5000,
    5000,
    16,
    CONTROLS,
    uses=1,
)


EXCESS = Judgement(
    Policy(fpr=0.05, max_tpr=0.1, claim="excess", max_excess=0.1, release="explanation+prediction"),
    (
        Evidence("LikelihoodRatio", "l1", "explanation", 300, 200),
        Evidence("LikelihoodRatio", "loss", "loss", 300, 200),
    ),
    5000,
    5000,
    16,
    CONTROLS,
    (Pair("LikelihoodRatio", "l1", 40, 30, 35, 45),),
    "likelihood ratio of the loss",
)


UNDECIDED = Judgement(Policy(), CERTIFIED.evidence, 5000, 5000, 0)


def audited(judgement: Judgement, **more: Any) -> dict[str, Any]:
    """What `AuditResult.to_dict` writes, in short."""
    attacks = [
        {"attack": e.attack, "signal": e.signal, "role": e.role, "auc": 0.5, "auc_low": 0.4, "auc_high": 0.6}
        | {"balanced_accuracy": 0.5, "tpr": []}
        for e in judgement.evidence
    ]
    splits = {"selection": 0, "training": 0, judgement.split: judgement.members + judgement.non_members}
    return {**judgement.to_dict(), "attacks": attacks, "splits": splits, **more}


def made(judgement: Judgement = CERTIFIED, **changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "subject": {"model.pt": {"sha256": "ab" * 32, "safexplainModelDigest": "cd" * 32}},
        "explainer": {"method": "IG", "output": "probability", "options": {"n_steps": 25}},
        "hardening": {"clip": None, "mask": None, "noise": None, "grid": None},
        "audit": audited(judgement),
        "utility": {"top_overlap": 0.9},
        "materials": {"signals.npz sha256": "ef" * 32},
        "environment": {"safexplain": "0.1.0", "captum": "0.9.0", "torch": "2.5"},
        "notes": ["a note"],
    }
    return statement(**parts | changes)


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With the checksums that a forger computes."""
    p = content["predicate"]
    if isinstance(p.get("materials"), dict) and isinstance(p.get("audit"), dict):
        digest = configuration_digest(p.get("explainer"), p.get("hardening"), p["audit"].get("policy"))
        p["materials"][CONFIGURATION] = digest
    p["checksum"] = checksum(content)
    return content


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    inner = [leaf for name, value in parts for leaf in leaves(value, (*path, name))]
    yield from inner or [path]


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(content)
    place: Any = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return content


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        content = content[name]
    return content


SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "explanation-audit-v2.json").read_text())


def read_back(content: dict[str, Any], tmp_path: Path) -> Certificate:
    """What is read from a file with this content."""
    path = tmp_path / "certificate.json"
    path.write_bytes(as_json(content))
    return load_certificate(path)
