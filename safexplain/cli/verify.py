"""`safexplain verify` and `safexplain sign`: what a deployment asks of a certificate before it goes on.

Exit codes of verify: 0 intact, of this very file, and certified; 1 anything else that the certificate or the model is
to blame for, in one line; 2 wrong usage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from safexplain._digest import file_sha256
from safexplain.cli.console import Json
from safexplain.errors import CertificateError, ConfigurationError, InputError
from safexplain.hardening.hardening import Hardening
from safexplain.verdict.certificate.read import Certificate, load_certificate
from safexplain.verdict.certificate.sign import sign_certificate
from safexplain.verdict.certificate.write import write_json

__all__ = ["sign_command", "verify_command"]

SIGNATURES = {
    "valid": "signed with the private key of this public key",
    "unchecked": "signed, but not checked: no --public-key was given, so anybody may have signed it",
    "none": "not signed: anybody who can write the file may have made it",
}
"""What a reader must know about the signature."""


def verify_command(
    certificate: Annotated[Path, typer.Argument(help="certificate.json, signed or not.")],
    model: Annotated[Path, typer.Option(help="The model file that is to be deployed.")],
    public_key: Annotated[Path | None, typer.Option(help="ed25519, PEM: the certificate must be signed.")] = None,
    any_verdict: Annotated[bool, typer.Option(help="Accept leak and inconclusive too.")] = False,
    json_: Json = False,
) -> int:
    """Check that a certificate is intact, about this very model file, and says certified."""
    try:
        found = load_certificate(certificate, public_key=public_key)
        _check_file(found, model, certificate)
        if found.verdict != "certified" and not any_verdict:
            raise CertificateError(f"{certificate}: the verdict is {found.verdict}. {found.judgement.sentence}")
        lines = _lines(found)
        content = {"verified": True, "signature": found.signature, **_content(found)}
    except CertificateError as error:
        reason = _printable(str(error))
        if json_:
            typer.echo(json.dumps({"verified": False, "reason": reason}))
        else:
            typer.echo(f"safexplain: {reason}", err=True)
        return 1
    if json_:
        typer.echo(json.dumps(content, allow_nan=False))
    else:
        typer.echo(f"{certificate} is intact and about {model}.")
        for name, text in lines.items():
            for i, line in enumerate(text if isinstance(text, list) else [text]):
                typer.echo(f"{'' if i else name.replace('_', ' '):<20}{_printable(str(line))}")
    return 0


def sign_command(
    certificate: Annotated[Path, typer.Argument(help="certificate.json of an audit.")],
    key: Annotated[Path, typer.Option(help="ed25519 private key, PEM without a password.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: in place of the certificate.")] = None,
) -> int:
    """Check a certificate and put it into a signed envelope (DSSE)."""
    found = load_certificate(certificate)
    if found.signature != "none":
        raise CertificateError(f"{certificate} is signed already; sign the certificate that the audit wrote")
    path = write_json(out or certificate, sign_certificate(found.statement, key))
    typer.echo(f"{path} is signed.")
    return 0


def _check_file(certificate: Certificate, model: Path, path: Path) -> None:
    """The file's SHA-256 is a subject's."""
    try:
        digest = file_sha256(model)
    except OSError as error:
        raise InputError(f"the model file {model} cannot be read: {error.strerror or error}") from None
    known = certificate.digests("sha256")
    if not known:
        raise CertificateError(f"{path} names no model file (no sha256): it is about models that were never stored")
    if digest not in known:
        raise CertificateError(
            f"{model} is not the audited file: {path} is about {', '.join(certificate.subject)} with SHA-256"
            f" {', '.join(sorted(d[:16] for d in known))}..., and this file's is {digest[:16]}..."
        )


def _content(certificate: Certificate) -> dict[str, Any]:
    """What was certified, for programs."""
    judgement, predicate = certificate.judgement, certificate.statement["predicate"]
    return {
        "verdict": judgement.verdict,
        "bound": judgement.bound,
        "policy": judgement.policy.to_dict(),
        **{name: predicate[name] for name in ("explainer", "hardening", "environment", "notes")},
        "privacy": predicate.get("privacy"),
        "canaries": predicate.get("canaries"),
        "uses": judgement.uses,
        "controls_not_run": [c.name for c in judgement.controls if c.failed is None],
        "subject": {name: dict(digests) for name, digests in certificate.subject.items()},
    }


def _lines(certificate: Certificate) -> dict[str, str | list[str]]:
    """What was certified, by name, for people."""
    judgement, policy = certificate.judgement, certificate.judgement.policy
    try:
        hardening = Hardening.from_json(certificate.hardening)
    except ConfigurationError as error:
        raise CertificateError(f"hardening: {error}") from None
    options = "".join(f", {name}={value!r}" for name, value in certificate.options.items())
    measure = "of the members" if policy.claim == "whole" else f"of the members more than {judgement.baseline} alone"
    not_run = [f"{c.name}: {c.says}" for c in judgement.controls if c.failed is None]
    if not judgement.controls:
        not_run = ["no control was run"]
    uses = judgement.uses
    return {
        "verdict": judgement.verdict,
        "signed": SIGNATURES[certificate.signature],
        "model": ", ".join(certificate.subject),
        "explainer": f"{certificate.method} of the predicted {certificate.output}{options}",
        "hardening": repr(hardening),
        "policy": f"at most {policy.limit:.1%} {measure} found at a false-positive rate of {policy.fpr:.1%},"
        f" {policy.confidence:.0%} confidence; released: {policy.release}",
        "bound": f"{judgement.bound:.1%} {measure}, from {judgement.members:,} members, {judgement.non_members:,}"
        f" non-members and {judgement.references} reference models",
        "trained_with_DP": f"as stated: {stated.epsilons}" if (stated := certificate.privacy) else "not stated",
        "canaries": str(seen) if (seen := certificate.canaries) else "none were trained",
        "examples_used": "not counted" if uses is None else f"for {uses} configuration{'s' if uses > 1 else ''}",
        "controls_not_run": not_run or ["none: all were run"],
        "made_with": f"safexplain {certificate.environment['safexplain']}, captum {certificate.environment['captum']},"
        f" torch {certificate.environment['torch']}",
        "notes": list(certificate.notes) or ["none"],
    }


def _printable(text: str) -> str:
    """Without what could steer a terminal: the file is a stranger's."""
    return "".join(c if c.isprintable() else " " for c in text)
