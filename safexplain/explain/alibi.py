"""Alibi's explainers, hardened: each holds a native explainer, runs private copies of it, and releases a new
explanation built from the fields listed here, which refers to no native object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import explained_digest
from safexplain._validate import checked_digest
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.captum import check_mode
from safexplain.explain.catalog import CATALOG, Row
from safexplain.explain.certified import Predict
from safexplain.explain.hardened import Direction, round_as_hashed
from safexplain.explain.libraries import (
    SHARED_PIPELINE_LOCK,
    defined_in,
    draw_from,
    load,
    private_copy,
    quiet_failed_searches,
    seeded_generators,
)
from safexplain.explain.shap import HardenedKernelExplainer, HardenedShap, HardenedTreeExplainer
from safexplain.explain.tables import TableExplainer, TableExplainerFactory, dense, feature_names
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, TopKMask, UnitNorm
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import GaussianNoise
from safexplain.outputs import EstimatorModule

__all__ = ["HardenedAnchorImage", "HardenedAnchorTabular", "HardenedAnchorText"]

META = ("name", "type", "explanations", "version", "task")

PARAMS = frozenset(
    {"threshold", "delta", "tau", "batch_size", "coverage_samples", "beam_size", "stop_on_first", "max_anchor_size"}
    | {"min_samples_start", "n_covered_ex", "binary_cache_size", "cache_margin", "verbose", "verbose_every"}
    | {"disc_perc", "p_sample", "image_shape", "segmentation_fn", "segmentation_kwargs", "custom_segmentation"}
    | {"sample_proba", "top_n", "temperature", "use_proba", "filling", "frac_mask_templates", "batch_size_lm"}
    | {"sample_punctuation", "summarise_background", "link", "group_names", "grouped", "groups", "model_output"}
    | {"algorithm"}
)
"""Of `Explanation.meta["params"]`, if the values are numbers, text or containers of these."""

FRACTIONS = ("precision", "coverage")
"""Fields of anchors that are hardened together as one vector in [0, 1]."""

_ANCHOR, _SHAP = ("anchor", *FRACTIONS), ("shap_values", "feature_names", "categorical_names")

ROWS: Mapping[str, tuple[str, ...]] = {
    "AnchorTabular": _ANCHOR,
    "AnchorImage": (*_ANCHOR, "segments"),
    "AnchorText": _ANCHOR,
    "KernelShap": _SHAP,
    "TreeShap": _SHAP,
}
"""Alibi's class -> released fields of `Explanation.data`. They are copied, but `FRACTIONS` and Shapley values are
hardened."""

_GLOBAL = ("ALE", "PartialDependence", "TreePartialDependence", "PartialDependenceVariance", "PermutationImportance")
_PLOTS = ("plot_ale", "plot_pd", "plot_pd_variance", "plot_permutation_importance")

REFUSED: Mapping[str, str] = dict.fromkeys(
    (*_GLOBAL, *_PLOTS),
    "it describes the model over a data set, not one decision, and no audit measures what that reveals about the"
    " rows of the data set",
)
"""Alibi's explainers of data sets, and their plots -> why they are not hardened."""


def kind_of(native: Any) -> str:
    """The name of an Alibi explainer's class, or of the base class, in `ROWS`; RefusedError: no such class."""
    if not defined_in(type(native), "alibi"):
        raise ConfigurationTypeError(f"expected an alibi explainer, got {type(native).__name__}")
    names = [kind.__name__ for kind in type(native).__mro__ if kind.__module__.partition(".")[0] == "alibi"]
    known = next((name for name in names if name in ROWS), None)
    if known and "DistributedAnchorTabular" not in names:  # which keeps rows and random numbers in Ray workers
        return known
    why = next(
        (REFUSED[name] for name in names if name in REFUSED),
        "no rule lists the fields that may be released. Training rows, or instances made from them, are not hidden by"
        " noise: use HardenedProtoDash over public examples",
    )
    raise RefusedError(f"{type(native).__name__} is refused: {why}. Use one of {', '.join(ROWS)}")


