"""Hardened AIX360: ProtoDash (arXiv 1707.01212) chooses from public rows, as natively it returns rows of the training
set; answers of LIME (arXiv 1602.04938) hold hardened weights, names, labels and the client's input, and else NaN."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import explained_digest
from safexplain._validate import checked_digest
from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.captum import check_mode
from safexplain.explain.catalog import CATALOG
from safexplain.explain.certified import Predict
from safexplain.explain.hardened import PROBABILITY, Direction, explained_classes, round_as_hashed
from safexplain.explain.libraries import load
from safexplain.explain.tables import TableExplainer, TableExplainerFactory, dense, feature_names
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import as_hashed, query_seeds, resolve_key
from safexplain.native_maps import watch

__all__ = ["HardenedLimeImage", "HardenedLimeTabular", "HardenedLimeText", "HardenedProtoDash"]

Rows = NDArray[Any]


class HardenedProtoDash(TableExplainer):
    """AIX360's `ProtodashExplainer` with prototypes from a public set and hardened weights.

    Indices and order of the prototypes are exact: they depend on the explained and the public rows alone, and reveal
    the training set only if one of the two does (as features computed by the trained model).

    Audited and certified one row at a time. With p public rows, its numbers are p ranks, (m - i) / m for the i-th
    prototype and 0 for others, and p weights; a service releases the prototypes' rows, order and weights.

    Args:
        public: candidate prototypes (n, d), n > 2, which are released unchanged. A read-only copy is kept, as `public`;
            integers become float64.
        hardening: of the weights of one answer; None for `Hardening.ranked()`.

    Raises:
        ConfigurationTypeError: no `public`.
        InputError: `public` is not a finite (n, d) array with n > 2.
    """

    _entry = "explain"
    _row, _libraries, _has_answers = CATALOG["ProtoDash"], ("aix360",), True
    _no_options = frozenset({"self", "X", "Y"})

    def __init__(self, public: Any = None, *, hardening: Hardening | None = None) -> None:
        self.hardening = hardening_or_default(hardening, Hardening.ranked())
        if public is None:
            raise ConfigurationTypeError(
                "expected public rows to choose prototypes from, which are released: pass"
                " ProtodashExplainer(public=rows) or harden(native, public=rows)"
            )
        self.public = _rows("public", public).copy()
        if len(self.public) < 3:
            raise InputError(f"expected at least 3 public rows to choose from, got {len(self.public)}")
        self.public.flags.writeable = False

    @classmethod
    def around(cls, native: Any, hardening: Hardening | None = None, **options: Any) -> Self:
        """The hardened version of a native explainer, which has no state."""
        return cls(hardening=hardening, **options)

    @property
    def _native(self) -> Any:
        return CATALOG["ProtoDash"].native

    def explain(
        self,
        X: Any,
        Y: Any = None,
        m: int = 10,
        kernelType: Literal["other", "linear", "Gaussian"] = "other",
        sigma: float = 2,
        optimizer: Literal["cvxpy", "osqp"] = "cvxpy",
    ) -> tuple[Rows, Rows, Rows]:
        """Choose m public rows that represent the rows of X together, and weigh them.

        Args:
            X: rows to explain (q, d): one instance, or a set to summarise.
            Y: candidates, if not all of `public`: any of its rows in any order.
            m: number of prototypes, less than the number of candidates.
            kernelType: "other" (or "linear") for the inner product, "Gaussian" for exp(-|x - y|^2 / (2 sigma^2)).
            sigma: width of the Gaussian kernel.
            optimizer: "cvxpy" or "osqp"; both solve the same problem, and share the noise.

        Returns:
            W, S, V as natively: W (m,) the hardened weights, none below zero; S (m,) the indices of the prototypes in
                Y, or in `public` without Y, in the order of their selection; V (m,) NaN in place of the objective
                values. With `Hardening.none()` W and S are the native ones.

        Raises:
            RefusedError: a row of Y is not public.
            InputError: an array or option cannot be used.
        """
        options: dict[str, Any] = {"m": m, "kernelType": kernelType, "sigma": sigma, "optimizer": optimizer}
        if self._pinned is not None:
            X, usual = self._rows(X), inspect.signature(self.explain).parameters
            given = {name: value for name, value in options.items() if value != usual[name].default}
            options = self._pinned.complete(self._signature(), given, frozenset())
            if Y is not None or len(X) != 1:
                raise RefusedError(
                    "expected one row, and no Y: ProtoDash was audited so, with all public rows as candidates"
                )
        return self._explain(X, Y, **options)

    def _explain(
        self, X: Any, Y: Any = None, m: int = 10, kernelType: str = "other", sigma: float = 2, optimizer: str = "cvxpy"
    ) -> tuple[Rows, Rows, Rows]:
        X, candidates = _rows("X", X), self.public if Y is None else _rows("Y", Y)
        if Y is not None:
            public = set(map(_digest, self.public))
            if others := sum(_digest(row) not in public for row in candidates):
                raise RefusedError(
                    f"Y: expected rows of the declared public set, got {others} of {len(candidates)} others. Leave Y"
                    " out, or declare these rows public: HardenedProtoDash(public=...)"
                )
        _check_options(X, candidates, m, kernelType, sigma, optimizer)
        gaussian, exact = kernelType == "Gaussian", self.hardening.is_none
        if not exact:
            X = as_hashed(torch.from_numpy(np.array(X))).numpy()
            X = X if gaussian else X.mean(axis=0, keepdims=True)
        native = self._native().explain(X, candidates, m, kernelType, sigma, optimizer)
        weights, chosen = np.array(native[0]), np.array(native[1])
        if not exact:  # the noise is a function of the query and the prototypes, like the weights
            kernel = f"Gaussian {float(sigma)!r}" if gaussian else "linear"
            named = hashlib.blake2b(b"".join(map(_digest, candidates[chosen]))).hexdigest()
            raw, method = torch.from_numpy(np.maximum(weights, 0))[None], f"ProtoDash {kernel} {named}"
            weights = self.hardening(raw, inputs=_query(X, gaussian), method=method)[0].clamp(min=0).numpy().copy()
        return weights, chosen, np.full(m, np.nan)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        return cls(made.background, hardening=hardening)

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        weights, chosen, _ = self._explain(row[None], **options)
        numbers = np.zeros((2, len(self.public)))
        numbers[0, chosen] = np.arange(len(chosen), 0, -1) / len(chosen)
        numbers[1, chosen] = weights
        return numbers.reshape(-1)

    def _to_answer(self, numbers: Rows) -> dict[str, Any]:
        places, weights = numbers.reshape(2, -1)
        chosen = np.argsort(-places, kind="stable")[: int((places > 0).sum())]
        return {
            "prototypes": chosen.tolist(),
            "rows": self.public[chosen].tolist(),
            "weights": weights[chosen].tolist(),
        }


def _rows(name: str, values: Any) -> Rows:
    rows = np.asarray(values)
    if rows.dtype.kind in "biu":  # natively, products of uint8 overflow
        rows = rows.astype(np.float64)
    if rows.ndim != 2 or not rows.size or rows.dtype.kind != "f" or not np.isfinite(rows).all():
        found = f"{rows.dtype} {rows.shape}" if rows.ndim != 2 or rows.dtype.kind != "f" else "NaN or infinity"
        raise InputError(f"{name}: expected (rows, features) of finite numbers, got {found}")
    return rows


def _check_options(X: Rows, candidates: Rows, m: int, kernelType: str, sigma: float, optimizer: str) -> None:
    if X.shape[1] != candidates.shape[1]:
        raise InputError(f"X must have the {candidates.shape[1]} features of the candidates, got {X.shape[1]}")
    if not isinstance(m, int | np.integer) or not 1 <= m < len(candidates):
        raise InputError(f"m must be a whole number from 1 to {len(candidates) - 1}, got {m!r}")
    if kernelType not in ("Gaussian", "other", "linear"):  # natively, "gaussian" is silently the linear kernel
        raise InputError(f"kernelType must be 'Gaussian', 'other' or 'linear', got {kernelType!r}")
    if optimizer not in ("cvxpy", "osqp"):
        raise InputError(f"optimizer must be 'cvxpy' or 'osqp', got {optimizer!r}")
    if not math.isfinite(sigma) or sigma <= 0:
        raise InputError(f"sigma must be a finite number above 0, got {sigma!r}")


def _digest(row: Rows) -> bytes:
    return hashlib.blake2b((row.astype(np.float64) + 0.0).tobytes(), digest_size=16).digest()


def _query(X: Rows, gaussian: bool) -> Tensor:
    """The same for another order of X and for repetitions of X."""
    if not gaussian:
        return torch.from_numpy(X.mean(axis=0, keepdims=True))
    counts = Counter(hashlib.blake2b((row.astype(np.float32) + 0.0).tobytes()).digest() for row in X)
    once = math.gcd(*counts.values())
    combined = hashlib.blake2b(digest_size=32)
    for row in sorted(counts):
        combined.update(row + (counts[row] // once).to_bytes(8, "little"))
    return torch.from_numpy(np.frombuffer(combined.digest(), dtype=np.int64).copy())[None]


# LIME

_NUMPYS_OWN = np.random.mtrand._rand  # LIME's generator if random_state is not given

Weights = list[tuple[int, float]]


def _private_copy(explainer: Any, generator: np.random.RandomState | None) -> Any:
    """A LIME explainer that draws from copies of its generators, or without any from `generator`."""
    mine = copy.copy(explainer)
    parts, copies = [mine], dict[int, Any]()
    for name in ("base", "discretizer"):
        if (part := getattr(mine, name, None)) is not None:
            parts.append(copy.copy(part))
            setattr(mine, name, parts[-1])
    for part in parts:
        given = part.random_state
        part.random_state = generator if given is None or given is _NUMPYS_OWN else copy.deepcopy(given, copies)
    return mine


@cache
def _explanation() -> Any:
    native: Any = load("lime.explanation").Explanation

    class LimeExplanation(native):  # type: ignore[misc]
        """LIME's, with hardened weights, by default for the explained class, without predictions."""

        def as_list(self, label: int | None = None, **kwargs: Any) -> Any:
            return super().as_list(self._default(label), **kwargs)

        def as_pyplot_figure(self, label: int | None = None, **kwargs: Any) -> Any:
            return super().as_pyplot_figure(self._default(label), **kwargs)

        def as_html(self, labels: Any = None, *_: Any, **kwargs: Any) -> Any:
            withheld = {"predict_proba": False, "show_predicted_value": False}
            return super().as_html(labels, **{**kwargs, **withheld})

        def show_in_notebook(self, labels: Any = None, *_: Any, **kwargs: Any) -> None:
            display = import_module("IPython.display")
            display.display(display.HTML(self.as_html(labels, **kwargs)))

        def _default(self, label: int | None) -> int:
            return label if label is not None else 1 if 1 in self.local_exp else min(self.local_exp)

    LimeExplanation.__qualname__ = "LimeExplanation"  # where pickle looks for it
    return LimeExplanation


