"""The explainer that a certificate is about, and no other: how production loads what was audited.

Class, model, hardening and options are the audited ones, and the versions release the same, or nothing is built. The
noise key is the service's own: the audit had another, and no certificate holds one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from safexplain._digest import file_sha256, model_digest
from safexplain._versions import compatibility
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.captum.model_checks import in_training_mode
from safexplain.explain.catalog import CATALOG, Row
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import KEY_VARIABLE, SHORTEST_STRONG_KEY
from safexplain.outputs import EstimatorModule, Probability, are_probabilities, as_module

if TYPE_CHECKING:
    from safexplain.verdict.certificate.read import Certificate, GuaranteeCertificate

__all__ = [
    "Audited",
    "Pinned",
    "check_subject",
    "check_unchanged",
    "checked_model",
    "keyed",
    "load_audited",
    "refuse_others",
    "rows_of",
    "same",
    "shown",
    "subject_of",
]

FREE = frozenset({"inputs", "target"})
"""Arguments of `attribute` that are the client's to choose."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

WITH_COLUMNS = (
    '. If the audit wrote columns.json, the model is EstimatorModule(model, columns=Columns.read("columns.json")), from'
    " safexplain.outputs and safexplain.columns"
)
"""Of a classifier that was asked about codes for texts and missing values."""

_FEWEST_DIFFERENT = 5
"""Different bytes of a key; of 16 random bytes, or 32 random hexadecimal digits, there are more but once in 1e9."""


