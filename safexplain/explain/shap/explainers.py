"""`shap.TreeExplainer`, `shap.LinearExplainer` and `shap.KernelExplainer`, hardened.

Sources: Lundberg, Erion, Lee: Consistent Individualized Feature Attribution for Tree Ensembles, arXiv 1802.03888;
Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from safexplain._digest import explained_digest
from safexplain._validate import checked_digest
from safexplain.errors import InputError, RefusedError
from safexplain.explain.captum.model_checks import check_mode
from safexplain.explain.catalog import CATALOG
from safexplain.explain.libraries import draw_from, load, seeded_generators
from safexplain.explain.orientation import (
    Direction,
    decided,
    speaking_for,
    threshold_of_function,
    threshold_of_linear,
    threshold_of_trees,
    turns_first,
)
from safexplain.explain.shap.pipelines import Encoded
from safexplain.explain.shap.trees import path_values
from safexplain.explain.tables import MadeOf, OfTables, Predict, feature_names
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import as_hashed
from safexplain.native_maps import watch
from safexplain.outputs import EstimatorModule

__all__ = ["HardenedKernelExplainer", "HardenedLinearExplainer", "HardenedShap", "HardenedTreeExplainer"]

Values = NDArray[Any]

_USUAL = {"nsamples": "auto", "l1_reg": "num_features(10)"}
"""What options of the kernel method are where they are left out."""


class HardenedShap(OfTables):
    """What the hardened explainers of shap share.

    `shap_values` gives hardened values in the shape of the native ones, and a call of the explainer a
    `HardenedExplanation`, which shap's plots draw. Nothing else of the native explainer can be read: `expected_value`
    is an AttributeError. Asking again gives the same answer, whatever the other rows of the batch are. Threads may
    share an explainer.

    Values speak for the decision that was made. Where the model has one output for two classes (boosters, linear
    models), each row's values are in favour of the class that is predicted for it, or of `target`; natively all are in
    favour of class 1. Where it has an output for each class, so have the values, and `target` picks one. Of a number,
    `direction` says whether they tell why it is as high as it is ("up") or as low. With `Hardening.none()` values are
    the native ones, unless a class is named.

    Each output of a row is hardened by itself. Where the values of two outputs are each other's negatives and there is
    noise, they share it, for two answers to one question would average it.

    Certificates are about the predicted class: the numbers of a row are the d values of that class, and they are what
    a service releases. A certified explainer gives NaN for the outputs of all other classes. Of a Pipeline, its last
    step is explained, and the values of all columns that the other steps make of one of the user's are added up.

    All take what the native classes take, and:

    Args:
        background: the same as `data`, (n, d) rows that features are replaced from: public ones. The values compare
            with them: all applicants, or those who just passed (`near_cutoff`), as the commentary on Regulation B puts
            it. Nothing of them leaves but what the values tell.
        hardening: of the values of each row and output; None for `Hardening.recommended(ordered=True)`.
        model_digest: 16 bytes or more that name the model and its version; None: what can be seen of the model does.

    Raises:
        MissingExtraError: shap is not installed.
    """

    _entry = "shap_values"
    _libraries = ("shap",)
    _name: ClassVar[str]
    _explainer: Any
    _explained: Any
    _fitted: Any = None
    """The model itself, where the explainer was made from it."""
    _takes: ClassVar[frozenset[str]]
    """Options of `shap_values`: how well the values are estimated, which changes neither the question nor its noise."""
    _model_digest: bytes | None
    _encoded: Encoded | None = None
    """Of a classifier that is audited: what its last step takes."""
    _places: Sequence[int] | None = None
    """Of a certified explainer: the class that each native output is about."""

    @classmethod
    def around(cls, native: Any, hardening: Hardening | None = None, model_digest: bytes | None = None) -> Self:
        """The hardened version of a native explainer, which it holds from then on."""
        self = cls.__new__(cls)
        self._adopt(native, hardening, model_digest)
        return self

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None) -> None:
        self.hardening = hardening_or_default(hardening, ordered=True)
        self._model_digest = checked_digest(model_digest)
        self._explainer, self._explained = native, self._model_of(native)
        check_mode(self._explained)

    if not TYPE_CHECKING:  # a type checker refuses other names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """For what the native explainer has and this one has not."""
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: only hardened values leave it, by shap_values(X) or"
                " explainer(X).values. With a base value they would add up to the model's output"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        load("shap")
        self.__dict__.update(state)

    def _model_of(self, native: Any) -> Any:
        """What is explained, for the noise to be tied to."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """What the explainer was made with and its values depend on, beside the model."""
        raise NotImplementedError

    def _of_columns(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        """What `_run` gives, for the columns that the model itself takes."""
        raise NotImplementedError

    @cached_property
    def _threshold(self) -> float | None:
        """Above which a single output predicts class 1; None: it is a number."""
        raise NotImplementedError

    def _digest(self) -> bytes:
        return explained_digest(self._explained, self._model_digest)

    def _check_width(self, rows: Values) -> None:
        """InputError for rows of other columns than the model has."""

    def _values(
        self, X: Any, options: Mapping[str, Any], target: Any = None, direction: Direction | None = None
    ) -> Values:
        """See `_OfModel.shap_values`; `options` as natively, those in `_takes`, all others off: None or False."""
        options = self._checked(options)
        if self._pinned is not None:
            return self._certified(X, options, target)
        categories = [c for c in getattr(X, "columns", ()) if str(X[c].dtype) == "category"]
        rows = self._rows(X.assign(**{c: X[c].cat.codes for c in categories}) if categories else X)
        self._check_width(rows)
        raw, base = self._run(X if categories else self._hashed(rows), options)
        if raw.ndim == 2:
            found = self._of_one(raw, base, rows, target, direction)
        else:
            found = self._of_each(raw, rows)
            if target is not None:
                found = _of_outputs(found, np.broadcast_to(target, len(rows)))
        return found[0] if np.ndim(X) == 1 else found

    def _run(self, rows: Any, options: Mapping[str, Any], outputs: Values | None = None) -> tuple[Values, Any]:
        """Native values: (n, d), or (n, d, outputs), of which `outputs` (n,) may pick one for each row; and what they
        are added to, to give the output."""
        if self._encoded is None:
            return self._of_columns(rows, options, outputs)
        found, base = self._of_columns(self._encoded.rows(rows), options, outputs)
        return self._encoded.summed(found), base

    def _of_one(self, raw: Values, base: Any, rows: Values, target: Any, direction: Direction | None) -> Values:
        """(n, d) hardened of one output."""
        if self.hardening.is_none and target is None and direction is None:
            return self._released(raw, rows, None)
        scores = raw.sum(axis=1) + np.asarray(base, dtype=np.float64).reshape(-1)[-1:]
        classes = decided(scores, self._threshold, target=target, direction=direction, by=f"shap.{self._name}")
        if turns_first(self.hardening):
            return self._released(speaking_for(raw, classes), rows, torch.from_numpy(classes))
        return speaking_for(self._released(raw, rows, None), classes)

    def _of_each(self, raw: Values, rows: Values) -> Values:
        """(n, d, outputs) hardened."""
        outputs = list(np.moveaxis(raw, -1, 0))
        released = [self._released(values, rows, j) for j, values in enumerate(outputs)]
        if len(released) == 2 and self.hardening.noise is not None:
            one, other = outputs
            twice = np.isclose(one, -other, rtol=1e-4, atol=1e-6 * np.abs(other).max(initial=0.0)).all(axis=1)
            released[0][twice] = -released[1][twice]
        return np.stack(released, axis=-1)

    def _released(self, values: Values, rows: Values, target: Any) -> Values:
        """(n, d) hardened."""
        maps, asked = torch.from_numpy(np.array(values, dtype=np.float64)), torch.from_numpy(rows)
        watch().add(self._explained, self._name, (maps,), inputs=(asked,))
        query: dict[str, Any] = {}
        if self.hardening.noise is not None:
            query = {"inputs": (asked,), "target": target, "model_digest": self._digest(), "method": self._method()}
        return self.hardening(maps, **query).numpy().copy()

    def _method(self) -> str:
        return f"shap.{self._name} {json.dumps(self._settings(), sort_keys=True, default=str)}"

    def __call__(self, X: Any, *, target: Any = None, direction: Direction | None = None, **options: Any) -> Any:
        """A `HardenedExplanation`; options as of `shap_values`."""
        known = getattr(self._explainer, "data_feature_names", getattr(self._explainer, "feature_names", None))
        asked = X.toarray() if hasattr(X, "toarray") else np.array(X)
        names = getattr(X, "columns", known if known is not None else [f"Feature {i}" for i in range(asked.shape[-1])])
        values = self._values(X, options, target, direction)
        return _explanation()(values, data=asked, feature_names=[str(name) for name in names])

    def _hashed(self, rows: Values) -> Values:
        return rows if self.hardening.is_none else as_hashed(torch.from_numpy(rows)).numpy()

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, but for those that are off; RefusedError where one is not hardened."""
        given = {k: v for k, v in options.items() if v is not None and (v is not False or k in self._takes)}
        if refused := sorted(given.keys() - self._takes):
            raise RefusedError(
                f"{', '.join(refused)}: only Shapley values of single features are released, with the options"
                f" {', '.join(sorted(self._takes))}. To add up the columns of a variable, give the hardening Features"
            )
        return given

    def _certified(self, X: Any, options: Mapping[str, Any], target: Any) -> Values:
        assert self._pinned is not None
        given = {k: v for k, v in options.items() if k not in self._fixed and v != _USUAL.get(k)}
        self._pinned.complete(self._signature(), given, self._fixed)
        rows = self._rows(X)
        self._check_width(rows)
        classes = self._pinned.classes_of(rows)
        if target is not None and not (np.broadcast_to(target, len(rows)) == classes).all():
            raise RefusedError("the certificate is about the predicted class of each row: leave out target")
        found = numbers = self._numbers_of(rows, classes, self._pinned.options)
        if target is None and (outputs := np.size(self._explainer.expected_value)) > 1:
            found = np.full((*numbers.shape, outputs), np.nan)
            found[np.arange(len(rows)), :, [self._place(c) for c in classes]] = numbers
        return np.asarray(found[0] if np.ndim(X) == 1 else found)

    def _place(self, target: int) -> int:
        """The native output about a class."""
        if self._places is None:
            return target
        if target not in self._places:
            raise InputError(f"the model has never seen class {target}, and its values cannot be told")
        return self._places.index(target)

    def _numbers_of(self, rows: Values, targets: Sequence[int], options: Mapping[str, Any]) -> Values:
        places = np.array([self._place(t) for t in targets], dtype=np.int64)
        own, _ = self._run(self._hashed(rows), self._checked(options), places)
        return self._released(own, rows, torch.tensor(list(targets)))


