"""Alibi's explainers, hardened: each holds a native explainer and runs private copies of it.

Those of rows of tables are audited, too. The rule of an anchor is then written in numbers and read back from them: of
each feature, which share of the bins it rules out below and above. The bins are quantiles of public rows, so that
whoever knows these can write the numbers as the rule, and the rule as the numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import explained_digest
from safexplain._validate import checked_digest
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.alibi.rules import FRACTIONS, ROWS, kind_of, query_tensor, release
from safexplain.explain.captum.model_checks import check_mode
from safexplain.explain.catalog import CATALOG, Row
from safexplain.explain.libraries import (
    ONE_AT_A_TIME,
    defined_in,
    draw_from,
    load,
    no_failed_searches,
    private_copy,
    seeded_generators,
)
from safexplain.explain.orientation import Direction
from safexplain.explain.query import as_asked
from safexplain.explain.shap.explainers import HardenedKernelExplainer, HardenedShap, HardenedTreeExplainer
from safexplain.explain.tables import MadeOf, OfTables, Predict, feature_names
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening, hardening_or_default
from safexplain.hardening.noise import GaussianNoise
from safexplain.hardening.selection import TopKMask
from safexplain.outputs import EstimatorModule

__all__ = [
    *("HardenedAlibi", "HardenedAlibiKernelShap", "HardenedAnchorImage", "HardenedAnchorTabular", "HardenedAnchorText"),
    *("HardenedAnchors", "HardenedTreeShap", "Rule", "anchor_hardening"),
]

Rows = NDArray[Any]


def anchor_hardening(key: bytes | None = None) -> Hardening:
    """The default for anchors: precision and coverage get noise of 0.05 and are rounded to multiples of 0.05.

    Args:
        key: of the noise, see `GaussianNoise`.
    """
    return Hardening(clip=RangeClip(0.0, 1.0), noise=GaussianNoise(0.05, key=key), grid=0.05)


def _new_generator(hardening: Hardening | None) -> np.random.RandomState | None:
    """What constructors and `fit` draw from; None, NumPy's global generator, for `Hardening.none()`, as natively."""
    return None if hardening == Hardening.none() else np.random.RandomState()


class HardenedAlibi(OfTables):
    """An Alibi explainer, hardened; `harden_alibi` makes it.

    `explain` has the native arguments and returns a new `Explanation` with the fields that may leave; the others are
    absent. With `Hardening.none()` they have the native values. Asking again gives the same answer, also after a
    restart: a call's samples come from a generator of its own that is seeded, as the noise is, from the key, the model,
    the configuration and what is explained. Threads may share it, but not while `fit` or `reset_predictor` runs.

    Made with the native arguments, `hardening`, and `model_digest` as `harden_alibi` takes it.
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
        self.hardening = hardening_or_default(hardening, ordered=True)
        self._explainer, self._model_digest = native, checked_digest(model_digest)


class Rule:
    """The rules that an AnchorTabular can say of one feature, and their numbers.

    With k bins, a condition that rules out the lowest i and the highest j of them is (i / k, j / k). A category, the
    v-th of K, is ((v + 1) / (K + 1), (K - v) / (K + 1)). No condition is (0, 0).

    Args:
        name: of the feature.
        bins: their names, or those of the categories, as the fitted explainer has them.
        categorical: whether they are categories.
    """

    def __init__(self, name: str, bins: list[str], categorical: bool) -> None:
        k = len(bins)
        self.texts: dict[str, tuple[float, float]] = {}
        for v, value in enumerate(bins if categorical else ()):
            said = value if "<" in value or ">" in value else f"{name} = {value}"
            self.texts[said] = (v + 1) / (k + 1), (k - v) / (k + 1)
        for below, above in product(range(0 if categorical else k), range(k)):
            if 0 < below + above < k:
                self.texts.setdefault(_condition(name, bins, below, above), (below / k, above / k))

    def said(self, numbers: Rows) -> str:
        """The rule with these two numbers, up to the rounding of float32."""
        return min(self.texts, key=lambda text: float(np.abs(np.array(self.texts[text]) - numbers).sum()))


def _condition(name: str, bins: list[str], below: int, above: int) -> str:
    """What alibi writes where the lowest and the highest bins are ruled out (`AnchorTabular.add_names_to_exp`)."""
    words, high = bins[below].split(), bins[-1 - above].split()[-1]
    low = words[0] if "<" in bins[below] else words[-1]
    if below and above:
        return f"{low} < {name} <= {high}"
    return f"{name} <= {high}" if above else f"{name} > {low}"


def _by_name(explainer: OfTables, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `explain` by name, those among its `**kwargs` too."""
    given: dict[str, Any] = dict(explainer._signature().bind_partial(explainer, *args, **kwargs).arguments)
    more: Mapping[str, Any] = given.pop("kwargs", {})
    return {name: value for name, value in {**given, **more}.items() if name != "self"}


