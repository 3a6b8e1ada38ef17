"""Reading a certificate: nothing is believed that can be checked. No torch here.

Checked are the signature (where a public key is given), the form of every field, the checksum, and that the verdict and
every bound follow from the counts: counts, policy and what controls found are what an audit measured; everything else
is computed again, so a file in which it does not follow has been changed. Without a signature this finds damage and
careless edits, not a forger, who can compute them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from safexplain.errors import CertificateError, InputError, SafexplainError
from safexplain.verdict import words
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.result import check_certifiable, finding_of
from safexplain.verdict.certificate import strict_json
from safexplain.verdict.certificate.sign import Key, is_envelope, payload_of, verify_envelope
from safexplain.verdict.certificate.write import (
    ANSWERS_DIGEST,
    CONFIGURATION,
    GUARANTEE_TYPE,
    MODEL_DIGEST,
    PREDICATE_TYPE,
    SCHEMA_VERSION,
    STATEMENT_TYPE,
    SUBJECT_DATA,
    checksum,
    configuration_digest,
)
from safexplain.verdict.evidence import Verdict
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.privacy_statement import PrivacyStatement

__all__ = ["Certificate", "load_certificate", "recount"]

SECRETS = frozenset({"key", "noise_key", "private_key", "secret"})
"""Names that must not stand in a certificate, which is public."""

_FIELDS = frozenset(
    {"schema_version", "verdict", "explainer", "hardening", "audit", "utility", "materials", "environment", "notes"}
    | {"native", "limits", "checksum"}
)
_VERSIONS = ("safexplain", "captum", "torch")
_HEX = re.compile(r"[0-9a-f]{32,128}")

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""How far a recorded float may be from the one computed here: versions of SciPy round differently."""

MOST_EXAMPLES, MOST_ATTACKS = 5_000_000, 1_000
"""Larger audits are refused, lest a few digits in a file keep its reader busy for hours."""

LONGEST_TEXT = 65_536
"""Characters of one text; the longest that are written are sentences."""

Read = TypeVar("Read")

Signature = Literal["valid", "unchecked", "none"]
"""Valid for the public key that was given; signed, and no key was given; not signed."""


@dataclass(frozen=True)
class Certificate:
    """What was audited, how, and what came out.

    Args:
        subject: name -> {algorithm: hex digest} of each audited model; of an endpoint, its URL and the digest of its
            answers.
        method: name in the catalog of explanation methods.
        output: "probability" or "logit".
        softmax: whether `Probability` was put over the model.
        options: arguments of the explanation, as the command line took them.
        shape: of one input; None: the audit did not say.
        hardening: as `Hardening.to_dict`.
        noise_stream: how its noise is made; None: it has none, or the audit did not say.
        judgement: policy, counts and controls, and with them verdict and bounds.
        utility: agreement with the native explanation, or None.
        materials: name -> digest of data, signals, recipe and configuration.
        environment: versions, seed, device.
        notes: caveats.
        native: what was found in the explanation without hardening, as recorded; None: that is what was audited.
        limits: what the audit does not show, each a headline and a sentence.
        privacy: the guarantee of the model's training, or None; who trained the model states it, no audit can check
            that the training was as stated.
        canaries: what canaries found about a training like the model's, or None.
        search: `trials` and `digest` of the search that chose the configuration, or None.
        subject_data: whose membership was attacked, "pre-training" or "fine-tuning", of a model that was trained in two
            stages; None: it was trained once.
        signature: "valid" (for the public key that was given), "unchecked" (signed, no key given), or "none".
        statement: the in-toto statement itself.
    """

    subject: Mapping[str, Mapping[str, str]]
    method: str
    output: Literal["probability", "logit"]
    softmax: bool
    options: Mapping[str, Any]
    shape: tuple[int, ...] | None
    hardening: Mapping[str, Any]
    noise_stream: str | None
    judgement: Judgement
    utility: Mapping[str, float] | None
    materials: Mapping[str, str]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    native: Mapping[str, Any] | None
    limits: tuple[tuple[str, str], ...]
    privacy: PrivacyStatement | None
    canaries: Finding | None
    search: Mapping[str, Any] | None
    subject_data: str | None
    signature: Signature
    statement: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """ "by audit": attacks were run; what holds "by construction" is a `safexplain.verdict.guarantee.Guarantee`."""
        return "by audit"

    @property
    def verdict(self) -> Verdict:
        """Certified, leak or inconclusive; computed from the counts."""
        return self.judgement.verdict

    @property
    def sentence(self) -> str:
        """The verdict in one sentence; computed likewise."""
        return words.sentence(self.judgement)

    @property
    def libraries(self) -> dict[str, str]:
        """Distribution -> version of the libraries that explainers of tables run, beside Captum."""
        each = [self.options, *(value for value in self.options.values() if isinstance(value, Mapping))]
        made_with = [found for options in each if isinstance(found := options.get("made_with"), Mapping)]
        named = [found for made in made_with if isinstance(found := made.get("libraries"), Mapping)]
        return {str(name): str(number) for libraries in named for name, number in libraries.items()}

    @property
    def endpoint(self) -> str | None:
        """URL of the service whose answers were audited, without the model being seen; None: a model was audited."""
        return next((name for name, digests in self.subject.items() if ANSWERS_DIGEST in digests), None)

    def need_model(self, path: str | Path) -> None:
        """Raise `CertificateError` if the certificate, read from this path, is about an endpoint and no model."""
        if (url := self.endpoint) is not None:
            raise CertificateError(
                f"{path} is about the answers of the endpoint {url}, whose model was not seen: it holds no digest of a"
                " model, and so cannot be about this one; audit the model's file to certify it"
            )

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
    return read_statement(path, read_audit, public_key=public_key)


