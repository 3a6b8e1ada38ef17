"""Explainers of rows of a table, audited and certified as maps are: LIME, Anchors, ProtoDash, Alibi's Shapley values.

Each is made from a model and a background of rows that were declared public, and asked about one row at a time. Its
answer is *numbers*, as many for every row, which an audit attacks; whatever leaves a service is those numbers or is
made from them alone (`OfTables._told`). A certificate names the background by its digest and everything else that the
explainer was made with in full, so that no other one is loaded.
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
from safexplain.explain.certified import Audited, Pinned, Predict, check_options, load_audited, refuse_others
from safexplain.explain.hardened import Asked
from safexplain.hardening.hardening import Hardening

__all__ = ["MADE_WITH", "Background", "MadeOf", "OfTables", "Predict", "feature_names", "load_pinned", "near_cutoff"]

MADE_WITH = "made_with"
"""Name, among a certificate's options, of what an explainer was made with."""

Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Background:
    """Public rows, (n, d) float64, each number one of float32, as models see it."""

    rows: Rows

    @classmethod
    def of(cls, public: Any) -> Self:
        """Of an array or a tensor (n, d) of finite numbers; InputError otherwise."""
        given = public.detach().cpu().numpy() if isinstance(public, Tensor) else np.asarray(public)
        if given.ndim != 2 or not given.size or given.dtype.kind not in "biuf":
            raise InputError(f"public: expected rows (n, features) of numbers, got {given.dtype} {given.shape}")
        rows = given.astype(np.float32).astype(np.float64) + 0.0
        if not np.isfinite(rows).all():
            raise InputError("public: expected finite numbers, got NaN or infinity")
        rows.flags.writeable = False
        return cls(rows)

    def to_dict(self) -> dict[str, Any]:
        """How a certificate names them."""
        n, d = self.rows.shape
        return {"rows": n, "features": d, "sha256": sha256(self.rows.astype("<f4").tobytes())}


