"""Certificates as JSON: in-toto Statements (v1) of an audit's result or of a guarantee, and their signatures. No torch.

A signature is a DSSE envelope (https://github.com/secure-systems-lab/dsse, version 1.0.2) around the statement's bytes
in base64, so that what is verified is what is read. Only ed25519 (RFC 8032) is accepted, never a weaker algorithm.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safexplain._digest import sha256
from safexplain._files import write_atomically
from safexplain.errors import CertificateError, InputError, MissingExtraError
from safexplain.verdict.guarantee import Guarantee, Measured
from safexplain.verdict.strict_json import canonical, read_limited

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
    """The same for a guarantee, with the fields of `read.GuaranteeCertificate`."""
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
    """SHA-256 of explainer, hardening and policy."""
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


# --- signatures ----------------------------------------------------------------------------------------------------

PAYLOAD_TYPE = "application/vnd.in-toto+json"

Key = str | Path | bytes  # the path of a PEM file, or its bytes
_URL_SAFE = str.maketrans("-_", "+/")  # DSSE allows both alphabets of base64

_EXPECTED = {
    "private": "ed25519 in PEM without a password: openssl genpkey -algorithm ed25519 -out key.pem",
    "public": "ed25519 in PEM: openssl pkey -in key.pem -pubout -out key.pub",
}


def sign_certificate(statement: Mapping[str, Any], private_key: Key) -> dict[str, Any]:
    """The statement in a signed envelope, as plain JSON types.

    Args:
        statement: of `statement`.
        private_key: ed25519, PEM (PKCS #8) without a password.

    Raises:
        InputError: the key cannot be read or is of another kind.
        MissingExtraError: the extra `sign` is not installed.
    """
    library = _library("signing a certificate")
    key = _read_key(library, private_key, "private")
    envelope = library.Envelope(as_json(statement), PAYLOAD_TYPE, {})
    envelope.sign(library.CryptoSigner(key))
    signed: dict[str, Any] = envelope.to_dict()
    return signed


def payload_of(content: Mapping[str, Any], where: str) -> bytes:
    """The statement in an envelope, or `CertificateError`; nothing is verified."""
    if content.get("payloadType") != PAYLOAD_TYPE:
        raise CertificateError(f"{where}: expected payloadType {PAYLOAD_TYPE}, got {content.get('payloadType')!r:.80}")
    unknown = content.keys() - {"payload", "payloadType", "signatures"}
    if unknown or not isinstance(content["signatures"], list) or not content["signatures"]:
        raise CertificateError(f"{where} is not an envelope with payload, payloadType and signatures")
    for signature in content["signatures"]:
        if not isinstance(signature, dict) or not signature.keys() <= {"sig", "keyid"}:
            raise CertificateError(f"{where}: expected signatures of sig and keyid, got {signature!r:.80}")
        _decoded(signature.get("sig"), f"{where}: sig")
    return _decoded(content["payload"], f"{where}: payload")


def verify_envelope(content: Mapping[str, Any], public_key: Key, where: str) -> None:
    """Raise `CertificateError` unless one of the signatures was made with this key, whatever its key id."""
    library = _library("verifying a signature")
    public = _read_key(library, public_key, "public")
    signed = library.Envelope(payload_of(content, where), PAYLOAD_TYPE, {}).pae()
    for signature in content["signatures"]:
        try:
            public.verify(_decoded(signature["sig"], where), signed)
        except library.errors.InvalidSignature:
            continue
        return
    raise CertificateError(f"{where} was not signed with the private key of {_name(public_key)}, or changed since")


def _decoded(text: Any, where: str) -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError(f"got {type(text).__name__}")
        return base64.b64decode(text.translate(_URL_SAFE).encode("ascii"), validate=True)
    except (ValueError, binascii.Error) as error:
        raise CertificateError(f"{where} is not base64: {_first_line(error)}") from None


def _read_key(library: SimpleNamespace, key: Key, kind: str) -> Any:
    pem = key if isinstance(key, bytes) else read_limited(key, f"{kind} key")
    try:
        if kind == "private":
            found, expected = library.pem.load_pem_private_key(pem, password=None), library.ed25519.Ed25519PrivateKey
        else:
            found, expected = library.pem.load_pem_public_key(pem), library.ed25519.Ed25519PublicKey
    except (ValueError, TypeError, library.errors.UnsupportedAlgorithm) as error:
        raise InputError(
            f"the {kind} key {_name(key)} cannot be used ({_first_line(error)}); expected {_EXPECTED[kind]}"
        ) from None
    if not isinstance(found, expected):
        raise InputError(f"the {kind} key {_name(key)}: expected ed25519, got {type(found).__name__}")
    return found


def _name(key: Key) -> str:
    return "in bytes" if isinstance(key, bytes) else str(key)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _library(purpose: str) -> SimpleNamespace:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from securesystemslib.dsse import Envelope
        from securesystemslib.signer import CryptoSigner
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs securesystemslib and cryptography ({error}); install the extra:"
            ' pip install "safexplain[sign]"'
        ) from None
    parts = {"ed25519": ed25519, "errors": exceptions, "pem": serialization}
    return SimpleNamespace(Envelope=Envelope, CryptoSigner=CryptoSigner, **parts)