def read_statement(
    path: str | Path, read: Callable[[Mapping[str, Any], Signature], Read], *, public_key: Key | None = None
) -> Read:
    """What `read` makes of the statement in a file; its errors name the file.

    Args:
        path: a statement, or a signed envelope around one.
        read: (statement, what is known of its signature) -> what is in it.
        public_key: as in `load_certificate`, and the same errors.
    """
    content, signature = open_statement(path, public_key=public_key)
    try:
        return read(content, signature)
    except CertificateError as error:
        raise CertificateError(f"{path}: {error}") from None


def open_statement(path: str | Path, *, public_key: Key | None = None) -> tuple[dict[str, Any], Signature]:
    """The statement in a file, of whatever predicate type, and what is known of its signature.

    Args:
        path: a statement, or a signed envelope around one.
        public_key: as in `load_certificate`, and the same errors.
    """
    raw, where = strict_json.read_limited(path), str(path)
    content = strict_json.parse(raw, where)
    if is_envelope(content):
        statement = payload_of(content, where)
        if public_key is not None:
            verify_envelope(content, public_key, where)
        return strict_json.parse(statement, f"the payload of {where}"), "unchecked" if public_key is None else "valid"
    if public_key is not None:
        raise CertificateError(
            f"{where} is not signed, and a public key was given; sign it: safexplain sign {where} --key key.pem"
        )
    return content, "none"


