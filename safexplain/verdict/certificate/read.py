"""Reading a certificate and checking everything in it; without a signature this finds no forger, who can compute it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from safexplain._validate import check_follows, from_table
from safexplain._versions import VERSION
from safexplain.errors import CertificateError, InputError, SafexplainError
from safexplain.verdict import strict_json, words
from safexplain.verdict.canaries.result import Finding, finding_of
from safexplain.verdict.certificate.write import (
    ANSWERS_DIGEST,
    CONFIGURATION,
    GUARANTEE_TYPE,
    MODEL_DIGEST,
    STATEMENT_TYPE,
    SUBJECT_DATA,
    VERSIONS,
    Key,
    checksum,
    configuration_digest,
    payload_of,
    verify_envelope,
)
from safexplain.verdict.guarantee import Guarantee, Measured
from safexplain.verdict.judgement import Judgement, Verdict
from safexplain.verdict.privacy_statement import PrivacyStatement

SECRETS = frozenset({"key", "noise_key", "private_key", "secret"})  # names that no certificate may contain

_HEX = re.compile(r"[0-9a-f]{32,128}")

MOST_EXAMPLES, MOST_ATTACKS = 5_000_000, 1_000  # more could keep a reader busy for hours
LONGEST_TEXT = 65_536  # characters

Signature = Literal["valid", "unchecked", "none"]
"""Valid for the given public key; signed, but no key was given; not signed."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    subject: Mapping[str, Mapping[str, str]]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    signature: Signature
    statement: Mapping[str, Any]

    def digests(self, algorithm: str) -> frozenset[str]:
        """Digests of the audited models by one algorithm."""
        return frozenset(d[algorithm] for d in self.subject.values() if algorithm in d)


