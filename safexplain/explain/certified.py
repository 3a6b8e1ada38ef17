"""The explainer that a certificate is about, with the service's own noise key: class, model, hardening, options and the
versions of libraries must be the audited ones, or nothing is built."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import file_sha256, model_digest
from safexplain._versions import compatibility
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.captum import in_training_mode
from safexplain.explain.catalog import CATALOG, Row
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import KEY_VARIABLE, SHORTEST_STRONG_KEY
from safexplain.outputs import Probability, are_probabilities, as_module

if TYPE_CHECKING:
    from safexplain.verdict.certificate.read import Certificate, GuaranteeCertificate

CLIENT_ARGUMENTS = frozenset({"inputs", "target"})
"""Arguments of `attribute` that a client may choose."""

_FEWEST_DIFFERENT = 5
"""Least distinct bytes of a key; 16 random bytes, or 32 random hexadecimal digits, have fewer once in 1e9."""


def at(model: nn.Module, x: Tensor) -> Tensor:
    """Inputs on the model's device, detached."""
    return x.detach().to(next((p.device for p in model.parameters()), x.device))


@dataclass(frozen=True, eq=False)
class Predict:
    """A model, or its probabilities, as a function of arrays: (n, d) -> (n, classes) float64."""

    forward: nn.Module

    def __call__(self, rows: Any) -> NDArray[Any]:
        """In float32."""
        x = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))
        with torch.no_grad():
            out: Tensor = self.forward(at(self.forward, x))
        return np.asarray(out.double().cpu().numpy())


@dataclass(eq=False)
class Pinned:
    """The audited state of a certified explainer: `digest` of the model when it was loaded, `options` as `Row.options`
    takes them, and whether outputs must be probabilities, which the first call checks."""

    method: str
    model: nn.Module
    digest: bytes
    options: Mapping[str, Any]
    predict: Predict
    probabilities: bool = False

    def complete(
        self, signature: inspect.Signature, given: Mapping[str, Any], free: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """The given arguments of a call of the native entry, completed by the audited options. `free` are those that
        the client may choose; None: `CLIENT_ARGUMENTS`. RefusedError: another option, or the model has changed.
        InputError: inputs that are not one tensor."""
        check_unchanged(self.model, self.digest)
        audited = self._of_inputs(given.get("inputs")) if free is None else self.options
        options = {k: v for k, v in given.items() if k not in (CLIENT_ARGUMENTS if free is None else free)}
        defaults = {p.name: p.default for p in signature.parameters.values()}
        check_as_audited(options, {**dict.fromkeys(options, inspect.Parameter.empty), **defaults, **audited})
        return {**given, **audited}

    def classes_of(self, rows: Any) -> list[int]:
        """The predicted class of each of (n, d) rows."""
        return [int(c) for c in self.predict(rows).argmax(1)]

    def _of_inputs(self, inputs: Any) -> dict[str, Any]:
        if not isinstance(inputs, Tensor) or inputs.dim() == 0:
            raise InputError(f"expected one tensor (batch, ...), as was audited, got {type(inputs).__name__}")
        like = inputs.detach() if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:])
        if self.probabilities and len(inputs):
            with torch.no_grad():
                if not are_probabilities(self.model(like[:1])):
                    raise RefusedError(
                        "expected probabilities, which the audited model returned, got other outputs: pass the model"
                        " with its softmax, as Probability(model)"
                    )
            self.probabilities = False
        return CATALOG[self.method].options(like, self.options)


def pin(
    made: Any, forward: nn.Module, model: nn.Module, digest: bytes, hardening: Hardening, options: Mapping[str, Any]
) -> Any:
    """The explainer that the factory `made` makes of the explained output `forward` of a model, pinned."""
    explainer = made(forward, hardening=hardening).explainer
    explainer._pinned = Pinned(made.method, model, digest, options, Predict(forward))
    return explainer


def check_unchanged(model: nn.Module, digest: bytes) -> None:
    """Raise RefusedError unless a model still has this digest, and is in evaluation mode."""
    if in_training_mode(model) or model_digest(model) != digest:
        raise RefusedError("the model has changed since it was loaded, or is in training mode: load it again")


