"""Loading a service: its `Options`, and the `Generation` that a reload replaces as a whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from safexplain._digest import weight_files
from safexplain.errors import (
    CertificateError,
    ConfigurationError,
    InputError,
    RefusedError,
    RequestError,
    SafexplainError,
)
from safexplain.explain.served import Release, load_release
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data import load_inputs
from safexplain.loading.models import load_model
from safexplain.outputs import are_probabilities
from safexplain.serve.budget import Budget, Limits
from safexplain.serve.inputs import Bounds
from safexplain.serve.questions import Questions
from safexplain.verdict.certificate.read import load_certificate


@dataclass(frozen=True, eq=False)
class Remembered:
    """The answer to one question: a row of `Answer`, with an explanation in float32 (...) or JSON types."""

    label: int
    explanation: NDArray[np.float32] | Mapping[str, Any] | None
    probabilities: tuple[float, ...] | None = None

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        e = self.explanation
        return 500 + (e.nbytes if isinstance(e, np.ndarray) else 0 if e is None else len(json.dumps(e)))


@dataclass(frozen=True, eq=False)
class Generation:
    """A model, its certificate and everything that depends on them."""

    release: Release
    budget: Budget
    scope: bytes  # digest of model and certificate
    shape: tuple[int, ...] | None  # of one input; None: unknown
    range: tuple[float, float] | None  # least and greatest number of an input; None: any finite number
    probabilities: bool  # whether answers have probabilities of all classes
    bounds: Bounds  # of a request's body

    def check(self, x: NDArray[np.float32]) -> None:
        """Raise RequestError for too many rows, another shape, numbers that are not finite or out of range."""
        wrong = ""
        if x.ndim == 0:
            wrong = "numbers (n, ...), got a single number"
        elif len(x) > self.bounds.rows:
            wrong = f"at most {self.bounds.rows} rows a request, got {len(x)}"
        elif self.shape is not None and len(x) and x.shape[1:] != self.shape:
            wrong = f"inputs of shape {_text(self.shape)}, got {_text(x.shape[1:])}"
        elif not np.isfinite(x).all():
            wrong = "finite numbers, got NaN, infinity or a number beyond float32"
        elif self.range is not None and x.size and (x.min() < self.range[0] or x.max() > self.range[1]):
            wrong = f"numbers from {self.range[0]:g} to {self.range[1]:g}"
        if wrong:
            raise RequestError(f"expected {wrong}", field="input")

    def question(self, row: NDArray[np.float32]) -> bytes:
        """Digest of a question: the model, its certificate and the canonical input."""
        head = hashlib.blake2b(self.scope + repr(row.shape).encode(), digest_size=32, person=b"safexplain ask")
        head.update(np.ascontiguousarray(row).data)
        return head.digest()

    def explain(self, x: Tensor) -> list[Remembered]:
        """(n, ...) inputs -> label, explanation and probabilities of each."""
        scores = self._scores(x)
        target = scores.argmax(1)
        maps = self.release.explain(x, target)
        if len(maps) != len(x):
            raise RefusedError(f"the explainer returned {len(maps)} answers to {len(x)} inputs")
        copies = [np.array(m, np.float32) if isinstance(m, np.ndarray) else m for m in maps]  # no views of the batch
        return [Remembered(*row) for row in zip(target.tolist(), copies, self._probabilities(scores), strict=True)]

    def label(self, x: Tensor) -> list[Remembered]:
        """(n, ...) inputs -> label and probabilities of each."""
        self.release.check()
        scores = self._scores(x)
        return [Remembered(int(s.argmax()), None, p) for s, p in zip(scores, self._probabilities(scores), strict=True)]

    def _scores(self, x: Tensor) -> Tensor:
        try:
            return self.release.predict(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if self.shape is not None or isinstance(error, SafexplainError):
                raise
            shape = _text(x.shape[1:])
            raise RequestError(f"the model cannot take inputs of shape {shape}", field="input") from None

    def _probabilities(self, scores: Tensor) -> list[tuple[float, ...] | None]:
        if not self.probabilities:
            return [None] * len(scores)
        p = scores if are_probabilities(scores) else scores.softmax(1)
        return [tuple(row) for row in p.tolist()]


def _ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] >= bounds[1]:
        raise ValueError(f"expected the least number first, got {bounds[0]:g}, {bounds[1]:g}")
    return bounds


@checked_dataclass(frozen=True, eq=False, config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
class Options:
    """The arguments of `Service.load`.

    Args:
        model: the model's file, of any kind that `safexplain audit` reads; or a module in evaluation mode or a fitted
            estimator of scikit-learn.
        certificate: its certificate. None: with `uncertified`, `explainer` and `hardening`.
        key: the noise key, as bytes, or the path of its file. None: the environment variable SAFEXPLAIN_NOISE_KEY.
        public_key: ed25519, PEM: path or bytes. If given, the certificate must be signed with its private key.
        ledger: URL of the ledger that counts questions, the same for all workers. None: counted in this process.
        public: (rows, ...) public rows or their file: for near-duplicates, and the background of some methods.
        limits: of each client, as `Limits` or a mapping.
        uncertified: serve without a valid certificate; every answer and readiness report it.
        probabilities: return those of all classes too; the certificate must cover them
            (`Policy(release="explanation+prediction")`).
        explainer, hardening: without a certificate, the method's name and the hardening (None: the recommended one).
        arch, trust_pickle, trust_types: see `load_model`.
        columns: for a classifier of texts or missing numbers, the columns.json of its audit; requests contain its
        codes. input_shape: of one input, if neither certificate nor model file has it.
        input_range: least and greatest number of an input. None: the range of the public rows, extended by its width on
            either side; without public rows, any finite number.
        name: of the model, in URLs.
        device: of the model.
        most_rows: of one request.
        batch_rows: of requests that are computed together.
        timeout: seconds that a request waits for its answer.
        watch: seconds between checks of the files, which are loaded again when they change; 0: never.
    """

    model: Any
    certificate: str | Path | None = None
    key: bytes | Path | str | None = None
    public_key: bytes | Path | str | None = None
    ledger: str | None = None
    public: Any = None
    limits: Limits = field(default_factory=Limits)
    uncertified: bool = False
    probabilities: bool = False
    explainer: str | None = None
    hardening: Any = None
    arch: str | None = None
    trust_pickle: bool = False
    trust_types: Sequence[str] = ()
    columns: str | Path | None = None
    input_shape: tuple[int, ...] | None = None
    input_range: Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_ascending)] | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "model"
    device: str = "cpu"
    most_rows: Annotated[int, Field(ge=1)] = 64
    batch_rows: Annotated[int, Field(ge=1)] = 32
    timeout: Annotated[FiniteFloat, Field(gt=0)] = 60.0
    watch: Annotated[FiniteFloat, Field(ge=0)] = 0.0

    @classmethod
    def of(cls, model: Any, certificate: str | Path | None, options: Mapping[str, Any]) -> Options:
        """Checked options, with the public key read; errors as `Service.load`."""
        try:
            given = cls(model, certificate, **options)
            torch.empty(0, device=given.device)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"options of a service: {where}: {first['msg']}") from None
        except (RuntimeError, AssertionError, TypeError):
            raise ConfigurationError(f"device: expected cpu, or a GPU of this machine, got {given.device!r}") from None
        if isinstance(given.public_key, bytes) or given.public_key is None:
            return given
        try:
            return replace(given, public_key=Path(given.public_key).read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the public key {given.public_key}: {error.strerror or error}") from None

    def file_states(self) -> tuple[Any, ...]:
        """Inodes, sizes and times of the files."""
        found: list[Any] = []
        for path in (self.model, self.certificate, self.public):
            if isinstance(path, str | Path):
                try:
                    for part in weight_files(Path(path)) or [Path(path)]:
                        state = os.stat(part)
                        found.append((state.st_ino, state.st_size, state.st_mtime_ns))
                except OSError:
                    found.append(None)
        return tuple(found)

    def generation(self, questions: Questions) -> Generation:
        """Load model and certificate from the files, with errors as `Service.load`."""
        shape, model, file = self.input_shape, self.model, None
        if isinstance(model, str | Path):
            loaded = load_model(
                model, arch=self.arch, trust_pickle=self.trust_pickle, input_shape=shape,
                trust_types=self.trust_types, columns=self.columns,
            )  # fmt: skip
            shape = shape or _shape_of(loaded.model)
            if self.certificate is not None and load_certificate(self.certificate).digests("sha256"):
                file = model  # the certificate names the SHA-256 of a model's file
            model = loaded.model.to(self.device)
        public = load_inputs(self.public) if isinstance(self.public, str | Path) else self.public
        if public is not None:
            public = np.asarray(public, np.float32)
            shape = shape or tuple(public.shape[1:])
        release = load_release(
            model, self.certificate, file=file, key=self.key, public_key=self.public_key, public=public,
            uncertified=self.uncertified, method=self.explainer, hardening=self._hardening(),
            shape=shape if self.certificate is None else None,
        )  # fmt: skip
        if release.mixes_batch:
            raise RefusedError(
                f"{release.method} shuffles the rows of a batch, so answers would depend on other clients' questions;"
                " serve another method"
            )
        if release.shape is not None and shape is not None and release.shape != shape:
            raise InputError(
                f"expected inputs of shape {_text(release.shape)}, as in the certificate, got {_text(shape)}"
                " from the model file, the public rows or input_shape"
            )
        shape = release.shape or shape
        if self.probabilities and release.certificate is not None:
            released = release.certificate.judgement.policy.release
            if released != "explanation+prediction":  # more leaves than the certificate covers
                if not self.uncertified:
                    raise CertificateError(
                        f"{self.certificate} covers the {released}, but not probabilities; audit with release ="
                        ' "explanation+prediction" in the policy, or serve without them'
                    )
                release = replace(release, uncertified=True)
        judged = () if release.certificate is None else release.certificate.judgement.policy.patience
        subject, most_looks = release.model_digest.hex(), max(judged, default=None)
        budget = Budget(questions, self.limits, public=public, most_looks=most_looks, subject=subject)
        scope = hashlib.sha256(release.model_digest + b"\0" + release.digest.encode()).digest()
        bounds = Bounds.of(shape, self.most_rows)
        return Generation(release, budget, scope, shape, self._range(public), self.probabilities, bounds)

    def _range(self, public: NDArray[np.float32] | None) -> tuple[float, float] | None:
        if self.input_range is not None:
            return self.input_range
        if public is None or not public.size or not np.isfinite(public).all():
            return None
        low, high = float(public.min()), float(public.max())
        return 2 * low - high, 2 * high - low

    def _hardening(self) -> Hardening | None:
        given = self.hardening
        if given is None or isinstance(given, Hardening):
            return given
        return Hardening.from_json(given if isinstance(given, str) else json.dumps(dict(given)))


def _shape_of(model: nn.Module) -> tuple[int, ...] | None:
    shape = getattr(model, "input_shape", None)
    return tuple(shape) if shape is not None and all(isinstance(n, int) for n in shape) else None


def _text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"