def query_tensor(value: Any) -> Tensor:
    """The instance as a tensor (1, ...): numbers as they are, text as its UTF-8 bytes.

    >>> query_tensor("no")
    tensor([[110, 111]], dtype=torch.uint8)
    """
    if isinstance(value, str):
        return torch.tensor([list(value.encode())], dtype=torch.uint8)
    array = np.asarray(dense(value))
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            return query_tensor(repr(array.tolist()))
    return torch.from_numpy(array[None].astype(np.float64 if array.dtype.kind == "f" else np.int64))


def release(native: Any, fields: Iterable[str], harden: Callable[[Tensor], Tensor] | None = None) -> Any:
    """A new `alibi.api.interfaces.Explanation` with these fields of the native one; RefusedError: one holds something
    else than plain values. `harden` hardens the `FRACTIONS` (1, 2) among them; None releases them as they are."""
    given = {name: native.data[name] for name in fields if name in native.data}
    if harden is not None:
        numbers = [float(np.ravel(given[name])[0]) for name in FRACTIONS]
        hardened = harden(torch.tensor([numbers], dtype=torch.float64)).clamp(0.0, 1.0)[0].tolist()
        for name, number in zip(FRACTIONS, hardened, strict=True):  # in the native types
            given[name] = np.full(np.shape(given[name]), number)[()] if isinstance(given[name], _NUMPYS) else number
    meta = {key: _plain(native.meta[key], arrays=False) for key in META if key in native.meta}
    meta["params"] = {}
    for name, value in native.meta.get("params", {}).items():
        with suppress(RefusedError):
            if name in PARAMS:
                meta["params"][name] = _plain(value, arrays=False)
    data = {name: _plain(value) for name, value in given.items()}
    return import_module("alibi.api.interfaces").Explanation(meta=meta, data=data)


_NUMPYS = (np.ndarray, np.generic)

_STORED = frozenset("biufU")
"""Kinds of NumPy arrays without references."""


def _plain(value: Any, *, arrays: bool = True) -> Any:
    """A deep copy; RefusedError for other values."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in _STORED:
        return value.copy()
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(item, arrays=arrays) for item in value)
    if isinstance(value, dict):
        return {_plain(key, arrays=False): _plain(item, arrays=arrays) for key, item in value.items()}
    if arrays and isinstance(value, np.ndarray) and value.dtype.kind in _STORED:
        return np.array(value, copy=True, subok=False)
    raise RefusedError(f"expected numbers, strings or containers of these, got {type(value).__name__}")


Rows = NDArray[Any]


def anchor_hardening(key: bytes | None = None) -> Hardening:
    """The default for anchors: precision and coverage get noise of 0.05, and are rounded to multiples of 0.05; `key` is
    that of `GaussianNoise`."""
    return Hardening(clip=RangeClip(0.0, 1.0), noise=GaussianNoise(0.05, key=key), grid=0.05)


def _new_generator(hardening: Hardening | None) -> np.random.RandomState | None:
    """Of constructors and `fit`; None: NumPy's global one, as natively."""
    return None if hardening == Hardening.none() else np.random.RandomState()


class HardenedAlibi(TableExplainer):
    """An Alibi explainer, hardened: takes the native arguments, `hardening`, and `model_digest` as in `harden`.

    `explain` returns a new `Explanation` with the listed fields, native with `Hardening.none()`. A repeated query gets
    the same answer: its samples come from its own generator, seeded like the noise. Threads may share it, but not while
    `fit` or `reset_predictor` runs.
    """

    _kind: ClassVar[str]
    _entry = "explain"
    _explainer: Any
    _model_digest: bytes | None

    def __init__(
        self, *args: Any, hardening: Hardening | None = None, model_digest: bytes | None = None, **kwargs: Any
    ) -> None:
        with draw_from(_new_generator(hardening)):
            native = getattr(load("alibi").explainers, self._kind)(*args, **kwargs)
        self._adopt(native, hardening, model_digest)

    @property
    def _native(self) -> Any:
        return type(self._explainer)

    def fit(self, *args: Any, **kwargs: Any) -> HardenedAlibi:
        """Fit the native explainer; returns the hardened one."""
        with draw_from(_new_generator(self.hardening)):
            self._explainer.fit(*args, **kwargs)
        return self

    def reset_predictor(self, *args: Any, **kwargs: Any) -> None:
        """Give the native explainer another predictor."""
        self._explainer.reset_predictor(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._explainer).__name__}, hardening={self.hardening!r})"

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        load("alibi")
        check_mode(vars(native))
        self.hardening = hardening_or_default(hardening, Hardening.recommended(ordered=True))
        self._explainer, self._model_digest = native, checked_digest(model_digest)


