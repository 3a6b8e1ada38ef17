"""What a service serves: the release that a certificate is about, and the only way to it.

`load_release` checks the certificate as `from_certificate` does and makes every explainer that was audited, each with
its audited options. What comes out of a `Release` are arrays of released maps, or plain JSON values; nothing else that
an explainer knows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import digest, file_sha256, modules_of
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.aix360 import HardenedLimeTabular, HardenedProtoDash
from safexplain.explain.alibi import HardenedAnchorTabular
from safexplain.explain.alibi.explainers import HardenedAlibiKernelShap, HardenedTreeShap
from safexplain.explain.catalog import Row, find_row
from safexplain.explain.certified import (
    NOTHING,
    Pinned,
    check_unchanged,
    checked_model,
    keyed,
    load_audited,
    rows_of,
    without_softmax,
)
from safexplain.explain.hardened import Asked
from safexplain.explain.isolation import one_at_a_time, private_copy
from safexplain.explain.libraries import global_generators
from safexplain.explain.shap import HardenedKernelExplainer, HardenedLinearExplainer, HardenedTreeExplainer
from safexplain.explain.tables import MADE_WITH, OfTables, pin, pinned
from safexplain.explain.wrap import HARDENED, Catalogued
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key
from safexplain.outputs import EstimatorModule, Probability, are_probabilities
from safexplain.verdict.certificate.read import Certificate

__all__ = ["Explanation", "Release", "load_release"]

OF_ROWS: Mapping[str, type[OfTables]] = {
    kind._row.name: kind
    for kind in (
        *(HardenedAnchorTabular, HardenedProtoDash, HardenedLimeTabular, HardenedAlibiKernelShap),
        *(HardenedTreeShap, HardenedTreeExplainer, HardenedLinearExplainer, HardenedKernelExplainer),
    )
    if kind._row is not None
}
"""The methods of the catalog that are asked about rows of a table."""

_drawing = threading.Lock()
"""Held while the global generators stand where a question puts them."""

Explanation = NDArray[np.float32] | list[dict[str, Any]]
"""Of a batch: maps (n, ...), or one dictionary of plain JSON values for each example."""


@dataclass(frozen=True, eq=False)
class Release:
    """A model's explanations as they were audited, for a service; threads may share it.

    One method releases its maps as they are, or, as Anchors and ProtoDash, a dictionary for each example. Of several
    that are released together, each example has a dictionary method -> map (as nested lists) or dictionary.

    Args:
        certificate: what the audit found; None: there is none yet.
        method: name in the catalog, or several with + between them.
        digest: hexadecimal SHA-256 of the certificate's file; without one, of model, method, options and hardening.
        model_digest: of the explained model.
        uncertified: whether no audit has certified this release.
        shape: of one input, where the audit said so; None: it did not.
        mixes_batch: whether an example's answer depends on the others in its batch.
        hardening: what is done to each explanation.
        options: method -> the options that are held fast.
    """

    certificate: Certificate | None
    method: str
    digest: str
    model_digest: bytes
    uncertified: bool
    shape: tuple[int, ...] | None
    mixes_batch: bool
    hardening: Hardening
    options: Mapping[str, Mapping[str, Any]]
    _model: nn.Module
    _answers: Mapping[str, Callable[[Tensor, Tensor], Explanation]]
    _alone: tuple[nn.Module, ...] = ()

    def check(self) -> None:
        """Raise RefusedError unless the model is still the audited one; `explain` looks by itself."""
        check_unchanged(self._model, self.model_digest)

    def predict(self, x: Tensor) -> Tensor:
        """What the audited model returns, (n, classes), on its device.

        Args:
            x: (n, ...) inputs.

        Raises:
            RefusedError: it returns something else.
            InputError: its scores of an input are NaN.
        """
        with torch.no_grad(), one_at_a_time(self._alone) if self._alone else nullcontext():
            scores: Tensor = self._model(x.detach().clone().to(_place(self._model, x)))  # some write into their input
        if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(x) or not scores.shape[1]:
            got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise RefusedError(f"expected a model that returns ({len(x)}, classes) scores of these inputs, got {got}")
        if bool(scores.isnan().any()):
            raise InputError("the model's scores of an input are NaN, so that it predicts no class")
        return scores.detach()

    def explain(self, x: Tensor, target: Tensor) -> Explanation:
        """The released explanations, with the audited options.

        Args:
            x: (n, ...) inputs.
            target: (n,) the explained class of each; the audit explained the predicted one. Methods that explain no
                class, or always the predicted one, do not look at it.

        Returns:
            (n, ...) float32 maps, or n dictionaries of plain JSON values.

        Raises:
            RefusedError: the model is no longer the audited one.
        """
        x = x.detach().to(_place(self._model, x))
        answers = {name: answer(x, target.to(x.device)) for name, answer in self._answers.items()}
        if len(answers) == 1:
            return next(iter(answers.values()))
        plain = {name: a.tolist() if isinstance(a, np.ndarray) else a for name, a in answers.items()}
        return [{name: each[i] for name, each in plain.items()} for i in range(len(x))]


def load_release(
    model: nn.Module | Any,
    path: str | Path | None,
    *,
    file: str | Path | None = None,
    key: bytes | str | Path | None = None,
    public_key: str | Path | bytes | None = None,
    public: Any = None,
    uncertified: bool = False,
    method: str | None = None,
    hardening: Hardening | None = None,
    options: Mapping[str, Any] | None = None,
    output: Literal["probability", "logit"] = "probability",
    shape: Sequence[int] | None = None,
) -> Release:
    """The release that a certificate is about.

    Args:
        model: the audited model, in evaluation mode, or the fitted scikit-learn classifier.
        path: the certificate of an audit, signed or not; a guarantee by construction is loaded by `PublicExplainer` and
            `StudentExplainer`, which need more than the model. None: there is none yet, and `method` and `hardening`
            say what is served; only with `uncertified`.
        file: the model's file. Given, its SHA-256 must be the one in the certificate.
        key: the noise key itself, as bytes, or the path of the file that holds it. None: the environment variable
            SAFEXPLAIN_NOISE_KEY. Where the hardening has no noise, no key is asked for or read.
        public_key: ed25519, PEM: path or bytes. Given, the certificate must be signed with its private key.
        public: (rows, ...) public rows, for methods that need some.
        uncertified: accept a certificate whose verdict is not "certified", or none at all; all else is checked.
        method: without a certificate, the explainer's name in the catalog.
        hardening: without a certificate, what is done to each explanation.
        options: without a certificate, of the explainer; the plain choice where None.
        output: without a certificate, what is explained: the probability, by a softmax where the model returns logits
            (which is looked at on numbers drawn at random where `shape` is given, and taken for granted where not), or
            what the model returns.
        shape: without a certificate, of one input.

    Raises:
        CertificateError: the certificate is damaged, altered, unsigned, not "certified", or of another model, file,
            kind or version.
        RefusedError: there is noise and no key or a weak one.
        InputError: a file cannot be read, or the model cannot be used.
        ConfigurationError: without a certificate, something is missing; with one, something is given that it says.
    """
    if path is None:
        if not uncertified or method is None or hardening is None:
            raise ConfigurationError(
                "expected a certificate; to serve without one, say so: uncertified=True, explainer=..., hardening=..."
            )
        return _without_certificate(model, method, keyed(hardening, key), options or NOTHING, output, shape, public)
    given = {"explainer": method, "hardening": hardening, "options": options, "shape": shape}
    if said := [name for name, value in given.items() if value is not None]:
        raise ConfigurationError(f"{', '.join(said)}: the certificate says that; leave it out")
    before = file_sha256(path) if Path(path).is_file() else ""
    audited = load_audited(model, path, file=file, key=key, public_key=public_key, uncertified=uncertified)
    if file_sha256(path) != before:
        raise CertificateError(f"{path} was changed while it was read; load it again")
    certificate = audited.certificate
    rows = rows_of(certificate.method, path)
    made = {
        row.name: pinned(OF_ROWS[row.name], audited, _of_need(row, public, certificate), {})
        if row.name in OF_ROWS
        else audited.explainer(HARDENED[row.name])
        for row in rows
    }
    return Release(
        certificate,
        certificate.method,
        before,
        audited.digest,
        certificate.verdict != "certified",
        certificate.shape,
        any(row.mixes_batch for row in rows),
        audited.hardening,
        {name: explainer._pinned.options for name, explainer in made.items()},
        audited.model,
        {row.name: _asked(row, made[row.name]) for row in rows},
        _alone(rows, audited.model),
    )


def _without_certificate(
    model: nn.Module,
    method: str,
    hardening: Hardening,
    options: Mapping[str, Any],
    output: str,
    shape: Sequence[int] | None,
    public: Any,
) -> Release:
    """What a service runs before its audit."""
    row = find_row(method)
    model, named = checked_model(model)
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"output is probability or logit, got {output!r}")
    model = without_softmax(model)
    of_estimator = isinstance(model, EstimatorModule)
    softmax = output == "probability" and not (of_estimator or _gives_probabilities(model, shape))
    forward = Probability(model) if softmax else model
    explainer: Any
    if row.name in OF_ROWS:
        given = {name: value for name, value in options.items() if name != MADE_WITH}
        of = OF_ROWS[row.name].catalogued(public, **options.get(MADE_WITH, {}))
        explainer = pin(of, forward, model, named, hardening, given)
        options = {**given, MADE_WITH: of.made_with}
    else:
        explainer = Catalogued(row, HARDENED[row.name])(forward, hardening=hardening).explainer
        explainer._pinned = Pinned(row.name, model, named, dict(options))
    return Release(
        None,
        row.name,
        digest(row.name, sorted(options.items()), hardening.to_json(), output, named),
        named,
        True,
        None if shape is None else tuple(shape),
        row.mixes_batch,
        hardening,
        {row.name: dict(options)},
        model,
        {row.name: _asked(row, explainer)},
        _alone([row], model),
    )


def _of_need(row: Row, public: Any, certificate: Certificate) -> Any:
    """The background, where the audit had one: a service may have public rows for other ends."""
    options = certificate.options.get(row.name, certificate.options)
    made = options.get(MADE_WITH) if isinstance(options, Mapping) else None
    return public if isinstance(made, Mapping) and "public" in made else None


def _asked(row: Row, explainer: Any) -> Callable[[Tensor, Tensor], Explanation]:
    """How a service asks a hardened class that has its certificate."""
    if row.name in OF_ROWS:
        return partial(_of_rows, explainer)

    def maps(x: Tensor, target: Tensor) -> NDArray[np.float32]:
        x = x.clone().requires_grad_(row.leaf_inputs and x.is_floating_point())
        answer = explainer.attribute(x, **({"target": target} if row.target else {}))
        if not isinstance(answer, Tensor):
            raise RefusedError(f"{row.name} gave {type(answer).__name__} where the audit had one tensor")
        released: NDArray[np.float32] = answer.detach().to("cpu", torch.float32).numpy()
        return released

    def drawn(x: Tensor, target: Tensor) -> NDArray[np.float32]:
        """One by one, each with the random numbers of its question, so that asked again it gets the same answer."""
        if not len(x):
            return maps(x, target)
        noise = explainer.hardening.noise
        key = b"" if noise is None else resolve_key(noise.key)
        seeds = query_seeds(key, inputs=x.detach().cpu(), method=f"{row.name} samples")
        with _drawing:
            answers = []
            for i, seed in enumerate(seeds):
                with global_generators((x,), seed):
                    answers.append(maps(x[i : i + 1], target[i : i + 1]))
        return np.concatenate(answers)

    return drawn if row.stochastic and not row.mixes_batch else maps


def _of_rows(explainer: OfTables, x: Tensor, target: Tensor) -> Explanation:
    """What an explainer of rows tells about each row."""
    held = explainer._pinned
    assert held is not None
    check_unchanged(held.model, held.digest)
    numbers: NDArray[np.float32] = Asked(explainer).attribute(x, target=target, **held.options).cpu().numpy()
    return [explainer._told(one) for one in numbers] if explainer._tells else numbers


def _alone(rows: Sequence[Row], model: nn.Module) -> tuple[nn.Module, ...]:
    """The modules that plain predictions must not run on while an explanation does: those with hooks of their own, and
    no copy to set them on."""
    if not any(row.hooks or row.writes for row in rows):
        return ()
    own = modules_of(model)
    return own if private_copy({"forward_func": model}, own, share_parameters=True) is None else ()


def _place(model: nn.Module, x: Tensor) -> torch.device:
    """Where a model is."""
    return next((p.device for p in model.parameters()), x.device)


def _gives_probabilities(model: nn.Module, shape: Sequence[int] | None) -> bool:
    """Whether a model's outputs are probabilities already, as far as that can be seen."""
    if shape is None:
        return False
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            return are_probabilities(model(x.to(_place(model, x))))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"the model fails on inputs of shape {tuple(shape)}: {str(error).splitlines()[0]:.120}"
        ) from None