def predicate_of(
    content: Mapping[str, Any],
    predicate_type: str,
    version: int,
    fields: Set[str],
    optional: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The predicate of a statement of one type and version, with these fields and nothing that must not be there.

    Raises:
        CertificateError: the statement is another one.
    """
    for name, expected in (("_type", STATEMENT_TYPE), ("predicateType", predicate_type)):
        if content.get(name) != expected:
            raise CertificateError(f"{name}: expected {expected}, got {content.get(name)!r:.100}{_hint(content)}")
    check_names(content, "the statement", {"_type", "subject", "predicateType", "predicate"})
    predicate = object_of(content, "predicate")
    check_names(predicate, "predicate", fields, optional)
    for _, value in strict_json.inside(content):
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise CertificateError(
                f"it holds a text of {len(value):,} characters ({value[:20]!r}...): expected {LONGEST_TEXT:,} at most"
            )
        if isinstance(value, dict) and (named := sorted(SECRETS & {name.lower() for name in value})):
            raise CertificateError(f"it holds a field {named[0]!r}: certificates are public; make a new secret")
    if type(predicate["schema_version"]) is not int or predicate["schema_version"] != version:
        raise CertificateError(f"schema_version: expected {version}, got {predicate['schema_version']!r:.40}")
    return predicate


def _hint(content: Mapping[str, Any]) -> str:
    """What to do with a certificate of another kind, or an older one."""
    kind = content.get("predicateType")
    if kind == GUARANTEE_TYPE:
        return (
            ": a guarantee by construction, about explanations of other models, and no audit; it is loaded by"
            " PublicExplainer.from_certificate or StudentExplainer.from_certificate"
        )
    if kind == PREDICATE_TYPE:
        return ": a certificate by audit, of a hardening; it is loaded by from_certificate of the hardened class"
    return " (audit again with this version)" if "explanation-audit" in str(kind) else ""


def read_audit(content: Mapping[str, Any], signature: Signature) -> Certificate:
    """The certificate of an audit in a statement; raises `CertificateError`, without the file's name."""
    optional = {"noise_stream", "privacy", "canaries", "search", "subject_data"}
    predicate = predicate_of(content, PREDICATE_TYPE, SCHEMA_VERSION, _FIELDS, optional)
    judgement = recount(predicate["audit"])
    privacy = _block_of(predicate, "privacy", PrivacyStatement.from_dict)
    if judgement.implied is not None:
        try:
            judgement.implied.check(privacy)
        except InputError as error:
            raise CertificateError(f"audit: {error}") from None
    if predicate["verdict"] != judgement.verdict:
        raise CertificateError(
            f"verdict says {predicate['verdict']!r:.40}, but {judgement.verdict!r} follows from the counts"
        )
    explainer, hardening = _explainer_of(predicate), object_of(predicate, "hardening")
    materials, environment = texts_of(predicate, "materials"), texts_of(predicate, "environment")
    if materials.get(CONFIGURATION) != configuration_digest(explainer, hardening, predicate["audit"]["policy"]):
        raise CertificateError(f"materials: {CONFIGURATION!r} is not that of explainer, hardening and policy")
    if lacking := [name for name in _VERSIONS if name not in environment]:
        raise CertificateError(f"environment: the version of {', '.join(lacking)} is missing")
    found = Certificate(
        subject=subject_of(content["subject"], or_endpoint=True),
        method=explainer["method"],
        output=explainer["output"],
        softmax=explainer.get("softmax", explainer["output"] == "probability"),
        options={name: tuple(v) if isinstance(v, list) else v for name, v in explainer["options"].items()},
        shape=tuple(explainer["shape"]) if "shape" in explainer else None,
        hardening=hardening,
        noise_stream=_noise_stream_of(predicate),
        judgement=judgement,
        utility=_utility_of(predicate["utility"]),
        materials=materials,
        environment=environment,
        notes=notes_of(predicate),
        native=_native_of(predicate),
        limits=_limits_of(predicate),
        privacy=privacy,
        canaries=_block_of(predicate, "canaries", _certifiable_finding),
        search=_search_of(predicate),
        subject_data=_subject_data_of(predicate),
        signature=signature,
        statement=content,
    )
    if predicate["checksum"] != checksum(content):
        raise CertificateError("it was changed after it was written: the checksum is another")
    return found


def _explainer_of(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Method, output and options, and perhaps softmax and shape.

    Raises:
        CertificateError: something else; so do all functions here.
    """
    explainer = object_of(predicate, "explainer")
    check_names(explainer, "explainer", {"method", "output", "options"}, optional={"softmax", "shape"})
    if not isinstance(explainer["method"], str) or explainer["output"] not in ("probability", "logit"):
        raise CertificateError(f"explainer: expected a method, and output probability or logit; got {explainer!r:.100}")
    if not isinstance(explainer.get("softmax", False), bool):
        raise CertificateError(f"explainer.softmax: expected true or false, got {explainer['softmax']!r:.40}")
    shape = explainer.get("shape", [])
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
        raise CertificateError(f"explainer.shape: expected a list of sizes from 1 on, got {shape!r:.60}")
    object_of(explainer, "options")
    return explainer


def subject_of(subject: Any, *, or_endpoint: bool = False) -> dict[str, dict[str, str]]:
    """Name -> digests of at least one model, or of the answers of one endpoint."""
    found: dict[str, dict[str, str]] = {}
    for entry in subject if isinstance(subject, list) else [subject]:
        if not isinstance(entry, dict) or entry.keys() != {"name", "digest"} or not isinstance(entry["name"], str):
            raise CertificateError(f"subject: expected names, each with its digest; got {entry!r:.80}")
        digests = texts_of(entry, "digest")
        kind = ANSWERS_DIGEST if or_endpoint and len(subject) == 1 and ANSWERS_DIGEST in digests else MODEL_DIGEST
        if kind is ANSWERS_DIGEST and digests.keys() != {ANSWERS_DIGEST}:
            raise CertificateError(f"subject: an endpoint has a {ANSWERS_DIGEST} alone; got {entry!r:.120}")
        if entry["name"] in found or kind not in digests or not all(map(_HEX.fullmatch, digests.values())):
            raise CertificateError(f"subject: expected different names with a {MODEL_DIGEST} each; got {entry!r:.120}")
        found[entry["name"]] = digests
    if not found:
        raise CertificateError("subject: it names no model")
    return found


def _utility_of(utility: Any) -> dict[str, float] | None:
    """Numbers by name, or None."""
    if utility is None:
        return None
    values = utility.values() if isinstance(utility, dict) else [None]
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise CertificateError(f"utility: expected numbers by name, or null; got {utility!r:.80}")
    return {name: float(value) for name, value in utility.items()}


def notes_of(predicate: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts."""
    notes = predicate["notes"]
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise CertificateError(f"notes: expected a list of texts, got {notes!r:.80}")
    return tuple(notes)


def _native_of(predicate: Mapping[str, Any]) -> dict[str, Any] | None:
    """Verdict, sentence and levels of the native explanation, or None."""
    native = predicate["native"]
    if native is None:
        return None
    check_names(object_of(predicate, "native"), "native", {"verdict", "sentence", "levels"})
    if not isinstance(native["verdict"], str) or not isinstance(native["sentence"], str):
        raise CertificateError(f"native: expected a verdict and a sentence, got {native!r:.80}")
    return dict(native)


def _limits_of(predicate: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Headlines and sentences."""
    limits = predicate["limits"]
    if not isinstance(limits, list) or not all(
        isinstance(one, dict) and one.keys() == {"headline", "says"} and all(isinstance(v, str) for v in one.values())
        for one in limits
    ):
        raise CertificateError(f"limits: expected a list of headlines and sentences, got {limits!r:.80}")
    return tuple((one["headline"], one["says"]) for one in limits)


def _noise_stream_of(predicate: Mapping[str, Any]) -> str | None:
    """A name, where there is noise; None where none is given."""
    if "noise_stream" not in predicate:
        return None
    named = predicate["noise_stream"]
    if not isinstance(named, str) or not predicate["hardening"].get("noise"):
        raise CertificateError(
            f"noise_stream: expected the name of a noise stream beside a hardening with noise, got {named!r:.60}"
        )
    return named


def _block_of(predicate: Mapping[str, Any], name: str, read: Callable[[Any], Read]) -> Read | None:
    """What an optional block says, its epsilons or its bound computed again; None where there is none."""
    if name not in predicate:
        return None
    try:
        return read(predicate[name])
    except InputError as error:
        raise CertificateError(f"{name}: {error}") from None


def _certifiable_finding(content: Any) -> Finding:
    """What canaries found, unless it leaves open whether the claim is kept."""
    found = finding_of(content)
    check_certifiable(found)
    return found


def _search_of(predicate: Mapping[str, Any]) -> dict[str, Any] | None:
    """Trials and digest of the search, or None."""
    if "search" not in predicate:
        return None
    search = object_of(predicate, "search")
    check_names(search, "search", {"trials", "digest"})
    trials, digest = search["trials"], search["digest"]
    if type(trials) is not int or trials < 1 or not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise CertificateError(f"search: expected trials from 1 on and a SHA-256; got {search!r:.120}")
    return search


def _subject_data_of(predicate: Mapping[str, Any]) -> str | None:
    """One of the names, or None."""
    if "subject_data" not in predicate:
        return None
    named = predicate["subject_data"]
    if not isinstance(named, str) or named not in SUBJECT_DATA:
        raise CertificateError(f"subject_data: expected {' or '.join(SUBJECT_DATA)}, got {named!r:.60}")
    return named


def object_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object."""
    value = content[name]
    if not isinstance(value, dict):
        raise CertificateError(f"{name}: expected an object, got {value!r:.60}")
    return value


def texts_of(content: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field that is an object of texts."""
    values = object_of(content, name)
    if not all(isinstance(value, str) for value in values.values()):
        raise CertificateError(f"{name}: expected texts by name, got {values!r:.80}")
    return values


def check_names(content: Mapping[str, Any], where: str, expected: Set[str], optional: Set[str] = frozenset()) -> None:
    """Refuse a missing name and an unknown one."""
    if missing := sorted(expected - content.keys()):
        raise CertificateError(f"{where}: {', '.join(missing)} is missing")
    if unknown := sorted(content.keys() - expected - optional):
        raise CertificateError(f"{where}: unknown {', '.join(unknown):.80}")


def recount(audit: Any) -> Judgement:
    """The judgement of an `audit` field, after comparing every derived number and word with what the field says.

    Args:
        audit: what `AuditResult.to_dict()` or `Judgement.to_dict()` wrote.

    Raises:
        CertificateError: a count is missing or impossible, or something does not follow from the counts; the message
            names it.
    """
    if not isinstance(audit, Mapping):
        raise CertificateError(f"audit: expected an object, got {type(audit).__name__}")
    try:
        judgement = Judgement.from_dict(audit)
        _check(judgement)
        computed = {**judgement.to_dict(), **words.written(judgement)}
    except (SafexplainError, ValueError, ArithmeticError) as error:
        raise CertificateError(f"audit: {error}") from None
    for name, value in computed.items():
        if name == "others":
            continue  # each is compared by itself
        _compare(audit.get(name, _MISSING), value, f"audit.{name}")
    _check_rest(audit, judgement)
    for other in audit["others"]:
        recount(other)
    return judgement


def _check(judgement: Judgement) -> None:
    """What `Judgement` takes, but no audit writes."""
    if max(judgement.members, judgement.non_members, judgement.references) > MOST_EXAMPLES or judgement.references < 0:
        raise CertificateError(f"members, non_members and references are counts up to {MOST_EXAMPLES:,}")
    if judgement.split not in ("certification", "selection"):
        raise CertificateError(f"split: expected certification or selection, got {judgement.split!r:.40}")
    if judgement.uses is not None and judgement.uses < 1:
        raise CertificateError(f"uses: expected a count from 1 on, or null; got {judgement.uses}")
    if len(judgement.evidence) > MOST_ATTACKS or len(judgement.others) > MOST_ATTACKS:
        raise CertificateError(f"evidence, others: at most {MOST_ATTACKS}")
    if any(o.policy != judgement.policy or o.targets != judgement.targets for o in judgement.others):
        raise CertificateError("others: expected judgements of the same targets under the same policy")
    if judgement.others and len({judgement.target, *(o.target for o in judgement.others)}) < judgement.targets:
        raise CertificateError("others: two of the judgements are about one target")


def _check_rest(audit: Mapping[str, Any], judgement: Judgement) -> None:
    """Fields that do not follow, but must fit."""
    if "attacks" in audit:
        shown = [
            {k: a.get(k) for k in ("attack", "signal", "role", "level")} if isinstance(a, Mapping) else a
            for a in (audit["attacks"] if isinstance(audit["attacks"], list) else [audit["attacks"]])
        ]
        evidence = [
            {"attack": e.attack, "signal": e.signal, "role": e.role, "level": e.level} for e in judgement.evidence
        ]
        _compare(shown, evidence, "audit.attacks")
    if "splits" in audit:
        sizes, scored = audit["splits"], judgement.grouped or judgement.members + judgement.non_members
        _compare(sizes.get(judgement.split) if isinstance(sizes, Mapping) else sizes, scored, "audit.splits")


_MISSING = object()


def _compare(found: Any, computed: Any, where: str) -> None:
    """Raise at the first difference, deep inside or not."""
    if found is _MISSING:
        raise CertificateError(f"{where} is missing")
    if isinstance(computed, Mapping):
        names = found.keys() if isinstance(found, Mapping) else ()
        for name in (*computed, *(n for n in names if n not in computed)):
            if name not in computed:
                raise CertificateError(f"{where}.{name} is unknown")
            _compare(
                found.get(name, _MISSING) if isinstance(found, Mapping) else found, computed[name], f"{where}.{name}"
            )
        return
    if isinstance(computed, list | tuple):
        if not isinstance(found, list) or len(found) != len(computed):
            raise CertificateError(f"{where}: expected a list of {len(computed)}, got {_shown(found)}")
        for i, (one, other) in enumerate(zip(found, computed, strict=True)):
            _compare(one, other, f"{where}[{i}]")
        return
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if isinstance(computed, float) and number:
        same = math.isclose(found, computed, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        same = type(found) is type(computed) and found == computed
    if not same:
        raise CertificateError(f"{where} says {_shown(found)}, but {_shown(computed)} follows from the counts")


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r:.120}"
