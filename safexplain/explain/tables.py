"""Explainers of rows of a table, audited and certified like maps: LIME, Anchors, ProtoDash, Shapley values.

An answer's *numbers*, as many for every row, are attacked; a service releases these, or an answer made from them alone.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import sha256
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError, needs_extra
from safexplain.explain.catalog import EXTRAS, Row
from safexplain.explain.certified import Audited, Pinned, check_as_audited, check_options, load_audited
from safexplain.explain.hardened import AuditExplainer
from safexplain.hardening.hardening import Hardening

MADE_WITH = "made_with"
"""Key, among a certificate's options, of the constructor's arguments."""

Rows = NDArray[Any]


def _background(public: Any) -> Rows:
    """An array or a tensor (n, d) of finite numbers as float64 numbers that float32 holds; else InputError."""
    given = public.detach().cpu().numpy() if isinstance(public, Tensor) else np.asarray(public)
    if given.ndim != 2 or not given.size or given.dtype.kind not in "biuf":
        raise InputError(f"public: expected rows (n, features) of numbers, got {given.dtype} {given.shape}")
    rows: Rows = given.astype(np.float32).astype(np.float64) + 0.0
    if not np.isfinite(rows).all():
        raise InputError("public: expected finite numbers, got NaN or infinity")
    rows.flags.writeable = False
    return rows


class TableExplainer:
    """What the hardened explainers of rows share: audits and certificates.

    Attributes:
        hardening: applied to each explanation.
    """

    hardening: Hardening
    _entry: ClassVar[str]
    _row: ClassVar[Row | None] = None
    _needs_background: ClassVar[bool] = True
    _libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions a certificate names."""
    _init_options: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the constructor beside the background: values that JSON can hold."""
    _no_options: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the entry that are no options: the instance, and what follows from it."""
    _kwargs_options: ClassVar[frozenset[str]] = frozenset()
    """Options in the native entry's **kwargs."""
    _has_answers: ClassVar[bool] = False
    """Whether a service releases `_to_answer` of the numbers; else the numbers themselves, a map."""
    _pinned: Pinned | None = None
    _columns: int | None = None

    @classmethod
    def around(cls, native: Any, hardening: Hardening | None = None, **options: Any) -> Any:
        """The hardened version of a native explainer, see `harden`."""
        self: Any = cls.__new__(cls)
        self._adopt(native, hardening, **options)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hardening={vars(self).get('hardening')!r})"

    @classmethod
    def catalogued(cls, public: Any = None, *, background: Any = None, **made: Any) -> TableExplainerFactory:
        """The explainer as `safexplain.audit.audit` makes it for each model.

        Args:
            public: (n, d) public rows.
            background: the same, as the rows that the values compare with; trees are then explained in their
                interventional form.
            **made: further arguments of the explainer, see the class.

        Raises:
            ConfigurationError: the background is missing, or an argument cannot be stated in a certificate.
            RefusedError: explainers of this class cannot be certified.
        """
        row = cls._row
        if row is None:
            raise RefusedError(f"{cls.__name__} cannot be certified: only explainers of rows of tables can")
        if background is not None:
            public = background
            made |= {"feature_perturbation": "interventional"} if "feature_perturbation" in cls._init_options else {}
        if public is None and cls._needs_background:
            raise ConfigurationError(
                f"expected public rows as a background: {row.hardened_name}.catalogued(public=rows)"
            )
        if unknown := sorted(made.keys() - cls._init_options):
            raise ConfigurationError(
                f"{row.hardened_name}.catalogued: expected {', '.join(['public', *sorted(cls._init_options)])}, got"
                f" {', '.join(unknown)}"
            )
        versions = {}
        for name in cls._libraries:
            with needs_extra(EXTRAS.get(name, EXTRAS[row.library])):
                versions[name] = version(name)
        return TableExplainerFactory(
            row.name, cls, None if public is None else _background(public), _as_json(made), versions
        )

    @classmethod
    def from_certificate(
        cls,
        model: nn.Module | Any,
        path: str | Path,
        *,
        public: Any = None,
        file: str | Path | None = None,
        key_file: str | Path | None = None,
        public_key: str | Path | bytes | None = None,
        **made: Any,
    ) -> Self:
        """The explainer that a certificate is about, with the audited model, background, hardening and options.

        A call chooses the row and the class; None is the predicted one, which was audited. Other values of options are
        refused. `public` are the (n, d) rows of the background, in the order of the audit; `made`, arguments of the
        constructor, may be left out. All others, and errors, are as of `Hardened.from_certificate`.
        """
        audited = load_audited(model, path, file=file, key=key_file, public_key=public_key, kind=cls)
        loaded: Self = load_pinned(cls, audited, public, **made)
        return loaded

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        raise NotImplementedError

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        """The audited numbers of the answer about one row (d,), as many for every row."""
        raise NotImplementedError

    def _numbers_of(self, rows: Rows, targets: Sequence[int], options: Mapping[str, Any]) -> Rows:
        """(n, k) numbers of (n, d) rows, explained one by one, so that no answer depends on the others."""
        return np.stack([self._numbers(row, target, options) for row, target in zip(rows, targets, strict=True)])

    def _explain_batch(self, x: Tensor, target: Tensor, options: Mapping[str, Any]) -> Tensor:
        """(batch, k) float32 numbers of (batch, d) rows; InputError: no table, or other columns than the background."""
        if x.dim() != 2:
            raise InputError(f"expected rows (batch, features) of a table, got {tuple(x.shape)}")
        rows = self._rows(x.detach().cpu().double().numpy())
        if not len(rows):
            return x.new_zeros(0, x.shape[1])
        numbers = self._numbers_of(rows, target.tolist(), options)
        return torch.from_numpy(numbers.astype(np.float32)).to(x.device)

    def _to_answer(self, numbers: Rows) -> dict[str, Any]:
        """If `_has_answers`, a service's answer: plain JSON made from the numbers and public knowledge alone."""
        raise NotImplementedError

    def _rows(self, values: Any) -> Rows:
        """(n, d) float64 of one row or several, with the columns of the background; else InputError."""
        try:
            rows = np.atleast_2d(np.asarray(dense(values), dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"expected rows of numbers, got {type(values).__name__}") from None
        if rows.ndim != 2 or rows.shape[1] != (self._columns or rows.shape[1]):
            features = "numbers" if self._columns is None else f"{self._columns} features, as the background has"
            raise InputError(f"expected rows of {features}, got {rows.shape}")
        return rows

    @classmethod
    def _signature(cls) -> inspect.Signature:
        assert cls._row is not None
        return inspect.signature(getattr(cls._row.native, cls._row.entry))


@dataclass(frozen=True, eq=False)
class TableExplainerFactory:
    """Makes an explainer of rows for each model; from `TableExplainer.catalogued`. `background` is public rows (n, d)
    or None, `made` the constructor's other arguments."""

    method: str
    kind: type[TableExplainer]
    background: Any
    made: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def made_with(self) -> dict[str, Any]:
        """What a certificate states, as JSON."""
        public: dict[str, Any] = {}
        if (rows := self.background) is not None:
            digest = sha256(rows.astype("<f4").tobytes())
            public = {"public": {"rows": len(rows), "features": rows.shape[1], "sha256": digest}}
        return {**public, **self.made, "libraries": dict(self.versions)}

    def explains(self, model: nn.Module) -> str | None:
        """ "log odds" if the values add up to these; None: to an output of the model."""
        if not hasattr(self.kind, "explains"):
            return None
        found: Any = self(model, hardening=Hardening.none()).explainer
        return None if found.explains == "probability" else str(found.explains)

    def __call__(self, model: nn.Module, *, hardening: Hardening) -> AuditExplainer:
        """The explainer of a model."""
        explainer = self.kind._of_model(model, self, hardening)
        explainer._columns = None if self.background is None else self.background.shape[1]
        return AuditExplainer(explainer)


def load_pinned(kind: type[TableExplainer], audited: Audited, public: Any, **made: Any) -> Any:
    """As `TableExplainer.from_certificate`, for one of the methods in a certificate."""
    path, row = audited.path, kind._row
    assert row is not None
    options = audited.options(row)
    stated = options.pop(MADE_WITH, None)
    if not isinstance(stated, Mapping):
        raise CertificateError(f"{path} does not state the arguments of {row.name}; audit again")
    arguments = {name: value for name, value in stated.items() if name not in ("public", "libraries")}
    check_as_audited(_as_json(made), arguments)
    if public is None and "public" in stated:
        raise RefusedError(f"{row.name} was audited with a background: pass public=, the same public rows")
    try:
        factory = kind.catalogued(public if "public" in stated else None, **arguments)
    except ConfigurationError as error:
        raise CertificateError(f"{path}: {error}") from None
    if (got := factory.made_with.get("public")) != (expected := stated.get("public")):
        raise CertificateError(
            f"{path} is about another background: expected {_describe_rows(expected)}, got {_describe_rows(got)}; pass"
            " the public rows of the audit, in their order"
        )
    named = {p.name for p in kind._signature().parameters.values() if p.kind is not p.VAR_KEYWORD}
    check_options(path, row, options, (named | kind._kwargs_options) - kind._no_options)
    return audited.pin(factory, options)


def near_cutoff(rows: Any, scores: Any, cutoff: float, n: int = 100) -> Any:
    """The n of (m, d) public rows whose scores, (m,), are at or just above a cutoff, as a background to compare
    applicants with; InputError: none is, or not as many scores as rows."""
    scores, rows = np.asarray(scores, dtype=np.float64), np.asarray(rows)
    if scores.shape != (len(rows),) or not (scores >= cutoff).any():
        raise InputError(f"expected a score for each of {len(rows)} rows, and one of {cutoff:g} or more")
    passed = np.flatnonzero(scores >= cutoff)
    return rows[passed[np.argsort(scores[passed], kind="stable")[:n]]]


def dense(rows: Any) -> Any:
    """A sparse matrix as an array, and anything else as it is."""
    return rows.toarray() if hasattr(rows, "toarray") else rows


def feature_names(made: TableExplainerFactory) -> list[str]:
    """The given names of the columns, or their numbers; InputError: not as many distinct names as columns."""
    d = made.background.shape[1]
    names = [str(name) for name in made.made.get("feature_names") or map(str, range(d))]
    if len(set(names)) != d:
        raise InputError(f"feature_names: expected {d} distinct names, got {len(names)} ({len(set(names))} distinct)")
    return names


def _as_json(made: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(dict(made), allow_nan=False)))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{', '.join(sorted(made))}: expected numbers, texts, and lists or dicts of these"
        ) from None


def _describe_rows(stated: Any) -> str:
    known = stated if isinstance(stated, Mapping) else {}
    return f"{known.get('rows')} x {known.get('features')} rows with SHA-256 {known.get('sha256')!s:.12}..."
