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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import digest, file_sha256, modules_of
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.aix360 import HardenedLimeTabular, HardenedProtoDash
from safexplain.explain.alibi import HardenedAnchorTabular
from safexplain.explain.alibi.explainers import HardenedAlibiKernelShap, HardenedTreeShap
from safexplain.explain.captum.model_checks import is_estimator
from safexplain.explain.catalog import CATALOG, Row, find_row
from safexplain.explain.certified import at, check_unchanged, checked_model, keyed, load_audited, pin
from safexplain.explain.hardened import HARDENED, Asked
from safexplain.explain.isolation import one_at_a_time, private_copy
from safexplain.explain.libraries import global_generators
from safexplain.explain.shap import HardenedKernelExplainer, HardenedLinearExplainer, HardenedTreeExplainer
from safexplain.explain.tables import OfTables, load_pinned
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key
from safexplain.outputs import EstimatorModule, Probability, are_probabilities, as_module
from safexplain.verdict.certificate.read import Certificate

__all__ = ["Explanation", "Release", "default_hardening", "load_release"]

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
        digest: hexadecimal SHA-256 of the certificate's file; without one, of model, method, background and hardening.
        model_digest: of the explained model.
        uncertified: whether no audit has certified this release.
        shape: of one input, where the audit said so; None: it did not.
        mixes_batch: whether an example's answer depends on the others in its batch.
        hardening: what is done to each explanation.
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
    """Modules that plain predictions must not run on while an explanation does: those with hooks of their own."""

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
            scores: Tensor = self._model(at(self._model, x).clone())  # some write into their input
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
    """The release that a certificate is about.

    `model`, `path`, `file` and `public_key` are as of `Hardened.from_certificate`; guarantees by construction are
    loaded by `PublicExplainer` and `StudentExplainer`, which need more than the model. `key` is the noise key, as
    bytes, or the path of its file; None: the environment variable SAFEXPLAIN_NOISE_KEY. `public` are (rows, ...) public
    rows, for methods that need some. With `uncertified`, another verdict than "certified" will do; all else is checked.

    With `path=None` there is no certificate yet, which must be said by `uncertified`. Then `method` is the explainer's
    name in the catalog, with the plain choice of options, `hardening` what is done to each explanation (None:
    `default_hardening`), and `shape` that of one input. The probability is explained: by a softmax, unless the model is
    seen to return probabilities, for which it is asked about random numbers of that shape.

    Raises:
        CertificateError: the certificate is damaged, altered, unsigned, not "certified", or of another model, file,
            kind or version.
        RefusedError: there is noise and no key or a weak one.
        InputError: a file cannot be read, or the model cannot be used.
        ConfigurationError: without a certificate, something is missing; with one, something is given that it says.
    """
    certificate = None
    if path is None:
        if not uncertified or method is None:
            raise ConfigurationError(
                "expected a certificate; to serve without one, say so: uncertified=True, explainer=..."
            )
        hardening = hardening or default_hardening([find_row(method)], model)
        explainer, named = _before_audit(model, method, keyed(hardening, key), shape, public)
        explainers = [explainer]
    else:
        given = {"explainer": method, "hardening": hardening, "shape": shape}
        if said := [name for name, value in given.items() if value is not None]:
            raise ConfigurationError(f"{', '.join(said)}: the certificate says that; leave it out")
        named = file_sha256(path) if Path(path).is_file() else ""
        audited = load_audited(model, path, file=file, key=key, public_key=public_key, uncertified=uncertified)
        if file_sha256(path) != named:
            raise CertificateError(f"{path} was changed while it was read; load it again")
        certificate = audited.certificate
        shape, uncertified = certificate.shape, certificate.verdict != "certified"
        explainers = [
            load_pinned(OF_ROWS[row.name], audited, public)
            if row.name in OF_ROWS
            else audited.explainer(HARDENED[row.name])
            for row in audited.rows
        ]
    held = explainers[0]._pinned
    rows = [CATALOG[explainer._pinned.method] for explainer in explainers]
    alone = modules_of(held.model) if any(row.hooks or row.writes for row in rows) else ()
    if alone and private_copy({"forward_func": held.model}, alone, share_parameters=True) is not None:
        alone = ()
    return Release(
        certificate,
        "+".join(row.name for row in rows),
        named,
        held.digest,
        uncertified,
        None if shape is None else tuple(shape),
        any(row.mixes_batch for row in rows),
        explainers[0].hardening,
        held.model,
        {row.name: _asked(explainer) for row, explainer in zip(rows, explainers, strict=True)},
        alone,
    )


def default_hardening(rows: Sequence[Row], model: Any) -> Hardening:
    """The recommended hardening of methods that are released together, for tables with the order of reasons: where each
    of them explains rows of tables alone, or the model is a scikit-learn classifier."""
    table = is_estimator(as_module(model))
    return Hardening.recommended(ordered=all(not OF_ROWS[r.name]._tells if r.name in OF_ROWS else table for r in rows))


def _before_audit(
    model: Any, method: str, hardening: Hardening, shape: Sequence[int] | None, public: Any
) -> tuple[Any, str]:
    """The explainer that a service runs before its audit, and what names it."""
    row = find_row(method)
    model, named = checked_model(model)
    while isinstance(model, Probability):
        model = model.model
    forward = model if isinstance(model, EstimatorModule) or _gives_probabilities(model, shape) else Probability(model)
    made: Any = OF_ROWS[row.name].catalogued(public) if row.name in OF_ROWS else HARDENED[row.name].catalogued()
    stated = sorted(made.made_with.items()) if row.name in OF_ROWS else []
    return pin(made, forward, model, named, hardening, {}), digest(row.name, stated, hardening.to_json(), named)


def _asked(explainer: Any) -> Callable[[Tensor, Tensor], Explanation]:
    """How a service asks a hardened class that has its certificate."""
    held, row = explainer._pinned, CATALOG[explainer._pinned.method]

    def numbers(x: Tensor, target: Tensor) -> Explanation:
        """What an explainer of rows tells about each row."""
        check_unchanged(held.model, held.digest)
        found: NDArray[np.float32] = Asked(explainer).attribute(x, target=target, **held.options).cpu().numpy()
        return [explainer._told(one) for one in found] if explainer._tells else found

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

    if row.name in OF_ROWS:
        return numbers
    return drawn if row.stochastic and not row.mixes_batch else maps


def _gives_probabilities(model: nn.Module, shape: Sequence[int] | None) -> bool:
    """Whether a model's outputs, of numbers drawn at random, are probabilities already."""
    if shape is None:
        return False
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            return are_probabilities(model(at(model, x)))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"the model fails on inputs of shape {tuple(shape)}: {str(error).splitlines()[0]:.120}"
        ) from None
