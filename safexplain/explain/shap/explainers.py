"""`shap.TreeExplainer` and `shap.KernelExplainer`, hardened.

Sources: Lundberg, Erion, Lee: Consistent Individualized Feature Attribution for Tree Ensembles, arXiv 1802.03888;
Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._digest import checked_digest, explained_digest
from safexplain._validate import whole_number
from safexplain.errors import InputError, RefusedError
from safexplain.explain.alibi.library import draw_from
from safexplain.explain.captum.model_checks import check_mode
from safexplain.explain.catalog import CATALOG
from safexplain.explain.shap.library import load_shap
from safexplain.explain.tables import MadeOf, OfTables, Predict, feature_names
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import as_hashed, query_seeds, resolve_key
from safexplain.native_maps import watch
from safexplain.outputs import EstimatorModule

__all__ = ["HardenedKernelExplainer", "HardenedShap", "HardenedTreeExplainer"]

Values = NDArray[Any]

_DRAWN = ("nsamples", "l1_reg", "silent", "gc_collect", "check_additivity")
"""Options that say how well the values are estimated, and change neither the question nor its noise."""


class HardenedShap(OfTables):
    """What the hardened explainers of shap share.

    `shap_values` gives hardened values in the shape of the native ones, and a call of the explainer a new
    `shap.Explanation` with those values and the names of the features; its `base_values` and `data` are None. Nothing
    else of the native explainer can be read: `expected_value` is an AttributeError. Asking again gives the same answer,
    whatever the other rows of the batch are. Threads may share an explainer.

    Each output of a row is hardened by itself. Where the values of two outputs are each other's negatives and there is
    noise, they share it, for two answers to one question would average it.

    Certificates are about the predicted class: the numbers of a row are the d values of that class, and they are what
    a service releases. A certified explainer gives NaN for all other classes.

    Attributes:
        hardening: what is done to the values of each row and output.
    """

    hardening: Hardening
    _entry = "shap_values"
    _libraries = ("shap",)
    _name: ClassVar[str]
    _explainer: Any
    _explained: Any
    _model_digest: bytes | None
    _places: Sequence[int] | None = None
    """Of a certified explainer: the class that each native output is about."""

    @classmethod
    def around(cls, native: Any, hardening: Hardening | None = None, model_digest: bytes | None = None) -> Self:
        """The hardened version of a native explainer, which it holds from then on."""
        self = cls.__new__(cls)
        self._adopt(native, hardening, model_digest)
        return self

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None) -> None:
        self.hardening, self._model_digest = hardening_or_default(hardening), checked_digest(model_digest)
        self._explainer, self._explained = native, self._model_of(native)
        check_mode(self._explained)

    if not TYPE_CHECKING:  # a type checker refuses other names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """For what the native explainer has and this one has not."""
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: only hardened values leave it, by shap_values(X) or"
                " explainer(X).values. With a base value they would add up to the model's output"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hardening={vars(self).get('hardening')!r})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        load_shap()
        self.__dict__.update(state)

    # What an explainer of each kind says of itself.

    def _model_of(self, native: Any) -> Any:
        """What is explained, for the noise to be tied to."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """What the explainer was made with and its values depend on, beside the model."""
        raise NotImplementedError

    def _run(self, rows: Any, options: Mapping[str, Any], interactions: bool) -> Values:
        """Native values: (n, d), or (n, d, outputs), or of interactions (n, d, d) and (n, d, d, outputs)."""
        raise NotImplementedError

    def _digest(self) -> bytes:
        return explained_digest(self._explained, self._model_digest)

    def _told_apart(self, options: Mapping[str, Any], interactions: bool) -> dict[str, Any]:
        """Options, those that ask for the same values written the same way: their noise is a function of them."""
        return dict(options)

    def _check_width(self, rows: Values) -> None:
        """InputError for rows of other columns than the model has."""

    # Answers.

    def _values(self, X: Any, options: Mapping[str, Any], interactions: bool = False) -> Values:
        """Hardened values of one row (d,) or several (n, d), in the native shapes."""
        if self._pinned is not None:
            return self._certified(X, options, interactions)
        options = self._told_apart(options, interactions)
        native, rows, y = self._asked(X), _numbers(X, self._rows), options.get("y")
        self._check_width(rows)
        raw = self._run(self._hashed(rows) if isinstance(native, np.ndarray) else native, options, interactions)
        inner = 3 if interactions else 2
        outputs = [raw] if raw.ndim == inner else [raw[..., j] for j in range(raw.shape[-1])]
        asked = (torch.from_numpy(rows), *([] if y is None else [torch.from_numpy(_column(y, len(rows)))]))
        released = [
            self._released(values, asked, None if len(outputs) == 1 else j, options, interactions)
            for j, values in enumerate(outputs)
        ]
        if len(released) == 2 and self.hardening.noise is not None:
            one, other = (values.reshape(len(rows), -1) for values in outputs)
            twice = np.isclose(one, -other, rtol=1e-4, atol=1e-6 * np.abs(other).max(initial=0.0)).all(axis=1)
            released[0][twice] = -released[1][twice]
        found = released[0] if raw.ndim == inner else np.stack(released, axis=-1)
        return found[0] if np.ndim(X) == 1 else found

    def _released(
        self, values: Values, asked: tuple[Tensor, ...], target: Any, options: Mapping[str, Any], interactions: bool
    ) -> Values:
        """(n, d) or (n, d, d) hardened; interactions are symmetric, so that one half of them is."""
        n = len(values)
        above = np.triu_indices(values.shape[1]) if interactions else ()
        flat = np.ascontiguousarray(values[(slice(None), *above)] if interactions else values, dtype=np.float64)
        maps = torch.from_numpy(flat.copy())
        watch().add(self._explained, self._name, (maps,), inputs=asked[:1])
        if self.hardening.noise is None:
            hardened = self.hardening(maps)
        else:
            method = self._method(options) + (" interactions" if interactions else "")
            hardened = self.hardening(maps, inputs=asked, target=target, model_digest=self._digest(), method=method)
        if not interactions:
            return hardened.numpy().copy()
        whole = np.zeros((n, *values.shape[1:]))
        whole[(slice(None), *above)] = whole[(slice(None), *above[::-1])] = hardened.numpy()
        return whole

    def _method(self, options: Mapping[str, Any]) -> str:
        chosen = {k: v for k, v in options.items() if k not in (*_DRAWN, "y") and v not in (None, False)}
        return f"shap.{self._name} {json.dumps({**self._settings(), **chosen}, sort_keys=True, default=str)}"

    def _explanation(self, X: Any, values: Values) -> Any:
        """A new native explanation that holds values and names."""
        names = [str(c) for c in X.columns] if hasattr(X, "columns") else self._names()
        return load_shap().Explanation(values, base_values=None, data=None, feature_names=names)

    def _names(self) -> list[str] | None:
        names = getattr(self._explainer, "data_feature_names", None)
        return None if names is None else [str(name) for name in names]

    def _asked(self, X: Any) -> Any:
        """What the native explainer is given: numbers, or a data frame with categories as it is."""
        categories = hasattr(X, "dtypes") and any(str(kind) == "category" for kind in np.atleast_1d(X.dtypes))
        return X if categories else self._rows(X)

    def _hashed(self, rows: Values) -> Values:
        """The numbers that the noise is a function of."""
        return rows if self.hardening.is_none else as_hashed(torch.from_numpy(rows)).numpy()

    # Certified answers.

    def _certified(self, X: Any, options: Mapping[str, Any], interactions: bool) -> Values:
        assert self._pinned is not None
        if interactions:
            raise RefusedError("values were audited, and interactions are others: audit what is served")
        signature = self._signature()
        given = {k: v for k, v in options.items() if k not in self._fixed and not _default(signature, k, v)}
        self._pinned.complete(signature, given, self._fixed)
        rows = self._rows(X)
        self._check_width(rows)
        classes = self._pinned.classes_of(rows)
        raw = self._run(self._hashed(rows), self._pinned.options, False)
        numbers = self._of_classes(raw, rows, classes, self._pinned.options)
        if raw.ndim == 2:  # what speaks against the second of two classes speaks for the first
            signs = [1 if self._place(c) else -1 for c in classes]
            found = numbers * np.array(signs, dtype=np.float64)[:, None]
        else:
            found = np.full(raw.shape, np.nan)
            for i, c in enumerate(classes):
                found[i, :, self._place(c)] = numbers[i]
        return np.asarray(found[0] if np.ndim(X) == 1 else found)

    def _place(self, target: int) -> int:
        """The native output about a class."""
        places = self._places
        if places is None:
            return target
        if target not in places:
            raise InputError(f"the model has never seen class {target}, and its values cannot be told")
        return list(places).index(target)

    def _of_classes(self, raw: Values, rows: Values, targets: Sequence[int], options: Mapping[str, Any]) -> Values:
        """(n, d) hardened values of one class for each row."""
        places = [self._place(t) for t in targets]
        if raw.ndim == 2:
            own = np.stack([v if place else -v for v, place in zip(raw, places, strict=True)])
        else:
            own = np.stack([v[:, place] for v, place in zip(raw, places, strict=True)])
        return self._released(own, (torch.from_numpy(rows),), torch.tensor(list(targets)), options, False)

    def _numbers(self, row: Values, target: int, options: Mapping[str, Any]) -> Values:
        raw = self._run(self._hashed(row[None]), options, False)
        return np.asarray(self._of_classes(raw, row[None], [target], options)[0])


class HardenedTreeExplainer(HardenedShap):
    """Hardened `shap.TreeExplainer`: Shapley values of trees, exactly, and hardened.

    For forests and boosted trees of scikit-learn, XGBoost, LightGBM and whatever else shap reads. Without `data` the
    values follow the paths of the training rows through the trees; with it, they are against these rows, of which
    nothing leaves but what the values tell: use public ones.

    A certificate knows `feature_names`, `model_output` and `feature_perturbation`, with or without public rows as
    `data`, and the options `tree_limit` and `approximate`.

    Args:
        model: the fitted model.
        data: (n, d) rows that features are replaced from; None: the paths of the trees.
        model_output: "raw", "probability", "log_loss" (which needs `y`), or a method of the model.
        feature_perturbation: "auto", "interventional" (with `data`) or "tree_path_dependent".
        feature_names: names of the columns.
        link: ignored, as natively.
        linearize_link: ignored, as natively.
        hardening: of the values of each row and output; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version; None: the trees do.

    Raises:
        InputError: shap does not know this kind of trees.
        MissingExtraError: shap is not installed.
    """

    _name, _row, _needs = "TreeExplainer", CATALOG["TreeExplainer"], False
    _makes = frozenset({"feature_names", "model_output", "feature_perturbation"})
    _fixed = frozenset({"self", "X", "from_call", "check_additivity"})
    _width: int | None = None
    """How many columns the model takes."""

    def __init__(
        self,
        model: Any,
        data: Any = None,
        model_output: str = "raw",
        feature_perturbation: str = "auto",
        feature_names: Sequence[str] | None = None,
        *,
        link: Any = None,
        linearize_link: Any = None,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None:
        shap = load_shap()
        try:
            native = shap.TreeExplainer(model, data, model_output, feature_perturbation, feature_names)
        except shap.utils._exceptions.InvalidModelError:
            raise InputError(
                f"TreeExplainer explains forests and boosted trees, and {type(model).__name__} is none that shap"
                " knows: use KernelExplainer, which explains any model"
            ) from None
        self._adopt(native, hardening, model_digest)
        self._width = _width(model)

    def shap_values(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        tree_limit: int | None = None,
        approximate: bool = False,
        check_additivity: bool = True,
    ) -> NDArray[np.float64]:
        """Hardened values, (n, d) or (n, d, outputs), as natively; of one row (d,), without the first axis.

        Args:
            X: (n, d) rows, or a row.
            y: (n,) labels, for `model_output="log_loss"`.
            tree_limit: how many trees are used.
            approximate: Saabas' values, of one order of the features.
            check_additivity: whether shap checks its own arithmetic before the values are hardened.

        Raises:
            InputError: X is no table of numbers.
            RefusedError: the explainer is a certified one, and an option differs from the audited one.
        """
        options = {"y": y, "tree_limit": tree_limit, "approximate": approximate, "check_additivity": check_additivity}
        return self._values(X, options)

    def shap_interaction_values(
        self, X: ArrayLike, y: ArrayLike | None = None, tree_limit: int | None = None
    ) -> NDArray[np.float64]:
        """Hardened interactions, (n, d, d) or (n, d, d, outputs), symmetric.

        Args:
            X: (n, d) rows, or a row.
            y: as natively; shap uses it for nothing yet.
            tree_limit: how many trees are used.

        Raises:
            InputError, RefusedError: see `shap_values`; a certificate is about values, and about no interactions.
        """
        return self._values(X, {"y": y, "tree_limit": tree_limit}, interactions=True)

    def __call__(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        interactions: bool = False,
        check_additivity: bool = True,
        approximate: bool = False,
    ) -> Any:
        """A new `shap.Explanation` with hardened `values` and the names of the features, and nothing else.

        Args:
            X: (n, d) rows.
            y: see `shap_values`.
            interactions: interactions in the place of values.
            check_additivity: see `shap_values`.
            approximate: likewise.
        """
        if interactions:
            return self._explanation(X, self.shap_interaction_values(X, y))
        return self._explanation(X, self.shap_values(X, y, None, approximate, check_additivity))

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

    def _told_apart(self, options: Mapping[str, Any], interactions: bool) -> dict[str, Any]:
        """Without labels that no value depends on, and with one name for "all trees"."""
        native, told = self._explainer, dict(options)
        if native.model.model_output != "log_loss":
            told["y"] = None
        if "approximate" in told:
            told["approximate"] = bool(told["approximate"])
        told["tree_limit"] = self._limit(told.get("tree_limit"), interactions)
        return told

    def _limit(self, asked: Any, interactions: bool) -> int | None:
        """How many trees are used; None for as many as without a limit, however that is asked for."""
        native = self._explainer
        model, usual = native.model, -1 if native.model.tree_limit is None else int(native.model.tree_limit)
        library = model.model_type if native.feature_perturbation == "tree_path_dependent" and not interactions else ""
        step, most = 1, None if getattr(model, "values", None) is None else len(model.values)
        if library == "xgboost" and native.data is None:
            step = int(model.num_stacked_models)
        elif library == "lightgbm" and native.data is None:
            most = int(model.original_model.current_iteration())

        def used(limit: int) -> int:
            rounded = limit // step * step
            all_of_them = rounded < 0 or (most is not None and rounded >= most)
            return -1 if all_of_them or (rounded == 0 and library in ("xgboost", "lightgbm")) else rounded

        limit = usual if asked is None else whole_number("tree_limit", asked, -(2**31))
        return None if used(limit) == used(usual) else used(limit)

    def _check_width(self, rows: Values) -> None:
        """Columns too many would change the noise and not the values; of too few, C code would read what is beside."""
        native = self._explainer
        expected = self._width or _width(self._explained)
        if expected is None and native.data is not None:
            expected = int(native.data.shape[1])
        if expected is not None and rows.shape[1] != expected:
            raise InputError(f"expected rows of {expected} features, as the model has, got {rows.shape}")
        used = int(np.max(getattr(native.model, "features", -1), initial=-1)) + 1 if expected is None else 0
        if rows.shape[1] < used:
            raise InputError(f"expected rows of {used} features or more, as the trees use, got {rows.shape}")

    def _run(self, rows: Any, options: Mapping[str, Any], interactions: bool) -> Values:
        native = copy.copy(self._explainer)  # a call writes to its attributes
        if options.get("tree_limit") is not None and not interactions:  # shap compares with the output of all trees
            options = {**options, "check_additivity": False}
        try:
            if interactions:
                found = native.shap_interaction_values(rows, **options)
            else:
                found = native.shap_values(rows, from_call=True, **options)
        except load_shap().utils._exceptions.ExplainerError as error:
            if "dditivity" not in str(error):
                raise
            raise InputError(  # shap's message tells the sum of the values and the model's output
                "shap's values do not add up to the model's output for some row, as happens with numbers that float32"
                " does not hold, or feature_perturbation; check_additivity=False releases them all the same"
            ) from None
        return np.stack(found, axis=-1) if isinstance(found, list) else np.asarray(found)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        if not isinstance(forward, EstimatorModule):
            raise InputError(f"TreeExplainer explains forests and boosted trees, got {type(forward).__name__}")
        if forward.columns is not None:
            raise InputError(
                "TreeExplainer reads the trees, which know nothing of the codes of the columns; use KernelExplainer"
            )
        background = None if made.background is None else made.background.rows.copy()
        digest = explained_digest(forward)
        explainer = cls(forward.estimator, background, hardening=hardening, model_digest=digest, **made.made)
        explainer._places = forward.places().tolist()
        return explainer


class HardenedKernelExplainer(HardenedShap):
    """Hardened `shap.KernelExplainer`: Shapley values of any model by a weighted regression, hardened.

    The samples of a row are drawn by a generator of its own that is seeded, as the noise is, from the key and what is
    asked; NumPy's global one is neither read nor moved, except with `Hardening.none()`, as natively.

    A certificate knows `feature_names` and `link`, with public rows as `data`, and the options `nsamples` and `l1_reg`.

    Args:
        model: (n, d) rows -> (n,) or (n, outputs) numbers.
        data: (n, d) rows that features are replaced from, or `shap.kmeans` or `shap.sample` of them: public ones.
        feature_names: names of the columns.
        link: "identity" or "logit".
        hardening: of the values of each row and output; None for `Hardening.recommended()`.
        model_digest: 16 bytes or more that name the model and its version, where nothing in it can be seen.
        **kwargs: as natively: keep_index, keep_index_ordered.

    Raises:
        MissingExtraError: shap is not installed.

    Warns:
        OpaqueModelWarning: no model is found behind the function, so that the noise does not change when it does.
    """

    _name, _row = "KernelExplainer", CATALOG["KernelExplainer"]
    _makes = frozenset({"feature_names", "link"})
    _fixed = frozenset({"self", "X", "silent", "gc_collect"})
    _more = frozenset({"nsamples", "l1_reg"})

    def __init__(
        self,
        model: Any,
        data: Any,
        feature_names: Sequence[str] | None = None,
        link: str = "identity",
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        native = load_shap().KernelExplainer(model, data, feature_names, link, **kwargs)
        self._adopt(native, hardening, model_digest)

    def shap_values(
        self,
        X: ArrayLike,
        *,
        nsamples: int | str = "auto",
        l1_reg: str | float = "num_features(10)",
        silent: bool = False,
        gc_collect: bool = False,
    ) -> NDArray[np.float64]:
        """Hardened values, (n, d) or (n, d, outputs), as natively; of one row (d,), without the first axis.

        Args:
            X: (n, d) rows, or a row.
            nsamples: how often the model is asked about a row; "auto" for 2 d + 2048.
            l1_reg: "num_features(k)", "aic", "bic" or a number, see shap.
            silent: accepted for shap's sake; there is no progress bar.
            gc_collect: whether garbage is collected after each row.

        Raises:
            InputError: X is no table of numbers.
            RefusedError: the explainer is a certified one, and an option differs from the audited one.
        """
        return self._values(X, {"nsamples": nsamples, "l1_reg": l1_reg, "gc_collect": gc_collect})

    def __call__(self, X: ArrayLike, l1_reg: str | float = "num_features(10)", silent: bool = False) -> Any:
        """A new `shap.Explanation` with hardened `values` and the names of the features, and nothing else.

        Args:
            X: (n, d) rows.
            l1_reg: see `shap_values`.
            silent: likewise.
        """
        return self._explanation(X, self.shap_values(X, l1_reg=l1_reg, silent=silent))

    def _model_of(self, native: Any) -> Any:
        return native.model.f

    def _settings(self) -> dict[str, Any]:
        native = self._explainer
        return {"link": str(native.link), "data": _named(native.data.data, native.data.weights)}

    def _run(self, rows: Any, options: Mapping[str, Any], interactions: bool) -> Values:
        options = {**options, "silent": True}
        if self.hardening.is_none:
            return np.asarray(copy.copy(self._explainer).shap_values(rows, **options))
        key = None if self.hardening.noise is None else self.hardening.noise.key
        seeds = query_seeds(
            b"no noise, no key" if self.hardening.noise is None else resolve_key(key),
            inputs=torch.from_numpy(np.asarray(rows, dtype=np.float64)),
            model_digest=b"" if self.hardening.noise is None else self._digest(),
            method=f"samples of {self._method({})}",
            configuration=self.hardening.to_json(),
        )
        found = []
        for i, seed in enumerate(seeds):
            words = np.frombuffer(hashlib.blake2b(seed).digest(), np.uint32)
            with draw_from(np.random.RandomState(words)):
                found.append(np.asarray(copy.copy(self._explainer).shap_values(rows[i : i + 1], **options)))
        return np.concatenate(found) if found else np.zeros((0, rows.shape[1]))

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


def _default(signature: inspect.Signature, name: str, value: Any) -> bool:
    """Whether an option has the value that it has when it is left out."""
    known = signature.parameters.get(name)
    usual = {"nsamples": "auto", "l1_reg": "num_features(10)"}.get(name) if known is None else known.default
    return bool(type(value) is type(usual) and value == usual)


def _numbers(X: Any, rows: Any) -> Values:
    """(n, d) numbers of rows, categories of a data frame as their places."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        coded = {c: X[c].cat.codes if str(X[c].dtype) == "category" else X[c] for c in X.columns}
        X = np.stack([np.asarray(column, dtype=np.float64) for column in coded.values()], axis=1)
    found: Values = rows(X)
    return found


def _column(y: Any, n: int) -> Values:
    labels = np.asarray(y, dtype=np.float64).reshape(-1, 1)
    if len(labels) != n:
        raise InputError(f"expected a label for each of {n} rows, got {len(labels)}")
    return labels


def _named(*arrays: Any) -> str:
    """A digest of a background."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        dense = np.asarray(array.toarray() if hasattr(array, "toarray") else array)
        plain = dense.astype(np.float64) if dense.dtype.kind in "biuf" else dense.astype(str)
        digest.update(repr(plain.shape).encode() + plain.tobytes())
    return digest.hexdigest()
