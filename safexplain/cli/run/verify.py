"""`safexplain verify`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from safexplain._digest import file_sha256
from safexplain._versions import FORMAT, compatibility
from safexplain.cli.options import VerifyOptions
from safexplain.errors import CertificateError, ConfigurationError, InputError
from safexplain.hardening.hardening import Hardening
from safexplain.verdict import words
from safexplain.verdict.certificate.read import Certificate, GuaranteeCertificate, load_any
from safexplain.verdict.certificate.write import ANSWERS_DIGEST, SUBJECT_DATA
from safexplain.verdict.words import as_written, in_words, utility_in_words

SIGNATURES = {
    "valid": "signed with the private key of this public key",
    "unchecked": "signed, but not checked: anybody may have signed it; check with --public-key",
    "none": "not signed: anybody who can write the file may have made it",
}

Lines = dict[str, str | list[str]]  # printed, by name

BY_AUDIT = "by audit: attacks were run, and the verdict is about what they found"
BY_CONSTRUCTION = "by construction: no attacks were run; it rests on the assumptions below"


def verify(given: VerifyOptions) -> int:
    """Check and print a certificate, and return the exit code."""
    try:
        lines, content = _check_certificate(given)
    except CertificateError as error:
        reason = _printable(str(error))
        if given.json_:
            typer.echo(json.dumps({"verified": False, "reason": reason}))
        else:
            typer.echo(f"error: {reason}", err=True)
        return 1
    if given.json_:
        typer.echo(json.dumps(content, allow_nan=False))
        return 0
    typer.echo(f"{given.certificate} is intact{'' if given.model is None else f' and about {given.model}'}.")
    for name, text in lines.items():
        for i, line in enumerate(text if isinstance(text, list) else [text]):
            typer.echo(f"{'' if i else name.replace('_', ' '):<20}{_printable(str(line))}")
    return 0


def _check_certificate(given: VerifyOptions) -> tuple[Lines, dict[str, Any]]:
    path, found = given.certificate, load_any(given.certificate, public_key=given.public_key)
    if given.model is not None:
        _check_file(found, given.model, path)
    elif isinstance(found, Certificate) and found.endpoint is None:
        raise InputError(f"{path} is about a model file: give the deployed file with --model")
    content = {**found.statement["predicate"], "verified": True, "kind": found.kind, "signature": found.signature}
    content["subject"] = {name: dict(digests) for name, digests in found.subject.items()}
    if isinstance(found, GuaranteeCertificate):
        return _lines_of_guarantee(found), content
    if found.verdict != "certified" and not given.any_verdict:
        raise CertificateError(f"{path}: the verdict is {found.verdict}. {words.sentence(found.judgement)}")
    lines = _lines(found)
    content = {**content.pop("audit"), **content}  # an audit may use any name, but must not override these
    content |= {**words.written(found.judgement), "endpoint": found.endpoint, "serves_here": None}
    if found.endpoint is None:
        here = compatibility(found.environment, found.libraries)
        if here.problems and not given.any_version:
            reasons = "; ".join(here.problems)
            raise CertificateError(f"{path} is intact, but cannot be served here (see --any-version): {reasons}")
        problems = [f"no: {problem}" for problem in here.problems]
        lines["serves_here"] = [*(problems or ["yes: the installed versions release what was audited"]), *here.notes]
        content["serves_here"] = {"serves": not here.problems, **asdict(here)}
    return lines, content


def _check_file(certificate: Certificate | GuaranteeCertificate, model: Path, path: Path) -> None:
    if isinstance(certificate, Certificate):
        certificate.need_model(path)
    try:
        digest = file_sha256(model)
    except OSError as error:
        raise InputError(f"the model file {model} cannot be read: {error.strerror or error}") from None
    known = certificate.digests("sha256")
    if not known:
        raise CertificateError(f"{path} names no model file (no SHA-256): it is about models that were never stored")
    if digest not in known:
        raise CertificateError(
            f"{model} is not the certified file: expected {', '.join(certificate.subject)} with SHA-256"
            f" {', '.join(sorted(d[:16] for d in known))}..., got {digest[:16]}..."
        )


def _lines(certificate: Certificate) -> Lines:
    judgement, policy, made_in = certificate.judgement, certificate.judgement.policy, certificate.environment
    try:
        hardening = Hardening.from_json(certificate.hardening)
    except ConfigurationError as error:
        raise CertificateError(f"hardening: {error}") from None
    options = "".join(f", {name}={value!r}" for name, value in certificate.options.items())
    not_run = [f"{c.name}: {c.says}" for c in judgement.controls if c.failed is None]
    uses, search, data = judgement.uses, certificate.search, certificate.subject_data
    released = in_words(hardening.to_dict())
    if certificate.endpoint is not None:
        released = "the answers of the endpoint; explainer and hardening are those declared for it"
    rows: Lines = {
        "kind": BY_AUDIT,
        "verdict": [words.sentence(judgement), *words.says(judgement), *words.details(judgement)],
        "signed": SIGNATURES[certificate.signature],
        **({"model": ", ".join(certificate.subject)} if certificate.endpoint is None else _endpoint(certificate)),
        "explainer": f"{certificate.method} of the predicted {certificate.output}{options}",
        "hardening": as_written(hardening.to_dict()),
        "released": released,
        "utility": utility_in_words(certificate.utility or {}),
        "subject_data": "" if data is None else f"{data}: {SUBJECT_DATA[data]}",
        "policy": policy.reason,
        "levels": [_level(row, judgement.anyway) for row in words.level_rows(judgement)],
        "native": certificate.native["sentence"]
        if certificate.native
        else f"not {'known' if certificate.endpoint else 'audited with this release'}",
        "trained_with_DP": f"as stated: {stated.epsilons}" if (stated := certificate.privacy) else "not stated",
        "canaries": str(certificate.canaries or "none were trained"),
        "search": f"the best of {search['trials']} trials on other examples" if search else "",
        "examples_used": "not counted" if uses is None else f"for {uses} configuration{'s' if uses > 1 else ''}",
        "controls_not_run": not_run or ["none: all were run" if judgement.controls else "no control was run"],
        "made_with": f"safexplain {made_in['safexplain']} (release format {made_in.get(FORMAT, 'not stated')}),"
        f" captum {made_in['captum']}, torch {made_in['torch']}",
        "notes": list(certificate.notes) or ["none"],
        "limits": [f"{headline} {says}" for headline, says in certificate.limits] or ["none stated"],
    }
    if policy.release == "prediction":
        rows |= {"explainer": "", "hardening": "", "released": "predictions alone, no explanation"}
    return {name: text for name, text in rows.items() if text}


def _endpoint(certificate: Certificate) -> Lines:
    (digests,) = certificate.subject.values()
    return {
        "endpoint": f"{certificate.endpoint}, answers with SHA-256 {digests[ANSWERS_DIGEST][:16]}...",
        "model": "not seen: this certificate can neither check a model file nor load an explainer",
    }


def _lines_of_guarantee(certificate: GuaranteeCertificate) -> Lines:
    stated, measured = certificate.guarantee, certificate.measured
    return {
        "kind": BY_CONSTRUCTION,
        "signed": SIGNATURES[certificate.signature],
        "model": ", ".join(certificate.subject),
        "explainer": f"{stated.method} of {stated.explaining}",
        "explaining_models": list(stated.models),
        **({"public_inputs": f"{stated.labels_asked:,}, {stated.public_inputs}"} if stated.labels_asked else {}),
        "says": list(stated.says),
        "assumes": list(stated.assumes),
        "does_not_say": list(stated.does_not_say),
        **({"measured": "nothing"} if measured is None else measured.rows()),
        "made_with": f"safexplain {certificate.environment['safexplain']}, torch {certificate.environment['torch']}",
        "notes": list(certificate.notes) or ["none"],
    }


def _level(row: words.LevelRow, anyway: str) -> str:
    labels, added, whole = row.labels, row.added, row.whole
    parts = [
        "" if labels is None else f"{anyway} alone {labels.text}",
        "" if added is None else f"explanations add {added.interval} points",
        "" if whole is None else f"{'together' if labels or added else 'all that is released'} {whole.interval}",
    ]
    return f"asked {words.times(row.level)}: {', '.join(filter(None, parts)) or 'nothing was judged'}"


def _printable(text: str) -> str:
    """The text without control characters: the file comes from somebody else."""
    return "".join(c if c.isprintable() else " " for c in text)