@dataclass(frozen=True, eq=False)
class Pinned:
    """What a certified explainer holds fast from call to call.

    Args:
        method: name in the catalog.
        model: the audited model.
        digest: its digest when the certificate was loaded.
        options: that were audited, as `Row.options` takes them.
        probabilities: whether the model's own outputs are probabilities, which is looked at in the first call.
    """

    method: str
    model: nn.Module
    digest: bytes
    options: Mapping[str, Any]
    probabilities: bool = False

    def complete(self, signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call of `attribute`, by name: what was given, without self and defaults, and the audited
        options.

        Raises:
            RefusedError: an option differs from the audited one, or the model is no longer the audited one.
            InputError: the inputs are not one tensor.
        """
        inputs = given.get("inputs")
        if not isinstance(inputs, Tensor) or inputs.dim() == 0:
            raise InputError(f"a certified explainer takes one tensor (batch, ...), got {type(inputs).__name__}")
        check_unchanged(self.model, self.digest)
        like = inputs.detach() if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:])
        if self.probabilities and len(inputs):
            with torch.no_grad():
                if not are_probabilities(self.model(inputs.detach()[:1])):
                    raise RefusedError(
                        "the audited model gave probabilities, and this one does not: pass the model with the softmax"
                        " over it, as Probability(model)"
                    )
            object.__setattr__(self, "probabilities", False)
        audited = CATALOG[self.method].options(like, self.options)
        refuse_others(signature, given, audited, FREE)
        return {**given, **audited}


def check_unchanged(model: nn.Module, digest: bytes) -> None:
    """Raise `RefusedError` unless a model is still the one with this digest, and in evaluation mode."""
    if in_training_mode(model) or model_digest(model) != digest:
        raise RefusedError(
            "the model is no longer the one that the certificate was loaded for: its parameters changed, or it is"
            " in training mode. Load the certificate again, with the audited model in evaluation mode"
        )


def refuse_others(
    signature: inspect.Signature, given: Mapping[str, Any], audited: Mapping[str, Any], free: frozenset[str]
) -> None:
    """Raise `RefusedError` where an option of a call, none of those that are free, differs from the audited one, or
    from the default where none was audited by name."""
    for name in given.keys() - free:
        default = signature.parameters[name].default if name in signature.parameters else inspect.Parameter.empty
        value, expected = given[name], audited.get(name, default)
        if not same(value, expected):
            raise RefusedError(
                f"{name} is {shown(expected)} in the certificate, got {shown(value)}: another option gives"
                f" explanations that were not audited. Leave {name} out, or audit with this option"
            )


@dataclass(frozen=True, eq=False)
class Audited:
    """A certificate, and the model that it was found to be about.

    Args:
        path: of the certificate, for messages.
        certificate: what it says.
        model: the audited model, without a `Probability` that the audit put over it.
        digest: its digest.
        hardening: the audited one, with the service's key where it has noise.
    """

    path: str
    certificate: Certificate
    model: nn.Module
    digest: bytes
    hardening: Hardening

    @property
    def forward(self) -> nn.Module:
        """What was explained: the model, or its probabilities."""
        return Probability(self.model) if self.certificate.softmax else self.model

    def row(self, kind: type[Any]) -> tuple[Row, dict[str, Any]]:
        """The row of a hardened class, of those that the certificate is about, and its audited options.

        Raises:
            CertificateError: the certificate is about others.
        """
        own, options = _row_of(kind, self.certificate.method, self.path), self.certificate.options
        if "+" in self.certificate.method or isinstance(options.get(own.name), Mapping):
            options = options.get(own.name, NOTHING)  # of several that were released together
        return own, {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}

    def explainer(self, kind: type[Any]) -> Any:
        """The explainer of one hardened class, of those that the certificate is about."""
        row, options = self.row(kind)
        explainer = kind.catalogued()(self.forward, hardening=self.hardening).explainer
        _check_options(explainer._signature, row, options, self.path)
        own = self.certificate.output == "probability" and not self.certificate.softmax
        explainer._pinned = Pinned(row.name, self.model, self.digest, options, probabilities=own)
        return explainer


def load_audited(
    model: nn.Module | Any,
    path: str | Path,
    *,
    file: str | Path | None = None,
    key: bytes | str | Path | None = None,
    public_key: str | Path | bytes | None = None,
    uncertified: bool = False,
    kind: type[Any] | None = None,
) -> Audited:
    """A certificate that is about this model, and may be served; arguments as of `load_release`, and a hardened class
    whose method the certificate must be about.

    Raises:
        CertificateError, RefusedError, InputError: see `Hardened.from_certificate`.
    """
    from safexplain.verdict.certificate.read import load_certificate  # with SciPy's statistics: a second of importing

    certificate = load_certificate(path, public_key=public_key)
    certificate.need_model(path)
    if kind is None:
        rows_of(certificate.method, path)
    else:
        _row_of(kind, certificate.method, path)
    if certificate.verdict != "certified" and not uncertified:
        raise CertificateError(f"{path} certifies nothing. {certificate.sentence}")
    if certificate.judgement.policy.release == "prediction":
        raise CertificateError(f"{path} is about predictions alone, and certifies no explanation; audit what is served")
    if problems := compatibility(certificate.environment, certificate.libraries).problems:
        raise CertificateError(f"{path} cannot be served here: {' '.join(problems)}")
    model, digest = checked_model(model)
    hint = WITH_COLUMNS if isinstance(model, EstimatorModule) and model.columns is None else ""
    check_subject(certificate, digest, path, file, hint)
    if certificate.softmax or certificate.output == "logit":
        model = without_softmax(model)  # it is put over it where the audit did
    try:
        hardening = Hardening.from_json(certificate.hardening)
    except ConfigurationError as error:
        raise CertificateError(f"{path}: hardening: {error}") from None
    if hardening.noise is not None and certificate.noise_stream not in (None, hardening.noise.stream):
        raise CertificateError(
            f"{path} was made with the noise stream {certificate.noise_stream:.60}, and this version makes"
            f" {hardening.noise.stream}: other noise for the same query, so that a client of both could average it"
            " away. Serve with the version that audited, or audit again"
        )
    return Audited(str(path), certificate, model, digest, keyed(hardening, key))


def checked_model(model: Any) -> tuple[nn.Module, bytes]:
    """A model that may be served, and its digest; a scikit-learn classifier becomes a module.

    Raises:
        InputError: it is neither, or in training mode.
    """
    model = as_module(model)
    if not isinstance(model, nn.Module) or in_training_mode(model):
        what = "a model in training mode (call model.eval())" if isinstance(model, nn.Module) else type(model).__name__
        raise InputError(
            "expected the audited torch.nn.Module in evaluation mode, or the fitted scikit-learn classifier, got"
            f" {what}"
        )
    return model, model_digest(model)


def without_softmax(model: nn.Module) -> nn.Module:
    """The model under any `Probability`."""
    while isinstance(model, Probability):
        model = model.model
    return model


def rows_of(method: str, path: str | Path) -> list[Row]:
    """The rows that a certificate is about: one, or several that are released together ("IG+Saliency").

    Raises:
        CertificateError: one of them is none of the catalog.
    """
    rows = [row for name in method.split("+") if (row := CATALOG.get(name)) is not None]
    if len(rows) < len(method.split("+")):
        raise CertificateError(f"{path} is about {method!r:.60}, which is no method of the catalog of this version")
    return rows


def _row_of(kind: type[Any], method: str, path: str | Path) -> Row:
    """The row of a class, which must be one of those that the certificate is about."""
    rows = rows_of(method, path)
    own: Row | None = getattr(kind, "_row", None)
    if own is None or own not in rows:
        fitting = " or ".join(f"{row.hardened_name}.from_certificate" for row in rows)
        raise CertificateError(f"{path} is about {method}: use {fitting}, not {kind.__name__}")
    return own


def subject_of(digest: bytes, file: str | Path | None) -> dict[str, str]:
    """What a certificate calls a model with this digest, and its file: algorithm -> hexadecimal digest.

    Raises:
        InputError: the file cannot be read.
    """
    from safexplain.verdict.certificate.write import MODEL_DIGEST

    try:
        return {MODEL_DIGEST: digest.hex()} | ({} if file is None else {"sha256": file_sha256(file)})
    except OSError as error:
        raise InputError(f"the model file {file} cannot be read: {error.strerror or error}") from None


def check_subject(
    certificate: Certificate | GuaranteeCertificate,
    digest: bytes,
    path: str | Path,
    file: str | Path | None = None,
    hint: str = "",
) -> None:
    """Raise `CertificateError` unless a certificate is about the model with this digest and, if given, from this file;
    `hint` is what may help where it is about another model."""
    own = subject_of(digest, file)
    (kind, found), *_ = own.items()
    if found not in certificate.digests(kind):
        raise CertificateError(
            f"{path} is about another model ({', '.join(certificate.subject)}): expected the {kind}"
            f" {', '.join(sorted(d[:12] for d in certificate.digests(kind)))}..., got {found[:12]}...;"
            f" load the same file in the same way as when the certificate was written{hint}"
        )
    if file is None:
        return
    named = sorted({d["sha256"] for d in certificate.subject.values() if d[kind] == found and "sha256" in d})
    if not named:
        raise CertificateError(
            f"{path} names no SHA-256 of the model's file: leave out file=, or make the certificate from the file"
        )
    if own["sha256"] not in named:
        raise CertificateError(
            f"{file} is another file than the certificate's: expected the SHA-256 {', '.join(named)}, got"
            f" {own['sha256']}; load that file"
        )


def _check_options(signature: inspect.Signature, row: Row, options: Mapping[str, Any], path: str | Path) -> None:
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in options:
        if name in FREE or not (name in signature.parameters or name in row.derives or open_ended):
            raise CertificateError(f"{path}: {name!r:.60} is no option of {row.hardened_name}.attribute")


def keyed(hardening: Hardening, key: bytes | str | Path | None) -> Hardening:
    """With the service's own key, where the hardening has noise: given as bytes, in a file, or, where it is None, in
    the environment variable SAFEXPLAIN_NOISE_KEY.

    Raises:
        RefusedError: there is noise and no key, or a weak one.
        InputError: the file cannot be read.
    """
    if hardening.noise is None:
        return hardening
    if isinstance(key, bytes):
        return hardening.with_key(_strong(key, "the noise key"))
    if key is not None:
        try:
            read = Path(key).read_bytes().strip()
        except OSError as error:
            raise InputError(f"the noise key {key} cannot be read: {error.strerror or error}") from None
        return hardening.with_key(_strong(read, f"the noise key in {key}"))
    if not (key_text := os.environ.get(KEY_VARIABLE)):
        raise RefusedError(
            "no noise key: every restart and every replica would draw another, and averaging their answers removes the"
            f" noise. Set {KEY_VARIABLE}, or pass a file that holds it (openssl rand -hex 32)"
        )
    return hardening.with_key(_strong(key_text.encode(), f"the noise key in {KEY_VARIABLE}"))


def _strong(key: bytes, what: str) -> bytes:
    """A key that nobody finds by trying; an empty one is refused by `Hardening.with_key`.

    Raises:
        RefusedError: it is shorter than 16 bytes, or all but the same byte again and again.
    """
    if 0 < len(key) < SHORTEST_STRONG_KEY:
        raise RefusedError(
            f"{what} has {len(key)} bytes: expected {SHORTEST_STRONG_KEY} or more, lest it is found by trying;"
            " whoever knows it subtracts the noise (openssl rand -hex 32)"
        )
    if key and len(set(key)) < _FEWEST_DIFFERENT:
        raise RefusedError(
            f"{what} has only {len(set(key))} different bytes: expected a random one (openssl rand -hex 32)"
        )
    return key


def same(one: Any, other: Any) -> bool:
    """Equal, tensors element by element, sequences whatever their type."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
        return both and torch.equal(one.detach().cpu(), other.detach().cpu())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one is other or (type(one) is type(other) and one == other))


def shown(value: Any) -> str:
    """An argument in a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "not there" if value is inspect.Parameter.empty else f"{value!r:.80}"