class Rule:
    """The conditions that an AnchorTabular can state about one feature, and their numbers.

    With k `bins` (from the fitted explainer), a condition that excludes the lowest i and the highest j of them is
    (i / k, j / k). A category, the v-th of K, is ((v + 1) / (K + 1), (K - v) / (K + 1)). No condition is (0, 0).
    """

    def __init__(self, name: str, bins: list[str], categorical: bool) -> None:
        k = len(bins)
        self.texts: dict[str, tuple[float, float]] = {}
        for v, value in enumerate(bins if categorical else ()):
            text = value if "<" in value or ">" in value else f"{name} = {value}"
            self.texts[text] = (v + 1) / (k + 1), (k - v) / (k + 1)
        for below, above in product(range(0 if categorical else k), range(k)):
            if 0 < below + above < k:
                self.texts.setdefault(_condition(name, bins, below, above), (below / k, above / k))

    def text_of(self, numbers: Rows) -> str:
        """The condition with these two numbers, up to rounding."""
        return min(self.texts, key=lambda text: float(np.abs(np.array(self.texts[text]) - numbers).sum()))


def _condition(name: str, bins: list[str], below: int, above: int) -> str:
    """As `AnchorTabular.add_names_to_exp`."""
    words, high = bins[below].split(), bins[-1 - above].split()[-1]
    low = words[0] if "<" in bins[below] else words[-1]
    if below and above:
        return f"{low} < {name} <= {high}"
    return f"{name} <= {high}" if above else f"{name} > {low}"


