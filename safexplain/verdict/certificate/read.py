"""Reading a certificate: nothing is believed that can be checked. No torch here.

Checked are the signature (where a public key is given), the form, the checksum, and that the verdict and every bound
follow from the counts. Without a signature this finds damage and careless edits, not a forger, who can compute them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safexplain.errors import CertificateError
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.certificate import strict_json
from safexplain.verdict.certificate.fields import (
    canaries_of,
    check_names,
    explainer_of,
    notes_of,
    object_of,
    privacy_of,
    subject_of,
    texts_of,
    utility_of,
)
from safexplain.verdict.certificate.recount import recount
from safexplain.verdict.certificate.sign import Key, is_envelope, payload_of, verify_envelope
from safexplain.verdict.certificate.write import (
    CONFIGURATION,
    PREDICATE_TYPE,
    SCHEMA_VERSION,
    STATEMENT_TYPE,
    checksum,
    configuration_digest,
)
from safexplain.verdict.evidence import Verdict
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.privacy_statement import PrivacyStatement

__all__ = ["Certificate", "load_certificate"]

SECRETS = frozenset({"key", "noise_key", "private_key", "secret"})
"""Names that must not stand in a certificate, which is public."""

_FIELDS = frozenset(
    {"schema_version", "verdict", "explainer", "hardening", "audit", "utility", "materials", "environment", "notes"}
    | {"checksum"}
)
_VERSIONS = ("safexplain", "captum", "torch")


@dataclass(frozen=True)
class Certificate:
    """What was audited, how, and what came out.

    Args:
        subject: name -> {algorithm: hex digest} of each audited model.
        method: name in the catalog of explanation methods.
        output: "probability" or "logit".
        softmax: whether `Probability` was put over the model.
        options: arguments of the explanation, as the command line took them.
        hardening: as `Hardening.to_dict`.
        judgement: policy, counts and controls, and with them verdict and bounds.
        uses: for how many configurations' verdicts these examples were used, this one included; None: not counted.
        utility: agreement with the native explanation, or None.
        materials: name -> digest of data, signals, recipe and configuration.
        environment: versions, seed, device.
        notes: caveats.
        privacy: the guarantee of the model's training, or None; who trained the model states it, no audit can check
            that the training was as stated.
        canaries: what canaries found about a training like the model's, or None.
        signature: "valid" (for the public key that was given), "unchecked" (signed, no key given), or "none".
        statement: the in-toto statement itself.
    """

    subject: Mapping[str, Mapping[str, str]]
    method: str
    output: Literal["probability", "logit"]
    softmax: bool
    options: Mapping[str, Any]
    hardening: Mapping[str, Any]
    judgement: Judgement
    uses: int | None
    utility: Mapping[str, float] | None
    materials: Mapping[str, str]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    privacy: PrivacyStatement | None
    canaries: Finding | None
    signature: Literal["valid", "unchecked", "none"]
    statement: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """Certified, leak or inconclusive; computed from the counts."""
        return self.judgement.verdict

    def digests(self, algorithm: str) -> frozenset[str]:
        """Digests of the audited models."""
        return frozenset(d[algorithm] for d in self.subject.values() if algorithm in d)


def load_certificate(path: str | Path, *, public_key: Key | None = None) -> Certificate:
    """Read a certificate, signed or not.

    Args:
        path: a statement, or a signed envelope around one.
        public_key: ed25519, PEM: its path, or its bytes. Given, the file must be signed with its private key.

    Raises:
        CertificateError: damaged, altered, of another kind or version, or not signed as asked for.
        InputError: a file cannot be read, or the key is none.
        MissingExtraError: a public key is given and the extra `sign` is not installed.
    """
    raw, where = strict_json.read_limited(path), str(path)
    content = strict_json.parse(raw, where)
    signature: Literal["valid", "unchecked", "none"] = "none"
    if is_envelope(content):
        statement = payload_of(content, where)
        signature = "unchecked"
        if public_key is not None:
            verify_envelope(content, public_key, where)
            signature = "valid"
        content = strict_json.parse(statement, f"the payload of {where}")
    elif public_key is not None:
        raise CertificateError(
            f"{where} is not signed, and a public key was given; sign it: safexplain sign {where} --key key.pem"
        )
    try:
        return _read(content, signature)
    except CertificateError as error:
        raise CertificateError(f"{where}: {error}") from None


def _read(content: Mapping[str, Any], signature: Literal["valid", "unchecked", "none"]) -> Certificate:
    for name, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if content.get(name) != expected:
            older = " (audit again with this version)" if "explanation-audit" in str(content.get(name)) else ""
            raise CertificateError(f"{name}: expected {expected}, got {content.get(name)!r:.100}{older}")
    check_names(content, "the statement", {"_type", "subject", "predicateType", "predicate"})
    predicate = object_of(content, "predicate")
    check_names(predicate, "predicate", _FIELDS, optional={"privacy", "canaries"})
    for _, value in strict_json.inside(content):
        if isinstance(value, dict) and (named := sorted(SECRETS & {name.lower() for name in value})):
            raise CertificateError(f"it holds a field {named[0]!r}: certificates are public; make a new secret")
    if type(predicate["schema_version"]) is not int or predicate["schema_version"] != SCHEMA_VERSION:
        raise CertificateError(f"schema_version: expected {SCHEMA_VERSION}, got {predicate['schema_version']!r:.40}")
    judgement = recount(predicate["audit"])
    if predicate["verdict"] != judgement.verdict:
        raise CertificateError(
            f"verdict says {predicate['verdict']!r:.40}, but {judgement.verdict!r} follows from the counts"
        )
    explainer, hardening = explainer_of(predicate), object_of(predicate, "hardening")
    materials, environment = texts_of(predicate, "materials"), texts_of(predicate, "environment")
    if materials.get(CONFIGURATION) != configuration_digest(explainer, hardening, predicate["audit"]["policy"]):
        raise CertificateError(f"materials: {CONFIGURATION!r} is not that of explainer, hardening and policy")
    if lacking := [name for name in _VERSIONS if name not in environment]:
        raise CertificateError(f"environment: the version of {', '.join(lacking)} is missing")
    subject, utility, notes = subject_of(content["subject"]), utility_of(predicate["utility"]), notes_of(predicate)
    privacy, canaries = privacy_of(predicate), canaries_of(predicate)
    if predicate["checksum"] != checksum(content):
        raise CertificateError("it was changed after it was written: the checksum is another")
    return Certificate(
        subject=subject,
        method=explainer["method"],
        output=explainer["output"],
        softmax=explainer.get("softmax", explainer["output"] == "probability"),
        options={name: tuple(v) if isinstance(v, list) else v for name, v in explainer["options"].items()},
        hardening=hardening,
        judgement=judgement,
        uses=predicate["audit"].get("uses"),
        utility=utility,
        materials=materials,
        environment=environment,
        notes=notes,
        privacy=privacy,
        canaries=canaries,
        signature=signature,
        statement=content,
    )