def check_as_audited(given: Mapping[str, Any], audited: Mapping[str, Any]) -> None:
    """Raise RefusedError if a given argument differs from the audited one."""
    for name, value in given.items():
        if not _is_equal(value, expected := audited.get(name)):
            raise RefusedError(
                f"{name}: expected {_brief(expected)}, as in the certificate, got {_brief(value)}, which was not"
                f" audited. Leave {name} out, or audit with it"
            )


@dataclass(frozen=True, eq=False)
class Audited:
    """A certificate, the `rows` of its methods, the model that it is about, without a `Probability` that the audit
    added, and its hardening, with the service's key if it has noise."""

    path: str
    certificate: Certificate
    rows: tuple[Row, ...]
    model: nn.Module
    digest: bytes
    hardening: Hardening

    def options(self, row: Row) -> dict[str, Any]:
        """The audited options of one of the methods."""
        options = self.certificate.options
        if len(self.rows) > 1 or isinstance(options.get(row.name), Mapping):
            options = options.get(row.name, {})
        return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}

    def explainer(self, kind: type[Any]) -> Any:
        """The explainer of a hardened Captum class."""
        row, signature = kind._row, kind._signature
        options, parameters = self.options(row), signature.parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            check_options(self.path, row, options, (signature.parameters.keys() | row.derives) - CLIENT_ARGUMENTS)
        explainer = self.pin(kind.catalogued(), options)
        explainer._pinned.probabilities = self.certificate.output == "probability" and not self.certificate.softmax
        return explainer

    def pin(self, made: Any, options: Mapping[str, Any]) -> Any:
        """The explainer that a factory makes of the explained output: the model's, or its probabilities."""
        forward = Probability(self.model) if self.certificate.softmax else self.model
        return pin(made, forward, self.model, self.digest, self.hardening, options)


