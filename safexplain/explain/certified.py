"""The explainer that a certificate is about, and no other: how production loads what was audited.

Class, model, hardening, options and versions are the audited ones, or nothing is built. The noise key is the
service's own: the audit had another, and no certificate holds one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import captum
import torch
from torch import Tensor, nn

from safexplain._digest import model_digest
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.captum.layers import default_layer
from safexplain.explain.catalog import CATALOG
from safexplain.explain.row import Row
from safexplain.hardening.clips import RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import KEY_VARIABLE
from safexplain.outputs import Probability
from safexplain.verdict.certificate.read import load_certificate
from safexplain.verdict.certificate.write import MODEL_DIGEST

__all__ = ["Pinned", "load_certified"]

FREE = frozenset({"inputs", "target"})
"""Arguments of `attribute` that are the client's to choose."""

_SUPERPIXELS = ("n_segments", "compactness")


@dataclass(frozen=True, eq=False)
class Pinned:
    """What a certified explainer holds fast from call to call.

    Args:
        method: name in the catalog.
        model: the audited model.
        digest: its digest when the certificate was loaded.
        options: that were audited, as `Row.options` takes them.
    """

    method: str
    model: nn.Module
    digest: bytes
    options: Mapping[str, Any]

    def complete(self, signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call of `attribute`, by name: what was given, and the audited options.

        Args:
            signature: of `attribute`.
            given: arguments by name, without self and without defaults.

        Raises:
            RefusedError: an option differs from the audited one, or the model is no longer the audited one.
            InputError: the inputs are not one tensor.
        """
        inputs = given.get("inputs")
        if not isinstance(inputs, Tensor) or inputs.dim() == 0:
            raise InputError(f"a certified explainer takes one tensor (batch, ...), got {type(inputs).__name__}")
        if self.model.training or model_digest(self.model) != self.digest:
            raise RefusedError(
                "the model is no longer the one that the certificate was loaded for: its parameters changed, or it is"
                " in training mode. Load the certificate again, with the audited model in evaluation mode"
            )
        like = inputs.detach() if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:])
        audited = CATALOG[self.method].options(like, self.options)
        for name in given.keys() - FREE:
            default = signature.parameters[name].default if name in signature.parameters else inspect.Parameter.empty
            value, expected = given[name], audited.get(name, default)
            if not _same(value, expected):
                raise RefusedError(
                    f"{name} is {_shown(expected)} in the certificate, got {_shown(value)}: another option gives"
                    f" explanations that were not audited. Leave {name} out, or audit with this option"
                )
        return {**given, **audited}


def load_certified(
    kind: type[Any],
    model: nn.Module,
    path: str | Path,
    *,
    key_file: str | Path | None,
    public_key: str | Path | bytes | None,
    layer: nn.Module | None,
    arguments: Mapping[str, Any],
) -> Any:
    """See `Hardened.from_certificate`."""
    certificate = load_certificate(path, public_key=public_key)
    row = _row(kind, certificate.method, path)
    if certificate.verdict != "certified":
        raise CertificateError(f"{path} certifies nothing. {certificate.judgement.sentence}")
    _check_versions(certificate.environment, path)
    if not isinstance(model, nn.Module) or model.training:
        what = "a model in training mode (call model.eval())" if isinstance(model, nn.Module) else type(model).__name__
        raise InputError(f"expected the audited torch.nn.Module in evaluation mode, got {what}")
    digest = model_digest(model)
    if digest.hex() not in certificate.digests(MODEL_DIGEST):
        names = ", ".join(certificate.subject)
        raise CertificateError(
            f"{path} is about another model ({names}): expected the {MODEL_DIGEST}"
            f" {', '.join(sorted(d[:12] for d in certificate.digests(MODEL_DIGEST)))}..., got {digest.hex()[:12]}...;"
            " load the same file in the same way as for the audit"
        )
    try:
        hardening = Hardening.from_json(certificate.hardening)
    except ConfigurationError as error:
        raise CertificateError(f"{path}: hardening: {error}") from None
    forward = Probability(model) if certificate.softmax else model
    explainer = kind(*_constructor(row, forward, layer, arguments), hardening=_keyed(hardening, key_file))
    _check_options(explainer._signature, row, certificate.options, path)
    explainer._pinned = Pinned(row.name, model, digest, certificate.options)
    return explainer


def _row(kind: type[Any], method: str, path: str | Path) -> Row:
    row = CATALOG.get(method)
    if row is None or row.entry != "attribute":
        raise CertificateError(f"{path} is about {method!r:.60}, which is no map of the catalog of this version")
    own = getattr(kind, "_row", None)
    if own != row:
        raise CertificateError(
            f"{path} is about {method}: use {row.hardened_name}.from_certificate, not {kind.__name__}"
        )
    return row


def _check_versions(audited: Mapping[str, str], path: str | Path) -> None:
    for name, here in (("safexplain", version("safexplain")), ("captum", captum.__version__)):
        if audited[name] != here:
            raise CertificateError(
                f"{path} was made with {name} {audited[name]:.40}, and this is {here}: install that version, or audit"
                " again"
            )


def _constructor(
    row: Row, forward: nn.Module, layer: nn.Module | None, arguments: Mapping[str, Any]
) -> tuple[nn.Module, ...]:
    """What the audit gave the constructor: the model, and its default layer where the method has one."""
    if row.of == "input":
        if layer is not None:
            raise RefusedError(f"{row.name} explains the input and has no layer")
        made: tuple[nn.Module, ...] = (forward,)
    else:
        made = (forward, default_layer(forward))
        if layer is not None and layer is not made[1]:
            raise RefusedError(f"the certificate is about the layer {type(made[1]).__name__} that default_layer gives")
    known = inspect.signature(row.native.__init__).parameters
    for name, value in arguments.items():
        if name not in known or not _same(value, known[name].default):
            raise RefusedError(
                f"{row.name} was audited as its constructor makes it; {name}={_shown(value)} makes another explainer"
            )
    return made


def _check_options(signature: inspect.Signature, row: Row, options: Mapping[str, Any], path: str | Path) -> None:
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    slic = {name for name in _SUPERPIXELS if name in row.search_space}
    for name in options:
        if name in FREE or not (name in signature.parameters or name in slic or open_ended):
            raise CertificateError(f"{path}: {name!r:.60} is no option of {row.hardened_name}.attribute")


def _keyed(hardening: Hardening, key_file: str | Path | None) -> Hardening:
    """With the service's own key, where the hardening draws random numbers."""
    if hardening.noise is None and not isinstance(hardening.clip, UnitNorm | RankNorm):
        return hardening
    if key_file is not None:
        try:
            key = Path(key_file).read_bytes().strip()
        except OSError as error:
            raise InputError(f"the noise key {key_file} cannot be read: {error.strerror or error}") from None
        if hardening.noise is None:
            raise RefusedError(f"a hardening without noise carries no key; put it into {KEY_VARIABLE}")
        return hardening.with_key(key)
    if not (key_text := os.environ.get(KEY_VARIABLE)):
        raise RefusedError(
            "no noise key: every restart and every replica would draw another, and averaging their answers removes the"
            f" noise. Set {KEY_VARIABLE}, or pass key_file= (openssl rand -hex 32)"
        )
    return hardening.with_key(key_text.encode())


def _same(one: Any, other: Any) -> bool:
    """Equal, tensors element by element, sequences whatever their type."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
        return both and torch.equal(one.detach().cpu(), other.detach().cpu())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one is other or (type(one) is type(other) and one == other))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "not there" if value is inspect.Parameter.empty else f"{value!r:.80}"
