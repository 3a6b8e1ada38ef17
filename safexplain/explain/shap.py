"""Hardened explainers of the shap package, which release hardened values without base value and background: natively,
these add up to the model's output, on which membership inference works best.

Sources: Lundberg, Erion, Lee: Consistent Individualized Feature Attribution for Tree Ensembles, arXiv 1802.03888;
Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import roots_legendre
from torch import nn

from safexplain._digest import explained_digest
from safexplain._validate import checked_digest
from safexplain.errors import InputError, RefusedError
from safexplain.explain.captum import check_mode
from safexplain.explain.catalog import CATALOG
from safexplain.explain.certified import Predict
from safexplain.explain.hardened import LOG_ODDS, PROBABILITY, Direction, explained_classes, oriented, orients_first
from safexplain.explain.libraries import draw_from, load, seeded_generators
from safexplain.explain.tables import TableExplainer, TableExplainerFactory, dense, feature_names
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import as_hashed
from safexplain.native_maps import watch
from safexplain.outputs import EstimatorModule

__all__ = ["HardenedKernelExplainer", "HardenedLinearExplainer", "HardenedTreeExplainer"]

Values = NDArray[Any]
Places = NDArray[np.int64]


class MixedColumnsError(InputError):
    """A step before the explained one combines several columns."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """The user's rows as the last step of a classifier, alone or a Pipeline, takes them."""

    module: EstimatorModule

    @property
    def steps(self) -> Any:
        """All but the last step, a Pipeline; None if there are none."""
        pipeline = self.module.estimator
        return pipeline[:-1] if len(getattr(pipeline, "steps", ())) > 1 else None

    @property
    def last(self) -> Any:
        """The explained step."""
        pipeline = self.module.estimator
        return pipeline[-1] if hasattr(pipeline, "steps") else pipeline

    @cached_property
    def origins(self) -> Places | None:
        """(p,) the user's column of each column that the last step takes; None: they are the user's.

        Raises:
            MixedColumnsError: a step combines several of the user's columns.
        """
        if self.steps is None:
            return None
        columns = np.arange(self.module.estimator.n_features_in_)
        return _through(self.steps, columns, getattr(self.last, "n_features_in_", None))

    def rows(self, x: Values) -> Any:
        """(n, p) input of the last step for (n, d) numbers: a matrix or a frame."""
        given = self.module.rows(np.asarray(x, dtype=np.float32))
        return given if self.steps is None else self.steps.transform(given)

    def summed(self, values: Values) -> Values:
        """(n, d, ...) of (n, p, ...): the sums of the values of all columns from one user's column."""
        if self.origins is None:
            return values
        columns = range(self.module.estimator.n_features_in_)
        return np.stack([values[:, self.origins == column].sum(axis=1) for column in columns], axis=1)


_OVER_ROWS = ("Normalizer", "TfidfTransformer")


def _through(step: Any, origins: Places, made: int | None) -> Places:
    """The user's column of each of the `made` columns (None: unknown) of a fitted transformer or "passthrough" whose
    inputs come from `origins`."""
    from sklearn.base import OneToOneFeatureMixin
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_selection import SelectorMixin
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OneHotEncoder

    if isinstance(step, Pipeline):
        widths = [getattr(after, "n_features_in_", None) for _, after in step.steps[1:]]
        for (_, one), width in zip(step.steps, [*widths, made], strict=True):
            origins = _through(one, origins, width)
    elif isinstance(step, ColumnTransformer):
        parts, place = [origins[:0]], step.output_indices_
        taken = step._transformer_to_input_indices
        for name, one, _ in sorted(step.transformers_, key=lambda part: place[part[0]].start or 0):
            if width := len(range(2**31)[place[name]]):
                parts.append(_through(one, origins[taken[name]], width))
        origins = np.concatenate(parts)
    elif isinstance(step, SelectorMixin):
        origins = origins[step.get_support()]
    elif isinstance(step, OneHotEncoder):
        plain = copy.copy(step).set_params(feature_name_combiner=lambda column, category: column)
        names = list(getattr(step, "feature_names_in_", [f"x{i}" for i in range(len(origins))]))
        origins = origins[[names.index(name) for name in plain.get_feature_names_out()]]
    elif isinstance(step, KBinsDiscretizer) and step.encode != "ordinal":
        origins = np.repeat(origins, step.n_bins_)
    elif isinstance(step, SimpleImputer) and step.add_indicator:
        origins = np.concatenate([origins, origins[step.indicator_.features_]])
    elif len(set(origins.tolist())) == 1 and made is not None:
        origins = np.repeat(origins[:1], made)
    elif isinstance(step, FunctionTransformer):
        made = len(origins) if step.func is None or isinstance(step.func, np.ufunc) else -1
    elif not isinstance(step, str | SimpleImputer | OneToOneFeatureMixin) or type(step).__name__ in _OVER_ROWS:
        made = -1
    if made is not None and len(origins) != made:
        raise MixedColumnsError(
            f"{type(step).__name__} combines several of your columns, so that values cannot be added up for yours; use"
            " FeatureAblation"
        )
    return origins