def check_options(path: str, row: Row, options: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    """Raise CertificateError if a certificate names an option that the method does not have."""
    if unknown := options.keys() - known:
        raise CertificateError(f"{path}: {min(unknown)!r:.60} is not an option of {row.hardened_name}")


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
    """Load a certificate that is about this model and may be served; arguments are as of `load_release`, and `kind` is
    a hardened class whose method it must be about."""
    from safexplain.verdict.certificate.read import load_certificate  # with SciPy's statistics: a second of importing

    certificate = load_certificate(path, public_key=public_key)
    certificate.need_model(path)
    method = certificate.method
    if not all(name in CATALOG for name in method.split("+")):
        raise CertificateError(f"{path} is about {method!r:.60}, which is not in the catalog of this version")
    rows = tuple(CATALOG[name] for name in method.split("+"))
    if kind is not None and getattr(kind, "_row", None) not in rows:
        fitting = " or ".join(f"{row.hardened_name}.from_certificate" for row in rows)
        raise CertificateError(f"{path} is about {method}: use {fitting}, not {kind.__name__}")
    if certificate.verdict != "certified" and not uncertified:
        raise CertificateError(f"{path} certifies nothing. {certificate.sentence}")
    if certificate.judgement.policy.release == "prediction":
        raise CertificateError(f"{path} is about predictions alone, and certifies no explanation; audit what is served")
    if problems := compatibility(certificate.environment, certificate.libraries).problems:
        raise CertificateError(f"{path} cannot be served here: {' '.join(problems)}")
    model, digest = checked_model(model)
    check_subject(certificate, digest, path, file)
    while isinstance(model, Probability) and (certificate.softmax or certificate.output == "logit"):
        model = model.model  # it is put over it where the audit did
    try:
        hardening = Hardening.from_json(certificate.hardening)
    except ConfigurationError as error:
        raise CertificateError(f"{path}: hardening: {error}") from None
    if hardening.noise is not None and certificate.noise_stream not in (None, hardening.noise.stream):
        raise CertificateError(
            f"{path}: expected the noise stream {hardening.noise.stream} of this version, got"
            f" {certificate.noise_stream:.60}: a client of both could average the noise away. Serve with the version"
            " that audited, or audit again"
        )
    return Audited(str(path), certificate, rows, model, digest, with_service_key(hardening, key))


def checked_model(model: Any) -> tuple[nn.Module, bytes]:
    """A model that may be served, as a module, and its digest; InputError: neither a module nor a scikit-learn
    classifier, or in training mode."""
    model = as_module(model)
    if not isinstance(model, nn.Module) or in_training_mode(model):
        what = "a model in training mode (call model.eval())" if isinstance(model, nn.Module) else type(model).__name__
        raise InputError(
            "expected the audited torch.nn.Module in evaluation mode, or the fitted scikit-learn classifier, got"
            f" {what}"
        )
    return model, model_digest(model)


def subject_of(digest: bytes, file: str | Path | None) -> dict[str, str]:
    """How a certificate names a model and its file: algorithm -> digest; InputError: the file cannot be read."""
    from safexplain.verdict.certificate.write import MODEL_DIGEST

    try:
        return {MODEL_DIGEST: digest.hex()} | ({} if file is None else {"sha256": file_sha256(file)})
    except OSError as error:
        raise InputError(f"the model file {file} cannot be read: {error.strerror or error}") from None


def check_subject(
    certificate: Certificate | GuaranteeCertificate, digest: bytes, path: str | Path, file: str | Path | None
) -> None:
    """Raise CertificateError unless a certificate is about the model with this digest, and this file if given."""
    own = subject_of(digest, file)
    (kind, found), *_ = own.items()
    if found not in certificate.digests(kind):
        raise CertificateError(
            f"{path} is about another model ({', '.join(certificate.subject)}): expected the {kind}"
            f" {', '.join(sorted(d[:12] for d in certificate.digests(kind)))}..., got {found[:12]}...; load the file as"
            " for the audit. If the audit wrote columns.json, the model is"
            ' safexplain.outputs.EstimatorModule(model, columns=safexplain.columns.Columns.read("columns.json"))'
        )
    named = sorted({d["sha256"] for d in certificate.subject.values() if d[kind] == found and "sha256" in d})
    if file is not None and own["sha256"] not in named:
        raise CertificateError(
            f"{file}: expected the file in the certificate, with SHA-256 {', '.join(named)}, got {own['sha256']}; load"
            " that file"
            if named
            else f"{path} names no SHA-256 of the model's file: leave out file=, or make the certificate from the file"
        )


def with_service_key(hardening: Hardening, key: bytes | str | Path | None) -> Hardening:
    """The hardening with the service's own key, if it has noise; key as of `load_release`. RefusedError: no key or one
    that can be guessed; InputError: its file cannot be read."""
    if hardening.noise is None:
        return hardening
    what = "the noise key"
    if key is None:
        what, key = f"the noise key in {KEY_VARIABLE}", os.environ.get(KEY_VARIABLE, "").encode()
        if not key:
            raise RefusedError(
                "expected a noise key, found none: every replica would draw its own, and averaging their answers"
                f" removes the noise. Set {KEY_VARIABLE}, or pass a file that holds it (openssl rand -hex 32)"
            )
    elif not isinstance(key, bytes):
        what = f"the noise key in {key}"
        try:
            key = Path(key).read_bytes().strip()
        except OSError as error:
            raise InputError(f"{what} cannot be read: {error.strerror or error}") from None
    if key and (len(key) < SHORTEST_STRONG_KEY or len(set(key)) < _FEWEST_DIFFERENT):
        raise RefusedError(
            f"{what}: expected at least {SHORTEST_STRONG_KEY} random bytes, got {len(key)}, {len(set(key))} of them"
            " distinct: it can be guessed, and the noise subtracted. Make one by openssl rand -hex 32"
        )
    return hardening.with_key(key)


def _is_equal(one: Any, other: Any) -> bool:
    """Of tensors element by element, of sequences whatever their type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.detach().cpu(), other.detach().cpu())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return one is other or (type(one) is type(other) and bool(one == other))


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is inspect.Parameter.empty else f"{value!r:.80}"