def _of_outputs(raw: Values, outputs: Values | None) -> Values:
    """Of native values, all, or of each row those in favour of one class."""
    if outputs is None:
        return raw
    return speaking_for(raw, outputs) if raw.ndim == 2 else np.asarray(raw[np.arange(len(raw)), :, outputs])


class _OfModel(HardenedShap):
    """Explainers that read the model itself, and so the last step of a Pipeline."""

    _needs = False
    _makes, _takes = frozenset({"feature_names"}), frozenset({"check_additivity"})
    _fixed = frozenset({"self", "X", "y", "approximate", "check_additivity", "from_call"})

    @property
    def explains(self) -> str:
        """What the values add up to: "probability" or "log odds"."""
        return "log odds"

    def shap_values(
        self, X: ArrayLike, check_additivity: bool = True, *, target: Any = None, direction: Direction | None = None
    ) -> NDArray[np.float64]:
        """Hardened values, (n, d) or (n, d, outputs), as natively; of one row (d,), without the first axis.

        Args:
            X: (n, d) rows, or a row.
            check_additivity: whether shap checks its own arithmetic, where it has any, before values are hardened.
            target: the class that values speak for, or (n,) of them; values are then (n, d). None: of one output for
                two classes the predicted one, else each output's.
            direction: "up" or "down", where the model gives a number; None: "up".

        Raises:
            InputError: X is no table of numbers, or has other columns than the model.
            ConfigurationError: a target where there are no classes, or a direction where there are.
            RefusedError: of a certified explainer, a class that is not the predicted one.

        Warns:
            PredictedClassWarning: once, where the predicted class decides.
        """
        return self._values(X, {"check_additivity": check_additivity}, target, direction)

    def _check_width(self, rows: Values) -> None:
        """Columns too many would change the noise and not the values; of too few, C code would read what is beside."""
        model = (self._fitted or self._explained) if self._encoded is None else self._encoded.module.estimator
        used = int(np.max(getattr(self._explainer.model, "features", -1), initial=-1)) + 1
        expected = _width(model) or max(used, rows.shape[1])
        if rows.shape[1] != expected:
            raise InputError(f"expected rows of {expected} features, as the model has, got {rows.shape}")

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        if not isinstance(forward, EstimatorModule):
            raise InputError(f"{cls._name} explains classifiers of tables, got {type(forward).__name__}")
        encoded = Encoded(forward)
        background = None if made.background is None else _dense(encoded.rows(made.background.rows))
        of, digest = cast("Any", cls), explained_digest(forward)
        explainer: Self = of(encoded.last, background, hardening=hardening, model_digest=digest, **made.made)
        explainer._encoded, explainer._places = encoded, forward.places().tolist()
        encoded.origins  # noqa: B018 - an error now, and not with the first question
        return explainer