def __getattr__(name: str) -> Any:
    if name != "LimeExplanation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _explanation()


class _HardenedLime(TableExplainer):
    """What the hardened LIME explainers share.

    A repeated query gets the same answer: each call starts from the state of `random_state` at construction, or without
    one from a seed made from the key and the instance. Weights are for the predicted class, unless `labels` or
    `top_labels` name others (natively, and with `Hardening.none()`, for class 1), and labels in increasing order. With
    fewer `num_features` than there are, the set of named features is exact, and in the order of the hardened weights.
    """

    _entry = "explain_instance"
    _module: ClassVar[str]
    _name: ClassVar[str]

    def __init__(
        self, *args: Any, hardening: Hardening | None = None, model_digest: bytes | None = None, **kwargs: Any
    ) -> None:
        self._adopt(getattr(load(self._module), self._name)(*args, **kwargs), hardening, model_digest)

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        self.hardening = hardening_or_default(hardening, Hardening.recommended(ordered=self._row is not None))
        self._explainer = _private_copy(getattr(native, "explainer", native), None)  # AIX360 wraps LIME's
        self._native, self._model_digest = type(self._explainer), checked_digest(model_digest)

    def explain_instance(self, *args: Any, direction: Direction | None = None, **kwargs: Any) -> Any:
        """Explain one instance; arguments as natively, and for a number `direction`, "up" (None) or "down".

        Returns:
            A new native explanation with hardened weights. Predictions, intercepts and scores are NaN or absent.

        Raises:
            ConfigurationError: a direction for a classifier.

        Warns:
            TrainingModeWarning: once for each torch model behind it in training mode.
            OpaqueModelWarning: no model is found behind the prediction function, so the noise does not change with it.
        """
        entry, noise = inspect.signature(self._explainer.explain_instance), self.hardening.noise
        given = entry.bind(*args, **kwargs).arguments
        number, side = getattr(self._explainer, "mode", "") == "regression", 1
        if number or direction is not None:
            (side,) = explained_classes([0.0], None if number else PROBABILITY, direction=direction)
        usual = entry.parameters["top_labels"].default  # of an image, five classes
        if not (number or usual or self.hardening.is_none or given.keys() & {"labels", "top_labels"}):
            given["top_labels"] = 1
        if given.get("model_regressor") is not None:  # LIME fits it, and natively exposes it
            given["model_regressor"] = copy.deepcopy(given["model_regressor"])
        (what, instance), (by, predict) = list(given.items())[:2]
        check_mode(predict)
        if not self.hardening.is_none:
            instance = round_as_hashed(instance)
        classes: list[int] = []

        def predict_and_count(samples: Any) -> Any:
            answer = predict(samples)
            classes[:] = np.shape(answer)[1:]
            return answer

        inputs = self._inputs(instance)
        key = b"" if noise is None else resolve_key(noise.key)
        seed = query_seeds(key, inputs=inputs, method=f"{self._name} samples")[0]
        mine = _private_copy(self._explainer, np.random.RandomState(np.frombuffer(seed, dtype="<u4")))
        mine.base.verbose = False  # prints the intercept and predictions
        bound = inspect.BoundArguments(entry, {**given, what: instance, by: predict_and_count})
        raw = mine.explain_instance(*bound.args, **bound.kwargs)
        query = {}
        if noise is not None:
            query = {"inputs": inputs, "model_digest": explained_digest(predict, self._model_digest)}
        released = self._blank(raw, mine, instance)
        for label in sorted(raw.local_exp):
            weights = [[float(weight) for _, weight in raw.local_exp[label]]]
            watch().add(predict, self._name, (torch.tensor(weights, dtype=torch.float64),))
            target = int(label) % classes[0] if classes else int(label)  # -1 is the last class
            found = [(feature, weight if side else -weight) for feature, weight in raw.local_exp[label]]
            released.local_exp[int(label)] = self._harden(found, target, query)
            released.intercept[int(label)] = np.nan
        released.score, released.local_pred = np.nan, np.array([np.nan])
        if number:  # natively label 0 is the negative of label 1, not a second answer
            released.local_exp[0] = [(feature, -weight) for feature, weight in released.local_exp[1]]
        return released

    _inputs: Callable[[Any], Tensor]
    """The instance as one row."""
    _blank: Callable[[Any, Any, Any], Any]
    """A native explanation without weights, of the native one, the explainer and the instance."""

    def _harden(self, raw: Weights, label: int, query: dict[str, Any]) -> Weights:
        if self.hardening.is_none:
            return [(int(feature), float(weight)) for feature, weight in raw]
        raw = sorted((int(feature), float(weight)) for feature, weight in raw)
        features, columns = [feature for feature, _ in raw], self.hardening.features  # these are all of the row's
        places = features if columns is not None else list(range(len(features)))
        weights = torch.zeros(1, len(features if columns is None else columns.names), dtype=torch.float64)
        weights[0, places] = torch.tensor([weight for _, weight in raw], dtype=torch.float64)
        hardened = self.hardening(weights, target=label, method=f"{self._name} {features}", **query)[0, places]
        return sorted(zip(features, hardened.tolist(), strict=True), key=lambda pair: abs(pair[1]), reverse=True)


