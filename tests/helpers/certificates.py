"""Certificates that tests write, change and read."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from safexplain._versions import versions
from safexplain.verdict.certificate.read import Certificate, load_certificate
from safexplain.verdict.certificate.write import CONFIGURATION, as_json, checksum, configuration_digest, statement
from safexplain.verdict.judgement import Control, Evidence, Judgement, Role, at_level
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats.paired import count_pairs, rank_at
from safexplain.verdict.thresholds import by_score, found_above, lower_bound_rank, upper_bound_rank, weights_of
from safexplain.verdict.words import written

CONTROLS = (
    Control("blind baseline", None, "the inputs are not in the signals", {}),
    Control("null model", False, "the null model tells nothing", {"auc": 0.5}),
)

ONCE = Policy(claim="whole", patience=(1,))

CERTIFIED = Judgement(
    ONCE,
    (
        Evidence("Threshold", "l1", "explanation", 1, 40, 55, 20),
        Evidence("LikelihoodRatio", "l1", "explanation", 1, 45, 60, 30),
        Evidence("LikelihoodRatio", "loss", "loss", 1, 350, 400, 300),
    ),
    5000,
    5000,
    16,
    CONTROLS,
    uses=1,
)


def evidence_at(level: int, policy: Policy, *, n: int, leak: float = 0.0, group: int = 1) -> tuple[Evidence, ...]:
    """Counts of attacks on made-up scores at one level of patience: the baseline, a stack, and the explanation alone.

    There are n members and n non-members, in units of `group`, whose explanations lie `leak` standard deviations apart.
    """
    predicted = policy.release == "explanation+prediction"
    rng = np.random.default_rng([level, n, group])
    member = np.repeat(np.arange(2 * n) < n, group)
    weights = weights_of(member, np.repeat(np.arange(2 * n), group)) if group > 1 else None
    told = rng.normal(size=member.size) + 0.1 * np.log(level) * member
    shown = rng.normal(size=member.size) + leak * member
    base = by_score(told)
    rows: list[tuple[str, str, Role, Any]] = [
        ("PredictionPatience", "prediction", "loss", told) if predicted else ("LabelPatience", "label", "label", told),
        ("Stacked", "explanation+loss", "explanation+loss", told + 0.1 * shown + leak * shown)
        if predicted
        else ("Stacked", "explanation+label", "explanation+label", told + 0.1 * shown + leak * shown),
        ("LikelihoodRatio", "l1", "explanation", shown),
    ]
    found = []
    for name, signal, role, scores in rows:
        order = by_score(scores)
        heavy = None if weights is None else weights[order]
        counts = (
            found_above(member[order], rank_at(n, policy.fpr), heavy),
            found_above(member[order], upper_bound_rank(n, policy.fpr, policy.risk / 2), heavy),
            found_above(member[order], lower_bound_rank(n, policy.fpr, policy.risk / 100)[0], heavy, strict=True),
        )
        pair = None if scores is told else count_pairs(order, base, member, policy.fpr, weights)
        what, plus, also = signal.partition("+")
        found.append(Evidence(name, at_level(what, level) + plus + also, role, level, *map(float, counts), pair))
    return tuple(found)


def compared(policy: Policy, *, n: int, leak: float = 0.0, group: int = 1, **more: Any) -> Judgement:
    """What explanations add, at every level of the policy."""
    evidence = [e for level in policy.patience for e in evidence_at(level, policy, n=n, leak=leak, group=group)]
    given = {"references": 16, "controls": CONTROLS, "uses": 1, "grouped": 2 * n * group if group > 1 else None} | more
    return Judgement(policy, tuple(evidence), n, n, **given)


EXCESS = compared(
    Policy(fpr=0.05, max_tpr=0.1, max_excess=0.1, release="explanation+prediction", patience=(1, 200)), n=3000
)

UNDECIDED = Judgement(ONCE, CERTIFIED.evidence, 5000, 5000, 0)

GROUPED = compared(Policy(fpr=0.1, max_tpr=0.2, patience=(1, 5)), n=400, group=3)
"""Groups of three examples."""


def several(*leaks: float) -> Judgement:
    """Targets that are judged each on its own, the last one first."""
    policy = Policy(fpr=0.1, max_tpr=0.2, patience=(1,))
    one = [compared(policy, n=3000, leak=x, target=i, targets=len(leaks)) for i, x in enumerate(leaks)]
    return replace(one[-1], others=tuple(one[:-1]))


SEVERAL = several(0.0, 0.0)
LEAKING = several(0.0, 1.5)

JUDGEMENTS = {
    "certified": CERTIFIED,
    "excess": EXCESS,
    "undecided": UNDECIDED,
    "groups": GROUPED,
    "several targets": SEVERAL,
    "one of two leaks": LEAKING,
}


def audited(judgement: Judgement, **more: Any) -> dict[str, Any]:
    """What `AuditResult.to_dict` writes, in short."""
    attacks = [
        {"attack": e.attack, "signal": e.signal, "role": e.role, "level": e.level, "auc": 0.5, "auc_low": 0.4}
        | {"auc_high": 0.6, "balanced_accuracy": 0.5, "tpr": []}
        for e in judgement.evidence
    ]
    scored = judgement.grouped or judgement.members + judgement.non_members
    splits = {"selection": 0, "training": 0, judgement.split: scored}
    others = [{**one.to_dict(), **written(one)} for one in judgement.others]
    found = {**judgement.to_dict(), **written(judgement), "others": others}
    return {**found, "attacks": attacks, "splits": splits, **more}


def made(judgement: Judgement = CERTIFIED, **changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "subject": {"model.pt": {"sha256": "ab" * 32, "safexplainModelDigest": "cd" * 32}},
        "explainer": {"method": "IG", "output": "probability", "options": {"n_steps": 25}},
        "hardening": {"clip": None, "mask": None, "noise": None, "grid": None},
        "audit": audited(judgement),
        "utility": {"top_overlap": 0.9},
        "materials": {"signals.npz sha256": "ef" * 32},
        "environment": versions(),
        "notes": ["a note"],
        "native": {"verdict": "leak", "sentence": "Leak proven.", "levels": []},
        "limits": [("One attack", "A stronger attack may find more.")],
    }
    return statement(**parts | changes)


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With the checksums that a forger computes."""
    content = copy.copy(content)
    p = content["predicate"] = copy.copy(content["predicate"])
    if isinstance(p.get("materials"), dict):
        p["materials"] = dict(p["materials"])
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
    """A copy with another value in one place; what was not changed is shared."""
    content = copy.copy(content)
    place: Any = content
    for name in path[:-1]:
        place[name] = copy.copy(place[name])
        place = place[name]
    place[path[-1]] = value
    return content


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        content = content[name]
    return content


SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "explanation-audit-v3.json").read_text())


def read_back(content: dict[str, Any], tmp_path: Path) -> Certificate:
    """What is read from a file with this content."""
    path = tmp_path / "certificate.json"
    path.write_bytes(as_json(content))
    return load_certificate(path)


def key_pair(folder: Path, name: str, private: Any = None, password: bytes | None = None) -> tuple[Path, Path]:
    """PEM files of a private and a public key, by default of ed25519."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = private or Ed25519PrivateKey.generate()
    hidden = s.BestAvailableEncryption(password) if password else s.NoEncryption()
    key, public = folder / f"{name}.pem", folder / f"{name}.pub"
    key.write_bytes(private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, hidden))
    public.write_bytes(private.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return key, public