_USUAL = {"nsamples": "auto", "l1_reg": "num_features(10)"}


class HardenedShap(TableExplainer):
    """What the hardened explainers of shap share.

    `shap_values` returns hardened values in the shape of the native ones, and a call of the explainer a
    `HardenedExplanation`, which shap's plots draw. A repeated query gets the same answer, whatever the other rows of
    the batch. Threads may share an explainer.

    If the model has one output for two classes (boosters, linear models), each row's values are for its predicted
    class, or for `target`; natively, and with `Hardening.none()`, all are for class 1. If it has an output for each
    class, so have the values, and `target` picks one. If the output is a number, `direction` selects why it is as high
    as it is ("up") or as low. Each output of a row is hardened independently, but two outputs whose values are each
    other's negatives share their noise.

    Certificates are about the d values of a row for the predicted class; for others, a certified explainer returns NaN.
    Of a Pipeline, the last step is explained, and the values of all columns that other steps make of one user's column
    are added up.

    Args:
        background: the same as `data`, (n, d) public rows with which the values compare: all applicants, or those who
            just passed (`near_cutoff`). They are not released.
        hardening: of each row's and output's values; None: `Hardening.recommended(ordered=True)`.
        model_digest: at least 16 bytes that name the model and its version; None: taken from the model.
    """

    _entry = "shap_values"
    _libraries = ("shap",)
    _name: ClassVar[str]
    _explainer: Any
    _explained: Any
    _fitted: Any = None
    _entry_options: ClassVar[frozenset[str]]
    """Options of `shap_values` that only affect the estimation, and so not the noise."""
    _model_digest: bytes | None
    _encoded: Encoded | None = None
    _places: Sequence[int] | None = None
    """The class of each native output of a certified explainer."""

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        self.hardening = hardening_or_default(hardening, Hardening.recommended(ordered=True))
        self._model_digest = checked_digest(model_digest)
        self._explainer, self._explained = native, self._model_of(native)
        check_mode(self._explained)

    def __setstate__(self, state: dict[str, Any]) -> None:
        load("shap")
        self.__dict__.update(state)

    _model_of: Callable[[Any], Any]
    """The explained model of a native explainer, to which the noise is tied."""
    _settings: Callable[[], dict[str, Any]]
    """Arguments of the constructor, beside the model, on which the values depend."""
    _native_values: Callable[[Any, Mapping[str, Any], Values | None], tuple[Values, Any]]
    """Like `_run`, for the columns that the model itself takes."""

    _threshold: Any
    """Class 1 is predicted above it, if there is one output; None: the output is a number."""

    def _digest(self) -> bytes:
        return explained_digest(self._explained, self._model_digest)

    def _check_width(self, rows: Values) -> None:
        """InputError for rows of other columns than the model has."""

    def _values(
        self, X: Any, options: Mapping[str, Any], target: Any = None, direction: Direction | None = None
    ) -> Values:
        options = self._checked_options(options)
        if self._pinned is not None:
            return self._certified_values(X, options, target)
        categories = [c for c in getattr(X, "columns", ()) if str(X[c].dtype) == "category"]
        rows = self._rows(X.assign(**{c: X[c].cat.codes for c in categories}) if categories else X)
        self._check_width(rows)
        raw, base = self._run(X if categories else self._hashed(rows), options)
        if raw.ndim == 2:
            found = self._harden_single_output(raw, base, rows, target, direction)
        else:
            found = self._harden_outputs(raw, rows)
            if target is not None:
                found = _select_outputs(found, np.broadcast_to(target, len(rows)))
        return found[0] if np.ndim(X) == 1 else found

    def _run(self, rows: Any, options: Mapping[str, Any], outputs: Values | None = None) -> tuple[Values, Any]:
        """Native values, (n, d) or (n, d, outputs), of which `outputs` (n,) may pick one a row; and the base value."""
        if self._encoded is None:
            return self._native_values(rows, options, outputs)
        found, base = self._native_values(self._encoded.rows(rows), options, outputs)
        return self._encoded.summed(found), base

    def _harden_single_output(
        self, raw: Values, base: Any, rows: Values, target: Any, direction: Direction | None
    ) -> Values:
        if self.hardening.is_none and target is None and direction is None:
            return self._released(raw, rows, None)
        scores = raw.sum(axis=1) + np.asarray(base, dtype=np.float64).reshape(-1)[-1:]
        classes = explained_classes(
            scores, self._threshold, target=target, direction=direction, by=f"shap.{self._name}"
        )
        if orients_first(self.hardening):
            return self._released(oriented(raw, classes), rows, torch.from_numpy(classes))
        return oriented(self._released(raw, rows, None), classes)

    def _harden_outputs(self, raw: Values, rows: Values) -> Values:
        outputs = list(np.moveaxis(raw, -1, 0))
        released = [self._released(values, rows, j) for j, values in enumerate(outputs)]
        if len(released) == 2 and self.hardening.noise is not None:
            one, other = outputs
            twice = np.isclose(one, -other, rtol=1e-4, atol=1e-6 * np.abs(other).max(initial=0.0)).all(axis=1)
            released[0][twice] = -released[1][twice]
        return np.stack(released, axis=-1)

    def _released(self, values: Values, rows: Values, target: Any) -> Values:
        maps, instances = torch.from_numpy(np.array(values, dtype=np.float64)), torch.from_numpy(np.array(rows))
        watch().add(self._explained, self._name, (maps,), inputs=(instances,))
        query: dict[str, Any] = {}
        if self.hardening.noise is not None:
            query = {"inputs": (instances,), "target": target, "model_digest": self._digest(), "method": self._method()}
        return self.hardening(maps, **query).numpy().copy()

    def _method(self) -> str:
        return f"shap.{self._name} {json.dumps(self._settings(), sort_keys=True, default=str)}"

    def __call__(self, X: Any, *, target: Any = None, direction: Direction | None = None, **options: Any) -> Any:
        """A `HardenedExplanation`; options as of `shap_values`."""
        known = getattr(self._explainer, "data_feature_names", getattr(self._explainer, "feature_names", None))
        instances = np.array(dense(X))
        known = [f"Feature {i}" for i in range(instances.shape[-1])] if known is None else known
        names = getattr(X, "columns", known)
        values = self._values(X, options, target, direction)
        return _explanation()(values, data=instances, feature_names=[str(name) for name in names])

    def _hashed(self, rows: Values) -> Values:
        return rows if self.hardening.is_none else as_hashed(torch.from_numpy(np.array(rows))).numpy()

    def _checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that are on; RefusedError for one that is not hardened."""
        given = {k: v for k, v in options.items() if v is not None and (v is not False or k in self._entry_options)}
        if refused := sorted(given.keys() - self._entry_options):
            raise RefusedError(
                f"expected the options {', '.join(sorted(self._entry_options))}, got {', '.join(refused)}: only Shapley"
                " values of single features are released"
            )
        return given

    def _certified_values(self, X: Any, options: Mapping[str, Any], target: Any) -> Values:
        assert self._pinned is not None
        given = {k: v for k, v in options.items() if k not in self._no_options and v != _USUAL.get(k)}
        self._pinned.complete(self._signature(), given, self._no_options)
        rows = self._rows(X)
        self._check_width(rows)
        classes = self._pinned.classes_of(rows)
        if target is not None and not (np.broadcast_to(target, len(rows)) == classes).all():
            raise RefusedError(
                "expected the predicted class of each row, which the certificate is about: leave out target"
            )
        found = numbers = self._numbers_of(rows, classes, self._pinned.options)
        if target is None and (outputs := np.size(self._explainer.expected_value)) > 1:
            found = np.full((*numbers.shape, outputs), np.nan)
            found[np.arange(len(rows)), :, [self._output_of(c) for c in classes]] = numbers
        return np.asarray(found[0] if np.ndim(X) == 1 else found)

    def _output_of(self, target: int) -> int:
        if self._places is None:
            return target
        if target not in self._places:
            raise InputError(f"expected a class that the model was trained on, got {target}")
        return self._places.index(target)

    def _numbers_of(self, rows: Values, targets: Sequence[int], options: Mapping[str, Any]) -> Values:
        places = np.array([self._output_of(t) for t in targets], dtype=np.int64)
        own, _ = self._run(self._hashed(rows), self._checked_options(options), places)
        return self._released(own, rows, torch.tensor(list(targets)))


def _select_outputs(raw: Values, outputs: Values | None) -> Values:
    """All, or those for one class of each row (`outputs`)."""
    if outputs is None:
        return raw
    return oriented(raw, outputs) if raw.ndim == 2 else np.asarray(raw[np.arange(len(raw)), :, outputs])


def has_two_classes(model: Any) -> bool:
    """Whether a fitted scikit-learn model is a classifier of two classes."""
    return len(getattr(model, "classes_", ())) == 2


class _OfModel(HardenedShap):
    """Explainers that read the model itself, and so the last step of a Pipeline."""

    _needs_background = False
    _init_options, _entry_options = frozenset({"feature_names"}), frozenset({"check_additivity"})
    _no_options = frozenset({"self", "X", "y", "approximate", "check_additivity", "from_call"})

    @property
    def explains(self) -> str:
        """What the values add up to: "probability" or "log odds"."""
        return "log odds"

    def shap_values(
        self, X: ArrayLike, check_additivity: bool = True, *, target: Any = None, direction: Direction | None = None
    ) -> NDArray[np.float64]:
        """Hardened values, (n, d) or (n, d, outputs), as natively; (d,) or (d, outputs) for a single row.

        Args:
            X: (n, d) rows, or a row.
            check_additivity: whether shap checks its own arithmetic, if it can, before values are hardened.
            target: the explained class, or (n,) of them; values are then (n, d). None: the predicted class if there is
                one output for two classes, else each output.
            direction: "up" or "down", if the model returns a number; None: "up".

        Raises:
            InputError: X is no table of numbers, or has other columns than the model.
            ConfigurationError: a target without classes, or a direction with classes.
            RefusedError: of a certified explainer, another class than the predicted one.

        Warns:
            PredictedClassWarning: once, if the predicted class is explained.
        """
        return self._values(X, {"check_additivity": check_additivity}, target, direction)

    def _check_width(self, rows: Values) -> None:
        """Extra columns would change the noise but not the values; with missing ones C code would read past the end."""
        model = (self._fitted or self._explained) if self._encoded is None else self._encoded.module.estimator
        used = int(np.max(getattr(self._explainer.model, "features", -1), initial=-1)) + 1
        expected = _width(model) or max(used, rows.shape[1])
        if rows.shape[1] != expected:
            raise InputError(f"expected rows of {expected} features, as the model has, got {rows.shape}")

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        if not isinstance(forward, EstimatorModule):
            raise InputError(f"{cls._name} explains classifiers of tables, got {type(forward).__name__}")
        encoded = Encoded(forward)
        background = None if made.background is None else dense(encoded.rows(made.background))
        of, digest = cast("Any", cls), explained_digest(forward)
        explainer: Self = of(encoded.last, background, hardening=hardening, model_digest=digest, **made.made)
        explainer._encoded, explainer._places = encoded, forward.places().tolist()
        encoded.origins  # noqa: B018 - raises now, not at the first query
        return explainer


class HardenedTreeExplainer(_OfModel):
    """Hardened `shap.TreeExplainer`: exact Shapley values of forests and boosted trees. See `HardenedShap`.

    Without a background the values follow the paths of the training rows through the trees: they compare with all rows
    on the same path. With a `background`, `feature_perturbation` is "interventional". A certificate states
    `feature_names`, `model_output` and `feature_perturbation`, with or without public rows as `data`.

    Raises:
        InputError: shap does not know this kind of trees.
        RefusedError: `model_output` is a loss.
    """

    _name, _row = "TreeExplainer", CATALOG["TreeExplainer"]
    _init_options = frozenset({"feature_names", "model_output", "feature_perturbation"})

    def __init__(
        self,
        model: Any,
        data: Any = None,
        model_output: str = "raw",
        feature_perturbation: str = "auto",
        feature_names: Sequence[str] | None = None,
        *,
        background: Any = None,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None:
        shap = load("shap")
        if background is not None:
            data, feature_perturbation = background, "interventional"
        if model_output == "log_loss":
            raise RefusedError('expected model_output="raw", got "log_loss": explanations of a loss reveal members')
        try:
            native = shap.TreeExplainer(model, data, model_output, feature_perturbation, feature_names)
        except shap.utils._exceptions.InvalidModelError:
            raise InputError(
                f"expected a forest or boosted trees that shap knows, got {type(model).__name__}: use KernelExplainer"
            ) from None
        self._adopt(native, hardening, model_digest)
        self._fitted = model

    @property
    def explains(self) -> str:
        """As of `HardenedLinearExplainer`."""
        native = self._explainer
        return "probability" if "probability" in (native.model_output, native.model.tree_output) else "log odds"

    @cached_property
    def _threshold(self) -> float | None:
        if self.explains == "probability":
            return PROBABILITY
        return LOG_ODDS if self._explainer.model.tree_output == "log_odds" or has_two_classes(self._fitted) else None

    def _model_of(self, native: Any) -> Any:
        return getattr(native.model, "original_model", None) or native.model

    def _digest(self) -> bytes:
        if self._model_digest is not None:
            return self._model_digest
        ensemble = self._explainer.model
        if getattr(ensemble, "trees", None) is None:  # shap cannot read them, and calls the library
            return explained_digest(self._explained)
        digest = hashlib.blake2b(digest_size=32, person=b"shap trees")
        for name in ("children_left", "children_right", "features", "thresholds", "values", "base_offset"):
            part = np.asarray(getattr(ensemble, name, 0.0), dtype=np.float64)
            digest.update(repr((name, part.shape)).encode() + part.tobytes())
        return digest.digest()

    def _settings(self) -> dict[str, Any]:
        native = self._explainer
        return {
            "model_output": native.model_output,
            "feature_perturbation": native.feature_perturbation,
            "data": None if native.data is None else _background_digest(native.data),
        }

    def _native_values(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        native = copy.copy(self._explainer)  # a call writes to its attributes
        ensemble = native.model
        if ensemble.model_type != "xgboost":  # which takes gaps of a sparse row as missing
            rows = dense(rows)
        if ensemble.model_type == "internal" and native.feature_perturbation == "tree_path_dependent":
            k, missing = ensemble.num_outputs, _missing_children(ensemble, self._fitted)
            if k > 1 and outputs is not None:
                return path_values(ensemble, missing, rows, outputs), native.expected_value
            each = [path_values(ensemble, missing, rows, np.full(len(rows), j)) for j in range(k)]
            found = np.stack(each, axis=-1) if k > 1 else _select_outputs(each[0], outputs)
            return found, native.expected_value
        try:
            found = native.shap_values(rows, from_call=True, **options)
        except load("shap").utils._exceptions.ExplainerError as error:
            if "dditivity" not in str(error):
                raise
            raise InputError(  # shap's message holds the sum of the values and the model's output
                "shap's values do not add up to the model's output for some row; check_additivity=False releases them"
            ) from None
        found = np.stack(found, axis=-1) if isinstance(found, list) else np.asarray(found)
        return _select_outputs(found, outputs), native.expected_value


class HardenedLinearExplainer(_OfModel):
    """Hardened `shap.LinearExplainer`: Shapley values of a linear model's log odds, for independent features: a
    coefficient times the distance from a reference.

    The reference of an audit is the means of public rows, or without any, zeros in the columns that the model itself
    takes: the learned mean, if a scaler precedes it.

    Args:
        masker: (n, d) public rows, whose means count; or (means, covariances); None: zeros. All others as natively, and
            see `HardenedShap`.

    Raises:
        InputError: the model has no coefficients.
    """

    _name, _row = "LinearExplainer", CATALOG["LinearExplainer"]

    def __init__(
        self,
        model: Any,
        masker: Any,
        feature_names: Sequence[str] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None:
        shap = load("shap")
        masker = np.zeros((1, _width(model) or 0)) if masker is None else masker
        try:
            native = shap.LinearExplainer(model, masker, feature_names=feature_names)
        except shap.utils._exceptions.InvalidModelError:
            raise InputError(f"expected a linear model, got {type(model).__name__}") from None
        self._adopt(native, hardening, model_digest)

    @cached_property
    def _threshold(self) -> float | None:
        return LOG_ODDS if has_two_classes(self._explained) else None

    def _model_of(self, native: Any) -> Any:
        return native.model

    def _settings(self) -> dict[str, Any]:
        return {"mean": _background_digest(self._explainer.mean)}

    def _native_values(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        found = np.asarray(self._explainer.shap_values(dense(rows)))
        return _select_outputs(found, outputs), self._explainer.expected_value


class HardenedKernelExplainer(HardenedShap):
    """Hardened `shap.KernelExplainer`: Shapley values of any model by a weighted regression.

    The samples of a row are drawn by its own generator, seeded like the noise from the key and the query. `data` are
    public rows, or `shap.kmeans` or `shap.sample` of these; see `HardenedShap`. A certificate states `feature_names`
    and `link`, with public rows as `data`, and the options `nsamples` and `l1_reg`.

    Warns:
        OpaqueModelWarning: no model is found behind the function, so the noise does not change when it does.
    """

    _name, _row = "KernelExplainer", CATALOG["KernelExplainer"]
    _init_options = frozenset({"feature_names", "link"})
    _no_options = frozenset({"self", "X", "silent", "gc_collect"})
    _kwargs_options = frozenset({"nsamples", "l1_reg"})
    _entry_options = _kwargs_options | {"silent", "gc_collect"}

    def __init__(
        self,
        model: Any,
        data: Any = None,
        feature_names: Sequence[str] | None = None,
        link: str = "identity",
        *,
        background: Any = None,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        data = data if background is None else background
        native = load("shap").KernelExplainer(model, data, feature_names, link, **kwargs)
        self._adopt(native, hardening, model_digest)

    def shap_values(
        self,
        X: ArrayLike,
        *,
        nsamples: int | str = "auto",
        l1_reg: str | float = "num_features(10)",
        silent: bool = False,
        gc_collect: bool = False,
        target: Any = None,
        direction: Direction | None = None,
    ) -> NDArray[np.float64]:
        """Hardened values, as of `HardenedTreeExplainer.shap_values`, without a progress bar.

        One output has two classes with the link "logit", if the function belongs to a classifier, or if its outputs for
        `data` are all from 0 to 1. `nsamples` is the number of model evaluations for a row, "auto" for 2 d + 2048;
        `l1_reg` is "num_features(k)", "aic", "bic" or a number.
        """
        options = {"nsamples": nsamples, "l1_reg": l1_reg, "gc_collect": gc_collect}
        return self._values(X, options, target, direction)

    @cached_property
    def _threshold(self) -> float | None:
        native = self._explainer
        if str(native.link) == "logit":
            return LOG_ODDS
        function = native.model.f
        owner = getattr(function, "__self__", None)
        if has_two_classes(owner):
            return PROBABILITY if function.__name__ == "predict" else LOG_ODDS
        if hasattr(owner, "predict") and not hasattr(owner, "classes_"):
            return None  # a regressor
        outputs = np.asarray(function(native.data.data), dtype=np.float64)
        return PROBABILITY if ((outputs >= 0) & (outputs <= 1)).all() else None

    def _model_of(self, native: Any) -> Any:
        return native.model.f

    def _settings(self) -> dict[str, Any]:
        native = self._explainer
        return {"link": str(native.link), "data": _background_digest(native.data.data, native.data.weights)}

    def _native_values(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        generators: Sequence[np.random.RandomState | None] = [None] * len(rows)  # NumPy's global one, as natively
        if not self.hardening.is_none:
            digest = b"" if self.hardening.noise is None else self._digest()
            instances = (torch.from_numpy(np.array(rows, dtype=np.float64)),)
            generators = seeded_generators(self.hardening, instances, digest, self._method())
        found = [] if generators else [np.zeros((0, rows.shape[1]))]
        for i, generator in enumerate(generators):
            with draw_from(generator):
                one = copy.copy(self._explainer).shap_values(rows[i : i + 1], **{**options, "silent": True})
            found.append(np.asarray(one))
        return _select_outputs(np.concatenate(found), outputs), self._explainer.expected_value

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        given = {**made.made, "feature_names": feature_names(made)}
        rows = made.background.copy()
        return cls(Predict(forward), rows, hardening=hardening, model_digest=explained_digest(forward), **given)


def _width(model: Any) -> int | None:
    """Number of columns that a model takes, if it states it."""
    for name in ("n_features_in_", "num_features", "num_feature"):
        try:
            found = getattr(model, name, None)
        except Exception:  # some libraries raise if they do not know
            continue
        if found is not None:
            return int(found() if callable(found) else found)
    return None


def _missing_children(ensemble: Any, model: Any) -> Values:
    """(trees, nodes) child of a missing number; shap does not read it from scikit-learn's forests."""
    found: Values = ensemble.children_default.copy()
    for k, one in enumerate(np.ravel(getattr(model, "estimators_", [model]))):
        if (left := getattr(getattr(one, "tree_", None), "missing_go_to_left", None)) is not None:
            found[k, : len(left)] = np.where(left, ensemble.children_left[k, : len(left)], found[k, : len(left)])
    return found