class HardenedLimeTabular(_HardenedLime):
    """The `LimeTabularExplainer` of lime and AIX360, hardened.

    Audited and certified with public rows in place of the training set, which give LIME's bins and the spread of its
    samples: the numbers of a row, which a service releases, are the weights of all features for the predicted class. A
    certificate states `feature_names`, `class_names`, `categorical_features`, `categorical_names`, `kernel_width`,
    `feature_selection` ("none" by default, so that no feature is left out), `discretize_continuous`, `discretizer`,
    `sample_around_instance` and an integer `random_state`, and the options `num_samples` and `distance_metric`.

    Args:
        *args: as natively.
        hardening: of the weights of each label; None for `Hardening.recommended(ordered=True)`.
        bins: name discretised features as natively, "0.10 < age <= 0.50"; False: "age". The numbers are statistics of
            the training set.
        **kwargs: as natively.
    """

    _module, _name = "lime.lime_tabular", "LimeTabularExplainer"
    _row, _libraries = CATALOG["LimeTabular"], ("lime",)
    _init_options = frozenset(
        {"feature_names", "class_names", "categorical_features", "categorical_names", "kernel_width"}
        | {"feature_selection", "discretize_continuous", "discretizer", "sample_around_instance", "random_state"}
    )
    _no_options = frozenset({"data_row", "predict_fn", "labels", "top_labels", "num_features", "model_regressor"})
    _predict: Predict
    bins = False

    def __init__(self, *args: Any, hardening: Hardening | None = None, bins: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, hardening=hardening, **kwargs)
        self.bins = bins

    def _adopt(
        self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None, *, bins: bool = False
    ) -> None:
        super()._adopt(native, hardening, model_digest)
        self.bins = bins

    def explain_instance(self, *args: Any, **kwargs: Any) -> Any:
        """As natively; a certified explainer needs no prediction function and no `labels`."""
        if self._pinned is None:
            return super().explain_instance(*args, **kwargs)
        given = self._signature().bind_partial(self, *args, **kwargs).arguments
        row = self._rows(given.pop("data_row", None))[0]
        given = self._pinned.complete(self._signature(), given, frozenset({"self", "labels"}))
        labels = given.get("labels") or tuple(self._pinned.classes_of(row[None]))
        options = {"labels": labels, "num_features": len(row), **self._pinned.options}
        return super().explain_instance(row, self._pinned.predict, **options)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        given: dict[str, Any] = {"feature_selection": "none", **made.made}
        if given.get("feature_names") is not None:
            given["feature_names"] = feature_names(made)
        if categories := given.get("categorical_names"):
            given["categorical_names"] = {int(column): names for column, names in categories.items()}
        explainer = cls(made.background, hardening=hardening, model_digest=explained_digest(forward), **given)
        explainer._predict = Predict(forward)
        return explainer

    def _numbers(self, row: NDArray[Any], target: int, options: Mapping[str, Any]) -> NDArray[Any]:
        options = {"labels": (target,), "num_features": len(row), **options}
        weights = dict(super().explain_instance(row, self._predict, **options).local_exp[target])
        return np.array([weights.get(feature, 0.0) for feature in range(len(row))])

    def _inputs(self, instance: Any) -> Tensor:
        return torch.from_numpy(np.asarray(dense(instance)).ravel().astype(np.float64))[None]

    def _blank(self, raw: Any, explainer: Any, instance: Any) -> Any:
        shown = raw.domain_mapper
        mapper = load(self._module).TableDomainMapper(
            feature_names=list(shown.exp_feature_names),
            feature_values=list(shown.feature_values),
            scaled_row=np.full(len(shown.exp_feature_names), np.nan),
            categorical_features=[],
            discretized_feature_names=list(shown.discretized_feature_names or ()) or None if self.bins else None,
            feature_indexes=shown.feature_indexes,
        )
        released = _explanation()(mapper, mode=raw.mode, class_names=list(raw.class_names))
        if raw.mode == "regression":
            released.predicted_value = released.min_value = released.max_value = np.nan
        else:
            released.predict_proba = np.full(len(raw.class_names), np.nan)
        return released