@dataclass(frozen=True, kw_only=True)
class _Explainer:
    method: str
    output: Literal["probability", "logit"]
    options: dict[str, Any]
    softmax: bool
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _AsWritten:
    hardening: dict[str, Any]
    utility: dict[str, float] | None
    materials: dict[str, str]
    native: dict[str, Any] | None
    noise_stream: str | None = None
    search: dict[str, Any] | None = None
    subject_data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate(_Read, _Explainer, _AsWritten):
    """A certificate of an audit.

    Args:
        subject: name -> {algorithm: hex digest} of each audited model; for an endpoint, its URL and its answers.
        method: name in the catalog of explanation methods.
        output: "probability" or "logit".
        softmax: whether the model was wrapped in `Probability`.
        options: arguments of the explanation.
        shape: of one input.
        hardening: as `Hardening.to_dict`.
        noise_stream: name of the noise generation.
        judgement: policy, counts and controls, from which verdict and bounds follow.
        utility: agreement with the native explanation.
        materials: name -> digest of data, signals, recipe and configuration.
        environment: versions, seed, device.
        notes: caveats.
        native: recorded verdict about the explanation without hardening; None: that is what was audited.
        limits: what the audit does not show, each a headline and a sentence.
        privacy: the guarantee of the model's training, as stated by those who trained it.
        canaries: finding of canaries about a training like the model's.
        search: `trials` and `digest` of the search that chose the configuration.
        subject_data: data of a training in two stages that were attacked, "pre-training" or "fine-tuning".
        signature: "valid" (for the given public key), "unchecked" (signed, no key given), or "none".
        statement: the in-toto statement itself.
    """

    judgement: Judgement
    limits: tuple[tuple[str, str], ...]
    privacy: PrivacyStatement | None
    canaries: Finding | None

    kind: ClassVar[str] = "by audit"

    @property
    def verdict(self) -> Verdict:
        """The verdict, computed from the counts."""
        return self.judgement.verdict

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, computed from the counts."""
        return words.sentence(self.judgement)

    @property
    def libraries(self) -> dict[str, str]:
        """Version of each library, other than Captum, that the explainers used."""
        each = [self.options, *(value for value in self.options.values() if isinstance(value, Mapping))]
        made_with = [found for options in each if isinstance(found := options.get("made_with"), Mapping)]
        named = [found for made in made_with if isinstance(found := made.get("libraries"), Mapping)]
        return {str(name): str(number) for libraries in named for name, number in libraries.items()}

    @property
    def endpoint(self) -> str | None:
        """URL of the audited service; None: a model was audited."""
        return next((name for name, digests in self.subject.items() if ANSWERS_DIGEST in digests), None)

    def need_model(self, path: str | Path) -> None:
        """Raise `CertificateError` if this is about an endpoint."""
        if (url := self.endpoint) is not None:
            raise CertificateError(
                f"{path} is about the answers of the endpoint {url}, whose model was not seen, so it cannot be about"
                " this model; audit the model's file to certify it"
            )


@dataclass(frozen=True, kw_only=True)
class GuaranteeCertificate(_Read):
    """A certificate of a guarantee by construction, without a verdict.

    `guarantee` states it with the digests of the explaining models; `measured` holds their agreement and faithfulness,
    or is None. The other fields are those of `Certificate`.
    """

    guarantee: Guarantee
    measured: Measured | None

    kind: ClassVar[str] = "by construction"


def load_certificate(path: str | Path, *, public_key: Key | None = None) -> Certificate:
    """Read the certificate of an audit, signed or not.

    Args:
        path: a statement, or a signed envelope around one.
        public_key: ed25519, PEM: its path, or its bytes. If given, the file must be signed with its private key.

    Raises:
        CertificateError: damaged, altered, of another kind or version, or not signed with this key.
        InputError: a file cannot be read, or the key is invalid.
        MissingExtraError: a public key is given and the extra `sign` is not installed.
    """
    found = load_any(path, public_key=public_key)
    if isinstance(found, GuaranteeCertificate):
        raise CertificateError(
            f"{path}: expected the certificate of an audit, got a guarantee by construction; load it with"
            " PublicExplainer.from_certificate or StudentExplainer.from_certificate"
        )
    return found


def load_guarantee(path: str | Path, *, public_key: Key | None = None) -> GuaranteeCertificate:
    """Read a certificate by construction; arguments and errors as of `load_certificate`."""
    found = load_any(path, public_key=public_key)
    if isinstance(found, Certificate):
        raise CertificateError(
            f"{path}: expected a guarantee by construction, got the certificate of an audit; load it with"
            " from_certificate of the hardened class"
        )
    return found


def load_any(path: str | Path, *, public_key: Key | None = None) -> Certificate | GuaranteeCertificate:
    """Read a certificate of either kind; arguments and errors as of `load_certificate`."""
    signature: Signature = "none"
    content = strict_json.load(path, "certificate", CertificateError)
    if "payload" in content and "signatures" in content:
        payload, signature = payload_of(content, str(path)), "unchecked"
        if public_key is not None:
            verify_envelope(content, public_key, str(path))
            signature = "valid"
        content = strict_json.parse(payload, f"the payload of {path}")
    elif public_key is not None:
        raise CertificateError(
            f"{path} is not signed, but a public key was given; sign it: safexplain sign {path} --key key.pem"
        )
    read = _read_guarantee if content.get("predicateType") == GUARANTEE_TYPE else _read_audit
    try:
        return read(content, signature)
    except SafexplainError as error:
        raise CertificateError(f"{path}: {error}") from None


# --- the form of the fields -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    name: str
    digest: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Predicate:
    schema_version: int
    environment: dict[str, str]
    notes: tuple[str, ...]
    checksum: str


@dataclass(frozen=True, kw_only=True)
class _AuditPredicate(_Predicate, _AsWritten):
    verdict: str
    explainer: dict[str, Any]
    audit: dict[str, Any]
    limits: tuple[_Limit, ...]
    privacy: Any = None
    canaries: Any = None


@dataclass(frozen=True, kw_only=True)
class _GuaranteePredicate(_Predicate):
    kind: str
    guarantee: dict[str, Any]
    measured: Measured | None


@dataclass(frozen=True)
class _Native:
    verdict: str
    sentence: str
    levels: tuple[Any, ...]


@dataclass(frozen=True)
class _Limit:
    headline: str
    says: str


@dataclass(frozen=True)
class _Search:
    trials: int
    digest: str


Predicate = TypeVar("Predicate", _AuditPredicate, _GuaranteePredicate)
Part = TypeVar("Part")


def _predicate_of(content: Mapping[str, Any], kind: type[Predicate]) -> tuple[Predicate, dict[str, dict[str, str]]]:
    """The predicate and the subject of a statement."""
    if content.get("_type") != STATEMENT_TYPE:
        _refuse("_type", STATEMENT_TYPE, content.get("_type"))
    if (named := content.get("predicateType")) not in list(VERSIONS):
        older = " (audit again with this version)" if "explanation-audit" in str(named) else ""
        _refuse("predicateType", " or ".join(VERSIONS), named, older)
    version, made_with = VERSIONS[named]
    if wrong := sorted(content.keys() ^ {"_type", "subject", "predicateType", "predicate"}):
        raise CertificateError(f"the statement: {wrong[0]} is missing or unknown")
    predicate = from_table(kind, content["predicate"], "predicate")
    for _, value in strict_json.inside(content):
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise CertificateError(
                f"expected texts of at most {LONGEST_TEXT:,} characters, got {len(value):,} ({value[:20]!r}...)"
            )
        if isinstance(value, dict) and (secret := sorted(SECRETS & {name.lower() for name in value})):
            raise CertificateError(
                f"it holds a field {secret[0]!r}, but certificates are public: remove it, and replace the secret"
            )
    if predicate.schema_version != version:
        _refuse("schema_version", version, predicate.schema_version)
    if lacking := [name for name in made_with if name not in predicate.environment]:
        raise CertificateError(f"environment: the version of {', '.join(lacking)} is missing")
    found: dict[str, dict[str, str]] = {}
    for entry in content["subject"] if isinstance(content["subject"], list) else [content["subject"]]:
        one, good = from_table(_Subject, entry, "subject"), False
        if ANSWERS_DIGEST in one.digest:
            good = kind is _AuditPredicate and len(content["subject"]) == len(one.digest) == 1
        elif MODEL_DIGEST in one.digest:
            good = one.name not in found
        if not good or not all(map(_HEX.fullmatch, one.digest.values())):
            _refuse("subject", f"different names with a {MODEL_DIGEST} each, or one with {ANSWERS_DIGEST} alone", entry)
        found[one.name] = one.digest
    if not found:
        raise CertificateError("subject: expected at least one model, got none")
    return predicate, found


def _read_audit(content: Mapping[str, Any], signature: Signature) -> Certificate:
    p, subject = _predicate_of(content, _AuditPredicate)
    _refuse_null(content["predicate"], "predicate", except_for=("utility", "native"))
    judgement = recount(p.audit, compare_words=p.environment["safexplain"] == VERSION)
    privacy = _read_optional(content, "privacy", PrivacyStatement.from_dict)
    if judgement.implied is not None:
        judgement.implied.check(privacy)
    if p.verdict != judgement.verdict:
        raise CertificateError(f"verdict is {p.verdict!r:.40}, but {judgement.verdict!r} follows from the counts")
    explainer = from_table(
        _Explainer, {"softmax": p.explainer.get("output") == "probability", **p.explainer}, "explainer"
    )
    _refuse_null(p.explainer, "explainer")
    if explainer.output not in ("probability", "logit"):
        _refuse("explainer.output", "probability or logit", explainer.output)
    if not all(side > 0 for side in explainer.shape or ()):
        _refuse("explainer.shape", "sizes from 1 on", explainer.shape)
    if p.materials.get(CONFIGURATION) != configuration_digest(p.explainer, p.hardening, p.audit["policy"]):
        raise CertificateError(f"materials: {CONFIGURATION!r} does not match explainer, hardening and policy")
    if "noise_stream" in content["predicate"] and not p.hardening.get("noise"):
        raise CertificateError(f"noise_stream: got {p.noise_stream!r:.60}, but the hardening has no noise")
    if p.native is not None:
        from_table(_Native, p.native, "native")
    if "search" in content["predicate"]:
        search = from_table(_Search, p.search, "search")
        if search.trials < 1 or not re.fullmatch("[0-9a-f]{64}", search.digest):
            _refuse("search", "trials from 1 on and a SHA-256", p.search)
    if "subject_data" in content["predicate"] and p.subject_data not in SUBJECT_DATA:
        _refuse("subject_data", " or ".join(SUBJECT_DATA), p.subject_data)
    _check_checksum(content, p.checksum)
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in explainer.options.items()}
    return Certificate(
        **{f.name: getattr(p, f.name) for f in fields(_AsWritten)},
        **{**vars(explainer), "options": options},
        subject=subject,
        judgement=judgement,
        environment=p.environment,
        notes=p.notes,
        limits=tuple((one.headline, one.says) for one in p.limits),
        privacy=privacy,
        canaries=_read_optional(content, "canaries", finding_of),
        signature=signature,
        statement=content,
    )


def _read_guarantee(content: Mapping[str, Any], signature: Signature) -> GuaranteeCertificate:
    p, subject = _predicate_of(content, _GuaranteePredicate)
    guarantee = Guarantee.from_dict(p.guarantee, compare_words=p.environment["safexplain"] == VERSION)
    if p.kind != guarantee.kind:
        _refuse("kind", guarantee.kind, p.kind)
    if len(subject) != 1:
        raise CertificateError(f"subject: expected the one model that is explained, got {len(subject)}")
    _check_checksum(content, p.checksum)
    return GuaranteeCertificate(
        subject=subject, guarantee=guarantee, measured=p.measured, environment=p.environment, notes=p.notes,
        signature=signature, statement=content,
    )  # fmt: skip


def _read_optional(content: Mapping[str, Any], name: str, read: Callable[[Any], Part]) -> Part | None:
    try:
        return read(content["predicate"][name]) if name in content["predicate"] else None
    except InputError as error:
        raise CertificateError(f"{name}: {error}") from None


def _refuse_null(table: Mapping[str, Any], where: str, except_for: tuple[str, ...] = ()) -> None:
    if nulls := [name for name, value in table.items() if value is None and name not in except_for]:
        raise CertificateError(f"{where}: {nulls[0]} is null; leave it out")


def _check_checksum(content: Mapping[str, Any], stated: str) -> None:
    if stated != checksum(content):
        raise CertificateError("it was changed after it was written: the checksum does not match")


def _refuse(name: str, expected: object, found: object, more: str = "") -> NoReturn:
    raise CertificateError(f"{name}: expected {expected}, got {found!r:.100}{more}")


# --- the audit --------------------------------------------------------------------------------------------------------


def recount(audit: Mapping[str, Any], *, compare_words: bool = True) -> Judgement:
    """The judgement that `AuditResult.to_dict()` wrote; `CertificateError` if a value does not follow from its counts,
    or, with `compare_words`, a sentence, which another version may phrase differently."""
    try:
        judgement = Judgement.from_dict(audit)
        _check(judgement)
        computed = {**judgement.to_dict(), **(words.written(judgement) if compare_words else {})}
    except (SafexplainError, ValueError, ArithmeticError) as error:
        raise CertificateError(f"audit: {error}") from None
    alone = {name: value for name, value in computed.items() if name != "others"}
    try:
        check_follows({name: audit[name] for name in alone.keys() & audit.keys()}, alone, "audit", "the counts")
    except InputError as error:
        raise CertificateError(str(error)) from None
    for other in audit["others"]:
        recount(other, compare_words=compare_words)
    return judgement


def _check(judgement: Judgement) -> None:
    """Refuse what `Judgement` accepts but no audit writes."""
    if max(judgement.members, judgement.non_members, judgement.references) > MOST_EXAMPLES or judgement.references < 0:
        raise CertificateError(f"members, non_members and references: expected counts up to {MOST_EXAMPLES:,}")
    if judgement.split not in ("certification", "selection"):
        _refuse("split", "certification or selection", judgement.split)
    if judgement.uses is not None and judgement.uses < 1:
        _refuse("uses", "a count of at least 1, or null", judgement.uses)
    if len(judgement.evidence) > MOST_ATTACKS or len(judgement.others) > MOST_ATTACKS:
        raise CertificateError(f"evidence, others: expected at most {MOST_ATTACKS} entries")
    if any(o.policy != judgement.policy or o.targets != judgement.targets for o in judgement.others):
        raise CertificateError("others: expected judgements of the same targets under the same policy")
    if judgement.others and len({judgement.target, *(o.target for o in judgement.others)}) < judgement.targets:
        raise CertificateError("others: two of the judgements are about one target")