class HardenedAnchors(HardenedAlibi):
    """Hardened anchors: wraps an AnchorTabular, AnchorImage or AnchorText that exists already.

    The rule leaves as it is, precision and coverage leave hardened; training rows, predictions and background images do
    not leave. Source: Ribeiro, Singh, Guestrin: Anchors, AAAI 2018 (doi 10.1609/aaai.v32i1.11491).

    Anchors of rows of tables can be audited and certified (`catalogued`, `from_certificate`). Of d features, the
    numbers of a row are the 2 d of its rule (see `Rule`), precision and coverage; a service releases the rule, its
    conditions in the order of the columns, and both. They are about the predicted class. A certificate knows
    `feature_names`, `categorical_names` (column -> names), `seed` and `disc_perc`, and the options of `explain`.

    Args:
        native: the native explainer, fitted or not.
        hardening: None for `anchor_hardening()`.

    Raises:
        ConfigurationTypeError: not an anchor explainer of alibi.
        ConfigurationError: a hardening that weighs precision against coverage: RankNorm, UnitNorm, NormClip, TopKMask.
    """

    _row: ClassVar[Row | None] = CATALOG["Anchors"]
    _libraries, _fixed, _tells = ("alibi",), frozenset({"self", "X"}), True
    _makes = frozenset({"feature_names", "categorical_names", "seed", "disc_perc"})
    _rules: tuple[Rule, ...] = ()

    def __init__(self, native: Any, *, hardening: Hardening | None = None, model_digest: bytes | None = None) -> None:
        self._adopt(native, hardening, model_digest)

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        if not kind_of(native).startswith("Anchor"):
            raise ConfigurationTypeError(f"expected an anchor explainer, got {kind_of(native)}; use harden_alibi")
        hardening = hardening_or_default(hardening, anchor_hardening)
        for step in (hardening.clip, hardening.mask):
            if isinstance(step, RankNorm | UnitNorm | NormClip | TopKMask):
                raise ConfigurationError(
                    f"{type(step).__name__} weighs the coordinates of a vector against each other, which says nothing"
                    " about precision and coverage; use RangeClip(0.0, 1.0), or hardening=anchor_hardening(key)"
                )
        super()._adopt(native, hardening, model_digest)

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Explain as natively and release what may leave; of a certified explainer, a row and the audited options."""
        if self._pinned is None:
            return self._explain(*args, **kwargs)
        given = _by_name(self, args, kwargs)
        rows = self._rows(given.get("X"))
        if len(rows) != 1:
            raise InputError(f"expected one row to explain, got {len(rows)}")
        self._pinned.complete(self._signature(), given, self._fixed)
        released = self._explain(rows[0], **self._pinned.options)
        data = {**released.data, "anchor": self._told(self._in_numbers(released))["anchor"]}
        return type(released)(meta=released.meta, data=data)

    def _explain(self, *args: Any, **kwargs: Any) -> Any:
        """Explain as natively, by a private copy of the explainer, and release what may leave."""
        load("alibi")
        kind, predictor, quiet = kind_of(self._explainer), self._explainer.predictor, self.hardening.is_none
        check_mode(predictor)
        bound = inspect.signature(self._explainer.explain).bind(*args, **kwargs)
        if not quiet:
            asked = next(iter(bound.arguments))
            bound.arguments[asked] = as_asked(bound.arguments[asked])
        inputs = (query_tensor(bound.args[0]),)
        digest = b"" if self.hardening.noise is None else explained_digest(predictor, self._model_digest)
        method = f"alibi.{kind} {{}}"  # the braces: other noise would make two answers to average

        def harden(numbers: Tensor) -> Tensor:
            named = f"{method} {','.join(FRACTIONS)}"
            return self.hardening(numbers, inputs=inputs, model_digest=digest, method=named)

        sampled = f"{method} seed={getattr(self._explainer, 'seed', None)}"
        generator = None if quiet else seeded_generators(self.hardening, inputs, digest, sampled)[0]
        alone = ONE_AT_A_TIME if kind == "AnchorText" else nullcontext()  # calls share a pipeline of spaCy
        with alone, draw_from(generator):
            explanation = private_copy(self._explainer).explain(*bound.args, **bound.kwargs)
        return release(explanation, ROWS[kind], None if quiet else harden)

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        assert made.background is not None
        given, names = dict(made.made), feature_names(made)
        named = given.get("categorical_names") or {}
        categories = {int(column): [str(value) for value in values] for column, values in named.items()}
        own = {column: list(values) for column, values in categories.items()} or None
        with draw_from(_new_generator(hardening)):
            native = load("alibi").explainers.AnchorTabular(Predict(forward), names, own, seed=given.get("seed"))
        explainer = cls.__new__(cls)
        explainer._adopt(native, hardening, explained_digest(forward))
        explainer.fit(made.background.rows.copy(), disc_perc=tuple(given.get("disc_perc") or (25, 50, 75)))
        bins = explainer._explainer.feature_values
        explainer._rules = tuple(Rule(name, list(bins[i]), i in categories) for i, name in enumerate(names))
        return explainer

    def _numbers(self, row: Rows, target: int, options: Mapping[str, Any]) -> Rows:
        with no_failed_searches():
            return self._in_numbers(self._explain(row, **options))

    def _in_numbers(self, released: Any) -> Rows:
        conditions = np.zeros((len(self._rules), 2))
        for text in released.data["anchor"]:
            found = [i for i, rule in enumerate(self._rules) if text in rule.texts]
            if len(found) != 1:
                raise RefusedError(f"{text!r:.80} cannot be read as one condition; give features other names")
            conditions[found[0]] = self._rules[found[0]].texts[text]
        return np.concatenate([conditions.ravel(), *(np.ravel(released.data[name])[:1] for name in FRACTIONS)])

    def _told(self, numbers: Rows) -> dict[str, Any]:
        conditions = numbers[:-2].reshape(-1, 2)
        return {
            "anchor": [rule.said(c) for rule, c in zip(self._rules, conditions, strict=True) if c.any()],
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
    """Shapley values, by the hardened explainer of shap around the one that Alibi's made when it was fitted.

    What they speak for, and what is audited and certified, is as of `HardenedShap`.
    """

    _libraries, _fixed = ("alibi", "shap"), frozenset({"self", "X", "y"})
    _core: ClassVar[type[HardenedShap]]
    _made: HardenedShap | None = None
    _places: Sequence[int] | None = None

    def explain(self, *args: Any, target: Any = None, direction: Direction | None = None, **kwargs: Any) -> Any:
        """Shapley values of rows as natively, a list with an array for each output, hardened; of a named class, one.

        `target`, `direction` and the errors are those of `HardenedTreeExplainer.shap_values`; ConfigurationError where
        nothing was fitted.
        """
        given = _by_name(self, args, kwargs)
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
        load("shap")  # which makes it read what XGBoost writes today
        return super().fit(*args, **kwargs)

    @property
    def _shap(self) -> HardenedShap:
        """The hardened explainer of shap."""
        native, known = getattr(self._explainer, "_explainer", None), self._made
        if not defined_in(type(native), "shap"):
            raise ConfigurationError(f"expected a fitted {self._kind} in this process: call fit, no distributed_opts")
        if known is None or known._explainer is not native:
            known = self._made = self._core.around(native, self.hardening, self._model_digest)
            known._fitted, known._name = self._explainer.predictor, self._kind  # type: ignore[misc]
        known._pinned, known._columns, known._places = self._pinned, self._columns, self._places
        return known

    def _numbers_of(self, rows: Rows, targets: Sequence[int], options: Mapping[str, Any]) -> Rows:
        return self._shap._numbers_of(rows, targets, options)


class HardenedAlibiKernelShap(_Shapley):
    """Hardened KernelShap of alibi: takes its arguments, and `hardening`; see `HardenedAlibi`.

    A certificate knows `feature_names`, `link` and `seed`, and the options `nsamples` and `l1_reg`.
    """

    _kind, _row, _core = "KernelShap", CATALOG["AlibiKernelShap"], HardenedKernelExplainer
    _makes, _more = frozenset({"feature_names", "link", "seed"}), frozenset({"nsamples", "l1_reg"})

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        assert made.background is not None
        given = {**made.made, "feature_names": feature_names(made)}
        explainer = cls(Predict(forward), hardening=hardening, model_digest=explained_digest(forward), **given)
        explainer.fit(made.background.rows.copy())
        return explainer


class HardenedTreeShap(_Shapley):
    """Hardened TreeShap of alibi, for forests and boosted trees: takes its arguments, and `hardening`.

    A certificate knows `feature_names` and `model_output` ("raw" unless said), with or without a background.
    """

    _kind, _row, _core, _needs = "TreeShap", CATALOG["TreeShap"], HardenedTreeExplainer, False
    _makes = frozenset({"feature_names", "model_output"})

    @classmethod
    def _of_model(cls, forward: nn.Module, made: MadeOf, hardening: Hardening) -> Self:
        if not isinstance(forward, EstimatorModule):
            raise InputError(f"TreeShap explains trees of scikit-learn, got {type(forward).__name__}")
        if forward.columns is not None:
            raise InputError(
                "TreeShap reads the trees, which know nothing of the codes of the columns; use AlibiKernelShap"
            )
        digest = explained_digest(forward)
        explainer = cls(forward.estimator, hardening=hardening, model_digest=digest, **made.made)
        explainer.fit(*(() if made.background is None else (made.background.rows.copy(),)))
        explainer._places = forward.places().tolist()
        return explainer