class OfTables:
    """What the hardened explainers of rows share: being audited, and being loaded from a certificate.

    Attributes:
        hardening: what is done to each explanation.
    """

    hardening: Hardening
    _entry: ClassVar[str]
    _row: ClassVar[Row | None] = None
    _needs: ClassVar[bool] = True
    """Whether a background is needed."""
    _libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions a certificate names."""
    _makes: ClassVar[frozenset[str]] = frozenset()
    """Arguments, beside the background, that the explainer may be made with: values that JSON can hold."""
    _fixed: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the entry that are no options: what is explained, and what follows from it."""
    _more: ClassVar[frozenset[str]] = frozenset()
    """Options that the native entry takes among its **kwargs."""
    _tells: ClassVar[bool] = False
    """Whether a service tells what `_told` makes of the numbers; otherwise they are a map, and leave as they are."""
    _pinned: Pinned | None = None
    _columns: int | None = None
    """Of the background."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hardening={vars(self).get('hardening')!r})"

    @classmethod
    def catalogued(cls, public: Any = None, *, background: Any = None, **made: Any) -> MadeOf:
        """The explainer as `safexplain.audit.audit` makes and asks it, for each model anew.

            audit(model, ..., explainer=HardenedLimeTabular.catalogued(public=rows, feature_names=names), ...)

        Args:
            public: (n, d) rows that may be known to everybody.
            background: the same, as what the values compare with: of trees, in their interventional form.
            **made: more that the explainer is made with, see the class.

        Raises:
            ConfigurationError: the background is missing, or an argument cannot be stated in a certificate.
            RefusedError: an explainer of this class cannot be certified.
        """
        row = cls._row
        if row is None:
            raise RefusedError(f"{cls.__name__} cannot be certified: only explainers of rows of tables can")
        if background is not None:
            public = background
            made |= {"feature_perturbation": "interventional"} if "feature_perturbation" in cls._makes else {}
        if public is None and cls._needs:
            raise ConfigurationError(
                f"{row.hardened_name} needs a background of public rows:"
                f" {row.hardened_name}.catalogued(public=rows), and public=rows where it is loaded"
            )
        if unknown := sorted(made.keys() - cls._makes):
            raise ConfigurationError(
                f"{row.hardened_name} is audited as made with public and {', '.join(sorted(cls._makes)) or 'no more'};"
                f" got {', '.join(unknown)}"
            )
        versions = {}
        for name in cls._libraries:
            with needs_extra(EXTRAS.get(name, EXTRAS[row.library])):
                versions[name] = version(name)
        return MadeOf(row.name, cls, None if public is None else Background.of(public), _as_json(made), versions)

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

        A call chooses the row that is explained, and of methods that explain a class, the class; left out, it is the
        predicted one, which was audited. Any other value of an option is refused.

        Of the arguments, `public` are the rows (n, d) that were the background, in the order of the audit, and `made`
        is what the explainer was made with, which stands in the certificate and need not be said again. The others, and
        what is raised, are as of `Hardened.from_certificate`.
        """
        audited = load_audited(model, path, file=file, key=key_file, public_key=public_key, kind=cls)
        loaded: Self = load_pinned(cls, audited, public, **made)
        return loaded

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        """The explainer of a model."""
        raise NotImplementedError

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        """What is audited of the answer about one row (d,), as many numbers for every row."""
        raise NotImplementedError

    def _numbers_of(self, rows: Rows, targets: Sequence[int], options: Mapping[str, Any]) -> Rows:
        """(n, k): the numbers of (n, d) rows, one after the other, so that no answer depends on the others."""
        return np.stack([self._numbers(row, target, options) for row, target in zip(rows, targets, strict=True)])

    def _asked(self, x: Tensor, target: Tensor, options: Mapping[str, Any]) -> Tensor:
        """See `Asked.attribute`: (batch, k) numbers, float32, of (batch, d) rows; options of the native entry.

        Raises:
            InputError: x is no table, or has other columns than the background.
        """
        if x.dim() != 2:
            raise InputError(f"expected rows (batch, features) of a table, got {tuple(x.shape)}")
        rows = self._rows(x.detach().cpu().double().numpy())
        if not len(rows):
            return x.new_zeros(0, x.shape[1])
        numbers = self._numbers_of(rows, target.tolist(), options)
        return torch.from_numpy(numbers.astype(np.float32)).to(x.device)

    def _told(self, numbers: Rows) -> dict[str, Any]:
        """Where `_tells`: what a service tells, plain JSON made from the numbers and public knowledge alone."""
        raise NotImplementedError

    def _rows(self, asked: Any) -> Rows:
        """(n, d) float64 of one row or several, in the columns of the background; InputError otherwise."""
        try:
            rows = np.atleast_2d(np.asarray(asked.toarray() if hasattr(asked, "toarray") else asked, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"expected rows of numbers, got {type(asked).__name__}") from None
        if rows.ndim != 2 or rows.shape[1] != (self._columns or rows.shape[1]):
            features = "numbers" if self._columns is None else f"{self._columns} features, as the background has"
            raise InputError(f"expected rows of {features}, got {rows.shape}")
        return rows

    @classmethod
    def _signature(cls) -> inspect.Signature:
        """Of the native entry."""
        assert cls._row is not None
        return inspect.signature(getattr(cls._row.native, cls._row.entry))


@dataclass(frozen=True, eq=False)
class MadeOf:
    """An explainer of rows, and what it is made with beside the model; `OfTables.catalogued` makes it.

    Args:
        method: name in the catalog, as certificates have it.
        kind: the hardened class.
        background: public rows, or None.
        made: its other arguments.
        versions: of the libraries that it runs.
    """

    method: str
    kind: type[OfTables]
    background: Background | None
    made: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def made_with(self) -> dict[str, Any]:
        """What a certificate states, in JSON."""
        public = {} if self.background is None else {"public": self.background.to_dict()}
        return {**public, **self.made, "libraries": dict(self.versions)}

    def explains(self, model: nn.Module) -> str | None:
        """What the values of a model add up to, where that is no output of it: "log odds"; None: an output."""
        if not hasattr(self.kind, "explains"):
            return None
        found: Any = self(model, hardening=Hardening.none()).explainer
        return None if found.explains == "probability" else str(found.explains)

    def __call__(self, model: nn.Module, *, hardening: Hardening) -> Asked:
        """The explainer of a model, to be asked."""
        explainer = self.kind._of_model(model, self, hardening)
        explainer._columns = None if self.background is None else self.background.rows.shape[1]
        return Asked(explainer)


def load_pinned(kind: type[OfTables], audited: Audited, public: Any, **made: Any) -> Any:
    """The explainer of a hardened class, of those that a certificate is about; see `OfTables.from_certificate`."""
    path, row = audited.path, kind._row
    assert row is not None
    options = audited.options(row)
    stated = options.pop(MADE_WITH, None)
    if not isinstance(stated, Mapping):
        raise CertificateError(f"{path} does not say what {row.name} was made with; audit again")
    said = {name: value for name, value in stated.items() if name not in ("public", "libraries")}
    refuse_others(_as_json(made), said)
    if public is None and "public" in stated:
        raise RefusedError(f"{row.name} was audited with a background of public rows: pass public=, the same rows")
    try:
        of = kind.catalogued(public if "public" in stated else None, **said)
    except ConfigurationError as error:
        raise CertificateError(f"{path}: {error}") from None
    if (now := of.made_with.get("public")) != (then := stated.get("public")):
        raise CertificateError(
            f"{path} is about another background: expected {_rows_named(then)}, got {_rows_named(now)}; pass the public"
            " rows of the audit, in their order"
        )
    named = {p.name for p in kind._signature().parameters.values() if p.kind is not p.VAR_KEYWORD}
    check_options(path, row, options, (named | kind._more) - kind._fixed)
    return audited.pin(of, options)


def near_cutoff(rows: Any, scores: Any, cutoff: float, n: int = 100) -> Any:
    """Those at or just above the cutoff, to compare an applicant with: a background.

    Args:
        rows: (m, d) of people that may be known to everybody.
        scores: (m,) that decided, larger is better.
        cutoff: from which on somebody passes.
        n: how many, those nearest to it.

    Raises:
        InputError: nobody passes, or not as many scores as rows.
    """
    scores, rows = np.asarray(scores, dtype=np.float64), np.asarray(rows)
    if scores.shape != (len(rows),) or not (scores >= cutoff).any():
        raise InputError(f"expected a score for each of {len(rows)} rows, and one of {cutoff:g} or more")
    passed = np.flatnonzero(scores >= cutoff)
    return rows[passed[np.argsort(scores[passed], kind="stable")[:n]]]


def feature_names(made: MadeOf) -> list[str]:
    """The given names of the columns, or their numbers.

    Raises:
        InputError: not as many different names as there are columns.
    """
    assert made.background is not None
    d = made.background.rows.shape[1]
    names = [str(name) for name in made.made.get("feature_names") or map(str, range(d))]
    if len(set(names)) != d:
        raise InputError(f"feature_names: expected {d} different names, got {len(names)} ({len(set(names))} different)")
    return names


def _as_json(made: Mapping[str, Any]) -> dict[str, Any]:
    """What a certificate states, as it is read back."""
    try:
        return dict(json.loads(json.dumps(dict(made), allow_nan=False)))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{', '.join(sorted(made))}: expected numbers, texts, and lists and dictionaries of such, which a"
            " certificate can state"
        ) from None


def _rows_named(stated: Any) -> str:
    known = stated if isinstance(stated, Mapping) else {}
    return f"{known.get('rows')} x {known.get('features')} rows with SHA-256 {known.get('sha256')!s:.12}..."