class HardenedLimeText(_HardenedLime):
    """The `LimeTextExplainer` of lime and AIX360, hardened: takes its arguments, and a `hardening` per label."""

    _module, _name = "lime.lime_text", "LimeTextExplainer"

    def _inputs(self, instance: Any) -> Tensor:
        if not isinstance(instance, str) or not instance:
            raise InputError(f"expected a text to explain, got {type(instance).__name__} {instance!r:.40}")
        return torch.tensor([list(instance.encode("utf-8", "surrogatepass"))])

    def _blank(self, raw: Any, explainer: Any, instance: Any) -> Any:
        text = load(self._module)
        if explainer.char_level:
            indexed = text.IndexedCharacters(instance, bow=explainer.bow)
        else:
            indexed = text.IndexedString(instance, bow=explainer.bow, split_expression=explainer.split_expression)
        released = _explanation()(text.TextDomainMapper(indexed), class_names=[*raw.class_names])
        released.predict_proba = np.full(len(raw.class_names), np.nan)
        return released


class HardenedLimeImage(_HardenedLime):
    """The `LimeImageExplainer` of lime and AIX360, hardened: takes its arguments, and a `hardening` of its weights."""

    _module, _name = "lime.lime_image", "LimeImageExplainer"

    def _inputs(self, instance: Any) -> Tensor:
        return torch.from_numpy(np.asarray(instance).astype(np.float64))[None]

    def _blank(self, raw: Any, explainer: Any, instance: Any) -> Any:
        segments: NDArray[Any] = np.array(raw.segments)
        return load(self._module).ImageExplanation(np.array(raw.image), segments)


LIME: Mapping[str, type[TableExplainer]] = {
    "LimeTabularExplainer": HardenedLimeTabular,
    "LimeImageExplainer": HardenedLimeImage,
    "LimeTextExplainer": HardenedLimeText,
}
"""lime's name of an explainer -> the hardened class."""

AIX360: Mapping[str, type[TableExplainer]] = {"ProtodashExplainer": HardenedProtoDash, **LIME}
"""AIX360's name of an explainer -> the hardened class."""
