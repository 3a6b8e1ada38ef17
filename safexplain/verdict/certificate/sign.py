"""Signed certificates: DSSE envelopes with ed25519, through securesystemslib (extra `sign`). No torch.

An envelope (https://github.com/secure-systems-lab/dsse, version 1.0.2) holds the statement's bytes in base64, so that
what is verified is what is read. Only ed25519 (RFC 8032) is accepted: a file cannot choose a weaker algorithm.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safexplain.errors import CertificateError, InputError, MissingExtraError
from safexplain.verdict.certificate.write import as_json
from safexplain.verdict.strict_json import read_limited

PAYLOAD_TYPE = "application/vnd.in-toto+json"

Key = str | Path | bytes
"""The path of a PEM file, or its bytes."""

_URL_SAFE = str.maketrans("-_", "+/")
"""DSSE allows both alphabets of base64."""

_EXPECTED = {
    "private": "ed25519 in PEM without a password: openssl genpkey -algorithm ed25519 -out key.pem",
    "public": "ed25519 in PEM: openssl pkey -in key.pem -pubout -out key.pub",
}


def sign_certificate(statement: Mapping[str, Any], private_key: Key) -> dict[str, Any]:
    """The statement in a signed envelope, as plain JSON types.

    Args:
        statement: from `certificate.statement`.
        private_key: ed25519, PEM (PKCS #8) without a password: `openssl genpkey -algorithm ed25519 -out key.pem`.

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
    """The bytes of the statement in an envelope, which `CertificateError` refuses if malformed; nothing is verified."""
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
    """Raise `CertificateError` unless one of the signatures over the payload was made with this key (by any key id).

    An unusable key raises `InputError`, a missing extra `sign` `MissingExtraError`.
    """
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
    """The ed25519 key in a PEM file or in its bytes, `kind` being "private" or "public"."""
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