class HardenedTreeExplainer(_OfModel):
    """Hardened `shap.TreeExplainer`: Shapley values of trees, exactly, and hardened.

    For forests and boosted trees of scikit-learn, XGBoost, LightGBM and whatever else shap reads. Without a background
    the values follow the paths of the training rows through the trees: they compare with all who went the same way.
    With a `background`, `feature_perturbation` is "interventional". See `HardenedShap`.

    A certificate knows `feature_names`, `model_output` and `feature_perturbation`, with or without public rows as
    `data`. Interactions, Saabas' approximation, some of the trees and the explanation of a loss are not hardened.

    Raises:
        InputError: shap does not know this kind of trees.
        RefusedError: a loss is to be explained.
    """

    _name, _row = "TreeExplainer", CATALOG["TreeExplainer"]
    _makes = frozenset({"feature_names", "model_output", "feature_perturbation"})

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
            raise RefusedError('model_output="log_loss" explains a loss, which tells members: explain "raw"')
        try:
            native = shap.TreeExplainer(model, data, model_output, feature_perturbation, feature_names)
        except shap.utils._exceptions.InvalidModelError:
            raise InputError(
                f"TreeExplainer explains forests and boosted trees, and {type(model).__name__} is none that shap"
                " knows: use KernelExplainer, which explains any model"
            ) from None
        self._adopt(native, hardening, model_digest)
        self._fitted = model

    @property
    def explains(self) -> str:
        """See `_OfModel.explains`."""
        native = self._explainer
        return "probability" if "probability" in (native.model_output, native.model.tree_output) else "log odds"

    @cached_property
    def _threshold(self) -> float | None:
        return threshold_of_trees(self._explainer, self._fitted)

    def _model_of(self, native: Any) -> Any:
        return getattr(native.model, "original_model", None) or native.model

    def _digest(self) -> bytes:
        if self._model_digest is not None:
            return self._model_digest
        ensemble = self._explainer.model
        if getattr(ensemble, "trees", None) is None:  # shap could not read them, and asks the library
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
            "data": None if native.data is None else _named(native.data),
        }

    def _of_columns(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        native = copy.copy(self._explainer)  # a call writes to its attributes
        ensemble = native.model
        if ensemble.model_type != "xgboost":  # which takes what a sparse row leaves out as missing
            rows = _dense(rows)
        if ensemble.model_type == "internal" and native.feature_perturbation == "tree_path_dependent":
            k, missing = ensemble.num_outputs, _missing(ensemble, self._fitted)
            if k > 1 and outputs is not None:
                return path_values(ensemble, missing, rows, outputs), native.expected_value
            each = [path_values(ensemble, missing, rows, np.full(len(rows), j)) for j in range(k)]
            found = np.stack(each, axis=-1) if k > 1 else _of_outputs(each[0], outputs)
            return found, native.expected_value
        try:
            found = native.shap_values(rows, from_call=True, **options)
        except load("shap").utils._exceptions.ExplainerError as error:
            if "dditivity" not in str(error):
                raise
            raise InputError(  # shap's message tells the sum of the values and the model's output
                "shap's values do not add up to the model's output for some row, as happens with numbers that float32"
                " does not hold, or feature_perturbation; check_additivity=False releases them all the same"
            ) from None
        found = np.stack(found, axis=-1) if isinstance(found, list) else np.asarray(found)
        return _of_outputs(found, outputs), native.expected_value


class HardenedLinearExplainer(_OfModel):
    """Hardened `shap.LinearExplainer`: Shapley values of a linear model, a coefficient times the way from a reference.

    They are of the log odds, where features are independent. An audit's reference are the means of public rows, or,
    without any, zeros in the columns that the model itself takes: behind a scaler, the mean that it learned.

    Args:
        masker: (n, d) rows, of which the means count: public ones; or (means, covariances); None: zeros. All others as
            natively, and see `HardenedShap`.

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
            raise InputError(f"LinearExplainer explains linear models, and {type(model).__name__} is none") from None
        self._adopt(native, hardening, model_digest)

    @cached_property
    def _threshold(self) -> float | None:
        return threshold_of_linear(self._explained)

    def _model_of(self, native: Any) -> Any:
        return native.model

    def _settings(self) -> dict[str, Any]:
        return {"mean": _named(self._explainer.mean)}

    def _of_columns(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        found = np.asarray(self._explainer.shap_values(_dense(rows)))
        return _of_outputs(found, outputs), self._explainer.expected_value


class HardenedKernelExplainer(HardenedShap):
    """Hardened `shap.KernelExplainer`: Shapley values of any model by a weighted regression, hardened.

    The samples of a row are drawn by a generator of its own that is seeded, as the noise is, from the key and what is
    asked; NumPy's global one is neither read nor moved, except with `Hardening.none()`, as natively.

    A certificate knows `feature_names` and `link`, with public rows as `data`, and the options `nsamples` and `l1_reg`.
    Arguments as natively, and see `HardenedShap`: `data` are public rows, or `shap.kmeans` or `shap.sample` of such.

    Warns:
        OpaqueModelWarning: no model is found behind the function, so that the noise does not change when it does.
    """

    _name, _row = "KernelExplainer", CATALOG["KernelExplainer"]
    _makes = frozenset({"feature_names", "link"})
    _fixed = frozenset({"self", "X", "silent", "gc_collect"})
    _more, _takes = frozenset({"nsamples", "l1_reg"}), frozenset({"nsamples", "l1_reg", "silent", "gc_collect"})

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
        """Hardened values, as of `HardenedTreeExplainer.shap_values`; there is no progress bar.

        One output is about classes with the link "logit", where the function belongs to a classifier, or where it gives
        numbers from 0 to 1 for all of `data`.

        Args:
            X: (n, d) rows, or a row.
            nsamples: how often the model is asked about a row; "auto" for 2 d + 2048.
            l1_reg: "num_features(k)", "aic", "bic" or a number.
            silent: as natively.
            gc_collect: as natively.
            target: as of `HardenedTreeExplainer`.
            direction: as of `HardenedTreeExplainer`.
        """
        options = {"nsamples": nsamples, "l1_reg": l1_reg, "gc_collect": gc_collect}
        return self._values(X, options, target, direction)

    @cached_property
    def _threshold(self) -> float | None:
        return threshold_of_function(self._explainer)

    def _model_of(self, native: Any) -> Any:
        return native.model.f

    def _settings(self) -> dict[str, Any]:
        native = self._explainer
        return {"link": str(native.link), "data": _named(native.data.data, native.data.weights)}

    def _of_columns(self, rows: Any, options: Mapping[str, Any], outputs: Values | None) -> tuple[Values, Any]:
        generators: Sequence[np.random.RandomState | None] = [None] * len(rows)  # NumPy's global one, as natively
        if not self.hardening.is_none:
            digest = b"" if self.hardening.noise is None else self._digest()
            asked = (torch.from_numpy(np.asarray(rows, dtype=np.float64)),)
            generators = seeded_generators(self.hardening, asked, digest, self._method())
        found = [np.zeros((0, rows.shape[1]))] if not generators else []
        for i, generator in enumerate(generators):
            with draw_from(generator):
                one = copy.copy(self._explainer).shap_values(rows[i : i + 1], **{**options, "silent": True})
            found.append(np.asarray(one))
        return _of_outputs(np.concatenate(found), outputs), self._explainer.expected_value

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        assert made.background is not None
        given = {**made.made, "feature_names": feature_names(made)}
        rows = made.background.rows.copy()
        return cls(Predict(forward), rows, hardening=hardening, model_digest=explained_digest(forward), **given)


def _width(model: Any) -> int | None:
    """How many columns trees take; None where they do not say."""
    for name in ("n_features_in_", "num_features", "num_feature"):
        try:
            found = getattr(model, name, None)
        except Exception:  # of a library, where it does not know
            continue
        if found is not None:
            return int(found() if callable(found) else found)
    return None


def _dense(rows: Any) -> Any:
    return rows.toarray() if hasattr(rows, "toarray") else rows


def _missing(ensemble: Any, model: Any) -> Values:
    """(trees, nodes) where a missing number goes: of scikit-learn's forests, shap does not read it."""
    found: Values = ensemble.children_default.copy()
    for k, one in enumerate(np.ravel(getattr(model, "estimators_", [model]))):
        if (left := getattr(getattr(one, "tree_", None), "missing_go_to_left", None)) is not None:
            found[k, : len(left)] = np.where(left, ensemble.children_left[k, : len(left)], found[k, : len(left)])
    return found


def _named(*arrays: Any) -> str:
    """A digest of a background."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        dense = np.asarray(array.toarray() if hasattr(array, "toarray") else array)
        plain = dense.astype(np.float64) if dense.dtype.kind in "biuf" else dense.astype(str)
        digest.update(repr(plain.shape).encode() + plain.tobytes())
    return digest.hexdigest()


@cache
def _explanation() -> Any:
    """The class of what a call of an explainer returns."""
    shap = load("shap")

    class HardenedExplanation(shap.Explanation):  # type: ignore[misc, name-defined]
        """A `shap.Explanation` of hardened values, with a copy of the rows as `data`, and the names of the features.

        shap's bar, beeswarm, heatmap, scatter and violin plots draw one output of it: `[..., 1]`. Waterfall and force
        plots raise RefusedError: they add values up from a base value, which is not released, to the model's output.
        """

        @shap.Explanation.base_values.getter  # type: ignore[untyped-decorator]
        def base_values(self) -> Any:
            """None, or what you have set; RefusedError where a plot would start from it."""
            if self._s.base_values is None and _is_drawn():
                raise RefusedError(
                    "this plot needs a base value, and a hardened explanation has none: its values rank the features,"
                    " and do not add up to the model's output. Draw shap.plots.bar(explanation), or name the reasons by"
                    " TopKSet.reasons or Features.reasons"
                )
            return self._s.base_values

        @shap.Explanation.values.getter  # type: ignore[untyped-decorator]
        def values(self) -> Any:
            """The hardened values; RefusedError where a plot would draw those of several outputs at once."""
            values, rows = self._s.values, self._s.data
            if rows is not None and np.ndim(values) > np.ndim(rows) and _is_drawn():
                raise RefusedError(
                    f"expected the values of one output, got those of {values.shape[-1]}: draw explanation[..., 1] for"
                    " class 1, or explain one class, explainer(X, target=1)"
                )
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
    """Whether a plot of shap reads the property that calls this."""
    return bool(sys._getframe(2).f_globals.get("__name__", "").startswith("shap.plots."))
