"""Certificates of what holds by construction: another kind than those of audits, which no reader can take for one.

An in-toto Statement (v1) about the explained model, with a `Guarantee` in words and digests, and what was measured
beside it. There is no verdict, no bound and no hardening in it. It is written, signed and read like a certificate of an
audit; `docs/schema/explanation-guarantee-v1.json` is its JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safexplain.errors import CertificateError, InputError
from safexplain.verdict.certificate.read import (
    Certificate,
    Signature,
    notes_of,
    object_of,
    predicate_of,
    read_audit,
    read_statement,
    subject_of,
    texts_of,
)
from safexplain.verdict.certificate.sign import Key
from safexplain.verdict.certificate.write import GUARANTEE_TYPE, GUARANTEE_VERSION, STATEMENT_TYPE, checksum
from safexplain.verdict.guarantee import Guarantee, Measured

__all__ = ["GuaranteeCertificate", "guarantee_statement", "load_any", "load_guarantee"]

_FIELDS = frozenset({"schema_version", "kind", "guarantee", "measured", "environment", "notes", "checksum"})
_VERSIONS = ("safexplain", "torch")


@dataclass(frozen=True)
class GuaranteeCertificate:
    """What is guaranteed by construction, about which model.

    Args:
        subject: name -> {algorithm: hex digest} of the explained model.
        guarantee: its words and the digests of the explaining models.
        measured: agreement and faithfulness, or None.
        environment: versions and date.
        notes: caveats.
        signature: "valid" (for the public key that was given), "unchecked" (signed, no key given), or "none".
        statement: the in-toto statement itself.
    """

    subject: Mapping[str, Mapping[str, str]]
    guarantee: Guarantee
    measured: Measured | None
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    signature: Signature
    statement: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """ "by construction"."""
        return self.guarantee.kind

    def digests(self, algorithm: str) -> frozenset[str]:
        """Digests of the explained model."""
        return frozenset(d[algorithm] for d in self.subject.values() if algorithm in d)


def guarantee_statement(
    *,
    subject: Mapping[str, Mapping[str, str]],
    guarantee: Guarantee,
    measured: Measured | None,
    environment: Mapping[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The statement as plain JSON types.

    Args:
        subject: name -> digests of the explained model, with a `safexplainModelDigest`.
        guarantee: see `Guarantee`.
        measured: see `Measured`; None: nothing was.
        environment: versions of safexplain and torch, and what else.
        notes: caveats.
    """
    content: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": dict(digests)} for name, digests in subject.items()],
        "predicateType": GUARANTEE_TYPE,
        "predicate": {
            "schema_version": GUARANTEE_VERSION,
            "kind": guarantee.kind,
            "guarantee": guarantee.to_dict(),
            "measured": None if measured is None else measured.to_dict(),
            "environment": dict(environment),
            "notes": list(notes),
        },
    }
    content["predicate"]["checksum"] = checksum(content)
    return content


def load_guarantee(path: str | Path, *, public_key: Key | None = None) -> GuaranteeCertificate:
    """Read a certificate by construction, signed or not.

    Args:
        path: a statement, or a signed envelope around one.
        public_key: ed25519, PEM: its path, or its bytes. Given, the file must be signed with its private key.

    Raises:
        CertificateError: damaged, altered, of another kind (an audit's) or version, or not signed as asked for.
        InputError: a file cannot be read, or the key is none.
        MissingExtraError: a public key is given and the extra `sign` is not installed.
    """
    return read_statement(path, _read, public_key=public_key)


def load_any(path: str | Path, *, public_key: Key | None = None) -> Certificate | GuaranteeCertificate:
    """Read a certificate of either kind; arguments and errors as of `load_guarantee`."""

    def read(content: Mapping[str, Any], signature: Signature) -> Certificate | GuaranteeCertificate:
        of = _read if content.get("predicateType") == GUARANTEE_TYPE else read_audit
        return of(content, signature)

    return read_statement(path, read, public_key=public_key)


def _read(content: Mapping[str, Any], signature: Signature) -> GuaranteeCertificate:
    predicate = predicate_of(content, GUARANTEE_TYPE, GUARANTEE_VERSION, _FIELDS)
    environment, measured = texts_of(predicate, "environment"), predicate["measured"]
    if lacking := [name for name in _VERSIONS if name not in environment]:
        raise CertificateError(f"environment: the version of {', '.join(lacking)} is missing")
    try:
        guarantee = Guarantee.from_dict(object_of(predicate, "guarantee"))
        found = None if measured is None else Measured.from_dict(measured)
    except InputError as error:
        raise CertificateError(str(error)) from None
    if predicate["kind"] != guarantee.kind:
        raise CertificateError(f"kind: expected {guarantee.kind!r}, got {predicate['kind']!r:.40}")
    subject = subject_of(content["subject"])
    if len(subject) != 1:
        raise CertificateError(f"subject: expected the one model that is explained, got {len(subject)}")
    if predicate["checksum"] != checksum(content):
        raise CertificateError("it was changed after it was written: the checksum is another")
    return GuaranteeCertificate(subject, guarantee, found, environment, notes_of(predicate), signature, content)
