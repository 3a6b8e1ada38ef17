"""What a service releases: the explanations that a certificate is about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import digest, file_sha256, modules_of
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.aix360 import HardenedLimeTabular, HardenedProtoDash
from safexplain.explain.alibi import HardenedAlibiKernelShap, HardenedAnchorTabular, HardenedTreeShap
from safexplain.explain.captum import is_estimator
from safexplain.explain.catalog import CATALOG, Row, find_row
from safexplain.explain.certified import at, check_unchanged, checked_model, load_audited, pin, with_service_key
from safexplain.explain.hardened import HARDENED
from safexplain.explain.isolation import one_at_a_time, private_copy
from safexplain.explain.libraries import global_generators
from safexplain.explain.shap import HardenedKernelExplainer, HardenedLinearExplainer, HardenedTreeExplainer
from safexplain.explain.tables import TableExplainer, load_pinned
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key
from safexplain.outputs import EstimatorModule, Probability, are_probabilities, as_module
from safexplain.verdict.certificate.read import Certificate

TABLE_METHODS: Mapping[str, type[TableExplainer]] = {
    kind._row.name: kind
    for kind in (
        *(HardenedAnchorTabular, HardenedProtoDash, HardenedLimeTabular, HardenedAlibiKernelShap),
        *(HardenedTreeShap, HardenedTreeExplainer, HardenedLinearExplainer, HardenedKernelExplainer),
    )
    if kind._row is not None
}
"""Name of a method that explains rows of a table -> its hardened class."""

_drawing = threading.Lock()

Explanation = NDArray[np.float32] | list[dict[str, Any]]
"""Maps (n, ...), or a dictionary of plain JSON values for each example."""


@dataclass(frozen=True, eq=False)
class Release:
    """A model's explanations as they were audited, for a service; threads may share it.

    Args:
        certificate: of the audit; None: there is none yet.
        method: name in the catalog, or several joined by "+".
        digest: hexadecimal SHA-256 of the certificate's file; without one, of model, method, background and hardening.
        model_digest: of the explained model.
        uncertified: whether no audit has certified it.
        shape: of one input; None: not recorded.
        mixes_batch: whether an example's answer depends on the others in its batch.
        hardening: of each explanation.
    """

    certificate: Certificate | None
    method: str
    digest: str
    model_digest: bytes
    uncertified: bool
    shape: tuple[int, ...] | None
    mixes_batch: bool
    hardening: Hardening
    _model: nn.Module
    _answers: Mapping[str, Callable[[Tensor, Tensor], Explanation]]
    _alone: tuple[nn.Module, ...]
    """Modules that cannot be copied: predictions must wait for explanations that set hooks on them."""

    def check(self) -> None:
        """Raise RefusedError unless the model is still the audited one; `explain` checks it too."""
        check_unchanged(self._model, self.model_digest)

    def predict(self, x: Tensor) -> Tensor:
        """What the audited model returns for (n, ...) inputs, (n, classes), on its device.

        Raises:
            RefusedError: the model returns another shape.
            InputError: NaN among its scores of an input.
        """
        with torch.no_grad(), one_at_a_time(self._alone) if self._alone else nullcontext():
            scores: Tensor = self._model(at(self._model, x).clone())  # some write into their input
        if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(x) or not scores.shape[1]:
            got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise RefusedError(f"expected scores of shape ({len(x)}, classes) from the model, got {got}")
        if bool(scores.isnan().any()):
            raise InputError("the model's scores of an input are NaN, so that it predicts no class")
        return scores.detach()

    def explain(self, x: Tensor, target: Tensor) -> Explanation:
        """The released explanations of (n, ...) inputs, with the audited options.

        Args:
            x: the inputs.
            target: (n,) the explained class of each; the audit explained the predicted one.

        Returns:
            (n, ...) float32 maps; of Anchors and ProtoDash n dictionaries of plain JSON values; of several methods n
                dictionaries method -> map (as nested lists) or dictionary.

        Raises:
            RefusedError: the model has changed.
        """
        x = at(self._model, x)
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
    shape: Sequence[int] | None = None,
) -> Release:
    """The release that a certificate is about; `file` and `public_key` are as of `Hardened.from_certificate`.

    Args:
        model: the model.
        path: of the certificate; None: there is none yet, which needs `uncertified=True`.
        file: of the model.
        key: noise key, as bytes or the path of its file; None: the environment variable SAFEXPLAIN_NOISE_KEY.
        public_key: of the signature.
        public: (rows, ...) public rows, for methods that need a background.
        uncertified: accept other verdicts than "certified"; everything else is still checked.
        method: without a certificate, the explainer's name in the catalog; it runs with default options.
        hardening: without a certificate; None: `default_hardening`.
        shape: without a certificate, of one input, to test whether the model returns probabilities; None: those of a
            softmax are explained.

    Raises:
        CertificateError: as of `Hardened.from_certificate`.
        RefusedError: there is noise, and no key or a weak one.
        InputError: a file cannot be read, or the model cannot be used.
        ConfigurationError: something is missing without a certificate, or given although the certificate states it.
    """
    certificate = None
    if path is None:
        if not uncertified or method is None:
            raise ConfigurationError(
                "expected a certificate; to serve without one, pass uncertified=True and explainer="
            )
        hardening = hardening or default_hardening([find_row(method)], model)
        explainer, named = _before_audit(model, method, with_service_key(hardening, key), shape, public)
        explainers = [explainer]
    else:
        given = {"explainer": method, "hardening": hardening, "shape": shape}
        if repeated := [name for name, value in given.items() if value is not None]:
            raise ConfigurationError(f"{', '.join(repeated)}: stated by the certificate; leave it out")
        named = file_sha256(path) if Path(path).is_file() else ""
        audited = load_audited(model, path, file=file, key=key, public_key=public_key, uncertified=uncertified)
        if file_sha256(path) != named:
            raise CertificateError(f"{path} changed while it was read; load it again")
        certificate = audited.certificate
        shape, uncertified = certificate.shape, certificate.verdict != "certified"
        explainers = [
            load_pinned(TABLE_METHODS[row.name], audited, public)
            if row.name in TABLE_METHODS
            else audited.explainer(HARDENED[row.name])
            for row in audited.rows
        ]
    pinned = explainers[0]._pinned
    rows = [CATALOG[explainer._pinned.method] for explainer in explainers]
    exclusive = modules_of(pinned.model) if any(row.hooks or row.writes for row in rows) else ()
    if exclusive and private_copy({"forward_func": pinned.model}, exclusive, share_parameters=True) is not None:
        exclusive = ()
    return Release(
        certificate,
        "+".join(row.name for row in rows),
        named,
        pinned.digest,
        uncertified,
        None if shape is None else tuple(shape),
        any(row.mixes_batch for row in rows),
        explainers[0].hardening,
        pinned.model,
        {row.name: _answer_function(explainer) for row, explainer in zip(rows, explainers, strict=True)},
        exclusive,
    )


def default_hardening(rows: Sequence[Row], model: Any) -> Hardening:
    """The recommended hardening of methods, ordered if all explain tables or the model is a scikit-learn classifier."""
    table = is_estimator(as_module(model))
    return Hardening.recommended(
        ordered=all(not TABLE_METHODS[r.name]._has_answers if r.name in TABLE_METHODS else table for r in rows)
    )


def _before_audit(
    model: Any, method: str, hardening: Hardening, shape: Sequence[int] | None, public: Any
) -> tuple[Any, str]:
    """The explainer that a service runs before its audit, and the digest of the release."""
    row = find_row(method)
    model, named = checked_model(model)
    while isinstance(model, Probability):
        model = model.model
    forward = model if isinstance(model, EstimatorModule) or _gives_probabilities(model, shape) else Probability(model)
    made: Any = (
        TABLE_METHODS[row.name].catalogued(public) if row.name in TABLE_METHODS else HARDENED[row.name].catalogued()
    )
    stated = sorted(made.made_with.items()) if row.name in TABLE_METHODS else []
    return pin(made, forward, model, named, hardening, {}), digest(row.name, stated, hardening.to_json(), named)


def _answer_function(explainer: Any) -> Callable[[Tensor, Tensor], Explanation]:
    pinned, row = explainer._pinned, CATALOG[explainer._pinned.method]

    def explain_rows(x: Tensor, target: Tensor) -> Explanation:
        check_unchanged(pinned.model, pinned.digest)
        found: NDArray[np.float32] = explainer._explain_batch(x, target, pinned.options).cpu().numpy()
        return [explainer._to_answer(one) for one in found] if explainer._has_answers else found

    def explain_maps(x: Tensor, target: Tensor) -> NDArray[np.float32]:
        x = x.clone().requires_grad_(row.leaf_inputs and x.is_floating_point())
        answer = explainer.attribute(x, **({"target": target} if row.target else {}))
        if not isinstance(answer, Tensor):
            raise RefusedError(f"expected one tensor from {row.name}, as in the audit, got {type(answer).__name__}")
        released: NDArray[np.float32] = answer.detach().to("cpu", torch.float32).numpy()
        return released

    def explain_seeded(x: Tensor, target: Tensor) -> NDArray[np.float32]:
        """One by one, each with generators seeded by the query, so that a repeated query gets the same answer."""
        if not len(x):
            return explain_maps(x, target)
        noise = explainer.hardening.noise
        key = b"" if noise is None else resolve_key(noise.key)
        seeds = query_seeds(key, inputs=x.detach().cpu(), method=f"{row.name} samples")
        with _drawing:
            answers = []
            for i, seed in enumerate(seeds):
                with global_generators((x,), seed):
                    answers.append(explain_maps(x[i : i + 1], target[i : i + 1]))
        return np.concatenate(answers)

    if row.name in TABLE_METHODS:
        return explain_rows
    return explain_seeded if row.stochastic and not row.mixes_batch else explain_maps


def _gives_probabilities(model: nn.Module, shape: Sequence[int] | None) -> bool:
    if shape is None:
        return False
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            return are_probabilities(model(at(model, x)))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"the model fails for inputs of shape {tuple(shape)}: {str(error).splitlines()[0]:.120}"
        ) from None