def _background_digest(*arrays: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        rows = np.asarray(dense(array))
        plain = rows.astype(np.float64) if rows.dtype.kind in "biuf" else rows.astype(str)
        digest.update(repr(plain.shape).encode() + plain.tobytes())
    return digest.hexdigest()


@cache
def _explanation() -> Any:
    shap = load("shap")

    class HardenedExplanation(shap.Explanation):  # type: ignore[misc, name-defined]
        """A `shap.Explanation` of hardened values, with a copy of the rows as `data`, and the names of the features.

        Plots draw one output of it: `[..., 1]`. Those that need a base value (waterfall, force) raise RefusedError.
        """

        @shap.Explanation.base_values.getter  # type: ignore[untyped-decorator]
        def base_values(self) -> Any:
            """None, or what you have set; RefusedError where a plot would start from it."""
            if self._s.base_values is None and _is_drawn():
                raise RefusedError(
                    "this plot needs a base value, and a hardened explanation has none: draw"
                    " shap.plots.bar(explanation), or list the reasons by TopKSet.reasons"
                )
            return self._s.base_values

        @shap.Explanation.values.getter  # type: ignore[untyped-decorator]
        def values(self) -> Any:
            """The hardened values; RefusedError where a plot would draw several outputs at once."""
            values, rows = self._s.values, self._s.data
            if rows is not None and np.ndim(values) > np.ndim(rows) and _is_drawn():
                raise RefusedError(f"expected values of one output, got {values.shape[-1]}: draw explanation[..., 1]")
            return values

        def __copy__(self) -> Any:
            copied = super().__copy__()  # of shap's own class
            copied.__class__ = HardenedExplanation
            return copied

    HardenedExplanation.__qualname__ = "HardenedExplanation"  # where pickle looks for it
    return HardenedExplanation


def __getattr__(name: str) -> Any:
    if name != "HardenedExplanation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _explanation()


def _is_drawn() -> bool:
    return bool(sys._getframe(2).f_globals.get("__name__", "").startswith("shap.plots."))


SHAP: Mapping[str, type[HardenedShap]] = {
    kind._name: kind for kind in (HardenedTreeExplainer, HardenedLinearExplainer, HardenedKernelExplainer)
}
"""shap's name of an explainer -> the hardened class."""


# Shapley values of trees along the paths of their training rows, as shap's TreeExplainer computes them, faster


def path_values(ensemble: Any, missing: Values, rows: Values, outputs: Values) -> Values:
    """Shapley values (n, d) of rows (n, d) of a shap `TreeEnsemble` for one output of each, (n,), up to rounding those
    of shap. `missing` is (trees, nodes) the child of a row whose number is NaN.

    A leaf with value v, on whose path m features are split, gives feature j (arXiv 1802.03888, algorithm 1)

        v (o_j - z_j) * sum over subsets S of the others of |S|! (m - |S| - 1)! / m! * prod_{S} o_k * prod_{others} z_k

    where o_k is 1 if the row takes every split on k along the path, else 0, and z_k is the share of the training rows
    that take them. Since s! (m - s - 1)! / m! is the integral of t^s (1 - t)^(m - s - 1) over [0, 1], this is

        v (o_j - z_j) * integral of prod_{k != j} (o_k t + z_k (1 - t)) dt

    of a polynomial of degree m - 1, which Gauss-Legendre quadrature with m / 2 points computes exactly: products are
    passed down a tree, and sums over its leaves back up.
    """
    rules = _rules(min(int(ensemble.max_depth), rows.shape[1]) // 2 + 1)
    trees = (ensemble.children_left, ensemble.children_right, missing, ensemble.features, ensemble.thresholds)
    x, compiled = np.ascontiguousarray(rows, dtype=ensemble.input_dtype), _compiled()
    parts = np.array_split(np.arange(len(x)), max(1, min(torch.get_num_threads(), len(x) // 16)))
    args = (*trees, ensemble.node_sample_weight, ensemble.values, *rules)
    with ThreadPoolExecutor(len(parts)) as pool:
        return np.concatenate(list(pool.map(lambda part: compiled(x[part], outputs[part], *args), parts)))


@cache
def _rules(most: int) -> tuple[Values, Values]:
    """Gauss-Legendre points and weights on [0, 1]; row q has the rule with q points."""
    points, weights = np.zeros((2, most + 1, most))
    for q in range(1, most + 1):
        t, w = roots_legendre(q)
        points[q, :q], weights[q, :q] = (t + 1) / 2, w / 2
    return points, weights


@cache
def _compiled() -> Callable[..., Values]:
    njit: Any = import_module("numba").njit  # which comes with shap
    compiled: Callable[..., Values] = njit(_values, nogil=True, fastmath={"contract", "reassoc", "nsz"})
    return compiled


def _values(
    x: Values,
    outputs: Values,
    lefts: Values,
    rights: Values,
    missing: Values,
    features: Values,
    thresholds: Values,
    covers: Values,
    values: Values,
    points: Values,
    weights: Values,
) -> Values:
    """The compiled loop. A parent has a smaller number than its children.

    States of a node's edge: 0, the row leaves its path here; 1, it takes it; 2, it has left at an earlier split on the
    same feature, so nothing is left to give. `factor` multiplies the product along an edge, `given` is what its feature
    gets of each product below it.
    """
    found = np.zeros(x.shape)
    size = lefts.shape[1]
    parent, same, state = np.zeros((3, size), np.int64)
    deep = np.zeros(size, np.int64)
    share, ratio = np.ones((2, size))
    for k in range(lefts.shape[0]):
        left, right, feature = lefts[k], rights[k], features[k]
        end, longest = 1, 0
        for p in range(size):
            if p < end and left[p] >= 0:
                for c in (left[p], right[p]):
                    end, parent[c], a = max(end, c + 1), p, p
                    while a > 0 and feature[parent[a]] != feature[p]:
                        a = parent[a]
                    same[c] = a  # the node below the last split on this feature; 0: there is none
                    ratio[c] = covers[k, c] / covers[k, p]  # shap refuses trees with none
                    share[c] = ratio[c] * share[a]
                    deep[c] = deep[p] + (a == 0)
                    longest = max(longest, deep[c])
        q = (longest + 1) // 2
        product, factor, given = np.empty((end, q)), np.empty((3, end, q)), np.zeros((3, end, q))
        for c in range(1, end):
            a = same[c]
            for i in range(q):
                t, rest = points[q, i], 1 - points[q, i]
                now = t + share[c] * rest
                before = t + share[a] * rest  # 1 at the root
                so_far = (1 - share[a]) / before
                factor[0, c, i], factor[1, c, i], factor[2, c, i] = share[c] * rest / before, now / before, ratio[c]
                given[0, c, i] = weights[q, i] * (-1 / rest - so_far)
                given[1, c, i] = weights[q, i] * ((1 - share[c]) / now - so_far)
        for j in range(x.shape[0]):
            for i in range(q):
                product[0, i] = 1.0
            for p in range(end):
                if left[p] < 0:
                    value = values[k, p, outputs[j]]
                    for i in range(q):
                        product[p, i] *= value
                    continue
                number = x[j, feature[p]]
                goes = missing[k, p] if np.isnan(number) else (left[p] if number <= thresholds[k, p] else right[p])
                for c in (left[p], right[p]):
                    state[c] = 2 if same[c] > 0 and state[same[c]] != 1 else int(c == goes)
                    for i in range(q):
                        product[c, i] = product[p, i] * factor[state[c], c, i]
                for i in range(q):
                    product[p, i] = 0.0  # from here on the sum over the leaves below it
            for c in range(end - 1, 0, -1):
                p, gets = parent[c], 0.0
                for i in range(q):
                    gets += given[state[c], c, i] * product[c, i]
                    product[p, i] += product[c, i]
                found[j, feature[p]] += gets
    return found