def _named_arguments(explainer: TableExplainer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = dict(explainer._signature().bind_partial(explainer, *args, **kwargs).arguments)
    more: Mapping[str, Any] = given.pop("kwargs", {})
    return {name: value for name, value in {**given, **more}.items() if name != "self"}


class HardenedAnchors(HardenedAlibi):
    """Hardened anchors: wraps an AnchorTabular, AnchorImage or AnchorText that exists already.

    The rule is released as it is, precision and coverage hardened; training rows, predictions and background images are
    not released. Source: Ribeiro, Singh, Guestrin: Anchors, AAAI 2018 (doi 10.1609/aaai.v32i1.11491).

    Anchors of rows of tables can be audited and certified, for the predicted class. With d features, the numbers of a
    row are the 2 d of its rule (see `Rule`), precision and coverage; a service releases rule and both. A certificate
    states `feature_names`, `categorical_names` (column -> names), `seed` and `disc_perc`, and the options of `explain`.

    Args:
        native: the native explainer, fitted or not.
        hardening: None for `anchor_hardening()`.

    Raises:
        ConfigurationTypeError: not an anchor explainer of alibi.
        ConfigurationError: a hardening that compares precision with coverage.
    """

    _row: ClassVar[Row | None] = CATALOG["Anchors"]
    _libraries, _no_options, _has_answers = ("alibi",), frozenset({"self", "X"}), True
    _init_options = frozenset({"feature_names", "categorical_names", "seed", "disc_perc"})
    _rules: tuple[Rule, ...] = ()

    def __init__(self, native: Any, *, hardening: Hardening | None = None, model_digest: bytes | None = None) -> None:
        self._adopt(native, hardening, model_digest)

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        if not kind_of(native).startswith("Anchor"):
            raise ConfigurationTypeError(f"expected an anchor explainer, got {kind_of(native)}; use harden")
        hardening = hardening_or_default(hardening, anchor_hardening())
        for step in (hardening.clip, hardening.mask):
            if isinstance(step, RankNorm | UnitNorm | NormClip | TopKMask):
                raise ConfigurationError(
                    f"expected RangeClip(0.0, 1.0) or hardening=anchor_hardening(key), got {type(step).__name__}, which"
                    " would compare precision with coverage"
                )
        super()._adopt(native, hardening, model_digest)

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Explain as natively, and return the listed fields; a certified explainer takes one row."""
        if self._pinned is None:
            return self._explain(*args, **kwargs)
        given = _named_arguments(self, args, kwargs)
        rows = self._rows(given.get("X"))
        if len(rows) != 1:
            raise InputError(f"expected one row to explain, got {len(rows)}")
        self._pinned.complete(self._signature(), given, self._no_options)
        released = self._explain(rows[0], **self._pinned.options)
        data = {**released.data, "anchor": self._to_answer(self._as_numbers(released))["anchor"]}
        return type(released)(meta=released.meta, data=data)

    def _explain(self, *args: Any, **kwargs: Any) -> Any:
        """Explain by a private copy of the explainer, and return the listed fields."""
        load("alibi")
        kind, predictor, unhardened = kind_of(self._explainer), self._explainer.predictor, self.hardening.is_none
        check_mode(predictor)
        bound = inspect.signature(self._explainer.explain).bind(*args, **kwargs)
        if not unhardened:
            instance = next(iter(bound.arguments))
            bound.arguments[instance] = round_as_hashed(bound.arguments[instance])
        inputs = (query_tensor(bound.args[0]),)
        digest = b"" if self.hardening.noise is None else explained_digest(predictor, self._model_digest)
        method = f"alibi.{kind} {{}}"  # the braces keep the noise of earlier releases

        def harden(numbers: Tensor) -> Tensor:
            named = f"{method} {','.join(FRACTIONS)}"
            return self.hardening(numbers, inputs=inputs, model_digest=digest, method=named)

        sampled = f"{method} seed={getattr(self._explainer, 'seed', None)}"
        generator = None if unhardened else seeded_generators(self.hardening, inputs, digest, sampled)[0]
        lock = SHARED_PIPELINE_LOCK if kind == "AnchorText" else nullcontext()  # calls share a pipeline of spaCy
        with lock, draw_from(generator):
            explanation = private_copy(self._explainer).explain(*bound.args, **bound.kwargs)
        return release(explanation, ROWS[kind], None if unhardened else harden)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        given, names = dict(made.made), feature_names(made)
        named = given.get("categorical_names") or {}
        categories = {int(column): [str(value) for value in values] for column, values in named.items()}
        own = {column: list(values) for column, values in categories.items()} or None
        with draw_from(_new_generator(hardening)):
            native = load("alibi").explainers.AnchorTabular(Predict(forward), names, own, seed=given.get("seed"))
        explainer = cls.__new__(cls)
        explainer._adopt(native, hardening, explained_digest(forward))
        explainer.fit(made.background.copy(), disc_perc=tuple(given.get("disc_perc") or (25, 50, 75)))
        bins = explainer._explainer.feature_values
        explainer._rules = tuple(Rule(name, list(bins[i]), i in categories) for i, name in enumerate(names))
        return explainer

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        with quiet_failed_searches():
            return self._as_numbers(self._explain(row, **options))

    def _as_numbers(self, released: Any) -> Rows:
        conditions = np.zeros((len(self._rules), 2))
        for text in released.data["anchor"]:
            found = [i for i, rule in enumerate(self._rules) if text in rule.texts]
            if len(found) != 1:
                raise RefusedError(f"{text!r:.80} fits {len(found)} features; give the features other names")
            conditions[found[0]] = self._rules[found[0]].texts[text]
        return np.concatenate([conditions.ravel(), *(np.ravel(released.data[name])[:1] for name in FRACTIONS)])

    def _to_answer(self, numbers: Rows) -> dict[str, Any]:
        conditions = numbers[:-2].reshape(-1, 2)
        return {
            "anchor": [rule.text_of(c) for rule, c in zip(self._rules, conditions, strict=True) if c.any()],
            "precision": round(float(numbers[-2]), 6),
            "coverage": round(float(numbers[-1]), 6),
        }


class HardenedAnchorTabular(HardenedAnchors):
    """Hardened AnchorTabular: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind = "AnchorTabular"
    __init__ = HardenedAlibi.__init__


class HardenedAnchorImage(HardenedAnchors):
    """Hardened AnchorImage: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind, _row = "AnchorImage", None
    __init__ = HardenedAlibi.__init__


class HardenedAnchorText(HardenedAnchors):
    """Hardened AnchorText: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind, _row = "AnchorText", None
    __init__ = HardenedAlibi.__init__


class _Shapley(HardenedAlibi):
    """By the hardened explainer of shap around the one that Alibi made in `fit`; see `HardenedShap`."""

    _libraries, _no_options = ("alibi", "shap"), frozenset({"self", "X", "y"})
    _core: ClassVar[type[HardenedShap]]
    _made: HardenedShap | None = None
    _places: Sequence[int] | None = None

    def explain(self, *args: Any, target: Any = None, direction: Direction | None = None, **kwargs: Any) -> Any:
        """Hardened Shapley values of rows, as natively a list with an array for each output; one array for a named
        class. `target`, `direction` and errors are as of `HardenedTreeExplainer.shap_values`."""
        given = _named_arguments(self, args, kwargs)
        X = given.pop("X")
        check_mode(self._explainer.predictor)
        values = self._shap._values(X, given, target, direction)
        each = list(np.moveaxis(values, -1, 0)) if target is None and values.ndim > np.ndim(X) else [values]
        data = {"shap_values": each}
        data |= {name: getattr(self._explainer, name) for name in ("feature_names", "categorical_names")}
        made = import_module("alibi.api.interfaces").Explanation(meta=self._explainer.meta, data=data)
        return release(made, ROWS[self._kind])

    def fit(self, *args: Any, **kwargs: Any) -> HardenedAlibi:
        """Fit the native explainer; returns the hardened one."""
        load("shap")  # so that it reads XGBoost's current format
        return super().fit(*args, **kwargs)

    @property
    def _shap(self) -> HardenedShap:
        native, known = getattr(self._explainer, "_explainer", None), self._made
        if not defined_in(type(native), "shap"):
            raise ConfigurationError(f"expected a fitted {self._kind}: call fit, without distributed_opts")
        if known is None or known._explainer is not native:
            known = self._made = self._core.around(native, self.hardening, model_digest=self._model_digest)
            known._fitted, known._name = self._explainer.predictor, self._kind
        known._pinned, known._columns, known._places = self._pinned, self._columns, self._places
        return known

    def _numbers_of(self, rows: Rows, targets: Sequence[int], options: Mapping[str, Any]) -> Rows:
        return self._shap._numbers_of(rows, targets, options)


class HardenedAlibiKernelShap(_Shapley):
    """Hardened KernelShap of alibi: takes its arguments, and `hardening`; see `HardenedAlibi`.

    A certificate states `feature_names`, `link` and `seed`, and the options `nsamples` and `l1_reg`.
    """

    _kind, _row, _core = "KernelShap", CATALOG["AlibiKernelShap"], HardenedKernelExplainer
    _init_options, _kwargs_options = frozenset({"feature_names", "link", "seed"}), frozenset({"nsamples", "l1_reg"})

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        given = {**made.made, "feature_names": feature_names(made)}
        explainer = cls(Predict(forward), hardening=hardening, model_digest=explained_digest(forward), **given)
        explainer.fit(made.background.copy())
        return explainer


class HardenedTreeShap(_Shapley):
    """Hardened TreeShap of alibi, for forests and boosted trees: takes its arguments, and `hardening`.

    A certificate states `feature_names` and `model_output` ("raw" by default), with or without a background.
    """

    _kind, _row, _core, _needs_background = "TreeShap", CATALOG["TreeShap"], HardenedTreeExplainer, False
    _init_options = frozenset({"feature_names", "model_output"})

    @classmethod
    def _of_model(cls, forward: nn.Module, made: TableExplainerFactory, hardening: Hardening) -> Self:
        if not isinstance(forward, EstimatorModule):
            raise InputError(f"expected trees of scikit-learn for TreeShap, got {type(forward).__name__}")
        if forward.columns is not None:
            raise InputError("expected a model without coded columns for TreeShap; use AlibiKernelShap")
        digest = explained_digest(forward)
        explainer = cls(forward.estimator, hardening=hardening, model_digest=digest, **made.made)
        explainer.fit(*(() if made.background is None else (made.background.copy(),)))
        explainer._places = forward.places().tolist()
        return explainer


ALIBI: Mapping[str, type[HardenedAlibi]] = {
    "AnchorTabular": HardenedAnchorTabular,
    "AnchorImage": HardenedAnchorImage,
    "AnchorText": HardenedAnchorText,
    "KernelShap": HardenedAlibiKernelShap,
    "TreeShap": HardenedTreeShap,
}
"""Alibi's name of an explainer -> the hardened class: every one in `ROWS`."""
